"""Times of a matrix product on this machine: the generated code against the library, on operands of the real sizes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ..gemm.choice import MeasuredChoices
from ..gemm.spec import GemmSpec, host_isa
from ..library import library_symbols


@dataclass(frozen=True)
class ProductSizes:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n] with dense operands, each stored transposed or not."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool

    def key(self, threads: int) -> str:
        layout = ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")
        return f"{self.dtype} {layout} {self.batch}x{self.m}x{self.n}x{self.k} threads {threads}"

    @property
    def bytes(self) -> int:
        """Upper bound of the bytes of the operands and the result."""
        return 8 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


MAX_MEASURED_BYTES = 1 << 30
"""Products with larger operands are not measured: they would take the memory of the program that is compiled."""


def measure(sizes: ProductSizes) -> dict[str, float] | None:
    """Microseconds of the generated code ("own") and of ATen ("library"), as noted on disk or measured now; None for a product that is
    empty or too large."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if not min(sizes.batch, sizes.m, sizes.n, sizes.k) or sizes.bytes > MAX_MEASURED_BYTES:
        return None
    choices = MeasuredChoices()
    key = sizes.key(torch.get_num_threads())
    noted = choices.noted(key)
    if noted is not None:
        return noted
    dtype = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}[sizes.dtype]
    with _disable_current_modes(), torch.no_grad():
        a = torch.rand(sizes.batch, *((sizes.k, sizes.m) if sizes.trans_a else (sizes.m, sizes.k))).to(dtype)
        b = torch.rand(sizes.batch, *((sizes.n, sizes.k) if sizes.trans_b else (sizes.k, sizes.n))).to(dtype)
        c = torch.empty(sizes.batch, sizes.m, sizes.n, dtype=dtype)
        left, right = a.mT if sizes.trans_a else a, b.mT if sizes.trans_b else b
        if sizes.batch == 1:
            left, right, out = left[0], right[0], c[0]
        else:
            out = c
        spec = GemmSpec(sizes.dtype, trans_a=sizes.trans_a, trans_b=sizes.trans_b, isa=host_isa().name)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        address = library_symbols([spec.shared_symbol])[spec.shared_symbol]
        own = ctypes.CFUNCTYPE(None, *[pointer] * 3, *[number] * 10, *[pointer] * 3)(address)
        operands = [t.data_ptr() for t in (a, b, c)]
        steps = [t.stride(1) for t in (a, b, c)]
        strides = [t.stride(0) for t in (a, b, c)]
        return choices.times(
            key,
            lambda: own(*operands, sizes.m, sizes.n, sizes.k, *steps, sizes.batch, *strides, None, None, None),
            lambda: torch.matmul(left, right, out=out),
        )
