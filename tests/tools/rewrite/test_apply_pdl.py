"""Patterns in PDL files: on operations of several levels, in torch.compile, and what is said about mistakes."""

from pathlib import Path

import pytest
import torch

import stepwell
from stepwell.passes.manager.pipelines import default_pipeline

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "rsqrt.pdl"

NORM = """func.func @f(%x: !nd.tensor<4 x s0 x f32>, %y: !nd.tensor<s0 x f32>) -> (!nd.tensor<4 x s0 x f32>, !nd.tensor<s0 x f32>) {
  %s = nd.sqrt %y : !nd.tensor<s0 x f32>
  %d = nd.div %x, %s : (!nd.tensor<4 x s0 x f32>, !nd.tensor<s0 x f32>) -> !nd.tensor<4 x s0 x f32>
  func.return %d, RESULT : !nd.tensor<4 x s0 x f32>, !nd.tensor<s0 x f32>
}
"""


def pattern(body: str, rewrite: str, root: str = "%root") -> str:
    return f"pdl.pattern @mine : benefit(1) {{\n{body}\n  pdl.rewrite {root} {{\n{rewrite}\n  }}\n}}\n"


def test_root_that_is_used_elsewhere_stays(opt_tool):
    flags = ("-p", f"apply-pdl{{file={EXAMPLE}}}", "--mlir-pass-statistics", "--remarks")
    result = opt_tool(*flags, stdin=NORM.replace("RESULT", "%y"))
    assert "nd.rsqrt" in result.out and "nd.sqrt" not in result.out and "nd.div" not in result.out
    assert "1 num-rewritten" in result.err
    assert "<stdin>:3:8: remark: [apply-pdl] applied: 'nd.mul' op: pattern 'divide_by_root' has rewritten 'nd.div'" in result.err
    result = opt_tool(*flags, stdin=NORM.replace("RESULT", "%s"))
    assert "nd.sqrt" in result.out and "nd.rsqrt" not in result.out


pytestmark = pytest.mark.usefixtures("own_passes")


@pytest.mark.parametrize("where", ["registered", "options"])
def test_in_torch_compile(where, tmp_path):
    """A constant that makes it visible that the pattern was applied: sqrt becomes twice sqrt."""
    file = tmp_path / "rules.pdl"
    body = '  %t = pdl.type\n  %x = pdl.operand : %t\n  %root = pdl.operation "nd.sinh" (%x : !pdl.value) -> (%t : !pdl.type)'
    rewrite = '    %new = pdl.operation "nd.cosh" (%x : !pdl.value) -> (%t : !pdl.type)\n    pdl.replace %root with %new'
    file.write_text(pattern(body, rewrite))
    if where == "registered":
        stepwell.register_pass("nd", file)
    compiled = torch.compile(torch.sinh, backend="stepwell", options={"passes": {"nd": [file]}} if where == "options" else None)
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), torch.cosh(x))
    keys = {default_pipeline("cpu", {"passes": {"nd": [file]}}).fingerprint()}
    file.write_text(file.read_text().replace("cosh", "tanh"))
    keys.add(default_pipeline("cpu", {"passes": {"nd": [file]}}).fingerprint())
    assert len(keys) == 2 and None not in keys


