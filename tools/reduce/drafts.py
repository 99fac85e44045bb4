"""Modules in the midst of a reduction, and the ways to take operations and values out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    VectorType,
)
from xdsl.dialects.builtin import TensorType as BlockType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import IsolatedFromAbove, IsTerminator

from ...dialects import nd
from ...dialects.cpu.vector import SplatOp
from ...dialects.mem import BufferType
from ...dialects.nd.types import LayoutAttr, TensorType
from ...dialects.support.float8 import FLOAT8
from ...passes.manager.instrumentation import print_ir
from ...passes.manager.verify import InvalidIR, verify_ir


class Draft:
    """A module that is not changed any more, with its text and its size."""

    def __init__(self, module: ModuleOp) -> None:
        self.module = module

    @cached_property
    def ops(self) -> list[Operation]:
        """All operations inside the module, outer ones first."""
        return [op for op in self.module.walk() if op is not self.module]

    @cached_property
    def text(self) -> str:
        try:
            return print_ir(self.module)
        except Exception:  # a printer written for IR that is less broken than this
            return print_ir(self.module, generic=True)

    @cached_property
    def weight(self) -> tuple[int, int, int]:
        """Operations, letters, and the sum of all digits, so that small numbers weigh less than large ones."""
        return len(self.ops), len(self.text), sum(map(int, filter(str.isdecimal, self.text)))

    def copy(self) -> list[Operation]:
        """The operations of a copy, in the order of `ops`; the first is its module."""
        return list(self.module.clone().walk())


def is_valid(module: ModuleOp) -> bool:
    """Whether a module verifies."""
    try:
        verify_ir(module)
    except InvalidIR:
        return False
    return True


def erase(op: Operation, alone: bool = False) -> None:
    """Take an operation whose results have no uses out of its block, then (but for `alone`) what only it used."""
    used = {operand.owner for nested in op.walk() for operand in nested._operands if isinstance(operand, OpResult)}
    op.detach()
    op.erase()
    for owner in used:
        if not alone and isinstance(owner, Operation) and owner.parent is not None and not any(r.first_use for r in owner.results):
            erase(owner)


def is_attached(op: Operation, module: ModuleOp) -> bool:
    """Whether an operation is still in the module."""
    while (parent := op.parent_op()) is not None:
        op = parent
    return op is module


def is_terminator(op: Operation) -> bool:
    """Whether a block ends with this operation and cannot do without it."""
    return op.has_trait(IsTerminator, value_if_unregistered=False) or (op.parent is not None and op.name.endswith((".yield", ".return")))


def outer_arguments(op: Operation) -> Iterator[SSAValue]:
    """The arguments of the blocks around an operation, inner ones first."""
    block: Block | None = op.parent
    while block is not None:
        yield from block.args
        parent = block.parent_op()
        if parent is None or parent.has_trait(IsolatedFromAbove, value_if_unregistered=False):
            return
        block = parent.parent


def replace_results(op: Operation, value_of: Callable[[OpResult], SSAValue | None]) -> bool:
    """Put another value in the place of each result that is used, and take the operation out; False where one has none."""
    found: list[tuple[OpResult, SSAValue]] = []
    for result in op.results:
        if result.first_use is not None:
            value = value_of(result)
            if value is None or value.owner is op:
                return False
            found.append((result, value))
    for result, value in found:
        result.replace_all_uses_with(value)
    erase(op)
    return True


def constant_of(kind: Attribute) -> list[Operation] | None:
    """Operations, the last of which gives a small value of a type; None for types without constants."""
    if isinstance(kind, TensorType):
        dtype = kind.element_type
        if isinstance(dtype, (IntegerType, IndexType)):
            return [nd.FullOp.new((), kind, value=IntegerAttr(1, dtype))]
        if isinstance(dtype, AnyFloat) and dtype not in FLOAT8:
            return [nd.FullOp.new((), kind, value=FloatAttr(1.0, dtype))]
        return None
    if isinstance(kind, (IndexType, IntegerType)):
        return [arith.ConstantOp(IntegerAttr(1, kind))]
    if isinstance(kind, AnyFloat):
        return [arith.ConstantOp(FloatAttr(1.0, kind))]
    if isinstance(kind, VectorType):
        made = constant_of(kind.element_type)
        return made and [*made, SplatOp.create(operands=[made[-1].results[0]], result_types=[kind])]
    if isinstance(kind, BlockType) and isinstance(kind.element_type, (IntegerType, IndexType, AnyFloat)):
        return [arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(kind, [1]))]  # pyright: ignore[reportArgumentType]
    return None


# Functions.


def entry_of(value: OpResult) -> FuncOp | None:
    """The function that a result could become an argument of: the one in whose own block it is made."""
    parent = value.op.parent_op()
    if isinstance(parent, FuncOp) and isinstance(value.type, (TensorType, BufferType, IndexType)):
        return parent
    return None


def add_argument(func: FuncOp, kind: Attribute) -> BlockArgument:
    """One more argument of a function, dense where it is a tensor."""
    old = attributes_of(func.arg_attrs, len(func.args))
    place = next((k for k, own in enumerate(old) if "nd.constant" in own.data), len(old))
    argument = func.body.block.insert_arg(kind, place)
    own: dict[str, Attribute] = {}
    if isinstance(kind, TensorType):
        own["nd.layout"] = LayoutAttr.get(kind.contiguous_strides())
    elif isinstance(kind, BufferType):
        own["nd.layout"] = LayoutAttr.get(kind.stride_exprs, kind.offset_expr)
    old.insert(place, DictionaryAttr(own))
    set_signature(func, arguments=old)
    return argument


def attributes_of(given: Iterable[DictionaryAttr] | None, count: int) -> list[DictionaryAttr]:
    """The attributes of arguments or of results, one for each."""
    found = list(given.data if hasattr(given, "data") else given or ())  # pyright: ignore
    return found + [DictionaryAttr({})] * (count - len(found))


def set_signature(
    func: FuncOp, arguments: list[DictionaryAttr] | None = None, results: list[DictionaryAttr] | None = None
) -> None:
    """Make the type of a function that of its block and its return, with these attributes."""
    func.update_function_type()
    if arguments is not None:
        func.properties["arg_attrs"] = ArrayAttr(arguments)
    if results is not None:
        func.properties["res_attrs"] = ArrayAttr(results)
