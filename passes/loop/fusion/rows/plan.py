"""Which reductions run inside of the rows of another nest, decided before anything is rewritten.

A nest goes over rows (`rows`: a norm's backward, a softmax, any nest with loops of its own). Another one reduces the same rows: the sum
over them of a column for each element of a row (a norm's weight gradient) or of a scalar (a mean loss). Its reduced loops are matched with
the rows by what both access. Legality (`_match`, `_reads_stay`, `_apart`) is apart from profit (`_not_worth`); both say why not in words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from .....dialects import loop, nd
from .....dialects.expr import (
    ONE,
    ZERO,
    Dim,
    Expr,
    dim,
    dims_subs,
    free_dims,
    linear_coeff,
    strides_contiguous,
)
from .....dialects.expr.ranges import RangeEnv, prove_eq, simplify
from .....dialects.nd.types import TensorType, element_bytes
from ....analysis.call_order import needs_besides_values
from ....analysis.known_layouts import argument_strides
from ....analysis.nest_info import NestInfo, TensorAccess, nest_info
from ..groups import MAX_SIBLING_DISTANCE
from ..price import MIN_PARALLEL_TRIPS
from ..sharing.align import LoopEnvs, extractors
from ..types import Extents

MAX_ACCUMULATOR_BYTES = 64 * 1024
"""Bytes that the accumulators of all columns may take: they are read and written for every row, and each of the parts that threads share
has its own on the stack. On one thread one nest stays faster than two for longer (docs/lab/constants.md), but
there would be too few parts for the threads."""

SERIAL_BYTES = 65536
"""Data up to which one thread is as fast as several."""


MIN_PROGRAM_ROWS = 1024
"""Rows from which on programs that take several of them each are enough for a GPU."""

MIN_KEPT_TRIPS = 64
"""Iterations of loops that both nests keep from which on they stay loops of the nest, so that nothing has to be accumulated for each."""

MARKED = "it is marked no_fuse"

SCALAR_KINDS = frozenset({"sum", "prod", "max", "min", "any", "all", "xor"})
COLUMN_MODES = {"sum": "add", "prod": "prod", "max": "max", "min": "min"}
"""Reductions whose partial results a store can combine, with the mode of the store."""


@dataclass
class RowPart:
    """A reduction that runs in the rows. `place`: its loops (own and reduced, by dimension) that are loops of the rows' nest, as dimensions
    of that. `kept` are its own loops, `reduced` those of its reduction."""

    facts: NestInfo
    reduce: loop.ReduceOp
    place: dict[Dim, Dim]
    kept: list[Dim]
    reduced: list[Dim]
    scalar: bool = False
    """Whether its results are scalars of the merged nest (all loops that it keeps are loops of that nest), not columns."""
    bytes: int = 0
    """What both read, which one nest reads once."""

    def size(self, d: Expr) -> Expr:
        return self.facts.dims[d.index]  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class RowFusion:
    """One merged nest: `outer` loops of the rows' nest stay its loops, the `rows` become a loop or a reduction inside, `across` are
    loops of the rows' nest (one without inner loops) that run inside of each row. All by number."""

    facts: NestInfo
    parts: list[RowPart]
    outer: list[int]
    rows: list[int]
    across: list[int]

    def ops(self) -> list[loop.NestOp]:
        """The nests that become one."""
        return [self.facts.op, *(p.facts.op for p in self.parts)]


@dataclass(frozen=True)
class Refusal:
    """Two nests that share data and stay apart."""

    rows: loop.NestOp
    reduction: loop.NestOp
    reason: str


@dataclass
class _Candidate:
    rows: NestInfo
    part: RowPart


