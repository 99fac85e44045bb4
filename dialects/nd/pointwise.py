"""Pointwise ops of `nd`: one element of the result from the elements of the operands at the same place.

Operands broadcast as in NumPy (sizes aligned at the right, size 1 repeats); dtypes do not promote: the importer writes the casts.
f16 and bf16 are computed in f32 and rounded when a value is stored (`numerics = "eager"` rounds after every op).
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, UnitAttr, i1
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..expr import ONE, Expr
from ..support.special import ORTHOGONAL_POLYNOMIALS
from .base import NdOp
from .types import FLOATS, TensorType, tensor_type

CONTRACT = "contract"
"""Attribute of an nd.mul whose results are added up and nothing else: `arith.mulf ... fastmath<contract>` in the nest, which a unit for
matrix products may do, with its way to round the sums: f32, or what the attribute says."""

PARTLY_ROUNDED = "partly rounded"
"""Sums of terms of 8-bit floats: a unit may round those of one step of it to fewer bits than f32 has; they are added up as f32."""

ROUNDED = "rounded"
"""The same where it may round all of a sum so."""


def broadcast_dims(*shapes: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """The NumPy broadcast of `shapes`; None when two sizes differ and neither is 1."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Expr] = []
    for k in range(-rank, 0):
        size = ONE
        for shape in shapes:
            other = shape[k] if len(shape) >= -k else ONE
            if other is not ONE and size is not ONE and other is not size:
                return None
            size = other if size is ONE else size
        out.append(size)
    return tuple(out)


class PointwiseOp(NdOp):
    """Base of all pointwise ops: result dims are the broadcast of the operands' dims."""

    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        shapes = [tensor_type(o).dims for o in self.operands]
        dims = broadcast_dims(*shapes)
        if dims is None:
            texts = " and ".join(str([str(d) for d in s]).replace("'", "") for s in shapes)
            raise VerifyException(f"{self.name}: operand sizes {texts} do not broadcast")
        if dims != tensor_type(self.result).dims:
            wrong = ", ".join(map(str, tensor_type(self.result).dims))
            raise VerifyException(f"{self.name}: result sizes are [{wrong}], operands give [{', '.join(map(str, dims))}]")
        self.verify_dtypes()

    def verify_dtypes(self) -> None:
        want = tensor_type(self.result).element_type
        for k, operand in enumerate(self.operands):
            if tensor_type(operand).element_type != want:
                raise VerifyException(
                    f"{self.name}: operand {k} has element type {tensor_type(operand).element_type}, the result {want}; "
                    "write an nd.cast"
                )
        if not computes(type(self), want):
            raise VerifyException(f"{self.name}: needs {_NEEDS[OPERATES_ON[type(self)]]}, got {want}")


class UnaryOp(PointwiseOp):
    """One operand, same element type."""

    input = operand_def(TensorType)


class PredicateOp(PointwiseOp):
    """One operand, boolean result."""

    input = operand_def(TensorType)

    def verify_dtypes(self) -> None:
        if tensor_type(self.result).element_type != i1:
            raise VerifyException(f"{self.name}: the result must have element type i1")


class BinaryOp(PointwiseOp):
    """Two operands, all of one element type."""

    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)


def _leaf(base: type[PointwiseOp], name: str, doc: str) -> type[PointwiseOp]:
    """A leaf op of a family: name and meaning are all that differs."""
    title = "".join(part.capitalize() for part in name.split("_")) + "Op"
    cls = type(title, (base,), {"name": f"nd.{name}", "__doc__": doc, "__module__": __name__})
    return irdl_op_definition(cls)


UNARY: dict[str, str] = {
    "neg": "Negation; wraps for integers.",
    "abs": "Absolute value.",
    "sign": "-1, 0 or 1; NaN stays NaN.",
    "relu": "max(x, 0); NaN stays NaN.",
    "not": "Bitwise complement; logical for booleans.",
}
FLOAT_UNARY: dict[str, str] = {
    **{name: f"{name}(x)." for name in (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh "
        "erf erfc erfinv lgamma digamma sigmoid floor ceil trunc"
    ).split()},
    "reciprocal": "1 / x.",
    "round": "To the nearest integer, ties to even.",
    **{name: f"torch.special.{name}(x)." for name in (
        "i0 i0e i1 i1e ndtri log_ndtr erfcx bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 "
        "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 airy_ai"
    ).split()},
}  # fmt: skip
PREDICATES: dict[str, str] = {
    "isnan": "Whether x is NaN.",
    "isinf": "Whether x is an infinity.",
    "isfinite": "Whether x is neither NaN nor an infinity.",
    "signbit": "Whether the sign bit is set (integers: x < 0).",
    "logical_not": "Whether x equals 0.",
}
BINARY: dict[str, str] = {
    "add": "Sum; or for booleans.",
    "sub": "Difference.",
    "mul": "Product; and for booleans.",
    "div": "True quotient of floats.",
    "floor_div": "Quotient rounded to minus infinity (Python's //); division by an integer 0 is reported as an error.",
    "trunc_div": "Quotient rounded to zero (C's /).",
    "fmod": "Remainder with the sign of the dividend (C's %).",
    "remainder": "Remainder with the sign of the divisor (Python's %).",
    "pow": "lhs to the power rhs; integers by wrapping multiplication.",
    "maximum": "The larger; NaN if either is.",
    "minimum": "The smaller; NaN if either is.",
    "fmax": "The larger; the other one if one is NaN.",
    "fmin": "The smaller; the other one if one is NaN.",
    "atan2": "Angle of the point (rhs, lhs).",
    "hypot": "sqrt(lhs**2 + rhs**2).",
    "copysign": "Magnitude of lhs, sign of rhs.",
    "nextafter": "The next representable number after lhs towards rhs.",
    "and": "Bitwise and.",
    "or": "Bitwise or.",
    "xor": "Bitwise exclusive or.",
    "shl": "Shift left.",
    "shr": "Shift right, arithmetic for signed types.",
    "gcd": "Greatest common divisor of integers.",
    "zeta": "torch.special.zeta(lhs, rhs).",
    "igamma": "Regularised lower incomplete gamma function.",
    "igammac": "Regularised upper incomplete gamma function.",
    **{name: f"torch.special.{name}(lhs, rhs), rhs the degree." for name in ORTHOGONAL_POLYNOMIALS},
}

