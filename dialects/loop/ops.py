"""`loop`: the loop level. A tensor is produced by a nest of loops over named indices with explicit accesses.

    %e = loop.empty : !nd.tensor<8192 x 4096 x f32>
    %y = loop.nest (%i = 8192) outs(%o = %e : !nd.tensor<8192 x 4096 x f32>) {
      %m = loop.reduce (%j = 4096) max {
        %a = loop.load %x[%i, %j] : !nd.tensor<8192 x 4096 x f32> -> f32
        loop.yield %a : f32
      } -> f32
      loop.for (%j = 4096) {
        %a = loop.load %x[%i, %j] : !nd.tensor<8192 x 4096 x f32> -> f32
        %d = arith.subf %a, %m : f32
        loop.store %d, %o[%i, %j] : f32, !nd.tensor<8192 x 4096 x f32>
      }
    }

The loops of a nest and of `loop.for` may run in any order and at once. Bodies are `arith` and `math` on scalars plus the ops below; they
capture the tensors that they read. The same ops serve the memory level, where the tensors are buffers (mem.py) and a nest has no
results. Elements are held in the compute type of their dtype (f32 for f16 and bf16, signless integers for unsigned): a load widens,
a store rounds. Index expressions are `loop.load %x[%i * 2 + 1, %k floordiv s0]`: over loop indices, values of type index, and symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntAttr, IntegerType, StringAttr, UnitAttr, i8, i32
from xdsl.dialects.utils.fast_math import FastMathFlag
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, IndexMap, as_expr
from ..expr.syntax import ExprAttr, IndexMapAttr, format_expr, parse_expr, parse_expr_with_names
from ..nd.base import ExprsAttr
from ..nd.types import TensorType
from ..support.create import QuickOp
from ..support.replace import erase_op
from ..support.schedule_check import schedule_problem
from .access import LoadOp, StoreOp
from .base import LoopLike
from .batch import BatchOp
from .checks import makes_tensor, unfilled
from .contract import ContractOp
from .local import LocalOp
from .ranges import integer_range
from .syntax import (
    INDEX,
    IndexOperands,
    parse_attrs,
    parse_loops,
    parse_outs,
    print_attrs,
    print_loops,
    print_outs,
    print_types,
    value_names,
)

CONTRACTED = arith.FastMathFlagsAttr([FastMathFlag.ALLOW_CONTRACT])
"""Flags of an arith.mulf that is a term of a matrix product: a unit for these may make it, and round the sums in its own way."""

PARTLY_ROUNDED_SUMS = arith.FastMathFlagsAttr([FastMathFlag.ALLOW_CONTRACT, FastMathFlag.APPROX_FUNC])
"""The same of 8-bit floats: the unit may round sums of one step of it to fewer bits than f32 has."""

ROUNDED_SUMS = arith.FastMathFlagsAttr([FastMathFlag.ALLOW_CONTRACT, FastMathFlag.APPROX_FUNC, FastMathFlag.REASSOC])
"""The same where it may round all of a sum so."""


def is_contracted(op: object) -> bool:
    """Whether an operation makes a term of a matrix product: of floats, as its flags say, or of bytes, whose sums are exact anyway."""
    if isinstance(op, arith.MuliOp):
        return op.result.type == i32 and all(isinstance(x.owner, arith.ExtSIOp) and x.owner.input.type == i8 for x in op.operands)
    return isinstance(op, arith.MulfOp) and op.fastmath in (CONTRACTED, PARTLY_ROUNDED_SUMS, ROUNDED_SUMS)


KINDS: dict[str, tuple[int, int]] = {
    "sum": (1, 1), "prod": (1, 1), "max": (1, 1), "min": (1, 1), "any": (1, 1), "all": (1, 1), "xor": (1, 1),
    "argmax": (2, 2), "argmin": (2, 2),
    "welford": (1, 3), "softmax": (1, 2), "softmax_dot": (2, 3), "scaled_prod": (1, 2),
}  # fmt: skip
"""Reduction kinds with how many values a body yields for them and how many results they have. `argmax`/`argmin` take (value, index) and
give the extreme and its index: NaN wins, then the lowest index. `welford` gives mean, sum of squared differences, count. `softmax`
gives the maximum and the sum of exp(x - maximum). `softmax_dot` takes (x, v) and gives these two and the sum of exp(x - maximum) * v;
exponentials may be rounded to a 16-bit type that surely holds v, for units that multiply matrices. `scaled_prod` gives a product as m
and k: it is m * 2**(u * k), where u is 100 for f32 and 716 for f64. No partial result overflows or underflows, in any order."""

SCAN_KINDS: dict[str, tuple[int, int]] = {
    "sum": (1, 1), "prod": (1, 1), "max": (2, 2), "min": (2, 2), "logsumexp": (1, 1), "scaled_prod": (1, 2),
    "sort": (1, 1),
}  # fmt: skip
"""The same of scans. `sort` takes signed integers and gives the smallest of all of them first: its body runs for the whole loop before
`do` runs for the first element. What is sorted with an element stands in the low bits of its integer."""


@irdl_op_definition
class EmptyOp(QuickOp):
    """A tensor without contents, for a nest to fill: `loop.empty : !nd.tensor<4 x f32>`."""

    name = "loop.empty"
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"


def drop_empty(tensor: SSAValue) -> None:
    """Remove the loop.empty that makes `tensor`, if one does and nothing uses it any more."""
    op = tensor.owner
    if isinstance(op, EmptyOp) and tensor.first_use is None:
        erase_op(op)


def drop_nest(nest: NestOp | ContractOp) -> None:
    """Remove a nest or contraction whose results nothing uses, and each loop.empty of its outs that nothing uses then."""
    empties = list(nest.outs)
    erase_op(nest)
    for empty in empties:
        drop_empty(empty)


def empty_copy(nest: NestOp, outs: Sequence[SSAValue]) -> tuple[NestOp, dict[SSAValue, SSAValue]]:
    """A nest of the same loops and attributes on `outs`, those of `nest` first, without operations; and its arguments by those of `nest`,
    for clones of these."""
    made = NestOp.build_nest(nest.loop_sizes, list(outs), nest.location)
    made.properties.update(nest.properties)
    made.attributes.update(nest.attributes)
    values: dict[SSAValue, SSAValue] = dict(zip(nest.block.args, made.block.args, strict=False))
    for old, new in values.items():
        new.name_hint = old.name_hint
    return made, values


def nest_around(op: Operation | None) -> NestOp | None:
    """The nest that an operation is, or stands in; None where there is none."""
    while op is not None and not isinstance(op, NestOp):
        op = op.parent_op()
    return op


def take_uses(before: Iterable[SSAValue], after: Iterable[SSAValue]) -> None:
    """Have values take the uses and the names of as many others."""
    for old, new in zip(before, after, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)


@irdl_op_definition
class NestOp(LoopLike):
    """A nest of parallel loops that fills its `outs`: `%r = loop.nest (%i = 8, %j = s0) outs(%o = %init : T) {...}`.

    Result k is out k after the nest; an out that is only partly stored keeps the other elements of its initial value. With buffers as
    outs the nest has no results. `schedule` holds the choices of the later passes (docs/reference/schedule.md), `label` a name."""

    name = "loop.nest"
    outs = var_operand_def()
    schedule = opt_prop_def(Attribute)
    label = opt_prop_def(StringAttr)
    body = region_def("single_block")
    outputs = var_result_def(TensorType)
    traits = traits_def(NoTerminator())

    @staticmethod
    def build_nest(
        sizes: Sequence[Expr], outs: Sequence[SSAValue], location: Attribute | None = None, label: str | StringAttr | None = None
    ) -> NestOp:
        """A nest with an empty body over `sizes`; its results have the types of `outs` if these are tensors."""
        types = [o.type for o in outs]
        block = Block(arg_types=[INDEX] * len(sizes) + types)
        named = {} if not label else {"label": StringAttr(label) if isinstance(label, str) else label}
        return NestOp.create(
            operands=outs,
            result_types=[t for t in types if isinstance(t, TensorType)],
            properties={"sizes": ExprsAttr.get(sizes), **named},
            regions=[Region(block)],
            location=location,  # pyright: ignore[reportArgumentType]
        )

    def store(self, values: Iterable[SSAValue]) -> None:
        """End the body with stores of values to the first outs, each to the element at the indices of the nest."""
        for value, out in zip(values, self.out_args, strict=False):
            made = StoreOp.new(value, out, IndexMap.identity(len(self.indices)), list(self.indices))
            made.location = self.location
            self.block.add_op(made)

    @property
    def out_args(self) -> Sequence[SSAValue]:
        """The outs inside the body."""
        return self.block.args[len(self.sizes.data) :]

    def verify_(self) -> None:
        self._check_indices()
        types = [o.type for o in self.outs]
        if [a.type for a in self.out_args] != types:
            raise VerifyException("loop.nest: the body's last arguments must have the types of outs")
        tensors = [t for t in types if isinstance(t, TensorType)]
        if tensors and len(tensors) != len(types):
            raise VerifyException("loop.nest: outs are either all tensors or all buffers")
        if list(self.result_types) != tensors:
            raise VerifyException("loop.nest: results must have the types of outs (none when these are buffers)")
        if self.schedule is not None and (problem := schedule_problem(self.schedule, len(self.sizes.data))):
            raise VerifyException(f"loop.nest: {problem}")
        if problem := unfilled(self.outs, self.out_args) or makes_tensor(self.body):
            raise VerifyException(f"loop.nest: {problem}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self.loop_sizes, self.indices)
        printer.print_string(" ")
        if self.outs:
            print_outs(printer, self.out_args, self.outs)
            printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        print_attrs(printer, self, ("sizes",))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        args, sizes = parse_loops(parser)
        outs: list[tuple[Parser.UnresolvedArgument, SSAValue]] = []
        if parser.parse_optional_keyword("outs"):
            outs = parse_outs(parser)
        block_args = [a.resolve(INDEX) for a in args] + [a.resolve(v.type) for a, v in outs]
        region = parser.parse_region(block_args)
        properties: dict[str, Attribute] = {"sizes": ExprsAttr.get(sizes)}
        attributes = parse_attrs(parser, cls, properties)
        types = [v.type for _, v in outs]
        return cls.create(
            operands=[v for _, v in outs],
            result_types=[t for t in types if isinstance(t, TensorType)],
            properties=properties,
            attributes=attributes,
            regions=[region],
        )


@irdl_op_definition
class ForOp(LoopLike):
    """Parallel loops inside a nest: `loop.for (%j = 4096) {...}`. With `sequential` they run in order (duplicates in a scatter)."""

    name = "loop.for"
    sequential = opt_prop_def(UnitAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    @staticmethod
    def build_for(sizes: Sequence[Expr], location: Attribute | None = None) -> ForOp:
        """Loops with an empty body."""
        body = Region(Block(arg_types=[INDEX] * len(sizes)))
        return ForOp.create(properties={"sizes": ExprsAttr.get(sizes)}, regions=[body], location=location)  # pyright: ignore[reportArgumentType]

    def verify_(self) -> None:
        self._check_indices()

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self.loop_sizes, self.indices)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        print_attrs(printer, self, ("sizes",))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        args, sizes = parse_loops(parser)
        region = parser.parse_region([a.resolve(INDEX) for a in args])
        properties: dict[str, Attribute] = {"sizes": ExprsAttr.get(sizes)}
        attributes = parse_attrs(parser, cls, properties)
        return cls.create(properties=properties, attributes=attributes, regions=[region])


def _parse_kinds(parser: Parser, known: dict[str, tuple[int, int]]) -> ArrayAttr:
    def one() -> StringAttr:
        pos = parser.pos
        kind = parser.parse_identifier(" (a reduction kind)")
        if kind not in known:
            parser.raise_error(f"unknown kind '{kind}', known: {', '.join(known)}", pos)
        return StringAttr(kind)

    return ArrayAttr(parser.parse_comma_separated_list(parser.Delimiter.NONE, one))


def kinds_attr(kinds: Sequence[str]) -> ArrayAttr:
    """The interned `kinds` property of a reduction or scan."""
    key = tuple(kinds)
    if key not in _KINDS:
        _KINDS[key] = ArrayAttr([StringAttr(k) for k in key])
    return _KINDS[key]


_KINDS: dict[tuple[str, ...], ArrayAttr] = {}


class ReducedKind(NamedTuple):
    """One kind of a reduction, the values that its body yields for it, and its results."""

    kind: str
    values: Sequence[SSAValue]
    results: Sequence[SSAValue]


def _yielded(block: Block) -> Sequence[SSAValue]:
    last = block.last_op
    assert isinstance(last, YieldOp)
    return last.operands


@irdl_op_definition
class ReduceOp(LoopLike):
    """A reduction over loops: `%m, %s = loop.reduce (%j = 4096) max, sum {... loop.yield %a, %b : f32, f32} -> f32, f32`.

    `kinds` (see KINDS) are combined in one pass over the body, each taking its values from the yield and giving its results in order."""

    name = "loop.reduce"
    kinds = prop_def(ArrayAttr)
    body = region_def("single_block")
    outputs = var_result_def()

    @staticmethod
    def build_reduce(
        sizes: Sequence[Expr], kinds: Sequence[str], types: Sequence[Attribute], location: Attribute | None = None
    ) -> ReduceOp:
        """A reduction with an empty body (the caller ends it with a loop.yield); `types` are the result types."""
        return ReduceOp.create(
            result_types=types,
            properties={"sizes": ExprsAttr.get(sizes), "kinds": kinds_attr(kinds)},
            regions=[Region(Block(arg_types=[INDEX] * len(sizes)))],
            location=location,  # pyright: ignore[reportArgumentType]
        )

    def yielding(self, kinds: Sequence[str], types: Sequence[Attribute], values: Sequence[SSAValue]) -> ReduceOp:
        """A reduction in front of this one that has its body, and there yields `values` for `kinds`; this one is to go."""
        body, properties = self.block, {**self.properties, "kinds": kinds_attr(kinds)}
        made = ReduceOp.create(
            result_types=types, properties=properties, attributes=self.attributes, regions=[self.detach_region(self.regions[0])],
            location=self.location,
        )  # fmt: skip
        assert self.parent is not None and body.last_op is not None
        self.parent.insert_op_before(made, self)
        body.last_op.operands = values
        return made

    @property
    def kind_names(self) -> list[str]:
        return [k.data for k in self.kinds.data]  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def yielded(self) -> Sequence[SSAValue]:
        """What the body yields."""
        return _yielded(self.block)

    def each(self) -> list[ReducedKind]:
        """Each of the kinds, with its values and results."""
        found: list[ReducedKind] = []
        values, results = self.yielded, self.outputs
        taken = given = 0
        for kind in self.kind_names:
            takes, gives = KINDS[kind]
            found.append(ReducedKind(kind, values[taken : taken + takes], results[given : given + gives]))
            taken, given = taken + takes, given + gives
        return found

    def verify_(self) -> None:
        self._check_indices()
        unknown = [k for k in self.kind_names if k not in KINDS]
        if unknown:
            raise VerifyException(f"loop.reduce: unknown kind '{unknown[0]}', known: {', '.join(KINDS)}")
        check_yield(self, self.block, sum(KINDS[k][0] for k in self.kind_names))
        self._check_types()
        if (want := sum(KINDS[k][1] for k in self.kind_names)) != len(self.outputs):
            raise VerifyException(f"loop.reduce: kinds {', '.join(self.kind_names)} give {want} results, got {len(self.outputs)}")

    def _check_types(self) -> None:
        if any(KINDS[k] != (1, 1) for k in self.kind_names) or self.block.last_op is None:
            return
        for kind, value, result in zip(self.kind_names, self.block.last_op.operands, self.outputs, strict=False):
            if value.type != result.type:
                raise VerifyException(f"loop.reduce: {kind} of {value.type} gives {value.type}, not {result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self.loop_sizes, self.indices)
        printer.print_string(f" {', '.join(self.kind_names)} ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_string(" -> ")
        print_types(printer, self.result_types)
        print_attrs(printer, self, ("sizes", "kinds"))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        args, sizes = parse_loops(parser)
        kinds = _parse_kinds(parser, KINDS)
        region = parser.parse_region([a.resolve(INDEX) for a in args])
        parser.parse_punctuation("->", " before the result types of loop.reduce")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        properties: dict[str, Attribute] = {"sizes": ExprsAttr.get(sizes), "kinds": kinds}
        attributes = parse_attrs(parser, cls, properties)
        return cls.create(result_types=types, properties=properties, attributes=attributes, regions=[region])


def check_yield(op: IRDLOperation, block: Block, count: int) -> None:
    last = block.last_op
    if not isinstance(last, YieldOp):
        raise VerifyException(f"{op.name}: the body must end with loop.yield")
    if len(last.operands) != count:
        raise VerifyException(f"{op.name}: its kinds take {count} yielded values, got {len(last.operands)}")


@irdl_op_definition
class ScanOp(LoopLike):
    """A running reduction along one loop: the body yields an element, `do` gets the index and the running value(s), the element included:
    `loop.scan (%j = 4096) sum {... loop.yield %a : f32} do (%k, %r : f32) { loop.store %r, %o[%i, %k] ... }`."""

    name = "loop.scan"
    kinds = prop_def(ArrayAttr)
    body = region_def("single_block")
    do = region_def("single_block")
    traits = traits_def(NoTerminator())

    @staticmethod
    def build_scan(size: Expr, kind: str, types: Sequence[Attribute]) -> ScanOp:
        """A scan with empty regions; `types` are the types of the running values."""
        return ScanOp.create(
            properties={"sizes": ExprsAttr.get([size]), "kinds": kinds_attr([kind])},
            regions=[Region(Block(arg_types=[INDEX])), Region(Block(arg_types=[INDEX, *types]))],
        )

    @property
    def yielded(self) -> Sequence[SSAValue]:
        """What the body yields, which is scanned."""
        return _yielded(self.block)

    @property
    def kind(self) -> str:
        return self.kinds.data[0].data  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def do_block(self) -> Block:
        return self.regions[1].blocks[0]

    def verify_(self) -> None:
        self._check_indices()
        if len(self.sizes.data) != 1 or len(self.kinds.data) != 1 or self.kind not in SCAN_KINDS:
            raise VerifyException(f"loop.scan: needs one loop and one kind of {', '.join(SCAN_KINDS)}")
        check_yield(self, self.block, SCAN_KINDS[self.kind][0])
        if len(self.do_block.args) != 1 + SCAN_KINDS[self.kind][1]:
            raise VerifyException(f"loop.scan: 'do' takes the index and {SCAN_KINDS[self.kind][1]} running values")
        if self.kind == "sort" and not isinstance(self.do_block.args[1].type, IntegerType):
            raise VerifyException(f"loop.scan: sort takes integers, got {self.do_block.args[1].type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_loops(printer, self.loop_sizes, self.indices)
        printer.print_string(f" {self.kind} ")
        printer.print_region(self.body, print_entry_block_args=False)
        names = value_names(printer, self.do_block.args)
        types = [a.type for a in self.do_block.args]
        printer.print_string(f" do ({names[0]}")
        for name, t in zip(names[1:], types[1:], strict=True):
            printer.print_string(f", {name} : ")
            printer.print_attribute(t)
        printer.print_string(") ")
        printer.print_region(self.do, print_entry_block_args=False)
        print_attrs(printer, self, ("sizes", "kinds"))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        args, sizes = parse_loops(parser)
        kinds = _parse_kinds(parser, SCAN_KINDS)
        body = parser.parse_region([a.resolve(INDEX) for a in args])
        parser.parse_keyword("do")
        parser.parse_punctuation("(")
        do_args = [parser.parse_argument(expect_type=False).resolve(INDEX)]
        while parser.parse_optional_punctuation(","):
            arg = parser.parse_argument(expect_type=False)
            parser.parse_punctuation(":")
            do_args.append(arg.resolve(parser.parse_type()))
        parser.parse_punctuation(")")
        do = parser.parse_region(do_args)
        properties: dict[str, Attribute] = {"sizes": ExprsAttr.get(sizes), "kinds": kinds}
        attributes = parse_attrs(parser, cls, properties)
        return cls.create(properties=properties, attributes=attributes, regions=[body, do])


@irdl_op_definition
class YieldOp(QuickOp):
    """The values of one step of a reduction or scan."""

    name = "loop.yield"
    arguments = var_operand_def()
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict ($arguments^ `:` type($arguments))?"


# ---- scalars in bodies


@irdl_op_definition
class IndexOp(QuickOp):
    """An index expression as a value: `loop.index %i * 4 + %j : i64` (or `: index`, to index another access)."""

    name = "loop.index"
    args = var_operand_def(IndexType)
    map = prop_def(IndexMapAttr)
    result = result_def()
    traits = traits_def(Pure())

    @staticmethod
    def new(expression: Expr, indices: Sequence[SSAValue], result: Attribute) -> IndexOp:
        m = IndexMap(len(indices), (as_expr(expression),))
        return IndexOp.create(operands=indices, result_types=[result], properties={"map": IndexMapAttr.get(m)})

    @property
    def expression(self) -> Expr:
        return self.map.data.results[0]

    def verify_(self) -> None:
        if self.map.data.num_dims != len(self.args) or len(self.map.data.results) != 1:
            raise VerifyException(f"loop.index: its expression takes {self.map.data.num_dims} indices, got {len(self.args)}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {format_expr(self.expression, value_names(printer, self.args))} : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands = IndexOperands()
        expression = parse_expr_with_names(parser, operands.resolve)
        parser.parse_punctuation(":")
        result = parser.parse_type()
        m = IndexMap(len(operands.found), (expression,))
        return cls.create(operands=operands.values(parser), result_types=[result], properties={"map": IndexMapAttr.get(m)})


@irdl_op_definition
class BoundOp(QuickOp):
    """A loaded integer as an index below `size`: `loop.bound %v, s0 "embedding" dim 0 wrap : i64`. Outside of [0, size) (with wrap:
    [-size, size)) the kernel reports an error that names the operator, the dimension that it indexes (where that is given) and the
    integer, and goes on with an index inside."""

    name = "loop.bound"
    input = operand_def()
    size = prop_def(ExprAttr)
    what = prop_def(StringAttr)
    dim = opt_prop_def(IntAttr)
    wrap = opt_prop_def(UnitAttr)
    result = result_def(IndexType)

    @staticmethod
    def new(value: SSAValue, size: Expr, what: str, wrap: bool, dim: int | None = None) -> BoundOp:
        properties: dict[str, Attribute] = {"size": ExprAttr.get(size), "what": StringAttr(what)}
        if dim is not None:
            properties["dim"] = IntAttr(dim)
        if wrap:
            properties["wrap"] = UnitAttr()
        return BoundOp.create(operands=[value], result_types=[INDEX], properties=properties)

    @property
    def is_certain(self) -> bool:
        """Whether the integer is in [0, size) by what the body says of it, so that there is nothing to check."""
        low, high = integer_range(self.input)
        size = self.size.data.value
        return size is not None and 0 <= low and high < size

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.input)
        printer.print_string(f", {self.size.data} ")
        printer.print_string_literal(self.what.data)
        if self.dim is not None:
            printer.print_string(f" dim {self.dim.data}")
        printer.print_string(" wrap : " if self.wrap is not None else " : ")
        printer.print_attribute(self.input.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        properties: dict[str, Attribute] = {"size": ExprAttr.get(parse_expr(parser)), "what": StringAttr(parser.parse_str_literal())}
        if parser.parse_optional_keyword("dim"):
            properties["dim"] = IntAttr(parser.parse_integer(allow_boolean=False, allow_negative=False))
        if parser.parse_optional_keyword("wrap"):
            properties["wrap"] = UnitAttr()
        parser.parse_punctuation(":")
        operand = parser.resolve_operand(value, parser.parse_type())
        return cls.create(operands=[operand], result_types=[INDEX], properties=properties)


@irdl_op_definition
class MathOp(QuickOp):
    """A scalar function that `math` lacks, by name: `loop.math "lgamma"(%x) : (f32) -> f32`."""

    name = "loop.math"
    fn = prop_def(StringAttr)
    inputs = var_operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$fn `(` $inputs `)` attr-dict `:` functional-type($inputs, $result)"


@irdl_op_definition
class RandomOp(QuickOp):
    """Number `offset` of the Philox4x32-10 stream `seed`: kinds rand (f32 in [0, 1)), randn (f32 normal), randint (32 bits as i64)."""

    name = "loop.random"
    kind = prop_def(StringAttr)
    seed = operand_def()
    offset = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$kind $seed `,` $offset attr-dict `:` type($seed) `,` type($offset) `->` type($result)"


Loop = Dialect(
    "loop",
    [
        EmptyOp, NestOp, ForOp, ReduceOp, ScanOp, YieldOp, LoadOp, StoreOp, IndexOp, BoundOp, MathOp, RandomOp, ContractOp,
        BatchOp, LocalOp,
    ],
    [],
)  # fmt: skip
