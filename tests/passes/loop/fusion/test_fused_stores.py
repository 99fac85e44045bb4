"""loop-fuse: stores into one tensor by nests that are fused keep their order."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())
S, W = "!nd.tensor<3 x 3 x f32>", "!nd.tensor<3 x 6 x f32>"
CAT = f"%c = nd.cat %a, %b {{dim = [1]}} : ({S}, {S}) -> {W}"
SCATTER = f"%s = nd.slice_scatter %c, %a {{starts = [0, 1], steps = [1, 2]}} : ({W}, {S}) -> {W}"
READER = f"%r = nd.tanh %c : {W}"


def results(body: str, returned: list[str]) -> list[torch.Tensor]:
    """The results of a fused function in two orders of its iterations, which must be the same."""
    text = f"""builtin.module {{
  func.func @forward(%a: {S}, %b: {S}) -> ({", ".join(W for _ in returned)}) {{
    {body}
    func.return {", ".join(returned)} : {", ".join(W for _ in returned)}
  }}
}}"""
    module = Parser(CTX, text).parse_module()
    run(parse_pipeline("nd-to-loop,loop-fuse"), module, CTX, Instrumentation(verify_each=True))
    a, b = operands()
    first, second = (run_loop(module, [a, b], order=order) for order in ("forward", "reverse"))
    for x, y in zip(first, second, strict=True):
        torch.testing.assert_close(x, y)
    return first


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3) + 100


def expected() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = operands()
    joined = torch.cat([a, b], 1)
    scattered = joined.clone()
    scattered[:, 1::2] = a
    return joined, scattered


def test_a_later_store_wins():
    (s,) = results(f"{CAT}\n{SCATTER}", ["%s"])
    torch.testing.assert_close(s, expected()[1])


@pytest.mark.parametrize("body", [f"{CAT}\n{READER}\n{SCATTER}", f"{CAT}\n{SCATTER}\n{READER}"])
def test_a_reader_of_the_tensor_that_is_stored_into(body):
    r, s = results(body, ["%r", "%s"])
    joined, scattered = expected()
    torch.testing.assert_close(r, joined.tanh())
    torch.testing.assert_close(s, scattered)


def test_both_tensors_are_results():
    c, s = results(f"{CAT}\n{SCATTER}", ["%c", "%s"])
    joined, scattered = expected()
    torch.testing.assert_close(c, joined)
    torch.testing.assert_close(s, scattered)


KEPT_ROWS = """builtin.module {
  func.func @forward(%x: !nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x f32> {
    %0 = loop.empty : !nd.tensor<4 x 8 x f32>
    %1 = loop.empty : !nd.tensor<4 x f32>
    %rows, %sums = loop.nest (%i = 4) outs(%out = %0 : !nd.tensor<4 x 8 x f32>, %out_1 = %1 : !nd.tensor<4 x f32>) {
      loop.for (%j = 8) {
        %2 = loop.load %x[%i, %j] : !nd.tensor<4 x 8 x f32> -> f32
        %3 = math.exp %2 : f32
        loop.store %3, %out[%i, %j] : f32, !nd.tensor<4 x 8 x f32>
      }
      %4 = loop.reduce (%k = 8) sum {
        %5 = loop.load %out[%i, %k] : !nd.tensor<4 x 8 x f32> -> f32
        loop.yield %5 : f32
      } -> f32
      loop.store %4, %out_1[%i] : f32, !nd.tensor<4 x f32>
    }
    func.return %sums : !nd.tensor<4 x f32>
  }
}"""


def test_rows_that_a_nest_stores_for_itself_alone_stay():
    """A file of fused nests is fused again, as `explain` and `opt-tool -p loop-fuse` do."""
    module = Parser(CTX, KEPT_ROWS).parse_module()
    run(parse_pipeline("loop-fuse"), module, CTX, Instrumentation(verify_each=True))
    x = torch.randn(4, 8)
    torch.testing.assert_close(run_loop(module, [x])[0], x.exp().sum(1))
