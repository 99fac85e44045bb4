"""Tensors of torch's quantised types (`torch.quantize_per_tensor`) as integers with their scale and zero point kept beside.

Torch's fake kernels say that such tensors are float32, so that no compiler can go by what AOTAutograd traces of them. In the graph of
Dynamo they are still recognised: what makes one gives its integers instead, what only moves it moves those, and what gives floats or
integers again is computed from them, by arithmetic that fuses with its surroundings. Results of the graph are made quantised tensors
after the program has run. Dynamo takes no quantised inputs: what reads them runs without a graph."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import getitem
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from .affine_values import tensor_of

aten = torch.ops.aten
_with_integers = torch._make_per_tensor_quantized_tensor  # pyright: ignore[reportPrivateImportUsage]

_MAKERS = frozenset([torch.quantize_per_tensor, aten.quantize_per_tensor.default, aten.quantize_per_tensor.tensor_qparams])
_PARAMETERS = ("input", "scale", "zero_point", "dtype")
_INTEGERS: dict[Any, torch.dtype] = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
_BACK = frozenset(["dequantize", torch.dequantize, aten.dequantize.self])
_READ = frozenset(["int_repr", torch.int_repr, aten.int_repr.default])
_RELU = frozenset(["relu", torch.relu, F.relu, aten.relu.default])
_LARGEST = frozenset([torch.max_pool2d, F.max_pool2d])
_MOVES = frozenset(
    """view reshape flatten unflatten transpose permute t contiguous clone squeeze unsqueeze select narrow expand detach chunk split unbind
    movedim swapaxes""".split()
)


@dataclass(frozen=True)
class Quantised:
    """What is beside the integers of a quantised tensor: its type, numbers or 0-d tensors, and the node that quantised it."""

    dtype: Any
    scale: Any
    zero_point: Any
    origin: Node


def has_quantised(gm: GraphModule) -> bool:
    """Whether a graph, or a subgraph of it, makes a quantised tensor."""
    return any(n.target in _MAKERS for m in gm.modules() if isinstance(m, GraphModule) for n in m.graph.nodes if n.op == "call_function")


def as_integers(gm: GraphModule) -> Callable[[Sequence[Any]], list[Any]] | None:
    """Rewrite the quantised tensors of a graph of Dynamo's; the result makes its outputs of the tuple that the graph then returns. None,
    and nothing is changed, where an operator does with a quantised tensor what only torch's kernels can."""
    found = _quantised(gm)
    if found is None:
        return None
    for node, about in found.items():
        _rewrite(node, about)
    for node in gm.graph.nodes:
        if node.op in ("call_method", "call_function") and node.target in _BACK | _READ and node.args[0] in found:
            about = found[node.args[0]]
            floats = node.target in _BACK
            node.op, node.target = "call_function", _dequantise if floats else torch.clone
            node.args, node.kwargs = (node.args[0], about.scale, about.zero_point) if floats else (node.args[0],), {}
    rebuild = _outputs(gm, found)
    gm.recompile()
    return rebuild


def _quantised(gm: GraphModule) -> dict[Node, Quantised] | None:
    """The nodes whose values are quantised, or tuples of such; None where one is used in another way than this file knows."""
    found: dict[Node, Quantised] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in _MAKERS:
            about = _made(node)
            if about is None:
                return None
            found[node] = about
        elif node.op == "output":
            if not isinstance(node.args[0], (tuple, list)) or any(n in found and _is_moved(n) for n in node.args[0]):
                return None  # results that are views
        elif sources := [n for n in node.all_input_nodes if n in found]:
            if node.args[:1] != (sources[0],) or len(sources) > 1 or not _is_known(node, found[sources[0]]):
                return None
            if node.target not in _BACK | _READ:
                found[node] = found[sources[0]]
    return None if any(has_quantised(m) for m in gm.children() if isinstance(m, GraphModule)) else found


