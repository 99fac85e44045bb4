"""The pipelines of the targets, and pipelines from text.

A target's pipeline is a table: stage -> names of passes in order.  `default_pipeline` makes it, the passes that users
registered included; `parse_pipeline` reads text, in which ``stepwell-cpu{from=loop to=mem}`` stands for (a part of) a
target's pipeline.  Without `from` it begins behind the level of the IR that it runs on (passes/manager/resume.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from xdsl.passes import ModulePass

from ...dialects.machine import USUAL_GPU, MachineAttr
from . import registry, user
from .errors import PipelineError, did_you_mean
from .pass_manager import MODULE, Entry, Nest, PassLike, Pipeline, Stage, anchor_of, as_pass, entry_text, is_foreign
from .pipeline_text import Element, Option, PipelineValue, build_pass, parse_text

TARGETS: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {
        "nd": (
            "nd-bucket-collectives", "nd-cut-products", "nd-canonicalize", "nd-attention", "nd-weigh-rows", "attention-expand",
            "attention-select", "int4-select", "int4-rows", "nd-sink-cat{merged}", "nd-convolution-products", "nd-stack-products",
            "nd-row-blocks", "nd-narrow-factors", "nd-small-products", "nd-small-convolutions", "nd-split-reductions",
        ),
        "loop": (
            "loop-batch", "loop-outline", "nd-to-loop", "contract-epilogue", "loop-fuse{local-bytes=65536}",
            "loop-fuse-rows", "loop-fuse-windows", "loop-inline", "loop-layout", "loop-fuse-tables",
            "loop-order",
        ),
        "mem": (
            "loop-to-mem", "mem-term-blocks", "mem-pack-operands", "mem-split-scalars", "mem-stage-rows", "mem-plan", "loop-schedule",
            "mem-join-nests", "contract-select", "mem-check-memory", "mem-check-order",
        ),
        "cpu": ("mem-to-cpu",),
        "host": ("to-host",),
    },
    "gpu": {
        "nd": (
            "nd-bucket-collectives", "nd-cut-products", "nd-canonicalize", "nd-attention", "nd-sink-cat{merged}",
            "nd-row-blocks{step=128 part=10}", "nd-library-products{short=8}", "nd-split-reductions",
        ),
        "loop": (
            "nd-to-loop", "loop-fuse", "gpu-carry-softmax", "gpu-carry-norms", "gpu-carry-groups", "gpu-check-indices",
            "gpu-gather-sums", "gpu-carry-reductions", "loop-fuse-rows{columns-only}",
            "loop-recompute", "loop-inline", "loop-layout", "loop-order",
        ),
        "mem": (
            "loop-to-mem", "gpu-parallel-scatter", "gpu-split-rows", "gpu-online-softmax", "gpu-cooperative-rows",
            "gpu-fission", "gpu-split-reduction", "gpu-list-blocks", "gpu-split-scan", "gpu-neighbours",
            "gpu-window-strips", "mem-plan", "mem-view-offsets", "gpu-schedule", "mem-check-memory", "mem-check-order",
        ),
        "tt": ("mem-to-tt", "tt-join-launches", "tt-overlap-launches"),
        "host": ("to-host",),
    },
}  # fmt: skip
"""Target -> stage -> the passes of the stage, as pipeline text.  A stage begins with the lowering to its level."""

LEVELS: dict[str, int] = {name: depth for depth, names in enumerate(("nd", "loop", "mem", "cpu tt", "host")) for name in names.split()}
"""Level -> how far down it is.  The stages of our targets are named as levels."""

LOWERINGS: dict[str, str] = {"nd-to-loop": "loop", "loop-to-mem": "mem", "mem-to-cpu": "cpu", "mem-to-tt": "tt", "to-host": "host"}
"""Passes that take a module from one level to the next -> the level that they lead to; all others may be left out."""

NAMED_PIPELINES: dict[str, str] = {f"stepwell-{target}": target for target in TARGETS}
"""Name in pipeline text -> target whose pipeline it stands for."""

DEVICES: dict[str, str] = {"cpu": "cpu", "cuda": "gpu"}
"""Kind of device, as torch calls it -> target that graphs on it are compiled for.  What happens on other devices is the library's."""

