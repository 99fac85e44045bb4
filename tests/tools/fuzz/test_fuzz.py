"""The fuzzer: programs follow from their seeds, what is wrong is found and written down, rounding raises no alarm."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from xdsl.context import Context

import stepwell
from stepwell.dialects import load_dialects
from stepwell.tools.check.rounding import samples, unexplained
from stepwell.tools.fuzz.__main__ import Fuzz, main, parser
from stepwell.tools.fuzz.case import Case, inputs_text
from stepwell.tools.fuzz.check import torch_differs, verdict
from stepwell.tools.fuzz.ir import rounded
from stepwell.tools.fuzz.kinds import KINDS
from stepwell.tools.fuzz.values import tensor
from stepwell.tools.fuzz.worker import answer
from stepwell.tools.ir_parser import parse_file
from stepwell.tools.worker_pool import DIED

WRONG = """
from xdsl.dialects.arith import AddfOp, SubfOp
from stepwell.passes.manager import Pass

class Subtract(Pass):
    name = "subtract"

    def apply(self, ctx, op):
        for add in [nested for nested in op.walk() if isinstance(nested, AddfOp)]:
            sub = SubfOp(add.lhs, add.rhs)
            add.parent.insert_op_before(sub, add)
            add.results[0].replace_all_uses_with(sub.results[0])
            add.detach()
