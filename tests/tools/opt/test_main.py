"""opt-tool in this process: pipelines, dumps, split files, diagnostics, reproducers, modules of users, targets."""

import subprocess
import sys
from pathlib import Path

import pytest
from xdsl.context import Context

from stepwell.dialects import load_dialects
from stepwell.passes.manager import registry, user
from stepwell.tools.ir_parser import parse_file
from stepwell.tools.opt import main as opt_tool_module
from stepwell.tools.opt import run as opt_run

TEXT = """func.func @f(%a: i32) -> i32 {
  %c = arith.constant 0 : i32
  %b = arith.addi %a, %c : i32
  func.return %b : i32
}
"""

USER = '''
from dataclasses import dataclass
from stepwell.passes.manager import Pass
from xdsl.dialects.arith import AddiOp, ConstantOp
from xdsl.passes import ModulePass


@dataclass(frozen=True)
class CountAdds(Pass):
    """Counts additions. A second sentence.

    More.
    """

    name = "count-adds"
    deep: bool = True

    def apply(self, ctx, op):
        for nested in op.walk():
            if isinstance(nested, AddiOp):
                self.statistic("num-adds")
                self.remark(nested, "seen", "analysis")
                self.remark(nested, "kept", "missed")


class Breaks(ModulePass):
    name = "breaks"

    def apply(self, ctx, op):
        for nested in op.walk():
            if isinstance(nested, AddiOp):
                nested.operands[1] = ConstantOp.from_int_and_width(1, 64).result


class Raises(ModulePass):
    name = "raises"

    def apply(self, ctx, op):
        raise IndexError("no such thing")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.mlir"
    path.write_text(TEXT)
    return path


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(USER)
    return str(path)


def test_identity_and_standard_input(opt_tool, file):
    result = opt_tool(file)
    assert (result.code, result.err) == (0, "")
    assert opt_tool(stdin=TEXT).out == result.out == opt_tool("-", stdin=TEXT).out
    assert opt_tool(stdin=result.out).out == result.out


@pytest.mark.parametrize(
    "flags",
    [
        ("--pass-pipeline=builtin.module(func.func(canonicalize),cse)",),
        ("--pass-pipeline", "builtin.module(canonicalize)"),
        ("-p", "cse,canonicalize"),
        ("--passes=canonicalize",),
        ("--cse", "--canonicalize"),
    ],
)
def test_ways_to_name_passes(opt_tool, file, flags):
    result = opt_tool(file, *flags)
    assert result.code == 0, result.err
    assert "constant" not in result.out


def test_flag_of_a_pass_with_options(opt_tool, file, module):
    result = opt_tool(file, "--load-module", module, "--count-adds=deep=false", "--dump-pass-pipeline")
    assert result.err == "Pass Manager with 1 passes:\nbuiltin.module(count-adds{deep=false})\n\n"


def test_single_dash_flags(opt_tool, file):
    assert '"arith.addi"' in opt_tool(file, "-mlir-print-op-generic").out


def test_dumps_go_to_standard_error(opt_tool, file):
    result = opt_tool(file, "-p", "canonicalize,cse", "--mlir-print-ir-after-all", "--mlir-print-ir-before=cse")
    headers = [line for line in result.err.splitlines() if line.startswith("// -----//")]
    assert headers == [
        "// -----// IR Dump After CanonicalizePass (canonicalize) //----- //",
        "// -----// IR Dump Before CommonSubexpressionElimination (cse) //----- //",
        "// -----// IR Dump After CommonSubexpressionElimination (cse) //----- //",
    ]
    assert "//" not in result.out


def test_timing_and_statistics(opt_tool, file, module):
    result = opt_tool(file, "--load-module", module, "-p", "count-adds", "--mlir-timing", "--mlir-pass-statistics")
    assert "Execution time report" in result.err and "CountAdds" in result.err and "Parser" in result.err
    assert "count-adds\n  (S) 1 num-adds\n" in result.err


def test_remarks(opt_tool, file, module):
    flags = (file, "--load-module", module, "-p", "count-adds")
    assert opt_tool(*flags).err == ""
    seen = f"{file}:3:8: remark: [count-adds] analysis: 'arith.addi' op: seen\n"
    kept = f"{file}:3:8: remark: [count-adds] missed: 'arith.addi' op: kept\n"
    source = "  %b = arith.addi %a, %c : i32\n       ^\n"
    assert opt_tool(*flags, "--remarks").err == seen + source + kept + source
    assert opt_tool(*flags, "--remarks=missed").err == kept + source


def test_generic_and_debuginfo(opt_tool, file):
    result = opt_tool(file, "--mlir-print-debuginfo", "--mlir-print-op-generic")
    assert f'loc("{file}":3:8)' in result.out
    assert opt_tool(stdin=result.out).out == opt_tool(file).out


def test_locations_survive_a_round_trip(opt_tool, file):
    text = opt_tool(file, "--mlir-print-debuginfo").out
    assert opt_tool("--mlir-print-debuginfo", stdin=text).out == text


def test_output_file(opt_tool, file, tmp_path):
    out = tmp_path / "out.mlir"
    assert opt_tool(file, "-o", out).out == ""
    assert out.read_text() == opt_tool(file).out
    out.write_text("old")
    assert opt_tool("-o", out, stdin="nonsense").code == 1
    assert out.read_text() == "old"


# Several parts in one file.


SPLIT = f"""// a comment
{TEXT}
// -----
func.func @g() {{
  %x = arith.addi %y, %y : i32
  func.return
}}
// -----

// -----
func.func @h() {{
  func.return
}}
"""


def test_split_input_goes_on_after_an_error(opt_tool):
    result = opt_tool("--split-input-file", "-p", "cse", stdin=SPLIT)
    assert result.code == 1
    assert "@f" in result.out and "@h" in result.out and result.out.count("// -----\n") == 1
    assert result.err.startswith("<stdin>:10:8: error: value '%y' is used but never defined\n  %x = arith.addi")


def test_split_marker_is_a_comment_without_the_flag(opt_tool):
    result = opt_tool(stdin=SPLIT.replace("%y, %y", "%z, %z").replace("  %x", "  %z = arith.constant 1 : i32\n  %x"))
    assert result.code == 0
    assert "@f" in result.out and "@h" in result.out


# Diagnostics that are expected.


def verify_diagnostics(opt_tool, text: str, *flags: str):
    return opt_tool("--verify-diagnostics", "--split-input-file", *flags, stdin=text)


BAD = "  func.return %x : i32\n}\n"


@pytest.mark.parametrize(
    "text",
    [
        "// expected-error @+3 {{value '%x' is used but never defined}}\n\nfunc.func @f() -> i32 {\n" + BAD,
        "func.func @f() -> i32 {\n\n// expected-error@below {{never defined}}\n" + BAD,
        "// expected-error @unknown {{value}}\n\n\nfunc.func @f() -> i32 {\n" + BAD,
        "// expected-error-re @+2 {{value '{{%[a-z]}}' is used}}\nfunc.func @f() -> i32 {\n" + BAD,
        "// expected-error @3 {{value}}\nfunc.func @f() -> i32 {\n" + BAD,
    ],
)
def test_expected_error(opt_tool, text):
    result = verify_diagnostics(opt_tool, text)
    assert (result.code, result.err) == (0, "")


def test_expected_on_the_same_line_and_above(opt_tool):
    text = "func.func @f() -> i32 {\n  func.return %x : i32 // expected-error {{never}}\n}\n"
    assert verify_diagnostics(opt_tool, text).code == 0
    text = "func.func @f() -> i32 {\n  func.return %x : i32\n  // expected-error @above {{never}}\n}\n"
    assert verify_diagnostics(opt_tool, text).code == 0


def test_expected_error_that_is_missing(opt_tool):
    result = verify_diagnostics(opt_tool, "// expected-error @+1 {{bad}}\n" + TEXT)
    assert result.code == 1
    assert result.err == ('<stdin>:2: error: expected error "bad" was not produced\nfunc.func @f(%a: i32) -> i32 {\n')


def test_unexpected_error(opt_tool):
    result = verify_diagnostics(opt_tool, "func.func @f() -> i32 {\n" + BAD)
    assert result.code == 1
    assert result.err.startswith("<stdin>:2:3: error: unexpected error: value '%x' is used but never defined\n")


def test_wrong_line_or_text_does_not_fit(opt_tool):
    for comment in ("// expected-error @+1 {{never}}\n", "// expected-error @+2 {{always}}\n"):
        result = verify_diagnostics(opt_tool, comment + "func.func @f() -> i32 {\n" + BAD)
        assert result.code == 1
        assert "unexpected error" in result.err and "was not produced" in result.err


def test_expectations_belong_to_their_part(opt_tool):
    good = "// expected-error @+2 {{never}}\nfunc.func @f() -> i32 {\n" + BAD
    assert verify_diagnostics(opt_tool, good + "// -----\n" + TEXT + "// -----\n" + good).code == 0
    assert verify_diagnostics(opt_tool, good + "// -----\n" + "func.func @f() -> i32 {\n" + BAD).code == 1


def test_expected_remarks(opt_tool, module):
    flags = ("--load-module", module, "-p", "count-adds", "--remarks=analysis")
    text = TEXT.replace("  %b", "  // expected-remark @+1 {{'arith.addi' op: seen}}\n  %b")
    result = verify_diagnostics(opt_tool, text, *flags)
    assert (result.code, result.err) == (0, "")
    assert verify_diagnostics(opt_tool, TEXT, *flags).code == 1


# Passes of users, failures, reproducers.


def test_passes_of_a_module_do_not_outlive_the_call(opt_tool, file, module):
    before = dict(registry.PASSES)
    assert opt_tool(file, "--load-module", module, "-p", "count-adds{deep=false}").code == 0
    assert registry.PASSES == before
    assert "'count-adds' does not refer to" in opt_tool(file, "-p", "count-adds").err


def test_registered_pass_runs_in_its_stage(opt_tool, file, tmp_path, monkeypatch):
    from stepwell.passes.manager import pipelines

    monkeypatch.setitem(pipelines.TARGETS, "toy", {"nd": ("cse",), "loop": ("dce",)})
    monkeypatch.setitem(pipelines.NAMED_PIPELINES, "stepwell-toy", "toy")
    path = tmp_path / "mine.py"
    path.write_text(USER + "\nimport stepwell\nstepwell.register_pass('nd', CountAdds, position='before:cse')\n")
    result = opt_tool(file, "--load-module", path, "-p", "stepwell-toy{to=nd}", "--dump-pass-pipeline", "--remarks")
    assert "builtin.module(count-adds{deep=true},cse)" in result.err
    assert "analysis: 'arith.addi' op: seen" in result.err
    assert not any(added.name == "count-adds" for added in user.registered())


def test_user_pass_that_breaks_the_ir(opt_tool, file, module):
    for each in ("0", "1"):
        result = opt_tool(file, "--load-module", module, "-p", "cse,breaks", f"--verify-each={each}")
        assert result.code == 1 and result.out == ""
        assert result.err.startswith(f"{file}:3:8: error: after pass 'breaks': 'arith.addi' op: operand")
        assert result.err.endswith("\n  %b = arith.addi %a, %c : i32\n       ^\n")


def test_traceback_only_with_debug(opt_tool, file, module):
    result = opt_tool(file, "--load-module", module, "-p", "raises")
    assert result.err == f"{file}: error: pass 'raises' failed: IndexError: no such thing (at {module}:39)\n"
    assert "Traceback" in opt_tool(file, "--load-module", module, "-p", "raises", "--debug").err


def test_dump_after_failure(opt_tool, file, module):
    result = opt_tool(file, "--load-module", module, "-p", "cse,raises", "--mlir-print-ir-after-failure")
    assert "// -----// IR Dump After Raises Failed (raises) //----- //\nbuiltin.module {" in result.err
    assert result.err.count("IR Dump") == 1


def test_crash_reproducer(opt_tool, file, module, tmp_path):
    path = tmp_path / "crash.mlir"
    flags = ("--load-module", module)
    pipeline = "--pass-pipeline=builtin.module(func.func(cse),raises)"
    first = opt_tool(file, *flags, pipeline, f"--mlir-pass-pipeline-crash-reproducer={path}")
    assert first.err.endswith(f"{file}: note: reproducer: opt-tool {path} --run-reproducer\n")
    assert '    mlir_reproducer: {\n      pipeline: "builtin.module(func.func(cse),raises)",' in path.read_text()
    again = opt_tool(path, *flags, "--run-reproducer")
    assert again.code == 1 and "pass 'raises' failed: IndexError: no such thing" in again.err
    # Without the flag the footer is read and left alone.
    assert opt_tool(path).out == opt_tool(file).out


def test_a_reproducer_loads_what_its_passes_need(opt_tool, file, module, tmp_path, monkeypatch):
    """DBG-07"""
    for flag in ("--mlir-pass-pipeline-crash-reproducer", "--mlir-generate-reproducer"):
        path = tmp_path / f"{flag[7:]}.mlir"
        opt_tool(file, "--load-module", module, "-p", "cse,raises", f"{flag}={path}")
        assert f'      load_modules: ["{module}"],' in path.read_text()
        monkeypatch.chdir(tmp_path)
        again = opt_tool(path, "--run-reproducer")
        assert again.code == 1 and "pass 'raises' failed: IndexError: no such thing" in again.err
    path.write_text(path.read_text().replace(str(module), "/no/such.py"))
    assert "error: --load-module: no such file '/no/such.py'" in opt_tool(path, "--run-reproducer").err


def test_dumps_as_differences_and_as_files(opt_tool, file, tmp_path):
    result = opt_tool(file, "-p", "canonicalize", "--mlir-print-ir-after-change=diff")
    assert "@@ -" in result.err and "\n-" in result.err and "\033" not in result.err
    assert "IR Dump After" in opt_tool(file, "-p", "canonicalize", "--mlir-print-ir-after-change").err
    wrong = opt_tool(file, "-p", "canonicalize", "--mlir-print-ir-after-change=some").err
    assert wrong.startswith("opt-tool: error: argument --mlir-print-ir")
    result = opt_tool(file, "-p", "cse,canonicalize", f"--mlir-print-ir-tree-dir={tmp_path / 'tree'}")
    assert "IR Dump" not in result.err
    assert sorted(p.name for p in (tmp_path / "tree").rglob("*.mlir")) == ["0_cse.mlir", "1_canonicalize.mlir"]


def test_generated_reproducer(opt_tool, file, tmp_path):
    path = tmp_path / "r.mlir"
    result = opt_tool(file, "-p", "canonicalize", f"--mlir-generate-reproducer={path}")
    assert opt_tool(path, "--run-reproducer").out == result.out


# Pages.


def test_help_names_passes_and_options(opt_tool, module):
    page = opt_tool("--help", "--load-module", module).out
    assert "--mlir-print-ir-after-all" in page
    assert "  count-adds\n      Counts additions.\n      {deep}  bool; default: true\n" in page
    assert "      {fewest}  int; default: 4\n          Equal parts that make a list.\n" in page
    assert "stepwell-cpu{from=STAGE to=STAGE}" in page
    assert "  canonicalize\n" not in page and "passes of xDSL run too: --help=all has them" in page
    assert "  canonicalize\n" in opt_tool("--help=all").out


def test_help_of_one_pass(opt_tool, module):
    page = opt_tool("--help", "count-adds", "--load-module", module).out
    assert page == "  count-adds\n      Counts additions.\n      {deep}  bool; default: true\n"
    assert "      host: " in opt_tool("--help=stepwell-cpu").out
    assert opt_tool("-h", "scf-for-loop-flatten").out.startswith("  scf-for-loop-flatten\n")
    wrong = opt_tool("--help", "loop-fuze")
    assert wrong.code == 1 and "there is no pass 'loop-fuze'; did you mean 'loop-fuse'?" in wrong.err


def test_lists(opt_tool):
    names = opt_tool("--list-passes").out.split()
    assert {"nd-to-loop", "canonicalize", "stepwell-cpu"} <= set(names) and names == sorted(names)
    page = opt_tool("--show-dialects").out
    assert "\ncpu\n" in page and "  cpu.load  " in page and " arith " in page


# Targets and runs.


def test_targets(opt_tool, file, monkeypatch, tmp_path):
    monkeypatch.setattr(opt_tool_module, "emitter", lambda target: {"llvm": text, "obj": binary}[target])

    def text(module, ctx):
        return f"; {len(list(module.walk()))} operations\n"

    def binary(module, ctx):
        return b"\x7fELF\x00"

    assert opt_tool(file, "-t", "llvm").out == "; 5 operations\n"
    assert opt_tool(file, "-t", "obj").err == "opt-tool: error: binary output needs a file: use -o\n"
    assert opt_tool(file, "-t", "obj", "-o", tmp_path / "a.o").code == 0
    assert (tmp_path / "a.o").read_bytes() == b"\x7fELF\x00"


RUN = """builtin.module attributes {nd.symbols = {s0 = #nd.range<2, 16, 3>}} {
  func.func @forward(%x: !nd.tensor<s0 x 2 x f32> {nd.layout = #nd.layout<[1, s0], 0>},
                     %n: index {nd.symbol = #nd.expr<s0>},
                     %i: !nd.tensor<4 x i64>, %b: !nd.tensor<2 x bf16>, %p: i1, %f: f64) {
    func.return
  }
  func.func @other() {
    func.return
  }
}
"""


@pytest.fixture
def runner(monkeypatch):
    """A runner that gives back what it got."""
    calls = []

    def run_module(module, ctx, inputs, function=None):
        calls.append((inputs, function))
        return inputs

    toy = type(sys)("stepwell.tools.opt.toy_runner")
    toy.run_module = run_module
    monkeypatch.setitem(sys.modules, "stepwell.tools.opt.toy_runner", toy)
    monkeypatch.setattr(opt_run, "RUNNER", ".toy_runner:run_module")
    return calls


def test_run_with_random_inputs(opt_tool, runner):
    torch = pytest.importorskip("torch")
    result = opt_tool("--run", stdin=RUN)
    assert result.code == 0, result.err
    x, n, i, b, p, f = runner[-1][0]
    assert (x.shape, x.stride(), x.dtype) == ((3, 2), (1, 3), torch.float32)
    assert (n, type(p), type(f)) == (3, bool, float)
    assert i.dtype == torch.int64 and set(i.tolist()) <= {0, 1} and b.dtype == torch.bfloat16
    heads = [line for line in result.out.splitlines() if line.startswith("result")]
    assert heads[:4] == [
        "result 0: float32 3x2",
        "result 1: int scalar",
        "result 2: int64 4",
        "result 3: bfloat16 2",
    ]
    assert opt_tool("--run", stdin=RUN).out == result.out != opt_tool("--run", "--seed=1", stdin=RUN).out


def test_run_of_numbers_that_numpy_has_not(opt_tool, runner):
    result = opt_tool("--run", stdin="func.func @f(%a: !nd.tensor<2 x complex<f16>>, %b: !nd.tensor<2 x bf16>) {\n  func.return\n}")
    assert result.code == 0, result.err
    heads = [line for line in result.out.splitlines() if line.startswith("result")]
    assert heads == ["result 0: complex32 2", "result 1: bfloat16 2"]


def test_run_with_files(opt_tool, runner, tmp_path):
    np = pytest.importorskip("numpy")
    np.save(tmp_path / "x.npy", np.arange(3.0))
    result = opt_tool("--run=other", "--args", tmp_path / "x.npy", "--outputs", tmp_path / "y", stdin=RUN)
    assert result.out == f"result 0: float64 3 -> {tmp_path}/y0.npy\n"
    assert runner[-1][1] == "other" and runner[-1][0][0].tolist() == [0, 1, 2]
    assert np.array_equal(np.load(tmp_path / "y0.npy"), np.arange(3.0))


def test_run_of_an_unknown_function(opt_tool, runner):
    assert opt_tool("--run=fowrard", stdin=RUN).err == (
        "<stdin>: error: --run: the module has no function 'fowrard'; did you mean 'forward'?\n"
    )
    assert "has no function 'x'; there are: forward, other" in opt_tool("--run=x", stdin=RUN).err


# Reading.


def test_operations_know_their_line():
    module, _ = parse_file(TEXT, "a.mlir", load_dialects(Context()))
    places = [
        f"{op.name} {op.location.line.data}:{op.location.column.data}" for op in module.walk() if op is not module
    ]
    assert places == ["func.func 1:1", "arith.constant 2:8", "arith.addi 3:8", "func.return 4:3"]


def test_start_loads_neither_torch_nor_numpy_nor_llvm():
    code = (
        "import sys, io; sys.stdin = io.StringIO('func.func @f() { func.return }');"
        "from stepwell.tools.opt.main import main; assert main(['-p', 'cse,canonicalize', '--mlir-timing']) == 0;"
        "heavy = {'torch', 'numpy', 'llvmlite', 'sympy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


KERNEL = """cpu.kernel @k(%p : !cpu.ptr, %q : !cpu.ptr) {
  %zero = arith.constant 0 : i64
  %a = cpu.load %p[%zero] : vector<4xf32>
  cpu.store %a, %q[%zero] : vector<4xf32>
  cpu.return
}
"""


def test_code_of_a_kernel(opt_tool, tmp_path):
    pytest.importorskip("llvmlite")
    assert "define void @k(ptr" in opt_tool("-t", "llvm", stdin=KERNEL).out
    assert "k:" in opt_tool("-t", "asm", stdin=KERNEL).out
    assert opt_tool("-t", "obj", "-o", tmp_path / "k.o", stdin=KERNEL).code == 0
    assert (tmp_path / "k.o").stat().st_size > 100
    result = opt_tool("-t", "llvm", stdin=TEXT)
    assert result.err == "<stdin>: error: -t llvm: the module holds no cpu.kernel; stepwell-cpu lowers it to one\n"
