"""Higher-order operators: control flow, functionalised mutation, effects, user kernels.

Functionalised calls of mutating operators become the call itself with `mutates`; control_flow.py has those with subgraphs. Every other one
is a call of a Python object that runs the operator eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..calls import user_kernels
from ..calls.externs import flat, overload_call, regroup
from ..calls.object_calls import object_call
from .control_flow import INLINED, RULES

if TYPE_CHECKING:
    from ..core.importer import Importer

log = logging.getLogger("stepwell")


def call(b: Importer, node: Node) -> Any:
    """The value of a node whose target is a higher-order operator."""
    target: Any = node.target
    inlined = INLINED.get(target.name())
    if inlined is not None:
        return inlined(b, node)
    if target.name() in USER_KERNELS:
        return _user_kernel(b, node)
    b.counts.extern += 1
    b.counts.names["extern"][target.name()] += 1
    return _RULES.get(target.name(), _run_eagerly)(b, node)


def _run_eagerly(b: Importer, node: Node) -> Any:
    """Any higher-order operator: run as it is, in eager."""
    target: Any = node.target
    mutates = tuple(n for n in node.all_input_nodes if n.name in _mutated_names(node))
    results, changed = object_call(
        b, target, node.args, node.kwargs, b.val, mutates, effect=not flat(b.val) or b.val is None
    )
    for source, value in zip(mutates, changed, strict=True):
        b.rebind(source, value)
    return regroup(b, b.val, results)


# ---- users' Triton kernels


USER_KERNELS = frozenset(("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional"))


def _user_kernel(b: Importer, node: Node) -> Any:
    """A launch of a user's Triton kernel: by the graph's own program, or where that cannot be by Triton."""
    try:
        value = user_kernels.launch(b, node)
        b.counts.rule += 1
        return value
    except user_kernels.NotLaunchable as reason:
        log.info("node %s: the kernel is launched by Triton: %s", node.name, reason)
    target: Any = node.target
    b.counts.extern += 1
    b.counts.names["extern"][target.name()] += 1
    if target.name() == "triton_kernel_wrapper_mutation":
        return _run_eagerly(b, node)
    results, _ = object_call(b, NewValues(target), node.args, node.kwargs, tuple(b.val.values()))
    return dict(zip(b.val, results, strict=True))


@dataclass(frozen=True)
class NewValues:
    """Calls an operator that gives a dictionary; its values as a tuple."""

    target: Any

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self.target(*args, **kwargs).values())


def _mutated_names(node: Node) -> frozenset[str]:
    """Names of the nodes that a user-kernel call writes (triton_kernel_wrapper_mutation)."""
    if "triton_kernel_wrapper_mutation" not in str(node.target):
        return frozenset()
    kwargs: Any = node.kwargs.get("kwargs", {})
    return frozenset(
        v.name for v in kwargs.values() if isinstance(v, Node) and isinstance(v.meta.get("val"), torch.Tensor)
    )


# ---- functionalised mutation


def _auto_functionalized(b: Importer, node: Node) -> Any:
    """auto_functionalized(op, **kwargs): the mutating operator; its value is (results..., new values of written
    arguments...)."""
    target: Any = node.args[0]
    written = [a.name for a in target._schema.arguments if a.is_write]
    return _functional_call(b, node, target, dict(node.kwargs), _own_results(target, node.meta["val"]), written)


def _own_results(target: Any, val: Any) -> Any:
    """torch's values of what the operator itself returns, without the new values of what it writes."""
    return tuple(val[: len(target._schema.returns)]) if isinstance(val, (tuple, list)) else ()


def _functional_call(b: Importer, node: Node, target: Any, kwargs: dict[str, Any], own: Any, written: list[str]) -> Any:
    """Write `target` with mutates, without giving the argument nodes new values: the graph is functional."""
    saved = dict(b.env)
    updates = dict(b.updates)
    positional, named = _by_schema(target, kwargs)
    value = overload_call(b, node, target, positional, named, own if len(own) != 1 else own[0])
    changed: list[Any] = []
    for name in written:
        arg = kwargs.get(name)
        if arg is None:
            changed.append(None)
        elif isinstance(arg, (list, tuple)):
            changed.append(tuple(b.env[a] for a in arg))
        else:
            changed.append(b.env[arg])
    b.env, b.updates = saved, updates
    first = (None,) if not own else (value,) if len(own) == 1 else tuple(value)
    return (*first, *changed)