class RowPlanner(Extents):
    """Plans one function."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, hints: Mapping[str, int], columns_only: bool = False):
        super().__init__(hints)
        self.symbols = symbols
        self.columns_only = columns_only
        self._envs = LoopEnvs(symbols)
        self.ops = list(func.body.block.ops)
        self.position = {op: k for k, op in enumerate(self.ops)}
        self.layouts = argument_strides(func)
        self.refusals: list[Refusal] = []
        self._facts: dict[loop.NestOp, NestInfo] = {}
        self._inputs: dict[Operation, set[Operation]] = {}
        calls = [op for op in self.ops if isinstance(op, nd.ExternOp)]
        self._call_before: dict[Operation, Operation] = dict(zip(calls[1:], calls, strict=False))
        self._besides = needs_besides_values(self.ops)
        self._merged: dict[Operation, list[loop.NestOp]] = {}
        self._spans: list[tuple[int, int]] = []
        """The places of the first and the last operation of each fusion so far."""
        """The operations that will be one, by each of them."""

    def plan(self) -> list[RowFusion]:
        """The fusions, none of which share a nest."""
        found: dict[loop.NestOp, RowFusion] = {}
        parts: set[loop.NestOp] = set()
        for candidate in sorted(self._candidates(), key=lambda c: -c.part.bytes):
            rows, nest = candidate.rows.op, candidate.part.facts.op
            if nest in parts or nest in found or rows in parts:
                continue
            reason = self._add(found, candidate)
            if reason:
                self._refuse(rows, nest, reason)
            else:
                parts.add(nest)
        self.refusals = [r for r in self.refusals if r.reduction not in self._merged or r.rows not in self._merged[r.reduction]]
        return list(found.values())

    def _refuse(self, rows: loop.NestOp, nest: loop.NestOp, reason: str) -> None:
        self.refusals.append(Refusal(rows, nest, reason))

    # ---- pairs

    def _candidates(self) -> Iterator[_Candidate]:
        """Pairs that could be one nest, by themselves."""
        nests = [op for op in self.ops if isinstance(op, loop.NestOp)]
        reductions = [op for op in nests if _row_reduction(op) is not None]
        if not reductions or len(nests) < 2:
            return
        partners = self._partners(nests)
        for op in reductions:
            facts = self.facts(op)
            reduce = _row_reduction(op)
            assert reduce is not None
            for other in partners(op):
                rows = self.facts(other)
                if not any(s is t for s in rows.op.loop_sizes for t in reduce.loop_sizes if t is not ONE):
                    continue
                part = self._match(rows, facts, reduce)
                if isinstance(part, str):
                    self._refuse(other, op, part)
                    continue
                part.bytes = self._shared_bytes(rows, part)
                if not part.bytes:
                    self._refuse(other, op, "a row of one reads nothing that the same row of the other touches")
                else:
                    yield _Candidate(rows, part)

    def facts(self, nest: loop.NestOp) -> NestInfo:
        found = self._facts.get(nest)
        if found is None:
            found = self._facts[nest] = nest_info(nest)
        return found

    def _partners(self, nests: Sequence[loop.NestOp]) -> Callable[[loop.NestOp], list[loop.NestOp]]:
        """For a nest those near it that read a tensor that it reads, or that produce one."""
        readers: dict[SSAValue, list[loop.NestOp]] = {}
        places: dict[SSAValue, list[int]] = {}
        for op in nests:
            for tensor in _tensors(self.facts(op)):
                readers.setdefault(tensor, []).append(op)
                places.setdefault(tensor, []).append(self.position[op])

        def partners(op: loop.NestOp) -> list[loop.NestOp]:
            found: set[loop.NestOp] = set()
            here = self.position[op]
            for tensor in _tensors(self.facts(op)):
                if isinstance(tensor.owner, loop.NestOp):
                    found.add(tensor.owner)
                near = slice(
                    bisect_left(places[tensor], here - MAX_SIBLING_DISTANCE), bisect_right(places[tensor], here + MAX_SIBLING_DISTANCE)
                )
                found.update(readers[tensor][near])
            found.discard(op)
            return sorted((o for o in found if abs(self.position[o] - here) <= MAX_SIBLING_DISTANCE), key=lambda o: self.position[o])

        return partners

    # ---- matching loops

    def _match(self, rows: NestInfo, facts: NestInfo, reduce: loop.ReduceOp) -> RowPart | str:
        """How the loops of a reduction are loops of the rows' nest, or why not."""
        reason = _refusal(rows) or _refusal(facts)
        if reason:
            return reason
        kept = [dim(k) for k in range(len(facts.sizes))]
        reduced: list[Dim] = [facts.place[i] for i in reduce.indices]  # pyright: ignore[reportAssignmentType]
        mine = [*kept, *reduced]
        votes: Counter[tuple[Dim, Dim]] = Counter()
        for a, b in _shared_accesses(rows, facts):
            for e, f in zip(a, b, strict=True):
                votes.update(_alike(e, f, len(rows.sizes), mine))
        place: dict[Dim, Dim] = {}
        for (a, b), _ in votes.most_common():
            if b in place or a in place.values():
                continue
            if prove_eq(rows.dims[a.index], facts.dims[b.index], self.symbols):
                place[b] = a
        found = set(place.values())
        if any(dim(k) not in found and rows.dims[k] is not ONE for k in range(len(rows.sizes))):
            return "the loops of one are not those that the other reduces"
        if not any(d in place for d in reduced):
            return "the other reduces none of its loops"
        part = RowPart(facts, reduce, place, kept, reduced)
        return self._reads_stay(rows, part) or part

    def _reads_stay(self, rows: NestInfo, part: RowPart) -> str:
        """Why a row of the reduction needs what another row produces; "" if none does."""
        if any(r in _tensors(rows) for r in part.facts.op.results) or any(o in part.facts.op.results for o in rows.op.outs):
            return "the rows need what is reduced over all of them"
        if any(o in rows.op.results for o in part.facts.op.outs):
            return "one stores into a tensor of the other"
        env = self._envs(tuple(rows.dims))
        moved: list[Expr] = [part.place.get(dim(k), dim(len(rows.dims) + k)) for k in range(len(part.facts.dims))]
        for read in part.facts.reads:
            if read.tensor not in rows.op.results:
                continue
            index = [dims_subs(e, moved) for e in read.index]
            k = list(rows.op.results).index(read.tensor)  # pyright: ignore[reportArgumentType]
            for store in rows.stored(k):
                found = extractors(store.index, rows.sizes, env)
                if len(found) < len(rows.sizes):
                    return "it cannot be told which row stores an element that the other reads"
                for o, e in enumerate(found):
                    if rows.dims[o] is not ONE and simplify(dims_subs(e, index), env) is not dim(o):
                        return "a row of the other reads what another row produces"
        return ""

    def _shared_bytes(self, rows: NestInfo, part: RowPart) -> int:
        """Bytes of the tensors that both touch at the same place of each row."""
        moved: list[Expr] = [part.place.get(dim(k), ZERO) for k in range(len(part.facts.dims))]
        only_rows = [dim(k) if k < len(rows.sizes) else ZERO for k in range(len(rows.dims))]
        total: dict[SSAValue, int] = {}
        for tensor, a, b in _shared_tensors(rows, part.facts):
            here = [dims_subs(e, only_rows) for e in a]
            if any(free_dims(e) for e in here) and all(e is dims_subs(f, moved) for e, f in zip(here, b, strict=True)):
                total[tensor] = self.bytes(tensor)
        return sum(total.values())

    # ---- merging

    def _add(self, found: dict[loop.NestOp, RowFusion], candidate: _Candidate) -> str:
        """Add a part to the fusion of its rows; the reason if that is not possible or does not pay."""
        rows, part = candidate.rows, candidate.part
        old = found.get(rows.op)
        parts = [*(old.parts if old else []), part]
        fusion = self._shape(rows, parts)
        if isinstance(fusion, str):
            return fusion
        reason = self._apart(fusion.ops()) or self._not_worth(fusion)
        if not reason:
            found[rows.op] = fusion
            self._merged.update((op, fusion.ops()) for op in fusion.ops())
            places = [self.position[op] for op in fusion.ops()]
            self._spans.append((min(places), max(places)))
            for p in parts:
                p.scalar = not self._is_columns(fusion, p)
        return reason

    def _shape(self, rows: NestInfo, parts: list[RowPart]) -> RowFusion | str:
        """Which loops of the rows stay outside, and which run inside of a row."""
        every = [k for k in range(len(rows.sizes)) if rows.dims[k] is not ONE]
        kept = [{p.place[d].index if d in p.place else -1 for d in p.kept if p.size(d) is not ONE} for p in parts]
        if not rows.has_loops:
            across = next((k for k in kept if k), set())
            if any(k not in (across, set()) for k in kept):
                return "the columns of the reductions differ"
            if -1 in across or len(across) == len(every):
                return "no loop is left to run over rows"
            return RowFusion(rows, parts, [], [k for k in every if k not in across], sorted(across))
        outer = kept[0] if all(k == kept[0] for k in kept) and -1 not in kept[0] else set()
        if self.count(rows.dims[k] for k in outer) < MIN_KEPT_TRIPS:
            outer = set()
        return RowFusion(rows, parts, sorted(outer), [k for k in every if k not in outer], [])

    def _not_worth(self, fusion: RowFusion) -> str:
        """Why one nest would not be faster than two; "" if it would."""
        facts = fusion.facts
        if not fusion.rows:
            return "all loops of the rows are kept"
        rows = self.count(facts.dims[k] for k in fusion.rows)
        largest = max((self.bytes(a.tensor) for a in (*facts.reads, *facts.writes)), default=0)
        across = any(self._contiguous_along(a, fusion.rows, 0) for a in (*facts.reads, *facts.writes))
        if not fusion.outer and rows < MIN_PARALLEL_TRIPS and (largest > SERIAL_BYTES or across):
            return f"only {rows} rows would be left to run in parallel"
        columns = [p for p in fusion.parts if self._is_columns(fusion, p)]
        if self.columns_only:
            if fusion.outer or len(fusion.rows) != 1 or len(columns) != len(fusion.parts):
                return "it does not leave a column for each element of a row"
            if rows < MIN_PROGRAM_ROWS:
                return f"{rows} rows are too few to share out among programs"
        if (columns or facts.has_loops) and any(self._contiguous_along(a, fusion.rows) for a in (*facts.reads, *facts.writes)):
            return "the elements of a row do not lie side by side"
        added_up = [(a, [d.index for d in p.reduced if d in p.place]) for p in columns for a in p.facts.reads]
        if any(self._contiguous_along(a, over) for a, over in added_up):
            return "the elements of a row do not lie side by side"
        if not columns:
            return ""
        if not all(k in COLUMN_MODES and t in (f32, f64, i32, i64) for p in columns for k, t in _results(p)):
            return "its kind of reduction cannot be accumulated by stores"
        total = sum(self.count(p.size(d) for d in p.kept) * element_bytes(t) for p in columns for _, t in _results(p))
        if total > MAX_ACCUMULATOR_BYTES:
            return f"the columns take {total} bytes, which would not stay in the cache from row to row (limit {MAX_ACCUMULATOR_BYTES})"
        return ""

    @staticmethod
    def _is_columns(fusion: RowFusion, part: RowPart) -> bool:
        """Whether a part keeps loops that are not loops of the merged nest."""
        return any(part.size(d) is not ONE and (d not in part.place or part.place[d].index not in fusion.outer) for d in part.kept)

    def _contiguous_along(self, access: TensorAccess, loops: Sequence[int], least: int = MAX_ACCUMULATOR_BYTES) -> bool:
        """Whether one of `loops` walks through the elements of a tensor of more than `least` bytes side by side."""
        t = access.tensor.type
        if not isinstance(t, TensorType) or self.bytes(access.tensor) <= least:
            return False
        strides = self.layouts.get(access.tensor) or strides_contiguous(t.dims)
        inner = {d.index for e in access.index for d in free_dims(e)}.difference(loops)
        for e, size, stride in zip(access.index, t.dims, strides, strict=True):
            if size is not ONE and stride is ONE and any(linear_coeff(e, dim(k)) is ONE for k in loops):
                return bool(inner)
        return False

    # ---- dependences between operations

    def _apart(self, group: Sequence[loop.NestOp]) -> str:
        """Why the nests of `group`, the one of the rows first, cannot become one operation; "" if they can."""
        members = set(group)
        if any(out.owner in members for op in group for out in op.outs):
            return "one goes on with a tensor that another one begins"
        if any(o in members and o is not op for op in group[1:] for o in used_ops(op) if o is not group[0]):
            return "one needs what another one reduces over all rows"
        reached: set[Operation] = set(group)
        between = self._between(group)
        size = 0
        while size != len(reached):
            size = len(reached)
            for op in between:
                if op not in reached and not reached.isdisjoint(self.inputs(op)):
                    reached.update(self._merged.get(op, (op,)))
        reached.difference_update(group)
        if any(not reached.isdisjoint(self.inputs(op)) for op in group):
            return "another operation between them needs one and is needed by the other"
        return ""

    def _between(self, group: Sequence[loop.NestOp]) -> Sequence[Operation]:
        """The operations through which one of `group` may need another: those from its first to its last, and to the ends of every
        fusion that reaches over that, since its nests will stand at one place."""
        places = [self.position[op] for op in group]
        first, last = min(places), max(places)
        grown = True
        while grown:
            grown = False
            for low, high in self._spans:
                if low <= last and high >= first and (low < first or high > last):
                    first, last, grown = min(low, first), max(high, last), True
        return self.ops[first : last + 1]

    def inputs(self, op: Operation) -> set[Operation]:
        """The operations of the function that come before `op`: those whose results it uses or that must stay there, and for library
        calls the one before."""
        found = self._inputs.get(op)
        if found is None:
            found = self._inputs[op] = {o for o in used_ops(op) if o in self.position}
            before = self._call_before.get(op)
            if before is not None:
                found.add(before)
            found.update(self._besides.get(op, ()))
        return found


