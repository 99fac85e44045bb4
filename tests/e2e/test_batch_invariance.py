"""`options={"batch_invariant": True}`: the bits of a row depend on no other row, nor on how many there are, nor on threads."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stepwell
from stepwell.passes.manager.pipelines import DEVICES
from stepwell.tools.interpret.target import InterpretedTarget

OPTIONS = {"batch_invariant": True, "on_failure": "raise"}


class Layer(nn.Module):
    """A transformer's layer with two kinds of norms."""

    def __init__(self, width: int = 32, heads: int = 2):
        super().__init__()
        self.before, self.within = nn.LayerNorm(width), nn.RMSNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.mix(self.before(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.within(x))))


def picture() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1), nn.AvgPool2d(2)
    ).eval()


def sums(x):
    return x.sum(-1), torch.softmax(x, -1), x.var(-1), x.logsumexp(-1), x.cumsum(-1), F.normalize(x, dim=-1), x.exp().prod(-1)


def kept_values(x):
    """Statistics beside stores of what they are made from."""
    z = x + x.sin()
    return z, F.layer_norm(z, z.shape[1:]), z.exp().sum(-1), torch.softmax(z, -1).sum(-1), z.sum(-1)


def columns(x):
    y = x.view(x.shape[0], 11, -1)
    return y.sum(1), y.softmax(1), y.mean((1, 2)), torch.einsum("bij,bij->b", y, y)


torch.manual_seed(0)
W, LINEAR = torch.randn(143, 5), nn.Linear(143, 70)
PROGRAMS = {
    "sums": (sums, (143,)),
    "long rows": (lambda x: (x.sum(-1), torch.softmax(x, -1)[:, :40], x.std(-1)), (40_003,)),
    "columns": (columns, (143,)),
    "kept values": (kept_values, (40_003,)),
    "products": (lambda x: (x @ W, x @ W[:, 0], torch.softmax(LINEAR(x), -1), F.linear(x[:, :3], W.T[:, :3].contiguous())), (143,)),
    "norm and product": (lambda x: LINEAR(F.layer_norm(x, (143,))), (143,)),
    "convolutions": (picture(), (3, 9, 11)),
}

ON_GPU = {
    "norm and product": (lambda x: F.linear(F.layer_norm(x, (19,)), W[:7, :1].expand(7, 19)), (19,)),
    "sums": (lambda x: (x.sum(-1), torch.softmax(x, -1), x.cumsum(-1), x.exp().prod(-1)), (143,)),
    "columns": (columns, (143,)),
    "products": (PROGRAMS["products"][0], (143,)),
    "long rows": (lambda x: (x.sum(-1), x.std(-1)), (14_003,)),
}

def bits(fn, x, dynamic):
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(fn, backend="stepwell", dynamic=dynamic, options=OPTIONS)(x)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [n if n == "products" else pytest.param(n, marks=pytest.mark.long) for n in PROGRAMS])
def test_rows_have_the_bits_that_they_have_alone(name, dynamic):
    fn, sizes = PROGRAMS[name]
    x = torch.randn(33, *sizes)
    whole = bits(fn, x, dynamic)
    for rows in (1, 2, 7):
        for got, want in zip(bits(fn, x[:rows].clone(), dynamic), whole, strict=True):
            assert torch.equal(got, want[:rows])


def test_an_order_is_the_same_for_sizes_that_are_known_and_not():
    """A sum over two dimensions goes in parts of as many terms, also where a size that is not known is within."""
    x = torch.randn(2, 3, 4, 5)
    known, unknown = (bits(lambda x: (x.sum((1, 3)), x.var((1, 3))), x, dynamic) for dynamic in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(known, unknown, strict=True))


