"""contract-select: the rules, the override, and measured times that decide against them."""

import json

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.targets.cpu.features import target
from stepwell.targets.cpu.gemm import choice as gemm_choice
from stepwell.targets.cpu.select.contract_measure import ProductSizes, measure
from stepwell.tools.backend.compile_graph import compile_graph
from stepwell.tools.options.options import make_options

SIZES = ProductSizes("f32", 1, 128, 192, 256, False, False)


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder for measured times of its own."""
    monkeypatch.setattr(gemm_choice, "cache_folder", lambda: tmp_path)
    return tmp_path / "gemm.json"


def test_times_are_measured_once_and_kept(notes):
    """FXC-12: F02, CM-08"""
    first = measure(SIZES)
    assert first is not None and min(first.values()) > 0
    key = SIZES.key(torch.get_num_threads())
    assert json.loads(notes.read_text()) == {target().cpu: {key: first}}
    assert measure(SIZES) == first


@pytest.mark.parametrize(
    "sizes",
    [ProductSizes("f32", 1, 0, 4, 4, False, False), ProductSizes("f64", 1, 1 << 15, 1 << 15, 1 << 15, False, False)],
)
def test_empty_and_huge_products_are_not_measured(notes, sizes):
    assert measure(sizes) is None
    assert not notes.exists()


@pytest.mark.spread
@pytest.mark.parametrize("layout", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_every_type_and_layout_can_be_measured(notes, dtype, layout):
    assert set(measure(ProductSizes(dtype, 2, 3, 70, 5, *layout)) or {}) == {"own", "library"}


@pytest.mark.parametrize(("own", "library", "choice"), [(1.0, 2.0, "gemm"), (2.0, 1.0, "library")])
def test_measured_times_decide_and_stand_in_the_ir(notes, own, library, choice, monkeypatch):
    """F02, CM-08"""
    monkeypatch.setattr(gemm_choice, "cpu_vendor", lambda: "intel")
    chosen = []

    def program(a, b):
        return (a @ b,)

    class Watch:
        def graph(self, kind, gm, module): ...
        def record(self, kind, what): ...
        def remark(self, remark): ...
        def stage(self, stage, module):
            if stage == "mem":
                chosen.append(str(module))

    table = {target().cpu: {SIZES.key(torch.get_num_threads()): {"own": own, "library": library}}}
    notes.write_text(json.dumps(table))
    a, b = torch.randn(128, 256), torch.randn(256, 192)
    gm = make_fx(program, tracing_mode="fake")(a, b)
    run = compile_graph(gm, [a, b], make_options("max-autotune"), watch=Watch())
    torch.testing.assert_close(run([a, b])[0], a @ b, rtol=1e-4, atol=1e-4)
    assert f'schedule = "{choice}"' in chosen[0]
    assert f"own = {own:e} : f64" in chosen[0]

