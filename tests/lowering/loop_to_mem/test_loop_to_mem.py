"""loop-to-mem: which memory nests store to, and what the caller gets."""

from __future__ import annotations

import pytest
import torch

from stepwell.passes.manager.errors import PassError
from stepwell.tools.interpret.loop import run_loop

POINTWISE = """
func.func @forward(%x: !nd.tensor<4 x 6 x f32>) -> !nd.tensor<4 x 6 x f32> {
  %e = loop.empty : !nd.tensor<4 x 6 x f32>
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : !nd.tensor<4 x 6 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 6 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }
  %e2 = loop.empty : !nd.tensor<4 x 6 x f32>
  %b = loop.nest (%i = 4, %j = 6) outs(%o = %e2 : !nd.tensor<4 x 6 x f32>) {
    %v = loop.load %a[ACCESS] : !nd.tensor<4 x 6 x f32> -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }
  func.return %b : !nd.tensor<4 x 6 x f32>
}
"""


def test_a_dying_operand_is_overwritten(level, seeded):
    counts: dict = {}
    module = level.lower(POINTWISE.replace("ACCESS", "%i, %j"), counts=counts)
    assert counts["num-reused"] == 1
    assert level.allocs(module, "output") == 1 and level.allocs(module, "arena") == 0
    level.check(POINTWISE.replace("ACCESS", "%i, %j"), [seeded(4, 6)])


@pytest.mark.parametrize("access", ["%i, -%j + 5", "%i, 0", "-%i + 3, %j"])
def test_another_index_forbids_reuse(level, seeded, access):
    """Catalogue H07, J02."""
    text = POINTWISE.replace("ACCESS", access)
    module = level.check(text, [seeded(4, 6)])
    assert level.allocs(module, "output") == 1 and level.allocs(module, "arena") == 1


SOFTMAX = """
func.func @forward(%x: !nd.tensor<s0 x 7 x f32>) -> !nd.tensor<s0 x 7 x f32> {
  %e0 = loop.empty : !nd.tensor<s0 x 7 x f32>
  %t = loop.nest (%i = s0, %j = 7) outs(%o = %e0 : !nd.tensor<s0 x 7 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<s0 x 7 x f32> -> f32
    %w = math.tanh %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<s0 x 7 x f32>
  }
  %e = loop.empty : !nd.tensor<s0 x 7 x f32>
  %y = loop.nest (%i = s0) outs(%o = %e : !nd.tensor<s0 x 7 x f32>) {
    %m = loop.reduce (%j = 7) max {
      %a = loop.load %t[%i, %j] : !nd.tensor<s0 x 7 x f32> -> f32
      STORE
      loop.yield %a : f32
    } -> f32
    %s = loop.reduce (%j = 7) sum {
      %a = loop.load %t[%i, %j] : !nd.tensor<s0 x 7 x f32> -> f32
      %b = arith.subf %a, %m : f32
      %c = math.exp %b : f32
      loop.yield %c : f32
    } -> f32
    loop.for (%j = 7) {
      %a = loop.load %t[%i, %j] : !nd.tensor<s0 x 7 x f32> -> f32
      %b = arith.subf %a, %m : f32
      %c = math.exp %b : f32
      %d = arith.divf %c, %s : f32
      loop.store %d, %o[%i, %j] : f32, !nd.tensor<s0 x 7 x f32>
    }
  }
  func.return %y : !nd.tensor<s0 x 7 x f32>
}
"""


@pytest.mark.parametrize("size", [0, 1, 5])
def test_rows_are_read_before_they_are_overwritten(level, seeded, size):
    text = SOFTMAX.replace("STORE", "")
    x = seeded(size, 7)
    module = level.check(text, [x], want=[torch.softmax(torch.tanh(x), -1)])
    assert level.allocs(module, "arena") == 0


def test_a_read_after_a_store_forbids_reuse(level, seeded):
    store = """%z = arith.addf %a, %a : f32
      loop.store %z, %o[%i, %j] : f32, !nd.tensor<s0 x 7 x f32>"""
    module = level.check(SOFTMAX.replace("STORE", store), [seeded(5, 7)])
    assert level.allocs(module, "arena") == 1


