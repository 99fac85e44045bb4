"""Several implementations of an operator of users, one of which is chosen where the operator is called.

    @stepwell.register_implementation(torch.ops.engine.rms_norm.default, when=lambda call: call["x"].shape[-1] <= 8192)
    def one_block(x, weight, eps):
        return torch.ops.kernels.rms_norm_one_block(x, weight, eps)

From the first one on the operator stays a call in the graph, so that passes of users find it by name, alone or beside others. The pass
`select-implementations` then takes, of those whose condition holds, the one with the lowest price: the functions that were registered, and
what the operator means, if it has an import rule (`stepwell.register_rule`). Where none can be taken, the operator's own kernel is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import Expr
from ...dialects.nd.types import TensorType
from ...dialects.support.call_template import Arg, Call, Enum
from ...lowering.fx_to_nd.core.registry import KEPT, expanding, find_rule
from ...lowering.fx_to_nd.core.user_rules import RuleError, check_operator
from ...passes.analysis.symbols import symbol_hints
from ...passes.cost.library_cost import bytes_of, product_sizes
from ...passes.cost.machine import Machine, machine_of
from ...passes.manager import user
from ...passes.manager.errors import PassError
from ...passes.manager.pass_manager import Pass
from ..extensions.cache_keys import meaning
from .pair_trace import PatternTraceError, Ranges, Traced, examples, is_traceable, trace

MEANING = "its meaning"
"""What an operator's import rule is called beside the implementations."""


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator, as conditions and prices see it. `arguments`: by the names of the schema, tensors without memory that have
    sizes, element types and device of what is there, or numbers; `call["x"]` is short for `call.arguments["x"]`. `machine`: what the
    graph is compiled for. `bytes`: of all operands and results."""

    arguments: Mapping[str, Any]
    machine: Machine
    bytes: int

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def seconds(self) -> float:
        """The time in which operands and results go once through memory, and one kernel starts."""
        return _start(self.machine) + self.bytes / self.machine.bandwidth(self.bytes) * 1e-9


@dataclass(frozen=True)
class Implementation:
    """A way to compute an operator: `function` of its arguments, a condition, and a price in seconds."""

    name: str
    function: Callable[..., Any]
    when: Callable[[OperatorCall], Any] | None = None
    price: Callable[[OperatorCall], float] | None = None


@dataclass
class _Operator:
    overload: torch._ops.OpOverload
    implementations: list[Implementation] = field(default_factory=list)


_REGISTERED: dict[str, _Operator] = {}
"""Name of an overload -> what computes it."""


def register_implementation(
    operator: torch._ops.OpOverload,
    function: Callable[..., Any] | None = None,
    *,
    when: Callable[[OperatorCall], Any] | None = None,
    price: Callable[[OperatorCall], float] | None = None,
    name: str | None = None,
) -> Any:
    """Add a way to compute `operator`, an overload such as ``torch.ops.mylib.op.default``; also as a decorator.

    `function` takes the operator's arguments and gives its results, in ordinary torch code: other operators of yours, of torch, or both.
    `when(call)` says whether it serves a call (OperatorCall); without it, it serves all. `price(call)` is its time in seconds; without it,
    the time is estimated: kernels that are started, bytes and arithmetic of what the function calls. Of those that serve a call the
    cheapest is taken, the first of equal ones, the operator's rule before all. `name` (that of the function) stands in remarks;
    an implementation of the same name is replaced.

    Where nothing serves, the operator's own kernel is called; a function that calls the operator gives that kernel a condition and a price.

    Raises RuleError for what is no overload, or no function."""
    check_operator(operator)

    def register(given: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(given):
            raise RuleError(f"an implementation of {operator} is a function of its arguments, got {given!r}")
        for what, one in (("when", when), ("price", price)):
            if one is not None and not callable(one):
                raise RuleError(f"{what} of an implementation of {operator} is a function of a call, got {one!r}")
        known = _REGISTERED.setdefault(str(operator), _Operator(operator))
        added = Implementation(name or getattr(given, "__name__", str(given)), given, when, price)
        known.implementations = [one for one in known.implementations if one.name != added.name] + [added]
        KEPT.add(str(operator))
        user.register_pass("nd", SelectImplementations, position="before:nd-canonicalize")
        return given

    return register if function is None else register(function)


def unregister_implementations(operator: torch._ops.OpOverload) -> None:
    """Take all implementations of an operator out again. Raises RuleError if there is none."""
    if _REGISTERED.pop(str(operator), None) is None:
        raise RuleError(f"no implementation of {operator} is registered")
    KEPT.discard(str(operator))
    if not _REGISTERED:
        user.unregister_pass(SelectImplementations)


@dataclass(frozen=True)
class SelectImplementations(Pass):
    """Puts implementations in the place of calls of operators that have some."""

    name = "select-implementations"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raises PassError for an implementation that cannot be traced or gives other results than its operator."""
        selection = _Selection(self, op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            pending: list[tuple[Operation, frozenset[str]]] = [(o, frozenset()) for o in func.body.block.ops]
            while pending:  # an operator inside of its own implementation is its own kernel: this comes to an end
                found, inside = pending.pop()
                name = _name_of(found)
                if name in _REGISTERED and name not in inside:
                    pending += [(o, inside | {name}) for o in selection.put(found)]  # pyright: ignore[reportArgumentType]

    def identity(self) -> str:
        """All implementations, as text for keys of caches. Raises Uncacheable."""
        parts: list[str] = []
        for name, known in sorted(_REGISTERED.items()):
            for one in known.implementations:
                functions = [f for f in (one.function, one.when, one.price) if f is not None]
                parts += [name, one.name, *(meaning(f, f"'{one.name}' of {name}") for f in functions)]
        return " ".join(parts)


def _name_of(op: Operation) -> str:
    return op.call.data.target if isinstance(op, nd.ExternOp) else ""


class _Selection:
    """What is chosen for the calls of one module."""

    def __init__(self, owner: Pass, module: ModuleOp):
        table, numerics = module.attributes.get("nd.symbols"), module.attributes.get("nd.numerics")
        self.owner = owner
        self.ranges: Ranges = table.data if isinstance(table, DictionaryAttr) else {}  # pyright: ignore[reportAttributeAccessIssue]
        self.numerics = numerics.data if isinstance(numerics, StringAttr) else "default"
        self.hints, self.machine = symbol_hints(module), machine_of(module)

    def put(self, op: nd.ExternOp) -> list[Operation]:
        """Compute a call by what is cheapest; the new operations. None where its own kernel is called."""
        known, types = _REGISTERED[_name_of(op)], [v.type for v in op.operands]
        if not all(isinstance(t, TensorType) and is_traceable(t) for t in types) or any(isinstance(v, Expr) for v in op.call.data.leaves()):
            self.owner.remark(op, "its own kernel: an argument is a number that is computed when it runs", "missed")
            return []
        priced: list[tuple[float, str, Traced]] = []
        for one in self._candidates(known):
            traced = self._traced(op, known, one, types)
            if traced is not None:
                priced.append((self._price(op, known, one, traced), one.name, traced))
        if not priced:
            self.owner.remark(op, "its own kernel: no implementation serves this call", "missed")
            return []
        seconds, name, chosen = min(priced, key=lambda p: p[0])
        others = "".join(f", {other} {other_seconds * 1e6:.3g} us" for other_seconds, other, _ in priced if other != name)
        self.owner.remark(op, f"{name}, {seconds * 1e6:.3g} us{others}", "applied")
        self.owner.statistic("num-selected")
        return _inline(op, chosen)

    def _candidates(self, known: _Operator) -> list[Implementation]:
        rule = find_rule(known.overload)
        return [*([Implementation(MEANING, known.overload)] if rule is not None else []), *known.implementations]

    def _call(self, op: nd.ExternOp, known: _Operator) -> tuple[OperatorCall, Callable[[], str]]:
        """A call for conditions and prices, and what says which conditions on sizes were decided by example since."""
        made, decided = examples([v.type for v in op.operands], self.ranges)  # pyright: ignore[reportArgumentType]
        args, kwargs = _arguments(op.call.data, made)
        schema = known.overload._schema.arguments
        named = {a.name: a.default_value for a in schema if a.has_default_value()}
        named |= {a.name: value for a, value in zip(schema, args, strict=False)} | kwargs
        size = sum(bytes_of(v, self.hints) for v in (*op.operands, *op.results))
        return OperatorCall(named, self.machine, size), decided

    def _traced(self, op: nd.ExternOp, known: _Operator, one: Implementation, types: Sequence[Any]) -> Traced | None:
        """An implementation for a call; None where it does not serve it."""
        if one.when is not None:
            call, decided = self._call(op, known)
            serves = self._asked(op, one, one.when, call)
            if conditions := decided():
                self.owner.remark(op, f"not {one.name}: its condition asks whether {conditions}, which is not known of all sizes", "missed")
                return None
            if not serves:
                return None

        def called(*tensors: torch.Tensor) -> Any:
            args, kwargs = _arguments(op.call.data, tensors)
            return one.function(*args, **kwargs)

        try:
            with expanding(str(known.overload) if one.name == MEANING else ""):
                traced = trace(called, tuple(types), self.ranges, self.numerics)
        except PatternTraceError as error:
            raise PassError(f"implementation '{one.name}' of {known.overload} cannot be traced: {error}", op=op) from error
        if traced.decided:
            self.owner.remark(op, f"not {one.name}: it is another one for other sizes: it asks whether {traced.decided}", "missed")
            return None
        wanted = [r.type for r in op.results]
        if traced.output_types != wanted:
            told = [", ".join(map(str, ts)) for ts in (traced.output_types, wanted)]
            raise PassError(f"implementation '{one.name}' of {known.overload} returns {told[0]}, not {told[1]}", op=op)
        return traced

    def _price(self, op: nd.ExternOp, known: _Operator, one: Implementation, traced: Traced) -> float:
        """Seconds of an implementation."""
        if one.price is None:
            return estimate(traced, self.machine, self.hints)
        seconds = self._asked(op, one, one.price, self._call(op, known)[0])
        if not isinstance(seconds, (int, float)) or not isfinite(seconds) or seconds < 0:
            raise PassError(f"the price of '{one.name}' is {seconds!r}, not a number of seconds", op=op)
        return float(seconds)

    def _asked(self, op: nd.ExternOp, one: Implementation, function: Callable[[OperatorCall], Any], call: OperatorCall) -> Any:
        try:
            answer = function(call)
            return bool(answer) if function is one.when else answer
        except Exception as error:
            what = "condition" if function is one.when else "price"
            raise PassError(f"the {what} of '{one.name}' failed: {type(error).__name__}: {error}", op=op) from error


def estimate(traced: Traced, machine: Machine, hints: Mapping[str, int]) -> float:
    """Seconds of a traced function: what is not a call is one kernel over arguments and results; each call is a kernel of its own."""
    pattern = traced.plain
    calls = [op for op in pattern.ops if isinstance(op, (nd.ExternOp, nd.MatmulOp, nd.ConvOp))]
    computes = any(op not in calls and not isinstance(op, nd.ViewOp) for op in pattern.ops)
    seconds = _roof([*pattern.inputs, *pattern.outputs], 0.0, machine, hints) if computes else 0.0
    for op in calls:
        sizes = product_sizes(op, hints) if isinstance(op, nd.ExternOp) else None
        seconds += _roof([*op.operands, *op.results], 2.0 * _product(sizes) if sizes else 0.0, machine, hints)
    return seconds


def _product(sizes: Sequence[int]) -> float:
    batch, rows, columns, terms = sizes
    return float(batch * rows * columns * terms)


def _roof(values: Sequence[SSAValue], flops: float, machine: Machine, hints: Mapping[str, int]) -> float:
    moved = sum(bytes_of(v, hints) for v in values)
    return _start(machine) + max(moved / machine.bandwidth(moved), flops / machine.gflops) * 1e-9


def _start(machine: Machine) -> float:
    """Seconds that starting a kernel takes."""
    return machine.start_ns * 1e-9


def _arguments(call: Call, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as torch takes them, with these tensors as its operands."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Arg):
            return tensors[value.index]
        if isinstance(value, tuple):
            return [leaf(v) for v in value]
        if isinstance(value, Enum):
            return torch.device(value.value) if value.kind == "device" else getattr(torch, value.value)
        return value

    return [leaf(v) for v in call.args], {key: leaf(v) for key, v in call.kwargs}


def _inline(op: nd.ExternOp, traced: Traced) -> list[Operation]:
    """Put the body of a traced function in the place of a call; its operations."""
    block, pattern = op.parent, traced.plain
    assert block is not None
    mapper: dict[SSAValue, SSAValue] = dict(zip(pattern.inputs, op.operands, strict=True))
    new: list[Operation] = []
    for inner in pattern.ops:
        copy = inner.clone(mapper)
        copy.location = op.location
        block.insert_op_before(copy, op)
        new.append(copy)
    for old, result in zip(op.results, pattern.outputs, strict=True):
        old.replace_all_uses_with(mapper[result])
    op.detach()
    op.erase()
    return new
