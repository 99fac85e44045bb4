"""Graphs of a program for a GPU that need not be there: they are lowered and watched; ATen computes them where their tensors are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes
from xdsl.dialects.builtin import ModuleOp

from ...dialects import host
from ...targets.host.description import ProgramDescription
from ...targets.triton.gpu import GpuTarget, use_gpu
from ..debug.compile_log import compilation, compile_lock
from ..recovery.aten_graph import AtenGraph
from .compile_graph import lower_graph, lower_module
from .devices import on_device
from .torch_backend import GraphCompilers

if TYPE_CHECKING:
    from ...lowering.fx_to_nd import Border
    from ...passes.manager.pass_manager import Pipeline
    from ..debug.folder import DebugFolder
    from ..options.options import Options
    from .compile_graph import Watch


class CrossCompilers(GraphCompilers):
    """Compiles graphs for a GPU as far as they can be looked at without it."""

    def __init__(self, options: Options, watch: Watch, gpu: GpuTarget) -> None:
        super().__init__(options, watch)
        self.gpu = gpu

    def _guarded(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str, edge: Border | None) -> Callable[..., Any]:
        computed = AtenGraph(gm)  # lowering may change the graph
        moved = on_device(gm, "cuda:0")
        with compile_lock, _disable_current_modes(), compilation(kind, self.number, self.options), use_gpu(self.gpu):
            self._lowered(moved, kind, edge)
        return computed

    def _lowered(self, gm: GraphModule, kind: str, edge: Border | None = None) -> None:
        def body(inner: GraphModule) -> AtenGraph:
            self._lowered(inner, f"{kind}-body")
            return AtenGraph(inner)

        lower_graph(
            gm, (), self.options, kind=kind, border=edge, watch=self.watch, matched=self.matched, make=_described, compile_body=body
        )


def _described(
    module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Watch | None = None
) -> tuple[ProgramDescription, bytes, str]:
    """What compile_graph.build does, without code: it is never run."""
    lower_module(module, device, options, debug, pipeline, watch)
    program = host.program_of(module)
    return ProgramDescription(program.sym_name.data, len(program.body.block.args), native=False, python="", device=device), b"", ""


def plain_attention() -> AbstractContextManager[Any]:
    """Attention is traced as products and a softmax inside of the block: the kernels that torch would choose are another device's."""
    return sdpa_kernel(SDPBackend.MATH)
