"""Modules of all levels become small while they still fail; what is found is valid IR, smaller, and fails."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from stepwell.dialects import load_dialects
from stepwell.passes.manager.instrumentation import print_ir
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.passes.manager.verify import verify_ir
from stepwell.tools.ir_parser import parse_file
from stepwell.tools.reduce.ir import ReduceError, reduce_module

TYPE = "!nd.tensor<s0 x 37 x f32>"
ROW = "!nd.tensor<s0 x f32>"


def context() -> Context:
    return load_dialects(Context())


def chain(length: int, at: int, special: str = "nd.erf") -> ModuleOp:
    """A program of `length` operations, pointwise for the most part, with `special` in the place `at` and a sum of rows behind it."""
    lines, last = [], "%x"
    for k in range(length):
        name = f"%v{k}"
        if k == at:
            lines += [f"{name} = {special} {last} : {TYPE}", f'%r = nd.reduce {name} {{kind = "sum", dims = [1]}} : ({TYPE}) -> {ROW}']
        elif k % 3:
            lines.append(f"{name} = nd.add {last}, %y : {TYPE}")
        else:
            lines.append(f"{name} = nd.{('tanh', 'relu', 'neg')[k % 7 % 3]} {last} : {TYPE}")
        last = name
    body = "\n    ".join(lines)
    layout = "{nd.layout = #nd.layout<[37, 1], 0>}"
    text = f"""builtin.module attributes {{nd.symbols = {{s0 = #nd.range<2, -1, 5>}}}} {{
  func.func @forward(%x: {TYPE} {layout}, %y: {TYPE} {layout}) -> ({TYPE} {layout}, {ROW} {{nd.layout = #nd.layout<[1], 0>}}) {{
    {body}
    func.return {last}, %r : {TYPE}, {ROW}
  }}
}}"""
    return parse_file(text, "chain.mlir", context())[0]


def size(module: ModuleOp) -> int:
    return sum(1 for _ in module.walk())


def has(module: ModuleOp, *names: str) -> bool:
    found = {op.name for op in module.walk()}
    return found.issuperset(names)


def test_five_hundred_operations_become_a_handful():
    module = chain(500, 240)
    text = print_ir(module)
    calls = []

    def fails(candidate: ModuleOp) -> bool:
        calls.append(size(candidate))
        used = [op for op in candidate.walk() if op.name == "nd.reduce" and op.operands[0].owner.name == "nd.erf"]
        return bool(used)

    found = reduce_module(module, fails)
    verify_ir(found)
    assert fails(found) and size(found) <= 5 and "37" not in print_ir(found)
    assert print_ir(module) == text
    assert len(calls) < 200


@pytest.mark.parametrize(
    "last, names",
    [
        ("nd", ("nd.erf",)),
        ("loop", ("loop.reduce", "math.erf")),
        ("mem", ("mem.alloc", "math.erf")),
        ("cpu", ("cpu.kernel", "cpu.reduce", "cpu.load")),
        ("host", ("host.launch", "cpu.reduce")),
    ],
)
def test_every_level(last, names):
    module, ctx = chain(12, 4), context()
    run(default_pipeline("cpu").to_stage(last), module, ctx)
    found = reduce_module(module, lambda candidate: has(candidate, *names))
    verify_ir(found)
    assert has(found, *names) and size(found) < min(15, size(module))


def test_kernels_of_a_gpu():
    module, ctx = chain(12, 4), context()
    run(default_pipeline("gpu").to_stage("tt"), module, ctx)
    found = reduce_module(module, lambda candidate: has(candidate, "tt.reduce", "tt.load"))
    verify_ir(found)
    assert size(found) < 15


def test_what_does_not_fail_and_what_raises():
    module = chain(3, 1)
    with pytest.raises(ReduceError, match="does not fail"):
        reduce_module(module, lambda candidate: False)

    def broken(candidate: ModuleOp) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reduce_module(module, broken)

    def refuses_small_ones(candidate: ModuleOp) -> bool:
        if size(candidate) < 5:
            raise ValueError("too small")
        return True

    assert size(reduce_module(module, refuses_small_ones)) == 5


def test_the_time_ends_and_the_best_is_given():
    module = chain(60, 30)
    assert size(reduce_module(module, lambda candidate: has(candidate, "nd.erf"), seconds=0)) == size(module)


def test_ir_that_does_not_verify_can_be_reduced():
    module = chain(20, 10)
    reduce = next(op for op in module.walk() if op.name == "nd.reduce")
    del reduce.properties["kind"]

    def fails(candidate: ModuleOp) -> bool:
        return any(op.name == "nd.reduce" and "kind" not in op.properties for op in candidate.walk())

    assert size(reduce_module(module, fails)) <= 4
