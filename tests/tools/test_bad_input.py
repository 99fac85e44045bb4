"""Bad input: what opt-tool says, word for word.  Nothing here may show a Python traceback."""

# Each message stands on one line, so that a search for it finds it.
# ruff: noqa: E501

import pytest

FUNC = "func.func @f() {\n  func.return\n}\n"

NEST = """
func.func @f(%x: !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
  %e = loop.empty : !nd.tensor<4 x f32>
  %r = loop.nest (%i = 4) outs(%o = %e : !nd.tensor<4 x f32>) {
    %v = loop.load %x[%i] : !nd.tensor<4 x f32> -> f32
    loop.store %v, %o[%i] : f32, !nd.tensor<4 x f32>
  } attributes {label = "copy"}
  func.return %r : !nd.tensor<4 x f32>
}
"""

USER = """
from xdsl.dialects.arith import ConstantOp
from xdsl.passes import ModulePass

class Breaks(ModulePass):
    name = "breaks"

    def apply(self, ctx, op):
        for f in op.ops:
            f.body.block.insert_op_before(ConstantOp.from_int_and_width(1, 64), f.body.block.first_op)
            f.body.block.last_op.detach()

class Raises(ModulePass):
    name = "raises"

    def apply(self, ctx, op):
        {}["x"]
"""