def _made(node: Node) -> Quantised | None:
    given: dict[str, Any] = {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
    source = given.get("input")
    value = tensor_of(source) if isinstance(source, Node) else None
    if given.keys() != set(_PARAMETERS) or given["dtype"] not in _INTEGERS:
        return None
    if value is None or value.dtype != torch.float32 or value.device.type != "cpu":
        return None
    return Quantised(given["dtype"], given["scale"], given["zero_point"], node)


def _is_known(node: Node, about: Quantised) -> bool:
    """Whether what a node does with its first argument, which is quantised, can be done with the integers."""
    target = node.target
    if target in _BACK | _READ:
        return len(node.args) == 1 and not node.kwargs
    if target in _RELU:
        return len(node.args) == 1 and not node.kwargs.get("inplace")
    if target in _LARGEST:
        return about.dtype != torch.qint32 and node.kwargs.get("return_indices") is not True
    if target is getitem:
        return not isinstance(node.args[1], Node)
    name = target if node.op == "call_method" else getattr(target, "__name__", "") if target in _FUNCTIONS else ""
    return name in _MOVES


_FUNCTIONS = frozenset(f for name in _MOVES if (f := getattr(torch, name, None)) is not None)


def _is_moved(node: Node) -> bool:
    return node.target not in _MAKERS | _RELU | _LARGEST


def _rewrite(node: Node, about: Quantised) -> None:
    """Let a node that gave a quantised tensor give its integers."""
    node.meta.pop("example_value", None)  # it says that the type is float32
    if node is about.origin:
        given = {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
        node.target, node.args, node.kwargs = _quantise, tuple(given[name] for name in _PARAMETERS), {}
    elif node.target in _RELU:
        node.op, node.target, node.args, node.kwargs = "call_function", _relu, (node.args[0], about.zero_point), {}
    elif node.target in _LARGEST:
        node.target = _max_pool2d


def _outputs(gm: GraphModule, found: dict[Node, Quantised]) -> Callable[[Sequence[Any]], list[Any]]:
    """Have the graph return scales and zero points that are tensors too; the result makes the quantised tensors."""
    node = gm.graph.output_node()
    values: list[Any] = list(node.args[0])  # pyright: ignore[reportArgumentType]
    count = len(values)
    made: list[tuple[int, Any, Any]] = []

    def place(value: Any) -> Callable[[Sequence[Any]], Any]:
        if not isinstance(value, Node):
            return lambda results: value
        values.append(value)
        at = len(values) - 1
        return lambda results: results[at]

    for k, value in enumerate(values[:count]):
        if value in found:
            made.append((k, place(found[value].scale), place(found[value].zero_point)))
    node.args = (tuple(values),)

    def rebuild(results: Sequence[Any]) -> list[Any]:
        outputs = list(results[:count])
        for k, scale, zero_point in made:
            outputs[k] = _with_integers(outputs[k], float(scale(results)), int(zero_point(results)))
        return outputs

    return rebuild


# -- what the nodes become
# ----------------------------------------------------------------------------------------------------


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def _dense(x: torch.Tensor) -> torch.Tensor:
    """As torch's kernels lay out what they give."""
    return x.contiguous(memory_format=suggest_memory_format(x))


def _quantise(x: torch.Tensor, scale: Any, zero_point: Any, dtype: Any) -> torch.Tensor:
    """The integers of a quantised tensor, rounded as torch's kernels do."""
    integers = _INTEGERS[dtype]
    x = _dense(x.detach())
    if isinstance(scale, torch.Tensor):
        scaled = x * scale.reshape(()).to(torch.float32).reciprocal()
    else:
        scaled = x * _float32(1.0 / _float32(scale))
    if isinstance(zero_point, torch.Tensor):
        zero_point = zero_point.reshape(()).to(torch.float32)
    rounded = torch.round(scaled + zero_point) if _adds_before_it_rounds() else torch.round(scaled) + zero_point
    limits = torch.iinfo(integers)
    if integers == torch.int32:
        return rounded.double().nan_to_num(limits.min).clamp(limits.min, limits.max).to(integers)
    return rounded.nan_to_num(limits.max).clamp(limits.min, limits.max).to(integers)


@cache
def _adds_before_it_rounds() -> bool:
    """Whether this build of torch adds the zero point to the float (builds with FBGEMM do), not to the integer: halves show it."""
    with _disable_current_modes(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that these types are deprecated
        return torch.quantize_per_tensor(torch.tensor([0.5]), 1.0, 1, torch.qint8).int_repr().item() == 2


def _dequantise(integers: torch.Tensor, scale: Any, zero_point: Any) -> torch.Tensor:
    if isinstance(scale, torch.Tensor):
        scale = scale.reshape(()).to(torch.float32)
    integers = _dense(integers)
    return (integers.to(torch.int32) - _zero(integers, zero_point, torch.int32)).to(torch.float32) * scale


def _relu(integers: torch.Tensor, zero_point: Any) -> torch.Tensor:
    return torch.maximum(_dense(integers), _zero(integers, zero_point, integers.dtype))


def _zero(integers: torch.Tensor, zero_point: Any, dtype: torch.dtype) -> Any:
    """The zero point as a 0-d tensor."""
    if isinstance(zero_point, torch.Tensor):
        return zero_point.reshape(()).to(dtype)
    return torch.full((), zero_point, dtype=dtype, device=integers.device)


def _max_pool2d(integers: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return F.max_pool2d(integers.to(torch.float32), *args, **kwargs).to(integers.dtype)
