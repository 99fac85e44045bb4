"""The generated attention against float64: sizes, layouts, masks, instruction sets, threads."""

from __future__ import annotations

import ctypes
import math
import random
from functools import cache

import pytest
import torch

from stepwell.targets.cpu import jit
from stepwell.targets.cpu.attention.driver import ATTENTION_ARGS, AttentionSpec, attention_function, attention_scratch_bytes
from stepwell.targets.cpu.features import is_runnable, target
from stepwell.targets.cpu.gemm.driver import as_module, isa_for

TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ROUNDING = {"f32": 3e-6, "bf16": 1.5e-2, "f16": 2e-3}
CTYPES = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "float": ctypes.c_float}


@cache
def compiled(spec: AttentionSpec, target_name: str = "host"):
    symbol, text = attention_function(spec)
    library = jit.load_text(as_module(text), wanted=target(target_name))
    function = library.function(symbol, *[CTYPES[ty] for ty, _ in ATTENTION_ARGS])
    function.library = library
    return function


def run(q, k, v, mask=None, causal=False, threads=1, spec=None, target_name="host"):
    """(output, logsumexp)."""
    spec = spec or host_spec({torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[q.dtype])
    batch, heads, queries, depth = q.shape
    # NaN behind every row: what is written there is noticed.
    room = torch.full((batch, heads, queries, depth + 5), float("nan"), dtype=q.dtype)
    o, lse = room[..., :depth], torch.empty(batch, queries, heads).mT
    scratch = torch.full((attention_scratch_bytes(spec, threads) // 4,), float("nan"))
    if mask is not None:
        mask = mask.expand(batch, heads, queries, k.shape[2])
    strides = [s for t in (q, k, v, o, lse) for s in t.stride()[:3]] + (
        list(mask.stride()[:3]) if mask is not None else [0] * 3
    )
    pointers = [t.data_ptr() if t is not None else None for t in (q, k, v, o, lse, mask)]
    sizes = [batch, heads, queries, k.shape[2], depth]
    last = [heads // k.shape[1], int(causal), 1 / math.sqrt(depth), scratch.data_ptr(), threads]
    compiled(spec, target_name)(*pointers, *sizes, *strides, *last)
    assert room[..., depth:].isnan().all()
    return o, lse


def exact(q, k, v, mask=None, causal=False):
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def host_spec(dtype: str) -> AttentionSpec:
    return AttentionSpec(dtype, isa_for(target()).name)


def inputs(dtype, batch, heads, queries, keys, depth, group=1):
    """Q with rows of all heads side by side (as a projection gives them), K and V head by head."""
    q = torch.randn(batch, queries, heads, depth).to(TORCH[dtype]).transpose(1, 2)
    k, v = (torch.randn(batch, heads // group, keys, depth).to(TORCH[dtype]) for _ in range(2))
    return q, k, v


def check(dtype, q, k, v, **kinds):
    o, lse = run(q, k, v, **kinds)
    expected, logs = exact(q, k, v, kinds.get("mask"), kinds.get("causal", False))
    note = f"{dtype} {tuple(q.shape)} keys {k.shape[2]}"
    assert (o.double() - expected).abs().max() < ROUNDING[dtype] * max(1.0, expected.abs().max().item()), note
    assert (lse.double() - logs).abs().max() < 2e-6 * max(1.0, logs.abs().max().item()), note


@pytest.mark.spread
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 3, 16, 16, 32),
        (1, 2, 5, 7, 8),
        (1, 2, 1, 77, 80),
        (2, 2, 33, 1, 16),
        (1, 1, 50, 2500, 48),
        (1, 1, 300, 260, 112),
    ],
)
def test_sizes(dtype, sizes):
    torch.manual_seed(0)
    check(dtype, *inputs(dtype, *sizes))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 100, 130, 64), (1, 1, 257, 257, 128), (1, 1, 1300, 1300, 96), (1, 2, 40, 9, 256)]
)
def test_causal(dtype, sizes):
    torch.manual_seed(0)
    check(dtype, *inputs(dtype, *sizes), causal=True)


def test_heads_that_share_keys():
    torch.manual_seed(0)
    check("f32", *inputs("f32", 2, 6, 20, 30, 64, group=3))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
def test_added_mask_with_broadcast_strides(dtype, causal):
    torch.manual_seed(0)
    q, k, v = inputs(dtype, 2, 3, 70, 1100, 64)
    for shape in ((2, 1, 1, 1100), (1, 1, 70, 1100), (2, 3, 70, 1100)):
        mask = torch.randn(shape).to(TORCH[dtype]) * 2
        mask[..., 40:50] = -math.inf
        check(dtype, q, k, v, mask=mask, causal=causal)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first, last", [(-100, 0), (3, 40), (-700, -650), (-20, 600), (900, 950)])
