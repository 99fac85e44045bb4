"""Pass "attention-expand": attention of one or two queries as products and a softmax.

    aten._scaled_dot_product_flash_attention_for_cpu   ->   nd.matmul ; softmax ; nd.matmul, where the scores are a row or two

So few queries read each key about once: there is nothing that a block of keys in the cache could be used for again, and torch's kernel
converts 16-bit keys and values for each block. The products read them as they lie (the weights stay f32), and the softmax is a nest. Heads
that share keys are rows of one product. Rows that see nothing are 0, as in the call.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE
from ....dialects.nd.types import tensor_type
from ....lowering.mem_to_cpu.attention import FlashCall, flash_call, shapes_fit
from ....passes.manager.pass_manager import Pass
from ....passes.nd.algebra.rewriter import Rewriter
from ....passes.nd.nd_attention import keeps_eager_numerics
from ....passes.nd.spelled_attention import AttentionCall
from ..gemm.choice import are_few_queries


@dataclass(frozen=True)
class AttentionExpand(Pass):
    """Spells out attention of few queries; not under numerics "eager"."""

    name = "attention-expand"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if keeps_eager_numerics(op):
            return

        def few_queries(rw: Rewriter, found: Operation) -> SSAValue | None:
            assert isinstance(found, nd.ExternOp)
            flash = flash_call(found.call.data) if found.schedule is None else None
            return None if flash is None or not _is_of_few(found, flash) else _spelled(rw, found, flash)

        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.ExternOp) and flash_call(o.call.data) for o in func.body.block.ops):
                rewriter = Rewriter(func, {nd.ExternOp: [few_queries]}, nd.symbol_ranges(op))  # pyright: ignore[reportArgumentType]
                rewriter.run()
                self.statistic("num-expanded", rewriter.changed.get("few_queries", 0))


def _is_of_few(op: nd.ExternOp, flash: FlashCall) -> bool:
    """Whether a call has so few queries, and nothing but its result is used."""
    if flash.causal or {"kept", "effect", "mutates", "binds"} & op.properties.keys() or any(r.uses for r in op.results[1:]):
        return False
    if not shapes_fit([v.type for v in op.operands], flash):
        return False
    query, key = (tensor_type(op.operands[k]) for k in (flash.query, flash.key))
    if key.dims[2].value == 0 or not query.dims[2].value or not are_few_queries(query.dims[2].value):
        return False
    if query.dims[1] is key.dims[1]:
        return True
    mask = None if flash.mask is None else tensor_type(op.operands[flash.mask])
    return query.dims[2] is ONE and (mask is None or mask.rank == 2 or mask.dims[1] is ONE)


def _spelled(rw: Rewriter, op: nd.ExternOp, flash: FlashCall) -> SSAValue:
    query, key, value = (op.operands[k] for k in (flash.query, flash.key, flash.value))
    t, k = tensor_type(query), tensor_type(key)
    batch, heads, _, depth = k.dims
    if t.dims[1] is not heads:  # heads that share keys are rows of one product
        query = rw.new(nd.ReshapeOp.new((query,), t.with_dims((batch, heads, t.dims[1] // heads * t.dims[2], depth))))
    mask = None if flash.mask is None else op.operands[flash.mask]
    made = AttentionCall(query, key, value, mask, scale=flash.scale).spelled(rw, weigh_narrow=False)
    return made if tensor_type(made).dims == t.dims else rw.new(nd.ReshapeOp.new((made,), t))
