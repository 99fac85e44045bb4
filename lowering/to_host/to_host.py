"""to-host: the function of a graph, down to buffers and launches, becomes a `host.program`.

Kernels stay as they are. Buffers become tensors of torch (arguments, outputs, results of library operators) or memory
of the arena; a `mem.view` costs nothing where a kernel reads it, it is an offset of the launch. Size symbols are
bound from the arguments, arguments are checked against the layouts that the graph was compiled for, and everything is
released after its last use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import cpu, host, mem
from ...dialects.expr import Expr, Sym, as_expr, evaluate, free_syms, maximum, sym
from ...dialects.expr.syntax import ExprAttr
from ...dialects.machine import max_memory
from ...dialects.nd.base import ExprsAttr, prop
from ...dialects.nd.call_args import Arg, Call
from ...dialects.nd.types import RangeAttr, element_bytes
from ...dialects.support.names import keep_name
from ...dialects.support.replace import erase_op
from ...passes.manager.errors import PassError
from ...passes.manager.pass_manager import Pass
from .out_variants import out_variant


@dataclass(frozen=True)
class ToHost(Pass):
    """Turn every function that launches kernels into the host program of its graph."""

    name = "to-host"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replaces the functions of the module."""
        if not any(isinstance(f, (func.FuncOp, host.ProgramOp)) for f in op.ops):
            self.fail(op, "the module holds no function (any more)")
        checked = _kernels_with_checks(op)
        hints = _typical_sizes(op)
        for function in [f for f in op.body.block.ops if isinstance(f, func.FuncOp)]:
            program = _Lowering(function, checked, hints, self.name).run()
            block = function.parent_block()
            assert block is not None
            block.insert_op_before(program, function)
            erase_op(function)


def _typical_sizes(module: ModuleOp) -> dict[Expr, int]:
    """The typical value of each size symbol (attribute nd.symbols)."""
    table = module.attributes.get("nd.symbols")
    if not isinstance(table, DictionaryAttr):
        return {}
    return {sym(name): attr.bounds[2] for name, attr in table.data.items() if isinstance(attr, RangeAttr)}


def _kernels_with_checks(module: ModuleOp) -> frozenset[str]:
    """Names of the kernels that may report an error (themselves or what they call)."""
    found: set[str] = set()
    callers: list[tuple[str, str]] = []
    for op in module.body.block.ops:
        if not isinstance(op, cpu.KernelOp):
            continue
        name = op.sym_name.data
        for inner in op.walk():
            if isinstance(inner, cpu.AssertOp):
                found.add(name)
            elif isinstance(inner, cpu.CallOp):
                callers.append((name, inner.callee.string_value()))
    for _ in callers:
        found.update(caller for caller, callee in callers if callee in found)
    return frozenset(found)


class _Memory:
    """Where a buffer lives: a host value (tensor or arena memory) and how many bytes from its first element the
    storage begins."""

    __slots__ = ("value", "type", "start", "in_arena")

    def __init__(self, value: SSAValue, type: mem.BufferType, start: Expr, in_arena: bool = False):
        self.value = value
        self.type = type
        """The buffer's type, whose offset counts from the beginning of the storage."""
        self.start = start
        self.in_arena = in_arena
        """Whether the memory is the arena's (also of a library operator's view of it): not valid after the program."""

    def byte_offset(self) -> Expr:
        """From the address of the host value to the buffer's first element."""
        return self.start + self.type.offset_expr * element_bytes(self.type.element_type)


def _memory_checks(function: func.FuncOp, known: Collection[Expr]) -> Iterator[host.AssertOp]:
    """What refuses sizes with which a call takes more memory than the module allows."""
    bound, needs = max_memory(function), function.attributes.get(mem.MEMORY_NEEDS)
    if bound is not None and isinstance(needs, ExprsAttr):
        for size in needs.data:
            if free_syms(size) <= set(known):
                yield host.AssertOp.make(size, "le", bound, f"max_memory allows {bound} bytes, and a call with these sizes takes {size}")


