"""What the server knows of a text, asked without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.tools.lsp.analysis import analyse
from stepwell.tools.lsp.completion import complete
from stepwell.tools.lsp.hover import bytes_text, hover
from stepwell.tools.lsp.navigation import definition, occurrences, outline

NORM = (Path(__file__).resolve().parents[3] / "docs/examples/norm.mlir").read_text()
NESTS = """func.func @first(%x: !nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x 8 x f32> {
  %y = nd.exp %x : !nd.tensor<4 x 8 x f32>
  func.return %y : !nd.tensor<4 x 8 x f32>
}
func.func @second(%x: !nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x 8 x f32> {
  %y = func.call @first(%x) : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x 8 x f32>
  func.return %y : !nd.tensor<4 x 8 x f32>
}
"""


def words_at(found, places):
    """Line (from 1) and text of places."""
    return [(found.line_and_column(p.start)[0] + 1, found.text[p.start : p.end]) if p is not None else None for p in places]


def test_each_function_has_its_own_values():
    found = analyse(NESTS, "x.mlir")
    assert found.messages == []
    assert words_at(found, occurrences(found, NESTS.index("%y", NESTS.index("@second")))) == [(6, "%y"), (7, "%y")]


def test_symbols():
    found = analyse(NESTS, "x.mlir")
    assert words_at(found, occurrences(found, NESTS.index("call @first") + 6)) == [(1, "@first"), (6, "@first")]
    text, _ = hover(found, NESTS.index("call @first") + 6)
    assert text.startswith("```mlir\nfunc.func @first(") and text.endswith("Line 1; 1 use")


def test_an_alias():
    text = "!row = !nd.tensor<8 x f32>\nfunc.func @f(%x: !row) -> !row {\n  func.return %x : !row\n}\n"
    found = analyse(text, "x.mlir")
    assert found.messages == []
    assert words_at(found, occurrences(found, text.index("!row)"))) == [(1, "!row"), (2, "!row"), (2, "!row"), (3, "!row")]
    assert hover(found, text.index("!row)"))[0] == "```mlir\n!row = !nd.tensor<8 x f32>\n```"


def test_uses_before_the_definition_are_found_from_it():
    text = '''func.func @f() -> i32 {
  cf.br ^bb2
^bb1:
  func.return %c : i32
^bb2:
  %c = arith.constant 1 : i32
  cf.br ^bb1
}
'''
    found = analyse(text, "x.mlir")
    assert found.messages == []
    assert words_at(found, occurrences(found, text.index("%c"))) == [(6, "%c"), (4, "%c")]
    assert words_at(found, occurrences(found, text.index("^bb2"))) == [(5, "^bb2"), (2, "^bb2")]
    assert words_at(found, occurrences(found, text.index("^bb1"))) == [(3, "^bb1"), (7, "^bb1")]
    assert hover(found, text.index("^bb1")) is None


def test_behind_a_mistake_names_are_found_by_their_text():
    text = NORM.replace("nd.mul %x, %x", "nd.mull %x, %x")
    found = analyse(text, "x.mlir")
    assert words_at(found, [found.messages[0].place]) == [(3, "nd.mull")]
    assert words_at(found, [definition(found, text.index("%root :"))]) == [(9, "%root")]
    assert definition(analyse("nd.add %x", "x.mlir"), 8) is None


def test_each_function_says_what_is_wrong_with_it():
    """The verifier stops at a function's first mistake; the other functions say theirs, too."""
    text = NESTS.replace("func.return %y", '"nd.exp"(%x) : (!nd.tensor<4 x 8 x f32>) -> !nd.tensor<4 x 9 x f32>\n  func.return %y')
    found = analyse(text, "x.mlir")
    assert words_at(found, [m.place for m in found.messages]) == [(3, '"nd.exp"'), (8, '"nd.exp"')]


def test_parts_of_a_file_are_read_apart_and_expected_errors_are_none():
    split = "// -----\n// expected-error @+1 {{has no operation}}\nnd.absent\n// -----\n"
    found = analyse(NORM + split + NORM.replace("nd.sqrt", "nd.sqrrt"), "x.mlir")
    assert [(m.severity, found.line_and_column(m.place.start)[0]) for m in found.messages] == [("information", 14), ("error", 24)]
    assert [item.name for item in outline(found)] == ["@norm", "@norm"]


def test_unregistered_dialects_where_a_run_line_allows_them():
    assert analyse('"my.op"() : () -> ()', "x.mlir").messages
    assert not analyse('// RUN: opt-tool %s --allow-unregistered-dialect\n"my.op"() : () -> ()', "x.mlir").messages


def test_a_program_of_all_levels_has_an_outline(opt_tool):
    text = opt_tool("-", "-p", "stepwell-cpu{to=host}", stdin=NORM).out
    found = analyse(text, "x.mlir")
    assert found.messages == []
    details = {item.detail for item in outline(found)}
    assert {"cpu.kernel", "host.program"} <= details
    kernel = next(item for item in outline(found) if item.detail == "cpu.kernel")
    assert kernel.is_function and kernel.inner
    uses = occurrences(found, found.text.index(kernel.name))
    assert any("host.launch" in found.line(place.start) for place in uses if place is not None)


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        ("  %z = nd.red", ["nd.reduce"]),
        ("  %a, %b = loop.nes", ["loop.nest"]),
        ("  tt.exp", ["tt.expand_dims"]),
        ("  %z = absent.x", []),
        ("  %z = nd.add %s", ["%square", "%sum", "%size"]),
        ("  %z = nd.reduce %x {", ["kind", "dims"]),
        ('  %z = nd.reduce %x {kind = "sum", di', ["dims"]),
        ("  func.call @n", ["@norm"]),
        ("  %z = nd.exp %x : !nd", ["!nd.tensor"]),
        ("// RUN: opt-tool %s -p nd-canon", ["nd-canonicalize"]),
        ("// RUN: opt-tool %s -p 'cse,loop-ord", ["loop-order"]),
        ("// RUN: opt-tool %s -p 'loop-fuse{local", ["local-bytes"]),
        ("// RUN: opt-tool %s -p 'stepwell-cpu{", ["from", "to"]),
        ("// RUN: opt-tool %s --verify-d", ["--verify-diagnostics"]),
        ("// a comment nd.red", []),
    ],
)
def test_completion(line, labels):
    text = NORM.replace("  func.return", f"{line}\n  func.return")
    offset = text.index(line) + len(line)
    found = complete(analyse(text, "x.mlir"), offset)
    assert [one.label for one in found] == labels
    assert all(text[one.start : offset] == one.label[: offset - one.start] for one in found)


def test_a_run_line_says_what_its_passes_and_flags_do():
    text = "// RUN: opt-tool %s -p loop-fuse{local-bytes=3} --remarks\n" + NORM
    found = analyse(text, "x.mlir")
    about, place = hover(found, text.index("loop-fuse"))
    assert about.startswith("```text\nloop-fuse\n") and "local-bytes" in about and text[place.start : place.end] == "loop-fuse"
    assert hover(found, text.index("--remarks") + 3)[0].startswith("`--remarks`: write what passes did")
    assert hover(found, text.index("opt-tool")) is None


def test_sizes_and_origins():
    text = NESTS.replace("nd.exp %x : !nd.tensor<4 x 8 x f32>", 'nd.exp %x : !nd.tensor<4 x 8 x f32> loc("exp"("model.py":12:3))')
    found = analyse(text, "x.mlir")
    assert "4 x 8 elements of f32, 128 bytes" in hover(found, text.index("%y"))[0]
    assert hover(found, text.index("nd.exp"))[0].endswith("From model.py:12:3")
    assert [bytes_text(n) for n in (0, 1023, 1024, 4 << 20, 3 << 40)] == ["0 bytes", "1023 bytes", "1 KiB", "4 MiB", "3072 GiB"]
