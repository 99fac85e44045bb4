"""loop-to-mem: library calls, the strides that they take and give, what they write to and what shares memory."""

from __future__ import annotations

import pytest
import torch

from stepwell.dialects import mem

PRODUCER = """%e = loop.empty : !nd.tensor<4 x 6 x f32>
  %a = loop.nest (%i = 4, %j = 6) outs(%o = %e : !nd.tensor<4 x 6 x f32>) {
    %v = loop.load %x[%i, %j] : !nd.tensor<4 x 6 x f32> -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%i, %j] : f32, !nd.tensor<4 x 6 x f32>
  }"""
T = "!nd.tensor<4 x 6 x f32>"


def function(body: str, results: str = f" -> {T}", args: str = f"%x: {T}") -> str:
    return f"func.func @forward({args}){results} {{\n  {body}\n}}\n"


def test_the_producer_stores_in_the_strides_that_a_call_takes(level, seeded):
    text = function(f"""{PRODUCER}
  %r = nd.extern %a {{call = #nd.call<"aten.cumsum.default", [arg(0), 0]>, operand_layouts = [#nd.layout<[1, 4], 0>],
    result_layouts = [#nd.layout<[1, 4], 0>]}} : {T}
  %z = loop.nest (%i = 4, %j = 6) outs(%o = %r : {T}) {{
    %v = loop.load %r[%i, %j] : {T} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, {T}
  }}
  func.return %z : {T}""")
    x = seeded(4, 6)
    module = level.check(text, [x], want=[(x + x).cumsum(0).exp()])
    (call,) = level.externs(module)
    assert [int(s) for s in call.operands[0].type.stride_exprs] == [1, 4]
    # the call's result is overwritten in place; the caller wants it row-major
    assert level.copies(module) == 1 and level.allocs(module, "output") == 1


def test_an_argument_with_other_strides_is_copied(level, seeded):
    text = function(
        f"""%r = nd.extern %x {{call = #nd.call<"aten.cumsum.default", [arg(0), 0]>,
    operand_layouts = [#nd.layout<[6, 1], 0>]}} : {T}
  func.return %r : {T}""",
        args=f"%x: {T} {{nd.layout = #nd.layout<[1, 4], 0>}}",
    )
    x = seeded(6, 4).t()
    module = level.check(text, [x], want=[x.cumsum(0)])
    assert level.copies(module) == 1 and level.allocs(module, "arena") == 1
    # the call's own result is what the caller gets
    assert level.returned(module)[0] is level.externs(module)[0].results[0]


def test_strides_of_single_elements_do_not_matter(level, seeded):
    kind = "!nd.tensor<1 x 6 x f32>"
    text = function(
        f"""%r = nd.extern %x {{call = #nd.call<"aten.cumsum.default", [arg(0), 0]>,
    operand_layouts = [#nd.layout<[6, 1], 0>]}} : {kind}
  func.return %r : {kind}""",
        results=f" -> {kind}",
        args=f"%x: {kind} {{nd.layout = #nd.layout<[100, 1], 0>}}",
    )
    assert level.copies(level.check(text, [seeded(1, 6)])) == 0


def test_views_reach_calls_as_views(level, seeded):
    t = "!nd.tensor<6 x 4 x f32>"
    text = function(
        f"""{PRODUCER}
  %t = nd.view %a {{map = #nd.map<(d0, d1) -> (d1, d0)>}} : ({T}) -> {t}
  %f = nd.view %x {{map = #nd.map<(d0, d1) -> (-d0 + 3, d1)>}} : {T}
  %r = nd.extern %t, %f {{call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>,
    result_layouts = [#nd.layout<[6, 1], 0>]}} : ({t}, {T}) -> !nd.tensor<6 x 6 x f32>
  func.return %r : !nd.tensor<6 x 6 x f32>""",
        results=" -> !nd.tensor<6 x 6 x f32>",
    )
    x = seeded(4, 6)
    module = level.check(text, [x], want=[(x + x).t() @ x.flip(0)])
    assert level.copies(module) == 1  # a negative stride is none


