"""LLVM text that is the same in every process: `.ll` files beside the modules that use them.

A file is a module of LLVM of its own: it declares what it calls of others. `$NAME` (capital letters) stands where a constant of Python
belongs. Files are read when they are first needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import StepwellError

_PLACEHOLDER = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_DECLARED = re.compile(r"^(?:declare [^@\n]*(@[\w.]+)\(|(@[\w.]+) = external ).*\n", re.MULTILINE)
_DEFINED = re.compile(r"^define [^@\n]*(@[\w.]+)\(", re.MULTILINE)


class LlvmTextError(StepwellError):
    """A file of LLVM text and the values for its placeholders do not belong together; the message names both."""


def llvm_text(files: Sequence[Path], values: Mapping[str, object] | None = None) -> str:
    """One module of several files, with the values in place of their placeholders. A symbol is declared once, and not where a file
    defines it.

    Raises LlvmTextError for a placeholder without a value and for a value that no file uses."""
    values = values or {}
    used: set[str] = set()
    texts = [_fill(file, values, used) for file in files]
    if unused := sorted(values.keys() - used):
        names = ", ".join(file.name for file in files)
        raise LlvmTextError(f"no placeholder of {names} is named {', '.join(f'${name}' for name in unused)}")
    known = {name for text in texts for name in _DEFINED.findall(text)}

    def declared_once(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in known:
            return ""
        known.add(name)
        return found[0]

    return "\n".join(_DECLARED.sub(declared_once, text) for text in texts)


def _fill(file: Path, values: Mapping[str, object], used: set[str]) -> str:
    """The text of a file with the values in it; notes in `used` which."""
    text = file.read_text()

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in values:
            line = text.count("\n", 0, found.start()) + 1
            raise LlvmTextError(f"{file.name}:{line}: there is no value for the placeholder ${name}")
        used.add(name)
        return str(values[name])

    return _PLACEHOLDER.sub(value, text)
