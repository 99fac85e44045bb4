"""Graphs of launches without a GPU: a capture that keeps the call and repeats it on the same memory, as a GPU would; on one,
tests/e2e/test_on_gpu.py."""

import gc
import logging
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stepwell
from stepwell.tools.launch_graphs import launch_graphs
from stepwell.tools.launch_graphs import reasons as launch_graph_reasons
from stepwell.tools.launch_graphs.launch_graphs import WARM_UP, Inputs, LaunchGraphs
from stepwell.tools.launch_graphs.memory import COPIED_BYTES, use_capture
from stepwell.tools.options.options import make_options

CPU = torch.device("cpu")


class Repeats:
    """Runs the call again on the same memory and puts the results where the first ones are, which begin as NaN: nothing ran yet."""

    def __init__(self):
        self.recorded, self.replayed, self.busy, self.current, self.shared = 0, 0, False, 0, []

    def is_busy(self):
        return self.busy

    def stream(self):
        return self.current

    def record(self, run, shared):
        with self.unchanged():
            made = list(run())
        self.recorded += 1
        self.shared.append(shared)
        inputs = {t.untyped_storage()._cdata for t in self.watched}

        def replay():
            self.replayed += 1
            for old, new in zip(made, run(), strict=True):
                if isinstance(old, torch.Tensor) and old.untyped_storage()._cdata not in inputs:
                    old.copy_(new)

        for one in made:
            if isinstance(one, torch.Tensor) and one.is_floating_point() and one.untyped_storage()._cdata not in inputs:
                one.fill_(torch.nan)
        return replay, made

    watched: tuple = ()

    @contextmanager
    def unchanged(self):
        """A capture does nothing: what the call writes to is put back, and so is the generator."""
        state, kept = torch.get_rng_state(), [(t, t.clone()) for t in self.watched]
        yield
        torch.set_rng_state(state)
        for t, value in kept:
            t.data.copy_(value)  # unseen by autograd


@pytest.fixture(name="capture")
def capture_fixture(monkeypatch):
    torch._dynamo.reset()
    stepwell.reset_counters()
    monkeypatch.setattr(launch_graph_reasons, "FEWEST_LAUNCHES", 0)
    with use_capture(CPU, Repeats()) as capture:
        yield capture
    torch._dynamo.reset()


def recorded(run, capture, static=(), written=(), **given):
    def boxed(args):
        taken = list(args)
        args.clear()
        return run(taken)

    return LaunchGraphs("a graph", boxed, Inputs(frozenset(static), frozenset(written), **given), capture)


def calls(graph, *args, n=WARM_UP + 1):
    for _ in range(n):
        found = graph(list(args))
    return found


def test_cgr_01_calls_are_replayed_after_the_first_ones(capture):
    graph = recorded(lambda args: [args[0] * 2 + args[1], args[0].shape[0]], capture)
    for k in range(20):
        x, y = torch.randn(4, 3), torch.randn(3)
        args = [x, y]
        found, size = graph(args)
        assert not args and size == 4
        torch.testing.assert_close(found, x * 2 + y)
        assert (capture.recorded, capture.replayed) == ((1, k - WARM_UP + 1) if k >= WARM_UP else (0, 0))
    assert stepwell.counters["launch_graphs"] == 1


def test_aot_07_inputs_that_stay_are_taken_where_they_are(capture):
    """CGR-03"""
    w, x = torch.randn(3), torch.randn(4, 3)
    graph = recorded(lambda args: [args[0] + args[1]], capture, static=[1])
    calls(graph, x, w)
    (only,) = graph.sizes.values()
    assert list(only.recording.fixed.known) == [1] and list(only.recording.buffers) == [0]
    w.add_(1)
    torch.testing.assert_close(graph([x, w])[0], x + w)
    other = torch.randn(3)  # another tensor in its place: recorded again
    torch.testing.assert_close(graph([x, other])[0], x + other)
    assert capture.recorded == 2 and list(only.recording.fixed.known) == [1]
    third = torch.randn(3)  # it does not stay: copied from now on
    torch.testing.assert_close(graph([x, third])[0], x + third)
    torch.testing.assert_close(graph([x, w])[0], x + w)
    assert capture.recorded == 3 and list(only.recording.fixed.known) == []