@pytest.mark.parametrize("rows", [3, "s1"])
def test_what_a_call_reads_as_a_matrix_is_stored_as_one(level, seeded, rows):
    """Queries and keys side by side for each head, [2, T, H, D], read as [T, 2 x H x D] and its transpose: no copy, and the last of the
    dimensions stays where it was."""
    base, seen, turned = f"!nd.tensor<2 x {rows} x 4 x 5 x f32>", f"!nd.tensor<{rows} x 40 x f32>", f"!nd.tensor<40 x {rows} x f32>"
    text = function(
        f"""%e = loop.empty : {base}
  %a = loop.nest (%n = 2, %t = {rows}, %h = 4, %d = 5) outs(%o = %e : {base}) {{
    %v = loop.load %x[%n, %t, %h, %d] : {base} -> f32
    %w = arith.addf %v, %v : f32
    loop.store %w, %o[%n, %t, %h, %d] : f32, {base}
  }}
  %m = nd.view %a {{map = #nd.map<(d0, d1) -> (d1 floordiv 20, d0, (d1 floordiv 5) mod 4, d1 mod 5)>}} : ({base}) -> {seen}
  %k = nd.view %a {{map = #nd.map<(d0, d1) -> (d0 floordiv 20, d1, (d0 floordiv 5) mod 4, d0 mod 5)>}} : ({base}) -> {turned}
  %r = nd.extern %k, %m {{call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>}} : ({turned}, {seen}) -> !nd.tensor<40 x 40 x f32>
  func.return %r : !nd.tensor<40 x 40 x f32>""",
        results=" -> !nd.tensor<40 x 40 x f32>",
        args=f"%x: {base}",
    )
    x = seeded(2, 3, 4, 5)
    m = (x + x).transpose(0, 1).reshape(3, 40)
    module = level.check(text, [x], want=[m.T @ m])
    (call,) = level.externs(module)
    assert level.copies(module) == 0
    assert [str(s) for s in call.operands[1].type.stride_exprs] == ["40", "1"]
    assert [str(s) for s in call.operands[0].type.stride_exprs] == ["1", "40"]


def test_one_row_that_is_returned_without_its_dimension_is_row_major(level):
    """cuBLAS takes the stride of the only row for the length of rows."""
    row, square, flat = (f'!nd.tensor<{shape} x f32, "cuda:0">' for shape in ("1 x 4", "4 x 4", "4"))
    text = function(
        f"""%r = nd.extern %x, %y {{call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>,
    result_layouts = [#nd.layout<[4, 1], 0>]}} : ({row}, {square}) -> {row}
  %v = nd.view %r {{map = #nd.map<(d0) -> (0, d0)>}} : ({row}) -> {flat}
  func.return %v : {flat}""",
        results=f" -> ({flat} {{nd.layout = #nd.layout<[1], 0>}})",
        args=f"%x: {row}, %y: {square}",
    )
    (result,) = (op.result.type for op in level.lower(text).walk() if isinstance(op, mem.AllocOp))
    assert tuple(map(str, result.stride_exprs)) == ("4", "1")


def test_products_are_computed_in_the_arena(level, seeded):
    """D04"""
    s = "!nd.tensor<4 x 4 x f32>"
    call = 'call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>, result_layouts = [#nd.layout<[4, 1], 0>]'
    text = function(
        f"""%a = nd.extern %x, %x {{{call}}} : {s}
  %b = nd.extern %a, %x {{{call}}} : {s}
  %c = nd.extern %b, %x {{{call}}} : {s}
  func.return %c : {s}""",
        results=f" -> {s}",
        args=f"%x: {s}",
    )
    x = seeded(4, 4)
    module = level.check(text, [x], want=[x @ x @ x @ x])
    assert [op.out is not None for op in level.externs(module)] == [True, True, False]
    assert level.allocs(module, "arena") == 2


def mutation(operand: str, body: str, results: str = f" -> {T}", args: str = f"%x: {T}") -> str:
    """Calls relu_ on `operand`; its new value is %r."""
    return function(
        body.replace(
            "CALL",
            f'%r = nd.extern {operand} {{call = #nd.call<"aten.relu_.default", [arg(0)]>, mutates = [0]}} : {T}',
        ),
        results,
        args,
    )


def test_a_dying_temporary_is_written_by_the_call(level, seeded):
    module = level.check(mutation("%a", f"{PRODUCER}\n  CALL\n  func.return %r : {T}"), [seeded(4, 6)])
    assert level.copies(module) == 0 and level.allocs(module, "output") == 1


def test_a_call_writes_to_a_copy_of_what_is_needed_again(level, seeded):
    text = mutation("%a", f"{PRODUCER}\n  CALL\n  func.return %r, %a : {T}, {T}", results=f" -> ({T}, {T})")
    x = seeded(4, 6)
    module = level.check(text, [x], want=[(x + x).relu(), x + x])
    assert level.copies(module) == 1


