"""Runs a module at the loop or memory level through Python, for tests, translation validation and `opt-tool --run`.

Ops of `nd` that stand at the loop level (views, library calls, updates) run as in nd.py, kernels of a GPU that
are launched as in tt/run.py, those of the CPU as machine code. At the memory level the buffers
of the arena really lie in one block, at the places that mem-plan chose, so that a wrong plan gives wrong results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import host, loop, mem
from ...dialects.expr import evaluate
from ...dialects.expr.syntax import ExprAttr
from ...dialects.nd.base import prop
from ...dialects.nd.call_args import KERNEL_CALL
from ...dialects.nd.types import LayoutAttr, TensorType
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from ...passes.analysis.weighed_calls import TARGET as WEIGHED
from ...passes.nd.quantised.int4_row_calls import TARGET as INT4_ROWS
from ...targets.cpu.jit import Library
from ...targets.host.interpreted.python_runtime import reinterpret
from .batch import run_batch
from .errors import InterpreterError
from .int4_rows import run_int4_rows
from .kernels import call_cpu_kernel, cpu_kernels, described_tensor, kernel_module, launched_module, run_user_kernel
from .nd import NdInterpreter, call_arguments, find_operator
from .nest import AccessCounter, Memory, NestRunner, Order, poisoned
from .tt.run import run_kernel
from .weighed import run_weighed


class LoopInterpreter(NdInterpreter):
    """One run of a function at the loop or memory level."""

    def __init__(self, func: FuncOp, objects: Sequence[Any], order: Order, counter: AccessCounter | None = None):
        super().__init__(objects)
        self.counter = counter
        self.func = func
        self.order = order
        self.arena: torch.Tensor | None = None
        self.library: Library | None = None
        """The kernels of the CPU, once one is launched."""
        self.starts: dict[SSAValue, Any] = {}
        """Where the storage of a buffer begins, in elements of the torch tensor's storage."""

    def run(self, op: Operation) -> None:
        """Run one op and note its results."""
        rule = _RULES.get(type(op))
        if rule is None:
            super().run(op)
        else:
            rule(self, op)

    def nested(self, func: FuncOp) -> LoopInterpreter:
        return LoopInterpreter(func, self.objects, self.order)

    def batch(self, op: loop.BatchOp) -> None:
        """The body on every entry."""
        self.values.update(zip(op.results, run_batch(self, op), strict=True))

    # ---- sizes

    def sizes(self, exprs: Sequence[Any]) -> list[int]:
        return [self.size(e) for e in exprs]

    def bind_buffer(self, value: SSAValue, tensor: torch.Tensor) -> None:
        """Bind the symbols of a buffer type to the sizes and strides of its tensor."""
        t = value.type
        assert isinstance(t, mem.BufferType)
        for e, actual in zip((*t.dims, *t.stride_exprs), (*tensor.shape, *tensor.stride()), strict=True):
            self.bind(e, actual)

    def check_buffer(self, value: SSAValue, tensor: torch.Tensor) -> None:
        """InterpreterError when the tensor of an argument does not have its type."""
        t = value.type
        assert isinstance(t, mem.BufferType)
        sizes, strides = self.sizes(t.dims), self.sizes(t.stride_exprs)
        if list(tensor.shape) != sizes or tensor.dtype != TORCH_DTYPES[t.element_type]:
            raise InterpreterError(f"argument {value.name_hint}: the type is {t}, got {tensor.dtype} {list(tensor.shape)}")
        if tensor.numel() and any(n > 1 and a != b for n, a, b in zip(sizes, strides, tensor.stride(), strict=True)):
            raise InterpreterError(f"argument {value.name_hint}: the type is {t}, the strides are {list(tensor.stride())}")

    # ---- nests

    def nest(self, op: loop.NestOp | loop.ContractOp) -> None:
        """A nest: on tensors the outs are copied first, on buffers it stores in place."""
        tensors: dict[SSAValue, torch.Tensor] = {v: x for v, x in self.values.items() if isinstance(x, torch.Tensor)}
        if op.results:
            fresh = [self.values[o].clone(memory_format=torch.contiguous_format) for o in op.outs]
            # two outs may begin as the same value
            self._run_on(op, {**tensors, **{a: x for a, x in zip(op.out_args, fresh, strict=True)}}, list(op.out_args))
            self.values.update(zip(op.results, fresh, strict=True))
        else:
            self._run_on(op, tensors, list(op.outs))

    def _run_on(
        self, op: loop.NestOp | loop.ContractOp, tensors: dict[SSAValue, torch.Tensor], outs: list[SSAValue]
    ) -> None:
        memory = Memory if self.counter is None else self.counter.memory
        NestRunner(op, tensors, self.values, self.symbols, self.order, outs, memory).run()
        if self.counter is not None:
            self.counter.end_nest()

    def empty(self, op: loop.EmptyOp) -> None:
        t = op.result.type
        assert isinstance(t, TensorType)
        self.values[op.result] = poisoned(torch.empty(self.sizes(t.dims), dtype=TORCH_DTYPES[t.element_type]))

    def launch(self, op: host.LaunchOp) -> None:
        """Every program of the grid of a GPU's kernel, one after the other; a kernel of the CPU as machine code."""
        name = op.kernel.root_reference.data
        values = [self.values[o] for o in op.inputs]
        if op.grid is None:
            self.library = self.library or cpu_kernels(op)
            if self.library is None:
                raise InterpreterError(f"host.launch @{name}: a kernel of a GPU has a grid")
            call_cpu_kernel(self.library, op, values, self.sizes(op.sizes.data))
            return
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        scalars = [v for v in values if not isinstance(v, torch.Tensor)]
        arguments = [*tensors, *self.sizes(op.sizes.data), *scalars]
        for one in op.described:
            arguments += [described_tensor(values[one.operand], self.size(one.offset)), *self.sizes(one.sizes), *self.sizes(one.strides)]
        run_kernel(launched_module(kernel_module(op, name), arguments), arguments, self.sizes(op.grid.data))

    # ---- memory

    def alloc(self, op: mem.AllocOp) -> None:
        t = op.result.type
        assert isinstance(t, mem.BufferType)
        sizes, strides, start = self.sizes(t.dims), self.sizes(t.stride_exprs), self.size(t.offset_expr)
        dtype = TORCH_DTYPES[t.element_type]
        if op.kind.data == "arena" and op.at is not None and 0 not in sizes:
            at = self.size(op.at.data)
            block = self._arena() if op.inside is None else self._bytes_of(op.inside)
            size = start * dtype.itemsize + dtype.itemsize * (
                1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
            )
            if at + size > block.numel():
                raise InterpreterError(f"mem.alloc: bytes {at} to {at + size} are outside of an arena of {block.numel()}")
            whole = block[at : at + size].view(dtype)
        else:
            reach = 0 if 0 in sizes else start + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
            whole = poisoned(torch.empty(reach, dtype=dtype))
        self.starts[op.result] = whole.storage_offset()
        self.values[op.result] = whole.as_strided(sizes, strides, whole.storage_offset() + start)

    def _arena(self) -> torch.Tensor:
        if self.arena is None:
            total = self.func.attributes.get(mem.ARENA_BYTES)
            if not isinstance(total, ExprAttr):
                raise InterpreterError(
                    f"a buffer has a place in the arena, but the function has no attribute {mem.ARENA_BYTES}"
                )
            self.arena = torch.full((self.size(total.data),), 0xFF, dtype=torch.uint8)
        return self.arena

    def _bytes_of(self, buffer: SSAValue) -> torch.Tensor:
        whole = self.values[buffer].untyped_storage()
        return torch.empty(0, dtype=torch.uint8).set_(whole, 0, (whole.nbytes(),))  # pyright: ignore[reportCallIssue, reportArgumentType]

    def view(self, op: mem.ViewOp) -> None:
        t, source = op.result.type, self.values[op.input]
        assert isinstance(t, mem.BufferType)
        dtype = TORCH_DTYPES[t.element_type]
        start = self.starts[op.result] = self.starts[op.input] * source.itemsize // dtype.itemsize
        place = start + self.size(t.offset_expr) - source.storage_offset() * source.itemsize // dtype.itemsize
        self.values[op.result] = reinterpret(source, tuple(self.sizes(t.dims)), tuple(self.sizes(t.stride_exprs)), dtype, place)

    def extern(self, op: mem.ExternOp) -> None:
        """A library call on buffers; results get the strides of their types."""
        call, values = op.call.data, [self.values[o] for o in op.operands]
        args, kwargs = call_arguments(self, call, values)
        if call.target == "py":
            result = args[0](*args[1:])
        elif call.target == KERNEL_CALL:
            result = run_user_kernel(op, args)
        elif call.target == WEIGHED:
            result = run_weighed(self, op, call, values)
        elif call.target == INT4_ROWS:
            result = run_int4_rows(call, values)
        else:
            result = find_operator(call.target)(*args, **kwargs)
        leaves = [leaf for leaf in _flat(result) if leaf is not None]
        for k, leaf in zip(prop(op, "out") or (), leaves, strict=False):
            values[k].copy_(leaf)
        aliases = prop(op, "aliases") or ()
        for k, (value, leaf) in enumerate(zip(op.outputs, leaves, strict=False)):
            if "binds" in op.properties and not isinstance(leaf, torch.Tensor):
                self.symbols[prop(op, "binds")] = int(leaf)
            if isinstance(leaf, torch.Tensor) and isinstance(value.type, mem.BufferType):
                leaf = self._result(value, leaf, k < len(aliases) and aliases[k] >= 0)
            self.values[value] = leaf

    def _result(self, value: SSAValue, leaf: torch.Tensor, aliased: bool) -> torch.Tensor:
        self.bind_buffer(value, leaf)
        t = value.type
        assert isinstance(t, mem.BufferType)
        strides = self.sizes(t.stride_exprs)
        if not aliased and list(leaf.stride()) != strides:
            leaf = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype).copy_(leaf)
        self.starts[value] = leaf.storage_offset()
        return leaf


