"""Which results of products are not stored, since all that reads them are reductions that a generated kernel begins (gpu-carry-reductions).

    %p = nd.matmul %x, %w ; %m = nd.reduce max %p over the rows or the columns      the kernel leaves the states of its blocks

Where something behind a reduction needs the product again (a norm, a softmax), the product is read anyway."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import Expr
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import element_bytes, tensor_type
from ...cost.contraction_price import TILE_SIDES
from ...cost.library_cost import size


def begun_bytes(
    value: SSAValue, readers: Sequence[Operation], dims: Sequence[Expr], behind: Collection[Operation], hints: Mapping[str, int]
) -> int | None:
    """Bytes of the states that a kernel leaves of a value of a product's elements for those who read it, `dims` being the product's; None
    where the value is read as a whole. `behind`: what is computed of the product element by element."""
    sides = {len(dims) - 1, len(dims) - 2}
    along = {_side(op, sides) for op in readers}
    if tensor_type(value).dims != tuple(dims) or len(along) != 1 or None in along:
        return None
    if any(_reaches(op, behind) for op in readers):
        return None
    numbers = sum(len(op.results) for op in readers)
    return numbers * element_bytes(f32) * size(tensor_type(value).numel, hints) // TILE_SIDES[1]


def _side(op: Operation, sides: Collection[int]) -> int | None:
    """The dimension that an operation reduces, if it is a side of the product. Places of extremes are found apart."""
    dims = list(op.dims.data) if isinstance(op, nd.ReduceOp | nd.VarMeanOp) else []
    return dims[0] if len(dims) == 1 and dims[0] in sides else None


def _reaches(op: Operation, behind: Collection[Operation]) -> bool:
    """Whether what is computed of a reduction, element by element, meets the product again."""
    worklist, seen = [op], {op}
    while worklist:
        for use in [use for r in worklist.pop().results for use in r.uses]:
            if use.operation in behind:
                return True
            if use.operation not in seen and isinstance(use.operation, PointwiseOp | nd.ViewOp):
                seen.add(use.operation)
                worklist.append(use.operation)
    return False
