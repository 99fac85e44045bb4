"""Attention of documents through the pipeline of a GPU, its kernels interpreted: loops over keys begin and end where a document does.
The same programs on the CPU: tests/e2e/test_ragged_attention.py."""

from __future__ import annotations

from math import prod

import pytest
import torch
import torch.nested._internal.sdpa as nested_attention
from ragged_programs import PROGRAMS, WIDTH, error, errors_of, errors_of_layer, exact, layer, numbers, offsets
from support import lower, without_data
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend
from torch.nn.attention.varlen import varlen_attn

import stepwell
from stepwell.dialects import loop
from stepwell.dialects.expr import free_dims
from stepwell.passes.analysis.needed_terms import needed_terms
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.symbols import symbol_facts
from stepwell.tools.interpret.target import InterpretedTarget

pytestmark = pytest.mark.filterwarnings("ignore")

BF16 = torch.bfloat16
FEW = ("causal, shared keys",)
"""Programs of the usual tests; the others are long."""


@pytest.fixture
def interpreted():
    stepwell.register_target(InterpretedTarget, replace=True)
    torch._dynamo.reset()
    stepwell.reset_counters()
    yield
    torch._dynamo.reset()
    stepwell.unregister_target("interpreted")


def compiled(function):
    return torch.compile(function, backend="stepwell", fullgraph=True)


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in PROGRAMS])
def test_values_and_gradients_are_those_of_doubles(name, interpreted):
    assert max(errors_of(PROGRAMS[name], compiled(PROGRAMS[name].function), BF16)) < 1e-2
    assert stepwell.counters["extern"] == stepwell.counters["fallback"] == 0


def test_jagged_tensors(interpreted, monkeypatch):
    monkeypatch.setattr(nested_attention, "_select_sdp_backend", lambda *_: SDPBackend.FLASH_ATTENTION)
    run = compiled(layer)
    for lengths in ((50, 3, 90, 17), (20, 30, 7)):
        assert max(errors_of_layer(run, lengths, BF16)) < 1e-2
    assert stepwell.counters["extern"] == 0


def attend(q, k, v, at):
    return varlen_attn(q, k, v, at, at, 128, 128)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.long)])
def test_other_documents_are_not_read(dynamic, interpreted):
    """What is not finite there does not reach the result, or a gradient."""
    at = offsets((64, 128, 64, 70))
    rows = int(at[-1])
    leaves = [numbers(rows, 1, WIDTH, seed=n).to(BF16) for n in range(3)]
    seed = numbers(rows, 1, WIDTH, seed=7).to(BF16)
    copies = [x.clone().requires_grad_() for x in leaves]
    want = exact(*copies, at, at)
    wanted = torch.autograd.grad(want, copies, seed.double())
    for x in (*leaves, seed):
        x[192:256] = float("nan")
    got = torch.compile(attend, backend="stepwell", fullgraph=True, dynamic=dynamic)(*(x.requires_grad_() for x in leaves), at)
    found = torch.autograd.grad(got, leaves, seed)
    kept = torch.cat([torch.arange(192), torch.arange(256, rows)])
    assert max(error(a[kept], b[kept]) for a, b in zip((got, *found), (want, *wanted), strict=True)) < 1e-2


LARGE = [torch.empty(4096, 8, 64, dtype=BF16), *[torch.empty(4096, 4, 64, dtype=BF16)] * 2, torch.empty(9, dtype=torch.int32)]


def forward(q, k, v, at):
    return torch.ops.aten._flash_attention_forward(q, k, v, at, at, 900, 900, 0.0, True, False)[:2]


def backward(grad, q, k, v, out, sums, at, state):
    return torch.ops.aten._flash_attention_backward(grad, q, k, v, out, sums, at, at, 900, 900, 0.0, True, state, state)


def large(function, dynamic=False):
    """A function's arguments. dynamic: how many rows and documents there are is not known."""
    q, k, v, at = LARGE
    given = LARGE if function is forward else [q, q, k, v, q, torch.empty(8, 4096), at, torch.empty(2, dtype=torch.uint64)]
    if not dynamic:
        return without_data(given, "cpu")
    fake = FakeTensorMode(shape_env=ShapeEnv())
    known = {8, 4, 64, 2}
    kinds = [[DimDynamic.STATIC if n in known else DimDynamic.DUCK for n in x.shape] for x in given]
    return [fake.from_tensor(x, symbolic_context=StatelessSymbolicContext(k)) for x, k in zip(given, kinds, strict=True)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [forward, backward])
def test_no_scores_are_in_memory(function, dynamic):
    """Sizes may be symbols."""
    module = lower(function, *large(function, dynamic), to="loop", mode="real").module
    stored = [r.type for op in module.walk() if isinstance(op, loop.NestOp) for r in op.results]
    assert max(prod(n.value or 4096 for n in loop.shaped_dims(t)) for t in stored) == LARGE[0].numel()


def ragged(module):
    """How many loops over terms begin or end at numbers that a nest loads."""
    count = 0
    for nest in [op for op in module.walk() if isinstance(op, loop.NestOp)]:
        info = NestAccess(nest, symbol_facts(module)[0])
        count += sum(any(d in info.opaque for e in needed_terms(info, node) for d in free_dims(e)) for node in info.root.walk())
    return count


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
def test_documents_and_experts_have_the_same_loops():
    """Attention of documents, its gradients, and the gradient of experts' matrices: one analysis finds the bounds of their loops."""

    def experts(x, grad, ends):
        return torch._grouped_mm(x.t(), grad, offs=ends)

    sizes = [torch.empty(4096, 512, dtype=BF16), torch.empty(4096, 256, dtype=BF16), torch.empty(8, dtype=torch.int32)]
    replaced = {"nd_library_products": "nd-library-products{library=never}"}
    assert ragged(lower(experts, *without_data(sizes, "cpu"), to="mem", **replaced).module)
    assert ragged(lower(forward, *large(forward), to="mem").module) == 1
    assert ragged(lower(backward, *large(backward), to="mem").module) == 2


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("function", [forward, backward])
def test_triton_compiles_it(function, target):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from xdsl.dialects.builtin import ModuleOp

    from stepwell.dialects.tt.structure import FuncOp
    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.gpu import gpu_target

    module = lower(function, *large(function), machine=target).module
    kernels = [ModuleOp([k.clone()]) for k in module.ops if isinstance(k, FuncOp) and k.is_kernel]
    for built in compile_kernels(kernels, gpu_target(target)):
        assert isinstance(built.code, bytes) and built.code.startswith(b"\x7fELF")
