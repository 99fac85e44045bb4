"""Compiled graphs on disk: what is found again, what is not, and that nothing on the disk can make an answer wrong."""

import importlib.util
import logging
import pickle
import sys
from dataclasses import replace

import pytest
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import stepwell
from stepwell.passes.manager import user
from stepwell.targets.cpu import cache, features
from stepwell.tools.cache import graph_cache, graph_key
from stepwell.tools.compiled.counters import counters, reset_counters
from stepwell.tools.debug import compile_log


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    compile_log._said.clear()
    torch._dynamo.reset()
    with user.isolated():
        yield tmp_path
    torch._dynamo.reset()


def run(fn, *args, **options):
    """The result of `fn` freshly compiled, and (hits, misses, bypasses)."""
    torch._dynamo.reset()
    reset_counters()
    result = torch.compile(fn, backend="stepwell", **options)(*args)
    return result, tuple(counters[f"graph_cache_{what}"] for what in ("hits", "misses", "bypasses"))


def twice(fn, *args, **options):
    """Compile twice, compare with eager, and give the counts of the second time."""
    expected = fn(*args)
    for _ in range(2):
        result, counts = run(fn, *args, **options)
        torch.testing.assert_close(result, expected)
    return counts


def scaled(x, y):
    return torch.softmax(x * 2 + y, -1)


X, Y = torch.randn(8, 16), torch.randn(16)


def test_nothing_is_compiled_on_a_hit():
    """FXC-01, FXC-07"""
    run(scaled, X, Y)
    of_the_cache = ("aot_cache_", "cache_", "graph_cache_", "compile_seconds", "passes", "compile_modes", "seconds_saved")
    cold = {k: v for k, v in counters.items() if not k.startswith(of_the_cache)}
    result, counts = run(scaled, X, Y)
    assert counts == (1, 0, 0)
    torch.testing.assert_close(result, scaled(X, Y))
    assert set(counters["compile_seconds"]) == {"cache", "load"}
    assert {k: counters[k] for k in cold} == cold
    assert cold["launches"] and cold["bytes_read"]


def test_names_and_lines_do_not_count():
    """FXC-02"""
    run(scaled, X, Y)
    assert run(lambda a, b: torch.softmax(a * 2 + b, -1), X, Y)[1] == (1, 0, 0)


@pytest.mark.parametrize(
    "args",
    [(X.double(), Y.double()), (X[:4], Y), (X.t().contiguous().t(), Y), (X, Y[None])],
    ids=["dtype", "sizes", "strides", "rank"],
)
def test_other_inputs_are_other_graphs(args):
    """FXC-02"""
    run(scaled, X, Y)
    result, counts = run(scaled, *args)
    assert counts == (0, 1, 0)
    torch.testing.assert_close(result, scaled(*args))


def test_numbers_options_and_versions_count(monkeypatch):
    """FXC-02"""
    run(scaled, X, Y)
    assert run(lambda x, y: torch.softmax(x * 3 + y, -1), X, Y)[1] == (0, 1, 0)
    assert run(scaled, X, Y, options={"numerics": "eager"})[1] == (0, 1, 0)
    torch.use_deterministic_algorithms(True)
    try:
        assert run(scaled, X, Y)[1] == (0, 1, 0)
    finally:
        torch.use_deterministic_algorithms(False)
    with monkeypatch.context() as patch:
        patch.setattr(graph_key, "target", lambda: features.target("generic-sse"))
        assert run(scaled, X, Y)[1] == (0, 1, 0)
    monkeypatch.setattr(graph_key, "environment", lambda: "another version")
    assert run(scaled, X, Y)[1] == (0, 1, 0)


def test_what_says_that_it_wants_to_see_the_compiler(tmp_path):
    """FXC-03, FXC-04"""
    run(scaled, X, Y)
    for options in ({"debug": str(tmp_path / "debug")}, {"verify": True}, {"cache": "objects"}, {"cache": "off"}):
        assert run(scaled, X, Y, options=options)[1] == (0, 0, 0)
        assert counters["compile_seconds"]["loop"] > 0
    assert list((tmp_path / "debug").iterdir())
    assert run(scaled, X, Y, options={"no_fuse": ["softmax"]})[1] == (0, 0, 1)


