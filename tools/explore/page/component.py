"""The component that levels are edited in on a server's page: CodeMirror 5, from the files that the package nbclassic ships."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

STYLES = ("lib/codemirror.css", "addon/fold/foldgutter.css")
SCRIPTS = ("lib/codemirror.js", "addon/fold/foldcode.js", "addon/fold/foldgutter.js", "addon/fold/brace-fold.js")


def component() -> tuple[str, str]:
    """Its styles and its program; two empty texts where the package is not installed or has no such files: then a plain area of text
    serves."""
    spec = find_spec("nbclassic")
    if spec is None or not spec.submodule_search_locations:
        return "", ""
    folder = Path(spec.submodule_search_locations[0], "static/components/codemirror")
    try:
        return _joined(folder, STYLES), _joined(folder, SCRIPTS)
    except OSError:
        return "", ""


def _joined(folder: Path, names: tuple[str, ...]) -> str:
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