def training(model, x, g, dynamic=False):
    """A function of a number of rows, which does one step of training with them: the result with the gradient of the rows, where these are
    floats, and the gradients of weights."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="stepwell", dynamic=dynamic, options=OPTIONS)

    def step(rows):
        part = x[:rows].clone().requires_grad_(x.is_floating_point())
        if not dynamic:
            torch._dynamo.reset()
        y = compiled(part)
        of_rows, weights = [part] if part.requires_grad else [], list(model.parameters())
        found = torch.autograd.grad(y, of_rows + weights, g[:rows])
        return [y.detach(), *found[: len(of_rows)]], found[len(of_rows) :]

    return step


@pytest.mark.spread
@pytest.mark.long
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["layer", "language model"])
def test_training(kind, dtype, dynamic):
    """Rows and their gradients have the bits that they have alone; the gradients of weights, those of the run before."""
    model = (Layer() if kind == "layer" else Model()).to(dtype)
    x = torch.randn(512, 5, 32, dtype=dtype) if kind == "layer" else torch.randint(50, (512, 5))
    step = training(model, x, torch.randn(512, 5, 32 if kind == "layer" else 50, dtype=dtype), dynamic)
    whole, again = step(512), step(512)
    assert all(torch.equal(a, b) for a, b in zip(again[1], whole[1], strict=True))
    for rows in (1, 2, 7, 64):
        assert all(torch.equal(a, b[:rows]) for a, b in zip(step(rows)[0], whole[0], strict=True))


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefix_has_the_bits_of_the_whole(dtype):
    """A prefill of fewer tokens is a part of a longer one: terms behind a causal mask are zeros."""
    layer, x = Layer().to(dtype), torch.randn(2, 19, 32, dtype=dtype)
    (whole,) = bits(layer, x, True)
    for length in (1, 18):
        assert torch.equal(bits(layer, x[:, :length].clone(), True)[0], whole[:, :length])


class Decoder(nn.Module):
    """A layer's attention, whose keys and values are those of before and the new tokens'."""

    def __init__(self, width: int = 32, heads: int = 2):
        super().__init__()
        self.norm, self.mix, self.out, self.heads = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, length, width = x.shape
        q, k, v = self.mix(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        total = keys.shape[2]
        mask = torch.ones(length, total, dtype=torch.bool, device=x.device).tril(total - length)
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return x + self.out(seen.transpose(1, 2).reshape(x.shape)), keys, values


def decoded_alike(dtype, dynamic, length):
    """Whether tokens one by one have the bits of all of them at once."""
    model, x = Decoder().to(dtype), torch.randn(2, length, 32, dtype=dtype)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="stepwell", dynamic=dynamic, options=OPTIONS)
    before = torch.zeros(2, 2, 0, 16, dtype=dtype)
    with torch.no_grad():
        whole, found = compiled(x, before, before), []
        keys, values = whole[1][:, :, :1].clone(), whole[2][:, :, :1].clone()
        for at in range(1, length):
            token, keys, values = compiled(x[:, at : at + 1].clone(), keys, values)
            found.append(token)
    return torch.equal(torch.cat(found, 1), whole[0][:, 1:]) and torch.equal(keys, whole[1]) and torch.equal(values, whole[2])


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_one_by_one_have_the_bits_of_a_prefill(dtype, dynamic):
    assert decoded_alike(dtype, dynamic, 5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sums", "long rows", "products"])
def test_threads_change_nothing(name):
    fn, sizes = PROGRAMS[name]
    x, before = torch.randn(2, *sizes), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(bits(fn, x, False))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_results_are_those_of_eager():
    layer, x = Layer(), torch.randn(3, 7, 32)
    torch.testing.assert_close(bits(layer, x, False)[0], layer(x).detach(), atol=1e-5, rtol=1e-5)


def test_calls_with_sums_of_unknown_order_are_refused():
    """Also where failures cost speed alone: the promise would be broken without a word."""
    with pytest.raises(Exception, match=r"a call of aten\._cdist_forward\.default: sums in it have no known order") as raised:
        torch.compile(lambda x: torch.cdist(x, x), backend="stepwell", options=OPTIONS | {"on_failure": "recover"})(torch.randn(4, 3))
    assert "mem-check-order" in str(raised.value)


def test_numbers_that_only_move_are_not_refused():
    x = torch.randn(5, 7)
    got = bits(lambda x: (x.sort(-1).values, torch.topk(x, 3).values), x, False)
    assert torch.equal(got[0], x.sort(-1).values)
    assert torch.equal(got[1], x.topk(3).values)


# ---- a GPU


class Model(nn.Module):
    """A small language model."""

    def __init__(self, words: int = 50, width: int = 32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.layer, self.norm, self.head = Layer(width), nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.layer(x)))


@pytest.fixture(name="gpu")
def gpu_fixture():
    """Kernels of a GPU, interpreted."""
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")


def differing(fn, x, counts, dynamic=False):
    """The numbers of rows with which results differ from those of all rows."""
    whole = bits(fn, x, dynamic)
    found = {n: bits(fn, x[:n].clone(), dynamic) for n in counts}
    return [n for n, part in found.items() if not all(torch.equal(a, b[:n]) for a, b in zip(part, whole, strict=True))]


@pytest.mark.parametrize("name", [n if n == "norm and product" else pytest.param(n, marks=pytest.mark.long) for n in ON_GPU])
def test_rows_on_a_gpu(name, gpu):
    fn, sizes = ON_GPU[name]
    assert differing(fn, torch.randn(7, *sizes), (1,)) == []


OF_ANY_SIZE = {
    "two dimensions": (lambda x: (x.sum((1, 3)), x.var((1, 2))), [(3, 2, 9, 3), (2, 7, 3, 11)]),
    "rows": (lambda x: (x.var(-1), F.layer_norm(x, x.shape[1:])), [(3, 31), (2, 3000)]),
    "instance norms": (nn.InstanceNorm1d(4), [(3, 4, 31), (3, 4, 5), (2, 4, 3000)]),
}


@pytest.mark.parametrize("name", [n if n == "two dimensions" else pytest.param(n, marks=pytest.mark.long) for n in OF_ANY_SIZE])
def test_known_sizes_have_the_bits_of_symbols_on_a_gpu(name, gpu):
    """Few terms, of straight code, are joined as those in lanes, and statistics are two sums wherever their rows are."""
    fn, shapes = OF_ANY_SIZE[name]
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="stepwell", dynamic=True, options=OPTIONS)
    rows = [torch.randn(shape) for shape in shapes]
    of_symbols = [compiled(x) for x in rows]
    for x, want in zip(rows, of_symbols, strict=True):
        assert all(map(torch.equal, bits(fn, x, False), want if isinstance(want, tuple) else (want,)))


@pytest.mark.long
def test_many_rows_on_a_gpu(gpu):
    """Other tiles of rows, and a dynamic size beside sizes that are known."""
    x = torch.randn(512, 36)
    norm = nn.Sequential(nn.LayerNorm(36), nn.Linear(36, 8))
    (whole,) = bits(norm, x, False)
    assert torch.equal(bits(norm, x[:2], False)[0], whole[:2])
    assert torch.equal(bits(norm, x[:64], True)[0], whole[:64])


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_in_training_on_a_gpu(dtype, gpu):
    layer, x, g = Layer().to(dtype), torch.randn(7, 3, 32, dtype=dtype), torch.randn(7, 3, 32, dtype=dtype)
    step = training(layer, x, g)
    whole = step(7)
    assert all(torch.equal(a, b[:1]) for a, b in zip(step(1)[0], whole[0], strict=True))
    torch.testing.assert_close(whole[0][0], layer(x).detach(), atol=3e-2, rtol=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_one_by_one_on_a_gpu(dtype, gpu):
    assert decoded_alike(dtype, False, 3)


@pytest.mark.long
def test_decoding_on_a_gpu_gives_the_bits_of_a_prefill(gpu):
    model, tokens = Model(), torch.randint(50, (2, 9))
    (whole,) = bits(model, tokens, False)
    assert torch.equal(bits(model, tokens[:1, :4].clone(), False)[0], whole[:1, :4])


@pytest.mark.long
def test_places_that_several_rows_write_on_a_gpu(gpu):
    """One after the other, by kernels of ours: the library's sums would be refused."""
    words, places = nn.Embedding(9, 8), torch.randint(9, (3, 5))
    torch._dynamo.reset()
    compiled = torch.compile(lambda at: words(at).sin().sum(), backend="stepwell", options=OPTIONS)
    (got,) = torch.autograd.grad(compiled(places), words.weight)
    (want,) = torch.autograd.grad(words(places).sin().sum(), words.weight)
    torch.testing.assert_close(got, want)


