"""Ten models as C programs, in an environment without Python and torch, against eager (AOTI-01, CN-12)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from c_programs import build, call, needs_compiler
from torch import nn
from torch.export import Dim

from stepwell.tools.package.c_export import export_c

pytestmark = [needs_compiler, pytest.mark.long]


class Mixer(nn.Module):
    def __init__(self, tokens=49, channels=96):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.channels = nn.Sequential(nn.Linear(channels, 256), nn.GELU(), nn.Linear(256, channels))

    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 64, 1), nn.BatchNorm2d(64), nn.SiLU(),
            nn.Conv2d(64, 48, 3, stride=2, padding=1, dilation=1), nn.ReLU(), nn.Conv2d(48, 48, 3, groups=4),
        )  # fmt: skip
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(24, 40, num_layers=2, batch_first=True)
        self.head = nn.Linear(40, 5)

    def forward(self, x):
        y, (h, _) = self.lstm(x)
        return self.head(y), h


class Decoder(nn.Module):
    """One step of a decoder with its cache as inputs."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, keys, values):
        batch, steps, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        y = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(batch, steps, width)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(x))), keys, values


class Kept(Decoder):
    """The same with a cache that the model keeps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 4, 32, 16))
        self.register_buffer("values", torch.zeros(1, 4, 32, 16))

    def forward(self, x, position):
        q, k, v = self.qkv(self.norm(x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        seen = torch.arange(32) <= position
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen[None, None, None])
        return x + self.out(y.transpose(1, 2).reshape(1, 1, -1))


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(200, 48), nn.Embedding(32, 48)
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 200, bias=False)
        self.head.weight = self.words.weight  # tied

    def forward(self, words):
        return self.head(self.norm(self.words(words) + self.places.weight[: words.shape[1]]))


class Norms(nn.Module):
    def forward(self, x):
        y = torch.softmax(F.layer_norm(x, x.shape[-1:]), -1)
        return y, x.argmax(-1), torch.logsumexp(x, -1), F.rms_norm(x, x.shape[-1:]) @ y.transpose(1, 2)


def encoder():
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10))


BATCH, LENGTH = Dim("batch", max=256), Dim("length", min=1, max=128)
STEP = (torch.randn(2, 1, 64), *(torch.randn(2, 4, 31, 16) for _ in range(2)))
CASES = {
    "encoder": (encoder, (torch.randn(4, 64, 128),), None, []),
    "encoder_lengths": (
        encoder, (torch.randn(4, 64, 128),), ({0: BATCH, 1: LENGTH},), [(torch.randn(n, k, 128),) for n, k in ((1, 1), (3, 97))],
    ),
    "decoder": (Decoder, STEP, None, []),
    "decoder_lengths": (
        Decoder, STEP, ({}, {2: LENGTH}, {2: LENGTH}),
        [(torch.randn(2, 1, 64), *(torch.randn(2, 4, n, 16) for _ in range(2))) for n in (1, 2, 100, 128)],
    ),
    "mixer": (Mixer, (torch.randn(8, 49, 96),), None, []),
    "mlp": (mlp, (torch.randn(32, 64),), ({0: BATCH},), [(torch.randn(n, 64),) for n in (0, 1, 7, 256)]),
    "convnet": (Convnet, (torch.randn(2, 3, 32, 32),), ({0: BATCH},), [(torch.randn(5, 3, 32, 32),)]),
    "lstm": (Recurrent, (torch.randn(3, 12, 24),), None, []),
    "embedding": (Embedding, (torch.randint(0, 200, (4, 16)),), None, []),
    "norms": (Norms, (torch.randn(3, 70, 50),), None, []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name, tmp_path):
    torch.manual_seed(0)
    make, args, shapes, more = CASES[name]
    model = make().eval()
    export_c(model, args, name=name, folder=tmp_path, dynamic_shapes=shapes)
    program = build(tmp_path, name)
    for given in [args, *more]:
        with torch.no_grad():
            want = model(*given)
        want = want if isinstance(want, tuple) else (want,)
        got = call(program, "forward", given, want, "2", "3")
        torch.testing.assert_close(tuple(got), tuple(want), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_types(dtype, tmp_path):
    torch.manual_seed(0)
    model, x = encoder().eval().to(dtype), torch.randn(2, 16, 128, dtype=dtype)
    export_c(model, (x,), name="typed", folder=tmp_path, levels=["cpu-v3"])
    got = call(build(tmp_path, "typed"), "forward", [x], [x])[0]
    exact = copy.deepcopy(model).double()(x.double()).detach()
    error, eager = (float((y.double() - exact).abs().max()) for y in (got, model(x).detach()))
    assert error <= 2 * eager + 1e-12


def test_a_cache_that_the_model_keeps(tmp_path):
    torch.manual_seed(0)
    model = Kept().eval()
    x, position = torch.randn(1, 1, 64), torch.tensor([3])
    export_c(copy.deepcopy(model), (x, position), name="kept", folder=tmp_path)
    program = build(tmp_path, "kept")
    for calls in (1, 2):
        fresh = copy.deepcopy(model)
        for _ in range(calls):
            want = fresh(x, position)
        (got,) = call(program, "forward", [x, position], [x], str(calls))
        torch.testing.assert_close(got, want.detach(), atol=2e-5, rtol=1e-4)


def test_attention_that_is_spelled_out(tmp_path):
    """Doubles, keys of fewer heads, causal."""
    torch.manual_seed(0)

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.3)

    q, k, v = (torch.randn(2, heads, 9, 8, dtype=torch.float64) for heads in (4, 2, 2))
    export_c(attention, (q, k, v), name="spelled", folder=tmp_path, levels=["cpu-v3"])
    want = attention(q, k, v)
    torch.testing.assert_close(call(build(tmp_path, "spelled"), "forward", [q, k, v], [want])[0], want)


@pytest.mark.parametrize("level", ["cpu-v1", "cpu-v3", "cpu-v4"])
def test_each_level_computes_the_same(level, tmp_path):
    torch.manual_seed(0)
    model, x = mlp().eval(), torch.randn(9, 64)
    export_c(model, (x,), name="level", folder=tmp_path, levels=[level])
    got = call(build(tmp_path, "level"), "forward", [x], [x])[0]
    torch.testing.assert_close(got, model(x).detach(), atol=2e-5, rtol=1e-4)
