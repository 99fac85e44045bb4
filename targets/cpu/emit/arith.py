"""`arith` and the casts, comparisons and selections of `cpu`, as LLVM instructions.

Semantics that LLVM leaves undefined are filled in as torch has them on this CPU: shifts by the width or more,
division by zero and of the smallest integer by -1 (no trap, also in lanes whose result nobody uses), float to integer
out of range."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation

from ....dialects import cpu
from ....dialects.support.float8 import encode
from .casts import CASTS, from_f32, to_f32
from .text import FunctionText, Type, float_literal, splat, type_of

Handler = Callable[[FunctionText, Operation], None]


def is_constant(name: str) -> bool:
    """Whether a value's text is a constant, and not the name of an instruction's result."""
    return name[0] not in "%@"


def constant_integer(name: str) -> int | None:
    """The integer that a constant scalar or splat text stands for; None if it is neither."""
    if name.startswith("splat ("):
        name = name[7:-1].split()[1]
    if name == "zeroinitializer":
        return 0
    return int(name) if name.lstrip("-").isdigit() else None


def literal(type: Type, value: float | int) -> str:
    """LLVM's spelling of a scalar constant of the element type."""
    if type.packed and type.bits == 8:
        return str(encode(float(value), type.scalar))
    if type.kind in ("f32", "f64", "f16", "bf16"):
        return float_literal(float(value), type.kind)
    if type.kind == "i1":
        return "true" if value else "false"
    return str(int(value))


def emit_constant(f: FunctionText, op: Operation) -> None:
    """A constant has no instruction: its text takes the place of a name."""
    result = op.results[0]
    type = type_of(result.type)
    f.names[result] = constant_text(type, op.properties["value"])


def constant_text(type: Type, value: Attribute) -> str:
    """The text of a constant attribute of the given type."""
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return splat(type, literal(type, value.value.data))
    if isinstance(value, DenseIntOrFPElementsAttr):
        values = list(value.get_values())
        if len(values) == 1 or len(set(map(repr, values))) == 1:
            return splat(type, literal(type, values[0]))
        return "<" + ", ".join(f"{type.element} {literal(type, v)}" for v in values) + ">"
    raise TypeError(f"no constant: {value}")


_FLAGS = {
    FastMathFlag.REASSOC: "reassoc",
    FastMathFlag.NO_SIGNED_ZEROS: "nsz",
    FastMathFlag.ALLOW_CONTRACT: "contract",
}


def flags_of(f: FunctionText, op: Operation) -> str:
    """The fast-math flags of an instruction: contraction by the module's choice, and of the operation's own only
    those that leave NaN and infinity alone."""
    attr = op.properties.get("fastmath")
    data = attr.data if attr is not None else ()  # pyright: ignore[reportAttributeAccessIssue]
    if not data:
        return f.fma_flag
    names = {text for flag, text in _FLAGS.items() if flag in data}
    if f.fma_flag:
        names.add("contract")
    return "".join(f" {name}" for name in sorted(names))


def _float_binary(instruction: str) -> Handler:
    def emit(f: FunctionText, op: Operation) -> None:
        names = f.names
        a, b = op._operands
        result = op.results[0]
        type = type_of(result.type)
        flags = f.fma_flag if not op.properties else flags_of(f, op)
        if type.packed:
            wide = type.of("float")
            f.names[result] = from_f32(
                f, type, f.let(f"{instruction}{flags} {wide} {to_f32(f, type, names[a])}, {to_f32(f, type, names[b])}")
            )
            return
        f.set(result, f"{instruction}{flags} {type.text} {names[a]}, {names[b]}")

    return emit


emit_divf_plain = _float_binary("fdiv")


def emit_negf(f: FunctionText, op: Operation) -> None:
    """A sign flip, also of NaN and zero."""
    result = op.results[0]
    type = type_of(result.type)
    value = f.names[op._operands[0]]
    if type.packed and type.bits == 8:  # formats without a sign or without a negative zero
        negated = f.let(f"fneg {type.of('float')} {to_f32(f, type, value)}")
        f.names[result] = from_f32(f, type, negated)
    elif type.packed:
        f.set(result, f"xor {type.text} {value}, {splat(type, '-32768')}")
    else:
        f.set(result, f"fneg {type.text} {value}")


def _float_intrinsic(base: str, flags: str = "") -> Handler:
    """An intrinsic of two floats; on f16 and bf16 through f32."""

    def emit(f: FunctionText, op: Operation) -> None:
        a, b = op._operands
        result = op.results[0]
        type = type_of(result.type)
        f.names[result] = float_pair(f, base, type, f.names[a], f.names[b], flags)

    return emit


def float_pair(f: FunctionText, base: str, type: Type, a: str, b: str, flags: str = "") -> str:
    """Call `llvm.<base>` on two floats of `type`; gives the result's name."""
    if not type.packed:
        return f.let(f.intrinsic(base, type, (type.text, a), (type.text, b), flags=flags))
    wide = f32_like(type)
    x, y = to_f32(f, type, a), to_f32(f, type, b)
    return from_f32(f, type, f.let(f.intrinsic(base, wide, (wide.text, x), (wide.text, y), flags=flags)))


