"""Kernels that somebody else wrote (`tt.func`): what they write to, and their parameters as our launches pass them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    Float64Type,
    FloatAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    f64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects.nd.types import is_float
from ....dialects.tt.memory import LoadOp
from ....dialects.tt.structure import CallOp, FuncOp
from ....dialects.tt.types import PointerType, element_of

_READS = (LoadOp,)


def written_arguments(function: FuncOp) -> frozenset[int]:
    """The arguments through which a kernel may write: those that reach an operation other than a load that has an effect on memory, or a
    call. What flows into an operation flows into its results and regions; what is loaded comes from elsewhere, unless it is an
    address."""
    sources: dict[SSAValue, set[int]] = {a: {k} for k, a in enumerate(function.body.blocks[0].args)}
    written: set[int] = set()
    while _flow(function.body.blocks, sources, written):
        pass
    pointers = {k for k, a in enumerate(function.body.blocks[0].args) if isinstance(element_of(a.type), PointerType)}
    return frozenset(written & pointers)


def _flow(blocks: Sequence[Block], sources: dict[SSAValue, set[int]], written: set[int]) -> bool:
    """One step over all operations; whether anything new came to light."""
    changed = False
    for block in blocks:
        for op in block.ops:
            found = set().union(*(sources.get(v, set()) for v in op.operands))
            if _may_write(op) and not found <= written:
                written |= found
                changed = True
            targets = [r for r in op.results if not isinstance(op, _READS) or isinstance(element_of(r.type), PointerType)]
            targets += [a for region in op.regions for inner in region.blocks for a in inner.args]
            parent = op.parent_op()
            if op.name in ("scf.yield", "scf.condition") and parent is not None:
                targets += parent.results
                targets += [a for region in parent.regions for inner in region.blocks for a in inner.args]
            if op.name.startswith("cf."):
                targets += [a for next in op.successors for a in next.args]
            for target in targets:
                known = sources.setdefault(target, set())
                if not found <= known:
                    known |= found
                    changed = True
            for region in op.regions:
                changed |= _flow(region.blocks, sources, written)
    return changed


_WRITING = (
    "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.call", "tt.descriptor_store", "tt.descriptor_scatter", "tt.descriptor_reduce",
    "tt.elementwise_inline_asm", "tt.extern_elementwise",
)  # fmt: skip


def _may_write(op: Operation) -> bool:
    return op.name in _WRITING


def kernel_functions(known: dict[str, list[Operation]], module: ModuleOp) -> str:
    """Take the functions of a kernel's module into `known`, under a name of its own; an equal kernel is taken once. Its name."""
    functions = [f for f in module.ops if isinstance(f, FuncOp)]
    wanted = next(f for f in functions if f.is_kernel).sym_name.data
    name, number = wanted, 1
    while True:
        _rename(functions, name)
        found = known.get(name)
        if found is None:
            known[name] = [f.clone() for f in functions]
            return name
        if len(found) == len(functions) and all(a.is_structurally_equivalent(b) for a, b in zip(found, functions, strict=True)):
            return name
        name, number = f"{wanted}_{number}", number + 1


def _rename(functions: Sequence[FuncOp], name: str) -> None:
    """Call the kernel `name`, and what it calls `name__0`, `name__1`, ... (PTX has no dots in names)."""
    names: dict[str, str] = {}
    for k, function in enumerate(f for f in functions if not f.is_kernel):
        names[function.sym_name.data] = f"{name}__{k}"
    for function in functions:
        function.properties["sym_name"] = StringAttr(names.get(function.sym_name.data, name))
        for op in function.walk():
            if isinstance(op, CallOp):
                op.properties["callee"] = SymbolRefAttr(names[op.callee.root_reference.data])


def with_parameters(
    function: FuncOp, names: Sequence[str], fixed: Mapping[str, int | float | bool], passed: Sequence[str]
) -> None:
    """Give a kernel, whose parameters are called `names`, the parameters `passed`, in that order; those in `fixed` become constants.
    Floating-point numbers are passed as f64. Changes `function`."""
    block = function.body.blocks[0]
    attrs = list(function.arg_attrs.data) if function.arg_attrs is not None else [DictionaryAttr({})] * len(names)
    old = dict(zip(names, zip(block.args, attrs, strict=True), strict=True))
    hints: list[DictionaryAttr] = []
    start = block.first_op
    for name in passed:
        argument, hint = old[name]
        kind = argument.type
        new = block.insert_arg(f64 if is_float(kind) else kind, len(block.args))
        value: SSAValue = new
        if is_float(kind) and not isinstance(kind, Float64Type):
            cast = arith.TruncFOp(new, kind)  # pyright: ignore[reportArgumentType]
            _insert(block, cast, start)
            value = cast.result
        argument.replace_all_uses_with(value)
        hints.append(hint)
    for name, number in fixed.items():
        argument, _ = old[name]
        constant = arith.ConstantOp(_number(number, argument.type))
        _insert(block, constant, start)
        argument.replace_all_uses_with(constant.result)
    for argument, _ in old.values():
        block.erase_arg(argument)
    function.properties["function_type"] = FunctionType.from_lists([a.type for a in block.args], [])
    function.properties["arg_attrs"] = ArrayAttr(hints)


def _insert(block: Block, op: Operation, before: Operation | None) -> None:
    if before is None:
        block.add_op(op)
    else:
        block.insert_op_before(op, before)


def _number(value: int | float | bool, type: Attribute) -> Any:
    if not isinstance(type, IntegerType):
        return FloatAttr(float(value), type)  # pyright: ignore[reportArgumentType, reportCallIssue]
    number = int(value)
    if number >= 1 << (type.width.data - 1) and type.width.data > 1:  # an unsigned one, by its bits
        number -= 1 << type.width.data
    return IntegerAttr(number, type)
