"""Launches of the user's own Triton kernels (`triton_kernel_wrapper_functional`, `_mutation`) as calls on tensors.

A launch is an `nd.extern` whose call has the target KERNEL_CALL: `["name", [grid...], arguments...]`. The kernel stands in the module as a
`tt.func`; Triton's front end makes it, so that it comes from whoever imports (`MakeKernel`). What is fixed in the graph (numbers,
tl.constexpr) stands in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import Expr, as_expr, evaluate, exact_quotient, free_syms
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import KERNEL_CALL, UNDEFINED, Arg, Call
from ....dialects.nd.types import I32_MAX, TensorType
from ....dialects.tt.structure import FuncOp
from ....errors import StepwellError
from ....passes.analysis.symbols import DEFAULT_SIZE
from ...sympy_bridge import hints_of
from ..core.builder import UNIT
from ..core.metadata import shape_env
from ..core.scalars import ScalarValue, SymScalar, scalar_number
from ..core.tt_functions import written_arguments
from .externs import write

if TYPE_CHECKING:
    from ..core.importer import Importer

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What a configuration of triton.autotune says about compiling."""

_TYPES = {
    torch.bool: "u1", torch.uint8: "u8", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.int8: "i8",
    torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32",
    torch.float64: "fp64", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5", torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2fnuz: "fp8e5b16",
}  # fmt: skip
"""Triton's names of element types."""


_EMPTY = frozenset(
    getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
)


class NotLaunchable(Exception):
    """A launch that Triton itself has to make; the message says why."""


@dataclass(frozen=True)
class KernelRequest:
    """One configuration of a kernel, as Triton's front end and a launch need it."""

    function: Any
    """The `triton.JITFunction`."""
    signature: Mapping[str, str]
    """Triton's type of each parameter, in order (`*fp32`, `i32`, `constexpr`)."""
    constants: Mapping[str, Any]
    """Values of parameters that the front end is to know: tl.constexpr, None, and 1, as Triton has it."""
    fixed: Mapping[str, int | float | bool]
    """Numbers that stand in the kernel."""
    passed: tuple[str, ...]
    """The other parameters, in the order in which a launch passes them: memory, sizes, numbers."""
    divisible: frozenset[str]
    """Those of them that are multiples of 16."""
    options: Mapping[str, Any]
    """See OPTIONS."""
    grid: tuple[Expr, ...]
    label: str
    """The configuration in words."""


@dataclass(frozen=True)
class Sample:
    """An argument to measure with: memory of so many bytes (`dtype`: torch's name of its elements' type), or a number."""

    bytes: int | None
    value: int | float = 0
    dtype: str = ""


MakeKernel = Callable[[Sequence[KernelRequest], Sequence[Sample], Sequence[tuple[int, ...]], str], tuple[int, ModuleOp]]
"""Which of several configurations to use, and the module of its kernel: one public `tt.func` that takes what a launch passes, and the
functions that it calls. It is given samples of what a launch passes, a typical grid for each configuration, and the device. Raises
StepwellError where there is no such kernel."""


def launch(b: Importer, node: Node) -> Any:
    """The value of a node that launches a user's kernel: new values by parameter (functional), or None (in place). NotLaunchable where it
    has to be left to Triton."""
    if b.make_kernel is None:
        raise NotLaunchable("nobody makes kernels")
    kwargs: Any = node.kwargs
    if kwargs["tma_descriptor_metadata"]:
        raise NotLaunchable("a tensor descriptor is made by the host")
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel = kernel_side_table.get_kernel(kwargs["kernel_idx"])
    sources = {**kwargs["kwargs"], **kernel_side_table.get_constant_args(kwargs["constant_args_idx"])}
    given = _Given(b, sources)
    requests = [given.request(kernel, config, grid) for config, grid in zip(_configs(kernel), kwargs["grid"], strict=True)]
    try:
        chosen, module = b.make_kernel(requests, given.samples(requests[0]), [given.typical_grid(r) for r in requests], b.device)
    except StepwellError as error:
        raise NotLaunchable(str(error)) from error
    clones = kwargs.get("tensors_to_clone")
    new = _write(b, given, requests[chosen], module, sources if clones is None else clones)
    if clones is None:
        for parameter, value in new.items():
            b.rebind(sources[parameter], value)
        return None
    return {parameter: new.get(parameter, given.values[parameter]) for parameter in clones}


