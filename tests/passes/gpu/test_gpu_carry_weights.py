"""Weights that are computed from products: each sum that is weighed by them computes them, and none is stored."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from stepwell.dialects import loop, nd
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.passes.analysis.needed_terms import needed_terms
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.schedule_attrs import schedule_table
from stepwell.tools.interpret.loop import run_loop

from .test_gpu_carry_softmax import BF16, lowered, numbers

GENERATED = "nd-library-products{tiny=0 library=never}"


def backward(mask=None, cap=0.0):
    """Gradients of attention, as FlexAttention spells them: from the logarithms (to base 2) of the sums of exponentials."""

    def gradients(q, k, v, o, lse, do):
        heads, group = q.shape[1], q.shape[1] // k.shape[1]
        if group > 1:
            k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).reshape(x.shape[0], heads, *x.shape[2:]) for x in (k, v))
        lse = lse * math.log(2)
        s = products(q.float(), k.float()) * 0.125
        capped = torch.tanh(s / cap) if cap else s
        x = capped * cap if cap else s
        there = mask(torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])) if mask else None
        x = x if there is None else torch.where(there, x, -math.inf)
        p = torch.where((lse == -math.inf)[..., None], 0, torch.exp(x - lse[..., None]))
        dv = p.to(q.dtype).mT @ do
        delta = (o.float() * do.float()).sum(-1, keepdim=True)
        g = p * (products(do.float(), v.float()) - delta)
        g = g * (1 - capped * capped) if cap else g
        ds = ((g if there is None else torch.where(there, g, 0)) * 0.125).to(q.dtype)
        ds = ds if there is None else torch.where(there, ds, 0)
        dq, dk = ds @ k, ds.mT @ q
        if group > 1:
            dk, dv = (x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2) for x in (dk, dv))
        return dq, dk, dv

    return gradients


def products(q, k):
    return q @ k.mT


def causal(i, j):
    return i >= j


def from_forward(q, k, v, mask=None, cap=0.0):
    """What the forward pass leaves: the result, and the logarithms."""
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = products(q.double(), k) * 0.125
    s = torch.tanh(s / cap) * cap if cap else s
    if mask:
        s = torch.where(mask(torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])), s, -math.inf)
    return (torch.softmax(s, -1).nan_to_num(0) @ v).to(q.dtype), (s.logsumexp(-1) / math.log(2)).float()


BACKWARD = {
    "causal": (causal, 0.0, (1, 2, 130, 16), {}),
    "no mask, other lengths and sizes of values": (None, 0.0, (1, 2, 66, 32), {"terms": 90, "width": 48}),
    "window": (lambda i, j: (i >= j) & (i - j < 40), 0.0, (1, 1, 200, 16), {}),
    "documents": (lambda i, j: (i // 50 == j // 50) & (i >= j), 0.0, (1, 1, 200, 16), {}),
    "rows without any": (lambda i, j: (i >= j) & (i >= 30), 0.0, (1, 1, 100, 16), {}),
    "heads that share keys": (causal, 0.0, (1, 4, 70, 16), {"heads": 2}),
    "float16, capped": (causal, 20.0, (1, 1, 100, 16), {"dtype": torch.float16}),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_the_gradients_of_attention_store_no_weights(name):
    mask, cap, (batch, heads, rows, depth), more = BACKWARD[name]
    dtype, terms, shared = more.get("dtype", BF16), more.get("terms", rows), more.get("heads", heads)
    q, k = numbers(batch, heads, rows, depth, dtype=dtype), numbers(batch, shared, terms, depth, dtype=dtype)
    v = numbers(batch, shared, terms, more.get("width", depth), dtype=dtype)
    do = numbers(batch, heads, rows, v.shape[-1], dtype=dtype, scale=0.5)
    args = [q, k, v, *from_forward(q, k, v, mask, cap), do]
    module, remarks = lowered(backward(mask, cap), *args, products=GENERATED)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    for value, want in zip(run_loop(module, args, [], []), backward(mask, cap)(*args), strict=True):
        assert value.dtype == want.dtype
        torch.testing.assert_close(value.float(), want.float(), rtol=2e-2, atol=1e-2)


Q, K, V = numbers(2, 3, 66, 32), numbers(2, 3, 70, 32), numbers(2, 3, 70, 40)
LAYERS = [numbers(130, 64), numbers(200, 64, scale=0.2), numbers(200), numbers(48, 200, scale=0.2), numbers(48)]


def decayed(q, k, v):
    """Retention: weights that fall with the distance, which the mask bounds."""
    ago = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
    return (products(q, k).float() * torch.where(ago >= 0, 0.9 ** ago.float(), 0)).to(v.dtype) @ v


def exponentials(q, k, v):
    """A softmax without the highest of a row."""
    weights = torch.exp(products(q, k).float() / 8)
    return (weights.to(v.dtype) @ v) / weights.sum(-1, keepdim=True)


def layers(x, a, b, c, d):
    return F.linear(F.relu(F.linear(x, a, b)), c, d)


PROGRAMS = {
    "products as they are": (lambda q, k, v: products(q, k) @ v, [Q, K, V]),
    "no softmax": (lambda q, k, v: F.relu(products(q, k)) @ v, [Q, K, V]),
    "a triangle": (lambda q, k, v: products(q, k).tril() @ v, [Q, K, V]),
    "retention": (decayed, [Q, K, V]),
    "a gate": (lambda q, k, g, v: (F.silu(products(q, k)) * products(q, g)) @ v, [Q, K, K.flip(-2), V]),
    "weights on the right": (lambda q, k, v: v.mT @ F.relu(products(k, q)), [Q, K, V]),
    "divided by their sums": (lambda q, k, v: ((w := F.relu(products(q, k))) @ v) / (w.sum(-1, keepdim=True) + 1), [Q, K, V]),
    "exponentials by their sums": (exponentials, [Q, K, V]),
    "two layers": (layers, LAYERS),
    "three in a row": (lambda q, k, v, w: F.relu(F.relu(products(q, k)) @ v) @ w, [Q, K, V, numbers(2, 3, 40, 24)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_lies_between_goes_along(name):
    function, args = PROGRAMS[name]
    module, remarks = lowered(function, *args, products=GENERATED)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    (got,) = run_loop(module, args, [], [])
    want = function(*args)
    torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2 * float(want.abs().max()))


@pytest.mark.parametrize(
    ("head", "want"), [(64, [["sum", "sum"], ["sum", "sum"]]), (128, [["sum"], ["sum", "sum"], ["sum", "sum"]])],
)  # fmt: skip
def test_what_a_kernel_does_not_need_it_does_not_compute(head, want):
    """The gradients of values need one product of scores, the others two. Those of keys and values share them where both have room."""
    args = [torch.empty(2, 2, 512, head, dtype=BF16, device="meta") for _ in range(4)]
    more = [torch.empty(2, 2, 512, device="meta"), args[0]]
    module, _ = lowered(backward(causal), *args, *more, stages=("nd", "loop"), products=GENERATED)
    inner = [op.kind_names for op in module.walk() if isinstance(op, loop.ReduceOp) and isinstance(op.parent_op(), loop.ReduceOp)]
    assert sorted(inner) == want


def test_sums_of_the_same_loops_with_weights_of_other_places_stay_apart():
    """Of a square matrix of weights the sums by rows and by columns have loops of the same sizes."""
    args = [numbers(1, 1, 64, 16), numbers(1, 1, 64, 16), *(numbers(1, 1, 64, 24, scale=x) for x in (1.0, 0.5, 0.3))]

    def function(q, k, v, u, x):
        w = F.relu(products(q, k))
        return w @ v, w.mT @ x, w @ u

    module, (remark,) = lowered(function, *args, products=GENERATED)
    assert remark.kind == "applied" and remark.message.endswith("kernels: 2")
    for value, want in zip(run_loop(module, args, [], []), function(*args), strict=True):
        torch.testing.assert_close(value.float(), want.float(), rtol=2e-2, atol=2e-2)


def test_a_mask_bounds_both_directions():
    """Rows of queries end at the diagonal, those of keys begin there; whole blocks have a loop of their own, without a mask."""
    args = [torch.empty(2, 16, 4096, 64, dtype=BF16, device="meta") for _ in range(4)]
    module, _ = lowered(backward(causal), *args, torch.empty(2, 16, 4096, device="meta"), args[0], products=GENERATED)
    for kernel in [f for f in module.ops if isinstance(f, FuncOp) and any(isinstance(op, DotOp) for op in f.walk())]:
        whole, mixed = [op for op in kernel.walk() if op.name == "scf.for"]
        assert not [op for op in whole.walk() if op.name == "arith.cmpi"]
        assert [op for op in mixed.walk() if op.name == "arith.cmpi"]


def test_a_weight_is_as_exact_as_the_program_says():
    """A small tanh is no quotient less 1, which has nothing of it left; what is an exponent, or the square of one in 1 - x * x, may be."""
    q, k = numbers(1, 1, 64, 16, scale=1e-4), numbers(1, 1, 64, 16, scale=1e-3)
    args = [q, k, numbers(1, 1, 64, 16)]

    def function(q, k, v):
        return torch.tanh(products(q.float(), k.float())).to(v.dtype) @ v

    module, _ = lowered(function, *args, products=GENERATED)
    torch.testing.assert_close(run_loop(module, args, [], [])[0].float(), function(*args).float(), rtol=2e-2, atol=1e-9)
    q = torch.empty(2, 8, 512, 64, dtype=BF16, device="meta")
    module, _ = lowered(backward(None, 30.0), q, q, q, q, torch.empty(2, 8, 512, device="meta"), q, products=GENERATED)
    assert "__nv_tanhf" not in str(module)


def test_an_exponential_less_what_a_row_has_is_one_power_of_two():
    """One fused multiplication makes its exponent."""
    q = torch.empty(2, 16, 4096, 64, dtype=BF16, device="meta")
    module, _ = lowered(backward(causal), q, q, q, q, torch.empty(2, 16, 4096, device="meta"), q, products=GENERATED)
    loops = [op for op in module.walk() if op.name == "scf.for" and any(isinstance(o, DotOp) for o in op.walk())]
    for names in ([o.name for o in op.walk()] for op in loops):
        assert names.count("math.exp2") == names.count("math.fma") == 1 and "math.exp" not in names


@pytest.mark.parametrize(("machine", "head", "want"), [("sm_90", 64, 3), ("sm_90", 128, 2), ("sm_80", 128, 2)])
def test_a_second_program_has_room(machine, head, want):
    q = torch.empty(2, 16, 4096, head, dtype=BF16, device="meta")
    args = [q, q, q, q, torch.empty(2, 16, 4096, device="meta"), q]
    module, _ = lowered(backward(causal), *args, stages=("nd", "loop", "mem"), products=GENERATED, machine=machine)
    tiles = [schedule_table(op)["gpu"].data for op in module.walk() if isinstance(op, loop.NestOp)]
    assert min(tile["stages"].value.data for tile in tiles if "dot" in tile) == want


def trained(q, k, v, do):
    """Forward and backward in one graph."""
    there = causal(torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2]))
    x = torch.where(there, products(q.float(), k.float()) * 0.125, -math.inf)
    o = torch.ops.aten._safe_softmax(x, -1).to(v.dtype) @ v
    dead = torch.all(x == -math.inf, -1)
    lse = torch.where(dead, -math.inf, torch.logsumexp(x, -1)) / math.log(2)
    return o, *backward(causal)(q, k, v, o, lse, do)


def test_forward_and_backward_in_one_graph_know_their_masks():
    """Whether a row has any score is computed from its logarithm by each kernel: what is loaded as a condition bounds no terms."""
    q = torch.empty(2, 16, 1024, 64, dtype=BF16, device="meta")
    module, remarks = lowered(trained, q, q, q, q, stages=("nd", "loop"))
    assert [r.kind for r in remarks] == ["applied"] * 2, [r.message for r in remarks]
    infos = [NestAccess(op, {}) for op in module.walk() if isinstance(op, loop.NestOp)]
    nodes = [(info, node) for info in infos for node in info.root.children if node.children]
    assert len(nodes) == 3 and all(needed_terms(info, node) for info, node in nodes)


REFUSED = {
    "the weights are a result": lambda q, k, v: (w := F.relu(products(q, k)), w @ v),
    "their highest are needed": lambda q, k, v: ((w := F.relu(products(q, k))).amax(-1), w @ v),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_others_need_stay_in_memory(name):
    _, (remark,) = lowered(REFUSED[name], Q, K, V, stages=("nd", "loop"), products=GENERATED)
    assert remark.kind == "missed" and "needed by others than sums of products" in remark.message


OTHERS = {
    "weights of 32 bits": (lambda q, k, v: F.relu(products(q.float(), k.float())) @ v.float(), [Q, K, V]),
    "nothing is weighed": (lambda q, k, v: F.relu(products(q, k)) * v, [Q, K, numbers(2, 3, 66, 70)]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_have_no_weights(name):
    function, args = OTHERS[name]
    _, remarks = lowered(function, *args, stages=("nd", "loop"), products=GENERATED)
    assert not [r for r in remarks if r.kind == "applied"]


def test_lengths_may_be_symbols():
    _, remarks = lowered(PROGRAMS["no softmax"][0], Q, K, V, dynamic=(0, 2), products=GENERATED)
    assert [r.kind for r in remarks] == ["applied"]


def test_a_group_is_generated_by_its_price():
    """With the prices of all its products together, which each of them says."""
    args = [torch.empty(2, 8, 2048, 128, dtype=BF16, device="meta") for _ in range(4)]
    args += [torch.empty(2, 8, 2048, device="meta"), args[0]]
    module, remarks = lowered(backward(None, 30.0), *args, stages=("nd", "loop"), of="nd-library-products")
    assert len(remarks) == 5 and len({r.message.partition("(")[2] for r in remarks}) == 1
    assert all("weights stay on chip" in r.message for r in remarks)
    assert not [op for op in module.walk() if isinstance(op, nd.ExternOp)]


def test_wide_layers_stay_calls_of_the_library():
    """Of each of many rows of weights the layer behind would need all columns at once."""
    args = [torch.empty(*shape, dtype=BF16, device="meta") for shape in ((4096, 1024), (4096, 1024), (1024, 4096))]
    _, remarks = lowered(lambda x, a, b: F.linear(F.relu(F.linear(x, a)), b), *args, stages=("nd", "loop"), of="nd-library-products")
    assert not [r for r in remarks if "weights stay on chip" in r.message]


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("shape", "mask", "cap"), [((2, 16, 4096, 64), causal, 0.0), ((2, 8, 2048, 128), None, 30.0)])
def test_the_gradients_fit_registers(machine, shape, mask, cap):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    args = [torch.empty(shape, dtype=BF16, device="meta") for _ in range(4)]
    module, _ = lowered(backward(mask, cap), *args, torch.empty(shape[:3], device="meta"), args[0], machine=machine)
    for kernel in kernel_modules(module):
        built = compile_kernel(kernel, gpu_target(machine))
        assert not built.details["spills"] and not built.details.get("waiting_products")
