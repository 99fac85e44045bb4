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
        isa = "avx512" if self.isa in ("avx512_bf16", "amx") else self.isa
        return Shape(GemmSpec(self.dtype, trans_b=True, isa=isa))
