"""loop-fuse-tables: tables in memory of their reader have the values of nests of their own, at every level, for any sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell import counters
from stepwell.dialects import load_dialects, loop
from stepwell.passes.analysis.repeated_fills import repeated_fills
from stepwell.passes.cost.cost_model import nest_cost
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.compiled.traffic import traffic
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.opt.run_ir import run_module

CTX = load_dialects(Context())


def bilinear(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear") + 1


def resized(x):
    return F.interpolate(x, size=(13, 18), mode="bilinear", align_corners=True)


def shrunk(x):
    return F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)


def bicubic(x):
    return F.interpolate(x, scale_factor=2.0, mode="bicubic") * 2


PROGRAMS = [bilinear, resized, shrunk, bicubic]


def kernels(f, *inputs, dynamic: bool = False, **options) -> int:
    """Kernels of a program whose result is right."""
    torch._dynamo.reset()
    before = counters["kernels"]
    found = torch.compile(f, backend="stepwell", options=options, dynamic=dynamic)(*inputs)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if found.dtype.itemsize < 4 else {}
    torch.testing.assert_close(found, f(*inputs), **tolerance)
    return counters["kernels"] - before


@pytest.mark.spread
@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_are_those_of_eager(f, dtype: torch.dtype):
    if f is shrunk and dtype == torch.bfloat16:
        pytest.skip("eager has no antialiasing of bfloat16")
    x = torch.randn(2, 3, 9, 16).to(dtype)
    assert kernels(f, x) <= kernels(f, x, disable_passes=["loop-fuse-tables"])


@pytest.mark.spread
@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("shape", [(1, 1, 2, 4), (0, 3, 8, 8), (1, 2, 9, 4), (3, 1, 33, 5), (3, 1, 5, 33)])
def test_small_and_empty_sizes(f, shape: tuple[int, ...]):
    kernels(f, torch.randn(shape))


@pytest.mark.parametrize("f", [bilinear, resized, bicubic])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 9), (1, 2, 9, 1)])
def test_rows_of_one(f, shape: tuple[int, ...]):
    kernels(f, torch.randn(shape))


def test_strided_inputs_and_sizes_that_are_symbols():
    x = torch.randn(2, 3, 20, 24)
    for view in (x[:, :, ::2, 1::3], x.transpose(2, 3), x.to(memory_format=torch.channels_last), x[:1].expand(2, 3, 20, 24)):
        kernels(bilinear, view)
        kernels(resized, view, dynamic=True)


def test_gradients():
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    torch._dynamo.reset()
    out = torch.compile(bilinear, backend="stepwell")(x)
    weight = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, x, weight)
    (want,) = torch.autograd.grad(bilinear(x), x, weight)
    torch.testing.assert_close(grad, want)


def test_each_thread_has_tables_of_its_own():
    x = torch.randn(8, 16, 32, 32)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert kernels(bilinear, x) == 1
    finally:
        torch.set_num_threads(before)


def test_a_value_that_shall_not_be_fused_is_no_table():
    x = torch.randn(2, 32, 32, 32)
    assert kernels(bilinear, x) == 1
    assert kernels(bilinear, x, no_fuse=["upsample_bilinear2d"]) > 1


# ---- the IR

ROWS = """builtin.module {
  func.func @forward(%x: !nd.tensor<40 x 20 x f32>) -> !nd.tensor<40 x 20 x f32> {
    %i = nd.iota {dim = [0]} : !nd.tensor<20 x f32>
    %s = nd.sin %i : !nd.tensor<20 x f32>
    %t = nd.barrier %s : !nd.tensor<20 x f32>
    %y = nd.mul %x, %t : (!nd.tensor<40 x 20 x f32>, !nd.tensor<20 x f32>) -> !nd.tensor<40 x 20 x f32>
    %z = nd.scan %y {kind = "sum", dim = [1]} : (!nd.tensor<40 x 20 x f32>) -> !nd.tensor<40 x 20 x f32>
    func.return %z : !nd.tensor<40 x 20 x f32>
  }
}"""


def lowered(text: str, pipeline: str):
    module = Parser(CTX, text).parse_module()
    run(parse_pipeline(pipeline), module, CTX, Instrumentation(verify_each=True))
    return Parser(CTX, str(module)).parse_module()


def nests(module) -> Sequence[loop.NestOp]:
    return [op for op in module.walk() if isinstance(op, loop.NestOp)]


@pytest.mark.parametrize("mem", ["", ",loop-to-mem,mem-plan,loop-schedule"])
def test_text_parses_back_and_runs_in_every_order(mem: str):
    x = torch.randn(40, 20)
    want = (x * torch.arange(20.0).sin()).cumsum(-1)
    module = lowered(ROWS, f"nd-to-loop,loop-fuse,loop-fuse-tables{mem}")
    assert "loop.local" in str(module)
    for order in ("forward", "reverse", "shuffle"):
        torch.testing.assert_close(run_loop(module, [x], order=order)[0], want)
    torch.testing.assert_close(run_module(module, CTX, [x])[0], want)


def test_a_table_does_not_go_to_memory():
    apart = traffic(lowered(ROWS, "nd-to-loop,loop-fuse,loop-to-mem"))
    together = traffic(lowered(ROWS, "nd-to-loop,loop-fuse,loop-fuse-tables,loop-to-mem"))
    size, table = 40 * 20 * 4, 20 * 4
    assert apart == (size + table, size + table)
    assert together == (size, size)


def test_it_costs_as_much_as_once():
    """And not as much as in each of 40 iterations."""
    apart = [nest_cost(n) for n in nests(lowered(ROWS, "nd-to-loop,loop-fuse"))]
    (together,) = [nest_cost(n) for n in nests(lowered(ROWS, "nd-to-loop,loop-fuse,loop-fuse-tables"))]
    assert together.work.units == pytest.approx(sum(c.work.units for c in apart), rel=0.05)
    assert together.specials == sum(c.specials for c in apart)
    assert together.seconds < sum(c.seconds for c in apart)


def test_tables_that_are_too_large_stay():
    assert "loop.local" in str(lowered(ROWS, "nd-to-loop,loop-fuse,loop-fuse-tables{bytes=80}"))
    assert "loop.local" not in str(lowered(ROWS, "nd-to-loop,loop-fuse,loop-fuse-tables{bytes=79}"))


FILL = """builtin.module {
  func.func @forward(%x: !nd.tensor<40 x 20 x f32>) -> !nd.tensor<40 x 20 x f32> {
    %0 = loop.empty : !nd.tensor<40 x 20 x f32>
    %1 = loop.nest (%i = 40) outs(%out = %0 : !nd.tensor<40 x 20 x f32>) {
      %t = loop.local : !nd.tensor<20 x f32>
      loop.for (%j = 20) {
        FIRST
        loop.store %a, %t[%j] : f32, !nd.tensor<20 x f32>
      }
      SECOND
      loop.for (%k = 20) {
        %b = loop.load %t[19 - %k] : !nd.tensor<20 x f32> -> f32
        %c = loop.load %x[%i, %k] : !nd.tensor<40 x 20 x f32> -> f32
        %d = arith.addf %b, %c : f32
        loop.store %d, %out[%i, %k] : f32, !nd.tensor<40 x 20 x f32>
      }
    }
    func.return %1 : !nd.tensor<40 x 20 x f32>
  }
}"""
INDEX = "%n = loop.index {} : i64\n %a = arith.sitofp %n : i64 to f32"
AGAIN = """loop.for (%m = 20) {
        %e = loop.load %t[%m] : !nd.tensor<20 x f32> -> f32
        %f = arith.addf %e, %e : f32
        loop.store %f, %t[%m] : f32, !nd.tensor<20 x f32>
      }"""
LOAD = "%a = loop.load %x[0, %j] : !nd.tensor<40 x 20 x f32> -> f32"


@pytest.mark.parametrize(
    ("first", "second", "repeated"),
    [
        (INDEX.format("%j * 3"), "", True),
        (INDEX.format("%j + %i"), "", False),  # depends on the iteration
        (INDEX.format("%j"), AGAIN, False),  # overwritten in the iteration
        (LOAD, "", False),  # reads a tensor
    ],
)
def test_what_is_filled_once(first: str, second: str, repeated: bool):
    x = torch.randn(40, 20)
    module = lowered(FILL.replace("FIRST", first).replace("SECOND", second), "")
    (nest,) = nests(module)
    assert bool(repeated_fills(nest)) == repeated
    want = run_loop(module, [x])[0]
    torch.testing.assert_close(run_module(module, CTX, [x])[0], want)
    text = str(lowered(str(module), "stepwell-cpu{from=mem to=cpu}"))
    assert (text.index("cpu.store") < text.index("scf.for")) == repeated
