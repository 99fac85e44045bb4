"""loop-fuse-tables: small tables of indices and numbers become memory of the nest that reads them.

    %t = loop.nest (%i = 64) outs(...) { ... loop.store %w, %out[%i] }
    %y = loop.nest (%c = 512) outs(...) { loop.for (%j = 64) { ... loop.load %t[%j] ... } }
      ->   %y = loop.nest (%c = 512) outs(...) {
             %t = loop.local;  loop.for (%i = 64) { ... loop.store %w, %t[%i] }
             loop.for (%j = 64) { ... loop.load %t[%j] ... } }

A table reads no tensor, so that it is the same in every iteration: a thread computes it once for its share of them (repeated_fills.py),
on its stack, and it takes neither a launch nor memory of the graph. Runs behind the passes that give nests loops inside and loop-layout; a
nest whose own loops run along the lanes keeps its tables in memory, since memory of an iteration would keep them from it. The counterpart
in Halide is `compute_at` the loop over threads. What nd.barrier keeps from being computed for each element is still computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr
from ....dialects.expr.ranges import RangeEnv
from ....dialects.support.names import name_indices
from ...analysis.known_layouts import known_strides
from ...analysis.nest_access import NestAccess
from ...analysis.origins import title
from ...analysis.repeated_fills import is_repeated
from ...analysis.symbols import symbol_facts
from ...cost.nest_cost import Cost
from ...cost.schedule_choice import choose, has_few_units
from ...manager.pass_manager import Pass
from .loop_fuse import BORDER
from .rows.plan import MARKED


@dataclass(frozen=True)
class TableFusion:
    """A table that is computed in its reader: the nest that computed it, and the bytes that no longer go to memory and come back. Or the
    reason why it is not."""

    table: loop.NestOp
    reader: loop.NestOp
    reason: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class LoopFuseTables(Pass):
    """Computes small tables of indices and numbers in the nest that reads them, once for each thread."""

    name = "loop-fuse-tables"

    bytes: int = 32768
    """Memory that the tables of one nest may take, on the stack of a CPU's thread."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            search = TableSearch(func, symbols, hints, self.bytes)
            search.run()
            self.statistic("num-merged", len(search.fused))
            if self.remarks_wanted:
                for fused in search.fused:
                    self.remark(fused.table, f"a table of its reader {title(fused.reader)}, computed once for each thread", "applied")
                for refused in search.refused:
                    self.remark(refused.table, f"not a table of {title(refused.reader)}: {refused.reason}", "missed")
            self.record("table-fusion", search)


