"""Decompositions and graph passes of users: results of other sizes, types or number than the operator's are errors that say where."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell  # noqa: F401 - registers the backend

aten = torch.ops.aten
GELU, GELU_BACKWARD = aten.gelu.default, aten.gelu_backward.default


def run(decomposition, operator=GELU, dynamic=False):
    torch._dynamo.reset()
    options = {"decompositions": {operator: decomposition}}
    x = torch.randn(3, 4, requires_grad=operator is GELU_BACKWARD)
    return torch.compile(lambda x: F.gelu(x * 2) + 1, backend="stepwell", options=options, dynamic=dynamic)(x)


WRONG = {
    "fewer dimensions": (lambda x, approximate="none": x.sum(0), r"gave float32\[4\], the result of aten.gelu.default is float32\[3, 4\]"),
    "another size": (lambda x, approximate="none": x[:2], r"gave float32\[2, 4\]"),
    "another type": (lambda x, approximate="none": x.double(), r"gave float64\[3, 4\]"),
    "two results": (lambda x, approximate="none": (x, x), "gave 2 results, aten.gelu.default has 1"),
    "a number": (lambda x, approximate="none": 3, "gave 3, the result of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_is_not_the_operator_s(name):
    function, message = WRONG[name]
    with pytest.raises(Exception, match=message) as raised:
        run(function)
    assert "<lambda>" in str(raised.value) and f"at {__file__}:" in str(raised.value)


def test_sizes_that_differ_in_the_call_that_is_traced():
    with pytest.raises(Exception, match=r"gave float32\[2, s\d+\], the result of aten.gelu.default is float32\[s\d+, s\d+\]"):
        run(lambda x, approximate="none": x[:2], dynamic=True)


def test_a_wrong_gradient():
    with pytest.raises(Exception, match=r"gave float32\[4\], the result of aten.gelu_backward.default is float32\[3, 4\]") as raised:
        run(lambda grad, x, approximate="none": (grad * x).sum(0), GELU_BACKWARD)
    assert f"at {__file__}:" in str(raised.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_right_one_serves(dynamic):
    assert run(lambda x, approximate="none": aten.relu.default(x), dynamic=dynamic).min() == 1
    assert torch.isfinite(run(lambda x, approximate="none": NotImplemented, dynamic=dynamic)).all()


@pytest.mark.parametrize("stage", ["joint", "post_grad"])
def test_a_graph_pass_that_changes_the_sizes_of_a_result(stage):
    def shrink(gm):
        end = gm.graph.output_node()
        (result,) = end.args[0]
        with gm.graph.inserting_before(end):
            end.args = ((gm.graph.call_function(aten.sum.dim_IntList, (result, [0])),),)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="stepwell", options={"fx_passes": {stage: [shrink]}})
    with pytest.raises(Exception, match=rf"the {stage} pass '.*shrink' made float32\[4\] of result 0, which was float32\[3, 4\]"):
        compiled(torch.randn(3, 4))
