"""opt-tool --reduce: planted failures in programs of 500 operations come out as a few operations and the line that shows them."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import sys

import pytest

from stepwell.tools.reduce.opt import failure_of, without_reduction

TYPE, ROW = "!nd.tensor<12 x 37 x f32>", "!nd.tensor<12 x 1 x f32>"


def program(count: int, seed: int) -> str:
    """A graph of about `count` operations in which each reads a few of those before it."""
    rng = random.Random(seed)
    lines, values = [], ["%x", "%y"]
    while len(lines) < count:
        name, a, b = f"%v{len(lines)}", rng.choice(values[-6:]), rng.choice(values[-12:])
        choice = rng.random()
        if choice < 0.4:
            lines.append(f"{name} = nd.{rng.choice(['tanh', 'sigmoid', 'relu', 'neg', 'abs', 'sin'])} {a} : {TYPE}")
        elif choice < 0.9:
            lines.append(f"{name} = nd.{rng.choice(['add', 'sub', 'maximum', 'minimum'])} {a}, {b} : {TYPE}")
        else:
            row = "!nd.tensor<12 x f32>"
            lines.append(f'%r{len(lines)} = nd.reduce {a} {{kind = "{rng.choice(["sum", "max"])}", dims = [1]}} : ({TYPE}) -> {row}')
            lines.append(f"%k{len(lines)} = nd.reshape %r{len(lines) - 1} : ({row}) -> {ROW}")
            name = f"%v{len(lines)}"
            lines.append(f"{name} = nd.tanh %k{len(lines) - 1} : {ROW}")
            lines.append(f"%w{len(lines)} = nd.mul {a}, {name} : ({TYPE}, {ROW}) -> {TYPE}")
            name = f"%w{len(lines) - 1}"
        values.append(name)
    results = [values[-1], values[len(values) // 2]]
    body, layout = "\n    ".join(lines), "{nd.layout = #nd.layout<[37, 1], 0>}"
    return f"""builtin.module {{
  func.func @forward(%x: {TYPE} {layout}, %y: {TYPE} {layout}) -> ({TYPE} {layout}, {TYPE} {layout}) {{
    {body}
    func.return {", ".join(results)} : {TYPE}, {TYPE}
  }}
}}
"""


RAISES = """
from stepwell.passes.manager import Pass

class Stumble(Pass):
    \"\"\"Raises where a sum is below a maximum of something.\"\"\"
    name = "stumble"

    def apply(self, ctx, op):
        for nested in op.walk():
            if nested.name == "nd.maximum" and any(getattr(v.owner, "name", "") == "nd.sub" for v in nested.operands):
                raise KeyError(nested.results[0])
"""

WRONG = """
from xdsl.dialects.arith import MaximumfOp, MinimumfOp
from stepwell.passes.manager import Pass

class Confuse(Pass):
    \"\"\"Makes a maximum a minimum, where a kernel has both.\"\"\"
    name = "confuse"

    def apply(self, ctx, op):
        for nest in [nested for nested in op.walk() if nested.name == "loop.nest"]:
            found = [nested for nested in nest.walk() if isinstance(nested, MaximumfOp)]
            if found and any(nested.name == "math.tanh" for nested in nest.walk()):
                new = MinimumfOp(found[0].lhs, found[0].rhs)
                found[0].parent.insert_op_before(new, found[0])
                found[0].results[0].replace_all_uses_with(new.results[0])
                found[0].detach()
"""



def operations(text: str) -> int:
    """Lines that hold an operation."""
    return sum(1 for line in text.splitlines() if not line.startswith("//") and re.search(r"[a-z]\.[a-z]", line))


@pytest.fixture
def files(tmp_path):
    """`files(text, module)` writes a program and a module of passes."""

    def write(text: str, module: str = "") -> tuple[str, str]:
        (tmp_path / "program.mlir").write_text(text)
        (tmp_path / "module.py").write_text(module)
        return str(tmp_path / "program.mlir"), str(tmp_path / "module.py")

    return write


def test_a_pass_that_raises(files, opt_tool, tmp_path):
    program_file, module = files(program(500, 1), RAISES)
    out = str(tmp_path / "small.mlir")
    line = ["--load-module", module, "-p", "nd-canonicalize,stumble"]
    done = opt_tool(program_file, *line, "--reduce", "-o", out)
    assert done.code == 0, done.err
    text = (tmp_path / "small.mlir").read_text()
    assert operations(text) <= 5
    assert "37" not in "".join(one for one in text.splitlines() if not one.startswith("//"))  # folders of tests have numbers, too
    assert text.startswith(f"// {shlex.join(['opt-tool', out, *line])}\n// reduced from 502 to ")
    assert "// pass 'stumble' failed: KeyError" in text and "operations -> " in done.err
    again = opt_tool(out, *line)
    assert again.code == 1 and "pass 'stumble' failed: KeyError" in again.err


@pytest.mark.long
def test_a_wrong_rewrite(files, opt_tool):
    """A pass that makes a maximum a minimum; --verify-results finds it, and the result still differs when it is small."""
    program_file, module = files(program(500, 2), WRONG)
    line = ["--load-module", module, "-p", "nd-to-loop,loop-fuse,confuse", "--verify-results"]
    done = opt_tool(program_file, *line, "--reduce")
    assert done.code == 0, done.err
    assert operations(done.out) < 15 and "after pass 'confuse'" in done.out


def test_a_wrong_rewrite_of_a_small_program(files, opt_tool):
    program_file, module = files(program(24, 2), WRONG)
    line = ["--load-module", module, "-p", "nd-to-loop,loop-fuse,confuse", "--verify-results"]
    done = opt_tool(program_file, *line, "--reduce", "--reduce-seconds", "60")
    assert done.code == 0, done.err
    assert operations(done.out) < 15 and "after pass 'confuse'" in done.out


COMMAND = """
import re, sys
text = open(sys.argv[1]).read()
if re.search(r"nd\\.sin ", text) and re.search(r"nd\\.minimum ", text):
    print("no sine below a minimum")
    sys.exit(3)
