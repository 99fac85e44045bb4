"""gpu-carry-reductions: the kernel of a product begins reductions of its rows, or columns: each program leaves the states of its block.

    P: p[i, j] = sum_k x[i, k] * w[j, k]         loop.nest (%i, %b) {
    R: m[i] = max_j f(p[i, j])             ->      %m = loop.reduce (%l = 128) max { f(sum_k x[i, k] * w[b * 128 + l, k]) }
                                                   store %m, parts[%i, %b] } ; m[i] = max_b parts[i, b]

A program has the block of the product on chip: the rows that it has, and all columns of a part. Where nothing else reads the product, it is
not stored. The states are those of the reduction (reduction_kinds.py), so that any kind may be carried: extremes and their indices, sums,
the mean and the variance, the maximum of a softmax with its sum. What the program computes between the product and the reduction goes
along. By price: what two kernels cost before, and after. More: docs/explanation/gpu-tiles.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, Dim, Expr, as_expr, ceildiv, dim
from ....dialects.expr.ranges import RangeEnv, simplify
from ....dialects.machine import has_fixed_order
from ....dialects.nd.types import LOW_PRECISION
from ....dialects.support.replace import erase_op
from ...analysis.nest_access import NestAccess
from ...analysis.nest_info import is_in_place
from ...analysis.reduction_kinds import Cursor, identity
from ...analysis.symbols import symbol_facts, symbol_hints
from ...cost.machine import Gpu, machine_of
from ...loop.transform.loop_rewrite import Place, Values, clone_into, drop_unused, index_op, needed, used_by
from ...loop.transform.nest_transform import Refused
from ...loop.transform.split_loop import SplitLoop, only_where
from ...manager.pass_manager import Pass
from ..gpu_online_softmax import merge_pairs
from ..step_price import gpu_step_cost
from ..tiles.product_nests import block_reduction, product_sides
from ..tiles.product_tiles import BLOCK_SIDES, has_few_rows, product_tile
from ..tiles.tile import MIN_DOT_SIDE, Sizes, power_of_two

WITHOUT_NEUTRAL = frozenset(("welford", "softmax_dot"))
"""Kinds of which no value leaves a state as it is: all blocks are whole."""

PLACES = frozenset(("argmax", "argmin"))
"""Kinds whose comparisons of places take longer, while the units for products wait, than a kernel that reads the product
(docs/lab/gpu-products.md)."""


@dataclass(frozen=True)
class GpuCarryReductions(Pass):
    """Has products begin the reductions of their rows or columns."""

    name = "gpu-carry-reductions"

    always: bool = False
    """Whatever it costs."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gpu = machine_of(op, Gpu)
        if not gpu.multiplies_halves or has_fixed_order(op):
            return
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            position = {o: k for k, o in enumerate(func.body.block.ops)}
            for nest in [o for o in position if isinstance(o, loop.NestOp) and _multiplies(o)]:
                self._carry(nest, position, op, gpu)

    def _carry(self, nest: loop.NestOp, position: dict[Operation, int], module: ModuleOp, gpu: Gpu) -> None:
        """Have a product begin what it can."""
        work: _Carrying | None = None
        try:
            work = _Carrying.of(nest, position, module, gpu)
            if work is None:
                return
            work.write()
            if not self.always and any(kind in PLACES for one in work.found for kind in one.op.kind_names):
                raise Refused("they find places of extremes, which takes longer there")
            before, after = work.prices()
            prices = f"{before * 1e6:.4g} us apart, {after * 1e6:.4g} us so"
            if after >= before and not self.always:
                raise Refused(f"by price, {prices}")
        except Refused as refused:
            if work is not None:
                work.undo()
            self.remark(nest, f"reductions of its elements stay apart: {refused}", kind="missed")
            return
        position[work.made] = position[work.first]
        position.update((copy, position[reader]) for reader, copy in work.copies.items())
        work.finish()
        self.remark(work.made, f"begins {len(work.found)} reductions of its elements: {prices}", kind="applied")
        self.statistic("num-carried", len(work.found))


