"""A kind of placement from outside of the package: a value is computed where its reader reads it, by the parts of placement.py alone."""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from stepwell.dialects import loop
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.loop.fusion.placement import compute_at, final_store, places_at, survives
from stepwell.passes.loop.transform.loop_rewrite import needed
from stepwell.passes.manager import Pass

SEEN: Counter[str] = Counter()
"""Placements, and nests that are left."""


@dataclass(frozen=True)
class AtReader(Pass):
    """Computes a value of one loop body in its one reader."""

    name = "test-at-reader"

    def apply(self, ctx, op):
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp) and len(n.results) == 1]:
            load, *others = [use.operation for use in nest.results[0].uses]
            store = final_store(nest.results[0])
            if others or not isinstance(load, loop.LoadOp) or load.mask is not None:
                continue
            if store is None or store.parent is not nest.block or not survives(store):
                continue
            compute_at(load, store.value, needed([store.value], nest.block), places_at(store, load), RangeEnv())
            loop.drop_nest(nest)
            SEEN["placed"] += 1
        SEEN["nests"] += sum(isinstance(n, loop.NestOp) for n in op.walk())


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_placement_from_outside_joins_what_nobody_else_fuses(dynamic):
    """Each operation is a nest of its own without loop-fuse; the pass leaves one, which reads transposed and strided inputs."""
    SEEN.clear()
    options = {"cache": "off", "disable_passes": ["loop-fuse"], "passes": {"loop": [(AtReader(), "after:nd-to-loop")]}}
    run = torch.compile(lambda x, y: ((x.exp() + 1).t() * y).sin(), backend="stepwell", dynamic=dynamic, options=options)
    for rows, columns in ((6, 5), (1, 5), (0, 5)) if dynamic else ((6, 5),):
        x, y = torch.randn(rows, columns), torch.randn(columns, 2 * rows)[:, ::2]
        torch.testing.assert_close(run(x, y), ((x.exp() + 1).t() * y).sin())
    assert SEEN["placed"] == 3 * SEEN["nests"] > 0
