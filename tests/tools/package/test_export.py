"""Models as packages: the same bits as the compiled model, in a process that has no compiler."""

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import stepwell
from stepwell.targets.package.errors import CallError, PackageError

ROOT = Path(__file__).resolve().parents[3]


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24), nn.Softmax(-1)).eval()


def compiled(model, *args, **kwargs):
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend="stepwell")(*args, **kwargs)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path = tmp_path_factory.mktemp("package") / "mlp.stepwell"
    model, x = mlp(), torch.randn(5, 24)
    size = stepwell.export(model, (x,), to=path)
    assert path.stat().st_size == size
    return path, model, x


def test_a_loaded_model_gives_the_bits_of_the_compiled_one(packed):
    """AOTI-01, AOTI-02"""
    path, model, x = packed
    loaded = stepwell.load(path)
    assert torch.equal(loaded(x), compiled(model, x))
    assert loaded.native and loaded.entries == ("forward",) and loaded.state == {}


def test_every_level_runs_and_gives_what_eager_gives(packed):
    path, model, x = packed
    for target in (t.name for t in stepwell.load(path).signature.targets):
        torch.testing.assert_close(stepwell.load(path, target=target)(x), model(x))
    with pytest.raises(PackageError, match="no code for 'sm_10'; it has code for"):
        stepwell.load(path, target="sm_10")


def test_the_same_model_gives_the_same_file(packed, tmp_path):
    path, model, x = packed
    stepwell.export(model, (x,), to=tmp_path / "again.stepwell")
    assert (tmp_path / "again.stepwell").read_bytes() == path.read_bytes()


LOAD = """
import sys, torch, stepwell
x = torch.load(sys.argv[2])
torch.save(stepwell.load(sys.argv[1])(x), sys.argv[3])
wrong = {"xdsl", "llvmlite", "sympy", "torch._dynamo", "torch._inductor", "triton"} & set(sys.modules)
assert not wrong, wrong
"""


def test_a_fresh_process_loads_without_a_compiler(packed, tmp_path):
    path, model, x = packed
    torch.save(x, tmp_path / "x")
    subprocess.run([sys.executable, "-c", LOAD, path, tmp_path / "x", tmp_path / "y"], check=True, env=None)
    assert torch.equal(torch.load(tmp_path / "y"), compiled(model, x))


def test_without_a_native_entry_the_program_runs_in_python(packed, monkeypatch, caplog):
    path, model, x = packed
    monkeypatch.setenv("STEPWELL_HOST", "python")
    loaded = stepwell.load(path)
    assert not loaded.native and "runs through Python: STEPWELL_HOST=python" in caplog.text
    assert torch.equal(loaded(x), compiled(model, x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :-1], "argument 'input', dimension 1, is 23; it should be 24"),
        (lambda x: x[:3], "argument 'input', dimension 0, is 3; it should be 5"),
        (lambda x: x.double(), "has the type torch.float64; it should have torch.float32"),
        (lambda x: x[0], "has 1 dimensions; it should have 2"),
        (lambda x: x.to("meta"), "is on meta; it should be on cpu"),
        (lambda x: x.to_sparse(), "it should be strided"),
        (lambda x: [x], "should be a tensor, and is"),
    ],
)
def test_arguments_that_do_not_fit_are_named(packed, change, message):
    """AOTI-04"""
    path, _, x = packed
    loaded = stepwell.load(path)
    with pytest.raises(CallError, match=rf"forward\(\): .*{message}"):
        loaded(change(x))
    for args, kwargs in [((), {}), ((x, x), {}), ((x,), {"input": x}), ((x,), {"other": x})]:
        with pytest.raises(CallError, match=r"forward\(\)"):
            loaded(*args, **kwargs)


def test_other_strides_are_copied_and_arguments_go_by_name(packed):
    path, _, x = packed
    loaded = stepwell.load(path)
    assert torch.equal(loaded(x.t().contiguous().t()), loaded(x))
    assert torch.equal(loaded(input=x), loaded(x))


def test_weights_are_replaced_and_shared(packed):
    """AOTI-06"""
    path, _, x = packed
    other = mlp(1)
    loaded = stepwell.load(path, weights=other.state_dict())
    assert torch.equal(loaded(x), compiled(other, x))
    assert loaded.weights["0.weight"].data_ptr() == other[0].weight.data_ptr()
    with pytest.raises(PackageError, match="no weight '9.weight'"):
        stepwell.load(path, weights={"9.weight": x})
    with pytest.raises(PackageError, match=r"'0.weight' should be float32\[40, 24\], and is float64\[40, 24\]"):
        stepwell.load(path, weights={"0.weight": other[0].weight.double()})


def test_weights_in_the_file_stay_as_they_are(packed):
    path, _, x = packed
    before = path.read_bytes()
    loaded = stepwell.load(path)
    loaded.weights["0.weight"].zero_()
    assert path.read_bytes() == before
    assert not torch.equal(loaded(x), stepwell.load(path)(x))


def test_threads_call_one_package_at_the_same_time(packed):
    path, _, x = packed
    loaded = stepwell.load(path)
    inputs = [torch.randn_like(x) for _ in range(4)]
    wanted = [loaded(one) for one in inputs]

    def calls(k):
        return all(torch.equal(loaded(inputs[k]), wanted[k]) for _ in range(300))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))


def test_loaded_packages_share_pages_and_not_values(packed):
    path, _, x = packed
    loaded = [stepwell.load(path) for _ in range(3)]
    want = loaded[0](x)
    loaded[1].weights["0.weight"].zero_()
    del loaded[0]
    gc.collect()
    assert torch.equal(loaded[1](x), want) and not torch.equal(loaded[0](x), want)


@pytest.mark.parametrize("frozen", [False, True])
def test_objects_are_collected_again_after_an_export(frozen, tmp_path):
    """What the program has frozen itself stays so."""
    before = gc.get_freeze_count()
    (gc.freeze if frozen else gc.unfreeze)()
    try:
        with pytest.raises(PackageError):
            stepwell.export(3, to=tmp_path / "a.stepwell")
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        (gc.freeze if before else gc.unfreeze)()
