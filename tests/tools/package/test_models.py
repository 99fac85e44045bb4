"""What packages hold beside a graph: trees, keyword arguments, sizes in ranges, updated buffers, tied weights, several entry points."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import stepwell
from stepwell.targets.package.errors import CallError, PackageError

Pair = namedtuple("Pair", "a b")


@pytest.fixture
def package(tmp_path):
    """Export for one level and load."""

    def make(model, args=(), kwargs=None, **options):
        path = tmp_path / "model.stepwell"
        stepwell.export(model, args, kwargs, to=path, **{"targets": ["cpu-v3"], "ir": False, **options})
        return stepwell.load(path)

    return make


def same(got, want):
    leaves, spec = pytree.tree_flatten(got)
    expected, tree = pytree.tree_flatten(want)
    assert spec == tree
    for a, b in zip(leaves, expected, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        else:
            assert a == b


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, pair, *, mask=None, scale=2.0, named=None):
        a, b = pair
        y = self.layer(x) * scale + a["u"] - b[0]
        y = y.masked_fill(mask, 0)
        more = x.shape[0], y.sum(), x, OrderedDict(k=named.a + 1)
        return {"y": y, "list": [a["u"] * 2, None, 3], "more": more, "named": Pair(named.b, y)}


def test_trees_keyword_arguments_and_constants(package):
    """AOTI-04"""
    torch.manual_seed(0)
    model, r = Nested().eval(), torch.randn
    args = (r(4, 8), ({"u": r(4, 8)}, [r(4, 8)]))
    kwargs = {"mask": r(4, 8) > 0, "scale": 3.0, "named": Pair(r(2), r(2))}
    loaded = package(model, args, kwargs)
    same(loaded(*args, **kwargs), model(*args, **kwargs))
    same(loaded(pair=args[1], x=args[0], **kwargs), model(*args, **kwargs))
    with pytest.raises(CallError, match=r"argument 'scale' is 2.0; the package was exported for 3.0, which is part of the program"):
        loaded(*args, **{**kwargs, "scale": 2.0})
    with pytest.raises(CallError, match=r"argument 'pair'\[0\] should be a dict with the keys 'u', and is a dict of 1"):
        loaded(args[0], ({"v": args[0]}, [args[0]]), **kwargs)
    with pytest.raises(CallError, match=r"argument 'pair'\[1\] should be a list of 1, and is a tuple of 1"):
        loaded(args[0], ({"u": args[0]}, (args[0],)), **kwargs)
    with pytest.raises(CallError, match=r"argument 'pair\[1\]\[0\]', dimension 1, is 7; it should be 8"):
        loaded(args[0], ({"u": args[0]}, [r(4, 7)]), **kwargs)


class Sizes(nn.Module):
    def forward(self, x, y):
        return x.reshape(-1), x.shape[0] * 2 + y.shape[1], torch.cat([x, y], 0).softmax(-1)


def test_sizes_have_ranges_that_calls_check(package):
    """AOTI-10"""
    model, r = Sizes(), torch.randn
    rows, columns = Dim("rows", min=2, max=16), Dim("columns", max=9)
    loaded = package(model, (r(4, 6), r(3, 6)), dynamic_shapes=({0: rows, 1: columns}, {0: Dim("more"), 1: columns}))
    for a, b, c in [(4, 6, 3), (2, 9, 1), (16, 2, 40), (5, 7, 2), (3, 4, 0)]:
        x, y = r(a, b), r(c, b)
        same(loaded(x, y), model(x, y))
    with pytest.raises(CallError, match=r"argument 'x', dimension 0, is 17; the package was exported for 2 to 16"):
        loaded(r(17, 6), r(3, 6))
    with pytest.raises(CallError, match=r"argument 'x', dimension 0, is 1; the package was exported for 2 to 16"):
        loaded(r(1, 6), r(3, 6))
    with pytest.raises(CallError, match=r"argument 'y', dimension 1, is 5; it should be 6 \(.*, as argument 'x', dimension 1 is\)"):
        loaded(r(4, 6), r(3, 5))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.total.add_(x)
        self.calls += 1
        return self.total * 2 + self.calls


def test_buffers_that_are_updated_live_in_the_package_and_start_again(package):
    """AOTI-05, CN-12"""
    model = Counter()
    loaded, x = package(model, (torch.ones(3),)), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(model.total, torch.zeros(3))
    assert [loaded(x).tolist() for _ in range(2)] == [[3, 5, 7], [6, 10, 14]]
    assert loaded.state["total"].tolist() == [2, 4, 6] and loaded.state["calls"].item() == 2
    loaded.reset()
    assert loaded(x).tolist() == [3, 5, 7]


class Updates(nn.Module):
    def forward(self, x, y):
        x.add_(y)
        return x * 2


def test_arguments_that_are_updated(package):
    loaded, x = package(Updates(), (torch.randn(4, 4), torch.randn(4, 4))), torch.ones(4, 4)
    assert loaded(x, torch.ones(4, 4)).tolist() == [[4] * 4] * 4 and x.tolist() == [[2] * 4] * 4
    with pytest.raises(AssertionError, match="stride"):  # a copy would take the update
        loaded(torch.ones(4, 8)[:, ::2], torch.ones(4, 4))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embed.weight
        self.bias = torch.arange(50.0)

    def forward(self, i):
        return self.out(self.embed(i)) + self.bias + torch.tensor([1.5])


def test_tied_weights_lie_in_the_file_once_and_constants_do(package):
    """CN-04"""
    model, i = Tied(), torch.randint(0, 50, (3, 4))
    loaded = package(model, (i,))
    same(loaded(i), model(i))
    weights = loaded.weights
    assert weights["embed.weight"].data_ptr() == weights["out.weight"].data_ptr()
    with stepwell.targets.package.format.open_package(loaded.path) as file:
        assert file.section("weights").size < 50 * 16 * 4 + 50 * 4 + 256


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)

    def decode(self, x, cache):
        return self.layer(x) + cache


def test_several_entry_points_share_weights(package):
    model, r = Decoder().eval(), torch.randn
    step, cache = r(1, 8), r(1, 8)
    entries = {"prefill": (model, (r(5, 8),), {}, ({0: Dim("t", max=32)},)), "decode": (model.decode, (step,), {"cache": cache})}
    loaded = package(entries)
    x = r(7, 8)
    assert loaded.entries == ("prefill", "decode") and sorted(loaded.weights) == ["layer.bias", "layer.weight"]
    same(loaded.prefill(x), model(x))
    same(loaded.decode(step, cache=cache), model.decode(step, cache))
    with pytest.raises(PackageError, match="several entry points; call one by name: prefill, decode"):
        loaded(x)
    with pytest.raises(AttributeError, match="no entry point 'encode'"):
        loaded.encode(x)


def test_entry_points_of_different_models_keep_their_weights_apart(package):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4).eval(), nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    loaded = package({"first": (first, (x,)), "second": (second, (x,))})
    same(loaded.first(x), first(x))
    same(loaded.second(x), second(x))
    assert sorted(loaded.weights) == ["bias", "second.bias", "second.weight", "weight"]


class Passed(nn.Module):
    def forward(self, x):
        return x, x.view(-1), x.t(), x[0]


def test_a_model_that_computes_nothing_and_a_function(package):
    x = torch.randn(3, 4)
    loaded = package(Passed(), (x,))
    same(loaded(x), Passed()(x))
    assert loaded(x)[1].data_ptr() == x.data_ptr()
    same(package(lambda a, b: torch.where(a > 0, a, b), (x, 2 * x))(x, 3 * x), torch.where(x > 0, x, 3 * x))


def test_random_numbers_follow_the_seed(package):
    loaded, x = package(nn.Dropout(0.5), (torch.ones(64),)), torch.ones(64)
    torch.manual_seed(7)
    first = loaded(x)
    torch.manual_seed(7)
    assert torch.equal(loaded(x), first) and not torch.equal(loaded(x), first) and 0 < int((first == 0).sum()) < 64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda to: stepwell.export(nn.ReLU(), (torch.ones(2),), to=to, targets=["cpu-v9"]), "there is no target 'cpu-v9'"),
        (lambda to: stepwell.export(nn.ReLU(), torch.ones(2), to=to), "args is a Tensor; it has to be a tuple"),
        (lambda to: stepwell.export({}, to=to), "a package needs an entry point"),
        (lambda to: stepwell.export({"a b": (nn.ReLU(), ())}, to=to), "'a b' is no name"),
        (lambda to: stepwell.export("nowhere.pt2", to=to), "nowhere.pt2: there is no such file"),
        (lambda to: stepwell.export(3, to=to), "the model is of the type int; it has to be a module"),
        (lambda to: stepwell.export(nn.Linear(2, 2), (torch.ones(3),), to=to), "entry point 'forward': torch.export fails"),
        (lambda to: stepwell.export(nn.ReLU(), (torch.ones(3),), to=to / "no" / "folder"), "cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_named(tmp_path, call, message):
    with pytest.raises(PackageError, match=message):
        call(tmp_path / "a.stepwell")
    assert list(tmp_path.iterdir()) == []


def test_an_exported_program_and_its_file(package, tmp_path):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(2, 4)
    program = torch.export.export(model, (x,))
    same(package(program)(x), model(x))
    torch.export.save(program, tmp_path / "a.pt2")
    same(package(tmp_path / "a.pt2")(x), model(x))


class Selected(nn.Module):
    def forward(self, x):
        return x[x > 0], x * x.max().item()


class Derived(nn.Module):
    def forward(self, x, y):
        return x[:, : y.shape[0]] + y


def test_sizes_that_values_say_and_sizes_made_of_others(package):
    loaded = package(Selected(), (torch.randn(30),))
    for x in (torch.randn(30), torch.zeros(30)):
        same(loaded(x), Selected()(x))
    half = Dim("half", max=40)
    loaded = package(Derived(), (torch.randn(3, 8), torch.randn(4)), dynamic_shapes=({1: 2 * half}, {0: half}))
    same(loaded(torch.ones(3, 20), torch.ones(10)), torch.full((3, 10), 2.0))
    with pytest.raises(CallError, match="argument 'x', dimension 1, is 21; it should be 20"):
        loaded(torch.ones(3, 21), torch.ones(10))


DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64, torch.bool, torch.complex64]


class Weighted(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x):
        return torch.where(x == x, x, self.weight), self.weight


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_of_every_type(package, dtype):
    weight = (3 * torch.randn(3, 4)).to(dtype)
    same(package(Weighted(weight), (weight.clone(),))(weight), Weighted(weight)(weight))


def test_weights_of_odd_layouts(package):
    views = torch.randn(4, 3).t(), torch.randn(10, 8)[2:5, 1:8:2], torch.randn(1, 4).expand(3, 4)
    for weight in (*views, torch.empty(0, 4), torch.tensor(2.0)):
        same(package(Weighted(weight), (weight.clone(),))(weight.clone()), (weight.clone(), weight))


def test_frozen_weights_are_constants(package):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    model[1].running_mean.normal_()
    x = torch.randn(2, 3, 8, 8)
    loaded = package(model, (x,), options={"freezing": True})
    torch.testing.assert_close(loaded(x), model(x).detach())
    assert all(name.startswith("forward.constant") for name in loaded.weights)
    with pytest.raises(PackageError, match="it has no weight '0.weight'"):
        stepwell.load(loaded.path, weights=model.state_dict())


def test_frozen_weights_lie_in_panels(package):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 40)).eval(), torch.randn(6, 40)
    loaded = package(model, (x,), options={"freezing": True})
    torch.testing.assert_close(loaded(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert sorted(tuple(t.shape) for t in loaded.weights.values() if t.dim() == 3) == [(1, 100, 64), (2, 40, 64)]


class ByteProduct(nn.Module):
    """A product of bytes, of odd sizes, whose weight is rows of bytes."""

    def __init__(self, columns, depth):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (columns, depth), dtype=torch.int8))

    def forward(self, x):
        return torch._int_mm(x.mul(8).round().clamp(-128, 127).to(torch.int8), self.weight.t()) * 0.5


def test_frozen_bytes_lie_in_panels(package):
    """One copy serves processors with and without a multiplier of bytes, and the file holds no other."""
    torch.manual_seed(0)
    model, x = ByteProduct(100, 90), 4 * torch.randn(20, 90)
    loaded = package(model, (x,), options={"freezing": True}, targets=["cpu-v3", "cpu-native"])
    for target in (t.name for t in loaded.signature.targets):
        assert torch.equal(stepwell.load(loaded.path, target=target)(x), model(x))
    assert [tuple(t.shape) for t in loaded.weights.values() if t.dtype == torch.int8] == [(2, 23, 64, 4)]


def test_a_whole_state_dict_fits_though_a_part_of_it_is_not_used(package):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), torch.randn(2, 4)
    loaded = package(model, (x,))
    assert "1.num_batches_tracked" in loaded.weights
    same(stepwell.load(loaded.path, weights=model.state_dict())(x), model(x))
