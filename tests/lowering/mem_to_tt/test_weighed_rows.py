"""Reductions of kind `softmax_dot` on tiles: along the last axis, block after block, in parts, and one iteration after the other."""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.parser import Parser

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

ROWS = """builtin.module {{
  func.func @forward(%x: {b}, %w: {b}, %o: {v}, %p: {v}, %q: {v}) {{
    loop.nest (%i = {rows}) outs(%oo = %o : {v}, %pp = %p : {v}, %qq = %q : {v}) {{
      %m, %s, %d = loop.reduce (%j = {columns}) softmax_dot {{
        %a = loop.load %x[%i, %j] : {b} -> f32
        %c = loop.load %w[%i, %j] : {b} -> f32
        loop.yield %a, %c : f32, f32
      }} -> f32, f32, f32
      loop.store %m, %oo[%i] : f32, {v}
      loop.store %s, %pp[%i] : f32, {v}
      loop.store %d, %qq[%i] : f32, {v}
    }} attributes {{label = "r"}}
    func.return
  }}
}}"""


@pytest.mark.parametrize(
    ("rows", "columns", "passes"),
    [
        (4, 50, ""), (7, 100, "gpu-schedule"), (3, 9000, "gpu-schedule"), (1, 1, "gpu-schedule"), (3, 0, "gpu-schedule"),
        (5, 300, "loop-split-reduction{nest=r parts=4},gpu-schedule"),
    ],
)  # fmt: skip
def test_weighed_rows(rows, columns, passes):
    """A row without anything gives -inf, 0, 0; one with an infinite value NaN."""
    text = ROWS.format(rows=rows, columns=columns, b=f"!mem.buffer<{rows} x {columns} x f32>", v=f"!mem.buffer<{rows} x f32>")
    module = Parser(context(), text).parse_module()
    if passes:
        run(parse_pipeline(passes), module, context())
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    torch.manual_seed(rows)
    x, w = torch.randn(rows, columns) * 5, torch.randn(rows, columns)
    x[0] = -math.inf
    if rows > 2 and columns > 3:
        x[1, 3] = math.inf
        x[2, :2] = -math.inf
    o, p, q = (torch.zeros(rows) for _ in range(3))
    run_loop(module, [x, w, o, p, q])
    top = x.amax(1) if columns else torch.full((rows,), -math.inf)
    powers = (x - top[:, None]).exp()
    powers[0] = 0
    assert torch.equal(o, top)
    torch.testing.assert_close(p, powers.sum(1), rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(q, (powers * w).sum(1), rtol=1e-4, atol=1e-4, equal_nan=True)
