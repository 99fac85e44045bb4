"""nd -> loop: every computed `nd` op becomes a nest of its own, views fold into the accesses of whoever reads through them.

The counterpart of MLIR's `convert-elementwise-to-linalg` and `linalg-generalize-named-ops`. What is merged is decided later
(passes/loop/fusion/loop_fuse.py), so that this level shows one readable nest for each operator.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from ...dialects.expr.ranges import RangeEnv
from ...dialects.loop import BatchOp
from ...dialects.nd import ExternOp, UpdateOp, symbol_ranges
from ...passes.manager.errors import PassError
from ...passes.manager.instrumentation import remark
from ...passes.manager.resume import function_level
from .lowering import Lowering
from .rules import RULES


@dataclass(frozen=True)
class NdToLoop(ModulePass):
    """Turns tensor ops into loop nests, one for each computed op."""

    name = "nd-to-loop"

    numerics: str = "module"
    """"default" keeps f16/bf16 intermediates in f32 inside a fused nest; "eager" rounds after every op, as PyTorch without a compiler;
    "module" does what the module's attribute nd.numerics says (absent: default)."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = symbol_ranges(op)
        given = op.attributes.get("nd.numerics")
        numerics = given.data if self.numerics == "module" and isinstance(given, StringAttr) else self.numerics
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if function_level(func) == "loop":
                remark(func, "nothing to lower: the function is at level loop")
                continue
            lower_function(func, symbols, numerics == "eager")


_BEHIND = frozenset(("loop", "mem", "host", "cpu"))
"""Dialects of what this pass makes, and of the levels after that."""


def lower_function(func: FuncOp, symbols: RangeEnv, eager_rounding: bool) -> None:
    """Replace the body of `func` (nd) by its loop form."""
    low = Lowering(func, symbols, eager_rounding)
    needed = _needed(func)
    for op in func.body.block.ops:
        if op not in needed:
            continue
        rule = RULES.get(type(op))
        if rule is None:
            behind = op.name.partition(".")[0] in _BEHIND
            hint = ": this function is behind it already; a pipeline without `from` begins at its level" if behind else ""
            raise PassError(f"nd-to-loop has no rule for {op.name}{hint}", op=op)
        rule(low, op)
    old = func.body.block
    func.body.detach_block(old)
    func.body.add_block(low.block)
    old.erase(safe_erase=False)
    func.update_function_type()


def _needed(func: FuncOp) -> set[Operation]:
    """Ops whose results reach the return, an update or an effect."""
    live: set[Operation] = set()
    for op in reversed(list(func.body.block.ops)):
        root = not op.results or isinstance(op, UpdateOp | BatchOp | CallOp) or (isinstance(op, ExternOp) and _has_effect(op))
        if root or any(use.operation in live for r in op.results for use in r.uses):
            live.add(op)
    return live


def _has_effect(op: Operation) -> bool:
    return "effect" in op.properties or "binds" in op.properties
