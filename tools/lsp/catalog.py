"""Operations, types, passes and flags by name, with what is to be said about them in Markdown."""

from __future__ import annotations

import inspect
from functools import cache
from io import StringIO
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import UnregisteredOp
from xdsl.ir import Operation, TypeAttribute

from ...dialects import load_dialects
from ...passes.manager import registry
from ...passes.manager.errors import PipelineError
from ...passes.manager.pipeline_text import option_lines
from ...passes.manager.pipelines import NAMED_PIPELINES, TARGETS
from ..docs.dialects import attribute, dialects, operation
from ..opt import args as opt_args
from ..opt.emit import TARGETS as OUTPUTS


@cache
def _context() -> Context:
    return load_dialects(Context())


@cache
def _our_operations() -> dict[str, tuple[type[Operation], str]]:
    return {op.name: (op, name) for name, dialect in dialects().items() for op in dialect.operations}


@cache
def our_attributes() -> dict[str, Any]:
    """Types and attributes of our dialects, by name with their sign: `!nd.tensor`."""
    found = [a for dialect in dialects().values() for a in dialect.attributes]
    return {f"{'!' if issubclass(a, TypeAttribute) else '#'}{a.name}": a for a in found}


@cache
def operation_names(dialect: str | None) -> list[str]:
    """The operations of a dialect, of ours or xDSL's; for None all of ours and the names of dialects with a dot. Empty for no dialect."""
    if dialect is None:
        return sorted([*_our_operations(), *(f"{name}." for name in _context().registered_dialect_names)])
    known = _context().get_optional_dialect(dialect)
    return sorted(op.name for op in known.operations) if known is not None else []


def operation_class(name: str) -> type[Operation] | None:
    """The class of an operation; None where there is none of that name."""
    found = _context().get_optional_op(name)
    return None if found is None or issubclass(found, UnregisteredOp) else found


def summary(thing: type) -> str:
    """The first paragraph of a docstring."""
    return inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0].replace("``", "`")


def about_operation(cls: type[Operation]) -> str:
    """What docs/reference/dialects.md says of one of our operations; the docstring of another's."""
    if cls.name in _our_operations():
        return operation(*_our_operations()[cls.name])  # pyright: ignore[reportArgumentType]
    return f"### {cls.name}\n{inspect.cleandoc(cls.__doc__ or '')}".strip()


def about_attribute(name: str) -> str | None:
    """What docs/reference/dialects.md says of a type (`!nd.tensor`) or attribute of ours."""
    cls = our_attributes().get(name)
    return attribute(cls) if cls is not None else None


def properties(cls: type[Operation]) -> list[str]:
    """The names of an operation's properties and attributes, as its text has them."""
    syntax = getattr(cls, "SYNTAX", None)
    if syntax:
        return [*syntax]
    get = getattr(cls, "get_irdl_definition", None)
    if get is None:
        return []
    definition = get()
    return [*definition.properties, *definition.attributes]


@cache
def pass_names() -> list[str]:
    """Passes and pipelines."""
    return sorted({*registry.all_passes(), *NAMED_PIPELINES})


def pass_options(name: str) -> list[tuple[str, str]]:
    """(name, type and default) of each option of a pass or pipeline; empty for what is none."""
    if name in NAMED_PIPELINES:
        stages = ", ".join(TARGETS[NAMED_PIPELINES[name]])
        return [("from", f"a stage: {stages}"), ("to", f"a stage: {stages}")]
    try:
        return [(option, f"{kind}; {default}") for option, kind, default in option_lines(registry.load_pass(name))]
    except PipelineError:
        return []


def about_pass(name: str) -> str | None:
    """What `opt-tool --help PASS` says; None for what is no pass."""
    if name not in pass_names():
        return None
    out = StringIO()
    opt_args.write_help(name, [*OUTPUTS], out)
    return f"```text\n{inspect.cleandoc(out.getvalue())}\n```"


@cache
def flags() -> dict[str, str]:
    """The flags of opt-tool with what they do."""
    actions = opt_args.argument_parser([*OUTPUTS])._actions
    return {flag: action.help or "" for action in actions for flag in action.option_strings}
