"""Tiles of nests for a GPU: the pass that chooses them (tiles/) and notes them on the nests."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ...dialects.machine import has_fixed_order
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.schedule_attrs import bounds_of, narrowed, write_bounds
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..manager.pass_manager import Pass
from .nest_types import UnsupportedNest
from .tiles.bounds import choose_bounds
from .tiles.candidates import read_tile, write_tile
from .tiles.ordered import write_order
from .tiles.rules import choose


@dataclass(frozen=True)
class GpuSchedule(Pass):
    """Chooses how nests are cut into programs of a GPU, and notes it on them; what is noted already stays. See
    docs/explanation/gpu-tiles.md."""

    name = "gpu-schedule"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        gpu, ordered = machine_of(op, Gpu), has_fixed_order(op)
        for nest in nests_in_memory(op):
            bounds = bounds_of(nest)
            info = NestAccess(nest, narrowed(symbols, bounds))
            try:
                if read_tile(nest, info) is not None:
                    continue
            except UnsupportedNest as error:
                self.fail(nest, str(error))
            if not bounds and (bounds := choose_bounds(info, symbols, hints)):
                write_bounds(nest, bounds)
                info = NestAccess(nest, narrowed(symbols, bounds))
                self.statistic("num-bounded")
            tile = choose(info, hints, gpu)
            write_tile(nest, info, tile)
            if ordered:
                write_order(info, tile, gpu)
            self.statistic("num-nests")
            if self.remarks_wanted:
                self.remark(nest, f"{tile}; loops {', '.join(map(str, info.root.loops)) or 'none'}", kind="analysis")
