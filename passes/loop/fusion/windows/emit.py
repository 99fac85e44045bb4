"""Writing a nest that computes a producer by tiles (plan.py).

loop.nest (%c = 64, %t = 8) outs(%y) {
  %rows = loop.local : !nd.tensor<1 x 10 x 128 x f32>
  loop.for (%r = 10, %w = 128) { ... loop.store %v, %rows[0, %r, %w] }       // row 8 t + r - 1 of the producer
  loop.for (%q = 8, %w = 128) { ... loop.load %rows[0, %q + 1, %w] ... loop.store %u, %y[%c, %t * 8 + %q, %w] }
}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from .....dialects import loop
from .....dialects.expr import ZERO, Expr, as_expr, maximum, minimum
from .....dialects.expr.ranges import RangeEnv
from .....dialects.nd.types import TensorType
from ...transform.body import Body
from ...transform.nest_copy import NestCopy
from .plan import WindowPlan, without_clamp


def write_window(plan: WindowPlan, symbols: RangeEnv) -> loop.NestOp:
    """The nest of a plan; its results stand for the reader's, in order."""
    return _Writer(plan, symbols).write()


class _Writer:
    def __init__(self, plan: WindowPlan, symbols: RangeEnv):
        self.plan = plan
        self.reader = plan.reader.op
        self.producer = plan.producer.info.op
        sizes = plan.tiling.outer_sizes(plan.reader.sizes)
        self.nest = loop.NestOp.build_nest(sizes, list(self.reader.outs), self.reader.location)
        labels = [op.label.data for op in (self.producer, self.reader) if op.label is not None]
        if labels:
            self.nest.properties["label"] = StringAttr("_".join(dict.fromkeys(labels)))
        self.body = Body(self.nest.block, sizes, symbols, self.reader.location)

    def write(self) -> loop.NestOp:
        plan, body = self.plan, self.body
        kind = plan.producer.result.type
        assert isinstance(kind, TensorType)
        local = loop.LocalOp.make(kind.with_dims([w.count for w in plan.windows]))
        local.result.name_hint = plan.producer.result.name_hint
        body.append(local)
        self._produce(local.result)
        reads = _Reads(self, local.result)
        tiling, sizes = plan.tiling, plan.reader.sizes
        self._in_loops(tiling.inner_sizes(sizes), lambda inner: self._consume(reads, inner))
        return self.nest

    def _in_loops(self, sizes: Sequence[Expr], write: Callable[[Sequence[Expr]], None]) -> None:
        """Write in a loop over `sizes`, or at once where there are none."""
        if not sizes:
            write(())
            return
        op = loop.ForOp.build_for(sizes)
        with self.body.inner(op, op.body, sizes) as dims:
            write(dims)

    def _produce(self, local: SSAValue) -> None:
        """The rows of the window into the local memory."""
        plan, info = self.plan, self.plan.producer.info
        axis_of = {k: axis for axis, k in enumerate(plan.producer.axes) if k is not None}
        rows = [k for k in range(len(info.sizes)) if plan.windows[axis_of[k]].count > 1]

        def write(dims: Sequence[Expr]) -> None:
            inner = dict(zip(rows, dims, strict=True))
            place: dict[SSAValue, Expr] = {}
            at: dict[int, Expr] = {}
            for k, index in enumerate(info.indices):
                window, row = plan.windows[axis_of[k]], inner.get(k, ZERO)
                inside = minimum(maximum(window.low + row, 0), info.sizes[k] - 1)
                place[index] = row if window.whole else self.body.simplify(inside)
                at[axis_of[k]] = row
            _Rows(self.body, place, local, at).block(self.producer.block)

        self._in_loops([as_expr(plan.windows[axis_of[k]].count) for k in rows], write)

    def _consume(self, copy: _Reads, inner: Sequence[Expr]) -> None:
        """The reader's body, in one iteration of each of its loops."""
        tiling, sizes, body = self.plan.tiling, self.plan.reader.sizes, self.body
        places = tiling.places(sizes, inner)
        copy.rows = dict(zip(self.reader.indices, places, strict=True))
        # what is beyond the last iteration repeats it, and is not stored
        copy.enter(self.reader.indices, [body.simplify(minimum(e, size - 1)) for e, size in zip(places, sizes, strict=True)])
        for k, _ in tiling.tiles:
            copy.guard = body.logical_and(copy.guard, body.inside(places[k], sizes[k]))
        copy.block(self.reader.block)


class _Rows(NestCopy):
    """Clones the producer, which stores into the local memory at `at` (by dimension; others by the store's own index)."""

    def __init__(self, body: Body, place: dict[SSAValue, Expr], local: SSAValue, at: Mapping[int, Expr]):
        super().__init__(body, place)
        self.local, self.at = local, at

    def read(self, op: loop.LoadOp, index: tuple[Expr, ...], mask: SSAValue | None, other: SSAValue | None) -> SSAValue:
        return self.body.load(op.source, index, mask, other)

    def write(self, op: loop.StoreOp, value: SSAValue, index: tuple[Expr, ...], mask: SSAValue | None) -> None:
        self.body.store(value, self.local, [self.at.get(axis, e) for axis, e in enumerate(index)])


class _Reads(NestCopy):
    """Clones the reader, which finds the producer's result in the local memory. `guard`: the condition under which the iteration is one."""

    def __init__(self, writer: _Writer, local: SSAValue):
        super().__init__(writer.body, {})
        self.plan, self.local = writer.plan, local
        self.rows: dict[SSAValue, Expr] = {}
        """The reader's loops as `Tiling.places` has them."""
        self.outs = dict(zip(writer.reader.out_args, writer.nest.out_args, strict=True))

    def read(self, op: loop.LoadOp, index: tuple[Expr, ...], mask: SSAValue | None, other: SSAValue | None) -> SSAValue:
        if op.source in self.values:  # tiles that the reader has already
            return self.body.load(self.values[op.source], index, mask, other, mutable=True)
        if op.source is not self.plan.producer.result:
            return self.body.load(op.source, index, mask, other)
        sizes = self.plan.producer.sizes
        plain = op.index_map.apply([self.rows.get(v) or self.place[v] for v in op.index_operands])
        at = [
            inside if window.whole else without_clamp(e, size) - window.low
            for inside, e, size, window in zip(index, plain, sizes, self.plan.windows, strict=True)
        ]
        return self.body.load(self.local, at, mask, other, mutable=True)

    def write(self, op: loop.StoreOp, value: SSAValue, index: tuple[Expr, ...], mask: SSAValue | None) -> None:
        if op.target in self.values:
            self.body.store(value, self.values[op.target], index)
            return
        condition = self.body.logical_and(self.guard, mask)
        self.body.store(value, self.outs[op.target], index, op.store_mode, condition)