sys.exit(1 if "builtin.module" not in text else 0)
"""


def test_a_command(files, opt_tool):
    """Each candidate is a file that a command is run with; several at once."""
    program_file, module = files(program(500, 3), COMMAND)
    command = f"{sys.executable} -S -E {module}"
    done = opt_tool(program_file, f"--reduce={command} %s", "-j", "4", "--reduce-matching=no sine below")
    assert done.code == 0, done.err
    assert operations(done.out) <= 5 and "nd.sin" in done.out and "nd.minimum" in done.out
    assert f"// {command} reduced.mlir" in done.out


@pytest.mark.long
def test_an_emitter_that_fails(tmp_path, files):
    """LLVM IR for a sine cannot be written; opt-tool in processes of its own, two at once."""
    module = (
        "from stepwell.targets.cpu.emit import math as emit_math\n\n"
        "class Without(dict):\n    def get(self, key, default=None):\n        return dict.get(self, key, default)\n\n"
        "emit_math.FUNCTIONS = {k: v for k, v in emit_math.FUNCTIONS.items() if 'sin' not in str(k)}\n"
    )
    program_file, module_file = files(program(500, 4), module)
    tool = [sys.executable, "-m", "stepwell.tools.opt"]
    line = ["--load-module", module_file, "-p", "stepwell-cpu", "-t", "llvm"]
    before = subprocess.run([*tool, program_file, *line], capture_output=True, text=True)
    assert before.returncode == 1, before.stderr[-500:]
    done = subprocess.run([*tool, program_file, *line, "--reduce", "-j", "2", "--reduce-seconds", "500"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert operations(done.stdout) < 15 and "nd.sin" in done.stdout


def test_a_reproducer_is_reduced(files, opt_tool, tmp_path):
    program_file, module = files(program(150, 1), RAISES)
    crash = str(tmp_path / "crash.mlir")
    opt_tool(program_file, "--load-module", module, "-p", "cse,stumble", f"--mlir-pass-pipeline-crash-reproducer={crash}")
    done = opt_tool(crash, "--load-module", module, "--run-reproducer", "--reduce")
    assert done.code == 0, done.err
    assert operations(done.out) <= 6 and "--pass-pipeline=builtin.module(cse,stumble)" in done.out.replace("'", "")


def test_what_does_not_fail_and_wrong_flags(files, opt_tool):
    program_file, _ = files(program(10, 1))
    assert "nothing to reduce, `opt-tool reduced.mlir -p cse` does not fail" in opt_tool(program_file, "-p", "cse", "--reduce").err
    assert "nothing to reduce, `true reduced.mlir` does not fail" in opt_tool(program_file, "--reduce=true").err
    done = opt_tool(program_file, "--reduce=echo abc; false", "--reduce-matching=xyz")
    assert done.code == 1 and "with a text that matches 'xyz'" in done.err and "abc" in done.err
    assert "-j says how a file is reduced: it needs --reduce" in opt_tool(program_file, "-j", "3").err
    assert "is no regular expression" in opt_tool(program_file, "--reduce", "--reduce-matching=(").err
    assert "expected a number of candidates from 1" in opt_tool(program_file, "--reduce", "-j0").err


def test_failures_are_the_same_but_for_numbers_and_types():
    same = [
        "after pass 'a': result 0 is another after this pass: 3 of 12 elements differ; it was 1.5, it is nan at [0, 1]",
        "after pass 'a': result 1 is another after this pass: 1 of 1 elements differ; it was -2e-05, it is 7",
    ]
    assert failure_of(same[:1]).kind == failure_of(same[1:]).kind
    keys = ["pass 'x' failed: KeyError: <OpResult[!nd.tensor<1 x f32>] ...>", "pass 'x' failed: KeyError: <B>"]
    assert failure_of(keys[:1]).kind == failure_of(keys[1:]).kind
    assert failure_of(["pass 'x1' failed"]).kind != failure_of(["pass 'x2' failed"]).kind
    assert failure_of([]) is None


def test_arguments_that_a_candidate_keeps():
    given = ["a.mlir", "-p", "cse", "--reduce", "-j", "4", "-o", "b.mlir", "--reduce-seconds=5", "-j2", "--seed", "3"]
    assert without_reduction(given, "a.mlir") == ["-p", "cse", "--seed", "3"]
