"""What is around a compiled graph: garbage while one is made, and what need not be imported for it."""

import gc
import subprocess
import sys
import threading

import pytest

from stepwell.tools.compiled.compiled import YOUNG, rare_garbage_collection


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(600, 7, 9)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_collections_are_rare_inside_and_as_before_behind(thresholds):
    with pytest.raises(KeyError), rare_garbage_collection():
        assert gc.isenabled() and gc.get_threshold()[0] == YOUNG
        with rare_garbage_collection():
            assert gc.get_threshold()[0] == YOUNG
        assert gc.get_threshold()[0] == YOUNG
        raise KeyError
    assert gc.get_threshold() == thresholds


def test_two_threads_that_leave_in_the_order_in_which_they_came(thresholds):
    inside, leave = threading.Event(), threading.Event()

    def compiles():
        with rare_garbage_collection():
            inside.set()
            leave.wait(60)

    first = threading.Thread(target=compiles)
    first.start()
    assert inside.wait(60)
    with rare_garbage_collection():
        leave.set()
        first.join()
        assert gc.get_threshold()[0] == YOUNG
    assert gc.get_threshold() == thresholds


def test_a_program_without_collections_stays_so(thresholds):
    gc.set_threshold(0, 7, 9)
    with rare_garbage_collection():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 7, 9)


def test_the_backend_imports_no_code_for_gpus():
    program = "import sys, stepwell.tools.backend.torch_backend as b, stepwell.tools.backend.compile_graph; print(*sys.modules)"
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    unused = ("stepwell.lowering.mem_to_tt", "stepwell.targets.triton")
    assert [m for m in made.stdout.split() if m.startswith(unused)] == []
