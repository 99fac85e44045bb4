"""The TextMate grammar of the IR, for editors.

`python -m stepwell.tools.highlight.textmate` writes docs/highlighting/stepwell.tmLanguage.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from .rules import RULES

FILE = Path(__file__).resolve().parents[2] / "docs" / "highlighting" / "stepwell.tmLanguage.json"


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
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(grammar(), encoding="utf-8")
