"""contract-bias: a nest that only adds a vector to the columns of a product becomes the epilogue of the contraction.

    %p = loop.contract (%i = M, %j = N) ... { store acc }      %r = loop.contract (%i = M, %j = N) ... {
    %r = loop.nest (%i = M, %j = N) { %p[%i, %j] + %b[%j] }         store acc + %b[%j]
                                                                }

The product is then rounded once, after the addition, as the library's addmm does. Nests that do more than that stay: they are
one pass over the product anyway, and what else they compute would not be vectorised inside of the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import dim
from ...dialects.nd_types import TensorType
from ..manager import Pass
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
    if len(ops) != 4 or len(nest.results) != 1 or len(nest.loop_sizes) != 2 or "no_fuse" in nest.attributes:
        return None
    first, second, add, store = ops
    if not isinstance(first, loop.LoadOp) or not isinstance(second, loop.LoadOp) or not isinstance(store, loop.StoreOp):
        return None
    if not isinstance(add, arith.AddfOp) or {*add.operands} != {first.result, second.result} or store.value is not add.result:
        return None
    if store.mode is not None or store.masked is not None or not _at(nest, store, (0, 1)):
        return None
    for load, bias in ((first, second), (second, first)):
        product = load.source.owner
        if (
            isinstance(product, loop.ContractOp)
            and "no_fuse" not in product.attributes
            and is_plain(product)
            and product.loop_sizes == nest.loop_sizes
            and load.masked is None
            and bias.masked is None
            and _at(nest, load, (0, 1))
            and _at(nest, bias, (1,))
            and all(use.operation is load for use in load.source.uses)
            and _stores_in_order(product)
            and product.accumulator.type == add.result.type
            and _same_dtype(product, nest, bias)
        ):
            return product, bias, add
    return None


def _at(nest: loop.NestOp, access: loop.AccessOp, loops: tuple[int, ...]) -> bool:
    """Whether an access is at exactly these loops of the nest, in this order."""
    numbers = {value: k for k, value in enumerate(nest.indices)}
    if any(value not in numbers for value in access.index_operands):
        return False
    place = [dim(numbers[value]) for value in access.index_operands]
    return list(access.index_map.apply(place)) == [dim(k) for k in loops]


def _stores_in_order(product: loop.ContractOp) -> bool:
    store = product.block.first_op
    assert isinstance(store, loop.StoreOp)
    place = [dim(list(product.indices).index(v)) for v in store.index_operands]
    return list(store.index_map.apply(place)) == [dim(k) for k in range(len(product.loop_sizes))]


def _same_dtype(product: loop.ContractOp, nest: loop.NestOp, bias: loop.LoadOp) -> bool:
    types = [v.type for v in (product.lhs, product.rhs, product.results[0], nest.results[0], bias.source)]
    return len({t.element_type if isinstance(t, TensorType) else None for t in types}) == 1


def _fold(nest: loop.NestOp, product: loop.ContractOp, bias: loop.LoadOp, add: Operation) -> None:
    new = loop.ContractOp.build_contract(
        product.loop_sizes,
        product.depth.data,
        (product.lhs, product.lhs_map.data),
        (product.rhs, product.rhs_map.data),
        list(nest.outs),
        product.accumulator.type,
    )
    new.location = nest.location
    values: dict[SSAValue, SSAValue] = dict(zip(nest.indices, new.indices, strict=True))
    values.update(zip(nest.out_args, new.out_args, strict=True))
    other = next(v for v in add.operands if v is not bias.result)
    values[other] = new.accumulator
    for op in (bias, add, nest.block.last_op):
        assert op is not None
        new.block.add_op(op.clone(values))
    block = nest.parent
    assert block is not None
    block.insert_op_before(new, nest)
    new.results[0].name_hint = nest.results[0].name_hint
    nest.results[0].replace_all_uses_with(new.results[0])
    nest.detach()
    nest.erase()
    empty = product.outs[0].owner
    product.detach()
    product.erase()
    if isinstance(empty, loop.EmptyOp) and not empty.result.first_use:
        empty.detach()
        empty.erase()
