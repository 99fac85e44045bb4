"""Descriptors: tensors in memory that a launch describes to its kernel, which then reads and writes them in blocks (TMA on NVIDIA's GPUs).

    host.launch @k(%x : !host.tensor<bf16>) [s0] grid [8] descriptors [0 at 128 [s0, 64] strides [128, 1]]

A kernel takes its descriptors behind everything else, each as `!tt.tensordesc`, an i32 for each size and an i64 for each stride."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, as_expr
from ..expr.syntax import parse_expr
from .base import exprs_text

MAX_RANK = 5
"""Dimensions that a descriptor has at most."""


@dataclass(frozen=True)
class Descriptor:
    """What a launch says of one descriptor: the tensor of `sizes` and `strides` (in elements, the last one 1) that begins `offset`
    bytes behind operand `operand`, which is memory."""

    operand: int
    offset: Expr
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]

    @staticmethod
    def of(operand: int, offset: Expr | int, sizes: Sequence[Expr | int], strides: Sequence[Expr | int]) -> Descriptor:
        """The descriptor of these expressions or numbers."""
        return Descriptor(operand, as_expr(offset), tuple(map(as_expr, sizes)), tuple(map(as_expr, strides)))

    @property
    def exprs(self) -> list[Expr]:
        """Every expression that it names."""
        return [self.offset, *self.sizes, *self.strides]

    @property
    def takes(self) -> int:
        """How many arguments of the kernel it is."""
        return 1 + 2 * len(self.sizes)

    def check(self, operands: int) -> None:
        """VerifyException where no GPU has such a descriptor, or the launch has no such operand."""
        if not 0 <= self.operand < operands:
            raise VerifyException(f"a descriptor of operand {self.operand}, there are {operands}")
        rank = len(self.sizes)
        if not 1 <= rank <= MAX_RANK or len(self.strides) != rank:
            found = f"{rank} sizes and {len(self.strides)} strides"
            raise VerifyException(f"a descriptor has 1 to {MAX_RANK} dimensions, each with a size and a stride, not {found}")
        if self.strides[-1].value != 1:
            raise VerifyException(f"the last stride of a descriptor must be 1, not {self.strides[-1]}")

    def __str__(self) -> str:
        return f"{self.operand} at {self.offset} {exprs_text(self.sizes)} strides {exprs_text(self.strides)}"


@irdl_attr_definition
class DescriptorsAttr(Data[tuple[Descriptor, ...]]):
    """The descriptors of a launch, in the order of its kernel's arguments."""

    name = "host.descriptors"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Descriptor, ...]:
        with parser.in_angle_brackets():
            return parse_descriptors(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{descriptors_text(self.data)}>")


def descriptors_text(values: Sequence[Descriptor]) -> str:
    """`[0 at 0 [s0, 64] strides [64, 1]]`."""
    return f"[{', '.join(map(str, values))}]"


def parse_descriptors(parser: AttrParser) -> tuple[Descriptor, ...]:
    """Parse what `descriptors_text` writes."""
    return tuple(parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, lambda: _parse_one(parser), " in a list of descriptors"))


def _parse_one(parser: AttrParser) -> Descriptor:
    operand = parser.parse_integer(allow_boolean=False, allow_negative=False)
    parser.parse_keyword("at")
    offset = parse_expr(parser)
    sizes = _parse_exprs(parser)
    parser.parse_keyword("strides")
    return Descriptor(operand, offset, sizes, _parse_exprs(parser))


def _parse_exprs(parser: AttrParser) -> tuple[Expr, ...]:
    return tuple(parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, lambda: parse_expr(parser), " in a list of sizes"))
