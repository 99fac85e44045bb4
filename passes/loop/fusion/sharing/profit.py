"""Whether one nest would be slower than two although it moves fewer bytes."""

from __future__ import annotations

from .....dialects.expr import free_dims
from ....analysis.nest_info import NestInfo
from ....cost.machine.gpu import Gpu
from ....cost.nest_cost import VECTOR_LANES
from ..facts import NestFacts
from ..price import MIN_PARALLEL_ELEMENTS, MIN_PARALLEL_TRIPS
from ..types import Group
from .align import Alignment

MAX_SEQUENTIAL_REDUCTIONS = 4
"""Reductions that a program of a GPU may as well do one after the other."""

MAX_STRAIGHT_TRIPS = 32
"""Iterations of a reduction that a program of a GPU has as straight code."""

MAX_ROW_PRODUCTS = 4
"""Products within a row, with what stands between them, that a program of a GPU does one after the other: compiling each takes Triton
longer than its launch is worth (docs/lab/gpu-models-h200.md)."""

MAX_LARGE_SUMS = 2
"""Large products whose sums a program of a GPU keeps side by side: more of them would be smaller tiles, which read more from the cache."""


class SharedLoopProfit:
    """What speaks against shared loops, of groups of one function."""

    def __init__(self, nests: NestFacts):
        self.nests = nests

    def against(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        """Why one nest would be slower although it moves less."""
        iterations = self.nests.count(first.outer[: alignment.shared])
        before = min(self.nests.count(first.outer), self.nests.count(second.outer))
        work = max([self.nests.iterations(m.info) for m in (*first.members, *second.members)])
        if iterations < MIN_PARALLEL_TRIPS and iterations < before and work > MIN_PARALLEL_ELEMENTS:
            return f"only {iterations} iterations would be left to run in parallel"
        most = max(self.nests.count(first.outer), self.nests.count(second.outer))
        gpu = self.nests.machine
        if not isinstance(gpu, Gpu):
            return self._idle_lanes(second, alignment)
        keep, brief = gpu.resident_programs, work <= gpu.elements_of_a_launch(gpu.rates.memory_gbs)
        if iterations < keep <= most and not brief and not self._only_reduces(first, second, alignment):
            return f"only {iterations} of {most} iterations would be left to run in parallel, fewer than {keep}"
        serial = self._serial_reductions(first, alignment, gpu) or self._serial_reductions(second, alignment, gpu)
        products = self._product_inside(first, second, alignment) or self._many_products(first, second)
        return serial or products or self._many_layers(first, second, alignment)

    def _only_reduces(self, first: Group, second: Group, alignment: Alignment) -> bool:
        """Whether `second` has nothing but reductions, of as few rows by itself, and `first` is what these, or others, are of, element by
        element, and nothing else: gpu-split-reduction has as many programs take part in them as there is work for."""
        nests = self.nests
        if nests.count(second.outer) != nests.count(first.outer[: alignment.shared]) or any(m.info.has_loops for m in first.members):
            return False
        readers = [r for value in first.results for r in nests.readers(value)]
        if any(nests.whole_users(value) for value in first.results):
            return False
        return all(i.reductions and not i.other_loops for i in (*readers, *[m.info for m in second.members]))

    def _idle_lanes(self, second: Group, alignment: Alignment) -> str | None:
        """Why the inner loops of `second` would be too short for vectors: a piece of its last loop is left, inside of loops that keep it
        from being unrolled along the lanes of a shared one."""
        left = [d.index - alignment.shared for d in free_dims(alignment.outer[-1])] if alignment.outer else []
        if not left or min(left) >= 0:
            return None
        piece = self.nests.count([alignment.inner[k] for k in left if k >= 0])
        if 1 < piece < VECTOR_LANES <= self.nests.count(second.outer[-1:]) and self.nests.count(alignment.inner) > piece:
            return f"{piece} iterations of the last loop would be left inside, less than a vector"
        return None

    def _serial_reductions(self, group: Group, alignment: Alignment, gpu: Gpu) -> str | None:
        """Why reductions of a group would run one after the other on a GPU, whose programs have one axis for the loops inside of a nest.
        Few programs go through a few elements, a column at a time, while another kernel would start; of many programs each
        waits for the others."""
        dropped = self.nests.count(group.outer[alignment.shared :])
        each = self.nests.count(group.outer)
        rows = min(self.nests.count(group.outer[: alignment.shared]), gpu.together)
        most = gpu.elements_of_a_launch(gpu.programs_gbs(rows, "columns"))
        for m in group.members if dropped > MAX_SEQUENTIAL_REDUCTIONS else ():
            work = self.nests.iterations(m.info)
            fixed = all([e.is_const for e in (*group.outer[alignment.shared :], *m.info.inner_sizes)])
            if work > MAX_STRAIGHT_TRIPS * each * self.nests.count(m.inner) and not (fixed and work <= most):
                return f"{dropped} reductions of each row would run one after the other"
        return None

    def _product_inside(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        """Why a product of matrices would not be one for the units of a GPU: a loop of its rows or columns would be inside of the nest."""
        for group, inside in ((first, first.outer[alignment.shared :]), (second, alignment.inner)):
            if self.nests.count(inside) > 1 and any(self.nests.products.sums_products(m.info) for m in group.members):
                return "rows or columns of a product would be a loop inside"
        return None

    def _many_products(self, first: Group, second: Group) -> str | None:
        """Why a program of a GPU would have too many sums of large products in its registers: those that neither needs the other for, and
        more than two that meet."""
        each = [sum([self.nests.products.large_sums(m.info) for m in group.members]) for group in (first, second)]
        if not all(each):
            return None
        if not any(self._reads(member.info, first) for member in second.members):
            return "each is a large product, and neither reads the other"
        return f"{sum(each)} large products would share the registers of a program" if sum(each) > MAX_LARGE_SUMS else None

    def _reads(self, info: NestInfo, group: Group) -> bool:
        """Whether a nest reads a result of a group, or goes on with it."""
        return any(read.tensor in group.results for read in self.nests.reads(info)) or any(out in group.results for out in info.outs)

    def _many_layers(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        """Why a program of a GPU would be long: of the products of a row that it does."""
        layers = [
            m
            for group in (first, second)
            for m in group.members
            if m.info.inner_sizes and self.nests.count((*group.outer[alignment.shared :], *m.inner)) > MAX_SEQUENTIAL_REDUCTIONS
        ]
        if len(layers) <= MAX_ROW_PRODUCTS:
            return None
        return f"{len(layers)} products of each row would be one program, more than {MAX_ROW_PRODUCTS}"
