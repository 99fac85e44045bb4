"""What a program asserts about sizes and numbers that come from the data is compared with the data."""

from __future__ import annotations

import pytest
import torch

import stepwell


def number(x):
    n = x.sum().item()
    torch._check(n == 4, lambda: "n is four")
    return x * n, torch.zeros(n)


def number_by_itself(x):
    torch._check(x.sum().item() == 4, lambda: "n is four")
    return x * 2


def truth(x):
    torch._check((x.sum() > 3).item(), lambda: "over three")
    return x * 2


def truth_of_all(x):
    torch._check_tensor_all(x > 0, lambda: "all above zero")
    return x * 2


def float_number(x):
    torch._check(x.float().sum().item() == 4.0, lambda: "four")
    return x * 2


def size(x):
    z = x.nonzero()
    torch._check(z.size(0) == 2, lambda: "two of them")
    return z * 2


def size_of_one_of_several(x):
    u, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
    torch._check(u.size(0) == 2, lambda: "two kinds")
    return u * 2, places, counts


def size_behind_a_view(x):
    z = x.nonzero().squeeze(1)
    torch._check(z.size(0) == x.size(0), lambda: "all nonzero")
    return z + x


def size_of_a_slice(x):
    y = x[: x.max().item()]
    torch._check(y.size(0) == 2, lambda: "two left")
    return y * 2


def size_of_a_selection(x):
    y = x[x > 0]
    torch._check(y.numel() == 2, lambda: "two above zero")
    return y.reshape(2, 1)


HANDS_MESSAGES_ON = torch.__version__ >= (2, 12)
"""Whether Dynamo keeps what the program says where an assertion does not hold."""

CASES = {
    number: ([1, 3], [1, 2]), number_by_itself: ([1, 3], [1, 2]), truth: ([1, 3], [1, 1]), truth_of_all: ([1, 3], [1, 0]),
    float_number: ([1, 3], [1, 1]), size: ([1, 2], [1, 0]), size_of_one_of_several: ([1, 3, 3], [1, 2, 3]),
    size_behind_a_view: ([1, 2], [1, 0]), size_of_a_slice: ([2, 1, 1], [1, 1, 1]), size_of_a_selection: ([1, 2, -1], [1, -1, -1]),
}  # fmt: skip


if not HANDS_MESSAGES_ON:  # torch 2.11 leaves out the number that is asserted, or does not take the program
    del CASES[truth], CASES[truth_of_all]


@pytest.fixture
def captured():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.spread
@pytest.mark.parametrize("host", ["", "python"])
@pytest.mark.parametrize("program", CASES, ids=lambda f: f.__name__)
def test_an_assertion_that_does_not_hold_raises_what_the_program_says(program, host, captured, monkeypatch):
    """Torch writes the asserted value for the number everywhere, in the assertion too: nothing else compares it."""
    if host:
        monkeypatch.setenv("STEPWELL_HOST", host)
    torch._dynamo.reset()
    good, bad = map(torch.tensor, CASES[program])
    compiled = torch.compile(program, backend="stepwell", fullgraph=True)
    for got, want in zip(torch.utils._pytree.tree_leaves(compiled(good)), torch.utils._pytree.tree_leaves(program(good)), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(RuntimeError) as eager:
        program(bad)
    with pytest.raises(RuntimeError) as ours:
        compiled(bad)
    said = str(eager.value) if HANDS_MESSAGES_ON else "which the program asserts to be"
    assert said in str(ours.value) and not isinstance(ours.value, stepwell.StepwellError)
    assert compiled(good) is not None


def test_an_assertion_without_words_is_said_in_numbers(captured):
    def program(x):
        z = x.nonzero()
        torch._check(z.size(0) == 2)
        return z * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", fullgraph=True)
    assert torch.equal(compiled(torch.tensor([1, 2])), torch.tensor([[0], [2]]))
    with pytest.raises(RuntimeError, match=r"size\(\)\[0\] of aten.nonzero.default is 1, which the program asserts to be 2") as error:
        compiled(torch.tensor([1, 0]))
    line = program.__code__.co_firstlineno + 1
    assert f"test_asserted_symbols.py:{line}" in "".join(error.value.__notes__)


def test_an_assertion_about_a_number_that_is_no_argument(captured):
    """Torch writes the symbol of `n` for the size that the data gives, and leaves `n` out of the graph."""

    def program(x, n):
        z = x.nonzero()
        torch._check(z.size(0) == n.item())
        return z * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", fullgraph=True)
    for x in (torch.tensor([1, 2, 0]), torch.tensor([0, 3, 4, 0]), torch.tensor([0, 1, 4, 0, 5])):
        n = x.count_nonzero()
        assert torch.equal(compiled(x, n), program(x, n))