CAT = """
func.func @forward(%x: !nd.tensor<3 x 4 x f32>, %y: !nd.tensor<2 x 4 x f32>) -> RESULTS {
  %e = loop.empty : !nd.tensor<5 x 4 x f32>
  %a = loop.nest (%i = 3, %j = 4) outs(%o = %e : !nd.tensor<5 x 4 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<3 x 4 x f32> -> f32
    loop.store %v, %o[%i, %j] : f32, !nd.tensor<5 x 4 x f32>
  }
  %b = loop.nest (%i = 2, %j = 4) outs(%o = %a : !nd.tensor<5 x 4 x f32>) {
    %v = loop.load %y[%i, %j] : !nd.tensor<2 x 4 x f32> -> f32
    loop.store %v, %o[%i + 3, %j] : f32, !nd.tensor<5 x 4 x f32>
  }
  RETURN
}
"""


def test_a_chain_of_stores_fills_one_buffer(level, seeded):
    text = CAT.replace("RESULTS", "!nd.tensor<5 x 4 x f32>").replace("RETURN", "func.return %b : !nd.tensor<5 x 4 x f32>")
    x, y = seeded(3, 4), seeded(2, 4)
    module = level.check(text, [x, y], want=[torch.cat([x, y])])
    assert level.copies(module) == 0 and level.allocs(module, "output") == 1 and level.allocs(module, "arena") == 0


def test_an_initial_tensor_that_is_needed_is_copied(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<4 x f32>, %y: !nd.tensor<2 x f32>) -> (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>) {
  %e = loop.empty : !nd.tensor<4 x f32>
  %a = loop.nest (%i = 4) outs(%o = %e : !nd.tensor<4 x f32>) {
    %v = loop.load %x[%i] : !nd.tensor<4 x f32> -> f32
    %w = arith.negf %v : f32
    loop.store %w, %o[%i] : f32, !nd.tensor<4 x f32>
  }
  %b = loop.nest (%i = 2) outs(%o = %a : !nd.tensor<4 x f32>) {
    %v = loop.load %y[%i] : !nd.tensor<2 x f32> -> f32
    loop.store %v, %o[%i * 2] : f32, !nd.tensor<4 x f32>
  }
  func.return %a, %b : !nd.tensor<4 x f32>, !nd.tensor<4 x f32>
}
"""
    remarks: list = []
    level.lower(text, remarks=remarks)
    assert remarks == ["copies 4 x f32: the tensor that it is built on is read again later"]
    module = level.check(text, [seeded(4), seeded(2)])
    assert level.copies(module) == 1 and level.allocs(module, "output") == 2


def test_arguments_are_copied_and_repeated_results_stored_twice(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<4 x f32>) -> (!nd.tensor<4 x f32>, !nd.tensor<4 x f32>, !nd.tensor<4 x f32>) {
  %e = loop.empty : !nd.tensor<4 x f32>
  %a = loop.nest (%i = 4) outs(%o = %e : !nd.tensor<4 x f32>) {
    %v = loop.load %x[%i] : !nd.tensor<4 x f32> -> f32
    %w = arith.negf %v : f32
    loop.store %w, %o[%i] : f32, !nd.tensor<4 x f32>
  }
  func.return %x, %a, %a : !nd.tensor<4 x f32>, !nd.tensor<4 x f32>, !nd.tensor<4 x f32>
}
"""
    module = level.check(text, [seeded(4)])
    assert len(set(level.returned(module))) == 3 and level.copies(module) == 1
    x = seeded(4)
    results = run_loop(module, [x])
    assert len({r.data_ptr() for r in (*results, x)}) == 4


def test_strides_of_results_reach_the_producer(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<2 x 3 x 4 x 5 x f32>)
    -> (!nd.tensor<2 x 3 x 4 x 5 x f32> {nd.layout = #nd.layout<[60, 1, 15, 3], 0>}) {
  %e = loop.empty : !nd.tensor<2 x 3 x 4 x 5 x f32>
  %a = loop.nest (%i = 2, %j = 3, %k = 4, %l = 5) outs(%o = %e : !nd.tensor<2 x 3 x 4 x 5 x f32>) {
    %v = loop.load %x[%i, %j, %k, %l] : !nd.tensor<2 x 3 x 4 x 5 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j, %k, %l] : f32, !nd.tensor<2 x 3 x 4 x 5 x f32>
  }
  func.return %a : !nd.tensor<2 x 3 x 4 x 5 x f32>
}
"""
    x = seeded(2, 3, 4, 5)
    module = level.check(text, [x], want=[(x + x).contiguous(memory_format=torch.channels_last)])
    assert level.copies(module) == 0
    (result,) = run_loop(module, [x])
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("layout", "shape", "view", "expected_copies"),
    [
        ("[4, 1]", "6 x 4", "(d0, d1) -> (d1, d0)", 0),  # built transposed
        ("[1, 6]", "6 x 4", "(d0, d1) -> (d1, d0)", 0),
        ("[12, 6, 1]", "2 x 2 x 6", "(d0, d1, d2) -> (d0 * 2 + d1, d2)", 0),
        ("[3, 12, 1]", "4 x 2 x 3", "(d0, d1, d2) -> (d0, d1 * 3 + d2)", 1),
        ("[1]", "24", "(d0) -> (d0 floordiv 6, d0 mod 6)", 0),
        ("[6, 1]", "4 x 6", "(d0, d1) -> (-d0 + 3, d1)", 1),
        ("[12, 1]", "2 x 6", "(d0, d1) -> (d0 * 2 + 1, d1)", 0),
        ("[1]", "1", "(d0) -> (3, 2)", 0),
        ("[0, 1]", "3 x 6", "(d0, d1) -> (2, d1)", 0),
    ],
)
def test_returned_views(level, seeded, layout, shape, view, expected_copies):
    text = f"""
