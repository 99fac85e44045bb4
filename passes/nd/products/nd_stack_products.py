"""nd-stack-products: a sum of matrix products becomes one product of the stacked operands, where that moves fewer bytes.

    nd.add (nd.matmul %a, %x), (nd.matmul %b, %y)   ->   nd.matmul (nd.cat %a, %b along K), (nd.cat %x, %y along K)

The gradient of a weight that is used at every step of a recurrent network is such a sum: as many products of a few rows, each as large as
the weight, which are stored, read again and added up. Stacked, the gradient is written once, and one product of a useful depth takes the
place of many shallow ones. What it costs is that operands are stored a second time (those that are computed here in the nest that computes
them). Both sides are priced by the cost model. The sum is rounded once, as that of one product; numerics "eager" keeps the additions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS
from ....dialects.nd.types import element_bytes, is_float, tensor_type
from ....dialects.support.replace import erase_op
from ...analysis.accesses.windows import WINDOWS
from ...analysis.symbols import symbol_hints
from ...cost.cost_model import Work, estimate
from ...cost.library_cost import matmul_cost, size
from ...cost.machine.cpu import SERVER
from ...manager.pass_manager import Pass

Add = OPS["add"]


@dataclass(frozen=True)
class NdStackProducts(Pass):
    """Makes one product of a sum of products, by stacking their operands, where the cost model says that it is faster."""

    name = "nd-stack-products"

    fewest: int = 2
    """Products that a sum has to have."""

    always: bool = False
    """Whatever the cost model says."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        numerics = op.attributes.get("nd.numerics")
        if isinstance(numerics, StringAttr) and numerics.data == "eager":
            return
        hints = symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for root in [o for o in func.body.block.ops if isinstance(o, Add) and not _is_inner(o)]:
                for group in _groups(root, max(2, self.fewest)):
                    root = self._group(root, group, hints)

    def _group(self, root: Operation, group: Sequence[nd.MatmulOp], hints: Mapping[str, int]) -> Operation:
        """Stack one group, if that pays; the op that makes the sum then."""
        apart, stacked = _seconds_apart(group, hints), _seconds_stacked(group, hints)
        figures = f"{apart * 1e6:.1f} us one by one, {stacked * 1e6:.1f} us stacked"
        if not self.always and stacked >= apart:
            self.remark(root, lambda: f"its {len(group)} products stay apart: {figures}", "missed")
            return root
        self.remark(root, lambda: f"its {len(group)} products are one: {figures}", "applied")
        self.statistic("num-products", len(group))
        return _stack(root, group)


def _is_inner(op: Operation) -> bool:
    """Whether an addition is a term of another one of the same sizes, and of nothing else."""
    uses = list(op.results[0].uses)
    return len(uses) == 1 and isinstance(uses[0].operation, Add) and uses[0].operation.results[0].type == op.results[0].type


def _sum(root: Operation) -> tuple[list[Operation], list[SSAValue]]:
    """The additions of a sum, each before those that it reads, and its terms in order."""
    adds, terms = [root], []
    waiting = list(reversed(root.operands))
    while waiting:
        x = waiting.pop()
        owner = x.owner
        if isinstance(owner, Add) and x.type == root.results[0].type and _is_inner(owner):
            adds.append(owner)
            waiting.extend(reversed(owner.operands))
        else:
            terms.append(x)
    return adds, terms


def _groups(root: Operation, fewest: int) -> list[list[nd.MatmulOp]]:
    """The products of a sum that nothing else needs, those whose operands lie alike together."""
    t = tensor_type(root.results[0])
    if t.rank < 2 or not is_float(t.element_type):
        return []
    groups: dict[tuple[bool, bool], list[nd.MatmulOp]] = {}
    for x in _sum(root)[1]:
        op = x.owner
        if isinstance(op, nd.MatmulOp) and WINDOWS not in op.attributes and x.type == t and len(list(x.uses)) == 1:
            groups.setdefault((_turned(op.lhs), _turned(op.rhs)), []).append(op)
    return [group for group in groups.values() if len(group) >= fewest]


def _turned(x: SSAValue) -> bool:
    """Whether a matrix is the transpose of another tensor."""
    op = x.owner
    return isinstance(op, nd.PermuteOp) and op.dims.data == _swap(len(op.dims.data))


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


