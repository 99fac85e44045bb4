"""The command `stepwell export`."""

import pytest
import torch

import stepwell
from stepwell.tools.command import main

MODEL = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.GELU()).eval()
def factory():
    return net, (torch.randn(8, 16),), None, ({0: torch.export.Dim("batch", max=64)},)
def entries():
    return {"one": (net, (torch.randn(1, 16),))}
def wrong():
    return 3
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_model_of_a_file_is_exported_and_compiled_for_another_target(model, tmp_path, capsys):
    first, second = tmp_path / "a.stepwell", tmp_path / "b.stepwell"
    dynamic = "({0: Dim('batch', max=64)},)"
    code = main(["export", f"{model}:net", "--args", "torch.randn(8, 16)", "--dynamic", dynamic, "--targets", "cpu-v3", "-o", str(first)])
    said = capsys.readouterr().out
    assert code == 0 and f"{first}: {first.stat().st_size} bytes, entry point forward, code for cpu-v3, " in said
    assert main(["export", "--retarget", str(first), "--targets", "cpu-native,cpu-v3", "-o", str(second)]) == 0
    x = torch.randn(5, 16)
    one, other = stepwell.load(first), stepwell.load(second, target="cpu-v3")
    assert torch.equal(one(x), other(x)) and stepwell.load(second).target == "cpu-native"
    torch.testing.assert_close(stepwell.load(second)(x), one(x))


def test_a_factory_gives_the_model_and_what_belongs_to_it(model, tmp_path, capsys):
    path = tmp_path / "a.stepwell"
    assert main(["export", f"{model}:factory", "--targets", "cpu-v3", "--no-ir", "-o", str(path)]) == 0
    assert stepwell.load(path).signature.entries[0].symbols[0].high == 64
    given = ["--targets", "cpu-v3", "--no-ir", "--options", "{'freezing': True}", "-o", str(path)]
    assert main(["export", f"{model}:entries", *given]) == 0
    assert stepwell.load(path).entries == ("one",) and "0.weight" not in stepwell.load(path).weights
    assert main(["export", "--retarget", str(path), "--targets", "cpu-v4", "-o", str(path)]) == 2
    assert "it has no IR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:f"], "nowhere.py: there is no such file"),
        (["model.txt"], "expected file.py:name or a .pt2 file"),
        (["MODEL:none"], "it defines no 'none'"),
        (["MODEL:wrong"], "without --args, 'wrong' is a function without parameters that returns"),
        (["MODEL:net", "--args", "1 +"], "--args '1 +': SyntaxError"),
        (["--retarget", "nowhere.stepwell", "--targets", "cpu-v3"], "nowhere.stepwell: it cannot be opened"),
        (["--retarget", "nowhere.stepwell"], "--retarget needs --targets"),
        (["MODEL:factory", "--options", "{'frezing': True}"], "frezing"),
    ],
)
def test_what_is_wrong_is_said(model, tmp_path, capsys, arguments, message):
    given = [one.replace("MODEL", str(model)) for one in arguments]
    assert main(["export", *given, "-o", str(tmp_path / "a.stepwell")]) == 2
    assert message in capsys.readouterr().err


def test_a_model_for_c_programs(model, tmp_path, capsys):
    given = ["export", f"{model}:net", "--args", "torch.randn(8, 16)", "--c", "net", "--targets", "cpu-v3", "-o", str(tmp_path / "c")]
    assert main(given) == 0
    assert (tmp_path / "c" / "net.o").exists() and f"{tmp_path / 'c' / 'net.h'}, " in capsys.readouterr().out