class TableSearch:
    """Tries the nests of one function as tables, the last one first, each with the tables that it is made of."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, hints: Mapping[Expr, int], most: int):
        self.symbols, self.hints, self.most = symbols, hints, most
        self.strides = known_strides(func)
        self.fused: list[TableFusion] = []
        self.refused: list[TableFusion] = []
        self._tables = _tables(func.body.block)
        self._place = {nest: k for k, nest in enumerate(self._tables)}
        self._used: dict[loop.NestOp, int] = {}
        """Bytes of the tables that a nest has."""
        self._unfit: dict[loop.NestOp, str] = {}

    def run(self) -> None:
        """Move each table into its reader, where it has one and that costs nothing."""
        for nest in reversed(self._tables):
            reader = _reader(nest)
            if nest.parent is None or reader is None or reader in self._tables:
                continue
            parts = self._parts(nest)
            reason = self._refusal(nest, parts, reader)
            if reason:
                self.refused.append(TableFusion(nest, reader, reason))
                continue
            for part in parts:
                size = _bytes(part)
                self._used[reader] = self._used.get(reader, 0) + size
                self.fused.append(TableFusion(part, reader, "", 2 * size))
                _move(part, reader)

    def _parts(self, nest: loop.NestOp) -> list[loop.NestOp]:
        """A table and the tables that it is made of, each before those that it reads."""
        found = {nest}
        for part in self._tables[nest]:
            found.update(self._parts(part))
        return sorted(found, key=lambda n: -self._place[n])

    def _refusal(self, nest: loop.NestOp, parts: list[loop.NestOp], reader: loop.NestOp) -> str:
        if any(part.attributes.get("no_fuse", BORDER) != BORDER for part in parts):
            return MARKED
        if any(not users <= {reader, *parts} for part in parts for users in [_users(part)]):
            return "others read what it is made of"
        if self._used.get(reader, 0) + sum(map(_bytes, parts)) > self.most:
            return f"the tables would take more than {self.most} bytes"
        if any(choose(NestAccess(part, self.symbols), self.hints).parallel for part in parts):
            return "it is long enough for several threads"
        if reader not in self._unfit:
            self._unfit[reader] = self._unable(reader)
        return self._unfit[reader]

    def _unable(self, reader: loop.NestOp) -> str:
        """Why a nest cannot have memory of its own without a loss, if it cannot."""
        if "no_fuse" in reader.attributes:
            return f"{title(reader)} is marked no_fuse"
        info = NestAccess(reader, self.symbols, strides=self.strides)
        if info.local:
            return ""
        schedule = choose(info, self.hints)
        if schedule.style != "inner":
            return f"the loops of {title(reader)} run along the lanes"
        if not schedule.free or schedule.serial or has_few_units(Cost(info, self.hints), schedule):
            return f"the loops of {title(reader)} run in order, or are too few"
        if any(isinstance(o, loop.ForOp) and o.sequential is not None for o in reader.block.ops):
            return f"the loops of {title(reader)} run in order"
        return ""


def _tables(block: Block) -> dict[loop.NestOp, list[loop.NestOp]]:
    """The nests that could be loops that fill memory of known sizes with the same in every iteration of another nest, in order, with those
    of them that they read."""
    found: dict[loop.NestOp, list[loop.NestOp]] = {}
    results: dict[SSAValue, loop.NestOp] = {}
    readable: set[SSAValue] = set()
    for nest in block.ops:
        if not isinstance(nest, loop.NestOp) or not nest.results or not all(isinstance(out.owner, loop.EmptyOp) for out in nest.outs):
            continue
        known = all(size.value is not None for r in nest.results for size in loop.shaped_dims(r.type))
        own = set(nest.out_args)
        readable |= own
        if not known or not is_repeated(nest, set(), readable, own):
            continue
        if any(isinstance(o, loop.ForOp) and o.sequential is not None for o in nest.block.ops):
            continue
        read = {results[o.source]: None for o in loop.walk_bodies(nest) if isinstance(o, loop.LoadOp) and o.source in results}
        found[nest] = list(read)
        results.update((r, nest) for r in nest.results)
        readable.update(nest.results)
    return found


def _bytes(nest: loop.NestOp) -> int:
    """Bytes of the results of a table."""
    return sum(loop.local_bytes(r.type) for r in nest.results)


def _users(nest: loop.NestOp) -> set[loop.NestOp | None]:
    """The nests that read the results of this one element by element; None for whatever else needs them."""
    uses = [use.operation for r in nest.results for use in r.uses]
    return {loop.nest_around(op) if isinstance(op, loop.LoadOp) else None for op in uses}


def _reader(nest: loop.NestOp) -> loop.NestOp | None:
    """The nest that alone reads the results of this one, element by element; None where there is none."""
    users = _users(nest)
    return users.pop() if len(users) == 1 else None


def _move(nest: loop.NestOp, reader: loop.NestOp) -> None:
    """Compute `nest` in the first statements of `reader`, into memory of its iterations."""
    fill = loop.ForOp.build_for(nest.loop_sizes)
    fill.location = nest.location
    name_indices(fill.indices, len(reader.loop_sizes))
    copies: dict[SSAValue, SSAValue] = dict(zip(nest.indices, fill.indices, strict=True))
    made: list[Operation] = []
    for result, argument in zip(nest.results, nest.out_args, strict=True):
        local = loop.LocalOp.make(result.type)
        local.result.name_hint = result.name_hint
        result.replace_all_uses_with(local.result)
        copies[argument] = local.result
        made.append(local)
    fill.block.add_ops([op.clone(copies) for op in nest.block.ops])
    first = reader.block.first_op
    assert first is not None
    reader.block.insert_ops_before([*made, fill], first)
    loop.drop_nest(nest)