# ---- what it costs


def _seconds_apart(group: Sequence[nd.MatmulOp], hints: Mapping[str, int]) -> float:
    """Seconds of the products one by one, each but the first added to the sum of those before it (by the product itself where
    contract-epilogue puts that into it)."""
    total = sum(_product_seconds(op, _depth(op, hints), hints) for op in group)
    result = _bytes(group[0].result, hints)
    t = tensor_type(group[0].result)
    by_itself = t.rank == 2 and t.element_type in (f32, f64)
    again = Work(result, launches=0) if by_itself else Work(result * 2, result, launches=0)
    return total + (len(group) - 1) * estimate(again, SERVER).seconds


def _seconds_stacked(group: Sequence[nd.MatmulOp], hints: Mapping[str, int]) -> float:
    """Seconds of one product, and of storing the operands once more; an argument has to be read for that too."""
    total = _product_seconds(group[0], sum(_depth(op, hints) for op in group), hints)
    for x in (x for op in group for x in op.operands):
        given = isinstance(_base(x).owner, Block)
        total += estimate(Work(_bytes(x, hints) if given else 0, _bytes(x, hints), launches=int(given)), SERVER).seconds
    return total


def _base(x: SSAValue) -> SSAValue:
    while isinstance(op := x.owner, nd.ViewOp):
        x = op.operands[0]
    return x


def _product_seconds(op: nd.MatmulOp, depth: int, hints: Mapping[str, int]) -> float:
    t = tensor_type(op.result)
    *batch, m, n = (size(d, hints) for d in t.dims)
    count = 1
    for b in batch:
        count *= b
    return matmul_cost(m, n, depth, SERVER, batch=count, dtype_bytes=element_bytes(t.element_type), library=False).seconds


def _depth(op: nd.MatmulOp, hints: Mapping[str, int]) -> int:
    return size(tensor_type(op.lhs).dims[-1], hints)


def _bytes(x: SSAValue, hints: Mapping[str, int]) -> int:
    t = tensor_type(x)
    return size(product(t.dims), hints) * element_bytes(t.element_type)


# ---- the rewriting


def _stack(root: Operation, group: Sequence[nd.MatmulOp]) -> Operation:
    """Put one product in the place of `group` in the sum `root`; the op that makes the sum then."""
    block = root.parent
    assert block is not None
    result = root.results[0]

    def new(op: Operation, name: str | None = None) -> SSAValue:
        op.location = root.location
        block.insert_op_before(op, root)
        op.results[0].name_hint = name
        return op.results[0]

    rank = tensor_type(result).rank
    lhs = _stacked(new, [op.lhs for op in group], rank - 1)
    rhs = _stacked(new, [op.rhs for op in group], rank - 2)
    adds, terms = _sum(root)
    stacked = {op.result for op in group}
    made = new(nd.MatmulOp.new((lhs, rhs), result.type), result.name_hint)
    for x in terms:
        if x not in stacked:
            made = new(Add.new((made, x), result.type), result.name_hint)
    result.replace_all_uses_with(made)
    for op in (*adds, *group):
        erase_op(op)
    owner = made.owner
    assert isinstance(owner, Operation)
    return owner


def _stacked(new: Callable[[Operation], SSAValue], operands: Sequence[SSAValue], axis: int) -> SSAValue:
    """The operands after each other along `axis`; of transposes their sources, so that rows stay rows."""
    first = tensor_type(operands[0])
    turned = _turned(operands[0])
    if turned:
        sources = [x.owner.operands[0] for x in operands]  # pyright: ignore[reportAttributeAccessIssue]
        axis = 2 * first.rank - 3 - axis
    else:
        sources = list(operands)
    shape = list(tensor_type(sources[0]).dims)
    shape[axis] = sum((tensor_type(x).dims[axis] for x in sources[1:]), shape[axis])
    cat = new(nd.CatOp.new(sources, first.with_dims(shape), dim=IntsAttr.get([axis])))
    if not turned:
        return cat
    swap = _swap(first.rank)
    return new(nd.PermuteOp.new((cat,), first.with_dims([shape[k] for k in swap]), dims=IntsAttr.get(swap)))
