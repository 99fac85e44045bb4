"""`cpu.int4`, `cpu.int4_rows`: generated products with weights of four bits as functions of the module (targets/cpu/gemm makes their
bodies)."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, StringAttr, SymbolNameConstraint, UnitAttr, i64
from xdsl.irdl import ParsePropInAttrDict, irdl_op_definition, opt_prop_def, prop_def, traits_def
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


@irdl_op_definition
class Int4RowsOp(QuickOp):
    """Declares the function `@name` that multiplies by weights of four bits in words along the sum; `cpu.call` runs it.

        cpu.int4_rows @int4_rows_bf16 {dtype = "bf16", scales = "bf16", parts = 1 : i64, groups = 1 : i64, zeros}

    `dtype` is the element type of the factor X, `scales` that of scales and zero points, which a part of a chunk has `groups` of. The
    arguments are pointers to X, the words, the scales and Y, with `zeros` to these and to the sums of X; then i64: the rows of Y,
    its columns, the chunks of a row of words, the strides of rows of words (bytes), scales and Y, the first group of each of two parts,
    the binary digits of a group's length; then f32: what is taken off each number (targets/cpu/gemm/int4_rows.py).
    """

    name = "cpu.int4_rows"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    scales = prop_def(StringAttr)
    parts = prop_def(IntegerAttr)
    groups = prop_def(IntegerAttr)
    zeros = opt_prop_def(UnitAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    @staticmethod
    def make(name: str, dtype: str, scales: str, parts: int, groups: int, zeros: bool) -> Int4RowsOp:
        """The declaration of one kind of product."""
        properties = {
            "sym_name": StringAttr(name), "dtype": StringAttr(dtype), "scales": StringAttr(scales),
            "parts": IntegerAttr(parts, i64), "groups": IntegerAttr(groups, i64), **({"zeros": UnitAttr()} if zeros else {}),
        }  # fmt: skip
        return Int4RowsOp.create(properties=properties)
