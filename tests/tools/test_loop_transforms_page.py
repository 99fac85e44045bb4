"""The commands of docs/howto/loop-transforms.md run, and give the same values; the passes and messages that it names are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from stepwell.passes.manager.registry import OURS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/howto/loop-transforms.md").read_text()


def commands() -> list[str]:
    return "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()


def test_commands_of_the_page(opt_tool, tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    results = []
    for command in commands():
        done = opt_tool(*shlex.split(command.replace("--repeat 20", "--repeat 2"))[1:])
        assert done.code == 0, done.err
        if "--run" in command:
            assert "2 calls: shortest " in done.err
            results.append(re.sub(r"(\.\d{2})\d*", r"\1", done.out).split("result 1")[0])
        if "--remarks" in command:
            assert "loops in the order loop 1, loop 0" in done.err or "loops in the order" in done.err
    assert len(results) == 4 and len(set(results)) == 1
    assert "loop.reduce (%" in (tmp_path / "split.mlir").read_text() and "y_parts" not in (tmp_path / "split.mlir").read_text()
    assert "tiles = array<i64: 16, 256>, vector" in (tmp_path / "scheduled.mlir").read_text()


def test_the_table_has_the_passes():
    named = set(re.findall(r"^\| `(loop-[a-z-]+)` \|", PAGE, re.MULTILINE))
    assert named <= set(OURS) and len(named) == 9


def test_a_pass_as_an_option_of_torch_compile():
    import torch

    import stepwell

    torch._dynamo.reset()
    stepwell.reset_counters()
    x = torch.randn(3, 5000)
    text = re.findall(r'"passes": \{"loop": \["(.*?)"\]\}', PAGE)[0]
    compiled = torch.compile(lambda x: x.exp().sum(1), backend="stepwell", options={"passes": {"loop": [text.replace("sum_1", "sum")]}})
    torch.testing.assert_close(compiled(x), x.exp().sum(1))
    assert stepwell.counters["launches"] >= 2