MEASURING: Mapping[str, str] = {"gpu-measure-products": "nd-library-products", "gpu-tune": ""}
"""Passes of the GPU that measure -> the pass in whose place they are put, if there is one."""

_REPLACED: dict[str, dict[str, str]] = {}
"""Target of a user -> what its devices were compiled for before."""

TABLES: tuple[dict[str, Any], ...] = (TARGETS, NAMED_PIPELINES, DEVICES, _REPLACED)
"""All that `add_target` writes to."""


def add_target(name: str, stages: Mapping[str, Sequence[PassLike]], devices: Sequence[str], replace: bool = False) -> None:
    """Make a target known: its pipeline, whose last pass is `to-host`, and the kinds of devices that it is for.

    Its own passes can be used by name afterwards.  With `replace` the devices may have a target already.  Raises
    PipelineError, and has changed nothing then.
    """
    if name in TARGETS:
        raise PipelineError(f"there is a target '{name}' already")
    for device in devices:
        if device in DEVICES and not replace:
            raise PipelineError(
                f"target '{name}': device '{device}' is compiled by target '{DEVICES[device]}' already; replace=True takes it over"
            )
    table, classes = _stage_table(name, stages)
    for cls in classes:
        registry.register(cls.name, partial(_given, cls))
    TARGETS[name] = table
    NAMED_PIPELINES[f"stepwell-{name}"] = name
    _REPLACED[name] = {device: DEVICES[device] for device in devices if device in DEVICES}
    DEVICES.update(dict.fromkeys(devices, name))


def _stage_table(name: str, stages: Mapping[str, Sequence[PassLike]]) -> tuple[dict[str, tuple[str, ...]], list[type[ModulePass]]]:
    """Stages as text, and the classes among their passes."""
    table: dict[str, tuple[str, ...]] = {}
    classes: list[type[ModulePass]] = []
    texts: list[str]
    for stage, passes in stages.items():
        texts = []
        for source in [passes] if isinstance(passes, (str, type)) else passes:
            try:
                entry = parse_pass(source) if isinstance(source, str) else as_pass(source)
            except PipelineError as error:
                raise PipelineError(f"target '{name}', stage '{stage}': {error}") from error
            if not isinstance(source, str):
                classes += [type(p) for p in Stage(stage, [entry]).passes() if is_foreign(type(p))]
            texts.append(entry_text(entry))
        if not texts:
            raise PipelineError(f"target '{name}': stage '{stage}' has no passes")
        table[stage] = tuple(texts)
    if not table or table[list(table)[-1]][-1] != "to-host":
        raise PipelineError(f"target '{name}': the last pass of its last stage is not 'to-host'")
    return table, classes


def _given(cls: type[ModulePass]) -> type[ModulePass]:
    return cls


def remove_target(name: str) -> None:
    """Forget a target that was added; its devices have those of before.  Raises PipelineError if it was not added."""
    if name not in _REPLACED:
        raise PipelineError(f"no target '{name}' is registered{did_you_mean(name, _REPLACED)}")
    before = _REPLACED.pop(name)
    for device in [d for d, owner in DEVICES.items() if owner == name]:
        if device in before:
            DEVICES[device] = before[device]
        else:
            del DEVICES[device]
    for others in _REPLACED.values():  # what took its place is followed by what it had replaced
        for device in [d for d, owner in others.items() if owner == name]:
            if device in before:
                others[device] = before[device]
            else:
                del others[device]
    del TARGETS[name], NAMED_PIPELINES[f"stepwell-{name}"]


def machine_for(pipeline: Pipeline) -> MachineAttr | None:
    """The usual machine of the target that a pipeline is for: the GPU, if one of its passes is in the GPU's pipeline and in no CPU's, else
    None: nothing needs to be said of the CPU."""
    own = {target: {text.partition("{")[0] for passes in TARGETS[target].values() for text in passes} for target in ("cpu", "gpu")}
    only = (own["gpu"] | MEASURING.keys()) - own["cpu"]
    return MachineAttr.get(USUAL_GPU) if any(p.name in only for p in pipeline.passes()) else None


