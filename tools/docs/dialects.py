"""Writes docs/reference/dialects.md: every dialect of ours, its operations, types and attributes, with their Python classes.

    python -m stepwell.tools.docs.dialects            write the page of this checkout
    python -m stepwell.tools.docs.dialects --check    exit with 1 if the page of this checkout is old

The page follows the declarations: fields, docstrings and builders are read from the classes.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xdsl.ir import Dialect, Operation, ParametrizedAttribute
from xdsl.irdl import (
    AllOf,
    AnyAttr,
    AnyOf,
    AttrConstraint,
    BaseAttr,
    EqAttrConstraint,
    IRDLOperation,
    MessageConstraint,
    OptionalDef,
    ParamAttrConstraint,
    RangeLengthConstraint,
    RangeOf,
    VarConstraint,
    VariadicDef,
)

from ...dialects import DIALECTS, dialect_loader

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/dialects.md"
PACKAGE = dialect_loader.__module__.partition(".")[0] + "."
_BASES = (IRDLOperation, Operation, ParametrizedAttribute, object)
_COMMON = frozenset({"create", "build", "parse", "get_irdl_definition", "new"})
_HEAD = """# Dialects and operations

Written by `python -m stepwell.tools.docs.dialects`; a test keeps it current.
[Python API](python-api.md) says how a pass reads and builds these operations.

An operand, result or property is a field of the class with that name. `?` marks an optional one, `*` a list.
Behind the colon stands the type that the verifier wants, where it wants one.
A builder is a class method that derives result types and properties; `Class.create(operands=..., result_types=...,
properties=..., regions=...)` builds any operation without it.
At the levels `loop`, `mem`, `cpu` and `tt` scalars and vectors are computed by `arith` and `math`, as in MLIR.

| dialect | operations | types and attributes |
|---|---|---|
"""


def _doc(thing: Any) -> str:
    """The docstring, with the marks of reStructuredText as Markdown's."""
    return inspect.cleandoc(thing.__doc__ or "").replace("``", "`")


def _constraint(found: AttrConstraint | Any) -> str:
    """A constraint in words; empty where any attribute is allowed."""
    if isinstance(found, RangeLengthConstraint):
        return _constraint(found.constraint)
    if isinstance(found, RangeOf):
        return _constraint(found.constr)
    if isinstance(found, (VarConstraint, MessageConstraint)):
        return _constraint(getattr(found, "constraint", None) or getattr(found, "constr", None))
    if isinstance(found, BaseAttr):
        return found.attr.__name__
    if isinstance(found, ParamAttrConstraint):
        return found.base_attr.__name__
    if isinstance(found, EqAttrConstraint):
        return f"`{found.attr}`"
    if isinstance(found, (AnyOf, AllOf)):
        parts = [text for c in found.attr_constrs if (text := _constraint(c))]
        return (" or " if isinstance(found, AnyOf) else " and ").join(parts)
    return "" if found is None or isinstance(found, AnyAttr) else type(found).__name__


def _field(name: str, definition: Any) -> str:
    """One operand, result, region or property."""
    mark = "?" if isinstance(definition, OptionalDef) else "*" if isinstance(definition, VariadicDef) else ""
    text = _constraint(getattr(definition, "constr", None))
    return f"`{name}`{mark}" + (f": {text}" if text else "")


def _fields(pairs: Any) -> str:
    return ", ".join(_field(name, definition) for name, definition in pairs)


def _builders(cls: type) -> Iterator[str]:
    """The class and static methods of ours that make an instance."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(PACKAGE) or base in _BASES:
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or name in _COMMON or not isinstance(member, (classmethod, staticmethod)):
                continue
            seen.add(name)
            function = member.__func__
            signature = inspect.signature(function)
            returned = str(signature.return_annotation)
            if returned not in ("Self", base.__name__, cls.__name__):
                continue
            parameters = [p for p in signature.parameters.values() if p.name != "cls"]
            shown = ", ".join(f"{p.name}=..." if p.default is not p.empty else f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name
                              for p in parameters)  # fmt: skip
            yield f"`{cls.__name__}.{name}({shown})`"


def _home(cls: type) -> str:
    return f"`{cls.__module__}.{cls.__name__}`"


def _import(cls: type, dialect: str) -> str:
    """How a program reaches the class."""
    if dialect == "nd" and cls.__module__.endswith("nd.pointwise") and not hasattr(sys.modules[cls.__module__], cls.__name__):
        return f'`{cls.__module__}.OPS["{cls.name.partition(".")[2]}"]`'  # pyright: ignore[reportAttributeAccessIssue]
    return _home(cls)


def operation(cls: type[IRDLOperation], dialect: str) -> str:
    """The section of one operation."""
    definition = cls.get_irdl_definition()
    rows = [
        ("Operands", _fields(definition.operands)),
        ("Results", _fields(definition.results)),
        ("Properties", _fields(definition.properties.items())),
        ("Attributes", _fields(definition.attributes.items())),
        ("Regions", ", ".join(f"`{name}`" for name, _ in definition.regions)),
        ("Builders", ", ".join(_builders(cls))),
        ("Class", _import(cls, dialect)),
    ]
    lines = "\n".join(f"- {title}: {text}" for title, text in rows if text)
    return f"### {cls.name}\n{_doc(cls)}\n\n{lines}\n"


def attribute(cls: Any) -> str:
    """The section of one type or attribute."""
    named = [name for name, _ in cls.get_irdl_definition().parameters] if issubclass(cls, ParametrizedAttribute) else ["data"]
    rows = [("Fields", ", ".join(f"`{name}`" for name in named)), ("Builders", ", ".join(_builders(cls))), ("Class", _home(cls))]
    return f"### {cls.name} (attribute)\n{_doc(cls)}\n\n" + "\n".join(f"- {title}: {text}" for title, text in rows if text) + "\n"


def dialects() -> dict[str, Dialect]:
    """Name -> dialect, by level."""
    return {name: dialect_loader(name)() for name in DIALECTS}


def dialect_folder(name: str) -> bool:
    """Whether a dialect has a folder of its own, not a file."""
    return DIALECTS[name].partition(":")[0] == name and (Path(__file__).parents[2] / "dialects" / name).is_dir()


def page() -> str:
    """The text of the page."""
    table, sections = [], []
    for name, dialect in dialects().items():
        ops = sorted(dialect.operations, key=lambda op: op.name)
        attributes = sorted(dialect.attributes, key=lambda a: a.name)
        table.append(f"| [`{name}`](#{name}) | {len(ops)} | {len(attributes)} |")
        home = (*ops, *attributes)[0].__module__
        module = sys.modules[home.rpartition(".")[0] if dialect_folder(name) else home]
        text = _doc(module)
        parts = [attribute(a) for a in attributes] + [operation(op, name) for op in ops]  # pyright: ignore[reportArgumentType]
        sections.append(f"## {name}\n{text}\n\n" + "\n".join(parts))
    return _HEAD + "\n".join(table) + "\n\n" + "\n".join(sections)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.tools.docs.dialects", description="Writes docs/reference/dialects.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is old")
    options = parser.parse_args(arguments)
    text = page()
    if options.check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    print(f"{PAGE}: {text.count(chr(10) + '### ')} operations, types and attributes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
