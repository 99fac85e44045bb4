"""`host.program` -> Python source: the same program when there is no native entry (a symbol is missing, or the user
wants it so).

The source is one function of one list. Names `i0, i1, ...` stand for operators, constants and kernels (the item
table), `rt` for the helpers of python_runtime.py. It is also the shortest way to read what a program does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import Attribute, SSAValue

from ....dialects import host
from ....dialects.expr import Expr, as_expr, to_python
from ....dialects.nd.call_args import Arg, Obj
from ..description import Item, ItemTable
from ..element_types import dtype_name, is_constant_leaf
from ..extern import PYTHON_CALL, leaves_item, result_form
from ..workspaces import workspace_bytes, workspace_places


def python_source(
    program: host.ProgramOp, device: str = "cpu", kernels: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, list[Item]]:
    """The source of `def program(args)` and its item table; `kernels` numbers those that are not in its object."""
    writer = _Writer(program, device, kernels)
    return writer.run(), writer.items.items


class _Writer:
    def __init__(self, program: host.ProgramOp, device: str, kernels: Mapping[str, int]):
        self.program = program
        self.device = device
        self.kernels = kernels
        self.items = ItemTable()
        self.names: dict[SSAValue, str] = {}
        self.lines: list[str] = []
        self.workspaces: dict[host.WorkspaceOp, int] = {}

    def run(self) -> str:
        block = self.program.body.block
        for k, arg in enumerate(block.args):
            self.names[arg] = f"a{k}"
        self.lines += ["def program(args):", f"    rt.count(args, {len(block.args)})"]
        if block.args:
            self.do(f"{''.join(self.names[a] + ', ' for a in block.args)}= args")
        self.do("args.clear()")
        for k, arg in enumerate(block.args):
            if isinstance(arg.type, host.TensorType):
                self.do(f"rt.tensor(a{k}, {k})")
            elif host.is_number(arg.type):
                convert = {"d": "float", "b": "bool", "i": "int"}[_number_kind(arg.type)]
                self.do(f"a{k} = {convert}(a{k})")
        for op in block.ops:
            _RULES[type(op)](self, op)
        return "\n".join(self.lines) + "\n"

    def do(self, line: str) -> None:
        self.lines.append("    " + line)

    def define(self, value: SSAValue) -> str:
        name = self.names[value] = f"v{len(self.names)}"
        return name

    def item(self, kind: str, value: Any) -> str:
        return f"i{self.items.place(kind, value)}"

    def sizes(self, values: tuple[Expr, ...]) -> str:
        return f"({''.join(to_python(v) + ', ' for v in values)})"

    def layout(self, op: host.LayoutOp) -> str:
        type = op.layout_type()
        dtype = dtype_name(type.element_type) or ""  # pyright: ignore[reportAttributeAccessIssue]
        device = type.device.data  # pyright: ignore[reportAttributeAccessIssue]
        return f"{self.sizes(op.sizes.data)}, {self.sizes(op.strides.data)}, {dtype!r}, {device!r}"

    def label(self, op: host.LayoutOp) -> str:
        found = op.properties.get("label")
        return repr(found.data) if found is not None else repr(self.names[op.operands[0]])  # pyright: ignore[reportAttributeAccessIssue]

    def bind(self, op: host.BindOp) -> None:
        source, kind = self.names[op.source], op.kind.data
        dim = 0 if op.dim is None else op.dim.data
        value = {
            "value": f"int({source})",
            "size": f"{source}.shape[{dim}]",
            "stride": f"{source}.stride({dim})",
            "item": f"int({source}.item())",
        }[kind]
        self.do(f"{to_python(op.symbol_expr)} = {value}")

    def check_relation(self, op: host.AssertOp) -> None:
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}[op.predicate.data]
        self.do(f"if not ({to_python(op.left.data)} {sign} {to_python(op.right.data)}):")
        self.do(f"    raise AssertionError({op.message.data!r})")

    def check(self, op: host.CheckOp) -> None:
        self.do(f"rt.check({self.names[op.source]}, {self.label(op)}, {self.layout(op)})")

    def ensure(self, op: host.EnsureOp) -> None:
        source, label, layout = self.names[op.source], self.label(op), self.layout(op)
        self.do(f"{self.define(op.result)} = rt.ensure({source}, {label}, {layout})")

    def empty_output(self, op: host.EmptyOutputOp) -> None:
        self.do(f"{self.define(op.result)} = rt.empty({self.layout(op)})")

    def view(self, op: host.ViewOp) -> None:
        source, layout, offset = self.names[op.source], self.layout(op), self.offset(op.offset)
        self.do(f"{self.define(op.result)} = rt.view({source}, {layout}, {offset})")

    def offset(self, offset: Any) -> str:
        return "0" if offset is None else to_python(offset.data)

    def arena_ptr(self, op: host.ArenaPtrOp) -> None:
        if not any(line.startswith("    arena = ") for line in self.lines):
            size = self.program.arena.data if self.program.arena is not None else as_expr(0)
            self.do(f"arena = rt.arena({to_python(size)}, {self.device!r})")
        self.do(f"{self.define(op.result)} = arena.data_ptr() + {to_python(op.offset.data)}")

    def workspace(self, op: host.WorkspaceOp) -> None:
        if not self.workspaces:
            self.workspaces = workspace_places(self.program)
            self.do(f"workspaces = rt.workspaces({workspace_bytes(self.program)})")
        other = self.names[op.other]
        self.do(f"{self.define(op.result)} = workspaces + {self.workspaces[op]} if workspaces else {other}")

    def from_arena(self, op: host.FromArenaOp) -> None:
        source, layout, offset = self.names[op.source], self.layout(op), self.offset(op.offset)
        self.do(f"{self.define(op.result)} = rt.from_arena(arena, {source}, {layout}, {offset})")

    def constant(self, op: host.ConstantOp) -> None:
        self.names[op.result] = self.item("constant", op.index.data)

    def launch(self, op: host.LaunchOp) -> None:
        offsets = op.offsets.data if op.offsets is not None else [as_expr(0)] * len(op.inputs)
        memory: list[str] = []
        numbers: list[str] = []
        kinds = ""
        for value, offset in zip(op.inputs, offsets, strict=True):
            name = self.names[value]
            if host.is_number(value.type):
                numbers.append(name)
                kinds += _number_kind(value.type)
                continue
            address = f"rt.address({name}, {len(memory)})" if isinstance(value.type, host.TensorType) else name
            memory.append(address if offset is as_expr(0) else f"{address} + {to_python(offset)}")
        sizes = [to_python(size) for size in op.sizes.data]
        for one in op.described:
            place = sum(not host.is_number(value.type) for value in op.inputs[: one.operand])
            numbers += [f"{memory[place]} + {to_python(one.offset)}", *(to_python(e) for e in (*one.sizes, *one.strides))]
        if (number := self.kernels.get(op.kernel.string_value())) is not None:
            grid = self.sizes(op.grid.data if op.grid is not None else ())
            if op.clears is not None:  # an empty grid is not launched
                grid = f"(0,) if workspaces else {grid}"
            self.do(f"rt.launcher.launch({number}, {grid}, ({''.join(w + ', ' for w in (*memory, *sizes, *numbers))}))")
            return
        if op.entries is not None:
            table = f"rt.table({op.entries.data}, ({''.join(m + ', ' for m in memory)}), ({''.join(n + ', ' for n in numbers)}))"
            words = f"rt.table({op.entries.data}, ({''.join(n + ', ' for n in sizes)}), ())"
            memory, sizes, numbers, kinds = [table, words], [str(op.entries.data)], [], ""
        signature = "p" * len(memory) + "i" * len(sizes) + kinds
        kernel = self.item("kernel", (op.kernel.string_value(), signature))
        self.do(f"{kernel}({', '.join((*memory, *sizes, *numbers))})")

    def poll(self, op: host.PollOp) -> None:
        self.do("rt.poll()")

    def extern(self, op: host.ExternOp) -> None:
        call = op.call.data
        leaves = call.args
        if call.target == PYTHON_CALL:
            function, leaves = self.leaf(op.inputs, leaves[0]), leaves[1:]
        else:
            function = self.item("operator", call.target)
        parts = [self.leaf(op.inputs, leaf) for leaf in leaves]
        parts += [f"{name}={self.leaf(op.inputs, leaf)}" for name, leaf in call.kwargs]
        text = f"{function}({', '.join(parts)})"
        form = result_form(call.target, len(op.results))
        if form == "none":
            self.do(text)
        elif form == "one":
            self.do(f"{self.define(op.results[0])} = {text}")
        else:
            names = "".join(self.define(result) + ", " for result in op.results)
            if form == "tree":
                text = f"{self.item(*leaves_item(op))}({text})"
            self.do(f"{names}= {text}")

    def leaf(self, operands: Any, leaf: Any) -> str:
        if isinstance(leaf, Arg):
            return self.names[operands[leaf.index]]
        if isinstance(leaf, Expr):
            return to_python(leaf)
        if isinstance(leaf, Obj):
            return self.item("given", leaf.index)
        if leaf is None or isinstance(leaf, (bool, int)):
            return repr(leaf)
        if is_constant_leaf(leaf):
            return self.item("value", leaf)
        return f"[{', '.join(self.leaf(operands, part) for part in leaf)}]"

    def release(self, op: host.ReleaseOp) -> None:
        names = [self.names[value] for value in op.values]
        names = [name for name in names if not name.startswith("i")]
        if names:
            self.do(f"del {', '.join(names)}")

    def finish(self, op: host.ReturnOp) -> None:
        self.do(f"return [{', '.join(self.leaf(op.values, leaf) for leaf in op.template.data.args)}]")


def _number_kind(type: Attribute) -> str:
    if isinstance(type, Float64Type):
        return "d"
    return "b" if isinstance(type, IntegerType) and type.width.data == 1 else "i"


_RULES: dict[type, Callable[[_Writer, Any], None]] = {
    host.BindOp: _Writer.bind,
    host.AssertOp: _Writer.check_relation,
    host.CheckOp: _Writer.check,
    host.EnsureOp: _Writer.ensure,
    host.EmptyOutputOp: _Writer.empty_output,
    host.ViewOp: _Writer.view,
    host.ArenaPtrOp: _Writer.arena_ptr,
    host.WorkspaceOp: _Writer.workspace,
    host.FromArenaOp: _Writer.from_arena,
    host.ConstantOp: _Writer.constant,
    host.LaunchOp: _Writer.launch,
    host.PollOp: _Writer.poll,
    host.ExternOp: _Writer.extern,
    host.ReleaseOp: _Writer.release,
    host.ReturnOp: _Writer.finish,
}