def _multiplies(nest: loop.NestOp) -> bool:
    """Whether all that a nest on tensors does inside of its loops is to add up products, and to store what it computes of the sums."""
    inside = [op for op in nest.block.ops if op.regions]
    stores = [op for op in nest.block.ops if isinstance(op, loop.StoreOp)]
    products = bool(inside) and all(isinstance(op, loop.ReduceOp) and any(map(loop.is_contracted, op.block.ops)) for op in inside)
    return products and len(stores) == len(nest.results) > 0 and all(is_in_place(nest, op) and op.mode is None for op in stores)


@dataclass(frozen=True)
class _Reduction:
    """A reduction, of the nest `reader`, of what is loaded of products. `reduced`: the loop of the products that it goes through;
    `rows`: for each other loop of them the number of the reader's loop."""

    reader: loop.NestOp
    op: loop.ReduceOp
    reduced: int
    rows: Mapping[int, int]
    slice: Sequence[Operation]

    @staticmethod
    def of(nest: loop.NestOp, op: loop.ReduceOp, position: Mapping[Operation, int], first: Operation) -> _Reduction:
        """Raises Refused where the nest that multiplies, in front of the operation `first`, cannot begin the reduction."""
        reader = op.parent_op()
        computes = all(not o.regions and not isinstance(o, loop.StoreOp) for o in op.block.ops)
        if not isinstance(reader, loop.NestOp) or len(op.loop_sizes) != 1 or not computes:
            raise Refused("one goes through several loops, or stores")
        if any(isinstance(r.type, IndexType) for r in op.results):
            raise Refused("a result of type index cannot be kept in memory")
        before = needed(used_by([op]), reader.block)
        loads = [o for o in (*before, *op.block.ops) if isinstance(o, loop.LoadOp)]
        own = [o for o in loads if o.source in nest.results]
        if any(o.regions for o in before):
            raise Refused("one needs another one")
        if any(o.parent is not op.block for o in own) or any(_is_late(o.source, position, first) for o in loads if o not in own):
            raise Refused("one needs more than elements of the product, and what is there before it")
        places = {_place(o) for o in own}
        place = places.pop()
        if places or place is None or len(place) != len(nest.loop_sizes):
            raise Refused("one reads several elements of the product at once")
        rows: dict[int, int] = {}
        reduced: list[int] = []
        outer, inner = list(reader.indices), op.indices[0]
        for k, (value, size) in enumerate(zip(place, nest.loop_sizes, strict=True)):
            if value is inner and op.loop_sizes[0] is size:
                reduced.append(k)
            elif value is not None and value in outer and reader.loop_sizes[outer.index(value)] is size:
                rows[k] = outer.index(value)
            elif value is not None or size is not ONE:
                raise Refused("one goes through a part of the product")
        counted = [k for k, size in enumerate(reader.loop_sizes) if size is not ONE]
        if len(reduced) != 1 or not set(counted) <= set(rows.values()) or len(set(rows.values())) != len(rows):
            raise Refused("one goes through elements several times")
        return _Reduction(reader, op, reduced[0], rows, before)


def _place(load: loop.LoadOp) -> tuple[SSAValue | None, ...] | None:
    """The index value of a load along each dimension, None where that is 0; None for other places."""
    if load.mask is not None:
        return None
    operands, results = load.index_operands, load.index_map.results
    if any(e is not ZERO and not isinstance(e, Dim) for e in results):
        return None
    return tuple(operands[e.index] if isinstance(e, Dim) else None for e in results)


def _is_late(tensor: SSAValue, position: Mapping[Operation, int], first: Operation) -> bool:
    """Whether a tensor is not there yet in front of an operation."""
    owner = tensor.owner
    return not isinstance(owner, Block) and (owner not in position or position[owner] >= position[first])


