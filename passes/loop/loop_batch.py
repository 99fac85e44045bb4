"""Horizontal fusion: equal parts of a graph over a list of tensors become one body that is written, fused and compiled once.

A training step's optimiser does the same for each of hundreds of parameters. The parts (batch_find.py) are taken out of the function: the
first of each kind becomes the body of a `loop.batch`, a function of its own on flat tensors, and the others are only entries in its list.
The passes that follow lower and fuse the body as they do any function; mem-to-cpu makes one kernel of it that walks over the list.

The counterpart in Inductor is the combo kernel of `foreach` nodes; multi-tensor-apply in CUDA libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FusedLoc, ModuleOp, NoneAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import Expr, Sym, evaluate, free_syms, sym
from ...dialects.nd_base import ExprsAttr, IntsAttr
from ...dialects.nd_types import RangeAttr, TensorType, tensor_type
from ..manager import Pass
from .batch_find import Part, Parts, is_free, is_scalar
from .fusion_wishes import is_named, operator_of
from .loop_fuse import symbol_hints

FEWEST = 4
"""Entries that make a list. Fewer equal nests cost as little to compile one by one, and know their sizes."""


@dataclass(frozen=True)
class LoopBatch(Pass):
    """Makes one body of equal parts of a graph over a list of tensors."""

    name = "loop-batch"

    fewest: int = FEWEST
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
                made = writer.write(family)
                if isinstance(made, str):
                    self.remark(family[0].ops[-1], f"{len(family)} equal parts are no list: {made}", kind="missed")
                    continue
                self.statistic("num-batches")
                self.statistic("num-entries", len(family))
                self.remark(made, f"{len(family)} equal parts of {len(family[0].ops)} operations are one list", kind="applied")

    def _is_apart(self, op: Operation) -> bool:
        return any(is_named(op, operator_of(entry)) for entry in self.apart)


class Families:
    """Equal parts, as lists of at least `fewest`; and parts that equal others but are refused, with the number of their equals."""

    def __init__(self, parts: Sequence[Part], fewest: int):
        alike: dict[tuple[object, ...], list[Part]] = {}
        for part in parts:
            alike.setdefault(part.key, []).append(part)
        self.found: list[list[Part]] = []
        self.refused: list[tuple[Part, int]] = []
        for same in alike.values():
            if len(same) < fewest:
                continue
            self.refused += [(p, len(same) - 1) for p in same if p.refused]
            for family in _by_roles([p for p in same if not p.refused]):
                if len(family) >= fewest:
                    self.found.append(family)


def _by_roles(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts that agree in which values are scalars. One where all are fits any: its tensors have one element each."""
    groups: dict[tuple[bool, ...], list[Part]] = {}
    for part in parts:
        groups.setdefault(part.roles, []).append(part)
    alone = next((roles for roles in groups if all(roles)), None)
    if alone is not None and len(groups) > 1:
        flexible = groups.pop(alone)
        largest = max(groups.values(), key=len)
        largest += flexible
    return list(groups.values())


class BatchWriter:
    """Replaces the families of one function by batches."""

    def __init__(self, module: ModuleOp, func: FuncOp):
        self.module = module
        self.block = func.body.block
        self.position: dict[Operation, float] = {op: float(k) for k, op in enumerate(self.block.ops)}
        self.hints = symbol_hints(module)
        self._names = {o.sym_name.data for o in module.ops if isinstance(o, FuncOp)}
        self._anchors: dict[float, tuple[Operation | None, int]] = {}
        self._at = list(self.block.ops)

    def write(self, family: Sequence[Part]) -> loop.BatchOp | str:
        """The batch that takes the place of the parts; or why there cannot be one, and nothing is changed."""
        after = max((self._defined(v) for part in family for v in part.inputs), default=-1.0)
        inside = {op for part in family for op in part.ops}
        for part in family:
            for value in part.outputs:
                if any(self.position[u.operation] <= after for u in value.uses if u.operation not in inside):
                    return "an entry needs what is computed from another one"
        # the entry whose values are not all scalars says what a tensor of the body is
        model = next((p for p in family if p.dims is not None), family[0])
        symbols, body = self._body(model, family)
        sizes = [[part.numel for _ in symbols] for part in family]
        batch = loop.BatchOp.make(
            body.sym_name.data, [p.inputs for p in family], sizes, [[v.type for v in p.outputs] for p in family]
        )
        batch.location = FusedLoc(ArrayAttr([op.location for part in family for op in part.ops]), NoneAttr())
        self._insert(batch, after)
        for part, results in zip(family, batch.entry_results(), strict=True):
            for old, new in zip(part.outputs, results, strict=True):
                new.name_hint = old.name_hint
                old.replace_all_uses_with(new)
        for part in family:
            for op in part.ops:
                self.position[op] = self.position[batch]
                op.detach()
        constants = {v.owner for part in family for op in part.ops for v in op.operands if v not in part.inputs}
        for part in family:
            for op in part.ops:
                op.drop_all_references()
        for op in constants:
            if isinstance(op, Operation) and is_free(op) and op.parent is not None and not op.results[0].uses:
                op.detach()
        return batch

    def _defined(self, value: SSAValue) -> float:
        owner = value.owner
        return self.position[owner] if isinstance(owner, Operation) else -1.0

    def _insert(self, batch: loop.BatchOp, after: float) -> None:
        """Put the batch behind the op at position `after` and behind the batches that are there already."""
        anchor, count = self._anchors.get(after, (self._op_at(after), 0))
        if anchor is not None:
            self.block.insert_op_after(batch, anchor)
        elif self.block.first_op is not None:
            self.block.insert_op_before(batch, self.block.first_op)
        self._anchors[after] = batch, count + 1
        self.position[batch] = after + (count + 1) / 1e6

    def _op_at(self, position: float) -> Operation | None:
        if position < 0:
            return None
        if position.is_integer():
            return self._at[int(position)]
        return next(op for op, at in self.position.items() if at == position and isinstance(op, loop.BatchOp))

    # ---- the body

    def _body(self, model: Part, family: Sequence[Part]) -> tuple[list[Sym], FuncOp]:
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
