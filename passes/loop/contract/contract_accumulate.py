"""contract-accumulate: products whose results are only added up add to their sum.

    %p = loop.contract (%i = M, %j = N) ... { store acc }      %p = loop.contract (%i = M, %j = N) ... { store acc }
    %q = loop.contract (%i = M, %j = N) ... { store acc }      %r = loop.contract ... outs(%c = %p) { store acc, %c add }
    %r = loop.nest (%i = M, %j = N) { %p[%i, %j] + %q[%i, %j] }

The gradient of a weight that several layers share is such a sum. In place of a temporary for each product, stored and read again, there is
one tensor. Only nests that do nothing but add: another nest has to read the sum anyway, and then nothing is gained. The sum keeps the
accumulator's type, so products of f16 and bf16, whose sums would be rounded after each, stay; numerics "eager" keeps all additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.nd.types import tensor_type
from ...analysis.nest_info import is_in_place
from ...manager.pass_manager import Pass
from .contract_epilogue import is_plain

MAX_RANK = 3
"""Loops of a contraction that the library's products that add take: one of a batch, rows and columns."""


@dataclass(frozen=True)
class ContractAccumulate(Pass):
    """Makes products whose results are only added up add to their sum."""

    name = "contract-accumulate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        numerics = op.attributes.get("nd.numerics")
        if isinstance(numerics, StringAttr) and numerics.data == "eager":
            return
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            nests = [n for n in func.body.block.ops if isinstance(n, loop.NestOp)]
            position: dict[Operation, int] = {}
            for nest in nests:
                terms = _terms(nest)
                if terms is None:
                    continue
                position = position or {o: k for k, o in enumerate(func.body.block.ops)}
                chain = _chain(nest, terms, position)
                if chain is None:
                    continue
                self.remark(nest, f"{len(chain) - 1} products add to their sum", kind="applied")
                self.statistic("num-products", len(chain) - 1)
                _accumulate(nest, chain)


def _terms(nest: loop.NestOp) -> list[SSAValue] | None:
    """The tensors that a nest adds up element by element, if that is all that it does."""
    ops = list(nest.block.ops)
    if len(nest.results) != 1 or "no_fuse" in nest.attributes or not isinstance(nest.outs[0].owner, loop.EmptyOp):
        return None
    *first, store = ops
    if not isinstance(store, loop.StoreOp) or store.mode is not None or not is_in_place(nest, store):
        return None
    loads = [o for o in first if isinstance(o, loop.LoadOp)]
    adds = [o for o in first if isinstance(o, arith.AddfOp)]
    if len(loads) < 2 or len(adds) != len(loads) - 1 or len(loads) + len(adds) != len(first):
        return None
    # a tree: each value is used once, the last one by the store
    if store.value is not adds[-1].result or not all(len(list(o.results[0].uses)) == 1 for o in first):
        return None
    t = nest.results[0].type
    if not all(is_in_place(nest, o) and o.source.type == t for o in loads):
        return None
    return [o.source for o in loads]


def _chain(nest: loop.NestOp, terms: Sequence[SSAValue], position: dict[Operation, int]) -> list[Operation] | None:
    """The op whose result the first product adds to, and the products in order; None where that does not work."""
    t = tensor_type(nest.results[0])
    owners = [x.owner for x in terms]
    if t.rank > MAX_RANK or len(set(terms)) != len(terms):
        return None
    steps = [o for o in owners if isinstance(o, loop.ContractOp | loop.NestOp) and o in position]
    if len(steps) != len(owners) or not all(len(list(x.uses)) == 1 for x in terms):
        return None
    chain = sorted(steps, key=position.__getitem__)
    if all(_adds(o, t) for o in chain[1:]):
        return list(chain)
    return None


def _adds(op: Operation, t: object) -> bool:
    """Whether a product can add to a tensor of type `t`."""
    if not isinstance(op, loop.ContractOp) or not is_plain(op) or "no_fuse" in op.attributes or not _is_fresh(op):
        return False
    store = op.block.first_op
    assert isinstance(store, loop.StoreOp)
    if any(e.has_div for m in (op.lhs_map, op.rhs_map) for e in m.data.results):
        return False  # windows and panels: their products store into memory of their own
    return is_in_place(op, store) and op.accumulator.type == getattr(t, "element_type", None) and tensor_type(op.results[0]) == t


def _is_fresh(op: loop.ContractOp) -> bool:
    return isinstance(op.outs[0].owner, loop.EmptyOp)


def _accumulate(nest: loop.NestOp, chain: Sequence[Operation]) -> None:
    """Let each product of the chain add to the result before it; the last one takes the place of the nest."""
    first, *products = chain
    terms = {load.source for load in nest.block.ops if isinstance(load, loop.LoadOp)}
    total = next(r for r in first.results if r in terms)
    for op in products:
        assert isinstance(op, loop.ContractOp)
        empty = op.outs[0]
        op.operands[2] = total
        store = op.block.first_op
        assert store is not None
        store.properties["mode"] = StringAttr("add")
        total = op.results[0]
        loop.drop_empty(empty)
    total.name_hint = nest.results[0].name_hint
    nest.results[0].replace_all_uses_with(total)
    loop.drop_nest(nest)