# (name, text, message): the whole of standard error but for the source line and the caret.
SYNTAX = [
    ("empty", "", "1:1: error: the file holds no operation"),
    ("comment", "// nothing\n", "1:1: error: the file holds no operation"),
    ("unclosed region", "func.func @f() {\n  func.return\n", "3:1: error: expected an operation, '}' or the label of a block, found the end of the file"),
    ("stray brace", "}", "1:1: error: expected an operation, found '}'"),
    ("stray token in a region", "func.func @f() {\n  )\n}", "2:3: error: expected an operation, '}' or the label of a block, found ')'"),
    ("unknown dialect", "  foo.bar\n", "1:3: error: there is no dialect 'foo' for operation 'foo.bar'"),
    ("misspelt dialect", "func.func @f() {\n  arth.addi\n}", "2:3: error: there is no dialect 'arth' for operation 'arth.addi'; did you mean 'arith'?"),
    ("misspelt operation", "func.func @f(%a: i32) {\n  %b = arith.adi %a, %a : i32\n}", "2:8: error: dialect 'arith' has no operation 'arith.adi'; did you mean 'arith.addi' or 'arith.andi'?"),
    ("operation without a dialect", "func.func @f() {\n  retrun\n}", "2:3: error: 'retrun' is no operation; did you mean 'func.return'?"),
    ("unknown type", "func.func @f() -> !nope.t { func.return }", "1:27: error: 'nope.t' is not registered"),
    ("no type", "func.func @f(%a: i33x) { func.return }", "1:18: error: type expected"),
    ("bad vector", "func.func @f(%a: vector<-1xf32>) { func.return }", "1:25: error: Expected vector element type"),
    ("wrong operand type", "func.func @f(%a: f32) {\n  %b = arith.addf %a, %a : f64\n}", "2:19: error: operand is used with type f64, but has been previously used or defined with type f32"),
    ("type that the operation has not", "func.func @f(%a: f32) {\n  %b = arith.addi %a, %a : f32\n}", "3:1: error: Unexpected attribute f32"),
    ("undefined value", "func.func @f() -> i32 {\n  func.return %x : i32\n}", "2:3: error: value '%x' is used but never defined"),
    ("value defined twice", "func.func @f(%a: i32) {\n  %a = arith.constant 1 : i32\n}", "2:3: error: SSA value %a is already defined"),
    ("too many results", "%0:2 = arith.constant 1 : i32", "1:1: error: Operation has 1 results, but was given 2 to bind."),
    ("undefined block", "func.func @f() {\n  cf.br ^x\n}", "2:9: error: block '^x' is used but never defined"),
    ("attribute without a value", "func.func @f() attributes {a = } {\n}", "1:32: error: attribute expected"),
    ("alias defined twice", "#x = 1 : i32\n#x = 2 : i32", "2:4: error: re-declaration of alias '#x'"),
    ("unclosed string", 'func.func @f() { "x', "1:18: error: End of file reached before closing string literal."),
    ("long unclosed string", '"' + "x" * 60 + "\n" + FUNC, "1:1: error: End of file reached before closing string literal."),
    ("bad character", FUNC + "`", "4:1: error: Unexpected character: `"),
    ("constant out of range", "%a = arith.constant 300 : i8", "1:29: error: Integer value 300 is out of range for type i8 which supports values in the range [-128, 256)"),
    ("unknown footer", FUNC + "{-# foo: {} #-}", "4:10: error: got an unexpected key in file metadata: foo"),
    ("invalid return", "func.func @f(%a: f32) {\n  func.return %a : f32\n}", "2:3: error: 'func.return' op: Expected arguments to have the same types as the function output types: expected [], got [f32]"),
    ("use before definition", "func.func @f(%a: i32) {\n  %b = arith.addi %c, %a : i32\n  %c = arith.addi %a, %a : i32\n  func.return\n}", "2:8: error: 'arith.addi' op: operand #0 (a result of 'arith.addi') does not dominate this use"),
    ("value from outside of a function", "%c = arith.constant 1 : i32\nfunc.func @f() -> i32 {\n  func.return %c : i32\n}", "3:3: error: 'func.return' op: operand #0 (a result of 'arith.constant') is defined outside of its 'func.func'"),
    ("layout of another rank", "func.func @f(%a: !nd.tensor<2 x f32> {nd.layout = #nd.layout<[], 0>}) {\n  func.return\n}", "1:1: error: 'func.func' op: nd.layout of argument 0 has 0 strides, its type 1 dimensions"),
    ("random numbers of two call sites", "func.func @f(%s: !nd.tensor<2 x i64>) {\n  %r = nd.random %s {kind = \"rand\", index = [0, 1]} : (!nd.tensor<2 x i64>) -> !nd.tensor<3 x f32>\n  func.return\n}", "2:8: error: 'nd.random' op: nd.random: index has 2 numbers instead of one, the call site's"),
    ("branch that yields nothing", "func.func @f(%c: i1, %a: f32) -> f32 {\n  %r = scf.if %c -> (f32) {\n    scf.yield %a : f32\n  } else {\n    scf.yield\n  }\n  func.return %r : f32\n}", "2:8: error: 'scf.if' op: its else branch yields nothing, its results are f32"),
    ("range without sizes", "builtin.module attributes {nd.symbols = {s0 = #nd.range<2, 1, 4>}} {\n}", "1:65: error: #nd.range: no size is from 2 to 1; -1 stands for a highest size that is not known"),
    ("element type that is none", "func.func @f(%a: !nd.tensor<4 x f37>) {\n  func.return\n}", "1:36: error: expected ' x ' and an element type (f32, i64, ...) behind the size 'f37'"),
    ("misspelt attribute of a nest", NEST.replace("label", "no_fus = 1 : i1, label"), "4:8: error: 'loop.nest' op: loop.nest: it has no attribute 'no_fus'; did you mean 'no_fuse'?"),
    ("key of the schedule beside it", NEST.replace("label", "tiles = array<i64: 2>, label"), "4:8: error: 'loop.nest' op: loop.nest: 'tiles' is a key of its schedule: schedule = {tiles = ...}"),
    ("loop of negative size", NEST.replace("%i = 4", "%i = -4"), "4:8: error: 'loop.nest' op: loop.nest: a loop has -4 iterations"),
    ("whole tensor made in a nest", NEST.replace("%v = loop", "%t = loop.empty : !nd.tensor<4 x f32>\n    %v = loop"), "4:8: error: 'loop.nest' op: loop.nest: 'loop.empty' in its body makes a tensor; what a nest computes are elements, and memory in it is loop.local"),
    ("operand defined inside of its operation", NEST.replace("  %e = loop.empty : !nd.tensor<4 x f32>\n", "").replace("%v = loop", "%e = arith.constant 1.0 : f32\n    %v = loop").replace("%e : !nd.tensor<4 x f32>) {", "%g : !nd.tensor<4 x f32>) {\n    %g = loop.empty : !nd.tensor<4 x f32>"), "3:8: error: 'loop.nest' op: operand #0 is defined only inside of this operation"),
    ("layout of another rank in a call", "func.func @f(%a: !nd.tensor<4 x 4 x f32>) {\n  %b = nd.extern %a {call = #nd.call<\"aten.t.default\", [arg(0)]>, result_layouts = [#nd.layout<[4], 0>]} : (!nd.tensor<4 x 4 x f32>) -> !nd.tensor<4 x 4 x f32>\n  func.return\n}", "2:8: error: 'nd.extern' op: nd.extern: item 0 of result_layouts has 1 strides, the tensor 2 dimensions"),
    ("size that is no integer", "func.func @f(%n: f64 {nd.symbol = #nd.expr<s0>}) {\n  func.return\n}", "1:1: error: 'func.func' op: argument 0 has nd.symbol, so it is a size, which is an index or an integer, not f64"),
    ("access outside of loops", "func.func @f(%a: !nd.tensor<4 x f32>, %i: index) {\n  %v = loop.load %a[%i] : !nd.tensor<4 x f32> -> f32\n  func.return\n}", "2:8: error: 'loop.load' op: loop.load stands in no loop.nest"),
    ("sum of another type", NEST.replace("%v = loop.load", "%v = loop.reduce (%j = 2) sum {\n    loop.yield %i : index\n  } -> f32\n    %w = loop.load"), "5:10: error: 'loop.reduce' op: loop.reduce: sum of index gives index, not f32"),
    ("no terminator", "func.func @f() {\n  %c = arith.constant 1 : i32\n}", "2:8: error: 'arith.constant' op: Operation arith.constant terminates block in single-block region but is not a terminator"),
    ("two functions of one name", FUNC + FUNC, "1:1: error: 'builtin.module' op: Redefinition of symbol \"f\""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in SYNTAX], ids=[row[0] for row in SYNTAX])