def _first_reader(nest: loop.NestOp, position: Mapping[Operation, int]) -> Operation:
    """The first operation of the function that needs what a nest makes: the nest may stand right in front of it."""
    readers: set[Operation] = set()
    for use in (use for result in nest.results for use in result.uses):
        op: Operation | None = use.operation
        while op is not None and op.parent is not nest.parent:
            op = op.parent_op()
        if op is not None:
            readers.add(op)
    return min(readers, key=position.__getitem__)


def _move(op: Operation, place: Operation) -> None:
    """Put an operation right in front of another one of its block."""
    block = op.parent
    assert block is not None
    if op.next_op is not place:
        op.detach()
        block.insert_op_before(op, place)


@dataclass
class _Carrying:
    """A nest of products that is to begin reductions, which all go through one loop of it. `copies`: nests that read the products -> those
    that are to take their place, in which the reductions stand."""

    nest: loop.NestOp
    copies: dict[loop.NestOp, loop.NestOp]
    found: list[_Reduction]
    symbols: RangeEnv
    sizes: Sizes
    hints: Mapping[str, int]
    gpu: Gpu
    first: Operation
    """What needs the products first: in front of it more is there than where the nest stands."""
    behind: Operation
    """What follows the nest as it was."""
    new: loop.NestOp | None = None
    """The nest that begins them; `memory` holds the states of each, `kept` are the results of the products that others read."""
    memory: list[list[SSAValue]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    count: Expr = ONE

    @staticmethod
    def of(nest: loop.NestOp, position: Mapping[Operation, int], module: ModuleOp, gpu: Gpu) -> _Carrying | None:
        """None where nothing reduces what the nest makes. Raises Refused where that cannot be carried."""
        readers = dict.fromkeys(op.parent_op() for op in _reductions(nest))
        if not readers or (behind := nest.next_op) is None:
            return None
        first = _first_reader(nest, position)
        copies = {reader: _copy(reader) for reader in readers if isinstance(reader, loop.NestOp)}
        for copy in copies.values():
            merge_pairs(copy)
        inside = set(copies.values())
        possible = [op for op in _reductions(nest) if op.parent_op() in inside]
        found, refused = list[_Reduction](), Refused("one is not the nest's own")
        for op in possible:
            try:
                found.append(_Reduction.of(nest, op, position, first))
            except Refused as reason:
                refused = reason
        found = [one for one in found if one.reduced == found[0].reduced]
        for reader in [r for r, copy in copies.items() if all(one.reader is not copy for one in found)]:
            erase_op(copies.pop(reader))
        if possible and not found:
            raise refused
        symbols, hints = symbol_facts(module)
        return _Carrying(nest, copies, found, symbols, Sizes(hints), symbol_hints(module), gpu, first, behind) if found else None

    @property
    def made(self) -> loop.NestOp:
        assert self.new is not None
        return self.new

    @property
    def reduced(self) -> int:
        return self.found[0].reduced

    @property
    def _parts_first(self) -> bool:
        return self.reduced != len(self.nest.loop_sizes) - 1

    def lengths(self) -> Iterator[int]:
        """How long a block may be: all of the loop, if a program can have that, else the block that the product has anyway, or one of which
        the loop is a multiple, if there is one."""
        info, sizes = NestAccess(self.nest, self.symbols), self.sizes
        sides = sorted(product_sides(info), key=sizes.trips)
        tile = product_tile(info, sizes, self.gpu) if sides else None
        if tile is None or has_few_rows(info, sides[0], sides[1], sizes):
            raise Refused("it has few rows, or is no product of matrices")
        size = self.nest.loop_sizes[self.reduced]
        if size.value is not None and size.value <= BLOCK_SIDES[0]:
            yield max(MIN_DOT_SIDE, power_of_two(size.value))
        own = [block for loops, block in tile.axes if loops and self.reduced in loops[-1].positions]
        possible = list(dict.fromkeys((*own, *BLOCK_SIDES)))
        yield from sorted(possible, key=lambda n: simplify(size % n, self.symbols) is not ZERO)

    # ---- the rewrite

    def write(self) -> None:
        """Make the nest that begins the reductions, and readers that end them. Raises Refused."""
        reason = Refused("no block of it has registers for what is computed of the product")
        _move(self.nest, self.first)
        for length in self.lengths():
            try:
                self._write(length)
            except Refused as refused:
                reason = refused
                continue
            info = NestAccess(self.made, self.symbols)
            if block_reduction(info) is not None and product_tile(info, self.sizes, self.gpu) is not None:
                break
            loop.drop_nest(self.made)
            self.new = None
        else:
            raise reason
        self._end()

    def _write(self, length: int) -> None:
        nest, size = self.nest, self.nest.loop_sizes[self.reduced]
        whole = simplify(size % length, self.symbols) is ZERO
        if not whole and any(kind in WITHOUT_NEUTRAL for one in self.found for kind in one.op.kind_names):
            raise Refused(f"blocks of {length} are not whole")
        count = simplify(ceildiv(size, length), self.symbols)
        self.count = count
        split = SplitLoop(nest, self.symbols, nest.location, parts_first=self._parts_first)
        self.memory = [[split.memory(count, one.reader.loop_sizes, r.type) for r in one.op.results] for one in self.found]
        inside = {op for one in self.found for op in one.op.block.ops}
        inside.update(op for reader in self.copies for op in loop.walk_bodies(reader))
        self.kept = [k for k, r in enumerate(nest.results) if any(use.operation not in inside for use in r.uses)]
        parts = [memory for each in self.memory for memory in each]
        sizes = [count if k == self.reduced else n for k, n in enumerate(nest.loop_sizes)]
        self.new, values = split.open(sizes, [*parts, *(nest.outs[k] for k in self.kept)], f"{split.name}_reduced")
        at = Cursor(self.made.block)
        outside = [self._outside(one, at) for one in self.found]
        kinds = [kind for one in self.found for kind in one.op.kind_names]
        types = [r.type for one in self.found for r in one.op.results]
        reduce = loop.ReduceOp.build_reduce([as_expr(length)], kinds, types, self.found[0].op.location)
        self._fill(reduce, length, size if not whole else None, values, outside)
        at.place(reduce)
        results = iter(reduce.results)
        outs = iter(self.made.out_args)
        for one in self.found:
            place = split.place(len(one.reader.loop_sizes))
            indices = [*self._indices(one), self.made.indices[self.reduced]]
            for _ in one.op.results:
                at.place(loop.StoreOp.new(next(results), next(outs), place, indices))

    def _indices(self, one: _Reduction) -> list[SSAValue]:
        """What stands for the indices of a reader in the nest that is made; loops of one iteration have any."""
        back = {reader: own for own, reader in one.rows.items()}
        return [self.made.indices[back.get(k, 0)] for k in range(len(one.reader.loop_sizes))]

    def _outside(self, one: _Reduction, at: Cursor) -> Values:
        """What a reduction needs of its reader, in the nest that is made."""
        values: Values = dict(zip(one.reader.indices, self._indices(one), strict=True))
        for op in one.slice:
            at.place(clone_into(op, values, {}, self.symbols))
        return values

    def _fill(self, reduce: loop.ReduceOp, length: int, size: Expr | None, values: Values, outside: Sequence[Values]) -> None:
        """The body of the reduction of a block: the products, what is computed of them, what is stored. `size`: how many iterations there
        are, where the last block has fewer than the others."""
        at, nest = Cursor(reduce.block), self.nest
        values = dict(values)
        old, new = nest.indices[self.reduced], [self.made.indices[self.reduced], reduce.indices[0]]
        reduce.indices[0].name_hint = old.name_hint
        place: Place = (dim(0) * length + dim(1), new)
        number = values[old] = at.place(index_op(*place)).results[0]
        there = None if size is None else at.compare("slt", number, at.place(index_op(size, [])).results[0])
        stored = dict[SSAValue, SSAValue]()
        targets = dict(zip([nest.out_args[k] for k in self.kept], self.made.out_args[-len(self.kept) :], strict=True)) if self.kept else {}
        copied = list[Operation]()
        for op in nest.block.ops:
            if isinstance(op, loop.StoreOp):
                stored[nest.results[list(nest.out_args).index(op.target)]] = self._as_stored(at, op, values)
                if op.target not in targets:
                    continue
                values[op.target] = targets[op.target]
            copied.append(at.place(clone_into(op, values, {number: place}, self.symbols)))
        yields = list[SSAValue]()
        for one, before in zip(self.found, outside, strict=True):
            mine = {**before, one.op.indices[0]: number}
            for op in one.op.block.ops:
                if isinstance(op, loop.LoadOp) and op.source in stored:
                    mine[op.result] = stored[op.source]
                elif not isinstance(op, loop.YieldOp):
                    copied.append(at.place(clone_into(op, mine, {number: place}, self.symbols)))
            for kind, yielded, results in one.op.each():
                first, *others = [mine.get(v, v) for v in yielded]
                if there is not None:
                    neutral = at.constant(identity("max" if kind == "softmax" else kind, results[0].type), results[0].type)
                    first = at.select(there, first, neutral)
                yields += [first, *others]
        at.place(loop.YieldOp.create(operands=yields))
        if there is not None:
            only_where(there, [inner for op in copied for inner in (op, *loop.walk_bodies(op))], {*new, number})

    def _as_stored(self, at: Cursor, op: loop.StoreOp, values: Values) -> SSAValue:
        """A value as it is loaded where it was stored."""
        value, kind = values[op.value], loop.element_type(op.target.type)
        if kind not in LOW_PRECISION or isinstance(value.owner, arith.ExtFOp):
            return value
        return at.emit(arith.ExtFOp, (at.emit(arith.TruncFOp, (value,), kind),), value.type)

    def _end(self) -> None:
        """Have the readers put the parts together."""
        made = iter(self.made.results)
        for one, memory in zip(self.found, self.memory, strict=True):
            parts = [next(made) for _ in memory]
            for part, like in zip(parts, memory, strict=True):
                part.name_hint = like.name_hint
            split = SplitLoop(one.reader, self.symbols, one.op.location, parts_first=self._parts_first)
            merged = split.merged(Cursor(one.reader.block, one.op), one.op.kind_names, parts, self.count, one.reader.indices)
            loop.take_uses(one.op.results, merged)
            erase_op(one.op)
        for reader in self.copies.values():
            drop_unused(reader.block.ops)

    def prices(self) -> tuple[float, float]:
        """Seconds of all the kernels as they were, and as they would be."""
        before, after = (self.nest, *self.copies), (self.made, *self.copies.values())
        first, second = (sum(self._seconds(nest) for nest in nests) for nests in (before, after))
        return first, second

    def _seconds(self, nest: loop.NestOp) -> float:
        cost = gpu_step_cost(nest, self.hints, self.gpu)
        return 0.0 if cost is None else cost.seconds

    def undo(self) -> None:
        """Leave all as it was."""
        _move(self.nest, self.behind)
        for copy in self.copies.values():
            erase_op(copy)
        if self.new is not None:
            loop.drop_nest(self.new)

    def finish(self) -> None:
        """Take away what was before."""
        for reader, copy in self.copies.items():
            loop.take_uses(reader.results, copy.results)
            erase_op(reader)
        loop.take_uses([self.nest.results[k] for k in self.kept], self.made.results[len(self.made.results) - len(self.kept) :])
        loop.drop_nest(self.nest)


def _reductions(nest: loop.NestOp) -> list[loop.ReduceOp]:
    """The reductions, of other nests, of what a nest makes."""
    around = dict.fromkeys(use.operation.parent_op() for r in nest.results for use in r.uses if isinstance(use.operation, loop.LoadOp))
    return [op for op in around if isinstance(op, loop.ReduceOp)]


def _copy(nest: loop.NestOp) -> loop.NestOp:
    """A copy of a nest behind it."""
    copy = nest.clone()
    assert nest.parent is not None
    nest.parent.insert_op_after(copy, nest)
    return copy
