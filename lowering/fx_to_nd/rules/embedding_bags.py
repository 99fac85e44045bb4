"""Embedding bags: ATen's kernel sums the rows; what it leaves out for backward is computed here.

In mode "sum" the kernel skips `offset2bag` (the bag of every index) whenever it has a fast path, which torch's metadata, the one that
types of results come from, knows for some element types only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from xdsl.ir import SSAValue

from ....dialects.expr import ONE
from ..calls import externs
from ..core.importer import Importer
from ..core.registry import rule

aten = torch.ops.aten


class Mode(IntEnum):
    """How ATen adds up the rows of a bag."""

    SUM = 0
    MEAN = 1
    MAX = 2


class Result(IntEnum):
    """What the operator gives."""

    OUTPUT = 0
    OFFSET2BAG = 1
    BAG_SIZE = 2
    MAX_INDICES = 3


@rule(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def _embedding_bag(
    b: Importer, weight: SSAValue, indices: SSAValue, offsets: SSAValue, scale: Any = False, mode: int = Mode.SUM, *rest: Any
) -> Any:
    target: Any = b.node.target
    results = list(externs.overload_call(b, b.node, target, b.node.args, b.node.kwargs, b.val))
    if mode == Mode.SUM and b.used(Result.OFFSET2BAG) and b.sizes(b.val[Result.OFFSET2BAG].shape) == b.dims(indices):
        results[Result.OFFSET2BAG] = bag_of_each_index(b, indices, offsets)
    return tuple(results)


def bag_of_each_index(b: Importer, indices: SSAValue, offsets: SSAValue) -> SSAValue:
    """For each of the n indices the number of the bag that it lies in: how many bags begin at or before it, less 1."""
    (n,) = b.dims(indices)
    kind = b.dtype(offsets)
    ones = b.expand(b.scalar(1, kind), b.dims(offsets))
    begins = b.index_put(b.full(0, kind, (n + 1,)), [0], [offsets], ones, "add", wrap=False)  # empty bags begin at n
    counts = b.scan("sum", b.slice(begins, [0], [ONE], (n,)), 0)[0]
    return b.sub(counts, b.scalar(1, kind))
