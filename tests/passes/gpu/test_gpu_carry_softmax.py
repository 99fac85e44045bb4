"""Attention that a program spells out: one nest that carries the softmax, one kernel of two products, no scores in memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from stepwell.dialects import loop, nd
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.nd.types import tensor_type
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.memory import StoreOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import shape_of
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.analysis.schedule_attrs import CARRIED, schedule_table
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16


def lowered(
    function, *args, stages=("nd", "loop", "mem", "tt"), carry="gpu-carry-softmax", products="", dynamic=(), machine="sm_90",
    of="gpu-carry-softmax", left_out=(),
):  # fmt: skip
    """The module, and the remarks of a pass. `dynamic`: dimensions of each argument whose sizes are symbols."""

    def flat(*inputs):
        found = function(*inputs)
        return found if isinstance(found, tuple) else (found,)

    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) as mode:
        fake = [_fake(a, dynamic, mode) for a in args]
        trace = make_fx(functionalize(flat), decomposition_table=decomposition_table(), tracing_mode="fake", _allow_non_fake_inputs=True)
        module = import_graph(trace(*fake), fake).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    pipeline = default_pipeline("gpu", stages=stages)
    if products:
        pipeline.replace("nd-library-products", products)
    pipeline.replace("gpu-carry-softmax", carry)
    for name in left_out:
        pipeline.remove(name)
    remarks = []
    run(pipeline, module, context(), Instrumentation(remarks=remarks.append))
    module.verify()
    return module, [r for r in remarks if r.pass_name == of]


def _fake(x, dynamic, mode):
    if x.device.type == "meta":
        return torch.empty_like(x, device="cpu")
    sizes = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(x.ndim)]
    return mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(sizes))


def numbers(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def products(q, k):
    return q @ k.transpose(-1, -2)


def plain(q, k, v):
    return torch.softmax(products(q, k) * 0.125, -1) @ v


def in_f32(q, k, v, bias):
    return torch.softmax(products(q, k).float() * 0.125 + bias, -1).to(v.dtype) @ v


def causal(q, k, v):
    allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(products(q * 0.125, k).masked_fill(~allowed, -math.inf), -1) @ v


def lowest(q, k, v):
    far = torch.arange(q.shape[-2])[:, None] < torch.arange(k.shape[-2])
    return torch.softmax(torch.where(far, -1e9, products(q, k).float() / 8), -1).to(v.dtype) @ v


def softcap(q, k, v):
    return torch.softmax(torch.tanh(products(q, k).float() / 20) * 20, -1).to(v.dtype) @ v


def alibi(q, k, v):
    away = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, dtype=torch.float32)
    return torch.softmax(products(q, k).float() * 0.125 + away * slopes[:, None, None], -1).to(v.dtype) @ v


def distances(q, k, v):
    """ALiBi to both sides: what is computed of indices stands in the nest of the softmax, which keeps its exponents."""
    away = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs()
    slopes = torch.exp2(-torch.arange(q.shape[1]) / 2)[:, None, None]
    return torch.softmax(products(q, k).float() * 0.125 - away * slopes, -1).to(v.dtype) @ v


def by_hand(q, k, v):
    s = products(q, k).float() * 0.125
    p = (s - s.amax(-1, keepdim=True)).exp()
    return (p / p.sum(-1, keepdim=True)).to(v.dtype) @ v


def einsum(q, k, v):
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * 0.125, -1)
    return torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)


def repeated(q, k, v):
    return softcap(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))


def expanded(q, k, v):
    return softcap(q, *(x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(2, 3, *x.shape[2:]) for x in (k, v)))


def two_biases(q, k, v, bias, there):
    return in_f32(q, k, v, bias + torch.where(there, 0.0, -10000.0)[:, None, None])


def window(q, k, v):
    ahead = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
    return torch.softmax((products(q, k) * 0.125).masked_fill((ahead < 0) | (ahead >= 20), -math.inf), -1) @ v


def safe(q, k, v, there):
    """As FlexAttention is spelled: products of float32, and rows without a score are 0."""
    scores = torch.where(there[:, None, None], products(q.float(), k.float()) * 0.125, -math.inf)
    return torch.ops.aten._safe_softmax(scores, -1).to(v.dtype) @ v


def padded(q, k, v, there):
    return torch.softmax(products(q, k).float().masked_fill(~there[:, None, None], -math.inf), -1).to(v.dtype) @ v


def flattened(q, k, v, there):
    """Heads are batches of the products, and parted for the mask."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q, k.mT).view(2, 3, 66, 70).float().masked_fill(~there[:, None, None], -1e9).flatten(0, 1)
    return torch.bmm(torch.softmax(scores, -1).to(v.dtype), v)


