"""Integer division: never traps, and on vectors never goes lane by lane through the scalar divider where it can be
avoided.

x86 has no vector division of integers. The quotient of integers of up to 16 bits is exact through f32, of 32 bits
through f64 (the quotient of two integers below 2^p, rounded to p bits or more, never crosses an integer); of 64 bits
it is found in f64 with one step of refinement and two corrections. A divisor of 0 gives an unspecified value, the
smallest integer by -1 wraps."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.ir import Operation

from .arith import constant_integer, is_constant
from .text import FunctionText, Type, splat, type_of

Handler = Callable[[FunctionText, Operation], None]


def signed_quotient(f: FunctionText, type: Type, a: str, b: str) -> str:
    """The name of a / b rounded towards zero, signed."""
    divisor = constant_integer(b) if is_constant(b) else None
    if divisor is not None and divisor not in (0, -1) and _native_constant(type, divisor):
        return f.let(f"sdiv {type.text} {a}, {b}")
    if type.lanes:
        if type.bits < 64:
            return _through_float(f, type, a, b, signed=True)
        return _through_double_64(f, type, a, b)
    if type.bits < 32:
        wide = f.let(f"sext {type.text} {a} to i32"), f.let(f"sext {type.text} {b} to i32")
        zero = f.let(f"icmp eq i32 {wide[1]}, 0")
        safe = f.let(f"select i1 {zero}, i32 1, i32 {wide[1]}")
        return f.let(f"trunc i32 {f.let(f'sdiv i32 {wide[0]}, {safe}')} to {type.text}")
    zero = f.let(f"icmp eq {type.text} {b}, 0")
    minus = f.let(f"icmp eq {type.text} {b}, -1")
    special = f.let(f"or i1 {zero}, {minus}")
    safe = f.let(f"select i1 {special}, {type.text} 1, {type.text} {b}")
    quotient = f.let(f"sdiv {type.text} {a}, {safe}")
    negated = f.let(f"sub {type.text} 0, {a}")
    return f.let(f"select i1 {minus}, {type.text} {negated}, {type.text} {quotient}")


def unsigned_quotient(f: FunctionText, type: Type, a: str, b: str) -> str:
    """The name of a / b, unsigned."""
    divisor = constant_integer(b) if is_constant(b) else None
    if divisor and _native_constant(type, divisor):
        return f.let(f"udiv {type.text} {a}, {b}")
    if type.lanes and type.bits < 64:
        return _through_float(f, type, a, b, signed=False)
    zero = f.let(f"icmp eq {type.text} {b}, {splat(type, '0')}")
    safe = f.let(f"select {type.of('i1')} {zero}, {type.text} {splat(type, '1')}, {type.text} {b}")
    return f.let(f"udiv {type.text} {a}, {safe}")


def _native_constant(type: Type, divisor: int) -> bool:
    """Whether LLVM turns a division by this constant into multiplications or shifts that the vector unit has."""
    return not type.lanes or type.bits < 64 or divisor & (divisor - 1) == 0 < divisor


def _through_float(f: FunctionText, type: Type, a: str, b: str, signed: bool) -> str:
    floating = type.of("float" if type.bits <= 16 else "double")
    to_float, to_int = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    x = f.let(f"{to_float} {type.text} {a} to {floating}")
    y = f.let(f"{to_float} {type.text} {b} to {floating}")
    quotient = f.let(f"fdiv {floating} {x}, {y}")
    if type.bits == 32:
        return f.let(f"{to_int} {floating} {quotient} to {type.text}")
    # i8 and i16 in a signed 32-bit integer: no quotient of theirs is out of its range.
    return f.let(f"trunc {type.of('i32')} {f.let(f'fptosi {floating} {quotient} to ' + type.of('i32'))} to {type.text}")


def _through_double_64(f: FunctionText, type: Type, a: str, b: str) -> str:
    text, double, i1 = type.text, type.of("double"), type.of("i1")
    zero, one, minus = splat(type, "0"), splat(type, "1"), splat(type, "-1")
    b = f.let(f"select {i1} {f.let(f'icmp eq {text} {b}, {zero}')}, {text} {one}, {text} {b}")
    divisor = f.let(f"sitofp {text} {b} to {double}")

    def estimate(value: str) -> str:
        ratio = f.let(f"fdiv {double} {f.let(f'sitofp {text} {value} to {double}')}, {divisor}")
        return f.let(f"fptosi {double} {ratio} to {text}")

    def remainder(quotient: str) -> str:
        return f.let(f"sub {text} {a}, {f.let(f'mul {text} {quotient}, {b}')}")

    def step(quotient: str, rest: str, when: str, direction: str) -> tuple[str, str]:
        delta = f.let(f"select {i1} {when}, {text} {direction}, {text} {zero}")
        moved = f.let(f"add {text} {quotient}, {delta}")
        return moved, remainder(moved)

    def same_sign(x: str, y: str) -> str:
        return f.let(f"icmp sge {text} {f.let(f'xor {text} {x}, {y}')}, {zero}")

    def magnitude(x: str) -> str:
        negative = f.let(f"icmp slt {text} {x}, {zero}")
        return f.let(f"select {i1} {negative}, {text} {f.let(f'sub {text} {zero}, {x}')}, {text} {x}")

    quotient = estimate(a)
    quotient = f.let(f"add {text} {quotient}, {estimate(remainder(quotient))}")
    rest = remainder(quotient)
    # The estimate is at most one off: too small where the rest holds a divisor, too large where its sign is wrong.
    too_small = f.let(f"icmp uge {text} {magnitude(rest)}, {magnitude(b)}")
    toward = f.let(f"select {i1} {same_sign(rest, b)}, {text} {one}, {text} {minus}")
    quotient, rest = step(quotient, rest, too_small, toward)
    nonzero = f.let(f"icmp ne {text} {rest}, {zero}")
    opposite = f.let(f"icmp slt {text} {f.let(f'xor {text} {rest}, {a}')}, {zero}")
    too_large = f.let(f"and {i1} {nonzero}, {opposite}")
    back = f.let(f"select {i1} {same_sign(a, b)}, {text} {minus}, {text} {one}")
    return step(quotient, rest, too_large, back)[0]


def _rest(f: FunctionText, type: Type, a: str, b: str, quotient: str) -> str:
    return f.let(f"sub {type.text} {a}, {f.let(f'mul {type.text} {quotient}, {b}')}")


def _quotient(signed: bool) -> Handler:
    find = signed_quotient if signed else unsigned_quotient

    def emit(f: FunctionText, op: Operation) -> None:
        a, b = op._operands
        result = op.results[0]
        f.names[result] = find(f, type_of(result.type), f.names[a], f.names[b])

    return emit


def _remainder(signed: bool) -> Handler:
    find = signed_quotient if signed else unsigned_quotient

    def emit(f: FunctionText, op: Operation) -> None:
        a, b = (f.names[v] for v in op._operands)
        result = op.results[0]
        type = type_of(result.type)
        f.names[result] = _rest(f, type, a, b, find(f, type, a, b))

    return emit


def _rounded(up: bool) -> Handler:
    """Signed division rounded to minus infinity, or up."""

    def emit(f: FunctionText, op: Operation) -> None:
        a, b = (f.names[v] for v in op._operands)
        result = op.results[0]
        type = type_of(result.type)
        text, i1 = type.text, type.of("i1")
        divisor = constant_integer(b) if is_constant(b) else None
        if not up and divisor and divisor > 0 and divisor & (divisor - 1) == 0:
            f.set(result, f"ashr {text} {a}, {splat(type, str(divisor.bit_length() - 1))}")
            return
        quotient = signed_quotient(f, type, a, b)
        rest = _rest(f, type, a, b, quotient)
        inexact = f.let(f"icmp ne {text} {rest}, {splat(type, '0')}")
        signs = f.let(f"xor {text} {rest}, {b}")
        wrong = f.let(f"icmp {'sge' if up else 'slt'} {text} {signs}, {splat(type, '0')}")
        moved = f.let(f"zext {i1} {f.let(f'and {i1} {inexact}, {wrong}')} to {text}")
        f.set(result, f"{'add' if up else 'sub'} {text} {quotient}, {moved}")

    return emit


def emit_ceildivui(f: FunctionText, op: Operation) -> None:
    """Unsigned division rounded up."""
    a, b = (f.names[v] for v in op._operands)
    result = op.results[0]
    type = type_of(result.type)
    quotient = unsigned_quotient(f, type, a, b)
    inexact = f.let(f"icmp ne {type.text} {_rest(f, type, a, b, quotient)}, {splat(type, '0')}")
    f.set(result, f"add {type.text} {quotient}, {f.let('zext ' + type.of('i1') + f' {inexact} to {type.text}')}")


HANDLERS: dict[type[Operation], Handler] = {
    arith.DivSIOp: _quotient(True),
    arith.DivUIOp: _quotient(False),
    arith.RemSIOp: _remainder(True),
    arith.RemUIOp: _remainder(False),
    arith.FloorDivSIOp: _rounded(False),
    arith.CeilDivSIOp: _rounded(True),
    arith.CeilDivUIOp: emit_ceildivui,
}