@pytest.mark.parametrize("static", [[0], []])
def test_cgr_07_what_a_graph_writes_to_is_written_once(capture, static):
    """MUT-13"""

    def update(args):
        args[0].add_(1)
        return [args[0] * 2]

    x = torch.zeros(4)
    capture.watched = (x,)
    graph = recorded(update, capture, static=static, written=[0])
    for k in range(8):
        (found,) = graph([x])
        assert x.tolist() == [k + 1] * 4 and found.tolist() == [2 * k + 2] * 4


@pytest.mark.parametrize(
    "view",
    [
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(4, 1).expand(4, 3),
        lambda: torch.randn(33)[1:13].view(4, 3),
        lambda: torch.randn(8, 6)[::2, ::2],
        lambda: torch.randn(4, 3)[:0],
        lambda: torch.tensor(2.0).expand(4, 3),
    ],
)
def test_cgr_12_inputs_are_copied_with_their_strides(capture, view):
    """CGR-11"""
    seen = []

    def run(args):
        seen.append(args[0].stride())
        return [args[0] * 2]

    graph = recorded(run, capture)
    for _ in range(6):
        x = view()
        torch.testing.assert_close(graph([x])[0], x * 2)
    assert capture.replayed == 4 and len(set(seen)) == 1


def test_cgr_11_elements_that_share_memory_otherwise_are_not_copied(capture, caplog):
    graph = recorded(lambda args: [args[0] * 2], capture)
    for _ in range(5):
        x = torch.randn(6).as_strided((4, 3), (1, 1))
        torch.testing.assert_close(graph([x])[0], x * 2)
    assert capture.replayed == 0 and "elements of an input share memory" in caplog.text


def test_cgr_02_results_do_not_change_under_the_caller(capture):
    """CGR-14: small ones are copies; while a large one is in use, calls run as they are. So nothing is overwritten, whoever marks steps."""
    size = COPIED_BYTES // 4 + 16
    graph = recorded(lambda args: [args[0] + 1, args[0][:5] + 1], capture)
    kept = []
    for k in range(WARM_UP + 5):
        kept.append(graph([torch.full((size,), float(k))]))
    for k, (large, small) in enumerate(kept):
        assert large[-1].item() == k + 1 and small.tolist() == [k + 1.0] * 5
    assert capture.replayed == 1 and capture.shared[-1] is False
    assert stepwell.counters["launch_graph_skips"]["results of the last call are in use"] == 4
    part = kept.pop(WARM_UP)[0][3:7]  # a view keeps it in use
    large = None
    graph([torch.zeros(size)])
    assert capture.replayed == 1
    del part
    for _ in range(3):
        assert graph([torch.zeros(size)])[0][0].item() == 1
    assert capture.replayed == 4


def test_results_that_are_inputs_are_the_callers(capture):
    graph = recorded(lambda args: [args[0], args[1].view(2, 2)[1], args[0] + args[1]], capture, static=[1])
    w = torch.randn(4)
    capture.watched = (w,)
    for _ in range(5):
        x = torch.randn(4)
        same, part, total = graph([x, w])
        assert same is x and part.data_ptr() == w[2:].data_ptr() and torch.equal(total, x + w)


def test_dy_16_a_recording_for_each_set_of_sizes(capture, monkeypatch):
    monkeypatch.setattr(launch_graphs, "MAX_SIZES", 3)
    graph = recorded(lambda args: [args[1] * args[0]], capture, symbolic=True)
    for n in (2, 3, 4, 5, 2, 3):
        for _ in range(3):
            x = torch.randn(n)
            torch.testing.assert_close(graph([n, x])[0], x * n)
    assert capture.recorded == 3 and capture.replayed == 3 + 2 * 3
    assert stepwell.counters["launch_graph_skips"]["more sizes than are recorded"] == 3


