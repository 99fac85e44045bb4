"""What the text of the IR is made of: for each kind of word a regular expression, its Pygments token and its TextMate scope.

The first rule that matches at a place wins. Expressions are in the part of the language that Python and Oniguruma share.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A kind of word."""

    pattern: str
    token: str
    """The path of the token below `pygments.token.Token`."""
    scope: str


KEYWORDS = ("func", "builtin", "module", "attributes", "outs", "do", "to", "step", "in", "init", "loc", "dense", "unit", "private", "alias")
"""Words of the syntax of operations that are no names."""

TYPES = ("index", "none", "tensor", "memref", "vector", "complex", "tuple")
"""Types of MLIR without a mark before them."""

RULES = (
    Rule(r"//[^\n]*", "Comment.Single", "comment.line.double-slash.stepwell"),
    Rule(r"\{-#|#-\}", "Punctuation.Marker", "punctuation.definition.resource.stepwell"),
    Rule(r'"(?:[^"\\\n]|\\.)*"', "Literal.String.Double", "string.quoted.double.stepwell"),
    Rule(r"%[A-Za-z0-9_$.-]+(?:[#:][0-9]+)?", "Name.Variable", "variable.other.value.stepwell"),
    Rule(r"@(?:[A-Za-z_][A-Za-z0-9_$.]*|\"[^\"]*\")", "Name.Function", "entity.name.function.stepwell"),
    Rule(r"\^[A-Za-z0-9_$.-]+", "Name.Label", "entity.name.label.stepwell"),
    Rule(r"![A-Za-z_][A-Za-z0-9_$]*(?:\.[A-Za-z_][A-Za-z0-9_$]*)*", "Keyword.Type", "storage.type.stepwell"),
    Rule(r"#[A-Za-z_][A-Za-z0-9_$]*(?:\.[A-Za-z_][A-Za-z0-9_$]*)*", "Name.Decorator", "entity.other.attribute-name.stepwell"),
    Rule(rf"\b(?:[su]?i[0-9]+|b?f[0-9]+[A-Za-z0-9]*|{'|'.join(TYPES)})\b", "Keyword.Type", "storage.type.stepwell"),
    Rule(r"\b(?:true|false)\b", "Keyword.Constant", "constant.language.stepwell"),
    Rule(r"\b[a-z_][a-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+\b(?!\s*=[^=])", "Name.Builtin", "support.function.operation.stepwell"),
    Rule(rf"\b(?:{'|'.join(KEYWORDS)})\b", "Keyword", "keyword.other.stepwell"),
    Rule(r"-?\b0x[0-9A-Fa-f]+\b", "Literal.Number.Hex", "constant.numeric.hex.stepwell"),
    Rule(r"-?\b[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "Literal.Number.Float", "constant.numeric.float.stepwell"),
    Rule(r"-?\b[0-9]+\b", "Literal.Number.Integer", "constant.numeric.integer.stepwell"),
    Rule(r"[A-Za-z_][A-Za-z0-9_.$-]*(?=\s*=[^=])", "Name.Attribute", "variable.parameter.attribute.stepwell"),
    Rule(r"->|==|[=:]", "Operator", "keyword.operator.stepwell"),
)
