"""What each operation of a `tt` kernel computes; see run.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Operation, SSAValue

from ....dialects.tt.base import integers, number
from ....dialects.tt.compute import BYTES_AS_FLOATS, GRID_WAIT, TWO_AS_THEY_ARE, ZERO_BITS, four_to_8_bits
from ....dialects.tt.types import NAN, RMW, ROUNDING, SCALED_TYPE, element_of, loaded
from ....passes.loop.fixed_order import UNIT_TERMS
from ..remainders import fmod
from . import blocks as interpret_tt_blocks
from .run import RULES, KernelError, Runner, shape_or_scalar
from .types import dtype_of, poison, signed, unsigned

Rule = Callable[[Runner, Any], Sequence[Any] | None]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as what operations of these names do."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _elementwise(function: Callable[..., torch.Tensor]) -> Rule:
    def run(runner: Runner, op: Operation) -> list[torch.Tensor]:
        wanted = dtype_of(element_of(op.results[0].type))
        return [function(*runner.operands(op)).to(wanted)]

    return run


# Arithmetic.


def _wide(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function in f32 for shorter floating point numbers, rounded once."""

    def run(*values: torch.Tensor) -> torch.Tensor:
        if values[0].dtype.itemsize >= 4:
            return function(*values)
        return function(*(v.float() for v in values)).to(values[0].dtype)

    return run


