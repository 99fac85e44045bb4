"""options={"freezing": True}: weights as constants of inference graphs."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stepwell
from stepwell.tools.debug import compile_log

pytestmark = pytest.mark.usefixtures("fresh")
FROZEN = {"freezing": True}


def calls(net, *inputs, rtol=1e-4, atol=1e-5, **how):
    """The values of eager, compiled with weights as constants; the compiled module."""
    run = torch.compile(net, backend="stepwell", options=FROZEN, **how)
    with torch.no_grad():
        torch.testing.assert_close(run(*inputs), net(*inputs), rtol=rtol, atol=atol)
    return run


def norm(net):
    for part in net.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return net.eval()


def operators(caught) -> list[str]:
    """The names of the operators in the graph that `caught` holds."""
    return [n.target.__name__ for n in caught[-1].graph.nodes if n.op == "call_function"]


@pytest.fixture
def graphs(monkeypatch):
    """The ATen graphs that are compiled, as they are when the weights are constants."""
    from stepwell.tools.backend.torch_backend import GraphCompilers

    seen, real = [], GraphCompilers._guarded
    monkeypatch.setattr(GraphCompilers, "_guarded", lambda self, gm, *rest: seen.append(gm) or real(self, gm, *rest))
    return seen


def test_fz_01_normalisation_goes_into_the_convolution(graphs):
    """FTP-05: real weights among fake values."""
    net = norm(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, bias=False), nn.BatchNorm2d(16)))
    calls(net, torch.randn(2, 3, 9, 9))
    assert operators(graphs) == ["convolution.default", "relu.default", "convolution.default"]
    held = [n for n in graphs[-1].graph.nodes if n.op == "placeholder" and n.users]
    assert len(held) == 1


class Scaled(nn.Module):
    """Scales and shifts of every form behind a product."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 7, bias=False)
        self.scale, self.shift = nn.Parameter(torch.randn(20)), nn.Parameter(torch.randn(1, 7))

    def forward(self, x):
        x = self.first(x) * self.scale - 2
        x = 3 - self.second(x.relu()) / 4
        return torch.add(self.shift, x, alpha=2)


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (0, 12), (1, 1, 12)])
def test_scales_and_shifts_go_into_products(shape, graphs):
    net = Scaled()
    calls(net, torch.randn(shape))
    assert not {"mul.Tensor", "sub.Tensor", "div.Tensor", "rsub.Scalar", "add.Tensor"} & set(operators(graphs))


def test_scales_that_vary_otherwise_stay(graphs):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3)
            self.rows, self.square = nn.Parameter(torch.randn(5, 1)), nn.Parameter(torch.randn(5, 5))

        def forward(self, x):
            y = self.conv(x)
            return y * self.rows + self.square, y.sum()

    calls(Net(), torch.randn(2, 3, 7, 7))
    assert {"mul.Tensor", "add.Tensor"} <= set(operators(graphs))


def test_fz_02_later_updates_have_no_effect():
    net = norm(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 40)))
    x = torch.randn(3, 6)
    want = net(x)
    run = calls(net, x)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        torch.testing.assert_close(run(x), want)


