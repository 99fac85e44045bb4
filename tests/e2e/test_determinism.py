"""The same program gives the same IR, remarks and code in every process: nothing depends on addresses or on the hashes of strings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(2)])
        self.mix = nn.Linear(64, 192)
        self.widen, self.narrow = nn.Linear(64, 160), nn.Linear(80, 64)

    def forward(self, words):
        x = self.table(words)
        for norm in self.norms:
            q, k, v = self.mix(norm(x)).view(*words.shape, 3, 4, 16).permute(2, 0, 3, 1, 4)
            p = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
            x = x + (p @ v).transpose(1, 2).reshape(x.shape)
            a, b = self.widen(x).chunk(2, -1)
            x = x + self.narrow(torch.nn.functional.silu(a) * b)
        return torch.log_softmax(x @ self.table.weight.T, -1)

torch.manual_seed(0)
net = Layer()
options = {"cache": "off", "debug": sys.argv[1]}
call = torch.compile(net, backend="stepwell", options=options)
torch.nn.functional.nll_loss(call(torch.randint(50, (2, 12))).flatten(0, 1), torch.arange(24) % 50).backward()

picture = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8))
torch.compile(picture, backend="stepwell", options=options)(torch.randn(2, 3, 16, 16)).square().mean().backward()

adam = torch.optim.AdamW(net.parameters(), foreach=True)
torch.compile(adam.step, backend="stepwell", options=options)()

@torch.compile(backend="stepwell", options=options)
def rows(x, y, index):
    low, high = x.aminmax(dim=1)
    z = torch.softmax(torch.tanh(x) * torch.erf(y), 1) + torch.exp(y).var(1, keepdim=True)
    return low, high, z, torch.zeros(9, 40).index_add(0, index, z[:, :40]), torch.cat([z.cumsum(0), x.sort(1).values], 1)

rows(torch.randn(33, 300), torch.randn(33, 300), torch.randint(9, (33,)))
"""


def start(folder: Path, seed: int) -> subprocess.Popen[str]:
    """A process that writes every file about the compilation."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], env=environment, stderr=subprocess.PIPE, text=True)


def texts(folder: Path, process: subprocess.Popen[str]) -> dict[str, str]:
    """The files that a process wrote."""
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors[-3000:]
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.long
def test_two_processes_make_the_same(tmp_path):
    folders = [tmp_path / str(seed) for seed in (1, 2)]
    first, second = (texts(*pair) for pair in [(folder, start(folder, int(folder.name))) for folder in folders])
    assert len([name for name in first if name.endswith("kernels.ll")]) >= 6
    assert list(first) == list(second)
    assert [name for name in first if first[name] != second[name]] == []
