"""The IR that is dumped at each level: it parses back, prints as it was, and the rest of the pipeline from there gives what the whole
gave, on the inputs that the compiled model really got (forward and backward)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.parser import Parser

import stepwell.tools.backend.compile_graph as compile_graph
from stepwell.passes.manager.instrumentation import print_ir
from stepwell.tools.opt.run_ir import run_module

LEVELS = ("0_import", "1_nd", "2_loop", "3_mem", "4_cpu", "5_host")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, 2, 8).transpose(1, 2) for y in self.qkv(self.norm(x)).split(16, dim=2))
        score = (q @ k.transpose(-2, -1)) * 8**-0.5
        score = score.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return x + self.out((score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, 16))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell = nn.Embedding(20, 8), nn.LSTMCell(8, 8)

    def forward(self, tokens):
        x = self.table(tokens)
        h = c = x.new_zeros(x.shape[0], 8)
        for k in range(x.shape[1]):
            h, c = self.cell(x[:, k], (h, c))
        return F.cross_entropy(F.linear(h, self.table.weight), tokens[:, 0]).view(1)


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.message, self.attention = nn.Linear(16, 8), nn.Linear(8, 1)

    def forward(self, x, source, target):
        m = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
        a = self.attention(m).squeeze(1)
        e = torch.exp(a - torch.full_like(x[:, 0], -1e4).scatter_reduce(0, target, a, "amax")[target])
        total = torch.zeros_like(x[:, 0]).index_add(0, target, e)
        return torch.zeros_like(x).index_add(0, target, m * (e / (total[target] + 1e-6))[:, None])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.group = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.group(F.interpolate(y, scale_factor=2.0, mode="bilinear")).mean((2, 3))


def rotary(x):
    a, b = x.chunk(2, -1)
    angle = torch.arange(x.shape[1]) / 10
    return torch.cat([-b, a], -1) * angle.sin()[:, None] + x * angle.cos()[:, None]


def update(x, y):
    x.add_(y)
    x[1:] *= 2
    return x.sum(0), y.cumsum(0)


def lists(*xs):
    norms = torch._foreach_norm(xs)
    torch._foreach_mul_(xs, 0.5)
    return torch.stack(norms), *torch._foreach_exp(xs)


def rounded(x):
    q = (x / x.abs().amax(-1, keepdim=True) * 448).to(torch.float8_e4m3fn)
    return q.t().contiguous().view(torch.uint8), q == 0, q.to(torch.float8_e5m2).float()


def pick(x):
    return x.argmax(1), x.amin(0), x.var(1), x.std(), (x > 0).any(1), x.sort(1)[0]


CASES = {
    # name: (module or function, inputs, whether it is trained, options of torch.compile)
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 3), nn.Softmax(-1)), [(5, 12)], True, {}),
    "attention": (Attention, [(2, 7, 16)], True, {}),
    "language": (Language, ["tokens"], True, {}),
    "messages": (Messages, [(9, 8), "edges", "edges"], True, {}),
    "residual": (Residual, [(2, 3, 8, 8)], True, {}),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.SiLU()), [(4, 6)], True, {}),
    "any-size": (lambda: nn.Sequential(nn.LayerNorm(10), nn.Linear(10, 4), nn.Tanh()), [(6, 10)], True, {"dynamic": True}),
    "rotary": (lambda: rotary, [(2, 6, 8)], False, {}),
    "update": (lambda: update, [(4, 5), (4, 5)], False, {}),
    "lists": (lambda: lists, [(4, 5), (7,), (0, 3), (2, 2, 3), (6, 20)], False, {}),
    "lists-any-size": (lambda: lists, [(4, 5), (7, 5), (9, 5), (11, 5)], False, {"dynamic": True}),
    "pick": (lambda: pick, [(6, 33)], False, {}),
    "softmax": (lambda: lambda x: x.softmax(-1), [(4, 100)], False, {"dynamic": True}),
    "float8": (lambda: rounded, [(4, 33)], False, {}),
    "pool": (lambda: lambda x: F.avg_pool2d(x, 3, 2, 1), [(2, 3, 9, 9)], False, {}),
}  # fmt: skip


def make(what):
    if what == "tokens":
        return torch.randint(0, 20, (3, 4))
    if what == "edges":
        return torch.randint(0, 9, (30,))
    return torch.randn(what)


def copied(values):
    """Copies with the same strides."""
    return [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).copy_(v) if torch.is_tensor(v) else v for v in values]


class Recorder:
    """What each compiled graph was given and what it returned and left in its inputs."""

    def __init__(self, monkeypatch):
        self.calls = []
        original = compile_graph.Runner.__init__

        def init(runner, program, *rest, **more):
            original(runner, program, *rest, **more)
            number = len(self.calls)
            self.calls.append(None)

            def recorded(args):
                given, held, state = copied(args), list(args), torch.get_rng_state()
                results = program(args)
                self.calls[number] = (state, given, runner.constants, copied(results), copied(held))
                return results

            runner.program = recorded

        monkeypatch.setattr(compile_graph.Runner, "__init__", init)


LONG = ("residual", "language", "messages", "attention")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CASES])
def test_every_level_gives_the_same(name, tmp_path, monkeypatch):
    """Catalogue G01."""
    build, inputs, trained, options = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    recorder = Recorder(monkeypatch)
    call = torch.compile(build(), backend="stepwell", options={"debug": str(tmp_path)}, **options)
    result = call(*[make(what) for what in inputs])
    if trained:
        (result * torch.linspace(-1, 1, result.numel()).view_as(result)).sum().backward()
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == len(recorder.calls) == (2 if trained else 1)
    for folder, (state, given, constants, want, left) in zip(folders, recorder.calls, strict=True):
        assert sorted(p.stem for p in folder.glob("*.mlir")) == list(LEVELS)
        for level in LEVELS:
            text = (folder / f"{level}.mlir").read_text()
            ctx = compile_graph.context()
            module = Parser(ctx, text, f"{level}.mlir").parse_module()
            assert print_ir(module, debuginfo=False) == text, f"{folder.name} {level} does not print as it was"
            torch.set_rng_state(state)
            args = copied(given)
            place = list(args) if level == "5_host" else [*args, *constants]
            got = run_module(module, ctx, place)
            near = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True, "msg": lambda m, at=f"{folder.name} {level}": f"{at}: {m}"}
            torch.testing.assert_close(list(got), want, **near)
            torch.testing.assert_close(args, left, **near)
