"""Registers of a thread of a GPU that ptxas needs beside what a program keeps of its elements, from prices.json."""

from __future__ import annotations

from dataclasses import dataclass

from .prices import prices


@dataclass(frozen=True)
class OtherRegisters:
    """Of 32 bits each. `product`: of a program of a product, `random` those of a random number behind it. Of programs that share rows:
    `rows`, half as many again for each tensor that is read along them once. Of rows kept in 16 bits: `halves`, and `halves_tensor` for each
    tensor but one that is read and one that is stored along them, `moments` where mean and variance are found. `column_sums`: of a program
    that goes through rows and sums up columns. `place`: of a sum for each row beside a product, of the weights that go to one place."""

    product: int
    random: int
    rows: int
    column_sums: int
    halves: int
    halves_tensor: int
    moments: int
    place: int


OTHER = prices("gpu_thread_registers", OtherRegisters)