def heads(queries, keys, hidden=None):
    """bf16 attention of some of the queries, whose places are those behind the other keys; each sees so many keys before it."""
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, 2, 100, 16).bfloat16() for _ in range(3))

    def attention(q, k, v):
        if hidden is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1)
        place, term = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(term <= place) & (term > place - hidden))

    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="stepwell", dynamic=False, options=OPTIONS)
    given = q[:, :, keys - queries : keys].clone(), *(x[:, :, :keys].clone() for x in (k, v))
    return compiled(*given), attention(*given)


@pytest.mark.long
def test_attention_that_keeps_its_scores_on_a_gpu(gpu):
    """By blocks of keys, for any number of queries: decoding with the keys so far gives the bits of a prefill."""
    whole, want = heads(100, 100)
    torch.testing.assert_close(whole, want, atol=2e-2, rtol=2e-2)
    for length in (2, 65):
        assert torch.equal(heads(length, length)[0], whole[:, :, :length])
    for length in (1, 64, 100):
        assert torch.equal(heads(1, length)[0], whole[:, :, length - 1 : length])


@pytest.mark.long
@pytest.mark.parametrize("size", [64, 128])
def test_training_keeps_no_scores_in_memory_on_a_gpu(size, monkeypatch):
    """What is computed of two products is one nest or two, as fusion finds cheaper: neither is stored."""
    torch._dynamo.reset()
    monkeypatch.setitem(DEVICES, "cpu", "gpu")  # how scores are saved is decided by the device of what is traced
    q, k, v = (torch.randn(1, 2, 256, size, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attention = partial(F.scaled_dot_product_attention, is_causal=True)
    explained = stepwell.explain(attention, q, k, v, options={"batch_invariant": True}, target="sm_90", quiet=True)
    assert len(explained.graphs) == 2
    assert max(u.bytes for graph in explained.graphs for step in graph.steps for u in step.writes) <= 2 * q.numel() * q.itemsize


def dropped(rows, **options):
    """The result and gradients of rows of bf16 attention that drops weights, from one seed."""
    torch.manual_seed(6)
    given = [torch.randn(3, 2, 70, 16).bfloat16()[:rows].requires_grad_() for _ in range(3)]
    torch._dynamo.reset()
    attention = partial(F.scaled_dot_product_attention, is_causal=True, dropout_p=0.25)
    compiled = torch.compile(attention, backend="stepwell", dynamic=False, options=OPTIONS | options)
    torch.manual_seed(7)
    y = compiled(*given)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), given)]


