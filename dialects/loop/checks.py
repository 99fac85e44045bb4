"""What the verifiers of `loop` ask about accesses: whether one leaves what it accesses, whether an out is filled, and whether a body makes
what none can make.

Only what is certain is an error: an index that leaves its dimension at a corner of the loops around it, whatever the size symbols are.
What is under a condition or in loops without iterations does not run, and what is read of something empty is not used: such loads may
have been taken out of loops without iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from ..expr import Expr, free_dims
from ..nd.types import TensorType
from .base import LoopLike

MAX_CORNERS = 1 << 6
"""Corners that are looked at for one index: of six loops all."""


def extent_of(index: SSAValue) -> Expr | None:
    """How many iterations the loop has whose index this is; None for an index that was computed or loaded."""
    if not isinstance(index, BlockArgument):
        return None
    loop = index.owner.parent_op()
    return loop.loop_sizes[index.index] if isinstance(loop, LoopLike) and index.index < len(loop.loop_sizes) else None


def runs(op: Operation) -> bool:
    """Whether `op` is under no condition and in no loop that is known to have no iterations."""
    around = op.parent_op()
    while isinstance(around, LoopLike):
        if any(size.value is not None and size.value <= 0 for size in around.loop_sizes):
            return False
        around = around.parent_op()
    return not isinstance(around, scf.IfOp)


def leaves(index: Sequence[Expr], extents: Sequence[Expr | None], sizes: Sequence[Expr]) -> str:
    """What is wrong with an access at `index` (over the dimensions d0...), whose dimension k counts to `extents[k]` (None: not known), to
    something of `sizes`; "" if nothing is, as far as can be said."""
    if any(size.value == 0 for size in sizes):
        return ""
    for place, (expr, size) in enumerate(zip(index, sizes, strict=True)):
        used = sorted(free_dims(expr), key=lambda d: d.index)
        bounds = [extents[d.index] for d in used]
        if None in bounds or 1 << len(used) > MAX_CORNERS:
            continue
        for corner in product(*((0, bound - 1) for bound in bounds if bound is not None)):
            at = expr.subs(dict(zip(used, corner, strict=True)))
            beyond = (at - size).value
            if (at.value is not None and at.value < 0) or (beyond is not None and beyond >= 0):
                return f"index {place} reaches {at}, its dimension has the size {size}"
    return ""


def unfilled(outs: Sequence[SSAValue], inside: Sequence[SSAValue]) -> str:
    """What is wrong with the `outs` of a nest, `inside` in its body: one without contents that nothing is stored to; "" if nothing."""
    for place, (out, arg) in enumerate(zip(outs, inside, strict=True)):
        if isinstance(out.owner, Operation) and out.owner.name == "loop.empty":
            if not any(use.operation.name == "loop.store" and use.index == 1 for use in arg.uses):
                return f"nothing is stored to out {place}, which has no contents before"
    return ""


def makes_tensor(body: Region) -> str:
    """What is wrong with the body of a nest that holds operations on whole tensors; "" if nothing."""
    for op in body.walk():
        if op.name != "loop.local" and any(isinstance(r.type, TensorType) for r in op.results):
            return f"'{op.name}' in its body makes a tensor; what a nest computes are elements, and memory in it is loop.local"
    return ""
