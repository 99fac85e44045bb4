"""Loads that need nothing of what a program reduces (a norm's weights) begin before it: they are under way while the row comes in.

    %m = "tt.reduce"(...); ...; %w = tt.load %p          ->          %w = tt.load %p; %m = "tt.reduce"(...)

In loops of products, what Triton does not copy ahead is loaded one iteration ahead (`load_ahead`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from ...dialects.support.replace import erase_op, replace_op
from ...dialects.tt.arith import ExtSIOp, ExtUIOp
from ...dialects.tt.base import number
from ...dialects.tt.compute import BitcastOp, DotOp, ReduceOp
from ...dialects.tt.memory import AddPtrOp, LoadOp
from ...dialects.tt.shape import BroadcastOp, ExpandDimsOp, MakeRangeOp, SplatOp
from ...dialects.tt.structure import GetProgramIdOp
from ...dialects.tt.types import bits_of, element_of, shape_of, tensor
from ...passes.analysis.constants import integer_of
from ..nest.builder import NO_OVERFLOW_FLAGS

EARLY_REGISTERS = 16
"""Registers of a thread that what was loaded early, or for the next iteration, may take: with more, fewer programs run side by side."""
INVARIANT_REGISTERS = 32
"""Registers of a thread that what a loop needs in every iteration may take."""
DIVISIONS = (arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp)
MIN_COPIED_BITS = 32
"""Bits that an asynchronous copy to shared memory has at least."""


def load_early(entry: Block, constant: Container[SSAValue], threads: int, *, drawn: bool = False) -> None:
    """Move loads from buffers that nobody writes (`constant`, arguments of the kernel), at places that are the same in every
    program, in front of the first reduction of `entry`, as long as registers last; those of numbers that a row has one of (the class of
    a loss) wherever they are, so that the row does not wait for memory once more.

    drawn: programs have tickets, and share rows. They wait for each other after the first reduction, so that loads begin before it which
    depend on the program too."""
    ops = list(entry.ops)
    first = next((op for op in ops if isinstance(op, ReduceOp)), None)
    if first is None:
        return
    order = {op: k for k, op in enumerate(ops)}
    left = EARLY_REGISTERS * 32 * threads
    for op in ops[order[first] + 1 :]:
        if not isinstance(op, LoadOp):
            continue
        size = _bits(op)
        needed = _slice(op, order, order[first] if drawn or size <= 32 * threads else 0)
        depends = any(isinstance(one, GetProgramIdOp) for one in needed)
        if not needed or depends or size > left or not _is_constant(op, constant):
            continue
        left -= size
        for one in sorted((n for n in needed if order[n] > order[first]), key=lambda n: order[n]):
            one.detach()
            entry.insert_op_before(one, first)
            order[one] = 0  # in front of the reduction now


def load_once(entry: Block, constant: Container[SSAValue], threads: int) -> None:
    """Move loads that every iteration of a loop of `entry` would repeat (a norm's weights, where a program goes through rows) in front of
    it, as long as registers last. Else the iterations under way each have a copy of their own in shared memory."""
    for loop in [op for op in entry.ops if isinstance(op, scf.ForOp)]:
        inside = list(loop.body.block.ops)
        order = {op: k for k, op in enumerate(inside)}
        left = INVARIANT_REGISTERS * 32 * threads
        for op in inside:
            if not isinstance(op, LoadOp) or not _is_constant(op, constant):
                continue
            needed, size = _slice(op, order), _bits(op)
            if not needed or size > left or _arguments(needed, loop.body.block):
                continue
            left -= size
            for one in sorted(needed, key=lambda n: order[n]):
                one.detach()
                entry.insert_op_before(one, loop)
                del order[one]


def _slice(load: LoadOp, order: Mapping[Operation, int], first: int = 0) -> set[Operation]:
    """What a load is computed from, itself included, of the operations in `order` from number `first` on; nothing where that is more than
    arithmetic."""
    found: set[Operation] = set()
    worklist: list[Operation] = [load]
    while worklist:
        op = worklist.pop()
        if op in found or order.get(op, -1) < first:
            continue
        if op.regions or (op is not load and not is_side_effect_free(op)):
            return set()
        found.add(op)
        worklist += [v.owner for v in op.operands if isinstance(v.owner, Operation)]
    return found


def _arguments(ops: Iterable[Operation], body: Block) -> set[SSAValue]:
    """The arguments of a loop's body that operations use."""
    return {v for op in ops for v in op.operands if v.owner is body}


def _bits(load: LoadOp) -> int:
    """How many bits a load reads."""
    return prod(shape_of(load.result.type) or ()) * bits_of(element_of(load.result.type))


def _is_constant(load: LoadOp, constant: Container[SSAValue]) -> bool:
    pointer: SSAValue = load.ptr
    while isinstance(pointer.owner, Operation):
        pointer = pointer.owner.operands[0]
    return pointer in constant


def load_ahead(entry: Block, constant: Container[SSAValue], threads: int) -> None:
    """In loops with products, load one iteration ahead the tiles that Triton does not copy ahead itself, as long as registers last: their
    elements lie apart, and have fewer bytes than an asynchronous copy (every second element of a row). What a tile has one of in each row
    (scales of groups) stays where it is: carrying it costs more than waiting (docs/lab/gpu-products.md).

        for %k: %s = tt.load %p[%k]; ... %s   ->   %first = tt.load %p[0]; for %k iter_args(%s = %first): %next = tt.load %p[%k + 1]; ... %s
    """
    for loop in [op for op in entry.walk() if isinstance(op, scf.ForOp)]:
        inside = list(loop.body.block.ops)
        if not any(isinstance(op, DotOp) for op in inside):
            continue
        left = EARLY_REGISTERS * 32 * threads
        order = {op: k for k, op in enumerate(inside)}
        chosen: dict[LoadOp, set[Operation]] = {}
        for op in inside:
            if not isinstance(op, LoadOp) or not _is_constant(op, constant) or _is_copied(op) or 1 in (shape_of(op.result.type) or (1,)):
                continue
            needed, size = _slice(op, order), _bits(op)
            moves = _arguments(needed, loop.body.block) == {loop.body.block.args[0]}
            if moves and size <= left and not any(map(_may_divide_by_zero, needed)):
                left -= size
                chosen[op] = needed
        if chosen:
            _carry(loop, list(chosen), sorted(set().union(*chosen.values()), key=lambda n: order[n]))


def _carry(loop: scf.ForOp, loads: Sequence[LoadOp], needed: Sequence[Operation]) -> None:
    """Have a loop carry what is loaded for its next iteration; `needed` is what the loads are computed from, in order."""
    body, outside = loop.body.block, loop.parent
    assert outside is not None and body.last_op is not None
    index, first = body.args[0], body.first_op
    assert first is not None

    def loaded(at: SSAValue, runs: SSAValue, before: Operation, block: Block) -> list[SSAValue]:
        """The loads of the iteration at `at`, where there is one."""
        values: dict[SSAValue, SSAValue] = {index: at}
        for op in needed:
            if isinstance(op, LoadOp):
                new = _where(op, values, runs, before, block)
                values[op.result] = new.result
            else:
                new = op.clone(values)
            block.insert_op_before(new, before)
        return [values[load.result] for load in loads]

    def placed(op: Operation, before: Operation, block: Block) -> SSAValue:
        block.insert_op_before(op, before)
        return op.results[0]

    begins = placed(arith.CmpiOp(loop.lb, loop.ub, "slt"), loop, outside)
    start = loaded(loop.lb, begins, loop, outside)
    step = arith.AddiOp.create(operands=[index, loop.step], result_types=[index.type], properties=NO_OVERFLOW_FLAGS)
    following = placed(step, first, body)
    goes_on = placed(arith.CmpiOp(following, loop.ub, "slt"), first, body)
    ahead = loaded(following, goes_on, first, body)
    for load in loads:
        load.result.replace_all_uses_with(body.insert_arg(load.result.type, len(body.args)))
        erase_op(load)
    end = body.last_op
    body.insert_op_before(scf.YieldOp(*end.operands, *ahead), end)
    erase_op(end)
    region = loop.detach_region(loop.body)
    new = scf.ForOp.create(
        operands=[*loop.operands, *start], result_types=[*(r.type for r in loop.results), *(v.type for v in start)], regions=[region],
        attributes=loop.attributes,
    )  # fmt: skip
    replace_op(loop, new)


def _where(load: LoadOp, values: Mapping[SSAValue, SSAValue], runs: SSAValue, before: Operation, block: Block) -> LoadOp:
    """A load of other `values`, only where a condition, of the whole program, holds."""
    ptr, given, other = (None if v is None else values.get(v, v) for v in (load.ptr, load.mask, load.other))
    assert ptr is not None
    shape, mask = shape_of(load.ptr.type), runs
    if shape is not None:
        splat = SplatOp.create(operands=[runs], result_types=[tensor(shape, i1)])
        block.insert_op_before(splat, before)
        mask = splat.results[0]
    if given is not None:
        both = arith.AndIOp.create(operands=[given, mask], result_types=[mask.type])
        block.insert_op_before(both, before)
        mask = both.results[0]
    new = LoadOp.make(ptr, mask, other, evict=load.eviction_policy)
    new.location = load.location
    return new


def _may_divide_by_zero(op: Operation) -> bool:
    """Whether an operation means something only where the loop runs at all."""
    return isinstance(op, DIVISIONS) and not integer_of(op.operands[1])


def _is_copied(load: LoadOp) -> bool:
    """Whether Triton copies what a load reads to shared memory while earlier iterations run: MIN_COPIED_BITS side by side, or more."""
    shape, bits = shape_of(load.result.type) or (), bits_of(element_of(load.result.type))
    side_by_side = (size for step, size in zip(_steps(load.ptr), shape, strict=True) if step == 1)
    return bits * max((1, *side_by_side)) >= MIN_COPIED_BITS


def _steps(value: SSAValue) -> tuple[int | None, ...]:
    """By how much neighbours along each axis of a tensor of whole numbers or pointers differ; None where that is not known."""
    shape, op = shape_of(value.type) or (), value.owner
    if isinstance(op, MakeRangeOp):
        return (1,)
    if isinstance(op, ExpandDimsOp):
        steps = list(_steps(op.operands[0]))
        steps.insert(number(op.axis), 0)
        return tuple(steps)
    if isinstance(op, BroadcastOp):
        inner = op.operands[0]
        return tuple(0 if n == 1 else step for n, step in zip(shape_of(inner.type) or (), _steps(inner), strict=True))
    if isinstance(op, arith.AddiOp | AddPtrOp):
        return tuple(None if a is None or b is None else a + b for a, b in zip(*map(_steps, op.operands), strict=True))
    if isinstance(op, arith.MuliOp) and (factor := integer_of(op.operands[1])) is not None:
        return tuple(None if a is None else a * factor for a in _steps(op.operands[0]))
    if isinstance(op, ExtSIOp | ExtUIOp | BitcastOp):
        return _steps(op.operands[0])
    if isinstance(op, Operation) and op.name not in ("arith.constant", "tt.splat"):
        parts = [_steps(v) for v in op.operands if shape_of(v.type) == shape]
        return tuple(0 if parts and all(steps[k] == 0 for steps in parts) else None for k in range(len(shape)))
    return (0,) * len(shape)
