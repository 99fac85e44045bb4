"""What is wrong with the class of a user's pass, found when it is registered: mistakes that would otherwise do nothing, without a word.

Passes of stepwell and xDSL are not looked at.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from xdsl.passes import ModulePass

from . import registry
from .errors import PipelineError
from .instrumentation import REMARK_KINDS, unknown_remark
from .pipeline_text import can_be_said, is_name, option_types, type_text

_CHECKED: set[type] = set()


def is_outside(cls: type) -> bool:
    """Whether a class is a user's, neither of stepwell nor of xDSL."""
    return cls.__module__.partition(".")[0] not in ("xdsl", __name__.partition(".")[0])


def check_pass_class(cls: type[ModulePass]) -> None:
    """PipelineError that says the first thing that is wrong with a user's pass class."""
    if cls in _CHECKED or not is_outside(cls):
        return
    check_name(cls.name, f"pass class '{cls.__name__}'", cls)
    _check_options(cls)
    if getattr(cls.apply, "__isabstractmethod__", False):
        raise _wrong(cls, "it has no method apply(self, ctx, op), which does the work")
    check_method(cls, "apply", ("self", "ctx", "op"), "change `op` in place")
    _check_source(cls)
    _CHECKED.add(cls)


def check_name(name: str, owner: str, cls: type | None = None) -> None:
    """PipelineError for a name that text of pipelines cannot hold, or that means something else there.

    A class below the pass that has the name is a variant of it."""
    from .pipelines import NAMED_PIPELINES

    if not is_name(name) or "." in name or name == "any":
        raise PipelineError(
            f"{owner}: no pipeline text can hold the name {name!r}; a name has letters, digits, '-' and '_', as in 'my-pass'"
        )
    if name in NAMED_PIPELINES:
        raise PipelineError(f"{owner}: '{name}' is the name of a pipeline in text")
    if name in registry.OURS or name in registry.xdsl_passes():
        if cls is None or not issubclass(cls, registry.load_pass(name)):
            registry.refuse_taken(name)


def check_method(cls: type, method: str, wanted: tuple[str, ...], instead: str) -> None:
    """PipelineError for a method that cannot be called with the arguments `wanted`, or does not run when it is called."""
    function = getattr(cls, method)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    shape = f"{method}({', '.join(wanted)})"
    try:
        signature.bind(*wanted)
    except TypeError:
        raise _wrong(cls, f"its {method} is called as {shape}, and takes ({', '.join(signature.parameters)})") from None
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _wrong(cls, f"its {method} is a generator or coroutine, of which a call runs nothing; {instead}")
    given = signature.return_annotation
    if given not in (inspect.Signature.empty, None, NoneType, "None") and "NoReturn" not in str(given) and given is not Any:
        text = given if isinstance(given, str) else getattr(given, "__name__", str(given))
        raise _wrong(cls, f"its {method} gives back a result ({text}), which is ignored; {instead}")


def _wrong(cls: type, message: str) -> PipelineError:
    name = getattr(cls, "name", None)
    shown = f"pass '{name}' (class '{cls.__qualname__}')" if isinstance(name, str) else f"class '{cls.__qualname__}'"
    return PipelineError(f"{shown}: {message}")


# Options.


def _check_options(cls: type[ModulePass]) -> None:
    types = option_types(cls)
    for owner, key in _annotated(cls):
        if key not in types:
            place = "" if owner is cls else f" of '{owner.__qualname__}'"
            raise _wrong(cls, f"'{key}'{place} is no option, since the class is no dataclass: write @dataclass(frozen=True) above it")
    made = cls.__init__
    if inspect.isfunction(made) and made.__code__.co_filename != "<string>" and len(inspect.signature(made).parameters) > 1:
        raise _wrong(cls, "its own __init__ takes arguments that pipeline text cannot say; options are typed fields of a frozen dataclass")
    for field in dataclasses.fields(cls):
        if field.name in types:
            _check_option(cls, field, types[field.name])


def _annotated(cls: type) -> Iterator[tuple[type, str]]:
    """The annotations that would be fields of a dataclass, of the class and the users' classes above it."""
    for owner in cls.__mro__:
        if owner in (ModulePass, object) or not is_outside(owner):
            continue
        for key, kind in inspect.get_annotations(owner).items():
            text = kind if isinstance(kind, str) else str(kind)
            if "ClassVar" not in text and "Final" not in text and "InitVar" not in text and key not in ("name", "anchor"):
                yield owner, key


def _check_option(cls: type[ModulePass], field: dataclasses.Field[Any], kind: Any) -> None:
    key = field.name.replace("_", "-")
    if not can_be_said(kind):
        shown = kind if isinstance(kind, str) else type_text(kind)
        raise _wrong(
            cls,
            f"option '{key}' has the type {shown}, which pipeline text cannot say; "
            "options are int, float, bool, str, Literal[...], tuple[T, ...] of these, or T | None",
        )
    default = field.default
    if default is dataclasses.MISSING or default is None and NoneType in get_args(kind):
        return
    if not _is_of(default, kind):
        raise _wrong(cls, f"the default {default!r} of option '{key}' is no {type_text(kind)}")


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a default has the type that its option says."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (tuple, list):
        return isinstance(value, (tuple, list)) and all(_is_of(v, arguments[0]) for v in value)
    if origin is Literal:
        return value in arguments
    if arguments:
        return any(_is_of(value, a) for a in arguments if a is not NoneType)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


# What the text of a class says.


def _check_source(cls: type[ModulePass]) -> None:
    try:
        source, first = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(source)))
        file = inspect.getsourcefile(cls) or "?"
    except (OSError, TypeError, SyntaxError, IndentationError):
        return  # one that was typed into an interpreter: what is wrong is said when it runs
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (kind := _remark_kind(node)) is not None and kind not in REMARK_KINDS:
            place = f"{file}:{first + node.lineno - 1}"
            raise _wrong(cls, f"{place}: {unknown_remark(kind)}")
    parameters = list(inspect.signature(cls.apply).parameters)
    for node in _statements(tree, "apply"):
        if isinstance(node, ast.Return) and node.value is not None and _is_value(node.value, parameters):
            place = f"{file}:{first + node.lineno - 1}"
            raise _wrong(cls, f"{place}: its apply gives back a result, which is ignored; change `op` in place")


def _remark_kind(call: ast.Call) -> str | None:
    """The kind in a call of `remark`, where it is written out."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if name != "remark":
        return None
    given = next((k.value for k in call.keywords if k.arg == "kind"), call.args[2] if len(call.args) > 2 else None)
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _statements(tree: ast.AST, method: str) -> Iterator[ast.AST]:
    """What stands in a method of the class, without the functions in it."""
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == method]
    work: list[ast.AST] = list(methods[:1])
    while work:
        for node in ast.iter_child_nodes(work.pop()):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
                yield node
                work.append(node)


def _is_value(node: ast.expr, parameters: list[str]) -> bool:
    """Whether an expression is certainly not None."""
    if isinstance(node, ast.Constant):
        return node.value is not None
    if isinstance(node, ast.Name):
        return node.id in parameters
    return isinstance(node, (ast.Compare, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.JoinedStr, ast.BinOp))
