"""Horizontal fusion: equal parts of a graph over a list of tensors become one body that is written, fused and compiled once.

A training step's optimiser does the same for each of hundreds of parameters. The parts (batch_find.py) are taken out of the function: the
first of each kind becomes the body of a `loop.batch`, a function of its own on flat tensors, and the others are only entries in its list.
The passes that follow lower and fuse the body as they do any function; mem-to-cpu makes one kernel of it that walks over the list.

The counterpart in Inductor is the combo kernel of `foreach` nodes; multi-tensor-apply in CUDA libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FusedLoc, ModuleOp, NoneAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ....dialects import loop, nd
from ....dialects.expr import Expr, Sym, evaluate, free_syms, sym
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.types import RangeAttr, TensorType, tensor_type
from ...analysis.call_order import needs_besides_values
from ...analysis.origins import is_named, operator_of
from ...analysis.symbols import symbol_hints
from ...manager.pass_manager import Pass
from .batch_find import IndependentPart, Parts, is_free, is_scalar

MIN_LIST_ENTRIES = 4
"""Entries that make a list. Fewer equal nests cost as little to compile one by one, and know their sizes."""


@dataclass(frozen=True)
class LoopBatch(Pass):
    """Makes one body of equal parts of a graph over a list of tensors."""

    name = "loop-batch"

    fewest: int = MIN_LIST_ENTRIES
    """Equal parts that make a list."""

    apart: tuple[str, ...] = ()
    """Values (by name) and source lines (`file:line`) that stay out of lists."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in [f for f in op.ops if isinstance(f, FuncOp) and loop.batch_symbols(f) is None]:
            parts = Parts(func, self._is_apart, self.fewest).find()
            families = Families(parts, self.fewest)
            for part, count in families.refused:
                self.remark(part.ops[-1], f"not in a list with {count} equal parts: {part.refused}", kind="missed")
            writer = BatchWriter(op, func)
            for family in families.found:
                left = list(family)
                while entries := writer.at_once(left, self.fewest):
                    made = writer.write(entries)
                    gone = set(map(id, entries))
                    left = [part for part in left if id(part) not in gone]
                    self.statistic("num-batches")
                    self.statistic("num-entries", len(entries))
                    self.remark(made, f"{len(entries)} equal parts of {len(entries[0].ops)} operations are one list", kind="applied")
                if left:
                    where = f"not in a list ({len(left)} of {len(family)} equal parts)"
                    self.remark(left[0].ops[-1], f"{where}: an entry needs what is computed from another one", kind="missed")

    def _is_apart(self, op: Operation) -> bool:
        return any(is_named(op, operator_of(entry)) for entry in self.apart)


class Families:
    """Equal parts, as lists of at least `fewest`; and parts that equal others but are refused, with the number of their equals."""

    def __init__(self, parts: Sequence[IndependentPart], fewest: int):
        alike: dict[tuple[object, ...], list[IndependentPart]] = {}
        for part in parts:
            alike.setdefault(part.key, []).append(part)
        self.found: list[list[IndependentPart]] = []
        self.refused: list[tuple[IndependentPart, int]] = []
        for same in alike.values():
            if len(same) < fewest:
                continue
            self.refused += [(p, len(same) - 1) for p in same if p.refused]
            for family in _by_roles([p for p in same if not p.refused]):
                if len(family) >= fewest:
                    self.found.append(family)


def _by_roles(parts: Sequence[IndependentPart]) -> list[list[IndependentPart]]:
    """Parts that agree in which values are scalars. One where all are fits any: its tensors have one element each."""
    groups: dict[tuple[bool, ...], list[IndependentPart]] = {}
    for part in parts:
        groups.setdefault(part.roles, []).append(part)
    alone = next((roles for roles in groups if all(roles)), None)
    if alone is not None and len(groups) > 1:
        flexible = groups.pop(alone)
        largest = max(groups.values(), key=len)
        largest += flexible
    return list(groups.values())


