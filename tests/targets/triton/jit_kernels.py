"""Kernels as users write them, for test_user_kernels.py; needs Triton."""

import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x + x


@triton.jit(noinline=True)
def half(x):
    return x * 0.5


@triton.jit
def add_scaled(x, y, out, n, scale, flag, BLOCK: tl.constexpr, ROUND: tl.constexpr = None):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m) + half(twice(scale)) * tl.load(y + i, mask=m)
    if flag:
        v = twice(v)
    tl.store(out + i, v, mask=m)


@triton.autotune([triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 64}, num_warps=2, num_stages=2)], key=["columns"])
@triton.jit
def row_softmax(x, out, stride, columns, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, WIDTH)
    v = tl.load(x + row * stride + j, mask=j < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * columns + j, e / tl.sum(e, 0), mask=j < columns)


@triton.jit
def add_one_(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def wrong(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), no_such_name)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
