"""mem-view-offsets: nests that differ in where they begin are one kernel."""

import pytest
import torch
from support import lower
from xdsl.context import Context

from stepwell.dialects import load_dialects
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.ir_parser import parse_file


def compiled(function, args):
    imported = lower(function, *args, to="mem", target="gpu", nd_library_products="nd-library-products{library=always}")
    views = [op.result.type for op in imported.module.walk() if op.name == "mem.view"]
    run(default_pipeline("gpu", stages=["tt"]), imported.module, context())
    imported.module.verify()
    (got,) = run_loop(imported.module, args, imported.constants, imported.objects)
    torch.testing.assert_close(got.reshape(function(*args).shape), function(*args), rtol=1e-4, atol=1e-4)
    kernels = [op for op in imported.module.ops if op.name == "tt.func"]
    return kernels, views


def parts(x, w):
    return torch.cat([(x[k : k + 16] @ w)[:, :70] for k in range(0, 64, 16)])


def test_parts_that_stay_apart_are_one_kernel():
    torch.manual_seed(0)
    args = torch.randn(64, 300), torch.randn(300, 72)
    kernels, views = compiled(parts, args)
    assert len(kernels) == 1
    stored = [t for t in views if [d.value for d in t.dims] == [16, 70]]
    assert [t.offset_expr.value for t in stored] == [0, 16 * 70, 32 * 70, 48 * 70]
    assert {tuple(s.value for s in t.stride_exprs) for t in stored} == {(70, 1)}


def test_a_view_begins_at_multiples_of_16_bytes():
    def odd(x, w):
        return torch.cat([(x[k : k + 15] @ w)[:, :71] for k in range(0, 60, 15)])

    torch.manual_seed(0)
    kernels, views = compiled(odd, (torch.randn(60, 300), torch.randn(300, 72)))
    assert len(kernels) == 4
    assert not [t for t in views if [d.value for d in t.dims] == [15, 71]]  # 15 * 71 * 4 bytes


NEST = """
func.func @f(%x : !nd.tensor<8 x 32 x f32>) -> !nd.tensor<16 x 32 x f32> {
  %0 = loop.empty : !nd.tensor<16 x 32 x f32>
  %a = loop.nest (%i = 8, %j = 32) outs(%o = %0 : !nd.tensor<16 x 32 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<8 x 32 x f32> -> f32
    loop.store %v, %o[PLACE, %j] : f32, !nd.tensor<16 x 32 x f32>
  }
  %b = loop.nest (%i = 8, %j = 32) outs(%o = %a : !nd.tensor<16 x 32 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<8 x 32 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<16 x 32 x f32>
  }
  func.return %b : !nd.tensor<16 x 32 x f32>
}
"""


@pytest.mark.parametrize("place, offset", [("%i + 8", 256), ("%i + 4", 128), ("15 - %i", None), ("2 * %i + 1", 32)])
def test_what_is_behind_the_first_element(place, offset):
    """A place that falls from its first element on has no part that begins there."""
    ctx = load_dialects(Context())
    module, _ = parse_file(NEST.replace("PLACE", place), "text", ctx)
    run(parse_pipeline("loop-to-mem,mem-plan,mem-view-offsets"), module, ctx)
    module.verify()
    begins = [op.result.type.offset_expr.value for op in module.walk() if op.name == "mem.view"]
    assert begins == ([] if offset is None else [offset, 0])
    if offset is not None:
        assert not any("+" in line for line in str(module).splitlines() if "loop.store" in line)


def test_parts_of_an_argument():
    """The argument keeps its type: other nests read all of it."""

    def halves(x, w):
        a, b = x[:32] @ w, x[32:] @ w  # calls between the nests keep them apart
        return x[:32].sum(1) + a.sum() + x[32:].sum(1) * 2 + b.sum() + x.sum()

    args = torch.randint(-1, 2, (64, 300)).float(), torch.randint(-1, 2, (300, 72)).float()  # whole numbers, whose sums are exact
    _, views = compiled(halves, args)
    assert any(t.offset_expr.value for t in views)
    ctx = load_dialects(Context())
    text = NEST.replace("PLACE", "%i").replace("nd.tensor<8 x", "nd.tensor<16 x").replace("%x[%i, %j]", "%x[%i + 8, %j]", 1)
    module, _ = parse_file(text, "text", ctx)
    run(parse_pipeline("loop-to-mem,mem-plan,mem-view-offsets"), module, ctx)
    module.verify()
    (func,) = module.ops
    assert [d.value for d in func.body.block.args[0].type.dims] == [16, 32]
    begins = [(op.input.name_hint, op.result.type.offset_expr.value) for op in module.walk() if op.name == "mem.view"]
    assert begins == [("x", 256), ("x", 0)]