def stage_names(target: str | None = None) -> list[str]:
    """The stages of `target`, or of all targets, in order."""
    tables = [TARGETS[target]] if target is not None else TARGETS.values()
    return list(dict.fromkeys(stage for table in tables for stage in table))


def default_pipeline(
    target: str = "cpu",
    options: Mapping[str, Any] | None = None,
    *,
    stages: Sequence[str] | None = None,
    with_user_passes: bool = True,
) -> Pipeline:
    """The pipeline of `target` (or of the given `stages` of it), with the passes that users registered.

    `options` may hold ``passes`` and ``pipeline``, see `pipeline_with_options`.  Raises PipelineError for an unknown
    target, and for a pass that cannot be loaded or placed.
    """
    if target not in TARGETS:
        hint = did_you_mean(target, TARGETS) or f"; there are: {', '.join(TARGETS)}"
        raise PipelineError(f"there is no target '{target}'{hint}")
    table = TARGETS[target]
    wanted = [s for s in table if stages is None or s in stages]
    pipeline = Pipeline(target, [Stage(s, [parse_pass(text) for text in table[s]]) for s in wanted])
    if with_user_passes:
        for added in user.registered():
            if added.stage in wanted:
                pipeline.add(added.stage, added.entry, added.position)
    if options:
        return pipeline_with_options(pipeline, passes=options.get("passes"), pipeline=options.get("pipeline"))
    return pipeline


def pipeline_with_options(
    base: Pipeline,
    *,
    passes: Mapping[str, Sequence[PassLike]] | None = None,
    pipeline: str | None = None,
) -> Pipeline:
    """`base` with the ``options`` of one torch.compile call.

    `pipeline` is text that takes the place of the passes of `base`; each pass that `base` has too opens or continues
    its stage there, so that the stages keep their names.  `passes` maps a stage to passes put at its end, in order;
    an item is a pass, a RewritePattern, pipeline text, or a pair ``(pass, position)``.  `base` is not changed.
    Raises PipelineError.
    """
    result = base.copy() if pipeline is None else parse_pipeline(pipeline, like=base)
    if passes is None:
        return result
    if not isinstance(passes, Mapping):
        raise PipelineError(f"option 'passes' takes a dict of stage to list of passes, not {type(passes).__name__}")
    for stage, added in passes.items():
        if isinstance(added, (str, type)) or not isinstance(added, Iterable):
            raise PipelineError(f"option 'passes': stage '{stage}' takes a list of passes, not {added!r}")
        try:
            result.stage(stage)
            for item in added:
                if isinstance(item, tuple) and len(item) != 2:
                    raise PipelineError(f"a pass with its place is a pair, got {item!r}")
                source, position = item if isinstance(item, tuple) else (item, "end")
                result.add(stage, source, position)
        except PipelineError as error:
            raise PipelineError(f"option 'passes', stage '{stage}': {error}") from error
    return result


def parse_pass(text: str) -> Entry:
    """One pass with its options, e.g. ``loop-tile{sizes=8,32}``; PipelineError with a caret for a mistake."""
    elements = parse_text(text)
    if len(elements) != 1:
        raise PipelineError("expected one pass", text, 0, len(text))
    return _nested(_Builder(text).entry(elements[0], MODULE, explicit=False))


def parse_pipeline(text: str, *, like: Pipeline | None = None, name: str = "text") -> Pipeline:
    """A pipeline from text: ``builtin.module(...)`` or the short form, a list of passes.

    In the short form a pass that is anchored below the module gets its nest by itself.  With `like`, passes that it
    has too are put into the stage that they have there, and those between them into the stage that is open.
    Raises PipelineError with a caret for a mistake.
    """
    elements = parse_text(text)
    explicit = len(elements) == 1 and elements[0].children is not None and elements[0].name in (MODULE, "any")
    if explicit:
        elements = elements[0].children or ()
    stages = _Builder(text).stages(elements, explicit)
    if like is None:
        return Pipeline(name, stages)
    home = {p.name: i for i, stage in enumerate(like.stages) for p in stage.passes()}
    out = [Stage(stage.name) for stage in like.stages] or [Stage("")]
    current = 0
    for entry in (entry for stage in stages for entry in stage.entries):
        first = entry
        while isinstance(first, Nest) and first.entries:
            first = first.entries[0]
        # Stages only go forward: the order of the text is the order of the passes.
        current = max(current, home.get(first.name, current))
        out[current].entries.append(entry)
    return Pipeline(like.name, out)


