"""Import rules of users, for operators of theirs or in place of ours.

    @stepwell.register_rule(torch.ops.mylib.shifted_relu.default)
    def shifted_relu(b, x, shift=0.0):
        return b.op("maximum", b.sub(x, shift), 0.0)

A rule is written as ours are (registry.py). What it gives is compared with what torch says of the operator's results, and what it raises
is the user's mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from ....dialects.nd.types import TensorType
from ....errors import UserError, of_user
from . import registry
from .registry import Rule

if TYPE_CHECKING:
    from .importer import Importer

R = TypeVar("R", bound=Rule)

_COMPOSITE = "CompositeImplicitAutograd"
"""The dispatch key of kernels that torch traces through."""
_PLAIN = (bool, int, float, complex, str)


class RuleError(UserError):
    """A rule that cannot serve its operator, or that gave something else than the operator's results."""


_REGISTERED: dict[str, Rule] = {}
"""Name of an overload ("mylib.op.default") -> the user's function. An operator that a notebook defines again is another object of that
name."""


def register_rule(operator: torch._ops.OpOverload, *, replace: bool = False) -> Callable[[R], R]:
    """Decorates a rule that writes the operations of `operator`, an overload such as ``torch.ops.mylib.op.default``, from now on.

    The rule is called as ``rule(b, *args, **kwargs)`` with the operator's arguments, nodes replaced by values of the IR. It gives back
    the value (a tuple of them for several results), or NotImplemented where torch is to run the operator. With `replace` it takes the
    place of a rule that the operator has. Gradients are those that the operator has in torch; their operators have rules of their own.

    What torch.compile has compiled stays as it is. Raises RuleError for what is no overload, an operator that no graph holds, a second rule
    without `replace`, and a function that cannot be called with the operator's arguments."""
    check_operator(operator)

    def register(function: R) -> R:
        from .. import load_rules

        _check_function(operator, function)
        load_rules()
        old = _REGISTERED.get(str(operator))
        if not replace and registry.find_rule(operator) is not None and not (old is not None and _is_again(old, function)):
            owner = "stepwell" if old is None else f"'{old.__module__}'"
            raise RuleError(f"{operator} has a rule of {owner}; register_rule(..., replace=True) puts yours in its place")
        _REGISTERED[str(operator)] = function
        registry.rule(str(operator))(_guarded(operator, function))
        return function

    return register


def unregister_rule(operator: torch._ops.OpOverload | str) -> None:
    """Take the rule of an operator (or its name) out again; one of stepwell's comes back. Raises RuleError if none is registered."""
    if str(operator) not in _REGISTERED:
        known = ", ".join(_REGISTERED)
        raise RuleError(f"no rule of {operator} is registered" + (f"; there are rules of: {known}" if known else ""))
    del _REGISTERED[str(operator)]
    registry.forget(str(operator))


def registered() -> Mapping[str, Rule]:
    """The rules of users, by the names of the overloads."""
    return _REGISTERED


def _is_again(old: Rule, new: Rule) -> bool:
    """Whether a function is what a module, or a cell of a notebook, defines when it runs once more."""
    names = [(getattr(f, "__module__", None), getattr(f, "__qualname__", None)) for f in (old, new)]
    return names[0] == names[1] and None not in names[0]


# ---- mistakes that are seen at once


def check_operator(operator: Any) -> None:
    """Raises RuleError for what no graph can hold as one functional operator."""
    if not isinstance(operator, torch._ops.OpOverload):
        if isinstance(operator, torch._ops.OpOverloadPacket):
            overloads = " or ".join(f"torch.ops.{operator}.{name}" for name in operator.overloads())
            raise RuleError(f"register_rule takes one overload of {operator}: {overloads}")
        own = getattr(operator, "_opoverload", None)  # what torch.library.custom_op gives
        hint = f"torch.ops.{own}" if own is not None else "such as torch.ops.mylib.op.default"
        raise RuleError(f"register_rule takes an overload, {hint}, got {operator!r}")
    schema = operator._schema
    if schema.is_mutable:
        written = ", ".join(f"'{a.name}'" for a in schema.arguments if a.is_write)
        raise RuleError(f"{operator} writes to its argument {written}; graphs are functional: write a rule of an operator that does not")
    if not schema.returns:
        raise RuleError(f"{operator} returns nothing that a rule could compute")
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _COMPOSITE):
        raise RuleError(
            f"no graph holds {operator}: torch traces through its kernel ({_COMPOSITE}); register that for devices or for "
            "CompositeExplicitAutograd, or write rules of the operators that it calls"
        )


