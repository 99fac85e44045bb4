"""`stepwell inspect`: what a package holds, and what differs between two."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import stepwell
from stepwell.targets.package.format import Section, open_package, write_package
from stepwell.targets.package.signature import Weights
from stepwell.tools.package.inspection import inspect


class Net(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, *, scale, pair):
        self.calls.add_(1)
        hidden = torch.relu(self.first(x) * scale) + pair["a"]
        return self.last(hidden), [hidden.sum(), torch.linalg.svdvals(hidden)]


def export(path, **how):
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    kwargs = {"scale": torch.tensor(2.0), "pair": {"a": torch.randn(16)}}
    sizes = {"x": {0: batch}, "scale": {}, "pair": {"a": {}}}
    stepwell.export(Net().eval(), (torch.randn(6, 8),), kwargs, dynamic_shapes=sizes, to=path, **how)
    return str(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return export(tmp_path_factory.mktemp("packages") / "net.stepwell", targets=["cpu-v3"])


def shown(capsys, *arguments: str) -> str:
    assert inspect.main(arguments) == 0
    return capsys.readouterr().out


def test_the_page(file, capsys):
    page = shown(capsys, file, "--kernels", "--weights")
    lines = page.splitlines()
    assert lines[0].startswith(f"{file}: ") and f"torch {torch.__version__.partition('+')[0]}" in lines[0]
    (symbol,) = (line.split()[0] for line in lines if line.endswith("from 2 to 64"))
    assert lines[2] == (
        f"forward(x: float32[{symbol}, 8], *, scale: float32[], pair: {{'a': float32[16]}}) -> "
        f"(float32[{symbol}, 4], [float32[], float32[min({symbol}, 16)]])"
    )
    assert "  writes to calls" in lines
    row = next(line for line in lines if line.startswith("cpu-v3  forward"))
    assert "svd" in row
    assert any(line.startswith("cpu-v3 forward: ") and "k_" in line for line in lines)
    assert "first.weight  float32[16, 8]  parameter" in page and "calls         float32[1]      buffer" in page
    assert any(line.startswith("weights ") and "weights in" in line for line in lines)


def test_every_section_is_checked(file, tmp_path, capsys):
    assert " sections have their checksums\n" in shown(capsys, file, "--verify")
    damaged = tmp_path / "damaged"
    content = bytearray((tmp_path.parent / file).read_bytes())
    with open_package(file) as package:
        content[package.section("code", "forward", "cpu-v3").offset] ^= 1
    damaged.write_bytes(content)
    assert inspect.main([str(damaged), "--verify"]) == 2
    assert "section code 'forward' for cpu-v3 is damaged" in capsys.readouterr().err


def test_as_json(file, capsys):
    facts = json.loads(shown(capsys, file, "--json"))
    assert facts["entries"][0]["updates"] == ["calls"]
    assert facts["programs"][0]["target"] == "cpu-v3" and facts["programs"][0]["native"]
    assert sum(facts["parts"].values()) <= facts["size"]


def test_differences(file, tmp_path, capsys):
    assert shown(capsys, file, "--diff", file) == "no difference\n"
    other = tmp_path / "other.stepwell"
    torch.manual_seed(1)
    kwargs = {"scale": torch.tensor(2.0), "pair": {"a": torch.randn(16)}}
    stepwell.export(Net().eval(), (torch.randn(6, 8),), kwargs, to=other, targets=["cpu-v3"])
    assert inspect.main([file, "--diff", str(other)]) == 1
    found = capsys.readouterr().out.splitlines()
    assert "weight first.weight: other values" in found and not any(line.startswith("weight calls") for line in found)
    (entry,) = (line for line in found if line.startswith("entry forward: forward(x: float32["))
    assert entry.endswith("-> (float32[6, 4], [float32[], float32[6]])")


def test_errors(file, tmp_path, capsys):
    for arguments, message in (
        ([str(tmp_path / "none")], "it cannot be opened: No such file"),
        ([file, "--ir", "nothing"], "it has no IR of level 'nothing' for entry point 'forward'; it "),
        ([file, "--ir", "nd", "--entry", "decode"], "it has no entry point 'decode'; it has forward"),
    ):
        assert inspect.main(arguments) == 2
        assert message in capsys.readouterr().err
    write_package(tmp_path / "cache", [(Section("graphs", "a", 0, 0, ""), b"x")], {"content": "cache"}, "0")
    assert inspect.main([str(tmp_path / "cache")]) == 2
    assert "it is an exported cache; `stepwell cache import` reads it" in capsys.readouterr().err


def test_plans(file, capsys):
    """Peak, arena and time from the IR that a file holds."""
    lines = shown(capsys, file).splitlines()
    row = lines[next(k for k, line in enumerate(lines) if line.startswith("target  entry    arena")) + 1]
    assert row.startswith("cpu-v3  forward  ") and " us " in row and row.endswith("= 6")
    (plan,) = json.loads(shown(capsys, file, "--json"))["plans"]
    assert plan["peak"] >= plan["arena"] >= 6 * 16 * 4 and plan["microseconds"] > 0
    for level, operation in (("import", "nd."), ("loop", "loop.nest"), ("mem", "mem."), ("host", "host.program")):
        assert operation in shown(capsys, file, "--ir", level)


def test_without_ir_and_samples(tmp_path, capsys):
    bare = export(tmp_path / "bare", targets=["cpu-v3"], ir=False, samples=False)
    assert "predicted" not in shown(capsys, bare)
    assert shown(capsys, bare, "--verify").endswith("there are no sample inputs\n")
    assert inspect.main([bare, "--ir", "nd"]) == 2
    assert "it has no IR of level 'nd' for entry point 'forward'; it was written without IR" in capsys.readouterr().err


def test_samples_are_run(file, tmp_path, capsys):
    """Twice, since a call writes to a buffer of the file's copy in memory alone."""
    for _ in range(2):
        assert shown(capsys, file, "--verify").endswith("'forward' gives eager's results for its sample inputs, by its code for cpu-v3\n")
    with open_package(file) as package:
        table = package.load(Weights, "samples-table", "forward")
        place = next(table.storages[one.storage].offset for one in table.tensors if one.name == "result 0")
        sections = [(s, bytearray(package.bytes_of(s))) for s in package.index.sections]
        next(content for s, content in sections if s.kind == "samples")[place + 3] ^= 64
        write_package(tmp_path / "wrong", sections, package.index.notes, "0")
    assert inspect.main([str(tmp_path / "wrong"), "--verify"]) == 2
    assert "its code for cpu-v3 is wrong on this machine: result 0 of 'forward' is off by " in capsys.readouterr().err


def test_random_numbers_have_no_samples(tmp_path, capsys):
    """A dropout that does nothing is none."""
    x = torch.randn(8, 8)
    for rate, expected in ((0.5, "there are no sample inputs"), (0.0, "by its code for cpu-v3")):
        path = tmp_path / str(rate)
        stepwell.export(lambda x, rate=rate: torch.dropout(x, rate, True) * 2, (x,), to=path, targets=["cpu-v3"])
        assert shown(capsys, str(path), "--verify").endswith(f"{expected}\n")
