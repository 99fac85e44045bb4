"""CM-04: compilation in another process (compile mode "subprocess"). What every compile mode does is in test_compile_modes.py."""

import os
import traceback

import pytest
import torch
from xdsl.passes import ModulePass

import stepwell
from stepwell.errors import CompileError
from stepwell.tools.backend import compile_graph, compile_worker


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", "off")
    torch._dynamo.reset()
    stepwell.reset_counters()
    yield
    torch._dynamo.reset()


@pytest.fixture
def nothing_here(monkeypatch):
    """This process generates no code."""

    def refuse(*args, **kwargs):
        raise AssertionError("code is generated in this process")

    monkeypatch.setattr(compile_graph, "emit", refuse)


def compiled(fn, **options):
    return torch.compile(fn, backend="stepwell", options={"compile_mode": "subprocess", **options})


def test_cm_04_another_process_compiles(nothing_here):
    """CM-04: dynamic sizes, branches and gradients too; one process serves all."""
    x = torch.randn(4, 5, requires_grad=True)
    torch.testing.assert_close(compiled(lambda x: torch.softmax(x, -1).sum(0))(x), torch.softmax(x, -1).sum(0))
    assert stepwell.counters["compile_modes"] == {"subprocess": 2 if stepwell.counters["graphs"] == 2 else 1}
    assert stepwell.counters["kernels"] >= 1 and stepwell.counters["compile_seconds"]["object"] > 0
    process = compile_worker._worker().process
    assert process.pid != os.getpid() and process.poll() is None
    run = torch.compile(lambda x: x @ x.t() + x.shape[0], backend="stepwell", dynamic=True, options={"compile_mode": "subprocess"})
    for rows in (4, 7):
        y = torch.randn(rows, 5)
        torch.testing.assert_close(run(y), y @ y.t() + rows)
    branch = compiled(lambda x: torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos() * 2, (x,)))
    y = torch.ones(3, 2)
    torch.testing.assert_close([branch(y), branch(-y)], [y.sin() + 1, y.cos() * 2])
    assert compile_worker._worker().process is process


def test_cm_04_a_crash_is_an_error_and_the_next_graph_compiles(monkeypatch):
    """CM-04: also where torch goes on without the compiler (ERR-02)."""
    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x.sin() + 1)(x), x.sin() + 1)

    class Crashing(compile_worker.Worker):
        def ask(self, request):
            self.process.kill()
            return super().ask(request)

    with monkeypatch.context() as patch:
        patch.setattr(compile_worker, "_one", Crashing())
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="the process that compiled the graph was ended by SIGKILL"):
            compiled(lambda x: x.cos() + 1)(x)
        patch.setattr(compile_worker, "_one", Crashing())
        with torch._dynamo.config.patch(suppress_errors=True):
            torch.testing.assert_close(compiled(lambda x: x.cos() + 2)(x), x.cos() + 2)
    torch.testing.assert_close(compiled(lambda x: x.cos() + 3)(x), x.cos() + 3)


def test_cm_04_errors_come_back_with_their_trace():
    """CM-04: the message is the one of a compilation in this process, the other process's traceback a note."""
    pipeline = "stepwell-cpu{to=mem},to-host"
    messages = []
    for compile_mode in ("process", "subprocess"):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
            compiled(lambda x: x.tan() * 2, compile_mode=compile_mode, pipeline=pipeline)(torch.randn(3))
        messages.append(str(caught.value.inner_exception))
    assert "loop.nest has no place in a host program" in messages[0] and messages[0].partition(": ")[2] == messages[1].partition(": ")[2]
    assert isinstance(caught.value.inner_exception, CompileError)
    shown = "".join(traceback.format_exception(caught.value.inner_exception))
    assert "in the process that compiled:" in shown and "to_host.py" in shown


class Nothing(ModulePass):
    """Does nothing."""

    name = "nothing"

    def apply(self, ctx, op):
        pass


def test_cm_04_what_depends_on_this_process_stays():
    """CM-04: passes of users, which the other process does not have."""
    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x.exp() - 1, passes={"nd": [Nothing]})(x), x.exp() - 1)
    assert stepwell.counters["compile_modes"] == {"process": 1}


def test_cm_04_options_and_variables_go_along(tmp_path, monkeypatch):
    """CM-04: the dump of every level, options that the pipeline holds, variables that were set since the process started."""
    x = torch.randn(5, 6)
    run = compiled(lambda x: torch.relu(x) * 2, debug=str(tmp_path), numerics="eager", disable_passes=["loop-fuse"])
    torch.testing.assert_close(run(x), torch.relu(x) * 2)
    (folder,) = tmp_path.iterdir()
    assert {"0_import.mlir", "3_mem.mlir", "kernels.ll", "README.txt"} <= {p.name for p in folder.iterdir()}
    assert stepwell.counters["kernels"] == 2
    before = compile_worker._worker().process
    monkeypatch.setenv("STEPWELL_CPU", "x86-64-v3")
    assert compile_worker._worker().process is not before and before.poll() == 0


def test_cm_04_a_fork_has_a_process_of_its_own():
    worker = compile_worker._worker()
    assert worker.is_usable
    worker.owner += 1
    assert not worker.is_usable
    worker.owner -= 1
