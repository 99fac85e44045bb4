"""A Python function on tensors as a pattern of `nd` operations: traced by AOTAutograd and imported, as the graphs of models are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges
from xdsl.dialects.func import FuncOp

from ...dialects import nd
from ...dialects.expr import Sym, evaluate, free_syms, sym
from ...dialects.nd.types import RangeAttr, TensorType
from ...errors import UserError
from ...lowering.fx_to_nd import import_graph
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from ...passes.nd.algebra.graph_match import Number, Pattern
from ...passes.nd.algebra.nd_canonicalize import RULES
from ...passes.nd.algebra.rename_symbols import rename_symbols
from ...passes.nd.algebra.rewriter import Rewriter, drop_dead, has_effect

Ranges = Mapping[str, RangeAttr]
"""What is known of size symbols, by name."""


class PatternTraceError(UserError):
    """A function that is no pattern, or cannot be traced for these arguments; the message says why."""


@dataclass(frozen=True)
class Traced:
    """A traced function: as it was imported, and canonicalised. `decided` are conditions on sizes that tracing has decided by examples,
    so that the trace holds for such sizes alone."""

    plain: Pattern
    canonical: Pattern
    decided: str = ""

    @property
    def output_types(self) -> list[Any]:
        return [v.type for v in self.plain.outputs]


def is_traceable(t: TensorType) -> bool:
    """Whether torch has tensors of this type."""
    return t.element_type in TORCH_DTYPES


def trace(fn: Callable[..., Any], arguments: Sequence[TensorType | Number], ranges: Ranges, numerics: str = "default") -> Traced:
    """The function called with tensors of these types, and with these numbers. Its tensors are the arguments of the pattern.

    Raises PatternTraceError."""
    examples, env, symbols = _fakes(arguments, ranges)
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    from ..backend.torch_backend import Tracer, compile_with
    from ..options.options import Options

    tracer = Tracer(Options())
    mode = tensors[0].fake_mode if tensors else FakeTensorMode(shape_env=env)  # pyright: ignore[reportAttributeAccessIssue]
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(torch.no_grad())
        try:
            compile_with(tracer, _Called(fn, examples), tensors)
        except Exception as error:
            raise PatternTraceError(f"{type(error).__name__}: {_first_lines(error)}") from error
    if "inference" not in tracer.graphs:
        raise PatternTraceError("it computes nothing")
    imported = import_graph(tracer.graphs["inference"], numerics=numerics)
    func = next(op for op in imported.module.ops if isinstance(op, FuncOp))
    if imported.constants:
        raise PatternTraceError("it makes tensors of constants (more than eight numbers); give them as an argument, or compute them")
    if imported.objects or len(list(imported.module.ops)) > 1:
        raise PatternTraceError("it uses Python objects or kernels (control flow operators, generators), which have no place in a pattern")
    _check_operations(func)
    if any(o.kind != "result" for o in imported.outputs) or not imported.outputs:
        raise PatternTraceError("it must return tensors: one, or a tuple of them")
    returned = func.body.block.last_op
    assert returned is not None
    returned.operands = [returned.operands[o.value] for o in imported.outputs]
    if symbols:
        rename_symbols(func, symbols)
    drop_dead(func.body.block)
    return Traced(Pattern(func), _canonical(func, ranges), "; ".join(_decided(env, symbols)))


class _Called(torch.nn.Module):
    """A function with its numbers as a module on its tensors."""

    def __init__(self, fn: Callable[..., Any], arguments: Sequence[Any]):
        super().__init__()
        self.fn, self.arguments = fn, arguments

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        result = self.fn(*[next(given) if isinstance(a, torch.Tensor) else a for a in self.arguments])
        leaves = result if isinstance(result, (tuple, list)) else (result,)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise TypeError(f"it must return tensors, one or a tuple of them, not {type(leaf).__name__}")
        return tuple(leaves)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).strip().splitlines()[:2])


def _check_operations(func: FuncOp) -> None:
    for op in func.body.block.ops:
        if isinstance(op, nd.UpdateOp):
            raise PatternTraceError("it writes to an argument; return the new value instead")
        if isinstance(op, nd.RandomOp):
            raise PatternTraceError("it draws random numbers, which are other ones each time")
        if isinstance(op, nd.ExternOp):
            if has_effect(op) or "mutates" in op.properties:
                raise PatternTraceError(f"it calls {op.call.data.target}, which has effects")


def _canonical(func: FuncOp, ranges: Ranges) -> Pattern:
    copy = func.clone()
    Rewriter(copy, RULES, nd.range_env(ranges)).run()
    return Pattern(copy)


# ---- sizes


def _fakes(arguments: Sequence[TensorType | Number], ranges: Ranges) -> tuple[list[Any], ShapeEnv, dict[str, str]]:
    """Tensors without memory for the types; their environment; its name of each symbol -> ours."""
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    names = {s for a in arguments if isinstance(a, TensorType) for e in a.dims for s in free_syms(e)}
    values: dict[Any, Any] = {}
    renames: dict[str, str] = {}
    for symbol in sorted(names, key=str):
        assert isinstance(symbol, Sym)
        low, high, hint = ranges[symbol.name].bounds if symbol.name in ranges else (0, None, 8)
        source = ConstantSource(f"size_{symbol.name}")
        # As torch does for sizes that vary: operations are asked for as for any size, those of 0 and 1 elements need no others.
        low = max(low, 2)
        high = None if high is None else max(high, low + 1)
        bounds = StrictMinMaxConstraint(vr=ValueRanges(low, int_oo if high is None else high), warn_only=False)
        hint = max(hint, low) if high is None else min(max(hint, low), high)
        made = env.create_symbol(hint, source, DimDynamic.DYNAMIC, bounds)
        values[symbol] = env.create_symintnode(made, hint=hint, source=source)
        renames[str(made)] = symbol.name
    with _disable_current_modes(), mode:
        return [_fake(a, values) if isinstance(a, TensorType) else a for a in arguments], env, renames


def _fake(t: TensorType, values: Mapping[Any, Any]) -> torch.Tensor:
    sizes = [evaluate(e, values) for e in t.dims]
    return torch.empty(sizes, dtype=TORCH_DTYPES[t.element_type], device=t.device.data)


def examples(arguments: Sequence[TensorType | Number], ranges: Ranges) -> tuple[list[Any], Callable[[], str]]:
    """Tensors without memory in the place of types, and a function that says which conditions on sizes were decided by example since."""
    made, env, symbols = _fakes(arguments, ranges)
    return made, lambda: "; ".join(_decided(env, symbols))


def _decided(env: ShapeEnv, symbols: Mapping[str, str]) -> list[str]:
    """The conditions that were decided by example, in our symbols."""
    texts = [str(guard.expr) for guard in env.guards]
    return [re.sub(r"[A-Za-z_]\w*", lambda m: symbols.get(m[0], m[0]), text) for text in texts]


def with_symbols(t: TensorType) -> tuple[TensorType, Ranges]:
    """The type with each size above 1 a symbol, the same for equal sizes; and what is known of them."""
    names = {e: f"n{e.value}" for e in t.dims if e.value is not None and e.value > 1}
    ranges = {name: RangeAttr.get(2, None, int(e)) for e, name in names.items()}
    return t.with_dims([sym(names[e]) if e in names else e for e in t.dims]), ranges


def with_powers(types: Sequence[TensorType | Number]) -> tuple[TensorType | Number, ...]:
    """The types with other sizes in the place of those above 1, in the same order: powers of two, by which one divides without rounding."""
    sizes = {e.value for t in types if isinstance(t, TensorType) for e in t.dims if e.value is not None and e.value > 1}
    powers = {size: 8 << k for k, size in enumerate(sorted(sizes))}
    return tuple(t.with_dims([powers.get(e.value or 0, e) for e in t.dims]) if isinstance(t, TensorType) else t for t in types)
