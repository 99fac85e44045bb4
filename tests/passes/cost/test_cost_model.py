"""The cost model: footprints, reuse by loop order, bounds, and that it is a pure function of nest and machine."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from stepwell.dialects import loop
from stepwell.passes.cost.cost_model import SERVER, Work, estimate, nest_cost
from stepwell.passes.cost.footprint import of_nest
from stepwell.passes.cost.machine.cpu import flat
from stepwell.tools.backend.compile_graph import context

SMALL = flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, cache_bytes=32 * 1024)


def nest(text: str, arguments: str) -> loop.NestOp:
    """The first nest of a function with these arguments."""
    module = Parser(context(), f"func.func @f({arguments}) {{\n{text}\nfunc.return\n}}").parse_module()
    return next(op for op in module.walk() if isinstance(op, loop.NestOp))


def add(rows: str, columns: str, first: str, second: str) -> loop.NestOp:
    """x[first] + y[second] over rows and columns."""
    shape = f"{rows} x {columns}"
    swapped = f"{columns} x {rows}" if second == "%j, %i" else shape
    return nest(
        f"""%out = loop.empty : !nd.tensor<{shape} x f32>
        %r = loop.nest (%i = {rows}, %j = {columns}) outs(%o = %out : !nd.tensor<{shape} x f32>) {{
          %a = loop.load %x[{first}] : !nd.tensor<{shape} x f32> -> f32
          %b = loop.load %y[{second}] : !nd.tensor<{swapped} x f32> -> f32
          %c = arith.addf %a, %b : f32
          loop.store %c, %o[%i, %j] : f32, !nd.tensor<{shape} x f32>
        }}""",
        f"%x : !nd.tensor<{shape} x f32>, %y : !nd.tensor<{swapped} x f32>",
    )


def test_bytes_are_those_of_the_distinct_elements():
    """K01"""
    cost = nest_cost(add("512", "256", "%i, %j", "%i, %j"), machine=SMALL)
    assert (cost.work.read, cost.work.written) == (2 * 512 * 256 * 4, 512 * 256 * 4)
    assert cost.bytes == 3 * 512 * 256 * 4
    assert cost.flops == 512 * 256 and cost.specials == 0
    assert cost.bytes_by_level == {"memory": 3 * 512 * 256 * 4}
    assert cost.accesses == {"contiguous": 3}
    assert cost.bound == "memory"


def test_reading_a_tensor_twice_counts_once():
    """DEFECT-04"""
    cost = nest_cost(add("64", "32", "%i, %j", "%i, 0"), machine=SMALL)
    assert cost.work.read == 64 * 32 * 4 + 64 * 4


def test_what_fits_a_cache_costs_no_memory_traffic():
    cost = nest_cost(add("16", "16", "%i, %j", "%i, %j"), machine=SMALL)
    assert cost.bytes_by_level == {"memory": 0.0}


def test_sizes_that_are_symbols_count_with_their_hints():
    op = add("s0", "s1", "%i, %j", "%i, %j")
    assert nest_cost(op, {"s0": 100, "s1": 30}).work.written == 100 * 30 * 4
    assert nest_cost(op, {"s0": 200, "s1": 30}).work.written == 200 * 30 * 4


ROWS = """%out = loop.empty : !nd.tensor<{rows} x f32>
%r = loop.nest (%i = {rows}) outs(%o = %out : !nd.tensor<{rows} x f32>) {{
  %m = loop.reduce (%j = {columns}) max {{
    %a = loop.load %x[%i, %j] : !nd.tensor<{rows} x {columns} x f32> -> f32
    loop.yield %a : f32
  }} -> f32
  %s = loop.reduce (%k = {columns}) sum {{
    %a = loop.load %x[%i, %k] : !nd.tensor<{rows} x {columns} x f32> -> f32
    %d = arith.subf %a, %m : f32
    %e = math.exp %d : f32
    loop.yield %e : f32
  }} -> f32
  loop.store %s, %o[%i] : f32, !nd.tensor<{rows} x f32>
}}"""


def rows(count: int, columns: int) -> loop.NestOp:
    return nest(ROWS.format(rows=count, columns=columns), f"%x : !nd.tensor<{count} x {columns} x f32>")


def test_a_row_that_fits_the_cache_is_fetched_once_for_two_loops_over_it():
    short, long = nest_cost(rows(1024, 1024), machine=SMALL), nest_cost(rows(16, 65536), machine=SMALL)
    size = 1024 * 1024 * 4
    assert short.work.read == long.work.read == size
    assert short.bytes_by_level["memory"] == pytest.approx(size, rel=0.05)
    assert long.bytes_by_level["memory"] == pytest.approx(2 * size, rel=0.05)
    assert long.specials == 1024 * 1024


def test_a_column_walk_that_overflows_the_cache_fetches_whole_lines():
    """Tiles of a transposed operand use each line in full; rows of it would fetch a line for each element."""
    tiled = nest_cost(add("1024", "1024", "%i, %j", "%j, %i"), machine=SMALL)
    assert tiled.style == "tile"
    assert tiled.bytes_by_level["memory"] == pytest.approx(3 * 4 << 20, rel=0.1)
    op = add("1024", "1024", "%i, %j", "%j, %i")
    op.properties["schedule"] = Parser(context(), "{vector = 1 : i64, lanes = 64 : i64}").parse_attribute()
    by_rows = nest_cost(op, machine=SMALL)
    assert by_rows.style == "lanes"
    assert by_rows.bytes_by_level["memory"] > 5 * tiled.bytes_by_level["memory"]


def test_equal_nests_cost_the_same_and_nothing_is_changed():
    op = rows(64, 128)
    before = str(op)
    assert nest_cost(op) == nest_cost(op) == nest_cost(rows(64, 128))
    assert str(op) == before


def test_an_estimate_from_totals_has_a_bound():
    assert estimate(Work(read=1 << 30, written=1 << 30, units=1.0)).bound == "memory"
    assert estimate(Work(read=64, written=64, units=1e6)).bound == "compute"
    assert estimate(Work(read=64, written=64, units=1.0)).bound == "launch"


def test_two_nests_cost_their_sum_of_bytes_and_a_second_launch():
    one = Work(read=100.0, written=50.0, units=10.0, iterations=64.0)
    both = one + one
    assert (both.read, both.written, both.units, both.launches) == (200.0, 100.0, 20.0, 2)
    assert estimate(both).seconds > estimate(one).seconds


def test_threads_share_arithmetic_and_caches():
    work = Work(read=1 << 20, written=1 << 20, units=1e7, iterations=1024.0)
    alone, four = estimate(work, SERVER), estimate(work, SERVER.with_threads(4))
    assert four.seconds < alone.seconds / 3


def test_reuse_distances_say_which_cache_keeps_what_is_read_again():
    op = nest(
        """%out = loop.empty : !nd.tensor<64 x 4096 x f32>
        %r = loop.nest (%i = 64, %j = 4096) outs(%o = %out : !nd.tensor<64 x 4096 x f32>) {
          %a = loop.load %x[%i, %j] : !nd.tensor<64 x 4096 x f32> -> f32
          %b = loop.load %w[%j] : !nd.tensor<4096 x f32> -> f32
          %c = arith.mulf %a, %b : f32
          loop.store %c, %o[%i, %j] : f32, !nd.tensor<64 x 4096 x f32>
        }""",
        "%x : !nd.tensor<64 x 4096 x f32>, %w : !nd.tensor<4096 x f32>",
    )
    found = of_nest(op, {})
    by_name = {s.buffer: k for k, s in enumerate(found.streams)}
    x, w = (by_name[v] for v in op.parent.args)
    assert found.reuse(x) == []
    ((_, distance),) = found.reuse(w)
    assert distance == 3 * 4096 * 4, "a row of x, of w and of the result lie between two reads of an element of w"
