"""``opt-tool --verify-results``: runs the module before the first pass and after each one, on the same inputs, and stops at the first pass
that changes a result.

The levels nd, loop, mem and tt run in their reference interpreters, which no later pass can spoil; kernels of the CPU and host programs run
as machine code. So do loop and mem where the interpreter would take long, and it has the last word where a result seems to differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from ...dialects import loop
from ...dialects.expr import Expr, evaluate, free_syms
from ...errors import StepwellError
from ...passes.analysis.symbols import symbol_hints
from ...passes.manager.errors import PassError
from ...passes.manager.instrumentation import print_ir, remark
from .inputs import with_own_memory
from .run import RunError, inputs_of, kept_arguments
from .run_ir import level_of, run_module

SOON = 5_000_000
"""Scalar operations that the interpreter of nests does within some ten seconds (measured: 1.5 to 2.5 us each)."""

TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""By how much a pass may change a result, relative to its largest element, where nothing else is asked for: fusion keeps in f32 what was
rounded before, and sums are made in another order. Other types of floating point: 1e-4; integers: nothing."""


@dataclass
class ResultVerifier:
    """Compares the results of a module with those that it had when it was seen last."""

    ctx: Context
    inputs: list[Any]
    function: str | None
    seed: int
    tolerance: float | None
    kept: set[int]
    """The arguments whose values a call leaves behind."""
    last: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """The IR that `last` is of: what a pass left alone is not run again."""

    @staticmethod
    def of(
        module: ModuleOp, ctx: Context, function: str | None, paths: list[str] | None, seed: int, tolerance: float | None
    ) -> ResultVerifier:
        """One that has run `module` on the inputs in the files `paths`, or on random ones. Raises RunError where it cannot be run."""
        inputs, kept = inputs_of(module, function, paths, seed), kept_arguments(module, function)
        made = ResultVerifier(ctx, inputs, function, seed, tolerance, kept)
        made.text = print_ir(module, generic=True)
        try:
            made.last = made.results(module)
        except (IndexError, RuntimeError, ValueError) as error:  # what a program raises about its inputs
            raise RunError(f"the module raises {type(error).__name__} before the first pass: {error}") from error
        return made

    def results(self, module: ModuleOp, interpret: bool = True) -> dict[str, Any]:
        """What the function returns and what it leaves in its arguments, by names for messages.

        Without `interpret` every level runs as machine code."""
        inputs = [with_own_memory(value) for value in self.inputs]
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed)
            returned = run_module(module, self.ctx, inputs, self.function, interpret=interpret)
        out = {f"result {k}": value for k, value in enumerate(returned)}
        return out | {f"argument {k}": value for k, value in enumerate(inputs) if k in self.kept and isinstance(value, torch.Tensor)}

    def after_pass(self, p: ModulePass, module: ModuleOp) -> None:
        """Raises PassError that names the pass and the first result that it changed; leaves a remark where the module cannot be run."""
        ir = print_ir(module, generic=True)
        if ir == self.text:
            return
        if self._agrees_as_machine_code(module):
            self.text = ir
            return
        try:
            found = self.results(module)
        except StepwellError as error:
            text = str(error)
            remark(module, lambda: f"not run after '{p.name}': {text}", "missed")
            return
        except Exception as error:
            what = f"the module cannot be run after this pass: {type(error).__name__}: {error}"
            raise PassError(what, pass_name=p.name, after=True) from error
        if what := self._change(found):
            raise PassError(what, pass_name=p.name, after=True)
        self.last, self.text = found, ir

    def _change(self, found: dict[str, Any]) -> str:
        """The first thing that is another than in the results of last time; "" if nothing is."""
        if len(found) != len(self.last):
            return f"there are {len(found)} results and arguments after this pass, {len(self.last)} before"
        for name, value in found.items():
            if text := difference(self.last[name], value, self.tolerance):
                return f"{name} is another after this pass: {text}"
        return ""

    def _agrees_as_machine_code(self, module: ModuleOp) -> bool:
        """Whether a module of loops that is long to interpret, taken through the rest of the pipeline, has the results of last time."""
        if level_of(module, self.function) not in ("loop", "mem") or scalar_operations(module) <= SOON:
            return False
        try:
            return not self._change(self.results(module, interpret=False))
        except Exception:  # a fault of this pass or of a later one: the interpreter says whether it is this one's
            return False


def scalar_operations(module: ModuleOp) -> int:
    """How many operations the nests of a module run for scalars, where size symbols have the values that are expected of them (else 64)."""
    hints = symbol_hints(module)

    def expected(size: Expr) -> int:
        return evaluate(size, {symbol: hints.get(symbol.name, 64) for symbol in free_syms(size)})

    def inside(op: Operation) -> int:
        sizes = [*op.loop_sizes] if isinstance(op, loop.LoopLike) else []
        if isinstance(op, loop.ContractOp):
            sizes.append(op.depth.data)
        body = sum(1 + inside(nested) for region in op.regions for block in region.blocks for nested in block.ops)
        return prod(map(expected, sizes)) * body

    return inside(module)


def difference(old: Any, new: Any, tolerance: float | None = None, scale: float = 0.0) -> str:
    """What differs between two results beyond `tolerance` (relative to the largest finite element of `old`, or to `scale` if that is
    larger); "" if nothing does."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return "" if old == new or (old != old and new != new) else f"it was {old}, it is {new}"
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {'x'.join(map(str, t.shape)) or 'scalar'}" for t in (old, new)]
        return f"it was {kinds[0]}, it is {kinds[1]}"
    inexact = old.is_floating_point() or old.is_complex()
    wide = torch.complex128 if old.is_complex() else torch.float64 if inexact else old.dtype
    a, b = old.to(wide), new.to(wide)
    if inexact:
        allowed = TOLERANCE.get(old.dtype, 1e-4) if tolerance is None else tolerance
        size = a.abs()
        largest = max(float(size[size.isfinite()].max()) if size.isfinite().any() else 0.0, scale)
        wrong = ~torch.isclose(a, b, rtol=allowed, atol=allowed * largest, equal_nan=True)
    else:
        wrong = a != b
    if not bool(wrong.any()):
        return ""
    place = tuple(int(k) for k in wrong.nonzero()[0])
    where = f" at [{', '.join(map(str, place))}]" if place else ""
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ; it was {old[place].item():.7g}, it is {new[place].item():.7g}{where}"
