"""A rewrite as a pattern: x / y becomes x * (1 / y), one division for each y instead of one for each x."""

from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

import stepwell
from stepwell.dialects.nd.pointwise import OPS

Div, Mul, Reciprocal = OPS["div"], OPS["mul"], OPS["reciprocal"]


class MultiplyByReciprocal(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: Div, rewriter: PatternRewriter):
        inverse = Reciprocal.create(operands=[op.rhs], result_types=[op.rhs.type])
        product = Mul.create(operands=[op.lhs, inverse.results[0]], result_types=[op.result.type])
        rewriter.replace(op, [inverse, product])


stepwell.register_pass("nd", MultiplyByReciprocal)
