"""Attention that a program spells out: recognised where that is right and pays, with eager's values and strides."""

from __future__ import annotations

import math

import pytest
import torch
from support import import_function
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import stepwell
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def unscaled(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def in_floats(q, k, v):
    return torch.softmax((q @ k.transpose(-1, -2) * 0.3).float(), -1).to(q.dtype) @ v


def calls(fn, *args, **settings):
    """(result, launches) of a compiled function."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    result = torch.compile(fn, backend="stepwell", **settings)(*args)
    return result, stepwell.counters["launches"]


def operands(dtype, queries=300, keys=300, permuted=False, rank=4):
    torch.manual_seed(0)
    made = []
    for n in (queries, keys, keys):
        x = torch.randn(2, n, 3, 32).transpose(1, 2) if permuted else torch.randn(2, 3, n, 32)
        made.append((x if rank == 4 else x.reshape(6, n, 32)).to(dtype))
    return made


def check_errors(got, want, fn, args):
    """The result is as near to that of doubles as eager's."""
    results = zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want, fn(*(a.double() for a in args)))), strict=True)
    for found, eager, exact in results:
        errors = [(x.double() - exact).norm() / exact.norm() for x in (found, eager)]
        assert errors[0] <= 2 * errors[1] + 1e-6


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [plain, unscaled, in_floats])
@pytest.mark.parametrize("shape", [{}, {"permuted": True}, {"rank": 3}, {"queries": 200, "keys": 400}], ids=str)
def test_it_is_one_call_with_the_values_of_eager(fn, dtype, shape):
    args = operands(dtype, **shape)
    got, _ = calls(fn, *args)
    want = fn(*args)
    (graph,) = stepwell.explain(fn, *args).graphs
    kinds = [s.kind for s in graph.steps]
    assert kinds == ["call"] or kinds == ["call", "nest"], "the library may need a copy with the strides that the caller sees in eager"
    assert got.stride() == want.stride() and got.dtype == want.dtype
    check_errors(got, want, fn, args)


def test_sizes_may_be_symbols():
    args = operands(torch.float32)
    for a in args:
        torch._dynamo.mark_dynamic(a, 2)
    got, _ = calls(plain, *args)
    torch.testing.assert_close(got, plain(*args))


@pytest.mark.parametrize("count", [0, 1])
def test_small_and_empty_ones_are_left_alone(count):
    args = operands(torch.float32, queries=count, keys=64)
    got, launches = calls(plain, *args)
    torch.testing.assert_close(got, plain(*args))
    assert launches > 0 or count == 0


def weights_too(q, k, v):
    w = torch.softmax(q @ k.transpose(-1, -2), -1)
    return w @ v, w


def not_transposed(q, k, v):
    return torch.softmax(q @ q.transpose(-1, -2) @ k, -1) @ v.transpose(-1, -2)


def over_rows(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -2) @ v


def with_a_mask(q, k, v):
    return torch.softmax((q @ k.transpose(-1, -2)).tril(), -1) @ v


@pytest.mark.parametrize("fn", [weights_too, not_transposed, over_rows, with_a_mask])
def test_what_only_looks_like_it_is_left_alone(fn):
    args = operands(torch.float32)
    got, launches = calls(fn, *args)
    check_errors(got, fn(*args), fn, args)
    assert launches > 0


def test_training_is_left_alone_and_right():
    args = [a.requires_grad_() for a in operands(torch.float32)]
    got, _ = calls(plain, *args)
    got.square().sum().backward()
    grads = [a.grad.clone() for a in args]
    for a in args:
        a.grad = None
    plain(*args).square().sum().backward()
    for found, a in zip(grads, args, strict=True):
        torch.testing.assert_close(found, a.grad, rtol=1e-3, atol=1e-4)


def test_the_user_can_ask_for_the_rounding_of_eager():
    args = operands(torch.bfloat16)
    got, _ = calls(plain, *args, options={"numerics": "eager"})
    torch.testing.assert_close(got, plain(*args), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("sizes", "dtype", "want"),
    [
        ((2, 3, 300, 64), torch.bfloat16, True),
        ((6, 300, 64), torch.float16, True),
        ((2, 3, 300, 64), torch.float32, False),  # no fast kernel
        ((2, 3, 300, 60), torch.bfloat16, False),  # rows of no multiple of 16 bytes
        ((2, 3, 300, 256), torch.bfloat16, False),  # too long
        ((2, 3, 100, 64), torch.bfloat16, False),  # too few scores
    ],
)
def test_what_a_gpu_calls(sizes, dtype, want):
    args = [torch.randn(sizes, dtype=dtype) for _ in range(3)]
    module = import_function(plain, *args).module
    module.attributes[MACHINE] = MachineAttr.get("sm_90")
    run(parse_pipeline("nd-canonicalize,nd-attention"), module, context())
    module.verify()
    calls = [op.call.data.target for op in module.walk() if op.name == "nd.extern"]
    assert calls == (["aten._scaled_dot_product_cudnn_attention.default"] if want else [])


