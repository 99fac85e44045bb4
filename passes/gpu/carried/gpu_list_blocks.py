"""gpu-list-blocks: attention whose mask is a table of blocks goes through lists of the blocks that count (ragged loops).

    %seen = %full[%i // 128, %j // 128] | %some[%i // 128, %j // 128] & %mask        for each row of blocks: the numbers of those that are
    loop.reduce (%j) softmax_dot { select(%seen, %score, -inf), %v[%j] }      ->     full, and of those that are not and where %mask decides
                                                                                     %seen = %in_first | %in_second & %mask

A table may be anything: the lists of a BlockMask say it, or a program computes it. So rows of blocks have their lists, and so do columns,
for the gradients of keys and values. The lists are made by two small nests, sorted, with no number twice; the conditions `%in_first` search
them (`listed_terms.py`), and mem-to-tt goes through them instead: a block of no list is never loaded, and the first list has no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as tuples

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, UnitAttr, i1, i32, i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from ....dialects import loop, mem
from ....dialects.expr import ONE, ZERO, Add, Expr, IndexMap, as_expr, ceildiv, dim, dims_subs, exact_quotient, floordiv, free_dims
from ....dialects.expr.ranges import RangeEnv, simplify
from ....dialects.machine import has_fixed_order
from ...analysis.dependences import memory_of
from ...analysis.listed_terms import LISTED, block_of, decided
from ...analysis.needed_terms import guards_by_kind
from ...analysis.nest_access import NestAccess
from ...analysis.reduction_kinds import Cursor
from ...analysis.symbols import symbol_facts
from ...cost.machine import Gpu, machine_of
from ...loop.transform.loop_rewrite import compact, drop_unused
from ...loop.transform.nest_transform import Refused
from ...manager.pass_manager import Pass
from ..tiles.tile import MIN_DOT_SIDE
from ..tiles.weighed_products import WeighedProduct, weighed_product

MAX_TABLES = 3
"""Tables of one condition: each value of all of them is looked at."""


@dataclass(frozen=True)
class GpuListBlocks(Pass):
    """Lists the blocks of terms that count, where a table says which do."""

    name = "gpu-list-blocks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, _ = symbol_facts(op)
        if not machine_of(op, Gpu).multiplies_halves or has_fixed_order(op):
            return  # blocks that count as a whole come first
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp)]:
            if not any(isinstance(o, loop.LoadOp) and o.result.type == i1 for o in loop.walk_bodies(nest)):
                continue
            info = NestAccess(nest, symbols)
            found = weighed_product(info)
            if found is None:
                continue
            try:
                count = _Lists(nest, info, found, symbols).write()
            except Refused as refused:
                self.remark(nest, f"blocks that a table hides are computed: {refused}", kind="missed")
                continue
            if count:
                self.remark(nest, f"goes through the blocks that a table names, by {count} lists", kind="applied")
                self.statistic("num-listed")


@dataclass(frozen=True)
class _Table:
    """What is loaded of a table of blocks: dimension `axis` goes along the terms, by blocks of `block`."""

    load: loop.LoadOp
    axis: int
    block: int
    places: tuple[Expr, ...]
    """The index along each dimension, in the nest's dimensions."""
    others: tuple[Expr, ...]
    """The same in the load's operands, without that along `axis`."""
    group: Expr
    """In the load's operands: the number of the list, where terms are a part of those that the table knows."""

    @property
    def size(self) -> Expr:
        """How many blocks the table has along the terms."""
        return loop.shaped_dims(self.load.source.type)[self.axis]


