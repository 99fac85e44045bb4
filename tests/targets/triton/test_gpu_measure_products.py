"""gpu-measure-products (CM-08, I18): products alone in a module, and what becomes of them when they are measured; here times are given."""

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data

from stepwell.dialects.machine import MEASURED_PRODUCTS
from stepwell.passes.manager.errors import PassError
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.measurements import Measurements
from stepwell.targets.triton.gpu_measure_products import GpuMeasureProducts, measured, measuring
from stepwell.tools.backend.compile_graph import context


def linear(x, w, b):
    return (F.gelu(F.linear(x, w, b)),)


def gated(x, w, v):
    return (F.silu(x @ w) * (x @ v),)


def turned(x, w):
    return ((x.t() @ w).relu() + 1,)


def two_results(x, w):
    y = x @ w
    return y, y.relu()


def windows(x, w):
    return (F.conv2d(x, w, padding=1).relu(),)


def half(*sizes):
    return torch.empty(sizes, dtype=torch.bfloat16)


CASES = {
    "linear": (linear, (half(512, 256), half(128, 256), half(128))),
    "gated": (gated, (half(512, 256), half(256, 128), half(256, 128))),
    "turned": (turned, (half(256, 512), half(256, 128))),
    "two_results": (two_results, (half(512, 256), half(256, 128))),
    "weights as columns": (lambda x, w: (x @ w,), (half(512, 256), half(128, 256).t())),
    "windows": (windows, tuple(half(*s).to(memory_format=torch.channels_last) for s in ((8, 64, 28, 28), (64, 64, 3, 3)))),
}


def compiled(monkeypatch, function, args, times, known, mode="fake"):
    """The modules that are measured, and the text of the host program of a function. `times`: of a product as a call, and generated."""
    alone = []

    def seconds(module):
        alone.append(module)
        return times

    monkeypatch.setattr(GpuMeasureProducts, "seconds", lambda self, ctx, module: lambda one: measured(one, module, known, seconds))
    module = import_function(function, *(args if mode == "symbolic" else without_data(args)), mode=mode).module
    pipeline = default_pipeline("gpu")
    pipeline.update(measuring)
    assert "gpu-measure-products" in str(pipeline)
    run(pipeline, module, context())
    return alone, str(module)


@pytest.mark.parametrize("name", CASES)
def test_the_faster_one_is_taken(monkeypatch, tmp_path, name):
    function, args = CASES[name]
    for times in ((1e-5, 2e-5), (2e-5, 1e-5)):
        known = Measurements(tmp_path / f"{times[0]}.json", "a machine")
        alone, text = compiled(monkeypatch, function, args, times, known)
        called = "aten.mm" in text or "aten.addmm" in text or "aten.conv" in text
        assert called == (times[0] < times[1])
        assert len(alone) == 1
        again, other = compiled(monkeypatch, function, args, (1.0, 1.0), known)  # what was measured is not measured again
        assert again == [] and other == text


@pytest.mark.parametrize("name", CASES)
def test_a_product_alone_compiles_in_both_ways(monkeypatch, tmp_path, name):
    function, args = CASES[name]
    alone, _ = compiled(monkeypatch, function, args, (1.0, 1.0), Measurements(tmp_path / "choices.json", "a machine"))
    (made,) = alone
    for library in ("always", "never"):
        module = made.clone()
        module.verify()
        pipeline = default_pipeline("gpu")
        pipeline.replace("nd-library-products", f"nd-library-products{{library={library}}}")
        run(pipeline, module, context())
        text = str(module)
        assert ("aten.mm" in text or "aten.addmm" in text or "aten.conv" in text) == (library == "always")


def test_equal_products_are_measured_once(monkeypatch, tmp_path):
    def layers(x, w):
        for _ in range(3):
            x = (x @ w).tanh()
        return (x,)

    alone, _ = compiled(monkeypatch, layers, (half(512, 256), half(256, 256)), (1.0, 2.0), Measurements(tmp_path / "c.json", "a machine"))
    assert len(alone) == 1


def test_what_cannot_be_measured_is_left_to_the_price(monkeypatch, tmp_path):
    def seconds(module):
        raise PassError("no such kernel", op=module)

    known = Measurements(tmp_path / "choices.json", "a machine")
    monkeypatch.setattr(GpuMeasureProducts, "seconds", lambda self, ctx, module: lambda one: measured(one, module, known, seconds))
    texts = []
    for change in (measuring, lambda one: one):
        module = import_function(linear, *without_data(CASES["linear"][1])).module
        pipeline = default_pipeline("gpu")
        pipeline.update(change)
        run(pipeline, module, context())
        assert (module.attributes.pop(MEASURED_PRODUCTS, None) is not None) == (change is measuring)
        texts.append(str(module))
    assert texts[0] == texts[1] and not known.path.exists()


def test_symbols_are_left_to_the_price(monkeypatch, tmp_path):
    function, args = CASES["linear"]
    alone, text = compiled(monkeypatch, function, args, (1.0, 2.0), Measurements(tmp_path / "c.json", "a machine"), mode="symbolic")
    assert alone == [] and "host.bind" in text


def test_without_a_gpu_nothing_is_measured():
    module = import_function(linear, *CASES["linear"][1]).module
    if not torch.cuda.is_available():
        assert GpuMeasureProducts().seconds(context(), module) is None