def _configs(kernel: Any) -> Sequence[Any]:
    """The configurations of an autotuned kernel; [None] for a plain one."""
    return kernel.configs if hasattr(kernel, "configs") else [None]


def _write(b: Importer, given: _Given, request: KernelRequest, module: ModuleOp, writable: Any) -> dict[str, SSAValue]:
    """The call itself; the new value of each parameter among `writable` that the kernel writes to."""
    function = next(f for f in module.ops if isinstance(f, FuncOp) and f.is_kernel)
    written = written_arguments(function)
    operands: list[SSAValue] = []
    layouts: list[Attribute] = []
    template: list[Any] = []
    mutates: dict[str, int] = {}
    for k, parameter in enumerate(request.passed):
        value = given.values[parameter]
        if isinstance(value, Expr):
            template.append(value)
            continue
        if k in written and parameter in writable:
            mutates[parameter] = len(operands)
        tensor = given.tensors.get(parameter)
        layouts.append(UNIT if tensor is None else b.layout(b.sizes(tensor.stride())))
        template.append(Arg(len(operands)))
        operands.append(value)
    grid = tuple([int(e) if e.is_const else e for e in request.grid])
    call = Call(KERNEL_CALL, (b.add_kernel(module), grid, *template))
    results = write(b, operands, call, [], operand_layouts=layouts, mutates=list(mutates.values()))
    fresh = [place for parameter, place in mutates.items() if parameter in given.undefined]
    if fresh and results and isinstance(results[0].owner, nd.ExternOp):
        results[0].owner.attributes[UNDEFINED] = IntsAttr.get(fresh)
    return dict(zip(mutates, results, strict=True))


