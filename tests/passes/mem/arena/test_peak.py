"""The estimate of peak memory, and buffers that live in the memory of an output."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, mem
from stepwell.passes.analysis.lifetimes import lifetimes
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.passes.mem.arena.peak import highest_sum, memory_over_time, peak_bytes
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())
BIG, SMALL = "!mem.buffer<2048 x f32>", "!mem.buffer<1024 x f32>"


def nest(target: str, sources: list[str], size: int, types: list[str]) -> str:
    """A nest that stores the sum of the first elements of `sources` plus one."""
    lines = [f"loop.nest (%i = {size}) outs(%o = {target} : {types[0]}) {{"]
    for k, (source, t) in enumerate(zip(sources, types[1:], strict=True)):
        lines.append(f"%v{k} = loop.load {source}[%i] : {t} -> f32")
    lines.append("%t0 = arith.addf %v0, %v0 : f32")
    last = "%t0"
    for k in range(1, len(sources)):
        lines.append(f"%t{k} = arith.addf {last}, %v{k} : f32")
        last = f"%t{k}"
    lines.append(f"loop.store {last}, %o[%i] : f32, {types[0]} }}")
    return "\n".join(lines)


def program(attrs: str = "") -> str:
    """%a, %b, %c in the arena (all alive at once); %y, twice as large, is written when %a and %b are dead."""
    return f"""builtin.module {{
func.func @forward(%x: {SMALL}{attrs}) -> {BIG} {{
  %a = mem.alloc {{kind = "arena"}} : {SMALL}
  {nest("%a", ["%x"], 1024, [SMALL, SMALL])}
  %b = mem.alloc {{kind = "arena"}} : {SMALL}
  {nest("%b", ["%x"], 1024, [SMALL, SMALL])}
  %c = mem.alloc {{kind = "arena"}} : {SMALL}
  {nest("%c", ["%a", "%b"], 1024, [SMALL, SMALL, SMALL])}
  %y = mem.alloc {{kind = "output"}} : {BIG}
  loop.nest (%i = 2048) outs(%o = %y : {BIG}) {{
    %v = loop.load %c[%i mod 1024] : {SMALL} -> f32
    loop.store %v, %o[%i] : f32, {BIG}
  }}
  func.return %y : {BIG}
}} }}"""


def planned(text: str, options: str = "") -> FuncOp:
    module = Parser(CTX, text).parse_module()
    run(parse_pipeline(f"mem-plan{options}"), module, CTX, Instrumentation(verify_each=True))
    return next(f for f in module.ops if isinstance(f, FuncOp))


def in_outputs(func: FuncOp) -> list[mem.AllocOp]:
    return [op for op in func.body.block.ops if isinstance(op, mem.AllocOp) and op.inside is not None]


def test_buffers_live_in_an_output_that_is_written_later():
    """Catalogue J03, J05: the memory of an output serves before it is filled."""
    without, func = planned(program(), "{use-outputs=false}"), planned(program())
    assert peak_bytes(without) == 3 * 4096 + 8192
    assert len(in_outputs(func)) == 2 and sorted(op.at.data.value for op in in_outputs(func)) == [0, 4096]
    assert peak_bytes(func) == 4096 + 8192


def test_the_plan_computes_the_same(seed: int = 5):
    x = torch.randn(1024, generator=torch.Generator().manual_seed(seed))
    module = Parser(CTX, program()).parse_module()
    run(parse_pipeline("mem-plan"), module, CTX, Instrumentation(verify_each=True))
    again = Parser(CTX, str(module)).parse_module()
    (y,) = run_loop(again, [x.clone()])
    torch.testing.assert_close(y, (6 * x).repeat(2))


def test_arguments_count_until_their_last_use_when_donated():
    """Catalogue H12."""
    moments = memory_over_time(planned(program()))
    assert {m.arguments for m in moments} == {4096}
    func = planned(program(' {nd.donated}'))
    moments = memory_over_time(func)
    assert moments[0].arguments == 4096 and moments[-1].arguments == 0
    assert max(m.total for m in moments) < max(m.total for m in memory_over_time(planned(program())))


def test_an_arena_is_as_small_as_what_lives_at_once_where_packing_finds_it():
    func = planned(program(), "{use-outputs=false}")
    arena = [one for one in lifetimes(func) if one.kind == "arena"]
    assert func.attributes["mem.arena_bytes"].data.value == highest_sum(arena, len(list(func.body.block.ops)))


LARGE, WIDE = "!mem.buffer<8192 x f32>", "!mem.buffer<16384 x f32>"


def two_phases() -> str:
    """%a and %b are large and dead before %y and %z are written, which the caller gets."""
    return f"""builtin.module {{
func.func @forward(%x: {LARGE}) -> ({WIDE}, {WIDE}) {{
  %a = mem.alloc {{kind = "arena"}} : {LARGE}
  {nest("%a", ["%x"], 8192, [LARGE, LARGE])}
  %b = mem.alloc {{kind = "arena"}} : {LARGE}
  {nest("%b", ["%a"], 8192, [LARGE, LARGE])}
  %s = mem.alloc {{kind = "arena"}} : {SMALL}
  {nest("%s", ["%b"], 1024, [SMALL, LARGE])}
  %y = mem.alloc {{kind = "output"}} : {WIDE}
  loop.nest (%i = 16384) outs(%o = %y : {WIDE}) {{
    %v = loop.load %s[%i mod 1024] : {SMALL} -> f32
    loop.store %v, %o[%i] : f32, {WIDE}
  }}
  %z = mem.alloc {{kind = "output"}} : {WIDE}
  loop.nest (%i = 16384) outs(%o = %z : {WIDE}) {{
    %v = loop.load %s[%i mod 1024] : {SMALL} -> f32
    loop.store %v, %o[%i] : f32, {WIDE}
  }}
  func.return %y, %z : {WIDE}, {WIDE}
}} }}"""


def test_large_buffers_go_back_to_the_pool_before_the_peak():
    without = planned(two_phases(), "{use-outputs=false use-pool=false}")
    func = planned(two_phases(), "{use-outputs=false}")
    kinds = [op.kind.data for op in func.body.block.ops if isinstance(op, mem.AllocOp)]
    assert kinds == ["pooled", "pooled", "arena", "output", "output"]
    assert peak_bytes(without) == 2 * 32768 + 2 * 65536
    assert peak_bytes(func) == 4096 + 2 * 65536


def test_small_buffers_stay_in_the_arena():
    func = planned(program(), "{use-outputs=false}")
    assert {op.kind.data for op in func.body.block.ops if isinstance(op, mem.AllocOp)} == {"arena", "output"}


def test_values_with_buffers_from_the_pool(seed: int = 6):
    x = torch.randn(8192, generator=torch.Generator().manual_seed(seed))
    module = Parser(CTX, two_phases()).parse_module()
    run(parse_pipeline("mem-plan{use-outputs=false}"), module, CTX, Instrumentation(verify_each=True))
    y, z = run_loop(Parser(CTX, str(module)).parse_module(), [x.clone()])
    torch.testing.assert_close(y, (8 * x[:1024]).repeat(16))
    torch.testing.assert_close(z, y)


@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "expected"),
    [
        (32, 1, 3, 9 * 32 * 64 * 4),  # one small image: the patches
        (32, 1, 1, 0),
        (32, 32, 7, 32 * 64 * 4 + 32 * 49 * 4),  # copies of the input and the weight
    ],
)
def test_what_a_convolution_takes_while_it_runs_counts(channels, groups, kernel, expected):
    x, w = f"!mem.buffer<1 x {channels} x 8 x 8 x f32>", f"!mem.buffer<{channels} x {channels // groups} x {kernel} x {kernel} x f32>"
    where = f"[{kernel // 2}, {kernel // 2}]"
    call = f'#nd.call<"aten.convolution.default", [arg(0), arg(1), none, [1, 1], {where}, [1, 1], false, [0, 0], {groups}]>'
    func = planned(f"""builtin.module {{ func.func @forward(%x: {x}, %w: {w}) -> {x} {{
  %r = mem.extern %x, %w {{call = {call}}} : ({x}, {w}) -> {x}
  func.return %r : {x}
}} }}""")
    assert memory_over_time(func)[0].scratch == expected


def test_large_buffers_go_back_before_a_call_that_takes_much():
    x, w = "!mem.buffer<1 x 128 x 8 x 8 x f32>", "!mem.buffer<128 x 128 x 3 x 3 x f32>"
    call = '#nd.call<"aten.convolution.default", [arg(0), arg(1), none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1]>'
    text = f"""builtin.module {{ func.func @forward(%x: {LARGE}, %image: {x}, %w: {w}) -> ({SMALL}, {x}) {{
  %a = mem.alloc {{kind = "arena"}} : {LARGE}
  {nest("%a", ["%x"], 8192, [LARGE, LARGE])}
  %s = mem.alloc {{kind = "output"}} : {SMALL}
  {nest("%s", ["%a"], 1024, [SMALL, LARGE])}
  %r = mem.extern %image, %w {{call = {call}}} : ({x}, {w}) -> {x}
  func.return %s, %r : {SMALL}, {x}
}} }}"""
    func = planned(text, "{use-outputs=false}")
    assert [op.kind.data for op in func.body.block.ops if isinstance(op, mem.AllocOp)] == ["pooled", "output"]
