"""Levels that are no modules of ours: the FX graph, LLVM IR, assembly, and what Triton makes of kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp

from ..backend.compile_graph import context
from ..opt.emit import emit_gpu, emit_llvm, emit_sass, gpu_kernels
from .tables import Origins

if TYPE_CHECKING:
    from ...passes.cost.machine import Gpu
    from ...targets.triton.compile import CompiledKernel
    from ...targets.triton.gpu import GpuTarget

_FX_NODE = re.compile(r"^\s+(\w+)(?:: [^=]*)? = ")
_BEGINS = {
    "llvm": re.compile(r"^define [^@]*@\"?([\w.$-]+)\"?\("),
    "asm": re.compile(r"^([A-Za-z_][\w.$]*):"),
    "ptx": re.compile(r"^\s*(?:\.visible )?\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)\("),
    "sass": re.compile(r"^([A-Za-z_][\w.$]*):"),
    "amdgcn": re.compile(r"^([A-Za-z_][\w.$]*):"),
}
_ENDS = {
    "llvm": re.compile(r"^}"),
    "asm": re.compile(r"^\.Lfunc_end|^\s*\.cfi_endproc"),
    "ptx": re.compile(r"^}"),
    "sass": re.compile(r"^$"),
    "amdgcn": re.compile(r"^\.Lfunc_end"),
}


def fx_level(gm: Any, text: str, origins: Origins) -> dict[str, Any]:
    """The level of an FX graph, `text` being its code as print_readable gives it: an operation for each node that is a line."""
    from ..explain.collect import stack_place, target_name

    nodes = {node.name: node for node in gm.graph.nodes}
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _FX_NODE.match(line)
        node = nodes.get(match[1]) if match else None
        if node is None or node.name in found:
            continue
        place = stack_place(node.meta.get("stack_trace"))
        at = origins.named.get(node.name) or [origins.place(node.name, place.file, place.line)]
        found[node.name] = {"op": target_name(node.target), "line": number, "results": [node.name], "at": at}
    ids = {name: k for k, name in enumerate(found)}
    for name, one in found.items():
        node = nodes[name]
        one["users"] = sorted(ids[n.name] for n in node.users if n.name in ids)
        value = node.meta.get("val")
        if hasattr(value, "dtype"):
            sizes = "x".join(map(str, value.shape))
            one["types"] = [origins.tables.types.place(f"{str(value.dtype).removeprefix('torch.')}[{sizes}] {value.device}")]
    operations = [{key: value for key, value in one.items() if value != []} for one in found.values()]
    return {"name": "fx", "language": "python", "text": origins.tables.texts.place(text), "operations": operations}


def code_level(name: str, text: str, places: Mapping[str, list[int]], origins: Origins) -> dict[str, Any]:
    """A level of code (llvm, asm, ptx, sass, amdgcn): an operation for each function. `places`: kernel -> its origins."""
    operations: list[dict[str, Any]] = []
    for symbol, first, last in functions(name, text):
        one: dict[str, Any] = {"op": "function", "line": first, "end": last, "symbol": symbol}
        if at := places.get(symbol.removesuffix(".launch")):
            one["at"] = at
        operations.append(one)
    return {"name": name, "language": name, "text": origins.tables.texts.place(text), "operations": operations}


def functions(language: str, text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, last line) of each function of a text."""
    begins, ends = _BEGINS[language], _ENDS[language]
    open_name, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not open_name and (match := begins.match(line)):
            open_name, first = match[1], number
        elif open_name and ends.match(line):
            yield open_name, first, number
            open_name = ""


def _assembly(module: ModuleOp) -> str:
    from ...targets.cpu.jit import assembly

    return assembly(emit_llvm(module, context()))


def _of_triton(stage: str, module: ModuleOp) -> str:
    text = emit_gpu(stage, module, context())
    return text if isinstance(text, str) else text.decode()


_CODE: dict[str, dict[str, Callable[[ModuleOp], str]]] = {
    "cpu": {"llvm": lambda module: emit_llvm(module, context()), "asm": _assembly},
    "cuda": {"ptx": partial(_of_triton, "ptx"), "sass": lambda module: emit_sass(module, context())},
    "hip": {"amdgcn": partial(_of_triton, "amdgcn")},
}
"""CPU, or Triton's back end -> level -> what makes its text from the module of the last one."""


def code_of(module: ModuleOp) -> dict[str, Callable[[ModuleOp], str]]:
    """Level of code -> what makes its text; that raises StepwellError where the toolchain is not there."""
    return _CODE[_gpu(module).backend if has_gpu_kernels(module) else "cpu"]


def has_gpu_kernels(module: ModuleOp) -> bool:
    """Whether kernels of a module are for a GPU."""
    return any(op.name.startswith("tt.") for op in module.body.block.ops)


def _gpu(module: ModuleOp) -> GpuTarget:
    from ...passes.cost.machine import Gpu, machine_of
    from ...targets.triton.gpu import gpu_target

    return gpu_target(machine_of(module, Gpu).name)


def gpu_resources(module: ModuleOp) -> dict[str, dict[str, Any]]:
    """Kernel -> what it takes of a multiprocessor (docs/reference/explorer-json.md); what the assembler does not say is left out. Raises
    StepwellError where kernels cannot be assembled."""
    from ...passes.cost.machine import Gpu, machine_of

    gpu = machine_of(module, Gpu)
    return {one.name: _resources(one, gpu) for one in gpu_kernels(module, "amdgcn" if _gpu(module).backend == "hip" else None)}


_USED = {
    "registers": re.compile(r"^\s*\.vgpr_count:\s+(\d+)", re.MULTILINE),
    "spills": re.compile(r"^\s*\.private_segment_fixed_size:\s+(\d+)", re.MULTILINE),
}
"""Where assembly for AMD's GPUs says what a kernel uses, in the notes at its end."""


def _resources(kernel: CompiledKernel, gpu: Gpu) -> dict[str, Any]:
    from ...passes.cost.machine.occupancy import occupancy

    found = {key: n for key in ("registers", "spills", "shared") if (n := kernel.details.get(key)) is not None}
    if isinstance(kernel.code, str):
        found.update((key, int(match[1])) for key, rule in _USED.items() if (match := rule.search(kernel.code)))
    found["warps"] = warps = kernel.details.get("num_warps", kernel.options.num_warps)
    if "registers" in found and (held := occupancy(gpu, warps, found["registers"], found.get("shared", 0))):
        found.update(programs=held.programs, occupancy=held.share, limit=held.limit)
    return found