class _Given:
    """The arguments of one launch. `values`: SSA values (tensors, numbers of the run), sizes, and Python's values; `tensors`: torch's
    metadata of those that are tensors."""

    def __init__(self, b: Importer, sources: Mapping[str, Any]):
        self.b = b
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.integers: dict[str, Any] = {}
        """torch's sizes, by parameter."""
        self.undefined: set[str] = set()
        """Parameters whose tensors come from torch.empty and the like."""
        env = shape_env(b.gm)
        self.hints = {} if env is None else hints_of(env)
        for name, source in sources.items():
            self._add(name, source)

    def _add(self, name: str, source: Any) -> None:
        value = self.b.argument(source)
        val = source.meta.get("val") if isinstance(source, Node) else source
        if isinstance(val, torch.Tensor):
            if not isinstance(value, SSAValue) or not isinstance(value.type, TensorType):
                value = self.b.constant(val)
            if value.type.device.data != self.b.device or val.dtype not in _TYPES or val.layout != torch.strided:  # pyright: ignore[reportAttributeAccessIssue]
                raise NotLaunchable(f"'{name}' is a tensor of {val.dtype} on {val.device}")
            self.tensors[name] = val
            if isinstance(source, Node) and source.op == "call_function" and getattr(source.target, "overloadpacket", None) in _EMPTY:
                self.undefined.add(name)
        elif isinstance(val, torch.SymInt):
            self.integers[name] = val
        if isinstance(value, Expr) and value.is_const:
            value = int(value)
        if isinstance(value, SymScalar):
            value = scalar_number(self.b, value)
        if isinstance(value, ScalarValue):
            if value.kind == "bool":
                raise NotLaunchable(f"'{name}' is a bool of the run")
            value = value.value
        self.values[name] = value

    def request(self, kernel: Any, config: Any, grid: Sequence[Any]) -> KernelRequest:
        """One configuration; NotLaunchable where an argument is none of what launches pass."""
        function = kernel.fn if config is not None else kernel
        if not hasattr(function, "params") or hasattr(function, "configs"):
            raise NotLaunchable(f"it is a {type(function).__name__}")
        chosen = dict(config.kwargs) if config is not None else {}
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        fixed: dict[str, int | float | bool] = {}
        groups: dict[str, list[str]] = {"memory": [], "size": [], "number": []}
        for p in function.params:
            if p.name not in chosen and p.name not in self.values and not p.has_default:
                raise NotLaunchable(f"'{p.name}' is not given")
            value = chosen[p.name] if p.name in chosen else self.values.get(p.name, p.default if p.has_default else None)
            if p.is_constexpr or value is None or (type(value) is int and value == 1 and not p.do_not_specialize):
                if isinstance(value, (SSAValue, Expr)):
                    raise NotLaunchable(f"'{p.name}' is not known before the run")
                signature[p.name], constants[p.name] = "constexpr", value
                continue
            signature[p.name], group = self._type(p.name, value)
            if group:
                groups[group].append(p.name)
            else:
                fixed[p.name] = value
        if unknown := (self.values.keys() | chosen.keys()) - signature.keys():
            raise NotLaunchable(f"it has no parameter '{sorted(unknown)[0]}'")
        options = {o: n for o in OPTIONS if (n := getattr(config, o, None)) is not None}
        divisible = {n for n in groups["size"] if exact_quotient(self.values[n], as_expr(16)) is not None}
        label = ", ".join(f"{k}: {v}" for k, v in {**chosen, **options}.items())
        sizes = tuple([as_expr(self.b.argument(g)) for g in grid])
        passed = tuple([name for names in groups.values() for name in names])
        return KernelRequest(
            function, signature, constants, fixed, passed, frozenset((*groups["memory"], *divisible)), options, sizes, label
        )

    def _type(self, name: str, value: Any) -> tuple[str, str]:
        """Triton's type of an argument, and whether a launch passes it as memory, size or number ("": it stands in the kernel)."""
        if name in self.tensors:
            return "*" + _TYPES[self.tensors[name].dtype], "memory"
        if isinstance(value, Expr):
            return ("i32" if self._fits_i32(name) else "i64"), "size"
        if isinstance(value, SSAValue):
            return ("fp32" if str(value.type) == "f64" else "i64"), "number"
        if isinstance(value, bool):
            return "u1", ""
        if isinstance(value, int):
            return ("i32" if -I32_MAX <= value <= I32_MAX else "i64" if value < 2**63 else "u64"), ""
        if isinstance(value, float):
            return "fp32", ""
        raise NotLaunchable(f"'{name}' is a {type(value).__name__}")

    def _fits_i32(self, name: str) -> bool:
        """Whether a size is an i32 for Triton, which looks at each call's: here a guard of the graph says so, where there can be one."""
        val = self.integers.get(name)
        if val is None:
            return False
        fits = val <= I32_MAX
        if isinstance(fits, bool) or statically_known_true(fits):
            return bool(fits)
        env = val.node.shape_env
        return not free_unbacked_symbols(val) and not env.frozen and bool(fits)

    # ---- to measure with

    def typical(self, e: Expr) -> int:
        """A size by the examples of its symbols."""
        return evaluate(e, {s: self.hints.get(s, DEFAULT_SIZE) for s in free_syms(e)})

    def typical_grid(self, request: KernelRequest) -> tuple[int, ...]:
        """The grid of a configuration by the examples."""
        return tuple([self.typical(e) for e in request.grid])

    def samples(self, request: KernelRequest) -> list[Sample]:
        """What a launch passes, by the examples."""
        return [self._sample(name) for name in request.passed]

    def _sample(self, name: str) -> Sample:
        tensor, value = self.tensors.get(name), self.values[name]
        if tensor is None:
            return Sample(None, self.typical(value) if isinstance(value, Expr) else 1)
        sizes, strides = ([self.typical(e) for e in self.b.sizes(s)] for s in (tensor.shape, tensor.stride()))
        reach = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        floats = str(tensor.dtype).removeprefix("torch.") if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1 else ""
        return Sample(reach * tensor.dtype.itemsize, dtype=floats)
