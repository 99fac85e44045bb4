"""Graphs of launches (docs/howto/launch-graphs.md) on the GPU of the machine: inference, training, several sizes, updates, random numbers,
captures that fail. Their logic without a GPU: tests/tools/launch_graphs/test_launch_graphs.py."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stepwell
from stepwell.tools.launch_graphs import reasons as launch_graph_reasons
from stepwell.tools.launch_graphs.launch_graphs import WARM_UP
from stepwell.tools.launch_graphs.memory import COPIED_BYTES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    torch._dynamo.reset()
    stepwell.reset_counters()
    monkeypatch.setattr(launch_graph_reasons, "FEWEST_LAUNCHES", 1)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(function, **given):
    return torch.compile(function, backend="stepwell", mode="reduce-overhead", **given)


def chain(x, *weights):
    for w in weights:
        x = F.layer_norm(F.gelu(x @ w), (64,))
    return x


def inputs(rows=32, layers=6):
    return torch.randn(rows, 64, device="cuda"), *(torch.randn(64, 64, device="cuda") / 8 for _ in range(layers))


def test_results_are_those_of_plain_calls():
    fast = compiled(chain)
    kept = []
    for _ in range(30):
        args = inputs()
        kept.append((fast(*args), chain(*args)))
    for a, b in kept:  # nothing was overwritten
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert stepwell.counters["launch_graphs"] == 1


@pytest.mark.parametrize("large", [False, True])
def test_results_that_are_kept(large):
    fast, n = compiled(lambda x: (x * 2 + 1, x.sum())), COPIED_BYTES if large else 100
    kept = [fast(torch.full((n,), float(k), device="cuda")) for k in range(8)]
    for k, (whole, total) in enumerate(kept):
        assert whole.min().item() == whole.max().item() == 2 * k + 1 and total.item() == pytest.approx(n * k, rel=1e-5)


class Block(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64), nn.Dropout(drop)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls.add_(1)
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


def trained(drop, mode, steps=12, rounds=1, keep=False):
    """The parameters after some steps of training, and the losses."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    net = nn.Sequential(*(Block(drop) for _ in range(3)), nn.Linear(64, 10)).cuda()
    fast = torch.compile(net, backend="stepwell", mode=mode)
    step = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = torch.Generator("cuda").manual_seed(7)
    losses = []
    for _ in range(steps):
        for _ in range(rounds):
            x, y = torch.randn(16, 64, device="cuda", generator=data), torch.randint(10, (16,), device="cuda", generator=data)
            loss = F.cross_entropy(fast(x), y)
            loss.backward()
            losses.append(loss.item())
        step.step()
        step.zero_grad(set_to_none=not keep)
    return net.state_dict(), losses


@pytest.mark.parametrize(("drop", "rounds", "keep"), [(0.0, 1, False), (0.3, 1, False), (0.0, 2, False), (0.0, 1, True)])
def test_training_is_that_without_graphs(drop, rounds, keep):
    """CGR-13: the masks of dropout too; gradients that add up, and that are kept."""
    plain, losses = trained(drop, "default", rounds=rounds, keep=keep)
    stepwell.reset_counters()
    found, again = trained(drop, "reduce-overhead", rounds=rounds, keep=keep)
    assert again == pytest.approx(losses, rel=1e-4)
    for a, b in zip(found.values(), plain.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert stepwell.counters["launch_graphs"] >= 2


def test_updates_of_buffers_and_of_arguments():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("k", torch.zeros(2, 16, 8))

        def forward(self, x, pos, total):
            self.k.index_copy_(1, pos, x)
            total.add_(x.sum())
            return (self.k * 2).sum(1)

    fast, slow = Cache().cuda(), Cache().cuda()
    run, totals = compiled(fast), [torch.zeros((), device="cuda") for _ in range(2)]
    with torch.no_grad():
        for i in range(12):
            x, pos = torch.randn(2, 1, 8, device="cuda"), torch.tensor([i], device="cuda")
            torch.testing.assert_close(run(x, pos, totals[0]), slow(x, pos, totals[1]))
            torch.testing.assert_close(totals[0], totals[1])
    torch.testing.assert_close(fast.k, slow.k)
    assert stepwell.counters["launch_graphs"] >= 1


def test_several_sizes_and_streams():
    fast = compiled(chain, dynamic=True)
    weights = inputs()[1:]
    side = torch.cuda.Stream()
    for k in range(24):
        x = torch.randn(8 + 8 * (k % 3), 64, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if k % 2 else torch.cuda.current_stream()):
            torch.testing.assert_close(fast(x, *weights), chain(x, *weights), rtol=1e-4, atol=1e-4)
        torch.cuda.current_stream().wait_stream(side)
    assert stepwell.counters["launch_graphs"] == 6


def test_a_capture_that_fails_leaves_the_program_as_it_is(monkeypatch, caplog):
    """And the generator and the allocator."""
    monkeypatch.setattr(launch_graph_reasons, "_WAITS", frozenset())
    fast, other = compiled(lambda x: (x.histc(8) + 1, F.dropout(x, 0.5))), compiled(chain)
    for _ in range(5):
        x = torch.rand(32, 64, device="cuda")
        torch.testing.assert_close(fast(x)[0], x.histc(8) + 1)
        args = inputs()
        torch.testing.assert_close(other(*args), chain(*args), rtol=1e-4, atol=1e-4)
    torch.cuda.synchronize()
    assert stepwell.counters["launch_graphs"] == 1 and sum(stepwell.counters["launch_graph_skips"].values()) == 1
    assert "the launches of the inference graph are not recorded as a graph" in caplog.text


def test_memory_is_not_lost_and_small_recordings_share_it():
    functions = [compiled(lambda x, k=k: torch.softmax(x @ x.t(), -1).sum(-1) + k) for k in range(4)]
    x, sizes = torch.randn(4096, 64, device="cuda"), []
    for f in functions:
        for _ in range(WARM_UP + 2):
            torch.testing.assert_close(f(x), f._torchdynamo_orig_callable(x), rtol=1e-3, atol=1e-3)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        sizes.append(torch.cuda.memory_reserved())
    assert stepwell.counters["launch_graphs"] == 4
    assert sizes[-1] - sizes[0] < 3 * (64 << 20)  # the scores are 64 MB


def test_threads():
    fast, found = compiled(chain), {}
    weights = inputs()[1:]

    def work(k):
        torch.manual_seed(k)
        out = []
        for _ in range(10):
            x = torch.randn(32, 64, device="cuda")
            out.append((fast(x, *weights), chain(x, *weights)))
        found[k] = out

    fast(torch.randn(32, 64, device="cuda"), *weights)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for k in range(4):
        for a, b in found[k]:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
