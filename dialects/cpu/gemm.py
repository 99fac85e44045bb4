"""`cpu.gemm`: a generated matrix multiplication as a function of the module (targets/cpu/gemm makes its body)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    FlatSymbolRefAttrConstr,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute
from xdsl.irdl import ParsePropInAttrDict, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from ..support.create import QuickOp
from ..support.gemm_types import FACTORS

PASSED = tuple(StringAttr(what) for what in ("row", "rows", "column", "columns", "given"))
"""What an epilogue may be passed."""


@irdl_op_definition
class GemmOp(QuickOp):
    """Declares the function `@name` that multiplies matrices of one kind, for all sizes; `cpu.call` runs it.

        cpu.gemm @gemm_f32_nt {dtype = "f32", out = "f32", trans_b}

    `dtype` is the element type of the left operand, `rhs` that of the right one (one of `FACTORS[dtype]`, the first if it is not said),
    `out` that of the result. `trans_a`: the left one is stored [K, M]; `trans_b`: the right
    one is stored [N, K]. The arguments are three pointers A, B, C (with `bias` a fourth one: N elements of `dtype`
    that are added to every row) and then i64: M, N, K, the strides of rows lda, ldb, ldc, the batch, and
    the strides of the batch for A, B, C.

    With `windows` rows of A are windows of an image, read where they lie, and lda is ignored. Their numbers come behind the other arguments
    (passes/analysis/accesses/windows.py): run, taps, outer, inner, count0, step0, count1, step1, count2, step2, step3.

    With `panels = W` B is stored in panels of W columns, [ceil(N / W), K, W], the last one filled up, and ldb is ignored.
    Of bytes they are [ceil(N / W), ceil(K / 4), W, 4].

    With `ordered` each sum is made term after term, however many rows there are.

    With `epilogue` the kernel of that name is called for each rectangle of C that is finished, from any thread. `passed` says for each of
    its arguments what it gets: the first `row` or `column` of the rectangle, the number of its `rows` or `columns`, or what is `given` to
    this function behind its own arguments, in order. C is of the accumulator's type then, f32 or f64.
    """

    name = "cpu.gemm"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    out = prop_def(StringAttr)
    rhs = opt_prop_def(StringAttr)
    trans_a = opt_prop_def(UnitAttr)
    trans_b = opt_prop_def(UnitAttr)
    bias = opt_prop_def(UnitAttr)
    epilogue = opt_prop_def(FlatSymbolRefAttrConstr)
    passed = opt_prop_def(ArrayAttr)
    windows = opt_prop_def(UnitAttr)
    panels = opt_prop_def(IntegerAttr)
    ordered = opt_prop_def(UnitAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    def verify_(self) -> None:
        if self.panels is not None and (self.panels.value.data <= 0 or self.trans_b is not None):
            raise VerifyException("cpu.gemm: panels have columns, and those lie side by side: B is not transposed then")
        if (self.epilogue is None) != (self.passed is None):
            raise VerifyException("cpu.gemm: an epilogue needs to be told what is passed to it, and nothing else does")
        unknown = [a for a in (self.passed.data if self.passed is not None else ()) if a not in PASSED]
        if unknown:
            raise VerifyException(f"cpu.gemm: {unknown[0]} is passed to the epilogue, known: {', '.join(a.data for a in PASSED)}")
        if self.epilogue is not None and (self.out.data != ("f64" if self.dtype.data == "f64" else "f32")):
            raise VerifyException(f"cpu.gemm: an epilogue works on sums, which are not of type {self.out.data}")

    @staticmethod
    def make(
        name: str, dtype: str, out: str, trans_a: bool, trans_b: bool, bias: bool = False, rhs: str = "",
        epilogue: str = "", passed: Sequence[str] = (), windows: bool = False, panels: int = 0,
    ) -> GemmOp:  # fmt: skip
        """The declaration of one kind of multiplication."""
        properties = {"sym_name": StringAttr(name), "dtype": StringAttr(dtype), "out": StringAttr(out)}
        if rhs and rhs != FACTORS[dtype][0]:
            properties["rhs"] = StringAttr(rhs)
        wanted = (("trans_a", trans_a), ("trans_b", trans_b), ("bias", bias), ("windows", windows))
        flags: dict[str, Attribute] = {key: UnitAttr() for key, on in wanted if on}
        if panels:
            flags["panels"] = IntegerAttr(panels, i64)
        if epilogue:
            flags |= {"epilogue": SymbolRefAttr(epilogue), "passed": ArrayAttr([StringAttr(what) for what in passed])}
        return GemmOp.create(properties={**properties, **flags})
