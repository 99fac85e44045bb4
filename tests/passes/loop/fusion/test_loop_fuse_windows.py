"""loop-fuse-windows: what is computed by tiles has the values of two nests, at every level, in every order, for any sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from stepwell.dialects import load_dialects, loop
from stepwell.dialects.expr import as_expr, dim, maximum, minimum, sym
from stepwell.dialects.expr.ranges import Range, RangeEnv
from stepwell.dialects.nd.types import LayoutAttr
from stepwell.passes.analysis.known_layouts import known_strides
from stepwell.passes.cost.cost_model import nest_cost
from stepwell.passes.loop.fusion.windows.plan import FIRST_INNER_DIM, Span, span, without_clamp
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.compiled.traffic import traffic
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.opt.run_ir import run_module

CTX = load_dialects(Context())


def blur(x, taps=5):
    """A blur along the rows, then along the columns."""
    reach = taps // 2
    rows = F.pad(x, (reach, reach))
    y = sum((k + 1) * 0.1 * rows[..., k : k + x.shape[-1]] for k in range(taps))
    columns = F.pad(y, (0, 0, reach, reach))
    return sum((k + 1) * 0.1 * columns[..., k : k + x.shape[-2], :] for k in range(taps))


def shifted_norm(x):
    y = F.layer_norm(x, x.shape[-1:])
    return y * 0.3 + F.pad(y, (0, 0, 1, -1)) * 0.7


def stencils(x):
    for _ in range(3):
        p = F.pad(x, (1, 1, 1, 1))
        x = torch.tanh(p[..., 1:-1, 1:-1] + 0.1 * (p[..., :-2, 1:-1] + p[..., 2:, 1:-1] + p[..., 1:-1, :-2] + p[..., 1:-1, 2:]))
    return x


def every_other_row(x):
    y = torch.softmax(x, -1)
    return y[..., ::2, :] - F.pad(y, (0, 0, 1, 0))[..., : y.shape[-2] : 2, :]


def pooled(x):
    return F.avg_pool2d(F.gelu(x), 3, 2, 1)


def resized(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear") + 1


PROGRAMS = {
    "blur": (blur, (3, 13, 40)),
    "norm": (shifted_norm, (2, 19, 48)),
    "stencils": (stencils, (2, 21, 33)),
    "strided": (every_other_row, (3, 16, 20)),
    "pool": (pooled, (2, 3, 14, 17)),
    "resized": (resized, (2, 2, 9, 16)),
}


def compiled(f, rows: int = 0, **options):
    text = f"loop-fuse-windows{{always rows={rows}}}"
    passes = {"loop": [(text, "before:loop-fuse-windows")]}
    return torch.compile(f, backend="stepwell", options={"passes": passes}, **options)


@pytest.mark.spread
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("rows", [0, 5])
def test_values_are_those_of_eager(name: str, rows: int):
    f, shape = PROGRAMS[name]
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(f, rows)(x), f(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype):
    x = torch.randn(2, 30, 24).to(dtype)
    tolerance = {} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(compiled(shifted_norm, 4)(x), shifted_norm(x), **tolerance)


@pytest.mark.parametrize("name", ["blur", "norm", "strided"])
def test_sizes_that_are_symbols(name: str):
    f, shape = PROGRAMS[name]
    g = compiled(f, dynamic=True)
    for rows in (shape[-2], shape[-2] + 5, 64):
        x = torch.randn(*shape[:-2], rows, shape[-1])
        torch.testing.assert_close(g(x), f(x))


def test_strided_and_small_inputs():
    x = torch.randn(26, 40, 3).permute(2, 0, 1)[:, ::2]
    torch.testing.assert_close(compiled(blur, 4)(x), blur(x))
    for shape in ((1, 1, 3), (0, 4, 8), (2, 4, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(blur, 4)(x), blur(x))


def test_each_thread_has_tiles_of_its_own():
    x = torch.randn(4, 200, 256)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.testing.assert_close(compiled(blur, 8)(x), blur(x))
    finally:
        torch.set_num_threads(before)


def test_the_order_in_memory_decides(tmp_path):
    """Tiles of planes whose elements lie a pixel apart would take several times as long as two nests along the channels."""
    x = torch.randn(2, 32, 32, 32)
    for name, given in (("rows", x), ("last", x.to(memory_format=torch.channels_last))):
        torch._dynamo.reset()
        found = torch.compile(resized, backend="stepwell", options={"debug": str(tmp_path / name)})(given)
        torch.testing.assert_close(found, resized(given))
        (text,) = (path.read_text() for path in (tmp_path / name).glob("*/2_loop.mlir"))
        assert ("loop.local" in text) == (name == "rows")


# ---- the IR

SHIFT = """builtin.module {
  func.func @forward(%x: !nd.tensor<11 x 20 x f32>) -> !nd.tensor<11 x 20 x f32> {
    %e = nd.exp %x : !nd.tensor<11 x 20 x f32>
    %y = nd.scan %e {kind = "sum", dim = [1]} : (!nd.tensor<11 x 20 x f32>) -> !nd.tensor<11 x 20 x f32>
    %zero = nd.full {value = 0.0 : f32} : !nd.tensor<f32>
    %p = nd.pad %y, %zero {low = [2, 0], high = [-2, 0]} : (!nd.tensor<11 x 20 x f32>, !nd.tensor<f32>) -> !nd.tensor<11 x 20 x f32>
    %d = nd.sub %y, %p : !nd.tensor<11 x 20 x f32>
    func.return %d : !nd.tensor<11 x 20 x f32>
  }
}"""


def lowered(pipeline: str):
    module = Parser(CTX, SHIFT).parse_module()
    run(parse_pipeline(pipeline), module, CTX, Instrumentation(verify_each=True))
    return Parser(CTX, str(module)).parse_module()


@pytest.mark.parametrize("rows", [1, 3, 4, 64])
@pytest.mark.parametrize("mem", ["", ",loop-to-mem,mem-plan,loop-schedule"])
def test_text_parses_back_and_runs_in_every_order(rows: int, mem: str):
    x = torch.randn(11, 20)
    y = x.exp().cumsum(-1)
    want = y - F.pad(y, (0, 0, 2, -2))
    module = lowered(f"nd-to-loop,loop-fuse,loop-fuse-windows{{rows={rows} always}}{mem}")
    assert "loop.local" in str(module)
    for order in ("forward", "reverse", "shuffle"):
        torch.testing.assert_close(run_loop(module, [x], order=order)[0], want)
    torch.testing.assert_close(run_module(module, CTX, [x])[0], want)


def test_the_intermediate_does_not_go_to_memory():
    apart = traffic(lowered("nd-to-loop,loop-fuse,loop-to-mem"))
    together = traffic(lowered("nd-to-loop,loop-fuse,loop-fuse-windows{always},loop-to-mem"))
    size = 11 * 20 * 4
    assert apart == (2 * size, 2 * size)
    assert together == (size, size)


def marked(name: str, value: Attribute) -> str:
    """What becomes of the two nests when the reader has an attribute."""
    module = Parser(CTX, SHIFT).parse_module()
    run(parse_pipeline("nd-to-loop,loop-fuse"), module, CTX)
    reader = [op for op in module.walk() if isinstance(op, loop.NestOp)][-1]
    reader.attributes[name] = value
    again = Parser(CTX, str(module)).parse_module()
    run(parse_pipeline("loop-fuse-windows"), again, CTX)
    return str(again)


def test_no_fuse_and_the_attribute_keep_two_nests():
    assert "loop.local" not in marked("window_rows", IntegerAttr(0, i64))
    assert "loop.local" not in marked("no_fuse", StringAttr("y"))
    assert "loop.local : !nd.tensor<5 x 20 x f32>" in marked("window_rows", IntegerAttr(3, i64))


def test_known_strides_are_priced():
    """What the function's borders, a call or loop-layout say of a tensor; row-major ones are not told."""
    text = SHIFT.replace("(%x: !nd.tensor<11 x 20 x f32>)", "(%x: !nd.tensor<11 x 20 x f32> {nd.layout = #nd.layout<[1, 11], 0>})")
    module = Parser(CTX, text).parse_module()
    run(parse_pipeline("nd-to-loop,loop-fuse"), module, CTX)
    (func,) = module.body.block.ops
    nests = [op for op in func.body.block.ops if isinstance(op, loop.NestOp)]
    assert known_strides(func) == {func.body.block.args[0]: (as_expr(1), as_expr(11))}
    reader = next(n for n in nests if any(isinstance(o, loop.LoadOp) and o.source is func.body.block.args[0] for o in loop.walk_bodies(n)))
    assert nest_cost(reader, strides=known_strides(func)).work.units > nest_cost(reader).work.units
    nests[-1].attributes["layouts"] = ArrayAttr([LayoutAttr.get([1, 11])])
    assert known_strides(func)[nests[-1].results[0]] == known_strides(func)[nests[-1].outs[0]] == (as_expr(1), as_expr(11))


