"""The functions of device libraries: kernels name those of CUDA (`__nv_tanhf`), on AMD's GPUs they are OCML's (`__ocml_tanh_f32`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp, StringAttr, f32

from ...dialects.tt.compute import ExternElementwiseOp
from ...dialects.tt.types import element_of

_CUDA = "__nv_"
_OTHER_NAMES = {
    "normcdfinv": "ncdfinv", "cyl_bessel_i0": "i0", "cyl_bessel_i1": "i1",
    "finite": "isfinite", "isfinited": "isfinite", "isnand": "isnan", "isinfd": "isinf", "signbitd": "signbit",
}  # fmt: skip
"""Functions that OCML calls differently."""


def ocml_name(op: ExternElementwiseOp) -> str:
    """OCML's name of the function that `op` calls; what is not one of CUDA's f32 or f64 functions keeps its name."""
    symbol = op.symbol.data
    if not symbol.startswith(_CUDA):
        return symbol
    single = element_of(op.operands[0].type) == f32  # the result of __nv_isnanf is an integer
    function = symbol.removeprefix(_CUDA)
    if single:
        function = function.removesuffix("f")
    return f"__ocml_{_OTHER_NAMES.get(function, function)}_{'f32' if single else 'f64'}"


@contextmanager
def library_of(module: ModuleOp, backend: str) -> Iterator[None]:
    """Has the module call the library of a back end (`cuda`, `hip`) for a while."""
    calls = [op for op in module.walk() if isinstance(op, ExternElementwiseOp)] if backend == "hip" else []
    before = [op.symbol for op in calls]
    for op in calls:
        op.properties["symbol"] = StringAttr(ocml_name(op))
    try:
        yield
    finally:
        for op, symbol in zip(calls, before, strict=True):
            op.properties["symbol"] = symbol
