"""STEPWELL_DEBUG=dir (or options={"debug": dir}): everything about a compilation as files that can be read, edited and run on.

Each graph gets a folder `NNN_kind` with `graph.py` (the FX graph), `0_import.mlir` ... `5_host.mlir` (the IR of each stage), `kernels.ll`,
`kernels.s`, `remarks.txt` and `README.txt` with the opt-tool commands that take each level to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp

from ...passes.manager.instrumentation import Remark, print_ir
from ...passes.manager.pass_manager import Pipeline, Stage
from ..options.options import OptionError


def readable(gm: GraphModule) -> str:
    """A graph as Python text, each value with its sizes, strides and device."""
    return gm.print_readable(print_output=False, include_stride=True, include_device=True)


@dataclass
class DebugFolder:
    """The files of one graph."""

    path: Path
    last: str = ""
    number: int = 0
    lines: list[str] = field(default_factory=list)

    @staticmethod
    def make(folder: Any, kind: str, number: int) -> DebugFolder | None:
        """A new folder under `folder`, or None when there is to be none. Raises OptionError if it cannot be made."""
        if not folder:
            return None
        path = Path(folder) / f"{number:03d}_{kind}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"the folder '{folder}' (option 'debug' or the variable STEPWELL_DEBUG) cannot be made: {error.strerror}"
            raise OptionError(text) from error
        return DebugFolder(path)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def graph(self, gm: GraphModule) -> None:
        self.write("graph.py", readable(gm))

    def level(self, stage: str, module: ModuleOp, pipeline: Pipeline) -> None:
        """The IR after a stage, and the command that makes it from the one before."""
        name = f"{self.number}_{stage or 'passes'}.mlir"
        self.write(name, print_ir(module, debuginfo=False))
        if self.last:
            text = str(Pipeline("one", [Stage(stage, pipeline.stage(stage).entries)]))
            self.lines.append(f"opt-tool {self.last} --pass-pipeline='{text}' -o {name}")
        self.last, self.number = name, self.number + 1

    def remark(self, remark: Remark) -> None:
        with open(self.path / "remarks.txt", "a") as f:
            f.write(f"{remark}\n")

    def target(self, llvm: str) -> None:
        """The generated text, its assembly, and the README with all commands."""
        from ...targets.cpu.jit import assembly

        self.write("kernels.ll", llvm)
        self.write("kernels.s", assembly(llvm))
        self.lines.append(f"opt-tool {self.last} -t llvm -o kernels.ll")
        self.lines.append(f"opt-tool {self.last} -t asm -o kernels.s")
        head = (
            "The IR of one graph after each stage, and the commands that lead from file to file (run them here). Each .mlir file runs as "
            "it stands, edited or not, with --run; with --verify-results a command stops at the first pass that changes a result.\n\n"
        )
        self.write("README.txt", head + "\n".join(self.lines) + "\n")
