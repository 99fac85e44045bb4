"""Right factors of products that are stored in panels, the order in which a register tile reads them.

    %w : 8 x 512 x 64   ->   loop.contract (%m, %n = 500) reduce (%k = 512) ... * %w at #nd.map<(m, n, k) -> (n // 64, k, n % 64)>

Element (k, n) is element [n // W, k, n % W] of a row-major tensor: panels of W columns, each with all rows of the factor, the last one
filled up. Of bytes, four terms lie together: element [n // W, k // 4, n % W, k % 4]. The map is the tag of the format: it is printed,
verified and interpreted as any map is.
"""

from __future__ import annotations

from xdsl.dialects.builtin import f32, f64, i8
from xdsl.ir import Attribute

from ....dialects import mem
from ....dialects.expr import ONE, ZERO, Expr, IndexMap, dim, free_dims, strides_contiguous
from ....dialects.expr.ranges import Range, RangeEnv, simplify
from ....dialects.nd.types import TensorType, element_bytes, ui8
from ....dialects.support.gemm_types import PANEL_BYTES, PANEL_UNIT_BYTES

BYTES = (i8, ui8)
UNITS: dict[Attribute, int] = {f32: 1, f64: 1, **dict.fromkeys(BYTES, PANEL_UNIT_BYTES)}
"""Element type of a factor that may be stored in panels -> elements along the sum that lie together."""


def panel_columns(m: IndexMap, columns: Expr, depth: Expr, left: Attribute, t: TensorType | mem.BufferType) -> int:
    """The columns W of the panels that a right factor of type `t` is stored in, which a product of these sizes accesses by
    (row, column, term) -> index; 0 where it is in none. `left`: the element type of the other factor. A last panel that is filled up has
    all its columns in memory."""
    kind = t.element_type
    unit = UNITS.get(kind, 0) if kind == left or (kind in BYTES and left in BYTES) else 0
    if m.num_dims != 3 or not unit or len(t.dims) < 2:
        return 0
    strides, offset = (t.stride_exprs, t.offset_expr) if isinstance(t, mem.BufferType) else (strides_contiguous(t.dims), ZERO)
    column, inner = (m.results[-1], ZERO) if unit == 1 else m.results[-2:]
    width = t.dims[-1 if unit == 1 else -2].value
    if not width or strides[-1] is not ONE or offset is not ZERO or (unit > 1 and t.dims[-1].value != unit):
        return 0
    if width * unit * element_bytes(kind) % PANEL_BYTES:
        return 0
    n, k = dim(1), dim(2)
    if columns is not ONE and n not in free_dims(column):
        return 0
    ranges = RangeEnv({n: Range.of_size(columns), k: Range.of_size(depth)})
    place = sum((e * step for e, step in zip(m.results, strides, strict=True)), ZERO)
    if free_dims(place) - {n, k} or any(simplify(e, ranges) is not ZERO for e in (column - n % width, inner - k % unit)):
        return 0
    units = (depth + (unit - 1)) // unit
    wanted = n // width * (units * width * unit) + k // unit * (width * unit) + n % width * unit + k % unit
    return width if simplify(place, ranges) is simplify(wanted, ranges) else 0
