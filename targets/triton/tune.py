"""Tiles of nests by measurement: a few candidates for each nest, compiled in parallel, run, the fastest noted on it.

Works on a module at the level of memory, between the stages `mem` and `tt`. Who can launch kernels says how long one takes (`Measure`);
what was found is kept in a file that people can read and edit:

    {"sm_90 4f2a...": {"nest": "softmax", "tile": "{axes = [[0 : i64]], ...}", "seconds": {"{axes = ...}": 2.5e-4, ...}}}
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from ...dialects import loop
from ...dialects.expr import Expr
from ...dialects.expr_ranges import RangeEnv
from ...dialects.tt_structure import FuncOp
from ...errors import StepwellError
from ...lowering.mem_to_tt.config import Machine
from ...lowering.mem_to_tt.kernel import lower_nest
from ...lowering.mem_to_tt.state import UnsupportedNest
from ...lowering.mem_to_tt.tiles import GPU, candidates, read_tile, tile_attr
from ...lowering.outline import Arguments
from ...passes.loop.loop_schedule import symbol_facts
from ...passes.loop.nest_access import NestAccess
from ...passes.loop.nest_key import is_nest_in_memory, nest_key
from ...passes.loop.schedule_attrs import schedule_table, update_schedule
from ..cpu.cache import write_atomically
from .compile import CompiledKernel, compile_kernels
from .gpu import GpuTarget

log = logging.getLogger("stepwell")


@dataclass
class Candidate:
    """A nest lowered with one tile: its kernel, what that takes, and the number of programs (over the sizes among the arguments)."""

    nest: loop.NestOp
    tile: DictionaryAttr
    kernel: FuncOp
    arguments: Arguments
    programs: Expr


Measure = Callable[[Candidate, CompiledKernel], float]
"""Seconds that a candidate takes; infinity for one that does not run."""


@dataclass
class Tiles:
    """Tiles that were measured, by machine and nest; read from `path` and written to it."""

    path: Path | None = None
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            try:
                self.found = json.loads(self.path.read_text())
            except ValueError:
                log.warning("%s is no JSON: tiles are measured again", self.path)

    def save(self) -> None:
        """Write the file, in one step."""
        if self.path is None:
            return
        write_atomically(self.path, json.dumps(self.found, indent=1, sort_keys=True).encode())


def tune(ctx: Context, module: ModuleOp, target: GpuTarget, machine: Machine, measure: Measure, tiles: Tiles) -> int:
    """Give the nests of a module the tiles that are fastest; how many nests were measured. What is in `tiles` is not measured again."""
    symbols, hints = symbol_facts(module)
    alike: dict[str, list[loop.NestOp]] = {}
    for nest in module.walk():
        if is_nest_in_memory(nest):
            assert isinstance(nest, loop.NestOp)
            alike.setdefault(f"{machine.name} {fingerprint(nest)}", []).append(nest)
    measured = 0
    for key, nests in alike.items():
        tile = _known(ctx, tiles, key, nests[0], symbols)
        if tile is None:
            entry = _measure(nests[0], target, machine, measure, symbols, hints)
            if entry is None:
                continue
            tile, seconds = entry
            label = nests[0].label
            tiles.found[key] = {"nest": label.data if label is not None else "", "tile": str(tile), "seconds": seconds}
            measured += 1
        for nest in nests:
            update_schedule(nest, {GPU: tile})
    if measured:
        tiles.save()
    return measured


def fingerprint(nest: loop.NestOp) -> str:
    """What a nest computes, on which shapes and strides, in a few letters; its schedule does not count."""
    bare = nest.clone()
    rest = {k: v for k, v in schedule_table(bare).items() if k != GPU}
    bare.properties.pop("schedule", None)
    if rest:
        update_schedule(bare, rest)
    return hashlib.sha256(" ".join(map(str, nest_key(bare)[0])).encode()).hexdigest()[:24]


def _known(ctx: Context, tiles: Tiles, key: str, nest: loop.NestOp, symbols: RangeEnv) -> DictionaryAttr | None:
    entry = tiles.found.get(key)
    if entry is None:
        return None
    before = schedule_table(nest).get(GPU)
    try:
        tile = Parser(ctx, entry["tile"]).parse_attribute()
        update_schedule(nest, {GPU: tile})
        read_tile(nest, NestAccess(nest, symbols))
    except (ParseError, UnsupportedNest, KeyError, TypeError) as why:
        log.warning("%s: the tile of %s is not used: %s", tiles.path, key, str(why).splitlines()[0])
        if before is not None:
            update_schedule(nest, {GPU: before})
        return None
    return tile if isinstance(tile, DictionaryAttr) else None


def _measure(
    nest: loop.NestOp, target: GpuTarget, machine: Machine, measure: Measure, symbols: RangeEnv, hints: Mapping[Expr, int]
) -> tuple[DictionaryAttr, dict[str, float]] | None:
    """The fastest tile of a nest, and what each took; None where there is nothing to choose."""
    found: list[Candidate] = []
    info = NestAccess(nest, symbols)
    for tile in candidates(info, hints, machine):
        attr = tile_attr(info, tile)
        update_schedule(nest, {GPU: attr})
        own = NestAccess(nest, symbols)
        chosen = read_tile(nest, own)
        assert chosen is not None
        kernel, arguments, programs = lower_nest("candidate", nest, own, chosen)
        found.append(Candidate(nest, attr, kernel, arguments, programs))
    if len(found) < 2:
        return None
    seconds: dict[str, float] = {}
    for candidate, built in zip(found, _compiled(found, target), strict=True):
        if built is not None:
            seconds[str(candidate.tile)] = measure(candidate, built)
    best = min(found, key=lambda c: seconds.get(str(c.tile), float("inf")))
    return best.tile, seconds


def _compiled(found: list[Candidate], target: GpuTarget) -> list[CompiledKernel | None]:
    """The kernels of candidates; None for those that the toolchain refuses (too many registers, too much shared memory)."""
    modules = [ModuleOp([c.kernel.clone()]) for c in found]
    try:
        return list(compile_kernels(modules, target))
    except StepwellError:
        built: list[CompiledKernel | None] = []
        for module in modules:
            try:
                built += compile_kernels([module], target)
            except StepwellError as why:
                log.info("a candidate does not compile: %s", str(why).splitlines()[0])
                built.append(None)
        return built
