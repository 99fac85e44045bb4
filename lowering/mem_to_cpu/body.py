"""Body ops, one by one: `arith`, `math` and `loop` scalars as scalars or vectors, by a table from op class to
function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, bf16, f32, f64, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import lanes_of, like, vec
from ...dialects.cpu.vector import CMPF_PREDICATES, CMPI_PREDICATES, MATH_FUNCTIONS
from ...dialects.expr import Dim
from ...dialects.support.names import keep_names
from ...errors import StepwellError
from .builder import cpu_kind, float_attr
from .interleave import store_together
from .memory import lower_load, lower_store
from .random_numbers import lower_random
from .state import State, scalar_type

Rule = Callable[[State, Operation], None]

_FAST: dict[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}


class UnsupportedBody(StepwellError):
    """A body op that the CPU target has no code for; the message names it."""


def elementwise(s: State, op: Operation) -> None:
    """An op that works lane by lane: the same op on vectors where an operand is one."""
    result = op.results[0]
    operands = [s.get(v) for v in op.operands]
    lanes = max(map(lanes_of, (v.type for v in operands)))
    if lanes:
        operands = [s.b.splat(v, lanes) for v in operands]
    dtype = scalar_type(result.type)
    s.values[result] = s.b.pure(type(op), tuple(operands), vec(lanes, dtype) if lanes else dtype, op.properties)


def divide_integers(s: State, op: Operation) -> None:
    """Division of integers: a divisor of 0 is reported with eager's text; what is computed goes on."""
    if _may_be_zero(op.operands[1]):
        divisor = s.get(op.operands[1])
        zero = s.b.splat(s.b.int(0, cpu.element_of(divisor.type)), lanes_of(divisor.type))
        s.b.place(cpu.AssertOp.make(_or_off(s, s.b.cmpi("ne", divisor, zero)), "ZeroDivisionError"))
    elementwise(s, op)


def _may_be_zero(divisor: SSAValue) -> bool:
    """Whether the 0 of a divisor is the program's. A size is not 0 where there are elements, and nobody reads the quotient where a value
    was not loaded (padding)."""
    while isinstance(divisor.owner, (arith.ExtSIOp, arith.ExtUIOp, arith.IndexCastOp)):
        divisor = divisor.owner.operands[0]
    owner = divisor.owner
    if isinstance(owner, loop.IndexOp) or _integer(divisor) not in (None, 0):
        return False
    if isinstance(owner, arith.MaxSIOp) and any((_integer(o) or 0) > 0 for o in owner.operands):
        return False
    worklist, seen = [divisor], {divisor}
    while worklist:
        owner = worklist.pop().owner
        if not isinstance(owner, Operation) or isinstance(owner, loop.LoopLike):
            continue
        if isinstance(owner, loop.LoadOp) and owner.masked is not None:
            return False
        worklist += [o for o in owner.operands if o not in seen]
        seen.update(owner.operands)
    return True


def _integer(value: SSAValue) -> int | None:
    """The number of an integer constant."""
    op = value.owner
    return op.value.value.data if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) else None


