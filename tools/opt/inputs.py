"""Random inputs for ``opt-tool --run``, made from the signature of the function that is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from xdsl.dialects.builtin import DictionaryAttr, IndexType, IntegerType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from ...dialects import host
from ...dialects.expr import Expr, evaluate, free_syms
from ...dialects.expr.syntax import ExprAttr
from ...dialects.loop.batch import BATCH
from ...dialects.mem import BufferType
from ...dialects.nd.types import FLOATS, LayoutAttr, RangeAttr, TensorType
from ...errors import StepwellError
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from ...passes.manager.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_SIZE = 8
"""The value of a size symbol of which the module says nothing."""


class ArgumentsError(StepwellError):
    """A function for which no inputs can be made."""


def entry_function(module: ModuleOp, name: str | None) -> Operation:
    """The function called `name`; without a name the only one, or the one called forward.  ArgumentsError otherwise."""
    found = {
        _symbol(op): op for op in module.ops if isinstance(op, FuncOp) or op.name in ("host.program", "cpu.kernel")
    }
    if name is None:
        programs = [op for op in found.values() if op.name != "cpu.kernel" and BATCH not in op.attributes] or list(found.values())
        if len(programs) == 1:
            return programs[0]
        name = "forward"
    if name not in found:
        hint = did_you_mean(name, found) or f"; there are: {', '.join(found)}" if found else "; it has none"
        raise ArgumentsError(f"the module has no function '{name}'{hint}")
    return found[name]


def _symbol(op: Operation) -> str:
    name = op.properties.get("sym_name")
    return name.data if isinstance(name, StringAttr) else ""


def random_inputs(module: ModuleOp, name: str | None, seed: int) -> list[Any]:
    """One input for each argument of a function of any level, or of a host program: numbers, and tensors with the sizes and strides
    that it is made for.

    Floats are normally distributed, integers 0 or 1 (so that they are valid indices), and a size symbol has the typical
    value that ``nd.symbols`` gives for it.  Raises ArgumentsError for other arguments.
    """
    function = entry_function(module, name)
    generator = torch.Generator().manual_seed(seed)
    if isinstance(function, host.ProgramOp):
        return _program_inputs(module, function, generator)
    if not isinstance(function, FuncOp):
        raise ArgumentsError(f"a {function.name} does not say how large its arguments are; give them with --args")
    dims = [
        dim
        for argument in function.body.block.args
        if isinstance(argument.type, (TensorType, BufferType))
        for dim in argument.type.dims
    ]
    sizes = _symbol_values(module, dims)
    attributes = function.arg_attrs.data if function.arg_attrs is not None else ()
    inputs: list[Any] = []
    for index, argument in enumerate(function.body.block.args):
        own: Mapping[str, Attribute] = attributes[index].data if index < len(attributes) else {}
        try:
            inputs.append(_random(argument.type, own, sizes, generator))
        except ArgumentsError as error:
            raise ArgumentsError(f"argument {index} of '{_symbol(function)}': {error}") from error
    return inputs


def _program_inputs(module: ModuleOp, program: host.ProgramOp, generator: torch.Generator) -> list[Any]:
    """Inputs that pass the checks of a host program and bind its symbols."""
    checks = {op.source: op for op in program.walk() if isinstance(op, host.CheckOp)}
    binds = {op.source: op.symbol_expr for op in program.walk() if isinstance(op, host.BindOp) and op.kind.data == "value"}
    sizes = _symbol_values(module, [dim for check in checks.values() for dim in check.sizes.data])
    inputs: list[Any] = []
    for index, argument in enumerate(program.body.block.args):
        if (check := checks.get(argument)) is not None and isinstance(argument.type, host.TensorType):
            shape, strides = ([evaluate(e, sizes) for e in part.data] for part in (check.sizes, check.strides))
            inputs.append(_random_tensor(shape, strides, argument.type.element_type, generator))
        elif argument in binds:
            inputs.append(evaluate(binds[argument], sizes))
        else:
            raise ArgumentsError(f"no host.check says how large argument {index} of '{_symbol(program)}' is; give the inputs with --args")
    return inputs


def _symbol_values(module: ModuleOp, dims: Iterable[Expr]) -> dict[Any, int]:
    """A value for each symbol of the module and of `dims`."""
    table = module.attributes.get("nd.symbols")
    known = table.data if isinstance(table, DictionaryAttr) else {}
    names = {*known, *(s.name for dim in dims for s in free_syms(dim))}
    values: dict[Any, int] = {}
    for name in names:
        value = known.get(name)
        low, high, hint = value.bounds if isinstance(value, RangeAttr) else (0, None, DEFAULT_SIZE)
        values[name] = max(low, hint if high is None else min(hint, high))
    return values


def with_own_memory(value: Any) -> Any:
    """A tensor with the same elements and strides in memory of its own, with its gaps and shared elements; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    with torch.no_grad():
        flat = value.as_strided((extent,), (1,)).clone() if extent else value.new_empty(0)
        made = flat.as_strided(value.shape, value.stride())
    return made.requires_grad_(value.requires_grad)


def _random(kind: Attribute, own: Mapping[str, Attribute], sizes: dict[Any, int], generator: torch.Generator) -> Any:
    if isinstance(kind, (TensorType, BufferType)):
        layout = own.get("nd.layout")
        strides = kind.stride_exprs if isinstance(kind, BufferType) else kind.contiguous_strides()
        if isinstance(layout, LayoutAttr):
            strides = layout.stride_exprs
        shape = [evaluate(dim, sizes) for dim in kind.dims]
        return _random_tensor(shape, [evaluate(s, sizes) for s in strides], kind.element_type, generator)
    if isinstance(kind, IndexType):
        symbol = own.get("nd.symbol")
        return evaluate(symbol.data, sizes) if isinstance(symbol, ExprAttr) else DEFAULT_SIZE
    if isinstance(kind, IntegerType):
        return bool(torch.randint(0, 2, (), generator=generator))
    if kind in FLOATS:
        return float(torch.randn((), generator=generator))
    raise ArgumentsError(f"no random value of type {kind} can be made")


def _random_tensor(
    shape: list[int], strides: list[int], element_type: Attribute, generator: torch.Generator
) -> torch.Tensor:
    dtype = TORCH_DTYPES.get(element_type)
    if dtype is None:
        raise ArgumentsError(f"torch has no element type {element_type}")
    extent = (
        1 + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    )
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(extent, generator=generator, dtype=torch.float32 if dtype.itemsize < 4 else dtype).to(dtype)
    else:
        flat = torch.randint(0, 2, (extent,), generator=generator).to(dtype)
    return flat.as_strided(shape, strides)
