"""Tiles of nests by measurement: a few candidates for each nest, compiled in parallel, run, the fastest noted on it.

Works on a module at the level of memory, before `gpu-schedule`: a nest that has a tile already keeps it. The times, in microseconds, stand
beside the tile that was chosen:

    loop.nest ... schedule = {gpu = {axes = [[0]], ...}, measured = {model = 261.1 : f64, chosen = 254.0 : f64}}

and all of them in a file that people can read and edit (`Tiles`):

    {"NVIDIA H200 sm_90 4f2a...": {"nest": "softmax", "tile": "{axes = ...}", "model": "{axes = ...}",
                                   "microseconds": {"{axes = ...}": 254.0, ...}}}
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, ModuleOp, f64
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from ...dialects import loop
from ...dialects.expr import Expr, evaluate, free_syms
from ...dialects.expr.ranges import RangeEnv
from ...dialects.mem import BufferType
from ...dialects.nd.types import element_bytes
from ...dialects.tt.structure import FuncOp
from ...errors import StepwellError
from ...lowering.mem_to_tt.kernel import lower_nest
from ...lowering.outline import Arguments
from ...passes.analysis.nest_access import NestAccess
from ...passes.analysis.nest_key import is_nest_in_memory, nest_key
from ...passes.analysis.schedule_attrs import GPU, schedule_table, update_schedule
from ...passes.analysis.symbols import DEFAULT_SIZE, symbol_facts
from ...passes.cost.machine import Gpu, machine_of
from ...passes.gpu.nest_types import UnsupportedNest, memory_type
from ...passes.gpu.tiles.candidates import candidates, doubt, read_tile, tile_attr
from ...passes.gpu.tiles.rules import choose
from ...passes.manager.instrumentation import remark
from ...passes.manager.pass_manager import Pass
from ..cpu.cache import cache_folder, write_atomically
from .compile import compile_kernels
from .gpu import GpuTarget, gpu_target
from .kernels import GpuKernel, program_kernel
from .timer import Argument, Inside, Memory, Timer, device_timer

log = logging.getLogger("stepwell")

MEASURED = "measured"
"""Key in the schedule of a nest: microseconds of the tile that the model would have chosen, and of the one that was chosen."""
MAX_TIME_SHARE = 0.97
"""The share of the time of the model's choice that another tile must stay below: less is noise."""
MAX_MEASURED_BYTES = 8 << 30
"""Nests that touch more are not measured: they would take the memory of the program that is compiled."""
MIN_TUNED_BYTES = 128 << 20
"""Bytes from which it pays to measure a nest of whose tile the rules are not sure: a small share of every call, against the
compilation of a few more kernels side by side, once on a machine (docs/lab/gpu-tiles-h200.md)."""
MAX_TIMED_TILES = 4
"""Tiles of such a nest that are measured, the rules' choice among them."""
_FLOATS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


