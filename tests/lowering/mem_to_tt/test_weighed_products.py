"""Rows weighed by a softmax of scores that are products (attention): one kernel with two products, and eager's numbers."""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.dialects.builtin import IntegerAttr
from xdsl.parser import Parser

from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import shape_of
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

NEST = """builtin.module attributes {{stepwell.machine = #stepwell.machine<"{machine}">, nd.symbols = {{s0 = #nd.range<0, 4096, 64>}}}} {{
  func.func @forward(%q: {q}, %k: {k}, %v: {v}, %bias: {b}, %o: {o}, %lse: {l}) {{
    loop.nest (%h = 3, %i = {rows}, %d = {width}) outs(%oo = %o : {o}, %ll = %lse : {l}) {{
      %low = arith.constant 0xFF800000 : f32
      %scale = arith.constant 0.125 : f32
      %top, %sum, %dot = loop.reduce (%j = {terms}) softmax_dot {{
        %s = loop.reduce (%e = {depth}) sum {{
          %a = loop.load %q[%h, %i, %e] : {q} -> f32
          %b = loop.load %k[%h floordiv {group}, %j, %e] : {k} -> f32
          %c = arith.mulf %a, %b fastmath<contract> : f32
          loop.yield %c : f32
        }} -> f32
        %t = arith.mulf %s, %scale : f32
        %u = loop.load %bias[%i, %j] : {b} -> f32
        %w = arith.addf %t, %u : f32
        %ii = loop.index %i : index
        %jj = loop.index %j : index
        %there = arith.cmpi sge, %ii, %jj : index
        %x = arith.select %there, %w, %low : f32
        %y = loop.load %v[%h floordiv {group}, %j, %d] : {v} -> f32
        loop.yield %x, %y : f32, f32
      }} -> f32, f32, f32
      %r = arith.divf %dot, %sum : f32
      loop.store %r, %oo[%h, %i, %d] : f32, {o}
      %g = math.log %sum : f32
      %z = arith.addf %g, %top : f32
      loop.store %z, %ll[%h, %i] : f32, {l}
    }} attributes {{label = "attention"}}
    func.return
  }}
}}"""
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def lowered(rows, terms, depth, width, dtype="bf16", group=1, symbol=False, machine="sm_90", text=NEST):
    n = "s0" if symbol else terms

    def b(*dims, t=dtype):
        return f"!mem.buffer<{' x '.join(map(str, dims))} x {t}>"

    heads = -(-3 // group)
    kinds = {
        "q": b(3, rows, depth), "k": b(heads, n, depth), "v": b(heads, n, width), "b": b(rows, n, t="f32"), "o": b(3, rows, width),
        "l": b(3, rows, t="f32"),
    }  # fmt: skip
    text = text.format(rows=rows, terms=n, depth=depth, width=width, group=group, machine=machine, **kinds)
    module = Parser(context(), text).parse_module()
    run(parse_pipeline("gpu-schedule"), module, context())
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    module.verify()
    return module


CASES = [
    (130, 130, 32, 32, torch.bfloat16, 1, False), (66, 100, 40, 72, torch.float16, 1, False), (1, 1, 16, 16, torch.bfloat16, 1, False),
    (70, 64, 64, 20, torch.bfloat16, 3, False), (66, 90, 16, 16, torch.bfloat16, 1, True), (64, 5, 8, 8, torch.bfloat16, 1, True),
    (130, 150, 16, 128, torch.bfloat16, 3, False), (66, 70, 32, 72, torch.bfloat16, 1, True),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "terms", "depth", "width", "dtype", "group", "symbol"), CASES)
