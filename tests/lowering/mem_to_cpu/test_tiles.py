"""Tiles of any size: short loops, last tiles that repeat a part of the one before, memory that is read and written."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.lowering.mem_to_cpu.tiles import follow_rows
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.cost.nest_cost import Cost

NEST = """
func.func @forward(%x : {x}, %y : {y}, %o : {o}) {{
  loop.nest (%i = {n}, %j = {m}) outs(%oo = {out} : {o}) {{
    %a = loop.load %x[%j, %i] : {x} -> {scalar}
    %b = loop.load {row} -> {scalar}
    %c = arith.{add} %a, %b : {scalar}
    loop.store %c, %oo[%i, %j] : {scalar}, {o}
  }} attributes {{schedule = {{vector = {vector} : i64, lanes = 16 : i64, tile = {tile} : i64{more}}}}}
  func.return
}}
"""
COPY = """
func.func @forward(%x : {x}, %o : {o}) {{
  loop.nest (%i = {n}, %j = {m}) outs(%oo = %o : {o}) {{
    %a = loop.load %x[%j, %i] : {x} -> f32
    loop.store %a, %oo[%i, %j] : f32, {o}
  }}
  func.return
}}
"""
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "i8"}
SIZES = [(4, 50), (50, 4), (5, 7), (12, 200), (200, 13), (16, 17), (33, 129), (100, 64), (65, 66), (1, 40)]


def nest(n: int, m: int, dtype: torch.dtype = torch.float32, in_place: bool = False, lanes_first: bool = True, more: str = "") -> str:
    """`o[i, j] = x[j, i] + y[i, j]`; in place, `o[i, j] += x[j, i]`."""
    t = DTYPES[dtype]
    x, o = f"!mem.buffer<{m} x {n} x {t}>", f"!mem.buffer<{n} x {m} x {t}>"
    scalar = "i8" if t == "i8" else "f32"
    row = f"%o[%i, %j] : {o}" if in_place else f"%y[%i, %j] : {o}"
    vector, tile = (0, 1) if lanes_first else (1, 0)
    add = "addi" if t == "i8" else "addf"
    return NEST.format(
        x=x, y=o, o=o, n=n, m=m, out="%o", row=row, scalar=scalar, add=add, vector=vector, tile=tile, more=more
    )  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).mul(20).to(dtype)


@pytest.mark.spread
@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lanes_first", [True, False])
def test_sizes(nests, n: int, m: int, dtype: torch.dtype, lanes_first: bool):
    """Nothing beside the result is written."""
    x, y = numbers(m, n, dtype=dtype), numbers(n, m, dtype=dtype)
    room = torch.full((n + 2, m), 7).to(dtype)
    nests(nest(n, m, dtype, lanes_first=lanes_first))(x, y, room[1:-1])
    torch.testing.assert_close(room[1:-1], x.t() + y)
    assert (room[0] == 7).all() and (room[-1] == 7).all()


@pytest.mark.spread
@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("lanes_first", [True, False])
def test_each_element_is_added_to_once(nests, n: int, m: int, lanes_first: bool):
    """No tile is repeated in part where what is read is written."""
    x, o = numbers(m, n, dtype=torch.float32), numbers(n, m, dtype=torch.float32)
    expected = o + x.t()
    nests(nest(n, m, in_place=True, lanes_first=lanes_first))(x, o, o)
    torch.testing.assert_close(o, expected)


@pytest.mark.parametrize("n, m", [(33, 129), (100, 150)])
def test_in_tiles_of_tiles(nests, n: int, m: int):
    x, y, o = numbers(m, n, dtype=torch.float32), numbers(n, m, dtype=torch.float32), torch.zeros(n, m)
    nests(nest(n, m, more=", tiles = array<i64: 20, 48>"))(x, y, o)
    torch.testing.assert_close(o, x.t() + y)


@pytest.mark.parametrize("n, m, masks", [(33, 129, False), (64, 64, False), (12, 64, True)])
def test_masks(nests, n: int, m: int, masks: bool):
    """Only tiles of short loops have any, and those are the same for all tiles."""
    text = nests(nest(n, m)).text
    assert ("cpu.lanes" in text) == masks
    assert "cpu.lanes" not in text.partition("scf.for")[2]


@pytest.mark.parametrize("n, m, far", [(64, 1024, True), (1024, 64, False), (512, 512, True)])
def test_tiles_follow_each_other_where_lines_are_far_apart(n: int, m: int, far: bool):
    """Along the rows of a result whose lines are at least as far apart as those of what is transposed."""
    text = COPY.format(x=f"!mem.buffer<{m} x {n} x f32>", o=f"!mem.buffer<{n} x {m} x f32>", n=n, m=m)
    module = Parser(load_dialects(Context()), text).parse_module()
    info = NestAccess(next(op for op in module.walk() if isinstance(op, loop.NestOp)), RangeEnv())
    lanes, rows = info.root.loops
    assert follow_rows(Cost(info, {}), lanes, rows) == far


@pytest.mark.parametrize("shape", [(2000, 12), (12, 2000), (33, 65, 129), (3, 197, 64)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_programs(shape: tuple[int, ...], dynamic: bool):
    def turned(x):
        return (x.transpose(0, -1) * 2).contiguous(), x.transpose(-1, -2).contiguous() - 1

    torch._dynamo.reset()
    compiled = torch.compile(turned, backend="stepwell", dynamic=dynamic)
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(x), turned(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(5, 50), (17, 19)])
def test_lanes_that_a_tile_does_not_have_divide_by_nothing(shape: tuple[int, int], dynamic: bool):
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.div_(y, rounding_mode="trunc")

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", dynamic=dynamic)
    divisor = torch.arange(1, shape[0] * shape[1] + 1, dtype=torch.int32).view(shape)
    ours, eager = (torch.full(shape[::-1], 77, dtype=torch.int32).t() for _ in range(2))
    assert torch.equal(compiled(ours, divisor), program(eager, divisor))
    divisor[-1, -1] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(ours, divisor)