def test_streams_and_captures_of_the_callers_own(capture):
    graph = recorded(lambda args: [args[0] + 1], capture)
    calls(graph, torch.zeros(2))
    capture.current = 7
    calls(graph, torch.zeros(2))
    assert capture.recorded == 2
    capture.busy = True
    before = capture.replayed
    assert graph([torch.ones(2)])[0].tolist() == [2, 2] and capture.replayed == before


def test_cgr_10_a_capture_that_fails_leaves_the_graph_as_it_is(capture, caplog):
    """CGR-15"""

    def fails(run, shared):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    capture.record = fails
    graph = recorded(lambda args: [args[0] + 1], capture)
    for _ in range(5):
        assert graph([torch.ones(2)])[0].tolist() == [2, 2]
    assert "the launches of a graph are not recorded as a graph: RuntimeError: operation not permitted" in caplog.text
    assert sum(stepwell.counters["launch_graph_skips"].values()) == 1


def compiled(function, **given):
    return torch.compile(function, backend="stepwell", options={"launch_graphs": True}, **given)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        y = self.layers(x)
        self.seen.add_(y.detach().mean(0))
        return F.log_softmax(y, -1)


def test_cgr_09_training_with_updates_of_parameters_and_buffers(capture):
    """Saved tensors stay in forward's memory, gradients are handed out."""
    torch.manual_seed(0)
    nets = [Net(), Net()]
    nets[1].load_state_dict(nets[0].state_dict())
    capture.watched = tuple(nets[0].state_dict().values())
    runs = [compiled(nets[0]), nets[1]]
    steps = [torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in nets]
    for _ in range(8):
        x = torch.randn(5, 6)
        for run, step in zip(runs, steps, strict=True):
            step.zero_grad()
            run(x)[:, 0].sum().backward()
            step.step()
    for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    assert 2 <= capture.recorded <= 3 and capture.replayed >= 8  # an input may lie in one place twice by chance


def test_gradients_that_are_kept_and_two_forwards_before_a_backward(capture):
    torch.manual_seed(0)
    nets = [Net(), Net()]
    nets[1].load_state_dict(nets[0].state_dict())
    capture.watched = tuple(nets[0].state_dict().values())
    runs = [compiled(nets[0]), nets[1]]
    for k in range(6):
        a, b = torch.randn(5, 6), torch.randn(5, 6)
        losses = []
        for run in runs:
            first, second = run(a), run(b)  # both before a backward
            (first[:, 0].sum() - second[:, 1].sum()).backward()  # gradients of all rounds add up
            losses.append((first, second))
        torch.testing.assert_close(losses[0], losses[1])
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        if k == 3:
            [p.grad.zero_() for net in nets for p in net.parameters()]


def test_cgr_13_random_numbers_go_on(capture):
    fast = compiled(lambda x: F.dropout(x, 0.5) * 2)
    x, found = torch.ones(1000), []
    for reset in (False, True):
        torch.manual_seed(3)
        if reset:
            torch._dynamo.reset()
            fast = torch.compile(lambda x: F.dropout(x, 0.5) * 2, backend="stepwell")
        found.append([fast(x) for _ in range(5)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(found[0][3], found[0][4]) and capture.replayed == 3


def test_dynamic_sizes_of_a_program(capture):
    fast = compiled(lambda x: torch.softmax(x, -1) * x.shape[0], dynamic=True)
    for n in (4, 5, 4, 5, 4, 5, 4):
        x = torch.randn(n, 7)
        torch.testing.assert_close(fast(x), torch.softmax(x, -1) * n)
    assert capture.recorded == 2


REASONS = {
    "nonzero": (lambda x: x.nonzero() + 1, "depend on values"),
    "linalg": (lambda x: torch.linalg.inv(x[:4, :4] + torch.eye(4) * 9) + 1, "waits for the GPU"),
    "custom": (lambda x: torch.ops.stepwell_test.half(x) + 1, "stepwell_test.half.default is not an operator of torch's own"),
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)) * 2, "cond decides what runs"),
}