def divide(s: State, op: Operation) -> None:
    """arith.divf. By a divisor that the innermost loop does not change, or that all lanes share: a product with the
    reciprocal, corrected to the rounding of the quotient (P. Markstein, "Computation of elementary functions on the
    IBM RISC System/6000 processor", 1990). Where that gives a zero, whose sign is lost, or no number (zero, infinity), the
    product is right as it is. A divisor so small or large that its
    reciprocal is no normal number is first made moderate by a power of two, by which the numerator is multiplied."""
    b = s.b
    x, y = s.get(op.operands[0]), s.get(op.operands[1])
    here = len(b.levels) - 1
    lanes = s.width
    outside = b.depth_of(y) < here <= b.depth_of(x)
    shared = lanes >= 16 and lanes_of(x.type) > 0 and lanes_of(y.type) == 0
    if lanes == 0 or not (outside or shared) or _tiny_constant(op.operands[1]):
        elementwise(s, op)
        return
    x = b.splat(x, lanes)
    if not isinstance(op.operands[1].owner, arith.ConstantOp):
        scale = _moderating(s, y)
        x = b.pure(arith.MulfOp, (x, b.splat(scale, lanes)), x.type, _FAST)
        y = b.pure(arith.MulfOp, (y, scale), y.type, _FAST)
    one = b.splat(b.constant(float_attr(1.0, cpu.element_of(y.type))), lanes_of(y.type))
    reciprocal = b.splat(b.pure(arith.DivfOp, (one, y), y.type, _FAST), lanes)
    negated = b.splat(b.pure(arith.NegfOp, (y,), y.type, _FAST), lanes)
    product = b.pure(arith.MulfOp, (x, reciprocal), x.type, _FAST)
    rest = b.pure(mlir_math.FmaOp, (product, negated, x), x.type, _FAST)
    corrected = b.pure(mlir_math.FmaOp, (rest, reciprocal, product), x.type, _FAST)
    zero = b.splat(b.constant(float_attr(0.0, cpu.element_of(y.type))), lanes)
    fine = b.pure(cpu.CmpFOp, (corrected, zero), like(x.type, i1), {"kind": cpu_kind("one")}, "one")
    s.values[op.results[0]] = b.select(fine, corrected, product)


def _moderating(s: State, y: SSAValue) -> SSAValue:
    """A power of two by which y becomes a number with a normal reciprocal; 1 where it is one."""
    b, element, lanes = s.b, cpu.element_of(y.type), lanes_of(y.type)
    step, limit = (512, 1000) if element == f64 else (64, 120)

    def known(value: float) -> SSAValue:
        return b.splat(b.constant(float_attr(value, element)), lanes)

    def compare(kind: str, bound: float) -> SSAValue:
        return b.pure(cpu.CmpFOp, (size, known(bound)), like(y.type, i1), {"kind": cpu_kind(kind)}, kind)

    size = b.pure(mlir_math.AbsFOp, (y,), y.type, _FAST)
    large = b.select(compare("ogt", 2.0**limit), known(2.0**-step), known(1.0))
    return b.select(compare("olt", 2.0**-limit), known(2.0**step), large)