def _flat(result: Any) -> list[Any]:
    return [leaf for item in result for leaf in _flat(item)] if isinstance(result, (tuple, list)) else [result]


_RULES: dict[type[Operation], Callable[[LoopInterpreter, Any], None]] = {
    loop.EmptyOp: LoopInterpreter.empty,
    loop.NestOp: LoopInterpreter.nest,
    loop.ContractOp: LoopInterpreter.nest,
    loop.BatchOp: LoopInterpreter.batch,
    host.LaunchOp: LoopInterpreter.launch,
    mem.AllocOp: LoopInterpreter.alloc,
    mem.ViewOp: LoopInterpreter.view,
    mem.ExternOp: LoopInterpreter.extern,
}


def run_loop(
    module: ModuleOp,
    inputs: Sequence[Any],
    constants: Sequence[Any] = (),
    objects: Sequence[Any] = (),
    name: str | None = None,
    *,
    order: str = "forward",
    seed: int = 0,
    counter: AccessCounter | None = None,
) -> list[Any]:
    """Run the function `name` (the first one) of a module at the loop or memory level.

    inputs: tensors and numbers, one an argument that is no constant; tensors that the function updates are written.
    `order` and `seed` say in which order parallel iterations run: "forward", "reverse", "shuffle". `counter` counts what nests and
    contractions read and write. Returns the
    function's results as the caller would get them. Raises InterpreterError where the IR does something that it must
    not, and IndexError for an index out of bounds."""
    func = next(f for f in module.ops if isinstance(f, FuncOp) and name in (None, f.sym_name.data))
    run = LoopInterpreter(func, objects, Order(order, seed), counter)
    given = [*inputs, *constants]
    arguments = func.body.block.args
    if len(given) != len(arguments):
        raise InterpreterError(f"@{func.sym_name.data} takes {len(arguments)} arguments, {len(given)} were given")
    _bind_arguments(run, func, given)
    with torch.no_grad():
        for op in func.body.block.ops:
            if isinstance(op, ReturnOp):
                return _results(run, func, op, given)
            run.run(op)
    raise InterpreterError(f"@{func.sym_name.data} does not return")


