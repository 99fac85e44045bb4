"""Rows weighed by functions of scores, against float64: blocks that a table leaves out, several scores and weights, sizes, threads."""

from __future__ import annotations

import ctypes
import math
import struct
from functools import cache

import pytest
import torch

from stepwell.dialects.cpu.attention import BLOCK_ROWS, BLOCK_TERMS
from stepwell.targets.cpu import jit
from stepwell.targets.cpu.attention.spec import WeighedSpec
from stepwell.targets.cpu.attention.weighed import TERM_ARGS, fields_of, weighed_function, weighed_scratch_bytes
from stepwell.targets.cpu.gemm.driver import as_module
from stepwell.targets.cpu.gemm.spec import host_isa

DTYPES = {"f32": (torch.float32, 2e-6), "bf16": (torch.bfloat16, 8e-3), "f16": (torch.float16, 1e-3)}


@cache
def compiled(spec: WeighedSpec):
    symbol, text = weighed_function(spec)
    library = jit.load_text(as_module(text))
    function = library.function(symbol, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function.library = library
    return function


def terms_function(spec: WeighedSpec, change):
    """A function of terms for the generated code: `change` takes the numbers of batch, head, rows and terms, and the scores."""
    count = spec.blocks
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * (len(TERM_ARGS) - 1), *[ctypes.c_void_p] * count)

    def call(_, batch, head, row, rows, term, terms, length, *blocks):
        views = []
        for block in blocks:
            flat = (ctypes.c_float * ((rows - 1) * length + terms)).from_address(block)
            views.append(torch.frombuffer(flat, dtype=torch.float32).as_strided((rows, terms), (length, 1)))
        i, j = torch.arange(row, row + rows)[:, None], torch.arange(term, term + terms)
        for view, value in zip(views, change(batch, head, i, j, *(v.clone() for v in views[: spec.scores])), strict=False):
            view.copy_(value)

    return kind(call)