def used_ops(op: Operation) -> Iterator[Operation]:
    """The operations whose results `op`, or something inside of it, uses."""
    for operand in op._operands:
        owner: Any = operand.owner
        if type(owner) is not Block:
            yield owner
    for inner in loop.walk_bodies(op) if op.regions else ():
        for operand in inner._operands:
            owner = operand.owner
            if type(owner) is not Block:
                yield owner


def _row_reduction(op: loop.NestOp) -> loop.ReduceOp | None:
    """The reduction of a nest that has no other loop and stores nothing before, of kinds that may run in parts."""
    loops = [o for o in op.block.ops if isinstance(o, loop.LoopLike)]
    if len(loops) != 1 or not isinstance(loops[0], loop.ReduceOp):
        return None
    reduce = loops[0]
    if not SCALAR_KINDS.issuperset(reduce.kind_names):
        return None
    for o in op.block.ops:
        if o is reduce:
            return reduce
        if isinstance(o, loop.StoreOp):
            return None
    return None


def _refusal(info: NestInfo) -> str:
    """Why a nest is not one with another; "" if it may be."""
    if "no_fuse" in info.op.attributes:
        return MARKED
    if any(isinstance(w.op, loop.StoreOp) and w.op.mode is not None for w in info.writes):
        return "it combines what it stores with what is there"
    if info.has_memory:
        return "its iterations have memory of their own"
    return "one of its loops is sequential" if info.sequential else ""


