"""nd-small-products: products of small matrices as multiplications and sums of a nest, where the CPU is faster so.

    %p = nd.matmul %a, %b   (many products of 3 x 3)   ->   nd.mul ; nd.reduce

A register tile of a generated product has room for 6 x 64 sums; starting one, and what it leaves empty, costs more than a small product
takes in vectors over its columns, or over many products at once. And the nest fuses with what stands before and behind it: rotations of
points, Kalman filters, chains of joints. `worthwhile` has the limits. Grouped products (experts) become nests by price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, product
from ....dialects.machine import has_fixed_order, has_library
from ....dialects.nd.pointwise import OPS, CastOp, CmpOp, FmaOp, PointwiseOp, SelectOp
from ....dialects.nd.types import FLOATS, element_bytes, tensor_type
from ...analysis.accesses.windows import WINDOWS
from ...analysis.symbols import symbol_hints
from ...cost.library_cost import size
from ...cost.machine import Cpu, machine_of
from ...cost.machine.prices import prices
from ...manager.pass_manager import Pass
from ..algebra.rewriter import Rewriter
from .grouped_products import GroupedProduct, as_grouped_terms
from .product_terms import as_terms


@dataclass(frozen=True)
class SmallProducts:
    """Up to where a nest is faster than the library. `side_elements`: terms of a sum, and columns; `right_elements`: of a right matrix, by
    the bytes of one; `scattered_elements`: of one whose columns lie apart; `vector_elements`: of a left matrix, where the right ones are
    vectors."""

    side_elements: int
    right_elements: dict[str, int]
    scattered_elements: int
    vector_elements: int


SMALL = prices("cpu_small_products", SmallProducts)
MIN_COMPUTED_ELEMENTS = 1024
"""Elements of a matrix from which on storing it for its product is worth a thought."""
_CHEAP = ("add", "sub", "mul", "neg", "abs", "relu", "maximum", "minimum")
CHEAP = frozenset((*(OPS[name] for name in _CHEAP), CastOp, CmpOp, FmaOp, SelectOp))
MAX_OPERAND_OPS = 12
"""What an operand is computed with, at most, if it is to be computed for each product again."""
TILE_ROWS = 6
MIN_REGISTER_TILES = 32
"""Register tiles below which the difference is not worth the code of another nest."""


def worthwhile(op: nd.MatmulOp, hints: Mapping[str, int], deepest: int = SMALL.side_elements, widest: int = SMALL.side_elements) -> bool:
    """Whether a product is so small, and there are so many of it, that a nest is faster; sizes that are symbols count with their hints."""
    t = tensor_type(op.result)
    *batch, rows, columns = t.dims
    depth = tensor_type(op.lhs).dims[-1]
    if t.element_type not in FLOATS:
        return False
    if rows is ONE and columns is ONE:
        return True
    if (rows is ONE and _is_computed(op.rhs, hints)) or (columns is ONE and _is_computed(op.lhs, hints)):
        return True
    if not (_is_cheap(op.lhs) and _is_cheap(op.rhs)):
        return False
    count = size(product(batch), hints)
    if count * -(-size(rows, hints) // TILE_ROWS) < MIN_REGISTER_TILES:
        return False
    if columns is ONE and count > 1:
        return size(rows, hints) * size(depth, hints) <= SMALL.vector_elements
    if depth.value is None or columns.value is None:
        return False
    elements = depth.value * columns.value
    most = SMALL.right_elements.get(str(element_bytes(t.element_type)), SMALL.right_elements["other"])
    if rows is ONE:
        deepest, most = 2 * deepest, 2 * most
    return 0 < depth.value <= deepest and columns.value <= widest and elements <= (SMALL.scattered_elements if _scattered(op.rhs) else most)


def _is_cheap(x: SSAValue, ops: int = MAX_OPERAND_OPS) -> bool:
    """Whether an operand may be computed again for every element that it meets: nothing expensive is between it and tensors that are
    stored (arguments, products, reductions)."""
    waiting = [x]
    while waiting:
        op = waiting.pop().owner
        if isinstance(op, PointwiseOp):
            ops -= 1
            if ops < 0 or type(op) not in CHEAP:
                return False
        if isinstance(op, (PointwiseOp, nd.ViewOp)):
            waiting.extend(op.operands)
    return True


def _is_computed(x: SSAValue, hints: Mapping[str, int]) -> bool:
    """Whether a matrix is computed for one product alone, by cheap operations or as elements that indices name: a nest, which multiplies
    each of them by a vector once, need not store it (rows of a cache of keys that a table names; weights that are bytes and scales)."""
    if not _is_cheap(x) or size(product(tensor_type(x).dims), hints) < MIN_COMPUTED_ELEMENTS:
        return False
    computed = False
    waiting = [x]
    while waiting:
        value = waiting.pop()
        op = value.owner
        if not isinstance(op, (PointwiseOp, nd.ViewOp, nd.IndexOp)):
            continue
        if sum(1 for _ in value.uses) > 1:
            return False
        computed = computed or not isinstance(op, nd.ViewOp)
        waiting.extend(op.operands)
    return computed


def _scattered(x: SSAValue) -> bool:
    """Whether elements that follow each other in a row of `x` do not in the tensor that it is a view of."""
    while isinstance(op := x.owner, nd.ViewOp):
        source = op.operands[0]
        if isinstance(op, nd.PermuteOp) and op.dims.data[-1] != len(op.dims.data) - 1:
            return True
        if isinstance(op, nd.SliceOp) and op.steps.data[-1] is not ONE:
            return True
        if tensor_type(source).dims[-1:] != tensor_type(x).dims[-1:]:
            return False
        x = source
    return False


@dataclass(frozen=True)
class NdSmallProducts(Pass):
    """Makes nests of products of small matrices."""

    name = "nd-small-products"

    deepest: int = SMALL.side_elements
    """Terms of a sum up to which a product is small."""

    widest: int = SMALL.side_elements
    """Columns up to which a product is small."""

    library: Literal["always", "price", "never"] = "price"
    """When a grouped product is a call of the library."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return  # the limits count rows
        hints = symbol_hints(op)

        def small_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            assert isinstance(found, nd.MatmulOp)
            if WINDOWS in found.attributes:
                return None
            return as_terms(rw, found) if worthwhile(found, hints, self.deepest, self.widest) else None

        def grouped_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            assert isinstance(found, nd.ExternOp)
            one = GroupedProduct.of(found)
            if one is None or library == "always":
                return None
            nest, call = one.cpu_times(element_bytes(tensor_type(found.results[0]).element_type), machine, hints)
            generated = library == "never" or nest < call
            said = f"a grouped product: {nest * 1e6:.1f} us as a nest, {call * 1e6:.1f} us as a call"
            self.remark(found, said, "applied" if generated else "missed")
            return as_grouped_terms(rw, found) if generated else None

        machine, library = machine_of(op, Cpu), self.library if has_library(op) else "never"
        symbols = nd.symbol_ranges(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.MatmulOp | nd.ExternOp) for o in func.body.block.ops):
                rewriter = Rewriter(func, {nd.MatmulOp: [small_product], nd.ExternOp: [grouped_product]}, symbols)
                rewriter.run()
                self.statistic("num-products", rewriter.changed.get("small_product", 0))
                self.statistic("num-grouped", rewriter.changed.get("grouped_product", 0))
