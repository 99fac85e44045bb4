"""Highlighting: the lexer keeps every character, knows what words are, and the grammar says the same."""

import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from stepwell.tools.highlight import textmate
from stepwell.tools.highlight.rules import RULES

pygments = pytest.importorskip("pygments")
ROOT = Path(textmate.__file__).resolve().parents[2]
IR = '''// a comment
func.func @f(%x : !nd.tensor<s0 x 64 x f32> {nd.name = "x"}) -> !nd.tensor<s0 x f32> {
  %c = arith.constant -2.500000e+00 : f32
  %r:2 = nd.sort %x {dims = [1], stable = true} : (i64)
  loop.nest (%i = 64) outs(%out = %r#0 : !mem.buffer<64 x bf16>) {
  } attributes {label = "a \\"b\\"", schedule = {vector = 0x1F : i64}, layout = #nd.layout<[64, 1], 0>}
^bb0:
  func.return %r : index
}
{-# external_resources: { x: "y" } #-}
'''


def tokens(text):
    from stepwell.tools.highlight.lexer import StepwellLexer

    return [(kind, word) for _, kind, word in StepwellLexer().get_tokens_unprocessed(text)]


def test_words_have_their_kinds():
    found = {}
    for kind, word in tokens(IR):
        found.setdefault(word, str(kind).removeprefix("Token."))
    expected = {
        "// a comment": "Comment.Single", "func.func": "Name.Builtin", "@f": "Name.Function", "%x": "Name.Variable",
        "!nd.tensor": "Keyword.Type", "f32": "Keyword.Type", "bf16": "Keyword.Type", "index": "Keyword.Type",
        '"x"': "Literal.String.Double",
        "nd.name": "Name.Attribute", "arith.constant": "Name.Builtin", "-2.500000e+00": "Literal.Number.Float", "%r:2": "Name.Variable",
        "%r#0": "Name.Variable", "dims": "Name.Attribute", "1": "Literal.Number.Integer", "true": "Keyword.Constant",
        "loop.nest": "Name.Builtin", "outs": "Keyword", "attributes": "Keyword", '"a \\"b\\""': "Literal.String.Double",
        "0x1F": "Literal.Number.Hex",
        "#nd.layout": "Name.Decorator", "^bb0": "Name.Label", "->": "Operator", "{-#": "Punctuation.Marker",
    }  # fmt: skip
    assert {word: found.get(word) for word in expected} == expected


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "examples").glob("*.mlir")), ids=lambda p: p.name)
def test_nothing_of_a_file_is_lost_or_unknown(file):
    text = file.read_text()
    found = tokens(text)
    assert "".join(word for _, word in found) == text
    assert [word for kind, word in found if str(kind) in ("Token.Error", "Token.Text")] == []


def test_every_operation_of_ours_is_one_word():
    from stepwell.dialects import DIALECTS, dialect_loader

    names = [op.name for name in DIALECTS for op in dialect_loader(name)().operations]
    assert len(names) > 100
    for name in names:
        assert tokens(name)[0][1] == name and str(tokens(name)[0][0]) == "Token.Name.Builtin", name


def test_the_grammar_is_the_one_of_the_rules():
    assert all(file.read_text() == textmate.grammar() for file in textmate.FILES), "python -m stepwell.tools.highlight.textmate"
    data = json.loads(textmate.grammar())
    assert data["scopeName"] == "source.stepwell" and len(data["patterns"]) == len(RULES)
    assert all(rule.scope.endswith(".stepwell") and re.compile(rule.pattern) for rule in RULES)


def test_the_lexer_is_declared():
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points."pygments.lexers"]\nstepwell = "stepwell.tools.highlight.lexer:StepwellLexer"\n' in text
    found = [e for e in entry_points(group="pygments.lexers") if e.name == "stepwell"]
    for entry in found:  # of an installation that is not older than this
        assert entry.load().name == "stepwell"
