"""Which nests are products of matrices of 16-bit numbers: sums of products (`fastmath<contract>`) of a value along one loop of the nest and
one along another, as `nd-library-products` leaves products that are generated. There may be several: of the same rows
by several matrices. A side may have several loops: the pixels of a convolution, whose windows name each by row and column.

A side may pick the matrix that it is multiplied by, by an index that the nest loads or computes: rows of tokens that have experts. Terms
may count under a condition that is the same for the whole result: those between bounds that the nest loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, bf16, f16, f32, f64, i8, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Dim, Expr, free_dims
from ....dialects.support.float8 import FLOAT8, UNIT_FLOAT8, f8e8m0fnu
from ...analysis.accesses.varying import Varying, is_straight
from ...analysis.constants import constant_of, integer_of
from ...analysis.nest_access import Loop, NestAccess, Node, asked_once
from ...analysis.reduction_kinds import CMPI
from .tile import MIN_DOT_SIDE, power_of_two

HALVES = frozenset((bf16, f16))
EXACT_BITS = 8
"""Bits of an integer that both 16-bit formats have room for."""

WIDE = frozenset((f32, f64))
"""Types of factors that units take as they are, with more bits than their own."""

RATES: dict[Attribute, str] = {f32: "f32", f64: "f64", i8: "i8"}
SUM_RATES: dict[Attribute, str] = {loop.CONTRACTED: "bf16", loop.PARTLY_ROUNDED_SUMS: "f8_f32", loop.ROUNDED_SUMS: "f8"}
"""What the rates of a GPU call products by their factors and by how factors or sums may be rounded."""


AT_MOST = CMPI["sle"]

Side = tuple[Loop, ...]
"""Loops of a nest that one factor varies along, and not the other one, in the nest's order."""


@dataclass(frozen=True)
class Factors:
    """The factors of one sum of products: side -> the factor that varies along it; and the type that both are exact in. `picked`: the index
    of the matrix that one side picks for itself; None where the other factor does not vary along that side at all. `choice`: the term,
    where that is 0 unless a condition holds. `scales`: numbers by which the product of a term is multiplied, which are the same for a block
    of terms, each with the side that it varies along. `sums`: how a unit may round the sums, where both are 8-bit floats of one type
    (loop.CONTRACTED: it may not)."""

    along: dict[Side, SSAValue]
    element: Attribute
    picked: Dim | None = None
    choice: arith.SelectOp | None = None
    sums: Attribute = loop.CONTRACTED
    scales: Sequence[tuple[Side, SSAValue]] = ()

    @property
    def adds_blocks(self) -> bool:
        """Whether sums of blocks of terms, as a unit makes them, are added up as f32."""
        return self.sums == loop.PARTLY_ROUNDED_SUMS or self.element == f32

    @property
    def rate(self) -> str:
        """The name that the rates of a GPU have for these products."""
        return RATES.get(self.element) or SUM_RATES[self.sums]


@asked_once
def product_sides(info: NestAccess) -> list[Side]:
    """The two sides of a nest whose reductions are all products of what varies along one of them by what varies along the other, in the
    nest's order; none for another nest."""
    if (reduced := block_reduction(info)) is not None:
        return sorted((reduced.side, reduced.other), key=lambda side: [*info.root.loops, *reduced.node.loops].index(side[0]))
    found = [factors(info, n) for n in product_nodes(info)]
    pairs = {frozenset(f.along) for parts in found for f in parts}
    if not all(found) or len(pairs) != 1 or len({f.picked for parts in found for f in parts} - {None}) > 1:
        return []
    if any(_counts(n) for n in info.root.children) and sorted_rows(info) is None:
        return []
    (pair,) = pairs
    return sorted(pair, key=lambda side: info.root.loops.index(side[0]))


def product_nodes(info: NestAccess) -> list[Node]:
    """The loops inside of a nest but for those that count, and those that go through blocks of products: of a product, those that add up
    its terms."""
    reduced = block_reduction(info)
    around = (info.root, None if reduced is None else reduced.node)
    return [n for n in info.root.walk() if n not in around and not _counts(n)]


