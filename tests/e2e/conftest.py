"""What the tests of whole programs share: `compiled(fn, **how)`, `check(fn, *inputs)`, and a clean state around each test."""

from __future__ import annotations

import pytest
import torch

import stepwell


@pytest.fixture
def fresh():
    """Nothing compiled before, counters at zero, one seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    stepwell.reset_counters()
    yield
    torch._dynamo.reset()


@pytest.fixture
def called_by_threads():
    """For tests whose threads call compiled functions. With torch 2.11 settings of Dynamo are the process's, so that threads that call
    functions with dynamic=True at once may leave "all sizes are symbols" to the tests behind; and a build for CUDA on a machine without
    a GPU crashes where threads make the first tensors without memory at once."""
    with torch._subclasses.FakeTensorMode():
        torch.empty(1)
    with torch._dynamo.config.patch(assume_static_by_default=True):
        yield


def _compiled(fn, **how):
    return torch.compile(fn, backend="stepwell", **how)


def _check(fn, *inputs, rtol=1e-5, atol=1e-5, **how):
    """Values, dtypes and strides of the results are those of eager; the results of both."""
    want, got = fn(*inputs), _compiled(fn, **how)(*inputs)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True):
        if isinstance(b, torch.Tensor) and b.layout == torch.strided:
            assert a.stride() == b.stride(), f"strides {a.stride()}, eager's are {b.stride()}"
    return got, want


@pytest.fixture(name="compiled")
def compiled_fixture():
    return _compiled


@pytest.fixture(name="check")
def check_fixture():
    return _check
