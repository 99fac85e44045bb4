"""Numbers of rows that others read: those that a comparison or a scale makes of another one of them are computed by the readers.

    A: m[i] -> M; m[i] == -inf -> E      B: load E[i]      ->      A: m[i] -> M      B: load M[i] == -inf

A reader then knows what a condition says of the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.support.replace import erase_op
from ...loop.fusion.placement import final_store
from ...loop.transform.loop_rewrite import needed

COMPUTED = (arith.CmpfOp, arith.ConstantOp, arith.MulfOp, arith.DivfOp, arith.AddfOp, arith.SubfOp)


def compute_where_read(numbers: Mapping[SSAValue, Sequence[Operation]]) -> list[SSAValue]:
    """Has readers compute of others what they can of these results of a nest, with the operations that need them; those that are read."""
    kept: list[SSAValue] = []
    for one, readers in numbers.items():
        found = next((other for other in numbers if other is not one and _is_computed(one, other)), None)
        loads = [op for op in readers if isinstance(op, loop.LoadOp) and op.mask is None]
        if found is None or len(loads) < len(readers):
            kept.append(one)
            continue
        for op in loads:
            _compute(op, found)
    return kept


def _is_computed(one: SSAValue, other: SSAValue) -> bool:
    """Whether a number is computed of another one of the same place alone, which is stored as it is."""
    store, source = final_store(one), final_store(other)
    if store is None or source is None or store.parent is not source.parent or store.index_map != source.index_map:
        return False
    exact = source.value.type == loop.element_type(source.target.type) and store.value.type == loop.element_type(store.target.type)
    if not exact or list(store.index_operands) != list(source.index_operands):
        return False
    ops = _between(store.value, source.value)
    inside = {source.value, *(r for op in ops for r in op.results)}
    return bool(ops) and all(isinstance(op, COMPUTED) and all(v in inside for v in op.operands) for op in ops)


def _between(value: SSAValue, source: SSAValue) -> list[Operation]:
    """The operations that compute a value from another one of its block."""
    block = value.owner.parent if isinstance(value.owner, Operation) else None
    before = needed([source], block) if block is not None else []
    ops = needed([value], block) if block is not None else []
    shared = {op for op in before if not isinstance(op, arith.ConstantOp)}
    return [op for op in ops if op not in shared] if source.owner in ops else []


def _compute(load: loop.LoadOp, source: SSAValue) -> None:
    """A number of the same place of `source` is loaded, and what was loaded is computed of it."""
    store, wanted = final_store(source), final_store(load.source)
    assert store is not None and wanted is not None and load.parent is not None
    made = loop.LoadOp.new(source, load.index_map, list(load.index_operands))
    load.parent.insert_op_before(made, load)
    values: dict[SSAValue, SSAValue] = {store.value: made.result}
    for op in _between(wanted.value, store.value):
        load.parent.insert_op_before(op.clone(values), load)
    load.result.replace_all_uses_with(values[wanted.value])
    erase_op(load)
