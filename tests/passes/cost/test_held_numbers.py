"""How many numbers of each element a thread keeps behind a product."""

from __future__ import annotations

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import f32

from stepwell.passes.cost.held_numbers import fits_registers, held_numbers
from stepwell.passes.cost.machine.gpu import machine
from stepwell.passes.cost.machine.registers import OTHER


def held(*lines: tuple[str, str], sums: str = "s", draws: bool = False) -> int:
    """Of operations `result = f(operands)`, each name a letter; one without a result is a store."""
    values = {name: test.TestOp(result_types=[f32]).results[0] for name in sums}
    ops = []
    for result, operands in lines:
        op = test.TestOp(operands=[values[name] for name in operands], result_types=[f32] if result else [])
        ops.append(op)
        if result:
            values[result] = op.results[0]
    return held_numbers([values[name] for name in sums], ops, [op for op in ops if not op.results], lambda _: True, draws)


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ([("", "s")], 1),
        ([("a", "s"), ("b", "as"), ("c", "ba"), ("", "c")], 1),
        ([("a", "s"), ("", "a"), ("b", "s"), ("", "b")], 1),
        ([("a", "s"), ("b", "a"), ("", "b"), ("c", "as"), ("", "c")], 2),
    ],
    ids=["the sum", "element by element", "the sum is kept", "two are kept"],
)
def test_what_is_needed_behind_a_store_is_kept(lines, numbers):
    assert held(*lines) == numbers


def test_all_sums_are_there_at_once():
    assert held(("a", "st"), ("", "a"), sums="st") == 2


def test_random_numbers_are_made_for_all_elements_at_once():
    assert held(("a", "s"), ("", "a"), draws=True) == 1 + OTHER.random


def test_registers():
    gpu = machine("sm_90")
    assert fits_registers(128 * 256, 8, 1, gpu) and not fits_registers(128 * 256, 8, 2, gpu) and fits_registers(128 * 128, 8, 2, gpu)
