"""Runs an `nd` module through torch, op by op: the meaning of the level, for tests, `opt-tool --run` and translation
validation.

Slow and plain on purpose: one short function an op, in the words of the op's docstring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import Expr, evaluate, free_syms, to_python
from ...dialects.loop.batch import BatchOp
from ...dialects.nd.base import prop
from ...dialects.nd.call_args import KERNEL_CALL, Arg, Enum, Obj
from ...dialects.nd.pointwise import OPS, BitcastOp, CastOp, CmpOp, FmaOp, MapOp, SelectOp
from ...dialects.nd.types import LayoutAttr, TensorType, tensor_type
from ...dialects.support.special import ORTHOGONAL_POLYNOMIALS
from ...lowering.fx.philox import random_numbers
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from ...passes.analysis.weighed_calls import TARGET as WEIGHED
from ...passes.nd.quantised.int4_row_calls import TARGET as INT4_ROWS
from ...targets.host.interpreted.python_runtime import reinterpret
from .batch import run_batch, run_call
from .errors import InterpreterError
from .int4_rows import run_int4_rows
from .kernels import run_user_kernel
from .remainders import fmod, remainder
from .weighed import run_weighed

State = dict[SSAValue, Any]


class NdInterpreter:
    """One run: the values of SSA values and of size symbols."""

    def __init__(self, objects: Sequence[Any] = ()):
        self.values: State = {}
        self.symbols: dict[str, int] = {}
        self.objects = objects
        self.updates: list[tuple[torch.Tensor, torch.Tensor]] = []

    # ---- sizes

    def bind(self, size: Expr, value: int) -> None:
        """Let a plain symbol be the size that a tensor has."""
        names = free_syms(size)
        if len(names) == 1 and size is next(iter(names)) and str(size) not in self.symbols:
            self.symbols[str(size)] = int(value)

    def bind_tensor(self, value: SSAValue, tensor: torch.Tensor) -> None:
        """Bind the symbols of a tensor type, and check the sizes."""
        kind = value.type
        if not isinstance(kind, TensorType):
            return
        for size, actual in zip(kind.dims, tensor.shape, strict=True):
            self.bind(size, actual)

    def size(self, e: Expr) -> int:
        """The value of a size expression."""
        return evaluate(e, self.symbols)

    def shape(self, value: SSAValue) -> tuple[int, ...]:
        return tuple(self.size(d) for d in value.type.dims)  # pyright: ignore[reportAttributeAccessIssue]

    # ---- ops

    def nested(self, func: FuncOp) -> NdInterpreter:
        """An interpreter for a function that this one calls."""
        return NdInterpreter(self.objects)

    def run(self, op: Operation) -> None:
        """Run one op and note its results."""
        rule = _RULES.get(type(op))
        if rule is None:
            raise InterpreterError(f"the nd interpreter does not know {op.name}")
        results = rule(self, op, *[self.values[o] for o in op.operands])
        if len(op.results) == 1 and not isinstance(results, tuple):
            results = (results,)
        for value, result in zip(op.results, results or (), strict=True):
            self._check(op, value, result)
            self.values[value] = result

    def _check(self, op: Operation, value: SSAValue, result: Any) -> None:
        if not isinstance(value.type, TensorType):
            return
        if isinstance(op, nd.ExternOp) and not value.uses:
            return  # torch does not always know the sizes of results that nobody reads
        self.bind_tensor(value, result)
        if tuple(result.shape) != self.shape(value) or result.dtype != _torch_dtype(value):
            raise InterpreterError(
                f"{op.name}: the type says {value.type}, the value is {result.dtype}{list(result.shape)}\n  {op}"
            )


def _torch_dtype(value: SSAValue) -> torch.dtype:
    return TORCH_DTYPES[value.type.element_type]  # pyright: ignore[reportAttributeAccessIssue]


def run_nd(
    module: ModuleOp,
    inputs: Sequence[Any],
    constants: Sequence[Any] = (),
    objects: Sequence[Any] = (),
    name: str | None = None,
) -> list[Any]:
    """Run the function `name` (the first one) of an nd module.

    inputs: tensors and numbers, one an argument that is no constant; tensors that the function updates are written.
    Returns the function's results; those marked as views of an argument are that argument's memory, as the caller would
    get them. Raises InterpreterError where a value does not have its type."""
    return _execute(NdInterpreter(objects), module, [*inputs, *constants], name)


def run_imported(imported: Any, inputs: Sequence[Any], run: NdInterpreter | None = None) -> list[Any]:
    """Run what the importer gave (an `Imported`) on the inputs of the FX graph; returns the outputs of the FX graph. `run` is the
    interpreter to do it, which has the values of all operations afterwards."""
    run = run or NdInterpreter(imported.objects)
    results = _execute(run, imported.module, [*(inputs[k] for k in imported.inputs), *imported.constants], None)
    made = {"result": lambda v: results[v], "constant": lambda v: v, "expr": run.size}
    return [made[output.kind](output.value) for output in imported.outputs]


def _execute(run: NdInterpreter, module: ModuleOp, given: list[Any], name: str | None) -> list[Any]:
    func = next(f for f in module.ops if isinstance(f, FuncOp) and name in (None, f.sym_name.data))
    if len(given) != len(func.body.block.args):
        raise InterpreterError(
            f"@{func.sym_name.data} takes {len(func.body.block.args)} arguments, {len(given)} were given"
        )
    _bind_arguments(run, func, given)
    with torch.no_grad():
        for op in func.body.block.ops:
            if isinstance(op, ReturnOp):
                return _results(run, func, op, given)
            run.run(op)
    raise InterpreterError(f"@{func.sym_name.data} does not return")


def _bind_arguments(run: NdInterpreter, func: FuncOp, given: Sequence[Any]) -> None:
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    for k, (arg, value) in enumerate(zip(func.body.block.args, given, strict=True)):
        symbol = attrs[k].data.get("nd.symbol") if k < len(attrs) else None
        if symbol is not None:
            run.bind(symbol.data, value)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(value, torch.Tensor):
            run.bind_tensor(arg, value)
        run.values[arg] = value.detach() if isinstance(value, torch.Tensor) else value


def _results(run: NdInterpreter, func: FuncOp, op: ReturnOp, given: Sequence[Any]) -> list[Any]:
    results: list[Any] = [run.values[v] for v in op.arguments]
    if run.updates:  # a result that is a view of an argument has its value before the updates
        results = [r.clone() if isinstance(r, torch.Tensor) else r for r in results]
    for target, value in run.updates:
        target.copy_(value)
    attrs = func.res_attrs.data if func.res_attrs is not None else ()
    for k, attr in enumerate(attrs):
        layout, alias = attr.data.get("nd.layout"), attr.data.get("nd.alias")
        if layout is None or not isinstance(results[k], torch.Tensor):
            continue
        strides = [run.size(s) for s in layout.stride_exprs]  # pyright: ignore[reportAttributeAccessIssue]
        if alias is not None:
            kind, place = alias.data.split()  # pyright: ignore[reportAttributeAccessIssue]
            base = given[int(place)] if kind == "arg" else results[int(place)]
            offset = run.size(layout.offset_expr)  # pyright: ignore[reportAttributeAccessIssue]
            results[k] = reinterpret(base, tuple(results[k].shape), tuple(strides), results[k].dtype, offset)
        else:
            fresh = torch.empty_strided(results[k].shape, strides, dtype=results[k].dtype, device=results[k].device)
            results[k] = fresh.copy_(results[k])
    return results


# ---- rules

Rule = Callable[..., Any]
_RULES: dict[type[Operation], Rule] = {}


def _on(*classes: type[Operation]) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        for cls in classes:
            _RULES[cls] = fn
        return fn

    return register


def _number(attr: Any) -> int | float:
    return attr.value.data


# creation


@_on(nd.FullOp)
def _full(run: NdInterpreter, op: Any) -> torch.Tensor:
    dtype = _torch_dtype(op.result)
    value = _number(op.value)
    return torch.full(run.shape(op.result), bool(value) if dtype == torch.bool else value, dtype=dtype)


@_on(nd.SizeOp)
def _size(run: NdInterpreter, op: Any) -> torch.Tensor:
    return torch.tensor(run.size(op.value.data), dtype=_torch_dtype(op.result))


@_on(nd.ScalarOp)
def _scalar(run: NdInterpreter, op: Any, x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=_torch_dtype(op.result))


@_on(nd.IotaOp)
def _iota(run: NdInterpreter, op: Any) -> torch.Tensor:
    shape = run.shape(op.result)
    (dim,) = prop(op, "dim")
    line = torch.arange(shape[dim]).to(_torch_dtype(op.result))
    return line.reshape([-1 if k == dim else 1 for k in range(len(shape))]).expand(shape)


@_on(nd.LiteralOp)
def _literal(run: NdInterpreter, op: Any) -> torch.Tensor:
    values = [_number(v) for v in op.values.data]
    return torch.tensor(values).to(_torch_dtype(op.result)).reshape(run.shape(op.result))


@_on(nd.RandomOp)
def _random(run: NdInterpreter, op: Any, seeds: torch.Tensor) -> torch.Tensor:
    (site,) = prop(op, "index")
    shape = run.shape(op.result)
    numbers = random_numbers(prop(op, "kind"), int(seeds[2 * site]), int(seeds[2 * site + 1]) & -16, math.prod(shape))
    return numbers.to(_torch_dtype(op.result)).reshape(shape)


# views


@_on(nd.ReshapeOp)
def _reshape(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x.reshape(run.shape(op.result))


@_on(nd.PermuteOp)
def _permute(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x.permute(prop(op, "dims"))


@_on(nd.ExpandOp)
def _expand(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x.expand(run.shape(op.result))


def _slices(run: NdInterpreter, op: Any, shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """For each dimension the positions starts + i * steps, ready to index with."""
    starts, steps = (list(map(run.size, prop(op, name))) for name in ("starts", "steps"))
    rank = len(shape)
    lines = [start + step * torch.arange(n) for start, step, n in zip(starts, steps, shape, strict=True)]
    return tuple(line.reshape([-1 if k == d else 1 for k in range(rank)]) for d, line in enumerate(lines))


@_on(nd.SliceOp)
def _slice(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x[_slices(run, op, run.shape(op.result))] if x.dim() else x


@_on(nd.FlipOp)
def _flip(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x.flip(prop(op, "dims"))


@_on(nd.IndexViewOp)
def _view(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    shape = run.shape(op.result)
    grid = [
        torch.arange(n).reshape([-1 if k == d else 1 for k in range(len(shape))]).expand(shape)
        for d, n in enumerate(shape)
    ]
    index = tuple(_tensor_value(run, e, grid, shape) for e in op.map.data.results)
    if any(i.numel() and (int(i.min()) < 0 or int(i.max()) >= n) for i, n in zip(index, x.shape, strict=True)):
        raise InterpreterError(f"nd.view: the map leaves the operand of sizes {list(x.shape)}: {op}")
    return x[index] if index else x.expand(shape)


def _tensor_value(run: NdInterpreter, e: Expr, grid: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """An index expression over whole dimensions at once."""
    scope: dict[str, Any] = {"min": _minimum, "max": _maximum}
    for k, line in enumerate(grid):
        scope[f"d{k}"] = line
    for name, value in run.symbols.items():
        scope[name] = value
    value = eval(to_python(e), {}, scope)  # noqa: S307 - the text of our own integer expression
    return value if isinstance(value, torch.Tensor) else torch.full(tuple(shape), value)


def _minimum(*xs: Any) -> Any:
    return _extreme(torch.minimum, min, xs)


def _maximum(*xs: Any) -> Any:
    return _extreme(torch.maximum, max, xs)


def _extreme(tensors: Any, numbers: Any, xs: Sequence[Any]) -> Any:
    if not any(isinstance(x, torch.Tensor) for x in xs):
        return numbers(xs)
    result = torch.as_tensor(xs[0])
    for x in xs[1:]:
        result = tensors(result, torch.as_tensor(x))
    return result


# joining


@_on(nd.CatOp)
def _cat(run: NdInterpreter, op: Any, *xs: torch.Tensor) -> torch.Tensor:
    return torch.cat(xs, prop(op, "dim")[0])


@_on(nd.PadOp)
def _pad(run: NdInterpreter, op: Any, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    low, high = (list(map(run.size, prop(op, name))) for name in ("low", "high"))
    result = value.expand(run.shape(op.result)).clone()
    inside, source = [], []
    for a, b, n in zip(low, high, x.shape, strict=True):
        inside.append(slice(max(a, 0), max(a, 0) + n + min(a, 0) + min(b, 0)))
        source.append(slice(max(-a, 0), n - max(-b, 0)))
    result[tuple(inside)] = x[tuple(source)]
    return result


@_on(nd.SliceScatterOp)
def _slice_scatter(run: NdInterpreter, op: Any, base: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    result = base.clone()
    result[_slices(run, op, source.shape)] = source
    return result


# reductions and scans


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _product(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The product of floats without a partial result that overflows: of halves and their exponents, pair by pair."""
    half, exponent = torch.frexp(x.double().movedim(dim, -1))
    exponent = exponent.sum(-1)
    while half.shape[-1] > 1:
        half = F.pad(half, (0, half.shape[-1] % 2), value=1.0)
        half, more = torch.frexp(half[..., ::2] * half[..., 1::2])
        exponent = exponent + more.sum(-1)
    one = half[..., 0] if half.shape[-1] else torch.ones(half.shape[:-1], dtype=half.dtype)
    exponent = exponent.clamp(-2200, 2200).double()
    return torch.ldexp(torch.ldexp(one, (exponent / 2).floor()), (exponent / 2).ceil()).to(x.dtype)


