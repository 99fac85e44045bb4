"""The Pygments lexer of the IR (entry point `pygments.lexers`): `pygmentize -l stepwell f.mlir`, fences of ```mlir in documents."""

from __future__ import annotations

from pygments.lexer import RegexLexer
from pygments.token import Token

from .rules import RULES


def _token(path: str):
    found = Token
    for part in path.split("."):
        found = getattr(found, part)
    return found


class StepwellLexer(RegexLexer):
    """IR of any level of stepwell, and of MLIR."""

    name = "stepwell"
    aliases = ["stepwell", "mlir"]
    filenames = ["*.mlir"]
    mimetypes = ["text/x-mlir"]
    url = "https://mlir.llvm.org/docs/LangRef/"

    tokens = {
        "root": [
            (r"\s+", Token.Text.Whitespace),
            *((rule.pattern, _token(rule.token)) for rule in RULES),
            (r"[A-Za-z_][A-Za-z0-9_$-]*", Token.Name),
            (r"[-+*/<>()\[\]{},?&|]", Token.Punctuation),
            (r".", Token.Text),
        ]
    }