@dataclass(frozen=True)
class GpuTune(Pass):
    """Measures candidates for the tile of each nest on the GPU and notes the fastest. Without a GPU it does nothing. See
    docs/explanation/gpu-tiles.md."""

    name = "gpu-tune"

    unsure: bool = False
    """Measure nests only of whose tile the rules are not sure, few tiles of each."""

    least: int = MIN_TUNED_BYTES
    """Bytes that such a nest moves at least."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gpu = machine_of(op, Gpu)
        timer = device_timer(gpu.device)
        if timer is None:
            self.remark(op, "there is no GPU to measure on", kind="missed")
            return
        tiles = Tiles(cache_folder() / "tiles.json")
        least = self.least if self.unsure else None
        self.statistic("num-measured", tune(ctx, op, gpu_target(gpu.name), gpu, timer, tiles, least))


@dataclass
class Candidate:
    """A nest lowered with one tile: its kernel, what that takes, and the number of programs (over the sizes among the arguments)."""

    nest: loop.NestOp
    tile: DictionaryAttr
    kernel: FuncOp
    arguments: Arguments
    programs: Expr


@dataclass
class Tiles:
    """Tiles that were measured, by device and nest; read from `path` and written to it."""

    path: Path | None = None
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = {**self._kept(), **self.found}

    def save(self) -> None:
        """Write the file, in one step; what another process has added meanwhile stays."""
        if self.path is not None:
            write_atomically(self.path, json.dumps({**self._kept(), **self.found}, indent=1, sort_keys=True).encode())

    def _kept(self) -> dict[str, dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return {}
        try:
            found = json.loads(self.path.read_text())
        except (ValueError, OSError):
            found = None
        if not isinstance(found, dict):
            log.warning("%s holds no JSON of tiles: they are measured again", self.path)
            return {}
        return found


def tune(ctx: Context, module: ModuleOp, target: GpuTarget, machine: Gpu, timer: Timer, tiles: Tiles, least: int | None = None) -> int:
    """Give the nests of a module that have no tile the fastest one; how many were measured. What is in `tiles` is not measured again.
    With `least` only nests are measured that move so many bytes and of whose tile the rules are not sure, and few tiles of each.

    Alike nests are measured once; the candidates of all nests are compiled together."""
    symbols, hints = symbol_facts(module)
    alike: dict[str, list[loop.NestOp]] = {}
    reasons: dict[loop.NestOp, str] = {}
    why = "asked for"
    for nest in module.walk():
        if is_nest_in_memory(nest) and GPU not in schedule_table(nest):
            assert isinstance(nest, loop.NestOp)
            if least is not None and not (why := _why_measured(nest, machine, symbols, hints, least)):
                continue
            reasons[nest] = why
            alike.setdefault(f"{timer.device} {machine.name} {fingerprint(nest, hints)}", []).append(nest)
    open_choices: dict[str, list[Candidate]] = {}
    for key, nests in alike.items():
        tile = _known(ctx, tiles, key, nests[0], symbols)
        if tile is not None:
            _note(nests, tile, tiles.found[key])
            continue
        found = _candidates(nests[0], machine, symbols, hints, None if least is None else MAX_TIMED_TILES)
        if len(found) > 1 and _bytes(found[0], hints) <= MAX_MEASURED_BYTES:
            open_choices[key] = found
    if not open_choices:
        return 0
    everything = [c for found in open_choices.values() for c in found]
    kernels = dict(zip(map(id, everything), _compiled(everything, target), strict=True))
    for key, found in open_choices.items():
        times: dict[str, float] = {}
        for candidate in found:
            kernel = kernels[id(candidate)]
            if kernel is not None:
                times[str(candidate.tile)] = 1e6 * timer.seconds(kernel, _grid(candidate, hints), _arguments(candidate, hints))
        label = found[0].nest.label
        tile = _fastest(found, times)
        remark(found[0].nest, f"{len(found)} tiles measured ({reasons[found[0].nest]}): {_told(found, times, tile)}")
        finite = {one: t for one, t in times.items() if t < inf}
        tiles.found[key] = {
            "nest": label.data if label is not None else "", "tile": str(tile), "model": str(found[0].tile), "microseconds": finite,
        }  # fmt: skip
        _note(alike[key], tile, tiles.found[key])
        timer.release()
    tiles.save()
    return len(open_choices)


def nest_seconds(module: ModuleOp) -> dict[loop.NestOp, float]:
    """Seconds of each nest of a module behind `gpu-schedule` by itself, as the tile that it has makes it, its data not in the cache.

    Left out is what cannot be measured so: all of them without a GPU; kernels that the toolchain refuses; programs that wait for each
    other, or add to the same memory, since that holds anything here; what touches more than MAX_MEASURED_BYTES. Raises TargetError if
    Triton is not installed."""
    machine = machine_of(module, Gpu)
    timer = device_timer(machine.device)
    if timer is None:
        return {}
    symbols, hints = symbol_facts(module)
    nests = [op for op in module.walk() if isinstance(op, loop.NestOp) and is_nest_in_memory(op)]
    lowered = [one for nest in nests if (one := _as_scheduled(nest, machine, symbols)) is not None]
    found = [one for one in lowered if _bytes(one, hints) <= MAX_MEASURED_BYTES]
    times: dict[loop.NestOp, float] = {}
    for one, kernel in zip(found, _compiled(found, gpu_target(machine.name)), strict=True):
        if kernel is not None:
            times[one.nest] = timer.seconds(kernel, _grid(one, hints), _arguments(one, hints))
            timer.release()
    return {nest: seconds for nest, seconds in times.items() if seconds < inf}


def _as_scheduled(nest: loop.NestOp, machine: Gpu, symbols: RangeEnv) -> Candidate | None:
    """A nest lowered with the tile that it has; None where it has none, or its programs need each other."""
    info = NestAccess(nest, symbols)
    try:
        tile = read_tile(nest, info)
        if tile is None:
            return None
        kernel, arguments, programs = lower_nest("measured", nest, info, tile, machine)
    except UnsupportedNest:
        return None
    if any(op.name.startswith("tt.atomic") for op in kernel.walk()):
        return None
    return Candidate(nest, tile_attr(info, tile), kernel, arguments, programs)


def fingerprint(nest: loop.NestOp, hints: Mapping[Expr, int]) -> str:
    """What a nest computes, on which shapes (typical ones for symbols) and strides, in a few letters; its schedule does not count."""
    bare = nest.clone()
    rest = {k: v for k, v in schedule_table(bare).items() if k not in (GPU, MEASURED)}
    bare.properties.pop("schedule", None)
    if rest:
        update_schedule(bare, rest)
    key, values = nest_key(bare)
    sizes = [_typical(v.type.numel, hints) for v in values if isinstance(v.type, BufferType)]
    return hashlib.sha256(" ".join(map(str, (*key, *sizes))).encode()).hexdigest()[:24]


def _known(ctx: Context, tiles: Tiles, key: str, nest: loop.NestOp, symbols: RangeEnv) -> DictionaryAttr | None:
    entry = tiles.found.get(key)
    if entry is None:
        return None
    before = dict(schedule_table(nest))
    try:
        tile = Parser(ctx, entry["tile"]).parse_attribute()
        update_schedule(nest, {GPU: tile})
        read_tile(nest, NestAccess(nest, symbols))
    except (ParseError, UnsupportedNest, KeyError, TypeError) as why:
        log.warning("%s: the tile of %s is not used: %s", tiles.path, key, str(why).splitlines()[0])
        tile = None
    _restore(nest, before)
    return tile if isinstance(tile, DictionaryAttr) else None


def _restore(nest: loop.NestOp, schedule: Mapping[str, Any]) -> None:
    if schedule:
        nest.properties["schedule"] = DictionaryAttr(schedule)
    else:
        nest.properties.pop("schedule", None)


def _why_measured(nest: loop.NestOp, machine: Gpu, symbols: RangeEnv, hints: Mapping[Expr, int], least: int) -> str:
    """Why the rules are not sure of the tile of a nest that moves `least` bytes or more; "" for a smaller one or where they are sure."""
    buffers = {v for op in nest.walk() for v in op.operands if isinstance(v.type, BufferType) and v.owner is not nest.block}
    if sum(_memory(b, hints).bytes for b in buffers) < least:
        return ""
    info = NestAccess(nest, symbols)
    return doubt(info, hints, choose(info, hints, machine))


def _told(found: Sequence[Candidate], times: Mapping[str, float], tile: DictionaryAttr) -> str:
    """The time of the rules' tile, and of the one that was chosen."""
    model, chosen = (times.get(str(one), inf) for one in (found[0].tile, tile))
    return f"{model:.1f} us by the rules, " + ("none is clearly faster" if tile == found[0].tile else f"{chosen:.1f} us by {tile}")


