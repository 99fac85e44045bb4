"""Attention of torch's on a GPU that is spelled out, so that it becomes a kernel of ours (`gpu-carry-softmax`), by price.

    aten._scaled_dot_product_flash_attention(%q, %k, %v)     ->     nd.matmul ; softmax ; nd.matmul

Such a call goes through many layers of torch: it takes the host longer than many a kernel takes the device (`host_calls` of prices.json).
The host runs ahead of the device, so a graph takes as long as the slower of the two. Where that is the device, a call stays if it is
faster there; where it is the host, calls become kernels as long as the graph gains. In a graph of launches the host's time does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import bf16, f16
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ...dialects import nd
from ...dialects.expr import ONE
from ...dialects.nd.call_args import Arg, Call
from ...dialects.nd.pointwise import broadcast_dims
from ...dialects.nd.types import element_bytes, tensor_type
from ..cost.contraction_price import MAX_WEIGHED_ELEMENTS, Weighing, attention_call_ns, rate_name, weighed_ns
from ..cost.library_cost import bytes_of, size
from ..cost.machine import Gpu
from ..cost.machine.gpu_rates import HOST_CALLS
from .spelled_attention import AttentionCall

_CAUSAL = ("dropout_p", "is_causal", "return_debug_mask")
_BIASED = ("attn_bias", "compute_log_sumexp", "dropout_p", "is_causal")
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "aten._scaled_dot_product_flash_attention.default": ("query", "key", "value", *_CAUSAL),
    "aten._scaled_dot_product_efficient_attention.default": ("query", "key", "value", *_BIASED),
    "aten._scaled_dot_product_cudnn_attention.default": ("query", "key", "value", *_BIASED, "return_debug_mask"),
}
"""Operator -> its arguments in order; `scale` is given by name."""


@dataclass(frozen=True)
class PricedAttention:
    """A call that may be spelled out, and nanoseconds of the device as it is, and as a kernel of ours."""

    op: nd.ExternOp
    call: AttentionCall
    library_ns: float
    generated_ns: float

    def __str__(self) -> str:
        device = f"library {self.library_ns / 1e3:.4g} us, generated {self.generated_ns / 1e3:.4g} us"
        return f"{device}; the call takes the host {HOST_CALLS.attention_ns / 1e3:.4g} us"


def priced_attention(func: FuncOp, gpu: Gpu, hints: Mapping[str, int]) -> list[PricedAttention]:
    """The calls of a function that a kernel can take the place of."""
    if not gpu.multiplies_halves:
        return []
    found = [(op, call) for op in func.body.block.ops if isinstance(op, nd.ExternOp) and (call := attention_call(op)) is not None]
    made: list[PricedAttention] = []
    for op, call in found:
        if _fits(call):
            work = _work(call, hints)
            made.append(PricedAttention(op, call, attention_call_ns(work, gpu), weighed_ns(work, gpu)))
    return made


def cheaper_generated(found: Sequence[PricedAttention], others_ns: float, others: int, recorded: bool) -> list[PricedAttention]:
    """Those of a function's calls that are to be spelled out, alike ones all or none: equal layers are planned once. `others_ns`, `others`:
    what the device takes for its other products, and how many they are; `recorded`: the host's time does not count."""
    device = others_ns + sum(one.library_ns for one in found)
    host = others * HOST_CALLS.product_ns + len(found) * HOST_CALLS.attention_ns
    chosen: list[PricedAttention] = []
    alike: dict[tuple[float, float], list[PricedAttention]] = {}
    for one in sorted(found, key=lambda one: one.generated_ns - one.library_ns):
        alike.setdefault((one.library_ns, one.generated_ns), []).append(one)
    for (library, generated), those in alike.items():
        more, less = len(those) * (generated - library), len(those) * (HOST_CALLS.attention_ns - HOST_CALLS.launch_ns)
        if more > 0 and (recorded or max(host - less, device + more) >= max(host, device)):
            break
        chosen += those
        device, host = device + more, host - less
    return chosen


def attention_call(op: nd.ExternOp) -> AttentionCall | None:
    """What a call of torch's attention computes, where nothing but its result is used; None for another call."""
    call = op.call.data
    kept = list(op.kept.data) if op.kept is not None else list(range(len(op.results)))
    if call.target not in ARGUMENTS or {"effect", "mutates", "binds"} & op.properties.keys() or op.schedule is not None:
        return None
    if not kept or kept[0] != 0 or any(r.uses for r in op.results[1:]):
        return None
    return _of_arguments(op, call)


def _of_arguments(op: nd.ExternOp, call: Call) -> AttentionCall | None:
    given = {**dict(zip(ARGUMENTS[call.target], call.args, strict=False)), **dict(call.kwargs)}
    mask, scale = given.get("attn_bias"), given.get("scale")
    factors = [given.get(name) for name in ("query", "key", "value")]
    if given.get("dropout_p") or not all(isinstance(x, Arg) for x in factors):
        return None
    if not isinstance(mask, Arg | None) or not isinstance(scale, int | float | None):
        return None
    query, key, value = (op.operands[x.index] for x in factors if isinstance(x, Arg))
    return AttentionCall(query, key, value, None if mask is None else op.operands[mask.index], bool(given.get("is_causal")), scale)


def _fits(call: AttentionCall) -> bool:
    """Whether a kernel of ours computes it: 16-bit factors, rows that it has room for. One query is a product of few rows, but where heads
    share keys; a causal mask is that of as many queries as keys, since the calls differ in what it is otherwise."""
    q, k, v = (tensor_type(x) for x in (call.query, call.key, call.value))
    if any(t.rank != 4 or t.element_type != q.element_type for t in (q, k, v)) or q.element_type not in (bf16, f16):
        return False
    (batch, heads, queries, depth), own = q.dims, k.dims[1]
    if k.dims[:3] != v.dims[:3] or k.dims[0] is not batch or k.dims[3] is not depth:
        return False
    if not (heads is own or (heads.value and own.value and heads.value % own.value == 0)):
        return False
    if any(n.value is None or not 0 < n.value <= MAX_WEIGHED_ELEMENTS for n in (depth, v.dims[3])):
        return False
    if any(n.value == 0 for n in (*q.dims, *k.dims)) or (queries is ONE and heads is own):
        return False
    if call.causal and (queries is not k.dims[2] or call.mask is not None):
        return False
    whole = (batch, heads, queries, k.dims[2])
    return call.mask is None or broadcast_dims(tensor_type(call.mask).dims, whole) == whole


def _work(call: AttentionCall, hints: Mapping[str, int]) -> Weighing:
    q, k, v = (tensor_type(x) for x in (call.query, call.key, call.value))
    batch, heads, queries = (size(n, hints) for n in q.dims[:3])
    own, terms, depth, columns = (size(n, hints) for n in (*k.dims[1:], v.dims[3]))
    if queries == 1:  # rows of the heads that share keys
        queries, heads = heads // own, own
    width = element_bytes(q.element_type)
    read: list[SSAValue] = [call.query, call.key, call.value, *([] if call.mask is None else [call.mask])]
    moved = sum(bytes_of(x, hints) for x in read) + prod((batch, heads, queries, columns)) * width
    return Weighing(batch * heads, queries, terms, depth, columns, rate_name(q.element_type), width, float(moved))