def test_explain_compiles(capsys):
    run(scaled, X, Y)
    torch._dynamo.reset()
    assert "softmax" in str(stepwell.explain(scaled, X, Y))


def test_training():
    """FXC-07"""
    def step():
        w = torch.linspace(-1, 1, 48, requires_grad=True)
        weights = w.reshape(16, 3)
        out = torch.compile(lambda x, w: torch.tanh(x @ w) ** 2, backend="stepwell")(X, weights)
        out.sum().backward()
        return w.grad

    torch._dynamo.reset()
    first = step()
    torch._dynamo.reset()
    reset_counters()
    torch.testing.assert_close(step(), first, rtol=0, atol=0)
    assert (counters["graph_cache_hits"], counters["graph_cache_misses"]) == (2, 0)


def test_dynamic_sizes():
    def fn(x):
        return (x[1:] * x.shape[0]).cumsum(0), x.shape[0] // 2

    compiled = torch.compile(fn, backend="stepwell", dynamic=True)
    compiled(torch.ones(9, 3))
    torch._dynamo.reset()
    reset_counters()
    compiled = torch.compile(fn, backend="stepwell", dynamic=True)
    for n in (9, 5, 2, 17):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), fn(x))
    assert counters["graph_cache_hits"] >= 1


def test_inputs_that_are_updated_and_views():
    def fn(x, y):
        x.add_(1)
        return y.t(), y[2:], x * y.shape[0]

    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        a, b, y = X.clone(), X.clone(), torch.randn(5, 4)
        got, expected = torch.compile(fn, backend="stepwell")(a, y), fn(b, y)
        torch.testing.assert_close((got, a), (expected, b))
        assert got[0]._base is y and got[0].stride() == expected[0].stride()
    assert counters["graph_cache_hits"] == 1


@pytest.mark.parametrize("size", [40, 1100])
def test_constants(size, folder):
    """FXC-06"""
    table = [float(k) for k in range(size)]

    def fn(x):
        return x + torch.tensor(table)

    assert twice(fn, torch.ones(size)) == (1, 0, 0)
    kept = list((folder / "constants").iterdir()) if (folder / "constants").exists() else []
    assert len(kept) == (size > 1000)
    for file in kept:
        file.unlink()
        assert run(fn, torch.ones(size))[1] == (0, 1, 0)
        assert twice(fn, torch.ones(size)) == (1, 0, 0)
    table[3] = -1.0
    assert twice(fn, torch.ones(size)) == (1, 0, 0)


def test_control_flow():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    assert twice(fn, torch.ones(4)) == (1, 0, 0)
    assert twice(fn, -torch.ones(4)) == (1, 0, 0)


def spoil(path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "missing":
        path.unlink()
    elif how == "foreign pickle":
        cache.write(path, pickle.dumps({"not": "a graph"}))
    else:
        cache.write(path, b"no pickle at all")


@pytest.mark.parametrize(
    ("what", "how"),
    [*(("graphs", how) for how in ("cut", "empty", "missing", "foreign pickle", "no pickle")), ("objects", "cut"), ("objects", "missing")],
)
def test_spoiled_files(what, how, folder, caplog):
    """FXC-11"""
    run(scaled, X, Y)
    key = next((folder / "graphs").iterdir())
    found = graph_cache.read_graph(key.name, None)
    assert found is not None
    spoil(key if what == "graphs" else cache.object_path(found.code_key), how)
    caplog.clear()
    result, counts = run(scaled, X, Y)
    assert counts == (0, 1, 0)
    torch.testing.assert_close(result, scaled(X, Y))
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(said) == (how != "missing"), said
    assert run(scaled, X, Y)[1] == (1, 0, 0)


def test_folder_that_cannot_be_written(folder, monkeypatch):
    """FXC-11"""
    (folder / "file").write_text("in the way")
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(folder / "file"))
    for _ in range(2):
        result, counts = run(scaled, X, Y)
        assert counts == (0, 1, 0)
        torch.testing.assert_close(result, scaled(X, Y))


PASS = """
from xdsl.passes import ModulePass
class Nothing(ModulePass):
    name = "nothing"
    def apply(self, ctx, op):
        {body}
"""


