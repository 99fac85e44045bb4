"""Which nests weigh rows of one matrix by a softmax of scores that are products of matrices themselves (attention), and their tile.

    loop.nest (%i, %l) {
      loop.reduce (%j) softmax_dot { %s = loop.reduce (%e) sum { %q[%i, %e] * %k[%j, %e] } ... loop.yield f(%s), %v[%j, %l] }
    }

A program has a block of the rows %i, with all columns %l, and goes through the terms %j block after block. Where scores vary along several
loops and values along none of them, the last one has the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i1
from xdsl.ir import Attribute, SSAValue

from ....dialects import loop
from ....dialects.expr import Add, free_dims
from ....dialects.expr.ranges import RangeEnv, range_of
from ....dialects.nd.types import element_bytes
from ...analysis.accesses.varying import Varying, is_straight
from ...analysis.listed_terms import block_of, is_list, listed_blocks, rows_of_block
from ...analysis.needed_terms import needed_terms
from ...analysis.nest_access import Loop, NestAccess, Node
from ...analysis.schedule_attrs import fix
from ...cost.block_price import PROGRAM_WARPS
from ...cost.contraction_price import MAX_WEIGHED_ELEMENTS, WEIGHED_SIDE
from ...cost.machine.gpu import Gpu
from .product_nests import exact_types, factors
from .tile import MIN_DOT_SIDE, STREAM_STAGES, Tile, power_of_two

SHORT_COLUMNS = 64
"""Columns up to which addresses of a block's rows cost less than waiting for the unit that copies blocks; so they do where no mask bounds
the loop."""


@dataclass(frozen=True)
class WeighedProduct:
    """The loops that its parts run along, and the type in which the weights are multiplied."""

    rows: Loop
    columns: Loop
    terms: Loop
    element: Attribute
    is_softmax: bool
    """Whether the softmax of the scores has the weights, which are the scores else."""
    pairs: tuple[tuple[SSAValue, SSAValue], ...]
    """The scores and the rows that are weighed; of weights without a softmax there may be several."""
    factor: SSAValue | None = None
    """What each weight of a softmax is multiplied by."""
    row_sums: Mapping[int, SSAValue] = field(default_factory=dict)
    """What is added up for each row beside the products, by number of the result."""

    @property
    def score(self) -> SSAValue:
        return self.pairs[0][0]

    @property
    def value(self) -> SSAValue:
        return self.pairs[0][1]


def weighed_product(info: NestAccess) -> WeighedProduct | None:
    """The product of weights and rows that a nest is; None for another one."""
    if len(info.root.children) != 1:
        return None
    (node,) = info.root.children
    op = node.op
    if not isinstance(op, loop.ReduceOp) or len(node.loops) != 1 or not node.children:
        return None
    pairs, factor, row_sums = _weighed(info, op)
    (terms,) = node.loops
    is_softmax, varying = op.kind_names == ["softmax_dot"], Varying(info)
    kinds = [exact_types(v) for score, value in pairs for v in ((value,) if is_softmax else (score, value))]
    types = frozenset[Attribute]().union(*kinds).intersection(*kinds)
    if not pairs or not types or not all(is_straight(info, value) for _, value in pairs) or any(a.is_store for a in node.all_accesses()):
        return None
    sides: list[tuple[Loop, Loop]] = []
    for score, value in pairs:
        of_score, of_value = varying.of_value(score), varying.of_value(value)
        rows = [one for one in info.root.loops if one.dim in of_score and one.dim not in of_value]
        columns = [one for one in info.root.loops if one.dim in of_value and one.dim not in of_score]
        if not rows or len(columns) != 1 or terms.dim not in of_value:
            return None
        sides.append((rows[-1], columns[0]))
    if any(side != sides[0] for side in sides):
        return None
    beside = [*row_sums.values(), *([] if factor is None else [factor])]
    if any(sides[0][1].dim in varying.of_value(one) for one in beside):
        return None
    found = WeighedProduct(*sides[0], terms, min(types, key=str), is_softmax, tuple(pairs), factor, row_sums)
    scores = [child for child in node.children if not is_list(child)]
    short = all(_is_short(one, info) for one in (found.columns, *(c.loops[0] for c in scores if c.loops)))
    return found if scores and short and all(_is_score(info, child, found) for child in scores) else None


def as_weighed(nest: loop.NestOp, symbols: RangeEnv) -> tuple[NestAccess, WeighedProduct | None]:
    """The product of weights and rows that a nest is, with its analysis. Where what the weights are computed from is the same for blocks of
    rows and of terms (a table of blocks), loops run as they are written: split into blocks they would be no rows and no terms. All do, or
    those of the sum alone, where the rows that all would give have blocks of their own (keys that batches share)."""
    info = NestAccess(nest, symbols)
    if (found := weighed_product(info)) is not None:
        return info, found
    sums = [op for op in nest.block.ops if isinstance(op, loop.ReduceOp)]
    before = [(op, dict(op.attributes), dict(op.properties)) for op in (nest, *sums)]
    kept: tuple[NestAccess, WeighedProduct] | None = None
    for fixed in ((nest, *sums), sums):
        _restore(before)
        for op in fixed:
            fix(op)
        info = NestAccess(nest, symbols)
        found = weighed_product(info)
        if found is not None and _share_tables(info, found):
            return info, found
        if found is not None and kept is None:
            kept = info, found
    _restore(before)
    if kept is None:
        return info, None
    for op in (nest, *sums):
        fix(op)
    return kept


def _restore(before: Sequence[tuple[loop.NestOp | loop.ReduceOp, dict[str, Attribute], dict[str, Attribute]]]) -> None:
    for op, attributes, properties in before:
        op.attributes, op.properties = dict(attributes), dict(properties)


def _share_tables(info: NestAccess, found: WeighedProduct) -> bool:
    """Whether rows, by blocks, read the same of tables of conditions."""
    rows = found.rows.dim
    loads = [op for op in info.access if isinstance(op, loop.LoadOp) and op.result.type == i1]
    terms = [e for op in loads for v in [info.access[op].offset] for e in (v.terms if isinstance(v, Add) else ((v, 1),))]
    return all(rows not in free_dims(e) or block_of(e, rows) is not None for e, _ in terms)


def _weighed(
    info: NestAccess, op: loop.ReduceOp
) -> tuple[list[tuple[SSAValue, SSAValue]], SSAValue | None, Mapping[int, SSAValue]]:
    """The scores, or the weights, and what a reduction weighs by them; none where it does something else. What the weights are multiplied
    by, and what is added up beside."""
    if op.kind_names == ["softmax_dot"]:
        score, value = op.yielded
        times = value.owner
        if isinstance(times, arith.MulfOp) and times.parent is op.block:
            sides = [(one, other) for one, other in (times.operands, times.operands[::-1]) if is_straight(info, one) and exact_types(one)]
            return ([(score, sides[0][0])], sides[0][1], {}) if len(sides) == 1 else ([], None, {})
        return [(score, value)], None, {}
    choices: list[list[tuple[SSAValue, SSAValue]]] = []
    row_sums: dict[int, SSAValue] = {}
    for k, (kind, term) in enumerate(zip(op.kind_names, op.yielded, strict=False)):
        times = term.owner
        if kind != "sum" or term.type != f32:
            return [], None, {}
        if not isinstance(times, arith.MulfOp) or times.properties.get("fastmath") != loop.CONTRACTED:
            row_sums[k] = term
            continue
        left, right = times.operands
        sides = [(left, right), (right, left)]
        choices.append([pair for pair in sides if not is_straight(info, pair[0])] or sides)
    certain = next((pairs[0] for pairs in choices if len(pairs) == 1), None)
    if certain is None:
        return [], None, {}
    # weights that are read from memory are those that vary along the same loops
    varying = Varying(info)
    wanted = tuple(map(varying.of_value, certain))
    found = [pair for pairs in choices for pair in pairs if len(pairs) == 1 or tuple(map(varying.of_value, pair)) == wanted]
    if len(found) != len(choices):
        return [], None, {}
    return found, None, row_sums


def _is_score(info: NestAccess, node: Node, product: WeighedProduct) -> bool:
    """Whether a loop inside adds up products of what varies along the rows by what varies along the terms."""
    parts = factors(info, node, (product.rows, product.terms)) if len(node.loops) == 1 and not node.children else ()
    return bool(parts) and all(set(f.along) == {(product.rows,), (product.terms,)} for f in parts)


def _is_short(one: Loop, info: NestAccess) -> bool:
    most = range_of(one.size, info.ranges).hi
    return most is not None and most <= MAX_WEIGHED_ELEMENTS


def weighed_tile(info: NestAccess, gpu: Gpu, least_rows: int = MIN_DOT_SIDE) -> Tile | None:
    """The tile of such a nest. `least_rows`: of a program."""
    found = weighed_product(info) if gpu.multiplies_halves else None
    if found is None:
        return None
    most = range_of(found.columns.size, info.ranges).hi or 1
    columns = max(MIN_DOT_SIDE, power_of_two(most))
    rest = [one for one in info.root.loops if one is not found.rows and one is not found.columns]
    wide = columns > MAX_WEIGHED_ELEMENTS // 2
    all_rows = power_of_two(range_of(found.rows.size, info.ranges).hi or WEIGHED_SIDE)
    groups = 2 if wide and gpu.multiplies_in_groups else 1  # of four warps, which have rows of their own: no sum of a row crosses them
    rows = max(least_rows, min(groups * WEIGHED_SIDE, all_rows))
    rows, step = _shared_blocks(info, found, rows)
    stages = _stages(info, found, rows, columns, STREAM_STAGES - wide, gpu)  # fewer of long rows
    (node,) = info.root.children
    copies = int(gpu.copies_blocks and columns > SHORT_COLUMNS and (bool(needed_terms(info, node)) or any(map(is_list, node.children))))
    axes = [([found.rows], rows), ([found.columns], columns)]
    return Tile(axes, rest, reduction_block=step, stages=stages, warps=PROGRAM_WARPS[wide], dot=1, copies=copies)


def _shared_blocks(info: NestAccess, found: WeighedProduct, rows: int) -> tuple[int, int]:
    """How many rows a program has, and how many terms it weighs at once: where lists say which terms count, rows that share them, and terms
    of one block."""
    lists = listed_blocks(info, info.root.children[0])
    step = math.gcd(WEIGHED_SIDE, *(one.block for one in lists))
    return math.gcd(rows, rows_of_block(lists, found.rows.dim) or rows), step


def _stages(info: NestAccess, found: WeighedProduct, rows: int, columns: int, most: int, gpu: Gpu) -> int:
    """How many blocks of terms are under way: as many as shared memory has room for, with the factors of the rows, up to `most`. Of weights
    without a softmax two, if more left no room for a second program: nothing but that one works while a program waits for its products."""
    (node,) = info.root.children
    width = element_bytes(found.element)
    inside = [one for c in node.children if not is_list(c) for one in c.loops]
    lengths = {one.dim: max(MIN_DOT_SIDE, power_of_two(range_of(one.size, info.ranges).hi or 1)) for one in inside}
    lengths[found.columns.dim] = columns
    kept, streamed, around = dict[SSAValue, int](), dict[SSAValue, int](), dict[SSAValue, int]()
    for access in node.all_accesses():
        known = free_dims(access.offset)
        length = max((n for d, n in lengths.items() if d in known), default=0)
        if {found.rows.dim, found.terms.dim} <= known:
            around[access.buffer] = rows * element_bytes(access.dtype)
        elif found.terms.dim in known:
            streamed[access.buffer] = max(length * width, streamed.get(access.buffer, 0))
        elif found.rows.dim in known:
            kept[access.buffer] = max(length * width, kept.get(access.buffer, 0))
    resident, each = rows * sum(kept.values()), WEIGHED_SIDE * (sum(streamed.values()) + sum(around.values()))
    alone, beside = ((room - resident) // max(1, each) for room in (gpu.shared, gpu.shared // 2))
    stages = max(1, min(most, alone))
    return stages if found.is_softmax or beside >= stages else min(stages, max(beside, STREAM_STAGES - 1))
