"""Rows of which few elements lie side by side, with those of the next row behind them: the channels of a group in a channels-last image.

    loop.reduce (%k = 10, %l = 4096) { load %x[%i, %j * 10 + %k, %l] }        strides 320 * 4096, 1, 320: runs of 10 elements, %j goes on

A program that goes through such a row moves whole sectors of memory for pieces of them. gpu-cooperative-rows and gpu-fission ask here, and
gpu-split-reduction reduces each place of the run by itself first: those of all rows lie side by side, as columns."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects import loop
from ...dialects.expr import ONE
from ...dialects.expr.views import linear_coeff
from ...dialects.nd.types import element_bytes
from ..analysis.nest_access import Access, Loop, NestAccess, Node
from ..cost.machine.gpu import LINE_BYTES
from .tiles.rules import REDUCTION_TILE_ELEMENTS
from .tiles.tile import Sizes, bytes_moved


@dataclass(frozen=True)
class ShortRun:
    """What the rows of a reduction consist of."""

    axis: int
    """The loop of the reduction along which elements lie side by side, by number."""

    bytes: int
    """What a run takes."""


def short_run(info: NestAccess, node: Node, sizes: Sizes) -> ShortRun | None:
    """The runs that most of what a reduction loads consists of, if these are shorter than LINE_BYTES and its rows long; or None."""
    if not isinstance(node.op, loop.ReduceOp) or sizes.trips(node.loops) < REDUCTION_TILE_ELEMENTS:
        return None
    moved = [(access, n) for access, _, n in bytes_moved(node, info, sizes) if not access.is_store]
    for one in node.loops:
        length = one.size.value
        if length is None or length < 2 or len(one.positions) != 1:
            continue
        short = [(access, n) for access, n in moved if _goes_on(access, one, info.root.loops)]
        longest = length * max((element_bytes(access.dtype) for access, _ in short), default=LINE_BYTES)
        if longest < LINE_BYTES and 2 * sum(n for _, n in short) > sum(n for _, n in moved):
            return ShortRun(one.positions[0], longest)
    return None


def shortest_run(info: NestAccess, sizes: Sizes) -> int | None:
    """The bytes of the shortest of such runs in a nest; None where there is none."""
    runs = [run.bytes for node in info.root.children if (run := short_run(info, node, sizes)) is not None]
    return min(runs, default=None)


def _goes_on(access: Access, one: Loop, around: list[Loop]) -> bool:
    """Whether an access is contiguous along a loop, and behind its end along one of the loops around it."""
    return linear_coeff(access.offset, one.dim) is ONE and any(linear_coeff(access.offset, n.dim) is one.size for n in around)