def f32_like(type: Type) -> Type:
    """The f32 type of as many lanes."""
    from xdsl.dialects.builtin import f32

    return type_of(cpu.like(type.attr, f32))


def _integer_binary(instruction: str) -> Handler:
    def emit(f: FunctionText, op: Operation) -> None:
        names = f.names
        a, b = op._operands
        result = op.results[0]
        f.set(result, f"{instruction} {type_of(result.type).text} {names[a]}, {names[b]}")

    return emit


def _integer_intrinsic(base: str) -> Handler:
    def emit(f: FunctionText, op: Operation) -> None:
        a, b = op._operands
        result = op.results[0]
        type = type_of(result.type)
        f.set(result, f.intrinsic(base, type, (type.text, f.names[a]), (type.text, f.names[b])))

    return emit


def _shift(instruction: str) -> Handler:
    """A shift that is defined for every amount: 0 from the width on, the sign for `ashr`; a negative amount is a
    large one."""

    def emit(f: FunctionText, op: Operation) -> None:
        a, b = (f.names[v] for v in op._operands)
        result = op.results[0]
        type = type_of(result.type)
        amount = constant_integer(b)
        if amount is not None and 0 <= amount < type.bits:
            f.set(result, f"{instruction} {type.text} {a}, {b}")
            return
        if instruction == "ashr":
            b = f.let(f.intrinsic("umin", type, (type.text, b), (type.text, splat(type, str(type.bits - 1)))))
            f.set(result, f"ashr {type.text} {a}, {b}")
            return
        inside = f.let(f"icmp ult {type.text} {b}, {splat(type, str(type.bits))}")
        safe = f.let(f"select {type.of('i1')} {inside}, {type.text} {b}, {type.text} {splat(type, '0')}")
        shifted = f.let(f"{instruction} {type.text} {a}, {safe}")
        f.set(result, f"select {type.of('i1')} {inside}, {type.text} {shifted}, {type.text} {splat(type, '0')}")

    return emit


def _cmp(f: FunctionText, op: Operation, instruction: str, predicate: str) -> None:
    a, b = op._operands
    type = type_of(a.type)
    x, y = f.names[a], f.names[b]
    if type.packed and instruction == "fcmp":
        x, y, text = to_f32(f, type, x), to_f32(f, type, y), type.of("float")
    else:
        text = type.text
    f.set(op.results[0], f"{instruction} {predicate} {text} {x}, {y}")


def emit_arith_cmpi(f: FunctionText, op: Operation) -> None:
    """arith.cmpi, on vectors too."""
    _cmp(f, op, "icmp", cpu.CMPI_PREDICATES[op.properties["predicate"].value.data])  # pyright: ignore


def emit_arith_cmpf(f: FunctionText, op: Operation) -> None:
    """arith.cmpf, on vectors too."""
    _cmp(f, op, "fcmp", cpu.CMPF_PREDICATES[op.properties["predicate"].value.data])  # pyright: ignore


def emit_cpu_cmpi(f: FunctionText, op: Operation) -> None:
    """cpu.cmpi."""
    _cmp(f, op, "icmp", op.properties["kind"].data)  # pyright: ignore


def emit_cpu_cmpf(f: FunctionText, op: Operation) -> None:
    """cpu.cmpf."""
    _cmp(f, op, "fcmp", op.properties["kind"].data)  # pyright: ignore


def emit_select(f: FunctionText, op: Operation) -> None:
    """arith.select and cpu.select."""
    c, a, b = op._operands
    names = f.names
    type = type_of(a.type)
    f.set(op.results[0], f"select {type_of(c.type).text} {names[c]}, {type.text} {names[a]}, {type.text} {names[b]}")


def emit_splat(f: FunctionText, op: Operation) -> None:
    """cpu.splat and vector.broadcast: a constant scalar gives a constant vector."""
    source = op._operands[0]
    result = op.results[0]
    value = f.names[source]
    type = type_of(result.type)
    if not type.lanes or type_of(source.type).lanes == type.lanes:
        f.names[result] = value
        return
    if type_of(source.type).lanes:
        value = f.let(f"extractelement {type_of(source.type).text} {value}, i64 0")
    f.names[result] = splat_value(f, type, value)


def splat_value(f: FunctionText, type: Type, value: str) -> str:
    """A vector (or the scalar itself, for a scalar type) with `value` in every lane."""
    if not type.lanes:
        return value
    if is_constant(value):
        return splat(type, value)
    first = f.let(f"insertelement {type.text} poison, {type.element} {value}, i64 0")
    return f.let(f"shufflevector {type.text} {first}, {type.text} poison, <{type.lanes} x i32> zeroinitializer")


