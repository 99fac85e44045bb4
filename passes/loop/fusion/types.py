"""What a fusion plan is made of: sizes, groups of nests that share their outer loops, and the record of what was compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from ....dialects.expr import Expr, evaluate, free_syms, product
from ....dialects.nd.types import TensorType, element_bytes
from ...analysis.nest_info import NestInfo


class Extents:
    """How large boxes and tensors are, with the hints for symbols."""

    def __init__(self, hints: Mapping[str, int]):
        self.hints = hints
        self._counts: dict[tuple[Expr, ...], int] = {}
        self._bytes: dict[SSAValue, int] = {}

    def count(self, sizes: Iterable[Expr]) -> int:
        """Elements of a box."""
        key = tuple(sizes)
        found = self._counts.get(key)
        if found is None:
            total = product(key)
            known = {s: self.hints.get(s.name, 64) for s in free_syms(total)}
            found = self._counts[key] = int(total) if total.is_const else evaluate(total, known)
        return found

    def bytes(self, tensor: SSAValue) -> int:
        """Bytes of a tensor."""
        found = self._bytes.get(tensor)
        if found is None:
            t = tensor.type
            found = self.count(t.dims) * element_bytes(t.element_type) if isinstance(t, TensorType) else 8
            self._bytes[tensor] = found
        return found


@dataclass
class Member:
    """A nest in a group: `place[k]` is its loop k over the group's loops (Dim(0) .. outer-1) and its own inner loops (after them)."""

    info: NestInfo
    place: tuple[Expr, ...]
    inner: tuple[Expr, ...] = ()
    known: dict[tuple[Expr, ...], tuple[Expr, ...]] = field(default_factory=dict, repr=False)
    """Indices that were placed in the group already; empty after every change of its loops."""


@dataclass
class Group:
    """Nests that share their outer loops. `order` tells groups apart: the place of the first nest that it was made for."""

    order: int
    outer: tuple[Expr, ...]
    members: list[Member]
    results: dict[SSAValue, tuple[Member, int]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    """Where the members stand in the function, in order."""
    needs: set[int] = field(default_factory=set)
    """Where the ops stand that make what the members read, other members among them."""


@dataclass
class Read:
    """A read after inlining: `index` is None when it depends on a loaded index."""

    tensor: SSAValue
    index: tuple[Expr, ...] | None


Unit = Group | Operation


@dataclass(frozen=True)
class Attempt:
    """Two groups that were compared: the nests that stood for them then, the bytes that one nest saves, and why they were not merged (""
    where they were)."""

    first: Group
    second: Group
    first_op: Operation
    second_op: Operation
    bytes: int
    reason: str = ""


@dataclass(frozen=True)
class Move:
    """A change that the search made to the greedy plan: `kind` is "merge", "move" (later members of a group go to another), "split" (its
    first ones do), "store" or "recompute"; `ns` is what it saves by the cost of price.py. `first` is the nest that is stored or
    computed again, and `second` a reader of it; else `first` and `second` are nests that were brought together."""

    kind: str
    first: Operation
    second: Operation
    ns: float


@dataclass
class FusionPlan:
    """The outcome: units in an order that respects all dependences, the nests that are computed where they are read, and for reading:
    what was merged, what was refused, and why a nest that others read is stored."""

    units: list[Unit]
    inlined: dict[SSAValue, NestInfo]
    refusals: list[Attempt]
    merges: list[Attempt]
    stored: dict[Operation, str]
    moves: list[Move] = field(default_factory=list)
    """What the search changed of the greedy start."""
    nests: dict[Operation, Group] = field(default_factory=dict)
    """Once it is in effect: the nest of each group."""
