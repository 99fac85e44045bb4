"""Loads that need nothing of what a program reduces (a norm's weights) begin before it: they are under way while the row comes in.

    %m = "tt.reduce"(...); ...; %w = tt.load %p          ->          %w = tt.load %p; %m = "tt.reduce"(...)
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from ...dialects.tt.compute import ReduceOp
from ...dialects.tt.memory import LoadOp
from ...dialects.tt.types import bits_of, element_of, shape_of

REGISTERS = 16
"""Registers of a thread that what was loaded early may take: with more, fewer programs run side by side."""
INVARIANT = 32
"""Registers of a thread that what a loop needs in every iteration may take."""


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
    left = REGISTERS * 32 * threads
    for op in ops[order[first] + 1 :]:
        if not isinstance(op, LoadOp):
            continue
        size = prod(shape_of(op.result.type) or ()) * bits_of(element_of(op.result.type))
        needed = _before(op, order, order[first] if drawn or size <= 32 * threads else 0)
        if needed is None or size > left or not _is_constant(op, constant):
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
        left = INVARIANT * 32 * threads
        for op in inside:
            if not isinstance(op, LoadOp) or not _is_constant(op, constant):
                continue
            needed = _invariant(op, order, loop.body.block)
            size = prod(shape_of(op.result.type) or ()) * bits_of(element_of(op.result.type))
            if needed is None or size > left:
                continue
            left -= size
            for one in sorted(needed, key=lambda n: order[n]):
                one.detach()
                entry.insert_op_before(one, loop)
                del order[one]


def _invariant(load: LoadOp, order: dict[Operation, int], body: Block) -> set[Operation] | None:
    """What a load is computed from in the body of a loop, itself included; None where that depends on the iteration."""
    found: set[Operation] = set()
    worklist: list[Operation] = [load]
    while worklist:
        op = worklist.pop()
        if op in found or op not in order:
            continue
        if op.regions or (op is not load and not is_side_effect_free(op)) or any(v.owner is body for v in op.operands):
            return None
        found.add(op)
        worklist += [v.owner for v in op.operands if isinstance(v.owner, Operation)]
    return found


def _before(load: LoadOp, order: dict[Operation, int], known: int) -> set[Operation] | None:
    """What a load is computed from, itself included, what comes before operation `known` aside; None where that is more than arithmetic, or
    depends on the program."""
    found: set[Operation] = set()
    worklist: list[Operation] = [load]
    while worklist:
        op = worklist.pop()
        if op in found or (op in order and order[op] < known):
            continue
        if op not in order or op.regions or op.name == "tt.get_program_id" or (op is not load and not is_side_effect_free(op)):
            return None
        found.add(op)
        worklist += [v.owner for v in op.operands if isinstance(v.owner, Operation)]
    return found


def _is_constant(load: LoadOp, constant: Container[SSAValue]) -> bool:
    pointer: SSAValue = load.ptr
    while isinstance(pointer.owner, Operation):
        pointer = pointer.owner.operands[0]
    return pointer in constant
