"""gpu-measure-products: `nd-library-products` that asks the GPU.

    %p = nd.matmul %x, %w ; %y = nd.relu %p     ->     the faster of a call of the library with a kernel behind it, and one generated kernel

Each product, with what stands behind it, is compiled by itself in both ways and run. What the library computes has the algorithm that is
fastest (host/gpu/products.py), what is generated the tile that is (gpu_tune.py). The times are in a file that people can read and edit:

    {"NVIDIA H200 sm_90 4f2a...": {"51c0...": {"product": "2048 x 3072 x bf16", "library": 19.1, "generated": 25.8}}}

Sizes that are symbols are left to the price."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import nd
from ...dialects.expr import strides_contiguous
from ...dialects.host import program_of
from ...dialects.machine import MEASURED_PRODUCTS
from ...dialects.nd.types import LayoutAttr, TensorType, tensor_type
from ...errors import StepwellError
from ...passes.cost.machine import Gpu, machine_of
from ...passes.manager.pass_manager import run
from ...passes.manager.pipelines import default_pipeline
from ...passes.nd.products.nd_library_products import NdLibraryProducts
from ...passes.nd.products.product_choice import Candidate, Seconds
from ..cpu.cache import cache_folder, environment
from ..measurements import Measurements
from .kernels import device_shared_memory, device_target, start_program_kernels

if TYPE_CHECKING:
    from ..host.gpu.timer import CudaTimer

log = logging.getLogger("stepwell")

LAID_OUT = nd.PermuteOp | nd.ReshapeOp | nd.FullOp | nd.IotaOp
"""Operations in front of a product that say how its factors lie, or what they are."""


@dataclass(frozen=True)
class GpuMeasureProducts(NdLibraryProducts):
    """Makes calls of the library of products and convolutions where that was measured to be faster. Without a GPU the price decides. The
    program is told to measure the library's algorithms for its products when it first computes them."""

    name = "gpu-measure-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """See NdLibraryProducts."""
        op.attributes[MEASURED_PRODUCTS] = UnitAttr()
        super().apply(ctx, op)

    def seconds(self, ctx: Context, module: ModuleOp) -> Seconds | None:
        """See NdLibraryProducts."""
        from ..host.gpu.timer import cuda_timer

        gpu = machine_of(module, Gpu)
        timer = cuda_timer(gpu.device)
        if timer is None or self.library != "price":
            return None
        known = Measurements(cache_folder() / "choices.json", f"{timer.device} {gpu.name} {environment()[:16]}")
        return lambda one: measured(one, module, known, lambda alone: program_seconds(alone, ctx, timer))


def measuring(one: ModulePass) -> ModulePass:
    """The pass that measures, in the place of the one that does not."""
    if type(one) is not NdLibraryProducts:
        return one
    return GpuMeasureProducts(**{f.name: getattr(one, f.name) for f in fields(one)})


def measured(
    one: Candidate, module: ModuleOp, known: Measurements, seconds: Callable[[ModuleOp], tuple[float, float]]
) -> tuple[float, float] | None:
    """What a candidate takes with calls of the library, and generated. `seconds`: the same of a module."""
    alone = isolated(one, module)
    if alone is None:
        return None
    key = sha256(str(alone).encode()).hexdigest()[:32]
    found = known.find(key)
    if found is None:
        try:
            times = seconds(alone)
        except StepwellError as error:
            log.info("a product cannot be measured: %s", error)
            return None
        if inf in times:
            return None  # it does not fit into the memory that is left: another time it may
        t = tensor_type(one.ops[0].results[0])
        found = {"product": " x ".join(map(str, (*t.dims, t.element_type))), "library": times[0] * 1e6, "generated": times[1] * 1e6}
        known.keep(key, found)
    return found["library"] / 1e6, found["generated"] / 1e6


def isolated(one: Candidate, module: ModuleOp) -> ModuleOp | None:
    """The products of a candidate, with what stands behind them, as a module; None where a size is a symbol. Their factors lie as they do
    in the module."""
    inside = {*one.ops, *one.parts, *one.behind}
    worklist = [v for op in inside for v in op.operands]
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, LAID_OUT) and op not in inside:
            inside.add(op)
            worklist += op.operands
    ops = [op for op in _in_order(one.ops[0]) if op in inside]
    outer = list(dict.fromkeys(v for op in ops for v in op.operands if v.owner not in inside))
    results = [r for op in ops for r in op.results if any(use.operation not in inside for use in r.uses) and not isinstance(op, LAID_OUT)]
    types = [v.type for op in ops for v in (*op.operands, *op.results)]
    if not all(isinstance(t, TensorType) and all(n.is_const for n in t.dims) for t in types):
        return None
    block = Block(arg_types=[v.type for v in outer])
    values: dict[SSAValue, SSAValue] = dict(zip(outer, block.args, strict=True))
    for op in ops:
        copy = op.clone(values)
        block.add_op(copy)
    block.add_op(func.ReturnOp(*(values[r] for r in results)))
    made = func.FuncOp("product", ([v.type for v in outer], [r.type for r in results]), Region(block))
    made.arg_attrs = ArrayAttr([DictionaryAttr({LayoutAttr.name: lies} if (lies := _layout(v)) is not None else {}) for v in outer])
    return ModuleOp([made], attributes=dict(module.attributes))


def _layout(value: SSAValue) -> LayoutAttr | None:
    """How an argument of the graph lies; None of another value, and where rows follow each other."""
    block = value.owner
    function = block.parent_op() if isinstance(block, Block) else None
    if not isinstance(function, func.FuncOp) or function.arg_attrs is None:
        return None
    found = function.arg_attrs.data[value.index].data.get(LayoutAttr.name)  # pyright: ignore[reportAttributeAccessIssue]
    return found if isinstance(found, LayoutAttr) and found.stride_exprs != strides_contiguous(tensor_type(value).dims) else None


def _in_order(op: Operation) -> Iterator[Operation]:
    """The operations of the block of an operation."""
    assert op.parent is not None
    yield from op.parent.ops


def program_seconds(alone: ModuleOp, ctx: Context, timer: CudaTimer) -> tuple[float, float]:
    """What a module takes where products are calls of the library, and where they are not; inf where memory does not suffice.
    StepwellError."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from ..host.gpu.products import PlanLimit

    device = f"cuda:{machine_of(alone, Gpu).device}"
    (function,) = (f for f in alone.ops if isinstance(f, func.FuncOp))
    layouts = [(tensor_type(v), _layout(v)) for v in function.body.block.args]
    programs = [compiled(alone.clone(), library, ctx, device) for library in ("always", "never")]
    with _disable_current_modes(), torch.no_grad(), torch.cuda.device(device):
        try:
            inputs = [_filled(t, layout, device) for t, layout in layouts]
            rounds = [[timer.seconds_of(partial(_launch, program, inputs)) for program in programs] for _ in range(PlanLimit.ROUNDS)]
        except torch.OutOfMemoryError:
            return inf, inf
    library, generated = map(min, zip(*rounds, strict=True))
    return library, generated


