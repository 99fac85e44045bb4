"""A pass of your own: erf(x) becomes tanh(x * (1.12838 + 0.100911 * x**2)), the polynomial of the "tanh" GELU.

The error is below 5e-4.  Load it in a program with ``import approximate_erf`` before a compiled model is first called,
or in opt-tool with ``--load-module approximate_erf.py``.
"""

from dataclasses import dataclass

from xdsl.dialects.builtin import FloatAttr, f32

import stepwell
from stepwell.dialects.nd import FullOp
from stepwell.dialects.nd.pointwise import OPS
from stepwell.dialects.nd.types import TensorType
from stepwell.passes.manager.pass_manager import Pass

Add, Erf, Mul, Tanh = (OPS[name] for name in ("add", "erf", "mul", "tanh"))


@dataclass(frozen=True)
class ApproximateErf(Pass):
    """Replace erf by a tanh of a polynomial."""

    name = "approximate-erf"

    all_types: bool = False
    """Rewrite double precision too"""

    def apply(self, ctx, op):
        for erf in [nested for nested in op.walk() if isinstance(nested, Erf)]:
            element_type = erf.result.type.element_type
            if element_type != f32 and not self.all_types:
                self.remark(erf, f"kept, its element type is {element_type}", "missed")
                continue
            self.rewrite(erf)
            self.statistic("num-rewritten")

    def rewrite(self, erf):
        """Put the polynomial in the place of one erf; every new operation keeps the location of the old one."""
        result = erf.result.type
        x = erf.input

        def build(cls, *operands):
            new = cls.create(operands=operands, result_types=[result], location=erf.location)
            erf.parent.insert_op_before(new, erf)
            return new.results[0]

        def constant(value):
            scalar = TensorType.get((), result.element_type)
            attribute = FloatAttr(value, result.element_type)
            new = FullOp.create(result_types=[scalar], properties={"value": attribute}, location=erf.location)
            erf.parent.insert_op_before(new, erf)
            return new.results[0]

        square = build(Mul, x, x)
        inner = build(Add, build(Mul, square, constant(0.1009108981)), constant(1.1283791671))
        erf.results[0].replace_all_uses_with(build(Tanh, build(Mul, x, inner)))
        erf.detach()
        erf.erase()


stepwell.register_pass("nd", ApproximateErf, position="end")
