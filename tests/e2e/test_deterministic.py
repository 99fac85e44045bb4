"""`options={"deterministic": True}` and torch.use_deterministic_algorithms (NR-09, N14): equal bits in each run, eager's refusals."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import stepwell
from stepwell.tools.backend.compile_graph import forced_operators, measure
from stepwell.tools.cache.graph_key import settings_key
from stepwell.tools.interpret.target import InterpretedTarget
from stepwell.tools.options.options import make_options

OPTION = {"deterministic": True, "on_failure": "raise"}


@pytest.fixture(name="asked")
def asked_fixture():
    """Torch asks for deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def added(x, places):
    """Rows that are added to one place, by several operators."""
    rows = x[places].sin()
    wide = places[:, None].expand_as(rows)
    return x.index_add(0, places, rows), x.scatter_add(0, wide, rows), x.index_put((places,), rows, accumulate=True)


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.long)])
def test_sums_of_rows_that_meet(on_gpu):
    """NR-09, N14."""
    torch._dynamo.reset()
    x, places = torch.randn(9, 4), torch.randint(9, (40,))
    if on_gpu:
        stepwell.register_target(InterpretedTarget, replace=True)
    try:
        compiled = torch.compile(added, backend="stepwell", options=OPTION)
        first, second = compiled(x, places), compiled(x, places)
    finally:
        if on_gpu:
            stepwell.unregister_target("interpreted")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for got, want in zip(first, added(x, places), strict=True):
        torch.testing.assert_close(got, want)
    assert not torch.are_deterministic_algorithms_enabled()


SEEN: list[tuple[bool, bool]] = []


@torch.library.custom_op("stepwell_test_deterministic::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    """Notes what torch asks for while a library call runs."""
    SEEN.append((torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory))
    return x.clone()


look.register_fake(torch.empty_like)


def test_library_calls_run_as_if_torch_asked_for_deterministic_algorithms():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: look(x) + 1, backend="stepwell", options=OPTION)
    compiled(torch.ones(3))
    SEEN.clear()
    compiled(torch.ones(3))
    assert SEEN == [(True, False)]  # what the library computes is not filled before
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_what_eager_refuses_on_a_gpu_is_the_librarys_to_refuse(asked):
    with FakeTensorMode():
        on_gpu, on_cpu = torch.empty(3, device="cuda"), torch.empty(3)
    options = make_options()
    assert {"aten.cumsum", "aten.median", "aten.upsample_bilinear2d_backward"} <= forced_operators(options, [on_gpu])
    assert "aten.cumsum" not in forced_operators(options, [on_cpu])
    torch.use_deterministic_algorithms(False)
    assert "aten.cumsum" not in forced_operators(options, [on_gpu])


@pytest.mark.parametrize("fill", [True, False])
def test_new_memory_is_filled_as_in_eager(asked, fill):
    torch._dynamo.reset()

    def new(x):
        return x + 1, *(torch.empty(3, dtype=dtype) for dtype in (torch.float32, torch.int16, torch.bool))

    before = torch.utils.deterministic.fill_uninitialized_memory
    try:
        torch.utils.deterministic.fill_uninitialized_memory = fill
        got, want = torch.compile(new, backend="stepwell")(torch.ones(2)), new(torch.ones(2))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before
    if fill:
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)


def test_caches_and_measurements():
    plain, fixed = make_options(), make_options(options={"deterministic": True, "autotune": True})
    assert settings_key(plain) != settings_key(make_options(options={"deterministic": True}))
    assert measure(fixed) == "never"