@pytest.mark.long
def test_weights_are_dropped_as_eager_drops_them_where_it_draws():
    """The library's dropout adds no numbers: it is no call that the order refuses."""
    got, *_ = dropped(2, fallback_random=True)
    torch.manual_seed(6)
    given = [torch.randn(3, 2, 70, 16).bfloat16()[:2] for _ in range(3)]
    torch.manual_seed(7)
    want = F.scaled_dot_product_attention(*given, is_causal=True, dropout_p=0.25)
    torch.testing.assert_close(got, want, atol=3e-2, rtol=3e-2)


@pytest.mark.long
def test_attention_that_drops_weights_on_a_gpu(gpu):
    """Rows draw what they draw alone; kernels that compute weights again, and draw again, give what stored weights do."""
    stepwell.counters.clear()
    whole = dropped(3)
    assert stepwell.counters["passes"]["gpu-carry-softmax"]["num-carried"] == 3
    assert all(torch.equal(a, b[:1]) for a, b in zip(dropped(1), whole, strict=True))
    for got, want in zip(whole, dropped(3, disable_passes=("gpu-carry-softmax",)), strict=True):
        assert (got.float() - want.float()).norm() < 1e-2 * want.float().norm()


@pytest.mark.long
def test_attention_through_a_window_on_a_gpu(gpu):
    """Blocks of keys are taken in their order, also those before the first one that a block of queries sees as a whole."""
    whole, want = heads(100, 100, 70)
    torch.testing.assert_close(whole, want, atol=2e-2, rtol=2e-2)
    assert torch.equal(heads(80, 80, 70)[0], whole[:, :, :80])