Q, K, V = numbers(2, 3, 66, 32), numbers(2, 3, 70, 32), numbers(2, 3, 70, 40)
HALF = [x.to(torch.float16) for x in (Q, K, V)]
THERE = torch.arange(70) < torch.tensor([[50], [0]])
def wide_product(q, k, v):
    return torch.softmax(products(q, k).float() * 0.125, -1).to(v.dtype).float() @ v.float()


PROGRAMS = {
    "a product of float32 of weights of 16 bits": (wide_product, [Q, K, V]),
    "plain": (plain, [Q, K, V]),
    "float16": (plain, HALF),
    "in 32 bits, with a bias": (in_f32, [Q, K, V, numbers(3, 66, 70)]),
    "causal": (causal, [Q, K, V]),
    "the lowest instead of none": (lowest, [Q, K, V]),
    "softcap": (softcap, [Q, K, V]),
    "ALiBi": (alibi, [Q, K, V]),
    "ALiBi to both sides": (distances, [Q, K, V]),
    "exponentials by hand": (by_hand, [Q, K, V]),
    "einsum": (einsum, [Q, K, V]),
    "padded, one without any": (padded, [Q, K, V, THERE]),
    "a batch of one": (in_f32, [Q[:1], K[:1], V[:1], numbers(3, 66, 70)]),
    "a head, of keys for all batches": (lambda q, k, v: softcap(q, k, v), [Q[:, :1], K[:1, :1], V[:1, :1]]),
    "float32 products, rows without a score are 0": (safe, [Q, K, V, THERE]),
    "keys repeated for groups of heads": (repeated, [Q, K[:, :1], V[:, :1]]),
    "keys expanded to groups of heads": (expanded, [Q, K[:, :1], V[:, :1]]),
    "two biases": (two_biases, [Q, K, V, numbers(3, 66, 70), THERE]),
    "window": (window, [Q, K, V]),
    "heads flattened": (flattened, [Q, K, V, THERE]),
    "one batch of many rows": (plain, [numbers(130, 64), numbers(257, 64), numbers(257, 64)]),
    "a scale behind": (lambda q, k, v: plain(q, k, v) * 2, [Q, K, V]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_attention_is_one_kernel(name):
    function, args = PROGRAMS[name]
    module, remarks = lowered(function, *args)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    found = [f for f in module.ops if isinstance(f, FuncOp)]
    dots = [sum(isinstance(op, DotOp) for op in f.walk()) for f in found]
    assert sum(n > 0 for n in dots) == 1 and max(dots) in (2, 4)  # whole blocks of terms have a loop of their own
    (got,) = run_loop(module, args, [], [])
    want = function(*args)
    assert got.dtype == want.dtype and got.shape == want.shape
    torch.testing.assert_close(got.float(), want.float(), rtol=4e-2, atol=4e-2, equal_nan=True)


def flex(q, k, v, there):
    """FlexAttention's forward in training."""
    scores = torch.where(there[:, None, None], products(q.float(), k.float()) * 0.125, -math.inf)
    nothing = torch.all(scores == -math.inf, -1)
    lse = torch.where(nothing, -math.inf, scores.logsumexp(-1))
    o = torch.ops.aten._safe_softmax(scores, -1).to(v.dtype) @ v
    return o, lse / math.log(2), scores.amax(-1)


def saved(q, k, v):
    """What backward may be left: the maximum of a row and the sum of its exponentials, of a softmax spelled out."""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = torch.where(j >= i, -math.inf, torch.tanh(products(q, k).float() / 20) * 20)
    top = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    return (powers / total).to(v.dtype) @ v, top, total, 1 / total


def expanded_to_lse(q, k, v):
    o, top, total, _ = saved(q, *(x.repeat_interleave(3, 1) for x in (k, v)))
    return o, (top + total.log()).squeeze(-1)


def merged_heads(q, k, v, there):
    o, lse, _ = flex(q, k, v, there)
    return o.transpose(1, 2).flatten(2), lse.transpose(1, 2) * 2


WITH_NUMBERS_OF_ROWS = {
    "FlexAttention": (flex, [Q, K, V, THERE]),
    "FlexAttention in float16": (flex, [*HALF, THERE]),
    "the first row has no scores": (saved, [Q, K, V]),
    "one batch": (saved, [numbers(130, 64), numbers(257, 64), numbers(257, 64)]),
    "keys repeated for groups of heads": (expanded_to_lse, [Q, K[:, :1], V[:, :1]]),
    "heads are merged": (merged_heads, [Q, K, V, THERE]),
}


@pytest.mark.parametrize("name", WITH_NUMBERS_OF_ROWS)
def test_numbers_of_rows_are_results_of_the_kernel(name):
    """logsumexp, the maximum and the sum: each is stored once, by a vector along the rows."""
    function, args = WITH_NUMBERS_OF_ROWS[name]
    module, remarks = lowered(function, *args)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    attention = [f for f in module.ops if isinstance(f, FuncOp) and any(isinstance(op, DotOp) for op in f.walk())]
    assert len(attention) == 1
    stored = [shape_of(op.operands[0].type) for op in attention[0].walk() if isinstance(op, StoreOp)]
    assert sum(shape[-1] == 1 for shape in stored) == len(stored) - 1 > 0
    got, want = run_loop(module, args, [], []), function(*args)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        close = 1e-5 if w.dtype == torch.float32 else 4e-2
        torch.testing.assert_close(g.float(), w.float(), rtol=close, atol=close, equal_nan=True)


def test_parts_of_rows_give_their_numbers():
    """Of few rows programs have parts of the terms: the kernel that puts these together stores the numbers."""

    def few(q, k, v):
        o, top, total, _ = saved(q, k, v)
        return o, top + total.log()

    args = numbers(1, 2, 64, 64), numbers(1, 2, 1024, 64), numbers(1, 2, 1024, 64)
    module, remarks = lowered(few, *args)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    assert len([f for f in module.ops if isinstance(f, FuncOp)]) == 2
    got, want = run_loop(module, args, [], []), few(*args)
    torch.testing.assert_close(got[0].float(), want[0].float(), rtol=4e-2, atol=4e-2, equal_nan=True)
    torch.testing.assert_close(got[1], want[1], rtol=1e-5, atol=1e-5, equal_nan=True)


def test_nests_that_need_numbers_of_rows_come_later():
    """A nest between that of the weights and that which weighs by them."""

    def between(q, k, v, w):
        scores = products(q, k).float() * 0.125
        top = scores.amax(-1, keepdim=True)
        powers = torch.exp(scores - top)
        total = powers.sum(-1, keepdim=True)
        columns = torch.relu((top + total.log()).sum(-2, keepdim=True) * w)
        return (powers / total).to(v.dtype) @ v, columns, columns.cumsum(-1)

    args = *(numbers(1, 16, 128, 16) for _ in range(3)), numbers(128, dtype=torch.float32)
    module, remarks = lowered(between, *args)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    got, want = run_loop(module, args, [], []), between(*args)
    torch.testing.assert_close(got[0].float(), want[0].float(), rtol=4e-2, atol=4e-2)
    torch.testing.assert_close(got[1:], list(want[1:]), rtol=1e-4, atol=1e-4)


def entropy(q, k, v):
    """The nest of the weights reduces them by another rule, too."""
    weights = torch.softmax(products(q, k).float() * 0.125, -1)
    return weights.to(v.dtype) @ v, -(weights * weights.clamp(min=1e-9).log()).sum(-1)


def decoding(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.ops.aten._safe_softmax(products(q.float(), k.float()) * 0.125, -1).to(q.dtype) @ v


@pytest.mark.parametrize("terms", [1024, 1091, 100])
def test_one_row_of_heads_that_share_keys_is_weighed_by_parts(terms):
    """Decoding: the heads of a group are the rows of a product, and programs have parts of the keys."""
    args = numbers(2, 12, 1, 64), numbers(2, 2, terms, 64), numbers(2, 2, terms, 64)
    module, remarks = lowered(decoding, *args)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    found = [f for f in module.ops if isinstance(f, FuncOp)]
    products = [min(2, sum(isinstance(op, DotOp) for op in f.walk())) for f in found]
    assert products == {1024: [2, 0], 1091: [2, 2, 0], 100: [2]}[terms]
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got.float(), decoding(*args).float(), rtol=2e-2, atol=2e-2)


def weights_too(q, k, v):
    weights = torch.softmax(products(q, k), -1)
    return weights, weights @ v


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (softcap, [(2, 4, 64, 64), (2, 4, 64, 64), (2, 4, 64, 512)], "rows have more than 256 elements"),
        (softcap, [(2, 4, 1, 64), (2, 4, 8192, 64), (2, 4, 8192, 64)], "one row, of a head that shares its keys with no other"),
    ],
)
def test_a_remark_says_why_scores_stay_in_memory(function, shapes, reason):
    args = [torch.empty(shape, dtype=BF16, device="meta") for shape in shapes]
    _, remarks = lowered(function, *args, stages=("nd", "loop"), of="nd-library-products")
    assert any(f"scores stay in memory: {reason}" in r.message for r in remarks), [r.message for r in remarks]


