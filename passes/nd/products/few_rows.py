"""Products of few rows: a kernel of ours goes through the large matrix once, and computes it as it goes where it is computed.

    %w = nd.cast %bytes ; %p = nd.matmul %x, %w ; nd.mul %p, %scales     ->     nd.mul ; nd.reduce, which fuse with all of it

What such a product costs is reading the matrix. A library's call reads it as it lies in memory: bytes, or halves of them, and their
scales are written out in 16 bits before and read again (docs/lab/gpu-tiles-h200.md).
The nest becomes a product of the tensor cores again where its tile says so (`dot`, lowering/mem_to_tt/products.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import bf16, f16
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.expr.ranges import range_of
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from ...cost.library_cost import size
from ..algebra.rewriter import Rewriter
from .nd_small_products import as_terms
from .product_padding import is_turned

LEAST = 1 << 20
"""Elements of that matrix from which on a kernel of its own is worth the time that it takes to compile."""
LEAST_DEPTH = 64
"""Terms of its sums at least."""
VECTOR = 8
"""Elements that are read at once: rows of the matrix are a number of these."""


def product_of_few_rows(
    rw: Rewriter, op: nd.MatmulOp, hints: Mapping[str, int], most: int, bias: SSAValue | None = None
) -> SSAValue | None:
    """A product of matrices of 16-bit numbers, of which one has at most `most` rows (of the right one: columns), as multiplications and a
    sum, to which a bias is added before it is rounded. How many rows these are may be a symbol whose range says so."""
    return as_terms(rw, op, rounded=True, bias=bias) if _has_few_rows(rw, op, hints, most) else None


def _has_few_rows(rw: Rewriter, op: nd.MatmulOp, hints: Mapping[str, int], most: int) -> bool:
    t = tensor_type(op.result)
    if t.rank != 2 or t.element_type not in (bf16, f16):
        return False
    rows, columns = t.dims
    depth = tensor_type(op.lhs).dims[-1]
    known = [range_of(n, rw.symbols).hi for n in (rows, columns)]
    few = 0 if known[0] is not None and known[0] <= most else 1
    highest = known[few]
    if highest is None or highest > most or depth.value is None or depth.value < LEAST_DEPTH or depth.value % VECTOR:
        return False
    large, other = (op.rhs, columns) if few == 0 else (op.lhs, rows)
    along_depth = is_turned(rw, _source(large)) == (few == 0)
    if not along_depth and (other.value is None or other.value % VECTOR):
        return False
    return size(product((depth, other)), hints) >= LEAST


def _source(x: SSAValue) -> SSAValue:
    """What a matrix is computed from, element by element."""
    while isinstance(op := x.owner, PointwiseOp):
        t = tensor_type(x)
        same = next((v for v in op.operands if tensor_type(v).dims == t.dims and not isinstance(v.owner, nd.ExpandOp)), None)
        if same is None:
            break
        x = same
    return x
