"""loop.scan: running reductions along the last axis of the tile, block after block with a carried state where a row does
not fit at once.

The hardware joins elements in any grouping, so running values of floats are kept in a form in which no partial result overflows
or underflows: sums of f32 as f64, products as `scaled_prod`. Sums of f64 have nothing wider, in torch's kernels neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import BoolAttr, IntegerType, f32, f64, i1, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO
from ...dialects.nd.types import element_bytes, is_float
from ...dialects.tt.arith import ExtUIOp
from ...dialects.tt.compute import BitcastOp, ScanOp, ScanReturnOp
from ...dialects.tt.types import element_of, int32, shape_of, tensor
from ...passes.analysis.reduction_kinds import is_later_extreme
from ...passes.gpu.nest_types import scalar_type
from ..nest.builder import NO_FLAGS
from .body import library
from .joined_axes import reduce_axis
from .program.sorts import lower_sort
from .reductions import Accumulator, ScaledProduct, Values, exp_below, identity
from .state import State

if TYPE_CHECKING:
    from .kernel import NestLowering


def lower_scan(kernel: NestLowering, op: loop.ScanOp) -> None:
    """loop.scan."""
    s = kernel.s
    node = s.info.nodes[op]
    types = [scalar_type(v.type) for v in op.do_block.args[1:]]
    if op.loop_sizes[0] is ZERO:
        return
    if op.kind == "sort":
        lower_sort(kernel, op, node)
        return
    running = Running(op.kind, types)
    if not node.loops:
        kernel.lower_body(op.block)
        s.dims.update({s.info.expr(v): s.b.int(0, s.index) for v in (op.block.args[0], op.do_block.args[0])})
        _do(kernel, op, running, running.single(s, kernel.yielded(op.block), s.b.int(0, s.index)))
        return
    (one,) = node.loops
    how = kernel.how(node)
    if how == "unroll":
        state: Values | None = None
        for _ in kernel.iterations(node):
            kernel.lower_body(op.block)
            here = running.single(s, kernel.yielded(op.block), s.number(s.fix(one.dim)))
            state = here if state is None else running.combine(s, state, here)
            _do(kernel, op, running, state)
        return
    if how == "loop":
        shape = s.active

        def step(at: SSAValue, now: Sequence[SSAValue]) -> list[SSAValue]:
            kernel.s.decode(at, node.loops)
            kernel.lower_body(op.block)
            here = running.single(s, kernel.yielded(op.block), at)
            found = running.combine(s, list(now), [s.b.to_shape(v, shape) for v in here])
            _do(kernel, op, running, found)
            return found

        kernel.sequential(node, running.start(s, shape), step)
        return
    axis = s.inner_axis
    assert axis is not None
    at_once = (kernel.whole(node) or kernel.tile.reduction_block + 1) <= kernel.tile.reduction_block
    kept = (*s.full[:-1], 1) if len(s.full) > 1 else None

    def body(now: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
        kernel.lower_body(op.block)
        here = running.single(s, kernel.yielded(op.block), s.number(s.fix(one.dim)))
        here = running.mask(s, [s.b.to_shape(v, s.full) for v in here], mask)
        found = running.along(s, here, axis)
        carried: Values = []
        if not at_once:
            found = running.combine(s, list(now), found)
            if running.kind == "sum":
                total = running.total(s, here, axis)
                carried = running.combine(s, list(now), [s.b.to_shape(v, kept) for v in total])
            else:
                carried = [s.b.to_shape(v, kept) for v in _last(s, found, axis)]
        _do(kernel, op, running, found)
        return carried

    kernel.tiled(node, [] if at_once else running.start(s, kept), body)


def _do(kernel: NestLowering, op: loop.ScanOp, running: Running, state: Values) -> None:
    """What is done with each running value."""
    for argument, value in zip(op.do_block.args[1:], running.values(kernel.s, state), strict=True):
        kernel.s.values[argument] = value
    kernel.lower_body(op.do_block)


class Running:
    """The rules of one kind of scan. max and min run with the index of the extreme: the last of equal ones, as torch; the
    first NaN stays."""

    def __init__(self, kind: str, types: Sequence[Attribute]):
        self.kind = kind
        self.types = list(types)
        """The types of a state."""
        self.product: ScaledProduct | None = None
        if kind == "scaled_prod" or (kind == "prod" and is_float(types[0])):
            self.types = [types[0], i32]
            self.product = ScaledProduct("scaled_prod", self.types)
        self.widens = kind == "sum" and types[0] == f32
        if self.widens:
            self.types = [f64]

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        """The state before the first element."""
        if self.product is not None:
            return self.product.start(s, shape)
        if self.kind == "logsumexp":
            return [s.b.constant(float("-inf"), self.types[0], shape)]
        first = s.b.constant(identity(self.kind, self.types[0]), self.types[0], shape)
        return [first, s.b.constant(0, self.types[1], shape)] if len(self.types) == 2 else [first]

    def single(self, s: State, values: Values, index: SSAValue) -> Values:
        """The state of one element alone."""
        if self.product is not None:
            return self.product.single(s, values)
        return [s.b.cast(arith.ExtFOp, values[0], f64)] if self.widens else values

    def values(self, s: State, state: Values) -> Values:
        """The running values of a state."""
        if self.product is not None and self.kind == "prod":
            return [self.product.value(s, state)]
        return [s.b.cast(arith.TruncFOp, state[0], f32)] if self.widens else state

    def mask(self, s: State, state: Values, mask: SSAValue | None) -> Values:
        """The state with the start where the mask is off."""
        if mask is None:
            return state
        return [s.b.select(mask, v, e) for v, e in zip(state, self.start(s, None), strict=True)]

    def combine(self, s: State, a: Values, b: Values) -> Values:
        """Two states as one; the elements of `b` come later."""
        if self.product is not None:
            return self.product.combine(s, a, b)
        if self.kind in ("sum", "prod"):
            return Accumulator(self.kind, self.types).combine(s, a, b)
        if self.kind == "logsumexp":
            return [_log_add(s, a[0], b[0])]
        later = is_later_extreme(s.b, self.kind, a[0], b[0], element_of(a[0].type))
        return [s.b.select(later, y, x) for x, y in zip(a, b, strict=True)]

    def along(self, s: State, state: Values, axis: int) -> Values:
        """The running states along an axis of the tile."""
        narrow = self.types[0] == i1
        values = [s.b.cast(ExtUIOp, state[0], i32), *state[1:]] if narrow else state
        elements = [element_of(v.type) for v in values]
        block = Block(arg_types=elements * 2)
        s.b.enter_region(block)
        joined = self.combine(s, list(block.args[: len(values)]), list(block.args[len(values) :]))
        s.b.place(ScanReturnOp.create(operands=joined))
        s.b.leave_region()
        op = ScanOp.create(
            operands=values,
            result_types=[tensor(s.full, e) for e in elements],
            properties={"axis": int32(axis), "reverse": BoolAttr.from_bool(False)},
            regions=[Region(block)],
        )
        found: Values = list(s.b.place(op).results)
        if narrow:
            found[0] = s.b.cmpi("ne", found[0], s.b.int(0))
        return found

    def total(self, s: State, state: Values, axis: int) -> Values:
        """The sum over all of an axis, whose elements the hardware joins in any order."""
        assert self.kind == "sum"
        return reduce_axis(s, state, axis, self.combine)


def _last(s: State, values: Values, axis: int) -> Values:
    """The elements at the end of an axis, found by the bits of all others being none: joining all elements again would cost more, and the
    hardware joins them in an order of its own, in which the first of equal extremes may come last."""
    shape = shape_of(values[0].type)
    assert shape is not None
    at_end = s.b.cmpi("eq", s.lane(axis), s.b.int(shape[axis] - 1, s.index))
    bits: Values = []
    for value in values:
        element = element_of(value.type)
        if element == i1:
            value = s.b.cast(ExtUIOp, value, i32)
        elif is_float(element):
            value = s.b.cast(BitcastOp, value, IntegerType(8 * element_bytes(element)))
        bits.append(s.b.select(at_end, value, s.b.constant(0, element_of(value.type))))
    found = reduce_axis(s, bits, axis, lambda s, a, b: [s.b.elementwise(arith.OrIOp, pair) for pair in zip(a, b, strict=True)])
    return [_from_bits(s, v, element_of(value.type)) for v, value in zip(found, values, strict=True)]


def _from_bits(s: State, value: SSAValue, element: Attribute) -> SSAValue:
    if element == i1:
        return s.b.cmpi("ne", value, s.b.int(0))
    return s.b.cast(BitcastOp, value, element) if is_float(element) else value


def _log_add(s: State, a: SSAValue, b: SSAValue) -> SSAValue:
    """log(exp(a) + exp(b))."""
    top = s.b.elementwise(arith.MaximumfOp, (a, b), NO_FLAGS)
    total = s.b.elementwise(arith.AddfOp, (exp_below(s, a, top), exp_below(s, b, top)), NO_FLAGS)
    element = element_of(total.type)
    log = s.b.elementwise(mlir_math.LogOp, (total,), NO_FLAGS) if element == f32 else library(s, "math.log", [total])
    # both -inf: log(2) must not be added
    both = s.b.elementwise(arith.AndIOp, (s.b.cmpf("oeq", a, b), s.b.cmpf("oeq", a, s.b.constant(float("-inf"), element))))
    return s.b.select(both, a, s.b.elementwise(arith.AddfOp, (top, log), NO_FLAGS))
