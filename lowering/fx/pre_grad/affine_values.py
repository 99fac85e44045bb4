"""What the integer and boolean tensors of Dynamo's graph hold, where that is an affine function of the index.

Programs compute masks from `arange`, comparisons and broadcasting; what they come to is known while compiling, whatever the sizes are:

    q = torch.arange(n)[:, None]; k = torch.arange(n)[None, :]; q >= k      element (i, j) is i - j >= 0
    torch.arange(n) >= 0                                                    True everywhere

`AffineValues(graph)(node)` gives an `AffineValue` or None. Tensors that something in the graph writes to, and all that they are made
from, are unknown, and so are inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

_DTYPES = (torch.int64, torch.int32, torch.bool)

_IN_PLACE = frozenset(f"i{name.rstrip('_')}" for name in dir(operator) if name[0] != "_" and hasattr(operator, f"i{name.rstrip('_')}"))
_IN_PLACE |= {"setitem", "delitem"}
_PURE_NAMES = frozenset(("and_", "or_", "not_", "is_", "in_"))
"""Functions of `operator` whose names end as those of updates do."""


@dataclass(frozen=True)
class AffineValue:
    """`constant + sum(steps[d] * index[d])`; a boolean tensor holds whether that is at least 0. A dimension of size 1 has step 0."""

    constant: int
    steps: tuple[int, ...]

    @property
    def is_constant(self) -> bool:
        """Whether every element is the same."""
        return not any(self.steps)


def truth(value: AffineValue | None) -> bool | None:
    """What a boolean tensor holds everywhere; None where that differs or is not known."""
    return value.constant >= 0 if value is not None and value.is_constant else None


def tensor_of(node: Node) -> torch.Tensor | None:
    """The fake tensor of a node."""
    found = node.meta.get("example_value", node.meta.get("val"))
    return found if isinstance(found, torch.Tensor) else None


class AffineValues:
    """The values of one graph's tensors, found when they are asked for."""

    def __init__(self, graph: Graph):
        self._known: dict[Node, AffineValue | None] = {}
        self._written = _written(graph)

    def __call__(self, node: Any) -> AffineValue | None:
        """What the tensor of `node` holds, or None."""
        if not isinstance(node, Node):
            return None
        if node not in self._known:
            self._known[node] = None
            self._known[node] = self._find(node)
        return self._known[node]

    def _find(self, node: Node) -> AffineValue | None:
        made = tensor_of(node)
        if made is None or made.dtype not in _DTYPES or node in self._written:
            return None
        rule = _RULES.get(_name(node))
        found = rule(self, node, made) if rule is not None else None
        return None if found is None else _normal(found, made)


def _name(node: Node) -> str:
    """The name of a torch function, of one of `operator` or of a method; "" for anything else."""
    if node.op == "call_method":
        return str(node.target).strip("_")
    name = getattr(node.target, "__name__", "")
    ours = node.op == "call_function" and any(getattr(module, name, None) is node.target for module in (torch, operator))
    return name.strip("_") if ours else ""


def writes(node: Node) -> bool:
    """Whether a node may write to its arguments."""
    if node.op == "call_module" or "out" in node.kwargs:
        return True
    if node.op == "call_method":
        name = str(node.target)
        return name.endswith("_") if not name.startswith("__") else name.strip("_") in _IN_PLACE
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = getattr(node.target, "__name__", "")
    if getattr(operator, name, None) is node.target:
        return name in _IN_PLACE
    functional = (torch.nn.functional, torch._C._nn)  # pyright: ignore[reportAttributeAccessIssue]
    known = [place for place in (torch, *functional) if getattr(place, name, None) is node.target]
    if not known or (name.endswith("_") and name not in _PURE_NAMES):
        return True
    # a flag that is set may be `inplace`, which the functions of torch itself do not have
    return torch not in known and any(a is True for a in (*node.args, *node.kwargs.values()))


def _written(graph: Graph) -> set[Node]:
    """The nodes that an update may reach, with everything that they are made from: those may share their memory. What is made by
    arithmetic on floating point numbers shares none with integers."""
    worklist = [source for node in graph.nodes if writes(node) for source in node.all_input_nodes]
    found: set[Node] = set()
    while worklist:
        node = worklist.pop()
        made = tensor_of(node)
        if node in found or (made is not None and made.dtype not in _DTYPES and _name(node) != "view"):
            continue
        found.add(node)
        worklist.extend(node.all_input_nodes)
    return found