OPS: dict[str, type[PointwiseOp]] = {
    **{name: _leaf(UnaryOp, name, doc) for name, doc in UNARY.items()},
    **{name: _leaf(UnaryOp, name, doc) for name, doc in FLOAT_UNARY.items()},
    **{name: _leaf(PredicateOp, name, doc) for name, doc in PREDICATES.items()},
    **{name: _leaf(BinaryOp, name, doc) for name, doc in BINARY.items()},
}
"""Leaf ops by name: OPS["add"] is the class of nd.add."""

OPERATES_ON: dict[type[PointwiseOp], str] = {
    **{OPS[name]: "floats" for name in (
        *FLOAT_UNARY, *"div atan2 hypot copysign nextafter zeta igamma igammac".split(), *ORTHOGONAL_POLYNOMIALS
    )},
    **{OPS[name]: "bits" for name in "and or xor not".split()},
    **{OPS[name]: "integers" for name in "shl shr gcd".split()},
}  # fmt: skip
"""The element types of the ops that do not compute all of them; "bits" are integers and booleans."""
_NEEDS = {"floats": "a floating element type", "bits": "an integer or boolean element type", "integers": "an integer element type"}


def computes(op: type[PointwiseOp], dtype: Attribute) -> bool:
    """Whether an op computes values of an element type."""
    wanted = OPERATES_ON.get(op)
    return wanted is None or ((dtype in FLOATS) == (wanted == "floats") and (wanted != "integers" or dtype != i1))

CMP_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


@irdl_op_definition
class CmpOp(PointwiseOp):
    """Comparison: `nd.cmp %a, %b {predicate = "lt"}`; predicates eq ne lt le gt ge; comparisons with NaN are false but for ne."""

    name = "nd.cmp"
    SYNTAX: ClassVar = {"predicate": "str"}
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    predicate = prop_def(StringAttr)

    def verify_dtypes(self) -> None:
        if self.predicate.data not in CMP_PREDICATES:
            raise VerifyException(f"nd.cmp: unknown predicate '{self.predicate.data}', known: {', '.join(CMP_PREDICATES)}")
        if tensor_type(self.lhs).element_type != tensor_type(self.rhs).element_type:
            raise VerifyException("nd.cmp: operands differ in element type; write an nd.cast")
        if tensor_type(self.result).element_type != i1:
            raise VerifyException("nd.cmp: the result must have element type i1")


@irdl_op_definition
class SelectOp(PointwiseOp):
    """`nd.select %condition, %then, %otherwise`: torch.where."""

    name = "nd.select"
    condition = operand_def(TensorType)
    on_true = operand_def(TensorType)
    on_false = operand_def(TensorType)

    def verify_dtypes(self) -> None:
        want = tensor_type(self.result).element_type
        if tensor_type(self.condition).element_type != i1:
            raise VerifyException("nd.select: the condition must have element type i1")
        if tensor_type(self.on_true).element_type != want or tensor_type(self.on_false).element_type != want:
            raise VerifyException(f"nd.select: both values must have the result's element type {want}")


@irdl_op_definition
class FmaOp(PointwiseOp):
    """`nd.fma %a, %b, %c`: a * b + c, rounded once where the target can."""

    name = "nd.fma"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)


@irdl_op_definition
class CastOp(PointwiseOp):
    """Conversion of the element type with torch's rules (float to integer truncates, to bool is != 0). A cast to f16 or bf16
    rounds, and the rounding is kept when ops are fused."""

    name = "nd.cast"
    input = operand_def(TensorType)

    def verify_dtypes(self) -> None:
        pass


@irdl_op_definition
class BitcastOp(PointwiseOp):
    """The same bits as another element type of equal width: x.view(dtype)."""

    name = "nd.bitcast"
    input = operand_def(TensorType)

    def verify_dtypes(self) -> None:
        from .types import element_bytes

        source, target = tensor_type(self.input).element_type, tensor_type(self.result).element_type
        if element_bytes(source) != element_bytes(target):
            raise VerifyException(f"nd.bitcast: {source} and {target} differ in width")


@irdl_op_definition
class MapOp(PointwiseOp):
    """A pointwise function by name with any number of operands, for what has no op of its own: `nd.map %x {fn = "polygamma"}`."""

    name = "nd.map"
    SYNTAX: ClassVar = {"fn": "str", "exact": "unit"}
    inputs = var_operand_def(TensorType)
    fn = prop_def(StringAttr)
    exact = opt_prop_def(UnitAttr)

    def verify_dtypes(self) -> None:
        pass


ALL = [*OPS.values(), CmpOp, SelectOp, FmaOp, CastOp, BitcastOp, MapOp]
