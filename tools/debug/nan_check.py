"""options={"check_nan": True}: results of each call are looked through for NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...errors import UserError
from ...lowering.fx_to_nd.core.importer import user_place


class NanError(UserError):
    """A result of a graph has NaN; the message names the result, its line, and the inputs that have NaN already."""


def checked(gm: GraphModule, kind: str, run: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """`run`, the boxed function of a graph, raising NanError where a result has NaN."""
    inputs = [str(n.target) for n in gm.graph.nodes if n.op == "placeholder"]
    outputs: Any = gm.graph.output_node().args[0]
    places = [_place(o) for o in outputs]

    def call(args: list[Any]) -> Sequence[Any]:
        bad = [name for name, v in zip(inputs, args, strict=True) if _has_nan(v)]
        results = run(args)
        for k, value in enumerate(results):
            if _has_nan(value):
                cause = f"its inputs {', '.join(bad)} have it already" if bad else "none of its inputs has"
                raise NanError(f"result {k} of the {kind} graph, {places[k]}, has NaN; {cause}")
        return results

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _has_nan(value: Any) -> bool:
    plain = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return plain and bool(torch.isnan(value.detach()).any())


def _place(output: Any) -> str:
    if not isinstance(output, Node):
        return "a constant"
    place = user_place(output.meta.get("stack_trace"))
    line = f" ({place.filename.data}:{place.line.data})" if hasattr(place, "filename") else ""
    return f"node {output.name}{line}"
