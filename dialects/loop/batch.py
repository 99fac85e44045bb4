"""`loop.batch`: one body over a list of tensors, for work that is the same for each entry of the list but for sizes and tensors.

The body is a private function of the module whose attribute `loop.batch` lists its size symbols, one value of each per entry. Its tensors
are flat: `n` elements in the order in which they lie in memory, or one element.

    %a, %b = loop.batch @batch0 [
      (%x : !nd.tensor<64 x 32 x f32>, %s : !nd.tensor<f32>) sizes [2048] -> (!nd.tensor<64 x 32 x f32>),
      (%y : !nd.tensor<10 x f32>, %t : !nd.tensor<f32>) sizes [10] -> (!nd.tensor<10 x f32>)
    ]
    func.func private @batch0(%x : !nd.tensor<b0 x f32>, %s : !nd.tensor<f32>) -> !nd.tensor<b0 x f32> attributes {"loop.batch" = ...}

Entries may run in any order and at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from xdsl.dialects.builtin import FlatSymbolRefAttrConstr, IntAttr, ModuleOp, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import irdl_op_definition, prop_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, Sym, product
from ..expr.syntax import parse_expr
from ..nd.base import ExprsAttr
from ..nd.types import TensorType
from ..support.create import QuickOp
from .base import element_type, is_shaped, shaped_dims

T = TypeVar("T")

BATCH = "loop.batch"
"""Attribute of a function that is the body of a batch: its size symbols."""


def batch_symbols(func: Operation) -> tuple[Sym, ...] | None:
    """The size symbols of a batch's body; None for any other function."""
    found = func.attributes.get(BATCH)
    return found.data if isinstance(found, ExprsAttr) else None  # pyright: ignore[reportReturnType]


