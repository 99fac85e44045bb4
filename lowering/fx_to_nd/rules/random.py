"""Random numbers: by default Philox streams seeded once a graph from torch's generator, so that torch.manual_seed
repeats them."""

from __future__ import annotations

import math
from typing import Any

import torch
from xdsl.dialects.builtin import f32, f64, i1, i64
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import as_expr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.call_args import Call, CallAttr, Enum
from ....dialects.nd.types import FLOATS, TensorType
from ....dialects.support.philox import SEED_RANGE
from ..core.builder import UNIT, Dims, text
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


def draw(b: Importer, kind: str, dims: Dims) -> SSAValue:
    """Fresh random numbers of the graph's own streams: f32 for rand and randn, raw 32 bits in i64 for randint. Each call site reads a
    slice of its own of the seeds, so that equal layers differ in an operand only."""
    if b.seeds is None:
        op = nd.ExternOp.create(result_types=(TensorType.get((2,), i64, b.device),), location=b.location)
        b.ops.insert(0, op)  # before the first layer, which is then as the others
        b.seeds = op.results[0]
    b.random_sites += 1
    return _of_site(b, kind, b.seeds, b.random_sites - 1, dims)


def _of_site(b: Importer, kind: str, seeds: SSAValue, site: int, dims: Dims) -> SSAValue:
    seed = b.emit(nd.SliceOp, (seeds,), (as_expr(2),), i64, starts=ExprsAttr.get((2 * site,)), steps=ExprsAttr.get((1,)))
    dtype = i64 if kind == "randint" else f32
    return b.emit(nd.RandomOp, (seed,), dims, dtype, kind=text(kind), index=IntsAttr.get((0,)))


def write_seeds(b: Importer) -> None:
    """Complete the call that draws the seeds, now that the number of streams is known."""
    if b.seeds is None:
        return
    count = 2 * b.random_sites
    op: Any = b.seeds.owner
    op.properties.update({"call": CallAttr(_seeds_call(b, count)), "effect": UNIT})
    b.seeds._type = TensorType.get((as_expr(count),), i64, b.device)  # pyright: ignore[reportAttributeAccessIssue]


def _seeds_call(b: Importer, count: int) -> Call:
    """torch's generator gives so many numbers of 64 bits."""
    options = [("dtype", Enum("dtype", "int64"))]
    if b.device != "cpu":
        options.append(("device", Enum("device", b.device)))
    return Call("aten.randint.low", (*SEED_RANGE, (count,)), tuple(options))


@rule("stepwell::drawn_seeds")
def _drawn_seeds(b: Importer, count: int, device: Any) -> SSAValue:
    """`spell_out_dropout` writes these: backward reads them, too."""
    op = nd.ExternOp.create(
        result_types=(TensorType.get((as_expr(2 * count),), i64, b.device),),
        properties={"call": CallAttr(_seeds_call(b, 2 * count)), "effect": UNIT}, location=b.location,
    )  # fmt: skip
    b.ops.append(op)
    return op.results[0]


@rule("stepwell::drawn_uniform")
def _drawn_uniform(b: Importer, seeds: SSAValue, site: int, size: Any) -> SSAValue:
    return _of_site(b, "rand", seeds, site, b.out_dims)


def _ours(b: Importer, options: dict[str, Any]) -> bool:
    """Whether a random op is drawn from the graph's streams (not with a generator of the user's)."""
    return not b.fallback_random and options.get("generator") is None


def _drawn(b: Importer, kind: str, options: dict[str, Any]) -> SSAValue:
    if not _ours(b, options) or b.out_dtype not in FLOATS:
        return NotImplemented
    return b.cast(draw(b, kind, b.out_dims), b.out_dtype)


@rule(aten.rand, aten.rand_like)
def _rand(b: Importer, *args: Any, **options: Any) -> SSAValue:
    return _drawn(b, "rand", options)


@rule(aten.randn, aten.randn_like)
def _randn(b: Importer, *args: Any, **options: Any) -> SSAValue:
    return _drawn(b, "randn", options)


def _integers(b: Importer, low: Any, high: Any, options: dict[str, Any]) -> SSAValue:
    if not _ours(b, options):
        return NotImplemented
    bits = draw(b, "randint", b.out_dims)
    width = b.sub(b.scalar(high, i64), b.scalar(low, i64))
    if not (isinstance(low, int) and isinstance(high, int) and high - low <= 1 << 31):
        bits = b.op("xor", b.op("shl", bits, 31), draw(b, "randint", b.out_dims))
    value = b.add(b.op("remainder", bits, width), b.scalar(low, i64))
    return b.cast(value, b.out_dtype)


@rule(aten.randint.default)
def _randint(b: Importer, high: Any, size: Any, **options: Any) -> SSAValue:
    return _integers(b, 0, high, options)


@rule(aten.randint.low)
def _randint_low(b: Importer, low: Any, high: Any, size: Any, **options: Any) -> SSAValue:
    return _integers(b, low, high, options)


@rule(aten.randint_like.default)
def _randint_like(b: Importer, x: SSAValue, high: Any, **options: Any) -> SSAValue:
    return _integers(b, 0, high, options)


@rule(aten.randint_like.low_dtype)
def _randint_like_low(b: Importer, x: SSAValue, low: Any, high: Any, **options: Any) -> SSAValue:
    return _integers(b, low, high, options)