def run(spec, factors, values, masked=None, sure=None, blocks=None, scale=1.0, empty=0.0, threads=1, sums=None):
    """The weighed rows, and the maxima and sums of a softmax. `sums`: what weights are added up to."""
    a = factors[0][0]
    dtype, (batch, heads, rows, _), terms = a.dtype, a.shape, factors[0][1].shape[2]
    room = [torch.full((batch, heads, rows, v.shape[-1] + 5), float("nan"), dtype=dtype) for v in values]
    top, total = torch.empty(batch, heads, rows), torch.empty(batch, heads, rows)
    made = {"batches": batch, "heads": heads, "rows": rows, "terms": terms, "masked": masked, "sure": sure, "context": None}

    def add(name, t, group):
        of_batch = 0 if t.shape[0] == 1 else t.stride(0)
        made.update({name: t.data_ptr(), f"{name}_batch": of_batch, f"{name}_head": t.stride(1), f"{name}_row": t.stride(2)})
        made[f"{name}_group"] = group

    made.update({"blocks": None, "blocks_batch": 0, "blocks_head": 0, "blocks_row": 0})
    if blocks is not None:
        add("blocks", blocks, 1)
    for k, (x, y) in enumerate(factors):
        made |= {f"depth{k}": x.shape[-1], f"scale{k}": scale}
        add(f"a{k}", x, heads // x.shape[1])
        add(f"b{k}", y, heads // y.shape[1])
    for k, (v, o) in enumerate(zip(values, room, strict=True)):
        made[f"columns{k}"] = v.shape[-1]
        add(f"v{k}", v, heads // v.shape[1])
        add(f"o{k}", o, 1)
    for name, t in (("top", top), ("total", total)):
        made |= {name: t.data_ptr(), f"{name}_batch": t.stride(0), f"{name}_head": t.stride(1), f"{name}_row": t.stride(2)}
    made["empty"] = empty
    if sums is not None:
        strides = (0 if n == 1 else s for n, s in zip(sums.shape[:3], sums.stride(), strict=False))
        made |= dict(zip(("s0_batch", "s0_head", "s0_row", "s0_length", "s0"), (*strides, sums.shape[3], sums.data_ptr()), strict=True))
    packed = b""
    for name in fields_of(spec):
        x = made[name]
        if isinstance(x, float):
            packed += struct.pack("<ff", x, 0.0)
        else:
            packed += struct.pack("<q", ctypes.cast(x, ctypes.c_void_p).value or 0 if not isinstance(x, int) else x)
    fields = ctypes.create_string_buffer(packed)
    scratch = torch.full((weighed_scratch_bytes(spec, threads) // 4 + 16,), float("nan"))
    compiled(spec)(ctypes.addressof(fields), (scratch.data_ptr() + 63) // 64 * 64, threads)
    assert all(r[..., v.shape[-1] :].isnan().all() for r, v in zip(room, values, strict=True))
    return [r[..., : v.shape[-1]] for r, v in zip(room, values, strict=True)], top, total


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error(got, want):
    return float((got.double() - want).norm() / want.norm().clamp(min=1e-9))


def table(batch, heads, rows, terms, seed=0):
    """Bytes of blocks, and which elements they leave."""
    shape = batch, heads, -(-rows // BLOCK_ROWS), -(-terms // BLOCK_TERMS)
    kinds = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    kinds[:, :, -1] = 0  # rows that see nothing
    return kinds, kinds.repeat_interleave(BLOCK_ROWS, 2)[:, :, :rows].repeat_interleave(BLOCK_TERMS, 3)[..., :terms]


def lowest(*like):
    return torch.tensor(-math.inf)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rows, terms, depth, columns",
    [(50, 70, 16, 16), (200, 1100, 64, 32), (13, 33, 24, 40), (1, 1, 8, 8), (390, 40, 128, 64), (7, 300, 256, 256)],
)
def test_softmax_of_blocks_that_a_table_leaves(dtype, rows, terms, depth, columns):
    kind, most = DTYPES[dtype]
    spec = WeighedSpec(dtype, host_isa().name)
    q, k, v = (
        numbers(2, 4, rows, depth, dtype=kind),
        numbers(2, 2, terms, depth, seed=1, dtype=kind),
        numbers(1, 4, terms, columns, seed=2, dtype=kind),
    )
    kinds, wide = table(2, 4, rows, terms)
    masked = terms_function(spec, lambda b, h, i, j, s: [torch.where((i * 7 + j * 3 + h) % 4 > 0, s, -math.inf)])
    (got,), top, total = run(spec, [(q, k)], [v], masked, None, kinds, scale=0.25)
    s = q.double() @ k.double().repeat_interleave(2, 1).mT * 0.25
    i, j, h = torch.arange(rows)[:, None], torch.arange(terms), torch.arange(4)[:, None, None]
    s = torch.where((wide == 2) | (wide == 1) & ((i * 7 + j * 3 + h) % 4 > 0), s, -math.inf)
    hidden = (s == -math.inf).all(-1)
    p = torch.where(hidden[..., None], 0.0, torch.softmax(torch.where(hidden[..., None], 0.0, s), -1))
    assert error(got, p @ v.double()) < most
    assert torch.equal(top == -math.inf, hidden) and (total[hidden] == 0).all()
    assert torch.allclose((top + total.log())[~hidden].double(), torch.logsumexp(s, -1)[~hidden], atol=2e-2 if dtype != "f32" else 1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_several_scores_and_weights(threads):
    spec = WeighedSpec("f32", host_isa().name, 2, 2, False)
    a, b, c, d = (numbers(1, 3, n, width, seed=s) for s, (n, width) in enumerate(((90, 16), (600, 16), (90, 40), (600, 40))))
    v, w = numbers(1, 3, 600, 24, seed=5), numbers(1, 3, 600, 16, seed=6)
    masked = terms_function(spec, lambda batch, h, i, j, s, t: [s * t, s + t * (i >= j)])
    (x, y), _, _ = run(spec, [(a, b), (c, d)], [v, w], masked, threads=threads)
    s, t = a.double() @ b.double().mT, c.double() @ d.double().mT
    i, j = torch.arange(90)[:, None], torch.arange(600)
    assert error(x, (s * t) @ v.double()) < 2e-6 and error(y, (s + t * (i >= j)) @ w.double()) < 2e-6


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batches", "summed"), [(3, (0,)), (3, (1,)), (3, (0, 1)), (3, ()), (0, (0,))])
def test_weights_that_are_added_up(dtype, batches, summed):
    """By any number of threads, in one order; blocks that a table hides are 0."""
    spec = WeighedSpec(dtype, host_isa().name, 2, 0, False, added=True)
    rows, terms, kind = 50, 1100, DTYPES[dtype][0]
    a, b, c, d = (numbers(batches, 2, n, 16, seed=s, dtype=kind) for s, n in enumerate((rows, terms, rows, terms)))
    kinds, wide = table(batches, 2, rows, terms)
    masked = terms_function(spec, lambda batch, h, i, j, s, t: [s * t * (i >= j - 900)])
    seen = (wide == 2) | (wide == 1) & (torch.arange(rows)[:, None] >= torch.arange(terms) - 900)
    want = torch.where(seen, (a.double() @ b.double().mT) * (c.double() @ d.double().mT), 0.0)
    want = want.sum(summed, True) if summed else want
    every = terms_function(spec, lambda batch, h, i, j, s, t: [s * t])
    shape = [1 if k in summed else n for k, n in enumerate((batches, 2))]
    found = [torch.full((*shape, rows, terms), math.nan) for _ in range(2)]
    for threads, sums in zip((1, 2), found, strict=True):
        run(spec, [(a, b), (c, d)], [], masked, every, kinds, threads=threads, sums=sums)
    assert torch.equal(*found) and error(found[0], want) < 2e-6


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_are_added_up_at_places_of_a_row(threads):
    spec = WeighedSpec("f32", host_isa().name, 1, 0, False, added=True, placed=True)
    a, b = numbers(2, 3, 50, 16), numbers(2, 3, 1100, 16, seed=1)
    kinds, wide = table(2, 3, 50, 1100)
    every = terms_function(spec, lambda batch, h, i, j, s: [s, ((i * 7 + j * 3 + h) % 40).float()])
    sums = torch.full((2, 3, 50, 40), math.nan)
    run(spec, [(a, b)], [], every, every, kinds, threads=threads, sums=sums)
    at = (torch.arange(50)[:, None] * 7 + torch.arange(1100) * 3 + torch.arange(3)[:, None, None]) % 40
    weights = torch.where(wide > 0, a.double() @ b.double().mT, 0.0)
    want = torch.zeros(2, 3, 50, 40).double().scatter_add(-1, at.expand(2, -1, -1, -1), weights)
    assert error(sums, want) < 2e-6


def test_a_row_that_sees_nothing_gives_what_is_asked_for():
    spec = WeighedSpec("f32", host_isa().name)
    q, k = numbers(1, 1, 8, 16), numbers(1, 1, 40, 16)
    kinds = torch.zeros(1, 1, 2, 3, dtype=torch.uint8)
    (got,), top, total = run(spec, [(q, k)], [k], blocks=kinds, empty=math.nan)
    assert got.isnan().all() and (top == -math.inf).all() and (total == 0).all()