def test_keys_that_no_row_of_a_strip_sees_change_nothing(dtype, causal, first, last):
    """Query i sees the keys i + first to i + last: blocks before, between and behind are empty, rows too."""
    q, k, v = inputs(dtype, 1, 2, 150, 1450, 16)
    distance = torch.arange(1450) - torch.arange(150)[:, None]
    seen = (distance >= first) & (distance <= last)
    mask = torch.zeros(1, 1, 150, 1450).masked_fill(~seen, float("-inf")).to(q.dtype).expand(1, 2, 150, 1450)
    o, _ = run(q, k, v, mask=mask, causal=causal)
    whole = seen & (distance <= 0) if causal else seen
    want = torch.softmax((q.double() @ k.double().mT / 4).masked_fill(~whole, float("-inf")), -1).nan_to_num(0.0) @ v.double()
    torch.testing.assert_close(o.double(), want, rtol=2e-2, atol=1e-4 if dtype == "f32" else 2e-2)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("key", [float("nan"), float("inf")])
def test_a_hidden_key_is_so_whatever_its_score(dtype, key):
    """As where a program chooses -inf for the score."""
    q, k, v = inputs(dtype, 1, 1, 8, 40, 16)
    k[:, :, 7] = key
    mask = torch.zeros(1, 1, 8, 40, dtype=q.dtype)
    mask[..., 7] = float("-inf")
    o, _ = run(q, k, v, mask=mask)
    seen = [j for j in range(40) if j != 7]
    torch.testing.assert_close(o, run(q, k[:, :, seen].contiguous(), v[:, :, seen].contiguous())[0], rtol=2e-2, atol=1e-4)


def test_mask_of_the_lowest_number_is_as_torch_has_it():
    q, k, v = inputs("f32", 1, 1, 4, 20, 16)
    mask = torch.zeros(1, 1, 4, 20)
    mask[:, :, 1:] = torch.finfo(torch.float32).min
    o, _ = run(q, k, v, mask=mask)
    torch.testing.assert_close(o, torch.softmax(q @ k.mT / 4 + mask, -1) @ v)


def test_a_query_that_sees_nothing_gives_zeros():
    q, k, v = inputs("f32", 1, 2, 9, 40, 32)
    mask = torch.zeros(1, 1, 9, 40)
    mask[:, :, 3] = -math.inf
    o, lse = run(q, k, v, mask=mask)
    assert (o[:, :, 3] == 0).all() and (lse[:, :, 3] == 0).all()
    assert o.isfinite().all()
    o, lse = run(q, k[:, :, :0], v[:, :, :0])
    assert (o == 0).all() and (lse == 0).all()


def test_large_scores_and_nan():
    q, k, v = inputs("f32", 1, 1, 20, 1500, 64)
    # Scores near 200: their own rounding, 1e-5, is the error of the weights.
    o, _ = run(q * 30, k, v)
    assert (o.double() - exact(q * 30, k, v)[0]).abs().max() < 1e-4
    q[0, 0, 7, 3] = math.nan
    o, _ = run(q, k, v)
    assert o[0, 0, 7].isnan().all() and o.isnan().sum() == 64


@pytest.mark.parametrize("sizes", [(3, 4, 100, 100, 64), (1, 1, 600, 500, 64)])
def test_threads(sizes):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for causal in (False, True):
            check("f32", *inputs("f32", *sizes), threads=3, causal=causal)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("target_name, isa", [("generic-sse", "generic"), ("avx2", "avx2"), ("avx512", "avx512")])
def test_other_instruction_sets(target_name, isa):
    if not is_runnable(target(target_name)):
        pytest.skip(f"this machine has no {isa}")
    for dtype in ("f32", "bf16"):
        q, k, v = inputs(dtype, 1, 2, 45, 90, 72)
        o, _ = run(q, k, v, causal=True, spec=AttentionSpec(dtype, isa), target_name=target_name)
        assert (o.double() - exact(q, k, v, causal=True)[0]).abs().max() < ROUNDING[dtype] * 3


def test_neon_assembles():
    assert jit.compile_text(as_module(attention_function(AttentionSpec("bf16", "neon"))[1]), wanted=target("neon"))


def test_random_sizes():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(20):
        sizes = (1, 2, rng.randrange(1, 150), rng.randrange(1, 300), rng.randrange(1, 130))
        check("f32", *inputs("f32", *sizes), causal=rng.random() < 0.5)


def test_a_wrong_spec_is_refused():
    with pytest.raises(ValueError, match="attention: dtype is 'f64', expected f32, bf16 or f16"):
        AttentionSpec("f64")
    with pytest.raises(ValueError, match="attention: isa is 'mmx', expected one of avx512_bf16"):
        AttentionSpec("f32", "mmx")
