"""Pads of pads: what is outside of the outer one's input is not loaded, where the inner one alone would."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from support import import_function

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.tt.run import KernelError

PROGRAMS = {
    "two dimensions": lambda x: F.pad(F.pad(x, (0, 2)), (0, 0, 0, 3)),
    "other numbers": lambda x: F.pad(F.pad(x, (1, 2), value=5.0), (0, 0, 2, 3), value=7.0) * 2,
    "three": lambda x: F.pad(F.pad(F.pad(x, (3, 0)), (0, 0, 1, 3)), (0, 0, 0, 0, 2, 2)),
    "gradients of slices": lambda x: torch.ops.aten.slice_backward(
        torch.ops.aten.slice_backward(x, [*x.shape[:2], x.shape[2] + 1], 2, 0, x.shape[2], 1), [5, 6, x.shape[2] + 1], 1, 0, x.shape[1], 1
    ),
    "a view between": lambda x: F.pad(F.pad(x, (0, 2)).transpose(1, 2), (1, 3)) + 1,
}


@pytest.mark.spread
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_outside_is_loaded(name, mode, device):
    """The interpreters refuse an access outside of a tensor."""
    program, x = PROGRAMS[name], torch.randn(5, 3, 6)
    imported = import_function(lambda x: program(x), x, mode=mode)
    run(default_pipeline(device, stages=("nd", "loop", "mem", *["tt"] * (device == "gpu"))), imported.module, context())
    (found,) = run_loop(imported.module, [x], imported.constants, imported.objects)
    assert torch.equal(found.reshape(program(x).shape), program(x))


def lowered(program, *inputs, device="gpu"):
    """The nests of a padded program."""
    imported = import_function(program, *inputs)
    run(default_pipeline(device, stages=("nd", "loop")), imported.module, context())
    return imported.module


def test_a_condition_is_asked_once_at_the_end():
    """What is computed outside of the padded value is not used: it is chosen away once, and what is the same in a row is loaded once."""
    text = str(lowered(lambda x, row: F.pad(((x - row) * 2).exp(), (0, 7)), torch.randn(4, 9), torch.randn(4, 1)))
    assert text.count("arith.select") == 1
    assert re.search(r"loop.load %\w+\[%\w+, %\w+\] if", text)
    assert re.search(r"loop.load %\w+\[%\w+, 0\] :", text)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_indices_are_checked_inside_alone(device):
    """Indices that would be wrong where nothing is read, and one that is wrong inside."""
    torch._dynamo.reset()
    table, index = torch.randn(40, 3), torch.randint(25, 45, (7,))

    def program(index, table):
        return F.pad(table[index * 2 - 50] + 1, (0, 0, 2, 3)) * 2

    imported = import_function(program, index, table)
    run(default_pipeline(device, stages=("nd", "loop", "mem", *["tt"] * (device == "gpu"))), imported.module, context())
    (found,) = run_loop(imported.module, [index, table], imported.constants, imported.objects)
    torch.testing.assert_close(found.reshape(12, 3), program(index, table))
    with pytest.raises((IndexError, KernelError), match="out of"):
        run_loop(imported.module, [index + 100, table], imported.constants, imported.objects)
