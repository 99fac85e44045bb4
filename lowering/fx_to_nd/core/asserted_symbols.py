"""Sizes and numbers that come from the data, and of which the program asserts (`torch._check`) what they are.

Torch then writes the asserted value wherever the number stands, in the assertion too, which thereby holds by itself. What the data says
is compared here, where the operator gives it, so that a wrong assertion is an error as in eager."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils import _pytree as pytree

from ..calls.object_calls import object_call
from .aliases import view_source

if TYPE_CHECKING:
    from .importer import Importer

aten = torch.ops.aten
Place = tuple[Any, ...]
"""Where a result of an operator has a number, as torch's keys of unbacked bindings."""


@dataclass(frozen=True)
class AssertedCall:
    """Runs an operator (by name, as graphs are kept), and raises RuntimeError where numbers of its result are not those that the
    program asserts."""

    target: str
    places: tuple[Place, ...]
    message: str

    def __call__(self, wanted: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = _operator(self.target)(*args, **kwargs)
        for place, want in zip(self.places, wanted, strict=True):
            found = pytree.key_get(result, place)
            if found != want:
                what = "the number" if not place else f"result{pytree.keystr(place)}"
                raise RuntimeError(self.message or f"{what} of {self.target} is {found}, which the program asserts to be {want}")
        return result


@functools.cache
def _operator(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), torch.ops)


def asserted_places(b: Importer, node: Node, new: set[str]) -> tuple[Place, ...]:
    """The numbers of a node's result that torch has replaced by what they are asserted to be: those without a symbol of `new`."""
    return tuple(place for place in _bindings(node) if not _symbols(pytree.key_get(b.val, place)) & new)


def bound_symbols(node: Node) -> set[str]:
    """The symbols that are, as they stand, numbers which a node's result has from the data."""
    numbers = (pytree.key_get(node.meta["val"], place) for place in _bindings(node))
    return {n.node.expr.name for n in numbers if isinstance(n, torch.SymInt) and n.node.expr.is_Symbol}


def _bindings(node: Node) -> Iterable[Place]:
    return (node.meta.get("unbacked_bindings") or {}).values()


def _symbols(number: Any) -> set[str]:
    return {s.name for s in free_symbols(number)}


def asserted_call(b: Importer, node: Node, places: tuple[Place, ...]) -> Any:
    """Write the call of the node's operator with the comparison behind it; the value of the node where that is no number."""
    wanted = tuple(pytree.key_get(b.val, place) for place in places)
    is_number = isinstance(b.val, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
    fn = AssertedCall(str(node.target), places, _message(node))
    results, _ = object_call(b, fn, (wanted, node.args, node.kwargs), {}, None if is_number else b.val, effect=True)
    b.refused.add(node)  # its line is part of the message
    b.counts.extern += 1
    b.counts.names["extern"][str(node.target)] += 1
    if is_number:
        return None
    return results[0] if isinstance(b.val, torch.Tensor) else tuple(results)


def _message(node: Node) -> str:
    """What the program says where the assertion does not hold; "" for what torch says by itself, which names its own symbols."""
    said = (str(assertion.args[1]) for assertion in (*_assertions(node), *_folded_assertions(node)))
    return next((message for message in said if not message.startswith("Runtime assertion failed for expression")), "")


def _assertions(node: Node) -> Iterator[Node]:
    """The assertions about numbers that come from a node, or from views of its results."""
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop(0).users:
            if user in seen:
                continue
            seen.add(user)
            if user.target is aten._assert_scalar.default:
                yield user
            elif not isinstance(user.meta.get("val"), torch.Tensor) or user.target is operator.getitem or view_source(user) is not None:
                pending.append(user)


def _folded_assertions(node: Node) -> Iterator[Node]:
    """The assertions behind a node of which torch left the message alone, up to the next node that gives a number."""
    following = node.next
    while following.op != "output" and not following.meta.get("unbacked_bindings"):
        if following.target is aten._assert_scalar.default and following.args[0] is True:
            yield following
        following = following.next
