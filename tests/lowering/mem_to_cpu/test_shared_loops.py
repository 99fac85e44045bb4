"""Loops in parts: rows whose values are combined in columns that all of them share, scalars beside them, any number of threads."""

from __future__ import annotations

import math

import pytest
import torch

IDENTITY = {"add": "0.0", "prod": "1.0", "max": "0xFF800000", "min": "0x7F800000"}
EXPECTED = {"add": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}


def rows_text(rows: object, columns: object, mode: str = "add", scalar: bool = False) -> str:
    """Rows with a sum of their own each, and columns; with `scalar` the total of the sums too."""
    x, c, r, s = (f"!mem.buffer<{d}f32>" for d in (f"{rows} x {columns} x ", f"{columns} x ", f"{rows} x ", ""))
    head = f"loop.reduce (%i = {rows}) sum" if scalar else f"loop.for (%i = {rows})"
    tail = "loop.yield %t : f32\n } -> f32\n loop.store %total, %so[] : f32, " + s if scalar else "}"
    return f"""
    func.func @forward(%x : {x}, %c : {c}, %r : {r}, %s : {s}) {{
      loop.nest () outs(%co = %c : {c}, %ro = %r : {r}, %so = %s : {s}) {{
        %zero = arith.constant {IDENTITY[mode]} : f32
        loop.for (%j = {columns}) {{
          loop.store %zero, %co[%j] : f32, {c}
        }}
        {"%total = " if scalar else ""}{head} {{
          %t = loop.reduce (%k = {columns}) sum {{
            %a = loop.load %x[%i, %k] : {x} -> f32
            loop.yield %a : f32
          }} -> f32
          loop.store %t, %ro[%i] : f32, {r}
          loop.for (%k = {columns}) {{
            %a = loop.load %x[%i, %k] : {x} -> f32
            loop.store %a, %co[%k] {mode} : f32, {c}
          }}
          {tail}
      }}
      func.return
    }}"""


def run(nests, text: str, x: torch.Tensor, **sizes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    c, r, s = torch.full((x.shape[1],), math.nan), torch.full((x.shape[0],), math.nan), torch.full((), math.nan)
    nests(text)(x, c, r, s, **sizes)
    return c, r, s


@pytest.mark.spread
@pytest.mark.parametrize("mode", list(IDENTITY))
@pytest.mark.parametrize("shape", [(1, 3), (5, 200), (700, 33), (3000, 8)])
def test_columns(nests, mode: str, shape: tuple[int, int]):
    torch.manual_seed(0)
    x = 1 + torch.randn(shape) / 1000 if mode == "prod" else torch.randn(shape)
    c, r, _ = run(nests, rows_text(*shape, mode), x)
    torch.testing.assert_close(c.double(), EXPECTED[mode](x.double(), dim=0), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(r, x.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.spread
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["add", "max"])
@pytest.mark.parametrize("shape", [(0, 5), (1, 3), (5, 200), (3000, 33), (40, 140_000)])
def test_columns_whose_number_the_kernel_is_given(nests, mode: str, shape: tuple[int, int], threads: int):
    """140,000 columns have no room on the stack."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    torch.set_num_threads(threads)
    try:
        c, r, _ = run(nests, rows_text("s0", "s1", mode), x, s0=shape[0], s1=shape[1])
    finally:
        torch.set_num_threads(1)
    want = EXPECTED[mode](x.double(), dim=0) if shape[0] else torch.full((shape[1],), float(0 if mode == "add" else "-inf")).double()
    torch.testing.assert_close(c.double(), want, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(r.double(), x.double().sum(1), rtol=1e-5, atol=1e-3)


def test_a_scalar_beside_the_columns(nests):
    torch.manual_seed(0)
    x = torch.randn(900, 20)
    c, r, s = run(nests, rows_text(900, 20, scalar=True), x)
    torch.testing.assert_close(c, x.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(r, x.sum(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(s.double(), x.double().sum(), rtol=1e-4, atol=1e-4)


def test_many_rows_are_not_one_long_chain(nests):
    """A chain of 200,000 additions of 0.1 in f32 is off by a part in a thousand."""
    x = torch.full((200_000, 2), 0.1)
    c, _, _ = run(nests, rows_text(200_000, 2), x)
    torch.testing.assert_close(c.double(), x.double().sum(0), rtol=2e-5, atol=0.0)


def test_the_number_of_threads_does_not_change_the_sums(nests):
    torch.manual_seed(0)
    x = torch.randn(2000, 300)
    text = rows_text(2000, 300, scalar=True)
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(run(nests, text, x))
    finally:
        torch.set_num_threads(1)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
