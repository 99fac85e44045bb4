"""Where dumps of the IR around passes go: a stream, as whole texts or as differences, or a tree of files.

The tree is that of mlir-opt's ``--mlir-print-ir-tree-dir``: a folder an operation that passes run on, a file a pass.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from xdsl.dialects.builtin import ModuleOp, StringAttr

from ...errors import FileError

if TYPE_CHECKING:
    from xdsl.ir import Operation

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_PLAIN = "\033[0m"


def symbol_of(op: Operation) -> str:
    """The symbol name of an operation, "" where it has none."""
    name = op.properties.get("sym_name") or op.attributes.get("sym_name")
    return name.data if isinstance(name, StringAttr) else ""


def difference(old: str, new: str, *, colour: bool = False) -> str:
    """What changed between two texts, as a unified difference of three lines around; "" where nothing did."""
    changes = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3))[2:]  # without the names of files
    if not colour:
        return "".join(f"{line}\n" for line in changes)
    return "".join(f"{_COLOURS[line[0]]}{line}{_PLAIN}\n" if line[:1] in _COLOURS else f"{line}\n" for line in changes)


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not asked for plain text (NO_COLOR)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


class DumpTree:
    """Files under a folder, one a pass: ``DIR/builtin_module_no-symbol-name/func_func_f/1_0_cse.mlir``.

    A file's name begins with how many passes ran before on the operations around it and on it, as mlir-opt counts.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._counts: dict[str, int] = {}

    def begin(self, op: Operation) -> None:
        """A pass begins to run on an operation."""
        path = self._path(op)
        self._counts[path] = self._counts.get(path, -1) + 1

    def write(self, op: Operation, name: str, text: str) -> None:
        """Write the file of the pass that runs on `op`. Raises FileError for a file that cannot be written."""
        parts = list(_outside_in(op))
        numbers = [self._counts.get("/".join(parts[: k + 1]), 0) for k in range(len(parts))]
        file = self.folder.joinpath(*parts, "_".join([*map(str, numbers), name]) + ".mlir")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FileError(f"cannot write '{file}': {error.strerror}") from error

    def _path(self, op: Operation) -> str:
        return "/".join(_outside_in(op))


def _outside_in(op: Operation) -> Iterator[str]:
    """The names of the folders of an operation, that of the outermost first."""
    parent = op.parent_op()
    if parent is not None:
        yield from _outside_in(parent)
    symbol = symbol_of(op) or ("no-symbol-name" if isinstance(op, ModuleOp) or parent is None else "")
    yield "_".join(filter(None, [op.name.replace(".", "_"), symbol])).replace("/", "_")