def _neutral(kind: str, dtype: torch.dtype) -> float | int:
    """What the maximum or minimum of nothing is."""
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


@_on(nd.ReduceOp)
def _reduce(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    dims, kind, dtype = list(prop(op, "dims")), prop(op, "kind"), _torch_dtype(op.result)
    if kind == "sum":
        wide = x.to(dtype) if torch.empty((), dtype=dtype).element_size() > x.element_size() else _wide(x)
        return wide.sum(dims, dtype=dtype if not wide.is_floating_point() else None).to(dtype)
    if kind == "prod":
        result = x.to(dtype) if torch.empty((), dtype=dtype).element_size() > x.element_size() else _wide(x)
        for d in sorted(dims, reverse=True):
            result = _product(result, d) if result.is_floating_point() else result.prod(d, dtype=dtype)
        return result.to(dtype)
    if kind in ("max", "min"):
        if any(x.shape[d] == 0 for d in dims):
            return torch.full(run.shape(op.result), _neutral(kind, dtype), dtype=dtype)
        return (x.amax(dims) if kind == "max" else x.amin(dims)).to(dtype)
    if kind in ("any", "all"):
        result = x
        for d in sorted(dims, reverse=True):
            result = result.any(d) if kind == "any" else result.all(d)
        return result.to(dtype)
    combine = _BITWISE[kind]
    for d in sorted(dims, reverse=True):
        total = torch.zeros_like(x.select(d, 0))
        for part in x.unbind(d):
            total = combine(total, part)
        x = total
    return x


_BITWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"xor": torch.bitwise_xor}
"""Reductions bit by bit, whose value of nothing is 0."""


