"""What runs at launch in the place of an operator with subgraphs: it decides which compiled one runs, and how often.

Each takes the operands of its operator flat, in order, and returns the results. No compiler is needed here: packages make them, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Program = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes a list, which it empties, and returns the results."""


@dataclass(frozen=True)
class Body:
    """A compiled subgraph. Called with the values of its placeholders, in any strides; returns its results.

    strides: for each placeholder the strides that the program takes, "contiguous" where they hang on run-time sizes, None for any.
    results: for each result of the subgraph ("operand", k), ("result", k) of the program or ("constant", value)."""

    program: Program
    strides: tuple[Any, ...]
    results: tuple[tuple[str, Any], ...]

    def __call__(self, *operands: Any) -> list[Any]:
        values = [_with_strides(v, s) for v, s in zip(operands, self.strides, strict=True)]
        made = self.program(list(values))
        return [
            made[of] if kind == "result" else operands[of] if kind == "operand" else of for kind, of in self.results
        ]


def _with_strides(value: Any, wanted: Any) -> Any:
    """A tensor with the strides that a program takes: itself, or a copy."""
    if wanted is None or not isinstance(value, torch.Tensor) or value.stride() == wanted:
        return value
    if wanted == "contiguous":
        return value.contiguous()
    copy = torch.empty_strided(value.shape, wanted, dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def no_results(args: list[Any]) -> Sequence[Any]:
    """The program of a subgraph that computes nothing."""
    args.clear()
    return ()


@dataclass(frozen=True)
class Cond:
    """torch.cond: one of two bodies."""

    true: Body
    false: Body

    def __call__(self, predicate: Any, *operands: Any) -> list[Any]:
        chosen = self.true if predicate else self.false
        return _fresh(chosen(*operands), operands)


@dataclass(frozen=True)
class WhileLoop:
    """while_loop: `step` maps the carried values to new ones as long as `test` holds. stacked: the values of all iterations."""

    test: Body
    step: Body
    carried: int
    stacked: bool = False

    def __call__(self, *operands: Any) -> list[Any]:
        values: Sequence[Any] = operands[: self.carried]
        others = operands[self.carried :]
        seen: list[Sequence[Any]] = []
        while self.test(*values, *others)[0]:
            values = self.step(*values, *others)
            if self.stacked:
                seen.append(values)
        if not self.stacked:
            return _fresh(values, operands)
        rows = seen or [values]
        return [torch.stack(column) if isinstance(column[0], torch.Tensor) else column[-1] for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Scan:
    """scan: `step` maps (carried values, a slice of each sequence) to (new carried values, a slice of each result)."""

    step: Body
    carried: int
    sequences: int

    def __call__(self, *operands: Any) -> list[Any]:
        values: Sequence[Any] = operands[: self.carried]
        sequences = operands[self.carried : self.carried + self.sequences]
        others = operands[self.carried + self.sequences :]
        length = sequences[0].shape[0]
        results: list[torch.Tensor | None] = []
        for k in range(length):
            made = self.step(*values, *[s[k] for s in sequences], *others)
            values, slices = made[: self.carried], made[self.carried :]
            if k == 0:
                results = [s.new_empty((length, *s.shape)) if isinstance(s, torch.Tensor) else None for s in slices]
            for result, part in zip(results, slices, strict=True):
                if result is not None:
                    result[k] = part
        return [*_fresh(values, operands), *results]


@dataclass(frozen=True)
class Map:
    """map: `step` for each slice of the sequences, results stacked."""

    step: Body
    sequences: int

    def __call__(self, *operands: Any) -> list[Any]:
        sequences, others = operands[: self.sequences], operands[self.sequences :]
        rows = [self.step(*[s[k] for s in sequences], *others) for k in range(sequences[0].shape[0])]
        return [torch.stack(column) if isinstance(column[0], torch.Tensor) else None for column in zip(*rows, strict=True)]


def _fresh(results: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Results that share no memory with operands."""
    held = {id(o) for o in operands}
    return [r.clone() if isinstance(r, torch.Tensor) and id(r) in held else r for r in results]