class BatchWriter:
    """Replaces parts of one function by batches."""

    def __init__(self, module: ModuleOp, func: FuncOp):
        self.module = module
        self.block = func.body.block
        self.order: list[Operation] = []
        self.position: dict[Operation, int] = {}
        self._number()
        self.results: dict[SSAValue, SSAValue] = {}
        """What parts gave -> the results of batches in their place."""
        self.needs = needs_besides_values(list(self.block.ops))
        self.hints = symbol_hints(module)
        self._names = {o.sym_name.data for o in module.ops if isinstance(o, FuncOp)}

    def _number(self) -> None:
        self.order = list(self.block.ops)
        self.position = {op: k for k, op in enumerate(self.order)}

    # ---- what may run at once

    def at_once(self, family: Sequence[IndependentPart], fewest: int) -> list[IndependentPart]:
        """Parts of a family that one operation can compute; none where there are fewer than `fewest`.

        A part may stand anywhere between the last operation that it needs and the first that needs it. One place lies in the ranges of
        all parts that are given. So none of them needs another one: its range would begin where that of the other has ended."""
        if len(family) < fewest:
            return []
        for part in family:
            part.inputs = [self.results.get(v, v) for v in part.inputs]
        makers = {op: part for part in family for op in part.ops}
        ranges = [(self._ready(part), self._needed(part, makers)) for part in family]
        first = min(end for _, end in ranges)
        if all(begin < first for begin, _ in ranges):
            return list(family)
        places = {end for _, end in ranges}
        most = max(places, key=lambda place: (sum(begin < place <= end for begin, end in ranges), -place))
        found = [part for part, (begin, end) in zip(family, ranges, strict=True) if begin < most <= end]
        return found if len(found) >= fewest else []

    def _ready(self, part: IndependentPart) -> int:
        """The position of the last operation that a part needs, -1 without one."""
        before = [v.owner for v in part.inputs] + [op for own in part.ops for op in self.needs.get(own, ())]
        return max((self.position[op] for op in before if isinstance(op, Operation)), default=-1)

    def _needed(self, part: IndependentPart, makers: Mapping[Operation, IndependentPart]) -> int:
        """The position of the first operation that needs a part. Where another part of the family does, that of the value that it needs."""
        found = [len(self.position)]
        for value in part.outputs:
            assert isinstance(value.owner, Operation)
            for use in value.uses:
                user = makers.get(use.operation)
                if user is None:
                    found.append(self.position[use.operation])
                elif user is not part:
                    found.append(self.position[value.owner])
        return min(found)

    # ---- the rewrite

    def write(self, family: Sequence[IndependentPart]) -> loop.BatchOp:
        """The batch that takes the place of parts that can run at once."""
        after = max(map(self._ready, family))
        # the entry whose values are not all scalars says what a tensor of the body is
        model = next((p for p in family if p.dims is not None), family[0])
        symbols, body = self._body(model, family)
        sizes = [[part.numel for _ in symbols] for part in family]
        batch = loop.BatchOp.make(body.sym_name.data, [p.inputs for p in family], sizes, [[v.type for v in p.outputs] for p in family])
        batch.location = FusedLoc(ArrayAttr([op.location for part in family for op in part.ops]), NoneAttr())
        self._insert(batch, after)
        for part, results in zip(family, batch.entry_results(), strict=True):
            for old, new in zip(part.outputs, results, strict=True):
                new.name_hint = old.name_hint
                old.replace_all_uses_with(new)
                self.results[old] = new
        for part in family:
            for op in part.ops:
                op.detach()
        constants = {v.owner for part in family for op in part.ops for v in op.operands if v not in part.inputs}
        for part in family:
            for op in part.ops:
                op.drop_all_references()
        for op in constants:
            if isinstance(op, Operation) and is_free(op) and op.parent is not None and not op.results[0].uses:
                op.detach()
        self._number()
        return batch

    def _insert(self, batch: loop.BatchOp, after: int) -> None:
        """Put the batch behind the op at position `after`."""
        if after >= 0:
            self.block.insert_op_after(batch, self.order[after])
        elif self.block.first_op is not None:
            self.block.insert_op_before(batch, self.block.first_op)

    # ---- the body

    def _body(self, model: IndependentPart, family: Sequence[IndependentPart]) -> tuple[list[Sym], FuncOp]:
        numels = {part.numel for part in family}
        symbols: list[Sym] = []
        if model.dims is None:
            flat: tuple[Expr, ...] = ()
        elif len(numels) == 1 and model.numel.is_const:
            flat = (model.numel,)
        else:
            symbols = [self._symbol(numels)]
            flat = (symbols[0],)

        def formal(t: Attribute, scalar: bool) -> Attribute:
            return t.with_dims(() if scalar else flat) if isinstance(t, TensorType) else t

        types = [formal(v.type, not isinstance(v.type, TensorType) or is_scalar(v)) for v in model.inputs]
        block = Block(arg_types=types)
        values: dict[SSAValue, SSAValue] = dict(zip(model.inputs, block.args, strict=True))
        for old, new in values.items():
            new.name_hint = old.name_hint
        free: dict[tuple[object, ...], SSAValue] = {}

        def value_of(old: SSAValue) -> SSAValue:
            found = values.get(old)
            if found is None:
                op = old.owner
                assert isinstance(op, Operation) and is_free(op)
                t = formal(old.type, is_scalar(old))
                key = (type(op), op.properties.get("value"), t, *op.operands)
                found = free.get(key)
                if found is None:
                    found = free[key] = add(op, [values[v] for v in op.operands], [t])[0]
                values[old] = found
            return found

        def add(op: Operation, operands: Sequence[SSAValue], results: Sequence[Attribute]) -> Sequence[SSAValue]:
            properties = dict(op.properties)
            if isinstance(op, nd.ReduceOp):
                properties["dims"] = IntsAttr.get(range(tensor_type(operands[0]).rank))
            new = type(op).create(operands=operands, result_types=results, properties=properties, attributes=dict(op.attributes))
            new.location = op.location
            block.add_op(new)
            return new.results

        for op in model.ops:
            operands = [value_of(v) for v in op.operands]
            for old, new in zip(op.results, add(op, operands, [formal(r.type, is_scalar(r)) for r in op.results]), strict=True):
                values[old] = new
                new.name_hint = old.name_hint
        returned = [values[v] for v in model.outputs]
        block.add_op(ReturnOp.create(operands=returned))
        func = FuncOp(self._name(), (types, [v.type for v in returned]), Region(block), visibility="private")
        func.attributes[loop.BATCH] = ExprsAttr.get(symbols)
        func.location = model.ops[-1].location
        self.module.body.block.add_op(func)
        return symbols, func

    def _name(self) -> str:
        name = next(n for k in range(len(self._names) + 1) if (n := f"batch{k}") not in self._names)
        self._names.add(name)
        return name

    def _symbol(self, numels: set[Expr]) -> Sym:
        """A size symbol for the elements of an entry's tensors."""
        table = self.module.attributes.get("nd.symbols")
        known = dict(table.data) if isinstance(table, DictionaryAttr) else {}
        name = next(n for k in range(len(known) + 1) if (n := f"b{k}") not in known)
        typical = max(evaluate(e, {s: self.hints.get(s.name, 64) for s in free_syms(e)}) for e in numels)
        bounds = [int(e) if e.is_const else None for e in numels]
        low = 0 if None in bounds else min(bounds)  # pyright: ignore[reportArgumentType]
        high = None if None in bounds else max(bounds)  # pyright: ignore[reportArgumentType]
        known[name] = RangeAttr.get(low, high, typical)
        self.module.attributes["nd.symbols"] = DictionaryAttr(known)
        return sym(name)
