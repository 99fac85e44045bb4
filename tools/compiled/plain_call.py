"""Calls of an inference graph for which AOTAutograd's wrapper does nothing: no input is updated, no output is a view of an input.

Torch's wrapper asks for all of that in every call, which takes as long as a small kernel (docs/lab/host.md). What is left to do is to call
the program without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import is_grad_enabled
from torch._C import _set_grad_enabled

Boxed = Callable[[list[Any]], Sequence[Any]]


RUNTIME_PARTS = ("tokens", "num_backward_tokens", "num_graphsafe_rng_states", "is_rng_op_functionalized", "act_input_indices")
"""What of ViewAndMutationMeta asks for arguments or results that are none of the graph of Dynamo's."""


def unusual(metadata: Any) -> str:
    """What a graph with that ViewAndMutationMeta has that only torch's wrappers can handle; "" for most."""
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta

    if name := next((name for name in RUNTIME_PARTS if getattr(metadata, name, None)), ""):
        return f"the graph has {name}"
    if getattr(metadata, "num_opaque_objects_saved_for_bw", None) or any(getattr(metadata, "mutated_inp_stream_indices", None) or ()):
        return "the graph saves objects or uses streams"
    parts = (metadata.subclass_inp_meta, metadata.subclass_fw_graph_out_meta, metadata.subclass_tangent_meta)
    if not all(isinstance(part, (int, PlainTensorMeta)) for each in parts for part in each):
        return "there are subclasses of tensors"
    return ""


def is_plain(metadata: Any) -> bool:
    """Whether a graph with that ViewAndMutationMeta only computes its outputs from its inputs, and is not unusual."""
    updates = any(info.mutates_data or info.mutates_metadata for info in metadata.input_info)
    others = (
        metadata.num_mutated_inp_runtime_indices, metadata.mutated_graph_handled_indices_seen_by_autograd, metadata.num_outputs_aliased,
        metadata.num_intermediate_bases, metadata.dynamic_outputs, metadata.grad_enabled_mutation is not None,
    )  # fmt: skip
    return not updates and not any(others) and not unusual(metadata)


def plain_call(program: Callable[[], Boxed], first: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a graph that is plain. `first` is the same in torch's wrapper: it runs the first call, in which torch looks whether
    operators of users return what they are given. `program` is asked for the program after that call."""
    run: Boxed | None = None

    def call(*args: Any) -> Any:
        nonlocal run
        if run is None:
            results = first(*args)
            run = program()
            return results
        if not is_grad_enabled():
            return run(list(args))
        _set_grad_enabled(False)
        try:
            return run(list(args))
        finally:
            _set_grad_enabled(True)

    return torch._dynamo.disable(call, reason="do not trace AOT-compiled graph")
