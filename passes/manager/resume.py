"""Where a pipeline begins on IR that is at a later level than tensors: ``stepwell-cpu`` in text stands for what is left to do.

The level of a module is that of its function that is least far down, told by dialects and types. The pipeline begins in the stage of
that level, behind the lowering that leads there.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from ...dialects.mem import BufferType
from .instrumentation import remark
from .pass_manager import Pipeline, Stage, entry_text
from .pipelines import LEVELS, LOWERINGS

AT_EVERY_LEVEL = frozenset(("nd.extern", "nd.view", "nd.update", "loop.batch"))
"""Operations that say nothing of the level: nd-to-loop keeps those of `nd`, and the function of its body has the level of a batch."""


def function_level(func: FuncOp) -> str | None:
    """``nd``, ``loop``, ``mem``, or ``cpu`` where launches of kernels have taken the place of nests; None where nothing says it.

    One that has operations on tensors beside nests is at ``nd``.
    """
    if not func.body.blocks:
        return None
    block = func.body.block
    dialects = {op.name.partition(".")[0] for op in block.ops if op.name not in AT_EVERY_LEVEL}
    values = (*block.args, *(r for op in block.ops for r in op.results))
    if "mem" in dialects or any(isinstance(v.type, BufferType) for v in values):
        return "cpu" if "host" in dialects and "loop" not in dialects else "mem"
    return next((level for level in ("nd", "loop") if level in dialects), None)


def level_of(module: ModuleOp) -> str:
    """The level of the function that is least far down; of a module without functions, that of its programs or kernels."""
    functions = [level for op in module.ops if isinstance(op, FuncOp) and (level := function_level(op)) is not None]
    if functions:
        return min(functions, key=LEVELS.__getitem__)
    others = {op.name.partition(".")[0] for op in module.ops} & set(LEVELS)
    return max(others, key=LEVELS.__getitem__, default="nd")


def resumed(pipeline: Pipeline, module: ModuleOp) -> Pipeline:
    """The pipeline without what `module`, and what stands before in the pipeline, has done.

    Only stages that say so (`Stage.resumes`) are shortened. A remark says where each of their pipelines begins.
    """
    level = level_of(module)
    reached: float = LEVELS[level]
    stages: list[Stage] = []
    for stage in pipeline.stages:
        rank = LEVELS.get(stage.name)
        if rank is None:
            stages.append(stage)
            reached = max([reached, *(LEVELS[LOWERINGS[p.name]] for p in stage.passes() if p.name in LOWERINGS)])
            continue
        kept = _rest(stage, rank, reached) if stage.resumes else stage
        stages.append(kept)
        reached = max(reached, rank + 0.5)
    result = Pipeline(pipeline.name, [stage for stage in stages if stage.entries])
    if result != pipeline:
        _say(pipeline, result, level, module)
    return result


def _rest(stage: Stage, rank: int, reached: float) -> Stage:
    """What is left of a stage: nothing of one that is behind, the passes after the lowering of the one that was reached."""
    if rank > reached:
        return stage
    if rank < reached:
        return Stage(stage.name, [])
    for k, entry in enumerate(stage.entries):
        if any(LOWERINGS.get(p.name) == stage.name for p in Stage("", [entry]).passes()):
            return Stage(stage.name, stage.entries[k + 1 :])
    return stage


def _say(pipeline: Pipeline, result: Pipeline, level: str, module: ModuleOp) -> None:
    name = next(stage.resumes for stage in pipeline.stages if stage.resumes)
    first = next(((stage, stage.entries[0]) for stage in result.stages), None)
    if first is None:
        begin = "nothing is left to do"
    else:
        stage, entry = first
        begin = f"the pipeline begins with {entry_text(entry)}" + (f" of stage {stage.name}" if stage.name else "")
    remark(module, f"the input is at level {level}: {begin} ({name}{{from=STAGE}} begins elsewhere)", "analysis")