def _candidates(nest: loop.NestOp, machine: Gpu, symbols: RangeEnv, hints: Mapping[Expr, int], most: int | None) -> list[Candidate]:
    """The tiles that a nest could have, lowered, `most` of them at most; the model's choice first."""
    before = dict(schedule_table(nest))
    found: list[Candidate] = []
    info = NestAccess(nest, symbols)
    for tile in candidates(info, hints, machine)[:most]:
        attr = tile_attr(info, tile)
        update_schedule(nest, {GPU: attr})
        own = NestAccess(nest, symbols)
        chosen = read_tile(nest, own)
        assert chosen is not None
        try:
            kernel, arguments, programs = lower_nest("candidate", nest, own, chosen, machine)
        except UnsupportedNest as why:
            log.info("a tile that does not serve the nest: %s", str(why).splitlines()[0])
            continue
        found.append(Candidate(nest, attr, kernel, arguments, programs))
    _restore(nest, before)
    return found


def _compiled(found: Sequence[Candidate], target: GpuTarget) -> list[GpuKernel | None]:
    """The kernels of candidates; None for those that the toolchain refuses (too many registers, too much shared memory)."""
    modules = [ModuleOp([c.kernel.clone()]) for c in found]
    built: list[GpuKernel | None] = []
    for module, kernel in zip(modules, compile_kernels(modules, target, tolerant=True), strict=True):
        if isinstance(kernel, StepwellError):
            log.info("a candidate does not compile: %s", str(kernel).splitlines()[0])
            built.append(None)
        else:
            built.append(program_kernel(module, kernel))
    return built


