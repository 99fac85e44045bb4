"""Wrong rewrites for tests: after a pass has run, one operation of what it left is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, StringAttr
from xdsl.ir import Operation

from stepwell.dialects.expr import IndexMap
from stepwell.dialects.expr.syntax import IndexMapAttr
from stepwell.dialects.nd.pointwise import OPS
from stepwell.passes.manager import registry

SIZE, CONSTANT = 5, 2.5
"""The size of every dimension of the program, and a constant of it."""


def swap(op: Operation) -> bool:
    """The operands of a subtraction change places."""
    if op.name not in ("nd.sub", "arith.subf") or op.operands[0] is op.operands[1]:
        return False
    first, second = op.operands
    op.operands[0], op.operands[1] = second, first
    return True


def multiply(op: Operation) -> bool:
    """A sum becomes a product."""
    made = OPS["mul"] if op.name == "nd.add" else arith.MulfOp if op.name == "arith.addf" else None
    if made is None or op.parent is None:
        return False
    product = made.create(operands=op.operands, result_types=[op.results[0].type], properties=dict(op.properties))
    op.parent.insert_op_before(product, op)
    op.results[0].replace_all_uses_with(product.results[0])
    op.parent.erase_op(op)
    return True


def constant(op: Operation) -> bool:
    """A constant is another one."""
    value = op.properties.get("value")
    if not isinstance(value, FloatAttr) or value.value.data != CONSTANT:
        return False
    op.properties["value"] = FloatAttr(CONSTANT + 1, value.type)
    return True


def kind(op: Operation) -> bool:
    """A sum over a dimension becomes the maximum."""
    if op.name == "nd.reduce" and op.properties["kind"] == StringAttr("sum"):
        op.properties["kind"] = StringAttr("max")
        return True
    if op.name == "loop.reduce" and op.properties["kinds"] == ArrayAttr([StringAttr("sum")]):
        op.properties["kinds"] = ArrayAttr([StringAttr("max")])
        return True
    return False


def index(op: Operation) -> bool:
    """An access of two dimensions is one element beside."""
    map = op.properties.get("map")
    if op.name != "loop.load" or not isinstance(map, IndexMapAttr) or len(map.data.results) != 2:
        return False
    row, column = map.data.results
    if column.is_const:
        return False
    op.properties["map"] = IndexMapAttr.get(IndexMap(map.data.num_dims, (row, (column + 1) % SIZE)))
    return True


@contextmanager
def planted(name: str, change: Callable[[Operation], bool]) -> Iterator[None]:
    """The pass `name` makes a mistake: `change` is done to the last operation that it fits."""
    cls = registry.load_pass(name)
    own = cls.apply

    def apply(self, ctx, op):
        own(self, ctx, op)
        for nested in reversed(list(op.walk())):
            if change(nested):
                return

    cls.apply = apply
    try:
        yield
    finally:
        cls.apply = own
