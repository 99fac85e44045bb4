"""What users say about fusion: the options `no_fuse` and `fuse`, and `with stepwell.no_fuse():`."""

from __future__ import annotations

import logging
import re

import pytest
import torch

import stepwell
from stepwell.tools.options.options import OptionError, make_options


def chain(x):
    y = x + 1
    z = torch.softmax(y.exp(), -1)
    return z * 2


def chain_apart(x):
    y = x + 1
    with stepwell.no_fuse():
        z = y.exp()
    return torch.softmax(z, -1) * 2


def launches(function, options=None, shape=(24, 40)):
    """Kernels that one call launches; the results are those of eager."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    x = torch.randn(shape)
    compiled = torch.compile(function, backend="stepwell", options=options, fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
    return stepwell.counters["launches"]


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "stepwell" and r.levelno >= logging.WARNING]


def test_a_chain_is_one_nest_by_itself(caplog):
    assert launches(chain) == 1
    assert not warnings(caplog)


def test_a_named_value_gets_a_nest_of_its_own(caplog):
    assert launches(chain, {"no_fuse": ["exp"]}) == 3
    assert launches(chain, {"no_fuse": ["add"]}) == 2
    assert not warnings(caplog)


def test_nests_of_one_operator_stay_together(caplog):
    assert launches(chain, {"no_fuse": ["_softmax"]}) == 3
    assert not warnings(caplog)


def test_one_nest_of_an_operator_can_be_named(caplog):
    """X01: an operator that is several nests has them numbered, as explain tells them; its name alone means all of them."""
    found = stepwell.explain(chain, torch.randn(24, 40), quiet=True)
    labels = [one.label for one in found.graphs[0].loops]
    assert labels == ["add", "exp", *("_softmax" + (f".{k}" if k > 1 else "") for k in range(1, len(labels) - 2)), "mul"]
    assert launches(chain, {"no_fuse": ["_softmax"]}) == 3
    alone = [launches(chain, {"no_fuse": [name]}) for name in ("_softmax.1", "_softmax.2", "exp.1")]
    assert all(n > 1 for n in alone) and not warnings(caplog)
    assert launches(chain, {"no_fuse": ["_softmax.19"]}) == 1
    (said,) = warnings(caplog)
    assert re.fullmatch(r"no_fuse '_softmax.19': refused, .* names nothing that is computed here; '_softmax' became \d of them", said)
    assert launches(chain, {"fuse": [["_softmax.2", "exp.1"]]}) == 1


def test_a_source_line_can_be_named(caplog):
    line = chain.__code__.co_firstlineno + 1
    assert launches(chain, {"no_fuse": [f"test_fusion_directives.py:{line}"]}) == 2
    assert launches(chain, {"no_fuse": [f"{__file__}:{line}"]}) == 2
    assert not warnings(caplog)


def test_the_context_keeps_what_is_in_it_apart(caplog):
    assert launches(chain_apart) == 3
    assert not warnings(caplog)


def test_the_context_reaches_the_gradient():
    torch._dynamo.reset()
    stepwell.reset_counters()
    x = torch.randn(24, 40, requires_grad=True)
    torch.compile(chain_apart, backend="stepwell", fullgraph=True)(x).sum().backward()
    expected, x.grad = x.grad, None
    chain_apart(x).sum().backward()
    torch.testing.assert_close(expected, x.grad)
    assert stepwell.counters["launches"] >= 5


def test_the_context_does_nothing_in_eager():
    x = torch.randn(3, 4)
    torch.testing.assert_close(chain_apart(x), chain(x))


def siblings(x, y):
    return x.sum(1), y.cos()


def test_fuse_wins_over_profit(caplog):
    x, y = torch.randn(64, 32), torch.randn(64, 32)
    counts = []
    for options in (None, {"fuse": [["sum_1", "cos"]]}):
        torch._dynamo.reset()
        stepwell.reset_counters()
        compiled = torch.compile(siblings, backend="stepwell", options=options)
        torch.testing.assert_close(compiled(x, y), siblings(x, y))
        counts.append(stepwell.counters["launches"])
    assert counts == [2, 1]
    assert not warnings(caplog)


def window(x):
    y = torch.exp(x)
    return y[:-2] + y[1:-1] + y[2:]


def test_a_value_is_computed_in_its_reader_where_loops_cannot_be_shared(caplog):
    without = {"disable_passes": ["loop-fuse-windows"]}
    assert launches(window, without, shape=(5000,)) == 2
    assert launches(window, {"fuse": [["exp", "add_1"]], **without}, shape=(5000,)) == 1
    assert not warnings(caplog)


def test_an_illegal_directive_is_refused_with_the_reason(caplog):
    torch._dynamo.reset()
    x, y = torch.randn(64, 32), torch.randn(8, 5)
    torch.compile(siblings, backend="stepwell", options={"fuse": [["sum_1", "cos"]]})(x, y)
    assert warnings(caplog) == ["fuse 'sum_1' with 'cos': refused, neither reads the other, and their loops differ"]


def test_a_directive_is_met_by_running_one_in_the_rows_of_the_other(opt_tool, caplog):
    """loop-fuse cannot share the loops of the two; loop-fuse-rows makes them one, and nothing says that it was refused."""
    text = """func.func @f(%x: !nd.tensor<64 x 16 x f32>) -> (!nd.tensor<64 x 16 x f32>, !nd.tensor<16 x f32>) {
  %m = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<64 x 16 x f32>) -> !nd.tensor<64 x f32>
  %c = nd.reshape %m : (!nd.tensor<64 x f32>) -> !nd.tensor<64 x 1 x f32>
  %s = nd.sub %x, %c : (!nd.tensor<64 x 16 x f32>, !nd.tensor<64 x 1 x f32>) -> !nd.tensor<64 x 16 x f32>
  %columns = nd.reduce %x {kind = "sum", dims = [0]} : (!nd.tensor<64 x 16 x f32>) -> !nd.tensor<16 x f32>
  func.return %s, %columns : !nd.tensor<64 x 16 x f32>, !nd.tensor<16 x f32>
}"""
    met = opt_tool("-p", "nd-to-loop,loop-fuse{fuse=s+columns},loop-fuse-rows", "--remarks", stdin=text)
    assert met.out.count("loop.nest") == 1 and not warnings(caplog)
    assert "fuse 's' with 'columns': granted, one nest, by loop-fuse-rows" in met.err
    refused = opt_tool("-p", "nd-to-loop,loop-fuse{no-fuse=columns fuse=s+columns},loop-fuse-rows", "--remarks", stdin=text)
    assert refused.out.count("loop.nest") == 2
    assert warnings(caplog) == ["fuse 's' with 'columns': refused, no_fuse 'columns' forbids it"]


def test_a_directive_that_names_nothing_is_refused(caplog):
    launches(chain, {"no_fuse": ["expp"], "fuse": [["exp", "mull"]]})
    assert warnings(caplog) == [
        "'expp' (in the options no_fuse or fuse) names no operator of the compiled graph; did you mean 'exp'?",
        "fuse 'exp' with 'mull': refused, 'mull' names nothing that is computed here; did you mean 'mul'?",
    ]


def test_names_of_the_backward_graph_are_not_unknown_in_the_forward_one(caplog):
    torch._dynamo.reset()
    x = torch.randn(24, 40, requires_grad=True)
    compiled = torch.compile(chain, backend="stepwell", options={"no_fuse": ["mul_1", "nosuch"]})
    out = compiled(x)
    assert not warnings(caplog)
    out.sum().backward()
    assert warnings(caplog) == ["'nosuch' (in the options no_fuse or fuse) names no operator of the compiled graph"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_fuse": "add"}, "option 'no_fuse' takes a list or tuple, got 'add' (str)"),
        ({"no_fuse": [3]}, "option 'no_fuse': no_fuse takes names of values or file:line, got 3"),
        ({"fuse": ["a", "b"]}, "option 'fuse': fuse takes lists of at least two names of values or file:line, got 'a'"),
        ({"fuse": [["a"]]}, "option 'fuse': fuse takes lists of at least two names of values or file:line, got ['a']"),
    ],
)
def test_directives_of_the_wrong_form(options, message):
    with pytest.raises(OptionError) as error:
        make_options(None, options)
    assert str(error.value) == message


def test_one_operation_is_not_fused_with_itself(caplog):
    launches(chain, {"fuse": [["exp", "exp"]]})
    assert warnings(caplog) == ["fuse 'exp' with 'exp': refused, they name one and the same operation"]