def _tiny_constant(value: SSAValue) -> bool:
    """A constant whose reciprocal is not a normal number."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, FloatAttr):
        return False
    return not 2.0**-120 < abs(op.value.value.data) < 2.0**120


def extend(s: State, op: Operation) -> None:
    """arith.extf; of a value just rounded to bf16 without packing it, unless a store packs it anyway."""
    source = op.operands[0].owner
    if not (
        isinstance(source, arith.TruncFOp)
        and source.result.type == bf16
        and source.input.type == f32
        and op.results[0].type == f32
    ):
        cast("extf")(s, op)
        return
    b = s.b
    x = s.get(source.input)
    if _is_stored(op.results[0], bf16):
        s.values[op.results[0]] = b.cast("extf", b.cast("truncf", x, bf16), f32)
        return
    lanes = lanes_of(x.type)
    word = like(x.type, i32)

    def number(value: int) -> SSAValue:
        return b.splat(b.int(value, i32), lanes)

    bits = b.cast("bitcast", x, i32)
    odd = b.pure(arith.AndIOp, (b.pure(arith.ShRUIOp, (bits, number(16)), word), number(1)), word)
    rounded = b.add(b.add(bits, number(0x7FFF)), odd)
    kept = b.cast("bitcast", b.pure(arith.AndIOp, (rounded, number(-0x10000)), word), f32)
    nan = b.pure(cpu.CmpFOp, (x, x), like(x.type, i1), {"kind": cpu_kind("uno")}, "uno")
    s.values[op.results[0]] = b.select(nan, x, kept)


def _is_stored(value: SSAValue, dtype: Attribute) -> bool:
    """Whether a store puts a value into memory of `dtype`, as it is."""
    stores = (u.operation for u in value.uses if isinstance(u.operation, loop.StoreOp))
    return any(o.store_mode == "set" and o.value is value and loop.element_type(o.target.type) == dtype for o in stores)


def round_later(s: State, op: Operation) -> None:
    """arith.truncf; to bf16 only where somebody else than an arith.extf wants it."""
    result = op.results[0]
    if (
        result.type == bf16
        and op.operands[0].type == f32
        and all(isinstance(u.operation, arith.ExtFOp) for u in result.uses)
    ):
        return
    cast("truncf")(s, op)


def logic(s: State, op: Operation) -> None:
    """andi, ori, xori: decided where conditions are known."""
    a, b = op.operands
    if a.type == i1:
        x, y = s.known(a), s.known(b)
        if x is not None or y is not None:
            other = b if x is not None else a
            constant = x if x is not None else y
            found = s.values.get(other)
            rest: SSAValue | bool = found if found is not None else s.get(other)
            if isinstance(op, arith.AndIOp):
                s.values[op.results[0]] = rest if constant else False
            elif isinstance(op, arith.OrIOp):
                s.values[op.results[0]] = True if constant else rest
            else:
                s.values[op.results[0]] = s.invert(rest) if constant else rest
            return
    elementwise(s, op)


def constant(s: State, op: Operation) -> None:
    """arith.constant."""
    assert isinstance(op, arith.ConstantOp)
    attr = op.value
    if op.result.type == i1:
        assert isinstance(attr, IntegerAttr)
        s.values[op.result] = bool(attr.value.data)
    elif isinstance(attr, FloatAttr):
        s.values[op.result] = s.b.constant(attr)
    else:
        assert isinstance(attr, IntegerAttr)
        # an integer is an index expression until somebody wants the number


def compare_integers(s: State, op: Operation) -> None:
    """arith.cmpi; of index expressions symbolically."""
    assert isinstance(op, arith.CmpiOp)
    predicate = CMPI_PREDICATES[op.predicate.value.data]
    a, b = op.lhs, op.rhs
    if s.is_index(a) and s.is_index(b) and (predicate[0] != "u"):
        x, y = s.expr(a), s.expr(b)
        found: SSAValue | bool
        if predicate in ("eq", "ne"):
            found = s.is_zero(x - y)
            found = s.invert(found) if predicate == "ne" else found
        else:
            less = {"slt": x - y, "sge": x - y, "sgt": y - x, "sle": y - x}[predicate]
            found = s.negative(less)
            found = s.invert(found) if predicate in ("sge", "sle") else found
        s.values[op.result] = found
        return
    x, y = s.get(a), s.get(b)
    lanes = max(lanes_of(x.type), lanes_of(y.type))
    s.values[op.result] = s.b.cmpi(predicate, s.b.splat(x, lanes), s.b.splat(y, lanes))


def compare_floats(s: State, op: Operation) -> None:
    """arith.cmpf."""
    assert isinstance(op, arith.CmpfOp)
    predicate = CMPF_PREDICATES[op.predicate.value.data]
    x, y = s.get(op.lhs), s.get(op.rhs)
    lanes = max(lanes_of(x.type), lanes_of(y.type))
    x, y = s.b.splat(x, lanes), s.b.splat(y, lanes)
    kind: dict[str, Attribute] = {"kind": cpu_kind(predicate)}
    s.values[op.result] = s.b.pure(cpu.CmpFOp, (x, y), like(x.type, i1), kind, predicate)


def select(s: State, op: Operation) -> None:
    """arith.select."""
    condition, a, b = op.operands
    known = s.known(condition)
    if known is not None:
        chosen = a if known else b
        s.values[op.results[0]] = s.values.get(chosen, None) or s.get(chosen)
        return
    c, x, y = s.get(condition), s.get(a), s.get(b)
    lanes = max(map(lanes_of, (c.type, x.type, y.type)))
    s.values[op.results[0]] = s.b.select(s.b.splat(c, lanes), s.b.splat(x, lanes), s.b.splat(y, lanes))


def cast(kind: str) -> Rule:
    """A cast of `arith` as the cast of `cpu` of that name."""

    def rule(s: State, op: Operation) -> None:
        source, result = op.operands[0], op.results[0]
        if kind == "sitofp" and s.is_index(source):
            e = s.expr(source)
            number = s.number(e, i32 if s.fits_i32(e) else i64)
            s.values[result] = s.b.cast("sitofp", number, result.type)
            return
        value = s.get(source)
        target = scalar_type(result.type)
        if cpu.element_of(value.type) == target:
            s.values[result] = value
            return
        s.values[result] = s.b.cast(kind, value, target)

    return rule


def index_cast(s: State, op: Operation) -> None:
    """arith.index_cast: an index is an i64."""
    from xdsl.dialects.builtin import IndexType

    source, result = op.operands[0], op.results[0]
    value = s.get(source)
    if isinstance(result.type, IndexType):
        have = cpu.element_of(value.type)
        s.values[result] = value if have == i64 else s.b.cast("extsi", value, i64)
        _define_dim(s, result)
    else:
        s.values[result] = s._to(value, result.type)


def _define_dim(s: State, result: SSAValue) -> None:
    """An index that was computed or loaded is an opaque dimension of the expressions that use it."""
    d = s.info.expr(result)
    value = s.values[result]
    assert isinstance(value, SSAValue) and isinstance(d, Dim)
    if lanes_of(value.type):
        s.varying[d] = value
    else:
        s.varying.pop(d, None)
        s.dims[d] = value


def index(s: State, op: Operation) -> None:
    """loop.index: stays an expression."""


_MESSAGES = {
    "masked_scatter": "masked_scatter: Number of elements of source < number of ones in mask",
    **{f"max_unpool{n}d": f"max_unpool{n}d: Found an invalid max index: {{0}}" for n in (2, 3)},
    **{f"nll_loss{of}": "nll_loss: Target {0} is out of bounds." for of in ("_forward", "_backward", "2d_forward", "2d_backward")},
}
"""What eager mode says where the index is not the program's."""


