"""Pass "int4-select": who computes each product with packed weights of four bits, generated code or torch's.

    nd.extern %x, %w, %pairs {call = aten._weight_int4pack_mm_for_cpu}   ->   the same with schedule = "generated"

Generated code reads the weights as torch packs them for processors with AVX-512, where this one has it; a product that does not consist of
whole panels of such weights is torch's. A schedule that is there already stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from ....dialects import nd
from ....dialects.machine import has_library
from ....lowering.mem_to_cpu.attention import GENERATED
from ....passes.manager.pass_manager import Pass
from ....passes.nd.nd_attention import keeps_eager_numerics
from ....passes.nd.quantised.int4_calls import int4_call, shapes_fit
from ..features import target
from ..gemm.int4 import has_int4
from ..gemm.spec import isa_for


@dataclass(frozen=True)
class Int4Select(Pass):
    """Chooses between generated products of packed weights and the library's; under numerics "eager" it is the library's."""

    name = "int4-select"

    force: Literal["", "generated", "library"] = ""
    """"generated" or "library" instead of the rules."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Writes the choice on each call."""
        wanted = self.force or ("library" if keeps_eager_numerics(op) and has_library(op) else GENERATED)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for extern in [o for o in func.body.block.ops if isinstance(o, nd.ExternOp) and o.schedule is None]:
                int4 = int4_call(extern.call.data)
                if int4 is None:
                    continue
                fits = shapes_fit([v.type for v in extern.operands], int4)
                problem = _problem_of_machine() or ("" if fits else "its weights are no whole panels of known sizes")
                if problem and wanted == GENERATED:
                    self.remark(extern, f"stays torch's: {problem}")
                choice = "library" if problem else wanted
                extern.properties["schedule"] = StringAttr(choice)
                self.statistic(f"num-{choice}")


def _problem_of_machine() -> str:
    """Why no product of this machine is generated; empty if they are."""
    if not has_int4(isa_for(target())):
        return "the instruction set that is compiled for has no AVX-512"
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "torch packs weights in another way on this machine"
    return ""
