"""Attention of documents that lie one behind the other, as a user calls it, on the CPU: operators with offsets, jagged tensors.
On interpreted GPUs the same programs are in tests/lowering/mem_to_tt/test_ragged_attention.py."""

from __future__ import annotations

from math import prod

import pytest
import torch
import torch.nested._internal.sdpa as nested_attention
import torch.nn.functional as F
from ragged_programs import PROGRAMS, error, errors_of, errors_of_layer, exact, layer, numbers, offsets
from support import lower, without_data
from torch.nn.attention import SDPBackend

import stepwell
from stepwell.dialects import loop, mem

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]

FEW = ("causal, shared keys", "efficient, causal from the first")
"""Programs of the usual tests; the others are long."""


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Attention of jagged tensors is the operator that torch takes on a GPU."""
    monkeypatch.setattr(nested_attention, "_select_sdp_backend", lambda *_: SDPBackend.FLASH_ATTENTION)


def compiled(function):
    return torch.compile(function, backend="stepwell", fullgraph=True)


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in PROGRAMS])
def test_values_and_gradients_are_those_of_doubles(name):
    assert max(errors_of(PROGRAMS[name], compiled(PROGRAMS[name].function), torch.float32)) < 1e-6
    assert stepwell.counters["extern"] == stepwell.counters["fallback"] == 0


@pytest.mark.long
def test_doubles():
    program = PROGRAMS["window"]
    assert max(errors_of(program, compiled(program.function), torch.float64)) < 1e-7  # the logarithms of sums are numbers of 32 bits


@pytest.mark.long
def test_jagged_tensors(as_on_a_gpu):
    """Another number of documents and other lengths need one more graph."""
    run = compiled(layer)
    for lengths in ((50, 3, 90, 17), (20, 30, 7), (2, 3, 100, 64, 5), (9, 8)):
        assert max(errors_of_layer(run, lengths, torch.float32)) < 1e-6
    assert stepwell.counters["graphs"] == 4


@pytest.mark.parametrize("trains", [True, False])
def test_jagged_tensors_of_one_size_that_is_no_number(trains, as_on_a_gpu):
    """Each of queries, keys and values brings it."""
    at = offsets((30, 64, 12)).long()
    heads = [torch.nested.nested_tensor_from_jagged(numbers(106, 2, 16, seed=n), at, min_seqlen=12, max_seqlen=64) for n in range(3)]
    heads = [x.requires_grad_(trains) for x in heads]

    def attend(q, k, v):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)

    want = exact(*(x.values() for x in heads), at, at, right=0)
    assert error(compiled(attend)(*heads).values(), want) < 1e-6


@pytest.mark.parametrize(("queries", "keys"), [((0,), (0,)), ((3,), (0,)), pytest.param((0,), (3,), marks=pytest.mark.long)])
def test_nothing_to_see(queries, keys):
    """Without keys all is 0."""
    leaves = [numbers(sum(n), 2, 16).requires_grad_() for n in (queries, keys, keys)]
    out = compiled(PROGRAMS["plain"].function)(*leaves, offsets(queries), offsets(keys))
    grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert [x.shape for x in grads] == [x.shape for x in leaves] and all(x.abs().sum() == 0 for x in (out, *grads))


def test_no_scores_are_in_memory():
    """The CPU keeps them in its cache."""

    def forward(q, k, v, at):
        return torch.ops.aten._flash_attention_forward(q, k, v, at, at, 900, 900, 0.0, True, False)[:2]

    args = [torch.empty(2048, 4, 64)] * 3 + [torch.empty(5, dtype=torch.int32)]
    module = lower(forward, *without_data(args, "cpu"), to="mem", target="cpu").module
    stored = [op.results[0].type for op in module.walk() if isinstance(op, mem.AllocOp)]
    assert max(prod(n.value for n in loop.shaped_dims(t)) for t in stored) == args[0].numel()


def test_other_arguments_are_the_librarys():
    """Dropout, tables of pages: what is not defined here stays torch's operator."""
    q, at = torch.randn(8, 2, 16), torch.tensor([0, 8], dtype=torch.int32)

    def dropped(q):
        return torch.ops.aten._flash_attention_forward(q, q, q, at, at, 8, 8, 0.5, False, False)[0]

    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
        compiled(dropped)(q)
