"""Index expressions and maps: the one module that the rest of the compiler imports the integer algebra from."""

from __future__ import annotations

from .core import ONE, ZERO, Add, Const, Dim, Expr, FloorDiv, Max, Min, Mod, Mul, Sym, as_expr, const, dim, maximum, minimum, product, sym
from .division import ceildiv, divide, exact_quotient, floordiv, mod
from .maps import IndexMap, is_row_major, strides_contiguous
from .ranges import Range, RangeEnv, prove_eq, prove_ge0, prove_le, prove_lt, range_of, simplify
from .views import evaluate, linear_coeff, split_linear, to_python
from .walk import dims_subs, free_dims, free_syms

__all__ = [
    "Add",
    "Const",
    "Dim",
    "Expr",
    "FloorDiv",
    "IndexMap",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "ONE",
    "Range",
    "RangeEnv",
    "Sym",
    "ZERO",
    "as_expr",
    "ceildiv",
    "const",
    "dim",
    "dims_subs",
    "divide",
    "evaluate",
    "exact_quotient",
    "floordiv",
    "free_dims",
    "free_syms",
    "is_row_major",
    "linear_coeff",
    "maximum",
    "minimum",
    "mod",
    "product",
    "prove_eq",
    "prove_ge0",
    "prove_le",
    "prove_lt",
    "range_of",
    "simplify",
    "split_linear",
    "strides_contiguous",
    "sym",
    "to_python",
]
