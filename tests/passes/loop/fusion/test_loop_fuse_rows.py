"""loop-fuse-rows: values in every order of the iterations, and what must not be merged."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())
X, R, C, S = "!nd.tensor<9 x 5 x f32>", "!nd.tensor<9 x f32>", "!nd.tensor<5 x f32>", "!nd.tensor<f32>"


def sums(name: str, source: str, dims: str, result: str, kind: str = "sum", operand: str = X) -> str:
    return f'{name} = nd.reduce {source} {{kind = "{kind}", dims = [{dims}]}} : ({operand}) -> {result}'


def fused(body: str, returned: list[tuple[str, str]], arguments: str = f"%x: {X}") -> tuple[ModuleOp, list[str]]:
    """The fused module, and the remarks of loop-fuse-rows."""
    types = ", ".join(t for _, t in returned)
    text = f"""builtin.module {{
  func.func @forward({arguments}) -> ({types}) {{
    {body}
    func.return {", ".join(v for v, _ in returned)} : {types}
  }}
}}"""
    module = Parser(CTX, text).parse_module()
    remarks: list[str] = []
    watch = Instrumentation(verify_each=True, remarks=lambda r: remarks.append(r.message) if r.pass_name == "loop-fuse-rows" else None)
    run(parse_pipeline("nd-to-loop,loop-fuse,loop-fuse-rows"), module, CTX, watch)
    return module, remarks


def nests(module: ModuleOp) -> int:
    return sum(isinstance(op, loop.NestOp) for op in module.walk())


def check(module: ModuleOp, inputs: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Values in every order of the iterations."""
    for order in ("forward", "reverse", "shuffle"):
        for got, want in zip(run_loop(module, inputs, order=order), expected, strict=True):
            torch.testing.assert_close(got, want)


def x() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(9, 5)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_columns_and_rows_of_one_tensor(kind: str):
    module, _ = fused(f"{sums('%r', '%x', '1', R)}\n{sums('%c', '%x', '0', C, kind)}", [("%r", R), ("%c", C)])
    assert nests(module) == (2 if kind == "prod" else 1)  # a product of floats is two numbers while it runs, which no column holds
    expected = {"sum": x().sum(0), "prod": x().prod(0), "max": x().amax(0), "min": x().amin(0)}[kind]
    check(module, [x()], [x().sum(1), expected])


def test_what_follows_the_columns_is_done_after_all_rows():
    body = f"{sums('%r', '%x', '1', R)}\n{sums('%c', '%x', '0', C)}\n%e = nd.exp %c : {C}\n%n = nd.neg %c : {C}"
    module, _ = fused(body, [("%r", R), ("%e", C), ("%n", C)])
    assert nests(module) == 1
    check(module, [x()], [x().sum(1), x().sum(0).exp(), -x().sum(0)])


def test_columns_of_16_bit_floats_are_accumulated_in_32_bits():
    h, hr, hc = (t.replace("f32", "bf16") for t in (X, R, C))
    body = f"{sums('%r', '%x', '1', hr, operand=h)}\n{sums('%c', '%x', '0', hc, operand=h)}"
    module, _ = fused(body, [("%r", hr), ("%c", hc)], f"%x: {h}")
    assert nests(module) == 1
    stores = [op for op in module.walk() if isinstance(op, loop.StoreOp) and op.store_mode == "add"]
    assert [str(loop.element_type(op.target.type)) for op in stores] == ["f32"]
    half = x().bfloat16()
    check(module, [half], [half.float().sum(1).bfloat16(), half.float().sum(0).bfloat16()])


def test_a_pointwise_nest_and_the_columns_of_what_it_stores():
    module, _ = fused(f"%t = nd.tanh %x : {X}\n{sums('%c', '%t', '0', C)}", [("%t", X), ("%c", C)])
    assert nests(module) == 1
    assert sum(isinstance(op, loop.LoadOp) for op in module.walk()) == 1
    check(module, [x()], [x().tanh(), x().tanh().sum(0)])


def test_columns_and_a_scalar_of_one_pointwise_nest():
    body = f"%t = nd.tanh %x : {X}\n{sums('%c', '%t', '0', C)}\n{sums('%s', '%t', '0, 1', S, 'max')}"
    module, _ = fused(body, [("%t", X), ("%c", C), ("%s", S)])
    assert nests(module) == 1
    check(module, [x()], [x().tanh(), x().tanh().sum(0), x().tanh().max()])


