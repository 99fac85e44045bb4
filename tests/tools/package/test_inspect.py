"""`stepwell inspect`: what a package holds, and what differs between two."""

from __future__ import annotations

import json

import pytest
import torch
from support import lower
from torch import nn

import stepwell
from stepwell.passes.manager.instrumentation import print_ir
from stepwell.targets.package.format import Section, open_package, write_package
from stepwell.tools.package import inspect


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
    assert shown(capsys, file, "--verify").splitlines()[-1].endswith(" sections have their checksums")
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


def test_plans(tmp_path, capsys):
    """Peak, arena and time from the IR that a file holds."""
    module = lower(lambda x, w: torch.softmax(x @ w, -1).sum(0), torch.randn(64, 32), torch.randn(32, 128), to="mem", target="cpu").module
    path = tmp_path / "net.stepwell"
    with open_package(export(tmp_path / "plain", targets=["cpu-v3"])) as plain:
        sections = [(s, plain.bytes_of(s)) for s in plain.index.sections]
        ir = Section("ir", "forward/mem", 0, 0, "", "cpu-v3"), print_ir(module, debuginfo=False).encode()
        write_package(path, [*sections, ir], plain.index.notes, "0")
    lines = shown(capsys, str(path)).splitlines()
    row = lines[next(k for k, line in enumerate(lines) if line.startswith("target  entry    arena")) + 1]
    assert row.startswith("cpu-v3  forward  ") and row.split()[-2:] == ["us", "cpu"]
    (plan,) = json.loads(shown(capsys, str(path), "--json"))["plans"]
    assert plan["peak"] >= plan["arena"] >= 64 * 128 * 4 and plan["microseconds"] > 0
    assert "// forward for cpu-v3\n" in shown(capsys, str(path), "--ir", "mem")
    assert inspect.main([str(path), "--ir", "nd"]) == 2
    assert "it has no IR of level 'nd' for entry point 'forward'; it has mem" in capsys.readouterr().err
