"""The CPU: kernels are functions beside the native entry of their program."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...passes.manager.pass_manager import Pipeline
from ...passes.manager.pipelines import TARGETS
from ..target import Measure, Target, with_facts
from .forecast import expected_products
from .library import prepare


class CpuTarget(Target):
    """Vector code by LLVM."""

    name = "cpu"
    devices = ("cpu",)
    stages = TARGETS["cpu"]
    native = True

    def fit(self, pipeline: Pipeline, module: ModuleOp, device: str, measure: Measure) -> None:
        """Nests are joined for the threads that torch uses; products that the graph will call begin to be made."""
        import torch

        prepare(expected_products(module))
        facts: dict[str, Any] = {"threads": torch.get_num_threads()}
        if measure == "always":
            facts["measure"] = True
        pipeline.update(lambda one: with_facts(one, facts))
