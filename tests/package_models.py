"""Ten models that tests export: as packages, and as objects for C programs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


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
