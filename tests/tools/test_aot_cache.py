"""What AOTAutograd makes of a graph, kept in torch's cache: on a hit it traces nothing, and what runs is the same."""

import functools

import pytest
import torch
from torch._dynamo.utils import counters as torch_counters
from torch.fx.experimental.proxy_tensor import make_fx

import stepwell
from stepwell.tools import aot_cache
from stepwell.tools.counters import counters, reset_counters
from stepwell.tools.torch_backend import stepwell as backend


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "stepwell"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    torch._dynamo.reset()
    yield tmp_path
    torch._dynamo.reset()


def again(**options):
    """A compiler that starts as a new process does, and counts from zero."""
    torch._dynamo.reset()
    torch_counters.clear()
    reset_counters()
    return lambda fn: torch.compile(fn, backend="stepwell", **options)


def found() -> tuple[int, int]:
    """(hits of torch's cache, graphs taken from ours) since `again`."""
    return torch_counters["aot_autograd"]["autograd_cache_hit"], counters["graph_cache_hits"]


def layer(x, w):
    return torch.tanh(x @ w).softmax(-1) * 3


def step(compiler):
    x = torch.linspace(-1, 1, 40).reshape(5, 8).requires_grad_()
    w = torch.linspace(0, 2, 64).reshape(8, 8).requires_grad_()
    out = compiler(layer)(x, w)
    out.square().sum().backward()
    return out.detach(), x.grad, w.grad


def test_training():
    first = step(again())
    assert found() == (0, 0)
    second = step(again())
    assert found() == (1, 2)
    assert set(counters["compile_seconds"]) == {"cache", "load"}
    assert counters["graphs"] == 2
    for a, b, c in zip(first, second, step(lambda fn: fn), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)


def test_updates_views_and_numbers():
    def fn(x, y, n):
        x.add_(n)
        return y.t(), x[1:], x * n, n + 1, None

    for k in range(2):
        a, b, y = torch.ones(4, 3), torch.ones(4, 3), torch.randn(2, 5)
        with torch.no_grad():
            got, expected = again()(fn)(a, y, 3), fn(b, y, 3)
        torch.testing.assert_close((got, a), (expected, b))
        assert got[0]._base is y and got[1]._base is a
        assert found() == (k, k)


def test_dynamic_sizes_and_guards():
    def fn(x):
        return torch.cat([x, x[:2]]) * x.shape[0] if x.shape[0] > 4 else x - 1

    sizes = (9, 6, 17, 3, 2)
    for k in range(2):
        compiled = again(dynamic=True)(fn)
        for n in sizes if k == 0 else reversed(sizes):
            x = torch.randn(n, 3)
            torch.testing.assert_close(compiled(x), fn(x))
        assert found() == ((2, 2) if k else (0, 0))


def test_options_count():
    step(again())
    step(again(options={"numerics": "eager"}))
    assert found() == (0, 0)
    step(again(options={"numerics": "eager"}))
    assert found() == (1, 2)
    step(again())
    assert found() == (1, 2)


def test_a_graph_that_is_gone_is_compiled_and_kept_again(folders):
    step(again())
    for file in (folders / "stepwell" / "graphs").iterdir():
        file.unlink()
    step(again())
    assert found() == (0, 0)
    assert counters["graph_cache_misses"] == 2
    step(again())
    assert found() == (1, 2)


def test_a_damaged_entry_of_torch(folders):
    step(again())
    for file in (folders / "torch" / "aotautograd").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:100])
    first = step(again())
    assert found() == (0, 2)
    for a, b in zip(first, step(lambda fn: fn), strict=True):
        torch.testing.assert_close(a, b)


def test_elements_of_tensors_that_torch_does_not_look_at():
    x = torch.ones(600)
    for n in (1.0, 2.0):
        table = torch.full((600,), n)
        again()
        traced = make_fx(functools.partial(torch.addcmul, torch.ones(600), table))(x)
        run = backend(traced, [x])
        assert torch.equal(run(x), x * n + 1)
    assert torch_counters["aot_autograd"]["autograd_cache_hit"] == 0


def test_wishes_are_not_kept():
    def fn(x):
        with stepwell.no_fuse():
            y = x.sin()
        return y.softmax(-1)

    for _ in range(2):
        with torch.no_grad():
            again()(fn)(torch.ones(4, 5))
        assert found() == (0, 0)


def test_a_result_without_code():
    for k in range(2):  # the gradients of a sum are the gradient that comes in
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        again()(lambda x, y: x + y)(x, y).backward(torch.arange(3.0))
        assert x.grad is not None and y.grad is not None
        assert x.grad.tolist() == y.grad.tolist() == [0, 1, 2]
        assert found() == (0, k)


@pytest.mark.parametrize("how", ["torch does not cache", "torch has no such interface"])
def test_without(how, monkeypatch):
    if how != "torch does not cache":
        monkeypatch.setattr(aot_cache, "_protocol", lambda: None)
    with torch._functorch.config.patch(enable_autograd_cache=how != "torch does not cache"):
        first, second = step(again()), step(again())
    assert found() == (0, 2)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_settings_of_torch_are_given_back():
    config = torch._functorch.config
    before = config.bundled_autograd_cache, config.force_non_lazy_backward_lowering
    step(again())
    assert (config.bundled_autograd_cache, config.force_non_lazy_backward_lowering) == before
