"""The two ends of a C entry: the caller's tensors that it takes, and those that it fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import BlockArgument, SSAValue

from ....dialects import host
from ....dialects.expr import Expr, Sym
from ....dialects.nd.call_args import Arg
from ....dialects.nd.types import element_bytes
from ....passes.manager.locations import source_location
from ...cpu.emit.text import ModuleText
from ..description import ItemTable
from ..emit import extent_bytes
from ..entry_code import EntryCode
from .dtypes import DlpackDevice, DlpackType
from .layouts import covers, layout_of, returned_value, value_of
from .plan import CEntryError, EntryPlan, Given, Source, State
from .runtime import FUNCTIONS, WEIGHTS, placeholders
from .signature import Value
from .stores import written

COMPUTE = "compute"
"""The block where computing begins, behind what says the sizes of results."""


class CCode(EntryCode):
    """Text of the entry; failures leave through a block at its end."""

    signatures: ClassVar[Mapping[str, str]] = FUNCTIONS

    def __init__(self, module: ModuleText, symbol: str):
        super().__init__(module, ItemTable(), symbol)
        self.texts: dict[str, str] = {}
        self.exit = "failed"
        """The block that failures leave through."""

    def require(self, code: str) -> None:
        """Leave where a function of the runtime gave something else than 0."""
        self.leave_if(self.let(f"icmp ne i32 {code}, 0"))

    def require_memory(self, address: str) -> str:
        """Leave where an address is null."""
        self.leave_if(self.let(f"icmp eq ptr {address}, null"))
        return address

    def leave_if(self, condition: str) -> None:
        onward = self.label()
        self.do(f"br i1 {condition}, label %{self.exit}, label %{onward}")
        self.start(onward)

    def text(self, text: str) -> str:
        """The address of a C string, each text once."""
        if text not in self.texts:
            self.texts[text] = self.text_constant(text)
        return self.texts[text]

    def size_words(self, values: Sequence[Expr]) -> str:
        """As `words`, never null."""
        return self.words(values) if values else self.text("")


class Interface:
    """Takes arguments and delivers results of one entry. `values` are addresses (registers) of tensors and memory, registers of numbers."""

    def __init__(self, unit: ModuleText, program: host.ProgramOp, plan: EntryPlan, symbol: str):
        self.unit, self.program, self.plan = unit, program, plan
        self.block = program.body.block
        self.code = CCode(unit, symbol)
        self.values: dict[SSAValue, str] = {}
        self.places: dict[SSAValue, str] = {}
        """Where sizes, strides and addresses of the caller's tensors are."""
        self.labels: dict[SSAValue, str] = {}
        self.homes: dict[SSAValue, int] = {}
        """New tensors whose memory is that of a result, by its number."""
        self.targets: dict[int, str] = {}
        """The places of results, by their numbers."""
        self.arena = ""
        self.polls = any(isinstance(op, host.PollOp) for op in self.block.ops)
        self.written = written(plan, program)
        last = self.block.last_op
        assert isinstance(last, host.ReturnOp)
        self.last = last

    def error(self, op: Any, reason: str) -> CEntryError:
        """The error of an operation, with the user's line."""
        place = source_location(op.location)
        return CEntryError(f"entry '{self.plan.name}' has no C interface: {reason}" + (f" (at {place})" if place else ""))

    # -- arguments -----------------------------------------------------------------------------------------------------

    def argument(self, argument: BlockArgument, k: int) -> None:
        source = self.plan.arguments[k]
        if not isinstance(source, Given):
            self.values[argument] = self.stored(source)
            return
        self.labels[argument] = f"argument {source.number} ({source.name})"
        self._accept(argument, source.number)

    def _accept(self, argument: BlockArgument, number: int) -> None:
        code, value = self.code, value_of(argument, self.labels[argument], self.plan)
        rank = len(value.sizes)
        place = self.places[argument] = code.alloca(f"[{2 * rank + 2} x i64]", 8)
        tensor = code.load(code.at("%inputs", number))
        label = code.text(self.labels[argument])
        code.require(code.call("stepwell_c_accept", "%model", tensor, label, *self._about(value), place))
        if not host.is_number(argument.type):
            return
        code.require(code.call("stepwell_c_memory", "%model", label, "0", place))
        address = code.load(code.at(place, 0))
        if isinstance(argument.type, Float64Type):
            self.values[argument] = code.load(address, "double")
        elif value.type is DlpackType.bool:
            byte = code.load(address, "i8")
            self.values[argument] = code.let(f"icmp ne i8 {byte}, 0")
        else:
            self.values[argument] = code.load(address, "i64")

    def stored(self, source: Source) -> str:
        if isinstance(source, State):
            state = self.code.load(self.code.let("getelementptr i8, ptr %model, i64 40"))
            return self.code.let(f"getelementptr i8, ptr {state}, i64 {source.offset}")
        assert not isinstance(source, Given)
        if self.plan.device == "cpu":
            return self.code.let(f"getelementptr i8, ptr @{WEIGHTS}, i64 {source.offset}")
        weights = self.code.load(self.code.let(f"getelementptr i8, ptr %model, i64 {placeholders('')['WEIGHTS_AT']}"))
        return self.code.let(f"getelementptr i8, ptr {weights}, i64 {source.offset}")

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def bind(self, op: host.BindOp) -> None:
        code, kind, source = self.code, op.kind.data, op.source
        if kind == "value":
            number = self.values[source]
            is_bit = isinstance(source.type, IntegerType) and source.type.width.data == 1
            code.sizes[op.symbol_expr] = code.let(f"zext i1 {number} to i64") if is_bit else number
            return
        if kind == "item" or source not in self.places or op.dim is None:
            raise self.error(op, f"the size {op.symbol_expr} is not one of an input")
        at = op.dim.data + (self._rank(source) if kind == "stride" else 0)
        code.sizes[op.symbol_expr] = code.load(code.at(self.places[source], at, "i64"), "i64")

    def _rank(self, value: SSAValue) -> int:
        return len(layout_of(value).sizes.data)

    def check(self, op: host.CheckOp) -> None:
        if op.source not in self.places:
            return
        code, element = self.code, element_bytes(op.source.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
        sizes, strides = op.sizes.data, op.strides.data
        layout = code.size_words(sizes), code.size_words(strides)
        extent = code.size(extent_bytes(sizes, strides, element))
        copied = "0" if op.source in self.written or self.plan.device != "cpu" else str(element)
        label, place = code.text(self.labels[op.source]), self.places[op.source]
        code.require(code.call("stepwell_c_check", "%model", label, str(len(sizes)), place, *layout, extent, copied))
        self.values[op.source] = code.load(code.at(place, 2 * len(sizes) + 1))

    def check_relation(self, op: host.AssertOp) -> None:
        code = self.code
        left, right = code.size(op.left.data), code.size(op.right.data)
        predicate = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle"}[op.predicate.data]
        holds = code.let(f"icmp {predicate} i64 {left}, {right}")
        code.require(code.call("stepwell_c_require", "%model", holds, code.text(op.message.data)))

    def ranges(self) -> None:
        """Sizes of the caller's tensors are in the ranges that the program was compiled for."""
        code, seen = self.code, set[Expr]()
        for argument, place in self.places.items():
            sizes = () if host.is_number(argument.type) else layout_of(argument).sizes.data
            for d, size in enumerate(sizes):
                bounds = self.plan.ranges.get(size.name) if isinstance(size, Sym) and size not in seen else None
                if bounds is None:
                    continue
                seen.add(size)
                found = code.load(code.at(place, d, "i64"), "i64")
                low, high = bounds[0], (1 << 62) if bounds[1] is None else bounds[1]
                label = code.text(self.labels[argument])
                code.require(code.call("stepwell_c_range", "%model", label, str(d), found, str(low), str(high)))

    # -- results -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The branch between saying what results are and computing them; behind it the results' memory is known."""
        code = self.code
        results = [returned_value(self.plan, self.last, k) for k in range(len(self.plan.results))]
        layouts = [(code.size_words(value.sizes), code.size_words(value.strides)) for value in results]
        tensors = [code.load(code.at("%results", k)) for k in range(len(results))]
        computes = code.let("icmp ne i32 %mode, 0")
        code.do(f"br i1 {computes}, label %{COMPUTE}, label %describe")
        code.start("describe")
        for value, layout, tensor in zip(results, layouts, tensors, strict=True):
            code.require(code.call("stepwell_c_describe", "%model", tensor, code.text(value.name), *self._about(value), *layout))
        code.do("ret i32 0")
        code.start(COMPUTE)
        for k, (value, layout, tensor) in enumerate(zip(results, layouts, tensors, strict=True)):
            place = self.targets[k] = code.alloca(f"[{2 * len(value.sizes) + 2} x i64]", 8)
            extent = code.size(extent_bytes(value.sizes, value.strides, value.type.value[1] // 8))
            about = (*self._about(value), *layout, extent, place)
            code.require(code.call("stepwell_c_target", "%model", tensor, code.text(value.name), *about))
        self._find_homes()
        if self.polls:
            code.call("stepwell_c_lock")
            code.exit = "unlock"

    def _about(self, value: Value) -> tuple[str, str, str]:
        return str(value.type.word), str(value.device.value), str(len(value.sizes))

    def _find_homes(self) -> None:
        """Which new tensors are computed in the caller's memory: those that are results, and those that one result is a view of all of."""
        leaves = [self.last.template.data.args[result.value] for result in self.plan.results]
        returned = {k: self.last.values[leaf.index] for k, leaf in enumerate(leaves) if isinstance(leaf, Arg)}
        for k, value in returned.items():
            if isinstance(value.owner, host.EmptyOutputOp):
                self.homes.setdefault(value, k)
        for k, value in returned.items():
            owner = value.owner
            if isinstance(owner, host.ViewOp) and owner.offset is None and covers(owner):
                self.homes.setdefault(owner.source, k)

    def empty_output(self, op: host.EmptyOutputOp) -> None:
        code, sizes = self.code, op.sizes.data
        home = self.homes.get(op.result)
        if home is not None:
            place = self.targets[home]
            rank = len(returned_value(self.plan, self.last, home).sizes)
            self.values[op.result] = code.load(code.at(place, 2 * rank + 1))
            return
        bytes = code.size(extent_bytes(sizes, op.strides.data, element_bytes(op.result.type.element_type)))
        self.values[op.result] = self.block_of(bytes)

    def block_of(self, bytes: str) -> str:
        """Memory until the end of the call."""
        return self.code.require_memory(self.code.call("stepwell_c_block", "%model", bytes))

    def finish(self, op: host.ReturnOp) -> None:
        code = self.code
        for k, wanted in enumerate(self.plan.results):
            value = returned_value(self.plan, op, k)
            source = self._returned(op, op.template.data.args[wanted.value])
            layout = code.size_words(value.sizes), code.size_words(value.strides)
            rank, element = len(value.sizes), value.type.value[1] // 8
            if value.device is DlpackDevice.cpu:
                code.call("stepwell_c_deliver", self.targets[k], str(rank), source, *layout, str(element))
                continue
            extent = code.size(extent_bytes(value.sizes, value.strides, element))
            code.require(code.call("stepwell_c_gpu_copy", "%model", code.load(code.at(self.targets[k], 2 * rank)), source, extent))
        if self.polls:
            code.call("stepwell_c_unlock")
        code.do("ret i32 0")

    def _returned(self, op: host.ReturnOp, leaf: object) -> str:
        """The address of what is returned; numbers are put into memory."""
        code = self.code
        if isinstance(leaf, Arg):
            source = op.values[leaf.index]
            if not host.is_number(source.type):
                return self.values[source]
            number, bit = self.values[source], isinstance(source.type, IntegerType) and source.type.width.data == 1
            if bit:
                return code.scratch("i8", [code.let(f"zext i1 {number} to i8")])
            return code.scratch("double" if isinstance(source.type, Float64Type) else "i64", [number])
        assert isinstance(leaf, Expr)
        return code.scratch("i64", [code.size(leaf)])
