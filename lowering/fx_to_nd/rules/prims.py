"""The primitive operators that torch's decompositions end in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, Expr
from ....dialects.nd.types import FLOATS
from ..core.importer import Importer
from ..core.promotion import promote
from ..core.registry import REGISTRY, packet, rule
from .pointwise import BINARY, COMPARISONS, UNARY

aten = torch.ops.aten
prims = torch.ops.prims


@rule(packet(prims, "broadcast_in_dim"))
def _broadcast_in_dim(b: Importer, x: SSAValue, shape: Any, kept: Sequence[int]) -> SSAValue:
    sizes: list[Expr] = [ONE] * len(b.out_dims)
    for place, size in zip(kept, b.dims(x), strict=True):
        sizes[place] = size
    return b.expand(b.reshape(x, sizes), b.out_dims)


@rule(packet(prims, "iota"))
def _iota(b: Importer, length: Any, *, start: Any, step: Any, **options: Any) -> SSAValue:
    value = b.iota(b.out_dims, 0, i64)
    if not (isinstance(step, int) and step == 1):
        value = b.mul(value, b.scalar(step, i64))
    if not (isinstance(start, int) and start == 0):
        value = b.add(value, b.scalar(start, i64))
    return b.cast(value, b.out_dtype)


@rule(packet(prims, "_make_token"), packet(prims, "_sink_tokens"))
def _token(b: Importer, *tokens: Any) -> None:
    """Tokens only order the calls with effects, which keep the order of the graph anyway."""


@rule("prims::fma")  # torch registers it late, when something else imports it
def _fma(b: Importer, x: SSAValue, y: SSAValue, z: SSAValue) -> SSAValue:
    (x, y, z), _ = promote(b, (x, y, z))
    return b.fma(x, y, z)


@rule(packet(prims, "div"))
def _div(b: Importer, x: Any, y: Any) -> SSAValue:
    (x, y), dtype = promote(b, (x, y))
    return b.op("div" if dtype in FLOATS else "trunc_div", x, y)


_SAME_AS_ATEN = {
    "transpose": "permute",
    "where": "where",
    "add": "add",
    "sub": "sub",
    "pow": "pow",
    "abs": "abs",
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "round",
    "signbit": "signbit",
    "isfinite": "isfinite",
    "cat": "cat",
    "rev": "flip",
    "clone": "clone",
    "full": "full",
    "full_like": "full_like",
    "empty": "empty",
    "reshape": "reshape",
    "squeeze": "squeeze",
    "scalar_tensor": "scalar_tensor",
}


def _shared(name: str) -> Any:
    """A primitive whose arguments are those of the aten operator."""
    target = getattr(aten, name)
    if name == "pow":
        return REGISTRY[aten.pow.Tensor_Tensor]
    return REGISTRY.get(target)


for _name, _aten in _SAME_AS_ATEN.items():
    _found = _shared(_aten)
    if packet(prims, _name) is not None and _found is not None and packet(prims, _name) not in REGISTRY:
        rule(packet(prims, _name))(_found)

for _name in (*UNARY, *BINARY, *COMPARISONS):
    _prim = packet(prims, _name.removeprefix("special_"))
    if _prim is not None and _prim not in REGISTRY:
        rule(_prim)(REGISTRY[getattr(aten, _name)])
