"""Every kind of mistake has a class of its own below StepwellError, by a name that no other class has."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
from collections import Counter
from pathlib import Path

import stepwell
from stepwell.errors import CompileError, StepwellError, UserError
from stepwell.passes.manager.errors import PassError, PipelineError
from stepwell.targets.triton.toolchain import StageError
from stepwell.tools.ir_parser import IRSyntaxError

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dialects", "passes", "lowering", "targets", "tools")

STEERING = {
    "_Again": "a row nest is written again",
    "_FunctionMissing": "a kernel is built again with the whole device library",
    "_MisfitError": "a value of a package does not fit its field, which whoever holds it names by its place",
    "_NoMatch": "a word of a pipeline's text is no value of this type",
    "_NoShim": "an operator is called through Python",
    "_Stopped": "the thread of a program ends",
    "LeftToAten": "a graph runs by ATen, which has been said",
    "LibraryRefused": "torch computes a product of matrices",
    "NotByBlocks": "a wide product is computed for all rows at once, with a remark",
    "NotLaunchable": "Triton launches a user's kernel itself",
    "Refused": "a transform leaves a nest alone, or what it stores in memory, with a remark or the error of its pass",
    "Skipped": "a random program is not judged",
    "Uncovered": "a rule leaves its call to ATen",
}
"""Exceptions that only steer and never reach a user, and what happens where they are caught."""


def exceptions() -> list[type[BaseException]]:
    """Every exception class of the package. Only the modules that define one are loaded."""
    found = []
    for file in (ROOT / "errors.py", *(f for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*.py")))):
        if not any(word in file.read_text() for word in ("Error)", "Exception)", "BaseException)")):
            continue
        names = [n.name for n in ast.walk(ast.parse(file.read_bytes())) if isinstance(n, ast.ClassDef) and n.bases]
        module = importlib.import_module(".".join(("stepwell", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"))
        classes = [getattr(module, name) for name in names if hasattr(module, name)]
        found += [c for c in classes if inspect.isclass(c) and issubclass(c, BaseException)]
    return found


def files_with(pattern: str) -> list[Path]:
    """The modules whose text has something: few of them have to be parsed."""
    return [f for folder in FOLDERS for f in (ROOT / folder).rglob("*.py") if re.search(pattern, f.read_text(), re.MULTILINE)]


def test_every_error_has_a_name_of_its_own_and_is_a_stepwell_error():
    found = exceptions()
    assert len(found) > 35
    assert [name for name, n in Counter(c.__name__ for c in found).items() if n > 1] == []
    apart = {c.__name__ for c in found if not issubclass(c, StepwellError)}
    assert apart == STEERING.keys()
    assert [c.__name__ for c in found if not (inspect.getdoc(c) or c.__name__ == "_NoMatch")] == []


def test_no_error_is_defined_in_a_function():
    hidden = []
    for file in files_with(r"^ +class .*Error"):
        for function in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(function, ast.FunctionDef):
                classes = [n for n in ast.walk(function) if isinstance(n, ast.ClassDef)]
                hidden += [f"{file.relative_to(ROOT)}: {c.name}" for c in classes if any("Error" in ast.dump(b) for b in c.bases)]
    assert hidden == []


def test_the_bases_are_never_raised_themselves():
    """Who catches an error should be able to say which."""
    bare = []
    for file in files_with(r"\b(StepwellError|UserError)\("):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("StepwellError", "UserError"):
                bare.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert bare == []


def test_the_place_stands_first():
    assert str(StepwellError("no such thing")) == "no such thing"
    assert str(StepwellError("no such thing", place="model.py:3")) == "model.py:3: no such thing"
    assert str(IRSyntaxError("a.mlir", 3, 7, "expected '('")) == "a.mlir:3:7: expected '('"
    assert str(StageError("ptx", "no")) == "ptx: no"


def test_errors_survive_the_way_between_processes():
    for error in (
        UserError("one", place="model.py:3"),
        CompileError("two"),
        IRSyntaxError("a.mlir", 3, 7, "three"),
        StageError("ptx", "four"),
        PipelineError("five", "a,b", 2, 3),
        PassError("six", pass_name="cse"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and again.__dict__ == error.__dict__


def test_public_names():
    assert stepwell.StepwellError is StepwellError and issubclass(stepwell.WrongResult, StepwellError)