def weights_and_numbers(q, k, v):
    scores = products(q, k).float() * 0.125
    return torch.softmax(scores, -1).to(v.dtype) @ v, torch.softmax(scores, -1), scores.logsumexp(-1), scores.amax(-1)


def test_a_remark_says_that_others_need_the_scores():
    args = [torch.empty(2, 4, 64, 64, dtype=BF16, device="meta") for _ in range(3)]
    always = "nd-library-products{library=always}"
    _, remarks = lowered(weights_too, *args, stages=("nd", "loop"), of="nd-library-products", products=always)
    assert any("scores stay in memory: something else needs the scores or the weights" in r.message for r in remarks)


@pytest.mark.parametrize("function", [weights_too, entropy, weights_and_numbers])
def test_scores_that_others_need_are_computed_for_them_again(function):
    args = [torch.empty(2, 16, 1024, 64, dtype=BF16, device="meta") for _ in range(3)]
    module, remarks = lowered(function, *args, stages=("nd", "loop"))
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    nests = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    if function is entropy:  # the product that is computed again begins the sums
        assert len(nests) == 3 and all(math.prod(map(int, tensor_type(r).dims)) < 2 * 16 * 1024 * 1024 for op in nests for r in op.results)
    else:
        assert len(nests) == 2


def test_scores_of_one_row_alone_are_not_carried():
    args = [torch.empty(2, 4, n, 64, dtype=BF16, device="meta") for n in (1, 8192, 8192)]
    module, remarks = lowered(decoding, *args, stages=("nd", "loop"))
    assert all(r.kind == "missed" for r in remarks)
    assert not [op for op in module.walk() if isinstance(op, loop.ReduceOp) and "softmax_dot" in op.kind_names]


