"""Names of values and nests that are unique, short and the user's own where possible."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...passes.analysis.origins import names_of


class Names:
    """Gives names to the values of a function: those of the graph's placeholders, of the operators that made them, of the allocations."""

    def __init__(self, func: FuncOp):
        self._value: dict[SSAValue, str] = {}
        self._op: dict[Operation, str] = {}
        self._taken: dict[str, int] = {}
        attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
        for k, argument in enumerate(func.body.block.args):
            own = attrs[k].data.get("nd.name") if k < len(attrs) else None
            self._value[argument] = own.data if isinstance(own, StringAttr) else argument.name_hint or f"argument {k}"

    def take(self, labels: Mapping[Operation, str]) -> None:
        """Call operations as they are called elsewhere."""
        self._op.update(labels)

    def of_op(self, op: Operation) -> str:
        """The name of an operation: that of its operator; `name.2`, `name.3` for what else that operator became."""
        found = self._op.get(op)
        if found is None:
            own = names_of(op)
            found = self._op[op] = self._new(own[0] if own else op.name.rpartition(".")[2])
        return found

    def of(self, value: SSAValue) -> str:
        """The name of a tensor or buffer."""
        found = self._value.get(value)
        if found is not None:
            return found
        owner = value.owner
        if not isinstance(owner, Operation):
            return value.name_hint or "a value"
        if owner.name == "mem.alloc":
            found = self._new(_stored_in(value) or value.name_hint or next(iter(names_of(owner)), "buffer"), "#")
        elif len(owner.results) > 1:
            found = f"{self.of_op(owner)}[{value.index}]"  # pyright: ignore[reportAttributeAccessIssue]
        else:
            found = self.of_op(owner)
        self._value[value] = found
        return found

    def _new(self, name: str, mark: str = ".") -> str:
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name}{mark}{count}"


def _stored_in(buffer: SSAValue) -> str:
    """The name (that of the FX node) of what is stored last in a buffer; "" where that cannot be said."""
    for use in reversed(list(buffer.uses)):
        op = use.operation
        if isinstance(op, (loop.NestOp, loop.ContractOp)) and buffer in op.outs:
            inside = op.out_args[list(op.outs).index(buffer)]
            stores = [u.operation for u in inside.uses if isinstance(u.operation, loop.StoreOp)][::-1]
            made = [s.value.owner for s in stores if isinstance(s.value.owner, Operation)]
            names = [name for one in (*stores, *made, op) for name in names_of(one)[-1:]]
            if names:
                return names[0]
    return ""
