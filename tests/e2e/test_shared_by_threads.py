"""Nests shared by four threads, however short they are, alone and joined with all others that may run beside them: values, gradients
and updates are eager's.

By default threads share what takes 8 us, which no small program does. `loop-schedule{grain=1}` lets them share every loop that they may
share, `mem-join-nests{always=true}` puts all nests into one parallel region that nothing keeps apart, so that a dependence that is not
seen, or memory that two threads write, is a wrong value here.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stepwell
from stepwell.tools.fuzz.compare import check_seed

pytestmark = pytest.mark.long


@pytest.fixture
def alone(own_passes):
    """Every nest is shared by four threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    stepwell.register_pass("mem", "loop-schedule{grain=1}", "before:loop-schedule")
    yield
    torch.set_num_threads(before)


@pytest.fixture
def joined(alone):
    """Every nest is shared by four threads, in as few parallel regions as there may be."""
    stepwell.register_pass("mem", "mem-join-nests{always=true}", "before:mem-join-nests")


@pytest.mark.parametrize("first", range(5000, 5040, 10))
def test_random_programs(joined, first):
    for seed in range(first, first + 10):
        check_seed(seed, updates=seed % 3 == 0)


def gradients(fn, inputs):
    """Results of `fn`, and the gradients of its inputs of floating type."""
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    torch.manual_seed(1)
    results = fn(*inputs)
    leaves = [x for x in inputs if x.requires_grad]
    total = sum((r * torch.linspace(-1, 1, r.numel()).reshape(r.shape)).sum() for r in results if r.requires_grad)
    return [r.detach() for r in results], torch.autograd.grad(total, leaves, allow_unused=True)


def check(fn, make, *sizes, dynamic):
    """Results and gradients at each of the sizes are eager's."""
    compiled = torch.compile(fn, backend="stepwell", dynamic=dynamic)
    for size in sizes:
        torch.manual_seed(0)
        inputs = make(*size)
        torch.testing.assert_close(gradients(compiled, inputs), gradients(fn, inputs), rtol=2e-4, atol=2e-4, equal_nan=True)


def normalised(x, w, b):
    """Rows, one row, columns and everything at once."""
    y = F.layer_norm(x, (x.shape[-1],), w, b)
    return y, x.softmax(0), x.flatten().log_softmax(0), F.rms_norm(x.t(), (x.shape[0],)).sum(0), x.var(), x.std(1), x.logsumexp(1)


def scattered(x, w, index):
    """Writes that meet, a scan in each direction, a table whose rows are read twice."""
    table = F.embedding(index % x.shape[0], x)
    sums = torch.zeros_like(x).index_add(0, index, x * w)
    most = torch.full_like(x, -5.0).scatter_reduce(0, index[:, None].expand_as(x), x, "amax")
    return table.tanh(), sums, most, x.cumsum(0), x.cumsum(1).flip(1), torch.cat([x[1:], sums, x.exp()])


def rearranged(x, w, b):
    """Transposed copies (tiles), pieces, windows, and what is computed by tiles in its reader."""
    y = (x.t() * 2 + 1).contiguous()
    image = (x + b).reshape(1, 1, *x.shape)
    small = F.avg_pool2d(image.sin(), 2, ceil_mode=True)
    large = F.interpolate(small, scale_factor=2.0, mode="bilinear")
    largest = F.max_pool2d(image, 3, 1, 1), x.unfold(1, 3, 2).amax(-1)
    return y, y.roll(1, 0), F.pad(x, (2, 1, 1, 2)).cos(), large, *largest, y.sum() + x.amax()