def emit_fma(f: FunctionText, op: Operation) -> None:
    """vector.fma and math.fma: one rounding, whatever the instruction set."""
    result = op.results[0]
    type = type_of(result.type)
    a, b, c = (f.names[v] for v in op._operands)
    if type.packed:
        wide = f32_like(type)
        parts = [(wide.text, to_f32(f, type, v)) for v in (a, b, c)]
        f.names[result] = from_f32(f, type, f.let(f.intrinsic("fma", wide, *parts)))
        return
    f.set(result, f.intrinsic("fma", type, (type.text, a), (type.text, b), (type.text, c)))


def _extended_multiply(extend: str) -> Handler:
    def emit(f: FunctionText, op: Operation) -> None:
        type = type_of(op.results[0].type)
        a, b = (f.names[v] for v in op._operands)
        wide = type.of(f"i{2 * type.bits}")
        product = f.let(
            f"mul {wide} {f.let(f'{extend} {type.text} {a} to {wide}')}, {f.let(f'{extend} {type.text} {b} to {wide}')}"
        )
        f.set(op.results[0], f"trunc {wide} {product} to {type.text}")
        amount = str(type.bits) if not type.lanes else f"splat (i{2 * type.bits} {type.bits})"
        f.set(op.results[1], f"trunc {wide} {f.let(f'lshr {wide} {product}, {amount}')} to {type.text}")

    return emit


def emit_addui_extended(f: FunctionText, op: Operation) -> None:
    """The sum and its carry."""
    type = type_of(op.results[0].type)
    a, b = (f.names[v] for v in op._operands)
    f.set(op.results[0], f"add {type.text} {a}, {b}")
    f.set(op.results[1], f"icmp ult {type.text} {f.names[op.results[0]]}, {a}")


def _cast_handler(kind: str) -> Handler:
    cast = CASTS[kind]

    def emit(f: FunctionText, op: Operation) -> None:
        source = op._operands[0]
        result = op.results[0]
        f.names[result] = cast(f, type_of(source.type), type_of(result.type), f.names[source])

    return emit


def emit_cpu_cast(f: FunctionText, op: Operation) -> None:
    """cpu.cast."""
    source = op._operands[0]
    result = op.results[0]
    kind: str = op.properties["kind"].data  # pyright: ignore
    f.names[result] = CASTS[kind](f, type_of(source.type), type_of(result.type), f.names[source])


HANDLERS: dict[type[Operation], Handler] = {
    arith.ConstantOp: emit_constant,
    arith.AddfOp: _float_binary("fadd"),
    arith.SubfOp: _float_binary("fsub"),
    arith.MulfOp: _float_binary("fmul"),
    arith.NegfOp: emit_negf,
    # The sign of a zero result is not torch's to observe: nsz makes 3 instructions of 7.
    arith.MaximumfOp: _float_intrinsic("maximum", " nsz"),
    arith.MinimumfOp: _float_intrinsic("minimum", " nsz"),
    arith.MaxnumfOp: _float_intrinsic("maxnum", " nsz"),
    arith.MinnumfOp: _float_intrinsic("minnum", " nsz"),
    arith.AddiOp: _integer_binary("add"),
    arith.SubiOp: _integer_binary("sub"),
    arith.MuliOp: _integer_binary("mul"),
    arith.AndIOp: _integer_binary("and"),
    arith.OrIOp: _integer_binary("or"),
    arith.XOrIOp: _integer_binary("xor"),
    arith.ShLIOp: _shift("shl"),
    arith.ShRSIOp: _shift("ashr"),
    arith.ShRUIOp: _shift("lshr"),
    arith.MaxSIOp: _integer_intrinsic("smax"),
    arith.MinSIOp: _integer_intrinsic("smin"),
    arith.MaxUIOp: _integer_intrinsic("umax"),
    arith.MinUIOp: _integer_intrinsic("umin"),
    arith.MulUIExtendedOp: _extended_multiply("zext"),
    arith.MulSIExtendedOp: _extended_multiply("sext"),
    arith.AddUIExtendedOp: emit_addui_extended,
    arith.CmpiOp: emit_arith_cmpi,
    arith.CmpfOp: emit_arith_cmpf,
    arith.SelectOp: emit_select,
    arith.ExtFOp: _cast_handler("extf"),
    arith.TruncFOp: _cast_handler("truncf"),
    arith.SIToFPOp: _cast_handler("sitofp"),
    arith.UIToFPOp: _cast_handler("uitofp"),
    arith.FPToSIOp: _cast_handler("fptosi"),
    arith.FPToUIOp: _cast_handler("fptoui"),
    arith.ExtSIOp: _cast_handler("extsi"),
    arith.ExtUIOp: _cast_handler("extui"),
    arith.TruncIOp: _cast_handler("trunci"),
    arith.BitcastOp: _cast_handler("bitcast"),
    arith.IndexCastOp: _cast_handler("index_cast"),
    vector.FMAOp: emit_fma,
    vector.BitcastOp: _cast_handler("bitcast"),
    cpu.CmpIOp: emit_cpu_cmpi,
    cpu.CmpFOp: emit_cpu_cmpf,
    cpu.SelectOp: emit_select,
    cpu.CastOp: emit_cpu_cast,
}
