"""loop-to-mem: in-place updates of arguments, when they need no copy and when they do."""

from __future__ import annotations

import pytest
import torch


def negated(access: str = "%i, %j", strides: str = "[6, 1]", before: str = "", after: str = "", extra: str = "") -> str:
    """x[i, j] = x[access] * 2 for a 4 x 6 argument with `strides`."""
    return f"""
func.func @forward(%x: !nd.tensor<4 x 6 x f32> {{nd.layout = #nd.layout<{strides}, 0>}}){extra} {{
  {before}
  %e = loop.empty : !nd.tensor<4 x 6 x f32>
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : !nd.tensor<4 x 6 x f32>) {{
    %v = loop.load %x[{access}] : !nd.tensor<4 x 6 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }}
  nd.update %x, %a : (!nd.tensor<4 x 6 x f32>, !nd.tensor<4 x 6 x f32>) -> ()
  {after or "func.return"}
}}
"""


@pytest.mark.parametrize(
    ("strides", "make"),
    [
        ("[6, 1]", lambda x: x),
        ("[1, 4]", lambda x: x.reshape(6, 4).t()),
        ("[12, 1]", lambda x: torch.cat([x, x], 1)[:, 3:9]),
        ("[6, 1]", lambda x: torch.cat([x, x])[2:6]),
    ],
    ids=["contiguous", "transposed", "sliced columns", "sliced rows"],
)
def test_pointwise_updates_are_in_place(level, seeded, strides, make):
    """Catalogue B16."""
    text = negated(strides=strides)
    x = make(seeded(4, 6))
    module = level.check(text, [x])
    assert len(level.nests(module)) == 1 and level.allocs(module, "arena") == 0


@pytest.mark.parametrize("access", ["-%i + 3, %j", "%i, 0", "%i, (%j + 1) mod 6", "0, %j"])
def test_updates_from_other_elements_go_through_memory_of_their_own(level, seeded, access):
    module = level.check(negated(access), [seeded(4, 6)])
    assert level.copies(module) == 1 and level.allocs(module, "arena") == 1


def test_a_later_read_of_the_old_value_forbids_an_update_in_place(level, seeded):
    after = """%e2 = loop.empty : !nd.tensor<4 x 6 x f32>
  %b = loop.nest (%i = 4, %j = 6) outs(%o = %e2 : !nd.tensor<4 x 6 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 6 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }
  func.return %b : !nd.tensor<4 x 6 x f32>"""
    x = seeded(4, 6)
    text = negated(after=after, extra=" -> !nd.tensor<4 x 6 x f32>")
    module = level.check(text, [x], want=[x.exp()])
    assert level.copies(module) == 0 and level.allocs(module, "arena") == 0  # the reader moves in front


def test_an_updated_argument_as_result(level, seeded):
    extra = ' -> (!nd.tensor<4 x 6 x f32> {nd.layout = #nd.layout<[6, 1], 0>, nd.alias = "arg 0"})'
    x = seeded(4, 6)
    module = level.check(negated(after="func.return %a : !nd.tensor<4 x 6 x f32>", extra=extra), [x])
    assert len(level.nests(module)) == 1 and level.returned(module)[0] is level.ops(module)[0].parent.args[0]


def test_a_fresh_result_with_the_value_of_an_update(level, seeded):
    extra = " -> !nd.tensor<4 x 6 x f32>"
    x = seeded(4, 6)
    module = level.check(negated(after="func.return %a : !nd.tensor<4 x 6 x f32>", extra=extra), [x])
    assert level.allocs(module, "output") == 1 and level.copies(module) == 0  # the nest stores both


def test_a_fresh_result_with_the_value_of_an_update_from_other_elements(level, seeded):
    extra = " -> !nd.tensor<4 x 6 x f32>"
    x = seeded(4, 6)
    text = negated("-%i + 3, %j", after="func.return %a : !nd.tensor<4 x 6 x f32>", extra=extra)
    module = level.check(text, [x], want=[(x + x).flip(0)])
    assert level.allocs(module, "output") == 1 and level.copies(module) == 1


