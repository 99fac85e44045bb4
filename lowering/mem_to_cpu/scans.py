"""Running reductions: in registers along the scanned loop where it is contiguous, else one element after the other in
all lanes."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu_types import element_of, lanes_of
from ...dialects.nd_types import is_float
from ...passes.loop.nest_access import Loop, Node
from . import reductions as red
from .builder import int_property
from .loops import Segment, Span, run_segments, segments
from .memory import shuffle
from .state import State, scalar_type

LANES = 16
"""Lanes of a scan in registers: log2(16) steps give 16 running values."""


class ScanLowering:
    """Lowers `loop.scan`; `region` lowers the ops of one of its bodies."""

    def __init__(self, s: State, region: Callable[[Block], None], choice: Callable[[Node], tuple[Loop, int] | None]):
        self.s = s
        self.region = region
        self.choice = choice

    def lower_scan(self, op: loop.ScanOp) -> None:
        """loop.scan."""
        s = self.s
        node = s.info.nodes[op]
        types = [scalar_type(v.type) for v in op.do_block.args[1:]]
        if not node.loops:
            self._single(op)
            return
        (one,) = node.loops
        chosen = self.choice(node) if s.lane is None else None
        if chosen is not None and op.kind in ("sum", "prod"):
            self._in_registers(op, one)
            return
        b = s.b
        index, *state = b.begin_for(b.int(0), s.scalar(one.size), b.int(1), self._start(op.kind, types))
        s.dims[one.dim] = index
        self.region(op.block)
        new = self._next(op.kind, list(state), self._values(op))
        self._do(op, new)
        b.end_for(new)

    def _values(self, op: loop.ScanOp) -> list[SSAValue]:
        last = op.block.last_op
        assert last is not None
        return [self.s.get_vector(v) for v in last.operands]

    def _do(self, op: loop.ScanOp, state: list[SSAValue]) -> None:
        for argument, value in zip(op.do_block.args[1:], state, strict=True):
            self.s.values[argument] = value
        self.region(op.do_block)

    def _single(self, op: loop.ScanOp) -> None:
        """One element: the running value is the element."""
        self.region(op.block)
        self._do(op, self._values(op))

    def _start(self, kind: str, types: list) -> list[SSAValue]:
        s = self.s
        if kind == "logsumexp":
            return [red.number(s, -float("inf"), types[0], s.width)]
        first = red.number(s, red.identity(kind, types[0]), types[0], s.width)
        return [first] if len(types) == 1 else [first, red.number(s, 0, types[1], s.width)]

    def _next(self, kind: str, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        s = self.s
        value = values[0]
        if kind in ("sum", "prod"):
            return [red.COMBINE[kind](s, state[0], value)]
        if kind == "logsumexp":
            return [self._log_add(state[0], value)]
        # the later of equal values, and a NaN once it is there (torch.cummax)
        element = element_of(value.type)
        if is_float(element):
            beyond = red._cmpf(s, "uge" if kind == "max" else "ule", value, state[0])
            number = red._cmpf(s, "ord", state[0], state[0])
            nan = red._cmpf(s, "uno", value, value)
            take = s.b.pure(arith.AndIOp, (beyond, number), beyond.type)
            take = s.b.pure(arith.OrIOp, (take, nan), take.type)
        else:
            assert isinstance(element, IntegerType)
            sign = "u" if element.width.data == 1 else "s"
            take = s.b.cmpi(sign + ("ge" if kind == "max" else "le"), value, state[0])
        return [s.b.select(take, value, state[0]), s.b.select(take, values[1], state[1])]

    def _log_add(self, a: SSAValue, x: SSAValue) -> SSAValue:
        """log(exp(a) + exp(x)), with the larger one outside."""
        s = self.s
        top = red.float_op(s, arith.MaximumfOp, a, x)
        bottom = red.float_op(s, arith.MinimumfOp, a, x)
        same = red._cmpf(s, "oeq", top, bottom)
        lanes, element = lanes_of(a.type), element_of(a.type)
        difference = s.b.select(same, red.number(s, 0, element, lanes), red.float_op(s, arith.SubfOp, bottom, top))
        power = red.float_op(s, mlir_math.ExpOp, difference)
        return red.float_op(s, arith.AddfOp, top, red.float_op(s, mlir_math.Log1pOp, power))

    def _in_registers(self, op: loop.ScanOp, one: Loop) -> None:
        """Sums and products of 16 lanes by shifts, and what came before added to all of them."""
        s, b = self.s, self.s.b
        kind = op.kind
        dtype = scalar_type(op.do_block.args[1].type)
        start = red.number(s, red.identity(kind, dtype), dtype)
        parts: list[Segment] = segments(Span.whole(one.size), LANES)
        carried: list[SSAValue] = [start]

        def step(state: list[SSAValue]) -> list[SSAValue]:
            self.region(op.block)
            (value,) = self._values(op)
            assert s.lane is not None
            width = s.lane.width
            neutral = red.number(s, red.identity(kind, dtype), dtype, width)
            if s.lane.mask is not None:
                value = b.select(s.lane.mask, value, neutral)
            shift = 1
            while shift < width:
                picks = [width + k if k < shift else k - shift for k in range(width)]
                value = red.COMBINE[kind](s, value, shuffle(s, picks, value, neutral))
                shift *= 2
            value = red.COMBINE[kind](s, value, b.splat(state[0], width))
            self._do(op, [value])
            last = {"index": int_property(width - 1, b.int(0).type)["value"]}
            return [b.pure(cpu.ExtractOp, (value,), dtype, last, width - 1)]

        # one segment after the other, each beginning with what the one before ended with
        span = Span.whole(one.size)
        if one.size.value is not None:
            for part in parts:
                carried = run_segments(s, one.dim, one.size, span, [part], [carried], step)[0]
            return
        size = s.scalar(one.size)
        width = b.int(LANES)
        end = b.mul(b.udiv(size, width), width)
        carried = run_segments(s, one.dim, one.size, Span(None, end, None), parts[:1], [carried], step)[0]
        run_segments(s, one.dim, one.size, Span(end, size, None), [Segment(LANES, None, -1, -1)], [carried], step)