def _out_of_bounds(op: loop.BoundOp) -> str:
    """The message of an index that is out of bounds, with the places of the index and of the size: eager mode's, behind the operator."""
    what = op.what.data
    if what in _MESSAGES:
        return _MESSAGES[what]
    place = "a dimension of" if op.dim is None else f"dimension {op.dim.data} with"
    name = what.replace("{", "{{").replace("}", "}}")
    return f"{name}: index {{0}} is out of bounds for {place} size {{1}}"


def bound(s: State, op: Operation) -> None:
    """loop.bound: report what is out of range, go on inside."""
    assert isinstance(op, loop.BoundOp)
    b = s.b
    value = s.get(op.input)
    value = s._to(value, i64)
    if op.is_certain:
        s.values[op.result] = value
        return _define_dim(s, op.result)
    lanes = lanes_of(value.type)
    extent = s.scalar(s.unroll(op.size.data))
    size = b.splat(extent, lanes)
    zero = b.splat(b.int(0), lanes)
    given = value
    if op.wrap is not None:
        value = b.select(b.cmpi("slt", value, zero), b.add(value, size), value)
    fine = b.cmpi("ult", value, size)
    b.place(cpu.AssertOp.make(_or_off(s, fine), _out_of_bounds(op), (given, extent)))
    s.values[op.result] = b.select(fine, value, zero)
    _define_dim(s, op.result)


def _or_off(s: State, fine: SSAValue) -> SSAValue:
    """A condition that also holds in the lanes that the innermost loop masks out."""
    if s.lane is None or s.lane.mask is None or not lanes_of(fine.type):
        return fine
    off = s.invert(s.lane.mask)
    assert isinstance(off, SSAValue)
    return s.b.pure(arith.OrIOp, (fine, off), fine.type)