def _bind_arguments(run: LoopInterpreter, func: FuncOp, given: Sequence[Any]) -> None:
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    for k, (arg, value) in enumerate(zip(func.body.block.args, given, strict=True)):
        symbol = attrs[k].data.get("nd.symbol") if k < len(attrs) else None  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(symbol, ExprAttr):
            run.bind(symbol.data, value)
        if isinstance(value, torch.Tensor):
            value = value.detach()
            run.starts[arg] = value.storage_offset()
            (run.bind_buffer if isinstance(arg.type, mem.BufferType) else run.bind_tensor)(arg, value)
        run.values[arg] = value
    for arg, value in zip(func.body.block.args, given, strict=True):
        if isinstance(arg.type, mem.BufferType):
            run.check_buffer(arg, value)


def _results(run: LoopInterpreter, func: FuncOp, op: ReturnOp, given: Sequence[Any]) -> list[Any]:
    results: list[Any] = [run.values[v] for v in op.operands]
    if any(isinstance(v.type, mem.BufferType) for v in (*op.operands, *func.body.block.args)):
        return results
    results = [r.clone() if isinstance(r, torch.Tensor) else r for r in results]
    for target, value in run.updates:
        target.copy_(value)
    attrs = func.res_attrs.data if func.res_attrs is not None else ()
    for k, attr in enumerate(attrs):
        layout, alias = attr.data.get("nd.layout"), attr.data.get("nd.alias")  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(layout, LayoutAttr) and isinstance(results[k], torch.Tensor):
            results[k] = _as_seen(run, results, given, k, layout, alias.data if isinstance(alias, StringAttr) else None)
    return results


def _as_seen(
    run: LoopInterpreter, results: list[Any], given: Sequence[Any], k: int, layout: LayoutAttr, alias: str | None
) -> torch.Tensor:
    """Result `k` with the strides of its layout: a view of an argument or earlier result, or a tensor of its own."""
    strides = run.sizes(layout.stride_exprs)
    if alias is None:
        return torch.empty_strided(results[k].shape, strides, dtype=results[k].dtype).copy_(results[k])
    kind, place = alias.split()
    base = given[int(place)] if kind == "arg" else results[int(place)]
    offset = evaluate(layout.offset_expr, run.symbols)
    return reinterpret(base, tuple(results[k].shape), tuple(strides), results[k].dtype, offset)