def _flattened(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The reduced dimensions as one last dimension."""
    rest = [d for d in range(x.dim()) if d not in dims]
    return x.permute(rest + list(dims)).reshape([x.shape[d] for d in rest] + [math.prod(x.shape[d] for d in dims)])


@_on(nd.ArgReduceOp)
def _arg_reduce(run: NdInterpreter, op: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    flat = _flattened(x, prop(op, "dims"))
    index = flat.argmax(-1) if prop(op, "kind") == "argmax" else flat.argmin(-1)
    if flat.is_floating_point():  # the first NaN wins
        nan = flat.isnan()
        index = torch.where(nan.any(-1), nan.to(torch.int8).argmax(-1), index)
    best = flat.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    same = (flat == best.unsqueeze(-1)).to(torch.int8)  # the first among equals
    index = torch.where(best.isnan(), index, same.argmax(-1)) if flat.is_floating_point() else same.argmax(-1)
    return best, index


@_on(nd.VarMeanOp)
def _var_mean(run: NdInterpreter, op: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    correction = op.correction.value.data
    var, mean = torch.var_mean(_wide(x), list(prop(op, "dims")), correction=correction)
    return var.to(_torch_dtype(op.var)), mean.to(_torch_dtype(op.mean))


@_on(nd.ScanOp)
def _scan(run: NdInterpreter, op: Any, x: torch.Tensor) -> Any:
    (dim,), kind = prop(op, "dim"), prop(op, "kind")
    if kind in ("max", "min"):
        result = torch.cummax(x, dim) if kind == "max" else torch.cummin(x, dim)
        return result.values, result.indices
    if kind == "sort":
        return x.sort(dim).values
    fn = {"sum": torch.cumsum, "prod": torch.cumprod, "logsumexp": torch.logcumsumexp}[kind]
    return fn(_wide(x), dim).to(x.dtype)


# indexing


def _checked(index: torch.Tensor, size: int, wrap: bool) -> torch.Tensor:
    index = index.to(torch.int64)
    if wrap:
        index = torch.where(index < 0, index + size, index)
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
        raise IndexError(f"index out of range for a dimension of size {size}")
    return index


def _places(op: Any, x: torch.Tensor, indices: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    place: list[Any] = [slice(None)] * x.dim()
    for d, index in zip(prop(op, "dims"), indices, strict=True):
        place[d] = _checked(index, x.shape[d], "wrap" in op.properties)
    return tuple(place)


@_on(nd.IndexOp)
def _index(run: NdInterpreter, op: Any, x: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    return x[_places(op, x, indices)]


@_on(nd.GatherOp)
def _gather(run: NdInterpreter, op: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    (dim,) = prop(op, "dim")
    return x.gather(dim, _checked(index, x.shape[dim], False))


@_on(nd.ScatterOp)
def _scatter(
    run: NdInterpreter, op: Any, base: torch.Tensor, index: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    (dim,), mode = prop(op, "dim"), prop(op, "mode")
    index = _checked(index, base.shape[dim], False)
    if mode == "set":
        return base.scatter(dim, index, source)
    kind = {"add": "sum", "prod": "prod", "max": "amax", "min": "amin"}[mode]
    return base.scatter_reduce(dim, index, source, kind, include_self=True)


@_on(nd.IndexPutOp)
def _index_put(
    run: NdInterpreter, op: Any, base: torch.Tensor, values: torch.Tensor, *indices: torch.Tensor
) -> torch.Tensor:
    result = base.clone()
    place = _places(op, base, indices)
    if prop(op, "mode") == "set":
        result[place] = values
        return result
    keys = [None if isinstance(p, slice) else p for p in place]
    return torch.ops.aten.index_put_(result, keys, values, True)


# contractions


@_on(nd.MatmulOp)
def _matmul(run: NdInterpreter, op: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dtype = TORCH_DTYPES[tensor_type(op.result).element_type]
    return (_wide(a.to(dtype)) @ _wide(b.to(dtype))).to(dtype)


@_on(nd.ConvOp)
def _conv(
    run: NdInterpreter, op: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    numbers = [list(prop(op, name)) for name in ("stride", "padding", "dilation")]
    transposed = "transposed" in op.properties
    return torch.ops.aten.convolution(
        x, weight, bias, *numbers, transposed, list(prop(op, "output_padding")), prop(op, "groups")[0]
    )


# what runs elsewhere


@_on(BatchOp)
def _batch(run: NdInterpreter, op: BatchOp, *values: Any) -> Any:
    return run_batch(run, op)


@_on(CallOp)
def _call(run: NdInterpreter, op: CallOp, *values: Any) -> Any:
    return run_call(run, op)


@_on(nd.ExternOp)
def _extern(run: NdInterpreter, op: Any, *operands: Any) -> Any:
    call = op.call.data
    values = _with_layouts(run, op, operands)
    mutated = list(prop(op, "mutates") or ())
    for k in mutated:
        if isinstance(values[k], torch.Tensor):
            values[k] = _copy_with_strides(values[k])
    args, kwargs = call_arguments(run, call, values)
    if call.target == "py":
        fn, args = args[0], args[1:]
        result = fn(*args)
    elif call.target == KERNEL_CALL:
        result = run_user_kernel(op, args)
    elif call.target == WEIGHED:
        result = run_weighed(run, op, call, values)
    elif call.target == INT4_ROWS:
        result = run_int4_rows(call, values)
    else:
        result = find_operator(call.target)(*args, **kwargs)
    own = [leaf for leaf in _flat(result) if leaf is not None][: len(op.results) - len(mutated)]
    for value, leaf in zip(op.results, own, strict=False):
        if "binds" in op.properties and not isinstance(leaf, torch.Tensor):
            run.symbols[prop(op, "binds")] = int(leaf)
        if isinstance(leaf, torch.Tensor):
            run.bind_tensor(value, leaf)
    return (*own, *(values[k] for k in mutated))


def _copy_with_strides(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _with_layouts(run: NdInterpreter, op: Any, operands: Sequence[Any]) -> list[Any]:
    """Operands with the strides that the call must see."""
    given: Any = op.properties.get("operand_layouts")
    layouts = given.data if given is not None else [None] * len(operands)
    values: list[Any] = []
    for value, layout in zip(operands, layouts, strict=True):
        if isinstance(layout, LayoutAttr) and isinstance(value, torch.Tensor):
            strides = [run.size(s) for s in layout.stride_exprs]  # pyright: ignore
            if value.layout == torch.strided and list(value.stride()) != strides:
                value = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
        values.append(value)
    return values


def call_arguments(run: NdInterpreter, call: Any, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The Python arguments of a call template."""

    def fill(item: Any) -> Any:
        if isinstance(item, tuple):
            return [fill(i) for i in item]
        if isinstance(item, Arg):
            return values[item.index]
        if isinstance(item, Obj):
            return run.objects[item.index]
        if isinstance(item, Expr):
            return run.size(item)
        if isinstance(item, Enum):
            return torch.device(item.value) if item.kind == "device" else getattr(torch, item.value)
        return item

    return [fill(a) for a in call.args], {k: fill(v) for k, v in call.kwargs}


def find_operator(target: str) -> Any:
    """`aten.add.Tensor` as torch's overload."""
    namespace, rest = target.split(".", 1)
    name, overload = rest.rsplit(".", 1)
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def _flat(result: Any) -> list[Any]:
    return [leaf for item in result for leaf in _flat(item)] if isinstance(result, (tuple, list)) else [result]


@_on(nd.UpdateOp)
def _update(run: NdInterpreter, op: Any, target: torch.Tensor, value: torch.Tensor) -> tuple[()]:
    run.updates.append((target, value.clone()))
    return ()


@_on(nd.BarrierOp)
def _barrier(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x


# ---- pointwise: torch's function of the same meaning

_SPECIAL = (
    "i0e i1 i1e ndtri log_ndtr erfcx bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 "
    "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 "
    "airy_ai zeta"
).split()


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in OPS if hasattr(torch, name)},
    **{name: getattr(torch.special, name) for name in (*_SPECIAL, *ORTHOGONAL_POLYNOMIALS)},
    "i0": torch.i0,
    "ndtri": torch.special.ndtri,
    "igamma": torch.special.gammainc,
    "igammac": torch.special.gammaincc,
    "div": torch.true_divide,
    "mul": torch.mul,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "fmod": fmod,
    "remainder": remainder,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "not": torch.bitwise_not,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "nextafter": torch.nextafter,
}

