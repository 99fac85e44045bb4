"""Ten models as C programs, in an environment without Python and torch, against eager (AOTI-01, CN-12)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from c_programs import build, call, needs_compiler
from package_models import CASES, Kept, encoder, mlp

from stepwell.tools.package.c.export import export_c

pytestmark = [needs_compiler, pytest.mark.long]


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name, tmp_path):
    torch.manual_seed(0)
    make, args, shapes, more = CASES[name]
    model = make().eval()
    export_c(model, args, name=name, folder=tmp_path, dynamic_shapes=shapes)
    program = build(tmp_path, name)
    for given in [args, *more]:
        with torch.no_grad():
            want = model(*given)
        want = want if isinstance(want, tuple) else (want,)
        got = call(program, "forward", given, want, "2", "3")
        torch.testing.assert_close(tuple(got), tuple(want), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_types(dtype, tmp_path):
    torch.manual_seed(0)
    model, x = encoder().eval().to(dtype), torch.randn(2, 16, 128, dtype=dtype)
    export_c(model, (x,), name="typed", folder=tmp_path, levels=["cpu-v3"])
    got = call(build(tmp_path, "typed"), "forward", [x], [x])[0]
    exact = copy.deepcopy(model).double()(x.double()).detach()
    error, eager = (float((y.double() - exact).abs().max()) for y in (got, model(x).detach()))
    assert error <= 2 * eager + 1e-12


def test_a_cache_that_the_model_keeps(tmp_path):
    torch.manual_seed(0)
    model = Kept().eval()
    x, position = torch.randn(1, 1, 64), torch.tensor([3])
    export_c(copy.deepcopy(model), (x, position), name="kept", folder=tmp_path)
    program = build(tmp_path, "kept")
    for calls in (1, 2):
        fresh = copy.deepcopy(model)
        for _ in range(calls):
            want = fresh(x, position)
        (got,) = call(program, "forward", [x, position], [x], str(calls))
        torch.testing.assert_close(got, want.detach(), atol=2e-5, rtol=1e-4)


def test_attention_that_is_spelled_out(tmp_path):
    """Doubles, keys of fewer heads, causal; keys that every sample shares."""
    torch.manual_seed(0)

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.3)

    q, k, v = (torch.randn(2, heads, 9, 8, dtype=torch.float64) for heads in (4, 2, 2))
    export_c(attention, (q, k, v), name="spelled", folder=tmp_path, levels=["cpu-v3"])
    want = attention(q, k, v)
    torch.testing.assert_close(call(build(tmp_path, "spelled"), "forward", [q, k, v], [want])[0], want)
    q, k = q.float(), k[:1].float().expand(2, 2, 9, 8)
    export_c(attention, (q, k, k), name="shared", folder=tmp_path, levels=["cpu-v3"])
    torch.testing.assert_close(call(build(tmp_path, "shared"), "forward", [q, k, k], [q])[0], attention(q, k, k))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_embeddings(mode, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(30, 8, mode=mode).eval()
    words, begins = torch.randint(0, 30, (17,)), torch.tensor([0, 3, 3, 9, 17])  # two bags are empty
    export_c(model, (words, begins), name="bags", folder=tmp_path, levels=["cpu-v3"])
    want = model(words, begins).detach()
    torch.testing.assert_close(call(build(tmp_path, "bags"), "forward", [words, begins], [want])[0], want)


@pytest.mark.parametrize("level", ["cpu-v1", "cpu-v3", "cpu-v4"])
def test_each_level_computes_the_same(level, tmp_path):
    torch.manual_seed(0)
    model, x = mlp().eval(), torch.randn(9, 64)
    export_c(model, (x,), name="level", folder=tmp_path, levels=[level])
    got = call(build(tmp_path, "level"), "forward", [x], [x])[0]
    torch.testing.assert_close(got, model(x).detach(), atol=2e-5, rtol=1e-4)
