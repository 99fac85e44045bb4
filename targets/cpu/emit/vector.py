"""Vector operations of `cpu` as LLVM shuffles and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import vector
from xdsl.ir import Operation

from ....dialects import cpu
from .arith import f32_like, is_constant, literal, splat_value
from .casts import from_f32, to_f32
from .text import FunctionText, Type, splat, type_of

Handler = Callable[[FunctionText, Operation], None]


def shuffle(f: FunctionText, type: Type, a: str, b: str | None, indices: Sequence[int]) -> str:
    """The name of lanes picked from `a` (and `b` after it); -1 is any value."""
    mask = ", ".join(f"i32 {i}" if i >= 0 else "i32 poison" for i in indices)
    return f.let(f"shufflevector {type.text} {a}, {type.text} {b or 'poison'}, <{len(indices)} x i32> <{mask}>")


def emit_iota(f: FunctionText, op: Operation) -> None:
    """cpu.iota."""
    result = op.results[0]
    type = type_of(result.type)
    numbers = "<" + ", ".join(f"{type.element} {literal(type, i)}" for i in range(type.lanes)) + ">"
    if not op._operands:
        f.names[result] = numbers
        return
    start = f.names[op._operands[0]]
    if start == "0":
        f.names[result] = numbers
        return
    f.set(result, f"add {type.text} {splat_value(f, type, start)}, {numbers}")


def emit_reduce(f: FunctionText, op: Operation) -> None:
    """cpu.reduce."""
    kind: str = op.properties["kind"].data  # pyright: ignore
    f.names[op.results[0]] = reduce(f, type_of(op._operands[0].type), kind, f.names[op._operands[0]])


_INTEGER = {
    "add": "add",
    "mul": "mul",
    "min": "smin",
    "max": "smax",
    "umin": "umin",
    "umax": "umax",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def reduce(f: FunctionText, type: Type, kind: str, value: str) -> str:
    """The name of the scalar that all lanes of `value` give together."""
    if type.packed:
        wide = f32_like(type)
        total = reduce(f, wide, kind, to_f32(f, type, value))
        return from_f32(f, type_of(cpu.element_of(type.attr)), total)
    scalar = type.element
    if type.kind in ("f32", "f64"):
        if kind in ("add", "mul"):
            start = literal(type, -0.0 if kind == "add" else 1.0)
            name = f"llvm.vector.reduce.f{kind}.{type.suffix}"
            f.module.declare(name, scalar, f"{scalar}, {type.text}")
            return f.let(f"call reassoc{f.fma_flag} {scalar} @{name}({scalar} {start}, {type.text} {value})")
        name = f"llvm.vector.reduce.f{kind}imum.{type.suffix}"
        f.module.declare(name, scalar, type.text)
        return f.let(f"call nsz {scalar} @{name}({type.text} {value})")
    name = f"llvm.vector.reduce.{_INTEGER[kind]}.{type.suffix}"
    f.module.declare(name, scalar, type.text)
    return f.let(f"call {scalar} @{name}({type.text} {value})")


_VECTOR_KINDS = {
    "add": "add",
    "mul": "mul",
    "minimumf": "min",
    "maximumf": "max",
    "minnumf": "min",
    "maxnumf": "max",
    "minsi": "min",
    "maxsi": "max",
    "minui": "umin",
    "maxui": "umax",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def emit_vector_reduction(f: FunctionText, op: Operation) -> None:
    """vector.reduction, with its optional accumulator."""
    kind = _VECTOR_KINDS[str(op.properties["kind"].data)]  # pyright: ignore
    type = type_of(op._operands[0].type)
    value = f.names[op._operands[0]]
    if len(op._operands) > 1:
        # The accumulator joins as one more lane of a vector that is otherwise neutral: fold it into lane 0 by hand.
        pair = f.let(f"insertelement <2 x {type.element}> poison, {type.element} {reduce(f, type, kind, value)}, i64 0")
        pair = f.let(f"insertelement <2 x {type.element}> {pair}, {type.element} {f.names[op._operands[1]]}, i64 1")
        type = type_of(cpu.vec(2, cpu.element_of(type.attr)))
        value = pair
    f.names[op.results[0]] = reduce(f, type, kind, value)


def emit_shuffle(f: FunctionText, op: Operation) -> None:
    """cpu.shuffle."""
    operands = op._operands
    type = type_of(operands[0].type)
    indices = [int(i) for i in op.properties["indices"].iter_values()]  # pyright: ignore
    second = f.names[operands[1]] if len(operands) > 1 else None
    f.names[op.results[0]] = shuffle(f, type, f.names[operands[0]], second, indices)


def emit_extract(f: FunctionText, op: Operation) -> None:
    """cpu.extract."""
    source = op._operands[0]
    lane: int = op.properties["index"].value.data  # pyright: ignore
    f.set(op.results[0], f"extractelement {type_of(source.type).text} {f.names[source]}, i64 {lane}")


def emit_insert(f: FunctionText, op: Operation) -> None:
    """cpu.insert."""
    value, target = op._operands
    lane: int = op.properties["index"].value.data  # pyright: ignore
    type = type_of(target.type)
    f.set(op.results[0], f"insertelement {type.text} {f.names[target]}, {type.element} {f.names[value]}, i64 {lane}")


def emit_slice(f: FunctionText, op: Operation) -> None:
    """cpu.slice."""
    source = op._operands[0]
    start: int = op.properties["start"].value.data  # pyright: ignore
    lanes = type_of(op.results[0].type).lanes
    f.names[op.results[0]] = shuffle(f, type_of(source.type), f.names[source], None, range(start, start + lanes))


def emit_concat(f: FunctionText, op: Operation) -> None:
    """cpu.concat: pairs, pairs of pairs, and so on."""
    operands = op._operands
    f.names[op.results[0]] = concat(f, type_of(operands[0].type), [f.names[v] for v in operands])


def concat(f: FunctionText, type: Type, parts: list[str]) -> str:
    """The name of the vectors `parts` (of `type`, a power of two of them) end to end."""
    while len(parts) > 1:
        indices = range(2 * type.lanes)
        parts = [shuffle(f, type, parts[i], parts[i + 1], indices) for i in range(0, len(parts), 2)]
        type = type_of(cpu.vec(2 * type.lanes, cpu.element_of(type.attr)))
    return parts[0]


def split(f: FunctionText, type: Type, value: str, lanes: int) -> list[str]:
    """The names of consecutive pieces of `lanes` lanes."""
    if lanes == type.lanes:
        return [value]
    if is_constant(value) and value.startswith(("splat", "zeroinit")):
        return [value] * (type.lanes // lanes)
    return [shuffle(f, type, value, None, range(i, i + lanes)) for i in range(0, type.lanes, lanes)]


def by_pieces(f: FunctionText, type: Type, lanes: int, arguments: Sequence[str], call: Callable[..., str]) -> str:
    """The name of what `call` makes of consecutive pieces of `lanes` lanes of the arguments, put together; an odd number of lanes is
    filled up with lane 0."""
    element = cpu.element_of(type.attr)
    piece = type_of(cpu.vec(lanes, element))
    count = -(-type.lanes // lanes)
    if count * lanes == type.lanes and count & (count - 1) == 0:
        pieces = [split(f, type, a, lanes) for a in arguments]
        return concat(f, piece, [call(*values) for values in zip(*pieces, strict=True)])
    # An odd number of lanes: pieces are filled up with lane 0, the results put side by side lane by lane.
    total = 1
    while total * lanes < type.lanes:
        total *= 2
    indices = [i if i < type.lanes else 0 for i in range(total * lanes)]
    wide = type_of(cpu.vec(total * lanes, element))
    pieces = [split(f, wide, shuffle(f, type, a, None, indices), lanes) for a in arguments]
    whole = concat(f, piece, [call(*values) for values in zip(*pieces, strict=True)])
    return shuffle(f, wide, whole, None, range(type.lanes))


def any_lane(f: FunctionText, lanes: int, mask: str) -> str:
    """Whether a lane of a mask is on, as a scalar; a mask of 0 lanes is one."""
    if not lanes:
        return mask
    name, type = f"llvm.vector.reduce.or.v{lanes}i1", f"<{lanes} x i1>"
    f.module.declare(name, "i1", type)
    return f.let(f"call i1 @{name}({type} {mask})")


def emit_transpose(f: FunctionText, op: Operation) -> None:
    """cpu.transpose: log2(n) stages; stage s exchanges, between rows r and r + s, the lanes whose index has the bit s
    the wrong way round."""
    type = type_of(op._operands[0].type)
    rows = [f.names[v] for v in op._operands]
    n = len(rows)
    stride = 1
    while stride < n:
        low = [n + (k ^ stride) if k & stride else k for k in range(n)]
        high = [n + k if k & stride else k | stride for k in range(n)]
        for r in range(n):
            if r & stride:
                continue
            a, b = rows[r], rows[r + stride]
            rows[r], rows[r + stride] = shuffle(f, type, a, b, low), shuffle(f, type, a, b, high)
        stride *= 2
    for result, name in zip(op.results, rows, strict=True):
        f.names[result] = name


def emit_vector_extract(f: FunctionText, op: Operation) -> None:
    """vector.extract of one lane of a 1-D vector."""
    source = op._operands[0]
    position = [int(i) for i in op.properties["static_position"].iter_values()]  # pyright: ignore
    if len(position) != 1 or len(op._operands) != 1:
        raise f.fail(op, "only a constant lane of a 1-D vector is extracted here")
    f.set(op.results[0], f"extractelement {type_of(source.type).text} {f.names[source]}, i64 {position[0]}")


def emit_vector_shuffle(f: FunctionText, op: Operation) -> None:
    """vector.shuffle of 1-D vectors."""
    a, b = op._operands
    indices = [int(i) for i in op.properties["mask"].iter_values()]  # pyright: ignore
    f.names[op.results[0]] = shuffle(f, type_of(a.type), f.names[a], f.names[b], indices)


def all_true(f: FunctionText, type: Type, mask: str) -> str:
    """An i1: whether every lane of a mask is on."""
    return mask if not type.lanes else reduce(f, type, "and", mask)


HANDLERS: dict[type[Operation], Handler] = {
    cpu.IotaOp: emit_iota,
    cpu.ReduceOp: emit_reduce,
    cpu.ShuffleOp: emit_shuffle,
    cpu.ExtractOp: emit_extract,
    cpu.InsertOp: emit_insert,
    cpu.SliceOp: emit_slice,
    cpu.ConcatOp: emit_concat,
    cpu.TransposeOp: emit_transpose,
    vector.ReductionOp: emit_vector_reduction,
    vector.ExtractOp: emit_vector_extract,
    vector.ShuffleOp: emit_vector_shuffle,
}

__all__ = ["HANDLERS", "concat", "all_true", "reduce", "shuffle", "splat", "split"]
