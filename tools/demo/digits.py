"""A small convolutional network learns scikit-learn's handwritten digits: eager and compiled side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

BATCH = 128
SEED = 0


class DigitsNet(nn.Module):
    """Images (n, 1, 8, 8) float32 to scores (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.classify = nn.Linear(64 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images).flatten(1))


class TrainingLoss(nn.Module):
    """The loss of a network on images and labels (n) int64; what the training step compiles."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(images), labels)


@dataclass(frozen=True)
class Digits:
    """The data set, split: images (n, 1, 8, 8) in [0, 1], labels (n)."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """scikit-learn's 1797 digits, four fifths to learn from, shuffled with a fixed seed."""
    from sklearn import datasets

    pixels, target = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(SEED))
    images = (torch.from_numpy(pixels).to(torch.float32) / 16).view(-1, 1, 8, 8)[order]
    labels = torch.from_numpy(target).to(torch.int64)[order]
    cut = len(order) * 4 // 5
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


@dataclass(frozen=True)
class Training:
    """Losses of every step, the compiled network's accuracy on unseen digits, and seconds."""

    eager_losses: list[float]
    losses: list[float]
    eager_accuracy: float
    accuracy: float
    compile_seconds: float
    eager_step_seconds: float
    step_seconds: float

    @property
    def max_difference(self) -> float:
        return max(abs(a - b) for a, b in zip(self.eager_losses, self.losses, strict=True))


class _Learner:
    """One network with its optimizer."""

    def __init__(self, backend: str | None) -> None:
        torch.manual_seed(SEED)
        self.network = DigitsNet()
        self.loss = TrainingLoss(self.network)
        self.predict: Callable[[Tensor], Tensor] = self.network
        if backend is not None:
            self.loss = torch.compile(self.loss, backend=backend, fullgraph=True)
            self.predict = torch.compile(self.network, backend=backend, fullgraph=True)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, images: Tensor, labels: Tensor) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.loss(images, labels)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        self.network.eval()
        with torch.no_grad():
            return (self.predict(images).argmax(1) == labels).double().mean().item()


def steps_of(digits: Digits, epochs: int) -> int:
    """Training steps of `epochs` passes over the data; the rest that fills no batch is left out."""
    return epochs * (len(digits.images) // BATCH)


def train(digits: Digits, backend: str, epochs: int, advance: Callable[[], None]) -> Training:
    """Train two networks with equal weights on equal batches, one eager, one compiled by `backend`."""
    eager, compiled = _Learner(None), _Learner(backend)
    shuffle = torch.Generator().manual_seed(SEED)
    for _ in range(epochs):
        order = torch.randperm(len(digits.images), generator=shuffle)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            for learner in (eager, compiled):
                learner.step(digits.images[chosen], digits.labels[chosen])
            advance()
    # The first step compiles; timings are of the steps after it.
    return Training(
        eager_losses=eager.losses,
        losses=compiled.losses,
        eager_accuracy=eager.accuracy(digits.test_images, digits.test_labels),
        accuracy=compiled.accuracy(digits.test_images, digits.test_labels),
        compile_seconds=compiled.seconds[0] - median(compiled.seconds[1:]),
        eager_step_seconds=median(eager.seconds[1:]),
        step_seconds=median(compiled.seconds[1:]),
    )
