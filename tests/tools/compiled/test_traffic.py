"""The counters of bytes against accesses that the reference interpreter counts one by one, on small shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from stepwell.tools.backend.compile_graph import compile_graph, context
from stepwell.tools.compiled.traffic import traffic
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nest import AccessCounter
from stepwell.tools.options.options import make_options


class AtMemory:
    """Keeps a copy of the module after the stage `mem`."""

    def __init__(self) -> None:
        self.module: Any = None

    def graph(self, kind, gm, module) -> None:
        pass

    def stage(self, stage, module) -> None:
        if stage == "mem":
            self.module = module.clone()

    def record(self, kind, what) -> None:
        pass

    def remark(self, remark) -> None:
        pass


def counted(fn, *args) -> tuple[tuple[int, int], tuple[int, int]]:
    """What the accesses say and what the interpreter counts: (read, written) each."""
    from torch.fx.experimental.proxy_tensor import make_fx

    assert context() is not None
    gm = make_fx(fn)(*args)
    watch = AtMemory()
    compile_graph(gm, list(args), make_options(None, None), watch=watch)
    counter = AccessCounter()
    run_loop(watch.module, [a.clone() for a in args], counter=counter)
    return traffic(watch.module), (counter.read, counter.written)


def tuple_of(f):
    return lambda *args: (f(*args),)


X, Y = torch.randn(6, 10), torch.randn(6, 10)
IMAGE = torch.randn(2, 4, 6, 6)
EXACT = {
    "pointwise": (tuple_of(lambda x, y: (x + y).exp()), X, Y),
    "broadcast": (tuple_of(lambda x, y: x + y), X, torch.randn(10)),
    "softmax": (tuple_of(lambda x: torch.softmax(x, -1)), X),
    "layer norm and its sum": (lambda x, y: (F.layer_norm(x + y, (10,)), x + y), X, Y),
    "columns": (tuple_of(lambda x: x.sum(0)), X),
    "transposed": (tuple_of(lambda x, y: x + y.t()), X, torch.randn(10, 6)),
    "part of rows": (tuple_of(lambda x: x[:, 2:7] * 2), X),
    "every second": (tuple_of(lambda x: x[::2, ::3] * 2), X),
    "two halves": (tuple_of(lambda x: F.silu(x[:, :5]) * x[:, 5:]), X),
    "flipped": (tuple_of(lambda x: x.flip(1) + 1), X),
    "cumulative": (tuple_of(lambda x: x.cumsum(1)), X),
    "largest": (tuple_of(lambda x: x.argmax(1)), X),
    "two results of one read": (lambda x: (x.sum(1), x * 2), X),
    "another type": (tuple_of(lambda x: x.to(torch.float64) * 2), X.bfloat16()),
    "group norm": (tuple_of(lambda x: F.group_norm(x, 2)), IMAGE),
    "batch statistics": (tuple_of(lambda x: x.var((0, 2, 3))), IMAGE),
    "upsampled": (tuple_of(lambda x: F.interpolate(x, scale_factor=2.0) + 1), IMAGE),
    "pooled": (tuple_of(lambda x: F.max_pool2d(x, 2)), IMAGE),
    "scattered": (tuple_of(lambda x, y: torch.slice_scatter(x, y, 1, 2, 8, 2)), X, torch.randn(6, 3)),
    "product": (tuple_of(lambda x, y: torch.relu(x @ y)), torch.randn(6, 8), torch.randn(8, 4)),
    "one element": (tuple_of(lambda x: x.sum() * 2), torch.randn(1, 1)),
}


@pytest.mark.parametrize("name", EXACT)
def test_bytes_are_what_the_interpreter_counts(name):
    said, seen = counted(*EXACT[name])
    assert said == seen


BOUNDED = {
    "padded": (tuple_of(lambda x: F.pad(x, (2, 2), value=1.0) * 2), X),
    "joined": (tuple_of(lambda x, y: torch.cat([x.relu(), y.sigmoid()], 1) + 1), X, Y),
    "rotated halves": (tuple_of(lambda x: x * 2 + torch.cat([-x[:, 5:], x[:, :5]], 1)), X),
    "overlapping windows": (tuple_of(lambda x: F.max_pool2d(x, 3, 2, 1)), IMAGE),
    "looked up": (tuple_of(lambda x, i: F.embedding(i, x) * 2), torch.randn(50, 8), torch.tensor([3, 4, 3])),
    "in place": (tuple_of(lambda x: x.add_(1)), X.clone()),
    "added by index": (tuple_of(lambda x, y, i: x.index_add(0, i, y)), X, torch.randn(3, 10), torch.tensor([1, 1, 4])),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bytes_under_masks_and_loaded_indices_are_at_least_those(name):
    """Which elements a mask or a loaded index leaves out is not known: then no more than the whole tensor counts."""
    said, seen = counted(*BOUNDED[name])
    whole = 4 * sum(a.numel() * a.element_size() for a in BOUNDED[name][1:])
    assert seen[0] <= said[0] <= max(whole, 1.5 * seen[0])
    assert seen[1] <= said[1] <= max(whole, seen[1])


def test_an_empty_tensor_moves_nothing():
    assert counted(tuple_of(lambda x: x * 2), torch.randn(0, 4)) == ((0, 0), (0, 0))
