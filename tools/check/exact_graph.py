"""Runs an FX graph beside itself: in float64, in its own types, and several times in float64 with rounding errors drawn at random.

The float64 run says what is right. The spread of the drawn runs says how far from it right code may end: a value's own rounding, and
what the errors of its operands explain, through cancellation, comparisons of nearly equal values and long sums (rounding.py).
Nothing here knows what compiled code does; `judge.py` compares.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from .rounding import MOVES, TIES, Noise, unit_of

SAMPLES = 6
"""Runs with rounding errors at random."""

MARGIN = 32
"""How many times the spread of the drawn runs an error may have. The largest of six normal numbers is below an eighth of their deviation
once in a million times."""

EXACT, EAGER = 0, 1
RUNS = 2 + SAMPLES
"""Each value is a list: in float64, in its own types, then the drawn runs."""

WIDER_TYPE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip

_names = str.split
STEPS = frozenset(
    _names(
        "floor ceil round trunc sign sgn frac fmod remainder floor_divide heaviside sort topk kthvalue median mode threshold_backward "
        "hardtanh_backward hardshrink hardshrink_backward softshrink_backward max_pool2d_with_indices_backward elu_backward "
        "leaky_relu_backward hardswish_backward hardsigmoid_backward grid_sampler_2d fake_quantize_per_tensor_affine_cachemask "
        "fake_quantize_per_channel_affine_cachemask cummax cummin"
    )
)
"""Operators that may jump where their operands change a little, beside those that make integers of other numbers. """

CONTRACTIONS = {"mm": 1, "bmm": 2, "addmm": 1, "baddbmm": 2, "mv": 1, "dot": 0, "linear": 1, "_int_mm": 1}
"""Operator -> the dimension of its last but one operand that is summed over."""

SCANS = frozenset(_names("cumsum cumprod logcumsumexp _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data"))
"""Operators whose results have the sizes of their operands, and whose elements are sums along a dimension."""


@dataclass
class Bound:
    """What a tensor is to be. exact: in float64 (integers as they are); eager: in its own type; spread: how far the drawn runs came from
    `exact`, element by element (1 where an integer may be another)."""

    exact: torch.Tensor
    eager: torch.Tensor
    spread: torch.Tensor


class ExactGraph:
    """One evaluation of `gm` on `inputs`, which are not changed.

    `known`: values of nodes that are not computed, random numbers above all."""

    def __init__(self, gm: GraphModule, inputs: Sequence[Any], known: Mapping[Node, Any] | None = None, seed: int = 0):
        self.gm, self.inputs, self.known = gm, inputs, known or {}
        self.noise = Noise(seed)
        self.env: dict[Node, list[Any]] = {}
        self.updates: dict[Node, Node] = {}
        """Placeholder -> the node whose value it is given."""

    def run(self, wanted: set[Node]) -> dict[Node, Any]:
        """The bounds of the nodes `wanted`: a Bound for a tensor, a list of them for several, a number for a number."""
        found: dict[Node, Any] = {}
        nodes = list(self.gm.graph.nodes)
        last: dict[Node, Node] = {}
        for node in nodes:
            for used in node.all_input_nodes:
                last[used] = node
        places = iter(self.inputs)
        for node in nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                self.env[node] = widened_runs(next(places))
            elif node in self.known:
                self.env[node] = self.drawn(node)
            else:
                self.env[node] = self.value(node)
            if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
                self.updates[node.args[0]] = node
            if node in wanted:
                found[node] = bound_of(self.env[node])
            for used in {*node.all_input_nodes, node}:
                if last.get(used, node) is node and used in self.env:
                    del self.env[used]
        return found

    def drawn(self, node: Node) -> list[Any]:
        """The runs of a node that draws random numbers; dropout takes its mask from there."""
        known = self.known[node]
        if operator_name(node) != "native_dropout":
            return widened_runs(known)
        mask, scale = known[1], 1 / (1 - float(node.args[1])) if float(node.args[1]) < 1 else 0.0  # pyright: ignore[reportArgumentType]
        runs = self.env[node.args[0]]  # pyright: ignore[reportArgumentType]
        kept = [(x * mask * scale, mask) for x in runs]
        kept[2:] = [(self._rounded(x, runs[EAGER], 1.0), mask) for x, _ in kept[2:]]
        return kept

    def value(self, node: Node) -> list[Any]:
        """The runs of one node, whose operands have been run."""
        if node.op == "get_attr":
            owner: Any = self.gm
            for part in str(node.target).split("."):
                owner = getattr(owner, part)
            return widened_runs(owner) if isinstance(owner, torch.Tensor) else [owner] * RUNS
        operands = [self.env[n] for n in node.all_input_nodes]
        return self.apply(node, operands)

    def apply(self, node: Node, operands: Sequence[list[Any]]) -> list[Any]:
        """The runs of a node on runs of its operands (in the order of `all_input_nodes`)."""
        place = {n: k for k, n in enumerate(node.all_input_nodes)}
        name = operator_name(node)
        mutates = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable

        def call(run: int, values: Sequence[Any], wide: bool) -> Any:
            if mutates:  # runs share what is the same in all of them
                values = pytree.tree_map_only(torch.Tensor, torch.clone, list(values))
            args, kwargs = _plain(map_arg((node.args, dict(node.kwargs)), lambda n: values[place[n]]))
            if wide:
                args, kwargs = _widened_arguments(name, args, kwargs)
            with torch.no_grad():
                return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

        eager_operands = [o[EAGER] for o in operands]
        eager = call(EAGER, eager_operands, False)
        if chooses(node):
            return self._chosen(node, operands[0], eager, call)
        if node.target is operator.getitem or not _has_inexact(eager) and not any(_has_inexact(o[EAGER]) for o in operands):
            if all(o[EXACT] is o[EAGER] for o in operands):
                return [eager] * RUNS
            return [call(k, [o[k] for o in operands], False) for k in range(RUNS)]
        if is_undefined(node):
            return self._undefined(eager)
        narrow = isinstance(node.target, torch._ops.HigherOrderOperator) or _in_own_types(node, eager)
        exact = None
        if not narrow:
            try:
                exact = call(EXACT, [o[EXACT] for o in operands], True)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                narrow = True
        if narrow:
            exact = self._narrow(call, EXACT, operands)
        runs = [exact, eager]
        terms = _terms(node, [o[EAGER] for o in operands], eager)
        jumps = name in STEPS or (_has_exact(eager) and any(_has_inexact(o[EAGER]) for o in operands))
        for k in range(SAMPLES):
            values = [o[2 + k] for o in operands]
            if jumps:
                values = [self._shifted(o, v, k, j) for j, (o, v) in enumerate(zip(operands, values, strict=True))]
            if terms > 1:
                grown = math.sqrt(terms) * (1 + math.log2(terms) / 8)
                values = [self._rounded(v, o[EAGER], grown, compute=True) for o, v in zip(operands, values, strict=True)]
            if narrow:
                value = self._narrow(call, 2 + k, [[v] * RUNS if o is None else [v, o[EAGER], *[v] * SAMPLES]
                                                   for v, o in zip(values, operands, strict=True)])  # fmt: skip
            else:
                value = call(2 + k, values, True)
            runs.append(value if name in MOVES else self._rounded(value, eager, 1.0, exact=exact))
        return runs

    def _chosen(self, node: Node, operand: list[Any], eager: Any, call: Callable[..., Any]) -> list[Any]:
        """The runs of an operator that gives places of elements, of which equal ones may be taken for each other."""
        at = TIES[operator_name(node)]
        dim: Any = node.kwargs.get("dim", node.args[at] if len(node.args) > at else -1)
        runs: list[Any] = [call(EXACT, [operand[EXACT]], True), eager]
        for k in range(SAMPLES):
            value = self._shifted(operand, operand[2 + k], k, 0)
            values, places = call(2 + k, [value], True)
            runs.append((values, self._tied(value, values, places, dim, k) if value.dim() and value.numel() else places))
        return runs

    def _tied(self, operand: torch.Tensor, values: torch.Tensor, places: torch.Tensor, dim: int, sample: int) -> torch.Tensor:
        """Places of elements that equal those of `values`: the first, the last, or any of them."""
        single = values.dim() < operand.dim()
        if operand.dtype == torch.bool:
            operand, values = operand.byte(), values.byte()
        v = (values.unsqueeze(dim) if single else values).movedim(dim, -1).contiguous()
        p = (places.unsqueeze(dim) if single else places).movedim(dim, -1)
        ordered, order = operand.movedim(dim, -1).contiguous().sort(dim=-1, stable=True)
        low, high = torch.searchsorted(ordered, v), torch.searchsorted(ordered, v, right=True) - 1
        part = (self.noise.uniform(v) + 1) / 2 if sample > 1 else torch.full(v.shape, float(sample), dtype=torch.float64, device=v.device)
        which = (low + ((high - low) * part).round().long()).clamp(max=ordered.shape[-1] - 1)
        chosen = torch.where(high > low, order.gather(-1, which), p).movedim(-1, dim)
        return chosen.squeeze(dim) if single else chosen

    def _narrow(self, call: Callable[..., Any], run: int, operands: Sequence[list[Any]]) -> Any:
        """An operator that is not there for float64, or that looks at bits: on operands rounded to their own types."""
        values = [_like(o[run], o[EAGER]) for o in operands]
        return pytree.tree_map_only(torch.Tensor, _wide, call(run, values, False))

    def _undefined(self, eager: Any) -> list[Any]:
        """Memory that nobody has written: anything."""
        if not _has_inexact(eager):
            return [eager] * RUNS
        zeros = _wide(torch.zeros_like(eager))
        return [zeros, torch.zeros_like(eager), *(zeros + (-1.0) ** k * 1e300 for k in range(SAMPLES))]

    # ---- rounding errors

    def _rounded(self, value: Any, own: Any, factor: float, exact: Any = None, compute: bool = False) -> Any:
        """Values with a relative error of up to `factor` units of the last place of their type (of the type that sums are made in, with
        `compute`); what the type holds exactly is not rounded."""
        if isinstance(value, (tuple, list)):
            exacts = exact if isinstance(exact, (tuple, list)) else [None] * len(value)
            return type(value)(self._rounded(v, o, factor, e, compute) for v, o, e in zip(value, own, exacts, strict=True))
        if not _is_inexact(value) or not isinstance(own, torch.Tensor):
            return value
        unit = 2.0**-52 if own.dtype in (torch.float64, torch.complex128) else 2.0**-23 if compute else unit_of(own.dtype)
        held = None
        if isinstance(exact, torch.Tensor) and own.dtype in WIDER_TYPE:
            held = exact.to(own.dtype).to(exact.dtype) == exact
        return value * self.noise.factors(value, factor * unit, held)

    def _shifted(self, runs: list[Any], value: Any, sample: int, position: int) -> Any:
        """Operands of an operator that may jump, moved as far as a right value may be; the first two runs move all of them to one side
        and to the other."""
        if not _is_inexact(value) or isinstance(value, (tuple, list)) or value.is_complex():
            return value
        spread = spread_of(runs).nan_to_num(0.0, 0.0, 0.0)
        if not bool(spread.any()):
            return value
        side = self.noise.uniform(value).sign() if sample > 1 else (-1.0) ** (sample + position)
        return value + side * MARGIN * spread


# ---- runs of one value


def widened_runs(value: Any) -> list[Any]:
    """A value that is known exactly, in each run."""
    wide = pytree.tree_map_only(torch.Tensor, _wide, value)
    return [wide, value, *[wide] * SAMPLES]


def bound_of(runs: list[Any]) -> Any:
    """The Bound of a tensor's runs; a list of them for several tensors, the value for other things."""
    if isinstance(runs[EAGER], (tuple, list)):
        return [bound_of([run[k] for run in runs]) for k in range(len(runs[EAGER]))]
    if not isinstance(runs[EAGER], torch.Tensor):
        return runs[EAGER]
    return Bound(_parts(runs[EXACT]), _parts(runs[EAGER]), spread_of(runs))


