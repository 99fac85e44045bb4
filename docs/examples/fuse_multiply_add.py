"""A peephole on Triton's own IR: a product that is only added to something becomes one `math.fma`, which rounds once instead of twice."""

from xdsl.dialects.arith import AddfOp, MulfOp
from xdsl.dialects.math import FmaOp
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

import stepwell


class FuseMultiplyAdd(RewritePattern):
    """a * b + c becomes fma(a, b, c)."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddfOp, rewriter: PatternRewriter):
        for product, addend in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if isinstance(product.owner, MulfOp) and product.has_one_use():
                rewriter.replace(op, FmaOp(product.owner.lhs, product.owner.rhs, addend))
                rewriter.erase(product.owner)
                return


stepwell.register_pass("tt", FuseMultiplyAdd, position="after:mem-to-tt")
