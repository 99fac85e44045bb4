"""Graphs that AOTAutograd need not trace again: what is found, what must not be, and that nothing on the disk can make an answer wrong."""

import functools
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import sympy
import torch
import torch._functorch.config as functorch_config

from stepwell.targets.cpu import cache
from stepwell.tools.cache import aot_cache, aot_key
from stepwell.tools.cache.graph_key import Uncacheable
from stepwell.tools.compiled.counters import counters, reset_counters
from stepwell.tools.debug import compile_log


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    compile_log._said.clear()
    torch._dynamo.reset()
    yield tmp_path
    torch._dynamo.reset()


def counts():
    """(hits, misses, bypasses)"""
    return tuple(counters[f"aot_cache_{what}"] for what in ("hits", "misses", "bypasses"))


def run(fn, *args, **options):
    """The result of `fn` freshly compiled, and the counts."""
    torch._dynamo.reset()
    reset_counters()
    result = torch.compile(fn, backend="stepwell", **options)(*args)
    return result, counts()


def gated(x, y):
    return torch.nn.functional.silu(x * 2 + y).t()


X, Y = torch.randn(8, 16), torch.randn(16)


def test_nothing_is_traced_on_a_hit(monkeypatch):
    run(gated, X, Y)
    cold = {k: v for k, v in counters.items() if "cache_" not in k and k not in ("compile_seconds", "seconds_saved", "passes")}
    monkeypatch.setattr("torch._functorch.aot_autograd.create_aot_state", None)
    result, found = run(gated, X, Y)
    assert found == (1, 0, 0)
    assert counters["graph_cache_hits"] == 1
    torch.testing.assert_close(result, gated(X, Y))
    assert {k: counters[k] for k in cold} == cold
    assert run(lambda a, b: torch.nn.functional.silu(a * 2 + b).t(), X, Y)[1] == (1, 0, 0)


def gradients(fn, *inputs, times=1):
    leaves = [v.detach().clone().requires_grad_() for v in inputs]
    result = fn(*leaves)
    for k in range(times):
        result.square().sum().backward(retain_graph=k + 1 < times)
    return [result.detach(), *(v.grad for v in leaves)]


def chain(x, w):
    h = torch.tanh(x @ w)
    return torch.softmax(h * h.exp(), -1) @ w.t()


W = torch.randn(16, 12)


def test_training(folder):
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        found.append(gradients(torch.compile(chain, backend="stepwell"), X, W))
    assert counts() == (1, 0, 0) and counters["graph_cache_hits"] == 2
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    torch.testing.assert_close(found[1], gradients(chain, X, W), rtol=1e-4, atol=1e-4)


def test_backward_that_keeps_its_graph(folder):
    gradients(torch.compile(chain, backend="stepwell"), X, W)
    entry = pickle.loads(cache.read(next((folder / "traces").iterdir())) or b"")
    assert entry.donated, "what this test is about"
    torch._dynamo.reset()
    reset_counters()
    got = gradients(torch.compile(chain, backend="stepwell"), X, W, times=3)
    assert counts() == (1, 0, 0)
    torch.testing.assert_close(got, gradients(chain, X, W, times=3), rtol=1e-4, atol=1e-4)


def test_copies_of_saved_tensors_have_their_layout():
    for value in (X, X.t(), X[1:, ::2], X[:0], X[0].expand(3, 16)):
        twin = aot_cache.duplicate(value)
        assert twin.stride() == value.stride() and twin.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() or not len(X)
        torch.testing.assert_close(twin, value, rtol=0, atol=0)


def test_forward_without_backward_is_not_kept():
    for _ in range(2):
        found = run(lambda x: x.requires_grad_() if False else x.sin(), X.clone().requires_grad_())[1]
        assert found == (0, 1, 0)


def under(context, fn):
    def call(*args):
        with context():
            return fn(*args)

    return call


def product(x, y):
    return (x @ x.t()).sum(-1) * y[:8]