def test_weighed_products(rows, terms, depth, width, dtype, group, symbol):
    """The last row sees nothing: NaN, as in eager, and -inf as the logarithm of its sum."""
    module = lowered(rows, terms, depth, width, TYPES[dtype], group, symbol)
    kernels = [[isinstance(op, DotOp) for op in f.walk()] for f in module.ops if isinstance(f, FuncOp)]
    assert ("tt.descriptor_load" in str(module)) == (width > 64)  # blocks of long rows are copied as such
    assert kernels and all(sum(dots) == (4 if terms > 1 else 0) for dots in kernels)  # a loop of one iteration is none
    torch.manual_seed(rows)
    heads = -(-3 // group)
    q, k, v = (torch.randn(*shape).to(dtype) for shape in ((3, rows, depth), (heads, terms, depth), (heads, terms, width)))
    bias = torch.randn(rows, terms)
    bias[-1] = -math.inf
    o, lse = torch.zeros(3, rows, width, dtype=dtype), torch.zeros(3, rows)
    run_loop(module, [q, k, v, bias, o, lse])
    at = torch.arange(3) // group
    scores = q.float() @ k[at].float().transpose(1, 2) * 0.125 + bias
    scores = scores.masked_fill(torch.arange(rows)[:, None] < torch.arange(terms), -math.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(o.float(), scores.softmax(-1) @ v[at].float(), rtol=3e-2, atol=3e-2, equal_nan=True)


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize("width", [64, 128])
def test_weighed_products_fit_registers(machine, width):
    """No number of a row goes to memory, and products of one step need not wait for those of the one before it."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    for kernel in kernel_modules(lowered(4096, 4096, width, width, machine=machine)):
        built = compile_kernel(kernel, gpu_target(machine))
        assert not built.details["spills"] and not built.details.get("waiting_products")


MASKS = {
    "causal": ["%there = arith.cmpi sge, %ii, %jj : index"],
    "window": ["%p0 = arith.cmpi sge, %ii, %jj : index", "%ago = loop.index %i - %j : index", "%limit = arith.constant 150 : index",
               "%p1 = arith.cmpi slt, %ago, %limit : index", "%there = arith.andi %p0, %p1 : i1"],
    "prefix": ["%p0 = arith.cmpi sge, %ii, %jj : index", "%limit = arith.constant 100 : index", "%p1 = arith.cmpi slt, %jj, %limit : index",
               "%there = arith.ori %p0, %p1 : i1"],
    "documents": ["%size = arith.constant 90 : index", "%di = arith.floordivsi %ii, %size : index",
                  "%dj = arith.floordivsi %jj, %size : index", "%there = arith.cmpi eq, %di, %dj : index"],
    "behind": ["%there = arith.cmpi slt, %ii, %jj : index"],
}  # fmt: skip
SEEN = {
    "causal": lambda i, j: i >= j,
    "window": lambda i, j: (i >= j) & (i - j < 150),
    "prefix": lambda i, j: (i >= j) | (j < 100),
    "documents": lambda i, j: i // 90 == j // 90,
    "behind": lambda i, j: i < j,
}


@pytest.mark.spread
@pytest.mark.parametrize("symbol", [False, True])
@pytest.mark.parametrize("terms", [320, 330])
@pytest.mark.parametrize("mask", MASKS)
def test_blocks_that_a_mask_leaves_whole_are_not_masked(mask, terms, symbol):
    text = NEST.replace(MASKS["causal"][0], "\n        ".join(MASKS[mask]))
    module = lowered(260, terms, 16, 16, symbol=symbol, text=text)
    torch.manual_seed(terms)
    q, k, v = (torch.randn(3, n, 16).to(torch.bfloat16) for n in (260, terms, terms))
    bias, o, lse = torch.randn(260, terms), torch.zeros(3, 260, 16, dtype=torch.bfloat16), torch.zeros(3, 260)
    run_loop(module, [q, k, v, bias, o, lse])
    seen = SEEN[mask](torch.arange(260)[:, None], torch.arange(terms))
    scores = (q.float() @ k.float().transpose(1, 2) * 0.125 + bias).masked_fill(~seen, -math.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(o.float(), scores.softmax(-1) @ v.float(), rtol=3e-2, atol=3e-2, equal_nan=True)
    (kernel,) = [f for f in module.ops if isinstance(f, FuncOp)]
    whole, mixed = [[op.name for op in f.body.block.ops] for f in kernel.walk() if f.name == "scf.for"]
    assert "arith.select" in mixed and mixed.count("arith.cmpi") > whole.count("arith.cmpi") == 0
    differences = [op.operands[0].owner for op in kernel.body.block.ops if op.name == "arith.subi"]
    last = [op for op in differences if getattr(op, "value", None) == IntegerAttr(4, 32)]
    assert bool(last) == (mask in ("causal", "prefix"))  # the block with the most terms is the first one


@pytest.mark.parametrize("scale", [0.125, 1.0, -0.125])
@pytest.mark.parametrize("size", [1.0, 300.0])
def test_scores_that_are_scaled_last_take_one_fused_multiplication(scale, size):
    """Unless their exponents of 2 may be infinite. A row without a score is NaN, one without a term below the first block is right."""
    text = NEST.replace("%scale = arith.constant 0.125", f"%scale = arith.constant {scale}")
    text = text.replace("%w = arith.addf %t, %u : f32", "%w = arith.mulf %s, %scale : f32").replace("sge, %ii, %jj", "slt, %ii, %jj")
    module = lowered(100, 100, 16, 16, text=text)
    torch.manual_seed(3)
    q, k, v = ((torch.randn(3, 100, 16) * size).to(torch.bfloat16) for _ in range(3))
    o, lse = torch.zeros(3, 100, 16, dtype=torch.bfloat16), torch.zeros(3, 100)
    run_loop(module, [q, k, v, torch.zeros(100, 100), o, lse])
    seen = torch.arange(100)[:, None] < torch.arange(100)
    scores = (q.double() @ k.double().transpose(1, 2) * scale).masked_fill(~seen, -math.inf)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(o.double() / size, scores.softmax(-1) @ v.double() / size, rtol=3e-2, atol=3e-2, equal_nan=True)
    loops = [op for op in module.walk() if op.name == "scf.for"]
    assert [any(op.name == "math.fma" for op in one.body.block.ops) for one in loops] == [scale == 0.125] * 2


@pytest.mark.parametrize(("index", "by_axes"), [("%i - %j", True), ("%j * 3 - %i - 5", True), ("%i * 262144 - %j", False)])
def test_distances_are_differences_of_floats(index, by_axes):
    """As far as these are exact: converting an integer for each element is slow."""
    text = NEST.replace(
        "%u = loop.load %bias[%i, %j] : {b} -> f32",
        f"%ago = loop.index {index} : i64\n        %far = math.absi %ago : i64\n        %u0 = arith.sitofp %far : i64 to f32\n"
        "        %slope = arith.constant -1.953125e-03 : f32\n        %u = arith.mulf %u0, %slope : f32",
    )
    module = lowered(100, 150, 16, 16, text=text)
    torch.manual_seed(5)
    q, k, v = (torch.randn(3, n, 16).to(torch.bfloat16) for n in (100, 150, 150))
    o, lse = torch.zeros(3, 100, 16, dtype=torch.bfloat16), torch.zeros(3, 100)
    run_loop(module, [q, k, v, torch.zeros(100, 150), o, lse])
    i, j = torch.arange(100)[:, None], torch.arange(150)
    far = eval(index.replace("%", ""), {"i": i, "j": j}).abs()
    scores = q.double() @ k.double().transpose(1, 2) * 0.125 - far / 512
    torch.testing.assert_close(lse.double(), scores.masked_fill(i < j, -math.inf).logsumexp(-1), rtol=1e-5, atol=1e-5)
    whole = [op for op in module.walk() if op.name == "arith.sitofp" and shape_of(op.results[0].type) == (64, 64)]
    assert bool(whole) != by_axes
    (kernel,) = [f for f in module.ops if isinstance(f, FuncOp)]
    e = [op for op in kernel.walk() if op.name == "arith.constant" and "1.442695" in str(op) and shape_of(op.results[0].type) == (64, 64)]
    assert not e  # log2(e) is part of the scale and of the slope


def test_a_cap_on_scores_is_a_quotient():
    """What is an exponent later has to be exact by its size: tanh needs no polynomial near 0."""
    text = NEST.replace("%t = arith.mulf %s, %scale : f32", "%small = arith.mulf %s, %scale : f32\n        %t = math.tanh %small : f32")
    kernel = lowered(66, 70, 32, 32, text=text)
    assert "__nv_tanhf" not in str(kernel)
