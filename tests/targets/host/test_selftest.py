"""Which path runs: the self-test, the user's choice, and descriptions that come from a cache."""

import logging
import pickle

import pytest
import torch

from stepwell.targets.host import selftest, symbols
from stepwell.targets.host.build import compile_program, load_compiled

PROGRAM = """builtin.module {
  host.program @forward(%x: !host.tensor<f32>) {
    host.check %x [3] strides [1] "x" : !host.tensor<f32>
    %y = host.extern #nd.call<"aten.mul.Scalar", [arg(0), float("2.5")]>(%x)
      : (!host.tensor<f32>) -> (!host.tensor<f32>)
    host.return(%y : !host.tensor<f32>) [arg(0), none]
  }
}"""


@pytest.fixture
def fresh_selftest():
    """The self-test runs again in the test, and once more after it."""
    selftest._has_symbols.cache_clear()
    selftest._result.cache_clear()
    yield
    selftest._has_symbols.cache_clear()
    selftest._result.cache_clear()


def compiled():
    from xdsl.context import Context
    from xdsl.parser import Parser

    from stepwell.dialects import load_dialects

    ctx = Context()
    load_dialects(ctx)
    return compile_program(Parser(ctx, PROGRAM).parse_module())


def test_the_selftest_passes_here(fresh_selftest):
    assert symbols.missing() == ()
    assert selftest.passes_selftest()


def test_a_missing_symbol_is_said_and_python_runs(fresh_selftest, monkeypatch, caplog):
    monkeypatch.setattr(selftest, "missing", lambda: ("torch_from_blob",))
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        program = compiled()
        run = load_compiled(program)
    assert not program.description.native and not run.native
    assert "this process lacks torch_from_blob" in caplog.text
    assert run([torch.ones(3)])[0].tolist() == [2.5] * 3


@pytest.mark.parametrize(("version", "lines"), [("2.11.0", 0), ("2.14.1+cu130", 0), ("2.15.0a0+git1", 1), ("3.0", 1), ("unknown", 0)])
def test_a_torch_newer_than_tested_is_said_once(fresh_selftest, monkeypatch, caplog, version, lines):
    monkeypatch.setattr(torch, "__version__", version)
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        assert selftest.passes_selftest() and selftest.passes_selftest()
    assert [r.getMessage().partition(" is newer")[0] for r in caplog.records] == [f"torch {version}"] * lines


def test_a_failed_selftest_is_said(fresh_selftest, monkeypatch, caplog):
    monkeypatch.setattr(selftest, "_run", lambda: "got nonsense")
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        assert not selftest.passes_selftest()
    assert "the self-test failed (got nonsense)" in caplog.text and "got nonsense" in str(selftest.selftest_error())


def test_who_asks_first_may_be_tracing(fresh_selftest):
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert selftest.selftest_error() is None, "nobody has asked"
    with FakeTensorMode():
        assert selftest.passes_selftest()
    assert selftest.selftest_error() is None


def test_a_cache_that_fails_does_not_fail_the_selftest(fresh_selftest, monkeypatch):
    def injected(*_):
        raise ValueError("injected")

    monkeypatch.setattr("stepwell.targets.cpu.cache.read", injected)
    monkeypatch.setattr("stepwell.targets.cpu.cache.write", injected)
    assert selftest.passes_selftest() and selftest.selftest_error() is None


def test_the_user_chooses_the_path(monkeypatch):
    monkeypatch.setenv("STEPWELL_HOST", "python")
    run = load_compiled(compiled())
    assert not run.native and run([torch.ones(3)])[1] is None
    monkeypatch.setenv("STEPWELL_HOST", "rust")
    with pytest.raises(ValueError, match="STEPWELL_HOST is 'rust'; known: native, python"):
        compiled()


def test_a_native_program_runs_through_python_when_the_process_says_so(monkeypatch, caplog):
    program = compiled()
    assert program.description.native
    monkeypatch.setenv("STEPWELL_HOST", "python")
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        run = load_compiled(program)
    assert not run.native and "runs through Python: STEPWELL_HOST=python" in caplog.text
    assert run([torch.ones(3)])[0].tolist() == [2.5] * 3


@pytest.mark.parametrize("path", ["native", "python"])
def test_a_pickled_program_runs(monkeypatch, path):
    monkeypatch.setenv("STEPWELL_HOST", path)
    program = pickle.loads(pickle.dumps(compiled()))
    run = load_compiled(program)
    assert run.native == (path == "native")
    assert run([torch.ones(3)])[0].tolist() == [2.5] * 3
