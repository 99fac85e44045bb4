"""`cpu.gemm`: a generated matrix multiplication as a function of the module (targets/cpu/gemm makes its body)."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint, UnitAttr
from xdsl.irdl import ParsePropInAttrDict, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface

from ..support.create import QuickOp

BYTES = ("i8", "u8")
FACTORS: dict[str, tuple[str, ...]] = {
    "f32": ("f32", "bf16", "f16", *BYTES),
    "bf16": ("bf16", *BYTES),
    "f16": ("f16", *BYTES),
    "f64": ("f64",),
    "i8": BYTES,
    "u8": ("i8",),
}
"""Type of A -> the types that B may have: each of their values is one of the type in which products are computed."""


@irdl_op_definition
class GemmOp(QuickOp):
    """Declares the function `@name` that multiplies matrices of one kind, for all sizes; `cpu.call` runs it.

        cpu.gemm @gemm_f32_nt {dtype = "f32", out = "f32", trans_b}

    `dtype` is the element type of the left operand, `rhs` that of the right one (one of `FACTORS[dtype]`, the first if it is not said),
    `out` that of the result. `trans_a`: the left one is stored [K, M]; `trans_b`: the right
    one is stored [N, K]. The arguments are three pointers A, B, C (with `bias` a fourth one: N elements of `dtype`
    that are added to every row) and then i64: M, N, K, the strides of rows lda, ldb, ldc, the batch, and
    the strides of the batch for A, B, C. With `accumulate` the product is added to C, which is f32 or f64.
    """

    name = "cpu.gemm"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    out = prop_def(StringAttr)
    rhs = opt_prop_def(StringAttr)
    trans_a = opt_prop_def(UnitAttr)
    trans_b = opt_prop_def(UnitAttr)
    bias = opt_prop_def(UnitAttr)
    accumulate = opt_prop_def(UnitAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    @staticmethod
    def make(
        name: str, dtype: str, out: str, trans_a: bool, trans_b: bool, bias: bool = False, accumulate: bool = False, rhs: str = ""
    ) -> GemmOp:
        """The declaration of one kind of multiplication."""
        properties = {"sym_name": StringAttr(name), "dtype": StringAttr(dtype), "out": StringAttr(out)}
        if rhs and rhs != FACTORS[dtype][0]:
            properties["rhs"] = StringAttr(rhs)
        wanted = (("trans_a", trans_a), ("trans_b", trans_b), ("bias", bias), ("accumulate", accumulate))
        flags = {key: UnitAttr() for key, on in wanted if on}
        return GemmOp.create(properties={**properties, **flags})
