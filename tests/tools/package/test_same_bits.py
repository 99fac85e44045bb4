"""Packages of ten models in a process without a compiler: the bits of the compiled model, other sizes as in eager (AOTI-01)."""

import subprocess
import sys

import pytest
import torch
from package_models import CASES, Kept

import stepwell

pytestmark = pytest.mark.long

OTHER_PROGRAMS = ("lstm", "decoder_lengths")
"""Whose compiled model is another program: Dynamo traces no LSTM and calls ATen; and it has a symbol for each of two equal lengths of keys,
whose attention is a call then."""

LOAD = """
import sys, torch, stepwell
path, inputs, results = sys.argv[1:]
package = stepwell.load(path)
assert package.native
torch.save([package(*args) for args in torch.load(inputs)], results)
wrong = {"xdsl", "llvmlite", "sympy", "torch._dynamo", "torch._inductor", "triton"} & set(sys.modules)
assert not wrong, wrong
"""


def elsewhere(path, calls, tmp_path):
    """The results of calls of a package in a fresh process."""
    inputs, results = tmp_path / "inputs", tmp_path / "results"
    torch.save(calls, inputs)
    subprocess.run([sys.executable, "-c", LOAD, path, inputs, results], check=True)
    return torch.load(results)


@pytest.fixture
def spelled_out():
    """Layers of transformers are computed by their parts, as torch.export has them, and not by one operator of the library."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def mark_dynamic(x, dims):
    """Have Dynamo take the sizes of a tensor along some dimensions for symbols, of any range: a convolution bounds its batch by 16."""
    for dim in dims:
        torch._dynamo.mark_dynamic(x, dim)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("spelled_out")
def test_bits_are_those_of_the_compiled_model(name, tmp_path):
    torch.manual_seed(0)
    make, args, shapes, more = CASES[name]
    model, path = make().eval(), tmp_path / "a.stepwell"
    stepwell.export(model, args, to=path, dynamic_shapes=shapes, targets=["cpu-native"])
    first, *others = elsewhere(path, [args, *more], tmp_path)
    if name not in OTHER_PROGRAMS:
        torch._dynamo.reset()
        with torch.no_grad():
            for x, dims in zip(args, shapes or (), strict=shapes is not None):
                mark_dynamic(x, dims)
            want = torch.compile(model, backend="stepwell")(*args)
        torch.testing.assert_close(first, want, atol=0, rtol=0)
    for got, given in zip([first, *others], [args, *more], strict=True):
        with torch.no_grad():
            torch.testing.assert_close(got, model(*given), atol=2e-5, rtol=1e-4)


def test_a_cache_that_the_model_keeps(tmp_path):
    torch.manual_seed(0)
    model, path = Kept().eval(), tmp_path / "a.stepwell"
    calls = [(torch.randn(1, 1, 64), torch.tensor([k])) for k in range(4)]
    stepwell.export(model, calls[0], to=path)
    for got, args in zip(elsewhere(path, calls, tmp_path), calls, strict=True):
        torch.testing.assert_close(got, model(*args).detach(), atol=2e-5, rtol=1e-4)