class _Lowering:
    """One function."""

    def __init__(self, function: func.FuncOp, checked: frozenset[str], hints: dict[Expr, int], pass_name: str):
        self.function = function
        self.checked = checked
        self.hints = hints
        self.pass_name = pass_name
        self.block = function.body.block
        self.memory: dict[SSAValue, _Memory] = {}
        self.numbers: dict[SSAValue, SSAValue] = {}
        self.tensors: dict[SSAValue, SSAValue] = {}
        self.bound: set[Expr] = set()
        self.arena_ends: list[Expr] = []
        self.unplanned = as_expr(0)
        self.pending_poll = False
        attrs = function.arg_attrs.data if function.arg_attrs is not None else ()
        self.arg_attrs = [dict(a.data) if isinstance(a, DictionaryAttr) else {} for a in attrs]
        self.arg_attrs += [{}] * (len(self.block.args) - len(self.arg_attrs))

    def run(self) -> host.ProgramOp:
        given = [k for k, a in enumerate(self.arg_attrs) if "nd.constant" not in a]
        types = [self._host_type(self.block.args[k]) for k in given]
        self.program = host.ProgramOp.build_program(self.function.sym_name.data, types)
        self.program.location = self.function.location
        self.out = self.program.body.block
        self._arguments(given)
        self.out.add_ops(_memory_checks(self.function, self.bound))
        for op in self.block.ops:
            rule = _RULES.get(type(op))
            if rule is None:
                self.fail(op, f"{op.name} has no place in a host program; an earlier pass should have lowered it")
            rule(self, op)
        if self.arena_ends:
            self.program.properties["arena"] = ExprAttr.get(maximum(*self.arena_ends))
        _release_dead_values(self.program)
        return self.program

    def fail(self, op: Operation, message: str):
        raise PassError(message, pass_name=self.pass_name, op=op)

    def add(self, op: host.HostOp, source: Operation | None = None) -> host.HostOp:
        if source is not None:
            op.location = source.location
        self.out.add_op(op)
        return op

    def _host_type(self, value: SSAValue) -> Attribute:
        type = value.type
        if isinstance(type, mem.BufferType):
            return host.TensorType.get(type.element_type, _device(value))
        if not host.is_number(type):
            self.fail(self.function, f"argument of type {type}: a host program takes buffers and numbers")
        return i64 if not _is_float_or_bool(type) else type

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _arguments(self, given: Sequence[int]) -> None:
        args = [self.block.args[k] for k in given]
        derived: list[tuple[SSAValue, Expr, int]] = []
        for new, k in zip(self.out.args, given, strict=True):
            old = self.block.args[k]
            name = self.arg_attrs[k].get("nd.name")
            if isinstance(name, StringAttr) and name.data.isidentifier():
                new.name_hint = name.data
            if isinstance(old.type, mem.BufferType):
                self.memory[old] = _argument_memory(new, old.type)
                self.tensors[old] = new
            else:
                self.numbers[old] = new
                symbol = self.arg_attrs[k].get("nd.symbol")
                if isinstance(symbol, ExprAttr) and isinstance(symbol.data, Sym) and symbol.data not in self.bound:
                    self._bind(symbol.data, "value", new)
                elif isinstance(symbol, ExprAttr):
                    derived.append((new, symbol.data, k))
        for old in args:
            if isinstance(old.type, mem.BufferType):
                self._bind_layout(old.type, self.tensors[old])
        for new, expr, k in derived:  # only now: any argument may bind what the expression is made of
            self._check_number(new, expr, k)
        for k, old in zip(given, args, strict=True):
            if isinstance(old.type, mem.BufferType):
                self._check(old.type, self.tensors[old], _argument_label(self.arg_attrs[k], k))
        for k, attrs in enumerate(self.arg_attrs):
            if "nd.constant" in attrs:
                self._constant(self.block.args[k], attrs["nd.constant"])

    def _constant(self, old: SSAValue, index: Attribute) -> None:
        assert isinstance(old.type, mem.BufferType) and isinstance(index, IntegerAttr)
        made = self.add(host.ConstantOp.make(index.value.data, old.type.element_type, old.type.device.data)).results[0]
        self.memory[old] = _argument_memory(made, old.type)
        self.tensors[old] = made

    def _check_number(self, value: SSAValue, expr: Expr, k: int) -> None:
        """Argument `k` is an expression of symbols that other arguments bind."""
        own = sym(f"arg{k}")
        self._require(expr, f"argument {k}")
        self._bind(own, "value", value)
        self.add(host.AssertOp.make(own, "eq", expr, f"argument {k} must be {expr}"))

    def _bind(self, symbol: Expr, kind: str, value: SSAValue, dim: int | None = None) -> None:
        self.bound.add(symbol)
        self.add(host.BindOp.make(symbol, kind, value, dim))

    def _bind_layout(self, type: mem.BufferType, tensor: SSAValue) -> None:
        """Bind symbols that are a plain size (or stride) of a tensor."""
        for kind, exprs in (("size", type.dims), ("stride", type.stride_exprs)):
            for d, expr in enumerate(exprs):
                if isinstance(expr, Sym) and expr not in self.bound:
                    self._bind(expr, kind, tensor, d)

    def _check(self, type: mem.BufferType, tensor: SSAValue, label: str) -> None:
        for expr in (*type.dims, *type.stride_exprs):
            self._require(expr, label)
        self.add(host.layout(host.CheckOp, tensor, type.dims, type.stride_exprs, type.element_type, label=label))

    def _require(self, expr: Expr, label: str, op: Operation | None = None) -> None:
        """Fail (at `op`, or the function) unless all symbols of `expr` are bound."""
        missing = free_syms(expr) - self.bound
        if missing:
            names = ", ".join(sorted(map(str, missing)))
            whole = f" of {expr}" if names != str(expr) else ""
            self.fail(op or self.function, f"{label}: no argument binds {names}{whole}")

    # -- memory --------------------------------------------------------------------------------------------------------

    def alloc(self, op: mem.AllocOp) -> None:
        type = op.result.type
        assert isinstance(type, mem.BufferType)
        bytes = mem.buffer_bytes(type)
        at = None if op.at is None else op.at.data
        if op.inside is not None and at is not None:
            around = self.memory[op.inside]
            self.memory[op.result] = _Memory(around.value, type, around.start + at, in_arena=True)
            return
        needed = free_syms(bytes) | (free_syms(at) if at is not None else frozenset())
        left_out = at is None and mem.ARENA_BYTES in self.function.attributes  # mem-plan gave places to others only
        if op.kind.data != "arena" or left_out or needed - self._bound_at_entry():
            if type.offset_expr is not as_expr(0):
                self.fail(op, f"an output begins at the start of its storage, the offset is {type.offset_expr}")
            made = self._layout(host.EmptyOutputOp, None, type, op)
            keep_name(made, op.result)
            self.memory[op.result], self.tensors[op.result] = _Memory(made, type, as_expr(0)), made
            return
        if at is None:
            at = self.unplanned
            self.unplanned = at + (bytes + mem.ALIGNMENT - 1) // mem.ALIGNMENT * mem.ALIGNMENT
        self.arena_ends.append(at + bytes)
        pointer = self.add(host.ArenaPtrOp.make(at), op).results[0]
        if op.workspace is not None:
            pointer = self.add(host.WorkspaceOp.make(int(bytes), pointer), op).results[0]
        keep_name(pointer, op.result)
        self.memory[op.result] = _Memory(pointer, type, as_expr(0), in_arena=True)

    def _bound_at_entry(self) -> frozenset[Expr]:
        """Symbols that are known when the arena is taken, at the first op that needs it."""
        if not hasattr(self, "_entry_symbols"):
            self._entry_symbols = frozenset(self.bound)
        return self._entry_symbols

    def view(self, op: mem.ViewOp) -> None:
        source, type = self.memory[op.input], op.result.type
        assert isinstance(type, mem.BufferType)
        self.memory[op.result] = _Memory(source.value, type, source.start, source.in_arena)
        returned = any(isinstance(use.operation, func.ReturnOp) for use in op.result.uses)  # as an object of its own
        if type == source.type and op.input in self.tensors and not returned:
            self.tensors[op.result] = self.tensors[op.input]

    def _layout(
        self, kind: type[host.LayoutOp], source: SSAValue | None, type: mem.BufferType, origin: Operation, **rest
    ) -> SSAValue:
        device = type.device.data
        op = host.layout(kind, source, type.dims, type.stride_exprs, type.element_type, device=device, **rest)
        return self.add(op, origin).results[0]

    def tensor(self, value: SSAValue, origin: Operation) -> SSAValue:
        """The buffer as a tensor of torch (made where it is first needed)."""
        found = self.tensors.get(value)
        if found is not None:
            return found
        buffer = self.memory[value]
        size = element_bytes(buffer.type.element_type)
        offset = buffer.byte_offset() // size
        kind = host.FromArenaOp if isinstance(buffer.value.type, host.PtrType) else host.ViewOp
        made = self._layout(kind, buffer.value, buffer.type, origin, offset=offset)
        keep_name(made, value)
        self.tensors[value] = made
        return made

    # -- calls ---------------------------------------------------------------------------------------------------------

    def launch(self, op: host.LaunchOp) -> None:
        values: list[SSAValue] = []
        offsets: list[Expr] = []
        for operand in op.inputs:
            if not isinstance(operand.type, mem.BufferType):
                values.append(self.numbers[operand])
                offsets.append(as_expr(0))
                continue
            buffer = self.memory[operand]
            values.append(buffer.value)
            offsets.append(buffer.byte_offset())
        for size in (*op.sizes.data, *(e for one in op.described for e in one.exprs)):
            self._require(size, "a size that the kernel takes", op)
        kernel = op.kernel.string_value()
        entries = None if op.entries is None else op.entries.data
        grid = () if op.grid is None else op.grid.data
        clears = op.clears is not None and all(isinstance(value.owner, host.WorkspaceOp) for value in values)
        traffic = self._typical_traffic(op)
        self.add(host.LaunchOp.make(kernel, values, op.sizes.data, offsets, traffic, entries, grid, clears, op.described), op)
        self.pending_poll |= kernel in self.checked

    def _typical_traffic(self, op: host.LaunchOp) -> int | None:
        """Bytes that the launch moves, at typical sizes; None when that is not known."""
        if op.bytes is not None:
            traffic = op.bytes.data
        else:
            buffers = [v.type for v in op.inputs if isinstance(v.type, mem.BufferType)]
            traffic = sum((t.numel * element_bytes(t.element_type) for t in buffers), as_expr(0))
        if not free_syms(traffic) <= self.hints.keys():
            return None
        return evaluate(traffic, self.hints)

    def _poll(self) -> None:
        if self.pending_poll:
            self.add(host.PollOp.create())
            self.pending_poll = False

    def extern(self, op: mem.ExternOp) -> None:
        self._poll()
        call = op.call.data
        outs = prop(op, "out") or ()
        values = [self._operand(v, op) for v in op.inputs]
        if outs:
            self._extern_into(op, call, values, outs)
            return
        types = [self._host_type(r) for r in op.outputs]
        made = host.ExternOp.make(call, values, types, prop(op, "mutates") or ())
        for name in ("fallback", "kept"):
            if name in op.properties:
                made.properties[name] = op.properties[name]
        self.add(made, op)
        aliases = prop(op, "aliases") or [-1] * len(op.outputs)
        for k, (old, new) in enumerate(zip(op.outputs, made.results, strict=True)):
            source = aliases[k] if k < len(aliases) else -1
            self._result(op, old, new, op.inputs[source] if source >= 0 else None)

    def _operand(self, value: SSAValue, op: Operation) -> SSAValue:
        return self.tensor(value, op) if isinstance(value.type, mem.BufferType) else self.numbers[value]

    def _result(self, op: mem.ExternOp, old: SSAValue, new: SSAValue, viewed: SSAValue | None) -> None:
        type = old.type
        if not isinstance(type, mem.BufferType):
            self.numbers[old] = new
            if op.binds is not None and not _is_float_or_bool(type) and sym(op.binds.data) not in self.bound:
                self._bind(sym(op.binds.data), "value", new)
            return
        self._bind_layout(type, new)
        if old.first_use is None:
            return
        label = op.call.data.target
        if viewed is not None:
            self._check(type, new, label)
            tensor = new
        else:
            layout = (type.dims, type.stride_exprs, type.element_type)
            tensor = self.add(host.layout(host.EnsureOp, new, *layout, label=label, device=_device(old)), op).results[0]
        self.memory[old] = _argument_memory(tensor, type)
        self.memory[old].in_arena = viewed is not None and self.memory[viewed].in_arena
        self.tensors[old] = tensor

    def _extern_into(self, op: mem.ExternOp, call: Call, values: list[SSAValue], outs: Sequence[int]) -> None:
        """Results that go into buffers of ours: by the out overload where there is one, else by a copy."""
        variant = out_variant(call.target)
        if variant is not None and len(variant[1]) == len(outs):
            target, names = variant
            kwargs = (*call.kwargs, *((name, Arg(k)) for name, k in zip(names, outs, strict=True)))
            self.add(host.ExternOp.make(Call(target, call.args, kwargs), values, (), outs), op)
            return
        types = [values[k].type for k in outs]
        made = host.ExternOp.make(call, values, types)
        if "kept" in op.properties:
            made.properties["kept"] = op.properties["kept"]
        self.add(made, op)
        for k, result in zip(outs, made.results, strict=True):
            copy = Call("aten.copy_.default", (Arg(0), Arg(1)))
            self.add(host.ExternOp.make(copy, (values[k], result), (), (0,)), op)

    def finish(self, op: func.ReturnOp) -> None:
        self._poll()
        values: list[SSAValue] = []
        for operand in op.operands:
            if not isinstance(operand.type, mem.BufferType):
                values.append(self.numbers[operand])
            elif self.memory[operand].in_arena:
                clone = Call("aten.clone.default", (Arg(0),))
                source = self.tensor(operand, op)
                values.append(self.add(host.ExternOp.make(clone, (source,), (source.type,)), op).results[0])
            else:
                values.append(self.tensor(operand, op))
        self.add(host.ReturnOp.make(values), op)