def test_properties_ranks_and_scalar_operations(opt_tool, tmp_path):
    """A sum over the first of two dimensions becomes a maximum; in loops a product by itself becomes a sum."""
    file = tmp_path / "rules.pdl"
    body = """  %a = pdl.type
  %b = pdl.type
  %x = pdl.operand : %a
  %kind = pdl.attribute = "sum"
  %dims = pdl.attribute = #nd.ints<[0]>
  %two = pdl.attribute = 2 : i64
  %f32 = pdl.attribute = f32
  pdl.apply_native_constraint "rank"(%x, %two : !pdl.value, !pdl.attribute)
  pdl.apply_native_constraint "element_type"(%x, %f32 : !pdl.value, !pdl.attribute)
  %root = pdl.operation "nd.reduce" (%x : !pdl.value) {"kind" = %kind, "dims" = %dims} -> (%b : !pdl.type)"""
    rewrite = """    %max = pdl.attribute = "max"
    %new = pdl.operation "nd.reduce" (%x : !pdl.value) {"kind" = %max, "dims" = %dims} -> (%b : !pdl.type)
    pdl.replace %root with %new"""
    file.write_text(pattern(body, rewrite))
    source = """func.func @f(%x: !nd.tensor<3 x 4 x TYPE>) -> !nd.tensor<4 x TYPE> {
  %s = nd.reduce %x {kind = "sum", dims = [0]} : (!nd.tensor<3 x 4 x TYPE>) -> !nd.tensor<4 x TYPE>
  func.return %s : !nd.tensor<4 x TYPE>
}
"""
    assert '"max"' in opt_tool("-p", f"apply-pdl{{file={file}}}", stdin=source.replace("TYPE", "f32")).out
    assert '"max"' not in opt_tool("-p", f"apply-pdl{{file={file}}}", stdin=source.replace("TYPE", "f64")).out
    body = """  %t = pdl.type
  %x = pdl.operand : %t
  %root = pdl.operation "arith.mulf" (%x, %x : !pdl.value, !pdl.value) -> (%t : !pdl.type)"""
    rewrite = """    %new = pdl.operation "arith.addf" (%x, %x : !pdl.value, !pdl.value) -> (%t : !pdl.type)
    pdl.replace %root with %new"""
    file.write_text(pattern(body, rewrite))
    source = source.replace("TYPE", "f32").replace("reduce %x", "reduce %q")
    source = source.replace("  %s", "  %q = nd.mul %x, %x : !nd.tensor<3 x 4 x f32>\n  %s")
    result = opt_tool("-p", f"stepwell-cpu{{to=loop}},apply-pdl{{file={file}}}", stdin=source)
    assert "arith.mulf" not in result.out and "arith.addf" in result.out, result.err


CAT = '  %t = pdl.type\n  %x = pdl.operands\n  %root = pdl.operation "nd.cat" (%x : !pdl.range<value>) -> (%t : !pdl.type)'
SINH = '  %t = pdl.type\n  %x = pdl.operand : %t\n  %root = pdl.operation "nd.sinh" (%x : !pdl.value) -> (%t : !pdl.type)'
COSH = '    %new = pdl.operation "nd.cosh" (%x : !pdl.value) -> (%t : !pdl.type)\n    pdl.replace %root with %new'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{file}: the file holds no pdl.pattern"),
        (pattern(SINH, COSH).replace("nd.cosh", "nd.csh"), "{file}:6:12: there is no operation 'nd.csh'; did you mean 'nd.cosh'"),
        (pattern(SINH, COSH).replace("pdl.type", "pdl.tipe", 1),
         "{file}:2:8: dialect 'pdl' has no operation 'pdl.tipe'; did you mean 'pdl.type'"),
        (pattern(CAT, "    pdl.erase %root"), "{file}:3:8: pdl.operands is not supported"),
        (pattern(SINH + '\n  pdl.apply_native_constraint "one_us"(%root : !pdl.operation)', COSH),
         "{file}:5:3: there is no constraint 'one_us'; did you mean 'one_use'?"),
        (pattern('  %d = pdl.attribute = #nd.ints<[0]>\n' + SINH.replace("(%x : !pdl.value)", '(%x : !pdl.value) {"dim" = %d}'), COSH),
         "{file}:5:11: 'nd.sinh' has no property 'dim' (it has: none)"),
        (pattern(SINH, COSH.replace("nd.cosh", "nd.sinh")), "times and not done: does a pattern match what it writes?"),
    ],
)  # fmt: skip
def test_mistakes(opt_tool, tmp_path, text, message):
    file = tmp_path / "rules.pdl"
    file.write_text(text)
    t = "!nd.tensor<f32>"
    source = f"func.func @f(%x: {t}) -> {t} {{\n  %s = nd.sinh %x : {t}\n  func.return %s : {t}\n}}\n"
    result = opt_tool("-p", f"apply-pdl{{file={file}}}", stdin=source)
    assert result.code == 1 and message.replace("{file}", str(file)) in result.err, result.err


