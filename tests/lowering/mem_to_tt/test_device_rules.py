"""Operators whose results on a GPU differ from those on the CPU: traced for a pretended GPU, run by the interpreter on memory of the CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from stepwell.dialects import nd
from stepwell.lowering.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager import run
from stepwell.passes.pipelines import default_pipeline
from stepwell.passes.verify import verify_ir
from stepwell.tools.compile_graph import context
from stepwell.tools.interpret_loop import run_loop

aten = torch.ops.aten


def on_gpu(function, *args, library=()):
    """What the kernels for a GPU of a function compute; `library`: the operators that may be called instead."""

    def flat(*inputs):
        return tuple(t for t in pytree.tree_leaves(function(*inputs)) if t is not None)

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda") for a in args]
        gm = make_fx(functionalize(flat), decomposition_table=decomposition_table(), tracing_mode="fake")(*fake)
    imported = import_graph(gm, fake)
    assert {op.call.data.target for op in imported.module.walk() if isinstance(op, nd.ExternOp)} == set(library)
    run(default_pipeline("gpu", stages=("nd", "loop", "mem", "tt")), imported.module, context())
    verify_ir(imported.module)
    found = run_loop(imported.module, [a.clone() for a in args], imported.constants, imported.objects)
    shapes = [n.meta["val"] for n in next(n for n in gm.graph.nodes if n.op == "output").args[0]]
    return [f.reshape(s.shape) for f, s in zip(found, shapes, strict=True)]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


# ---- batch norm


@pytest.mark.parametrize("dtype, statistics", [("float32", "float32"), ("float64", "float64"), ("bfloat16", "float32"), ("float16", "float16")])
@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_a_batch_norm_without_training(dtype, statistics, affine):
    """A GPU gives back the mean and the inverse deviation that were used, for the CPU there are none."""
    dtype, statistics = getattr(torch, dtype), getattr(torch, statistics)
    x, mean, var = randn(4, 3, 5, dtype=dtype), randn(3, dtype=statistics), randn(3, dtype=statistics).abs() + 0.5
    parameters = [randn(3, dtype=statistics), randn(3, dtype=statistics) + 1] if affine else []

    def native(op, *flags):
        return lambda x, m, v, *p: op(x, *(p or (None, None)), m, v, *flags, 0.1, 1e-3)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    want = [mean.to(wide), 1 / (var.to(wide) + 1e-3).sqrt()]
    for op in (native(aten.native_batch_norm, False), native(aten._native_batch_norm_legit, False), native(aten._native_batch_norm_legit_no_training)):
        _, *got = on_gpu(op, x, mean, var, *parameters)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
