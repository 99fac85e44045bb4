"""Attention with anything between its products keeps no scores in memory on the CPU, in inference and in training; and what it computes is
what eager computes."""

from __future__ import annotations

import math

import pytest
import torch
from support import import_function
from torch.nn.attention.flex_attention import flex_attention

import stepwell
from stepwell.dialects.nd.types import tensor_type
from stepwell.passes.analysis.weighed_calls import TARGET
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nd import run_nd

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    stepwell.reset_counters()


def heads(rows=90, keys=130, width=32, columns=None, shape=(2, 4), shared=None, dtype=torch.float32):
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    of_keys = (*shape[:-1], shared or shape[-1], keys)
    sizes = [(*shape, rows, width), (*of_keys, width), (*of_keys, columns or width)]
    return [torch.randn(s, generator=generator).to(dtype) for s in sizes]


def places(q, k):
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])


def softcap(q, k, v):
    return torch.softmax(20 * torch.tanh(q @ k.mT / 40), -1) @ v


def softcap_and_causal(q, k, v):
    i, j = places(q, k)
    scores = torch.where(i >= j, 20 * torch.tanh(q @ k.mT / 40), -math.inf)
    return torch.softmax(scores, -1) @ v


def added_lowest(q, k, v):
    i, j = places(q, k)
    return torch.softmax(q @ k.mT * 0.1 + torch.where((i >= j) & (i - j < 40), 0.0, -1e9), -1) @ v


def distances(q, k, v):
    i, j = places(q, k)
    slopes = 2.0 ** -torch.arange(1, q.shape[-3] + 1)[:, None, None]
    return torch.softmax((q @ k.mT * 0.1 + slopes * (j - i)).masked_fill(j > i, -math.inf), -1) @ v


def in_float32(q, k, v):
    i, j = places(q, k)
    scores = (q @ k.mT).float() * 0.1
    return torch.softmax(torch.where(i + 3 >= j, scores.relu() * scores, -math.inf), -1).to(v.dtype) @ v


def by_hand(q, k, v):
    scores = torch.tanh(q @ k.mT)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (powers / powers.sum(-1, keepdim=True)) @ v


SPELLED = [softcap, softcap_and_causal, added_lowest, distances, in_float32, by_hand]


def calls_of(fn, args) -> int:
    """How many calls of weighed rows a function's graph has."""
    module = import_function(fn, *args).module
    run(parse_pipeline("nd-canonicalize,nd-attention,nd-weigh-rows"), module, context())
    module.verify()
    return sum(op.name == "nd.extern" and op.call.data.target == TARGET for op in module.walk())


def error(got, want):
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("fn", SPELLED, ids=lambda f: f.__name__)
def test_no_scores_are_in_memory(fn):
    args = heads()
    assert calls_of(fn, args) == 1
    got = torch.compile(fn, backend="stepwell", fullgraph=True)(*args)
    assert error(got, fn(*(a.double() for a in args))) < 1e-6


def regions(q, k, v):
    """Windows that batches have, of which each hides other keys, and a bias of heads."""
    batch, heads, rows, terms = *q.shape[:3], k.shape[2]
    i, j = places(q, k)
    hidden = torch.where((i + j) % (torch.arange(2)[:, None, None, None] + 5) == 0, -100.0, 0.0)
    scores = q @ k.mT * 0.1 + torch.arange(heads)[:, None, None] * (j - i) / terms
    return torch.softmax((scores.view(-1, 2, heads, rows, terms) + hidden).view(batch, heads, rows, terms), -1) @ v


def shared_and_flat(q, k, v):
    """Heads that share keys, flattened with the batch for products alone, beside a bias that heads share."""
    batch, heads, rows, terms = *q.shape[:3], k.shape[2]
    i, j = places(q, k)
    q, k, v = (x.flatten(0, 1) for x in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
    bias = ((i * j) % (torch.arange(batch)[:, None, None, None] + 3)).to(q.dtype)
    scores = (torch.bmm(q, k.mT).view(batch, heads, rows, terms) * 0.2 + bias).view(-1, rows, terms)
    return torch.einsum("bij,bjd->bid", torch.softmax(scores, -1), v)


@pytest.mark.parametrize(
    ("fn", "shape", "shared"),
    [(regions, (4, 3), None), (regions, (2, 3), None), (shared_and_flat, (2, 4), 2)],
    ids=["four regions", "two regions", "shared and flat"],
)
def test_batches_that_are_parted_in_several_ways(fn, shape, shared):
    args = heads(70, 90, 16, shape=shape, shared=shared)
    assert calls_of(fn, args) == 1
    got = torch.compile(fn, backend="stepwell", fullgraph=True)(*args)
    assert error(got, fn(*(a.double() for a in args))) < 1e-6


@pytest.mark.parametrize("fn", [softcap_and_causal, pytest.param(in_float32, marks=pytest.mark.spread)], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.spread)], ids=str)
def test_numbers_of_16_bits(fn, dtype):
    args = heads(dtype=dtype)
    assert calls_of(fn, args) == 1
    got = torch.compile(fn, backend="stepwell", fullgraph=True)(*args)
    assert got.dtype == dtype and error(got, fn(*(a.double() for a in args))) < 2e-2


