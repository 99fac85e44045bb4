"""The tile of a GPU on a nest whose loops a transform changes: it names the loops that those became, or goes with a remark."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.dialects.nd import symbol_ranges
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.schedule_attrs import GPU, schedule_table
from stepwell.passes.gpu.tiles.candidates import read_tile
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline

NUMBERS = "inner = 0 : i64, pieces = 1 : i64, stages = 0 : i64, warps = 4 : i64"
TURNED, PLAIN = "f32, [1, 4, 24]", "f32"


def transformed(strides: str, axes: str, blocks: str, rest: str, pipeline: str) -> tuple[loop.NestOp, NestAccess, list[str]]:
    text = f"""
    func.func @forward(%x: !mem.buffer<4 x 6 x 8 x {strides}>, %y: !mem.buffer<4 x 6 x 8 x f32>) {{
      loop.nest (%i = 4, %j = 6, %k = 8) outs(%o = %y : !mem.buffer<4 x 6 x 8 x f32>) {{
        %a = loop.load %x[%i, %j, %k] : !mem.buffer<4 x 6 x 8 x {strides}> -> f32
        loop.store %a, %o[%i, %j, %k] : f32, !mem.buffer<4 x 6 x 8 x f32>
      }} attributes {{schedule = {{gpu = {{axes = {axes}, blocks = {blocks}, rest = {rest}, {NUMBERS}}}}}}}
      func.return
    }}"""
    ctx = load_dialects(Context())
    module = Parser(ctx, text, "case.mlir").parse_module()
    remarks: list[str] = []
    run(parse_pipeline(pipeline), module, ctx, Instrumentation(verify_each=True, remarks=lambda r: remarks.append(str(r))))
    nest = next(op for op in module.walk() if isinstance(op, loop.NestOp))
    return nest, NestAccess(nest, symbol_ranges(module)), remarks


ALL: tuple[str, str, str] = ("[[0 : i64], [2 : i64]]", "[4 : i64, 8 : i64]", "[1 : i64]")
ONE_AXIS: tuple[str, str, str] = ("[[0 : i64]]", "[64 : i64]", "[]")


@pytest.mark.parametrize(
    ("strides", "tile", "pipeline", "axes", "rest"),
    [
        (TURNED, ALL, "loop-interchange{order=2,0,1}", [[1], [0]], [2]),
        (TURNED, ALL, "loop-interchange{order=2,0,1},loop-interchange{order=2,0,1}", [[2], [1]], [0]),
        (TURNED, ALL, "loop-expand{axis=0 by=2}", [[0, 1], [3]], [2]),
        (TURNED, ALL, "loop-expand{axis=1 by=2},loop-interchange{order=2,0,1,3}", [[1], [3]], [2, 0]),
        (TURNED, ALL, "loop-tile{sizes=2,2,2}", [[0], [2]], [1]),
        (TURNED, ALL, "loop-vectorize{axis=2}", [[0], [2]], [1]),
        (PLAIN, ONE_AXIS, "loop-interchange{order=1,0,2}", [[0, 1, 2]], []),
        (PLAIN, ONE_AXIS, "loop-collapse{loops=0,1}", [[0, 1]], []),
    ],
)
def test_a_tile_names_the_loops_that_its_own_became(
    strides: str, tile: tuple[str, str, str], pipeline: str, axes: list[list[int]], rest: list[int]
) -> None:
    nest, info, _ = transformed(strides, *tile, pipeline)
    found = read_tile(nest, info)
    assert found is not None
    number = info.root.loops.index
    assert [[number(one) for one in loops] for loops, _ in found.axes] == axes
    assert [number(one) for one in found.grid_loops] == rest
    assert str(schedule_table(nest)[GPU]).startswith("{axes"), "and says nothing else"


def test_a_tile_is_gone_where_two_axes_would_share_a_loop():
    nest, _, remarks = transformed(TURNED, *ALL, "loop-collapse{loops=0,1}")
    assert GPU not in schedule_table(nest)
    assert "its tile on a GPU is gone" in " ".join(remarks)


def test_a_refused_transform_leaves_the_tile():
    nest, _, _ = transformed(TURNED, *ALL, "loop-interchange{order=0,0}")
    assert str(schedule_table(nest)[GPU]).startswith("{axes = [[0 : i64], [2 : i64]]")
    assert " loops = " not in str(schedule_table(nest)[GPU])