@dataclass(frozen=True)
class BlockReduction:
    """A reduction, by `node`, of what is computed of products element by element, over one block of a side of them: its loop is the last
    one of `side`. Results vary along the side `other`."""

    node: Node
    side: Side
    other: Side


@asked_once
def block_reduction(info: NestAccess) -> BlockReduction | None:
    """The reduction of blocks of products that a nest is; None for another nest. A program has a block of them on chip: other loops of the
    nest are batches."""
    (node,) = info.root.children if len(info.root.children) == 1 else (None,)
    if node is None or not isinstance(node.op, loop.ReduceOp) or len(node.loops) != 1 or not node.children:
        return None
    (block,), around = node.loops, (*info.root.loops, *node.loops)
    length = block.size.value
    if length is None or length < MIN_DOT_SIDE or length != power_of_two(length) or any(c.children for c in node.children):
        return None
    parts = [factors(info, child, around) for child in node.children]
    found = [one for each in parts for one in each]
    if not all(parts) or len({frozenset(one.along) for one in found}) != 1 or any(one.choice is not None for one in found):
        return None
    side, other = sorted(found[0].along, key=lambda side: side[-1] is not block)
    batches, varying = [one for one in around if one not in side and one not in other], Varying(info)
    of_factors = [varying.of_value(value) for one in found for value in one.along.values()]
    if side[-1] is not block or any(one.dim not in dims for one in batches for dims in of_factors):
        return None
    return BlockReduction(node, side, other)


def _counts(node: Node) -> bool:
    """Whether a loop counts: which matrix a row has."""
    return isinstance(node.op, loop.ReduceOp) and node.op.kind_names == ["sum"] and node.op.results[0].type == i64


@asked_once
def picked_index(info: NestAccess) -> tuple[Dim, Side] | None:
    """The index by which a side of a product picks its matrix, and that side; None where all rows have one matrix."""
    for one in (f for n in info.root.walk() if n is not info.root for f in factors(info, n)):
        if one.picked is not None:
            own = Varying(info).of_value(info.opaque[one.picked])
            return one.picked, next(side for side in one.along if any(loop.dim in own for loop in side))
    return None


def factors(info: NestAccess, node: Node, loops: Sequence[Loop] = ()) -> Sequence[Factors]:
    """The factors of each product's sum that a reduction makes, along the loops of the nest or `loops`; none where a sum is something else
    and not one of numbers that vary along one side alone (`row_sums`)."""
    reduced = None if loops else block_reduction(info)
    if reduced is not None and node.parent is reduced.node:
        loops = (*info.root.loops, *reduced.node.loops)
    return _factors_along(info, node, tuple(loops))


@asked_once
def _factors_along(info: NestAccess, node: Node, loops: Sequence[Loop]) -> Sequence[Factors]:
    op = node.op
    if not isinstance(op, loop.ReduceOp) or set(op.kind_names) != {"sum"} or not node.loops:
        return ()
    values = op.yielded
    every = [_factors(info, value, loops) for value in values]
    found = [f for f in every if f is not None]
    others = [value for value, f in zip(values, every, strict=True) if f is None]
    if others and (loops or not found or not all(_side_of(info, value, found[0]) for value in others)):
        return ()
    return found


def row_sums(info: NestAccess, node: Node) -> Mapping[int, Side]:
    """The sums of a reduction that are no products beside those that are, by their number: the side that their terms vary along."""
    op, parts = node.op, factors(info, node)
    if not parts or not isinstance(op, loop.ReduceOp) or len(parts) == len(op.results):
        return {}
    found = {k: _side_of(info, v, parts[0]) for k, v in enumerate(op.yielded) if _factors(info, v, ()) is None}
    return {k: side for k, side in found.items() if side is not None}


