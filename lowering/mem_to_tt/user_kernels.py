"""Launches of kernels that users wrote: calls of KERNEL_CALL on buffers become `host.launch`, like those of nests."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import SSAValue

from ...dialects import mem
from ...dialects.expr import Expr, as_expr
from ...dialects.host import LaunchOp
from ...dialects.mem import BufferType
from ...dialects.nd.call_args import KERNEL_CALL, Arg
from ...dialects.support.replace import erase_op, replace_op
from ...dialects.tt.structure import FuncOp
from ..outline import traffic
from .kernel import is_aligned

ALIGNED = "tt.divisibility"


def lower_user_kernels(module: ModuleOp) -> int:
    """Replace the calls of users' kernels in a module by launches; how many there were."""
    kernels = {f.sym_name.data: f for f in module.ops if isinstance(f, FuncOp)}
    calls = [op for op in module.walk() if isinstance(op, mem.ExternOp) and op.call.data.target == KERNEL_CALL]
    asked: set[str] = set()
    launched: set[str] = set()
    for op in calls:
        name, grid, *rest = op.call.data.args
        operands: list[SSAValue] = [op.inputs[leaf.index] for leaf in rest if isinstance(leaf, Arg)]
        sizes: list[Expr] = [as_expr(leaf) for leaf in rest if not isinstance(leaf, Arg)]
        used = _variant(module, kernels, name, operands)
        launched.add(used)
        launch = LaunchOp.make(used, operands, sizes, bytes=traffic(operands), grid=grid)
        replace_op(op, launch)
        asked.add(name)
    for name in asked - launched:
        erase_op(kernels[name])
    return len(calls)


def _variant(module: ModuleOp, kernels: dict[str, FuncOp], name: str, operands: list[SSAValue]) -> str:
    """The kernel, or what it is without a promise about addresses that a buffer does not keep."""
    kernel = kernels[name]
    hints = kernel.arg_attrs.data if kernel.arg_attrs is not None else ()
    buffers = [v for v in operands if isinstance(v.type, BufferType)]
    broken = [k for k, b in enumerate(buffers) if k < len(hints) and ALIGNED in hints[k].data and not is_aligned(b)]
    if not broken:
        return name
    name = f"{name}_any{'_'.join(map(str, broken))}"
    if name not in kernels:
        copy = kernels[name] = kernel.clone()
        kept = [DictionaryAttr({n: a for n, a in h.data.items() if n != ALIGNED or k not in broken}) for k, h in enumerate(hints)]
        copy.properties |= {"sym_name": StringAttr(name), "arg_attrs": ArrayAttr(kept)}
        module.body.block.add_op(copy)
    return name