def test_ir(opt_tool, text, message):
    result = opt_tool(stdin=text)
    assert (result.code, result.out) == (1, "")
    lines = result.err.splitlines()
    assert lines[0] == f"<stdin>:{message}"
    assert len(lines) == 1 or lines[2].strip() == "^"


PIPELINES = [
    ("unknown pass", ["-p", "canonicalze"], "1:1: error: 'canonicalze' does not refer to a registered pass or pass pipeline; did you mean 'canonicalize'?\n  canonicalze\n  ^~~~~~~~~~~\n"),
    ("unknown option", ["-p", "cse,canonicalize{max=1}"], "1:18: error: pass 'canonicalize' has no option 'max'; it has none\n  cse,canonicalize{max=1}\n                   ^~~\n"),
    ("wrong type of option", ["-p", "scf-parallel-loop-tiling{parallel-loop-tile-sizes=4,b}"], "1:51: error: option 'parallel-loop-tile-sizes' of pass 'scf-parallel-loop-tiling' takes list of int, not '4,b'\n  scf-parallel-loop-tiling{parallel-loop-tile-sizes=4,b}\n                                                    ^~~\n"),
    ("unclosed parenthesis", ["--pass-pipeline=builtin.module(cse"], "1:15: error: '(' after 'builtin.module' is never closed\n  builtin.module(cse\n                ^\n"),
    ("empty element", ["-p", "cse,,dce"], "1:5: error: expected the name of a pass, found ','\n  cse,,dce\n      ^\n"),
    ("nested under a pass", ["-p", "cse(dce)"], "1:1: error: 'cse' is a pass, not an operation to nest under\n  cse(dce)\n  ^~~\n"),
    ("value that an option has not", ["-p", "contract-select{force=fast}"], "1:23: error: option 'force' of pass 'contract-select' takes \"\" | gemm | library, not 'fast'\n  contract-select{force=fast}\n                        ^~~~\n"),
    ("unknown stage", ["-p", "stepwell-cpu{from=mme}"], "1:19: error: pipeline 'stepwell-cpu' has no stage 'mme'; did you mean 'mem'?\n  stepwell-cpu{from=mme}\n                    ^~~\n"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), [row[1:] for row in PIPELINES], ids=[row[0] for row in PIPELINES])
def test_pipeline_text(opt_tool, flags, message):
    result = opt_tool(*flags, stdin=FUNC)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"pass-pipeline:{message}"


