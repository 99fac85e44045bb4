"""Values that have to be in several places: their nest stores each to all of them, instead of copies afterwards.

That is so for the new value of an argument which is also a result or the new value of a second argument, and for a
value that the caller gets twice or in different strides. It is done for values that the nest stores at one place of its
body.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from ...dialects import loop, nd
from ...dialects.mem import BufferType
from ...dialects.nd.types import tensor_type
from ...passes.manager.instrumentation import statistic
from .layouts import overlaps, same_strides
from .lowering import OUTPUT, Lowering, Storage

MAX_EXTRA_STORES = 3
"""Second homes of one value; more would cost the nest more than the copies."""


def several_buffers(
    low: Lowering,
    op: loop.NestOp,
    argument: SSAValue,
    result: SSAValue,
    buffer: SSAValue,
    taken: set[Storage],
    may_store: Callable[[Storage, BufferType], bool],
) -> list[SSAValue]:
    """Buffers besides `buffer` that the nest shall store `result` to; the body gets an argument and a store for each.

    `may_store(storage, type)` says whether no read of the nest from a storage meets the stores of the out."""
    stores = [use.operation for use in argument.uses if isinstance(use.operation, loop.StoreOp) and use.index == 1]
    if len(stores) != 1 or stores[0].mode is not None or stores[0].masked is not None:
        return []
    found: list[SSAValue] = []
    for target in (*_updated(low, result, buffer, taken, may_store), *_returned(low, result, buffer)):
        if len(found) == MAX_EXTRA_STORES:
            break
        found.append(target())
        _store_too(op, stores[0], found[-1])
        statistic("num-stored-to-several")
    return found


def _store_too(op: loop.NestOp, store: loop.StoreOp, target: SSAValue) -> None:
    block, body = store.parent, op.block
    assert block is not None
    argument = body.insert_arg(target.type, len(body.args))
    operands = [store.value, argument, *store.index_operands]
    block.insert_op_after(loop.StoreOp.create(operands=operands, properties=dict(store.properties)), store)


def _updated(
    low: Lowering,
    result: SSAValue,
    buffer: SSAValue,
    taken: set[Storage],
    may_store: Callable[[Storage, BufferType], bool],
) -> Iterator[Callable[[], SSAValue]]:
    """Arguments whose new value is `result`, and that nobody reads after the nest."""
    for use in list(result.uses):
        update = use.operation
        if not isinstance(update, nd.UpdateOp) or use.index != 1 or not _is_only_update(update):
            continue
        target = update.target
        storage, t = low.storage[target], target.type
        assert isinstance(t, BufferType)
        if storage is low.storage[buffer] or storage in taken or not low.is_dead(storage):
            continue
        if overlaps(t.dims, t.stride_exprs) or not may_store(storage, t):
            continue

        def take(update: nd.UpdateOp = update, target: SSAValue = target, storage: Storage = storage) -> SSAValue:
            taken.add(storage)
            storage.until = math.inf
            low.stored_updates.add(update)
            return target

        yield take


def _is_only_update(update: nd.UpdateOp) -> bool:
    return not any(
        isinstance(u.operation, nd.UpdateOp) and u.index == 0 and u.operation is not update for u in update.target.uses
    )


def _returned(low: Lowering, result: SSAValue, buffer: SSAValue) -> Iterator[Callable[[], SSAValue]]:
    """Results that are `result` and cannot all be `buffer`."""
    t, kind = tensor_type(result), buffer.type
    assert isinstance(kind, BufferType)
    own = low.storage[buffer]
    own_is_free = own.exclusive and own.kind in ("fresh", "extern")
    for use in sorted((u for u in result.uses if isinstance(u.operation, ReturnOp)), key=lambda u: u.index):
        k = use.index
        if low.live.alias(k) is not None:
            continue
        strides = low.layouts.result_strides(k, t)
        if own_is_free and same_strides(t.dims, kind.stride_exprs, strides, low.env):
            own_is_free = False
            continue
        if overlaps(t.dims, strides):
            continue

        def take(k: int = k, strides: tuple = strides) -> SSAValue:
            made = low.alloc(
                BufferType.get(t.dims, t.element_type, strides, 0, t.device.data), result.name_hint, OUTPUT
            )
            low.stored_results[k] = made
            return made

        yield take