def test_fz_05_the_call_stays_as_it_was():
    """Other instances of the class, which Dynamo runs by the same code, get their own constants."""

    class Net(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            nn.init.constant_(self.inner.weight, k)

        def forward(self, x, *, factor=1.0):
            return {"y": self.inner(x) * factor}

    nets = [Net(k) for k in range(10)]
    runs = [torch.compile(n, backend="stepwell", options=FROZEN) for n in nets]
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(2):
            for n, run in zip(nets, runs, strict=True):
                torch.testing.assert_close(run(x, factor=2.0), n(x, factor=2.0))


def test_one_graph_serves_few_sets_of_weights_and_then_any(monkeypatch):
    from stepwell.tools.backend import frozen

    monkeypatch.setattr(frozen, "MAX_PROGRAMS", 2)
    net = nn.Linear(4, 4)
    run = torch.compile(lambda n, x: n(x) + 1, backend="stepwell", options=FROZEN)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(5):
            net = copy.deepcopy(net)
            net.weight.data.normal_()
            torch.testing.assert_close(run(net, x), net(x) + 1)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """An empty cache that is used."""
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    compile_log._said.clear()
    return tmp_path


def again(net, x) -> tuple[int, int]:
    """Compile afresh and compare with eager; graphs that were found in the cache, and those that were not."""
    torch._dynamo.reset()
    before = [stepwell.counters[f"graph_cache_{what}"] for what in ("hits", "misses")]
    calls(net, x)
    hits, misses = (stepwell.counters[f"graph_cache_{what}"] - n for what, n in zip(("hits", "misses"), before, strict=True))
    return hits, misses


def test_fz_06_frozen_graphs_are_found_by_their_weights(kept):
    """FXC-06: an equal model is found again, another one's weights are another graph."""
    net = norm(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 49, 64), nn.Linear(64, 3)))
    x = torch.randn(2, 3, 9, 9)
    assert again(net, x) == (0, 1)
    assert again(copy.deepcopy(net), x) == (1, 0)
    assert stepwell.counters["graph_cache_bypasses"] == 0
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    assert sum(f.stat().st_size for f in (kept / "graphs").iterdir()) < weights / 4, "weights are not written a second time"
    with torch.no_grad():
        net[0].bias[3] += 1
    assert again(net, x) == (0, 1)
    assert again(net, x) == (1, 0)


def test_frozen_graphs_whose_inputs_differ_in_use(kept):
    """A weight that went into a constant and an input that nothing reads are not the same."""
    net = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    assert again(net, x) == (0, 1)
    assert again(nn.Sequential(copy.deepcopy(net), nn.Identity()), x) == (1, 0)
    run = torch.compile(lambda w, b, x: F.linear(x, w, b), backend="stepwell", options=FROZEN)
    with torch.no_grad():
        torch.testing.assert_close(run(net.weight.detach().clone(), net.bias.detach().clone(), x), net(x))


def test_gradients_are_as_without():
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    torch.compile(net, backend="stepwell", options=FROZEN)(x).sum().backward()
    want = copy.deepcopy(net)
    want.zero_grad()
    want(x).sum().backward()
    torch.testing.assert_close(net.weight.grad, want.weight.grad)


def test_buffers_that_are_updated_are_no_constants():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.norm, self.weight = nn.BatchNorm1d(4), nn.Parameter(torch.randn(4))

        def forward(self, x):
            self.count += 1
            return self.norm(x) * self.count * self.weight

    mine, theirs = Counter(), Counter()
    theirs.load_state_dict(mine.state_dict())
    run, x = torch.compile(mine, backend="stepwell", options=FROZEN), torch.randn(6, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), theirs(x))
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


def test_weights_that_are_returned_stay_themselves():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            return x @ self.weight, self.weight, self.weight.t()

    net = Net()
    with torch.no_grad():
        _, same, view = torch.compile(net, backend="stepwell", options=FROZEN)(torch.randn(2, 3))
    assert same is net.weight and view.data_ptr() == net.weight.data_ptr()


def test_shared_weights_dynamic_sizes_and_autocast():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(30, 16)
            self.head = nn.Linear(16, 30, bias=False)
            self.head.weight = self.table.weight

        def forward(self, i):
            return F.softmax(self.head(self.table(i)), -1)

    net = Net()
    run = calls(net, torch.randint(0, 30, (4, 5)), dynamic=True)
    with torch.no_grad():
        for n in (2, 9):
            i = torch.randint(0, 30, (n, n + 1))
            torch.testing.assert_close(run(i), net(i))
    assert stepwell.counters["graphs"] == 1
    torch._dynamo.reset()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        calls(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 8), rtol=2e-2, atol=2e-2)


def test_inference_mode_and_small_integers():
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randint(-127, 127, (64, 300), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(300))

        def forward(self, x):
            return x @ (self.weight.float() * self.scale)

    net, x = Quantised(), torch.randn(3, 64)
    with torch.inference_mode():
        got = torch.compile(net, backend="stepwell", options=FROZEN)(x)
        torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-3)