_COMPARE = {name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _pointwise(fn: Callable[..., torch.Tensor]) -> Rule:
    def apply(run: NdInterpreter, op: Any, *operands: torch.Tensor) -> torch.Tensor:
        if fn is not torch.nextafter:  # low precision is computed in f32 and rounded
            operands = tuple(map(_wide, operands))
        result = fn(*operands).to(_torch_dtype(op.result))
        return result.expand(run.shape(op.result))

    return apply


for _name, _cls in OPS.items():
    if _name in _FUNCTIONS:
        _RULES[_cls] = _pointwise(_FUNCTIONS[_name])


@_on(CmpOp)
def _cmp(run: NdInterpreter, op: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _COMPARE[prop(op, "predicate")](a, b)


@_on(SelectOp)
def _select(run: NdInterpreter, op: Any, condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, a, b)


@_on(FmaOp)
def _fma(run: NdInterpreter, op: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(c.expand(run.shape(op.result)), a, b)


@_on(CastOp)
def _cast(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x.to(_torch_dtype(op.result))


@_on(BitcastOp)
def _bitcast(run: NdInterpreter, op: Any, x: torch.Tensor) -> torch.Tensor:
    return x.view(_torch_dtype(op.result))


@_on(MapOp)
def _map(run: NdInterpreter, op: Any, *xs: torch.Tensor) -> torch.Tensor:
    name = prop(op, "fn")
    fn = getattr(torch, name, None) or getattr(torch.special, name, None)
    if fn is None:
        raise InterpreterError(f"nd.map: torch has no function {name}")
    return fn(*xs).to(_torch_dtype(op.result))
