"""When the tensors of a function at the loop level are used: positions of its ops, what each nest captures, last uses.

Positions count the ops of the function's block from 0; what is returned and the new values of arguments are used at the
position of the return. A tensor is used as long as one of its views is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.nd.base import prop
from ...dialects.nd.types import TensorType
from ...passes.mem.arena.peak import DONATED


class Liveness:
    """Positions and last uses of one function; computed once, before anything is rewritten."""

    def __init__(self, func: FuncOp):
        self.ops: list[Operation] = list(func.body.block.ops)
        self.captured: dict[Operation, list[SSAValue]] = {}
        """For every nest and contraction the tensors that its bodies (and a contraction's operands) read, each once."""
        self.last: dict[SSAValue, int] = {}
        """Last position at which a tensor or a view of it is read; absent for tensors that nothing reads."""
        self.returned: set[SSAValue] = set()
        """Tensors whose memory a result of the function is, or would be where everything is stored in place."""
        self.donated = _donated(func)
        """Arguments whose memory nobody else needs, and no other argument shares."""
        results = func.res_attrs.data if func.res_attrs is not None else ()
        self.result_attrs: list[dict[str, Attribute]] = [
            dict(a.data) if isinstance(a, DictionaryAttr) else {} for a in results
        ]
        for position in range(len(self.ops) - 1, -1, -1):
            self._visit(self.ops[position], position)

    def last_use(self, tensor: SSAValue) -> int:
        """The last position at which `tensor` is read, -1 for never."""
        return self.last.get(tensor, -1)

    def alias(self, result: int) -> str | None:
        """What result `result` of the function is a view of by its attribute nd.alias: "arg 2", "result 0" or None."""
        attrs = self.result_attrs[result] if result < len(self.result_attrs) else {}
        found = attrs.get("nd.alias")
        return found.data if isinstance(found, StringAttr) else None

    def _visit(self, op: Operation, position: int) -> None:
        used: Sequence[SSAValue] = op.operands
        if isinstance(op, (loop.NestOp, loop.ContractOp)):
            captured = self.captured[op] = captured_tensors(op)
            used = [*captured, *op.outs]
        elif isinstance(op, nd.UpdateOp):
            used, position = (op.value,), len(self.ops) - 1  # arguments are overwritten at the end
        elif isinstance(op, ReturnOp):
            used = [v for k, v in enumerate(op.operands) if self.alias(k) is None]
            self.returned.update(used)
        last = self.last
        for value in used:
            if last.get(value, -1) < position:
                last[value] = position
        if isinstance(op, nd.IndexViewOp):
            self._shares(op.input, op.result)
        elif isinstance(op, nd.ExternOp):
            for result, operand in zip(op.results, prop(op, "aliases") or (), strict=False):
                if operand >= 0:
                    self._shares(op.operands[operand], result)
            written: Sequence[int] = prop(op, "mutates") or ()
            for result, operand in zip(op.results[len(op.results) - len(written) :], written, strict=True):
                if result in self.returned:
                    self.returned.add(op.operands[operand])
        elif isinstance(op, (loop.NestOp, loop.ContractOp)):
            self.returned.update(out for out, result in zip(op.outs, op.results, strict=True) if result in self.returned)

    def _shares(self, base: SSAValue, view: SSAValue) -> None:
        self._extend(base, self.last_use(view))
        if view in self.returned:
            self.returned.add(base)

    def _extend(self, value: SSAValue, position: int) -> None:
        if self.last_use(value) < position:
            self.last[value] = position


def _donated(func: FuncOp) -> set[SSAValue]:
    """Arguments marked nd.donated that no other one shares memory with (by the names under nd.base)."""
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    bases: Counter[Attribute | None] = Counter(a.data["nd.base"] for a in attrs if isinstance(a, DictionaryAttr) and "nd.base" in a.data)
    return {
        argument
        for argument, a in zip(func.body.block.args, attrs, strict=False)
        if isinstance(a, DictionaryAttr) and DONATED in a.data and bases.get(a.data.get("nd.base"), 1) == 1
    }


def captured_tensors(op: loop.NestOp | loop.ContractOp) -> list[SSAValue]:
    """The tensors (or buffers) from outside that `op` reads, each once, in the order in which they are met."""
    found: dict[SSAValue, None] = {}
    if isinstance(op, loop.ContractOp):
        found[op.lhs] = found[op.rhs] = None
    for region in op.regions:
        for block in region.blocks:
            _captured(block, found)
    return list(found)


def _captured(block: Block, found: dict[SSAValue, None]) -> None:
    for op in block.ops:
        if isinstance(op, loop.AccessOp):
            shaped = op.shaped
            if not isinstance(shaped.owner, loop.LocalOp) and not (isinstance(shaped.owner, Block) and _is_body(shaped.owner)):
                found[shaped] = None
        for region in op.regions:
            for inner in region.blocks:
                _captured(inner, found)


def _is_body(block: Block) -> bool:
    """Whether a block is the body of a nest or contraction (and not of the function)."""
    return isinstance(block.parent_op(), loop.LoopLike)


def is_tensor(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType)