def named_math(s: State, op: Operation) -> None:
    """loop.math."""
    assert isinstance(op, loop.MathOp)
    name = op.fn.data
    if name not in MATH_FUNCTIONS:
        raise UnsupportedBody(f"the CPU target has no function '{name}'")
    operands = [s.get(v) for v in op.inputs]
    lanes = max(map(lanes_of, (v.type for v in operands)))
    operands = [s.b.splat(v, lanes) for v in operands]
    s.values[op.result] = s.b.pure(cpu.MathOp, tuple(operands), operands[0].type, {"kind": cpu_kind(name)}, name)


def store(s: State, op: Operation) -> None:
    """loop.store: with others, where they fill consecutive elements together."""
    assert isinstance(op, loop.StoreOp)
    if s.second_pass or not store_together(s, op):
        lower_store(s, op)


def local(s: State, op: Operation) -> None:
    """loop.local: a piece of the stack of the thread that runs the iteration."""
    assert isinstance(op, loop.LocalOp)
    s.pointers[op.result] = s.b.place(cpu.LocalOp.make(max(op.bytes, 1), 64), s.b.floor).results[0]


RULES: dict[type[Operation], Rule] = {
    arith.ConstantOp: constant,
    arith.AndIOp: logic,
    arith.OrIOp: logic,
    arith.XOrIOp: logic,
    arith.CmpiOp: compare_integers,
    arith.CmpfOp: compare_floats,
    arith.SelectOp: select,
    arith.DivfOp: divide,
    **dict.fromkeys((arith.DivSIOp, arith.DivUIOp, arith.FloorDivSIOp, arith.RemSIOp, arith.RemUIOp), divide_integers),
    arith.ExtFOp: extend,
    arith.TruncFOp: round_later,
    arith.SIToFPOp: cast("sitofp"),
    arith.UIToFPOp: cast("uitofp"),
    arith.FPToSIOp: cast("fptosi"),
    arith.FPToUIOp: cast("fptoui"),
    arith.ExtSIOp: cast("extsi"),
    arith.ExtUIOp: cast("extui"),
    arith.TruncIOp: cast("trunci"),
    arith.BitcastOp: cast("bitcast"),
    arith.IndexCastOp: index_cast,
    loop.LoadOp: lower_load,  # pyright: ignore[reportAssignmentType]
    loop.StoreOp: store,
    loop.LocalOp: local,
    loop.IndexOp: index,
    loop.BoundOp: bound,
    loop.MathOp: named_math,
    loop.RandomOp: lower_random,
}
"""What has no rule here is done lane by lane by the same op."""

_ELEMENTWISE_DIALECTS = ("arith", "math")


def lower_block(s: State, block: Block, nested: dict[type[Operation], Callable[[Any], None]]) -> None:
    """Lower every op of a body; `nested` lowers the loops in it (and whatever else the caller does in its own way)."""
    cache = s.cache
    for op in block.ops:
        if cache is not None:
            if op in cache.skip:
                continue
            kept = cache.use.get(op.results[0]) if op.results else None
            if kept is not None:
                cache.load(*kept, op.results[0])
                continue
        s.b.location = op.location
        _lower_op(s, op, nested)
        keep_names(op.results, s.values)
        if cache is not None and len(op.results) == 1:
            cache.store(op.results[0])


def _lower_op(s: State, op: Operation, nested: dict[type[Operation], Callable[[Any], None]]) -> None:
    kind = type(op)
    own = nested.get(kind)
    if own is not None:
        own(op)
        return
    rule = RULES.get(kind)
    if rule is not None:
        rule(s, op)
    elif kind is loop.YieldOp:
        return
    elif op.name.partition(".")[0] in _ELEMENTWISE_DIALECTS and len(op.results) == 1:
        elementwise(s, op)
    else:
        raise UnsupportedBody(f"'{op.name}' cannot stand in the body of a nest for the CPU")
