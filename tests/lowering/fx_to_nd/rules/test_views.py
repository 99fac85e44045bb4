"""Views, their aliasing at the border, joins and pads."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from stepwell.tools.backend.compile_graph import compile_graph
from stepwell.tools.options.options import Options

VIEWS = {
    "view": lambda x: x.view(2, -1),
    "reshape": lambda x: x.reshape(4, 6),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 5, -1, -1),
    "slice": lambda x: x[:, 1:, ::2],
    "negative slice": lambda x: x[:, -2:, :-1],
    "beyond": lambda x: x[:, :100, 50:],
    "select": lambda x: (x[1], x[:, -1], x[..., 2]),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "flip": lambda x: x.flip(0, 2),
    "diagonal": lambda x: (x.diagonal(0, 1, 2), x.diagonal(1, 1, 2), x.diagonal(-1, 0, 2)),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "split": lambda x: x.split(2, 2),
    "chunk": lambda x: x.chunk(2, 1),
    "unbind": lambda x: x.unbind(1),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "movedim": lambda x: x.movedim(0, 2),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 5), 1),
    "roll": lambda x: (x.roll(1, 0), x.roll((1, -2), (1, 2)), x.roll(3)),
    "repeat": lambda x: (x.repeat(1, 2, 1), x.repeat(2, 1, 1, 3)),
    "tile": lambda x: torch.tile(x, (2,)),
    "rot90": lambda x: torch.rot90(x, 1, (0, 1)),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "view dtype": lambda x: (x.view(torch.int32),),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(check, name):
    """B05"""
    check(VIEWS[name], torch.randn(2, 3, 4))
    if name not in ("view", "as_strided", "t"):
        check(VIEWS[name], torch.randn(4, 3, 2).permute(2, 1, 0))


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("as_strided", "reshape", "pixel shuffle")])
def test_view_of_symbolic_sizes(check, name):
    fixed = name in ("view", "split", "chunk", "unbind", "as_strided")  # the number of results, or a divisor
    check(VIEWS[name], torch.randn(2, 3, 4), dynamic=True, grow=not fixed)


def test_as_strided_reads_memory_order(check):
    """N05, LY-04"""
    check(lambda x: torch.as_strided(x.t() + 1, (6,), (1,)), torch.randn(2, 3))
    check(lambda x: torch.as_strided_scatter(x + 1, torch.zeros(2, 2), (2, 2), (3, 1), 1), torch.randn(3, 4))
    check(lambda x: torch.as_strided_scatter(x + 1, torch.zeros(6, 2), (6, 2), (2, 1), 0), torch.randn(3, 4))


def aliases(found):
    attrs = next(iter(found.module.ops)).res_attrs.data
    return [a.data["nd.alias"].data if "nd.alias" in a.data else None for a in attrs]


def test_returned_views_are_aliases(imported):
    """B01, MUT-06"""
    assert aliases(imported(lambda x: (x.t(), x[1:], x + 1), torch.randn(3, 3))) == ["arg 0", "arg 0", None]

    def of_an_intermediate(x):
        y = x + 1
        return y.view(-1), y, y.t()

    found = imported(of_an_intermediate, torch.randn(2, 3))
    assert [o.value for o in found.outputs] == [1, 0, 2]
    assert aliases(found) == [None, "result 0", "result 0"]


def test_fresh_results_are_not_aliases(imported):
    assert aliases(imported(lambda x: (x.clone(), x * 1, x.view(-1).clone()), torch.randn(3))) == [None] * 3


def test_expanded_result_keeps_its_strides(check):
    found = check(lambda x: (x + 1).unsqueeze(1).expand(3, 4), torch.randn(3))
    assert aliases(found) == [None, "result 0"]


def test_alias_offset_is_relative_to_the_argument(imported, compare):
    base = torch.randn(10)

    def tail(x):
        return x[2:]

    found = imported(tail, base[3:])
    assert "nd.layout<[1], 2>" in str(found.module)
    compare(tail, found, (base[3:],))


def test_result_strides_are_eager_s(check):
    """LY-01, B19"""
    check(lambda x: (x.t() + 1, x.to(memory_format=torch.contiguous_format)), torch.randn(3, 4))
    check(lambda x: torch.relu(x), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


def test_join(check):
    """N07"""
    def joins(x, y):
        return (
            torch.cat([x, y], 1),
            torch.stack([x, x], -1),
            torch.cat([torch.zeros(0), x[0]]),
            torch.cat([x, y.double()], -1),
        )

    check(joins, torch.randn(2, 3), torch.randn(2, 4))
    check(lambda x, y: torch.cat([x, y]), torch.randn(2, 3), torch.randn(5, 3), dynamic=True)


def test_pad(check):
    """N17"""
    def pads(x):
        return (
            F.pad(x, (1, 2, 0, 1), value=3.0),
            F.pad(x, (-1, 1)),
            F.pad(x, (2, 1), mode="reflect"),
            F.pad(x, (2, 1), mode="replicate"),
            F.pad(x, (2, 1), mode="circular"),
        )

    check(pads, torch.randn(2, 3, 4))
    check(lambda x: F.pad(x, (1, 2)), torch.randn(2, 3), dynamic=True)
    check(
        lambda x: (F.pad(x, (2, 1, 1, 2), mode="reflect"), F.pad(x, (2, 1, 1, 2), mode="replicate")),
        torch.randn(2, 3, 4, 5),
    )


def test_writes_to_parts(check):
    """N15"""
    def parts(x, y):
        a, b, c, d = x.clone(), x.clone(), x.clone(), x.clone()
        a[:, 1:3] = y
        b[1] = 7.0
        c.diagonal().fill_(5.0)
        d[::2, -1] += 1
        return a, b, c, d

    check(parts, torch.randn(4, 4), torch.randn(4, 2))
    check(
        lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), torch.randn(4, 6), torch.randn(4, 2), dynamic=True, grow=False
    )


def test_creation(check):
    """N16"""
    def create(x):
        n = x.shape[0]
        return (
            torch.zeros(2, 3), torch.ones_like(x), torch.full((2,), 2.5), torch.arange(5), torch.arange(1, 9, 2,
            dtype=torch.float32), torch.arange(0.0, 1.0, 0.25), torch.eye(3), torch.linspace(0, 1, 5), x.new_full((2,),
            3), torch.full_like(x, 2), torch.tril(x), torch.triu(x, 1), torch.arange(n), torch.zeros(n, 2),
            torch.tril_indices(3, 3),
        )  # fmt: skip

    check(create, torch.randn(3, 3))
    check(create, torch.randn(5, 5), dynamic=True)


@pytest.mark.parametrize("shape", [(3, 5), (1, 4), (4, 1), (0, 3)])
def test_a_write_to_a_strided_view_of_all_memory(shape):
    """As torch 2.11 spells attention with functions out; what it is a view of has the elements in its own order."""

    def fn(x):
        base = x.new_empty(x.shape)
        turned = base.as_strided(x.shape, (1, x.shape[0]))
        turned.copy_(x)
        return turned * 2, base + 1

    x = torch.randn(shape)
    got = compile_graph(make_fx(fn)(x), [x], Options(cache="off"))([x])
    torch.testing.assert_close(tuple(got), fn(x))