def test_heads_that_share_keys_are_not_repeated():
    def fn(q, k, v):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return softcap(q, k, v)

    args = heads(shared=2)
    module = import_function(fn, *args).module
    run(parse_pipeline("nd-canonicalize,nd-weigh-rows"), module, context())
    (call,) = [op for op in module.walk() if op.name == "nd.extern"]
    assert [t.type.dims[1].value for t in call.operands[:3]] == [4, 2, 2]
    assert error(torch.compile(fn, backend="stepwell")(*args), fn(*(a.double() for a in args))) < 1e-6


@pytest.mark.parametrize("sizes", [(1, 1), (0, 20), (20, 0), (300, 7)])
def test_sizes_that_are_symbols(sizes):
    """One program for all lengths, empty ones included."""
    compiled = torch.compile(softcap_and_causal, backend="stepwell", dynamic=True)
    compiled(*heads(90, 90))
    args = heads(*sizes)
    torch.testing.assert_close(compiled(*args), softcap_and_causal(*args), equal_nan=True, atol=1e-5, rtol=1e-5)


def test_no_program_is_made_for_other_lengths():
    compiled = torch.compile(softcap, backend="stepwell", dynamic=True)
    with torch.no_grad():
        compiled(*heads(90, 91))
        before = dict(torch._dynamo.utils.counters["stats"])["unique_graphs"]
        compiled(*heads(120, 77))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


@pytest.mark.parametrize("width, columns", [(16, 16), (24, 40), (64, 32), pytest.param(256, 256, marks=pytest.mark.long)])
def test_sizes_of_heads(width, columns):
    args = heads(50, 70, width, columns)
    assert calls_of(softcap, args) == 1
    assert error(torch.compile(softcap, backend="stepwell")(*args), softcap(*(a.double() for a in args))) < 3e-6


def test_strides_and_ranks():
    q, k, v = heads(40, 50)
    q, v = q.transpose(1, 2).contiguous().transpose(1, 2), v.mT.contiguous().mT
    assert error(torch.compile(softcap, backend="stepwell")(q, k, v), softcap(q.double(), k.double(), v.double())) < 1e-6
    for shape in ((3,), (2, 2, 3)):
        args = heads(40, 50, shape=shape)
        assert error(torch.compile(by_hand, backend="stepwell")(*args), by_hand(*(a.double() for a in args))) < 1e-6


def test_training_keeps_no_scores():
    def fn(q, k, v):
        s = torch.tanh(q @ k.mT)
        return (s * s * s) @ v  # weights that are no softmax

    args = [a.requires_grad_() for a in heads()]
    got = torch.compile(fn, backend="stepwell")(*args)
    want_args = [a.detach().double().requires_grad_() for a in args]
    want = fn(*want_args)
    seed = torch.randn(want.shape, generator=torch.Generator().manual_seed(3))
    given, wanted = torch.autograd.grad(got, args, seed), torch.autograd.grad(want, want_args, seed.double())
    assert error(got, want) < 1e-6 and all(error(g, w) < 2e-6 for g, w in zip(given, wanted, strict=True))


def test_what_is_needed_elsewhere_is_left_alone():
    def weights_too(q, k, v):
        w = torch.softmax(torch.tanh(q @ k.mT), -1)
        return w @ v, w

    def over_rows(q, k, v):
        return torch.softmax(torch.tanh(q @ k.mT), -2) @ v

    def other_places(q, k, v):
        s = q @ k.mT
        return torch.softmax(s + s.flip(-1), -1) @ v

    for fn in (weights_too, over_rows, other_places):
        assert calls_of(fn, heads()) == 0
        got, want = torch.compile(fn, backend="stepwell")(*heads()), fn(*(a.double() for a in heads()))
        for g, w in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
            assert error(g, w) < 1e-5


