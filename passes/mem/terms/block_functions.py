"""A function of terms as one of a block of scores in the cache, for all blocks of a matrix and all matrices of a batch.

    @terms0(%s : B x H x R x C, %ids)  ->  @terms0_masked(%block : block_rows x block_terms, %ids) { ... block_row + %i ... }

Symbols say which block it is. Scores become weights in place. In the function for blocks of which nothing is hidden, the conditions that a
table of blocks knows are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

from xdsl.dialects import arith
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from ....dialects import loop
from ....dialects.cpu.attention import BLOCK_ROWS
from ....dialects.expr import ONE, ZERO, IndexMap, dim, sym
from ....dialects.expr.ranges import Range, RangeEnv
from ....dialects.mem import BufferType
from ....dialects.nd.types import RangeAttr
from ...loop.transform.loop_rewrite import Place, clone_into
from .term_nest import TermNest, unused

BLOCK = tuple(sym(f"block_{name}") for name in ("batch", "head", "row", "rows", "term", "terms", "length"))
"""What a function of blocks is called with: which batch and head, where the block begins and how large it is, elements from one of its rows
to the next."""
_BOUNDS = ((0, None, 0), (0, None, 0), (0, None, 64), (1, BLOCK_ROWS, 6), (0, None, 64), (1, None, 256), (1, None, 1040))
"""The least, the most (None: any), and the typical number of each."""


def know_block_symbols(module: ModuleOp) -> RangeEnv:
    """Have a module know the symbols of blocks; their ranges."""
    table = module.attributes.get("nd.symbols")
    known = dict(table.data) if isinstance(table, DictionaryAttr) else {}
    known.update({s.name: RangeAttr.get(*bounds) for s, bounds in zip(BLOCK, _BOUNDS, strict=True)})
    module.attributes["nd.symbols"] = DictionaryAttr(known)
    return RangeEnv({s: Range(low, high) for s, (low, high, _) in zip(BLOCK, _BOUNDS, strict=True)})


def block_function(
    name: str, terms: TermNest, captured: Sequence[BufferType], known: Mapping[SSAValue, bool], symbols: RangeEnv
) -> FuncOp | None:
    """The function; `known`: what conditions are in its blocks. None: weights are the scores."""
    batch, head, row, rows, term, count, length = BLOCK
    blocks = max(len(terms.scores), len(terms.stores))
    kind = BufferType.get((rows, count), f32, (length, ONE), 0, "cpu")
    block = Block(arg_types=[*[kind] * blocks, *captured])
    nest = loop.NestOp.build_nest([rows, count], list(block.args[: len(terms.stores)]), terms.nest.location)
    nest.properties.update({key: value for key, value in terms.nest.properties.items() if key not in ("sizes", "schedule")})
    nest.attributes.update(terms.nest.attributes)
    values: dict[SSAValue, SSAValue] = dict(zip(terms.captured, block.args[blocks:], strict=True))
    i, j = nest.indices
    here: list[Place] = [(batch, []), (head, []), (row + dim(0), [i]), (term + dim(0), [j])]  # in the order of `Axis`
    places: dict[SSAValue, Place] = {index: (ZERO, []) for index in terms.units}
    places.update({index: here[k] for k, index in enumerate(terms.along) if index is not None})
    element = IndexMap(2, (dim(0), dim(1)))
    given = dict(zip(terms.scores, block.args, strict=False))
    given |= dict(zip(block.args, nest.out_args, strict=False))  # the nest stores to these: they are its own inside
    for op in terms.nest.block.ops:
        if isinstance(op, loop.LoadOp) and op.source in terms.scores:
            source = given[op.source]
            made = loop.LoadOp.new(given.get(source, source), element, [i, j])
            nest.block.add_op(made)
            values[op.result] = made.result
        elif isinstance(op, loop.StoreOp):
            continue
        elif isinstance(op, arith.SelectOp) and op.cond in known:
            chosen = op.lhs if known[op.cond] else op.rhs
            values[op.result] = values.get(chosen, chosen)
        elif not isinstance(op, loop.YieldOp):
            nest.block.add_op(clone_into(op, values, places, symbols))
    stored = [values.get(op.value, op.value) for op in terms.stores]
    changed = [not isinstance(v.owner, loop.LoadOp) or v.owner.source is not out for v, out in zip(stored, nest.out_args, strict=True)]
    if not any(changed):
        return None
    for value, out, op in compress(zip(stored, nest.out_args, terms.stores, strict=True), changed):
        store = loop.StoreOp.new(value, out, element, [i, j])
        store.location = op.location
        nest.block.add_op(store)
    unused(list(nest.block.ops))
    block.add_op(nest)
    block.add_op(ReturnOp())
    return FuncOp(name, ([a.type for a in block.args], []), Region(block), "private")