def _divide(mode: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Division of signed integers; what a division by zero gives is undefined."""

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        safe = torch.where((b == 0) | (b == -1), torch.ones_like(b), b)
        quotient = torch.div(a, safe, rounding_mode="trunc")
        quotient = torch.where(b == -1, -a, quotient)  # the smallest number stays itself
        result = quotient if mode == "div" else a - quotient * b
        return torch.where(b == 0, torch.full_like(a, int(poison(a.dtype))), result)

    return run


def _unsigned(function: Callable[[Any, Any], Any]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = torch.broadcast_tensors(a, b)
        with np.errstate(all="ignore"):
            return signed(function(unsigned(a), unsigned(b)), a.dtype)

    return run


def _shift(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(a, b.clamp(0, a.dtype.itemsize * 8 - 1))

    return run


def _integers_or_masks(of_masks: Any, of_integers: Any) -> Any:
    return lambda a, b: of_masks(a, b) if a.dtype is torch.bool else of_integers(a, b)


def _high(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The upper half of the product of unsigned numbers."""
    bits = a.dtype.itemsize * 8
    a, b = torch.broadcast_tensors(a, b)
    x, y = unsigned(a), unsigned(b)
    if bits < 64:
        return signed((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(bits), a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    with np.errstate(over="ignore"):
        middle = (x >> half) * (y & low) + (((x & low) * (y & low)) >> half)
        carry = (x & low) * (y >> half) + (middle & low)
        return signed((x >> half) * (y >> half) + (middle >> half) + (carry >> half), a.dtype)


def _maximum_number(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.fmax(a, b)


_ARITH: dict[str, Callable[..., torch.Tensor]] = {
    "addf": _wide(torch.add),
    "subf": _wide(torch.sub),
    "mulf": _wide(torch.mul),
    "divf": _wide(torch.div),
    "remf": _wide(fmod),
    "negf": torch.neg,
    "maximumf": torch.maximum,
    "minimumf": torch.minimum,
    "maxnumf": _wide(_maximum_number),
    "minnumf": _wide(torch.fmin),
    "addi": _integers_or_masks(torch.logical_xor, torch.add),
    "subi": _integers_or_masks(torch.logical_xor, torch.sub),
    "muli": _integers_or_masks(torch.logical_and, torch.mul),
    "divsi": _divide("div"),
    "remsi": _divide("rem"),
    "divui": _unsigned(lambda a, b: np.where(b == 0, a, a // np.where(b == 0, 1, b).astype(b.dtype))),
    "remui": _unsigned(lambda a, b: np.where(b == 0, a, a % np.where(b == 0, 1, b).astype(b.dtype))),
    "maxsi": torch.maximum,
    "minsi": torch.minimum,
    "maxui": _unsigned(np.maximum),
    "minui": _unsigned(np.minimum),
    "andi": torch.bitwise_and,
    "ori": torch.bitwise_or,
    "xori": torch.bitwise_xor,
    "shli": _shift(torch.bitwise_left_shift),
    "shrsi": _shift(torch.bitwise_right_shift),
    "shrui": _unsigned(lambda a, b: a >> b),
}
_MATH: dict[str, Callable[..., torch.Tensor]] = {
    name: _wide(getattr(torch, attribute))
    for name, attribute in {
        "absf": "abs", "ceil": "ceil", "floor": "floor", "trunc": "trunc", "roundeven": "round", "exp": "exp",
        "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
        "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh", "sinh": "sinh",
        "cosh": "cosh", "asin": "asin", "acos": "acos", "atan": "atan", "asinh": "asinh", "acosh": "acosh",
        "atanh": "atanh", "erf": "erf", "atan2": "atan2", "copysign": "copysign", "powf": "pow",
    }.items()
}  # fmt: skip
_MATH["absi"] = torch.abs
_MATH["cbrt"] = _wide(lambda a: torch.sign(a) * torch.abs(a) ** (1 / 3))

for _dialect, _table in (("arith", _ARITH), ("math", _MATH)):
    for _name, _function in _table.items():
        RULES[f"{_dialect}.{_name}"] = _elementwise(_function)


@rule("math.fma")
def _fma(runner: Runner, op: Operation) -> list[torch.Tensor]:
    a, b, c = runner.operands(op)
    wide = torch.float64 if a.dtype.itemsize >= 4 else torch.float32
    return [(a.to(wide) * b.to(wide) + c.to(wide)).to(a.dtype)]


@rule("arith.constant")
def _constant(runner: Runner, op: arith.ConstantOp) -> list[torch.Tensor]:
    value, type = op.value, op.result.type
    dtype = dtype_of(element_of(type))
    if isinstance(value, (IntegerAttr, FloatAttr)):
        return [_scalar(value.value.data, dtype)]
    assert isinstance(value, DenseIntOrFPElementsAttr)
    shape = shape_or_scalar(type)
    if value.is_splat():
        return [_scalar(value.get_values()[0], dtype).expand(shape)]
    return [_tensor([_number(v, dtype) for v in value.get_values()], dtype).reshape(shape)]


def _scalar(value: Any, dtype: torch.dtype) -> torch.Tensor:
    return _tensor(_number(value, dtype), dtype)


def _number(value: Any, dtype: torch.dtype) -> float | int:
    """A value as a type has it: integers wrap."""
    if dtype.is_floating_point:
        return float(value)
    if dtype is torch.bool:
        return bool(value)
    bits = dtype.itemsize * 8
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if value >> (bits - 1) else value


def _tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else dtype).to(dtype)


@rule("ub.poison")
def _poison(runner: Runner, op: Operation) -> list[torch.Tensor]:
    dtype = dtype_of(element_of(op.results[0].type))
    return [_scalar(poison(dtype), dtype).expand(shape_or_scalar(op.results[0].type))]


_SIGNED: dict[str, Any] = {
    "slt": torch.lt, "sle": torch.le, "sgt": torch.gt, "sge": torch.ge, "eq": torch.eq, "ne": torch.ne,
}  # fmt: skip
_NUMPY: dict[str, Any] = {
    "ult": np.less, "ule": np.less_equal, "ugt": np.greater, "uge": np.greater_equal,
}  # fmt: skip
_ORDERED: dict[str, Any] = {
    "eq": torch.eq, "gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le, "ne": torch.ne,
}  # fmt: skip


@rule("arith.cmpi")
def _cmpi(runner: Runner, op: Operation) -> list[torch.Tensor]:
    a, b = runner.operands(op)
    kind = arith.CMPI_COMPARISON_OPERATIONS[number(op.properties["predicate"])]
    if kind in _SIGNED:
        if a.dtype is torch.bool and kind not in ("eq", "ne"):  # a set i1 is -1
            a, b = -a.int(), -b.int()
        return [_SIGNED[kind](a, b)]
    a, b = torch.broadcast_tensors(a, b)
    return [torch.from_numpy(np.asarray(_NUMPY[kind](unsigned(a), unsigned(b))))]


@rule("arith.cmpf")
def _cmpf(runner: Runner, op: Operation) -> list[torch.Tensor]:
    a, b = runner.operands(op)
    kind = arith.CMPF_COMPARISON_OPERATIONS[number(op.properties["predicate"])]
    nan = torch.isnan(a) | torch.isnan(b)
    if kind in ("false", "true"):
        return [torch.full_like(nan, kind == "true")]
    if kind in ("ord", "uno"):
        return [~nan if kind == "ord" else nan]
    holds = _ORDERED[kind[1:]](a, b)
    return [holds & ~nan if kind[0] == "o" else holds | nan]


@rule("arith.select")
def _select(runner: Runner, op: Operation) -> list[torch.Tensor]:
    mask, a, b = runner.operands(op)
    return [torch.where(mask, a, b)]


# Casts.


@rule("arith.extf", "arith.truncf", "arith.sitofp", "arith.extsi", "arith.index_cast")
def _cast(runner: Runner, op: Operation) -> list[torch.Tensor]:
    (value,) = runner.operands(op)
    if value.dtype is torch.bool and op.name in ("arith.sitofp", "arith.extsi"):
        value = -value.to(torch.int32)
    return [value.to(dtype_of(element_of(op.results[0].type)))]


@rule("arith.trunci")
def _trunci(runner: Runner, op: Operation) -> list[torch.Tensor]:
    (value,) = runner.operands(op)
    dtype = dtype_of(element_of(op.results[0].type))
    return [(value & 1).bool() if dtype is torch.bool else value.to(dtype)]


@rule("arith.extui", "arith.uitofp")
def _unsigned_cast(runner: Runner, op: Operation) -> list[torch.Tensor]:
    (value,) = runner.operands(op)
    dtype = dtype_of(element_of(op.results[0].type))
    if op.name == "arith.extui":
        return [signed(unsigned(value), dtype)]
    return [torch.from_numpy(np.asarray(unsigned(value), dtype=np.float64)).to(dtype)]


@rule("arith.fptosi", "arith.fptoui")
def _to_integer(runner: Runner, op: Operation) -> list[torch.Tensor]:
    """Towards zero; what does not fit becomes the nearest that does, as on a GPU, NaN becomes 0."""
    (value,) = runner.operands(op)
    dtype = dtype_of(element_of(op.results[0].type))
    bits = 1 if dtype is torch.bool else dtype.itemsize * 8
    if op.name == "arith.fptoui":
        low, high = 0, 2**bits - 1
    else:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    cut = torch.nan_to_num(value.double(), nan=0.0, posinf=float("inf"), neginf=float("-inf")).trunc()
    numbers = [min(max(x, low), high) if abs(x) != float("inf") else (high if x > 0 else low) for x in cut.reshape(-1).tolist()]
    entries = [_scalar(int(x), dtype) for x in numbers]
    return [torch.stack(entries).reshape(value.shape) if entries else value.to(dtype)]


@rule("arith.bitcast", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int")
def _bitcast(runner: Runner, op: Operation) -> list[torch.Tensor]:
    (value,) = runner.operands(op)
    dtype = dtype_of(element_of(op.results[0].type))
    if dtype is torch.bool or value.dtype is torch.bool:
        return [value.to(dtype)]
    return [value.contiguous().view(dtype)]


@rule("tt.fp_to_fp")
def _fp_to_fp(runner: Runner, op: Any) -> list[torch.Tensor]:
    """Towards zero or to the nearest; 8-bit types are saturated, as the instructions of GPUs do it."""
    (value,) = runner.operands(op)
    dtype = dtype_of(element_of(op.result.type))
    if dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        value = torch.where(torch.isnan(value), value, value.float().clamp(-most, most).to(torch.float32))
    rounded = value.to(dtype)
    if op.rounding is not None and ROUNDING.keyword(op.rounding) == "rtz" and dtype.itemsize < 4:
        too_far = rounded.double().abs() > value.double().abs()
        pattern = rounded.view(torch.int16 if dtype.itemsize == 2 else torch.int8)
        rounded = torch.where(too_far, pattern - 1, pattern).view(dtype)  # one nearer to zero
    return [rounded]


@rule("tt.clampf")
def _clampf(runner: Runner, op: Any) -> list[torch.Tensor]:
    x, low, high = runner.operands(op)
    if NAN.keyword(op.propagateNan) == "all":
        return [torch.minimum(torch.maximum(x, low), high)]
    return [torch.fmin(torch.fmax(x, low), high)]


RULES["tt.precise_sqrt"] = _elementwise(torch.sqrt)
RULES["tt.precise_divf"] = _elementwise(torch.div)
RULES["tt.approx_divf"] = _elementwise(torch.div)
RULES["tt.mulhiui"] = _elementwise(_high)

_LIBRARY: dict[str, Callable[..., torch.Tensor]] = {
    name: _wide(getattr(torch, attribute))
    for name, attribute in {
        "pow": "pow", "tanh": "tanh", "exp": "exp", "log": "log", "log1p": "log1p", "expm1": "expm1", "erf": "erf",
        "erfc": "erfc", "erfinv": "erfinv", "lgamma": "lgamma", "sin": "sin", "cos": "cos", "tan": "tan",
        "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh",
        "acosh": "acosh", "atanh": "atanh", "sqrt": "sqrt", "rsqrt": "rsqrt", "exp2": "exp2", "log2": "log2",
        "log10": "log10", "fabs": "abs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "round",
        "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "nextafter": "nextafter",
        "isnan": "isnan", "isinf": "isinf", "isinfd": "isinf", "isnand": "isnan", "finite": "isfinite",
        "isfinited": "isfinite", "signbit": "signbit", "signbitd": "signbit",
    }.items()
}  # fmt: skip
_LIBRARY |= {
    "cyl_bessel_i0": _wide(torch.special.i0),
    "cyl_bessel_i1": _wide(torch.special.i1),
    "erfcx": _wide(torch.special.erfcx),
    "fmod": _wide(fmod),
    "normcdfinv": _wide(torch.special.ndtri),
    "fast_fdivide": _wide(torch.div),
    "exp10": _wide(lambda x: torch.pow(10.0, x)),
    "cbrt": _wide(lambda x: x.sign() * x.abs().pow(1 / 3)),
}


@rule("tt.extern_elementwise")
def _extern(runner: Runner, op: Any) -> list[torch.Tensor]:
    symbol = op.symbol.data
    short = symbol.removeprefix("__nv_").removeprefix("__ocml_").removesuffix("_f32").removesuffix("_f64")
    function = runner.functions.get(symbol) or _LIBRARY.get(short) or _LIBRARY.get(short.removesuffix("f"))
    if function is None:
        raise KernelError(f"it is not known what '{symbol}' computes")
    return _elementwise(function)(runner, op)  # pyright: ignore[reportReturnType]


def _codes(dtype: torch.dtype, signed_nan: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the instructions of `four_to_8_bits` compute, of the bits of f32."""

    def codes(bits: torch.Tensor) -> torch.Tensor:
        value = bits.contiguous().view(torch.float32)
        most = torch.finfo(dtype).max
        code = torch.where(value.isnan(), torch.nan, value.clamp(-most, most)).to(dtype).view(torch.int8)
        return code | ((bits >> 24) & 0x80).to(torch.int8) if signed_nan else code

    return codes


_CASTS = {
    four_to_8_bits(kind, signed): _codes(dtype, signed)
    for kind, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2))
    for signed in (False, True)
}


@rule("tt.elementwise_inline_asm")
def _assembly(runner: Runner, op: Any) -> list[torch.Tensor]:
    if op.asm_string.data == GRID_WAIT:  # here kernels run one after the other
        return [_scalar(0, torch.int32)]
    if op.asm_string.data == TWO_AS_THEY_ARE:
        return list(runner.operands(op))[:1]
    if op.asm_string.data == ZERO_BITS:
        kind = op.results[0].type
        return [torch.zeros(shape_or_scalar(kind), dtype=dtype_of(element_of(kind)))]
    if (found := BYTES_AS_FLOATS.match(op.asm_string.data)) is not None:
        shift, mask, high = (int(n, base) for n, base in zip(found.groups(), (10, 16, 16), strict=True))
        bits = high << 8 | (runner.operands(op)[0].int() & 0xFF) >> shift & mask
        return [bits.to(torch.int16).view(dtype_of(element_of(op.results[0].type)))]
    function = runner.functions.get(op.asm_string.data) or _CASTS.get(op.asm_string.data)
    if function is None:
        raise KernelError(f"assembly cannot be interpreted: {op.asm_string.data!r}")
    results = function(*runner.operands(op))
    return list(results) if isinstance(results, (tuple, list)) else [results]


# Control flow.


@rule("tt.call")
def _call(runner: Runner, op: Any) -> list[Any]:
    return runner.call(runner.callees[op.callee.root_reference.data], runner.operands(op))


@rule("scf.for")
def _for(runner: Runner, op: Any) -> list[Any]:
    low, high, step, *carried = runner.operands(op)
    if int(step) <= 0:
        raise KernelError(f"its step is {int(step)}; a loop counts up, by 1 or more")
    for i in range(int(low), int(high), int(step)):
        carried = runner.region(op.body, [_scalar(i, low.dtype), *carried])
    return carried


@rule("scf.while")
def _while(runner: Runner, op: Any) -> list[Any]:
    carried = runner.operands(op)
    while True:
        condition, *passed = runner.region(op.before_region, carried)
        if not bool(condition):
            return passed
        carried = runner.region(op.after_region, passed)


@rule("scf.if")
def _if(runner: Runner, op: Any) -> list[Any]:
    region = op.true_region if bool(runner.get(op.cond)) else op.false_region
    return runner.region(region, []) if region.blocks else []


@rule("tt.get_program_id")
def _program_id(runner: Runner, op: Any) -> list[torch.Tensor]:
    return [torch.tensor(runner.program[op.axis_number], dtype=torch.int32)]


@rule("tt.get_num_programs")
def _num_programs(runner: Runner, op: Any) -> list[torch.Tensor]:
    return [torch.tensor(runner.grid[op.axis_number], dtype=torch.int32)]


@rule("tt.assert", "cf.assert")
def _assert(runner: Runner, op: Any) -> None:
    holds = runner.get(op.operands[0])
    if not bool(holds.all()):
        message = op.properties.get("message") or op.properties.get("msg")
        text = message.data if isinstance(message, StringAttr) else ""
        raise KernelError(f"does not hold: {text}")


@rule("tt.print")
def _print(runner: Runner, op: Any) -> None:
    for value in runner.operands(op) or [None]:
        shown = "" if value is None else str(value.tolist())
        runner.printed.append(f"pid {runner.program} {op.prefix.data}{shown}")


@rule("gpu.barrier")
def _barrier(runner: Runner, op: Operation) -> None:
    """Threads run one after the other here: all that changes is the order that a GPU keeps."""
    runner.order.barrier()


# Memory.


@rule("tt.addptr")
def _addptr(runner: Runner, op: Any) -> list[torch.Tensor]:
    pointer, offset = runner.operands(op)
    size = dtype_of(loaded(element_of(op.ptr.type))).itemsize
    return [pointer + offset.to(torch.int64) * size]


@rule("tt.load")
def _load(runner: Runner, op: Any) -> list[torch.Tensor]:
    pointer = runner.get(op.ptr)
    if isinstance(pointer, interpret_tt_blocks.Block):
        return [pointer.load(runner, integers(op.boundaryCheck) if op.boundaryCheck else [], op.padding)]
    mask = None if op.mask is None else runner.get(op.mask)
    other = None if op.other is None else runner.get(op.other)
    volatile = op.isVolatile is not None and bool(op.isVolatile.value.data)
    if runner.turns is not None and volatile:
        runner.turns.pause()
    return [runner.load(pointer, element_of(op.result.type), mask, other, volatile)]


@rule("tt.store")
def _store(runner: Runner, op: Any) -> None:
    pointer = runner.get(op.ptr)
    if isinstance(pointer, interpret_tt_blocks.Block):
        pointer.store(runner, runner.get(op.value), integers(op.boundaryCheck) if op.boundaryCheck else [])
        return
    runner.store(pointer, runner.get(op.value), None if op.mask is None else runner.get(op.mask), scattered=_from_memory(op.ptr))


def _from_memory(pointer: SSAValue) -> bool:
    """Whether a place is computed from what was loaded."""
    seen: set[SSAValue] = set()
    worklist = [pointer]
    while worklist:
        value = worklist.pop()
        if value in seen or not isinstance(value.owner, Operation):
            continue
        if value.owner.name == "tt.load":
            return True
        seen.add(value)
        worklist += value.owner.operands
    return False


_RMW: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "add": torch.add,
    "fadd": _wide(torch.add),
    "max": torch.maximum,
    "min": torch.minimum,
    "umax": _unsigned(np.maximum),
    "umin": _unsigned(np.minimum),
    "exch": lambda old, new: new,
}


@rule("tt.atomic_rmw")
def _atomic_rmw(runner: Runner, op: Any) -> list[torch.Tensor]:
    combine = _RMW[RMW.keyword(op.atomic_rmw_op)]
    mask = None if op.mask is None else runner.get(op.mask)
    return [_atomic(runner, runner.get(op.ptr), [runner.get(op.val)], mask, combine)]


@rule("tt.atomic_cas")
def _atomic_cas(runner: Runner, op: Any) -> list[torch.Tensor]:
    def swap(old: torch.Tensor, expected: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.where(old == expected, new, old)

    return [_atomic(runner, runner.get(op.ptr), [runner.get(op.cmp), runner.get(op.val)], None, swap)]


def _atomic(runner: Runner, pointers: torch.Tensor, values: list[torch.Tensor], mask: Any, combine: Any) -> torch.Tensor:
    """One element after the other."""
    shape, dtype = pointers.shape, values[-1].dtype
    flat = pointers.reshape(-1)
    entries = [v.expand(shape).reshape(-1) for v in values]
    chosen = torch.ones(flat.shape, dtype=torch.bool) if mask is None else mask.expand(shape).reshape(-1)
    out = torch.full(flat.shape, poison(dtype), dtype=dtype)
    for i in torch.nonzero(chosen).reshape(-1).tolist():
        old = runner.memory.load(flat[i : i + 1], dtype)
        out[i] = old[0]
        runner.memory.store(flat[i : i + 1], combine(old, *(e[i : i + 1] for e in entries)))
    return out.reshape(shape)


# Shapes.


@rule("tt.make_range")
def _make_range(runner: Runner, op: Any) -> list[torch.Tensor]:
    return [torch.arange(number(op.start), number(op.end), dtype=torch.int32)]


@rule("tt.splat", "tt.broadcast")
def _broadcast(runner: Runner, op: Operation) -> list[torch.Tensor]:
    return [runner.get(op.operands[0]).expand(shape_or_scalar(op.results[0].type))]


@rule("tt.unsplat", "tt.reshape")
def _reshape(runner: Runner, op: Operation) -> list[torch.Tensor]:
    return [runner.get(op.operands[0]).reshape(shape_or_scalar(op.results[0].type))]


@rule("tt.expand_dims")
def _expand_dims(runner: Runner, op: Any) -> list[torch.Tensor]:
    return [runner.get(op.src).unsqueeze(number(op.axis))]


@rule("tt.trans")
def _trans(runner: Runner, op: Any) -> list[torch.Tensor]:
    return [runner.get(op.src).permute(integers(op.order))]


@rule("tt.cat")
def _cat(runner: Runner, op: Operation) -> list[torch.Tensor]:
    return [torch.cat(runner.operands(op)).reshape(shape_or_scalar(op.results[0].type))]


@rule("tt.join")
def _join(runner: Runner, op: Operation) -> list[torch.Tensor]:
    return [torch.stack(runner.operands(op), -1)]


@rule("tt.split")
def _split(runner: Runner, op: Operation) -> list[torch.Tensor]:
    return list(runner.get(op.operands[0]).unbind(-1))


@rule("tt.gather")
def _gather(runner: Runner, op: Any) -> list[torch.Tensor]:
    source, indices = runner.operands(op)
    if bool(((indices < 0) | (indices >= source.shape[number(op.axis)])).any()):
        raise KernelError(f"an index is not in 0 to {source.shape[number(op.axis)] - 1}")
    return [torch.gather(source, number(op.axis), indices.long())]


@rule("tt.histogram")
def _histogram(runner: Runner, op: Any) -> list[torch.Tensor]:
    values = runner.get(op.src)
    if op.mask is not None:
        values = values[runner.get(op.mask)]
    (bins,) = shape_or_scalar(op.result.type)
    values = values[(values >= 0) & (values < bins)]
    return [torch.bincount(values.long(), minlength=bins).to(dtype_of(element_of(op.result.type)))]


# Products, reductions, scans.


@rule("tt.dot")
def _dot(runner: Runner, op: Any) -> list[torch.Tensor]:
    a, b, c = runner.operands(op)
    if a.dtype is not torch.float32 or op.precision == "ieee":
        return [_product(a, b, c)]
    *small, largest = _pairs(a, b, op.precision)
    total = torch.zeros_like(c)
    for one, other in small:  # parts of infinite numbers times 0 count nothing
        total = torch.nan_to_num(_product(one, other, total), 0.0, float("inf"), -float("inf"))
    return [_product(*largest, total) + c]


def _pairs(a: torch.Tensor, b: torch.Tensor, precision: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The matrices whose products add up to that of two of f32, the smallest first: rounded to TF32, or parts of TF32 or bf16."""
    if precision == "tf32":
        return [(_tf32(a), _tf32(b))]
    count, kept = (2, _tf32) if precision == "tf32x3" else (2 if precision == "bf16x3" else 3, lambda x: x.bfloat16().float())
    left, right = (_parts(x, count, kept) for x in (a, b))
    order = sorted(((i, j) for i in range(count) for j in range(count) if i + j < count), key=sum, reverse=True)
    return [(left[i], right[j]) for i, j in order]


def _parts(x: torch.Tensor, count: int, kept: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """A number as a sum, the largest part first; what an infinite one leaves counts nothing."""
    found = []
    for _ in range(count):
        found.append(kept(x))
        x = torch.nan_to_num(x - found[-1], 0.0, 0.0, 0.0)
    return found


def _tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 11 bits, as units for products take numbers of f32; ties away from zero."""
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + (1 << 12)) & ~((1 << 13) - 1)
    return torch.where(torch.isfinite(x), rounded, bits).view(torch.float32)


def _product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Terms are added to a sum as units do it: as many as an instruction takes at once, whatever the block of the result is."""
    if not a.dtype.is_floating_point:
        return torch.matmul(a.int(), b.int()) + c
    if a.dtype is torch.float64:
        return torch.matmul(a, b) + c
    for left, right in zip(a.split(UNIT_TERMS, -1), b.split(UNIT_TERMS, -2), strict=True):
        c = (torch.matmul(left.double(), right.double()) + c).to(c.dtype)
    return c


_SCALE_BLOCK = 32
"""Elements that share a scale (OCP microscaling formats)."""


@rule("tt.dot_scaled")
def _dot_scaled(runner: Runner, op: Any) -> list[torch.Tensor]:
    a, b = runner.get(op.a), runner.get(op.b)
    for kind in (op.a_elem_type, op.b_elem_type):
        if SCALED_TYPE.keyword(kind) not in ("e4m3", "e5m2", "bf16", "fp16"):
            raise KernelError(f"elements of {SCALED_TYPE.keyword(kind)} cannot be interpreted")
    a, b = a.float(), b.float()
    if op.a_scale is not None:
        a = a * _scales(runner.get(op.a_scale), a.shape[-1])
    if op.b_scale is not None:
        b = b * _scales(runner.get(op.b_scale), b.shape[-2]).mT
    return [_product(a, b, runner.get(op.c))]


def _scales(scales: torch.Tensor, size: int) -> torch.Tensor:
    """Powers of two with a bias of 127, each for 32 elements of the inner dimension."""
    exponents = torch.from_numpy(unsigned(scales).astype(np.float32)) - 127
    return torch.exp2(exponents).repeat_interleave(_SCALE_BLOCK, -1)[..., :size]


@rule("tt.reduce")
def _reduce(runner: Runner, op: Any) -> list[torch.Tensor]:
    """The first half combined with the second one: as in a thread, whose elements lie far apart, and not in the order of the elements."""
    axis = number(op.axis)
    parts = runner.operands(op)
    while (size := parts[0].shape[axis]) > 1:
        assert size % 2 == 0
        first = [p.narrow(axis, 0, size // 2) for p in parts]
        second = [p.narrow(axis, size // 2, size // 2) for p in parts]
        parts = _full(runner.region(op.combineOp, [*first, *second]), first)
    return [p.squeeze(axis) for p in parts]


def _full(values: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A region may return a constant."""
    return [v.expand(x.shape) for v, x in zip(values, like, strict=True)]


@rule("tt.scan")
def _scan(runner: Runner, op: Any) -> list[torch.Tensor]:
    """Over distances 1, 2, 4, ...: elements behind are joined with each other before what is in front, as in the lanes of a warp."""
    axis = number(op.axis)
    parts = [p.flip(axis) if number(op.reverse) else p for p in runner.operands(op)]
    size, distance = parts[0].shape[axis], 1
    while distance < size:
        before = [p.narrow(axis, 0, size - distance) for p in parts]
        after = [p.narrow(axis, distance, size - distance) for p in parts]
        joined = _full(runner.region(op.combineOp, [*before, *after]), before)
        parts = [torch.cat([p.narrow(axis, 0, distance), v], axis) for p, v in zip(parts, joined, strict=True)]
        distance *= 2
    return [p.flip(axis) if number(op.reverse) else p for p in parts]


@rule("tt.map_elementwise")
def _map_elementwise(runner: Runner, op: Any) -> list[torch.Tensor]:
    pack = number(op.pack)
    operands = [v.reshape(-1) for v in runner.operands(op)]
    found: list[list[torch.Tensor]] = [[] for _ in op.results]
    for i in range(0, operands[0].numel(), pack):
        values = runner.region(op.scalarOp, [v[i + k] for v in operands for k in range(pack)])
        for index, value in enumerate(values):
            found[index // pack].append(value)
    return [torch.stack(f).reshape(shape_or_scalar(r.type)) for f, r in zip(found, op.results, strict=True)]