@pytest.mark.parametrize("count, found", [(8, 1), (40, 0)])
def test_functions_of_many_operations(count, found):
    """Those that are no single nest keep their scores in memory."""

    def fn(q, k, v):
        s = total = q @ k.mT
        for n in range(count):
            s = torch.tanh(s * 0.9) + torch.sin(total * 0.1 * n) * s
            total = total * 0.5 + s
        return torch.softmax(s + total, -1) @ v

    args = heads(40, 50, 16)
    assert calls_of(fn, args) == found
    got = torch.compile(fn, backend="stepwell")(*args)
    assert error(got, fn(*(a.double() for a in args))) < 2e-4 and not stepwell.counters["fallback"]


def test_each_level_says_the_same():
    """The interpreters of nd, of loops and of memory, with the function of terms and with that of blocks."""
    args = heads(30, 50, 8)
    module = import_function(distances, *args).module
    run(parse_pipeline("nd-canonicalize,nd-weigh-rows"), module, context())
    want = distances(*(a.double() for a in args))
    assert error(run_nd(module, args)[0], want) < 1e-6
    for passes in ("nd-to-loop,loop-fuse", "loop-to-mem", "mem-term-blocks"):
        run(parse_pipeline(passes), module, context())
        module.verify()
        assert error(run_loop(module, args)[0], want) < 1e-6


def of_contents_and_positions(q, k, v, of_key, of_query):
    """Contents against positions, and positions against contents (DeBERTa)."""
    away = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).clamp(-16, 15) + 16
    seen = torch.gather(q @ of_key.mT, -1, away.expand(*q.shape[:2], *away.shape))
    seen = seen + torch.gather(k @ of_query.mT, -1, away.mT.expand(*k.shape[:2], *away.mT.shape)).mT
    return torch.softmax((q @ k.mT + seen) * 0.1, -1) @ v


def of_buckets(q, k, v, of_key, of_query):
    """A table of biases, one row for each distance."""
    away = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2]) + 130
    return torch.softmax(q @ k.mT * 0.1 + of_key.flatten(1).mT[away].permute(2, 0, 1), -1) @ v


