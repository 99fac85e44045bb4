"""The estimate of peak memory, and buffers that live in the memory of an output."""

from __future__ import annotations

import torch
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, mem
from stepwell.passes.instrumentation import Instrumentation
from stepwell.passes.manager import run
from stepwell.passes.mem.lifetimes import lifetimes
from stepwell.passes.mem.peak import highest_sum, memory_over_time, peak_bytes
from stepwell.passes.pipelines import parse_pipeline
from stepwell.tools.interpret_loop import run_loop

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


def guests(func: FuncOp) -> list[mem.AllocOp]:
    return [op for op in func.body.block.ops if isinstance(op, mem.AllocOp) and op.home is not None]


def test_buffers_live_in_an_output_that_is_written_later():
    """Catalogue J03, J05: the memory of an output serves before it is filled."""
    without, func = planned(program(), "{use-outputs=false}"), planned(program())
    assert peak_bytes(without) == 3 * 4096 + 8192
    assert len(guests(func)) == 2 and sorted(op.at.data.value for op in guests(func)) == [0, 4096]
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
