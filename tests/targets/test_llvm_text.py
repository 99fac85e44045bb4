"""The `.ll` files beside the modules of the targets: each is a module of LLVM that can be read alone, and nothing in them is dead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from llvmlite import binding

from stepwell.errors import StepwellError
from stepwell.targets.host import symbols
from stepwell.targets.host.c import runtime as c_runtime
from stepwell.targets.host.gpu import runtime_ir as gpu_runtime
from stepwell.targets.host.runtime import runtime_ir
from stepwell.targets.llvm_text import LlvmTextError, llvm_text

TARGETS = Path(__file__).resolve().parents[2] / "targets"
FILES = sorted(TARGETS.rglob("*.ll"))
VALUES = {"host/runtime": runtime_ir.placeholders(16), "host/gpu": gpu_runtime.placeholders(), "host/c": c_runtime.placeholders("model")}
DEFINED = re.compile(r"^define (?:internal )?([^@\n]*)@([\w.]+)\(([^)\n]*)\)", re.MULTILINE)
DECLARED = re.compile(r"^declare ([^@\n]*)@([\w.]+)\(([^)\n]*)\)", re.MULTILINE)


def name_of(file: Path) -> str:
    return str(file.relative_to(TARGETS))


def code_of(file: Path) -> str:
    """The text of a file without comments, with values for its placeholders."""
    values = VALUES.get(str(file.parent.relative_to(TARGETS)), {})
    text = file.read_text()
    used = {name: value for name, value in values.items() if re.search(rf"\${name}(?![A-Z0-9_])", text)}
    return re.sub(r";.*", "", llvm_text([file], used))


def signature(result: str, parameters: str) -> str:
    types = [part.strip().split(" ")[0] for part in parameters.split(",") if part.strip()]
    return f"{result.strip()} ({', '.join(types)})"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_is_a_module_of_its_own(file):
    module = binding.parse_assembly(code_of(file), context=binding.create_context())
    module.verify()
    assert any(not function.is_declaration for function in module.functions)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_function_says_what_it_does(file):
    lines = file.read_text().splitlines()
    assert lines[0].startswith("; ")
    heads = [k for k, line in enumerate(lines) if line.startswith("define ") and "@__nv_" not in line]  # those NVIDIA describes
    assert [lines[k] for k in heads if not lines[k - 1].startswith("; ")] == []


def test_every_function_and_every_declaration_is_used():
    python = "\n".join(file.read_text() for file in TARGETS.rglob("*.py") if file.name != "runtime_ir.py")
    texts = {file: code_of(file) for file in FILES}
    everything = "\n".join(texts.values())
    dead = []
    for file, text in texts.items():
        for _, name, _ in DEFINED.findall(text):
            mentions = len(re.findall(rf"@{name}\b", everything)) - len(re.findall(rf"^(?:define|declare) .*@{name}\(", everything, re.M))
            interface = name.removeprefix("model_") in c_runtime.API + c_runtime.GPU_API
            if not mentions and f'"{name}"' not in python and not (interface or name.startswith("__nv_")):  # those Triton's kernels call
                dead.append(f"{name_of(file)}: {name}")
        dead += [f"{name_of(file)}: {name}" for _, name, _ in DECLARED.findall(text) if len(re.findall(rf"@{name}\b", text)) < 2]
    assert dead == []


def test_declarations_agree_with_definitions_and_with_what_entries_declare():
    found: dict[str, str] = {}
    for file in FILES:
        for result, name, parameters in (*DEFINED.findall(code_of(file)), *DECLARED.findall(code_of(file))):
            wanted = signature(result, parameters)
            assert found.setdefault(name, wanted) == wanted, f"{name_of(file)}: {name}"
    for name, wanted in (runtime_ir.FUNCTIONS | gpu_runtime.GPU_FUNCTIONS | c_runtime.FUNCTIONS).items():
        assert found.get(name, wanted) == wanted and (name in found or name.startswith("llvm.")), name


def test_what_the_runtimes_need_of_others_is_looked_for():
    """A symbol that symbols.py does not look for would be missed at the link, in the user's process."""
    text = re.sub(r";.*", "", runtime_ir.runtime_text(16))
    wanted = {name for _, name, _ in DECLARED.findall(text)} | set(re.findall(r"^@(\w+) = external", text, re.MULTILINE))
    assert {name for name in wanted if not name.startswith("llvm.")} <= symbols.symbols().keys()
    for hip, known in ((False, gpu_runtime.DRIVER_SYMBOLS), (True, gpu_runtime.HIP_SYMBOLS)):
        declared = {name for _, name, _ in DECLARED.findall(gpu_runtime.gpu_runtime_text(hip))}
        assert {name for name in declared if not name.startswith("llvm.")} == known | gpu_runtime.TENSOR_SYMBOLS
    assert gpu_runtime.TENSOR_SYMBOLS <= symbols.symbols().keys()


def test_several_files_are_one_module(tmp_path):
    first, second = tmp_path / "first.ll", tmp_path / "second.ll"
    first.write_text("declare void @free(ptr)\n\ndefine internal void @one(ptr %p) {\n  call void @free(ptr %p)\n  ret void\n}\n")
    second.write_text(
        "@some = external global i64\ndeclare void @free(ptr)\ndeclare void @one(ptr)\n\n"
        "define i64 @two(ptr %p) {\n  call void @free(ptr %p)\n  call void @one(ptr %p)\n  ret i64 $ANSWER\n}\n"
    )
    text = llvm_text([second, first], {"ANSWER": 42})
    binding.parse_assembly(text, context=binding.create_context()).verify()
    assert text.count("declare") == 1 and "ret i64 42\n" in text and "@some = external" in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"SIZE": 8}, r"one\.ll:2: there is no value for the placeholder \$COUNT"),
        ({"SIZE": 8, "COUNT": 1, "CUONT": 1}, r"no placeholder of one\.ll is named \$CUONT"),
    ],
)
def test_placeholders_and_values_belong_together(tmp_path, values, message):
    file = tmp_path / "one.ll"
    file.write_text("@a = global i64 $SIZE\n@b = global i64 $COUNT\n$comdat = comdat any\n")
    with pytest.raises(LlvmTextError, match=message):
        llvm_text([file], values)
    assert issubclass(LlvmTextError, StepwellError)


def test_text_that_is_always_the_same_is_in_files():
    wrong = [name_of(file) for file in TARGETS.rglob("*.py") if re.search(r"^define ", file.read_text(), re.MULTILINE)]
    assert wrong == []