def test_a_call_writes_to_a_copy_of_an_argument(level, seeded):
    x = seeded(4, 6)
    module = level.check(mutation("%x", f"CALL\n  func.return %r : {T}"), [x], want=[x.relu()])
    assert level.copies(module) == 1 and level.allocs(module, "output") == 1


def test_a_call_writes_to_an_argument_that_it_updates(level, seeded):
    text = mutation("%x", f"CALL\n  nd.update %x, %r : ({T}, {T}) -> ()\n  func.return", results="")
    module = level.check(text, [seeded(4, 6)])
    assert level.copies(module) == 0 and not level.nests(module)


def test_a_result_that_shares_memory_keeps_its_operand(level, seeded):
    text = function(
        f"""{PRODUCER}
  %s = nd.extern %a {{call = #nd.call<"aten.slice.Tensor", [arg(0), 0, 1, 3]>, aliases = [0],
    result_layouts = [#nd.layout<[6, 1], 0>]}} : ({T}) -> !nd.tensor<2 x 6 x f32>
  %e2 = loop.empty : {T}
  %b = loop.nest (%i = 4, %j = 6) outs(%o = %e2 : {T}) {{
    %v = loop.load %a[%i, %j] : {T} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, {T}
  }}
  %e3 = loop.empty : !nd.tensor<2 x 6 x f32>
  %c = loop.nest (%i = 2, %j = 6) outs(%o = %e3 : !nd.tensor<2 x 6 x f32>) {{
    %v = loop.load %s[%i, %j] : !nd.tensor<2 x 6 x f32> -> f32
    loop.store %v, %o[%i, %j] : f32, !nd.tensor<2 x 6 x f32>
  }}
  func.return %b, %c : {T}, !nd.tensor<2 x 6 x f32>""",
        results=f" -> ({T}, !nd.tensor<2 x 6 x f32>)",
    )
    x = seeded(4, 6)
    module = level.check(text, [x], want=[(x + x).exp(), (x + x)[1:3]])
    assert level.allocs(module, "output") == 2 and level.allocs(module, "arena") == 1


def test_sizes_that_a_call_defines(level):
    text = """
func.func @forward(%x: !nd.tensor<4 x i64>) -> !nd.tensor<(u0 * 2) x f32> {
  %n = nd.extern %x {call = #nd.call<"aten.sum.default", [arg(0)]>} : (!nd.tensor<4 x i64>) -> !nd.tensor<i64>
  %u = nd.extern %n {call = #nd.call<"aten._local_scalar_dense.default", [arg(0)]>, binds = "u0"}
    : (!nd.tensor<i64>) -> index
  %e = loop.empty : !nd.tensor<u0 x f32>
  %a = loop.nest (%i = u0) outs(%o = %e : !nd.tensor<u0 x f32>) {
    %k = loop.index %i + 1 : i64
    %f = arith.sitofp %k : i64 to f32
    loop.store %f, %o[%i] : f32, !nd.tensor<u0 x f32>
  }
  %e2 = loop.empty : !nd.tensor<(u0 * 2) x f32>
  %b = loop.nest (%i = u0 * 2) outs(%o = %e2 : !nd.tensor<(u0 * 2) x f32>) {
    %f = loop.load %a[%i floordiv 2] : !nd.tensor<u0 x f32> -> f32
    loop.store %f, %o[%i] : f32, !nd.tensor<(u0 * 2) x f32>
  }
  func.return %b : !nd.tensor<(u0 * 2) x f32>
}
"""
    module = level.check(text, [torch.tensor([1, 0, 2, 0])], want=[torch.tensor([1.0, 1, 2, 2, 3, 3])])
    assert level.allocs(module, "arena") == 1


def test_what_overwrites_the_result_of_a_call_is_returned_without_a_second_store(level, seeded):
    text = function(f"""%r = nd.extern %x {{call = #nd.call<"aten.cumsum.default", [arg(0), 0]>}} : {T}
  %e = loop.empty : {T}
  %z = loop.nest (%i = 4, %j = 6) outs(%o = %e : {T}) {{
    %v = loop.load %r[%i, %j] : {T} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, {T}
  }}
  func.return %z : {T}""")
    x = seeded(4, 6)
    module = level.check(text, [x], want=[x.cumsum(0).exp()])
    assert level.returned(module)[0] is level.externs(module)[0].results[0]
    assert level.allocs(module, "output") == level.allocs(module, "arena") == 0