@rule(aten.native_dropout)
def _dropout(b: Importer, x: SSAValue, p: float, train: bool | None) -> Any:
    if train is False or p == 0:
        return x, b.full(True, i1, b.dims(x))
    if not _ours(b, {}) or not isinstance(p, float):
        return NotImplemented
    if p == 1:
        return b.full(0, b.dtype(x), b.dims(x)), b.full(False, i1, b.dims(x))
    mask = b.cmp("gt", draw(b, "rand", b.dims(x)), p)
    wide = b.widen(x)
    return b.mul(wide, b.mul(b.cast(mask, b.dtype(wide)), 1.0 / (1.0 - p))), mask


@rule(aten.native_dropout_backward)
def _dropout_backward(b: Importer, grad: SSAValue, mask: SSAValue, scale: Any) -> SSAValue:
    wide = b.widen(b.cast(grad, b.out_dtype))
    return b.mul(b.mul(wide, b.cast(mask, b.dtype(wide))), b.scalar(scale, b.dtype(wide)))


@rule(packet(aten, "rrelu_with_noise_functional"))
def _rrelu(
    b: Importer, x: SSAValue, noise: SSAValue, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, **options: Any
) -> Any:
    """Negative elements times a slope of their own, which is also what the noise becomes (1 where there is none)."""
    wide, dtype = b.widen(x), b.dtype(x)
    negative = b.cmp("le", wide, 0.0)
    if not training:
        return b.cast(b.select(negative, b.mul(wide, (lower + upper) / 2), wide), dtype), noise
    if not _ours(b, options):
        return NotImplemented
    slope = b.add(b.mul(b.cast(draw(b, "rand", b.dims(x)), b.dtype(wide)), upper - lower), lower)
    slope = b.select(negative, slope, 1.0)
    return b.cast(b.mul(wide, slope), dtype), b.cast(slope, b.dtype(noise))


@rule(aten.bernoulli.default)
def _bernoulli(b: Importer, x: SSAValue, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.dtype(x) not in FLOATS:
        return NotImplemented
    return b.cast(b.cmp("lt", b.cast(draw(b, "rand", b.dims(x)), f64), b.cast(x, f64)), b.out_dtype)


@rule(aten.bernoulli.p)
def _bernoulli_p(b: Importer, x: SSAValue, p: Any = 0.5, **options: Any) -> SSAValue:
    if not _ours(b, options):
        return NotImplemented
    return b.cast(b.cmp("lt", draw(b, "rand", b.dims(x)), p), b.out_dtype)


@rule(packet(aten, "uniform"))
def _uniform(b: Importer, x: SSAValue, low: Any = 0.0, high: Any = 1.0, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.dtype(x) not in FLOATS:
        return NotImplemented
    low, high = b.scalar(low, f32), b.scalar(high, f32)
    return b.cast(b.add(b.mul(draw(b, "rand", b.dims(x)), b.sub(high, low)), low), b.dtype(x))


@rule(packet(aten, "normal_functional"))
def _normal(b: Importer, x: SSAValue, mean: Any = 0.0, std: Any = 1.0, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.dtype(x) not in FLOATS:
        return NotImplemented
    noise = draw(b, "randn", b.dims(x))
    return b.cast(b.add(b.mul(noise, b.scalar(std, f32)), b.scalar(mean, f32)), b.dtype(x))


@rule(aten.normal.float_float, aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def _normal_of(b: Importer, mean: Any = 0.0, std: Any = 1.0, *size: Any, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.out_dtype not in FLOATS:
        return NotImplemented
    noise = draw(b, "randn", b.out_dims)
    return b.add(b.mul(noise, b.scalar(std, f32)), b.scalar(mean, f32))


@rule(packet(aten, "exponential"))
def _exponential(b: Importer, x: SSAValue, rate: Any = 1.0, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.dtype(x) not in FLOATS:
        return NotImplemented
    # -log(1 - u) / rate with u in [0, 1): never the log of 0
    u = draw(b, "rand", b.dims(x))
    return b.cast(b.div(b.op("neg", b.op("log1p", b.op("neg", u))), b.scalar(rate, f32)), b.dtype(x))


@rule(packet(aten, "geometric"))
def _geometric(b: Importer, x: SSAValue, p: Any, **options: Any) -> SSAValue:
    if not _ours(b, options) or not isinstance(p, float) or b.dtype(x) == i1:
        return NotImplemented
    # the number of trials up to the first success: floor(log(1 - u) / log(1 - p)) + 1
    u = b.op("log1p", b.op("neg", draw(b, "rand", b.dims(x))))
    return b.cast(b.add(b.op("floor", b.div(u, math.log1p(-p))), 1.0), b.dtype(x))


@rule(packet(aten, "log_normal"))
def _log_normal(b: Importer, x: SSAValue, mean: Any = 1.0, std: Any = 2.0, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.dtype(x) not in FLOATS:
        return NotImplemented
    noise = draw(b, "randn", b.dims(x))
    return b.cast(b.op("exp", b.add(b.mul(noise, b.scalar(std, f32)), b.scalar(mean, f32))), b.dtype(x))


@rule(packet(aten, "cauchy"))
def _cauchy(b: Importer, x: SSAValue, median: Any = 0.0, sigma: Any = 1.0, **options: Any) -> SSAValue:
    if not _ours(b, options) or b.dtype(x) not in FLOATS:
        return NotImplemented
    # the quantile function: median + sigma * tan(pi * (u - 1/2))
    slope = b.op("tan", b.mul(b.sub(draw(b, "rand", b.dims(x)), 0.5), math.pi))
    return b.cast(b.add(b.mul(slope, b.scalar(sigma, f32)), b.scalar(median, f32)), b.dtype(x))
