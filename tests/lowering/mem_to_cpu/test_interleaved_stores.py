"""Stores that fill consecutive elements together are shuffled into whole vectors."""

from __future__ import annotations

import pytest
import torch

TEXT = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.int8: "i8", torch.int16: "i16",
        torch.int32: "i32", torch.int64: "i64"}  # fmt: skip


def body(size, order, rows, cols, dtype, between=""):
    """`size` inputs interleaved, stored in `order`; `between` stands behind the first store."""
    b = f"!mem.buffer<{rows} x {cols} x {dtype}>"
    out = f"!mem.buffer<{rows} x {cols} x {size} x {dtype}>"
    scalar = {"bf16": "f32", "f16": "f32"}.get(dtype, dtype)
    lines = [f"      %v{k} = loop.load %x{k}[%i, %j] : {b} -> {scalar}" for k in range(size)]
    stores = [f"      loop.store %v{k}, %oo[%i, %j, {k}] : {scalar}, {out}" for k in order]
    lines += [stores[0], between.format(scalar=scalar, out=out), *stores[1:]]
    text = "\n".join(lines)
    arguments = ", ".join(f"%x{k} : {b}" for k in range(size))
    return f"""
func.func @forward({arguments}, %o : {out}) {{
  loop.nest (%i = {rows}, %j = {cols}) outs(%oo = %o : {out}) {{
{text}
  }} attributes {{schedule = {{vector = 1 : i64, lanes = 32 : i64}}}}
  func.return
}}
"""


@pytest.mark.spread
@pytest.mark.parametrize("size,dtype", [*[(n, t) for n in (2, 3, 4) for t in TEXT], *[(n, torch.float32) for n in (5, 6, 8, 9, 12, 16)]])
@pytest.mark.parametrize("cols", [1, 5, 32, 77])
def test_interleaved(nests, size, dtype, cols):
    xs = [torch.randn(3, cols).mul(50).to(dtype) for _ in range(size)]
    out = torch.zeros(3, cols, size, dtype=dtype)
    compiled = nests(body(size, [*range(1, size), 0], 3, cols, TEXT[dtype]))
    assert "cpu.scatter" not in compiled.text
    compiled(*xs, out)
    assert torch.equal(out, torch.stack(xs, -1))


@pytest.mark.parametrize("cols", [1, 40, 130])
def test_sizes_known_at_run_time(nests, cols):
    xs, out = [torch.randn(2, cols) for _ in range(3)], torch.zeros(2, cols, 3)
    compiled = nests(body(3, [0, 1, 2], 2, "s0", "f32"))
    assert "cpu.scatter" not in compiled.text
    compiled(*xs, out, s0=cols)
    assert torch.equal(out, torch.stack(xs, -1))


READ = "      %r = loop.load %oo[%i, %j, 0] : {out} -> {scalar}\n      loop.store %r, %oo[%i, %j, 1] : {scalar}, {out}"
TWICE = "      loop.store %v1, %oo[%i, %j, 0] : {scalar}, {out}"


@pytest.mark.parametrize("between,want", [(READ, (0, 1)), (TWICE, (1, 1))])
def test_order_of_stores_and_loads_is_kept(nests, between, want):
    """What is read or written in between sees what was stored before it."""
    xs, out = [torch.randn(2, 64) for _ in range(2)], torch.zeros(2, 64, 2)
    nests(body(2, [0, 1], 2, 64, "f32", between))(*xs, out)
    assert torch.equal(out, torch.stack([xs[k] for k in want], -1))


def unpack(p, scale):
    halves = [(p & 15).to(scale.dtype) - 8, (p >> 4).to(scale.dtype) - 8]
    return torch.stack(halves, -1).reshape(p.shape[0], 2 * p.shape[1]) * scale


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows,cols", [(1, 1), (4, 7), (3, 128), (0, 16)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_nibbles_are_unpacked_in_place(dtype, rows, cols, dynamic):
    torch._dynamo.reset()
    p, scale = torch.randint(0, 256, (rows, cols), dtype=torch.uint8), torch.rand(rows, 1).to(dtype)
    compiled = torch.compile(unpack, backend="stepwell", dynamic=dynamic)
    assert torch.equal(compiled(p, scale), unpack(p, scale))
    assert torch.equal(compiled(p.t().contiguous().t(), scale), unpack(p, scale))


def interleaved_channels(x):
    r, g, b = x.unbind(1)
    return torch.stack([g + b, r * b, r - g], -1).flatten(2) * 2


@pytest.mark.parametrize("width", [3, 16, 65])
def test_three_channels_beside_each_other(width):
    torch._dynamo.reset()
    x = torch.randn(2, 3, 5, width)
    torch.testing.assert_close(torch.compile(interleaved_channels, backend="stepwell")(x), interleaved_channels(x))