def _check_function(operator: torch._ops.OpOverload, function: Any) -> None:
    if not callable(function) or isinstance(function, type):
        raise RuleError(f"the rule of {operator} is a function, got {function!r}")
    name = _name(function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RuleError(f"the rule '{name}' of {operator} gives values back; it is a generator or a coroutine")
    if name == "<lambda>" and not _has_source(function):
        raise RuleError(f"the rule of {operator} is a lambda without source, which no message can name; write it as a function")
    signature = _signature(operator, function)
    arguments = operator._schema.arguments
    given = [a for a in arguments if not a.kwarg_only], [a.name for a in arguments if a.kwarg_only]
    needed = [a for a in given[0] if not a.has_default_value()], [a.name for a in arguments if a.kwarg_only and not a.has_default_value()]
    for positional, named in (given, needed):
        try:
            signature.bind(None, *positional, **dict.fromkeys(named))
        except TypeError as error:
            said = " with all arguments" if positional is given[0] and given != needed else ""
            raise RuleError(
                f"the rule '{name}' of {operator} cannot be called{said}: {error}; "
                f"it takes the importer and the arguments of {operator._schema}"
            ) from None
    _check_defaults(operator, signature, name)


def _signature(operator: torch._ops.OpOverload, function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RuleError(f"the rule '{_name(function)}' of {operator} has no signature: {error}") from error


def _check_defaults(operator: torch._ops.OpOverload, signature: inspect.Signature, name: str) -> None:
    """A graph leaves out arguments that are the operator's defaults: the rule's must not say something else."""
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]
    positional = [a for a in operator._schema.arguments if not a.kwarg_only]
    pairs = list(zip(places, positional, strict=False))
    pairs += [(signature.parameters[a.name], a) for a in operator._schema.arguments if a.kwarg_only and a.name in signature.parameters]
    for parameter, argument in pairs:
        mine, own = parameter.default, argument.default_value
        if isinstance(mine, _PLAIN) and isinstance(own, _PLAIN) and mine != own:
            raise RuleError(
                f"the rule '{name}' of {operator}: '{parameter.name}' is {mine!r} by default, the operator's '{argument.name}' is {own!r}"
            )


def _has_source(function: Any) -> bool:
    try:
        return bool(inspect.getsourcelines(function))
    except (OSError, TypeError):
        return False


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]


# ---- mistakes that are seen when a rule is called


def _guarded(operator: torch._ops.OpOverload, function: Rule) -> Rule:
    """A rule, followed by a check: operations that hold together, as many results as the operator has, of its sizes."""

    @wraps(function)
    def run(b: Importer, *args: Any, **kwargs: Any) -> Any:
        start = len(b.ops)
        with of_user():
            given = function(b, *args, **kwargs)
        if given is not NotImplemented:
            _check_operations(b, operator, _name(function), b.ops[start:])
            _check_results(b, operator, _name(function), given)
        return given

    return run


def _check_operations(b: Importer, operator: torch._ops.OpOverload, name: str, written: Sequence[Operation]) -> None:
    for op in written:
        try:
            op.verify()
        except VerifyException as error:
            raise RuleError(f"the rule '{name}' of {operator} wrote a wrong '{op.name}': {error}{_line(b)}") from error


def _check_results(b: Importer, operator: torch._ops.OpOverload, name: str, given: Any) -> None:
    several = isinstance(b.val, (list, tuple))
    wanted, values = (list(b.val), given) if several else ([b.val], [given])
    who = f"the rule '{name}' of {operator}"
    if not isinstance(values, (list, tuple)) or len(values) != len(wanted):
        count = f"{len(values)} results" if isinstance(values, (list, tuple)) else repr(values)
        raise RuleError(f"{who} gave {count}; the operator has {len(wanted)} results{_line(b)}")
    for k, (value, expected) in enumerate(zip(values, wanted, strict=True)):
        if not isinstance(expected, torch.Tensor) or (several and value is None and not b.used(k)):
            continue
        which = f"result {k}" if several else "the result"
        if not isinstance(value, SSAValue) or not isinstance(value.type, TensorType):
            raise RuleError(f"{who} gave {value!r} as {which}, not a tensor of the IR{_line(b)}")
        sizes, own = b.dims(value), b.sizes(expected.shape)
        if len(sizes) != len(own) or any(_differ(b, one, other) for one, other in zip(sizes, own, strict=True)):
            raise RuleError(f"{who} gave a tensor {_listed(sizes)}, {which} of the operator is {_listed(own)}{_line(b)}")


def _differ(b: Importer, one: Any, other: Any) -> bool:
    examples = b.example(one), b.example(other)
    return one != other and None not in examples and examples[0] != examples[1]


def _listed(sizes: Any) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _line(b: Importer) -> str:
    """The user's line of the node."""
    from .importer import line_text, user_place

    return line_text(user_place(b.node.meta.get("stack_trace")))
