"""Dumps as differences and as a tree of files, and times of passes."""

import io

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.errors import StepwellError
from stepwell.passes.manager import ir_dumps
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline

IR = """
func.func @f(%a : i32) -> i32 {
  %unused = arith.addi %a, %a : i32
  func.return %a : i32
}
func.func @g(%a : i32) -> i32 {
  func.return %a : i32
}
"""


def after(passes, **flags):
    ctx = load_dialects(Context())
    out = io.StringIO()
    instrument = Instrumentation(stream=out, **flags)
    run(parse_pipeline(passes), Parser(ctx, IR).parse_module(), ctx, instrument)
    return out.getvalue(), instrument


def test_a_difference_shows_what_a_pass_changed():
    text, _ = after("func.func(canonicalize,cse)", print_ir_after_change="diff")
    assert text == (
        "// -----// IR Dump After CanonicalizePass (canonicalize) ('func.func' operation: @f) //----- //\n"
        "@@ -1,4 +1,3 @@\n"
        " func.func @f(%a: i32) -> i32 {\n"
        "-  %unused = arith.addi %a, %a : i32\n"
        "   func.return %a : i32\n"
        " }\n\n"
    )
    whole, _ = after("func.func(canonicalize)", print_ir_after_change="diff", print_module_scope=True)
    assert "func.func @f(%a: i32) -> i32 {\n-    %unused" in whole
    assert after("func.func(cse,canonicalize)", print_ir_after_change="diff", print_ir_after={"cse"})[0].count("IR Dump") <= 1


def test_colours_are_for_terminals(monkeypatch):
    coloured = ir_dumps.difference("a\nb\n", "a\nc\n", colour=True)
    assert coloured == "\033[36m@@ -1,2 +1,2 @@\033[0m\n a\n\033[31m-b\033[0m\n\033[32m+c\033[0m\n"
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ir_dumps.wants_colour(terminal) and not ir_dumps.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ir_dumps.wants_colour(terminal)


def test_a_tree_has_a_file_a_pass(tmp_path):
    text, _ = after("builtin.module(cse,canonicalize,func.func(cse,canonicalize),dce)", tree=str(tmp_path / "tree"))
    module = "builtin_module_no-symbol-name"
    assert text == "" and sorted(str(p.relative_to(tmp_path / "tree")) for p in (tmp_path / "tree").rglob("*.mlir")) == [
        f"{module}/0_cse.mlir",
        f"{module}/1_canonicalize.mlir",
        f"{module}/2_dce.mlir",
        f"{module}/func_func_f/1_0_cse.mlir",
        f"{module}/func_func_f/1_1_canonicalize.mlir",
        f"{module}/func_func_g/1_0_cse.mlir",
        f"{module}/func_func_g/1_1_canonicalize.mlir",
    ]
    file = (tmp_path / "tree" / module / "func_func_g" / "1_0_cse.mlir").read_text()
    assert file.startswith("// -----// IR Dump After CSEPass") or file.startswith("// -----// IR Dump After ")
    assert "func.func @g" in file and "@f" not in file.partition("\n")[2]


def test_a_tree_holds_what_is_asked_for(tmp_path):
    after("cse,canonicalize", tree=str(tmp_path), print_ir_after_change="diff")
    (file,) = tmp_path.rglob("*.mlir")
    assert file.name.startswith(("0_cse", "1_canonicalize")) and "-    %unused = arith.addi" in file.read_text()
    (tmp_path / "x").mkdir()
    after("cse", tree=str(tmp_path / "x"), print_ir_before={"cse"})
    assert [p.name for p in (tmp_path / "x").rglob("*.mlir")] == ["0_cse_before.mlir"]


def test_a_tree_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StepwellError, match="cannot write '.*builtin_module_no-symbol-name/0_cse.mlir': "):
        after("cse", tree=str(tmp_path / "file"))


def test_runs_and_seconds_of_passes():
    _, instrument = after("cse,func.func(canonicalize)", pass_times=True)
    assert {name: runs for name, (runs, _) in instrument.by_pass.items()} == {"cse": 1, "canonicalize": 2}
    assert all(seconds > 0 for _, seconds in instrument.by_pass.values())
    assert after("cse")[1].by_pass == {}
