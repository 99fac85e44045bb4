"""Pass "attention-select": who computes each attention, generated code or torch's flash attention.

The choice is written as the `schedule` of the call ("generated" or "library"), where it can be read and overruled; a schedule that is
there already stays. What is generated stores its results where the plan of memory wants them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from ....dialects import nd
from ....dialects.expr import ONE
from ....dialects.machine import has_library
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.types import LayoutAttr, tensor_type
from ....lowering.mem_to_cpu.attention import DTYPES, GENERATED, FlashCall, flash_call, shapes_fit
from ....passes.analysis.symbols import symbol_hints
from ....passes.cost.library_cost import size
from ....passes.manager.pass_manager import Pass
from ....passes.nd.nd_attention import keeps_eager_numerics
from ..gemm.choice import prefer_own_attention


@dataclass(frozen=True)
class AttentionSelect(Pass):
    """Chooses between generated attention and the library's; under numerics "eager" it is the library's."""

    name = "attention-select"

    force: Literal["", "generated", "library"] = ""
    """"generated" or "library" instead of the rules."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Writes the choice on each call of flash attention."""
        hints = symbol_hints(op)
        eager, force = keeps_eager_numerics(op), self.force if has_library(op) else GENERATED
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for extern in func.body.block.ops:
                flash = flash_call(extern.call.data) if isinstance(extern, nd.ExternOp) and extern.schedule is None else None
                if flash is None:
                    continue
                assert isinstance(extern, nd.ExternOp)
                if not _can_be_generated(extern, flash):
                    choice = "library"
                else:
                    choice = force or ("library" if eager else _choice(extern, flash, hints))
                extern.properties["schedule"] = StringAttr(choice)
                if choice == GENERATED and extern.results[-1].first_use is None and len(extern.results) == 2:
                    _drop_sums(extern)
                self.statistic(f"num-{choice}")


def _can_be_generated(op: nd.ExternOp, flash: FlashCall) -> bool:
    """Whether the function takes the operands: it wants rows whose elements are next to each other."""
    layouts = op.operand_layouts
    if not isinstance(layouts, ArrayAttr) or op.kept is not None or len(op.results) != 2 or op.effect is not None:
        return False
    if not shapes_fit([v.type for v in op.operands], flash):
        return False
    operands = [k for k in (flash.query, flash.key, flash.value, flash.mask) if k is not None]
    for k in operands:
        layout = layouts.data[k] if k < len(layouts.data) else None
        if not isinstance(layout, LayoutAttr) or not (layout.stride_exprs[-1] is ONE or tensor_type(op.operands[k]).dims[-1] is ONE):
            return False
    return True


def _choice(op: nd.ExternOp, flash: FlashCall, hints: dict[str, int]) -> str:
    query, key = (tensor_type(op.operands[k]) for k in (flash.query, flash.key))
    queries, keys, depth = (size(e, hints) for e in (query.dims[2], key.dims[2], query.dims[3]))
    own = prefer_own_attention(queries, keys, depth, DTYPES[query.element_type])
    return GENERATED if own else "library"


def _drop_sums(op: nd.ExternOp) -> None:
    """Leave the logarithms of the sums out of the results: nobody needs them."""
    properties = {**op.properties, "kept": IntsAttr.get([0])}
    layouts = op.result_layouts
    if isinstance(layouts, ArrayAttr):
        properties["result_layouts"] = ArrayAttr(layouts.data[:1])
    new = nd.ExternOp.create(
        operands=op.operands, result_types=[op.results[0].type], properties=properties, attributes=dict(op.attributes), location=op.location
    )
    block = op.parent
    assert block is not None
    block.insert_op_before(new, op)
    new.results[0].name_hint = op.results[0].name_hint
    op.results[0].replace_all_uses_with(new.results[0])
    op.detach()
    op.erase()
