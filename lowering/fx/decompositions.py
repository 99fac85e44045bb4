"""The decomposition table that AOTAutograd traces with: torch's own, less what the importer has rules for.

A rule gives a better graph than a decomposition (fewer nodes to trace, the whole operator seen at once), so an operator
with a rule is never decomposed. What torch's core table has is taken; `EXTRA` adds operators that torch decomposes but
leaves out of that table; `KEPT` are library calls by choice. Foreach operators become one operator per tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

_EXTRA = """
_batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward alpha_dropout dropout dist
grid_sampler_2d tril_indices triu_indices lcm rrelu_with_noise_backward native_batch_norm
_native_batch_norm_legit lstm gru rnn_tanh rnn_relu special_ndtr
"""
"""Packets (all overloads) beyond torch's core table."""

_KEPT = "_scaled_dot_product_flash_attention_for_cpu"
"""Packets of torch's core table that are not decomposed: library calls that are faster or more exact as a whole."""

_table: dict[Any, Callable[..., Any]] | None = None


def decomposition_table(whole: Collection[str] = ()) -> dict[Any, Callable[..., Any]]:
    """Overload -> decomposition, for AOTAutograd; a new dict each time, built once. `whole`: operators that are not to be decomposed, by
    name ("aten.gelu_backward" or "aten.gelu_backward.default"), beside those that have a rule of the user's."""
    global _table
    if _table is None:
        _table = _build()
    from ..fx_to_nd.core import user_rules
    from .quantised_operators import quantised_decompositions

    table = _table | quantised_decompositions()
    whole = {*whole, *user_rules.registered()}
    if not whole:
        return table
    return {op: fn for op, fn in table.items() if str(op) not in whole and str(op.overloadpacket) not in whole}