def test_what_a_gpu_calls_for_sizes_that_are_symbols():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    kind = [DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
    args = [mode.from_tensor(torch.randn(2, 3, 300, 64).bfloat16(), symbolic_context=StatelessSymbolicContext(kind)) for _ in range(3)]
    module = import_function(plain, *args, mode="real").module
    module.attributes[MACHINE] = MachineAttr.get("sm_90")
    run(parse_pipeline("nd-canonicalize,nd-attention"), module, context())
    module.verify()
    calls = [op.call.data.target for op in module.walk() if op.name == "nd.extern"]
    assert calls == ["aten._scaled_dot_product_cudnn_attention.default"]


def safe(scores, v):
    """Rows that see nothing are 0, as in torch._safe_softmax."""
    return torch.where((scores == -math.inf).all(-1, keepdim=True), 0, torch.softmax(scores, -1)) @ v


def places(q, k):
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])


def causal(q, k, v):
    i, j = places(q, k)
    return torch.softmax(torch.where(i >= j, q @ k.mT * 0.2, -math.inf), -1) @ v


def filled(q, k, v):
    i, j = places(q, k)
    return torch.softmax((q @ k.mT * 0.2).masked_fill(i < j, -math.inf), -1) @ v


def window(q, k, v):
    i, j = places(q, k)
    return safe(torch.where((i >= j) & (i - j < 20), q @ k.mT * 0.2, -math.inf), v)


def nothing_seen(q, k, v):
    """The first rows see no key."""
    i, j = places(q, k)
    return safe(torch.where(i - j > 50, q @ k.mT * 0.2, -math.inf), v)


def documents(q, k, v):
    i, j = places(q, k)
    return safe(torch.where(i // 37 == j // 37, q @ k.mT, -math.inf), v)


def heads(q, k, v):
    """Each head has a mask of its own, and distances are added."""
    i, j = places(q, k)
    h = torch.arange(q.shape[-3])[:, None, None]
    return safe(torch.where(i - j < 40 * (h + 1), q @ k.mT * 0.2 + (i - j).abs().to(q.dtype) / -64, -math.inf), v)


MASKS = [window, nothing_seen, documents, heads]


@pytest.mark.parametrize("fn", [causal, *MASKS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [{}, {"rank": 3}, {"queries": 200, "keys": 431}, {"queries": 431, "keys": 200}], ids=str)
def test_masks_go_into_the_call(fn, shape):
    args = operands(torch.float32, **shape)
    got, launches = calls(fn, *args)
    check_errors(got, fn(*args), fn, args)
    assert launches <= 4  # numbers of rows and of keys, which blocks the mask leaves, and attention


@pytest.mark.parametrize("fn", MASKS, ids=lambda f: f.__name__)
def test_masks_of_other_types_and_sizes_that_are_symbols(fn):
    args = operands(torch.bfloat16)
    check_errors(calls(fn, *args)[0], fn(*args), fn, args)
    args = operands(torch.float32)
    compiled = torch.compile(fn, backend="stepwell", dynamic=True)
    for n in (300, 77):
        few = [x[..., :n, :].contiguous() for x in args]
        check_errors(compiled(*few), fn(*few), fn, few)


def rows_without_keys(q, k, v):
    i, j = places(q, k)
    return torch.softmax(torch.where(i - j > 5, q @ k.mT, -math.inf), -1) @ v


def test_rows_that_see_nothing_are_nan_where_the_program_says_no_other():
    args = operands(torch.float32)
    got, launches = calls(rows_without_keys, *args)
    assert launches <= 2
    torch.testing.assert_close(got, rows_without_keys(*args), equal_nan=True)


def test_a_mask_that_is_turned_round_is_no_causal_one():
    def anti(q, k, v):
        i, j = places(q, k)
        return torch.softmax(torch.where(i <= j, q @ k.mT, -math.inf), -1) @ v

    args = operands(torch.float32)
    torch.testing.assert_close(calls(anti, *args)[0], anti(*args))
    torch.testing.assert_close(calls(filled, *args)[0], filled(*args))


@pytest.mark.parametrize("rows", [1, 40])
def test_heads_that_share_keys_are_not_repeated(rows):
    """Decoding, and a prompt: keys and values go into the products, or the call, as they lie in their cache."""

    def fn(q, k, v):
        k, v = (x.repeat_interleave(4, 1) for x in (k, v))
        return torch.softmax(q @ k.mT * 0.2, -1) @ v

    q, k, v = torch.randn(2, 8, rows, 32), torch.randn(2, 2, 400, 32), torch.randn(2, 2, 400, 32)
    (graph,) = stepwell.explain(fn, q, k, v).graphs
    assert [s.kind for s in graph.steps] == (["contraction", "nest", "contraction"] if rows == 1 else ["call"])
    check_errors(torch.compile(fn, backend="stepwell")(q, k, v), fn(q, k, v), fn, (q, k, v))