def compiled(module: ModuleOp, library: str, ctx: Context, device: str) -> Callable[[list[Any]], list[Any]]:
    """The program of a module whose products are calls of the library ("always") or not ("never"), with the fastest tiles and algorithms.
    StepwellError."""
    from ..cpu.emit.module import emit_kernels
    from ..cpu.jit import compile_text
    from ..host.emit import emit_host
    from ..host.load import load_object_code, load_program

    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", f"nd-library-products{{library={library}}}")
    pipeline.add("mem", "gpu-tune", "before:gpu-schedule")
    run(pipeline, module, ctx)
    kernels, finish = start_program_kernels(module, device_target(device), device_shared_memory(device))
    text = emit_kernels(module)
    description = emit_host(text, program_of(module), kernels=kernels, device=device)
    code = compile_text(text.text())
    finish()
    return load_program(description, load_object_code(code, description.native))


def _launch(program: Callable[[list[Any]], list[Any]], inputs: list[Any]) -> int:
    """Call a program, which empties its list."""
    program(list(inputs))
    return 0


def _filled(t: TensorType, layout: LayoutAttr | None, device: str) -> Any:
    """A tensor of small numbers, where they may be no indices."""
    import torch

    from ..host.element_types import dtype_name

    sizes = [int(n) for n in t.dims]
    strides = [int(n) for n in (layout.stride_exprs if layout is not None else strides_contiguous(t.dims))]
    dtype = getattr(torch, dtype_name(t.element_type) or "uint8")
    made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    return made.copy_(torch.rand(sizes, device=device)) if dtype.is_floating_point else made.zero_()