def test_a_result_that_only_the_reduction_reads_is_not_stored():
    body = f"{sums('%r', '%x', '1', R)}\n%e = nd.exp %r : {R}\n{sums('%s', '%e', '0', S, operand=R)}"
    module, _ = fused(body, [("%s", S)])
    assert nests(module) == 1 and sum(isinstance(op, loop.StoreOp) for op in module.walk()) == 1
    check(module, [x()], [x().sum(1).exp().sum()])


def test_a_reduction_over_rows_and_over_each_row():
    body = f"{sums('%r', '%x', '1', R, 'max')}\n{sums('%s', '%x', '0, 1', S)}"
    module, _ = fused(body, [("%r", R), ("%s", S)])
    check(module, [x()], [x().amax(1), x().sum()])


def test_the_rows_need_the_columns():
    body = f"""{sums('%c', '%x', '0', C)}
    %w = nd.reshape %c : ({C}) -> !nd.tensor<1 x 5 x f32>
    %d = nd.sub %x, %w : ({X}, !nd.tensor<1 x 5 x f32>) -> {X}
    {sums('%r', '%d', '1', R)}"""
    module, remarks = fused(body, [("%r", R), ("%c", C)])
    assert nests(module) == 2
    assert any("the rows need what is reduced over all of them" in r for r in remarks)
    check(module, [x()], [(x() - x().sum(0)).sum(1), x().sum(0)])


def test_an_operation_between_that_needs_one_and_is_needed_by_the_other():
    body = f"""{sums('%r', '%x', '1', R)}
    %v = nd.scan %r {{kind = "sum", dim = [0]}} : ({R}) -> {R}
    %w = nd.reshape %v : ({R}) -> !nd.tensor<9 x 1 x f32>
    %d = nd.mul %x, %w : ({X}, !nd.tensor<9 x 1 x f32>) -> {X}
    {sums('%c', '%d', '0', C)}"""
    module, remarks = fused(body, [("%r", R), ("%c", C)])
    assert any("another operation between them needs one and is needed by the other" in r for r in remarks)
    check(module, [x()], [x().sum(1), (x() * x().sum(1).cumsum(0)[:, None]).sum(0)])


def test_a_row_that_reads_what_another_row_produces():
    body = f"""{sums('%r', '%x', '1', R)}
    %f = nd.flip %r {{dims = [0]}} : ({R}) -> {R}
    %w = nd.reshape %f : ({R}) -> !nd.tensor<9 x 1 x f32>
    %d = nd.mul %x, %w : ({X}, !nd.tensor<9 x 1 x f32>) -> {X}
    {sums('%c', '%d', '0', C)}"""
    module, remarks = fused(body, [("%r", R), ("%c", C)])
    assert nests(module) == 2
    assert any("a row of the other reads what another row produces" in r for r in remarks)
    check(module, [x()], [x().sum(1), (x() * x().sum(1).flip(0)[:, None]).sum(0)])


def test_two_pairs_whose_merging_would_close_a_circle():
    """r1 -> c2 and r2 -> c1, where c1 reduces the rows of r1 and c2 those of r2: only one of the two may be merged."""
    y = "%y: " + X
    body = f"""{sums('%r1', '%x', '1', R)}
    {sums('%r2', '%y', '1', R)}
    %w1 = nd.reshape %r1 : ({R}) -> !nd.tensor<9 x 1 x f32>
    %w2 = nd.reshape %r2 : ({R}) -> !nd.tensor<9 x 1 x f32>
    %d1 = nd.mul %x, %w2 : ({X}, !nd.tensor<9 x 1 x f32>) -> {X}
    %d2 = nd.mul %y, %w1 : ({X}, !nd.tensor<9 x 1 x f32>) -> {X}
    {sums('%c1', '%d1', '0', C)}
    {sums('%c2', '%d2', '0', C)}"""
    module, _ = fused(body, [("%r1", R), ("%r2", R), ("%c1", C), ("%c2", C)], f"%x: {X}, {y}")
    a, b = x(), x().flip(0)
    check(module, [a, b], [a.sum(1), b.sum(1), (a * b.sum(1)[:, None]).sum(0), (b * a.sum(1)[:, None]).sum(0)])


def test_a_nest_that_the_user_keeps_apart():
    text = f"{sums('%r', '%x', '1', R)}\n{sums('%c', '%x', '0', C)}"
    module = Parser(CTX, f"builtin.module {{ func.func @forward(%x: {X}) -> ({R}, {C}) {{ {text}\nfunc.return %r, %c : {R}, {C} }} }}")
    parsed = module.parse_module()
    run(parse_pipeline("nd-to-loop,loop-fuse{no-fuse=c},loop-fuse-rows"), parsed, CTX, Instrumentation())
    assert nests(parsed) == 2