def _build() -> dict[Any, Callable[..., Any]]:
    import torch
    from torch import _decomp

    from ..fx_to_nd import load_rules
    from ..fx_to_nd.calls.refused import DECOMPOSED_FLOATS_ONLY
    from ..fx_to_nd.core.registry import find_rule

    load_rules()
    everything = _decomp.global_decomposition_table["post_autograd"]
    # the public form adds every composite operator to a lazy table, which takes longer than the rest of this function
    core = getattr(_decomp, "_core_aten_decompositions_post_autograd", _decomp.core_aten_decompositions)()
    extra, kept = frozenset(_EXTRA.split()), frozenset(_KEPT.split())
    of_floats = {name: int(count) for name, count in (row.split(":") for row in DECOMPOSED_FLOATS_ONLY.split())}
    table: dict[Any, Callable[..., Any]] = {}
    for target, fn in everything.items():
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            continue
        name = target._schema.name.split("::")[1]
        if name in kept or (name not in extra and target not in core):
            continue
        if find_rule(target) is None:
            table[target] = _of_floats(fn, of_floats[name]) if name in of_floats else fn
    table.update(_foreach_decompositions())
    table[torch.ops.aten._weight_norm_interface.default] = _weight_norm
    table[torch.ops.aten._weight_norm_interface_backward.default] = _weight_norm_backward
    table[torch.ops.aten._new_zeros_with_same_feature_meta.default] = _zero_tangent
    table[torch.ops.aten.convolution_backward.default] = _convolution_backward
    table[torch.ops.aten.linspace.default] = _linspace
    table[torch.ops.aten.zero.default] = torch.zeros_like  # torch 2.11 does not know the strides of `zero`
    if torch.__version__ < (2, 12):  # pyright: ignore[reportOperatorIssue]
        table[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention_of_doubles
    return table


def _of_floats(decomposition: Callable[..., Any], operands: int) -> Callable[..., Any]:
    """`decomposition` where the first operands together are floating point or complex; other calls stay whole, and torch refuses them."""
    import torch

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        types = [a.dtype for a in args[:operands] if isinstance(a, torch.Tensor)]
        wide = functools.reduce(torch.promote_types, types, torch.bool)
        return decomposition(*args, **kwargs) if wide.is_floating_point or wide.is_complex else NotImplemented

    return decomposed


def _attention_of_doubles(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None, scale: Any = None
) -> Any:
    """Attention of float64 in torch 2.11, whose fake kernel says that the logarithms of its sums are float32; others stay whole."""
    import torch

    if query.dtype != torch.float64:
        return NotImplemented
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        rows, columns = (torch.arange(n, device=query.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows[:, None], -torch.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    result = torch.ops.aten._safe_softmax(scores, -1) @ value
    return torch.ops.aten.copy(torch.empty_like(query), result), scores.logsumexp(-1)


def _linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """Integers as eager has them: both ends are rounded towards zero first, and the steps have 64 bits (on a GPU 32); torch's
    decomposition goes from end to end in 32 bits, and rounds behind that."""
    import torch
    from torch import _refs

    if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return _refs.linspace(start, end, steps, dtype=dtype, device=device, **options)
    first, last = int(start), int(end)
    wide = torch.float32 if torch.device(device or torch.get_default_device()).type == "cuda" else torch.float64
    at = torch.arange(steps, dtype=wide, device=device)
    step = (float(last) - float(first)) / (steps - 1) if steps > 1 else 0.0
    return torch.where(at < steps // 2, first + step * at, last - step * (steps - 1 - at)).to(dtype) if steps != 1 else at.to(dtype) + first


def _zero_tangent(x: Any, other: Any, *, self_num_batch_dims: int = 0) -> Any:
    """Zeros of the type of `x` that lie like `other`, one for each of its batch: what derivatives in forward mode begin with."""
    import torch
    from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense

    if self_num_batch_dims and other.is_contiguous():
        return x.new_zeros((*x.shape[:self_num_batch_dims], *other.shape))
    if self_num_batch_dims or not is_dense(other):
        return NotImplemented
    return torch.zeros_like(other, dtype=x.dtype, device=x.device)


def _convolution_backward(grad: Any, x: Any, weight: Any, bias_sizes: Any, *rest: Any) -> Any:
    """Gradients of a convolution; on a GPU that of its bias is a sum of ours, which reads the data together with others (cuDNN has none:
    torch adds up with a kernel of its own). oneDNN gives all three at once."""
    import torch

    *numbers, wanted = rest
    if not wanted[2] or grad.device.type != "cuda":
        return NotImplemented
    others = wanted[0] or wanted[1]
    by_input, by_weight = None, None
    if others:
        call = torch.ops.aten.convolution_backward.default
        by_input, by_weight, _ = call(grad, x, weight, bias_sizes, *numbers, [wanted[0], wanted[1], False])
    return by_input, by_weight, grad.sum([k for k in range(grad.dim()) if k != 1])


def _weight_norm(v: Any, g: Any, dim: int = 0) -> tuple[Any, Any]:
    """A direction and a length as a weight, and the norms of `v` along `dim` in the type that torch's kernels save them in."""
    import torch

    if v.dtype != g.dtype:
        return NotImplemented  # pyright: ignore[reportReturnType] - torch says what is wrong
    wide = v.to(torch.promote_types(v.dtype, torch.float32))
    norms = torch.linalg.vector_norm(wide, 2, [k for k in range(v.dim()) if k != dim], keepdim=True)
    weight = (wide * (g.to(wide.dtype) / norms)).to(v.dtype)
    return weight, norms.to(v.dtype) if v.dtype == torch.float16 and v.device.type == "cpu" else norms


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """Gradients of a direction and a length, whose product is a weight: `norms` are those of `v` along `dim`."""
    import torch

    dtype = torch.promote_types(v.dtype, torch.float32)
    wide, direction, norms = grad.to(dtype), v.to(dtype), norms.to(dtype)
    along = (wide * direction).sum([k for k in range(v.dim()) if k != dim], keepdim=True)
    by_length = along / norms
    by_direction = (wide - direction * (by_length / norms)) * (g / norms)
    return by_direction.to(v.dtype), by_length.reshape(g.shape).to(g.dtype)


# ---- foreach: one call per tensor, arguments that are lists taken element by element

_FOREACH = """
abs acos add addcdiv addcmul asin atan ceil clone clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma
log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
zero zeros_like
"""


def _foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    import torch

    aten = torch.ops.aten
    table: dict[Any, Callable[..., Any]] = {}
    for name in _FOREACH.split():
        packet = getattr(aten, f"_foreach_{name}", None)
        single = getattr(aten, name, None)
        if packet is None or single is None:
            continue
        for overload in packet.overloads():
            target = getattr(packet, overload)
            if "out" not in overload:
                table[target] = _each(single, target._schema)
    if hasattr(aten, "_foreach_copy"):
        table[aten._foreach_copy.default] = _foreach_copy
    if hasattr(aten, "_foreach_norm"):
        table[aten._foreach_norm.Scalar] = _foreach_norm
    if hasattr(aten, "_foreach_max"):
        table[aten._foreach_max.default] = _foreach_max
    return table


def _each(single: Any, schema: Any) -> Callable[..., Any]:
    """A function that applies `single` to the elements of the lists among its arguments."""
    listed = [str(a.type).startswith("List[") for a in schema.arguments]
    names = [a.name for a in schema.arguments]

    def decomposition(*args: Any, **kwargs: Any) -> list[Any]:
        bound = list(args) + [kwargs[n] for n in names[len(args) :] if n in kwargs]
        count = next(len(b) for b, is_list in zip(bound, listed, strict=False) if is_list)
        results = []
        for k in range(count):
            own = [b[k] if is_list else b for b, is_list in zip(bound, listed, strict=False)]
            results.append(_apply(single, names, own))
        return results

    return decomposition


def _apply(single: Any, names: list[str], values: list[Any]) -> Any:
    """One call of the single form; the scale of addcdiv and addcmul and alpha are keywords there."""
    import torch

    aten = torch.ops.aten
    if single in (aten.addcdiv, aten.addcmul):
        return _scaled_third(single, values[0], values[1], values[2], values[3] if len(values) > 3 else 1)
    if "alpha" in names[: len(values)]:
        return single(*values[:2], alpha=values[names.index("alpha")])
    if single in (aten.maximum, aten.minimum) and not isinstance(values[1], torch.Tensor):
        return (aten.clamp_min if single is aten.maximum else aten.clamp_max)(*values)  # maximum has no overload for numbers
    return single(*values)


def _scaled_third(single: Any, x: Any, a: Any, b: Any, value: Any) -> Any:
    """addcmul or addcdiv; a tensor as the scale has no overload of the single form."""
    import torch

    if isinstance(value, torch.Tensor):
        return x + value * (a * b if single is torch.ops.aten.addcmul else a / b)
    return single(x, a, b, value=value)


def _foreach_copy(targets: Any, sources: Any, non_blocking: bool = False) -> list[Any]:
    import torch

    return [torch.ops.aten.copy(t, s) for t, s in zip(targets, sources, strict=True)]


def _foreach_norm(tensors: Any, ord: Any = 2, dtype: Any = None) -> list[Any]:
    import torch

    return [torch.ops.aten.linalg_vector_norm.default(t, ord, None, False, dtype=dtype) for t in tensors]


def _foreach_max(tensors: Any) -> list[Any]:
    import torch

    return [torch.ops.aten.max.default(t) for t in tensors]
