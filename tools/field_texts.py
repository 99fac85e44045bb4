"""The docstrings under the fields of a class: what its options mean."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise


def field_texts(cls: type) -> dict[str, str]:
    """Field -> the text under it in one line, for those of base classes too; nothing where the source is not at hand."""
    texts: dict[str, str] = {}
    for owner in reversed([base for base in cls.__mro__ if vars(base).get("__annotations__") and base.__module__ != "xdsl.passes"]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError, SyntaxError):
            continue
        definition = tree.body[0]
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                    texts[field.target.id] = " ".join(text.value.value.split())
    return texts
