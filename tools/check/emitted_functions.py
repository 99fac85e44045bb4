"""Whether the CPU's code for single operations is right: each elementwise operation of a module's kernels gets a kernel of its own, written
by hand rather than by mem-to-cpu, and is compared with what the interpreter of scalars says. So wrong code is told from a wrong lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp, VectorType
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.utils.test_value import create_ssa_value

from ...dialects import cpu
from ...errors import StepwellError
from ...targets.cpu.emit.module import emit_module
from ...targets.cpu.jit import load_text
from ..backend.compile_graph import context
from ..interpret import scalars as interpret_scalars
from .rounding import unit_of

ULP = 256
"""Error of an operation that its emitter is not blamed for, in units of the last place: wrong code is not a matter of precision."""

ROUNDS = 4
_DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64}


def wrong_function(module: ModuleOp) -> str:
    """The first operation in the kernels of a module at the level cpu that the emitter writes wrong code for, with an example; "" if there
    is none among those of one element type."""
    tried: set[str] = set()
    for kernel in (op for op in module.ops if isinstance(op, cpu.KernelOp)):
        for op in kernel.walk():
            key = f"{op.name} {op.properties} {[str(v.type) for v in (*op.operands, *op.results)]}"
            if key in tried or not _is_elementwise(op):
                continue
            tried.add(key)
            if what := _wrong(op):
                return what
    return ""


def _is_elementwise(op: Operation) -> bool:
    """Whether an operation has one result, and operands of its type."""
    if op.name.partition(".")[0] not in ("arith", "math") and not isinstance(op, cpu.MathOp):
        return False
    types = {v.type for v in (*op.operands, *op.results)}
    if len(op.results) != 1 or len(types) != 1 or not op.operands or op.regions:
        return False
    return str(_element(op.results[0].type)) in _DTYPES


def _element(type: Attribute) -> Attribute:
    return type.element_type if isinstance(type, VectorType) else type


def _wrong(op: Operation) -> str:
    """What is wrong with the code for one operation, on a few inputs."""
    kind = op.results[0].type
    name, dtype = str(_element(kind)), _DTYPES[str(_element(kind))]
    lanes = kind.get_shape()[0] if isinstance(kind, VectorType) else 1
    try:
        reference, library = _reference(op), load_text(emit_module(_kernel(op, str(kind))))
        for inputs in _inputs(len(op.operands), lanes, dtype):
            found = torch.empty(lanes, dtype=dtype)
            library.call("k", found, *inputs)
            for k in range(lanes):
                arguments = [x[k].item() for x in inputs]
                wanted = reference(*arguments)
                if not _near(float(found[k]), float(wanted), dtype):
                    given = ", ".join(f"{a:.7g}" for a in arguments)
                    return f"'{op.name}' of {name} is wrong: of {given} it gives {found[k].item():.7g}, exact is {float(wanted):.7g}"
    except (StepwellError, ArithmeticError, TypeError, ValueError, AttributeError):
        return ""
    return ""


def _near(found: float, wanted: float, dtype: torch.dtype) -> bool:
    if found == wanted or not np.isfinite(wanted):
        return True  # what is not finite differs by convention
    if not dtype.is_floating_point:
        return False
    return abs(found - wanted) <= ULP * unit_of(dtype) * max(abs(wanted), 1e-6)


def _inputs(count: int, lanes: int, dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for k in range(ROUNDS):
        if dtype.is_floating_point:
            size = (1.0, 0.1, 10.0, 1.0)[k]
            values = [torch.randn(lanes, generator=generator, dtype=torch.float64) * size for _ in range(count)]
            yield [(v.abs() if k == ROUNDS - 1 else v).to(dtype) for v in values]
        else:
            yield [torch.randint(1, 1 << (4 * k + 3), (lanes,), generator=generator).to(dtype) for _ in range(count)]


def _reference(op: Operation) -> Callable[..., Any]:
    """What an operation computes of numbers."""
    kind = _element(op.results[0].type)
    convert = np.float32 if str(kind) == "f32" else np.float64 if str(kind) == "f64" else int
    if isinstance(op, cpu.MathOp):
        name = op.kind.data
        return lambda *xs: interpret_scalars.named_function(name, *map(convert, xs))
    names = [f"x{k}" for k in range(len(op.operands))]
    operands = [create_ssa_value(kind) for _ in op.operands]
    scalar = type(op).create(operands=operands, result_types=[kind], properties=dict(op.properties))
    text = interpret_scalars.expression(scalar, names)
    made = eval(f"lambda {', '.join(names)}: {text}", {**vars(interpret_scalars)})  # noqa: S307 - the text of our own template

    def call(*xs: Any) -> Any:
        with np.errstate(all="ignore"):
            return made(*map(convert, xs))

    return call


def _kernel(op: Operation, kind: str) -> ModuleOp:
    """A module with a kernel of the CPU that computes one operation of its arguments, and stores the result in the first."""
    count = len(op.operands)
    loads = "\n".join(f"%x{k} = cpu.load %p{k}[%0] : {kind}" for k in range(count))
    text = f"""cpu.kernel @k(%out: !cpu.ptr, {", ".join(f"%p{k}: !cpu.ptr" for k in range(count))}) {{
      %0 = arith.constant 0 : i64
      {loads}
      cpu.store %x0, %out[%0] : {kind}
      cpu.return
    }}"""
    module = Parser(context(), text).parse_module()
    store = next(nested for nested in module.walk() if nested.name == "cpu.store")
    loaded = [nested.results[0] for nested in module.walk() if nested.name == "cpu.load"]
    made = type(op).create(operands=loaded, result_types=[op.results[0].type], properties=dict(op.properties))
    block = store.parent
    assert block is not None
    block.insert_op_before(made, store)
    store.operands[next(k for k, v in enumerate(store.operands) if v is loaded[0])] = made.results[0]
    return module