USAGE = [
    ("unknown flag", ["--mlir-timin"], "there is no flag '--mlir-timin'; did you mean '--mlir-timing'?"),
    ("unknown target", ["-t", "llvn"], "argument -t: there is no target 'llvn'; did you mean 'llvm'? (choose from mlir, llvm, asm, obj, ttir, ttgir, llir, ptx, cubin, sass, amdgcn, hsaco)"),
    ("two pipelines", ["-p", "cse", "--pass-pipeline=builtin.module()x"], "--pass-pipeline and -p cannot be used together"),
    ("bad boolean", ["--verify-each=maybe"], "argument --verify-each: expected 0 or 1, not 'maybe'"),
    ("bad seed", ["--seed", "x"], "argument --seed: invalid int value: 'x'"),
    ("missing value", ["-p"], "argument -p/--passes: expected one argument"),
    ("unknown kind of remark", ["--remarks=mised"], "argument --remarks: there is no kind 'mised'; did you mean 'missed'? (choose from all, applied, missed, analysis)"),
    ("inputs of no run", ["--args", "a.npy"], "--args says how a function is run: it needs --run"),
    ("results of no run", ["--outputs", "x"], "--outputs says how a function is run: it needs --run"),
    ("repetition of no run", ["--repeat", "3"], "--repeat says how a function is run: it needs --run"),
    ("negative repetition", ["--run", "--repeat", "-3"], "argument --repeat: expected a number of calls from 0, not '-3'"),
    ("IR around an unknown pass", ["-p", "cse", "--mlir-print-ir-after=cee"], "there is no pass 'cee' to print the IR around; did you mean 'cse' or 'dce'?"),
    ("two files", ["a.mlir", "b.mlir"], "unrecognized arguments: b.mlir"),
    ("no module file", ["--load-module", "/no/such.py"], "--load-module: no such file '/no/such.py'"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), [row[1:] for row in USAGE], ids=[row[0] for row in USAGE])
def test_usage(opt_tool, flags, message):
    result = opt_tool(*flags, stdin=FUNC)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"opt-tool: error: {message}\n  opt-tool --help describes the flags\n"


def test_files(opt_tool, tmp_path):
    def error(*arguments) -> str:
        result = opt_tool(*arguments, stdin=FUNC)
        assert (result.code, result.out) == (1, "")
        return result.err.replace(str(tmp_path), "DIR")

    (tmp_path / "binary.mlir").write_bytes(b"func\xff\x00")
    (tmp_path / "zero.mlir").write_bytes(b"func\x00")
    assert error(tmp_path / "none.mlir") == "opt-tool: error: cannot open 'DIR/none.mlir': No such file or directory\n"
    assert error(tmp_path) == "opt-tool: error: cannot open 'DIR': Is a directory\n"
    assert error(tmp_path / "binary.mlir") == (
        "opt-tool: error: 'DIR/binary.mlir' is not text: byte 0xff at offset 4 is not UTF-8\n"
    )
    assert error(tmp_path / "zero.mlir") == (
        "opt-tool: error: 'DIR/zero.mlir' is not text: it has a zero byte at offset 4\n"
    )
    assert error("-o", tmp_path / "no" / "o.mlir") == (
        "opt-tool: error: cannot write 'DIR/no/o.mlir': No such file or directory\n"
    )
    assert error("--run-reproducer") == "<stdin>: error: --run-reproducer: the file has no mlir_reproducer footer\n"
    assert error("--no-implicit-module").startswith("<stdin>:1:1: error: expected one builtin.module\n")


def test_passes_of_users(opt_tool, tmp_path):
    path = tmp_path / "mine.py"

    def error(source: str, *flags: str) -> str:
        path.write_text(source)
        result = opt_tool("--load-module", path, *flags, stdin=FUNC)
        assert (result.code, result.out) == (1, "")
        return result.err.replace(str(tmp_path), "DIR")

    usage = "\n  opt-tool --help describes the flags\n"
    assert error(USER, "-p", "breaks") == (
        "<stdin>: error: after pass 'breaks': 'arith.constant' op: Operation arith.constant terminates block in "
        "single-block region but is not a terminator\n"
    )
    assert error(USER, "-p", "raises") == "<stdin>: error: pass 'raises' failed: KeyError: 'x' (at DIR/mine.py:17)\n"
    assert error("x = 1 +\n") == (
        f"opt-tool: error: --load-module: DIR/mine.py:1: SyntaxError: invalid syntax (mine.py, line 1){usage}"
    )
    assert error("\n\nraise ValueError('no')\n") == (
        f"opt-tool: error: --load-module: DIR/mine.py:3: ValueError: no{usage}"
    )
    assert error("import stepwell\nstepwell.register_pass('lop', 3)\n") == (
        "opt-tool: error: --load-module: DIR/mine.py:2: PipelineError: there is no stage 'lop'; "
        f"did you mean 'loop'?{usage}"
    )
    assert error("import stepwell\nstepwell.register_pass('loop', 3)\n") == (
        "opt-tool: error: --load-module: DIR/mine.py:2: PipelineError: expected an xDSL ModulePass or "
        f"RewritePattern (class or instance), or the path of a PDL file, not 3{usage}"
    )


