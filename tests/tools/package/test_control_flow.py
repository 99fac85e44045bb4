"""Branches and loops in packages: the programs that they call are in the file."""

import json

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import stepwell
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import open_package, packed, read_package
from stepwell.targets.package.layout import HEADER, Feature
from stepwell.targets.package.load import load_file
from stepwell.tools.package.objects import object_record
from stepwell.tools.package.retarget import retarget


class Branches(nn.Module):
    """A branch in a branch, with weights in both."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        def inner(x):
            return torch.cond(x.max() > 4, lambda x: self.layer(x).relu(), lambda x: x - 1, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: self.layer(x).cos(), (x,))


class While(nn.Module):
    def forward(self, x, n):
        return while_loop(lambda k, x: k < n, lambda k, x: (k + 1, (x * 1.1).sin()), (torch.zeros((), dtype=torch.int64), x))


class Scanned(nn.Module):
    def forward(self, x):
        return scan(lambda carried, row: ((carried + row).tanh(), carried * row), x[0] * 0, x, dim=0)


class Mapped(nn.Module):
    def forward(self, x, y):
        return mapped(lambda row, y: row * y.sum(), x, y)


ROWS = ({0: torch.export.Dim("rows", min=2, max=9)},)
CASES = {
    "cond": (Branches, [(torch.full((3, 4), 5.0),), (torch.ones(2, 4),), (-torch.ones(3, 4),)], ROWS),
    "while": (While, [(torch.ones(3, 4), torch.tensor(3)), (torch.ones(3, 4), torch.tensor(0))], None),
    "scan": (Scanned, [(torch.randn(5, 4),), (torch.randn(8, 4),)], ROWS),
    "map": (Mapped, [(torch.randn(5, 4), torch.randn(3))], None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("host", ["native", "python"])
def test_calls_are_as_in_eager(name, host, tmp_path, monkeypatch):
    make, calls, shapes = CASES[name]
    torch.manual_seed(0)
    model, path = make().eval(), tmp_path / "a.stepwell"
    stepwell.export(model, calls[0], to=path, dynamic_shapes=shapes, targets=["cpu-v3"])
    monkeypatch.setenv("STEPWELL_HOST", host)
    loaded = stepwell.load(path)
    for args in calls:
        torch.testing.assert_close(loaded(*args), model(*args))


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    """The path of a package of `Branches`."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("package") / "a.stepwell"
    stepwell.export(Branches().eval(), (torch.ones(3, 4),), to=path, targets=["cpu-v3"])
    return path


def test_a_reader_has_to_know_control_flow(branches):
    assert HEADER.unpack(branches.read_bytes()[: HEADER.size])[3] == Feature.CONTROL_FLOW


def test_programs_are_compiled_for_another_target(branches, tmp_path):
    retarget(branches, ["cpu-native"], to=tmp_path / "b.stepwell")
    x = torch.full((3, 4), 5.0)
    torch.testing.assert_close(stepwell.load(tmp_path / "b.stepwell")(x), stepwell.load(branches)(x))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"program": "forward.1"}, "calls itself"),
        ({"program": "forward.9"}, "no section program 'forward.9'"),
        ({"program": "forward.2"}, "the operands of subgraph 'forward.2' are not those of its program"),
        ({"program": "forward.2", "strides": [None] * 9, "results": [["result", 1]]}, "a subgraph 'forward.2' has no result 1"),
        ({"program": "", "results": [["operand", 0]]}, "a subgraph '' has no operand 0"),
        ({"program": "", "results": [["gift", 0]]}, "a subgraph '' has no gift 0"),
    ],
)
def test_programs_that_do_not_fit_who_calls_them_are_refused(body, message, branches):
    control = {"kind": "control", "name": "Body", "bodies": [{"strides": [], "results": [], **body}]}
    sections = []
    with open_package(branches) as file:
        for section in file.index.sections:
            content = bytes(file.bytes_of(section))
            if section.kind == "program" and section.name == "forward.1":
                content = json.dumps({**json.loads(content), "objects": [control]}).encode()
            sections.append((section, content))
    with pytest.raises(PackageError, match=message):
        load_file(read_package(b"".join(packed(sections, {}, "0"))))


def test_an_object_that_no_file_can_hold():
    with pytest.raises(PackageError, match="entry point 'forward' calls a builtin_function_or_method of Python, which no file can hold"):
        object_record("forward", len, lambda body: pytest.fail("it is no control flow"))