def _tensors(info: NestInfo) -> set[SSAValue]:
    """The tensors from outside that a nest reads."""
    return {r.tensor for r in info.reads if r.tensor not in info.out_args}


def _results(part: RowPart) -> list[tuple[str, Attribute]]:
    return list(zip(part.reduce.kind_names, (r.type for r in part.reduce.results), strict=True))


def _shared_tensors(rows: NestInfo, facts: NestInfo) -> Iterator[tuple[SSAValue, tuple[Expr, ...], tuple[Expr, ...]]]:
    """(tensor, index in `rows`, index in `facts`) for what both read and for what the second reads of the first."""
    mine: dict[SSAValue, list[tuple[Expr, ...]]] = {}
    for access in facts.reads:
        mine.setdefault(access.tensor, []).append(access.index)
    for k, result in enumerate(rows.op.results):
        for index in mine.get(result, ()):
            for store in rows.stored(k):
                yield result, store.index, index
    for access in rows.reads:
        for index in mine.get(access.tensor, ()):
            yield access.tensor, access.index, index


def _shared_accesses(rows: NestInfo, facts: NestInfo) -> Iterator[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
    return ((a, b) for _, a, b in _shared_tensors(rows, facts))


def _alike(e: Expr, f: Expr, loops: int, mine: Sequence[Dim]) -> Iterator[tuple[Dim, Dim]]:
    """Loops that play the same part in two index expressions: those with the same factor, or of which both are the same function."""
    for a in free_dims(e):
        if a.index >= loops:
            continue
        factor = linear_coeff(e, a)
        for b in free_dims(f):
            if b in mine and (linear_coeff(f, b) is factor if factor is not None else _renamed(e, a, b) is f):
                yield a, b


def _renamed(e: Expr, a: Dim, b: Dim) -> Expr | None:
    """An expression of the one loop `a` as one of `b`; None where it has other loops."""
    return dims_subs(e, [b] * (a.index + 1)) if len(free_dims(e)) == 1 else None
