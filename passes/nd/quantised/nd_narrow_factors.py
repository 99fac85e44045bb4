"""nd-narrow-factors: products read their factors as they are stored, bytes and halves, and scale the sums.

    nd.matmul %x, (nd.mul (nd.cast %q), %s)      ->   nd.mul (nd.matmul %x, %q), %s
    nd.matmul ((%a - %z) * %r), (%q * %s)        ->   nd.mul (nd.cast (nd.sub (nd.matmul %a, %q), %z * sum(%q))), %r * %s
    nd.extern %a, %b {call = _int_mm}            ->   nd.matmul %a, %b

A factor that is made of bytes (`affine_factors`) need not be stored as floats before it is multiplied: a generated product converts it in
registers, or as it packs it. Where both factors are bytes the sums are of integers, and exact; they are rounded once. Sums of floats that
are scaled afterwards are as exact as sums of scaled ones, but not the same bits: numerics "eager" keeps the program as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32, i8
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, product
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.types import TensorType, tensor_type
from ...analysis.symbols import symbol_hints
from ...cost.library_cost import size
from ...manager.pass_manager import Pass
from ..algebra.rewriter import Rewriter
from ..nd_attention import keeps_eager_numerics
from ..products.nd_small_products import MIN_COMPUTED_ELEMENTS
from .affine_factors import BYTES, NARROW, AffineFactor, affine_factor, summed_along
from .integer_sums import as_type, integer_sums, pointwise, scaled

INTEGER_PRODUCT = "aten._int_mm.default"


@dataclass(frozen=True)
class NdNarrowFactors(Pass):
    """Lets products read bytes and halves as they are stored."""

    name = "nd-narrow-factors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        hints, eager = symbol_hints(op), keeps_eager_numerics(op)

        def narrow_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            assert isinstance(found, nd.MatmulOp)
            return None if eager else _narrow_product(rw, found, hints)

        rules = {nd.MatmulOp: [narrow_product], nd.ExternOp: [_integer_product]}
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if not any(isinstance(o, (nd.MatmulOp, nd.ExternOp)) for o in func.body.block.ops):
                continue
            rewriter = Rewriter(func, rules, nd.symbol_ranges(op))  # pyright: ignore[reportArgumentType]
            rewriter.run()
            self.statistic("num-products", sum(rewriter.changed.get(name, 0) for name in ("narrow_product", "integer_product")))


def _integer_product(rw: Rewriter, op: Operation) -> SSAValue | None:
    """A call that multiplies signed bytes."""
    assert isinstance(op, nd.ExternOp)
    if op.call.data.target != INTEGER_PRODUCT or len(op.results) != 1 or {"effect", "mutates", "binds"} & op.properties.keys():
        return None
    if any(tensor_type(x).element_type != i8 for x in op.operands):
        return None
    return rw.new(nd.MatmulOp.new(tuple(op.operands), tensor_type(op.results[0])))


def _narrow_product(rw: Rewriter, op: nd.MatmulOp, hints: Mapping[str, int]) -> SSAValue | None:
    t = tensor_type(op.result)
    if t.element_type not in NARROW or tensor_type(op.lhs).element_type != t.element_type:
        return None
    if t.dims[-1] is ONE and t.dims[-2] is not ONE:
        return _turned(rw, op, hints)
    if t.dims[-1] is ONE or size(product(tensor_type(op.rhs).dims), hints) < MIN_COMPUTED_ELEMENTS:
        return None
    b = affine_factor(rw, op.rhs, t.rank - 2)
    if b is None:
        return None
    a = affine_factor(rw, op.lhs, t.rank - 1)
    if a is not None and a.dtype in BYTES and b.dtype in BYTES and i8 in (a.dtype, b.dtype):
        return scaled(rw, integer_sums(rw, a, b, t), (*a.scales, *b.scales), t)
    if b.dtype not in NARROW[t.element_type]:
        return None
    return scaled(rw, _floats(rw, op.lhs, b, t), b.scales, t)


def _turned(rw: Rewriter, op: nd.MatmulOp, hints: Mapping[str, int]) -> SSAValue | None:
    """A matrix of narrow numbers times a vector, as that vector times the matrix's transpose: None where the matrix has none."""
    t = tensor_type(op.result)
    order = [*range(t.rank - 2), t.rank - 1, t.rank - 2]

    def transposed(x: SSAValue) -> SSAValue:
        s = tensor_type(x)
        return rw.new(nd.PermuteOp.new((x,), s.with_dims([s.dims[k] for k in order]), dims=IntsAttr.get(order)))

    turned = nd.MatmulOp.new((transposed(op.rhs), transposed(op.lhs)), t.with_dims([t.dims[k] for k in order]))
    made = rw.new(turned)
    return None if isinstance(made.owner, nd.MatmulOp) and tensor_type(made.owner.rhs).element_type == t.element_type else transposed(made)


def _floats(rw: Rewriter, lhs: SSAValue, b: AffineFactor, t: TensorType) -> SSAValue:
    """The sum of lhs * (b - its zero point); in f32, if that is not all."""
    plain = b.zero is None and not b.scales
    total = rw.new(nd.MatmulOp.new((lhs, b.core), t if plain else t.with_dtype(f32)))
    if b.zero is None:
        return total
    rows = summed_along(rw, as_type(rw, lhs, f32), t.rank - 1)
    return pointwise(rw, "sub", total, pointwise(rw, "mul", rows, as_type(rw, b.zero, f32)))