def _nested(entry: Entry) -> Entry:
    return entry if isinstance(entry, Nest) else as_pass(entry)


class _Builder:
    """Turns the elements of one text into passes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fail(self, message: str, at: Element | Option | PipelineValue) -> PipelineError:
        return PipelineError(message, self.text, at.start, at.end)

    def stages(self, elements: Iterable[Element], explicit: bool) -> list[Stage]:
        """The stages of a pipeline on the module; named pipelines bring theirs, other passes go into the open one."""
        out: list[Stage] = []
        for element in elements:
            if element.name in NAMED_PIPELINES:
                out.extend(self.named(element))
                continue
            entry = self.entry(element, MODULE, explicit=explicit)
            if not out:
                out.append(Stage(""))
            out[-1].entries.append(entry if explicit else _nested(entry))
        return out

    def named(self, element: Element) -> list[Stage]:
        target = NAMED_PIPELINES[element.name]
        if element.children is not None:
            raise self.fail(f"'{element.name}' is a pipeline, not an operation to nest under", element)
        names = stage_names(target)
        bounds = {"from": names[0], "to": names[-1]}
        for option in element.options:
            if option.key not in bounds:
                hint = did_you_mean(option.key, bounds) or "; its options are: from, to"
                raise self.fail(f"pipeline '{element.name}' has no option '{option.key}'{hint}", option)
            value = option.values[0].text if len(option.values) == 1 else ""
            if value not in names:
                hint = did_you_mean(value, names) or f"; its stages are: {', '.join(names)}"
                at = option.values[0] if option.values else option
                raise self.fail(f"pipeline '{element.name}' has no stage '{value}'{hint}", at)
            bounds[option.key] = value
        first, last = names.index(bounds["from"]), names.index(bounds["to"])
        if first > last:
            raise self.fail(f"stage '{bounds['from']}' comes after stage '{bounds['to']}'", element)
        try:
            stages = default_pipeline(target, stages=names[first : last + 1]).stages
        except PipelineError as error:
            raise self.fail(error.message, element) from error
        if all(option.key != "from" for option in element.options):
            for stage in stages:
                stage.resumes = element.name
        return stages

    def entry(self, element: Element, anchor: str, *, explicit: bool) -> Entry:
        """One element under `anchor`; `explicit` refuses a pass whose own anchor is another one."""
        if element.children is not None:
            if registry.is_known(element.name):
                raise self.fail(f"'{element.name}' is a pass, not an operation to nest under", element)
            if "." not in element.name and element.name != "any":
                raise self.fail(f"'{element.name}' is not an operation name to nest under (dialect.operation or 'any')", element)
            inner = tuple(self.entry(child, element.name, explicit=True) for child in element.children)
            return Nest(element.name, inner)
        if element.name in NAMED_PIPELINES:
            raise self.fail(f"pipeline '{element.name}' works on modules and cannot be nested", element)
        if not registry.is_known(element.name):
            candidates = [*registry.all_passes(), *NAMED_PIPELINES]
            hint = did_you_mean(element.name, candidates)
            if not hint and "." in element.name:
                hint = f"; passes are nested under an operation as {element.name}(...)"
            raise self.fail(f"'{element.name}' does not refer to a registered pass or pass pipeline{hint}", element)
        try:
            cls = registry.load_pass(element.name)
        except PipelineError as error:
            raise self.fail(error.message, element) from error
        made: ModulePass = build_pass(cls, element, self.text)
        own = anchor_of(made)
        # A pass for modules can run on any operation (it is lent a module); one of ours for functions cannot.
        if explicit and own not in (None, MODULE, anchor) and anchor != "any":
            raise self.fail(
                f"pass '{element.name}' works on '{own}' and stands under '{anchor}'; write {own}({element.name})",
                element,
            )
        return made
