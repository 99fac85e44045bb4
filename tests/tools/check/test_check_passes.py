"""A wrong rewrite in any pass, of both pipelines, is found: the pass, and the operation."""

from __future__ import annotations

import planted
import pytest
import torch

import stepwell
from stepwell.tools.interpret.target import InterpretedTarget

CPU = {
    "nd-canonicalize": planted.constant, "nd-attention": planted.swap, "attention-select": planted.kind, "nd-sink-cat": planted.multiply,
    "nd-stack-products": planted.swap, "nd-split-reductions": planted.kind, "loop-batch": planted.multiply, "nd-to-loop": planted.index,
    "loop-fuse": planted.multiply, "loop-fuse-rows": planted.kind, "loop-fuse-windows": planted.swap,
    "loop-inline": planted.swap, "loop-layout": planted.index, "loop-order": planted.constant, "loop-to-mem": planted.index,
    "mem-plan": planted.multiply, "loop-schedule": planted.kind, "mem-join-nests": planted.swap, "mem-to-cpu": planted.swap,
    "to-host": planted.multiply,
}  # fmt: skip
GPU = {
    "nd-canonicalize": planted.multiply, "nd-library-products": planted.swap, "loop-fuse": planted.kind, "loop-recompute": planted.constant,
    "gpu-split-rows": planted.index, "gpu-online-softmax": planted.multiply, "gpu-fission": planted.swap, "gpu-neighbours": planted.kind,
    "gpu-schedule": planted.index, "mem-to-tt": planted.swap, "tt-join-launches": planted.multiply, "to-host": planted.swap,
}  # fmt: skip
SOME = {"cpu": ("nd-canonicalize", "loop-fuse-rows", "loop-to-mem", "to-host"), "gpu": ("loop-fuse", "gpu-split-rows", "mem-to-tt")}
"""Those of `make test`; all are run by `make test-long`."""


def program(x, w):
    y = torch.tanh(x @ w)
    z = (y - x).softmax(-1) + y.sum(-1, keepdim=True) - planted.CONSTANT
    return z * y.t()


def cases(target, passes):
    chosen = [(name, change, name in SOME[target]) for name, change in passes.items()]
    return [pytest.param(n, c, marks=() if short else pytest.mark.long, id=f"{n}-{c.__name__}") for n, c, short in chosen]


@pytest.fixture
def interpreted():
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")


def is_named(name, change):
    torch.manual_seed(0)
    args = torch.randn(planted.SIZE, planted.SIZE), torch.randn(planted.SIZE, planted.SIZE)
    with planted.planted(name, change):
        report = stepwell.check(program, *args)
    assert not report.ok and report.ulp > 1000, str(report)
    assert report.pass_name == name, str(report)
    first = program.__code__.co_firstlineno
    assert report.line in [f"{__file__}:{first + k}" for k in (1, 2, 3)]
    return report


@pytest.mark.parametrize(("name", "change"), cases("cpu", CPU))
def test_pass_11_a_pass_of_the_cpu(name, change):
    report = is_named(name, change)
    if change is planted.multiply:
        assert report.operation in ("aten.add.Tensor", "aten.sum.dim_IntList")


@pytest.mark.parametrize(("name", "change"), cases("gpu", GPU))
def test_pass_11_a_pass_of_a_gpu(name, change, interpreted):
    is_named(name, change)


@pytest.mark.long
def test_kernels_over_lists_are_launched_one_by_one():
    """Where to-host is wrong, the level before it is right, lists included."""

    def step(xs, ys):
        return torch._foreach_sub(torch._foreach_mul(xs, 3.0), ys)

    xs, ys = ([torch.randn(n, 3) for n in (2, 3, 4, 5, 6)] for _ in range(2))
    with planted.planted("to-host", planted.swap):
        report = stepwell.check(step, xs, ys)
    assert (report.pass_name, report.operation) == ("to-host", "aten.sub.Tensor"), str(report)
