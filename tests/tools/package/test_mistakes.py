"""What users do wrong with packages is said before anything takes long, by the name of what is wrong."""

import pytest
import torch
from torch import nn

import stepwell
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.load import TAKEN

X = torch.ones(4, 8)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (nn.Linear, {}, "the model is the class Linear; it has to be an object of it"),
        (3, {}, "the model is of the type int; it has to be a module, a method or a function"),
        (nn.ReLU(), {"args": [X]}, "args is a list; it has to be a tuple"),
        (nn.ReLU(), {"kwargs": [X]}, "kwargs is a list; it has to be a dictionary"),
        (nn.ReLU(), {"targets": "cpu-v3"}, r"targets is 'cpu-v3'; it has to be names of targets, such as \['cpu-v3', 'sm_90'\]"),
        (nn.ReLU(), {"targets": []}, r"targets is \[\]; it has to be names of targets"),
        (nn.ReLU(), {"targets": ["gfx999"]}, "there is no target 'gfx999'; did you mean 'gfx90a'"),
        (nn.ReLU(), {"dynamic_shapes": ({5: torch.export.Dim("b")},)}, "dynamic_shapes names dimension 5 of an argument that has 2"),
        (nn.ReLU(), {"to": "."}, r"\.: it cannot be written: it is a directory"),
        (nn.ReLU(), {"to": "nowhere/a.stepwell"}, "it cannot be written: there is no directory 'nowhere'"),
        ("nofile.pt2", {}, "nofile.pt2: there is no such file"),
        ({"a b": (nn.ReLU(), (X,))}, {"args": ()}, "'a b' is no name for an entry point"),
        ({"weights": (nn.ReLU(), (X,))}, {"args": ()}, "'weights' is no name for an entry point; a loaded package has something else"),
        ({"a": (nn.ReLU(), (X,), {}, None, 1)}, {"args": ()}, r"entry point 'a' has 5 parts; it takes \(model, args, kwargs"),
        ({"a": (nn.ReLU(), (X,))}, {}, "entry points have their own arguments: name -> "),
        ({"a": nn.ReLU()}, {"args": ()}, "entry point 'a' is a ReLU; it should be"),
    ],
)
def test_exports_that_are_refused(model, given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackageError, match=message):
        stepwell.export(model, **{"args": (X,), "to": "a.stepwell", **given})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """The path of a package of a linear layer."""
    path = tmp_path_factory.mktemp("package") / "a.stepwell"
    stepwell.export(nn.Linear(8, 2).eval(), (X,), to=path, targets=["cpu-v3"], ir=False)
    return path


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (nn.Linear(8, 2), "weights is a Linear; it has to be names and tensors, such as a state_dict"),
        ("model.pt", "weights is a str; it has to be names and tensors"),
        ({"bias": torch.ones(2, device="meta")}, "weights: 'bias' is on meta and has no bytes to take"),
        ({"bias": torch.ones(2).to_sparse()}, "weights: 'bias' is torch.sparse_coo and has no bytes to take"),
        ({"bias": [1.0, 2.0]}, "weights: 'bias' is a list and no tensor"),
        ({"gain": torch.ones(2)}, "weights: it has no weight 'gain'; it has weight, bias"),
    ],
)
def test_weights_that_are_refused(weights, message, linear):
    with pytest.raises(PackageError, match=message):
        stepwell.load(linear, weights=weights)


def test_files_that_are_none(tmp_path):
    with pytest.raises(PackageError, match="it cannot be opened: it is a directory"):
        stepwell.load(tmp_path)
    with pytest.raises(PackageError, match="nofile: it cannot be opened: No such file"):
        stepwell.load(tmp_path / "nofile")


def test_a_device_may_be_an_object_of_torch(linear):
    assert stepwell.load(linear, device=torch.device("cpu"))(X).shape == (4, 2)
    with pytest.raises(PackageError, match="it has no code for cuda:0; it has code for cpu-v3"):
        stepwell.load(linear, device=torch.device("cuda", 0))


def test_names_that_a_package_has_itself(linear):
    loaded = stepwell.load(linear)
    assert set(TAKEN) == {name for name in (*dir(type(loaded)), *vars(loaded)) if not name.startswith("_")}
