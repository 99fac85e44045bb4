"""Sums whose terms would all be alive at the peak are added up as the terms come."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.passes.mem.arena.peak import peak_bytes
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())


def program(terms: int, size: str = "64", extra: str = "") -> str:
    """The sum of `terms` tensors, the k-th is x to the power of k; `extra` is code in front of the sum."""
    t = f"!nd.tensor<{size} x 128 x f32>"
    lines = [f"builtin.module attributes {{nd.symbols = {{s0 = #nd.range<1, -1, 64>}}}} {{ func.func @forward(%x: {t}) -> {t} {{"]
    before = "%x"
    for k in range(terms):
        lines.append(f"""%e{k} = loop.empty : {t}
%m{k} = loop.nest (%i = {size}, %j = 128) outs(%o = %e{k} : {t}) {{
  %a = loop.load {before}[%i, %j] : {t} -> f32
  %b = loop.load %x[%i, %j] : {t} -> f32
  %c = arith.mulf %a, %b : f32
  loop.store %c, %o[%i, %j] : f32, {t}
}}""")
        before = f"%m{k}"
    lines.append(f"{extra}%e = loop.empty : {t}\n%y = loop.nest (%i = {size}, %j = 128) outs(%o = %e : {t}) {{")
    lines += [f"%v{k} = loop.load %m{k}[%i, %j] : {t} -> f32" for k in range(terms)]
    lines.append("%t1 = arith.addf %v0, %v1 : f32")
    lines += [f"%t{k} = arith.addf %t{k - 1}, %v{k} : f32" for k in range(2, terms)]
    lines.append(f"loop.store %t{terms - 1}, %o[%i, %j] : f32, {t} }}")
    return "\n".join([*lines, f"func.return %y : {t} }} }}"])


def chained(terms: int) -> str:
    """As `program`, but each term is only read by the sum: x times its number."""
    text, t = program(terms), "!nd.tensor<64 x 128 x f32> -> f32"
    for k in range(terms - 1):
        text = text.replace(f"loop.load %m{k}[%i, %j] : {t}\n  %b", f"loop.load %x[%i, %j] : {t}\n  %b")
    return text


def lowered(text: str) -> tuple[FuncOp, str]:
    module = Parser(CTX, text).parse_module()
    run(parse_pipeline("loop-to-mem,mem-plan"), module, CTX, Instrumentation(verify_each=True))
    return next(f for f in module.ops if isinstance(f, FuncOp)), str(module)


def nests(func: FuncOp) -> int:
    return sum(isinstance(op, loop.NestOp) for op in func.body.block.ops)


@pytest.mark.parametrize("terms", [3, 8, 13])
def test_a_long_sum_keeps_few_terms(terms: int, seed: int = 7):
    func, text = lowered(chained(terms))
    assert nests(func) > terms + 1
    peak = peak_bytes(func)
    assert isinstance(peak, int) and peak <= 4 * 64 * 128 * 4
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(seed))
    (y,) = run_loop(Parser(CTX, text).parse_module(), [x.clone()])
    want = x * x
    for _ in range(terms - 1):
        want = want + x * x
    assert torch.equal(y, want)


def test_terms_that_others_read_too_stay_in_one_sum():
    func, _ = lowered(program(6))
    assert nests(func) == 7


def test_sums_of_two_and_of_unknown_size_stay():
    assert nests(lowered(chained(2))[0]) == 3
    assert nests(lowered(program(6, "s0"))[0]) == 7
