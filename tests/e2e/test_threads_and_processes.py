"""Several threads that compile and call at once, and processes that are made after a compilation."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import traceback
from pathlib import Path

import pytest
import torch

meets_compilations = pytest.mark.skipif(
    not hasattr(torch.compiler, "_compile_session_context"),
    reason="with this torch a call that meets another thread's compilation raises, whatever the backend is",
)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch, called_by_threads):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "stepwell"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_threads(work, count: int) -> None:
    """`work(k)` in `count` threads that begin together; raises what one of them raises."""
    start, problems = threading.Barrier(count), []

    def one(k: int) -> None:
        try:
            start.wait()
            work(k)
        except BaseException:
            problems.append(traceback.format_exc())

    threads = [threading.Thread(target=one, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread is stuck"
    assert not problems, "\n".join(problems)


def norm(x, w):
    return torch.nn.functional.layer_norm(x @ w, (w.shape[1],)).sin().sum(0)


def check(compiled, x, w) -> None:
    torch.testing.assert_close(compiled(x, w), norm(x, w), rtol=1e-4, atol=1e-4)


@meets_compilations
@pytest.mark.parametrize("cache", ["on", "objects"])
def test_one_function_in_several_threads(cache):
    compiled = torch.compile(norm, backend="stepwell", options={"cache": cache})

    def work(k: int) -> None:
        gen = torch.Generator().manual_seed(k)
        x, w = torch.randn(6, 16, generator=gen), torch.randn(16, 24, generator=gen)
        for _ in range(20):
            check(compiled, x, w)

    for _ in range(2):  # the second time, graphs are found on the disk
        torch._dynamo.reset()
        run_threads(work, 4)


@meets_compilations
def test_several_functions_and_training():
    def work(k: int) -> None:
        w = torch.ones(5, requires_grad=True)
        compiled = torch.compile(lambda x: ((x * w + k) ** 2).softmax(-1)[..., 0] * k, backend="stepwell", options={"cache": "on"})
        x = torch.linspace(-1, 1, 20).reshape(4, 5)
        for _ in range(5):
            w.grad = None
            compiled(x).sum().backward()
        expected = torch.ones(5, requires_grad=True)
        (((x * expected + k) ** 2).softmax(-1)[..., 0] * k).sum().backward()
        torch.testing.assert_close(w.grad, expected.grad)

    run_threads(work, 4)


def test_sizes_that_differ_from_thread_to_thread():
    compiled = torch.compile(norm, backend="stepwell", dynamic=True, options={"cache": "on"})

    def work(k: int) -> None:
        for n in range(2 + k, 30, 4):
            check(compiled, torch.randn(n, 8), torch.randn(8, 12))

    run_threads(work, 4)


@meets_compilations
def test_calls_while_another_thread_compiles():
    compiled = torch.compile(norm, backend="stepwell")
    x, w = torch.randn(64, 32), torch.randn(32, 48)
    check(compiled, x, w)
    done = threading.Event()

    def work(k: int) -> None:
        if k == 0:
            for n in range(3):
                check(torch.compile(norm, backend="stepwell"), torch.randn(5, 4 + n), torch.randn(4 + n, 3))
            done.set()
            return
        while not done.is_set():
            check(compiled, x, w)

    run_threads(work, 3)


def test_gradients_in_threads_of_their_own():
    compiled = torch.compile(norm, backend="stepwell")
    x, w = torch.randn(6, 16), torch.randn(16, 24, requires_grad=True)
    expected = torch.autograd.grad(norm(x, w).sum(), w)[0]
    outs = [compiled(x, w).sum() for _ in range(4)]
    grads = [torch.empty(0)] * 4

    def work(k: int) -> None:
        (grads[k],) = torch.autograd.grad(outs[k], w)

    run_threads(work, 4)
    for grad in grads:
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)


FORK = textwrap.dedent(
    """
    import os, sys, torch
    torch.set_num_threads(1)
    def norm(x, w):
        return torch.nn.functional.layer_norm(x @ w, (w.shape[1],)).sin().sum(0)
    def check(f, n):
        x, w = torch.randn(6, n), torch.randn(n, 24)
        torch.testing.assert_close(f(x, w), norm(x, w), rtol=1e-4, atol=1e-4)
    known = torch.compile(norm, backend="stepwell", options={"cache": sys.argv[1]})
    check(known, 16)
    children = []
    for k in range(2):
        child = os.fork()
        if child == 0:
            check(known, 16)
            check(known, 8)
            check(torch.compile(lambda x, w: norm(x, w), backend="stepwell"), 4)
            w = torch.ones(5, requires_grad=True)
            torch.compile(lambda x: (x * w).exp().sum(), backend="stepwell")(torch.ones(5)).backward()
            assert torch.allclose(w.grad, torch.ones(5).exp())
            os._exit(0)
        children.append(child)
    check(known, 8)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    check(known, 12)
    assert codes == [0, 0], codes
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(
    torch.__version__ < (2, 12) and torch.backends.cuda.is_built(),
    reason="with this torch autograd's threads may not start in the child of a process that had some, whatever the backend is",
)
@pytest.mark.long
@pytest.mark.parametrize("cache", ["on"])
def test_fork(cache):
    # Dynamo asks each GPU for its random state, and CUDA does not go through a fork
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", FORK, cache], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


def _child(queue, x, w) -> None:
    torch.set_num_threads(1)
    queue.put(torch.compile(norm, backend="stepwell", options={"cache": "on"})(x, w).tolist())


@pytest.mark.long
def test_spawn():
    x, w = torch.randn(6, 16), torch.randn(16, 24)
    here = torch.compile(norm, backend="stepwell", options={"cache": "on"})(x, w)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_child, args=(queue, x, w))
    process.start()
    there = torch.tensor(queue.get(timeout=300))
    process.join()
    assert process.exitcode == 0
    assert torch.equal(here, there)


FIRST = textwrap.dedent(
    """
    import sys, threading, tomllib
    from importlib.metadata import EntryPoint
    from torch._dynamo.backends import registry
    import torch

    def round_of_threads(work):
        start, found = threading.Barrier(8), []

        def one():
            start.wait()
            try:
                found.append(work(torch.compile(torch.sin, backend="stepwell")))
            except BaseException as error:
                found.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [None] * 8, found

    value = tomllib.load(open(sys.argv[1], "rb"))["project"]["entry-points"]["torch_dynamo_backends"]["stepwell"]
    registry._lazy_import()
    registry._BACKENDS["stepwell"] = EntryPoint("stepwell", value, "torch_dynamo_backends")  # as it is in this tree
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for _ in range(5):
        registry._COMPILER_FNS.pop("stepwell", None)
        for name in [n for n in sys.modules if n == value.partition(":")[0]]:
            del sys.modules[name]
        round_of_threads(lambda compiled: None)
    sys.setswitchinterval(switch)
    assert torch.compile(torch.sin, backend="stepwell")(torch.ones(3)).tolist() == torch.ones(3).sin().tolist()
    """
)


@pytest.mark.long
def test_the_first_ones_that_ask_for_the_backend():
    """Torch registers what an entry point gives for each thread that asks at the same time, and refuses a second registration."""
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    done = subprocess.run([sys.executable, "-c", FIRST, pyproject], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
