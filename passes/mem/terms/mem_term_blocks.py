"""mem-term-blocks: functions of terms become functions of blocks, and where they hide whole blocks, tables say which.

    mem.extern %q, %k, %v, %ids {stepwell.weighed_rows} {terms = @terms0}
    ->
    loop.nest (%p, %q) outs(%table) { may @terms0 keep a term of rows 12 %p to 12 %p + 11, terms 32 %q to 32 %q + 31? must it keep all? }
    mem.extern %q, %k, %v, %ids, %table {stepwell.weighed_rows} {masked = @terms0_masked, sure = @terms0_sure}

A number says what is known of a block (`BlockKind`): the loop over the terms leaves out hidden ones, and computes no condition in seen
ones. What a condition is in a block is found by bounds (block_conditions.py), of indices (causal masks, windows), of numbers in
memory (documents) and of tables of blocks (the lists of a BlockMask), so that no term is asked twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, StringAttr, SymbolRefAttr, i1
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop, mem
from ....dialects.cpu.attention import BLOCK_ROWS, BLOCK_TERMS, BlockKind
from ....dialects.expr import ONE, Expr, IndexMap, as_expr, ceildiv, dim
from ....dialects.nd.base import prop
from ....dialects.nd.call_args import CallAttr
from ....dialects.support.replace import erase_op
from ...analysis.needed_terms import guards_of_value
from ...analysis.nest_access import NestAccess
from ...analysis.reduction_kinds import Cursor
from ...analysis.symbols import symbol_facts
from ...analysis.weighed_calls import MASKED, SURE, TERMS, WeighedCall, called_terms
from ...manager.pass_manager import Pass
from .block_conditions import BlockConditions
from .block_functions import block_function, know_block_symbols
from .term_nest import Axis, TermNest

i8 = IntegerType(8)


@dataclass(frozen=True)
class MemTermBlocks(Pass):
    """Makes functions of blocks of those of terms, and tables of the blocks that count."""

    name = "mem-term-blocks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        calls = [o for f in op.ops if isinstance(f, FuncOp) for o in f.walk() if isinstance(o, mem.ExternOp) and TERMS in o.attributes]
        if not calls:
            return
        functions = {f.sym_name.data: f for f in op.ops if isinstance(f, FuncOp)}
        symbols = know_block_symbols(op)
        symbols = type(symbols)({**symbol_facts(op)[0], **symbols})
        made: dict[tuple[object, ...], tuple[str, str | None]] = {}
        done: set[str] = set()
        for extern in calls:
            name, call = called_terms(extern), WeighedCall.of(extern.call.data)
            assert call is not None
            terms = TermNest.of(functions[name], len(call.scales), call.turned)
            if terms is None or not terms.reads_own_scores():
                self.fail(extern, f"@{name} is no nest that computes each element of the weights of the same one of the scores")
            writer = _Blocks(op, extern, call, terms, symbols)
            known = writer.known
            types = [extern.operands[k].type for k in call.captured]
            key = (name, *types)
            if key not in made:
                made[key] = writer.functions(f"{name}{f'_{len(made)}' if made else ''}", types)
            if known:
                writer.table()
                self.statistic("num-tables")
                self.remark(extern, "blocks in which the terms count are found by a table", kind="applied")
            writer.finish(*made[key])
            done.add(name)
        for name in done:
            erase_op(functions[name])


class _Blocks:
    """What is made for one call."""

    def __init__(self, module: ModuleOp, extern: mem.ExternOp, call: WeighedCall, terms: TermNest, symbols):
        self.module, self.extern, self.call, self.terms, self.symbols = module, extern, call, terms, symbols
        info = NestAccess(terms.nest, symbols, normalise=False)
        neutral = -math.inf if call.softmax else 0.0
        weights = terms.stores[: -1 if call.scaled or call.placed else None]
        self.guards = [guards_of_value(info, op.value, neutral) for op in weights]
        self.buffers = {v: extern.operands[k] for v, k in zip(terms.captured, call.captured, strict=True)}
        self.known = self._known()

    def _known(self) -> dict[SSAValue, bool]:
        """The conditions that can be told of a block, and what they are where a term counts."""
        sizes = [as_expr(BLOCK_ROWS), as_expr(BLOCK_TERMS)]
        trial = loop.NestOp.build_nest(sizes, [])
        conditions = self._conditions(Cursor(trial.block), list(trial.indices), [as_expr(0), as_expr(0), dim(0), dim(1)])
        found: dict[SSAValue, bool] = {}
        for guards in self.guards:
            for guard in guards:
                if self._varies(guard.condition) and conditions.ends(guard.condition) is not None:
                    found[guard.condition] = guard.holds
        for op in reversed(list(trial.block.ops)):
            erase_op(op)
        trial.erase()
        return found

    def _varies(self, condition: SSAValue) -> bool:
        """Whether a condition hangs on rows or terms in a way that a block of them tells."""
        worklist, seen = [condition], {condition}
        while worklist:
            op = worklist.pop().owner
            if isinstance(op, loop.IndexOp | loop.LoadOp):
                indices = op.args if isinstance(op, loop.IndexOp) else op.index_operands
                if self.terms.along[Axis.TERM] in indices:
                    return True
            elif isinstance(op, Operation):
                worklist += [v for v in op.operands if v not in seen]
                seen.update(op.operands)
        return False

    def _conditions(self, at: Cursor, values: Sequence[SSAValue], places: Sequence[Expr]) -> BlockConditions:
        return BlockConditions(self.terms, at, places, (BLOCK_ROWS, BLOCK_TERMS), values, self.buffers)

    def functions(self, name: str, types: Sequence[object]) -> tuple[str, str | None]:
        """The names of the functions of blocks: of any, and of those of which nothing is hidden (None: these are the weights)."""
        symbols: list[str | None] = []
        for kind, known in (("masked", {}), ("sure", self.known)):
            function = block_function(f"{name}_{kind}", self.terms, types, known, self.symbols)  # pyright: ignore[reportArgumentType]
            if function is not None:
                self.module.body.block.add_op(function)
            symbols.append(None if function is None else function.sym_name.data)
        return symbols[0] or "", symbols[1]

    def table(self) -> None:
        """The nest that says of each block what is known, in front of the call, which gets it as an operand."""
        batch, head, rows, terms = self.terms.sizes
        varying = self._outer()
        sizes = [batch if Axis.BATCH in varying else ONE, head if Axis.HEAD in varying else ONE]
        sizes += [ceildiv(rows, as_expr(BLOCK_ROWS)), ceildiv(terms, as_expr(BLOCK_TERMS))]
        extern = self.extern
        assert (block := extern.parent) is not None
        before = Cursor(block, extern)
        memory = before.place(mem.AllocOp.arena(sizes, i8, location=extern.location)).results[0]
        memory.name_hint = "blocks"
        nest = loop.NestOp.build_nest(sizes, [memory], extern.location)
        nest.properties["label"] = StringAttr("blocks")
        at = Cursor(nest.block)
        conditions = self._conditions(at, list(nest.indices), [dim(k) for k in range(len(Axis))])
        seen, hidden = self._seen(at, conditions), self._hidden(at, conditions)
        nothing, some, all_of_it = (at.constant(kind, i8) for kind in BlockKind)
        value = at.select(hidden, nothing, at.select(seen, all_of_it, some))
        here = IndexMap(len(Axis), tuple(dim(k) for k in range(len(Axis))))
        at.place(loop.StoreOp.new(value, nest.out_args[0], here, list(nest.indices)))
        before.place(nest)
        places = prop(extern, "out") or ()
        count = len(extern.operands)
        self.call = replace(self.call, blocks=count)
        extern.operands = [*extern.operands, memory]
        assert all(k < count for k in places)

    def _outer(self) -> set[int]:
        """The dimensions in front of rows that conditions vary along."""
        found: set[int] = set()
        worklist, seen = list(self.known), set(self.known)
        while worklist:
            op = worklist.pop().owner
            if not isinstance(op, Operation):
                continue
            indices = op.args if isinstance(op, loop.IndexOp) else op.index_operands if isinstance(op, loop.LoadOp) else ()
            found |= {k for k in (Axis.BATCH, Axis.HEAD) if self.terms.along[k] is not None and self.terms.along[k] in indices}
            new = [v for v in op.operands if v not in seen and not loop.is_shaped(v.type)]
            seen.update(new)
            worklist += new
        return found

    def _seen(self, at: Cursor, conditions: BlockConditions) -> SSAValue:
        """Whether all conditions surely let a block be seen."""
        found: SSAValue | None = None
        for condition, holds in self.known.items():
            one = self._sure(at, conditions, condition, holds)
            found = one if found is None else at.emit(arith.AndIOp, (found, one), i1)
        assert found is not None
        return found

    def _hidden(self, at: Cursor, conditions: BlockConditions) -> SSAValue:
        """Whether for each kind of weights one condition surely hides a block."""
        every: SSAValue | None = None
        for guards in self.guards:
            some: SSAValue | None = None
            for guard in guards:
                if guard.condition in self.known:
                    one = self._sure(at, conditions, guard.condition, not guard.holds)
                    some = one if some is None else at.emit(arith.OrIOp, (some, one), i1)
            some = at.constant(0, i1) if some is None else some
            every = some if every is None else at.emit(arith.AndIOp, (every, some), i1)
        assert every is not None
        return every

    def _sure(self, at: Cursor, conditions: BlockConditions, condition: SSAValue, holds: bool) -> SSAValue:
        """Whether a condition surely is something in a block."""
        ends = conditions.ends(condition)
        assert ends is not None
        return ends[1] if holds else at.emit(arith.XOrIOp, (ends[0], at.constant(1, i1)), i1)

    def finish(self, masked: str, sure: str | None) -> None:
        """Have the call name the functions of blocks."""
        extern = self.extern
        extern.properties["call"] = CallAttr(self.call.as_call())
        del extern.attributes[TERMS]
        for key, name in ((MASKED, masked), (SURE, sure)):
            if name:
                extern.attributes[key] = SymbolRefAttr(name)
