"""loop-schedule: what is chosen for typical nests, that edits are followed, and the analysis under it."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.lowering.mem_to_cpu import MemToCpu
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.cost.schedule_choice import choose
from stepwell.passes.loop.loop_schedule import LoopSchedule
from stepwell.passes.manager.verify import verify_ir

POINTWISE = """
func.func @forward(%x : {x}, %y : {y}, %o : {o}) {{
  loop.nest ({loops}) outs(%oo = %o : {o}) {{
    %a = loop.load %x[{xi}] : {x} -> f32
    %b = loop.load %y[{yi}] : {y} -> f32
    %c = arith.addf %a, %b : f32
    loop.store %c, %oo[{oi}] : f32, {o}
  }}{schedule}
  func.return
}}
"""

ROWS = """
func.func @forward(%x : {x}, %o : {o}) {{
  loop.nest ({outer}) outs(%oo = %o : {o}) {{
    %s = loop.reduce ({inner}) sum {{
      %a = loop.load %x[%i, %j] : {x} -> f32
      loop.yield %a : f32
    }} -> f32
    loop.store %s, %oo[{at}] : f32, {o}
  }}
  func.return
}}
"""


def parse(text):
    ctx = load_dialects(Context())
    module = Parser(ctx, text).parse_module()
    verify_ir(module)
    return ctx, module


def nest_of(module):
    return next(op for op in module.walk() if op.name == "loop.nest")


def pointwise(rows=64, cols=256, y="[%i, %j]", y_strides="", schedule=""):
    b = f"!mem.buffer<{rows} x {cols} x f32>"
    return POINTWISE.format(
        x=b, y=f"!mem.buffer<{rows} x {cols} x f32{y_strides}>", o=b, loops=f"%i = {rows}, %j = {cols}", xi="%i, %j",
        yi=y[1:-1], oi="%i, %j", schedule=f" attributes {{schedule = {schedule}}}" if schedule else "",
    )  # fmt: skip


def chosen(text):
    _, module = parse(text)
    return choose(NestAccess(nest_of(module), RangeEnv()), {})


def test_contiguous_loops_are_merged():
    """Catalogue G02."""
    _, module = parse(pointwise())
    info = NestAccess(nest_of(module), RangeEnv())
    (one,) = info.root.loops
    assert (one.size.value, one.positions) == (64 * 256, (0, 1))


def test_loops_that_differ_stay_apart():
    _, module = parse(pointwise(y_strides=", [300, 1]"))
    info = NestAccess(nest_of(module), RangeEnv())
    assert [one.size.value for one in info.root.loops] == [64, 256]


def test_divided_index_is_split():
    """Catalogue G13."""
    b = "!mem.buffer<8 x 32 x f32>"
    text = POINTWISE.format(
        x=b, y=b, o="!mem.buffer<256 x f32>", loops="%i = 256", xi="%i floordiv 32, %i mod 32",
        yi="%i floordiv 32, (%i + 16) mod 32", oi="%i", schedule="",
    )  # fmt: skip
    _, module = parse(text)
    info = NestAccess(nest_of(module), RangeEnv())
    assert not any(a.offset.has_div for a in info.root.accesses if not str(a.offset).count("16"))
    assert [one.size.value for one in info.root.loops] in ([8, 32], [16, 16], [8, 2, 16])


REPEATED = """
func.func @forward(%x : !mem.buffer<{rows} x 64 x f32>, %y : {b}, %o : {b}) {{
  loop.nest ({loops}) outs(%oo = %o : {b}) {{
    %a = loop.load %x[{at} floordiv 4] : !mem.buffer<{rows} x 64 x f32> -> f32
    %e = math.exp %a : f32
    %c = loop.load %y[{index}] : {b} -> f32
    %m = arith.mulf %e, %c : f32
    loop.store %m, %oo[{index}] : f32, {b}
  }}
  func.return
}}
"""


def test_pieces_of_merged_loops_have_names():
    """Rows and columns merged, then split where the index is divided: the rows' number means what the columns' does not."""
    b = "!mem.buffer<8 x 64 x 256 x f32>"
    text = REPEATED.format(rows=64, b=b, loops="%i = 8, %j = 64, %k = 256", at="%j, %k", index="%i, %j, %k")
    ctx, module = parse(text)
    info = NestAccess(nest_of(module), RangeEnv())
    assert [(one.size.value, one.positions) for one in info.root.loops] == [(8, (0,)), (4096, (1, 2)), (4, (2,))]
    LoopSchedule().apply(ctx, module)
    assert "vector = 1 : i64" in str(module) and "tile = 2 : i64" in str(module)
    MemToCpu().apply(ctx, module)
    assert "vector<16xf32>" in str(module)


def test_an_outer_piece_of_a_loop_runs_along_the_lanes():
    """Columns in groups of 3 that lie apart: the groups' numbers are contiguous, and the outer piece of the loop over columns."""
    b = "!mem.buffer<3 x 64 x f32>"
    at = "%i mod 3, %i floordiv 3"
    text = POINTWISE.format(x=b, y=b, o="!mem.buffer<192 x f32>", loops="%i = 192", xi=at, yi=at, oi="%i", schedule="")
    ctx, module = parse(text)
    LoopSchedule().apply(ctx, module)
    written = str(module)
    assert "piece = 1 : i64" in written
    again = choose(NestAccess(nest_of(module), RangeEnv()), {})
    assert (again.style, again.vector.size.value) == ("lanes", 64)
    MemToCpu().apply(ctx, module)
    assert "vector<64xf32>" in str(module)


