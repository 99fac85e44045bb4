"""Right factors of products that are stored in panels, the order in which a register tile reads them.

    %w : 8 x 512 x 64   ->   loop.contract (%m, %n = 500) reduce (%k = 512) ... * %w at #nd.map<(m, n, k) -> (n // 64, k, n % 64)>

Element (k, n) is element [n // W, k, n % W] of a row-major tensor: panels of W columns, each with all rows of the factor, the last one
filled up. The map is the tag of the format: it is printed, verified and interpreted as any map is.
"""

from __future__ import annotations

from xdsl.dialects.builtin import f32, f64
from xdsl.ir import Attribute

from ....dialects import mem
from ....dialects.expr import ONE, ZERO, Expr, IndexMap, dim, free_dims, strides_contiguous
from ....dialects.expr.ranges import Range, RangeEnv, simplify
from ....dialects.nd.types import TensorType, element_bytes
from ....dialects.support.gemm_types import PANEL_BYTES


def panel_columns(m: IndexMap, columns: Expr, depth: Expr, left: Attribute, t: TensorType | mem.BufferType) -> int:
    """The columns W of the panels that a right factor of type `t` is stored in, which a product of these sizes accesses by
    (row, column, term) -> index; 0 where it is in none. `left`: the element type of the other factor. A last panel that is filled up has
    all its columns in memory."""
    in_memory = isinstance(t, mem.BufferType)
    strides, offset = (t.stride_exprs, t.offset_expr) if in_memory else (strides_contiguous(t.dims), ZERO)
    width = t.dims[-1].value if t.dims else None
    if m.num_dims != 3 or not width or strides[-1] is not ONE or offset is not ZERO or t.element_type != left or left not in (f32, f64):
        return 0
    if width * element_bytes(left) % PANEL_BYTES:
        return 0
    n, k = dim(1), dim(2)
    if columns is not ONE and n not in free_dims(m.results[-1]):
        return 0
    ranges = RangeEnv({n: Range.of_size(columns), k: Range.of_size(depth)})
    place = sum((e * step for e, step in zip(m.results, strides, strict=True)), ZERO)
    if free_dims(place) - {n, k} or simplify(m.results[-1] - n % width, ranges) is not ZERO:
        return 0
    wanted = n // width * (depth * width) + k * width + n % width
    return width if simplify(place, ranges) is simplify(wanted, ranges) else 0