def test_weights_that_are_tensor_subclasses():
    """AOT-16: the parts of such a weight are constants."""
    from torch.testing._internal.two_tensor import TwoTensor

    net = nn.Linear(4, 5, bias=False)
    net.weight = nn.Parameter(TwoTensor(torch.randn(5, 4), torch.randn(5, 4)), requires_grad=False)
    run, x = torch.compile(net, backend="stepwell", options=FROZEN), torch.randn(2, 4)
    with torch.no_grad():
        got, want = run(x), net(x)
        torch.testing.assert_close((got.a, got.b), (want.a, want.b))
        net.weight.a.zero_()
        torch.testing.assert_close(run(x).a, want.a)


def test_small_biases_of_library_calls_lie_in_memory():
    """A literal would be stored in each call."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.Conv2d(12, 12, 3), nn.Conv2d(12, 10, 3)).double()  # no nests, and no products
    calls(net, torch.randn(2, 3, 24, 24).double())
    assert stepwell.counters["launches"] == 0


class Panels(nn.Module):
    """Products with more columns than a panel has, and with fewer; the same weight twice; a convolution of each kind of window."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(40, 200), nn.Linear(200, 50), nn.Linear(200, 200)
        self.windows, self.pixels = nn.Conv2d(16, 64, 3, stride=2), nn.Conv2d(64, 80, 1)

    def forward(self, x, image):
        y = F.gelu(self.a(x))
        y = self.b(self.c(self.c(y)) + y)
        return y, self.pixels(F.relu(self.windows(image)))


def test_fz_03_weights_lie_in_panels(graphs):
    torch.manual_seed(0)
    calls(Panels(), torch.randn(3, 7, 40), torch.randn(2, 16, 11, 13))
    held = [n.meta["val"].shape for n in graphs[-1].graph.nodes if n.op == "get_attr" and n.meta["val"].dim() > 2]
    assert sorted(held) == [(1, 3, 3, 16, 64), (1, 200, 64), (2, 1, 1, 64, 64), (4, 40, 64), (4, 200, 64)]


@pytest.mark.parametrize("rows", [2, 5, 31])
def test_weights_in_panels_take_any_number_of_rows(rows):
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(40, 200), nn.ReLU(), nn.Linear(200, 100))
    run = calls(net, torch.randn(rows, 40), dynamic=True)
    with torch.no_grad():
        for n in (7, 64):
            x = torch.randn(n, 40)
            torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-5)


def test_sums_of_convolutions_with_weights_in_panels():
    """A product of windows stores into memory of its own: it does not add to another one."""
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(16, 64, 3), nn.Conv2d(16, 128, 3)

        def forward(self, x, y):
            return self.a(x) + self.a(y), self.b(x) + self.b(y)

    calls(Sum(), torch.randn(1, 16, 9, 9), torch.randn(1, 16, 9, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["bytes", "halves"])
def test_matrices_of_bytes_stay_bytes(form, dtype, graphs):
    """Neither floats nor halves of bytes are stored in place of weights that products read as bytes."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.randint(0, 256, (48, 128), dtype=torch.uint8))

        def forward(self, x):
            w = torch.stack([self.w & 15, self.w >> 4], -1).flatten(1) if form == "halves" else self.w
            return F.linear(x, w.to(x.dtype) - 8 if form == "halves" else w.to(x.dtype)) * 0.01

    torch.manual_seed(0)
    net, x = Net(), torch.randn(1, 256 if form == "halves" else 128, dtype=dtype)
    calls(net, x, rtol=2e-2, atol=2e-1 if dtype == torch.bfloat16 else 1e-3)
    held = [getattr(graphs[-1], n.target) for n in graphs[-1].graph.nodes if n.op == "get_attr"]
    assert [(t.dtype, t.numel()) for t in held if t.numel() > 1] == [(torch.uint8, net.w.numel())]