"""


def case(body: str, *inputs: torch.Tensor, **settings) -> Case:
    parameters = ", ".join(f"x{k}" for k in range(len(inputs)))
    return Case("test", 0, f"def program({parameters}):\n    {body}\n", inputs_text(inputs), **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_and_a_seed_name_a_program(kind):
    first, second, other = (KINDS[kind](seed, "cpu").source() for seed in (41, 41, 42))
    assert first == second != other
    if kind != "ir":
        compile(first, "<program>", "exec")


def test_a_fake_kernel_that_says_a_wrong_size_is_not_ours():
    with torch.library._scoped_library("stepwell_fuzz", "FRAGMENT") as lib:
        lib.define("two(Tensor x) -> Tensor")
        lib.impl("two", lambda x: torch.cat([x, x]), "CPU")
        lib._register_fake("two", lambda x: torch.empty_like(x))
        result, why = verdict(case("return torch.ops.stepwell_fuzz.two(x0),", torch.randn(3)))
    assert result == "skipped"
    assert "the fake kernel of stepwell_fuzz.two.default says (3,); it is (6,)" in why


def test_strides_that_a_fake_kernel_gives_are_not_ours_beside_sizes_that_depend_on_values():
    with torch.library._scoped_library("stepwell_fuzz", "FRAGMENT") as lib:
        lib.define("turned(Tensor x) -> Tensor")
        lib.impl("turned", lambda x: x.t().contiguous().t(), "CPU")
        lib._register_fake("turned", lambda x: torch.empty(x.shape))
        body = "return torch.ops.stepwell_fuzz.turned(x0), torch.masked_select(x0, x0 > 0)"
        why = torch_differs(case(body, torch.randn(3, 4)), "result 0: strides (4, 1), in eager (1, 3)")
    assert why == "torch's fake kernels give strides (4, 1), too"


def test_which_parts_of_an_infinite_complex_number_are_nan_is_not_compared():
    x = torch.tensor([complex(float("inf"), 1.0), 1 + 2j])
    assert verdict(case("return x0 * 2,", x)) == ("right", "")


def test_a_right_program_and_one_that_eager_refuses():
    x = torch.randn(3, 4)
    assert verdict(case("return x0.exp() + 1, x0.t()", x)) == ("right", "")
    assert verdict(case("return (x0.exp() + 1).sum(),", x, grad=True)) == ("right", "")
    assert verdict(case("return x0 @ x0,", x))[0] == "skipped"
    assert verdict(case("return torch.rand(1) * x0,", x))[0] == "right", "random numbers come from a seed"


def test_a_wrong_pass_is_found(own_passes):
    scope: dict = {}
    exec(WRONG, scope)
    stepwell.register_pass("mem", scope["Subtract"])
    result, why = verdict(case("return x0 * 2 + x0.exp(),", torch.randn(3, 4)))
    assert result == "wrong" and "result 0: 12 of 12 elements differ" in why


def test_changed_ir_and_a_wrong_pass_behind_it(own_passes):
    """The interpreter of the level where IR was changed says what the passes behind it have to keep."""
    right = [KINDS["ir"](seed, "cpu") for seed in range(50, 52)]
    assert [one.verdict() for one in right] == [("right", "")] * 2 and any(one.changes for one in right)
    scope: dict = {}
    exec(WRONG, scope)
    stepwell.register_pass("mem", scope["Subtract"])
    found = [KINDS["ir"](seed, "cpu") for seed in range(50, 56)]
    wrong = next(one for one in found if one.verdict()[0] == "wrong")
    assert "-p" in wrong.source() and "subtract" in wrong.source()


def test_what_rounding_decides_is_no_fault():
    """Whether sin(x) * 1e6 is rounded up or down follows from its last digits; by how much a sum of such steps may differ, too."""

    def program(inputs):
        steps = torch.floor(torch.sin(inputs[0]) * 1e6)
        return {"result 0": steps, "result 1": (inputs[0] - inputs[0].mean()).sum(), "result 2": inputs[0] > 0.5}

    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    found = samples(program, lambda: [x.clone()])
    a, b, c = (found[0][f"result {k}"] for k in range(3))
    assert not unexplained(a.where(torch.arange(1000) % 7 > 0, found[-1]["result 0"].float()), [f["result 0"] for f in found]).any()
    assert not unexplained(b + 1e-5, [f["result 1"] for f in found]).any()
    assert unexplained(b + 1e-2, [f["result 1"] for f in found]).all()
    assert not unexplained(c, [f["result 2"] for f in found]).any()
    assert unexplained(~c, [f["result 2"] for f in found]).all(), "inputs are what they are: nothing rounds before the comparison"


def test_what_branches_compute_is_rounded():
    def program(inputs):
        (x,) = inputs
        return {"result 0": torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x.sin(), (x,))}

    found = [f["result 0"] for f in samples(program, lambda: [torch.linspace(0.1, 1, 5)], runs=2)]
    assert not any(torch.equal(f, found[0]) for f in found[1:])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("operator", ["topk(1, 0)", "sort(0)", "kthvalue(2, 0)", "median(0)", "mode(0)", "sort(dim=0, stable=True)"])
def test_any_of_equal_elements_may_be_chosen(operator):
    def program(inputs):
        values, places = eval(f"x.{operator}", {"x": inputs[0]})
        return {"result 0": values, "result 1": places}

    x = torch.ones(7, 3)
    found = samples(program, lambda: [x])
    assert all(torch.equal(f["result 0"], found[0]["result 0"]) for f in found)
    places = [f["result 1"] for f in found]
    assert unexplained(places[0] + 1, places).any() == ("stable" in operator)


def test_what_ir_computes_is_rounded():
    """Also where the inputs are integers, which are what they are."""
    text = """
    func.func @forward(%x: !nd.tensor<5 x i64>) -> !nd.tensor<5 x f32> {
      %0 = nd.cast %x : (!nd.tensor<5 x i64>) -> !nd.tensor<5 x f32>
      %1 = nd.exp %0 : !nd.tensor<5 x f32>
      func.return %1 : !nd.tensor<5 x f32>
    }"""
    ctx = load_dialects(Context())
    module, _ = parse_file(text, "case.mlir", ctx)
    found = [rounded(module, ctx, [torch.arange(5)], k)["result 0"] for k in range(2)]
    assert not torch.equal(*found)
    torch.testing.assert_close(*found)


def test_nan_and_infinity_are_looked_at():
    def program(inputs):
        return {"result 0": inputs[0] / inputs[1]}

    given = [torch.tensor([1.0, -1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 0.0, 4.0])]
    found = [f["result 0"] for f in samples(program, lambda: [g.clone() for g in given])]
    inf, nan = float("inf"), float("nan")
    assert not unexplained(torch.tensor([inf, -inf, nan, 0.5]), found).any()
    assert unexplained(torch.tensor([3e38, inf, 0.0, nan]), found).all()


def test_inputs_come_back_with_their_layout():
    odd = torch.tensor([float("inf"), float("nan")])
    for value in (torch.arange(12.0).reshape(3, 4).t(), torch.zeros(2, 0), torch.randn(70).bfloat16(), odd):
        scope = {"torch": torch, "tensor": tensor}
        exec(inputs_text([value]), scope)
        (found,) = scope["inputs"]()
        torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == value.stride()


@pytest.mark.long
def test_the_command_line():
    """A program in a worker process."""
    command = [sys.executable, "-m", "stepwell.tools.fuzz", "--seed", "3", "--count", "1", "--kinds", "random", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 3" in done.stdout and "0 failures" in done.stdout and "random right: 1" in done.stdout


def test_names_that_are_not_there(capsys):
    assert main(["--kinds", "nonsense"]) == 2 and "there is no kind 'nonsense'; there are: random, updates" in capsys.readouterr().err
    assert main(["--device", "tpu"]) == 2 and "there is no device 'tpu'" in capsys.readouterr().err


def test_failures_are_reduced(own_passes):
    """A program becomes the operation that is compiled wrong; IR keeps the pass that is."""
    from stepwell.tools.fuzz.shrink import shrunk

    scope: dict = {}
    exec(WRONG, scope)
    stepwell.register_pass("mem", scope["Subtract"])
    whole = case("y = x0.exp() * 2\n    return (torch.tanh(y) + x0).cos(), y", torch.randn(3, 4))
    result, why = whole.verdict()
    small = shrunk(whole, why, "note", "cpu", 30)
    assert result == "wrong" and small.startswith("# note") and "torch.tanh" not in small and "cos" not in small and " + " in small


def test_a_crash_that_torch_has_without_stepwell_is_no_failure():
    """The program is tried with torch alone, in another process, before it counts."""
    fuzz = Fuzz(parser().parse_args(["--seed", "1"]))
    request, why = {"kind": "updates", "seed": 1, "device": "cpu"}, "the process ended with signal SIGSEGV"
    fuzz.note(request, {DIED: why})
    (alone,) = fuzz.waiting
    assert not fuzz.failures and not fuzz.counts
    fuzz.note(alone, {DIED: why})
    assert not fuzz.failures and fuzz.counts == {"updates skipped": 1}
    found = answer(alone)
    assert found["verdict"] == "right" and why in found["source"]
    fuzz.note(alone, found)
    assert fuzz.failures == [f"updates-1-cpu: {why}"] and fuzz.waiting == [alone]
