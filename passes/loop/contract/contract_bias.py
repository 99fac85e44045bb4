"""contract-bias: a nest that only adds a vector to the columns of a product becomes the epilogue of the contraction.

    %p = loop.contract (%i = M, %j = N) ... { store acc }      %r = loop.contract (%i = M, %j = N) ... {
    %r = loop.nest (%i = M, %j = N) { %p[%i, %j] + %b[%j] }         store acc + %b[%j]
                                                                }

The rows of the product may be several loops of the nest, in order: then the nest's tensor is a view of the contraction's (the bias
of q, k and v in `nn.MultiheadAttention`). The product is rounded once, after the addition, as the library's addmm does. Nests that
do more than that stay: they are one pass over the product anyway, and what else they compute would not be vectorised inside of
the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop, nd
from ....dialects.expr import ONE, ZERO, Expr, IndexMap, dim
from ....dialects.expr import product as expr_product
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd.types import TensorType
from ...analysis.nest_info import is_in_place
from ...manager.pass_manager import Pass
from .contract_expand import is_plain


@dataclass(frozen=True)
class ContractBias(Pass):
    """Puts the addition of a bias into the contraction that makes the product."""

    name = "contract-bias"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in func.body.block.ops if isinstance(n, loop.NestOp)]:
                found = _bias_of(nest)
                if found is not None:
                    self.remark(nest, "its addition is the epilogue of the product", kind="applied")
                    _fold(nest, *found)
                    self.statistic("num-folded")


def _bias_of(nest: loop.NestOp) -> tuple[loop.ContractOp, loop.LoadOp, Operation] | None:
    """The contraction, the load of the bias and the addition, if that is all that a nest does."""
    ops = list(nest.block.ops)
    count = len(nest.loop_sizes)
    if len(ops) != 4 or len(nest.results) != 1 or count < 2 or "no_fuse" in nest.attributes:
        return None
    if count > 2 and not isinstance(nest.outs[0].owner, loop.EmptyOp):
        return None
    first, second, add, store = ops
    if not isinstance(first, loop.LoadOp) or not isinstance(second, loop.LoadOp) or not isinstance(store, loop.StoreOp):
        return None
    if not isinstance(add, arith.AddfOp) or {*add.operands} != {first.result, second.result} or store.value is not add.result:
        return None
    place = _place(nest)
    if store.mode is not None or store.masked is not None or not _at(nest, store, place):
        return None
    *rows, columns = nest.loop_sizes
    for load, bias in ((first, second), (second, first)):
        product = load.source.owner
        final = product.block.first_op if isinstance(product, loop.ContractOp) else None
        if (
            isinstance(product, loop.ContractOp)
            and isinstance(final, loop.StoreOp)
            and "no_fuse" not in product.attributes
            and is_plain(product)
            and tuple(product.loop_sizes) == (expr_product(rows), columns)
            and load.masked is None
            and bias.masked is None
            and _at(nest, load, (_row(rows, place), place[-1]))
            and _at(nest, bias, place[-1:])
            and all(use.operation is load for use in load.source.uses)
            and is_in_place(product, final)
            and product.accumulator.type == add.result.type
            and _same_dtype(product, nest, bias)
        ):
            return product, bias, add
    return None


def _place(nest: loop.NestOp) -> tuple[Expr, ...]:
    """The indices of the loops; 0 for a loop of one iteration."""
    return tuple(ZERO if size is ONE else dim(k) for k, size in enumerate(nest.loop_sizes))


def _row(sizes: Sequence[Expr], place: Sequence[Expr]) -> Expr:
    """The number of the row at `place` in the order of loops of these sizes."""
    row: Expr = ZERO
    for size, index in zip(sizes, place, strict=False):
        row = row * size + index
    return row


def _at(nest: loop.NestOp, access: loop.AccessOp, index: tuple[Expr, ...]) -> bool:
    """Whether an access is at exactly this index, over the nest's loops."""
    numbers = {value: k for k, value in enumerate(nest.indices)}
    if any(value not in numbers for value in access.index_operands):
        return False
    loops = _place(nest)
    place = [loops[numbers[value]] for value in access.index_operands]
    return tuple(access.index_map.apply(place)) == index


def _same_dtype(product: loop.ContractOp, nest: loop.NestOp, bias: loop.LoadOp) -> bool:
    types = [v.type for v in (product.lhs, product.rhs, product.results[0], nest.results[0], bias.source)]
    return len({t.element_type if isinstance(t, TensorType) else None for t in types}) == 1


def _fold(nest: loop.NestOp, product: loop.ContractOp, bias: loop.LoadOp, add: Operation) -> None:
    *rows, _ = nest.loop_sizes
    stored = nest if len(rows) == 1 else product  # whose tensor the sum goes to, where that one stores
    new = loop.ContractOp.build_contract(
        product.loop_sizes,
        product.depth.data,
        (product.lhs, product.lhs_map.data),
        (product.rhs, product.rhs_map.data),
        list(stored.outs),
        product.accumulator.type,
    )
    new.location = nest.location
    values: dict[SSAValue, SSAValue] = {nest.indices[-1]: new.indices[-1]}
    values.update(zip(stored.indices, new.indices, strict=True))
    values.update(zip(stored.out_args, new.out_args, strict=True))
    values[next(v for v in add.operands if v is not bias.result)] = new.accumulator
    store = stored.block.last_op
    assert isinstance(store, loop.StoreOp)
    new.block.add_op(bias.clone(values))
    total = add.clone(values)
    new.block.add_op(total)
    values[store.value] = total.results[0]
    new.block.add_op(store.clone(values))
    block = nest.parent
    assert block is not None
    block.insert_op_before(new, nest)
    result = new.results[0]
    if stored is product:
        place = _place(nest)
        seen = IndexMapAttr.get(IndexMap(len(place), (_row(rows, place), place[-1])))
        view = nd.IndexViewOp.create(operands=[result], result_types=[nest.results[0].type], properties={"map": seen})
        view.location = nest.location
        block.insert_op_before(view, nest)
        result = view.result
    new.results[0].name_hint = result.name_hint = nest.results[0].name_hint
    nest.results[0].replace_all_uses_with(result)
    loop.drop_nest(nest)
    loop.drop_nest(product)