def _normal(value: AffineValue, made: torch.Tensor) -> AffineValue | None:
    """Steps of single elements as 0; conditions that hold everywhere or nowhere as constants."""
    if len(value.steps) != made.dim():
        return None
    sizes = list(made.shape)
    steps = tuple(0 if isinstance(n, int) and n <= 1 else s for s, n in zip(value.steps, sizes, strict=True))
    value = AffineValue(value.constant, steps)
    if made.dtype != torch.bool:
        return value
    low, high = _bounds(value, sizes)
    if low is not None and low >= 0:
        return AffineValue(0, (0,) * len(steps))
    return AffineValue(-1, (0,) * len(steps)) if high is not None and high < 0 else value


def _bounds(value: AffineValue, sizes: Sequence[Any]) -> tuple[int | None, int | None]:
    """The least and the greatest element; None where a size that is a symbol decides."""
    low: int | None = value.constant
    high: int | None = value.constant
    for step, size in zip(value.steps, sizes, strict=True):
        if step == 0:
            continue
        last = step * (size - 1) if isinstance(size, int) else None
        if step < 0:
            low = None if low is None or last is None else low + last
        else:
            high = None if high is None or last is None else high + last
    return low, high


# -- rules: (values, node, its fake tensor) -> AffineValue or None

_Rule = Callable[[AffineValues, Node, torch.Tensor], AffineValue | None]
_RULES: dict[str, _Rule] = {}


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    def note(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return note


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """What a call gives for a parameter, by its place or by its name."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)


def _same(value: Any, made: torch.Tensor) -> AffineValue | None:
    """A tensor filled with a number."""
    if not isinstance(value, int):
        return None
    return AffineValue(int(bool(value)) - 1 if made.dtype == torch.bool else int(value), (0,) * made.dim())


@_rule("arange")
def _arange(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    start, step = (node.args[0] if len(node.args) > 1 else 0), (node.args[2] if len(node.args) > 2 else 1)
    if not isinstance(start, int) or not isinstance(step, int) or set(node.kwargs) & {"start", "end", "step"}:
        return None
    return AffineValue(start, (step,)) if made.dtype != torch.bool else None


@_rule("ones", "new_ones", "ones_like")
def _ones(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    return _same(1, made)


@_rule("zeros", "new_zeros", "zeros_like")
def _zeros(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    return _same(0, made)


@_rule("full", "full_like")
def _full(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    return _same(argument(node, 1, "fill_value"), made)


@_rule("new_full")
def _new_full(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    return _same(argument(node, 2, "fill_value"), made)


def _operands(values: AffineValues, node: Node, made: torch.Tensor) -> tuple[AffineValue, AffineValue] | None:
    """Two operands of an integer operation, broadcast to the result's dimensions; a number stands for itself."""
    if len(node.args) != 2 or node.kwargs:
        return None
    found = [_operand(values, a, made.dim()) for a in node.args]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _operand(values: AffineValues, argument: Any, rank: int) -> AffineValue | None:
    if type(argument) is int:
        return AffineValue(argument, (0,) * rank)
    made = tensor_of(argument) if isinstance(argument, Node) else None
    value = values(argument)
    if value is None or made is None or made.dtype == torch.bool:
        return None
    return _broadcast(value, rank)


def _broadcast(value: AffineValue, rank: int) -> AffineValue:
    return AffineValue(value.constant, (0,) * (rank - len(value.steps)) + value.steps)


def _plus(a: AffineValue, b: AffineValue, factor: int = 1, constant: int = 0) -> AffineValue:
    """a + factor * b + constant."""
    return AffineValue(a.constant + factor * b.constant + constant, tuple(x + factor * y for x, y in zip(a.steps, b.steps, strict=True)))


@_rule("add", "sub")
def _sum(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    found = _operands(values, node, made)
    return None if found is None or made.dtype == torch.bool else _plus(*found, factor=1 if _name(node) == "add" else -1)


@_rule("mul")
def _product(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    found = _operands(values, node, made)
    for value, factor in (found, found[::-1]) if found is not None and made.dtype != torch.bool else ():
        if factor.is_constant:
            return AffineValue(value.constant * factor.constant, tuple(s * factor.constant for s in value.steps))
    return None


_COMPARED = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}
"""Comparison -> (sign, constant): a >= b is a - b >= 0, and so on."""


@_rule("ge", "gt", "le", "lt")
def _compared(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    found = _operands(values, node, made)
    if found is None:
        return None
    sign, constant = _COMPARED[_name(node)]
    return _plus(*found, factor=-1, constant=constant) if sign > 0 else _plus(found[1], found[0], factor=-1, constant=constant)


@_rule("eq", "ne")
def _equal(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    found = _operands(values, node, made)
    if found is None:
        return None
    difference = _plus(*found, factor=-1)
    low, high = _bounds(difference, list(made.shape))
    if difference.is_constant:
        equal = difference.constant == 0
    elif (low is not None and low > 0) or (high is not None and high < 0):
        equal = False
    else:
        return None
    return _same(equal == (_name(node) == "eq"), made)


def _conditions(values: AffineValues, node: Node) -> list[AffineValue | None]:
    made = [tensor_of(a) if isinstance(a, Node) else None for a in node.args]
    return [values(a) if t is not None and t.dtype == torch.bool else None for a, t in zip(node.args, made, strict=True)]


@_rule("and", "logical_and", "bitwise_and", "or", "logical_or", "bitwise_or")
def _joined(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    if len(node.args) != 2 or made.dtype != torch.bool:
        return None
    both, neutral = _conditions(values, node), "and" in _name(node)
    known = [None if v is None else _broadcast(v, made.dim()) for v in both]
    for one, other in (known, known[::-1]):
        if truth(one) is neutral:
            return other
        if truth(one) is (not neutral):
            return one
    return known[0] if known[0] == known[1] else None


@_rule("invert", "logical_not", "bitwise_not")
def _not(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    (value,) = _conditions(values, node)[:1] or [None]
    return None if value is None or made.dtype != torch.bool else AffineValue(-value.constant - 1, tuple(-s for s in value.steps))


@_rule("tril", "triu")
def _triangle(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    diagonal = argument(node, 1, "diagonal", 0)
    if made.dtype != torch.bool or truth(values(node.args[0])) is not True or type(diagonal) is not int:
        return None
    sign = 1 if _name(node) == "tril" else -1
    return AffineValue(sign * diagonal, (*(0,) * (made.dim() - 2), sign, -sign))


@_rule("to", "type", "long", "int", "bool", "contiguous", "clone", "detach", "alias")
def _cast(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    value, source = values(node.args[0]), tensor_of(node.args[0]) if isinstance(node.args[0], Node) else None
    if value is None or source is None or (source.dtype == torch.bool) == (made.dtype == torch.bool):
        return value
    if not value.is_constant:
        return None
    return _same(value.constant >= 0 if source.dtype == torch.bool else value.constant, made)


@_rule("expand", "expand_as", "broadcast_to")
def _expanded(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    value = values(node.args[0])
    return None if value is None else _broadcast(value, made.dim())


@_rule("unsqueeze")
def _unsqueezed(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    value, dim = values(node.args[0]), argument(node, 1, "dim")
    if value is None or type(dim) is not int:
        return None
    dim %= made.dim()
    return AffineValue(value.constant, (*value.steps[:dim], 0, *value.steps[dim:]))


@_rule("transpose")
def _transposed(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    value, dims = values(node.args[0]), (argument(node, 1, "dim0"), argument(node, 2, "dim1"))
    if value is None or not all(type(d) is int for d in dims):
        return None
    steps, (a, b) = list(value.steps), dims
    steps[a], steps[b] = steps[b], steps[a]
    return AffineValue(value.constant, tuple(steps))


@_rule("view", "reshape", "squeeze", "flatten")
def _reshaped(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    """Dimensions of size 1 come and go; any other change keeps constants only."""
    value, source = values(node.args[0]), tensor_of(node.args[0]) if isinstance(node.args[0], Node) else None
    if value is None or source is None or source.dtype != made.dtype:
        return None
    if value.is_constant:
        return AffineValue(value.constant, (0,) * made.dim())
    before = [(size_of(n), s) for n, s in zip(source.shape, value.steps, strict=True) if size_of(n) != 1]
    after = [size_of(n) for n in made.shape]
    if [n for n, _ in before] != [n for n in after if n != 1]:
        return None
    steps = iter(s for _, s in before)
    return AffineValue(value.constant, tuple(0 if n == 1 else next(steps) for n in after))


def size_of(n: Any) -> Any:
    """A size that can be compared without a guard."""
    return n if isinstance(n, int) else n.node.expr


@_rule("getitem")
def _item(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    source, index = node.args
    value, shape = values(source), tensor_of(source) if isinstance(source, Node) else None
    if value is None or shape is None:
        return None
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, Node) for i in index):
        return _gathered(values, value, index, made)
    taken = sum(i is not None and i is not Ellipsis for i in index)
    if not all(i is None or i is Ellipsis or type(i) is int or isinstance(i, slice) for i in index):
        return None
    constant, steps, d = value.constant, [], 0
    for i in index:
        if i is None:
            steps.append(0)
            continue
        if i is Ellipsis:
            steps += value.steps[d : d + shape.dim() - taken]
            d += shape.dim() - taken
            continue
        first = _first(i, shape.shape[d], value.steps[d])
        if first is None:
            return None
        constant += first * value.steps[d]
        if isinstance(i, slice):
            steps.append(value.steps[d])
        d += 1
    return AffineValue(constant, (*steps, *value.steps[d:]))


def _first(index: Any, size: Any, step: int) -> int | None:
    """The first index that an int or a slice takes; None where that is not known. Where nothing depends on it, it is 0."""
    if step == 0:
        return 0
    start = index.start if isinstance(index, slice) else index
    if isinstance(index, slice) and index.step not in (None, 1):
        return None
    start = 0 if start is None else start
    if type(start) is not int:
        return None
    if start >= 0:
        return start
    return max(start + size, 0) if isinstance(size, int) else None


def _gathered(values: AffineValues, value: AffineValue, index: Sequence[Any], made: torch.Tensor) -> AffineValue | None:
    """Elements taken by a tensor of indices for every dimension."""
    if value.is_constant:
        return AffineValue(value.constant, (0,) * made.dim())
    if len(index) != len(value.steps) or not all(isinstance(i, Node) for i in index):
        return None
    total = AffineValue(value.constant, (0,) * made.dim())
    for i, step in zip(index, value.steps, strict=True):
        if step == 0:
            continue
        place = _operand(values, i, made.dim())
        low = None if place is None else _bounds(place, list(made.shape))[0]
        if place is None or low is None or low < 0:
            return None
        total = _plus(total, place, factor=step)
    return total


@_rule("diff")
def _differences(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    value = values(node.args[0])
    dim, before = argument(node, 2, "dim", -1), argument(node, 3, "prepend")
    plain = argument(node, 1, "n", 1) == 1 and argument(node, 4, "append") is None and type(dim) is int
    if value is None or not plain or made.dtype == torch.bool:
        return None
    step = value.steps[dim]
    if before is not None:
        first, width = values(before), tensor_of(before)
        rest = tuple(s for d, s in enumerate(value.steps) if d != dim % made.dim())
        if first is None or width is None or size_of(width.shape[dim]) != 1:
            return None
        if first.constant != value.constant - step or tuple(s for d, s in enumerate(first.steps) if d != dim % made.dim()) != rest:
            return None
    return AffineValue(step, (0,) * made.dim())


@_rule("cumsum")
def _running_sum(values: AffineValues, node: Node, made: torch.Tensor) -> AffineValue | None:
    value, dim = values(node.args[0]), argument(node, 1, "dim")
    source = tensor_of(node.args[0]) if isinstance(node.args[0], Node) else None
    if value is None or source is None or not value.is_constant or type(dim) is not int:
        return None
    each = int(value.constant >= 0) if source.dtype == torch.bool else value.constant
    steps = [0] * made.dim()
    steps[dim] = each
    return AffineValue(each, tuple(steps))
