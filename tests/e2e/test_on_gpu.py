"""Compiled programs on the GPU of the machine: streams, captured graphs, threads, training, arguments that are written to, several
devices. Without one the same kernels and host programs are interpreted on the CPU (tests/lowering/mem_to_tt, tests/targets/host); with one
tests/lowering/mem_to_tt/test_programs.py runs its programs on it, too."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stepwell

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, **options):
    return torch.compile(function, backend="stepwell", **options)


def group_norm(x, w, b):
    return F.silu(F.group_norm(x, 32, w, b))


def softmax(x):
    return torch.softmax(x * 2, -1)


def two_rows(x, y):
    """Two kernels whose rows several programs share."""
    return torch.softmax(x, -1), torch.log_softmax(y, -1)


SHARED_ROWS = {
    "group norm": (group_norm, (16, 320, 64, 64), (320,), (320,)),
    "softmax": (softmax, (300, 131072)),
    "two kernels": (two_rows, (300, 65536), (200, 131072)),
}
"""Rows that several programs share (docs/explanation/gpu-tiles.md): kernels with a workspace."""


def shared_rows(name):
    function, *shapes = SHARED_ROWS[name]
    return compiled(function), function, [torch.randn(s, device="cuda") for s in shapes]


def leaves(value):
    return value if isinstance(value, tuple) else (value,)


def assert_alike(got, want):
    for a, b in zip(leaves(got), leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def assert_same(got, want):
    for a, b in zip(leaves(got), leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", SHARED_ROWS)
def test_rows_that_programs_share_call_after_call_and_on_streams(name):
    fast, function, args = shared_rows(name)
    first = fast(*args)
    assert_alike(first, function(*args))
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found = []
    for k in range(12):
        with torch.cuda.stream(streams[k % 3]):
            found.append(fast(*args))
    torch.cuda.synchronize()
    for one in found:
        assert_same(one, first)


@pytest.mark.parametrize("name", SHARED_ROWS)
def test_rows_that_programs_share_in_a_captured_graph(name):
    fast, _, args = shared_rows(name)
    first = fast(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fast(*args)
    for _ in range(4):
        for one in leaves(captured):
            one.zero_()
        graph.replay()
        assert_same(fast(*args), first)
        assert_same(captured, first)


@pytest.mark.parametrize("name", SHARED_ROWS)
def test_rows_that_programs_share_by_threads_at_once(name):
    fast, _, args = shared_rows(name)
    first = fast(*args)
    torch.cuda.synchronize()
    found: list = []

    def calls(own: bool) -> None:
        stream = torch.cuda.Stream() if own else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            found.extend(fast(*args) for _ in range(5))
        stream.synchronize()

    threads = [threading.Thread(target=calls, args=(k % 2 == 0,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 20
    for one in found:
        assert_same(one, first)


def test_rows_that_programs_share_of_any_length():
    fast = compiled(softmax, dynamic=True)
    for shape in ((300, 131072), (200, 100000), (700, 65536), (300, 131072)):
        x = torch.randn(shape, device="cuda")
        assert_alike(fast(x), softmax(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 64)
        # in front of a norm the gradient of a bias is rounding alone, of which AdamW makes whole steps
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.batch_norm = nn.BatchNorm2d(8)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64 + 8, 11)

    def forward(self, tokens, image):
        words = self.layer(self.embed(tokens)).mean(1)
        picture = F.max_pool2d(F.relu(self.batch_norm(self.conv(image))), 2).mean((2, 3))
        return self.head(torch.cat((words, picture), -1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_training_takes_the_steps_of_eager(dynamic, half):
    models = [Net().cuda() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    forwards = [compiled(models[0], dynamic=dynamic), models[1]]
    steps = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in models]
    losses: list[list[float]] = [[], []]
    for k in range(4):
        size = 6 + 2 * k if dynamic else 6
        tokens, image = torch.randint(0, 97, (size, 10), device="cuda"), torch.randn(size, 3, 16, 16, device="cuda")
        classes = torch.randint(0, 11, (size,), device="cuda")
        for forward, step, found in zip(forwards, steps, losses, strict=True):
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(forward(tokens, image).float(), classes)
            step.zero_grad()
            loss.backward()
            step.step()
            found.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=2e-2 if half else 2e-4)
    close = 2e-2 if half else 2e-3
    for (name, a), b in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=close, atol=close, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shape", [(1, 2, 256, 64), (2, 4, 512, 32)])
@pytest.mark.parametrize("whole", [False, True])
def test_flex_attention_is_trained(shape, whole):
    """The definition of its gradients has a constant of the CPU."""
    size = shape[2]
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, size, size, device="cuda")
    q, k, v, g = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=n < 3) for n in range(4))

    def gradients(q, k, v, g):
        return torch.autograd.grad(flex_attention(q, k, v, block_mask=mask), (q, k, v), g)

    if whole:
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            found = compiled(gradients)(q, k, v, g)
    else:
        found = torch.autograd.grad(compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))(q, k, v), (q, k, v), g)
    q, k, v, g = (x.detach().double().requires_grad_(x.requires_grad) for x in (q, k, v, g))
    exact = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), g)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-2, atol=2e-2)


def test_a_mask_of_flex_attention_leaves_blocks_out():
    """The number that stands for no score is a constant of the GPU for torch, and one of the kernel here."""
    size = 1024
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 128), None, None, size, size, device="cuda")
    q, k, v = (torch.randn(2, 2, size, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    k[:, :, : size // 2], v[:, :, : size // 2] = math.nan, math.nan
    found = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))(q, k, v)
    rows = slice(size // 2 + 192, None)
    there = [x[:, :, size // 2 :].double() for x in (q, k, v)]
    i, j = torch.arange(size // 2, device="cuda")[:, None], torch.arange(size // 2, device="cuda")
    exact = F.scaled_dot_product_attention(*there, attn_mask=(i >= j) & (i - j < 128))
    torch.testing.assert_close(found[:, :, rows].double(), exact[:, :, 192:], rtol=2e-2, atol=2e-2)


def test_arguments_are_written_to_through_views_and_strides():
    def update(x, y):
        x[:, ::2].mul_(2).add_(y.t())
        y.t()[0].zero_()
        return x.sum(), y.view(-1)[::3]

    results = []
    for f in (compiled(update), update):
        x, y = torch.arange(60.0, device="cuda").view(6, 10).clone(), torch.arange(30.0, device="cuda").view(5, 6).clone()
        results.append((*f(x, y), x, y))
    for a, b in zip(*results, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)


def test_numbers_of_the_cpu_and_sizes_of_zero_and_one():
    def function(x, scale, n):
        return (x * scale).cumsum(0).softmax(-1) + n, x.sum(0), x.mean(1, keepdim=True)

    fast = compiled(function, dynamic=True)
    for rows, columns in ((3, 5), (1, 5), (3, 1), (0, 5), (4, 33)):
        x, scale = torch.randn(rows, columns, device="cuda"), torch.tensor(1.5)
        for a, b in zip(fast(x, scale, rows), function(x, scale, rows), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_random_numbers_are_those_of_the_generator():
    fast = compiled(lambda x: F.dropout(x, 0.25) + torch.rand_like(x), options={"fallback_random": True})
    x, found = torch.randn(300, 77, device="cuda"), []
    for f in (fast, fast, lambda x: F.dropout(x, 0.25) + torch.rand_like(x)):
        torch.manual_seed(5)
        found.append(f(x))
    assert_same(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=1e-6)


def test_kernels_run_on_the_device_and_no_operator_of_torch():
    stepwell.reset_counters()
    x = torch.randn(64, 1000, device="cuda")
    fast = compiled(lambda x: (F.gelu(x).sum(0), x.argmax(-1), x.sort(-1).values))
    for a, b in zip(fast(x), (F.gelu(x).sum(0), x.argmax(-1), x.sort(-1).values), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert stepwell.counters["launches"] >= 1 and stepwell.counters["fallback"] == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_several_devices():
    fast = compiled(lambda x, y: (x.relu().to(y.device) + y, (y * 2).to(x.device) + x))
    x, y = torch.randn(50, 30, device="cuda:0"), torch.randn(50, 30, device="cuda:1")
    for _ in range(3):
        first, second = fast(x, y)
        assert first.device == y.device and second.device == x.device
        torch.testing.assert_close(first, x.relu().to(y.device) + y)
        torch.testing.assert_close(second, (y * 2).to(x.device) + x)


def test_times_are_predicted_and_the_device_is_calibrated():
    from stepwell.tools.bench.calibrate import calibrate
    from stepwell.tools.bench.model_check import model_check
    from stepwell.tools.bench.report import device_clock

    clock = device_clock("cuda", lambda call: 0.0)
    assert "sizes" in model_check({}, [], clock, device="cuda")["correlation"]
    (entry,) = calibrate("cuda", clock).values()
    assert entry["memory_gbs"] > 0 and entry["tflops"]["bf16"] > 0
