"""Size expressions against Python, every dtype, enumerations of the C shim, calls inside calls."""

import ctypes
import random

import pytest
import torch

from stepwell.dialects.expr import const, evaluate, floordiv, maximum, minimum, mod, sym
from stepwell.targets.host.description import CODES
from stepwell.targets.host.symbols import shim_address

SYMBOLS = [sym("s0"), sym("s1"), sym("u0")]


def random_expr(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(SYMBOLS) if rng.random() < 0.7 else const(rng.randint(-5, 9))
    a, b = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    kind = rng.randrange(7)
    if kind < 3:
        return (a + b, a - b, a * b)[kind]
    if kind in (3, 4):
        divisor = const(rng.choice((2, 3, 8, -3))) if rng.random() < 0.6 else maximum(b, 1)
        return floordiv(a, divisor) if kind == 3 else mod(a, divisor)
    return minimum(a, b) if kind == 5 else maximum(a, b)


def test_random_size_expressions(build):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    exprs = [random_expr(rng, 4) for _ in range(60)]
    run = build.program(
        f"""host.program @forward(%a: i64, %b: i64, %c: i64) {{
      host.bind s0 = value %a : i64
      host.bind s1 = value %b : i64
      host.bind u0 = value %c : i64
      host.return() [{", ".join(f"size({e})" for e in exprs)}]
    }}"""
    )
    for _ in range(20):
        numbers = [rng.randint(-20, 20) for _ in SYMBOLS]
        assert run(list(numbers)) == [evaluate(e, dict(zip(SYMBOLS, numbers, strict=True))) for e in exprs]


DTYPES = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "ui8": torch.uint8,
    "ui16": torch.uint16, "ui32": torch.uint32, "ui64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64, "complex<f32>": torch.complex64, "complex<f64>": torch.complex128,
    "f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(build, name):
    T = f"!host.tensor<{name}>"
    run = build.program(
        f"""host.program @forward(%x: {T}) arena 128 {{
      host.check %x [2, 3] strides [3, 1] "x" : {T}
      %p = host.arena_ptr 0
      %t = host.from_arena %p [2, 3] strides [1, 2] : !host.ptr -> {T}
      host.extern #nd.call<"aten.copy_.default", [arg(0), arg(1)]>(%t, %x) : ({T}, {T}) -> ()
      %y = host.empty_output [2, 3] strides [3, 1] : {T}
      host.extern #nd.call<"aten.copy_.default", [arg(0), arg(1)]>(%y, %t) : ({T}, {T}) -> ()
      %v = host.view %y [3] strides [1] offset 3 : {T} -> {T}
      host.return(%y : {T}, %v : {T}) [arg(0), arg(1)]
    }}"""
    )
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(DTYPES[name])
    y, v = run([x])
    assert y.dtype == v.dtype == x.dtype
    assert y.double().tolist() == x.double().tolist() if not x.is_complex() else torch.equal(x, y)
    assert v.data_ptr() == y[1].data_ptr()
    with pytest.raises(AssertionError, match="expected dtype"):
        run([torch.zeros(2, 3, dtype=torch.int16 if name != "i16" else torch.int8)])


def test_codes_are_those_of_the_shim():
    for kind, codes in CODES.items():
        for name, code in codes.__members__.items():
            address = shim_address(f"aoti_torch_{kind}_{name}")
            if address is None and name == "float8_e8m0fnu" and torch.__version__ < (2, 12):
                continue  # which torch 2.11 has, and its shim does not name
            assert address is not None and ctypes.CFUNCTYPE(ctypes.c_int32)(address)() == code


def test_a_program_may_call_itself(native):
    inner = []

    def again(x):
        return run([x - 1])[0] if x.sum() > 0 else x.clone()

    T = "!host.tensor<f32>"
    run = native.program(
        f"""host.program @forward(%x: {T}) arena 64 {{
      %p = host.arena_ptr 0
      host.launch @double(%x : {T}, %p : !host.ptr) [4]
      %t = host.from_arena %p [4] strides [1] : !host.ptr -> {T}
      %r = host.extern #nd.call<"py", [object(0), arg(0)]>(%x) : ({T}) -> ({T})
      %s = host.extern #nd.call<"aten.add.Tensor", [arg(0), arg(1)]>(%r, %t) : ({T}, {T}) -> ({T})
      host.return(%s : {T}) [arg(0)]
    }}""",
        objects=[again],
    )
    inner.append(run([torch.full((4,), 3.0)])[0])
    # 2*3 + 2*2 + 2*1 + (2*0 + 0)
    assert inner[0].tolist() == [12.0] * 4