@irdl_op_definition
class BatchOp(QuickOp):
    """Runs the function `callee` once for each entry of a list, see the module's docstring. On tensors the results are those of the
    body, entry after entry; on buffers there are none, the body writes to buffers that are passed to it."""

    name = "loop.batch"
    callee = prop_def(FlatSymbolRefAttrConstr)
    entries = prop_def(IntAttr)
    sizes = prop_def(ExprsAttr)
    inputs = var_operand_def()
    outputs = var_result_def(TensorType)

    @staticmethod
    def make(
        callee: str, operands: Sequence[Sequence[SSAValue]], sizes: Sequence[Sequence[Expr]], results: Sequence[Sequence[Attribute]]
    ) -> BatchOp:
        """One list of operands, of values of the body's symbols and of result types for each entry."""
        return BatchOp.create(
            operands=[v for entry in operands for v in entry],
            result_types=[t for entry in results for t in entry],
            properties={
                "callee": SymbolRefAttr(callee),
                "entries": IntAttr(len(operands)),
                "sizes": ExprsAttr.get([e for entry in sizes for e in entry]),
            },
        )

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.entries.data

    def entry_operands(self) -> list[Sequence[SSAValue]]:
        """The operands of each entry."""
        return _parts(self.operands, self.count)

    def entry_results(self) -> list[Sequence[SSAValue]]:
        """The results of each entry."""
        return _parts(self.results, self.count)

    def entry_sizes(self) -> list[Sequence[Expr]]:
        """The values of the body's symbols for each entry."""
        return _parts(self.sizes.data, self.count)

    def body(self) -> FuncOp:
        """The function that is run. Raises VerifyException when the module has none of that name."""
        module: Operation | None = self
        while module is not None and not isinstance(module, ModuleOp):
            module = module.parent_op()
        name = self.callee.string_value()
        for op in module.body.block.ops if module is not None else ():
            if isinstance(op, FuncOp) and op.sym_name.data == name:
                return op
        raise VerifyException(f"loop.batch: the module has no function @{name}")

    def verify_(self) -> None:
        count = self.count
        if count < 1:
            raise VerifyException("loop.batch: needs at least one entry")
        for what, values in (("operands", self.operands), ("results", self.results), ("sizes", self.sizes.data)):
            if len(values) % count:
                raise VerifyException(f"loop.batch: {len(values)} {what} cannot be dealt to {count} entries")
        parent = self.parent_op()
        while parent is not None and not isinstance(parent, ModuleOp):
            parent = parent.parent_op()
        if parent is not None:
            self._verify_body(self.body())

    def _verify_body(self, func: FuncOp) -> None:
        symbols = batch_symbols(func)
        name = func.sym_name.data
        if symbols is None:
            raise VerifyException(f"loop.batch: function @{name} has no attribute '{BATCH}' (its size symbols)")
        formals = [a.type for a in func.body.block.args]
        for k, (operands, sizes) in enumerate(zip(self.entry_operands(), self.entry_sizes(), strict=True)):
            if len(sizes) != len(symbols):
                raise VerifyException(f"loop.batch: entry {k} has {len(sizes)} sizes, @{name} has {len(symbols)} symbols")
            if len(operands) != len(formals):
                raise VerifyException(f"loop.batch: entry {k} has {len(operands)} operands, @{name} takes {len(formals)}")
            values = dict(zip(symbols, sizes, strict=True))
            for i, (value, formal) in enumerate(zip(operands, formals, strict=True)):
                self._verify_value(f"operand {i} of entry {k}", value.type, formal, values)
            if self.results:
                for i, (value, formal) in enumerate(zip(self.entry_results()[k], func.function_type.outputs, strict=True)):
                    self._verify_value(f"result {i} of entry {k}", value.type, formal, values)

    @staticmethod
    def _verify_value(what: str, given: Attribute, formal: Attribute, values: dict[Sym, Expr]) -> None:
        if is_shaped(given) != is_shaped(formal) or not is_shaped(given):
            if given != formal:
                raise VerifyException(f"loop.batch: {what} is {given}, the body has {formal}")
            return
        if element_type(given) != element_type(formal):
            raise VerifyException(f"loop.batch: {what} has element type {element_type(given)}, the body has {element_type(formal)}")
        want = product(shaped_dims(formal)).subs(dict(values.items()))
        have = product(shaped_dims(given))
        if want.is_const and have.is_const and want is not have:
            raise VerifyException(f"loop.batch: {what} has {have} elements, the body takes {want}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.callee.string_value())
        printer.print_string(" [")
        results = self.entry_results()
        for k, (operands, sizes) in enumerate(zip(self.entry_operands(), self.entry_sizes(), strict=True)):
            printer.print_string("," if k else "")
            printer.print_string(f"\n{' ' * 8}(")
            printer.print_list(operands, lambda v: _print_typed(printer, v))
            printer.print_string(f") sizes [{', '.join(map(str, sizes))}]")
            if self.results:
                printer.print_string(" -> (")
                printer.print_list([r.type for r in results[k]], printer.print_attribute)
                printer.print_string(")")
        printer.print_string("\n      ]")
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)

    @classmethod
    def parse(cls, parser: Parser) -> BatchOp:
        callee = parser.parse_symbol_name().data
        entries = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_entry(parser), " in a list of entries")
        attributes = parser.parse_optional_attr_dict_with_keyword()
        first = entries[0] if entries else ([], [], [])
        for one in entries:
            if [len(part) for part in one] != [len(part) for part in first]:
                parser.raise_error("the entries of a loop.batch have equally many operands, sizes and results")
        op = cls.make(callee, *([one[k] for one in entries] for k in range(3)))  # pyright: ignore[reportArgumentType]
        op.attributes.update(attributes.data if attributes else {})
        return op


def _parts(values: Sequence[T], count: int) -> list[Sequence[T]]:
    each = len(values) // count if count else 0
    return [values[k * each : (k + 1) * each] for k in range(count)]


def _print_typed(printer: Printer, value: SSAValue) -> None:
    printer.print_ssa_value(value)
    printer.print_string(" : ")
    printer.print_attribute(value.type)


def _parse_typed(parser: Parser) -> SSAValue:
    name = parser.parse_unresolved_operand()
    parser.parse_punctuation(":", " before the type of a value")
    return parser.resolve_operand(name, parser.parse_type())


def _parse_entry(parser: Parser) -> tuple[list[SSAValue], list[Expr], list[Attribute]]:
    operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_typed(parser))
    parser.parse_keyword("sizes", " after the operands of an entry")
    sizes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser))
    results: list[Attribute] = []
    if parser.parse_optional_punctuation("->"):
        results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    return operands, sizes, results
