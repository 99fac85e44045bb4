"""Writing the nest of a row fusion (plan.py): rows with the reductions over them inside.

    loop.nest () outs(%dx, %dw) {
      loop.for (%j = 768) { store 0, %dw[%j] }
      loop.for (%i = 512) {                      // a loop.reduce where a result is a scalar
        ... the rows' own loops ...
        loop.for (%j = 768) { ... store %v, %dx[%i, %j]; store %g, %dw[%j] add }
      }
      loop.for (%j = 768) { ... }                // what is left to do with the sums, if anything
    }

Columns go into the last loop of a row where that has their size; what a row has just stored is passed on as a value. Where rows are on
chip (GPUs) what it has stored in an earlier loop is computed again. Sums of 16-bit floats are accumulated in an out of their own, in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from .....dialects import loop
from .....dialects.expr import ONE, ZERO, Dim, Expr, dim
from .....dialects.expr.ranges import RangeEnv
from .....dialects.nd.types import TensorType, tensor_type
from ....analysis.nest_info import NestInfo
from ....analysis.reduction_kinds import identity
from ....manager.locations import joined
from ...transform.body import Body
from ...transform.loop_rewrite import needed
from ...transform.nest_copy import NestCopy
from ..facts import MAX_REPEATED_OPS
from ..placement import final_store
from .plan import COLUMN_MODES, RowFusion, RowPart


class _Again(Exception):
    """The nest has to be written again: a result is needed in memory after all, or a part cannot stand in the last loop of a row."""


class RowWriter:
    """Writes one fusion; `needed(tensor)` says whether a result of the rows is used by others than the parts."""

    def __init__(self, fusion: RowFusion, symbols: RangeEnv, needed: Callable[[SSAValue], bool], on_chip: bool = False):
        self.fusion = fusion
        self.on_chip = on_chip
        """Whether an iteration has the rows that it reads at hand."""
        self.symbols = symbols
        self.rows = fusion.facts
        self.dropped = {r for r in self.rows.op.results if not needed(r)}
        """Results of the rows that are passed on as values only."""
        self.apart = {k for k, p in enumerate(fusion.parts) if self._reads_what_several_store(p)}
        """Parts (by number) with loops of their own."""
        self.empties: list[loop.EmptyOp] = []
        """New outs: to be put before the nest."""
        self.in_host = False
        """Whether the loop of a row that parts may stand in is being written."""
        self._hosted: set[int] = set()
        self.replaced: list[SSAValue] = []
        """The results that the new nest's results stand for, in order; it may have more."""

    def write(self) -> loop.NestOp:
        while True:
            try:
                return self._write()
            except _Again:
                self._abandon()

    def _abandon(self) -> None:
        """Drop what has been written so far: the blocks that are open, the nest's among them."""
        for block in self.body.blocks:
            for op in block.ops:
                op.drop_all_references()
        self.in_host = False
        nest = self.body.top.parent_op()
        assert nest is not None
        nest.drop_all_references()

    def _write(self) -> loop.NestOp:
        fusion, nest = self.fusion, self.rows.op
        self.columns = {k: _Columns(p) for k, p in enumerate(fusion.parts) if not p.scalar}
        outs: list[tuple[SSAValue, SSAValue, SSAValue]] = []
        for op in fusion.ops():
            outs += [o for o in zip(op.outs, op.out_args, op.results, strict=True) if o[2] not in self.dropped]
        self.replaced = [o[2] for o in outs]
        self.empties = [e for c in self.columns.values() for e in c.empties]
        inits = [*(o[0] for o in outs), *(e.result for e in self.empties)]
        sizes = [self.rows.sizes[k] for k in fusion.outer]
        new = loop.NestOp.build_nest(sizes, inits, fusion.parts[-1].facts.op.location)
        new.properties["label"] = StringAttr("_".join(dict.fromkeys(o.label.data if o.label else "nest" for o in fusion.ops())))
        self.args = dict(zip([*(o[1] for o in outs), *(e.result for e in self.empties)], new.out_args, strict=True))
        self.stored: dict[SSAValue, tuple[tuple[Expr, ...], SSAValue, Block]] = {}
        """Where the rows stored to a result last: index, value, and the block in which that is known."""
        self.body = Body(new.block, sizes, self.symbols, nest.location)
        for columns in self.columns.values():
            self._start(columns)
        self._rows()
        for columns in self.columns.values():
            self._finish(columns)
        return new

    def _reads_what_several_store(self, part: RowPart) -> bool:
        """Whether a part needs the rows' stores to a tensor all done, since a later one may overwrite what an earlier one stored."""
        results = list(self.rows.op.results)
        return any(len(self.rows.stored(results.index(r.tensor))) > 1 for r in part.facts.reads if r.tensor in results)  # pyright: ignore[reportArgumentType]

    # ---- the rows

    def _rows(self) -> None:
        """The loop over the rows, and what follows for scalars."""
        fusion, body = self.fusion, self.body
        sizes = [self.rows.sizes[k] for k in fusion.rows]
        scalars = [p for p in fusion.parts if p.scalar]
        op = _loop_of(sizes, scalars)
        body.location = joined(p.reduce.location for p in scalars)
        with body.inner(op, op.regions[0], sizes) as dims:
            place = dict(zip([*fusion.outer, *fusion.rows], [*(dim(k) for k in range(len(fusion.outer))), *dims], strict=True))
            values = self._row(place)
            if scalars:
                yielded = [v for p in scalars for v in values[fusion.parts.index(p)]]
                body.append(loop.YieldOp.create(operands=yielded))
        at = 0
        for part in scalars:
            count = len(part.reduce.results)
            # a kept loop of size 1 may stand at a loop across the rows: its index is 0 either way
            index = [place.get(part.place[d].index, ZERO) if d in part.place else ZERO for d in part.kept]
            self._after(part, list(op.results[at : at + count]), index, set())
            at += count

    def _row(self, place: dict[int, Expr]) -> dict[int, list[SSAValue]]:
        """One row: the rows' own body and the parts; gives what the parts yield, by their number."""
        facts = self.rows
        yielded: dict[int, list[SSAValue]] = {}
        own = {facts.op.indices[k]: place.get(k, ZERO) for k in range(len(facts.sizes)) if k not in self.fusion.across}
        copy = self.row = _Copy(self, facts, own)
        ops: Iterable[Operation] = facts.op.block.ops
        self._hosted = set()
        if not self.fusion.across:
            last = next((op for op in reversed(list(ops)) if isinstance(op, loop.LoopLike)), None)
            for op in ops:
                if op is last and isinstance(op, loop.ForOp):
                    self._host(copy, op.loop_sizes, op.indices, op.block, place, yielded)
                else:
                    copy.op(op)
        else:
            across = [facts.sizes[k] for k in self.fusion.across]
            indices = [facts.op.indices[k] for k in self.fusion.across]
            self._host(copy, across, indices, facts.op.block, place, yielded)
        for k in range(len(self.fusion.parts)):
            if k not in self._hosted:
                yielded[k] = self._part(k, place, {})
            if k in self.columns and k in yielded and yielded[k]:
                self._accumulate(k, place, yielded[k])
        return yielded

    def _host(
        self, copy: _Copy, sizes: Sequence[Expr], indices: Sequence[SSAValue], block: Block, place: dict[int, Expr],
        yielded: dict[int, list[SSAValue]],
    ) -> None:  # fmt: skip
        """The loop of a row that also runs the parts with the same loop inside."""
        inside = {k: self._fit(k, sizes) for k in range(len(self.fusion.parts)) if k not in self.apart}
        split = next((k for k, fit in inside.items() if fit == "split"), None)
        if split is not None:
            self._split_host(copy, sizes, indices, block, place, [k for k, fit in inside.items() if fit == "split"])
            return
        self._hosted = {k for k, fit in inside.items() if fit}
        reducing = [k for k in self._hosted if inside[k] == "reduced"]
        op = _loop_of(sizes, [self.fusion.parts[k] for k in reducing])
        self.body.location = joined(self.fusion.parts[k].reduce.location for k in reducing)
        with self.body.inner(op, op.regions[0], sizes) as dims:
            copy.enter(indices, dims)
            copy.block(block)
            here = {**place, **dict(zip(self.fusion.across, dims, strict=False))}
            self.in_host = True
            values = {k: self._part(k, here, self._aligned(k, inside[k], dims)) for k in sorted(self._hosted)}
            self.in_host = False
            if reducing:
                self.body.append(loop.YieldOp.create(operands=[v for k in reducing for v in values[k]]))
        yielded.update(self._shares(reducing, op.results))

    def _split_host(
        self, copy: _Copy, sizes: Sequence[Expr], indices: Sequence[SSAValue], block: Block, place: dict[int, Expr], parts: list[int]
    ) -> None:
        """The loop of a row as two: over the columns of the parts, and a reduction over the rest inside."""
        first = self.fusion.parts[parts[0]]
        cut = len(_inner(first, first.kept))
        parts = [k for k in parts if len(_inner(self.fusion.parts[k], self.fusion.parts[k].kept)) == cut]
        self._hosted = set(parts)
        outer = loop.ForOp.build_for(sizes[:cut])
        inner = _loop_of(sizes[cut:], [self.fusion.parts[k] for k in parts])
        with self.body.inner(outer, outer.body, sizes[:cut]) as columns:
            with self.body.inner(inner, inner.regions[0], sizes[cut:]) as rest:
                copy.enter(indices, (*columns, *rest))
                copy.block(block)
                self.in_host = True
                at = {k: self._places(k, place, self._aligned(k, "split", (*columns, *rest))) for k in parts}
                values = [v for k in parts for v in self._value(self.fusion.parts[k], at[k])]
                self.in_host = False
                self.body.append(loop.YieldOp.create(operands=values))
            for k, found in self._shares(parts, inner.results).items():
                self._add(k, at[k], found)

    def _shares(self, parts: Sequence[int], results: Sequence[SSAValue]) -> dict[int, list[SSAValue]]:
        """What each of `parts` gets of the results of a loop that reduces for all of them."""
        found: dict[int, list[SSAValue]] = {}
        at = 0
        for k in parts:
            count = len(self.fusion.parts[k].reduce.results)
            found[k] = list(results[at : at + count])
            at += count
        return found

    def _fit(self, k: int, sizes: Sequence[Expr]) -> str:
        """How part `k` runs in a loop over `sizes` of a row: its kept ("kept") or reduced ("reduced") loops are that loop, or both one
        after the other ("split"); "" if none of these."""
        part, across = self.fusion.parts[k], self.fusion.across
        if across:
            inside = [d for d in part.kept if d in part.place and part.place[d].index in across]
            return "kept" if len(inside) == len(across) else "reduced" if not inside else ""
        kept, reduced = _inner(part, part.kept), _inner(part, part.reduced)
        if [part.size(d) for d in (*kept, *reduced)] != list(sizes):
            return ""
        return "split" if kept and reduced else "kept" if kept else "reduced"

    def _aligned(self, k: int, fit: str, dims: Sequence[Expr]) -> dict[Dim, Expr]:
        """Where the loops of part `k` are in the loop that it stands in."""
        part = self.fusion.parts[k]
        if self.fusion.across:
            return {}
        kept, reduced = _inner(part, part.kept), _inner(part, part.reduced)
        return dict(zip({"kept": kept, "reduced": reduced, "split": [*kept, *reduced]}[fit], dims, strict=True))

    # ---- parts

    def _places(self, k: int, place: dict[int, Expr], given: dict[Dim, Expr]) -> dict[Dim, Expr]:
        """Where the loops of part `k` are: at loops of the rows' nest or of a row; those that it has for itself are missing."""
        part = self.fusion.parts[k]
        at: dict[Dim, Expr] = {d: ZERO for d in (*part.kept, *part.reduced) if part.size(d) is ONE}
        at.update({d: place[a.index] for d, a in part.place.items() if a.index in place})
        return {**at, **given}

    def _part(self, k: int, place: dict[int, Expr], given: dict[Dim, Expr]) -> list[SSAValue]:
        """What part `k` does in a row: stores for columns that are a loop of the row, else the values that it yields."""
        part = self.fusion.parts[k]
        at = self._places(k, place, given)
        kept = [d for d in part.kept if d not in at]
        if not kept:
            values = self._value(part, at)
            if self.in_host and k in self.columns and _stands_in(part, self.fusion):
                self._add(k, at, values)
                return []
            return values
        sizes = [part.size(d) for d in kept]
        op = loop.ForOp.build_for(sizes)
        with self.body.inner(op, op.body, sizes) as dims:
            at.update(zip(kept, dims, strict=True))
            self._add(k, at, self._value(part, at))
        return []

    def _value(self, part: RowPart, at: dict[Dim, Expr]) -> list[SSAValue]:
        """What the reduction yields for one element, its remaining loops reduced."""
        nest, reduce = part.facts.op, part.reduce
        copy = _Copy(self, part.facts, {nest.indices[n]: at[d] for n, d in enumerate(part.kept)})
        for op in _needed(nest.block, reduce):
            copy.op(op)
        own = dict(zip(part.reduced, reduce.indices, strict=True))
        copy.place.update({own[d]: at[d] for d in part.reduced if d in at})
        rest = [d for d in part.reduced if d not in at]
        if not rest:
            return copy.yielded(reduce.block)
        sizes = [part.size(d) for d in rest]
        new = loop.ReduceOp.build_reduce(sizes, reduce.kind_names, reduce.result_types)
        self.body.location = reduce.location
        with self.body.inner(new, new.body, sizes) as dims:
            copy.enter([own[d] for d in rest], dims)
            self.body.append(loop.YieldOp.create(operands=copy.yielded(reduce.block)))
        return list(new.results)

    def again(self, k: int, index: tuple[Expr, ...]) -> SSAValue | None:
        """The element of result `k` that this row has stored in an earlier loop, computed again from what is on chip. None where others
        need the result in memory, or that would be much."""
        nest, row = self.rows.op, self.row
        result = nest.results[k]
        store = final_store(result)
        if not self.on_chip or result not in self.dropped or result not in self.stored or store is None or store.parent is None:
            return None
        source = needed([store.value], store.parent)
        if len(self.rows.stored(k)) > 1 or len(source) > MAX_REPEATED_OPS or not all(_is_repeatable(op, nest) for op in source):
            return None
        place = {store.index_operands[e.index]: at for e, at in zip(store.index_map.results, index, strict=True) if isinstance(e, Dim)}
        if any(place.get(v, here) != here for v, here in row.place.items() if v in nest.indices):
            return None  # an element of another row
        copy = _Copy(self, self.rows, {**row.place, **place})
        copy.values.update(row.values)
        for op in source:
            copy.op(op)
        return copy.value(store.value)

    def _accumulate(self, k: int, place: dict[int, Expr], values: list[SSAValue]) -> None:
        part = self.fusion.parts[k]
        at: dict[Dim, Expr] = {d: place[part.place[d].index] if d in part.place else ZERO for d in part.kept}
        self._add(k, at, values)

    def _add(self, k: int, at: dict[Dim, Expr], values: Sequence[SSAValue]) -> None:
        """Combine a row's values with the columns."""
        columns = self.columns[k]
        self.body.location = columns.part.reduce.location  # what is stored is the sum, not what it is of
        index = [at[d] for d in columns.part.kept]
        for value, target, kind in zip(values, columns.targets, columns.part.reduce.kind_names, strict=True):
            self.body.store(value, self.args[target], index, COLUMN_MODES[kind])

    # ---- before and after the rows

    def _start(self, columns: _Columns) -> None:
        """Every column begins with what a reduction of nothing gives."""
        part = columns.part
        self.body.location = part.reduce.location
        sizes = [part.size(d) for d in part.kept]
        op = loop.ForOp.build_for(sizes)
        with self.body.inner(op, op.body, sizes) as dims:
            for target, result, kind in zip(columns.targets, part.reduce.results, part.reduce.kind_names, strict=True):
                self.body.store(self.body.constant(identity(kind, result.type), result.type), self.args[target], dims)

    def _finish(self, columns: _Columns) -> None:
        """What is done with the columns after all rows."""
        if not columns.finish:
            return
        part = columns.part
        sizes = [part.size(d) for d in part.kept]
        op = loop.ForOp.build_for(sizes)
        with self.body.inner(op, op.body, sizes) as dims:
            values = [self.body.load(self.args[t], dims, mutable=True) for t in columns.targets]
            self._after(part, values, list(dims), columns.direct)

    def _after(self, part: RowPart, values: list[SSAValue], index: list[Expr], skip: set[Operation]) -> None:
        """The ops of a part that follow its reduction, with the loops that it keeps at `index`."""
        nest = part.facts.op
        copy = _Copy(self, part.facts, dict(zip(nest.indices, index, strict=True)))
        copy.becomes(part.reduce.results, values)
        for op in _needed(nest.block, None, skip | {part.reduce}):
            copy.op(op)


