"""The table of import rules: operator -> function that writes the `nd` ops of one FX node.

A rule is called as `rule(b, *args, **kwargs)`: `b` is the Importer (its helpers write ops, `b.node` is the node and
`b.out` what torch says of its result), the rest are the operator's own arguments, with FX nodes replaced by their
values. It returns the value (or tuple of values) of the node, or `NotImplemented` when it does not cover these
arguments: the node is then a library call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

Rule = Callable[..., Any]

REGISTRY: dict[Any, Rule] = {}
"""Overload or overload packet -> rule; an overload's own rule goes before its packet's. Rules of users (user_rules.py) go before all and
stand under the name of the overload, "mylib.op.default"."""

KEPT: set[str] = set()
"""Names of overloads that stay calls until a pass chooses what computes them, whether they have a rule or not."""
_EXPANDED: ContextVar[str] = ContextVar("expanded", default="")

_RESOLVED: dict[Any, Rule | None] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators: packets (all overloads), overloads, or qualified names for those
    that may be registered later than we are loaded. A name that this torch lacks is None."""

    def register(fn: Rule) -> Rule:
        for target in targets:
            if target is not None:
                REGISTRY[target] = fn
        _RESOLVED.clear()
        return fn

    return register


def is_kept(target: Any) -> bool:
    """Whether an operator stays a call."""
    return bool(KEPT) and str(target) in KEPT and str(target) != _EXPANDED.get()


@contextmanager
def expanding(name: str) -> Iterator[None]:
    """Inside of the block the rule of the operator of this name is used, although it is kept."""
    token = _EXPANDED.set(name)
    try:
        yield
    finally:
        _EXPANDED.reset(token)


def forget(target: Any) -> None:
    """Take a rule out again, by what it is registered for."""
    del REGISTRY[target]
    _RESOLVED.clear()


def find_rule(target: Any) -> Rule | None:
    """The rule of an FX node's target, or None."""
    try:
        return _RESOLVED[target]
    except KeyError:
        named = isinstance(target, torch._ops.OpOverload)
        found = (REGISTRY.get(str(target)) if named else None) or REGISTRY.get(target)
        if found is None and named:
            found = REGISTRY.get(target.overloadpacket) or REGISTRY.get(target._schema.name) or _in_place(target)
        _RESOLVED[target] = found
        return found


def _in_place(target: torch._ops.OpOverload) -> Rule | None:
    """The rule of `add_` from that of `add`: the value, given to the first argument."""
    name = target._schema.name.split("::")[1]
    written = [a.name for a in target._schema.arguments if a.is_write]
    functional = packet(getattr(torch.ops, target.namespace), name[:-1]) if name.endswith("_") else None
    if functional is None or written != [target._schema.arguments[0].name]:
        return None
    pure = find_rule(getattr(functional, target._overloadname or "default", functional)) or REGISTRY.get(functional)
    if pure is None:
        return None

    def apply(b: Any, *args: Any, **kwargs: Any) -> Any:
        value = pure(b, *args, **kwargs)
        if value is not NotImplemented:
            b.rebind(b.node.args[0], value)
            value = b.env[b.node.args[0]]
        return value

    return apply


def packet(namespace: Any, name: str) -> Any:
    """The operator packet of that name, or None in a torch that has none."""
    return getattr(namespace, name, None)
