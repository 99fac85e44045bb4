"""mem-plan: places in the arena, their sharing, and the estimate of peak memory."""

from __future__ import annotations

import random

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, mem
from stepwell.dialects.expr import as_expr, evaluate, free_syms, sym
from stepwell.dialects.expr.ranges import Range, RangeEnv
from stepwell.dialects.mem import ALIGNMENT, buffer_bytes
from stepwell.passes.analysis.lifetimes import Lifetime, lifetimes
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.passes.mem.arena.mem_plan import pack
from stepwell.passes.mem.arena.peak import memory_over_time, peak_bytes
from stepwell.passes.mem.arena.slots import Sizes, share_slots

CTX = load_dialects(Context())
HEADER = "builtin.module attributes {nd.symbols = {s0 = #nd.range<1, -1, 100>, s1 = #nd.range<1, -1, 10>}} {"


def plan(text: str) -> tuple[ModuleOp, FuncOp, list[mem.AllocOp]]:
    module = Parser(CTX, HEADER + text + "}").parse_module()
    run(parse_pipeline("mem-plan"), module, CTX, Instrumentation(verify_each=True))
    func = next(f for f in module.ops if isinstance(f, FuncOp))
    return module, func, [op for op in func.body.block.ops if isinstance(op, mem.AllocOp)]


def chain(size: str, count: int) -> str:
    """A chain of `count` copies of a buffer, each read once, the last one into an output."""
    t = f"!mem.buffer<{size} x f32>"
    lines = [f"func.func @forward(%b0: {t}) -> {t} {{"]
    for k in range(1, count + 1):
        kind = "output" if k == count else "arena"
        lines.append(f'%b{k} = mem.alloc {{kind = "{kind}"}} : {t}')
        lines.append(f"loop.nest (%i = {size}) outs(%o = %b{k} : {t}) {{")
        lines.append(f"%v = loop.load %b{k - 1}[%i] : {t} -> f32")
        lines.append(f"loop.store %v, %o[%i] : f32, {t} }}")
    return "\n".join([*lines, f"func.return %b{count} : {t} }}"])


def test_a_chain_takes_two_places():
    """Catalogue J03, J08."""
    _, func, allocs = plan(chain("100", 8))
    assert [op.at.data.value for op in allocs[:-1]] == [0, 448] * 3 + [0]
    assert allocs[-1].at is None
    assert func.attributes["mem.arena_bytes"].data.value == 2 * 448
    assert peak_bytes(func) == 2 * 448 + 400


def test_a_symbolic_chain_takes_two_slots():
    _, func, allocs = plan(chain("s0", 8))
    assert len({op.at.data for op in allocs[:-1]}) == 2
    total = func.attributes["mem.arena_bytes"].data
    assert str(total) == "((s0 + 15) floordiv 16) * 128"
    peak = peak_bytes(func)
    assert not isinstance(peak, int) and evaluate(peak, {"s0": 100}) == 2 * 448 + 400


def test_buffers_of_symbolic_size_leave_the_arena_where_the_typical_peak_falls():
    """A wide buffer at the beginning, and results at the end, beside which the arena would still hold it."""
    wide, t = "!mem.buffer<s0 x 512 x f32>", "!mem.buffer<s0 x 256 x f32>"
    store = "%v{k} = arith.constant 1.0 : f32\nloop.store %v{k}, %o{k}[%i{k}, 0] : f32, {t} }}"
    text = f"""func.func @forward(%x: !mem.buffer<s0 x 2 x f32>) -> ({t}, {t}, {t}) {{
      %w = mem.alloc {{kind = "arena"}} : {wide}
      loop.nest (%i = s0) outs(%o = %w : {wide}) {{
        %v = arith.constant 1.0 : f32
        loop.store %v, %o[%i, 0] : f32, {wide} }}
      %r0 = mem.alloc {{kind = "output"}} : {t}
      loop.nest (%i0 = s0) outs(%o0 = %r0 : {t}) {{
        %v0 = loop.load %w[%i0, 0] : {wide} -> f32
        loop.store %v0, %o0[%i0, 0] : f32, {t} }}"""
    for k in (1, 2):
        text += f'\n%r{k} = mem.alloc {{kind = "output"}} : {t}\nloop.nest (%i{k} = s0) outs(%o{k} = %r{k} : {t}) {{\n'
        text += store.format(k=k, t=t)
    _, func, allocs = plan(text + f"\nfunc.return %r0, %r1, %r2 : {t}, {t}, {t} }}")
    assert [op.kind.data for op in allocs] == ["pooled", "output", "output", "output"]
    assert max(m.total - m.arguments for m in memory_over_time(func, {"s0": 100})) == 100 * 256 * 4 * 3