class _Columns:
    """The accumulators of a part: `targets` are its own outs (arguments of its body) where results are stored as they are (`direct`), else
    new outs. `finish`: something is left to do after the rows."""

    def __init__(self, part: RowPart):
        self.part = part
        self.targets: list[SSAValue] = []
        self.empties: list[loop.EmptyOp] = []
        self.direct: set[Operation] = set()
        facts, nest = part.facts, part.facts.op
        for result in part.reduce.results:
            store = next((u.operation for u in result.uses if isinstance(u.operation, loop.StoreOp) and u.index == 0), None)
            if store is not None and _is_plain(facts, store, result.type) and store.target not in self.targets:
                self.targets.append(store.target)
                self.direct.add(store)
                continue
            device = tensor_type(nest.results[0]).device.data
            kind = TensorType.get([part.size(d) for d in part.kept], result.type, device)
            self.empties.append(loop.EmptyOp.create(result_types=[kind]))
            self.targets.append(self.empties[-1].result)
        self.finish = any(
            isinstance(op, (loop.StoreOp, loop.LoopLike)) and op not in self.direct and op is not part.reduce for op in nest.block.ops
        )


class _Copy(NestCopy):
    """Clones one of the merged nests."""

    def __init__(self, writer: RowWriter, facts: NestInfo, place: dict[SSAValue, Expr]):
        super().__init__(writer.body, dict(place))
        self.writer = writer
        self.facts = facts

    def read(self, op: loop.LoadOp, index: tuple[Expr, ...], mask: SSAValue | None, other: SSAValue | None) -> SSAValue:
        writer, body, tensor = self.writer, self.body, op.source
        nest = writer.rows.op
        if tensor in self.facts.op.out_args:
            again = writer.again(list(nest.out_args).index(tensor), index) if self.facts is writer.rows and mask is None else None
            return again or body.load(self._out(tensor), index, mask, other, mutable=True)
        if tensor not in nest.results:
            return body.load(tensor, index, mask, other)
        k = list(nest.results).index(tensor)  # pyright: ignore[reportArgumentType]
        known = writer.stored.get(tensor)
        at_hand = known is not None and known[0] == index and known[2] in body.blocks
        value = known[1] if known is not None and at_hand else writer.again(k, index)
        if value is not None:
            return value if mask is None or other is None else body.select(mask, value, other)
        if writer.in_host and not writer.fusion.across:
            writer.apart.update(k for k, p in enumerate(writer.fusion.parts) if p.facts is self.facts)
            raise _Again
        return body.load(self._out(nest.out_args[k], tensor), index, mask, other, mutable=True)

    def _out(self, argument: SSAValue, result: SSAValue | None = None) -> SSAValue:
        found = self.writer.args.get(argument)
        if found is None:
            if result is None:
                place = list(self.facts.op.out_args).index(argument)  # pyright: ignore[reportArgumentType]
                result = self.facts.op.results[place]
            self.writer.dropped.discard(result)
            raise _Again
        return found

    def write(self, op: loop.StoreOp, value: SSAValue, index: tuple[Expr, ...], mask: SSAValue | None) -> None:
        nest = self.facts.op
        out = self.writer.args.get(op.target)
        if self.facts is self.writer.rows:
            if out is not None:  # the parts have what others load
                value = self.body.as_stored(value, out)
            result = nest.results[list(nest.out_args).index(op.target)]  # pyright: ignore[reportArgumentType]
            if mask is None:
                self.writer.stored[result] = index, value, self.body.block
            else:
                self.writer.stored.pop(result, None)
        if out is not None:
            self.body.store(value, out, index, op.store_mode, mask)


