"""`cpu.int4`: a generated product with packed weights of four bits as a function of the module (targets/cpu/gemm makes its body)."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.irdl import ParsePropInAttrDict, irdl_op_definition, prop_def, traits_def
from xdsl.traits import SymbolOpInterface

from ..support.create import QuickOp


@irdl_op_definition
class Int4Op(QuickOp):
    """Declares the function `@name` that multiplies by weights of four bits as torch packs them for processors; `cpu.call` runs it.

        cpu.int4 @int4_bf16 {dtype = "bf16"}

    `dtype` is the element type of the factor X, of the scales and of the result Y. The arguments are pointers to X, to the packed weights,
    to pairs of a scale and what is added, and to Y; then i64: the rows of Y, its columns, the terms of a sum, the strides of rows of X
    and Y, and the terms that share a pair.
    """

    name = "cpu.int4"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    @staticmethod
    def make(name: str, dtype: str) -> Int4Op:
        """The declaration of the product of one type."""
        return Int4Op.create(properties={"sym_name": StringAttr(name), "dtype": StringAttr(dtype)})
