"""The document of the explorer as one page: style, program and data in one file, and nothing to load."""

from __future__ import annotations

import base64
import gzip
import json
from html import escape
from pathlib import Path

from ...highlight.rules import RULES
from .component import component

PARTS = ("data", "viewer", "levels", "passes", "plan", "fusion", "pictures", "report", "editor", "server", "main")
"""The program's files, in the order in which they stand."""


def page(document: str, name: str, *, token: str = "", view: str = "levels") -> str:
    """The page of a document (its JSON), which opens at a view. With `token` it is a server's, and asks that for reruns; else it may not
    connect to anything."""
    data = base64.b64encode(gzip.compress(document.encode(), mtime=0)).decode()
    connect = "'self'" if token else "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src {connect}; base-uri 'none'"
    styles, editor = component() if token else ("", "")
    rules = json.dumps([[rule.pattern, _class(rule.token)] for rule in RULES])
    return "\n".join((
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="stepwell-token" content="{escape(token)}">',
        f'<meta name="stepwell-view" content="{escape(view)}">',
        f"<title>stepwell: {escape(name)}</title><style>{styles}{_file('explorer.css')}</style></head>",
        '<body><div id="page"></div><noscript>This page needs JavaScript.</noscript>',
        f'<script type="application/octet-stream" id="document">{data}</script>',
        f"<script>{_inline(editor)}</script>" if editor else "",
        f'<script>"use strict";\n(() => {{\nconst MLIR_RULES = {_inline(rules)};\n{_program()}}})();</script>',
        "</body></html>\n",
    ))  # fmt: skip


def _class(token: str) -> str:
    """The class of a word: of `Literal.Number.Float` t-literal-float."""
    parts = token.lower().split(".")
    return f"t-{parts[0]}-{parts[-1]}"


def _program() -> str:
    return _inline("".join(_file(f"{part}.js") for part in PARTS))


def _inline(text: str) -> str:
    """A text inside a script element, which the first `</` would end."""
    return text.replace("</", "<\\/")


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
