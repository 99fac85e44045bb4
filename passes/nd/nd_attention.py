"""Recognising attention that a program spells out: softmax(q k^T * scale) v over the last dimension becomes one call of flash attention.

The scores are then never stored, which pays from some size on; below it a product, a softmax and a product are faster
(docs/explanation/matrix-products.md). Only where nothing else needs the scores or the weights, so not in training, where the backward
pass reads them. On the CPU `attention-select` then says who computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, bf16, f16, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from ...dialects import nd
from ...dialects.expr import Expr, as_expr, strides_contiguous
from ...dialects.expr.ranges import prove_le
from ...dialects.machine import has_library
from ...dialects.nd.base import IntsAttr
from ...dialects.nd.call_args import Arg, Call, CallAttr
from ...dialects.nd.pointwise import OPS, CastOp, CmpOp
from ...dialects.nd.types import FLOATS, LOW_PRECISION, LayoutAttr, TensorType, tensor_type
from ..cost.machine import Gpu, machine_of
from ..manager.pass_manager import Pass
from .algebra.rewriter import Rewriter
from .attention_masks import Mask, softmax_or_zero, without_mask
from .repeated_heads import without_repeats

TARGET = "aten._scaled_dot_product_flash_attention_for_cpu.default"
GPU_TARGET = "aten._scaled_dot_product_cudnn_attention.default"
"""The only attention of torch's that is faster than the decomposed form (docs/lab/constants.md)."""

MAX_GPU_HEAD_ELEMENTS = 128
"""The longest rows that it takes, in multiples of 8."""

MIN_CPU_SCORES = 16 * 16
"""Scores of one head from which on one call is faster on the CPU; sizes that are symbols count as large."""

MIN_GPU_SCORES = 256 * 256
"""The same for a GPU."""

GENERATED = (f32, bf16, f16)
"""Element types that generated attention of the CPU takes; it is the only one on a machine without a library."""


@dataclass(frozen=True)
class Attention:
    """softmax(scale * query key^T + mask) value; `key` and `value` are [..., S, E], `query` [..., T, E]. `or_zero`: rows that see nothing
    are 0 by the program."""

    query: SSAValue
    key: SSAValue
    value: SSAValue
    scale: float
    mask: Mask
    scores: TensorType
    or_zero: bool


def recognise(op: nd.MatmulOp) -> Attention | None:
    """The attention that ends in this product, or None."""
    weights = _through_cast(op.lhs)
    if weights is None:
        return None
    weights, test = softmax_or_zero(weights)
    scores = _softmax_of(weights, test)
    if scores is None:
        return None
    t = tensor_type(scores)
    scores, mask = without_mask(scores)
    total, scale = _scaled(scores)
    product = total.owner
    if not isinstance(product, nd.MatmulOp) or (total is not scores and not _once(total)):
        return None
    swapped = product.rhs.owner
    rank = tensor_type(product.rhs).rank
    order = [*range(rank - 2), rank - 1, rank - 2]
    if not isinstance(swapped, nd.PermuteOp) or list(swapped.dims.data) != order:
        return None
    return Attention(product.lhs, swapped.input, op.rhs, scale, mask, t, test is not None)


def _once(value: SSAValue, uses: int = 1) -> bool:
    return len(list(value.uses)) == uses


def _through_cast(value: SSAValue) -> SSAValue | None:
    """What a value that has one use was made from, its cast aside; None where something else needs it."""
    if not _once(value):
        return None
    if isinstance(value.owner, CastOp):
        return value.owner.operands[0] if _once(value.owner.operands[0]) else None
    return value


def _operands(value: SSAValue, name: str) -> Sequence[SSAValue] | None:
    return value.owner.operands if isinstance(value.owner, OPS[name]) else None


def _softmax_of(weights: SSAValue, test: CmpOp | None) -> SSAValue | None:
    """The scores whose softmax over the last dimension `weights` is: e / sum(e) or e * (1 / sum(e)) with e = exp(s - max(s)). `test`: what
    else reads the maxima."""
    parts = _operands(weights, "mul")
    total = None
    if parts is not None:
        inverse = _operands(parts[1], "reciprocal")
        total = inverse[0] if inverse is not None and _once(parts[1]) else None
    else:
        parts = _operands(weights, "div")
        total = parts[1] if parts is not None else None
    if parts is None or total is None or _reduced(total, "sum") is not parts[0] or not _once(parts[0], 2):
        return None
    argument = _operands(parts[0], "exp")
    shifted = _operands(argument[0], "sub") if argument is not None and _once(argument[0]) else None
    if argument is None or shifted is None or _reduced(shifted[1], "max", test) is not shifted[0] or not _once(shifted[0], 2):
        return None
    scores = shifted[0]
    if isinstance(scores.owner, CastOp):
        scores = scores.owner.operands[0]
        return scores if _once(scores) else None
    return scores


