"""Shares of the work of products and attention for up to 64 threads: each element is computed once, and no thread has much more than the
others."""

from __future__ import annotations

import ctypes
import math
from functools import cache

import pytest
import torch
from simulated_threads import simulated

from stepwell.targets.cpu.attention.driver import ATTENTION_ARGS, AttentionSpec, attention_function, attention_scratch_bytes
from stepwell.targets.cpu.features import target
from stepwell.targets.cpu.gemm.driver import GEMM_ARGS, GemmSpec, as_module, gemm_module, isa_for, scratch_bytes
from stepwell.targets.cpu.gemm.spec import Shape

CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "float": ctypes.c_float}
EPILOGUE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p, ctypes.c_int64)
THREADS = (1, 2, 3, 6, 12, 16, 24, 64)

SHAPES = [(300, 512, 64, 3), (96, 192, 300, 5), (1200, 100, 300, 1), (12, 2048, 500, 1), (60, 64, 256, 33)]
"""Rows, columns, terms and batches of products that are worth 64 threads."""


@cache
def product(spec: GemmSpec):
    symbol, text = gemm_module(spec)
    library = simulated(text)
    return library, library.function(symbol, *[CTYPES[ty] for ty, _ in GEMM_ARGS])


def shares(m: int, n: int, k: int, batches: int, threads: int) -> tuple[torch.Tensor, list[float]]:
    """How often each element [batch, row, column] is finished, and how many register tiles, the last with fewer columns, each thread
    computes; the values are checked."""
    spec = GemmSpec("f32", trans_b=True, isa=isa_for(target()).name)
    library, function = product(spec)
    thread = ctypes.c_int32.from_address(library.address("thread"))
    height, width = Shape(spec).isa.rows, Shape(spec).width
    times, done = torch.zeros(batches, m, n, dtype=torch.int32), [0.0] * threads

    def epilogue(_, batch, row0, row1, col0, col1, tile, ld):
        times[batch, row0:row1, col0:col1] += 1
        done[thread.value] += -((row0 - row1) // height) * (col1 - col0) / width

    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(batches, m, k, generator=generator), torch.randn(batches, n, k, generator=generator)
    c = torch.full((batches, m, n), math.nan)
    scratch = torch.empty(scratch_bytes(spec, threads) // 4)
    callback = EPILOGUE(epilogue)
    strides = (k, k, n, batches, m * k, n * k, m * n)
    pointers = (a.data_ptr(), b.data_ptr(), c.data_ptr())
    function(*pointers, m, n, k, *strides, None, ctypes.cast(callback, ctypes.c_void_p), None, scratch.data_ptr(), threads)
    torch.testing.assert_close(c, a @ b.mT, atol=1e-3, rtol=1e-3)
    return times, done


@pytest.mark.spread
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape, threads):
    times, done = shares(*shape, threads)
    assert bool((times == 1).all())
    # a share is a number of whole tiles: two more than the rest are little beside the others' where there is much to share
    assert max(done) <= 1.3 * sum(done) / threads + 2, (max(done) * threads / sum(done), done)


def test_few_columns_in_the_last_strip():
    """One of two strips has 8 columns of 72: two threads take rows."""
    times, done = shares(3000, 72, 24, 1, 2)
    assert bool((times == 1).all())
    assert max(done) <= 0.51 * sum(done)


@cache
def attention(spec: AttentionSpec):
    symbol, text = attention_function(spec)
    library = simulated(as_module(text))
    return library, library.function(symbol, *[CTYPES[ty] for ty, _ in ATTENTION_ARGS])


@pytest.mark.parametrize("threads", [3, 16, 64])
@pytest.mark.parametrize("heads", [1, 6])
def test_attention(heads, threads):
    q, k, v = (torch.randn(2, heads, 70, 16, generator=torch.Generator().manual_seed(s)) for s in range(3))
    o, lse = torch.full_like(q, math.nan), torch.empty(2, 70, heads).mT
    spec = AttentionSpec("f32", isa=isa_for(target()).name)
    scratch = torch.empty(attention_scratch_bytes(spec, threads) // 4)
    strides = [s for t in (q, k, v, o, lse) for s in t.stride()[:3]] + [0] * 3
    pointers = [*(t.data_ptr() for t in (q, k, v, o, lse)), None]
    _, function = attention(spec)
    function(*pointers, 2, heads, 70, 70, 16, *strides, 1, 0, 0.25, scratch.data_ptr(), threads)
    torch.testing.assert_close(o, torch.softmax(q @ k.mT / 4, -1) @ v, atol=1e-5, rtol=1e-5)
