"""Random programs (tools/fuzz, test_properties.py) through every pass of the GPU pipeline, their kernels run by the
interpreter, agree with eager: values, dtypes, strides, updated inputs, gradients, dynamic sizes.

Small programs reach few of the rules for large ones, so they are compiled in two ways: as for an H200, and with tiles of a few elements
and thresholds of passes to match, so that rows go by in blocks, reductions are split and programs of the grid share rows.
More of them: `stepwell fuzz --device gpu --seed FIRST --count COUNT`.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import f32, f64, i32

import stepwell  # noqa: F401 - registers the backend
from stepwell.dialects.tt.types import PointerType
from stepwell.tools.fuzz.compare import check_seed
from stepwell.tools.fuzz.small_tiles import large_tiles, small_tiles
from stepwell.tools.interpret.gpu import with_memory
from stepwell.tools.interpret.tt.run import KernelError


def beside(name: str) -> Any:
    """A module of tests in this folder."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["as for an H200", "small tiles"])
def gpu(request):
    torch._dynamo.reset()
    with small_tiles() if request.param == "small tiles" else large_tiles():
        yield request.param
    torch._dynamo.reset()


@pytest.mark.long
@pytest.mark.parametrize("first", [7000, 7010])
def test_random_programs(gpu, first):
    for seed in range(first, first + 10):
        check_seed(seed + 500 * (gpu == "small tiles"), updates=seed % 3 == 0)


@pytest.mark.long
def test_views_graphs_and_updates(gpu):
    """Batches as in test_properties.py, drawn by a seed."""
    properties = beside("test_properties")
    rng = random.Random(len(gpu))

    def steps(least: int, most: int) -> list[tuple[int, ...]]:
        return [tuple(rng.randrange(12) for _ in range(3)) for _ in range(rng.randint(least, most))]

    properties.test_chains_of_views.hypothesis.inner_test([(rng.choice(properties.LAYOUTS), steps(2, 7)) for _ in range(50)])
    for dtype in properties.TYPES:
        properties.test_graphs_of_pointwise_operators_and_reductions.hypothesis.inner_test([steps(3, 9) for _ in range(15)], dtype)
    properties.test_updates_through_views.hypothesis.inner_test([(rng.choice(properties.LAYOUTS[:4]), steps(3, 10)) for _ in range(20)])


def test_scans_of_one_element(gpu):
    """A scan of one gathered element has no loops left, and no last one to lay along the lanes."""
    for scan in (lambda x: x.cummax(-1), lambda x: x.cumsum(-1)):
        for index in (torch.tensor([3]), torch.tensor([[1], [0], [2]])):
            x = torch.tensor([-1.75, 0.0, 3.0, 2.75])
            got = torch.compile(lambda x, i, scan=scan: scan(x[i]), backend="stepwell")(x, index)
            torch.testing.assert_close(got, scan(x[index]))


def test_remainders_of_large_quotients(gpu):
    """As C's fmod, also where x / y overflows: N23."""
    x, y = torch.tensor([3e38, -7.0, 1.0] * 16), torch.tensor([1e-38, 1.1754943508222875e-38, 1e-45] * 16)
    got = torch.compile(lambda x, y: (torch.fmod(x, y), torch.remainder(x, y)), backend="stepwell")(x, y)
    want = [torch.stack([f(a, b) for a, b in zip(x, y, strict=True)]) for f in (torch.fmod, torch.remainder)]
    torch.testing.assert_close(list(got), want, rtol=0, atol=0)


def test_updates_through_views_that_the_library_gives(gpu):
    """The parts of complex numbers are one memory: what is overwritten through one view may have to be loaded through another."""

    def program(z):
        real, imaginary = torch.real(z), torch.imag(z)
        real[:1].zero_()
        imaginary.copy_(real.flip(0) * 2 + imaginary)
        return real, imaginary

    z = torch.arange(14.0).view(7, 2)
    ours, theirs = (torch.view_as_complex(z.clone()) for _ in range(2))
    torch.testing.assert_close(torch.compile(program, backend="stepwell")(ours), program(theirs))
    torch.testing.assert_close(ours, theirs)


def test_an_empty_part_of_a_reduction(gpu):
    """Where the bound of a size leaves nothing to the last of a split reduction's parts."""

    def function(x, y):
        return (x * x).all(), torch.nn.functional.one_hot(y % 4, 4).amin((0, 1))

    compiled = torch.compile(function, backend="stepwell", dynamic=True)
    for size in (4, 7, 33):
        x, y = torch.arange(size * size).reshape(size, size), torch.arange(size)
        torch.testing.assert_close(compiled(x, y), function(x, y))


def test_what_no_atomic_operation_combines(gpu):
    """The importer asks who makes the kernels, not where tensors lie."""

    def function(x, y, b):
        zeros = torch.zeros_like(y, dtype=torch.int64)
        first = [torch.zeros_like(t).scatter_reduce(0, zeros, t, kind) for t in (x, y) for kind in ("amin", "sum", "prod")]
        return *first, torch.zeros_like(b).index_put((zeros[0],), b, accumulate=True)

    given = torch.randn(3, 4), torch.arange(12, dtype=torch.uint8).reshape(3, 4), torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(torch.compile(function, backend="stepwell")(*given), function(*given))


def test_tensors_side_by_side(gpu):
    """A tensor that begins within 8 bytes, and one of 8 bytes an element behind it: the interpreter is told addresses alone."""
    memory = torch.zeros(64, dtype=torch.float32)
    x, y = memory[1:9], memory[16:32].view(torch.float64)
    y.copy_(torch.arange(8))
    given = [x.data_ptr(), y.data_ptr(), 7]
    live = [(memory.data_ptr(), memory.data_ptr() + 4 * memory.numel())]
    first, second, number = with_memory([PointerType(f32), PointerType(f64), i32], given, live)
    assert [first.data_ptr(), second.data_ptr(), number] == given and torch.equal(second[:8], y)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()

    with pytest.raises(KernelError, match=r"argument 1: the address 0x10 lies in no allocation"):
        with_memory([PointerType(f32), PointerType(f64), i32], [given[0], 16, 7], live)

    def function(x, y):
        return x[:, None] + y, y.sum(), x * 2

    want = function(x, y)
    torch.testing.assert_close(torch.compile(function, backend="stepwell")(x, y), want)

