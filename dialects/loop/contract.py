"""`loop.contract`: a matrix product (or any two-operand contraction) with regions for what is fused into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, region_def, traits_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, IndexMap
from ..expr.syntax import ExprAttr, IndexMapAttr, parse_expr
from ..nd.base import ExprsAttr
from ..nd.types import TensorType
from ..support.schedule_check import choice_problem
from .base import LoopLike, shaped_dims
from .checks import leaves, makes_tensor, runs, unfilled
from .syntax import INDEX, parse_attrs, parse_loops, parse_outs, print_attrs, print_loops, print_outs, value_names


@irdl_op_definition
class ContractOp(LoopLike):
    """A structured contraction: out[i...] = epilogue(sum over k of lhs * rhs).

        %y = loop.contract (%b = 8, %m = 512, %n = 64) reduce (256) %x[%b, %m, %k] * %w[%b, %k, %n] ...

    `sizes` are the parallel loops (batch..., m, n), `depth` the size of the contracted loop. `lhs_map` and `rhs_map` take (batch..., m, n,
    k) to an index of the operand. The body (epilogue) gets the loop indices, the accumulator (f32 for f16/bf16) and the outs, and
    stores.
    """

    name = "loop.contract"
    depth = prop_def(ExprAttr)
    lhs_map = prop_def(IndexMapAttr)
    rhs_map = prop_def(IndexMapAttr)
    schedule = opt_prop_def(Attribute)
    label = opt_prop_def(StringAttr)
    lhs = operand_def()
    rhs = operand_def()
    outs = var_operand_def()
    body = region_def("single_block")
    outputs = var_result_def(TensorType)
    traits = traits_def(NoTerminator())

    @staticmethod
    def build_contract(
        sizes: Sequence[Expr],
        depth: Expr,
        lhs: tuple[SSAValue, IndexMap],
        rhs: tuple[SSAValue, IndexMap],
        outs: Sequence[SSAValue],
        accumulator: Attribute,
    ) -> ContractOp:
        """A contraction with an empty epilogue body (the caller adds a store of the accumulator, `out.accumulator`)."""
        types = [o.type for o in outs]
        return ContractOp.create(
            operands=[lhs[0], rhs[0], *outs],
            result_types=[t for t in types if isinstance(t, TensorType)],
            properties={
                "sizes": ExprsAttr.get(sizes),
                "depth": ExprAttr.get(depth),
                "lhs_map": IndexMapAttr.get(lhs[1]),
                "rhs_map": IndexMapAttr.get(rhs[1]),
            },
            regions=[Region(Block(arg_types=[INDEX] * len(sizes) + [accumulator, *types]))],
        )

    @property
    def accumulator(self) -> SSAValue:
        return self.block.args[len(self.sizes.data)]

    @property
    def out_args(self) -> Sequence[SSAValue]:
        return self.block.args[len(self.sizes.data) + 1 :]

    def verify_(self) -> None:
        self._check_indices()
        count = len(self.sizes.data) + 1
        for name, m, operand in (("lhs", self.lhs_map, self.lhs), ("rhs", self.rhs_map, self.rhs)):
            if m.data.num_dims != count or len(m.data.results) != len(shaped_dims(operand.type)):
                raise VerifyException(f"loop.contract: {name}_map must take {count} indices to the rank of {name}")
            extents = (*self.loop_sizes, self.depth.data)
            never = not runs(self) or any(e.value == 0 for e in extents)
            if not never and (problem := leaves(m.data.results, extents, shaped_dims(operand.type))):
                raise VerifyException(f"loop.contract: {name}: {problem}")
        if [a.type for a in self.out_args] != [o.type for o in self.outs]:
            raise VerifyException("loop.contract: the body's last arguments must have the types of outs")
        choice = choice_problem(self.schedule, ("gemm", "library"))
        if problem := unfilled(self.outs, self.out_args) or makes_tensor(self.body) or choice:
            raise VerifyException(f"loop.contract: {problem}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self.loop_sizes, self.indices)
        printer.print_string(f" reduce ({self.depth.data}) ")
        for operand, m, sep in ((self.lhs, self.lhs_map, " * "), (self.rhs, self.rhs_map, " into ")):
            printer.print_ssa_value(operand)
            printer.print_string(" at ")
            printer.print_attribute(m)
            printer.print_string(" : ")
            printer.print_attribute(operand.type)
            printer.print_string(sep)
        acc = value_names(printer, [self.accumulator])[0]
        printer.print_string(f"{acc} : ")
        printer.print_attribute(self.accumulator.type)
        printer.print_string(" ")
        print_outs(printer, self.out_args, self.outs)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        print_attrs(printer, self, ("sizes", "depth", "lhs_map", "rhs_map"))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        args, sizes = parse_loops(parser)
        parser.parse_keyword("reduce")
        with parser.in_parens():
            depth = parse_expr(parser)
        properties: dict[str, Attribute] = {"sizes": ExprsAttr.get(sizes), "depth": ExprAttr.get(depth)}
        operands: list[SSAValue] = []
        for name in ("lhs", "rhs"):
            operand = parser.parse_unresolved_operand()
            parser.parse_keyword("at")
            properties[f"{name}_map"] = parser.parse_attribute()
            parser.parse_punctuation(":")
            operands.append(parser.resolve_operand(operand, parser.parse_type()))
            if name == "lhs":
                parser.parse_characters("*")
        parser.parse_keyword("into")
        acc = parser.parse_argument(expect_type=False)
        parser.parse_punctuation(":")
        acc_type = parser.parse_type()
        parser.parse_keyword("outs")
        outs = parse_outs(parser)
        block_args = [*(a.resolve(INDEX) for a in args), acc.resolve(acc_type), *(a.resolve(v.type) for a, v in outs)]
        regions = [parser.parse_region(block_args)]
        attributes = parse_attrs(parser, cls, properties)
        types = [v.type for _, v in outs]
        return cls.create(
            operands=[*operands, *(v for _, v in outs)],
            result_types=[t for t in types if isinstance(t, TensorType)],
            properties=properties,
            attributes=attributes,
            regions=regions,
        )
