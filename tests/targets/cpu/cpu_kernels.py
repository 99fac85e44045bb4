"""Helpers for the tests of the CPU target: kernels from text, one operation on arrays, for every instruction set that
runs here."""

from __future__ import annotations

import numpy as np
import torch
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.math import Math
from xdsl.dialects.scf import Scf
from xdsl.dialects.vector import Vector
from xdsl.parser import Parser

from stepwell.dialects.cpu import Cpu
from stepwell.targets.cpu.emit.module import emit_module
from stepwell.targets.cpu.features import is_runnable, target
from stepwell.targets.cpu.jit import Library, load_text

# "avx512" and "neon" are what the host is, or cannot run.
RUNNABLE = ["host", *(name for name in ("avx2", "generic-sse") if is_runnable(target(name)))]

TYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i1",
}


def parse(text: str) -> ModuleOp:
    ctx = Context()
    for dialect in (Builtin, Arith, Math, Scf, Vector, Cpu):
        ctx.load_dialect(dialect)
    module = Parser(ctx, text).parse_module()
    module.verify()
    return module


def build(text: str, isa: str = "host") -> Library:
    wanted = target(isa)
    return load_text(emit_module(parse(text), wanted), wanted=wanted)


def typed(dtype: torch.dtype, lanes: int) -> str:
    return f"vector<{lanes}x{TYPES[dtype]}>" if lanes else TYPES[dtype]


def elementwise(name: str, body: str, inputs: list[torch.dtype], output: torch.dtype, lanes: int) -> str:
    """A kernel that reads lanes of %a, %b, ... , runs `body`, which defines %r, and stores it, for n elements (a
    multiple of the lanes). In the body {A} is the type of %a and so on, {R} that of %r, {I1} a mask."""
    names = "abcd"
    spelled = {names[i].upper(): typed(d, lanes) for i, d in enumerate(inputs)}
    spelled |= {"R": typed(output, lanes), "I1": typed(torch.bool, lanes), "I32": typed(torch.int32, lanes)}
    arguments = "".join(f"%p{i} : !cpu.ptr, " for i in range(len(inputs)))
    loads = "\n".join(f"%{names[i]} = cpu.load %p{i}[%i] : {typed(d, lanes)}" for i, d in enumerate(inputs))
    return f"""
cpu.kernel @{name}({arguments}%out : !cpu.ptr, %n : i64) {{
  %zero = arith.constant 0 : i64
  %step = arith.constant {max(1, lanes)} : i64
  scf.for %i = %zero to %n step %step : i64 {{
    {loads}
    {body.format(**spelled)}
    cpu.store %r, %out[%i] : {typed(output, lanes)}
  }}
  cpu.return
}}
"""


def run(library: Library, name: str, inputs: list[torch.Tensor], output: torch.dtype, lanes: int) -> torch.Tensor:
    """Call an `elementwise` kernel on 1-D tensors; they are filled up to whole vectors by repeating the first
    element."""
    count = inputs[0].numel()
    width = max(1, lanes)
    padded = -(-count // width) * width
    full = [torch.cat([x, x[:1].expand(padded - count)]).contiguous() for x in inputs]
    result = torch.zeros(padded, dtype=output)
    library.call(name, *full, result, padded)
    return result[:count]


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal as values, NaN equal to NaN, zeros by sign."""
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    same = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((same | (a.isnan() & b.isnan())).all())


def float_samples(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Special values of a float type and random ones over all magnitudes."""
    info = torch.finfo(dtype)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.5,
        -2.5,
        3.5,
        1.5,
        100.25,
        -100.75,
        1e-3,
        88.0,
        -88.0,
        127.0,
        -128.0,
        255.0,
    ]
    special += [float("inf"), -float("inf"), float("nan"), info.max, info.min, info.tiny, -info.tiny, info.tiny / 4]
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(200, generator=generator, dtype=torch.float64)
    spread *= torch.exp2(torch.randint(-12, 12, (200,), generator=generator).double())
    return torch.cat([torch.tensor(special, dtype=torch.float64), spread]).to(dtype)


def int_samples(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Special values of an integer type and random ones of all sizes."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False] * 7)
    info = torch.iinfo(dtype)
    special = [0, 1, 2, 3, 7, 100, info.max, info.min, info.max - 1, info.min + 1]
    special += [] if info.min == 0 else [-1, -2, -7, -100]
    generator = np.random.default_rng(seed)
    magnitudes = [
        int(generator.integers(info.min, info.max, endpoint=True, dtype=np.int64)) >> int(s)
        for s in generator.integers(0, info.bits, 200)
    ]
    return torch.tensor(special + magnitudes, dtype=dtype)