@pytest.mark.parametrize(
    "context",
    [
        functools.partial(torch.autocast, "cpu", torch.bfloat16),
        functools.partial(torch.autocast, "cpu", torch.float16),
        torch.inference_mode,
        torch.no_grad,
        functools.partial(functorch_config.patch, donated_buffer=False),
        functools.partial(functorch_config.patch, view_replay_for_aliased_outputs=False),
    ],
)
def test_modes_around_the_call_count(context):
    run(product, X, Y)
    torch._dynamo.reset()
    reset_counters()
    with context():
        got, expected = torch.compile(product, backend="stepwell")(X, Y), product(X, Y)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-1)
    assert got.dtype == expected.dtype and got.requires_grad == expected.requires_grad
    assert counts() == (0, 1, 0)


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_float32_matmul_precision("medium"), lambda: torch.set_float32_matmul_precision("highest")),
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    ],
    ids=["determinism", "precision", "dtype", "device"],
)
def test_state_counts(change, back):
    run(product, X, Y)
    change()
    try:
        _, (hits, *_) = run(product, X, Y)
    finally:
        back()
    assert hits == 0
    assert run(product, X, Y)[1] == (1, 0, 0)


@pytest.mark.parametrize(
    "args",
    [
        (X.double(), Y.double()), (X[:4], Y), (X.t().contiguous().t(), Y), (X, Y[None]), (torch.randn(9, 16)[1:], Y), (X, X[0]),
        (torch.nn.Parameter(X, requires_grad=False), Y), (torch.randn(8, 16, requires_grad=True), Y), (X.clone().requires_grad_() * 1, Y),
    ],
    ids="dtype sizes strides rank offset memory parameter gradient leaf".split(),
)  # fmt: skip
def test_inputs_count(args):
    run(gated, X, Y)
    result, (hits, *_) = run(gated, *args)
    assert hits == 0
    torch.testing.assert_close(result, gated(*args))
    assert result.requires_grad == gated(*args).requires_grad


def test_numbers_and_functions_count():
    found = [
        run(fn, X)[1]
        for fn in (
            lambda x: torch.nn.functional.gelu(x) * 2,
            lambda x: torch.nn.functional.gelu(x) * 3,
            lambda x: torch.nn.functional.gelu(x) * 2.0,
            lambda x: torch.nn.functional.gelu(x, approximate="tanh") * 2,
            lambda x: torch.nn.functional.gelu(x.t()) * 2,
            lambda x: torch.nn.functional.gelu(x.sin()) * 2,
            lambda x: (torch.nn.functional.gelu(x) * 2, x.t()),
            lambda x: (x.t(), torch.nn.functional.gelu(x) * 2),
        )
    ]
    assert found == [(0, 1, 0)] * len(found)


def test_options_count():
    run(gated, X, Y)
    assert run(gated, X, Y, options={"numerics": "eager"})[1] == (0, 1, 0)
    for options in ({"cache": "objects"}, {"cache": "off"}, {"verify": True}):
        assert run(gated, X, Y, options=options)[1] == (0, 0, 0)
    for options in ({"check_nan": True}, {"fx_passes": {"joint": [lambda gm: None]}}, {"no_fuse": ["silu"]}):
        assert run(gated, X, Y, options=options)[1] == (0, 0, 1)
    assert run(gated, X, Y)[1] == (1, 0, 0)
    with torch.compiler.config.patch(force_disable_caches=True):
        assert run(gated, X, Y)[1] == (0, 0, 0)
        assert counters["graph_cache_hits"] == 0


def test_what_dynamo_knows_of_sizes_counts():
    """Two programs with one graph, of which one has looked at its sizes: what is traced may rest on that."""

    def even(x):
        return x.sin() if x.shape[0] % 2 == 0 else x.cos()

    def any_size(x):
        return x.sin()

    x = torch.ones(6, 3)
    assert run(even, x, dynamic=True)[1] == (0, 1, 0)
    assert run(any_size, x, dynamic=True)[1] == (0, 1, 0)
    assert run(even, x, dynamic=True)[1] == (1, 0, 0)
    assert run(any_size, x, dynamic=True)[1] == (1, 0, 0)


def test_dynamic_sizes():
    def fn(x):
        return (x[1:] * x.shape[0]).cumsum(0), x.shape[0] // 2, x.reshape(-1)

    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        compiled = torch.compile(fn, backend="stepwell", dynamic=True)
        for n in (9, 5, 2, 17):
            x = torch.randn(n, 3)
            torch.testing.assert_close(compiled(x), fn(x))
    assert counters["aot_cache_hits"] >= 1 and counters["aot_cache_misses"] == 0


