"""What planning asks about products of matrices on a GPU: nests that add up terms `fastmath<contract>`, as nd-library-products leaves them.

    %p = sum of terms, f32 ; %h = round %p ; %y = softmax %h     ->     %h is stored with %p, and not what follows it in f32

A product's nest takes what follows it element by element. Of these values the ones of fewest bytes are stored for what does not.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects.machine import has_fixed_order
from ...analysis.nest_info import NestInfo

if TYPE_CHECKING:
    from .facts import NestFacts
    from .types import Member

MAX_FACTOR_PRODUCTS = 64
"""Products that an element is a factor of, up to which it is computed where they are, heavy or not: as many rows are few to a GPU's kernel
of a product, which computes the other matrix as it reads it, once."""
MAX_OPS_BEHIND = 64
"""Operations behind a product among which those are looked for that follow it element by element."""


class ProductFacts:
    """Facts about the products of one function."""

    def __init__(self, facts: NestFacts, func: FuncOp):
        self.facts = facts
        self.ordered = has_fixed_order(func)
        """Whether products are to stay such, whatever else pays."""
        self.some = any(info.multiplies for info in facts.infos.values())
        """Whether there are products among the nests."""
        self._follows: dict[Operation, set[Operation]] = {}

    def breaks_up(self, members: Sequence[Member], parts_loops: bool) -> bool:
        """Whether a nest of `members` has more than one product and what follows it element by element. parts_loops: not all of its loops
        are those of each."""
        products = [m for m in members if m.info.multiplies or self.sums_products(m.info)]
        others = [m for m in members if m not in products]
        alone = len(products) == 1 and not parts_loops and not any(m.inner for m in members) and not any(m.info.has_loops for m in others)
        return bool(products) and not alone

    def is_large(self, info: NestInfo) -> bool:
        """Whether each element of all that a product reads is a factor of many products."""
        times = [self.facts.times_read(info, a.tensor) for a in info.reads]
        return self.facts.iterations(info) // max([*times, 1]) > MAX_FACTOR_PRODUCTS

    def ends(self, info: NestInfo) -> bool:
        """Whether a nest follows a product element by element, and what follows it does not do so up to where less would be stored."""
        numel = self.facts.count(info.sizes)
        for read in self.facts.reads(info) if self.some else ():
            source = self.facts.infos.get(read.tensor.owner)  # pyright: ignore[reportArgumentType]
            if source is not None and self.sums_products(source) and read.index is not None and self.facts.count(source.sizes) == numel:
                follows, known = self._following(source), dict[Operation, float]()
                readers = self.facts.consumers[info.op.results[0]]
                return self._handed_on(info, follows, known) < sum([self._handed_on(c, follows, known) for c in readers])
        return False

    def large_sums(self, info: NestInfo) -> int:
        """How many sums of products a nest has whose factors are read many times."""
        return sum(1 for a in info.reads if (p := self.facts.inlined.get(a.tensor)) is not None and p.multiplies and self.is_large(p))

    def sums_products(self, info: NestInfo) -> bool:
        """Whether a nest adds up the terms of a matrix product, which are computed in it."""
        return any(p.multiplies for a in info.reads if (p := self.facts.inlined.get(a.tensor)) is not None)

    def _handed_on(self, info: NestInfo, follows: Container[Operation], known: dict[Operation, float]) -> float:
        """The fewest bytes to store for what does not follow a product, at a nest that does (one of `follows`) or behind it. Results that
        are stored anyway count nothing."""
        if info.op not in follows:
            return math.inf
        found = known.get(info.op)
        if found is None:
            tensor = info.op.results[0]
            behind = sum([self._handed_on(c, follows, known) for c in self.facts.consumers.get(tensor, ())])
            found = known[info.op] = 0.0 if self.facts.whole_users(tensor) else min(self.facts.bytes(tensor), behind)
        return found

    def _following(self, source: NestInfo) -> set[Operation]:
        """The nests that need a product element by element, and nothing else of what is computed of it."""
        found = self._follows.get(source.op)
        if found is not None:
            return found
        found = self._follows[source.op] = set()
        numel, own, others = self.facts.count(source.sizes), set(source.op.results), set[SSAValue]()
        first = self.facts.position[source.op] + 1
        for op in self.facts.ops[first : first + MAX_OPS_BEHIND]:
            info = self.facts.infos.get(op)  # pyright: ignore[reportArgumentType]
            inputs = {*op.operands, *[a.tensor for a in info.reads]} if info is not None else set(op.operands)
            if inputs.isdisjoint(own) and inputs.isdisjoint(others):
                continue
            single = info is not None and len(op.results) == 1 and info.is_pointwise and self.facts.count(info.sizes) == numel
            if single and inputs.isdisjoint(others):
                own.update(op.results)
                found.add(op)
            else:
                others.update(op.results)
        return found
