"""The TextMate grammar of the IR, for editors.

`python -m stepwell.tools.highlight.textmate` writes it for the documents, and into the extension of VS Code, which cannot name a file
outside of its folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from .rules import RULES

_ROOT = Path(__file__).resolve().parents[2]
FILES = tuple(_ROOT / folder / "stepwell.tmLanguage.json" for folder in ("docs/highlighting", "editors/vscode"))


def grammar() -> str:
    """The text of the grammar."""
    data = {
        "name": "stepwell IR",
        "scopeName": "source.stepwell",
        "fileTypes": ["mlir"],
        "patterns": [{"name": rule.scope, "match": rule.pattern} for rule in RULES],
    }
    return json.dumps(data, indent=2) + "\n"


if __name__ == "__main__":
    for file in FILES:
        file.write_text(grammar(), encoding="utf-8")