def _loop_of(sizes: Sequence[Expr], parts: Sequence[RowPart]) -> loop.ForOp | loop.ReduceOp:
    """A loop that yields what `parts` reduce; a plain one without any."""
    if not parts:
        return loop.ForOp.build_for(sizes)
    kinds = [k for p in parts for k in p.reduce.kind_names]
    return loop.ReduceOp.build_reduce(sizes, kinds, [t for p in parts for t in p.reduce.result_types])


def _inner(part: RowPart, dims: Sequence[Dim]) -> list[Dim]:
    """Those of a part's loops that have no counterpart among the rows' loops."""
    return [d for d in dims if d not in part.place and part.size(d) is not ONE]


def _stands_in(part: RowPart, fusion: RowFusion) -> bool:
    """Whether a loop that the part keeps is one inside of a row (and not only a row)."""
    return any(part.size(d) is not ONE and (d not in part.place or part.place[d].index in fusion.across) for d in part.kept)


def _is_plain(facts: NestInfo, store: loop.StoreOp, dtype: Attribute) -> bool:
    """Whether a reduction's result is stored as it is, once for every element of a new out."""
    nest = facts.op
    if store.parent is not nest.block or store.mode is not None or store.masked is not None:
        return False
    k = list(nest.out_args).index(store.target)  # pyright: ignore[reportArgumentType]
    stored = facts.stored(k)
    whole = len(stored) == 1 and stored[0].index == tuple(dim(n) for n in range(len(facts.sizes)))
    whole = whole and loop.shaped_dims(store.target.type) == nest.loop_sizes and isinstance(nest.outs[k].owner, loop.EmptyOp)
    read = any(r.tensor is store.target for r in facts.reads)
    return whole and not read and loop.element_type(store.target.type) == dtype


def _is_repeatable(op: Operation, nest: loop.NestOp) -> bool:
    """Whether an operation of a nest may be done twice: it has no effects and no loops, and does not read what the nest stores."""
    return not (op.regions or isinstance(op, loop.StoreOp | loop.BoundOp) or (isinstance(op, loop.LoadOp) and op.source in nest.out_args))


def _needed(block: Block, reduce: loop.ReduceOp | None, skip: set[Operation] = frozenset()) -> list[Operation]:  # pyright: ignore[reportArgumentType]
    """The ops of a block that `reduce` needs; without one those that have effects, with what they need. Not those of `skip`."""
    wanted: set[SSAValue] = set()
    found: list[Operation] = []
    if reduce is not None:
        wanted.update(v for inner in loop.walk_bodies(reduce) for v in inner.operands)
    for op in reversed(list(block.ops)):
        effect = reduce is None and isinstance(op, (loop.StoreOp, loop.LoopLike))
        if op in skip or not (effect or any(r in wanted for r in op.results)):
            continue
        if op is reduce:
            continue
        found.append(op)
        wanted.update(op.operands)
        wanted.update(v for inner in (loop.walk_bodies(op) if op.regions else ()) for v in inner.operands)
    return found[::-1]