@pytest.fixture
def load(tmp_path):
    """Loads a module of a user's with a pass, whose `apply` has the body that is given."""

    def loaded(body):
        file = tmp_path / "my_pass.py"
        file.write_text(PASS.format(body=body))
        spec = importlib.util.spec_from_file_location("my_pass", file)
        assert spec is not None and spec.loader is not None
        module = sys.modules["my_pass"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Nothing

    return loaded


def test_passes_of_users(load):
    run(scaled, X, Y)
    stepwell.register_pass("nd", load("pass"))
    assert run(scaled, X, Y)[1] == (0, 1, 0)
    assert run(scaled, X, Y)[1] == (1, 0, 0)
    stepwell.unregister_pass("nothing")
    assert run(scaled, X, Y)[1] == (1, 0, 0)
    assert run(scaled, X, Y, options={"passes": {"loop": [load("pass")]}})[1] == (0, 1, 0)
    stepwell.register_pass("nd", load("return"))
    assert run(scaled, X, Y)[1] == (0, 1, 0)


def test_passes_of_users_count_where_their_stage_is(load, no_gpu):
    """FXC-02: a pass for GPUs changes the keys of graphs on GPUs, and no others."""
    from stepwell.tools.cache.graph_key import Writer
    from stepwell.tools.options.options import Options

    def key(device, options):
        writer = Writer()
        writer.devices.update(device)
        writer.extensions(options)
        return writer.digest()

    devices = (("cpu",), ("cuda:0",), ("cpu", "cuda:1"))
    plain = [key(d, Options()) for d in devices]
    with_option = [key(d, Options(passes={"tt": [load("pass")]})) for d in devices]
    assert len({*plain, *with_option}) == 3 and with_option[0] == plain[0] and plain[1] == plain[2]
    stepwell.register_pass("tt", load("pass"))
    registered = [key(d, Options()) for d in devices]
    assert registered[0] == plain[0] and registered[1] == with_option[1]
    stepwell.register_pass("tt", load("return"))
    assert key(("cuda:0",), Options()) not in (registered[1], plain[1])
    stepwell.register_pass("tt", "cse")
    stepwell.unregister_pass("nothing")
    assert key(("cuda:0",), Options()) not in (registered[1], plain[1])


def test_a_pass_whose_source_does_not_say_everything(caplog):
    """FXC-03, FXC-04"""
    seen = []

    class Local(ModulePass):
        name = "local"

        def apply(self, ctx, op: ModuleOp) -> None:
            seen.append(op)

    caplog.set_level(logging.INFO, "stepwell")
    stepwell.register_pass("nd", Local)
    assert [run(scaled, X, Y)[1] for _ in range(2)] == [(0, 0, 1)] * 2
    assert len(seen) == 2
    said = [r.getMessage() for r in caplog.records if "not kept in the cache" in r.getMessage()]
    assert said == ["a graph is not kept in the cache: class 'Local' of pass 'local' is made in a function"]



def test_guards_are_checked_again():
    """FXC-05"""
    from torch._dynamo.source import ConstantSource

    env = ShapeEnv()
    size = env.create_symintnode(env.create_symbol(6, ConstantSource("n")), hint=6)
    n = size.node.expr
    assert not graph_cache.guards_hold((sympy.Eq(n, 7),), env)
    assert not graph_cache.guards_hold((sympy.Eq(n, 6), sympy.Gt(n, 9)), env)
    assert env.guards == []
    assert graph_cache.guards_hold((sympy.Gt(n, 3),), env)
    assert [str(g.expr) for g in env.guards] == [str(sympy.Gt(n, 3))]
    assert not graph_cache.guards_hold((sympy.Gt(sympy.Symbol("unknown"), 3),), env)
    assert not graph_cache.guards_hold((sympy.Gt(n, 3),), None)


def test_a_guard_that_does_not_hold_is_a_miss(folder):
    """FXC-05"""
    run(scaled, X, Y)
    key = next((folder / "graphs").iterdir()).name
    found = graph_cache.read_graph(key, None)
    assert found is not None
    cache.write(graph_cache.graph_path(key), pickle.dumps(replace(found, code=b"", guards=(sympy.Symbol("s0") > 3,))))
    result, counts = run(scaled, X, Y)
    assert counts == (0, 1, 0)
    torch.testing.assert_close(result, scaled(X, Y))