def _reduced(value: SSAValue, kind: str, other: CmpOp | None = None) -> SSAValue | None:
    """What `value` reduces over its last dimension, which is kept with size 1; only `other` reads it beside its one reader."""
    shape = value.owner
    if not isinstance(shape, nd.ReshapeOp) or not isinstance(shape.input.owner, nd.ReduceOp):
        return None
    readers = [use.operation for v in (value, shape.input) for use in v.uses if use.operation is not shape]
    if len(readers) != 1 + (other is not None) or (other is not None and other not in readers):
        return None
    reduce = shape.input.owner
    t = tensor_type(reduce.input)
    whole = (*t.dims[:-1], as_expr(1))
    if reduce.kind.data != kind or list(reduce.dims.data) != [t.rank - 1] or tensor_type(value).dims != whole:
        return None
    return reduce.input


def _scaled(scores: SSAValue) -> tuple[SSAValue, float]:
    """(product, scale) of scores that may be multiplied or divided by a constant."""
    for name in ("mul", "div"):
        parts = _operands(scores, name)
        constant = parts[1].owner if parts is not None else None
        while isinstance(constant, CastOp):
            constant = constant.input.owner
        if parts is not None and isinstance(constant, nd.FullOp) and _constant(constant):
            factor = _constant(constant)
            assert factor is not None
            return parts[0], factor if name == "mul" else 1.0 / factor
    return scores, 1.0


def _constant(op: nd.FullOp) -> float | None:
    value = getattr(op.value, "value", None)
    number = getattr(value, "data", None)
    return float(number) if isinstance(number, int | float) and number else None


def _pays(found: Attention, fewest: int) -> bool:
    sizes = (tensor_type(found.query).dims[-2].value, tensor_type(found.key).dims[-2].value)
    return sizes[0] is None or sizes[1] is None or sizes[0] * sizes[1] >= fewest


def _fits(found: Attention) -> bool:
    """Whether the call takes these operands: one type, a batch and heads, heads of one size."""
    q, k, v = (tensor_type(x) for x in (found.query, found.key, found.value))
    same = q.element_type == k.element_type == v.element_type and q.element_type in FLOATS
    if found.mask != Mask() and not found.mask.is_causal and not (found.or_zero and found.mask.fits(found.scores)):
        return False
    return same and q.rank in (3, 4) and q.dims[-1] is k.dims[-1] is v.dims[-1] and q.dims[-1].value not in (None, 0)


def _layout(func: FuncOp, value: SSAValue) -> tuple[Expr, ...]:
    """Dense strides with the last dimension fastest; those of an argument or of a permuted tensor as it lies."""
    op, t = value.owner, tensor_type(value)
    if isinstance(op, Block) and func.arg_attrs is not None:
        layout = func.arg_attrs.data[op.args.index(value)].data.get("nd.layout")  # pyright: ignore
        if isinstance(layout, LayoutAttr) and _is_dense(t.dims, layout.stride_exprs):
            return layout.stride_exprs
    if isinstance(op, nd.PermuteOp) and op.dims.data[-1] == t.rank - 1:
        strides = strides_contiguous(tensor_type(op.input).dims)
        return tuple(strides[d] for d in op.dims.data)
    return strides_contiguous(t.dims)


