"""loop-unroll: short loops of known size inside a nest as straight code. The counterpart of `affine-loop-unroll-full`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import as_expr
from ....dialects.expr.ranges import RangeEnv
from ....dialects.support.replace import erase_op
from ...analysis.reduction_kinds import Cursor, combine
from .loop_rewrite import Place, clone_into, index_op
from .nest_transform import NestTransform, Refused


@dataclass(frozen=True)
class LoopUnroll(NestTransform):
    """Unrolls loop.for and loop.reduce of few iterations."""

    name = "loop-unroll"

    part: int = 1
    """Which loop inside of the nest, from 1."""

    limit: int = 16
    """The most iterations (of all loops of the op together) that are written out."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        if isinstance(target, loop.NestOp):
            raise Refused("the loops of the nest itself are shared by threads and lanes; unrolled are those inside (part from 1)")
        if isinstance(target, loop.ScanOp):
            raise Refused("a scan is not unrolled")
        sizes = [s.value for s in target.loop_sizes]
        total = 1
        for size, e in zip(sizes, target.loop_sizes, strict=True):
            if size is None:
                raise Refused(f"its size {e} is not known")
            total *= size
        if total > self.limit:
            raise Refused(f"it has {total} iterations, the limit is {self.limit}")
        if isinstance(target, loop.ReduceOp):
            if total == 0:
                raise Refused("it has no iterations")
            for kind in target.kind_names:
                if kind in ("welford", "softmax"):
                    raise Refused(f"the kind {kind} makes one pass for all values and one for each")
                if kind in ("scaled_prod", "softmax_dot"):
                    raise Refused(f"the kind {kind} makes a state of more numbers of each value")
        unroll(target, [s for s in sizes if s is not None], symbols)
        return f"{target.name} of {total} iterations is unrolled"


def unroll(target: loop.LoopLike, sizes: list[int], symbols: RangeEnv) -> None:
    """Replace a loop.for, or a loop.reduce of kinds that combine two results, by copies of its body."""
    block = target.parent
    assert block is not None
    at = Cursor(block, target)
    results: list[list[SSAValue]] = []
    for index in product(*map(range, sizes)):
        values: dict[SSAValue, SSAValue] = {}
        places: dict[SSAValue, Place] = {}
        numbers: list[Operation] = []
        for old, k in zip(target.indices, index, strict=True):
            made = at.place(index_op(as_expr(k), []))
            values[old] = made.results[0]
            places[made.results[0]] = (as_expr(k), [])
            numbers.append(made)
        for op in target.block.ops:
            if isinstance(op, loop.YieldOp):
                assert isinstance(target, loop.ReduceOp)
                each = [(one.kind, [values.get(v, v) for v in one.values]) for one in target.each()]
                results = [combine(at, kind, results[k], new) if results else new for k, (kind, new) in enumerate(each)]
            else:
                at.place(clone_into(op, values, places, symbols))
        for made in numbers:
            if not any(True for _ in made.results[0].uses):
                erase_op(made)
    flat = [v for part in results for v in part]
    for old, new in zip(target.results, flat, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    erase_op(target)