def _argument_memory(value: SSAValue, type: mem.BufferType) -> _Memory:
    """A tensor that exists already: its address is that of the first element, so the storage begins `offset` elements
    before."""
    return _Memory(value, type, -type.offset_expr * element_bytes(type.element_type))


def _device(value: SSAValue) -> str:
    """Where a buffer must be: its device; "any" for one element that library operators alone read, which some take and give on the CPU
    whatever their fake kernels say (the seeds of attention)."""
    type = value.type
    assert isinstance(type, mem.BufferType)
    if type.device.data != "cpu" and not type.dims and not _is_launched(value):
        return "any"
    return type.device.data


def _is_launched(value: SSAValue) -> bool:
    """Whether a kernel reads or writes a buffer or a view of it."""
    users = [use.operation for use in value.uses]
    return any(isinstance(u, host.LaunchOp) or (isinstance(u, mem.ViewOp) and _is_launched(u.result)) for u in users)


def _argument_label(attrs: dict[str, Attribute], k: int) -> str:
    name = attrs.get("nd.name")
    return f"argument {k}" + (f" ({name.data})" if isinstance(name, StringAttr) else "")


def _is_float_or_bool(type: Attribute) -> bool:
    return str(type) in ("f64", "i1")


def _release_dead_values(program: host.ProgramOp) -> None:
    """Put a host.release behind the last use of every tensor that is not returned; arguments that are only checked go
    together."""
    block = program.body.block
    last: dict[SSAValue, Operation | None] = {}
    checks: Operation | None = None
    for argument in block.args:
        if isinstance(argument.type, (host.TensorType, host.ObjectType)):
            last[argument] = None
    kept: set[SSAValue] = set()
    for op in block.ops:
        if isinstance(op, (host.BindOp, host.CheckOp, host.AssertOp, host.ConstantOp)) and checks is op.prev_op:
            checks = op
            continue
        for operand in op.operands:
            if operand in last:
                last[operand] = op
        if isinstance(op, host.ReturnOp):
            kept.update(op.operands)
        elif not isinstance(op, host.ConstantOp):
            last.update((r, op) for r in op.results if isinstance(r.type, (host.TensorType, host.ObjectType)))
    dead: dict[Operation | None, list[SSAValue]] = {}
    for value, op in last.items():
        if value not in kept and not _consumed(value):
            dead.setdefault(checks if op is None else op, []).append(value)
    for op, values in dead.items():
        release = host.ReleaseOp.create(operands=values)
        if op is not None:
            block.insert_op_after(release, op)
        elif block.first_op is not None:
            block.insert_op_before(release, block.first_op)


def _consumed(value: SSAValue) -> bool:
    """Whether a host.ensure, its only user, takes the value over."""
    users = [use.operation for use in value.uses]
    return len(users) == 1 and isinstance(users[0], host.EnsureOp)


_RULES: dict[type[Operation], Callable[[_Lowering, Operation], None]] = {
    mem.AllocOp: _Lowering.alloc,
    mem.ViewOp: _Lowering.view,
    mem.ExternOp: _Lowering.extern,
    host.LaunchOp: _Lowering.launch,
    func.ReturnOp: _Lowering.finish,
}  # pyright: ignore[reportAssignmentType]

__all__ = ["ToHost"]