@pytest.mark.parametrize(
    "text,style,loop",
    [
        (pointwise(y_strides=", [300, 1]"), "lanes", 1),
        (pointwise(y_strides=", [1, 64]"), "tile", 1),
        (ROWS.format(x="!mem.buffer<64 x 256 x f32>", o="!mem.buffer<64 x f32>", outer="%i = 64", inner="%j = 256",
          at="%i"), "inner", None),
        (ROWS.format(x="!mem.buffer<64 x 256 x f32>", o="!mem.buffer<256 x f32>", outer="%j = 256", inner="%i = 64",
          at="%j"), "lanes", 0),
    ],
    ids=["rows of two strides", "transposed operand", "row sums", "column sums"],
)  # fmt: skip
def test_choice(text, style, loop):
    """Catalogue A12, G03."""
    schedule = chosen(text)
    assert schedule.style == style
    assert (schedule.vector.positions[-1] if schedule.vector else None) == loop


@pytest.mark.parametrize(("source", "target", "vector"), [("f32", "bf16", 1), ("bf16", "f32", 0), ("f32", "f32", 1), ("f64", "f64", None)])
def test_the_narrow_side_of_a_transposition_is_the_one_that_is_shuffled(source, target, vector):
    """Catalogue G14."""
    kind = "f64" if source == "f64" else "f32"
    x, o = f"!mem.buffer<64 x 256 x {source}>", f"!mem.buffer<256 x 64 x {target}>"
    schedule = chosen(f"""
    func.func @forward(%x : {x}, %o : {o}) {{
      loop.nest (%i = 64, %j = 256) outs(%oo = %o : {o}) {{
        %a = loop.load %x[%i, %j] : {x} -> {kind}
        loop.store %a, %oo[%j, %i] : {kind}, {o}
      }}
      func.return
    }}""")
    assert (schedule.vector.positions[-1] if schedule.style == "tile" else None) == vector


def test_small_work_stays_on_one_thread():
    assert not chosen(pointwise(8, 32)).parallel
    assert chosen(pointwise(2048, 1024)).parallel


def test_the_pass_writes_what_mem_to_cpu_follows():
    ctx, module = parse(pointwise(y_strides=", [300, 1]"))
    LoopSchedule().apply(ctx, module)
    text = str(module)
    assert "vector = 1 : i64" in text and "lanes = 64 : i64" in text
    _, again = parse(text)
    MemToCpu().apply(ctx, again)
    assert "vector<64xf32>" in str(again)


def test_an_edited_schedule_is_followed():
    ctx, module = parse(pointwise(y_strides=", [300, 1]",
      schedule="{vector = 1 : i64, lanes = 16 : i64, parallel = false}"))
    MemToCpu().apply(ctx, module)
    text = str(module)
    assert "vector<16xf32>" in text and "vector<64xf32>" not in text
    assert "cpu.parallel" not in text


def test_inner_choice_is_written_and_followed():
    text = ROWS.format(
        x="!mem.buffer<64 x 256 x f32>", o="!mem.buffer<64 x f32>", outer="%i = 64", inner="%j = 256", at="%i"
    )
    ctx, module = parse(text)
    LoopSchedule().apply(ctx, module)
    written = str(module)
    assert 'vector = "inner"' in written
    edited = written.replace("lanes = 64 : i64", "lanes = 32 : i64")
    assert edited != written
    _, again = parse(edited)
    MemToCpu().apply(ctx, again)
    assert "vector<32xf32>" in str(again)


def test_meeting_stores_are_neither_vector_nor_parallel():
    i, o = "!mem.buffer<100000 x i64>", "!mem.buffer<7 x i64>"
    text = f"""
    func.func @forward(%i : {i}, %o : {o}) {{
      loop.nest (%e = 100000) outs(%oo = %o : {o}) {{
        %k = loop.load %i[%e] : {i} -> i64
        %b = loop.bound %k, 7 "index" : i64
        loop.store %k, %oo[%b] add : i64, {o}
      }}
      func.return
    }}"""
    schedule = chosen(text)
    assert schedule.style == "inner" and not schedule.parallel