class _Lists:
    """The lists of one nest."""

    def __init__(self, nest: loop.NestOp, info: NestAccess, found: WeighedProduct, symbols: RangeEnv):
        self.nest, self.info, self.found, self.symbols = nest, info, found, symbols
        self.node = info.root.children[0]
        assert isinstance(self.node.op, loop.ReduceOp)
        self.reduce = self.node.op
        self.hidden: dict[SSAValue, bool | None] = {}
        """What conditions are in blocks that do not count."""
        self.before = Cursor(nest.parent, nest) if nest.parent is not None else Cursor(nest.block)

    def write(self) -> int:
        """Write the lists, and have the conditions search them; how many there are. 0: no table says which blocks count."""
        tables = self._tables()
        roots = self._roots(tables)
        if not roots or not guards_by_kind(self.info, self.node):
            return 0
        used = [t for t in tables if any(t.load.result in _leaves(root) for root in roots)]
        if any(t.places != used[0].places or t.load.source.type != used[0].load.source.type for t in used):
            raise Refused("tables of other shapes, or read at other places")
        if len(used) > MAX_TABLES:
            raise Refused(f"{len(used)} tables, the most are {MAX_TABLES}")
        self._check(used[0])
        classes = self._classes(used, roots)
        lists = self._make_lists(used, classes)
        self._search(used, roots, classes, lists)
        return len(classes)

    # ---- what there is

    def _tables(self) -> list[_Table]:
        stored = {memory_of(out) for out in self.nest.outs}
        loads = [op for op in self.reduce.block.ops if isinstance(op, loop.LoadOp) and op.result.type == i1 and op.mask is None]
        found = [self._table(op) for op in loads if memory_of(op.source) not in stored]
        return [one for one in found if one is not None]

    def _table(self, op: loop.LoadOp) -> _Table | None:
        info, terms, operands = self.info, self.found.terms.dim, list(op.index_operands)
        given = [info.expr(v) for v in operands]
        places = tuple(simplify(dims_subs(e, given), info.ranges) for e in op.index_map.results)
        along = [k for k, e in enumerate(places) if terms in free_dims(e)]
        if len(along) != 1 or self.reduce.indices[0] not in operands or any(d in info.opaque for e in places for d in free_dims(e)):
            return None
        (axis,), written = along, list(op.index_map.results)
        index, here = written.pop(axis), dim(operands.index(self.reduce.indices[0]))
        numbers = [term for term, times in _terms(index) if times == 1 and here in free_dims(term)]
        block = block_of(numbers[0], here) if len(numbers) == 1 else None
        if block is None or any(here in free_dims(e) for e in (*written, index - numbers[0])):
            return None
        group = exact_quotient(index - numbers[0], self._length(block))
        return None if group is None else _Table(op, axis, block, places, tuple(written), group)

    def _length(self, block: int) -> Expr:
        """How many blocks the terms have."""
        return ceildiv(self.found.terms.size, as_expr(block))

    def _roots(self, tables: Sequence[_Table]) -> list[SSAValue]:
        """The conditions of choices that tables are part of."""
        loads = {t.load.result for t in tables}
        guards = [guard for guards in guards_by_kind(self.info, self.node) for guard in guards]
        return list(dict.fromkeys(g.condition for g in guards if not loads.isdisjoint(_leaves(g.condition))))

    def _check(self, table: _Table) -> None:
        """Refused where a program's rows would not share their lists, or its terms not their block."""
        rows = self.found.rows.dim
        if rows in free_dims(table.places[table.axis]):
            raise Refused("rows have their terms in different places of a table")
        lengths = [block_of(term, rows) or 1 for e in table.places for term, _ in _terms(e) if rows in free_dims(term)]
        if any(n % MIN_DOT_SIDE for n in (table.block, *lengths)):
            raise Refused(f"blocks are no multiples of {MIN_DOT_SIDE} rows and terms")
        if table.group is not ZERO and exact_quotient(table.size, self._length(table.block)) is None:
            raise Refused("parts of the terms are no equal numbers of blocks")
        if any(not isinstance(v, BlockArgument) for v in table.load.index_operands):
            raise Refused("a table is read at computed places")

    def _classes(self, tables: Sequence[_Table], roots: Sequence[SSAValue]) -> list[list[dict[SSAValue, bool]]]:
        """What tables may say of a block that counts: first all for which they decide the conditions alone, then each other one."""
        loads: list[SSAValue] = [t.load.result for t in tables]
        every = [dict(zip(loads, values, strict=True)) for values in tuples((False, True), repeat=len(loads))]
        self.hidden = {root: decided(root, known) for known in every if self._is_hidden(known) for root in roots}
        if None in self.hidden.values() or not self.hidden:
            raise Refused("terms count whose block no table names")
        shown = [known for known in every if not self._is_hidden(known)]
        found = [tuple(decided(root, known) for root in roots) for known in shown]
        sure = [known for known, values in zip(shown, found, strict=True) if None not in values]
        if len({values for values in found if None not in values}) > 1:
            raise Refused("tables decide several conditions, not in the same way")
        return [*([sure] if sure else []), *([known] for known, values in zip(shown, found, strict=True) if None in values)]

    def _is_hidden(self, known: Mapping[SSAValue, bool]) -> bool:
        """Whether no term of a block counts of which tables say this."""
        kinds = guards_by_kind(self.info, self.node)
        return all(any(decided(g.condition, known) is (not g.holds) for g in guards) for guards in kinds)

    # ---- lists

    def _make_lists(self, tables: Sequence[_Table], classes: Sequence[list[dict[SSAValue, bool]]]) -> list[tuple[SSAValue, SSAValue]]:
        """For each class the numbers of its blocks, and how many there are up to each block: both (dimensions of the table without that of
        the terms, group, place)."""
        table = tables[0]
        dims = list(loop.shaped_dims(table.load.source.type))
        size = dims.pop(table.axis)
        length = size if table.group is ZERO else self._length(table.block)
        groups = ONE if table.group is ZERO else exact_quotient(size, length)
        assert groups is not None
        sizes = [*dims, groups, length]
        counts, numbers = ([self._memory(sizes, f"{what}_blocks") for _ in classes] for what in ("counted", "listed"))

        def counted(at: Cursor, nest: loop.NestOp, inner: SSAValue) -> list[SSAValue]:
            outer = list(nest.indices)
            places: list[Expr] = [dim(k) for k in range(len(dims))]
            places.insert(table.axis, dim(len(dims)) * length + dim(len(outer)))
            loaded: dict[SSAValue, SSAValue] = {}
            for one in tables:
                read = loop.LoadOp.new(one.load.source, IndexMap(len(outer) + 1, tuple(places)), [*outer, inner])
                read.location = one.load.location
                loaded[one.load.result] = at.place(read).results[0]
            before = at.compare("sle", _number(at, inner), _number(at, outer[-1]))
            ones, zero = at.constant(1, i32), at.constant(0, i32)
            return [at.select(at.emit(arith.AndIOp, (_is_one_of(at, some, loaded), before), i1), ones, zero) for some in classes]

        def listed(at: Cursor, nest: loop.NestOp, inner: SSAValue) -> list[SSAValue]:
            outer = [*nest.indices[:-1], inner]
            place = at.emit(arith.TruncIOp, (_number(at, nest.indices[-1]),), i32)
            ones, zero = at.constant(1, i32), at.constant(0, i32)
            found = [_load(at, memory, [dim(k) for k in range(len(outer))], outer) for memory in counts]
            return [at.select(at.compare("sle", one, place), ones, zero) for one in found]

        self._nest("counted blocks", sizes, counts, counted)
        self._nest("listed blocks", sizes, numbers, listed)
        return list(zip(numbers, counts, strict=True))

    def _nest(self, label: str, sizes: Sequence[Expr], outs: Sequence[SSAValue], body: _Body) -> None:
        """A nest that stores sums over as many iterations as its last loop has."""
        nest = loop.NestOp.build_nest(sizes, outs, self.nest.location, label)
        made = loop.ReduceOp.build_reduce([sizes[-1]], ["sum"] * len(outs), [i32] * len(outs), self.nest.location)
        nest.block.add_op(made)
        at = Cursor(made.block)
        at.place(loop.YieldOp.create(operands=body(at, nest, made.indices[0])))
        nest.store(made.results)
        self.before.place(nest)

    def _memory(self, sizes: Sequence[Expr], name: str) -> SSAValue:
        like = self.nest.outs[0].type
        assert isinstance(like, mem.BufferType)
        made = mem.AllocOp.arena(sizes, i32, like.device.data, location=self.nest.location)
        self.before.place(made)
        made.results[0].name_hint = name
        return made.results[0]

    # ---- conditions

    def _search(
        self,
        tables: Sequence[_Table],
        roots: Sequence[SSAValue],
        classes: Sequence[list[dict[SSAValue, bool]]],
        lists: Sequence[tuple[SSAValue, SSAValue]],
    ) -> None:
        """Have the conditions ask the lists: they are searched in front of what the terms are computed by."""
        table, terms = tables[0], self.reduce.indices[0]
        operands = list(table.load.index_operands)
        row, inside = Cursor(self.nest.block, self.reduce), Cursor(self.reduce.block, self.reduce.block.first_op)
        hits: list[SSAValue] = []
        for numbers, counts in lists:
            length, where = loop.shaped_dims(numbers.type)[-1], [*table.others, table.group]
            most = row.emit(arith.ExtSIOp, (_load(row, counts, [*where, length - 1], operands),), i64)
            search = loop.ReduceOp.build_reduce([length], ["any"], [i1])
            search.location, search.attributes[LISTED] = table.load.location, UnitAttr()
            at, place = Cursor(search.block), search.indices[0]
            number = _load(at, numbers, [*where, dim(len(operands))], [*operands, place])
            block = _number(at, terms, floordiv(dim(0), table.block))
            same = at.compare("eq", at.emit(arith.ExtSIOp, (number,), i64), block)
            within = at.compare("slt", _number(at, place), most)
            at.place(loop.YieldOp.create(operands=[at.emit(arith.AndIOp, (same, within), i1)]))
            hits.append(inside.place(search).results[0])
        for root in roots:
            assert isinstance(root.owner, Operation)
            made = _asked(Cursor(self.reduce.block, root.owner), root, bool(self.hidden[root]), classes, hits)
            root.replace_all_uses_with(made)
        drop_unused(self.reduce.block.ops)