def spread_of(runs: list[Any]) -> torch.Tensor:
    """How far the drawn runs of a tensor are from the exact one."""
    exact = _parts(runs[EXACT])
    spread = torch.zeros(exact.shape, dtype=torch.float64, device=exact.device)
    for value in runs[2:]:
        if value is runs[EXACT]:
            continue
        drawn = _parts(value)
        if not exact.is_floating_point():
            spread = torch.maximum(spread, (drawn != exact).double())
            continue
        same = (drawn == exact) | (drawn.isnan() & exact.isnan())
        distance = (drawn - exact).abs().masked_fill(same, 0.0).nan_to_num(math.inf, math.inf, math.inf)
        spread = torch.maximum(spread, distance)
    return spread


def operator_name(node: Node) -> str:
    """An operator's name without namespace and overload."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else getattr(node.target, "__name__", str(node.target))


def chooses(node: Node) -> bool:
    """Whether a node gives places of elements, and may take equal ones for each other."""
    return operator_name(node) in TIES and not node.kwargs.get("stable") and isinstance(node.meta.get("val"), (tuple, list))


def is_undefined(node: Node) -> bool:
    """Whether a node gives memory that nobody has written."""
    return operator_name(node).startswith(("empty", "new_empty"))


def _parts(value: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of real numbers."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _wide(value: torch.Tensor) -> torch.Tensor:
    """A copy in float64 with the strides of the tensor, so that views of its memory are the same; integers as they are."""
    dtype = WIDER_TYPE.get(value.dtype, torch.float64 if value.is_floating_point() else None)
    if dtype is None or value.dtype == dtype or value.layout != torch.strided:
        return value if dtype is None or value.dtype == dtype else value.to(dtype)
    value = value.detach()
    if any(size > 1 and step == 0 for size, step in zip(value.shape, value.stride(), strict=True)):
        return value.to(dtype)
    return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device).copy_(value)


def _like(value: Any, own: Any) -> Any:
    """`value` in the types that `own` has."""
    if isinstance(value, (tuple, list)):
        return type(value)(_like(v, o) for v, o in zip(value, own, strict=True))
    if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor) and value.dtype != own.dtype:
        return torch.empty_like(own).copy_(value) if own.layout == torch.strided and own.shape == value.shape else value.to(own.dtype)
    return value


def _plain(value: Any) -> Any:
    """FX's immutable lists and dictionaries as common ones, as operators written in Python want them."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    for leaf in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(leaf, (tuple, list)):
            yield from _leaves(leaf)
        elif isinstance(leaf, torch.Tensor):
            yield leaf


