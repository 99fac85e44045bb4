"""Calls of Python objects at launch: operators that only Python can run, and compiled subgraphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node
from xdsl.ir import SSAValue

from ....dialects.expr import Expr
from ....dialects.nd.call_args import Call, Obj
from .externs import operand_layout, result_types, write

if TYPE_CHECKING:
    from ..core.importer import Importer


@dataclass
class EagerCall:
    """Runs a higher-order operator (or any callable) at run time; `args` and `kwargs` hold `Slot`s where run-time
    values go."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, *values: Any) -> Any:
        return self.target(*_filled(self.args, values), **_filled(self.kwargs, values))


@dataclass(frozen=True)
class Slot:
    """The place of a run-time value."""

    index: int


def _filled(item: Any, values: tuple[Any, ...]) -> Any:
    """What `walk` of _split_arguments made, its slots replaced by values. Every call pays for it: pytree takes twenty times as long."""
    kind = type(item)
    if kind is Slot:
        return values[item.index]
    if kind is tuple or kind is list:
        return kind([_filled(e, values) for e in item])
    if kind is dict:
        return {k: _filled(v, values) for k, v in item.items()}
    return item


def _split_arguments(b: Importer, args: Any, kwargs: Any) -> tuple[list[Any], list[Any], Any, Any]:
    """FX arguments as (run-time values, their FX sources, args with slots, kwargs with slots)."""
    values: list[Any] = []
    sources: list[Any] = []

    def place(item: Any) -> Any:
        if not isinstance(item, (Node, Expr, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return item
        value = b.argument(item)
        if isinstance(value, (GraphModule, str, bool, int, float, type(None))) or callable(value):
            return value
        values.append(value)
        sources.append(item)
        return Slot(len(values) - 1)

    def walk(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return type(item)(map(walk, item)) if type(item) in (list, tuple) else tuple(map(walk, item))
        if isinstance(item, dict):
            return {k: walk(v) for k, v in item.items()}
        return place(item)

    return values, sources, walk(tuple(args)), walk(dict(kwargs))


def object_call(
    b: Importer,
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    val: Any,
    mutates: tuple[Node, ...] = (),
    effect: bool = False,
    fresh: bool = False,
) -> Any:
    """Write a call of `fn(*args, **kwargs)` at run time; returns (value of the results, new values of mutated
    nodes). fresh: the results share memory with nothing else."""
    values, sources, args, kwargs = _split_arguments(b, args, kwargs)
    operands: list[SSAValue] = []
    template = []
    layouts = []
    written = []
    for value, source in zip(values, sources, strict=True):
        before = len(operands)
        template.append(b.call_leaf(value, operands))
        if len(operands) > before:
            layouts.append(operand_layout(b, source))
            if source in mutates:
                written.append(before)
    types, result_layouts = result_types(b, val)
    plain = not kwargs and args == tuple(map(Slot, range(len(values))))
    results = write(
        b,
        operands,
        Call("py", (Obj(b.add_object(fn if plain else EagerCall(fn, args, kwargs))), *template)),
        types,
        operand_layouts=layouts,
        result_layouts=result_layouts,
        mutates=written,
        effect=effect,
        fresh=fresh,
    )
    return results[: len(types)], results[len(types) :]
