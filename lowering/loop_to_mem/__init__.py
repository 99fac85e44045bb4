"""loop -> mem: tensors become buffers, so that strides, in-place stores and copies are decided and can be read.

The counterpart of MLIR's one-shot-bufferize. What the pass decides, and where:

- strides (layouts.py): results, updated arguments and operands of library calls demand them, the rest is row-major;
- which memory a nest stores to (lowering.py): that of the tensor that it builds on, of the argument whose new value it computes, of a
  tensor that dies in it (`passes/analysis/accesses/in_place.py` says whether it may), or memory of its own;
- which values a nest stores in several places (several_buffers.py);
- which long sums are added up in parts (partial_sums.py);
- which reads move in front of a store (ordering.py);
- what the entries of a batch write to (batches.py);
- library calls (externs.py), results and updates of arguments (results.py).

Where something cannot be shared there is a copy nest, labelled "copy", and a remark with the reason. Loops without
iterations are dropped. Offsets count from the address that a call passes for an argument (which is that of its first
element: what the graph's `nd.layout` says of an argument's offset is not used), and from the beginning of an
allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from ...dialects import loop, nd
from ...dialects.nd import symbol_ranges
from ...passes.manager.instrumentation import remark
from ...passes.manager.pass_manager import Pass
from ...passes.manager.resume import function_level
from .batches import finish_batches, lower_batch
from .externs import lower_extern
from .lowering import PASS, Lowering
from .ordering import order_reads
from .partial_sums import split_sums
from .results import lower_return, lower_update
from .several_buffers import several_buffers

RULES: dict[type[Operation], Callable[[Lowering, Any], None]] = {
    loop.EmptyOp: Lowering.empty,
    loop.NestOp: Lowering.nest,
    loop.ContractOp: Lowering.nest,
    loop.BatchOp: lower_batch,
    nd.IndexViewOp: Lowering.index_view,
    nd.ExternOp: lower_extern,
    nd.UpdateOp: lower_update,
    ReturnOp: lower_return,
}


@dataclass(frozen=True)
class LoopToMem(Pass):
    """Gives every tensor of a function a buffer and makes its nests store to buffers."""

    name = PASS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the functions of the module."""
        symbols = symbol_ranges(op)
        functions = [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]
        tensors = [f for f in functions if function_level(f) not in ("mem", "cpu")]
        if functions and not tensors:
            remark(op, "nothing to lower: the functions are on buffers")
            return
        for func in tensors:
            split_sums(func, symbols)
            order_reads(func)
            Lowering(func, symbols, several_buffers).run(RULES)
        finish_batches(op)
