"""Arguments, results, updates, constants, locations, errors: what the importer promises at the function's border."""

import pytest
import torch
from torch.fx import Graph, GraphModule
from xdsl.dialects.builtin import FileLineColLoc, NameLoc

from stepwell.lowering.fx_to_nd import GraphImportError, import_graph
from stepwell.tools.interpret.nd import run_imported


def func_of(found):
    return next(iter(found.module.ops))


def test_updates_of_arguments(compiled):
    """B16, MUT-01, N24"""
    def step(x, y):
        x.add_(1)
        y[1:].mul_(2)
        y.t()[0] = 5
        return x * 2, x, x.t()

    ours, theirs = (
        [torch.arange(6.0).reshape(2, 3), torch.ones(3, 3)],
        [torch.arange(6.0).reshape(2, 3), torch.ones(3, 3)],
    )
    fn = compiled(step)
    for a, b in zip([*fn(*ours), *ours], [*step(*theirs), *theirs], strict=True):
        torch.testing.assert_close(a, b)
    assert fn.text.count("nd.update") == 2


def test_returned_update_is_the_argument(compiled):
    x = torch.zeros(3)
    assert compiled(lambda x: x.add_(1))(x) is x


def test_transposed_argument_is_updated_in_place(compiled):
    base = torch.arange(12.0).reshape(3, 4)
    expected = base.clone()
    expected.t()[:, 1:].relu_().add_(1)
    compiled(lambda x: x.relu_().add_(1))(base.t()[:, 1:])
    torch.testing.assert_close(base, expected)


def test_writes_through_views_reach_the_argument():
    """A graph that was not made functional: in-place operators on views of the argument."""

    def writes(x):
        x.view(-1)[3:5].mul_(2)
        x.t()[0].add_(1)
        x.split(2)[1].neg_()
        x.unbind(1)[2].zero_()
        x.diagonal().add_(10)
        return (x.sum(),)

    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    x = torch.arange(12.0).reshape(4, 3)
    found = import_graph(make_fx(writes, tracing_mode="fake")(x), [x])
    found.module.verify()
    expected = x.clone()
    (total,) = writes(expected)
    (result,) = run_imported(found, [x])
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(result, total)


def test_outputs_of_every_kind(compiled):
    """OUT-01"""
    fn = compiled(lambda x, n: (x + 1, None, 7, x.shape[0] * 2, x.shape[1], "text"), dynamic=True)
    x = torch.randn(4, 6)
    result = fn(x, 3)
    torch.testing.assert_close(result[0], x + 1)
    assert result[1:] == (None, 7, 8, 6, "text")


def test_output_of_sizes_that_a_call_defines(imported):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = imported(lambda x: x.nonzero(), torch.tensor([0.0, 1.0, 2.0]), dynamic=True)
    assert found.counts.extern == 1
    (result,) = run_imported(found, [torch.tensor([0.0, 1.0, 2.0])])
    assert result.tolist() == [[1], [2]]


def test_argument_attributes(imported):
    """IN-10"""
    found = import_graph(
        torch.fx.experimental.proxy_tensor.make_fx(lambda x, y: (x + y,), tracing_mode="fake")(
            torch.randn(2, 3).t(), torch.randn(2)
        ),
        static_inputs=[1],
    )
    text = str(found.module)
    assert "nd.layout = #nd.layout<[1, 3], 0>" in text and text.count("nd.static") == 1


def test_constants(imported):
    big, small = torch.arange(20.0), torch.tensor([1, 2, 3])

    def with_constants(x):
        return x + big, x.sum() + torch.tensor(2.5), small * 2, x * big

    found = imported(with_constants, torch.randn(20))
    text = str(found.module)
    assert len(found.constants) == 1 and found.constants[0] is not None
    assert text.count("nd.constant") == 1 and "nd.literal" in text and "value = 2.5" in text
    results = run_imported(found, [torch.ones(20)])
    torch.testing.assert_close(results[0], big + 1)


def test_exact_constants(imported):
    found = imported(
        lambda: (
            torch.full((), float("inf")),
            torch.full((), float("nan")),
            torch.full((), -0.0),
            torch.full((), 2**60),
            torch.full((), 255, dtype=torch.uint8),
        )
    )
    inf, nan, zero, large, byte = run_imported(found, [])
    assert (
        inf.item() == float("inf")
        and nan.isnan()
        and str(zero.item()) == "-0.0"
        and large.item() == 2**60
        and byte.item() == 255
    )


def test_symbols_have_ranges_and_hints(imported):
    found = imported(lambda x: x.reshape(-1) * 2, torch.randn(3, 5), dynamic=True)
    symbols = found.module.attributes["nd.symbols"].data
    assert {r.bounds[2] for r in symbols.values()} == {3, 5}


def test_locations_carry_node_and_line(compiled):
    """A04, PASS-09"""
    fn = compiled(lambda x: torch.sin(x).exp())
    fn(torch.randn(3))
    ops = [op for op in func_of(fn.graphs[0]).body.block.ops if op.name in ("nd.sin", "nd.exp")]
    for op, name in zip(ops, ("sin", "exp"), strict=True):
        assert isinstance(op.location, NameLoc) and op.location.desc.data == name
        assert isinstance(op.location.location, FileLineColLoc) and op.location.location.filename.data == __file__


def test_metadata_is_made_when_missing():
    """FTP-02"""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.sin.default, (x,)),))
    found = import_graph(GraphModule(torch.nn.Module(), graph), [torch.randn(3)])
    torch.testing.assert_close(run_imported(found, [torch.ones(3)])[0], torch.ones(3).sin())


def test_missing_attribute_is_named():
    """CN-11, ERR-05"""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.get_attr("nowhere"), x))
    x.meta["val"] = torch.randn(3)
    module = GraphModule({"nowhere": torch.ones(2)}, graph)
    del module.nowhere
    with pytest.raises(GraphImportError, match="references nonexistent target nowhere"):
        import_graph(module)


def test_single_output_is_refused():
    """CE-12"""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(x)
    x.meta["val"] = torch.randn(3)
    with pytest.raises(GraphImportError, match="must return a tuple or list"):
        import_graph(GraphModule({}, graph))


def test_failing_rule_is_wrapped(monkeypatch):
    """ERR-01, OP-13"""
    from stepwell.lowering.fx_to_nd.core import registry

    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.sin.default, (x,))
    graph.output((node,))
    x.meta["val"] = node.meta["val"] = torch.randn(3)

    def broken(b, x):
        raise ValueError("boom")

    monkeypatch.setitem(registry._RESOLVED, torch.ops.aten.sin.default, broken)
    with pytest.raises(
        GraphImportError, match=r"importing node sin_default, aten.sin.default\(x: float32\[3\]\): ValueError: boom"
    ):
        import_graph(GraphModule({}, graph))


def test_numerics_is_noted(imported):
    assert 'nd.numerics = "eager"' in str(imported(lambda x: x + 1, torch.randn(3), numerics="eager").module)
