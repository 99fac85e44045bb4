"""gpu-carry-norms: a norm's scale is found by the product that the norm is a factor of, and scales its result.

    A: s[i] = sum_j x[i, j]^2; h[i, k] = round(x[i, k] * r(s[i]) * g[k])      loop.reduce (%k) sum, sum {
    B: p[i, j] = sum_k h[i, k] * w[j, k]                               ->       yield round(x[i, k] * g[k]) * w[j, k], x[i, k]^2
                                                                              }; p * r(s)

A product of few rows reads all of each row anyway, so that its sums cost nothing beside the other matrix, and a kernel before it goes. A
factor is rounded once, as before. What it is rounded to must have room for it without its scale: bf16 has, f16 only where the factor is a
number of memory as it is. More: docs/explanation/gpu-tiles.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr, bf16, f32
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, Expr, free_dims, product
from ....dialects.expr.ranges import RangeEnv
from ....dialects.support.replace import erase_op
from ...analysis.nest_access import NestAccess
from ...analysis.reduction_kinds import Cursor
from ...analysis.symbols import symbol_facts
from ...cost.contraction_price import stream_ns
from ...cost.footprint import of_nest
from ...cost.machine import Gpu, machine_of
from ...loop.transform.loop_rewrite import Place, clone_into, needed
from ...loop.transform.nest_transform import Refused
from ...manager.pass_manager import Pass
from ..gpu_split_reduction import SPLIT_PROGRAMS_PER_MULTIPROCESSOR
from ..tiles.product_nests import HALVES, product_sides
from ..tiles.product_tiles import MIN_PROGRAMS_PER_MULTIPROCESSOR, has_few_rows
from ..tiles.rules import choose
from ..tiles.tile import Sizes, Tile
from .scaled_rows import ScaledRows, is_all_of_row, scaled_rows

PLAIN = arith.FastMathFlagsAttr("none")


@dataclass(frozen=True)
class GpuCarryNorms(Pass):
    """Has products of few rows find the scales of their rows themselves."""

    name = "gpu-carry-norms"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gpu = machine_of(op, Gpu)
        if not gpu.multiplies_halves or op.attributes.get("nd.numerics") == StringAttr("eager"):
            return
        symbols, hints = symbol_facts(op)
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp) and n.results]:
            found = scaled_rows(nest)
            if found is None:
                continue
            try:
                _carry(found, symbols, Sizes(hints), gpu)
            except Refused as refused:
                self.remark(nest, f"its products do not find the scales of their rows themselves: {refused}", kind="missed")
                continue
            self.remark(nest, "the products that need it find the scales of their rows themselves", kind="applied")
            self.statistic("num-carried")


def _carry(found: ScaledRows, symbols: RangeEnv, sizes: Sizes, gpu: Gpu) -> None:
    """Make the products that read the rows find their scales, and take the nest away. Raises Refused."""
    rows = found.rows
    if loop.element_type(found.store.target.type) != bf16 and (len(found.factors) > 1 or not all(map(_is_loaded_half, found.factors))):
        raise Refused("without their scales the factors may be too large, or too small, for 16 bits")
    loads = [use.operation for use in rows.uses]
    if not loads or not all(isinstance(op, loop.LoadOp) for op in loads):
        raise Refused("others need the rows in memory")
    readers = list(dict.fromkeys(nest for op in loads if (nest := loop.nest_around(op)) is not None))
    made: list[tuple[loop.NestOp, loop.NestOp]] = []
    saved, more = stream_ns(_bytes(found, sizes), gpu), 0.0
    try:
        for reader in readers:
            new = reader.clone()
            assert reader.parent is not None
            reader.parent.insert_op_before(new, reader)
            made.append((reader, new))
            more += _Reader(new, found, symbols).write(sizes, gpu)
        if more > saved:
            raise Refused(f"by price: that would save a kernel of {saved / 1e3:.4g} us, and the products take {more / 1e3:.4g} us longer")
    except Refused:
        for _, new in made:
            erase_op(new)
        raise
    for old, new in made:
        loop.take_uses(old.results, new.results)
        erase_op(old)
    loop.drop_nest(found.nest)


def _is_loaded_half(value: SSAValue) -> bool:
    return isinstance(value.owner, loop.LoadOp) and loop.element_type(value.owner.source.type) in HALVES


def _bytes(found: ScaledRows, sizes: Sizes) -> float:
    """Bytes that the nest moves, about: each element read and written."""
    return 4.0 * sizes(product([*found.nest.loop_sizes, *found.row.loop_sizes]))


class _Reader:
    """Puts the sums of rows into a nest of products that reads them."""

    def __init__(self, nest: loop.NestOp, found: ScaledRows, symbols: RangeEnv):
        self.nest, self.found, self.symbols = nest, found, symbols
        self.loads = [op for op in loop.walk_bodies(nest) if isinstance(op, loop.LoadOp) and op.source is found.rows]
        around = {op.parent_op() for op in self.loads}
        self.reduce = next(iter(around)) if len(around) == 1 else None
        self.added = 0
        """Operations that each term takes more than a load."""
        self.of_row: dict[SSAValue, SSAValue] = {}
        """What stands for values of the row, in front of the reduction."""

    def write(self, sizes: Sizes, gpu: Gpu) -> float:
        """Rewrite the nest; the nanoseconds that it then takes longer. Raises Refused."""
        old, index = self.reduce, self.found.row.indices[0]
        if not isinstance(old, loop.ReduceOp) or old.parent is not self.nest.block:
            raise Refused("others than the sums of a product read the rows")
        scaled = self._scaled(old)
        places = [self._places(load) for load in self.loads]
        different = list({_key(place[index]): place for place in places}.values())
        if len({tuple(_key(at) for v, at in place.items() if v is not index) for place in places}) != 1:
            raise Refused("a product reads more than one row for each of its own")
        if not is_all_of_row([place[index] for place in different], dict(zip(old.indices, old.loop_sizes, strict=True)), self._size):
            raise Refused("the terms of a product are not those of a row")
        sums = [self._sum(old, op, value, different) for op in self.found.sums for value in op.yielded]
        for load, place in zip(self.loads, places, strict=True):
            load.result.replace_all_uses_with(self._factor(load, place))
            erase_op(load)
        made = self._with_sums(old, sums)
        _load_once(made.block)
        self._scale(made, scaled, places[0])
        return self._ns(made, sizes, gpu)

    @property
    def _size(self) -> Expr:
        return self.found.row.loop_sizes[0]

    def _scaled(self, old: loop.ReduceOp) -> list[int]:
        """Which sums of a reduction are of products by the rows."""
        rows = {load.result for load in self.loads}
        values = old.yielded
        found = [k for k, v in enumerate(values) if not rows.isdisjoint(v.owner.operands if isinstance(v.owner, Operation) else ())]
        users = {use.operation for row in rows for use in row.uses}
        terms = {values[k].owner for k in found}
        if users != terms or not all(isinstance(op, arith.MulfOp) and loop.is_contracted(op) and _once(op, rows) for op in terms):
            raise Refused("a product computes more of the rows than its terms")
        if set(old.kind_names) != {"sum"} or any(r.type != f32 for r in old.results):
            raise Refused("others than the sums of a product read the rows")
        return found

    def _places(self, load: loop.LoadOp) -> dict[SSAValue, Place]:
        """The indices of the nest that stores the rows at a load of them."""
        found = self.found.indices_at(load)
        if found is None or load.mask is not None or not isinstance(self.reduce, loop.ReduceOp):
            raise Refused("a product leaves terms out")
        for index, (at, values) in found.items():
            inside = [values[d.index] in self.reduce.indices for d in free_dims(at)]
            if any(inside) if index is not self.found.row.indices[0] else not all(inside):
                raise Refused("the terms of a product are not those of a row")
        return found

    def _sum(self, old: loop.ReduceOp, op: loop.ReduceOp, value: SSAValue, places: Sequence[dict[SSAValue, Place]]) -> SSAValue:
        """The terms of a sum of the rows, in the body of the product."""
        at, terms = Cursor(old.block, old.block.last_op), list[SSAValue]()
        for place in places:
            values = dict(self.of_row)
            here = {**place, op.indices[0]: place[self.found.row.indices[0]]}
            for one in needed([value], self.found.nest.block, op.block):
                self._copy(one, values, here, at)
            terms.append(values[value])
        total = terms[0]
        for term in terms[1:]:
            total = at.emit(arith.AddfOp, (total, term), f32, fastmath=PLAIN)
        return total

    def _copy(self, op: Operation, values: dict[SSAValue, SSAValue], places: Mapping[SSAValue, Place], at: Cursor) -> None:
        if op.regions or isinstance(op, loop.StoreOp):
            raise Refused("a sum over a row needs another one")
        if op.parent is self.found.nest.block:
            self._copy_of_row(op, places)
            values.update(self.of_row)
            return
        at.place(clone_into(op, values, places, self.symbols))
        self.added += 1

    def _copy_of_row(self, op: Operation, places: Mapping[SSAValue, Place]) -> None:
        """What is the same for all elements of a row stands in front of the reduction."""
        assert self.reduce is not None
        if all(r in self.of_row for r in op.results):
            return
        if any(v in self.found.sums_results for v in op.operands):
            raise Refused("a sum over a row needs another one")
        self.nest.block.insert_op_before(clone_into(op, self.of_row, places, self.symbols), self.reduce)

    def _factor(self, load: loop.LoadOp, place: dict[SSAValue, Place]) -> SSAValue:
        """An element of a row without its scale, in the place of a load."""
        assert load.parent is not None
        at, values = Cursor(load.parent, load), dict(self.of_row)
        for one in self.found.needed(self.found.factors):
            self._copy(one, values, place, at)
        total, *others = [values.get(value, value) for value in self.found.factors]
        for factor in others:
            total = at.emit(arith.MulfOp, (total, factor), f32, fastmath=PLAIN)
        kind = loop.element_type(self.found.store.target.type)
        if not others and isinstance(total.owner, loop.LoadOp) and loop.element_type(total.owner.source.type) == kind:
            return total
        return at.emit(arith.ExtFOp, (at.emit(arith.TruncFOp, (total,), kind),), f32)

    def _with_sums(self, old: loop.ReduceOp, sums: Sequence[SSAValue]) -> loop.ReduceOp:
        """The reduction with more sums."""
        kinds, types = [*old.kind_names, *(["sum"] * len(sums))], [*old.result_types, *([f32] * len(sums))]
        made = old.yielding(kinds, types, [*old.yielded, *sums])
        loop.take_uses(old.results, made.results[: len(old.results)])
        erase_op(old)
        return made

    def _scale(self, made: loop.ReduceOp, scaled: Sequence[int], place: dict[SSAValue, Place]) -> None:
        """Scale what the products give."""
        at, found = Cursor(self.nest.block, made.next_op), self.found
        results = [r for op in found.sums for r in op.results]
        values = {**self.of_row, **dict(zip(results, made.results[-len(results) :], strict=True))}
        values.update((loaded, values[stored]) for loaded, stored in found.known.items() if stored in values)
        for one in found.needed(scale for _, scale in found.scales):
            if all(r in values for r in one.results):
                continue
            at.place(clone_into(one, values, place, self.symbols))
            values.update((loaded, values[stored]) for loaded, stored in found.known.items() if stored in values)
        for k in scaled:
            uses = [(use.operation, use.index) for use in made.results[k].uses]
            total: SSAValue = made.results[k]
            for cls, scale in found.scales:
                total = at.emit(cls, (total, values.get(scale, scale)), f32, fastmath=PLAIN)
            for op, index in uses:
                op.operands[index] = total

    def _ns(self, made: loop.ReduceOp, sizes: Sizes, gpu: Gpu) -> float:
        """Nanoseconds that the product takes longer: what each program computes of its rows, but for what it does while it waits for
        memory. Units for products wait in each step until the factor is computed."""
        info = NestAccess(self.nest, self.symbols)
        tile = choose(info, sizes.hints, gpu)
        few, least = self._few(info, tile, sizes), MIN_PROGRAMS_PER_MULTIPROCESSOR if tile.dot else SPLIT_PROGRAMS_PER_MULTIPROCESSOR
        programs = tile.programs(sizes)
        if programs < gpu.multiprocessors * least:
            raise Refused("its sums are split")
        ops = float(self.added * programs * few * sizes(product(made.loop_sizes)))
        vectors = ops / (gpu.rates.tflops["f32"] * 1e3 / 2 * min(1.0, programs / gpu.multiprocessors))
        memory = of_nest(self.nest, sizes.hints).touched()[0] / gpu.rates.memory_gbs
        steps = -(-sizes(product(made.loop_sizes)) // tile.reduction_block) if tile.dot else 0
        waiting = steps * gpu.rates.computed_step_us * 1e3 * -(-programs // gpu.resident_programs)
        return gpu.busy(vectors, memory) - memory + waiting

    def _few(self, info: NestAccess, tile: Tile, sizes: Sizes) -> int:
        """Rows that a program has."""
        if not tile.dot:
            if any(size is not ONE for size in self.found.nest.loop_sizes):
                raise Refused("the units for products cannot take its terms")
            return 1
        few, many = sorted(product_sides(info), key=sizes.trips)
        if not has_few_rows(info, few, many, sizes) or not any(tuple(loops) == few for loops, _ in tile.axes):
            raise Refused("the product has many rows")
        return next(block for loops, block in tile.axes if tuple(loops) == few)


def _load_once(block: Block) -> None:
    """One load for all that load the same element."""
    seen: dict[object, loop.LoadOp] = {}
    for op in [op for op in block.ops if isinstance(op, loop.LoadOp) and op.mask is None]:
        first = seen.setdefault((op.source, op.index_map, tuple(op.index_operands)), op)
        if first is not op:
            op.result.replace_all_uses_with(first.result)
            erase_op(op)


def _key(place: Place) -> tuple[Expr, tuple[SSAValue, ...]]:
    """A place that can be compared."""
    return place[0], tuple(place[1])


def _once(op: Operation, rows: Collection[SSAValue]) -> bool:
    return sum(v in rows for v in op.operands) == 1
