"""Calls of torch's attention for the CPU: what they compute, and which of them a generated function can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import Attribute

from ...dialects.expr import ONE
from ...dialects.mem import BufferType
from ...dialects.nd.call_args import Arg, Call
from ...dialects.nd.types import TensorType
from ...passes.nd.nd_attention import TARGET

DTYPES: dict[Attribute, str] = {f32: "f32", bf16: "bf16", f16: "f16"}
GENERATED = "generated"


@dataclass(frozen=True)
class FlashCall:
    """The arguments of torch's flash attention for the CPU, as operands of the op that calls it."""

    query: int
    key: int
    value: int
    mask: int | None
    causal: bool
    scale: float | None
    """None: one over the root of the depth."""


def flash_call(call: Call) -> FlashCall | None:
    """What a call of attention computes; None for another call, and where numbers are dropped."""
    if call.target != TARGET:
        return None
    names = ("query", "key", "value", "dropout_p", "is_causal")
    given = {**dict(zip(names, call.args, strict=False)), **dict(call.kwargs)}
    q, k, v, mask, scale = (given.get(name) for name in ("query", "key", "value", "attn_mask", "scale"))
    if given.get("dropout_p") or not (isinstance(q, Arg) and isinstance(k, Arg) and isinstance(v, Arg)):
        return None
    if not isinstance(mask, Arg | None) or not isinstance(scale, int | float | None):
        return None
    return FlashCall(q.index, k.index, v.index, None if mask is None else mask.index, bool(given.get("is_causal")), scale)


def shapes_fit(types: Sequence[Attribute], flash: FlashCall) -> bool:
    """Whether the generated function takes tensors or buffers of these types, their strides aside: one element type, a batch and heads, a
    depth that is known, a mask whose sizes are those of the scores or 1."""
    q, k, v = (types[i] for i in (flash.query, flash.key, flash.value))
    mask = None if flash.mask is None else types[flash.mask]
    found = [t for t in (q, k, v, mask) if t is not None]
    if not all(isinstance(t, TensorType | BufferType) and t.element_type in DTYPES for t in found):
        return False
    element = found[0].element_type  # pyright: ignore[reportAttributeAccessIssue]
    dims = [t.dims for t in found]  # pyright: ignore[reportAttributeAccessIssue]
    if any(t.element_type != element for t in found) or any(len(d) != 4 for d in dims[:3]):  # pyright: ignore[reportAttributeAccessIssue]
        return False
    (batch, heads, queries, depth), keys = dims[0], dims[1][2]
    shared = heads.value is not None and dims[1][1].value not in (None, 0) and heads.value % dims[1][1].value == 0
    if dims[1] != dims[2] or dims[1][0] is not batch or dims[1][3] is not depth or not (shared or heads is dims[1][1]) or not depth.value:
        return False
    if mask is None:
        return True
    whole = (batch, heads, queries, keys)[4 - len(dims[3]) :]
    same = all(d is w or d is ONE for d, w in zip(dims[3], whole, strict=True))
    return len(dims[3]) in (2, 4) and same and dims[3][-1] is keys
