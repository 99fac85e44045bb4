"""A user's word on fusion, from torch's side: the options `no_fuse` and `fuse`, and `with stepwell.no_fuse():` in a program."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableSet
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...passes.analysis.origins import is_named, names_of, operator_of
from ...passes.loop.contract.contract_epilogue import ContractEpilogue
from ...passes.loop.fusion.loop_fuse import LoopFuse
from ...passes.loop.repeats.loop_batch import LoopBatch
from ...passes.loop.repeats.loop_outline import LoopOutline
from ...passes.manager.errors import PipelineError, did_you_mean
from ...passes.manager.pass_manager import Pipeline

if TYPE_CHECKING:
    from ..options.options import Options

log = logging.getLogger("stepwell")
MARK = "stepwell.no_fuse"
"""Key in `node.meta["custom"]` of what was computed under `no_fuse()`."""


def no_fuse(*names: object) -> AbstractContextManager[None]:
    """A context for compiled code: each operator in it, and its gradient, gets nests of its own that are fused with nothing else.

    It rests on torch.fx.traceback.annotate, which Dynamo and AOTAutograd carry through to the graph. In eager code it does nothing.
    TypeError for `names`, which says where they go."""
    if names:
        raise TypeError("no_fuse() is a context for the operators in it and takes no names; those go into options={'no_fuse': [...]}")
    from torch.fx.traceback import annotate

    return annotate({MARK: True})


def marked(gm: GraphModule) -> tuple[str, ...]:
    """The nodes of a graph that were computed under `no_fuse()`."""
    return tuple(n.name for n in gm.graph.nodes if n.op == "call_function" and (n.meta.get("custom") or {}).get(MARK))


def apply_fusion_directives(
    pipeline: Pipeline, module: ModuleOp, options: Options, marks: tuple[str, ...], matched: MutableSet[str], last: bool
) -> None:
    """Hand the directives of `options` that concern `module` (an imported graph) and the marked names to loop-fuse.

    `matched` collects the entries that some graph of this compilation knows; with `last` (no other graph follows) a warning is logged for
    those that none does."""
    if not options.no_fuse and not options.fuse and not marks:
        return
    plan_each_layer(pipeline)
    ops = list(computed(module))
    entries = {e for e in (*options.no_fuse, *(e for directive in options.fuse for e in directive))}
    here = {e for e in entries if any(is_named(op, operator_of(e)) for op in ops)}
    directives: dict[str, Any] = {
        "no_fuse": tuple(e for e in options.no_fuse if e in here),
        "fuse": tuple("+".join(directive) for directive in options.fuse if any(e in here for e in directive)),
        "marked": marks,
    }
    # what is wrong with the other entries of a directive that is handed on, loop-fuse says
    matched |= here | {e for directive in options.fuse if any(e in here for e in directive) for e in directive}
    named = {*here, *(e for directive in options.fuse for e in directive), *marks}
    if named:
        for apart in (LoopBatch(apart=tuple(sorted(named))), ContractEpilogue(apart=tuple(sorted(named)))):
            try:
                pipeline.replace(apart.name, apart)
            except PipelineError:
                log.debug("the pipeline has no pass '%s'", apart.name)
    if any(directives.values()):
        try:
            # beside what the target says
            there = next((p for p in pipeline.passes() if isinstance(p, LoopFuse)), LoopFuse())
            pipeline.replace(LoopFuse.name, replace(there, **directives))
        except PipelineError:
            log.warning("no_fuse and fuse have no effect: the pipeline has no pass 'loop-fuse'")
    if last:
        known = [name for op in ops for name in names_of(op)]
        for entry in sorted(entries - matched):
            hint = did_you_mean(entry, known)
            log.warning("'%s' (in the options no_fuse or fuse) names no operator of the compiled graph%s", entry, hint)


def plan_each_layer(pipeline: Pipeline) -> None:
    """Plan equal layers one by one, so that a directive can be for one of them, and a report speaks of each."""
    if any(p.name == LoopOutline.name for p in pipeline.passes()):
        pipeline.remove(LoopOutline.name)


def computed(module: ModuleOp) -> Iterator[Operation]:
    """What the functions of a module compute, in order."""
    for func in module.body.block.ops:
        if isinstance(func, FuncOp):
            yield from (op for op in func.body.block.ops if op.results)
