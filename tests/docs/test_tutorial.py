"""The pages of docs/tutorial, and the how-to pages with programs, do what they show.

A page is a program: its blocks run in order, in a folder that holds `docs` alone.

- `python`: executed; all blocks of a page share their names.  What it prints is the output.
- `sh`: each line is a command `opt-tool ...`.  What it writes, results before messages, is the output.
- `python`, `mlir` or `pdl` whose first line is a comment with a file name: written to that file instead.
- `text`, `mlir`, `llvm` or `asm` otherwise: compared with the last output.  A line `...` stands for any lines, `...` in a
  line for any text in it.
- any other language: only shown.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
HOWTO = (
    "change-a-gpu-tile",
    "collectives",
    "deploy-and-cache",
    "find-a-slow-kernel",
    "find-a-wrong-result",
    "overrule-fusion-and-tiles",
    "random-numbers",
    "rnns",
    "quantised-models",
    "semantic-operators",
)
PAGES = sorted((ROOT / "docs/tutorial").glob("*.md")) + [ROOT / f"docs/howto/{name}.md" for name in HOWTO]
PAGES += [ROOT / "docs/reference/python-api.md"]
SHOWN = ("text", "mlir", "llvm", "asm")
_FILE = re.compile(r"(?:#|//) ([\w-]+\.(?:py|mlir|pdl))\s*$")


@dataclass
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the block is written to."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [Block(page.count("\n", 0, m.start()) + 2, m[1], m[2]) for m in found]


def matches(shown: str, output: str) -> bool:
    """Whether the output is what a block shows."""
    pattern = ""
    for line in shown.strip("\n").split("\n"):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ ]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n") is not None


class Run:
    """One page as it runs: the names of its Python blocks, and the last output."""

    def __init__(self, opt_tool, folder: Path):
        self.opt_tool, self.folder = opt_tool, folder
        self.names: dict[str, object] = {"__name__": "page"}
        self.output = ""

    def block(self, block: Block) -> None:
        """Run one block, or write its file."""
        if block.file:
            (self.folder / block.file).write_text(block.text)
        elif block.language == "python":
            self.output = self.python(block)
        elif block.language == "sh":
            self.output = "".join(self.command(line) for line in block.text.replace("\\\n", " ").splitlines())

    def python(self, block: Block) -> str:
        """What a block of Python prints.  It stands in a file, so that lines of it can be named."""
        path = self.folder / "page.py"
        path.write_text("\n" * (block.line - 1) + block.text)
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            exec(compile(path.read_text(), str(path), "exec"), self.names)
        return written.getvalue()

    def command(self, line: str) -> str:
        """What one command writes."""
        program, *arguments = shlex.split(line)
        assert program == "opt-tool", f"a command that the test does not know: {line}"
        done = self.opt_tool(*arguments)
        assert done.code == 0, f"{line}\n{done.err}"
        return done.out + done.err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, opt_tool, own_passes, tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = Run(opt_tool, tmp_path)
    with torch._dynamo.config.patch(allow_rnn=False):  # as it is; what a page sets is gone behind it
        for block in blocks(page.read_text()):
            if block.language in SHOWN and not block.file:
                assert matches(block.text, run.output), f"{page.name}:{block.line}: the page does not show this output:\n{run.output}"
            else:
                run.block(block)


def test_wildcards():
    assert matches("...\nb ... d\n...", "a\nb c d\ne\n")
    assert matches("a", "a\n") and not matches("a", "a\nb\n")
    assert not matches("a\n...\nc", "a\nb\n")


def test_the_page_of_the_python_api_shows_the_example():
    example = (ROOT / "docs/examples/tile_largest.py").read_text()
    assert example[example.index("from dataclasses") :] in (ROOT / "docs/reference/python-api.md").read_text()
