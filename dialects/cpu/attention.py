"""`cpu.attention`: generated attention as a function of the module (targets/cpu/attention makes its body)."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint, UnitAttr
from xdsl.irdl import ParsePropInAttrDict, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface

from ..support.create import QuickOp


@irdl_op_definition
class AttentionOp(QuickOp):
    """Declares the function `@name` that computes softmax(Q K^T * scale + mask) V for all sizes; `cpu.call` runs it.

        cpu.attention @attention_bf16 {dtype = "bf16", logsumexp}

    `dtype` is the element type of Q, K, V, the mask and the result. The arguments are pointers to Q, K, V and the result O, with
    `logsumexp` one to the logarithms of the sums (f32), with `mask` one to the numbers that are added to the scores; then i64: batch,
    heads, queries, keys, depth, the strides of batch, heads and rows of Q, K, V, O, logsumexp and mask (0 where there is none), the
    heads of Q that share one of K and V, 1 for a causal mask; then the scale, f32.
    """

    name = "cpu.attention"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    logsumexp = opt_prop_def(UnitAttr)
    mask = opt_prop_def(UnitAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    @staticmethod
    def make(name: str, dtype: str, logsumexp: bool, mask: bool) -> AttentionOp:
        """The declaration of one kind of attention."""
        flags = {key: UnitAttr() for key, on in (("logsumexp", logsumexp), ("mask", mask)) if on}
        return AttentionOp.create(properties={"sym_name": StringAttr(name), "dtype": StringAttr(dtype), **flags})