_Body = Callable[[Cursor, loop.NestOp, SSAValue], list[SSAValue]]
"""Writes what a nest sums up, by the index of the sum's loop."""


def _asked(
    at: Cursor, root: SSAValue, nowhere: bool, classes: Sequence[list[dict[SSAValue, bool]]], hits: Sequence[SSAValue]
) -> SSAValue:
    """A condition by which list has a block: where none has, it is `nowhere`."""
    seen: list[SSAValue] = []
    for some, hit in zip(classes, hits, strict=True):
        inside = _with_tables(at, root, some[0])
        if not isinstance(inside, bool):
            hit = at.every((hit, _inverted(at, inside) if nowhere else inside))
        if inside is not nowhere:
            seen.append(hit)
    found = at.some(seen)
    return _inverted(at, found) if nowhere else found


def _with_tables(at: Cursor, value: SSAValue, known: Mapping[SSAValue, bool]) -> SSAValue | bool:
    """A condition for what tables say of a block."""
    if (found := decided(value, known)) is not None:
        return found
    op = value.owner
    if not isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp) or known.keys().isdisjoint(_leaves(value)):
        return value
    left, right = (_with_tables(at, v, known) for v in op.operands)
    if isinstance(left, bool) or isinstance(right, bool):
        constant, other = (left, right) if isinstance(left, bool) else (right, left)
        assert not isinstance(other, bool)
        return _inverted(at, other) if constant and isinstance(op, arith.XOrIOp) else other  # it does not decide the condition alone
    return at.emit(type(op), (left, right), i1)