@pytest.mark.parametrize("fn", [of_contents_and_positions, of_buckets], ids=lambda f: f.__name__)
def test_tables_are_read_where_scores_are(fn):
    """What is gathered for each score is in memory no more than the scores."""
    args = heads() + [torch.randn(4, 32, 32, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    module = import_function(fn, *args).module
    run(parse_pipeline("nd-canonicalize,nd-weigh-rows"), module, context())
    (call,) = [op for op in module.walk() if op.name == "nd.extern"]
    sizes = [math.prod(n.value for n in tensor_type(v).dims) for v in call.operands[3:]]
    assert max(sizes) < 2 * 4 * 90 * 130 / 2
    want = fn(*(a.double() for a in args))
    run(parse_pipeline("nd-to-loop,loop-fuse,loop-to-mem,mem-term-blocks"), module, context())
    assert error(run_loop(module, args)[0], want) < 1e-6


def check_calls(fn, args, count=2):
    """A function is so many calls of weighed rows, and each level means what it does."""
    module = import_function(fn, *args).module
    want = fn(*(a.double() for a in args))
    for passes in ("nd-canonicalize,nd-weigh-rows", "nd-to-loop,loop-fuse", "loop-to-mem", "mem-term-blocks"):
        run(parse_pipeline(passes), module, context())
        module.verify()
        assert all(error(a, b) < 1e-6 for a, b in zip((run_nd if "nd-w" in passes else run_loop)(module, args), want, strict=True))
    assert sum(op.name == "mem.extern" and op.call.data.target == TARGET for op in module.walk()) == count


@pytest.mark.parametrize("summed", [(0,), (1,), (0, 1)])
def test_weights_are_added_up(summed):
    """The gradient of a bias that batches or heads share; queries that heads share are as many as the sums need."""

    def fn(q, k, g, v):
        weights = torch.exp(q @ k.mT * 0.1) * (g @ v.mT)
        return weights.sum(summed), weights @ k

    args = [heads(30, 50, 8)[0][:, :1].expand(2, 4, 30, 8), *heads(30, 50, 8)[1:2], *heads(30, 50, 8)[::2]]
    check_calls(fn, args)


def slopes(weights):
    """The gradient of what distances are multiplied by, a number for each head."""
    away = (torch.arange(50) - torch.arange(30)[:, None]).to(weights.dtype)
    return (weights.sum(0, keepdim=True) * away).sum((0, 2, 3))


def buckets(weights):
    """The gradient of a table of biases."""
    places = (torch.arange(50) - torch.arange(30)[:, None]).abs().clamp(max=6)
    return torch.ops.aten.embedding_dense_backward(weights.sum(0).permute(1, 2, 0), places, 7, -1, False)


@pytest.mark.parametrize(("summed", "count"), [(slopes, 1), (buckets, 2)])
@pytest.mark.parametrize("batch", [1, 2])
def test_weights_are_added_up_over_rows_and_terms(summed, count, batch):
    def fn(q, k, g, v):
        weights = torch.exp(q @ k.mT * 0.1) * (g @ v.mT)
        return summed(weights), weights @ k

    args = [*heads(30, 50, 8, shape=(batch, 4))[:2], *heads(30, 50, 8, shape=(batch, 4))[::2]]
    check_calls(fn, args, count)


def test_sum_that_weights_need_is_no_part_of_their_call():
    def fn(q, k, g, v):
        weights = torch.exp(q @ k.mT * 0.1) * (g @ v.mT)
        total = weights.sum((2, 3), keepdim=True)
        return total, (weights / (total.abs() + 1)) @ k

    args = [*heads(30, 50, 8)[:2], *heads(30, 50, 8)[::2]]
    got, want = torch.compile(fn, backend="stepwell")(*args), fn(*(a.double() for a in args))
    assert all(error(a, b) < 1e-5 for a, b in zip(got, want, strict=True)) and not stepwell.counters["fallback"]


@pytest.mark.parametrize("by_rows", [True, False])
def test_weights_are_added_up_within_rows(by_rows):
    """Gradients of contents against positions, and the other way round."""

    def fn(q, k, g, v):
        weights = torch.exp(q @ k.mT * 0.1) * (g @ v.mT)
        away = (torch.arange(30)[:, None] - torch.arange(50)).clamp(-16, 15) + 16
        turned, away = (weights, away) if by_rows else (weights.mT, away.mT)
        return q.new_zeros(*turned.shape[:-1], 32).scatter_add(-1, away.expand(turned.shape), turned), weights @ k

    args = [*heads(30, 50, 8)[:2], *heads(30, 50, 8)[::2]]
    check_calls(fn, args)


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (1, 1)])
def test_each_level_drops_the_same_weights(shape):
    """Exponents that are the scores, and factors that share nothing with them: one nest for blocks all the same, whose loops of one
    iteration only one of them may have."""

    def fn(q, k, v):
        return torch.nn.functional.dropout(torch.softmax(q @ k.mT, -1), 0.4) @ v

    args = heads(10, 50, 8, shape=shape)
    module = import_function(fn, *args).module
    found = []
    for passes in ("nd-canonicalize", "nd-weigh-rows", "nd-to-loop,loop-fuse", "loop-to-mem", "mem-term-blocks"):
        run(parse_pipeline(passes), module, context())
        module.verify()
        torch.manual_seed(2)
        found.append((run_nd if passes in ("nd-canonicalize", "nd-weigh-rows") else run_loop)(module, args)[0])
    assert sum(op.name in ("nd.extern", "mem.extern") and op.call.data.target == TARGET for op in module.walk()) == 1
    assert all(error(one, found[0].double()) < 1e-6 for one in found[1:])


def test_flex_attention_of_one_batch_with_nothing_between():
    """A loop of one iteration is no dimension of scores."""
    q, k, v = heads(60, 70, shape=(1, 2), dtype=torch.bfloat16)
    got = torch.compile(flex_attention, backend="stepwell", fullgraph=True)(q, k, v)
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert error(got, want) < 1e-2 and not stepwell.counters["fallback"]


def rows_that_are_batches(q, k, bias, weight, rows):
    """A product of matrices whose rows are the batches of scores, which get other batches for their bias."""
    scores = (q @ k).reshape(2, 3, 5) + bias
    return (scores.reshape(6, 5) @ weight).reshape(2, 3, 4).permute(1, 2, 0).reshape(12, 2) @ rows


def chunks_of_one(q, k, state):
    """Weights of a loop of one iteration in front of their rows, of scores without it."""
    scores = (q @ k).reshape(2, 3, 1, 4, 4)
    return (state @ scores).reshape(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (rows_that_are_batches, [(6, 1, 8), (6, 8, 5), (2, 3, 5), (5, 4), (2, 7)]),
        (chunks_of_one, [(2, 3, 4, 8), (2, 3, 8, 4), (2, 3, 1, 4, 4)]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_batches_of_products_end_in_front_of_rows_and_columns(fn, shapes):
    args = [torch.randn(sizes) for sizes in shapes]
    module = import_function(fn, *args).module
    run(parse_pipeline("nd-canonicalize,nd-weigh-rows"), module, context())
    module.verify()
    assert error(run_nd(module, args)[0], fn(*[a.double() for a in args])) < 1e-6