def _is_dense(dims: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether strides are those of a permuted row-major tensor whose last dimension is fastest."""
    order = sorted(range(len(dims)), key=lambda k: (-(strides[k].value or 0), k))
    want = strides_contiguous([dims[k] for k in order])
    return order[-1] == len(dims) - 1 and all(strides[k] is w for k, w in zip(order, want, strict=True))


def attention(rw: Rewriter, op: nd.MatmulOp) -> SSAValue | None:
    """One call for the attention that ends in a product."""
    found = recognise(op)
    if found is None or not _fits(found) or not _pays(found, MIN_CPU_SCORES):
        return None
    if tensor_type(found.query).element_type not in GENERATED and not has_library(op):
        return None
    if found.mask.is_computed and not found.mask.is_causal and tensor_type(found.query).element_type in GENERATED:
        return None  # nd-weigh-rows takes these
    return _replaced(rw, op, found, _flash_call)


def gpu_attention(rw: Rewriter, op: nd.MatmulOp) -> SSAValue | None:
    """The same for a GPU, which has a fast kernel for 16-bit numbers alone; no size may be 0."""
    found = recognise(op)
    if found is None or not _fits(found) or not _pays(found, MIN_GPU_SCORES):
        return None
    t = tensor_type(found.query)
    sizes = (*t.dims, *tensor_type(found.key).dims)
    if found.mask != Mask() or found.or_zero:
        return None  # gpu-carry-softmax takes these
    if t.element_type not in (bf16, f16) or (head := t.dims[-1].value or 0) % 8 or head > MAX_GPU_HEAD_ELEMENTS:
        return None
    if not all(prove_le(1, n, rw.symbols) for n in sizes):
        return None
    return _replaced(rw, op, found, _cudnn_call)


def _replaced(rw: Rewriter, op: nd.MatmulOp, found: Attention, build: Callable[..., nd.ExternOp]) -> SSAValue:
    """The value that a call on operands with a batch gives for a product."""
    operands = [_with_batch(rw, x) for x in (found.query, *_shared(found, build is _flash_call))]
    t = tensor_type(operands[0])
    layouts = [LayoutAttr.get(_layout(rw.func, x)) for x in operands]
    causal = found.mask.is_causal
    if found.mask != Mask() and not causal:
        operands.append(mask := found.mask.added(rw, found.scores))
        layouts.append(LayoutAttr.get(strides_contiguous(tensor_type(mask).dims)))
    result = rw.new(build(operands, layouts, t, found.scale, causal))
    return result if tensor_type(op.result).rank == 4 else rw.new(nd.ReshapeOp.new((result,), op.result.type))


def _shared(found: Attention, shares: bool) -> tuple[SSAValue, SSAValue]:
    """Keys and values, without those that heads share (`shares`: the call takes them)."""
    key, value = (without_repeats(x) if shares else None for x in (found.key, found.value))
    if key is None or value is None or tensor_type(key).dims[:2] != tensor_type(value).dims[:2]:
        return found.key, found.value
    batches, heads = tensor_type(key).dims[:2]
    whole = tensor_type(found.query).dims
    takes = batches is whole[0] and heads.value and whole[1].value and whole[1].value % heads.value == 0
    return (key, value) if takes else (found.key, found.value)


def _cudnn_call(operands: Sequence[SSAValue], layouts: Sequence[LayoutAttr], t: TensorType, scale: float, causal: bool) -> nd.ExternOp:
    call = CallAttr(Call(GPU_TARGET, (Arg(0), Arg(1), Arg(2), None, False, 0.0, causal, False), (("scale", scale),)))
    properties = {
        "call": call, "operand_layouts": ArrayAttr(layouts), "result_layouts": ArrayAttr(layouts[:1]), "kept": IntsAttr.get([0]),
    }  # fmt: skip
    return nd.ExternOp.create(operands=operands, result_types=[t], properties=properties)


def _flash_call(operands: Sequence[SSAValue], layouts: Sequence[LayoutAttr], t: TensorType, scale: float, causal: bool) -> nd.ExternOp:
    batch, heads, rows, _ = t.dims
    sums = TensorType.get((batch, heads, rows), f32 if t.element_type in LOW_PRECISION else t.element_type)
    mask = (("attn_mask", Arg(3)),) if len(operands) > 3 else ()
    call = CallAttr(Call(TARGET, (Arg(0), Arg(1), Arg(2), 0.0, causal), (*mask, ("scale", scale))))
    return nd.ExternOp.create(
        operands=operands,
        result_types=[t, sums],
        properties={
            "call": call,
            "operand_layouts": ArrayAttr(layouts),
            "result_layouts": ArrayAttr([layouts[0], LayoutAttr.get((rows * heads, as_expr(1), heads))]),
        },
    )


def _with_batch(rw: Rewriter, x: SSAValue) -> SSAValue:
    """[heads, rows, size] as [1, heads, rows, size]."""
    t = tensor_type(x)
    return x if t.rank == 4 else rw.new(nd.ReshapeOp.new((x,), t.with_dims((as_expr(1), *t.dims))))


def keeps_eager_numerics(module: ModuleOp) -> bool:
    """Whether a module's programs round as the operators do one by one."""
    numerics = module.attributes.get("nd.numerics")
    return isinstance(numerics, StringAttr) and numerics.data == "eager"


@dataclass(frozen=True)
class NdAttention(Pass):
    """Makes one library call of softmax(q k^T * scale) v, on the CPU also with a mask; not under numerics "eager", which
    rounds as the spelled out form does."""

    name = "nd-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if keeps_eager_numerics(op):
            return
        symbols = nd.symbol_ranges(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.MatmulOp) and recognise(o) for o in func.body.block.ops):
                gpu = isinstance(machine_of(op), Gpu)
                if gpu and not has_library(op):
                    continue  # its loops become one kernel (gpu-carry-softmax)
                rule = gpu_attention if gpu else attention
                rewriter = Rewriter(func, {nd.MatmulOp: [rule]}, symbols)  # pyright: ignore[reportArgumentType]
                rewriter.run()
                self.statistic("recognised", rewriter.changed.get(rule.__name__, 0))
