"""loop-order: which moves are made for a lower peak, which are not legal, and that the result stays."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop, nd
from stepwell.passes.loop.loop_order import Graph, Profile, lower_peak
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.passes.mem.arena.peak import memory_over_time
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())
BIG, SMALL = "!nd.tensor<64 x 64 x f32>", "!nd.tensor<64 x f32>"


def nest(name: str, sources: list[str], rows: bool = False, init: str = "") -> str:
    """%name = the sum of the sources (BIG, or one number for each row of it), stored in a new tensor, or in `init`."""
    loads = [f"%v{k} = loop.load {s}[%i, %j] : {BIG} -> f32" for k, s in enumerate(sources)]
    adds = [f"%s{k} = arith.addf %{'s' if k > 1 else 'v'}{k - 1}, %v{k} : f32" for k in range(1, len(sources))]
    last = f"%s{len(sources) - 1}" if len(sources) > 1 else "%v0"
    out = SMALL if rows else BIG
    empty = "" if init else f"%{name}_e = loop.empty : {out}\n"
    body = "\n".join([*loads, *adds])
    if rows:
        body = f"%r = loop.reduce (%j = 64) sum {{\n{body}\nloop.yield {last} : f32\n}} -> f32\nloop.store %r, %o[%i] : f32, {SMALL}"
    else:
        body += f"\nloop.store {last}, %o[%i, %j] : f32, {BIG}"
    loops = "%i = 64" if rows else "%i = 64, %j = 64"
    return f"{empty}%{name} = loop.nest ({loops}) outs(%o = {init or f'%{name}_e'} : {out}) {{\n{body}\n}}\n"


def function(body: str, arguments: str, results: str, types: str) -> str:
    return f"builtin.module {{\nfunc.func @forward({arguments}) -> ({types}) {{\n{body}func.return {results} : {types}\n}}\n}}"


def backward(attribute: str = " {nd.donated}") -> str:
    """Gradients in eager's order: that of the activation (%p, needed at the end) before what needs the saved %a for the last time."""
    body = nest("p", ["%g", "%g"]) + nest("q", ["%a", "%g"], rows=True) + nest("z", ["%p", "%b"], rows=True)
    return function(body, f"%g: {BIG}, %a: {BIG}{attribute}, %b: {BIG}{attribute}", "%q, %z", f"{SMALL}, {SMALL}")


def ordered(text: str, counts: dict[str, int] | None = None):
    module = Parser(CTX, text).parse_module()
    instrument = Instrumentation(verify_each=True, statistics=True)
    run(parse_pipeline("loop-order"), module, CTX, instrument)
    if counts is not None:
        counts.update({key: n for (_, key), n in instrument.counts.items()})
    func = next(f for f in module.ops if isinstance(f, FuncOp))
    return module, [op.results[0].name_hint for op in func.body.block.ops if isinstance(op, loop.NestOp)]


def peak(text: str, passes: str) -> int:
    module = Parser(CTX, text).parse_module()
    run(parse_pipeline(passes), module, CTX, Instrumentation())
    return max(m.total for m in memory_over_time(next(f for f in module.ops if isinstance(f, FuncOp))))


