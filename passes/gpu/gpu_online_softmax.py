"""gpu-online-softmax: the maximum of a long row and the sum of the exponentials below it in one pass over the row.

    %m = loop.reduce (%j) max { %x }  %s = loop.reduce (%k) sum { exp(%x - %m) }    ->    %m, %s = loop.reduce (%j) softmax { %x }

What is below an infinite maximum may be taken from 0 instead (logsumexp): the sum is exp(%m) then.

Rows that fit on chip are read once either way (Milakov and Gimelshein, 2018, have the rule of the pairs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import product
from ...dialects.machine import has_fixed_order
from ...dialects.nd.types import is_float
from ...dialects.support.replace import erase_op
from ..analysis.constants import constant_of
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import CMPF
from ..analysis.symbols import symbol_facts
from ..manager.pass_manager import Pass
from .tiles.rules import MAX_ON_CHIP_ELEMENTS
from .tiles.tile import Sizes


@dataclass(frozen=True)
class GpuOnlineSoftmax(Pass):
    """Reads long rows once for their maximum and the sum of their exponentials."""

    name = "gpu-online-softmax"

    longest: int = MAX_ON_CHIP_ELEMENTS
    """Elements of a row that is kept on chip, and left as it is; a length that is a symbol counts with its hint."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return
        sizes = Sizes(symbol_facts(op)[1])
        for nest in nests_in_memory(op):
            for _ in range(merge_pairs(nest, lambda op: sizes(product(op.loop_sizes)) > self.longest)):
                self.statistic("num-merged")
                self.remark(nest, "maximum and sum of exponentials in one pass", kind="applied")


def merge_pairs(nest: loop.NestOp, wanted: Callable[[loop.ReduceOp], bool] = lambda _: True) -> int:
    """Find maxima together with the sums of exponentials below them, where the reduction that adds up is `wanted` so; how many pairs."""
    highest: loop.ReduceOp | None = None
    merged = 0
    for inner in [op for op in nest.block.ops if isinstance(op, loop.ReduceOp)]:
        if highest is not None and wanted(inner) and _are_pair(highest, inner):
            _merge(highest, inner)
            highest = None
            merged += 1
        elif inner.kind_names == ["max"] and is_float(inner.results[0].type):
            highest = inner
    return merged


def _are_pair(highest: loop.ReduceOp, total: loop.ReduceOp) -> bool:
    """Whether one is the maximum of values and the other the sum of their exponentials below it."""
    if list(total.kind_names) != ["sum"] or list(highest.loop_sizes) != list(total.loop_sizes):
        return False
    if any(isinstance(op, (loop.StoreOp, loop.LoopLike)) for reduce in (highest, total) for op in reduce.block.ops):
        return False
    difference = _exponent(total)
    if difference is None or _finite_of(difference.rhs)[0] is not highest.results[0]:
        return False
    return computed_alike(highest.yielded[0], difference.lhs, dict(zip(highest.indices, total.indices, strict=True)))


def _exponent(total: loop.ReduceOp) -> arith.SubfOp | None:
    """The difference whose exponentials a loop adds up, if it does that."""
    power = total.yielded[0].owner
    difference = power.operand.owner if isinstance(power, mlir_math.ExpOp) else None
    return difference if isinstance(difference, arith.SubfOp) else None


def _finite_of(value: SSAValue) -> tuple[SSAValue, SSAValue | None]:
    """%m and what says that it is infinite, where a value is 0 then and else %m; any other value itself."""
    choice = value.owner
    if isinstance(choice, arith.SelectOp) and constant_of(choice.lhs) == 0.0 and isinstance(compared := choice.cond.owner, arith.CmpfOp):
        size, found = compared.lhs.owner, choice.rhs
        infinite = compared.predicate.value.data == CMPF["oeq"] and constant_of(compared.rhs) == math.inf
        if infinite and isinstance(size, mlir_math.AbsFOp) and size.operand is found:
            return found, choice.cond
    return value, None


def computed_alike(a: SSAValue, b: SSAValue, known: dict[SSAValue, SSAValue]) -> bool:
    """Whether two values are computed alike, by operations that only load and compute; `known` pairs values that are."""
    if known.get(a, a) is b:
        return True
    x, y = a.owner, b.owner
    if not isinstance(x, Operation) or not isinstance(y, Operation) or type(x) is not type(y) or x.regions:
        return False
    if len(x.results) != 1 or len(x.operands) != len(y.operands) or x.properties != y.properties:
        return False
    if not all(computed_alike(p, q, known) for p, q in zip(x.operands, y.operands, strict=True)):
        return False
    known[a] = b
    return True


def _merge(highest: loop.ReduceOp, total: loop.ReduceOp) -> None:
    t = highest.results[0].type
    new = highest.yielding(["softmax"], [t, t], highest.yielded)
    new.location = total.location
    block, difference = highest.parent, _exponent(total)
    assert block is not None and difference is not None
    infinite = _finite_of(difference.rhs)[1]
    if infinite is None:
        total.results[0].replace_all_uses_with(new.results[1])
    else:
        power = mlir_math.ExpOp(new.results[0])
        either = arith.SelectOp(infinite, power.result, new.results[1])
        block.insert_ops_before([power, either], total)
        total.results[0].replace_all_uses_with(either.result)
    erase_op(total)
    highest.results[0].replace_all_uses_with(new.results[0])
    erase_op(highest)