def test_two_arguments_and_results_in_two_layouts_with_one_value(level, seeded):
    t = "!nd.tensor<4 x 6 x f32>"
    text = f"""
func.func @forward(%x: {t}, %y: {t} {{nd.layout = #nd.layout<[1, 4], 0>}})
    -> ({t} {{nd.layout = #nd.layout<[1, 4], 0>}}, {t} {{nd.layout = #nd.layout<[6, 1], 0>}}) {{
  %e = loop.empty : {t}
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : {t}) {{
    %v = loop.load %x[%i, %j] : {t} -> f32
    %w = loop.load %y[%i, %j] : {t} -> f32
    %s = arith.addf %v, %w : f32
    loop.store %s, %o[%i, %j] : f32, {t}
  }}
  nd.update %x, %a : ({t}, {t}) -> ()
  nd.update %y, %a : ({t}, {t}) -> ()
  func.return %a, %a : {t}, {t}
}}
"""
    x, y = seeded(4, 6), seeded(6, 4).t()
    module = level.check(text, [x, y], want=[x + y, x + y])
    assert len(level.nests(module)) == 1 and level.allocs(module, "output") == 2


@pytest.mark.parametrize(
    ("view", "expected_copies"),
    [
        ("(d0, d1) -> (d0, d1)", 0),
        ("(d0, d1) -> (-d0 + 3, d1)", 2),
        ("(d0, d1) -> (d1, d0)", 2),
        ("(d0, d1) -> (0, d1)", 2),
    ],
)
def test_an_argument_updated_with_a_view_of_itself(level, seeded, view, expected_copies):
    text = f"""
func.func @forward(%x: !nd.tensor<4 x 4 x f32> {{nd.layout = #nd.layout<[4, 1], 0>}}) {{
  %v = nd.view %x {{map = #nd.map<{view}>}} : (!nd.tensor<4 x 4 x f32>) -> !nd.tensor<4 x 4 x f32>
  nd.update %x, %v : (!nd.tensor<4 x 4 x f32>, !nd.tensor<4 x 4 x f32>) -> ()
  func.return
}}
"""
    module = level.check(text, [seeded(4, 4)])
    assert level.copies(module) == expected_copies