def test_scores_may_be_more_than_32_bits_count():
    q, k, v = torch.empty(3, 2, 16, 8192, 64, dtype=BF16, device="meta").unbind()
    _, remarks = lowered(window, q, k, v, stages=("nd", "loop"))
    assert [r.kind for r in remarks] == ["applied"]


@pytest.mark.parametrize(
    ("machine", "head", "want"),
    [
        ("sm_90", 64, (64, 3, 4)), ("sm_90", 128, (64, 3, 4)), ("sm_90", 256, (128, 1, 8)), ("sm_80", 256, (64, 1, 8)),
        ("sm_89", 128, (64, 1, 4)),
    ],
)  # fmt: skip
def test_tiles_fit_shared_memory(machine, head, want):
    """A bias of 32 bits has its blocks there, too."""
    q, k, v = torch.empty(3, 4, 16, 512, head, dtype=BF16, device="meta").unbind()
    bias = torch.empty(16, 512, 512, dtype=torch.float32, device="meta")
    module, _ = lowered(in_f32, q, k, v, bias, stages=("nd", "loop", "mem"), machine=machine)
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    tile = schedule_table(nest)["gpu"].data
    assert (tile["blocks"].data[0].value.data, tile["stages"].value.data, tile["warps"].value.data) == want


@pytest.mark.parametrize(("length", "head"), [(64, 32), (197, 64), (1000, 80), (4096, 128), (2048, 256)])
def test_the_default_pipeline_carries_scores_of_any_size(head, length):
    q, k, v = torch.empty(3, 4, 16, length, head, dtype=BF16, device="meta").unbind()
    bias = torch.empty(16, length, length, dtype=BF16, device="meta")
    there = torch.empty(4, length, dtype=torch.bool, device="meta")
    plain_of = [(one, (q, k, v)) for one in (softcap, causal, distances, window, by_hand)]
    for function, args in (*plain_of, (in_f32, (q, k, v, bias)), (safe, (q, k, v, there))):
        module, remarks = lowered(function, *args, stages=("nd", "loop"))
        assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
        assert not [op for op in module.walk() if isinstance(op, nd.ExternOp)]


