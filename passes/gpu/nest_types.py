"""The types that elements and scalars of a nest have in a kernel for a GPU, and the error for those that have none."""

from __future__ import annotations

from xdsl.dialects.builtin import ComplexType, IndexType, IntegerType, f16, f32, f64, i1, i8, i32, i64
from xdsl.ir import Attribute

from ...dialects.nd.types import is_float
from ...dialects.support.float8 import FLOAT8
from ...errors import StepwellError


class UnsupportedNest(StepwellError):
    """Something in a nest that the Triton target has no code for; the message names it."""

_COMPLEX_BITS: dict[Attribute, Attribute] = {f16: i32, f32: i64, f64: i64}


def scalar_type(t: Attribute) -> Attribute:
    """The type that the kernel has for a scalar of a body: an index is an i64, an 8-bit float its code, a complex number, which is only
    moved, an integer as wide as it (one of 128 bits is two, see memory.py)."""
    if t in FLOAT8:
        return i8
    if isinstance(t, ComplexType) and t.element_type in _COMPLEX_BITS:
        return _COMPLEX_BITS[t.element_type]
    return i64 if isinstance(t, IndexType) else t


def memory_type(dtype: Attribute) -> Attribute:
    """The type of an element in memory: a bool or an 8-bit float is an i8, integers are signless, complex numbers are bits.
    UnsupportedNest for others."""
    if isinstance(dtype, ComplexType):
        return scalar_type(dtype)
    if dtype == i1 or dtype in FLOAT8:
        return i8
    if isinstance(dtype, IntegerType):
        return IntegerType(dtype.width.data)
    if not is_float(dtype):
        raise UnsupportedNest(f"kernels for GPUs do not read or write elements of {dtype}")
    return dtype
