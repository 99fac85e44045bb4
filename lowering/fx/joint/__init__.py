"""Rewrites of the joint graph, before it is parted into forward and backward, and the table of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..rewrites import FxRewrite, Setting

if TYPE_CHECKING:
    from .repeated_scores import Kernels


def score_kernels(s: Setting) -> Kernels:
    """Which scores of attention backward computes again: with eager's numerics the CPU has no kernels for them."""
    from .repeated_scores import kernels_for

    left = {*s.left_out, *(("nd-weigh-rows",) if s.eager_numerics else ())}
    return partial(kernels_for, left=left, any_size=s.ordered)


REWRITES = (
    FxRewrite("widen-statistics", "joint.wide_statistics:widen_statistics", "statistics of norms are kept in f32"),
    FxRewrite(
        "choose-training-layouts", "joint.training_layouts:choose_training_layouts", "convolutions run channels-last where it pays",
        lambda s: s.trains and "loop-layout" not in s.left_out, counter="training_layouts",
    ),
    FxRewrite(
        "spell-out-dropout", "joint.drawn_weights:spell_out_dropout", "backward draws dropout of attention again",
        lambda s: s.trains and s.own_partition and not s.random_from_eager, lambda s: (s.left_to_aten, score_kernels(s)),
        counter="drawn_weights",
    ),
    FxRewrite(
        "compose-permutes", "joint.composed_permutes:compose_permutes", "permutations of permutations are one",
        lambda s: s.ordered or not s.eager_numerics,
    ),
    FxRewrite(
        "shorten-row-sums", "joint.softmax_row_sums:shorten_row_sums", "gradients of attention sum over rows of its result",
        lambda s: s.ordered or not s.eager_numerics, lambda s: (score_kernels(s),), counter="short_row_sums",
    ),
    FxRewrite(
        "gradients-in-forward", "joint.loss_gradients:gradients_in_forward",
        "gradients of losses of wide rows are computed where the rows are",
        lambda s: s.trains and s.own_partition and not s.eager_numerics, counter="gradients_in_forward",
    ),
    FxRewrite(
        "spell-out-recomputable", "joint.recomputable:spell_out_recomputable", "what is cheap is computed again in the backward graph",
        lambda s: s.trains and s.own_partition, lambda s: (s.left_to_aten, score_kernels(s)), counter="recomputable",
    ),
    FxRewrite(
        "merge-common-subexpressions", "joint.common_subexpressions:merge_common_subexpressions",
        "equal calls are made once", lambda s: s.own_partition,
    ),
)  # fmt: skip
"""In the order in which they run."""