def test_views_keep_their_memory():
    t, v = "!mem.buffer<64 x f32>", "!mem.buffer<8 x 8 x f32, [1, 8]>"
    nest = """loop.nest (%i = 64) outs(%o = {0} : {2}) {{
    %v = loop.load {1}[%i] : {2} -> f32
    loop.store %v, %o[%i] : f32, {2}
  }}"""
    _, _, allocs = plan(f"""
func.func @forward(%x: {t}) -> {t} {{
  %a = mem.alloc {{kind = "arena"}} : {t}
  {nest.format("%a", "%x", t)}
  %w = mem.view %a : ({t}) -> {v}
  %b = mem.alloc {{kind = "arena"}} : {t}
  {nest.format("%b", "%x", t)}
  %c = mem.alloc {{kind = "output"}} : {t}
  loop.nest (%i = 64) outs(%o = %c : {t}) {{
    %p = loop.load %w[%i floordiv 8, %i mod 8] : {v} -> f32
    %q = loop.load %b[%i] : {t} -> f32
    %s = arith.addf %p, %q : f32
    loop.store %s, %o[%i] : f32, {t}
  }}
  func.return %c : {t}
}}""")
    assert [op.at.data.value for op in allocs[:2]] == [0, 256]


def test_results_that_share_memory_keep_it():
    t, n = "!mem.buffer<64 x f32>", "!mem.buffer<32 x f32>"
    text = f"""
func.func @forward(%x: {t}) -> {n} {{
  %a = mem.alloc {{kind = "arena"}} : {t}
  mem.extern %x, %a {{call = #nd.call<"aten.relu.default", [arg(0)]>, out = [1]}} : ({t}, {t}) -> ()
  %s = mem.extern %a {{call = #nd.call<"aten.slice.Tensor", [arg(0), 0, 0, 32]>, aliases = [0]}} : ({t}) -> {n}
  %b = mem.alloc {{kind = "arena"}} : {t}
  mem.extern %x, %b {{call = #nd.call<"aten.relu.default", [arg(0)]>, out = [1]}} : ({t}, {t}) -> ()
  %r = mem.extern %s, %b {{call = #nd.call<"aten.cat.default", [[arg(0), arg(1)]]>}} : ({n}, {t}) -> {n}
  func.return %r : {n}
}}"""
    _, func, allocs = plan(text)
    assert [op.at.data.value for op in allocs] == [0, 256]
    assert [(one.kind, one.first, one.last) for one in lifetimes(func)] == [
        ("arena", 1, 5),
        ("arena", 4, 5),
        ("extern", 5, 6),
    ]
    assert peak_bytes(func) == 512 + 128


def test_sizes_that_are_known_late_have_no_place():
    _, func, allocs = plan("""
func.func @forward(%x: !mem.buffer<s0 x f32>) -> index {
  %u = mem.extern %x {call = #nd.call<"aten._local_scalar_dense.default", [arg(0)]>, binds = "u0"}
    : (!mem.buffer<s0 x f32>) -> index
  %a = mem.alloc {kind = "arena"} : !mem.buffer<u0 x f32>
  %b = mem.alloc {kind = "arena"} : !mem.buffer<s0 x f32>
  mem.extern %x, %b {call = #nd.call<"aten.relu.default", [arg(0)]>, out = [1]}
    : (!mem.buffer<s0 x f32>, !mem.buffer<s0 x f32>) -> ()
  func.return %u : index
}""")
    assert allocs[0].at is None and allocs[1].at is not None
    assert free_syms(func.attributes["mem.arena_bytes"].data) == {sym("s0")}


