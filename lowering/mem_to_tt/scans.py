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
from xdsl.dialects.builtin import IntegerType, f32, f64, i1, i32
from xdsl.ir import Attribute, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO
from ...dialects.nd.types import element_bytes, is_float
from ...dialects.tt.arith import ExtUIOp
from ...dialects.tt.compute import BitcastOp
from ...dialects.tt.types import element_of, shape_of
from ...passes.analysis.reduction_kinds import is_later_extreme
from ...passes.gpu.nest_types import scalar_type
from ..nest.builder import NO_FLAGS
from .body import library
from .joined_axes import pairwise, reduce_axis, scan_axis
from .program.sorts import lower_sort
from .reductions import Accumulator, ScaledProduct, Values, exp_below
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
        _do(kernel, op, running, running.single(s, kernel.yielded(op.block)))
        return
    (one,) = node.loops
    how = kernel.how(node)
    if how == "unroll":
        state: Values | None = None
        for _ in kernel.iterations(node):
            kernel.lower_body(op.block)
            here = running.single(s, kernel.yielded(op.block))
            state = here if state is None else running.states.combine(s, state, here)
            _do(kernel, op, running, state)
        return
    if how == "loop":
        shape = s.active

        def step(at: SSAValue, now: Sequence[SSAValue]) -> list[SSAValue]:
            kernel.s.decode(at, node.loops)
            kernel.lower_body(op.block)
            here = running.single(s, kernel.yielded(op.block))
            found = running.states.combine(s, list(now), [s.b.to_shape(v, shape) for v in here])
            _do(kernel, op, running, found)
            return found

        kernel.sequential(node, running.states.start(s, shape), step)
        return
    axis = s.inner_axis
    assert axis is not None
    at_once = (kernel.whole(node) or kernel.tile.reduction_block + 1) <= kernel.tile.reduction_block
    kept = (*s.full[:-1], 1) if len(s.full) > 1 else None

    def body(now: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
        kernel.lower_body(op.block)
        here = running.single(s, kernel.yielded(op.block))
        here = running.states.mask(s, [s.b.to_shape(v, s.full) for v in here], mask)
        found = running.along(s, here, axis)
        carried: Values = []
        if not at_once:
            found = running.states.combine(s, list(now), found)
            if running.kind == "sum":
                total = reduce_axis(s, here, axis, running.states.combine)  # the hardware joins in any order
                carried = running.states.combine(s, list(now), [s.b.to_shape(v, kept) for v in total])
            else:
                carried = [s.b.to_shape(v, kept) for v in _last(s, found, axis)]
        _do(kernel, op, running, found)
        return carried

    kernel.tiled(node, [] if at_once else running.states.start(s, kept), body)


def _do(kernel: NestLowering, op: loop.ScanOp, running: Running, state: Values) -> None:
    """What is done with each running value."""
    for argument, value in zip(op.do_block.args[1:], running.values(kernel.s, state), strict=True):
        kernel.s.values[argument] = value
    kernel.lower_body(op.do_block)


class LastExtreme(Accumulator):
    """max and min with the index of the extreme: the last of equal ones, as torch; the first NaN stays."""

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        return [*super().start(s, shape), s.b.constant(0, self.types[1], shape)]

    def combine(self, s: State, a: Values, b: Values) -> Values:
        later = is_later_extreme(s.b, self.kind, a[0], b[0], element_of(a[0].type))
        return [s.b.select(later, y, x) for x, y in zip(a, b, strict=True)]


class LogSum(Accumulator):
    """The logarithm of a sum of exponentials."""

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        return [s.b.constant(float("-inf"), self.types[0], shape)]

    def combine(self, s: State, a: Values, b: Values) -> Values:
        return [_log_add(s, a[0], b[0])]


class Running:
    """The rules of one kind of scan; `states` joins two states, of which the second one comes later."""

    def __init__(self, kind: str, types: Sequence[Attribute]):
        self.kind = kind
        self.widens = kind == "sum" and types[0] == f32
        self.states = _ACCUMULATORS.get(kind, Accumulator)(kind, [f64] if self.widens else types)
        if kind == "scaled_prod" or (kind == "prod" and is_float(types[0])):
            self.states = ScaledProduct("scaled_prod", [types[0], i32])

    def single(self, s: State, values: Values) -> Values:
        """The state of one element alone."""
        return [s.b.cast(arith.ExtFOp, values[0], f64)] if self.widens else self.states.single(s, values)

    def values(self, s: State, state: Values) -> Values:
        """The running values of a state."""
        if isinstance(self.states, ScaledProduct) and self.kind == "prod":
            return [self.states.value(s, state)]
        return [s.b.cast(arith.TruncFOp, state[0], f32)] if self.widens else state

    def along(self, s: State, state: Values, axis: int) -> Values:
        """The running states along an axis of the tile."""
        narrow = self.states.types[0] == i1
        values = [s.b.cast(ExtUIOp, state[0], i32), *state[1:]] if narrow else state
        found = scan_axis(s, values, axis, self.states.combine)
        if narrow:
            found[0] = s.b.cmpi("ne", found[0], s.b.int(0))
        return found


_ACCUMULATORS: dict[str, type[Accumulator]] = {"max": LastExtreme, "min": LastExtreme, "logsumexp": LogSum}


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
    found = reduce_axis(s, bits, axis, pairwise(arith.OrIOp))
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
