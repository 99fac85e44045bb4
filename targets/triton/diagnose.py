"""Why Triton refuses a kernel: its stages once more, in a process whose standard error can be read.

Run as ``python -m stepwell.targets.triton.diagnose`` with a JSON object on standard input.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser

from ...passes.manager.errors import PassError
from .device_library import library_of
from .emit import kernel_of, ttir_text
from .gpu import GpuTarget, KernelOptions
from .toolchain import StageError, build, installed_spelling, version

TIMEOUT_SECONDS = 300
"""Seconds after which the second run is given up."""

_PLACE = re.compile(r'\.ttir"?:(\d+):(\d+)\)?: error: (?!Failures have been)(.*)')


def explain(
    module: ModuleOp, target: GpuTarget, options: KernelOptions, stage: str, failure: StageError
) -> PassError:
    """The error to raise for a kernel that failed: what Triton said, at the operation that it said it of."""
    kernel = kernel_of(module)
    with library_of(module, target.backend):
        text = ttir_text(module, installed_spelling())
    said = _again(text, target, options, stage)
    head = f"kernel @{kernel.sym_name.data} for {target.name} (Triton {version()}, stage '{failure.stage}')"
    for line, _, message in _PLACE.findall(said):
        op = _operation(module, text, int(line))
        return PassError(f"{head}: {message}", op=op or kernel)
    errors = [line.strip() for line in said.splitlines() if "error" in line.lower()]
    detail = failure.message if failure.stage in ("cubin", "options") or not errors else "\n".join(errors[:5])
    return PassError(f"{head}: {detail}", op=kernel)


def _again(text: str, target: GpuTarget, options: KernelOptions, stage: str) -> str:
    request = {"text": text, "target": asdict(target), "options": asdict(options), "stage": stage}
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stderr


def _operation(module: ModuleOp, text: str, line: int) -> Operation | None:
    """The operation of `module` that `text`, printed from it, has on a line (or on the nearest before it)."""
    from ...dialects import load_dialects

    starts = _lines(text, load_dialects(Context()))
    best = None
    for op, at in zip(module.walk(), starts, strict=False):
        if at is not None and at <= line:
            best = op
    return best


def _lines(text: str, ctx: Context) -> list[int | None]:
    """The line of each operation of a text, in the order of `walk`."""
    class Lined(Parser):
        def parse_operation(self) -> Operation:
            start = self._current_token.span.get_location().line
            op = super().parse_operation()
            lines[op] = start
            return op

    lines: dict[Operation, int] = {}
    parsed = Lined(ctx, text, "kernel.ttir").parse_module()
    return [lines.get(op) for op in parsed.walk()]


def main() -> int:
    """Build what standard input asks for; what Triton says of it goes to standard error."""
    request = json.load(sys.stdin)
    target, options = GpuTarget(**request["target"]), KernelOptions(**request["options"])
    try:
        build(request["text"], target, options, request["stage"])
    except StageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
