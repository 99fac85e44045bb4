"""Rewrites of the ATen graphs that are compiled, forward, backward and inference, and the table of them."""

from ..rewrites import FxRewrite

REWRITES = (
    FxRewrite(
        "fix-head-sizes", "post_grad.attention_heads:fix_head_sizes", "heads of attention get sizes that the device's kernels take",
        lambda s: not s.trains and not s.eager_numerics, lambda s: (s.takes_heads,),
    ),
)  # fmt: skip
"""In the order in which they run."""
