"""Equal layers of a network are planned once: each run of equal parts becomes calls of one private function.

    %1 = nd.matmul %x, %w0 ...  %9 = ...          %9 = func.call @layer0(%x, %w0, ...)
    %11 = nd.matmul %9, %w1 ... %19 = ...   ->    %19 = func.call @layer0(%9, %w1, ...)

The passes that follow lower and fuse the function as any other, `loop-inline` puts what became of it in the place of the calls. The parts
are cut where fusion has nothing to join (repeat_find.py), so that the outcome is that of planning each layer by itself.

The counterpart in MLIR is region outlining; XLA and Inductor leave it to the user (a scan over layers, regional compilation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FusedLoc, ModuleOp, NoneAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects import nd
from ....dialects.loop import batch_symbols
from ....dialects.support.create import create
from ...manager.pass_manager import Pass
from .repeat_find import FREE, RepeatedPart, Steps


@dataclass(frozen=True)
class LoopOutline(Pass):
    """Makes one function of equal layers, to be planned once; loop-inline takes it back."""

    name = "loop-outline"

    fewest: int = 2
    """Equal parts that are worth a function."""

    smallest: int = 16
    """Operations that are worth a function, views not counted."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in [f for f in op.ops if isinstance(f, FuncOp) and batch_symbols(f) is None]:
            steps = Steps(func, self.fewest, self.smallest)
            runs = steps.find()
            outliner = Outliner(op, steps)
            for parts in runs:
                calls = outliner.outline(parts)
                self.statistic("num-functions")
                self.statistic("num-calls", len(calls))
                text = f"{len(calls)} equal parts of {len(parts[0].steps)} operations are planned once"
                self.remark(calls[0], text, kind="applied")
            if runs:
                _sweep(func.body.block)


class Outliner:
    """Puts calls in the place of equal parts of one function, run after run in program order."""

    def __init__(self, module: ModuleOp, steps: Steps):
        self.module = module
        self.steps = steps
        self.new: dict[SSAValue, SSAValue] = {}
        """What became of the values of parts."""

    def outline(self, parts: Sequence[RepeatedPart]) -> list[CallOp]:
        """Calls of a function that is made from the first part."""
        callee = {"callee": SymbolRefAttr(self._function(parts))}
        types = [v.type for v in parts[0].outputs]
        calls: list[CallOp] = []
        for part in parts:
            call = create(CallOp, self._inputs(part), types, callee, location=_location(part))
            block = part.steps[0].parent
            assert block is not None
            block.insert_op_before(call, part.steps[0])
            for value in call.operands:
                if isinstance(value.owner, nd.SliceOp):  # of a site's seeds
                    value.owner.detach()
                    block.insert_op_before(value.owner, call)
            calls.append(call)
            for old, new in zip(part.outputs, call.results, strict=True):
                new.name_hint = old.name_hint
                old.replace_all_uses_with(new)
                self.new[old] = new
            for step in part.steps:
                step.detach()
            for step in part.steps:
                step.drop_all_references()
        return calls

    def _inputs(self, part: RepeatedPart) -> list[SSAValue]:
        return [self.new.get(v, v) for v in part.inputs]

    def _function(self, parts: Sequence[RepeatedPart]) -> str:
        """Add a function of the steps of the first part to the module; gives its name."""
        part = parts[0]
        inputs = self._inputs(part)
        types = [v.type for v in inputs]
        block = Block(arg_types=types)
        values: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
        for old, new in values.items():
            new.name_hint = old.name_hint

        def value_of(old: SSAValue) -> SSAValue:
            found = values.get(old)
            if found is None:
                assert isinstance(old.owner, FREE)
                copy(old.owner)
                found = values[old]
            return found

        def copy(op: Operation) -> None:
            operands = [value_of(v) for v in op._operands]
            new = create(type(op), operands, [r.type for r in op.results], op.properties, location=op.location)
            new.attributes.update(op.attributes)
            block.add_op(new)
            for old, result in zip(op.results, new.results, strict=True):
                values[old] = result
                result.name_hint = old.name_hint

        for step in part.steps:
            copy(step)
        returned = [values[v] for v in part.outputs]
        block.add_op(create(ReturnOp, returned))
        taken = {o.sym_name.data for o in self.module.ops if isinstance(o, FuncOp)}
        name = next(n for k in range(len(taken) + 1) if (n := f"layer{k}") not in taken)
        kinds = types, [v.type for v in returned]
        made = FuncOp(name, kinds, Region(block), "private", arg_attrs=ArrayAttr(self.steps.layouts(parts)))
        made.location = _location(part)
        self.module.body.block.add_op(made)
        return name


def _location(part: RepeatedPart) -> FusedLoc:
    """The locations of the steps of a part, in order: by them loop-inline gives each layer its own."""
    return FusedLoc(ArrayAttr([step.location for step in part.steps]), NoneAttr())


def _sweep(block: Block) -> None:
    """Remove views and constants that only the parts have used."""
    for op in reversed(list(block.ops)):
        if isinstance(op, FREE) and not any(r.first_use is not None for r in op.results):
            op.detach()
            op.drop_all_references()