def _by_schema(target: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Keyword arguments as positional ones where the schema allows."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    open_ended = True
    for arg in target._schema.arguments:
        if arg.name not in kwargs:
            open_ended = False
        elif arg.kwarg_only or not open_ended:
            named[arg.name] = kwargs[arg.name]
        else:
            positional.append(kwargs[arg.name])
    return positional, named


@dataclass
class ViewedCall:
    """Calls a mutating operator on views of its bases (auto_functionalized_v2), in place; returns the operator's
    results."""

    target: Any
    bases: int
    metadata: dict[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bases = list(args[: self.bases])
        call_kwargs = dict(kwargs)
        for name, how in self.metadata.items():
            call_kwargs[name] = _regenerate(how, bases, kwargs)
        shown = {k: v for k, v in call_kwargs.items() if not k.startswith("_")}
        result = self.target(**shown)
        if result is None:
            return ()
        return result


def _regenerate(how: Any, bases: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(how, list):
        return [_regenerate(h, bases, kwargs) for h in how]
    if how is None:
        return None
    index, kind, prefix = how
    base = bases[index]
    if kind == "base":
        return base
    if kind == "alias":
        return base.alias() if hasattr(base, "alias") else base
    if kind == "slice":
        return torch.ops.aten.slice.Tensor(
            base, kwargs[f"{prefix}_slice_dim"], kwargs[f"{prefix}_slice_start"], kwargs[f"{prefix}_slice_end"]
        )
    return base.as_strided(kwargs[f"{prefix}_size"], kwargs[f"{prefix}_stride"], kwargs[f"{prefix}_storage_offset"])


def _view_of(prefix: str, kwargs: dict[str, Any]) -> Any:
    """How auto_functionalized_v2 encodes one written argument: (base, kind, key prefix)."""
    index = kwargs.get(f"{prefix}_base_index")
    if index is None:
        return None
    if f"{prefix}_alias" in kwargs:
        return (index, "alias", prefix)
    if f"{prefix}_slice_dim" in kwargs:
        return (index, "slice", prefix)
    if f"{prefix}_size" in kwargs:
        return (index, "strided", prefix)
    return (index, "base", prefix)


def _auto_functionalized_v2(b: Importer, node: Node) -> Any:
    """auto_functionalized_v2(op, ..., _all_bases=[...]): value (results..., new bases...)."""
    target: Any = node.args[0]
    kwargs: dict[str, Any] = dict(node.kwargs)
    bases: list[Any] = list(kwargs.pop("_all_bases", []))
    metadata: dict[str, Any] = {}
    for arg in target._schema.arguments:
        if not arg.is_write:
            continue
        prefix = f"_{arg.name}"
        length = kwargs.get(f"{prefix}_length")
        metadata[arg.name] = (
            [_view_of(f"{prefix}_{k}", kwargs) for k in range(length)]
            if isinstance(length, int)
            else _view_of(prefix, kwargs)
        )
    simple = _plain_bases(metadata, bases)
    own = _own_results(target, node.meta["val"])
    if simple is not None:
        shown = {k: v for k, v in kwargs.items() if not k.startswith("_")}
        result = _functional_call(b, node, target, {**shown, **simple}, own, list(simple))
        changed = dict(zip(simple, result[len(result) - len(simple) :], strict=True))
        by_base = {metadata[name][0]: value for name, value in changed.items()}
        first = result[: len(result) - len(simple)]
        return (*first, *(by_base.get(k, b.env[base]) for k, base in enumerate(bases)))
    fn = ViewedCall(target, len(bases), metadata)
    results, changed = object_call(b, fn, bases, kwargs, own, tuple(bases))
    first = regroup(b, own, results) if own else (None,)
    return (*first, *changed)


def _plain_bases(metadata: dict[str, Any], bases: list[Any]) -> dict[str, Any] | None:
    """Written argument -> base node, when every one is a whole base of its own."""
    found: dict[str, Any] = {}
    for name, how in metadata.items():
        if not isinstance(how, tuple) or how[1] not in ("base", "alias"):
            return None
        found[name] = bases[how[0]]
    return found if len(set(found.values())) == len(found) else None


# ---- effects


def _with_effects(b: Importer, node: Node) -> Any:
    """with_effects(token, op, *args, **kwargs): the operator, kept in order; the token is passed on."""
    token, target, *args = node.args
    val = node.meta["val"]
    own = val[1:]
    result_val = own[0] if len(own) == 1 else own if own else None
    results, _ = object_call(b, target, args, node.kwargs, result_val, effect=True)  # pyright: ignore[reportArgumentType]
    value = regroup(b, own, results)
    return (b.argument(token), *value)


_RULES: dict[str, Callable[[Importer, Node], Any]] = {
    **RULES,
    "auto_functionalized": _auto_functionalized,
    "auto_functionalized_v2": _auto_functionalized_v2,
    "with_effects": _with_effects,
}
