"""Tables of cases in files of users: CASES of kernels, MODELS of models."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def load_table(path: str, name: str) -> dict[str, Any]:
    """The table `name` of a Python file; what that file imports may lie beside it. SystemExit where there is no such file or table."""
    if not Path(path).is_file():
        raise SystemExit(f"error: there is no file '{path}'")
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        if spec is None or spec.loader is None:
            raise SystemExit(f"error: '{path}' is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    table = getattr(module, name, None)
    if not isinstance(table, dict):
        raise SystemExit(f"error: '{path}' has no table {name}")
    return table


def select(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """The names that `only` asks for, in their order: all without; a name is that case, any other text the cases whose names contain it.

    SystemExit for a text that is in no name.
    """
    names = list(names)
    chosen = set() if only else set(names)
    for pattern in only:
        found = [pattern] if pattern in names else [name for name in names if pattern in name]
        if not found:
            raise SystemExit(f"error: --only {pattern}: there is no such case among {', '.join(names)}")
        chosen.update(found)
    return [name for name in names if name in chosen]