def test_dynamic_training():
    torch.manual_seed(0)
    w = torch.randn(16, 12) / 4  # products of larger numbers cancel: eager itself is off by 2e-4

    def fn(x, w):
        return torch.softmax(x @ w, -1) * x.shape[0]

    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        compiled = torch.compile(fn, backend="stepwell", dynamic=True)
        for n in (5, 9, 3):
            x = torch.randn(n, 16)
            torch.testing.assert_close(gradients(compiled, x, w), gradients(fn, x, w), rtol=1e-4, atol=1e-4)
    assert counters["aot_cache_hits"] >= 1 and counters["aot_cache_misses"] == 0


def forge(folder, **changes):
    for path in (folder / "traces").iterdir():
        entry = pickle.loads(cache.read(path) or b"")
        cache.write(path, pickle.dumps(replace(entry, **changes)))


def symbol_of(folder):
    compiled = {}

    def backend(gm, inputs):
        compiled.update((str(s.node.expr), s.node.expr) for s in inputs if isinstance(s, torch.SymInt))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(torch.sin, backend=backend, dynamic=True)(torch.ones(6))
    return next(iter(compiled.values()))


def test_conditions_on_sizes_are_kept(folder):
    """A condition that tracing added holds for the sizes at hand, and not for the next ones, which are traced anew."""
    size = symbol_of(folder)
    run(torch.sin, torch.ones(6), dynamic=True)
    forge(folder, guards=(sympy.Eq(sympy.Mod(size, 2), 0),))
    torch._dynamo.reset()
    reset_counters()
    compiled = torch.compile(torch.sin, backend="stepwell", dynamic=True)
    compiled(torch.ones(6))
    compiled(torch.ones(8))
    assert counts() == (1, 0, 0)
    torch.testing.assert_close(compiled(torch.ones(7)), torch.ones(7).sin())
    assert sum(counts()) == 2
    forge(folder, guards=(sympy.Gt(size, 100),))
    assert run(torch.sin, torch.ones(6), dynamic=True)[1] == (0, 1, 0)


def test_updates_and_views():
    def fn(x, y):
        x.add_(1)
        return y.t(), y[2:], x * y.shape[0], x

    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        a, b, y = X.clone(), X.clone(), torch.randn(5, 4)
        version = a._version
        got, expected = torch.compile(fn, backend="stepwell")(a, y), fn(b, y)
        torch.testing.assert_close((got, a), (expected, b))
        assert got[0]._base is y and got[0].stride() == expected[0].stride() and got[3] is a and a._version > version
    assert counts() == (1, 0, 0)


def test_views_of_results_in_training():
    def fn(x):
        y = x * 2
        return y, y.view(-1), x.view(-1)

    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        x = torch.randn(4, 3, requires_grad=True)
        y, flat, view = torch.compile(fn, backend="stepwell")(x * 1)
        assert flat.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        (y.sum() + flat.square().sum() + view.exp().sum()).backward()
        torch.testing.assert_close(x.grad, 2 + 8 * x.detach() + x.detach().exp())
    assert counts() == (1, 0, 0)


def test_inputs_that_share_memory_and_are_updated():
    def fn(x, y):
        x.mul_(2)
        return x + y

    for _ in range(2):
        base = torch.arange(6.0)
        got, found = run(fn, base[:4], base[2:])
        assert got.tolist() == [0 + 4, 2 + 6, 4 + 4, 6 + 5] and found == (0, 1, 1)
    base = torch.arange(6.0)
    assert run(fn, base[:4].clone(), base[2:])[1] == (0, 1, 0)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


WEIGHT = torch.ones(16, requires_grad=True)


@torch.library.custom_op("aot_cache_tests::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    return x + 1


shift.register_fake(torch.empty_like)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: Doubled.apply(x * WEIGHT).detach(), "module"),
        (lambda x: shift(x), "aot_cache_tests"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "module"),
        (lambda x: x[x > 0], "only known when"),
        (lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), "module"),
    ],
)
def test_what_is_always_traced(fn, reason, caplog):
    caplog.set_level("INFO", "stepwell")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(2):
            result, (hits, misses, bypasses) = run(fn, X)
            assert (hits, misses) == (0, 0) and bypasses
            torch.testing.assert_close(result, fn(X))
    said = [r.getMessage() for r in caplog.records if "traced in each process" in r.getMessage()]
    assert len(said) == 1 and reason in said[0], said


def test_operators_of_torch_that_somebody_replaced():
    run(gated, X, Y)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("silu", lambda x: x * 3, "CompositeImplicitAutograd")
        assert run(gated, X, Y)[1] == (0, 0, 1)
    assert run(gated, X, Y)[1] == (1, 0, 0)