@torch.library.custom_op("stepwell_test::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


half.register_fake(lambda x: torch.empty_like(x))


@pytest.mark.parametrize("name", REASONS)
def test_cgr_05_graphs_that_cannot_be_recorded_say_why(capture, caplog, name):
    """The line is the user's."""
    function, reason = REASONS[name]
    with caplog.at_level(logging.INFO, logger="stepwell"), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = compiled(function)
        for _ in range(5):
            x = torch.randn(6, 6)
            torch.testing.assert_close(fast(x), function(x))
    assert capture.recorded == 0
    (found,) = stepwell.counters["launch_graph_skips"]
    assert reason in found and "test_launch_graphs.py:" in found and found in caplog.text


def test_cgr_06_tensors_of_another_device(capture):
    """IN-06: unused and empty ones do not count."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def reason(function, *devices):
        with FakeTensorMode(allow_non_fake_inputs=True):
            args = [torch.empty(4, device=d) for d in devices]
            nodes = make_fx(function, tracing_mode="fake")(*args).graph.nodes
        return launch_graph_reasons.unrecordable(list(nodes), torch.device("cuda:0"))

    assert reason(lambda x, y: x.sin() + 1, "cuda", "cpu") == ""
    assert reason(lambda x, y: x * y.sum(), "cuda", "cpu").startswith("input y_1 is on cpu")
    if torch.cuda.device_count() != 1:
        assert reason(lambda x, y: y + 1, "cuda", "cuda:1").startswith("input y_1 is on cuda:1")
    assert reason(lambda x, y: x * torch.ones(4).to(x.device), "cuda", "cuda") == ""
    assert "aten.rand" in reason(lambda x, y: x * torch.rand(4).to(x.device), "cuda", "cuda")


def test_d16_sparse_tensors_are_a_reason(capture):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.relu.default, (x,))
    x.meta["val"], made.meta["val"] = torch.zeros(3, 3), torch.zeros(3, 3).to_sparse()
    graph.output((made,))
    assert launch_graph_reasons.unrecordable(list(graph.nodes), CPU) == "aten.relu.default gives a tensor of layout torch.sparse_coo"
    x.meta["val"] = torch.zeros(3, 3).to_sparse()
    assert launch_graph_reasons.unrecordable(list(graph.nodes), CPU) == "input x is of layout torch.sparse_coo"


def test_a_graph_of_few_launches_is_left_as_it_is(capture, monkeypatch):
    """CGR-08"""
    monkeypatch.setattr(launch_graph_reasons, "FEWEST_LAUNCHES", 2)
    fast = compiled(lambda x: x + 1)
    for _ in range(4):
        fast(torch.ones(3))
    assert capture.recorded == 0 and list(stepwell.counters["launch_graph_skips"]) == ["it has fewer launches than 2"]


def test_opt_01_modes_that_record():
    assert make_options("reduce-overhead").launch_graphs and make_options("max-autotune").launch_graphs
    assert not make_options("max-autotune-no-cudagraphs").launch_graphs and not make_options(None).launch_graphs


def test_nothing_is_kept_when_the_program_is_gone(capture):
    graph = recorded(lambda args: [args[0] + 1], capture)
    calls(graph, torch.zeros(3))
    buffer = next(iter(graph.sizes.values())).recording.buffers[0]
    storage = buffer.untyped_storage()
    del graph, buffer
    gc.collect()
    assert torch._C._storage_Use_Count(storage._cdata) <= 2