def _is_one_of(at: Cursor, some: Sequence[Mapping[SSAValue, bool]], loaded: Mapping[SSAValue, SSAValue]) -> SSAValue:
    """Whether what tables say of a block is one of these."""
    return at.some(
        at.every(loaded[table] if holds else _inverted(at, loaded[table]) for table, holds in known.items()) for known in some
    )


def _leaves(value: SSAValue) -> set[SSAValue]:
    """The conditions that one is put together from."""
    found: set[SSAValue] = set()
    worklist = [value]
    while worklist:
        op = (one := worklist.pop()).owner
        if isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp):
            worklist += op.operands
        else:
            found.add(one)
    return found


def _terms(e: Expr) -> Sequence[tuple[Expr, int]]:
    return e.terms if isinstance(e, Add) else ((e, 1),)


def _inverted(at: Cursor, condition: SSAValue) -> SSAValue:
    return at.emit(arith.XOrIOp, (condition, at.constant(1, i1)), i1)


def _number(at: Cursor, index: SSAValue, e: Expr | None = None) -> SSAValue:
    """An index, or an expression in it, as a number."""
    return at.place(loop.IndexOp.new(dim(0) if e is None else e, [index], i64)).results[0]


def _load(at: Cursor, source: SSAValue, places: Sequence[Expr], operands: Sequence[SSAValue]) -> SSAValue:
    """What lies at these places, which are expressions in some of the operands."""
    return at.place(loop.LoadOp.new(source, *compact(places, operands))).results[0]