def test_arguments_that_swap_their_values(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<4 x f32>, %y: !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
  nd.update %x, %y : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> ()
  nd.update %y, %x : (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) -> ()
  func.return %x : !nd.tensor<4 x f32>
}
"""
    x, y = seeded(4), seeded(4) + 1
    level.check(text, [x, y], want=[x])


def test_the_last_of_two_updates_wins(level, seeded):
    text = negated(before="").replace(
        "func.return",
        """%z = nd.view %x {map = #nd.map<(d0, d1) -> (d0, -d1 + 5)>}
    : (!nd.tensor<4 x 6 x f32>) -> !nd.tensor<4 x 6 x f32>
  nd.update %x, %z : (!nd.tensor<4 x 6 x f32>, !nd.tensor<4 x 6 x f32>) -> ()
  func.return""",
    )
    level.check(text, [seeded(4, 6)])


SCATTER = """
func.func @forward(%x: !nd.tensor<8 x f32>, %k: !nd.tensor<3 x i64>, %v: !nd.tensor<3 x f32>)RESULTS {
  %a = loop.nest () outs(%o = %x : !nd.tensor<8 x f32>) {
    loop.for (%i = 3) {
      %n = loop.load %k[%i] : !nd.tensor<3 x i64> -> i64
      %j = loop.bound %n, 8 "index_put" wrap : i64
      %w = loop.load SOURCE : f32
      loop.store %w, %o[%j] : f32, !nd.tensor<8 x f32>
    } attributes {sequential}
  }
  nd.update %x, %a : (!nd.tensor<8 x f32>, !nd.tensor<8 x f32>) -> ()
  RETURN
}
"""


def test_a_scatter_into_an_updated_argument_is_in_place(level, seeded):
    text = SCATTER.replace("RESULTS", "").replace("RETURN", "func.return")
    text = text.replace("loop.load SOURCE : f32", "loop.load %v[%i] : !nd.tensor<3 x f32> -> f32")
    inputs = [seeded(8), torch.tensor([1, -1, 1]), seeded(3)]
    module = level.check(text, inputs)
    assert level.copies(module) == 0 and level.allocs(module, "arena") == 0
    with pytest.raises(IndexError, match="index_put: index 8 is out of bounds for a dimension of size 8"):
        level.check(text, [seeded(8), torch.tensor([1, 8, 1]), seeded(3)])


def test_a_scatter_of_what_it_overwrites_is_copied(level, seeded):
    """x[k] = x[0:3]: the values are those before the assignment."""
    text = SCATTER.replace("RESULTS", "").replace("RETURN", "func.return")
    text = text.replace("loop.load SOURCE : f32", "loop.load %x[%i] : !nd.tensor<8 x f32> -> f32")
    x = seeded(8)
    module = level.check(text, [x, torch.tensor([2, 1, 0]), seeded(3)])
    assert level.copies(module) == 2


def test_a_scatter_into_an_argument_that_stays(level, seeded):
    text = SCATTER.replace("RESULTS", " -> !nd.tensor<8 x f32>").replace("RETURN", "func.return %a : !nd.tensor<8 x f32>")
    text = text.replace("loop.load SOURCE : f32", "loop.load %v[%i] : !nd.tensor<3 x f32> -> f32")
    text = "\n".join(line for line in text.split("\n") if "nd.update" not in line)
    module = level.check(text, [seeded(8), torch.tensor([2, 1, 0]), seeded(3)])
    assert level.copies(module) == 1 and level.allocs(module, "output") == 1


MOVED = """func.func @forward(%x: !nd.tensor<3 x 12 x f32>) -> !nd.tensor<3 x 12 x f32> {{
  %e = loop.empty : !nd.tensor<3 x 12 x f32>
  %p = loop.nest (%i = 3, %j = 12) outs(%o = %e : !nd.tensor<3 x 12 x f32>) {{
    %v = loop.load %x[%i, %j] : !nd.tensor<3 x 12 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<3 x 12 x f32>
  }}
  %r = loop.nest ({loops}) outs(%o = %p : !nd.tensor<3 x 12 x f32>) {{
    %v = loop.load %p[{read}] : !nd.tensor<3 x 12 x f32> -> f32
    loop.store %v, %o[{stored}] : f32, !nd.tensor<3 x 12 x f32>
  }}
  func.return %r : !nd.tensor<3 x 12 x f32>
}}"""


@pytest.mark.parametrize(
    ("loops", "read", "stored", "copies"),
    [
        ("%i = 3, %j = 2", "%i, %j + 2", "%i, %j + 10", 0),
        ("%i = 3, %j = 2", "%i, -%j + 9", "%i, %j + 10", 0),
        ("%i = 1, %j = 12", "%i + 2, %j", "%i, -%j + 11", 0),
        ("%i = 2, %j = 12", "%i + 1, %j", "%i, %j", 1),
        ("%i = 3, %j = 6", "%i, %j + 5", "%i, %j", 1),
        ("%i = 3, %j = 6", "%i, %j * 2 + 1", "%i, %j * 2", 1),
    ],
    ids=["columns", "reversed", "rows", "overlapping rows", "overlapping columns", "between each other"],
)
def test_places_that_are_never_read_are_overwritten(level, seeded, loops, read, stored, copies):
    """What is read of the tensor that a nest is built on lies apart from where it stores, in whatever iteration."""
    module = level.check(MOVED.format(loops=loops, read=read, stored=stored), [seeded(3, 12)])
    assert level.copies(module) == copies


@pytest.mark.parametrize(("size", "copies"), [("(s0 + 6)", 0), ("(s0 + 5)", 1)])
def test_borders_of_rows_of_unknown_length(level, size, copies):
    """Rows from 6 on, whatever the symbol: two columns of each side and those beside them lie apart."""
    tensor = f"!nd.tensor<3 x {size} x f32>"
    text = f"""func.func @forward(%x: {tensor}) -> {tensor} {{
  %e = loop.empty : {tensor}
  %p = loop.nest (%i = 3, %j = {size}) outs(%o = %e : {tensor}) {{
    %v = loop.load %x[%i, %j] : {tensor} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, {tensor}
  }}
  %r = loop.nest (%i = 3, %j = 2) outs(%o = %p : {tensor}) {{
    %v = loop.load %p[%i, %j + 2] : {tensor} -> f32
    loop.store %v, %o[%i, %j + {size} - 2] : f32, {tensor}
  }}
  func.return %r : {tensor}
}}"""
    assert level.copies(level.lower(text)) == copies