def constrained(text, more=""):
    """A pattern of sinh with more operations in it, and a constraint."""
    return pattern(f"{SINH}\n{more}  pdl.apply_native_constraint {text}", COSH)


RESULT = "  %r = pdl.result 0 of %root\n"
NUMBER = "  %n = pdl.attribute = 0 : i64\n"
SCALAR = "func.func @f(%x: !nd.tensor<T>) -> !nd.tensor<T> {\n  %s = nd.sinh %x : !nd.tensor<T>\n  func.return %s : !nd.tensor<T>\n}\n"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (constrained('"rank"(%r, %n : !pdl.value, !pdl.attribute)', NUMBER + RESULT), True),
        (constrained('"rank"(%r, %n : !pdl.value, !pdl.attribute)', NUMBER.replace("0 :", "1 :") + RESULT), False),
        (constrained('"rank"(%t, %n : !pdl.type, !pdl.attribute)', NUMBER), True),
        (constrained('"one_use"(%root : !pdl.operation)'), True),
        (constrained('"one_use"(%root : !pdl.operation) {"isNegated" = true}'), False),
    ],
)  # fmt: skip
def test_constraints(opt_tool, tmp_path, text, holds):
    file = tmp_path / "rules.pdl"
    file.write_text(text)
    result = opt_tool("-p", f"apply-pdl{{file={file}}}", stdin=SCALAR.replace("T", "f32"))
    assert result.code == 0, result.err
    assert ("nd.cosh" in result.out) == holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (constrained('"one_use"(%x : !pdl.value)'), "{file}:5:3: constraint 'one_use' takes (operation), got (value)"),
        (constrained('"rank"(%x : !pdl.value)'), "{file}:5:3: constraint 'rank' takes (value or type, attribute), got (value)"),
        (constrained('"rank"(%root, %n : !pdl.operation, !pdl.attribute)', NUMBER),
         "{file}:6:3: constraint 'rank' takes (value or type, attribute), got (operation, attribute)"),
        (constrained('"rank"(%x, %n : !pdl.value, !pdl.attribute)', '  %n = pdl.attribute = "two"\n'),
         "{file}:6:3: argument 1 of constraint 'rank' must be a number such as 2 : i64, got \"two\""),
        (constrained('"element_type"(%x, %n : !pdl.value, !pdl.attribute)', NUMBER),
         "{file}:6:3: argument 1 of constraint 'element_type' must be a type such as f32, got 0 : i64"),
        (constrained('"rank"(%y, %n : !pdl.value, !pdl.attribute)', NUMBER + "  %y = pdl.operand\n"),
         "{file}:7:3: argument 0 of constraint 'rank' is not known: nothing that leads to the root of the pattern has it"),
        (constrained('"element_type"(%x, %n : !pdl.value, !pdl.attribute)', "  %n = pdl.attribute\n"),
         "{file}:6:3: argument 1 of constraint 'element_type' is not known"),
        (constrained('"rank"(%r, %n : !pdl.value, !pdl.attribute)', NUMBER + "  %r = pdl.result 1 of %root\n"),
         "pattern 'mine' ({file}:1:1) failed: {file}:6:8: 'nd.sinh' has 1 results, no result 1"),
    ],
)  # fmt: skip
def test_constraints_with_mistakes(opt_tool, tmp_path, text, message):
    file = tmp_path / "rules.pdl"
    file.write_text(text)
    result = opt_tool("-p", f"apply-pdl{{file={file}}}", stdin=SCALAR.replace("T", "f32"))
    assert result.code == 1 and message.replace("{file}", str(file)) in result.err, result.err


def test_file_that_is_not_there(opt_tool):
    result = opt_tool("-p", "apply-pdl{file=none.pdl}", stdin="func.func private @f()")
    assert result.code == 1 and "pass 'apply-pdl' failed: cannot read 'none.pdl': No such file or directory" in result.err
