"""The reference interpreter of the loop level, against torch."""

from __future__ import annotations

import math

import pytest
import torch
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.errors import StepwellError
from stepwell.passes.manager.verify import verify_ir
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())


def run(text: str, *inputs, order: str = "forward") -> list:
    module = Parser(CTX, "builtin.module {" + text + "}").parse_module()
    verify_ir(module)
    return run_loop(module, list(inputs), order=order, seed=1)


def reduced(
    kind: str, dtype: str, compute: str, x: torch.Tensor, yields: str, results: list[str]
) -> list[torch.Tensor]:
    """Reduces the rows of `x`; results are stored with the given types."""
    n, m = x.shape
    outs = [f"!nd.tensor<{n} x {t}>" for t in results]
    empties = "\n".join(f"%e{k} = loop.empty : {t}" for k, t in enumerate(outs))
    args = ", ".join(f"%o{k} = %e{k} : {t}" for k, t in enumerate(outs))
    names = ", ".join(f"%r{k}" for k in range(len(outs)))
    stores = "\n".join(f"loop.store %r{k}, %o{k}[%i] : {results[k]}, {t}" for k, t in enumerate(outs))
    found = ", ".join(f"%n{k}" for k in range(len(outs)))
    return run(
        f"""func.func @f(%x: !nd.tensor<{n} x {m} x {dtype}>) -> ({", ".join(outs)}) {{
  {empties}
  {found} = loop.nest (%i = {n}) outs({args}) {{
    {names} = loop.reduce (%j = {m}) {kind} {{
      %v = loop.load %x[%i, %j] : !nd.tensor<{n} x {m} x {dtype}> -> {compute}
      %k = loop.index %j : i64
      loop.yield {yields}
    }} -> {", ".join(results)}
    {stores}
  }}
  func.return {found} : {", ".join(outs)}
}}""",
        x,
        order="shuffle",
    )


def values() -> torch.Tensor:
    return torch.randn(4, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_float_reductions(kind):
    x = values()
    want = {"sum": x.sum(1), "prod": x.prod(1), "max": x.amax(1), "min": x.amin(1)}[kind]
    torch.testing.assert_close(reduced(kind, "f32", "f32", x, "%v : f32", ["f32"])[0], want)
    x[1, 3] = math.nan
    assert reduced(kind, "f32", "f32", x, "%v : f32", ["f32"])[0][1].isnan()


@pytest.mark.parametrize(("kind", "fn"), [("any", torch.any), ("all", torch.all)])
def test_bool_reductions(kind, fn):
    x = values() > 0.4
    x[0], x[1] = True, False
    torch.testing.assert_close(reduced(kind, "i1", "i1", x, "%v : i1", ["i1"])[0], fn(x, 1))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_arg_reductions(kind):
    x = torch.randint(0, 4, (4, 9), generator=torch.Generator().manual_seed(0)).float()
    x[2, 5] = math.nan
    x[3] = math.inf
    best, index = reduced(kind, "f32", "f32", x, "%v, %k : f32, i64", ["f32", "i64"])
    torch.testing.assert_close(index, getattr(torch, kind)(x, 1))
    torch.testing.assert_close(best, x.gather(1, index[:, None])[:, 0], equal_nan=True)


def test_several_kinds_at_once():
    x = values()
    mean, squares, count, top, total = reduced("welford, softmax", "f32", "f32", x, "%v, %v : f32, f32", ["f32"] * 5)
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(squares, x.var(1, correction=0) * 9)
    assert torch.equal(count, torch.full((4,), 9.0)) and torch.equal(top, x.amax(1))
    torch.testing.assert_close(total, (x - x.amax(1, keepdim=True)).exp().sum(1))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logsumexp"])
def test_scans(kind):
    x = torch.randint(-3, 4, (4, 9), generator=torch.Generator().manual_seed(0)).float()
    pair = kind in ("max", "min")
    t, u = "!nd.tensor<4 x 9 x f32>", "!nd.tensor<4 x 9 x i64>"
    running = "%r : f32, %n : i64" if pair else "%r : f32"
    yields = "%v, %k : f32, i64" if pair else "%v : f32"
    number = "%n" if pair else "%q"
    found, index = run(
        f"""func.func @f(%x: {t}) -> ({t}, {u}) {{
  %e = loop.empty : {t}
  %e1 = loop.empty : {u}
  %y, %z = loop.nest (%i = 4) outs(%o = %e : {t}, %p = %e1 : {u}) {{
    loop.scan (%j = 9) {kind} {{
      %v = loop.load %x[%i, %j] : {t} -> f32
      %k = loop.index %j : i64
      loop.yield {yields}
    }} do (%j, {running}) {{
      loop.store %r, %o[%i, %j] : f32, {t}
      %q = loop.index %j : i64
      loop.store {number}, %p[%i, %j] : i64, {u}
    }}
  }}
  func.return %y, %z : {t}, {u}
}}""",
        x,
        order="reverse",
    )
    names = {"sum": "cumsum", "prod": "cumprod", "max": "cummax", "min": "cummin", "logsumexp": "logcumsumexp"}
    want = getattr(torch, names[kind])(x, 1)
    torch.testing.assert_close(found, want.values if pair else want)
    if pair:
        assert torch.equal(index, want.indices)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int8, torch.int64, torch.bool, torch.float64]
)
def test_masked_access_of_every_element_type(dtype):
    """A shift by one with a value outside, and a store to every other element."""
    names = {
        torch.bfloat16: ("bf16", "f32"),
        torch.float16: ("f16", "f32"),
        torch.uint8: ("ui8", "i8"),
        torch.int8: ("i8", "i8"),
    }
    names |= {torch.int64: ("i64", "i64"), torch.bool: ("i1", "i1"), torch.float64: ("f64", "f64")}
    element, compute = names[dtype]
    x = (values()[0] * 50).abs().to(dtype)
    t = f"!nd.tensor<9 x {element}>"
    zero = {"i1": "false", "f32": "0.0 : f32", "f64": "0.0 : f64"}.get(compute, f"0 : {compute}")
    (y,) = run(
        f"""func.func @f(%x: {t}) -> {t} {{
  %y = loop.nest (%i = 9) outs(%o = %x : {t}) {{
    %z = arith.constant 0 : index
    %two = arith.constant 2 : index
    %other = arith.constant {zero}
    %n = loop.index %i : index
    %c = arith.cmpi sgt, %n, %z : index
    %v = loop.load %x[%i - 1] if %c else %other : {t} -> {compute}
    %r = arith.remsi %n, %two : index
    %even = arith.cmpi eq, %r, %z : index
    loop.store %v, %o[%i] if %even : {compute}, {t}
  }}
  func.return %y : {t}
}}""",
        x,
    )
    want = x.clone()
    want[0], want[2::2] = 0, x[1:-1:2]
    assert torch.equal(y, want)