func.func @forward(%x: !nd.tensor<4 x 6 x f32>)
    -> (!nd.tensor<{shape} x f32> {{nd.layout = #nd.layout<{layout}, 0>}}) {{
  %e = loop.empty : !nd.tensor<4 x 6 x f32>
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : !nd.tensor<4 x 6 x f32>) {{
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 6 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }}
  %v = nd.view %a {{map = #nd.map<{view}>}} : (!nd.tensor<4 x 6 x f32>) -> !nd.tensor<{shape} x f32>
  func.return %v : !nd.tensor<{shape} x f32>
}}
"""
    if layout == "[0, 1]":  # the reference builds results by copying, which torch refuses for such strides
        module = level.lower(text)
        x = seeded(4, 6)
        (result,) = run_loop(module, [x])
        torch.testing.assert_close(result, (x + x)[2].expand(3, 6))
        assert result.stride() == (0, 1)
    else:
        module = level.check(text, [seeded(4, 6)])
    assert level.copies(module) == expected_copies


def test_results_that_are_views_of_arguments_and_results(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<4 x 6 x f32> {nd.layout = #nd.layout<[6, 1], 0>})
    -> (!nd.tensor<4 x 6 x f32>, !nd.tensor<6 x 4 x f32> {nd.layout = #nd.layout<[1, 6], 0>, nd.alias = "result 0"},
        !nd.tensor<3 x 6 x f32> {nd.layout = #nd.layout<[6, 1], 6>, nd.alias = "arg 0"}) {
  %e = loop.empty : !nd.tensor<4 x 6 x f32>
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : !nd.tensor<4 x 6 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 6 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }
  %t = nd.view %a {map = #nd.map<(d0, d1) -> (d1, d0)>} : (!nd.tensor<4 x 6 x f32>) -> !nd.tensor<6 x 4 x f32>
  %s = nd.view %x {map = #nd.map<(d0, d1) -> (d0 + 1, d1)>} : (!nd.tensor<4 x 6 x f32>) -> !nd.tensor<3 x 6 x f32>
  func.return %a, %t, %s : !nd.tensor<4 x 6 x f32>, !nd.tensor<6 x 4 x f32>, !nd.tensor<3 x 6 x f32>
}
"""
    x = seeded(4, 6)
    module = level.check(text, [x])
    assert level.copies(module) == 0
    whole, transposed, rows = run_loop(module, [x])
    assert transposed.data_ptr() == whole.data_ptr() and rows.data_ptr() == x[1:].data_ptr()
    whole[0, 1] = 7.0
    assert transposed[1, 0] == 7.0


@pytest.mark.parametrize(("second", "expected_copies"), [("y", 0), ("z", 1), (None, 1)])
def test_results_that_are_views_of_one_value(level, seeded, second, expected_copies):
    base = f', nd.base = "{second}"' if second else ""
    text = f"""
func.func @forward(%x: !nd.tensor<4 x 6 x f32>)
    -> (!nd.tensor<4 x 2 x f32> {{nd.layout = #nd.layout<[6, 1], 0>, nd.base = "y"}},
        !nd.tensor<4 x 4 x f32> {{nd.layout = #nd.layout<[6, 1], 0>{base}}}) {{
  %e = loop.empty : !nd.tensor<4 x 6 x f32>
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : !nd.tensor<4 x 6 x f32>) {{
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 6 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }}
  %p = nd.view %a {{map = #nd.map<(d0, d1) -> (d0, d1)>}} : (!nd.tensor<4 x 6 x f32>) -> !nd.tensor<4 x 2 x f32>
  %q = nd.view %a {{map = #nd.map<(d0, d1) -> (d0, d1 + 2)>}} : (!nd.tensor<4 x 6 x f32>) -> !nd.tensor<4 x 4 x f32>
  func.return %p, %q : !nd.tensor<4 x 2 x f32>, !nd.tensor<4 x 4 x f32>
}}
"""
    assert level.copies(level.check(text, [seeded(4, 6)])) == expected_copies


def test_the_producer_stores_a_matrix_as_a_contraction_takes_it(level, seeded):
    """Heads that are joined before a product: the view has no strides unless they are stored that way."""
    t, r = "!nd.tensor<2 x 4 x 3 x 5 x f32>", "!nd.tensor<6 x 20 x f32>"
    text = f"""
func.func @forward(%x: {t}, %w: !nd.tensor<20 x 2 x f32>) -> !nd.tensor<6 x 2 x f32> {{
  %e = loop.empty : {t}
  %a = loop.nest (%b = 2, %h = 4, %s = 3, %d = 5) outs(%o = %e : {t}) {{
    %v = loop.load %x[%b, %h, %s, %d] : {t} -> f32
    %n = arith.negf %v : f32
    loop.store %n, %o[%b, %h, %s, %d] : f32, {t}
  }}
  %r = nd.view %a {{map = #nd.map<(d0, d1) -> (d0 floordiv 3, d1 floordiv 5, d0 mod 3, d1 mod 5)>}} : ({t}) -> {r}
  %e1 = loop.empty : !nd.tensor<6 x 2 x f32>
  %m = loop.contract (%i = 6, %j = 2) reduce (20) %r at #nd.map<(d0, d1, d2) -> (d0, d2)> : {r}
      * %w at #nd.map<(d0, d1, d2) -> (d2, d1)> : !nd.tensor<20 x 2 x f32>
      into %acc : f32 outs(%o = %e1 : !nd.tensor<6 x 2 x f32>) {{
    loop.store %acc, %o[%i, %j] : f32, !nd.tensor<6 x 2 x f32>
  }}
  func.return %m : !nd.tensor<6 x 2 x f32>
}}
"""
    x, w = seeded(2, 4, 3, 5), seeded(20, 2)
    module = level.check(text, [x, w], want=[-x.transpose(1, 2).reshape(6, 20) @ w])
    assert level.copies(module) == 0


def test_a_bad_alias_is_an_error(level):
    text = """
func.func @forward(%x: !nd.tensor<4 x f32>) -> (!nd.tensor<4 x f32> {nd.alias = "result 0"}) {
  func.return %x : !nd.tensor<4 x f32>
}
"""
    with pytest.raises(PassError, match='result 0: nd.alias is "result 0", it must name an argument or an earlier result'):
        level.lower(text)


def test_dropped_loops_without_iterations(level):
    text = """
func.func @forward(%x: !nd.tensor<0 x 3 x f32>) -> (!nd.tensor<0 x 3 x f32>, !nd.tensor<3 x f32>) {
  %e = loop.empty : !nd.tensor<0 x 3 x f32>
  %a = loop.nest (%i = 0, %j = 3) outs(%o = %e : !nd.tensor<0 x 3 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<0 x 3 x f32> -> f32
    loop.store %v, %o[%i, %j] : f32, !nd.tensor<0 x 3 x f32>
  }
  %e2 = loop.empty : !nd.tensor<3 x f32>
  %b = loop.nest (%j = 3) outs(%o = %e2 : !nd.tensor<3 x f32>) {
    %s = loop.reduce (%i = 0) sum {
      %v = loop.load %x[%i, %j] : !nd.tensor<0 x 3 x f32> -> f32
      loop.yield %v : f32
    } -> f32
    loop.store %s, %o[%j] : f32, !nd.tensor<3 x f32>
  }
  func.return %a, %b : !nd.tensor<0 x 3 x f32>, !nd.tensor<3 x f32>
}
"""
    module = level.check(text, [torch.empty(0, 3)], want=[torch.empty(0, 3), torch.zeros(3)])
    assert len(level.nests(module)) == 1


def test_a_contraction_keeps_its_operands(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<4 x 4 x f32>, %w: !nd.tensor<4 x 4 x f32>) -> !nd.tensor<4 x 4 x f32> {
  %e = loop.empty : !nd.tensor<4 x 4 x f32>
  %a = loop.nest (%i = 4, %j = 4) outs(%o = %e : !nd.tensor<4 x 4 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 4 x f32> -> f32
    %n = arith.negf %v : f32
    loop.store %n, %o[%i, %j] : f32, !nd.tensor<4 x 4 x f32>
  }
  %e1 = loop.empty : !nd.tensor<4 x 4 x f32>
  %m = loop.contract (%i = 4, %j = 4) reduce (4)
      %a at #nd.map<(d0, d1, d2) -> (d0, d2)> : !nd.tensor<4 x 4 x f32>
      * %w at #nd.map<(d0, d1, d2) -> (d2, d1)> : !nd.tensor<4 x 4 x f32>
      into %acc : f32 outs(%o = %e1 : !nd.tensor<4 x 4 x f32>) {
    %v = loop.load %a[%i, %j] : !nd.tensor<4 x 4 x f32> -> f32
    %r = arith.addf %acc, %v : f32
    loop.store %r, %o[%i, %j] : f32, !nd.tensor<4 x 4 x f32>
  }
  func.return %m : !nd.tensor<4 x 4 x f32>
}
"""
    x, w = seeded(4, 4), seeded(4, 4) + 1
    module = level.check(text, [x, w], want=[-x @ w - x])
    assert level.allocs(module, "arena") == 1


def test_a_contraction_of_a_reversed_operand(level, seeded):
    text = """
func.func @forward(%x: !nd.tensor<2 x 4 x 3 x f32>, %w: !nd.tensor<3 x 5 x f32>) -> !nd.tensor<2 x 4 x 5 x f32> {
  %e = loop.empty : !nd.tensor<2 x 4 x 5 x f32>
  %m = loop.contract (%b = 2, %i = 4, %j = 5) reduce (3)
      %x at #nd.map<(d0, d1, d2, d3) -> (d0, -d1 + 3, d3)> : !nd.tensor<2 x 4 x 3 x f32>
      * %w at #nd.map<(d0, d1, d2, d3) -> (d3, d2)> : !nd.tensor<3 x 5 x f32>
      into %acc : f32 outs(%o = %e : !nd.tensor<2 x 4 x 5 x f32>) {
    loop.store %acc, %o[%b, %i, %j] : f32, !nd.tensor<2 x 4 x 5 x f32>
  }
  func.return %m : !nd.tensor<2 x 4 x 5 x f32>
}
"""
    x, w = seeded(2, 4, 3), seeded(3, 5)
    module = level.check(text, [x, w], want=[x.flip(1) @ w])
    assert level.copies(module) == 1


def test_uninitialised_results(level):
    text = """
func.func @forward() -> !nd.tensor<2 x f32> {
  %e = loop.empty : !nd.tensor<2 x f32>
  func.return %e : !nd.tensor<2 x f32>
}
"""
    module = level.lower(text)
    assert level.allocs(module, "output") == 1


def test_a_buffer_is_reused_under_other_sizes(level, seeded):
    """Catalogue J02: a dying buffer may be overwritten where every access is at the same address, whatever its sizes."""
    a, b = "!nd.tensor<6 x 8 x f32>", "!nd.tensor<2 x 3 x 8 x f32>"
    text = f"""func.func @forward(%x: {a}, %y: {a}) -> {b} {{
  %e = loop.empty : {a}
  %p = loop.nest (%i = 6, %j = 8) outs(%o = %e : {a}) {{
    %v = loop.load %x[%i, %j] : {a} -> f32
    %w = loop.load %y[%i, %j] : {a} -> f32
    %s = arith.addf %v, %w : f32
    loop.store %s, %o[%i, %j] : f32, {a}
  }}
  %f = loop.empty : {b}
  %q = loop.nest (%k = 2, %i = 3, %j = 8) outs(%o = %f : {b}) {{
    %v = loop.load %p[%k * 3 + %i, %j] : {a} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%k, %i, %j] : f32, {b}
  }}
  %g = loop.empty : {b}
  %r = loop.nest (%k = 2, %i = 3, %j = 8) outs(%o = %g : {b}) {{
    %v = loop.load %q[%k, %i, %j] : {b} -> f32
    %w = loop.load %q[%k, %i, -%j + 7] : {b} -> f32
    %s = arith.addf %v, %w : f32
    loop.store %s, %o[%k, %i, %j] : f32, {b}
  }}
  func.return %r : {b}
}}"""
    counts: dict[str, int] = {}
    level.lower(text, counts)
    assert counts["num-reused"] == 1, "the second nest in the memory of the first; the third reads other places than it stores"
    level.check(text, [seeded(6, 8), seeded(6, 8)])
