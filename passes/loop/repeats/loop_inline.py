"""The functions that loop-outline made, planned and fused by now, take the place of their calls.

Each call gets a copy with the locations and names of its own layer. The counterpart of MLIR's `inline`, for functions that are called
from one block and consist of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, FusedLoc, LocationAttr, ModuleOp, NameLoc, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects.support.create import create
from ...manager.pass_manager import Pass


@dataclass(frozen=True)
class LoopInline(Pass):
    """Puts the bodies of private functions in the place of their calls."""

    name = "loop-inline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = {f.sym_name.data: f for f in op.ops if isinstance(f, FuncOp)}
        called: set[FuncOp] = set()
        for func in functions.values():
            for call in [c for c in func.body.block.ops if isinstance(c, CallOp)]:
                body = functions.get(call.callee.string_value())
                if body is None or body.sym_visibility is None or not body.body.blocks:
                    self.fail(call, f"there is no private function @{call.callee.string_value()} with a body to take the place of its call")
                inline(call, body)
                self.statistic("num-calls")
                called.add(body)
        for body in called:
            body.detach()
            body.drop_all_references()


def inline(call: CallOp, body: FuncOp) -> None:
    """Replace a call by a copy of what it calls."""
    block = call.parent
    assert block is not None
    copier = Copier(body.location, call.location)
    copier.values.update(zip(body.body.block.args, call.operands, strict=True))
    for op in body.body.block.ops:
        if isinstance(op, ReturnOp):
            for old, value in zip(call.results, op.operands, strict=True):
                new = copier.values[value]
                new.name_hint = old.name_hint
                old.replace_all_uses_with(new)
            break
        block.insert_op_before(copier.op(op), call)
    call.detach()
    call.drop_all_references()


class Copier:
    """Copies ops; what lies at a location of one layer comes to lie at the same place of another."""

    def __init__(self, source: LocationAttr, target: LocationAttr):
        self.values: dict[SSAValue, SSAValue] = {}
        self._locations: dict[LocationAttr, LocationAttr] = dict(zip(_parts(source), _parts(target), strict=False))
        self._names = {a: b for old, new in self._locations.items() if (a := _name(old)) and (b := _name(new))}

    def op(self, op: Operation) -> Operation:
        """A copy, over the values that were copied before."""
        values = self.values
        regions = [Region([self._shell(b) for b in region.blocks]) for region in op.regions]
        operands, kinds = [values.get(v, v) for v in op._operands], [r.type for r in op.results]
        new = create(type(op), operands, kinds, op.properties, regions, self.location(op.location))
        if op.attributes:
            new.attributes.update(op.attributes)
        label = op.properties.get("label")
        if isinstance(label, StringAttr) and self._names:
            new.properties["label"] = StringAttr(self._label(label.data))
        for old, result in zip(op.results, new.results, strict=True):
            values[old] = result
            if old._name is not None:
                result.name_hint = self._names.get(old._name)  # without the number behind it, which the printer gives
        for region, made in zip(op.regions, regions, strict=True):
            for source, target in zip(region.blocks, made.blocks, strict=True):
                for inner in source.ops:
                    target.add_op(self.op(inner))
        return new

    def _label(self, label: str) -> str:
        """A label, which names values of one layer, with the names of the other."""
        words, found, at = label.split("_"), [], 0
        while at < len(words):
            end = next((k for k in range(len(words), at, -1) if "_".join(words[at:k]) in self._names), 0)
            found.append(self._names["_".join(words[at:end])] if end else words[at])
            at = end or at + 1
        return "_".join(found)

    def _shell(self, block: Block) -> Block:
        """A block with the arguments of another one."""
        made = Block(arg_types=[a.type for a in block.args])
        self.values.update(zip(block.args, made.args, strict=True))
        return made

    def location(self, location: LocationAttr) -> LocationAttr:
        """The same place in the other layer."""
        found = self._locations.get(location)
        if found is None:
            found = location
            if isinstance(location, FusedLoc):
                found = FusedLoc(ArrayAttr([self.location(part) for part in _parts(location)]), location.metadata)
            self._locations[location] = found
        return found


def _parts(location: LocationAttr) -> list[LocationAttr]:
    if not isinstance(location, FusedLoc) or not isinstance(location.locations, ArrayAttr):
        return []
    return list(location.locations.data)  # pyright: ignore[reportReturnType]


def _name(location: LocationAttr) -> str | None:
    return location.desc.data if isinstance(location, NameLoc) else None