WRONG_LEVEL = [
    ("mem-plan", "mem-plan works on buffers, this function is on tensors; loop-to-mem makes the one of the other"),
    ("mem-to-cpu", "mem-to-cpu works on buffers, this function is on tensors; loop-to-mem makes the one of the other"),
    ("mem-to-tt", "mem-to-tt works on buffers, this function is on tensors; loop-to-mem makes the one of the other"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), WRONG_LEVEL)
def test_passes_on_another_level(opt_tool, name, message):
    result = opt_tool("-p", name, stdin=NEST)
    assert result.code == 1 and f"2:1: error: pass '{name}' failed: 'func.func' op: {message}\n" in result.err


def test_a_pipeline_from_a_stage_that_is_behind(opt_tool):
    mem = opt_tool("-p", "stepwell-cpu{from=mem to=mem}", stdin=NEST)
    later = opt_tool("-p", "stepwell-cpu{from=loop}", stdin=mem.out)
    message = "nd-to-loop has no rule for mem.alloc: this function is behind it already; a pipeline without `from` begins at its level"
    assert mem.code == 0 and later.code == 1 and f"pass 'nd-to-loop' failed: 'mem.alloc' op: {message}\n" in later.err


def test_size_that_nothing_binds(opt_tool):
    result = opt_tool("--run", stdin=NEST.replace("%x[%i]", "%x[%i + s9]"))
    assert result.code == 1
    assert "4:8: error: pass 'to-host' failed: 'host.launch' op: a size that the kernel takes: no argument binds s9\n" in result.err


def test_gpu_that_does_not_exist(opt_tool):
    message = "there is no machine 'h100' (cpu; GPUs: sm_80, sm_90, gfx942 and the like)"
    result = opt_tool("-p", "gpu-schedule", "--machine", "h100", stdin=NEST)
    assert result.code == 1 and f"error: argument --machine/--target: {message}\n" in result.err
    result = opt_tool(stdin='builtin.module attributes {stepwell.machine = #stepwell.machine<"h100">} {\n}')
    assert result.code == 1 and f"<stdin>:1:65: error: {message}\n" in result.err


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ("sm_90,threads=3", "machine 'sm_90' has no 'threads'; what can be said of it: multiprocessors, memory_gbs, device"),
        ("cpu,threads=0", "machine 'cpu': threads = 0 is less than 1"),
        ("cpu,threads", "machine 'cpu': expected a number in 'name=number', not 'threads'"),
    ],
)
def test_what_a_machine_does_not_have(opt_tool, machine, message):
    result = opt_tool("--machine", machine, stdin=NEST)
    assert result.code == 1 and message in result.err


def test_a_pass_for_another_kind_of_machine(opt_tool):
    result = opt_tool("-p", "gpu-schedule", "--machine", "cpu", stdin=NEST)
    message = "pass 'gpu-schedule' failed: the module is for the machine 'cpu', the pass for a GPU (opt-tool --machine sm_90)"
    assert (result.code, result.err) == (1, f"<stdin>: error: {message}\n")


KERNEL = """builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90">} {
  tt.func public @k(%p: !tt.ptr<f32>) {
    tt.return
  }
}"""


@pytest.mark.parametrize(("machine", "known"), [("gfx942", "for the machine 'sm_90'"), ("cpu", "for the machine 'sm_90'"), ("sm_80", "")])
def test_kernels_that_were_lowered_for_another_machine(opt_tool, machine, known):
    result = opt_tool("--machine", machine, stdin=KERNEL)
    message = f"<stdin>: error: the kernels of the module were lowered {known}; for '{machine}' lower the nests (stage mem) anew\n"
    assert (result.code, result.err) == ((1, message) if known else (0, ""))


def test_module_without_functions(opt_tool):
    result = opt_tool("-p", "to-host", stdin="builtin.module {\n}")
    assert result.code == 1 and "pass 'to-host' failed: 'builtin.module' op: the module holds no function (any more)" in result.err


ENDLESS = """
import stepwell
from stepwell.dialects.nd.pointwise import OPS
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

Exp = OPS["exp"]

class Again(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: Exp, rewriter: PatternRewriter):
        rewriter.replace(op, [Exp.create(operands=op.operands, result_types=[op.result.type], location=op.location)])

stepwell.register_pass("nd", Again)
"""