@pytest.mark.parametrize("row", [512, 528])
def test_rows_beside_a_strided_vector(row):
    """Lanes along rows of x and every fourth element of y: lanes down the columns of x would fetch a line for each element."""
    _, module = parse(f"""
    func.func @forward(%x : !mem.buffer<128 x {row} x f32>, %y : !mem.buffer<{row} x f32, [4]>, %o : !mem.buffer<128 x f32>) {{
      loop.nest (%i = 128) outs(%oo = %o : !mem.buffer<128 x f32>) {{
        %s = loop.reduce (%j = {row}) sum {{
          %a = loop.load %x[%i, %j] : !mem.buffer<128 x {row} x f32> -> f32
          %b = loop.load %y[%j] : !mem.buffer<{row} x f32, [4]> -> f32
          %c = arith.mulf %a, %b : f32
          loop.yield %c : f32
        }} -> f32
        loop.store %s, %oo[%i] : f32, !mem.buffer<128 x f32>
      }}
      func.return
    }}""")
    assert choose(NestAccess(nest_of(module), RangeEnv({})), {}).style == "inner"


def test_strided_loads_are_priced_by_their_lines():
    """A long step costs more than a short one, and far more where the lanes' lines belong to a few sets of the first cache."""

    def price(step):
        type = f"!mem.buffer<4096 x f32, [{step}]>"
        _, module = parse(f"""
        func.func @forward(%x : {type}, %o : !mem.buffer<4096 x f32>) {{
          loop.nest (%i = 4096) outs(%oo = %o : !mem.buffer<4096 x f32>) {{
            %a = loop.load %x[%i] : {type} -> f32
            loop.store %a, %oo[%i] : f32, !mem.buffer<4096 x f32>
          }}
          func.return
        }}""")
        return choose(NestAccess(nest_of(module), RangeEnv({})), {}).cost

    assert price(1) < price(3) < price(8) < price(16) == price(250) < price(256) == price(1024)


NEAREST = """
func.func @forward(%x : !mem.buffer<2000 x 16 x f32>, %c : !mem.buffer<32 x 16 x f32>, %o : !mem.buffer<2000 x f32>) {
  loop.nest (%i = 2000) outs(%oo = %o : !mem.buffer<2000 x f32>) {
    %m = loop.reduce (%k = 32) min {
      %s = loop.reduce (%j = 16) sum {
        %a = loop.load %x[%i, %j] : !mem.buffer<2000 x 16 x f32> -> f32
        %b = loop.load %c[%k, %j] : !mem.buffer<32 x 16 x f32> -> f32
        %d = arith.subf %a, %b : f32
        %q = arith.mulf %d, %d : f32
        loop.yield %q : f32
      } -> f32
      loop.yield %s : f32
    } -> f32
    loop.store %m, %oo[%i] : f32, !mem.buffer<2000 x f32>
  }
  func.return
}
"""


@pytest.mark.parametrize("columns", [16, 32, 64])
def test_short_rows_are_vectors(columns):
    rows = f"!mem.buffer<4096 x {columns} x f32>"
    text = ROWS.format(x=rows, o="!mem.buffer<4096 x f32>", outer="%i = 4096", inner=f"%j = {columns}", at="%i")
    schedule = chosen(text)
    assert schedule.style == "inner"
    assert all(choice is not None and choice[1] == columns for choice in schedule.inner.values())


def test_what_an_unrolled_loop_reads_again_is_kept():
    """The rows of x are gathered once for all k."""
    assert chosen(NEAREST).style == "lanes"


SCATTER = """
func.func @forward(%i : !mem.buffer<1000 x i64>, %x : !mem.buffer<1000 x f32>, %o : !mem.buffer<50 x f32>) {{
  loop.nest () outs(%oo = %o : !mem.buffer<50 x f32>) {{
    loop.for (%e = 1000) {{
      %k = loop.load %i[%e] : !mem.buffer<1000 x i64> -> i64
      %b = loop.bound %k, 50 "index" : i64
      %a = loop.load {source} -> f32
      %v = math.exp %a : f32
      loop.store %v, %oo[%b] {mode} : f32, !mem.buffer<50 x f32>
    }} attributes {{sequential}}
  }}
  func.return
}}
"""


@pytest.mark.parametrize(
    "source, lanes",
    [("%x[%e] : !mem.buffer<1000 x f32>", True), ("%o[%b] : !mem.buffer<50 x f32>", False)],
)
def test_iterations_in_order_run_along_the_lanes_where_they_read_nothing_that_they_store(source, lanes):
    """Expensive values are computed in vectors, and combined one lane after the other."""
    _, module = parse(SCATTER.format(source=source, mode="add"))
    schedule = choose(NestAccess(nest_of(module), RangeEnv()), {})
    (choice,) = schedule.inner.values()
    assert (choice is not None) == lanes


def test_the_work_that_is_worth_a_thread():
    """The option is for nests that do not say theirs; what is said stands in the schedule, where mem-to-cpu finds it."""
    for said, grain, parallel in (("", 1, True), ("{grain = 4000 : i64}", 4000, False)):
        ctx, module = parse(pointwise(schedule=said))
        LoopSchedule(grain=1).apply(ctx, module)
        schedule = choose(NestAccess(nest_of(module), RangeEnv()), {})
        assert (schedule.grain, schedule.parallel) == (grain, parallel)
        MemToCpu().apply(ctx, module)
        verify_ir(module)
        assert any(op.name == "cpu.parallel" for op in module.walk()) == parallel
