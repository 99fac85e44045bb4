"""Which overload of an ATen operator writes its results into tensors of the caller."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def out_variant(target: str) -> tuple[str, tuple[str, ...]] | None:
    """`aten.mm.default` -> ("aten.mm.out", ("out",)): the overload with the same arguments plus destinations, and the
    names of those.

    None when the operator has none. Arguments are compared by name and type, so that nothing else than the destination
    differs: `sum.DimnameList_out` has the names of `sum.IntList_out`."""
    import torch

    parts = target.split(".")
    if len(parts) != 3:
        return None
    packet = getattr(getattr(torch.ops, parts[0], None), parts[1], None)
    plain = getattr(packet, parts[2], None)
    if packet is None or plain is None:
        return None
    wanted = [(a.name, str(a.type)) for a in plain._schema.arguments]
    for name in packet.overloads():
        schema = getattr(packet, name)._schema
        outs = tuple(a.name for a in schema.arguments if _is_destination(a))
        others = [(a.name, str(a.type)) for a in schema.arguments if not _is_destination(a)]
        if outs and others == wanted and len(outs) == len(plain._schema.returns):
            return f"{parts[0]}.{parts[1]}.{name}", outs
    return None


def _is_destination(argument: Any) -> bool:
    return argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