def _side_of(info: NestAccess, value: SSAValue, product: Factors) -> Side | None:
    """The side of a product that terms, which are no product, vary along; None where that is not one."""
    if value.type != f32 or not is_straight(info, value):
        return None
    own = Varying(info).of_value(value)
    sides = [side for side in product.along if not own.isdisjoint(one.dim for one in side)]
    return sides[0] if len(sides) == 1 else None


def _factors(info: NestAccess, value: SSAValue, loops: Sequence[Loop]) -> Factors | None:
    times, choice = value.owner, None
    if not loops and isinstance(times, arith.SelectOp) and constant_of(times.rhs) == 0:
        times, choice = times.lhs.owner, times
    scale: SSAValue | None = None
    if not loops and isinstance(times, arith.MulfOp) and not loop.is_contracted(times) and loop.is_contracted(times.lhs.owner):
        times, scale = times.lhs.owner, times.rhs
    if not isinstance(times, arith.MulfOp | arith.MuliOp) or times.result.type not in (f32, f64, i32) or not loop.is_contracted(times):
        return None
    types = frozenset((i8,)) if isinstance(times, arith.MuliOp) else exact_types(times.lhs) & exact_types(times.rhs)
    types = types or (frozenset((times.result.type,)) if not loops else frozenset())
    counts = [v for node in info.root.children if _counts(node) for v in node.op.results]
    if not types or not is_straight(info, times.lhs, counts) or not is_straight(info, times.rhs, counts):
        return None
    left, right = map(Varying(info).of_value, times.operands)
    rows, columns = _sides(loops or info.root.loops, left, right)
    picked = None
    if bool(rows) != bool(columns) and not loops:  # of one factor rows of the other pick a matrix
        picked_right = bool(columns)
        picked = _index_of(info, times.rhs if picked_right else times.lhs)
        if picked is None:
            return None
        left, right = map(Varying(info, (picked,)).of_value, times.operands)
        rows, columns = _sides(info.root.loops, left, right)
        if not Varying(info).of_value(info.opaque[picked]).isdisjoint(one.dim for one in (columns if picked_right else rows)):
            return None
    if not rows or not columns:
        return None
    if choice is not None and not Varying(info).of_value(choice.cond).isdisjoint(one.dim for one in (*rows, *columns)):
        return None
    if isinstance(times, arith.MuliOp):
        return Factors({rows: times.lhs, columns: times.rhs}, i8, picked, choice)
    if times.result.type in types:
        return Factors({rows: times.lhs, columns: times.rhs}, times.result.type, picked, choice)
    element, sums = bf16 if bf16 in types else f16, loop.CONTRACTED
    if times.fastmath != sums and (kind := _stored_type(times.lhs)) == _stored_type(times.rhs) and kind in UNIT_FLOAT8:
        element, sums = kind, times.fastmath
    scales = () if scale is None else _scales(info, scale, (rows, columns))
    return None if scales is None else Factors({rows: times.lhs, columns: times.rhs}, element, picked, choice, sums, scales)


def _scales(info: NestAccess, value: SSAValue, sides: tuple[Side, Side]) -> Sequence[tuple[Side, SSAValue]] | None:
    """The factors of a number that each vary along one side at most; None where one varies along both."""
    op = value.owner
    if isinstance(op, arith.MulfOp) and not loop.is_contracted(op):
        found = [_scales(info, x, sides) for x in op.operands]
        return None if None in found else [one for part in found if part is not None for one in part]
    own = Varying(info).of_value(value)
    along = [side for side in sides if not own.isdisjoint(one.dim for one in side)]
    return [((along or sides)[0], value)] if len(along) < len(sides) and is_straight(info, value) else None


def _sides(loops: Sequence[Loop], left: frozenset[Expr], right: frozenset[Expr]) -> tuple[Side, Side]:
    """The loops that one factor varies along, and not the other one."""
    rows = tuple(one for one in loops if one.dim in left and one.dim not in right)
    return rows, tuple(one for one in loops if one.dim in right and one.dim not in left)


