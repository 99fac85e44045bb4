"""Sums with what is scattered into zeros: the values are added to the other term itself.

`y + scatter_add(zeros, i, v)` is `scatter_add(y, i, v)`: the gradient of an embedding whose table is an output layer's weight too needs no
table of zeros, and no nest that adds two tables. The order of the additions changes, so f32 and f64 alone, and not under numerics "eager".
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, f32, f64
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.nd.types import tensor_type
from ..nd_attention import keeps_eager_numerics
from .one_hot_rules import is_zero
from .rewriter import Rewriter


def scatter_into_sum(rw: Rewriter, op: Operation) -> SSAValue | None:
    """See the module's docstring; on the CPU, where it was measured."""
    t = tensor_type(op.results[0])
    module = rw.func.parent_op()
    if t.element_type not in (f32, f64) or t.device.data != "cpu" or not isinstance(module, ModuleOp) or keeps_eager_numerics(module):
        return None
    for scattered, other in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        scatter = scattered.owner
        if other.type != t or scattered.type != t or not isinstance(scatter, nd.ScatterOp | nd.IndexPutOp):
            continue
        once = len(list(scattered.uses)) == 1
        if once and scatter.mode.data == "add" and is_zero(scatter.base) and not isinstance(other.owner, nd.FullOp):
            operands = [other, *scatter.operands[1:]]
            return rw.new(type(scatter).create(operands=operands, result_types=[t], properties=dict(scatter.properties)))
    return None
