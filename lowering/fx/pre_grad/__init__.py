"""Rewrites of the graph that Dynamo captured, before AOTAutograd traces it, and the table of them."""

from ..joint import score_kernels
from ..rewrites import FxRewrite, Setting


def _may_round_otherwise(setting: Setting) -> bool:
    return not setting.eager_numerics and not setting.random_from_eager


def _calls_attention(setting: Setting) -> bool:
    return _may_round_otherwise(setting) and not setting.deterministic and "nd-attention" not in setting.left_out


REWRITES = (
    FxRewrite("keep-whole", "pre_grad.whole_operators:keep_whole", "operators with rules of their own are not decomposed"),
    FxRewrite("keep-powers", "pre_grad.powers:keep_powers", "powers with whole exponents stay powers"),
    FxRewrite("name-softmaxes", "pre_grad.softmaxes:name_softmaxes", "softmaxes by hand are one in training", _may_round_otherwise),
    FxRewrite(
        "distribute-products", "pre_grad.softmax_sums:distribute_products", "sums of softmaxes keep no scores",
        _may_round_otherwise, lambda s: (score_kernels(s),),
    ),
    FxRewrite("part-sinks", "pre_grad.softmax_sinks:part_sinks", "softmaxes of more than weighs rows keep no scores", _may_round_otherwise),
    FxRewrite("call-attention", "pre_grad.decomposed_attention:call_attention", "decomposed attention becomes a call", _calls_attention),
    FxRewrite(
        "simplify-masks", "pre_grad.attention_masks:simplify_masks", "masks of attention that are causal or empty", _may_round_otherwise
    ),
)
"""In the order in which they run."""
