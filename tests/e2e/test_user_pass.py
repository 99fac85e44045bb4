"""Passes of users inside of torch.compile: the worked example of docs/howto/custom-passes.md, and one that breaks the IR."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import f64
from xdsl.passes import ModulePass

import stepwell
from stepwell.dialects.nd.pointwise import OPS
from stepwell.dialects.nd.types import TensorType
from stepwell.passes.manager import user

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "approximate_erf.py"
gelu = torch.nn.functional.gelu


def example():
    """Import the example, which registers its pass."""
    spec = importlib.util.spec_from_file_location("approximate_erf", EXAMPLE)
    module = sys.modules["approximate_erf"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ApproximateErf


pytestmark = pytest.mark.usefixtures("own_passes")


def compiled(**options):
    return torch.compile(lambda x: gelu(x) * 2, backend="stepwell", **options)


def check_is_tanh_form(got: torch.Tensor, x: torch.Tensor) -> None:
    torch.testing.assert_close(got, gelu(x, approximate="tanh") * 2, rtol=1e-5, atol=1e-5)
    assert (got - gelu(x) * 2).abs().max() > 1e-5


def test_registered_pass():
    x = torch.linspace(-4, 4, 101)
    example()
    check_is_tanh_form(compiled()(x), x)
    stepwell.unregister_pass("approximate-erf")
    torch._dynamo.reset()
    torch.testing.assert_close(compiled()(x), gelu(x) * 2)


def test_pass_in_the_options():
    """Catalogue H14."""
    with user.isolated():
        approximate = example()
    x = torch.linspace(-4, 4, 101)
    check_is_tanh_form(compiled(options={"passes": {"nd": [approximate]}})(x), x)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled()(x), gelu(x) * 2)


def test_pass_in_the_options_reaches_the_backward():
    with user.isolated():
        approximate = example()
    seen = []

    class Spy(approximate):
        name = "spy"

        def apply(self, ctx, op):
            seen.append({nested.name for nested in op.walk()})

    x = torch.linspace(-2, 2, 11, requires_grad=True)
    compiled(options={"passes": {"nd": [Spy]}})(x).sum().backward()
    assert len(seen) == 2  # the forward with the erf, and the backward with the derivative of it
    assert "nd.erf" in seen[0] and "nd.exp" in seen[1]


class Breaks(ModulePass):
    """Gives one result a type that does not fit."""

    name = "breaks"

    def apply(self, ctx, op):
        for nested in op.walk():
            if isinstance(nested, OPS["erf"]):
                result = nested.results[0]
                new = OPS["erf"].create(
                    operands=nested.operands,
                    result_types=[TensorType.get(result.type.dims, f64)],
                    location=nested.location,
                )
                nested.parent.insert_op_before(new, nested)
                result.replace_all_uses_with(new.results[0])
                nested.detach()
                nested.erase()


def test_pass_that_breaks_the_ir_is_named():
    with pytest.raises(Exception, match="after pass 'breaks': 'nd.erf' op: ") as caught:
        compiled(options={"passes": {"nd": [Breaks]}})(torch.ones(3))
    assert Path(__file__).name in str(caught.value)  # the line of the model


def test_mistakes_in_the_options():
    with pytest.raises(Exception, match="has no stage 'ndd'; did you mean 'nd'"):
        compiled(options={"passes": {"ndd": ["cse"]}})(torch.ones(3))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="'nd-to-lop' does not refer to a registered pass .* did you mean 'nd-to-loop'"):
        compiled(options={"pipeline": "nd-to-lop"})(torch.ones(3))