@pytest.mark.parametrize("mode", ["add", "prod", "max", "min"])
def test_combining_stores(mode):
    x, v = torch.arange(4.0), torch.tensor([5.0, -1.0, 2.0])
    k = torch.tensor([1, 3, 1])
    text = f"""
func.func @f(%x: !nd.tensor<4 x f32>, %k: !nd.tensor<3 x i64>, %v: !nd.tensor<3 x f32>) -> !nd.tensor<4 x f32> {{
  %y = loop.nest () outs(%o = %x : !nd.tensor<4 x f32>) {{
    loop.for (%i = 3) {{
      %n = loop.load %k[%i] : !nd.tensor<3 x i64> -> i64
      %j = loop.bound %n, 4 "scatter" : i64
      %w = loop.load %v[%i] : !nd.tensor<3 x f32> -> f32
      loop.store %w, %o[%j] {mode} : f32, !nd.tensor<4 x f32>
    }}
  }}
  func.return %y : !nd.tensor<4 x f32>
}}"""
    (y,) = run(text, x, k, v)
    name = {"add": "sum", "max": "amax", "min": "amin"}.get(mode, mode)
    torch.testing.assert_close(y, x.scatter_reduce(0, k, v, name))
    with pytest.raises(IndexError, match="scatter: index -1 is out of bounds for a dimension of size 4"):
        run(text, x, k - 2, v)


def test_an_access_outside_of_a_tensor_is_an_error():
    text = """func.func @f(%x: !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
  %e = loop.empty : !nd.tensor<4 x f32>
  %y = loop.nest (%i = 4) outs(%o = %e : !nd.tensor<4 x f32>) {
    %c = arith.constant true
    %z = arith.constant 0.0 : f32
    %v = loop.load %x[%i + 1] if %c else %z : !nd.tensor<4 x f32> -> f32
    loop.store %v, %o[%i] : f32, !nd.tensor<4 x f32>
  }
  func.return %y : !nd.tensor<4 x f32>
}"""
    with pytest.raises(StepwellError, match=r"x: index \[4\] is outside of a tensor of sizes \[4\]"):
        run(text, torch.ones(4))


INTEGERS = [-128, -7, -1, 0, 1, 5, 127]


@pytest.mark.parametrize(
    ("op", "fn"),
    [
        ("addi", lambda a, b: a + b),
        ("muli", lambda a, b: a * b),
        ("divsi", lambda a, b: torch.div(a, b, rounding_mode="trunc")),
        ("floordivsi", lambda a, b: torch.div(a, b, rounding_mode="floor")),
        ("remsi", torch.fmod),
        ("maxui", lambda a, b: torch.maximum(a.view(torch.uint8), b.view(torch.uint8)).view(torch.int8)),
        ("divui", lambda a, b: (a.view(torch.uint8) // b.view(torch.uint8)).view(torch.int8)),
    ],
)
def test_integer_arithmetic_wraps_as_torch(op, fn):
    a = torch.tensor(INTEGERS, dtype=torch.int8).repeat_interleave(len(INTEGERS))
    b = torch.tensor([x or 3 for x in INTEGERS], dtype=torch.int8).repeat(len(INTEGERS))
    t = f"!nd.tensor<{a.numel()} x i8>"
    (y,) = run(
        f"""func.func @f(%a: {t}, %b: {t}) -> {t} {{
  %e = loop.empty : {t}
  %y = loop.nest (%i = {a.numel()}) outs(%o = %e : {t}) {{
    %x = loop.load %a[%i] : {t} -> i8
    %z = loop.load %b[%i] : {t} -> i8
    %r = arith.{op} %x, %z : i8
    loop.store %r, %o[%i] : i8, {t}
  }}
  func.return %y : {t}
}}""",
        a,
        b,
    )
    assert torch.equal(y, fn(a, b))