def _is_inexact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _has_inexact(value: Any) -> bool:
    return any(map(_is_inexact, _leaves(value)))


def _has_exact(value: Any) -> bool:
    return any(not _is_inexact(leaf) for leaf in _leaves(value))


def _in_own_types(node: Node, eager: Any) -> bool:
    """Whether an operator looks at bits, or makes 8-bit floats, where rounding is what it is for."""
    if node.target is torch.ops.aten.view.dtype or "scaled_mm" in str(node.target):
        return True
    return any(leaf.is_floating_point() and leaf.dtype.itemsize == 1 for leaf in _leaves(eager))


def _widened_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an operator with float64 in place of narrower types."""

    def wide(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(wide(v) for v in value)
        return WIDER_TYPE.get(value, value) if isinstance(value, torch.dtype) else value

    if name in ("_softmax", "_log_softmax") and len(args) == 3:
        args = (*args[:2], False)  # half_to_float
    return tuple(map(wide, args)), {key: wide(value) for key, value in kwargs.items()}


def _terms(node: Node, operands: Sequence[Any], result: Any) -> int:
    """How many terms an element of the result is a sum of, as far as the sizes tell; their order is not fixed."""
    name = operator_name(node)
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) or name in MOVES:
        return 1
    tensors = [t for o in operands for t in _leaves(o)]
    if name in CONTRACTIONS and tensors:
        left, axis = tensors[max(len(tensors) - 2, 0)], CONTRACTIONS[name]
        return max(2, left.shape[axis] if axis < left.dim() else 2)
    if "convolution" in name:
        return max(16, *(t.numel() // max(min(t.shape[:2]), 1) for t in tensors if t.dim() > 1))
    smallest = min((leaf.numel() for leaf in _leaves(result) if leaf.numel()), default=1)
    most = max((t.numel() for t in tensors), default=1)
    if name in SCANS:
        return max(16, max(tensors[0].shape, default=1))
    return max(16, most // max(smallest, 1))