def _fastest(found: Sequence[Candidate], times: Mapping[str, float]) -> DictionaryAttr:
    """The tile to take: the model's where none is clearly faster."""
    best = min(found, key=lambda c: times.get(str(c.tile), inf))
    model = times.get(str(found[0].tile), inf)
    return best.tile if times.get(str(best.tile), inf) < MAX_TIME_SHARE * model else found[0].tile


def _note(nests: Sequence[loop.NestOp], tile: DictionaryAttr, entry: Mapping[str, Any]) -> None:
    """Write the tile on alike nests, with the times that an entry of the file has of it and of the model's."""
    times = entry.get("microseconds", {})
    model, chosen = times.get(entry.get("model")), times.get(str(tile))
    shown: dict[str, Any] = {GPU: tile}
    if model is not None and chosen is not None:
        shown[MEASURED] = DictionaryAttr({"model": FloatAttr(round(model, 2), f64), "chosen": FloatAttr(round(chosen, 2), f64)})
    for nest in nests:
        update_schedule(nest, shown)


# ---- what a launch of a candidate takes


def _typical(e: Expr, hints: Mapping[Expr, int]) -> int:
    return evaluate(e, {s: hints.get(s, DEFAULT_SIZE) for s in free_syms(e)})


def _grid(candidate: Candidate, hints: Mapping[Expr, int]) -> tuple[int, ...]:
    return (_typical(candidate.programs, hints),)


def _arguments(candidate: Candidate, hints: Mapping[Expr, int]) -> list[Argument]:
    given = candidate.arguments
    found: list[Argument] = [_memory(b, hints) for b in given.buffers]
    found += [_typical(e, hints) for e in given.sizes]
    found += [1.0 if str(v.type) == "f64" else 1 for v in given.scalars]
    for one in given.descriptors:
        found.append(Inside(one.operand, _typical(one.offset, hints)))
        found += [_typical(e, hints) for e in (*one.sizes, *one.strides)]
    return found


def _memory(buffer: SSAValue, hints: Mapping[Expr, int]) -> Memory:
    type = buffer.type
    assert isinstance(type, BufferType)
    size = max(0, _typical(type.extent(), hints)) * element_bytes(type.element_type)
    return Memory(size, _FLOATS.get(str(memory_type(type.element_type)), ""))


def _bytes(candidate: Candidate, hints: Mapping[Expr, int]) -> int:
    return sum(_memory(b, hints).bytes for b in candidate.arguments.buffers)
