"""loop-fuse: a step of a fused nest that all later steps compute again is not written."""

from __future__ import annotations

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())
X, M, R, C = "!nd.tensor<n x m x 32 x f32>", "!nd.tensor<n x m x f32>", "!nd.tensor<n x m x 1 x f32>", "!nd.tensor<n x 32 x f32>"
# the largest share of each column, over the rows: exp is read by the sum and by the maximum, and not where it stands
SHARES = f"""builtin.module {{
  func.func @forward(%x: {X}, %y: {X}) -> ({C}) {{
    %z = nd.add %x, %y : {X}
    %top = nd.reduce %z {{kind = "max", dims = [2]}} : ({X}) -> {M}
    %1 = nd.reshape %top : ({M}) -> {R}
    %low = nd.sub %z, %1 : ({X}, {R}) -> {X}
    %e = nd.exp %low : {X}
    %all = nd.reduce %e {{kind = "sum", dims = [2]}} : ({X}) -> {M}
    %2 = nd.reshape %all : ({M}) -> {R}
    %share = nd.div %e, %2 : ({X}, {R}) -> {X}
    %r = nd.reduce %share {{kind = "max", dims = [1]}} : ({X}) -> {C}
    func.return %r : {C}
  }}
}}"""


def test_no_loop_computes_what_nobody_reads():
    module = Parser(CTX, SHARES).parse_module()
    assert isinstance(module, ModuleOp)
    run(parse_pipeline("builtin.module(nd-to-loop,loop-fuse)"), module, CTX)
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    loops = [op for op in nest.walk() if isinstance(op, loop.ForOp)]
    assert loops and all(any(isinstance(inner, loop.StoreOp) for inner in op.walk()) for op in loops)
    x, y = torch.randn(2, 3, 5, 32)
    torch.testing.assert_close(run_loop(module, [x, y])[0], (x + y).softmax(2).amax(1))
