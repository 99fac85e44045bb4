"""What a generated attention is: its element type and instruction set."""

from __future__ import annotations

from dataclasses import dataclass

from ..gemm.spec import ISAS, GemmSpec, Shape

DEPTH_MAX = 256
"""Largest head dimension."""


@dataclass(frozen=True)
class AttentionSpec:
    """One generated body: the element type of Q, K, V, O and mask (`f32`, `bf16` or `f16`), and the instruction set."""

    dtype: str = "f32"
    isa: str = "generic"

    def __post_init__(self) -> None:
        if self.dtype not in ("f32", "bf16", "f16"):
            raise ValueError(f"attention: dtype is {self.dtype!r}, expected f32, bf16 or f16")
        if self.isa not in ISAS:
            raise ValueError(f"attention: isa is {self.isa!r}, expected one of {', '.join(ISAS)}")

    @property
    def symbol(self) -> str:
        return f"stepwell_attention_{self.dtype}_{self.isa}"

    @property
    def shared_symbol(self) -> str:
        """The name in `library.py`."""
        return f"{self.symbol}_shared"

    @property
    def on_matrix_unit(self) -> bool:
        """AMX computes both products."""
        return self.dtype == "bf16" and ISAS[self.isa].amx

    @property
    def shape(self) -> Shape:
        """The tiles of a product that computes in floats."""
        return Shape(GemmSpec(self.dtype, trans_b=True, isa=ISAS[self.isa].in_floats or self.isa))


@dataclass(frozen=True)
class WeighedSpec:
    """One generated body of rows that are weighed by what functions make of scores (`weighed.py`): `scores` products give the scores,
    `weights` kinds of weights are computed of them; `softmax`: these are exponents, whose exponentials have the weights; `scaled`: they are
    multiplied by numbers of their own (dropout), which the functions make, too. `added`: one kind of weights is added up over batches, or
    heads, and weighs no rows: `weights` is 0; `placed`: those of a row are, at places that the functions make, too."""

    dtype: str = "f32"
    isa: str = "generic"
    scores: int = 1
    weights: int = 1
    softmax: bool = True
    scaled: bool = False
    added: bool = False
    placed: bool = False

    def __post_init__(self) -> None:
        AttentionSpec(self.dtype, self.isa)
        if self.scaled and not self.softmax:
            raise ValueError("weighed rows: only weights of a softmax are scaled apart")
        if self.placed > self.added or (self.added and (self.softmax or self.weights)):
            raise ValueError("weighed rows: weights that are added up are of no softmax, and weigh no rows")
        if min(self.scores, self.weights + self.added) < 1 or (self.softmax and self.weights > 1):
            raise ValueError(f"weighed rows: {self.scores} scores and {self.weights} weights, expected 1 or more, of a softmax one weight")

    @property
    def symbol(self) -> str:
        kind = next((name for name in ("scaled", "placed", "added", "softmax") if getattr(self, name)), "sum")
        return f"stepwell_weighed_{self.dtype}_{self.isa}_{kind}_{self.scores}_{self.weights}"

    @property
    def shared_symbol(self) -> str:
        """The name in `library.py`."""
        return f"{self.symbol}_shared"

    @property
    def blocks(self) -> int:
        """Blocks of numbers that the functions take and give."""
        return max(self.scores, self.weights + self.scaled + self.added + self.placed)

    @property
    def shape(self) -> Shape:
        """The tiles of its products, which are computed in floats."""
        return AttentionSpec(self.dtype, self.isa).shape