def test_pattern_without_an_end(opt_tool, tmp_path):
    (tmp_path / "mine.py").write_text(ENDLESS)
    text = "func.func @f(%a: !nd.tensor<4 x f32>) {\n  %b = nd.exp %a : !nd.tensor<4 x f32>\n  func.return\n}"
    result = opt_tool("--load-module", tmp_path / "mine.py", "-p", "again", stdin=text)
    assert result.code == 1 and result.err.startswith(
        "<stdin>:2:8: error: pass 'again' failed: rewritten 10400 times and not done, the last one 'nd.exp': does the pattern match what it writes?\n"
    )


def test_inputs_that_do_not_fit(opt_tool, tmp_path):
    import numpy as np

    np.save(tmp_path / "wide.npy", np.zeros(5, np.float32))
    np.save(tmp_path / "double.npy", np.zeros(4))
    for name, message in ("wide", "expected size 5==4, stride 1==1 at dim=0"), ("double", "expected dtype torch.float32, got torch.float64"):
        result = opt_tool("--run", "--args", tmp_path / f"{name}.npy", stdin=NEST)
        assert (result.code, result.err) == (1, f"<stdin>: error: --run: {message} for argument 0\n")


HUGE = """
host.program @f(%x: !host.tensor<f32>) arena 4611686018427387904 {
  host.check %x [4] strides [1] "x" : !host.tensor<f32>
  %p = host.arena_ptr 0
  %y = host.empty_output [4] strides [1] : !host.tensor<f32>
  host.launch @k(%p : !host.ptr) [] bytes 16
  host.return(%y : !host.tensor<f32>) [arg(0)]
}
cpu.kernel @k(%p: !cpu.ptr) {
  cpu.return
}
"""


def test_more_memory_than_there_is(opt_tool):
    result = opt_tool("--run", stdin=HUGE)
    message = "MemoryError: cannot allocate 4611686018427387904 bytes for the values between the kernels of a compiled graph"
    assert (result.code, result.err) == (1, f"<stdin>: error: --run: {message}\n")


def test_inputs_of_a_run(opt_tool, tmp_path, monkeypatch):
    import sys

    from stepwell.tools.opt import run as opt_run

    runner = type(sys)("stepwell.tools.opt.toy_runner")
    runner.run_module = lambda *a, **k: []
    monkeypatch.setitem(sys.modules, "stepwell.tools.opt.toy_runner", runner)
    monkeypatch.setattr(opt_run, "RUNNER", ".toy_runner:run_module")
    (tmp_path / "bad.npy").write_text("not an array")
    missing = opt_tool("--run", "--args", tmp_path / "none.npy", stdin=FUNC)
    assert missing.err == (f"<stdin>: error: --run: cannot read '{tmp_path}/none.npy': No such file or directory\n")
    bad = opt_tool("--run", "--args", tmp_path / "bad.npy", stdin=FUNC)
    assert bad.code == 1 and bad.err.startswith(f"<stdin>: error: --run: '{tmp_path}/bad.npy' is not a .npy file of")


STEPS = """cpu.kernel @k(%p : !cpu.ptr) {
  %low = arith.constant 0 : i64
  %high = arith.constant 4 : i64
  %step = arith.constant STEP : i64
  %v = arith.constant 1.0 : f32
  scf.for %i = %low to %high step %step : i64 {
    cpu.store %v, %p[%i] : f32
  }
  cpu.return
}
"""


@pytest.mark.parametrize("step", [0, -1])
def test_loop_that_does_not_count_up(opt_tool, step):
    """Compiled, it would not end."""
    result = opt_tool("-t", "asm", stdin=STEPS.replace("STEP", str(step)))
    assert result.code == 1 and f"6:3: error: 'scf.for' op: its step is {step}; a loop counts up, by 1 or more" in result.err
    parallel = """"func.func"() <{sym_name = "f", function_type = () -> ()}> ({
  %a = arith.constant 0 : index
  %c = arith.constant STEP : index
  "scf.parallel"(%a, %a, %c) <{operandSegmentSizes = array<i32: 1, 1, 1, 0>}> ({
  ^bb0(%i: index):
    "scf.reduce"() : () -> ()
  }) : (index, index, index) -> ()
  func.return
}) : () -> ()
"""
    result = opt_tool("-t", "asm", stdin=parallel.replace("STEP", str(step)))
    assert result.code == 1 and f"4:3: error: 'scf.parallel' op: its step is {step}; a loop counts up, by 1 or more" in result.err