@pytest.mark.parametrize("name", ["plain", "in 32 bits, with a bias", "causal"])
def test_batches_and_lengths_may_be_symbols(name):
    function, args = PROGRAMS[name]
    module, remarks = lowered(function, *args, dynamic=(0, 2))
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    kernels = [f for f in module.ops if isinstance(f, FuncOp)]
    assert {sum(isinstance(op, DotOp) for op in f.walk()) for f in kernels} - {0} == {4}


SHORT = numbers(2, 2, 9, 16), numbers(2, 2, 11, 16), numbers(2, 2, 11, 24)
SHORT_PROGRAMS = {
    "bias": (in_f32, [*SHORT, numbers(2, 9, 11)]),
    "causal": (causal, [SHORT[0], SHORT[0], numbers(2, 2, 9, 24)]),
    "padded": (padded, [*SHORT, THERE[:, 44:55]]),
    "safe": (safe, [*SHORT, THERE[:, 44:55]]),
    "numbers of rows": (flex, [*SHORT, THERE[:, 44:55]]),
}


@pytest.mark.parametrize("name", SHORT_PROGRAMS)
def test_the_nest_means_the_same(name):
    """At the level of loops, one element after the other."""
    function, args = SHORT_PROGRAMS[name]
    module, _ = lowered(function, *args, stages=("nd", "loop"), products="nd-library-products{tiny=0}")
    kinds = [op.kind_names for op in module.walk() if isinstance(op, loop.ReduceOp)]
    assert kinds == [["softmax_dot"], ["sum"]]
    want = function(*args)
    for g, w in zip(run_loop(module, args, [], []), want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(g.float(), w.float(), rtol=4e-2, atol=4e-2, equal_nan=True)


def wide(q, k, v):
    return torch.softmax(products(q.float(), k.float()), -1) @ v.float()


REFUSED = {
    "numbers of a row by another rule": (entropy, [Q, K, V]),
    "the weights are a result": (lambda q, k, v: (w := torch.softmax(products(q, k), -1), w @ v), [Q, K, V]),
    "no products": (lambda s, v: torch.softmax(s, -1) @ v, [numbers(2, 3, 66, 70), V]),
    "many columns": (plain, [Q, K, numbers(2, 3, 70, 300)]),
    "weights of 32 bits": (wide, [Q, K, V]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_programs_stay_as_they_are(name):
    function, args = REFUSED[name]
    module, remarks = lowered(function, *args, stages=("nd", "loop"), products="nd-library-products{tiny=0 library=never}")
    assert not [r for r in remarks if r.kind == "applied"]
    assert not [op for op in module.walk() if isinstance(op, loop.ReduceOp) and "softmax_dot" in op.kind_names]


def test_columns_are_bounded_by_the_option():
    _, (remark,) = lowered(plain, Q, K, V, stages=("nd", "loop"), carry="gpu-carry-softmax{columns=32}")
    assert remark.kind == "missed" and "40 columns, the most are 32" in remark.message


def test_products_that_were_chosen_for_scores_on_chip_say_if_these_are_in_memory():
    """Without fusion no nest stores the weights of a row with its maximum."""
    module, remarks = lowered(flex, Q, K, V, THERE, stages=("nd", "loop"), left_out=("loop-fuse",))
    assert [r.kind for r in remarks] == ["missed"] and "were chosen to keep them on chip (1)" in remarks[0].message
    assert not any(CARRIED in op.attributes for op in module.walk())
    module, remarks = lowered(flex, Q, K, V, THERE, stages=("nd", "loop"))
    assert [r.kind for r in remarks] == ["applied"] and not any(CARRIED in op.attributes for op in module.walk())
