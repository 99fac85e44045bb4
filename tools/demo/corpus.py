"""The documents of the demo: what Python's own standard library says about itself.

Modules written in Python are read, not imported (importing some has effects); the ones written in C have no source, so
those are imported and asked.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

NOT_LIBRARY = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "turtledemo", "distutils", "ensurepip", "site-packages", "dist-packages"}
)
SHOWN_AS = {"posix": "os", "posixpath": "os.path", "builtins": ""}
"""Modules that users know under another name."""
NOT_IMPORTED = frozenset({"readline", "xxlimited", "xxlimited_35", "xxsubtype"})
"""Extension modules with effects on the terminal, and CPython's own examples."""
WORDS = 60
"""Words of a docstring that are used; the search reads at most 64 tokens."""


@dataclass(frozen=True)
class Document:
    """One public function, class or method: its dotted `name` and its docstring's first paragraph."""

    name: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.split(". ", 1)[0]

    @property
    def searchable(self) -> str:
        """What the model reads."""
        return f"{self.name}: {self.text}"


def standard_library() -> list[Document]:
    """Every documented public name of the standard library, sorted by name, each once."""
    documents = {d.name: d for source in (_from_sources(), _from_extensions()) for d in source}
    return sorted(documents.values(), key=lambda d: d.name)


def _document(name: str, docstring: str | None) -> Iterator[Document]:
    paragraph = " ".join((docstring or "").strip().split("\n\n", 1)[0].split()[:WORDS])
    if paragraph:
        yield Document(name, paragraph)


def _qualified(module: str, name: str) -> str:
    prefix = SHOWN_AS.get(module, module)
    return f"{prefix}.{name}" if prefix else name


def _from_sources() -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        if not parts or any(part in NOT_LIBRARY or part.startswith("_") for part in parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, OSError):  # a template, or a file that may not be read
                continue
        yield from _from_body(tree.body, ".".join(parts), "")


def _from_body(body: list[ast.stmt], module: str, prefix: str) -> Iterator[Document]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield from _document(_qualified(module, prefix + node.name), ast.get_docstring(node))
        if isinstance(node, ast.ClassDef):
            yield from _from_body(node.body, module, f"{prefix}{node.name}.")


def _from_extensions() -> Iterator[Document]:
    for name in sorted(sys.stdlib_module_names - NOT_IMPORTED):
        module = None if name.startswith("_") else _extension_module(name)
        if module is not None:
            yield from _from_members(module, name, "", depth=2)


def _extension_module(name: str) -> ModuleType | None:
    """The module `name` if it is written in C and is there."""
    loader = getattr(importlib.util.find_spec(name), "loader", None)
    compiled = loader is importlib.machinery.BuiltinImporter or isinstance(
        loader, importlib.machinery.ExtensionFileLoader
    )
    if not compiled:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:  # built without a library that it needs
            return None


def _from_members(owner: object, module: str, prefix: str, depth: int) -> Iterator[Document]:
    for name, member in vars(owner).items():
        if name.startswith("_") or isinstance(member, type) and member.__module__ not in (module, "builtins"):
            continue
        if not (inspect.isroutine(member) or isinstance(member, type)):
            continue
        yield from _document(_qualified(module, prefix + name), inspect.getdoc(member))
        if isinstance(member, type) and depth > 1:
            yield from _from_members(member, module, f"{prefix}{name}.", depth - 1)
