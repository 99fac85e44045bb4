"""What operations of a function need besides the values that they use: whoever changes their order has to keep it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from ...dialects import loop, nd
from ...dialects.expr import Expr, Sym, free_syms
from ...dialects.expr.syntax import ExprAttr, IndexMapAttr
from ...dialects.nd.base import ExprsAttr
from ...dialects.nd.call_args import CallAttr
from ...dialects.nd.types import TensorType


def needs_besides_values(ops: Sequence[Operation]) -> dict[Operation, list[Operation]]:
    """For each operation that has some, those of `ops` before it that have to stay there: for a call with effects the last one (random
    numbers are drawn in order), for what speaks of a size that a call found out that call."""
    found: dict[Operation, list[Operation]] = {}
    finders: dict[str, Operation] = {}
    given = _given(ops)
    effect: Operation | None = None
    for op in ops:
        if finders:
            needed = dict.fromkeys([finders[name] for name in _symbols(op) if name in finders])
            if needed:
                found[op] = list(needed)
        if not isinstance(op, nd.ExternOp):
            continue
        if "effect" in op.properties:
            if effect is not None:
                found.setdefault(op, []).append(effect)
            effect = op
        if op.binds is not None:
            finders[op.binds.data] = op
        for dim in (d for r in op.results if isinstance(r.type, TensorType) for d in r.type.dims):
            if isinstance(dim, Sym) and dim.name not in given:
                finders.setdefault(dim.name, op)
    return found


def _given(ops: Sequence[Operation]) -> set[str]:
    """The size symbols that the arguments of the function bring."""
    block = ops[0].parent if ops else None
    func = block.parent_op() if block is not None else None
    if not isinstance(func, FuncOp):
        return set()
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    numbers = [a.data.get("nd.symbol") for a in attrs if isinstance(a, DictionaryAttr)]
    brought = [e.data for e in numbers if isinstance(e, ExprAttr)]
    brought += [d for argument in func.body.block.args if isinstance(argument.type, TensorType) for d in argument.type.dims]
    return {s.name for e in brought for s in free_syms(e)}


def _symbols(op: Operation) -> dict[str, None]:
    """The size symbols in the types and properties of an operation and of what is inside of it."""
    found: dict[str, None] = {}
    for inner in (op, *loop.walk_bodies(op)):
        for attribute in (*inner.properties.values(), *(v.type for v in (*inner.operands, *inner.results))):
            found.update(dict.fromkeys(sorted([s.name for e in _exprs(attribute) for s in free_syms(e)])))
    return found


def _exprs(attribute: Attribute) -> Iterator[Expr]:
    if isinstance(attribute, ExprAttr):
        yield attribute.data
    elif isinstance(attribute, ArrayAttr):
        for one in attribute.data:
            yield from _exprs(one)
    else:
        yield from _listed(attribute)


def _listed(attribute: Attribute) -> Iterable[Expr]:
    if isinstance(attribute, TensorType):
        return attribute.dims
    if isinstance(attribute, ExprsAttr):
        return attribute.data
    if isinstance(attribute, IndexMapAttr):
        return attribute.data.results
    if isinstance(attribute, CallAttr):
        return [leaf for leaf in attribute.data.leaves() if isinstance(leaf, Expr)]
    return ()
