"""Alias sets and dependences of functions at the memory level."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop, mem
from stepwell.dialects.expr import ZERO
from stepwell.passes.analysis.dependences import address_in, alias_roots, dependences, memory_of
from stepwell.tools.backend.compile_graph import compile_graph
from stepwell.tools.options.options import make_options


class AtMemory:
    """Keeps the function after the stage `mem`."""

    func: Any = None

    def graph(self, kind, gm, module) -> None:
        pass

    def stage(self, stage, module) -> None:
        if stage == "mem":
            self.module = module.clone()
            self.func = next(op for op in self.module.ops if isinstance(op, FuncOp))

    def record(self, kind, what) -> None:
        pass

    def remark(self, remark) -> None:
        pass


def function(fn, *args) -> FuncOp:
    watch = AtMemory()
    compile_graph(make_fx(fn)(*args), list(args), make_options(None, None), watch=watch)
    return watch.func


def kinds(func: FuncOp) -> list[tuple[int, int, str]]:
    steps = [op for op in func.body.block.ops if isinstance(op, loop.NestOp | loop.ContractOp | mem.ExternOp)]
    return [(steps.index(d.first), steps.index(d.second), d.kind) for d in dependences(func)]


X = torch.randn(32, 32)


def test_a_reader_depends_on_what_it_reads():
    """Catalogue G06."""
    found = kinds(function(lambda x: (torch.sort(x)[0] + 1,), torch.randn(2, 4096)))
    assert (0, 1, "read after write") in found


def test_an_argument_that_is_written_waits_for_its_readers():
    """H10, Catalogue G06, H04."""
    def update(x, y):
        total = x @ y
        x.copy_(y + 1)
        return (total,)

    found = kinds(function(update, X.clone(), X.clone()))
    assert (0, 1, "write after read") in found
    assert all(first < second for first, second, _ in found)


def test_pieces_of_the_arena_that_share_memory_are_ordered():
    func = function(lambda x: (x @ x @ x @ x @ x,), X)
    places = [op for op in func.body.block.ops if isinstance(op, mem.AllocOp) and op.at is not None]
    assert len({op.at.data for op in places if op.at is not None}) < len(places), "some share a place"
    assert not alias_roots(func)
    found = kinds(func)
    assert "write after read" in {kind for _, _, kind in found}


def test_an_output_waits_for_what_lives_in_its_memory():
    """J03: buffers at one place of the arena and of an output, or of two outputs, share no memory."""
    small = "!mem.buffer<64 x f32>"

    def nest(target, source):
        return f"""loop.nest (%i = 64) outs(%o = {target} : {small}) {{
          %v = loop.load {source}[%i] : {small} -> f32
          loop.store %v, %o[%i] : f32, {small}
        }}"""

    text = f"""func.func @forward(%x : {small}) -> ({small}, {small}) {{
      %first = mem.alloc {{kind = "output"}} : {small}
      %second = mem.alloc {{kind = "output"}} : {small}
      %a = mem.alloc %first {{kind = "arena", at = 0}} : ({small}) -> {small}
      %b = mem.alloc %second {{kind = "arena", at = 0}} : ({small}) -> {small}
      %c = mem.alloc {{kind = "arena", at = 0}} : {small}
      {nest("%a", "%x")}
      {nest("%b", "%a")}
      {nest("%c", "%b")}
      {nest("%first", "%x")}
      {nest("%second", "%x")}
      func.return %first, %second : {small}, {small}
    }}"""
    func = Parser(load_dialects(Context()), text).parse_module().body.block.first_op
    assert isinstance(func, FuncOp)
    reads = [(0, 1, "read after write"), (1, 2, "read after write")]
    assert kinds(func) == [*reads, (1, 3, "write after read"), (2, 4, "write after read")]


def test_what_may_lie_anywhere_hides_no_writer():
    """A nest writes a number, and a buffer whose size is a symbol: who reads the number still waits for that nest."""
    one, some = "!mem.buffer<1 x f32>", "!mem.buffer<s0 x f32>"
    text = f"""builtin.module attributes {{nd.symbols = {{s0 = #nd.range<2, -1, 64>}}}} {{
      func.func @forward(%x : {some}, %y : {one}) {{
        %number = mem.alloc {{kind = "arena", at = 0}} : {one}
        %rows = mem.alloc {{kind = "arena", at = 64}} : {some}
        %late = mem.alloc {{kind = "arena", at = ((s0 + 15) floordiv 16) * 64 + 64}} : {some}
        loop.nest (%i = 1) outs(%a = %number : {one}, %b = %rows : {some}, %c = %late : {some}) {{
          %v = loop.load %x[%i] : {some} -> f32
          loop.store %v, %a[%i] : f32, {one}
          loop.store %v, %b[%i] : f32, {some}
          loop.store %v, %c[%i] : f32, {some}
        }}
        loop.nest (%i = 1) outs(%a = %y : {one}) {{
          %v = loop.load %number[%i] : {one} -> f32
          loop.store %v, %a[%i] : f32, {one}
        }}
        func.return
      }}
    }}"""
    module = Parser(load_dialects(Context()), text).parse_module()
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    assert kinds(func) == [(0, 1, "read after write")]


def test_views_are_of_one_set():
    """Catalogue H02."""
    func = function(lambda x: (torch.sort(x.view(2, 2048))[0].view(64, 64) * 2,), torch.randn(64, 64))
    views = [op for op in func.body.block.ops if isinstance(op, mem.ViewOp)]
    roots = alias_roots(func)
    assert views and all(op.result in roots and roots[op.result] not in roots for op in views)


def test_views_that_a_library_gives_are_of_one_memory():
    """Where in it such a view begins is not known: no address of it is taken for one of the memory."""
    text = """builtin.module {
      func.func @forward(%x: !mem.buffer<4 x complex<f32>>) {
        %a = mem.extern %x {call = #nd.call<"aten.view_as_real.default", [arg(0)]>, aliases = [0]}
          : (!mem.buffer<4 x complex<f32>>) -> !mem.buffer<4 x 2 x f32>
        %b = mem.view %a : (!mem.buffer<4 x 2 x f32>) -> !mem.buffer<4 x f32, [2]>
        %c = mem.extern %x {call = #nd.call<"aten.view_as_real.default", [arg(0)]>}
          : (!mem.buffer<4 x complex<f32>>) -> !mem.buffer<4 x 2 x f32>
        func.return
      }
    }"""
    module = Parser(load_dialects(Context()), text).parse_module()
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    a, b, c = (op.results[0] for op in list(func.body.block.ops)[:3])
    x = func.body.block.args[0]
    assert [memory_of(v) is x for v in (a, b, c)] == [True, True, False]
    assert alias_roots(func) == {a: x, b: x}
    assert address_in(a, ZERO) == address_in(b, ZERO) != address_in(x, ZERO)


@pytest.mark.parametrize("fn", [lambda x: (x + 1,), lambda x: (x.sum(0), x.exp())])
def test_what_only_reads_arguments_depends_on_nothing(fn):
    assert kinds(function(fn, X)) == []