def test_what_frees_a_saved_tensor_goes_first():
    """Catalogue J05: a step that frees more than it makes goes before the peak; the estimate of the memory level falls."""
    counts: dict[str, int] = {}
    module, order = ordered(backward(), counts)
    assert order == ["q", "p", "z"]
    assert counts["bytes-saved"] == 64 * 64 * 4 - 64 * 4 and counts["num-moved"] == 2
    assert peak(backward(), "loop-order,loop-to-mem,mem-plan") < peak(backward(), "loop-to-mem,mem-plan")
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(64, 64, generator=generator) for _ in range(3)]
    for a, b in zip(run_loop(module, [x.clone() for x in inputs]), run_loop(Parser(CTX, backward()).parse_module(), inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_the_order_stays_where_nothing_is_won():
    """Catalogue J05: never worse; what the caller keeps is not freed, so that no order is better."""
    body = nest("p", ["%g", "%g"]) + nest("q", ["%a", "%g"], rows=True) + nest("z", ["%p", "%b"])
    text = function(body, f"%g: {BIG}, %a: {BIG}, %b: {BIG}", "%p, %q, %z", f"{BIG}, {SMALL}, {BIG}")
    assert ordered(text)[1] == ["p", "q", "z"]


def test_a_function_without_steps():
    """The gradient of a bias that has the sizes of what it is added to: a tangent, and saved tensors that nothing reads."""
    assert ordered(function("", f"%g: {BIG}, %a: {BIG} {{nd.donated}}", "%g", BIG))[1] == []


def test_a_step_that_makes_much_waits_until_it_is_needed():
    body = nest("p", ["%x"]) + nest("t", ["%y"]) + nest("u", ["%t", "%y"], rows=True) + nest("z", ["%p"], rows=True)
    text = function(body, f"%x: {BIG}, %y: {BIG}", "%u, %z", f"{SMALL}, {SMALL}")
    assert ordered(text)[1] == ["t", "u", "p", "z"]


def test_updates_stay_behind_reads_of_the_old_value():
    """Catalogue H04: a nest that may store in place stays behind what reads the old value."""
    body = nest("p", ["%g"]) + nest("q", ["%x", "%a"], rows=True) + nest("n", ["%x"]) + nest("z", ["%p"], rows=True)
    body += f"nd.update %x, %n : ({BIG}, {BIG}) -> ()\n"
    text = function(body, f"%g: {BIG}, %x: {BIG}, %a: {BIG} {{nd.donated}}", "%q, %z", f"{SMALL}, {SMALL}")
    order = ordered(text)[1]
    assert order.index("q") < order.index("n")
    built = nest("p", ["%g"]) + nest("q", ["%p"], rows=True) + nest("n", ["%g"], init="%p") + nest("z", ["%n"], rows=True)
    order = ordered(function(built, f"%g: {BIG}", "%q, %z", f"{SMALL}, {SMALL}"))[1]
    assert order.index("q") < order.index("n")


def test_nothing_goes_past_an_effect():
    """Catalogue D17: calls with effects stay where they are, and so does everything around them."""
    effect = 'nd.extern {call = #nd.call<"py", []>, effect} : () -> ()\n'
    body = nest("p", ["%g", "%g"]) + effect + nest("q", ["%a", "%g"], rows=True) + nest("z", ["%p", "%b"], rows=True)
    text = function(body, f"%g: {BIG}, %a: {BIG} {{nd.donated}}, %b: {BIG}", "%q, %z", f"{SMALL}, {SMALL}")
    module, order = ordered(text)
    ops = list(next(f for f in module.ops if isinstance(f, FuncOp)).body.block.ops)
    (call,) = [op for op in ops if isinstance(op, nd.ExternOp)]
    assert order == ["p", "q", "z"] and ops.index(call) == 2, "without the call %q goes first"


def test_the_profile_is_the_sum_of_what_lives():
    module = Parser(CTX, backward()).parse_module()
    graph = Graph(next(f for f in module.ops if isinstance(f, FuncOp)), {})
    profile = Profile(graph, 48)
    big, small = 64 * 64 * 4, 64 * 4
    # %a and %b from the start; %p beside them; %a dies in %q; %p and %b die in %z
    assert profile.alive == [3 * big, 3 * big + small, 2 * big + 2 * small]
    lower, before, after = lower_peak(graph, 48, 48)
    assert (lower.order, before, after) == ([1, 0, 2], 3 * big + small, 2 * big + 2 * small)


def test_time_is_linear_in_the_number_of_steps(monkeypatch: pytest.MonkeyPatch):
    """Catalogue J05: at most a fixed number of moves is tried, whatever the size of the graph."""
    from stepwell.passes.loop import loop_order

    body = "".join(nest(f"p{k}", ["%g", "%g"]) for k in range(60)) + "".join(nest(f"z{k}", [f"%p{k}"], rows=True) for k in range(60))
    results = ", ".join(f"%z{k}" for k in range(60))
    text = function(body, f"%g: {BIG}", results, ", ".join([SMALL] * 60))
    module = Parser(CTX, text).parse_module()
    graph = Graph(next(f for f in module.ops if isinstance(f, FuncOp)), {})
    tried: list[int] = []

    class Counting(Profile):
        def measure(self) -> None:
            tried.append(1)
            super().measure()

    monkeypatch.setattr(loop_order, "Profile", Counting)
    _, first, last = lower_peak(graph, 48, 48)
    assert last < first and len(tried) <= 2 * 48 + 1
