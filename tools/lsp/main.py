"""`stepwell lsp`: the language server, which an editor starts and speaks to by standard input and output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the editor ends it; the exit code. 2 where pygls is not installed."""
    parser = argparse.ArgumentParser(
        prog="stepwell lsp",
        description="A language server for files of IR. An editor starts it and speaks to it by standard input and output.",
        epilog="docs/howto/editor.md says how to set up an editor.",
    )
    parser.add_argument("--stdio", action="store_true", help="what it does anyway; some editors add it")
    parser.parse_args(arguments)
    try:
        import pygls  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("stepwell lsp: error: pygls is not installed: pip install 'stepwell[lsp]'", file=sys.stderr)
        return 2
    from .server import Server

    Server().serve()
    return 0
