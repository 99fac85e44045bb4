"""Library calls on buffers: operands in the strides that the call needs, operands that it writes, results."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Attribute, SSAValue

from ...dialects import mem, nd
from ...dialects.expr import ONE, strides_contiguous
from ...dialects.mem import BufferType
from ...dialects.nd.base import IntsAttr, prop
from ...dialects.nd.types import TensorType, tensor_type
from ...passes.nd.quantised.int4_calls import TARGET as INT4_TARGET
from ...passes.nd.quantised.int4_row_calls import TARGET as INT4_ROWS_TARGET
from .layouts import Strides, layout_of, overlaps
from .liveness import is_tensor
from .lowering import Lowering, Storage

WITH_OUT = frozenset(
    f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "_int_mm", "_addmm_activation")
)
"""Operators whose out variant computes in the destination (for most others it computes elsewhere and copies)."""

SUMS_RANK = 3
"""Dimensions of the logarithms of sums of attention: they have no rows, as other results of generated code."""
WITH_STRIDES = frozenset((INT4_TARGET, INT4_ROWS_TARGET))
"""Operators whose generated code takes operands with the strides that the operator wants, and no others."""

_KEPT = ("call", "aliases", "binds", "fallback", "kept", "mutates", "schedule")


def lower_extern(low: Lowering, op: nd.ExternOp) -> None:
    """nd.extern -> mem.extern, with copies of operands where the strides differ or where the call writes to what
    others need."""
    call = _Call(low, op)
    call.take_operands()
    call.write()
    low.erase(op)


class _Call:
    def __init__(self, low: Lowering, op: nd.ExternOp):
        self.low = low
        self.op = op
        self.mutates: Sequence[int] = prop(op, "mutates") or ()
        self.own = len(op.results) - len(self.mutates)
        self.operands: list[SSAValue] = list(op.operands)

    def take_operands(self) -> None:
        """Choose the buffer of every operand."""
        layouts = self.op.operand_layouts
        wanted = [layout_of(a) for a in layouts.data] if isinstance(layouts, ArrayAttr) else []
        for k, buffer in enumerate(self.operands):
            if not isinstance(buffer.type, BufferType):
                continue
            strides = wanted[k] if k < len(wanted) else None
            if strides is not None and not (self._takes_rows() and _rows_are_dense(buffer.type)):
                buffer = self.low.with_strides(
                    buffer, buffer, strides, f"{self._name()} takes it with strides [{_text(strides)}]"
                )
            self.operands[k] = buffer
        for j, k in enumerate(self.mutates):
            self.operands[k] = self._writable(k, self.op.results[self.own + j])

    def _name(self) -> str:
        return self.op.call.data.target

    def _writable(self, k: int, value: SSAValue) -> SSAValue:
        """The buffer of operand `k`, or a copy of it, that the call may overwrite with `value`."""
        low, buffer = self.low, self.operands[k]
        t = buffer.type
        assert isinstance(t, BufferType)
        reason = self._why_not_written(k, value)
        if reason is None:
            return buffer
        strides = (
            strides_contiguous(t.dims) if overlaps(t.dims, t.stride_exprs) or not t.is_contiguous else t.stride_exprs
        )
        layouts = self.op.operand_layouts
        if isinstance(layouts, ArrayAttr) and k < len(layouts.data):
            strides = layout_of(layouts.data[k]) or strides
        target = low.alloc(BufferType.get(t.dims, t.element_type, strides, 0, t.device.data), value.name_hint)
        low.copy(buffer, target, f"{self._name()} writes to it, and {reason}")
        return target

    def _why_not_written(self, k: int, value: SSAValue) -> str | None:
        low, buffer = self.low, self.operands[k]
        storage, t = low.storage[buffer], buffer.type
        assert isinstance(t, BufferType)
        if not low.is_dead(storage):
            return "its value is needed again"
        if any(
            low.storage.get(b) is storage
            for j, b in enumerate(self.operands)
            if j != k and isinstance(b.type, BufferType)
        ):
            return "another operand shares its memory"
        if overlaps(t.dims, t.stride_exprs):
            return "its elements share memory"
        if storage.kind == "argument":
            goal = low.layouts.goals.get(value)
            if (
                goal is None
                or goal.argument is None
                or low.argument_storage(goal.argument) is not storage
                or low.goal_buffer(value) != t
            ):
                return "it is an argument"
        elif not storage.exclusive:
            return "it may share its memory"
        return None

    # ---- results

    def write(self) -> None:
        """Insert the call on buffers and place its results."""
        properties = {key: self.op.properties[key] for key in _KEPT if key in self.op.properties}
        targets = self._destinations()
        if not targets:
            types = self._result_types()
            new = mem.ExternOp.create(
                operands=self.operands, result_types=types, properties=properties, attributes=dict(self.op.attributes)
            )
            self.low.insert(new)
            self._place_results(new)
        else:
            properties["out"] = IntsAttr.get(range(len(self.operands), len(self.operands) + len(targets)))
            properties.pop("aliases", None)
            self.low.insert(
                mem.ExternOp.create(
                    operands=[*self.operands, *targets], properties=properties, attributes=dict(self.op.attributes)
                )
            )
            for result, target in zip(self.op.results, targets, strict=False):
                self.low.place(result, target)
        for k, value in zip(self.mutates, self.op.results[self.own :], strict=True):
            self.low.place(value, self.operands[k])

    def _destinations(self) -> list[SSAValue]:
        """Memory of ours for all results, or none."""
        if self._is_generated():
            return [self._generated(result) for result in self.op.results]
        target = self._destination()
        return [] if target is None else [target]

    def _is_generated(self) -> bool:
        """Whether code of ours computes this."""
        return self.op.schedule is not None and self.op.schedule.data == "generated"

    def _takes_rows(self) -> bool:
        """Whether any strides will do but those of rows."""
        return self._is_generated() and self._name() not in WITH_STRIDES

    def _generated(self, result: SSAValue) -> SSAValue:
        """Memory for a result of generated code, which wants the elements of rows next to each other."""
        t = self.low.layouts.buffer_type(result)
        if len(t.dims) != SUMS_RANK and not _rows_are_dense(t):
            t = BufferType.get(t.dims, t.element_type, None, 0, t.device.data)
        return self.low.alloc(t, result.name_hint)

    def _destination(self) -> SSAValue | None:
        """Memory of ours for the only result of an operator that can compute in place of the caller's choice."""
        op, low = self.op, self.low
        if (
            self._name() not in WITH_OUT
            or len(op.results) != 1
            or self.mutates
            or "result_layouts" not in op.properties
        ):
            return None
        result = op.results[0]
        if not is_tensor(result):
            return None
        goal = low.layouts.goals.get(result)
        if goal is not None and goal.argument is None and tensor_type(result).device.data == "cpu":
            return None  # the caller gets the tensor that the operator makes; torch's C functions for GPUs only have the out variants
        t = low.goal_buffer(result)
        if t is not None and goal is not None and goal.argument is not None:
            storage = low.argument_storage(goal.argument)
            if not any(low.storage.get(b) is storage for b in self.operands):
                return low.view(storage.root, t, result.name_hint)
        return low.alloc(low.layouts.buffer_type(result), result.name_hint)

    def _result_types(self) -> list[Attribute]:
        layouts = self.op.result_layouts
        given = [layout_of(a) for a in layouts.data] if isinstance(layouts, ArrayAttr) else []
        types: list[Attribute] = []
        for k, result in enumerate(self.op.results[: self.own]):
            t = result.type
            if isinstance(t, TensorType):
                t = BufferType.get(t.dims, t.element_type, given[k] if k < len(given) else None, 0, t.device.data)
            types.append(t)
        return types

    def _place_results(self, new: mem.ExternOp) -> None:
        low, op = self.low, self.op
        aliases = prop(op, "aliases") or ()
        exclusive = op.fresh is not None or self._name().startswith(("aten.", "prims."))
        for k, (old, result) in enumerate(zip(op.results[: self.own], new.results, strict=True)):
            if not is_tensor(old):
                result.name_hint = old.name_hint
                old.replace_all_uses_with(result)
                continue
            operand = aliases[k] if k < len(aliases) else -1
            if operand >= 0:
                low.storage[result] = low.storage[self.operands[operand]]
            else:
                low.storage[result] = Storage("extern", result, exclusive)
            result.name_hint = old.name_hint
            low.place(old, result)


def _rows_are_dense(t: BufferType) -> bool:
    """Whether the elements of a row lie next to each other; what has no rows counts as such."""
    return len(t.dims) < 2 or t.dims[-1] is ONE or t.stride_exprs[-1] is ONE


def _text(strides: Strides) -> str:
    return ", ".join(map(str, strides))
