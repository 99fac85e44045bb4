"""The CPU: kernels are functions beside the native entry of their program."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from ...dialects.machine import MachineAttr
from ...passes.manager.pass_manager import Pipeline
from ...passes.manager.pipelines import TARGETS
from ..target import Measure, Target
from .forecast import expected_functions
from .library import prepare


class CpuTarget(Target):
    """Vector code by LLVM."""

    name = "cpu"
    devices = ("cpu",)
    stages = TARGETS["cpu"]
    native = True

    def machine(self, device: str) -> MachineAttr:
        """Nests are joined for the threads that torch uses."""
        import torch

        return MachineAttr.get("cpu", threads=torch.get_num_threads())

    def fit(self, pipeline: Pipeline, module: ModuleOp, device: str, measure: Measure) -> None:
        """Calls are measured where that is asked for."""
        if measure == "always":
            from .select.contract_select import ContractSelect

            pipeline.update(lambda one: replace(one, measure=True) if isinstance(one, ContractSelect) else one)

    def staged(self, stage: str, module: ModuleOp) -> None:
        """Products and attention that the graph will call begin to be made when its algebra is done."""
        if stage == "nd":
            prepare(expected_functions(module))
