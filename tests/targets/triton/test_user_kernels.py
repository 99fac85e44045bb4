"""Users' `@triton.jit` kernels through Triton's front end: the graph's IR, what it computes, cubins, configurations by measurement."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.dialects import nd
from stepwell.dialects.nd.call_args import KERNEL_CALL
from stepwell.dialects.tt import structure as tt_structure
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.triton.compile import compile_kernels
from stepwell.targets.triton.emit import kernel_modules
from stepwell.targets.triton.gpu import gpu_target
from stepwell.targets.triton.timer import use_timer
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.extensions.kernels import make_kernel
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.options.options import Options

pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # without a GPU torch cannot say what kernels write to


@functools.cache
def jitted():
    """The module of the kernels."""
    spec = importlib.util.spec_from_file_location("jit_kernels", Path(__file__).parent / "jit_kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched(kernel, grid, *args, **kwargs):
    torch.library.wrap_triton(kernel)[grid](*args, **kwargs)


def add(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    launched(jitted().add_scaled, lambda meta: (-(-n // meta["BLOCK"]),), x, y, out, n, 0.5, True, BLOCK=64)
    return (out * 3,)


def add_views(x):
    return add((x * 2)[1:-2], x[3:])


def softmax(x):
    out = torch.empty_like(x)
    launched(jitted().row_softmax, (x.shape[0],), x, out, x.stride(0), x.shape[1], WIDTH=64)
    return (out,)


def in_place(x):
    y = x * 2
    launched(jitted().add_one_, (2,), y, y.numel(), BLOCK=64)
    return (y,)


PROGRAMS = {
    "add": (add, lambda x, y: ((x + 0.5 * y) * 6,), (100,), (100,)),
    "add views": (add_views, lambda x: ((2 * x[1:-2] + 0.5 * x[3:]) * 6,), (100,)),
    "softmax": (softmax, lambda x: (torch.softmax(x, 1),), (9, 40)),
    "in place": (in_place, lambda x: (x * 2 + 1,), (70,)),
}


def traced(function, *shapes, device="cuda"):
    def make(requests, samples, grids, _):
        return make_kernel(requests, samples, grids, "cuda:0")

    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [torch.empty(s, device=device) for s in shapes]
        gm = make_fx(functionalize(function), tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    return import_graph(gm, args, make_kernel=make)


def lowered(imported):
    """For any GPU: kernels that wait for the one before are for sm_90 alone."""
    pipeline = default_pipeline("gpu", stages=("nd", "loop", "mem", "tt"))
    pipeline.remove("tt-overlap-launches")
    run(pipeline, imported.module, context())
    return imported.module


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_binaries(name, cache):
    function, meaning, *shapes = PROGRAMS[name]
    # torch traces views of a GPU's tensors only where there is one
    imported = traced(function, *shapes, device="cpu" if name == "add views" else "cuda")
    calls = [op.call.data.target for op in imported.module.walk() if isinstance(op, nd.ExternOp)]
    assert calls == [KERNEL_CALL]
    module = lowered(imported)
    args = [torch.randn(s) for s in shapes]
    for got, expected in zip(run_loop(module, args), meaning(*args), strict=True):
        torch.testing.assert_close(got, expected)
    for target in ("sm_90", "gfx942"):
        for built in compile_kernels(kernel_modules(module), gpu_target(target)):
            assert isinstance(built.code, bytes)


def test_the_text_of_a_kernel_is_kept(cache, monkeypatch):
    from stepwell.targets.triton import front_end

    first = str(traced(add, (100,), (100,)).module)
    monkeypatch.setattr(front_end, "_made", None)
    assert str(traced(add, (100,), (100,)).module) == first


def test_configurations_are_measured(cache):
    class Timer:
        device = "a GPU"
        asked = 0

        def seconds(self, kernel, grid, arguments):
            self.asked += 1
            return 1.0 / kernel.options.num_warps

        def release(self):
            pass

    timer = Timer()
    with use_timer(timer):
        for _ in range(2):
            (kernel,) = [f for f in traced(softmax, (9, 40)).module.ops if isinstance(f, tt_structure.FuncOp)]
            assert kernel.attributes["num_warps"].value.data == 2 and kernel.attributes["num_stages"].value.data == 2
    assert timer.asked == 2  # the second time it is known
    (entry,) = json.loads((cache / "user_kernels.json").read_text()).values()
    assert entry["kernel"] == "row_softmax" and entry["configuration"].startswith("BLOCK: 64, num_warps: 2")
    with use_timer(None):
        (kernel,) = [f for f in traced(softmax, (9, 40)).module.ops if isinstance(f, tt_structure.FuncOp)]
        assert kernel.attributes["num_warps"].value.data == 1


def test_what_triton_refuses_is_left_to_it(cache, caplog):
    def function(x):
        launched(jitted().wrong, (1,), x, BLOCK=16)
        return (x + 1,)

    with caplog.at_level(logging.INFO, "stepwell"):
        imported = traced(function, (16,))
    assert imported.counts.extern == 1
    assert "Triton does not take kernel 'wrong'" in caplog.text and "no_such_name" in caplog.text


def test_graphs_with_kernels_are_kept_by_their_source():
    from stepwell.tools.cache.graph_key import graph_key

    def key(function, *shapes):
        with FakeTensorMode(allow_non_fake_inputs=True):
            args = [torch.empty(s) for s in shapes]
            gm = make_fx(functionalize(function), tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
        return graph_key(gm, "inference", None, Options())

    assert key(add, (100,), (100,)) == key(add, (100,), (100,))
    assert len({key(add, (100,), (100,)), key(softmax, (9, 40)), key(in_place, (100,))}) == 3
