"""Small kernels that need nothing of each other are one launch; what they compute stays the same."""

from __future__ import annotations

import pytest
import torch
from support import lower
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32
from xdsl.parser import Parser

from stepwell.dialects import host, mem
from stepwell.dialects.expr import as_expr
from stepwell.dialects.nd.base import ExprAttr
from stepwell.dialects.tt import structure as tt_structure
from stepwell.passes.analysis.accesses.touched import Touched
from stepwell.passes.manager.pass_manager import run
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def launches(function, *args: torch.Tensor) -> tuple[ModuleOp, list[host.LaunchOp]]:
    """The launches of a program for any GPU (waiting for the kernel before is sm_90's), which is checked against eager."""
    imported = lower(function, *args, tt_overlap_launches="", nd_library_products="nd-library-products{library=always}")
    got = run_loop(imported.module, [a.clone() for a in args], imported.constants, imported.objects)
    for a, b in zip(got, function(*[a.clone() for a in args]), strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=1e-5, atol=1e-5)
    return imported.module, [op for op in imported.module.walk() if isinstance(op, host.LaunchOp)]


def step(*tensors):
    half = len(tensors) // 2
    return tuple(p - 0.1 * g for p, g in zip(tensors[:half], tensors[half:], strict=True))


SIZES = {
    "alike": [(100,)] * 7,
    "several blocks": [(3000,)] * 5,
    "unlike": [(100,), (70,), (100,), (1,), (9, 7), (70,)],
    "more than a launch takes": [(40,)] * 260,
    "of no elements": [(0,), (30,), (30,)],
}


@pytest.mark.parametrize("name", SIZES)
def test_a_step_over_a_list(name):
    shapes = SIZES[name]
    _, found = launches(step, *(randn(*s) for s in shapes), *(randn(*s) + 1 for s in shapes))
    warps = 2 if name == "unlike" else 1  # kernels of another number of warps are apart
    assert len(found) <= (2 if name.startswith("more") else warps) < len(shapes)


def test_what_needs_another_result_is_a_launch_of_its_own():
    def chain(x, y):
        order = x.cumsum(0)
        return order, order.flip(0).cumsum(1), y.cumsum(0)

    module, found = launches(chain, randn(30, 20), randn(25, 20))
    assert len(found) >= 2, str(module)  # the second reads what the first leaves


def touched(buffer, written: bool = True) -> Touched:
    found = Touched()
    found.note(buffer, written)
    return found


def test_memory_that_is_used_again_keeps_launches_apart():
    def alloc(at: int | None, size: int, kind: str = "arena"):
        properties = {"kind": StringAttr(kind), **({} if at is None else {"at": ExprAttr.get(as_expr(at))})}
        return mem.AllocOp.create(result_types=[mem.BufferType.get((size,), f32)], properties=properties).result

    first = alloc(0, 16)
    for other in (first, alloc(60, 4), alloc(None, 4)):
        assert touched(first).meets(touched(other, False)) and touched(first, False).meets(touched(other))
        assert not touched(first, False).meets(touched(other, False))
    for other in (alloc(64, 4), alloc(None, 4, "output"), alloc(None, 4, "pooled")):
        assert not touched(first).meets(touched(other))


def test_memory_that_is_overwritten_through_a_descriptor_keeps_launches_apart():
    """The weights and their gradient lie in one place of the arena: what reads the first does not wait for what reads the second."""

    def function(q, k, v, g):
        weights = (q @ k.T).relu()
        gradient = (g @ v.T) * 2
        return weights.T @ g, gradient @ k, gradient.T @ q

    args = [randn(96, 32 + n)[:, :32].bfloat16() for n in range(4)]
    products = "nd-library-products{library=never tiny=0}"
    carry = "gpu-carry-softmax{columns=0}"
    imported = lower(function, *args, tt_overlap_launches="", nd_library_products=products, gpu_carry_softmax=carry)
    made = [op for op in imported.module.walk() if isinstance(op, host.LaunchOp)]
    assert any(one.operand == 0 for op in made for one in op.described), "no result is stored through a descriptor"
    assert any(op.kernel.root_reference.data.startswith("joined") for op in made)
    for a, b in zip(run_loop(imported.module, args, imported.constants, imported.objects), function(*args), strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=2e-2, atol=2e-2)


def test_counters_wait_for_each_other():
    """A batch norm counts its calls, which nothing else reads: one launch for all, behind the products."""

    def counted(x, w, *counters):
        for counter in counters:
            x = torch.relu(torch.ops.aten.mm(x, w))
            counter.add_(1)
        return x, *counters

    module, found = launches(counted, randn(64, 64), randn(64, 64), *(torch.tensor(k) for k in range(5)))
    products = [op for op in module.walk() if isinstance(op, mem.ExternOp)]
    assert len(products) == 5 and len(found) == 6, str(module)


def test_what_an_operator_reads_or_gives_back_does_not_wait():
    """The library's result may be a view of its operands."""

    def seen(x, w, counter):
        counter.add_(1)
        found = torch.ops.aten.mm(x, w) + counter
        counter.add_(1)
        y = torch.ops.aten.mm(counter.expand(64, 64), w)
        x = x + 1
        return found, y, x.sort(0)[0], torch.ops.aten.mm(x, w), counter

    launches(seen, randn(64, 64), randn(64, 64), torch.tensor(3.0))


def test_large_kernels_stay_alone():
    x, y = randn(1200, 1000), randn(1200, 1000)
    _, found = launches(lambda x, y: (x + 1, y * 2), x, y)
    assert len(found) == 2


def test_reductions_and_values_in_one_launch():
    _, found = launches(lambda x, y: (x.softmax(-1), y.sum(-1), y.amax()), randn(8, 128), randn(6, 100))
    assert len(found) < 3


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_triton_compiles_them(target):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    module, _ = launches(step, *(randn(s) for s in (100, 100, 70, 300)), *(randn(s) for s in (100, 100, 70, 300)))
    assert any(isinstance(op, tt_structure.FuncOp) and op.sym_name.data.startswith("joined") for op in module.ops)
    for built in compile_kernels(kernel_modules(module), gpu_target(target)):
        assert isinstance(built.code, bytes)


@pytest.mark.parametrize(("mark", "left"), [("", 1), (" clears", 2)])
def test_what_clears_workspaces_stays_by_itself(mark, left):
    """The host program leaves such a launch out where it can."""
    t = "!mem.buffer<4 x i64>"
    text = f"""builtin.module {{
      func.func @forward(%a: {t}, %b: {t}, %c: {t}) {{
        host.launch @zero(%a : {t}) [] bytes 32 grid [1]{mark}
        host.launch @zero(%b : {t}) [] bytes 32 grid [1]
        host.launch @zero(%c : {t}) [] bytes 32 grid [1]
        func.return
      }}
      tt.func public @zero(%x: !tt.ptr<i64>) attributes {{num_warps = 1 : i32}} {{
        %zero = arith.constant 0 : i64
        tt.store %x, %zero : !tt.ptr<i64>
        tt.return
      }}
    }}"""
    module = Parser(context(), text).parse_module()
    run(["tt-join-launches"], module, context())
    found = [op for op in module.walk() if isinstance(op, host.LaunchOp)]
    assert len(found) == left
    assert [op.clears is not None for op in found] == [True, False][2 - left :]
