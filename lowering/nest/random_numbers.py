"""Random numbers from words of 32 random bits; how a kernel comes by the words is a matter of the target."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from .builder import NO_FLAGS, ValueBuilder


def uniform(b: ValueBuilder, word: SSAValue) -> SSAValue:
    """The upper 24 bits of a word as an f32 in [0, 1)."""
    number = b.convert(arith.SIToFPOp, b.elementwise(arith.ShRUIOp, (word, b.int(8, i32))), f32)
    return b.elementwise(arith.MulfOp, (number, b.constant(2.0**-24, f32)), NO_FLAGS)


def normal(b: ValueBuilder, is_odd: SSAValue, u: SSAValue, v: SSAValue, root: Callable[[SSAValue], SSAValue]) -> SSAValue:
    """sqrt(-2 ln u) times cos (of the even numbers of a stream) or sin (of the odd ones) of 2 pi v, by Box and Muller's method; u and v are
    uniform, and u is moved to (0, 1]. `root` is a correctly rounded square root."""
    u = b.elementwise(arith.AddfOp, (u, b.constant(2.0**-24, f32)), NO_FLAGS)
    log = b.elementwise(mlir_math.LogOp, (u,), NO_FLAGS)
    radius = root(b.elementwise(arith.MulfOp, (log, b.constant(-2.0, f32)), NO_FLAGS))
    angle = b.elementwise(arith.MulfOp, (v, b.constant(6.283185307179586, f32)), NO_FLAGS)
    wave = b.select(is_odd, b.elementwise(mlir_math.SinOp, (angle,), NO_FLAGS), b.elementwise(mlir_math.CosOp, (angle,), NO_FLAGS))
    return b.elementwise(arith.MulfOp, (radius, wave), NO_FLAGS)