def test_a_size_that_a_call_finds_out(joined):
    """What speaks of it stays behind the call, though it reads nothing of it."""

    def fn(x):
        before = x.sin().sort(0)[0]
        count = torch.nonzero(x > 0).shape[0]
        return before, (x.cos().roll(1, 0) * count).sort(0)[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(fn, backend="stepwell", fullgraph=True)
        for shift in (0, 1):
            x = torch.linspace(-2, 1, 600).reshape(20, 30) + shift
            torch.testing.assert_close(compiled(x), fn(x))


SIZES = [(33, 70), (5, 17), (1, 200), (300, 3)]


@pytest.mark.parametrize("fn", [normalised, scattered, rearranged])
@pytest.mark.parametrize(("how", "dynamic"), [("alone", False), ("joined", False), ("joined", True)])
def test_nests_of_every_kind(request, how, fn, dynamic):
    request.getfixturevalue(how)

    def make(rows, columns):
        last = torch.randint(0, rows, (rows,)) if fn is scattered else torch.randn(columns)
        return torch.randn(rows, columns), torch.randn(columns), last

    check(fn, make, *(SIZES if dynamic else SIZES[:1]), dynamic=dynamic)


class Attends(nn.Module):
    """A block of a decoder, a table whose gradient is scattered, and a loss over its rows."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.qkv, self.out = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(64, 32)

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = [y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)]
        hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        x = x + self.down(F.glu(self.up(x)))
        return F.cross_entropy((x @ self.table.weight.T).flatten(0, 1), tokens.roll(-1, 1).flatten())


class Convolves(nn.Module):
    """Convolutions with batch normalisation, whose running statistics are updated, pooling and a residual."""

    def __init__(self):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.GroupNorm(2, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, tokens):
        image = (tokens.reshape(1, 1, *tokens.shape) / 25 - 1).expand(2, 3, *tokens.shape) * torch.tensor([[[[0.5]]], [[[1.5]]]])
        x = F.max_pool2d(F.relu(self.norm1(self.first(image))), 2, ceil_mode=True)
        x = x + F.silu(self.norm2(self.second(x)))
        return self.last(x.mean((2, 3))).logsumexp(1).sum()


class Recurs(nn.Module):
    """A gated cell step by step: many small nests of which few wait for each other."""

    def __init__(self):
        super().__init__()
        self.table, self.forth, self.back = nn.Embedding(50, 12), nn.Linear(28, 48), nn.Linear(28, 48)

    def forward(self, tokens):
        ends = []
        for cell, steps in ((self.forth, (0, 1, 2)), (self.back, (-1, -2, -3))):
            h = c = torch.zeros(tokens.shape[0], 16)
            for step in steps:
                gates = cell(torch.cat([self.table(tokens[:, step]), h], 1)).chunk(3, 1)
                c = c * gates[0].sigmoid() + gates[1].tanh()
                h = c.tanh() * gates[2].sigmoid()
            ends.append(h)
        return torch.cat(ends, 1).square().mean() + F.cosine_similarity(*ends).sum()


@pytest.mark.parametrize(
    ("model", "kind", "options", "dynamic"),
    [
        (Attends, torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}, True),  # not AdamW: the gradient of the keys' bias is a rounding error
        (Convolves, torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}, False),
        (Recurs, torch.optim.RMSprop, {}, True),
    ],
)
def test_training(joined, model, kind, options, dynamic):
    """Steps of a model and of its optimiser, each compiled: parameters, state and running statistics."""
    torch.manual_seed(0)
    theirs = model()
    ours = copy.deepcopy(theirs)
    steps = [kind(net.parameters(), foreach=True, **options) for net in (ours, theirs)]
    calls = torch.compile(ours, backend="stepwell", dynamic=dynamic), theirs
    updates = torch.compile(steps[0].step, backend="stepwell"), steps[1].step
    for rows, columns in ((6, 20), (9, 13), (6, 20)) if dynamic else ((6, 20),) * 2:
        tokens = torch.randint(0, 50, (rows, columns))
        for call, update, step in zip(calls, updates, steps, strict=True):
            step.zero_grad()
            call(tokens).backward()
            update()
    state = [[net.state_dict(), list(step.state.values())] for net, step in zip((ours, theirs), steps, strict=True)]
    torch.testing.assert_close(*state, rtol=1e-3, atol=1e-4)
