"""The end of a function: what the caller gets, and the new values of its arguments.

A result is fresh memory: never an argument's, never that of another result, unless its attribute nd.alias says so. A view of another result
is a buffer of its own, since the caller gets an object of its own, of which it may change the sizes.
All copies that read arguments come before the first copy that overwrites one.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import mem, nd
from ...dialects.expr import ZERO, floordiv
from ...dialects.mem import BufferType
from ...dialects.nd.types import LayoutAttr, TensorType, element_bytes
from ...passes.manager.errors import PassError
from .layouts import same_strides
from .lowering import OUTPUT, PASS, Lowering


def lower_update(low: Lowering, op: nd.UpdateOp) -> None:
    """Remember an update; the end of the function sees to it."""
    if op.target not in low.arguments:
        raise PassError("nd.update: the target must be an argument of the function", pass_name=PASS, op=op)
    low.updates.append((op, op.target, op.value))


def lower_return(low: Lowering, op: ReturnOp) -> None:
    """Results in memory of their own with the strides that the caller expects, then the updates of arguments."""
    # a result that is a view of another value is not read: its operand may still be a tensor
    values: list[SSAValue] = list(op.operands)
    aliased = {k: alias for k in range(len(values)) if (alias := low.live.alias(k)) is not None}
    for k, value in enumerate(values):
        if k not in aliased and isinstance(value.type, BufferType):
            values[k] = _own_result(low, k, value)
    _finish_updates(low)
    for k, alias in aliased.items():
        values[k] = _aliased_result(low, op, k, alias, values)
    low.insert(ReturnOp.create(operands=values))
    for update, _, _ in low.updates:
        low.erase(update)
    low.erase(op)


def _own_result(low: Lowering, k: int, value: SSAValue) -> SSAValue:
    if k in low.stored_results:
        return low.stored_results[k]
    t, storage = value.type, low.storage[value]
    assert isinstance(t, BufferType)
    strides = low.layouts.result_strides(k, TensorType.get(t.dims, t.element_type, t.device.data))
    wanted = BufferType.get(t.dims, t.element_type, strides, t.offset_expr, t.device.data)
    base = _base(low, k)
    reason = None
    if storage.kind in ("argument", "donated"):
        reason = "the caller gets it, and it is the memory of an argument"
    elif storage.claimed is not None and not (storage.claimed and storage.claimed == base):
        reason = "the caller gets it twice"
    elif not storage.exclusive:
        reason = "the caller gets it, and it may share its memory"
    elif t.offset_expr is not ZERO and _is_seen_otherwise(low, k, t):
        reason = "the caller gets it as another element type too, and it may start between elements of that"
    elif not same_strides(t.dims, t.stride_exprs, strides, low.env):
        reason = f"the caller gets it with strides [{', '.join(map(str, strides))}]"
    if reason is None:
        storage.claimed = base
        if isinstance(storage.root.owner, mem.AllocOp):
            storage.root.owner.properties["kind"] = OUTPUT
        return low.view(value, wanted, value.name_hint)
    wanted = BufferType.get(t.dims, t.element_type, strides, 0, t.device.data)
    target = low.alloc(wanted, value.name_hint, OUTPUT)
    low.storage[target].claimed = ""
    low.copy(value, target, reason)
    return target


def _base(low: Lowering, k: int) -> str:
    """The name of the value that result `k` is a view of, "" when it is a value of its own."""
    found = low.live.result_attrs[k].get("nd.base") if k < len(low.live.result_attrs) else None
    return found.data if isinstance(found, StringAttr) else ""


def _is_seen_otherwise(low: Lowering, k: int, t: BufferType) -> bool:
    """Whether another result is the memory of result `k` with a larger element type."""
    results = low.func.function_type.outputs.data
    return any(
        low.live.alias(other) == f"result {k}" and element_bytes(result.element_type) > element_bytes(t.element_type)
        for other, result in enumerate(results)
        if isinstance(result, (TensorType, BufferType))
    )


def _aliased_result(low: Lowering, op: Operation, k: int, alias: str, values: list[SSAValue]) -> SSAValue:
    """Result `k`, a view of an argument or of an earlier result: "arg 2", "result 0"."""
    what, _, number = alias.partition(" ")
    bases = {"arg": low.arguments, "result": values[:k]}.get(what)
    if bases is None or not number.isdigit() or int(number) >= len(bases):
        raise PassError(
            f'result {k}: nd.alias is "{alias}", it must name an argument or an earlier result', pass_name=PASS, op=op
        )
    base = bases[int(number)]
    t = op.operands[k].type
    assert isinstance(base.type, BufferType) and isinstance(t, (TensorType, BufferType))
    layout = low.live.result_attrs[k].get("nd.layout")
    offset = floordiv(base.type.offset_expr * element_bytes(base.type.element_type), element_bytes(t.element_type))
    if isinstance(layout, LayoutAttr):
        offset = offset + layout.offset_expr
    strides = low.layouts.result_strides(k, TensorType.get(t.dims, t.element_type, t.device.data))
    view = low.view if what == "arg" else low.own_view  # the caller makes its own view of an argument
    return view(base, BufferType.get(t.dims, t.element_type, strides, offset, t.device.data))


def _finish_updates(low: Lowering) -> None:
    """Copy the new values of arguments that were not computed in the argument's memory."""
    pending = [(op, target, value) for op, target, value in low.updates if not _is_there(low, op, target, value)]
    overwritten = {low.storage[target] for _, target, _ in pending}
    saved: list[tuple[Operation, SSAValue, SSAValue]] = []
    for op, target, value in pending:
        if low.storage[value] in overwritten:
            t = value.type
            assert isinstance(t, BufferType)
            temporary = low.alloc(BufferType.get(t.dims, t.element_type, None, 0, t.device.data), value.name_hint)
            low.copy(value, temporary, "it is read from an argument that is overwritten", origin=op)
            value = temporary
        saved.append((op, target, value))
    for op, target, value in saved:
        low.copy(value, target, "it is the new value of an argument", origin=op)


def _is_there(low: Lowering, op: Operation, target: SSAValue, value: SSAValue) -> bool:
    if op in low.stored_updates:
        return True
    a, b = target.type, value.type
    assert isinstance(a, BufferType) and isinstance(b, BufferType)
    return (
        low.storage[target] is low.storage[value]
        and a.offset_expr is b.offset_expr
        and same_strides(a.dims, a.stride_exprs, b.stride_exprs, low.env)
    )
