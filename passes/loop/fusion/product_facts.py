"""What planning asks about products of matrices on a GPU: nests that add up terms `fastmath<contract>`, as nd-library-products leaves them.

    %p = sum of terms, f32 ; %h = round %p ; %y = softmax %h     ->     %h is stored with %p, and not what follows it in f32

A product's nest takes what follows it element by element. Of these values the ones of fewest bytes are stored for what does not.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
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

    def joins_weights(self, members: Sequence[Member]) -> bool:
        """Whether a nest of `members` has products of several weights: those of one keep their scores on chip."""
        on_chip = self.facts.machine.resident_programs  # of a GPU
        found = [self._weights(m.info) for m in members if on_chip and self.sums_products(m.info)]
        return len(found) > 1 and len({tensor for some in found for tensor in some}) > 1

    def _weights(self, info: NestInfo) -> set[SSAValue]:
        """What products of a nest read that is longer than its result, and is computed element by element from a product and numbers of
        rows. Their batches have rows of their own: n batches multiply the sizes of both factors and of the result by n, and the terms."""
        found, numel = set[SSAValue](), self.facts.count(info.sizes)
        for nest in (self.facts.inlined.get(a.tensor) for a in info.reads):
            if nest is not None and nest.multiplies:
                tensors = {a.tensor: self._elements(a.tensor) for a in nest.reads}
                if prod(tensors.values()) * numel > self.facts.count(nest.sizes) ** 2:
                    found.update(t for t in tensors if self._is_of_product(t, numel))
        return found

    def _elements(self, tensor: SSAValue) -> float:
        return self.facts.count(loop.shaped_dims(tensor.type))

    def _is_of_product(self, tensor: SSAValue, least: float) -> bool:
        info = self.facts.infos.get(tensor.owner)  # pyright: ignore[reportArgumentType]
        size = 0 if info is None else self.facts.count(info.sizes)
        while info is not None and size > least and not self.sums_products(info):
            behind = [self.facts.infos.get(a.tensor.owner) for a in info.reads]  # pyright: ignore[reportArgumentType]
            info = next((one for one in behind if one is not None and self.facts.count(one.sizes) == size), None)
        return info is not None and size > least

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
