"""Which passes there are, by name.  A pass is imported when it is first asked for, so that tools start fast.

To add a pass: write it in its file and add one line to `OURS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from xdsl.passes import ModulePass

from .errors import PipelineError, did_you_mean

OURS: dict[str, str] = {
    "apply-pdl": "tools.rewrite.apply_pdl:ApplyPdl",
    "nd-to-loop": "lowering.nd_to_loop:NdToLoop",
    "loop-to-mem": "lowering.loop_to_mem:LoopToMem",
    "attention-expand": "targets.cpu.select.attention_expand:AttentionExpand",
    "attention-select": "targets.cpu.select.attention_select:AttentionSelect",
    "int4-rows": "targets.cpu.select.int4_rows:Int4Rows",
    "int4-select": "targets.cpu.select.int4_select:Int4Select",
    "contract-select": "targets.cpu.select.contract_select:ContractSelect",
    "mem-to-cpu": "lowering.mem_to_cpu:MemToCpu",
    "gpu-parallel-scatter": "passes.gpu.gpu_parallel_scatter:GpuParallelScatter",
    "gpu-cooperative-rows": "passes.gpu.gpu_cooperative_rows:GpuCooperativeRows",
    "gpu-fission": "passes.gpu.gpu_fission:GpuFission",
    "tt-join-launches": "lowering.mem_to_tt.tt_join_launches:TtJoinLaunches",
    "tt-overlap-launches": "lowering.mem_to_tt.tt_overlap_launches:TtOverlapLaunches",
    "gpu-schedule": "passes.gpu.gpu_schedule:GpuSchedule",
    "gpu-measure-products": "targets.triton.gpu_measure_products:GpuMeasureProducts",
    "gpu-tune": "targets.triton.gpu_tune:GpuTune",
    "gpu-gather-sums": "passes.gpu.scatters.gpu_gather_sums:GpuGatherSums",
    "gpu-carry-groups": "passes.gpu.carried.gpu_carry_groups:GpuCarryGroups",
    "gpu-check-indices": "passes.gpu.carried.gpu_check_indices:GpuCheckIndices",
    "gpu-carry-norms": "passes.gpu.carried.gpu_carry_norms:GpuCarryNorms",
    "gpu-carry-reductions": "passes.gpu.carried.gpu_carry_reductions:GpuCarryReductions",
    "gpu-carry-softmax": "passes.gpu.gpu_carry_softmax:GpuCarrySoftmax",
    "gpu-online-softmax": "passes.gpu.gpu_online_softmax:GpuOnlineSoftmax",
    "gpu-split-rows": "passes.gpu.gpu_split_rows:GpuSplitRows",
    "gpu-split-reduction": "passes.gpu.gpu_split_reduction:GpuSplitReduction",
    "gpu-list-blocks": "passes.gpu.carried.gpu_list_blocks:GpuListBlocks",
    "gpu-split-scan": "passes.gpu.gpu_split_scan:GpuSplitScan",
    "gpu-neighbours": "passes.gpu.gpu_neighbours:GpuNeighbours",
    "gpu-window-strips": "passes.gpu.gpu_window_strips:GpuWindowStrips",
    "mem-to-tt": "lowering.mem_to_tt:MemToTt",
    "to-host": "lowering.to_host.to_host:ToHost",
    "nd-bucket-collectives": "passes.nd.nd_bucket_collectives:NdBucketCollectives",
    "nd-canonicalize": "passes.nd.algebra.nd_canonicalize:NdCanonicalize",
    "nd-cut-products": "passes.nd.nd_cut_products:NdCutProducts",
    "nd-attention": "passes.nd.nd_attention:NdAttention",
    "nd-row-blocks": "passes.nd.row_blocks.nd_row_blocks:NdRowBlocks",
    "nd-weigh-rows": "passes.nd.weighed.nd_weigh_rows:NdWeighRows",
    "nd-library-products": "passes.nd.products.nd_library_products:NdLibraryProducts",
    "nd-stack-products": "passes.nd.products.nd_stack_products:NdStackProducts",
    "nd-convolution-products": "passes.nd.convolutions.nd_convolution_products:NdConvolutionProducts",
    "nd-small-convolutions": "passes.nd.products.nd_small_convolutions:NdSmallConvolutions",
    "nd-narrow-factors": "passes.nd.quantised.nd_narrow_factors:NdNarrowFactors",
    "nd-small-products": "passes.nd.products.nd_small_products:NdSmallProducts",
    "nd-sink-cat": "passes.nd.nd_sink_cat:NdSinkCat",
    "nd-split-reductions": "passes.nd.nd_split_reductions:NdSplitReductions",
    "contract-epilogue": "passes.loop.contract.contract_epilogue:ContractEpilogue",
    "loop-batch": "passes.loop.repeats.loop_batch:LoopBatch",
    "loop-fuse": "passes.loop.fusion.loop_fuse:LoopFuse",
    "loop-inline": "passes.loop.repeats.loop_inline:LoopInline",
    "loop-interchange": "passes.loop.transform.loop_interchange:LoopInterchange",
    "loop-tile": "passes.loop.transform.loop_tile:LoopTile",
    "loop-collapse": "passes.loop.transform.loop_collapse:LoopCollapse",
    "loop-expand": "passes.loop.transform.loop_expand:LoopExpand",
    "loop-vectorize": "passes.loop.transform.loop_vectorize:LoopVectorize",
    "loop-unroll": "passes.loop.transform.loop_unroll:LoopUnroll",
    "loop-hoist": "passes.loop.transform.loop_hoist:LoopHoist",
    "loop-narrow-index": "passes.loop.transform.loop_narrow_index:LoopNarrowIndex",
    "loop-split-reduction": "passes.loop.transform.loop_split_reduction:LoopSplitReduction",
    "loop-fuse-rows": "passes.loop.fusion.loop_fuse_rows:LoopFuseRows",
    "loop-fuse-windows": "passes.loop.fusion.loop_fuse_windows:LoopFuseWindows",
    "loop-fuse-tables": "passes.loop.fusion.loop_fuse_tables:LoopFuseTables",
    "loop-recompute": "passes.loop.fusion.loop_recompute:LoopRecompute",
    "loop-layout": "passes.loop.loop_layout:LoopLayout",
    "loop-order": "passes.loop.loop_order:LoopOrder",
    "loop-outline": "passes.loop.repeats.loop_outline:LoopOutline",
    "loop-schedule": "passes.loop.loop_schedule:LoopSchedule",
    "mem-check-memory": "passes.mem.mem_check_memory:MemCheckMemory",
    "mem-check-order": "passes.mem.mem_check_order:MemCheckOrder",
    "mem-join-nests": "passes.mem.mem_join_nests:MemJoinNests",
    "mem-pack-operands": "passes.mem.mem_pack_operands:MemPackOperands",
    "mem-pad-strides": "passes.mem.mem_pad_strides:MemPadStrides",
    "mem-term-blocks": "passes.mem.terms.mem_term_blocks:MemTermBlocks",
    "mem-plan": "passes.mem.arena.mem_plan:MemPlan",
    "mem-split-scalars": "passes.mem.mem_split_scalars:MemSplitScalars",
    "mem-stage-rows": "passes.mem.mem_stage_rows:MemStageRows",
    "mem-view-offsets": "passes.mem.mem_view_offsets:MemViewOffsets",
}
"""Pass name -> ``module:Class``, the module relative to the package."""

PassLoader = Callable[[], type[ModulePass]]

_ROOT = __name__.partition(".")[0]


def loader(target: str) -> PassLoader:
    """A function that imports ``module:Class`` (relative to the package) and returns the class."""
    module, _, name = target.partition(":")
    return lambda: getattr(import_module(f".{module}", _ROOT), name)


PASSES: dict[str, PassLoader] = {name: loader(target) for name, target in OURS.items()}
"""Our passes and those that were registered, by name."""


@cache
def xdsl_passes() -> dict[str, PassLoader]:
    """The passes that come with xDSL (canonicalize, cse, dce, ...), by name."""
    from xdsl.transforms import get_all_passes

    return get_all_passes()


def register(name: str, load: PassLoader) -> None:
    """Make a pass known under `name`; `load` returns its class.

    A class takes the place of an earlier one of the same module and name.  PipelineError if another pass is called `name`.
    """
    refuse_taken(name)
    if name in PASSES:
        old, new = PASSES[name](), load()
        if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__):
            raise PipelineError(
                f"there is a pass '{name}' already, {old.__module__}.{old.__qualname__}; stepwell.unregister_pass('{name}') takes it out"
            )
    PASSES[name] = load


def refuse_taken(name: str) -> None:
    """PipelineError if stepwell or xDSL has a pass called `name`."""
    if name in OURS or name in xdsl_passes():
        raise PipelineError(f"there is a pass '{name}' in {'stepwell' if name in OURS else 'xDSL'} already")


def unregister(name: str) -> None:
    """Forget a pass that was registered; one of ours stays."""
    if name not in OURS:
        PASSES.pop(name, None)


def all_passes() -> dict[str, PassLoader]:
    """Every pass by name: ours, registered ones, and those of xDSL whose names are free."""
    return {**xdsl_passes(), **PASSES}


def is_known(name: str) -> bool:
    """True if there is a pass called `name`."""
    return name in PASSES or name in xdsl_passes()


def load_pass(name: str) -> type[ModulePass]:
    """The class of pass `name`.

    Raises PipelineError if there is no such pass (with near names), or if it cannot be imported (with the reason).
    """
    load = PASSES.get(name) or xdsl_passes().get(name)
    if load is None:
        raise PipelineError(
            f"'{name}' does not refer to a registered pass or pass pipeline{did_you_mean(name, all_passes())}"
        )
    try:
        return load()
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"pass '{name}' cannot be loaded: {error}") from error
