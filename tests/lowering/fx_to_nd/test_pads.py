"""Gradients of reflected and replicated padding: pads are added to the places that they show."""

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data

from stepwell.dialects.tt import structure as tt_structure
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_imported

CASES = {
    "row": ((2, 3, 7), (2, 3)),
    "overlapping": ((2, 3, 4), (3, 3)),
    "one side": ((2, 3, 5), (0, 4)),
    "no batch": ((3, 5), (2, 1)),
    "plane": ((2, 3, 6, 7), (2, 1, 0, 3)),
    "one row": ((2, 1, 2, 5), (1, 1, 1, 1)),
    "cut": ((2, 3, 6, 7), (-1, 2, 1, -2)),
    "volume": ((2, 3, 4, 5, 6), (1, 2, 2, 1, 1, 0)),
}


def gradient(mode, pad):
    def program(x):
        return torch.func.grad(lambda x: (F.pad(x, pad, mode=mode).sin() ** 2).sum())(x)

    return program


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_pads(check, name, mode, dynamic):
    shape, pad = CASES[name]
    found = check(gradient(mode, pad), torch.randn(shape), dynamic=dynamic)
    assert "nd.extern" not in str(found.module) and "nd.index_put" not in str(found.module)


@pytest.mark.parametrize("shape, pad", [((0, 3, 5), (1, 2)), ((2, 3, 1), (4, 5))])
def test_pads_of_small_tensors(check, shape, pad):
    check(gradient("replicate", pad), torch.randn(shape))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pads_that_depend_on_sizes(check, mode):
    check(lambda x: gradient(mode, (x.shape[-1] // 2, x.shape[-2] - 1))(x), torch.randn(2, 4, 8), dynamic=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("name", ["reflection", "replication"])
def test_types_of_pads(check, name, dtype):
    backward = getattr(torch.ops.aten, f"{name}_pad2d_backward").default
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
    inputs = torch.randn(2, 3, 7, 12).to(dtype), torch.randn(2, 3, 6, 7).to(dtype)
    check(lambda grad, x: backward(grad, x, (2, 3, 1, 0)), *inputs, fallback=dtype.is_complex, **tolerance)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_compiled_gradients_of_pads(mode):
    """Contiguous and transposed gradients, the kernels compiled."""

    def program(x, y):
        return torch.func.vjp(lambda x: F.pad(x, (2, 3, 1, 1), mode=mode), x)[1](y)[0]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", dynamic=True)
    transposed = torch.randn(11, 7, 3, 2).permute(3, 2, 1, 0)
    for x, y in ((torch.randn(2, 3, 7, 20), torch.randn(2, 3, 9, 25)), (torch.randn(2, 3, 5, 6), transposed)):
        torch.testing.assert_close(compiled(x, y), program(x, y))


@pytest.mark.parametrize("name", ["reflection", "replication"])
def test_gradients_of_pads_on_a_gpu(name):
    """One kernel, which gathers; its meaning is that of the operator."""
    backward, pad = getattr(torch.ops.aten, f"{name}_pad2d_backward").default, (2, 3, 1, 4)

    def program(grad, x):
        return (backward(grad, x, pad),)

    inputs = torch.randn(2, 3, 11, 12), torch.randn(2, 3, 6, 7)
    found = import_function(program, *without_data(inputs))
    torch.testing.assert_close(run_imported(found, list(inputs))[0], *program(*inputs))
    run(default_pipeline("gpu"), found.module, context())
    assert len([op for op in found.module.ops if isinstance(op, tt_structure.FuncOp)]) == 1


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", [torch.float32, *(pytest.param(t, marks=pytest.mark.long) for t in (torch.bfloat16, torch.int8))])
def test_periodic_borders(dtype, dynamic):
    """Padding in circles, and the ghost cells of a grid: the ends are copied within one tensor."""

    def program(x, pad):
        grid = x * 2
        grid[:, :, 0] = grid[:, :, -2]
        grid[:, :, -1] = grid[:, :, 1]
        grid[..., :1] = grid[..., -2:-1]
        return F.pad(x, pad, mode="circular"), grid

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", dynamic=dynamic)
    x = (torch.randn(2, 3, 7, 20) * 9).to(dtype)
    for pad in ((2, 2, 1, 3), (20, 20, 7, 7), (-1, 2, 0, -2)):
        for given in (x, x.mT.contiguous().mT, x[:1, :, 1:6, ::2] if pad[0] < 9 else x):
            torch.testing.assert_close(compiled(given, pad), program(given, pad), rtol=0, atol=0)