def test_functions_that_are_not_torchs():
    @functools.wraps(torch.nn.functional.silu)
    def mine(x):
        return x

    for fn in (mine, lambda x: x, Doubled, Doubled.apply, torch.Generator().seed):
        with pytest.raises(Uncacheable):
            aot_key._lasting_name(fn)
    names = [aot_key._lasting_name(f) for f in (torch.nn.functional.silu, torch.add, torch.nn.functional.linear, torch.Tensor.add, len)]
    assert len(set(names)) == 5
    assert aot_key._lasting_name(torch.nn.functional.max_pool2d) == "torch.nn.functional.max_pool2d"


def test_a_mode_and_hooks_are_seen(monkeypatch):
    run(gated, X, Y)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert run(gated, X, Y)[1][0] == 0
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert run(gated, X, Y)[1][0] == 0


@pytest.mark.parametrize("what", ["traces", "graphs"])
@pytest.mark.parametrize("how", ["cut", "empty", "missing", "foreign"])
def test_spoiled_files(what, how, folder):
    run(gated, X, Y)
    path = next((folder / what).iterdir())
    if how == "missing":
        path.unlink()
    elif how == "foreign":
        cache.write(path, pickle.dumps({"not": "a graph"}))
    else:
        path.write_bytes(path.read_bytes()[:40] if how == "cut" else b"")
    result, found = run(gated, X, Y)
    assert found == (0, 1, 0)
    torch.testing.assert_close(result, gated(X, Y))
    assert run(gated, X, Y)[1] == (1, 0, 0)


def test_messages_name_the_line():
    def pick(x, k):
        return x[k] * 2

    notes = []
    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        with pytest.raises(IndexError) as caught:
            torch.compile(pick, backend="stepwell")(X, torch.tensor([1, 99]))
        notes.append([n for n in caught.value.__notes__ if "graph:" in n])
    assert counts() == (1, 0, 0)
    assert notes[0] == notes[1] and "test_aot_cache.py" in notes[0][0]


def test_compiled_autograd_after_a_hit():
    gradients(torch.compile(chain, backend="stepwell"), X, W)
    torch._dynamo.reset()
    reset_counters()
    leaves = [v.clone().requires_grad_() for v in (X, W)]
    loss = torch.compile(chain, backend="stepwell")(*leaves).square().sum()
    assert counts() == (1, 0, 0)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="stepwell")):
        loss.backward()
    torch.testing.assert_close([v.grad for v in leaves], gradients(chain, X, W)[1:], rtol=1e-4, atol=1e-4)


TRAINING_STEP = """
import torch, stepwell
torch.set_num_threads(1)
w = torch.linspace(-1, 1, 256).reshape(16, 16).requires_grad_()
x = torch.linspace(0, 3, 64).reshape(4, 16)
f = torch.compile(lambda x, w: torch.softmax(x @ w, -1) + torch.arange(16.0), backend="stepwell")
y = f(x, w)
y.square().sum().backward()
torch.testing.assert_close(y, torch.softmax(x @ w, -1) + torch.arange(16.0))
counted = [stepwell.counters[f"{cache}_{end}"] for cache in ("aot_cache", "graph_cache") for end in ("hits", "misses")]
print(*counted, w.grad.double().sum().item().hex())
"""


@pytest.mark.long
def test_processes():
    """FXC-11: two at once that both find nothing, then one that finds what they wrote: the trace, the graphs of forward and backward."""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", TRAINING_STEP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def printed(process: subprocess.Popen[str]) -> list[str]:
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out.split()

    first, second = map(printed, [start(), start()])
    third = printed(start())
    assert third[:4] == ["1", "0", "2", "0"]
    assert first[4] == second[4] == third[4]


@pytest.mark.long
def test_a_process_that_finds_its_graphs_loads_no_passes(tmp_path):
    """FXC-01: what compiles is not even imported."""
    program = (
        "import sys, torch\n"
        "torch.compile(lambda x: x.sin() * 2 + x, backend='stepwell', options={'cache': 'on'})(torch.ones(5))\n"
        "print('stepwell.passes.manager.pass_manager' in sys.modules)\n"
    )
    variables = {**os.environ, "STEPWELL_CACHE_DIR": str(tmp_path)}
    runs = [subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=280) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["True", "False"], runs[-1].stderr
