"""tt-overlap-launches: kernels are launched while the one before them ends.

    tt.func public @k0(...) { ... }
->  tt.func public @k0(...) attributes {overlaps} { tt.elementwise_inline_asm "griddepcontrol.wait; ..." ... }

From sm_90 on a GPU can set up the programs of a kernel once those of the kernel before it on the stream are done, without waiting for
what these wrote to be seen (CUDA's programmatic dependent launch). Each program then waits for that itself, before it touches memory: an
instruction that returns when all kernels before it are done and what they wrote is there, and at once where the launch was a plain one.
No kernel of ours says that the next one may begin earlier, so that programs which wait hold no place that others need."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr, i32

from ...dialects.host import LaunchOp
from ...dialects.tt.compute import GRID_WAIT, ElementwiseInlineAsmOp
from ...dialects.tt.structure import OVERLAPS, FuncOp
from ...passes.cost.machine import Gpu, machine_of
from ...passes.manager.pass_manager import Pass


@dataclass(frozen=True)
class TtOverlapLaunches(Pass):
    """Lets kernels be launched while the one before them ends, on GPUs that can (sm_90 and later)."""

    name = "tt-overlap-launches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gpu = machine_of(op, Gpu)
        if not gpu.overlaps_launches:
            self.remark(op, f"{gpu.name} begins a kernel when the one before it is done", kind="missed")
            return
        launched = {one.kernel.root_reference.data for one in op.walk() if isinstance(one, LaunchOp)}
        for kernel in [f for f in op.ops if isinstance(f, FuncOp) and f.sym_name.data in launched]:
            if _says_when(kernel):
                continue
            wait = ElementwiseInlineAsmOp.make(GRID_WAIT, "=r", [], i32)
            wait.location = kernel.location
            entry = kernel.body.blocks[0]
            assert entry.first_op is not None
            entry.insert_op_before(wait, entry.first_op)
            kernel.attributes[OVERLAPS] = UnitAttr()
            self.statistic("num-kernels")


def _says_when(kernel: FuncOp) -> bool:
    """Whether a kernel, of a user's, deals with what comes before and behind it itself; or has been here already."""
    return any(isinstance(one, ElementwiseInlineAsmOp) and "griddepcontrol" in one.asm_string.data for one in kernel.walk())