def test_bytes_of_a_buffer():
    assert buffer_bytes(mem.BufferType.get([4, 6], f32, [1, 8], 3)).value == (3 + 5 * 8 + 3 + 1) * 4
    assert buffer_bytes(mem.BufferType.get([4, 0], f32)).value == 0


def random_lifetimes(rng: random.Random, sizes: list) -> list[Lifetime]:
    found = []
    for _ in range(rng.randrange(1, 40)):
        first = rng.randrange(50)
        found.append(Lifetime(None, "arena", as_expr(rng.choice(sizes)), first, first + rng.randrange(12)))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_random_packings_do_not_overlap(seed):
    buffers = random_lifetimes(random.Random(seed), [0, 64, 128, 192, 640, 4096])
    offsets, end = pack(buffers)
    spans = [(at, at + int(b.bytes), b) for at, b in zip(offsets, buffers, strict=True)]
    assert end == max(stop for _, stop, _ in spans) and all(at % ALIGNMENT == 0 for at in offsets)
    for k, (start, stop, one) in enumerate(spans):
        for other_start, other_stop, other in spans[:k]:
            assert not one.overlaps(other) or stop <= other_start or other_stop <= start or start == stop, seed
    alive = max(sum(int(b.bytes) for b in buffers if b.first <= t <= b.last) for t in range(64))
    assert alive <= end <= 1.5 * alive, seed


@pytest.mark.parametrize("seed", range(20))
def test_random_slots_do_not_overlap(seed):
    s0, s1 = sym("s0"), sym("s1")
    env = RangeEnv({s0: Range(1), s1: Range(1)})
    buffers = random_lifetimes(random.Random(seed), [s0 * 64, s0 * 128, s1 * 64, s0 * 64 + 64, s0 * s1 * 64])
    slots = share_slots(buffers, Sizes(env, {"s0": 100, "s1": 10}))
    assert sum(len(s.members) for s in slots) == len(buffers)
    for slot in slots:
        for k, one in enumerate(slot.members):
            assert not any(one.overlaps(other) for other in slot.members[:k]), seed
            for values in ({"s0": 1, "s1": 1}, {"s0": 7, "s1": 300}):
                assert evaluate(one.bytes, values) <= evaluate(slot.bytes, values), seed


@pytest.mark.parametrize("workspace", ["", ", workspace"])
def test_a_workspace_stays_in_the_arena(workspace):
    """What may as well be memory that stays from call to call is no part of an output."""
    _, _, allocs = plan(f"""
      func.func @forward(%x: !mem.buffer<2000 x f32>) -> !mem.buffer<2000 x f32> {{
        %w = mem.alloc {{kind = "arena"{workspace}}} : !mem.buffer<2000 x f32>
        loop.nest (%i = 2000) outs(%o = %w : !mem.buffer<2000 x f32>) {{
          %v = loop.load %x[%i] : !mem.buffer<2000 x f32> -> f32
          loop.store %v, %o[%i] : f32, !mem.buffer<2000 x f32> }}
        %s = mem.alloc {{kind = "arena"}} : !mem.buffer<1 x f32>
        loop.nest (%i = 1) outs(%o = %s : !mem.buffer<1 x f32>) {{
          %v = loop.load %w[%i] : !mem.buffer<2000 x f32> -> f32
          loop.store %v, %o[%i] : f32, !mem.buffer<1 x f32> }}
        %y = mem.alloc {{kind = "output"}} : !mem.buffer<2000 x f32>
        loop.nest (%i = 2000) outs(%o = %y : !mem.buffer<2000 x f32>) {{
          %v = loop.load %s[0] : !mem.buffer<1 x f32> -> f32
          loop.store %v, %o[%i] : f32, !mem.buffer<2000 x f32> }}
        func.return %y : !mem.buffer<2000 x f32>
      }}""")
    first = next(op for op in allocs if op.result.type.dims[0].value == 2000 and op.kind.data == "arena")
    assert (first.inside is None) == bool(workspace) and first.at is not None