def _index_of(info: NestAccess, value: SSAValue) -> Dim | None:
    """The only loaded or computed index of what a factor is computed from, if the nest has it outside of its sums."""
    found: set[Dim] = set()
    worklist = [value]
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, loop.LoadOp):
            found |= {d for d in free_dims(info.access[op].offset) if d in info.opaque}
        elif isinstance(op, Operation):
            worklist += op.operands
    (only,) = found if len(found) == 1 else (None,)
    return only if only is not None and info.opaque[only].owner.parent is info.root.op.regions[0].block else None


def _stored_type(value: SSAValue) -> Attribute | None:
    """The type that a number of 32 bits was widened from."""
    op = value.owner
    if isinstance(op, loop.LoadOp):
        return loop.element_type(op.source.type)
    return op.input.type if isinstance(op, arith.ExtFOp) else None


def exact_types(value: SSAValue) -> frozenset[Attribute]:
    """The 16-bit formats that a number of 32 bits surely is a number of."""
    op = value.owner
    if isinstance(op, loop.LoadOp):
        return _exact_for(loop.element_type(op.source.type))
    if isinstance(op, arith.ExtFOp):
        return _exact_for(op.input.type)
    if isinstance(op, arith.SIToFPOp | arith.UIToFPOp) and isinstance(op.input.type, IntegerType):
        return HALVES if op.input.type.width.data <= EXACT_BITS else frozenset()
    return frozenset()


def _exact_for(kind: Attribute) -> frozenset[Attribute]:
    return HALVES if kind in FLOAT8 and kind != f8e8m0fnu else HALVES & {kind}


@dataclass(frozen=True)
class SortedRows:
    """Rows along `side` have the matrix `picked`: the number of the `count` groups that end at a row or before it. `ends` loads where each
    does, in the loop of `node`. Rows behind all groups are the last one's."""

    picked: Dim
    side: Side
    node: Node
    ends: loop.LoadOp
    count: Expr


@asked_once
def sorted_rows(info: NestAccess) -> SortedRows | None:
    """How the rows of a product are sorted by their matrices; None where that is not known."""
    picks = picked_index(info)
    if picks is None or len(picks[1]) != 1:
        return None
    picked, side = picks
    bound = info.opaque[picked].owner
    if not isinstance(bound, loop.BoundOp):
        return None
    value, limits = bound.input, set[int | None]()
    while isinstance(op := value.owner, arith.MinSIOp | arith.MaxSIOp):
        value = op.lhs
        limits.add(integer_of(op.rhs))
    count, node = bound.size.data, info.nodes.get(value.owner)  # pyright: ignore[reportArgumentType]
    ends = None if node is None else _ends(info, node, side[0].dim)
    if node is None or ends is None or count.value is None or node.trips is not count or limits != {0, count.value - 1}:
        return None
    return SortedRows(picked, side, node, ends, count)


def _ends(info: NestAccess, node: Node, row: Dim) -> loop.LoadOp | None:
    """The load of the ends of groups, if a reduction counts those that are at `row` or before it."""
    op = node.op
    if not isinstance(op, loop.ReduceOp) or op.kind_names != ["sum"] or len(op.indices) != 1 or op.results[0].type != i64:
        return None
    counted = op.yielded[0].owner
    compared = counted.input.owner if isinstance(counted, arith.ExtUIOp) else None
    if not isinstance(compared, arith.CmpiOp) or compared.predicate.value.data != AT_MOST or info.exprs.get(compared.rhs) is not row:
        return None
    load: SSAValue = compared.lhs
    while isinstance(load.owner, arith.ExtSIOp | arith.TruncIOp):  # numbers of rows, which fit 32 bits
        load = load.owner.input
    found = load.owner
    plain = isinstance(found, loop.LoadOp) and found.mask is None and list(found.index_operands) == list(op.indices)
    return found if plain and isinstance(found, loop.LoadOp) and found.index_map.is_identity else None
