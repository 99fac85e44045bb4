"""Runs of equal parts in the order of a program, the layers of a network: where they begin, how long each is, how many there are.

A step is an op of the function that computes something; views and what is computed where it is read belong to the steps that read
through them. Two steps are alike when they are the same op on operands that are reached in the same way. A run is a sequence in which
each step is alike to the one a period later; it becomes parts by a cut at each period, at a place where fusion has nothing to join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import loop, nd
from ....dialects.nd.types import LayoutAttr, TensorType

INLINE = (nd.FullOp, nd.SizeOp, nd.ScalarOp, nd.IotaOp, nd.LiteralOp, nd.PadOp)
"""Ops that nd-to-loop computes where they are read."""

FREE = (nd.ViewOp, *INLINE)
"""Ops that are no nests of their own."""

OPAQUE = (nd.MatmulOp, nd.ConvOp, nd.ExternOp)
"""Ops that no nest is fused with, and over which none is moved."""

MAX_PERIODS = 6
"""Distances between equal steps that are tried."""


@dataclass(frozen=True)
class RepeatedPart:
    """One of several equal parts: its steps, what it takes from outside, and which of its values are used outside, in the same order
    for all."""

    steps: tuple[Operation, ...]
    inputs: tuple[SSAValue, ...]
    outputs: tuple[SSAValue, ...]


class Steps:
    """The steps of a function, with what decides whether they are alike."""

    def __init__(self, func: FuncOp, fewest: int, smallest: int):
        """`fewest` parts of at least `smallest` steps are worth it."""
        self.fewest = fewest
        self.smallest = smallest
        self.steps = [op for op in func.body.block.ops if not isinstance(op, FREE)]
        self.position = {op: k for k, op in enumerate(self.steps)}
        attributes = func.arg_attrs.data if func.arg_attrs is not None else ()
        self._layouts: dict[SSAValue, Attribute] = {
            value: given.data["nd.layout"]
            for value, given in zip(func.body.block.args, attributes, strict=False)
            if isinstance(given, DictionaryAttr) and "nd.layout" in given.data
        }
        self._numbers: dict[object, int] = {}
        self._ways: dict[SSAValue, tuple[int, tuple[SSAValue, ...]]] = {}
        self.roots: list[tuple[SSAValue, ...]] = []
        """For each step the values of other steps, and arguments, that it reads."""
        self.readers: dict[SSAValue, list[int]] = {}
        """For each value of a step, and each argument, the steps that read it."""
        self.kinds = [self._kind(op) for op in self.steps]

    # ---- what is alike

    def layouts(self, parts: Sequence[RepeatedPart]) -> list[DictionaryAttr]:
        """For the arguments of a function, how the inputs lie in memory for which they stand, where all parts agree."""
        found: list[DictionaryAttr] = []
        for values in zip(*[part.inputs for part in parts], strict=True):
            layout = self._layouts.get(values[0])
            agreed = layout is not None and all(self._layouts.get(v) == layout for v in values)
            found.append(DictionaryAttr({"nd.layout": layout} if layout is not None and agreed else {}))
        return found

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _way(self, value: SSAValue) -> tuple[int, tuple[SSAValue, ...]]:
        """How `value` is reached from the results of steps and from arguments, as a number; and from which of these."""
        found = self._ways.get(value)
        if found is not None:
            return found
        owner = value.owner
        if not isinstance(owner, FREE) or is_seed(owner):
            found = self._number(value.type), (value,)
        else:
            below = [self._way(v) for v in owner._operands]
            key = (type(owner), tuple(owner.properties.items()), value.type, *[number for number, _ in below])
            found = self._number(key), tuple(root for _, roots in below for root in roots)
        self._ways[value] = found
        return found

    def _kind(self, op: Operation) -> int:
        """A number that equal steps share; the step is told to those whose values it reads."""
        ways = [self._way(v) for v in op._operands]
        roots = tuple(dict.fromkeys(root for _, found in ways for root in found))
        place = len(self.roots)
        self.roots.append(roots)
        for root in roots:
            self.readers.setdefault(root, []).append(place)
        if not is_movable(op):
            return self._number(op)
        return self._number(
            (
                type(op), tuple(op.properties.items()), tuple(op.attributes.items()), tuple([r.type for r in op.results]),
                *[number for number, _ in ways],
            )
        )  # fmt: skip

    # ---- runs

    def find(self) -> list[list[RepeatedPart]]:
        """Runs of equal parts that do not overlap, in program order."""
        return self._between(0, len(self.steps))

    def _between(self, low: int, high: int) -> list[list[RepeatedPart]]:
        if high - low < self.fewest * self.smallest:
            return []
        for start, period, count in self._runs(low, high):
            parts = self._parts(start, period, count)
            if len(parts) >= self.fewest:
                first, last = self.position[parts[0].steps[0]], self.position[parts[-1].steps[-1]]
                return [*self._between(low, first), parts, *self._between(last + 1, high)]
        return []

    def _runs(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """(start, period, number of alike pairs a period apart) of the longest run for each period, those first that save most. Of layers
        too small for a function several are one."""
        kinds, last = self.kinds, {}
        distances: Counter[int] = Counter()
        for k in range(low, high):
            kind = kinds[k]
            if kind in last:
                distances[k - last[kind]] += 1
            last[kind] = k
        found: list[tuple[int, int, int]] = []
        likely = [p for p, _ in distances.most_common() if p >= self.smallest][:MAX_PERIODS]
        several = [-(-self.smallest // p) * p for p, _ in distances.most_common(MAX_PERIODS) if p < self.smallest]
        for period in dict.fromkeys([*likely, *several]):
            best = length = at = 0
            for k in range(low, high - period):
                length = length + 1 if kinds[k] == kinds[k + period] else 0
                if length > best:
                    best, at = length, k + 1 - length
            if best // period + 1 >= self.fewest:
                found.append((at, period, best))
        return sorted(found, key=lambda run: (-(run[2] // run[1] * run[1]), run[1]))

    def _parts(self, start: int, period: int, alike: int) -> list[RepeatedPart]:
        """The parts of a run, cut at the first place in the period that serves."""
        best: list[RepeatedPart] = []
        for at in range(start, start + period):
            count = (start + alike + period - at) // period
            if count < max(self.fewest, len(best) + 1):
                break
            middle = at + count // 2 * period
            if self._cut(middle, middle + period):
                parts = self._equal(at, period, count)
                if len(parts) > len(best):
                    best = parts
                if len(best) == count:
                    break
        return best

    def _cut(self, start: int, end: int) -> bool:
        """Whether no nest of the steps in [start, end) could be fused with what computes a value before them: a nest that reads such a
        value must wait for a call that does, and the value must be stored for others anyway."""
        waiting: set[int] = set()
        for k in range(start, end):
            before = [r for r in self.roots[k] if r.owner in self.position]
            places = [self.position[r.owner] for r in before]  # pyright: ignore[reportArgumentType]
            crossing = [r for r, p in zip(before, places, strict=True) if p < start]
            if any(p in waiting for p in places):
                waiting.add(k)
            elif self._is_opaque(k):
                if crossing:
                    waiting.add(k)
            elif crossing:
                return False
            for value in crossing:
                readers = self.readers[value]
                if isinstance(value.owner, OPAQUE) or readers[0] < start:
                    continue
                if not any(map(self._is_opaque, readers)):
                    return False
        return True

    def _is_opaque(self, k: int) -> bool:
        """Whether a step takes its operands from memory: a call, the return, an update."""
        return isinstance(self.steps[k], OPAQUE) or not self.steps[k].results

    def _equal(self, start: int, period: int, count: int) -> list[RepeatedPart]:
        """The parts that equal the middle one and have only such between them and it."""
        shapes = [self._shape(start + k * period, period) for k in range(count)]
        middle = count // 2
        first = last = middle
        while first > 0 and shapes[first - 1][0] == shapes[middle][0]:
            first -= 1
        while last + 1 < count and shapes[last + 1][0] == shapes[middle][0]:
            last += 1
        # before the first part and after the last there are other steps than between two of them
        if not self._cut(start + first * period, start + (first + 1) * period):
            first += 1
        end = start + (last + 1) * period
        if not self._cut(end, min(end + period, len(self.steps))):
            last -= 1
        return [part for _, part in shapes[first : last + 1]]

    def _shape(self, start: int, period: int) -> tuple[object, RepeatedPart]:
        """What equal parts share, and the part of steps [start, start + period)."""
        end = start + period
        inputs: dict[SSAValue, int] = {}
        outputs: list[SSAValue] = []
        flow: list[object] = []
        for k in range(start, end):
            for root in self.roots[k]:
                owner = root.owner
                place = self.position.get(owner, -1) if isinstance(owner, Operation) else -1
                if place >= start:
                    flow.append((place - start, root.index))  # pyright: ignore[reportAttributeAccessIssue]
                else:
                    flow.append(-1 - inputs.setdefault(root, len(inputs)))
            for result in self.steps[k].results:
                readers = self.readers.get(result)
                if readers and readers[-1] >= end:
                    outputs.append(result)
                    flow.append((k - start, result.index, "out"))
        flow += [_special(value, self._layouts.get(value)) for value in inputs]
        return flow, RepeatedPart(tuple(self.steps[start:end]), tuple(inputs), tuple(outputs))


def is_seed(op: Operation) -> bool:
    """Whether an op is one call site's slice of the seeds of random numbers, which come from the function's start. Sites differ in the
    place of their slice: it is an input of a part."""
    if not isinstance(op, nd.SliceOp) or not all(isinstance(use.operation, nd.RandomOp) for use in op.result.uses):
        return False
    source = op.input.owner
    return not isinstance(source, Operation) or isinstance(source, nd.ExternOp) and not source.operands


def is_movable(op: Operation) -> bool:
    """Whether a step can be part of a function: it has values, and binds no size symbol. Effects keep their order there."""
    special = op.regions or isinstance(op, (nd.BarrierOp, loop.BatchOp, ReturnOp))
    return bool(op.results) and not special and "binds" not in op.properties


def _special(value: SSAValue, layout: Attribute | None) -> Attribute | None:
    """The layout of an argument, unless it lies in memory as computed tensors do."""
    if not isinstance(layout, LayoutAttr) or not isinstance(value.type, TensorType):
        return layout
    return None if tuple(layout.stride_exprs) == tuple(value.type.contiguous_strides()) else layout