# ---- memory of an iteration


def test_local_memory_stands_in_a_nest_and_has_numbers_for_sizes():
    text = str(lowered("nd-to-loop,loop-fuse,loop-fuse-windows{always rows=3}"))
    with pytest.raises((VerifyException, ParseError), match="sizes are numbers"):
        Parser(CTX, "%a = loop.local : !nd.tensor<s0 x f32>").parse_module().verify()
    line = next(line for line in text.splitlines() if "loop.local" in line)
    outside = "builtin.module { func.func @f() { " + line + " func.return } }"
    with pytest.raises(VerifyException, match="directly in the body of a loop.nest"):
        Parser(CTX, outside).parse_module().verify()


# ---- windows


def test_span_of_an_index():
    t, q, r = dim(0), dim(FIRST_INNER_DIM), dim(FIRST_INNER_DIM + 1)
    env = RangeEnv({t: Range(0, 9), q: Range(0, 7), r: Range(0, 2), sym("s0"): Range(2, None)})
    inner = {q: 8, r: 3}
    assert span(t * 8 + q - 1, inner, env) == Span(t * 8 - 1, 7)
    assert span(t * 8 + 2 * q + r, inner, env) == Span(t * 8, 16)
    assert span(t - q, inner, env) == Span(t - 7, 7)
    assert span((t * 8 + q) // 2, inner, env) == Span(t * 4, 4)
    assert span(minimum(t * 8 + q, 70), inner, env) == Span(minimum(t * 8, 70), 7)
    assert span(t % 3, inner, env) == Span(t % 3, 0)
    assert span(q % 3, inner, env) is None
    assert span(q * sym("s0"), inner, env) is None


def test_an_index_without_its_clamp():
    e, size = dim(0) + 3, as_expr(10)
    assert without_clamp(minimum(maximum(e, 0), 9), size) is e
    assert without_clamp(minimum(e, 8), size) is minimum(e, 8)


def face_normals(points, corners):
    """Three loaded indices before a loop inside of the nest that computes the sum of squares."""
    a, b, c = (points[corners[:, k]] for k in range(3))
    return F.normalize(torch.cross(b - a, c - a, dim=-1), dim=-1)


@pytest.mark.parametrize("faces", [1, 80])
def test_loaded_indices_before_an_inner_loop(faces):
    """Inner loops are numbered before the indices that were loaded, in whatever order they stand."""
    torch._dynamo.reset()
    points, corners = torch.randn(40, 3), torch.randint(0, 40, (faces, 3))
    want = face_normals(points, corners)
    torch.testing.assert_close(torch.compile(face_normals, backend="stepwell")(points, corners), want, equal_nan=True)
