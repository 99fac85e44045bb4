"""The price of a step at the memory level on the machine that it is for."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation

from ...passes.cost.cost_model import Cost
from ...passes.cost.library_cost import step_cost as cpu_step_cost
from ...passes.cost.machine import Gpu, Machine
from ...passes.gpu.step_price import gpu_step_cost


def step_cost(op: Operation, hints: Mapping[str, int], machine: Machine) -> Cost | None:
    """The cost of a nest, contraction, batch or call of the library; None for what does nothing at run time. `hints`: typical values of
    size symbols."""
    return gpu_step_cost(op, hints, machine) if isinstance(machine, Gpu) else cpu_step_cost(op, hints, machine)
