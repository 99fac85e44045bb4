"""Packages for GPUs, made where there is none: graphs on another device, kernels in all variants, what a machine without a GPU says."""

from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import stepwell
from stepwell.targets.host.gpu.runtime_ir import Variant
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import Section, open_package, packed, read_package
from stepwell.targets.package.kernels import kernels_of
from stepwell.targets.package.programs import ProgramRecord
from stepwell.tools.options.options import make_options
from stepwell.tools.package.code import CodeSections, without_folders
from stepwell.tools.package.exported import exported_graph
from stepwell.tools.package.levels import level_of

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(1)
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True) + torch.arange(8.0) + torch.tensor([1.5])


def test_a_graph_of_the_cpu_becomes_one_of_a_gpu():
    program = torch.export.export(Attention(), (torch.randn(2, 4, 16, 8),))
    graph = exported_graph("forward", program, make_options(None, {}), for_gpu=True)
    on_gpu = graph.on("cuda:0")
    values = [v for n in on_gpu.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    assert {str(v.device) for v in values} == {"cuda:0"}
    devices = {str(n.kwargs["device"]) for n in on_gpu.graph.nodes if n.kwargs.get("device") is not None}
    assert devices == {"cuda:0"}
    assert not [n for n in on_gpu.graph.nodes if "for_cpu" in str(n.target)]
    assert {str(v.device) for n in graph.on("cpu").graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)} == {"cpu"}


def test_the_model_of_a_package_for_the_cpu_alone_has_no_graph_for_a_gpu():
    program = torch.export.export(nn.ReLU(), (torch.randn(2),))
    with pytest.raises(PackageError, match="entry point 'forward' is on cpu: code for cuda:0 is made of a model on the CPU"):
        exported_graph("forward", program, make_options(None, {})).on("cuda:0")


@dataclass(frozen=True)
class FakeBinary:
    name: str
    code: bytes
    threads: int = 128
    shared: int = 1 << 16
    key: str = ""
    boxes: tuple = ()


@dataclass(frozen=True)
class FakeKernel:
    name: str
    place: str = "kernel @k (model.py:3)"
    aligned: tuple = (0, 1)
    even: tuple = (2,)
    overlaps: bool = True
    described: tuple = ()

    def variant(self, addresses, sizes):
        return FakeBinary(self.name, f"{self.name} {addresses} {sizes}".encode())


@dataclass(frozen=True)
class FakeDescription:
    kernels: list


def test_kernels_keep_their_variants_and_lie_in_the_file_once():
    code = CodeSections()
    with code.level(level_of("sm_90")):
        records = code.add_kernels(FakeDescription([FakeKernel("a"), FakeKernel("b"), FakeKernel("a")]))
    sections = [(s, content) for s, content in code.finish() if s.kind == "cubin"]
    assert len(sections) == 6
    file = read_package(b"".join(packed(sections, {}, "0")))
    first, second, third = kernels_of(file, records, "sm_90")
    assert first == third and (first.name, first.place, first.aligned, first.even, first.overlaps) == (
        "a", "kernel @k (model.py:3)", (0, 1), (2,), True,
    )  # fmt: skip
    made = {v: second.variant(addresses=v != Variant.NOTHING, sizes=v == Variant.ALL) for v in Variant}
    assert {v: b.code for v, b in made.items()} == {
        Variant.ALL: b"b True True", Variant.NOTHING: b"b False False", Variant.ADDRESSES: b"b True False",
    }  # fmt: skip
    assert len({b.key for b in made.values()}) == 3
    with pytest.raises(PackageError, match="no section cubin"):
        kernels_of(file, records, "sm_80")


def test_levels_of_gpus_say_what_they_need():
    level = level_of("sm_90")
    assert level.is_gpu and level.device == "cuda:0" and level.target.capability == 90 and level.target.multiprocessors > 0
    with level.in_use():
        from stepwell.targets.triton.kernels import device_multiprocessors, device_target

        assert device_target("cuda:0").name == "sm_90" and device_multiprocessors("cuda:0") == 0


@needs_triton
@pytest.mark.long
def test_a_package_for_gpus_and_the_cpu(tmp_path):
    torch.manual_seed(0)
    model, path = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU()).eval(), tmp_path / "a.stepwell"
    x = torch.randn(4, 16)
    stepwell.export(model, (x,), to=path, targets=["sm_90", "sm_80", "cpu-v3"])
    with open_package(path) as file:
        record = file.load(ProgramRecord, "program", "forward", "sm_90")
        assert record.device == "cuda:0" and record.native and record.kernels
        assert {s.target for s in file.of_kind("cubin")} == {"sm_80", "sm_90"}
    torch.testing.assert_close(stepwell.load(path)(x), model(x))
    if not torch.cuda.is_available():
        with pytest.raises(PackageError, match="runs none of its code.*sm_90: torch finds no GPU"):
            stepwell.load(path, device="cuda")


def test_a_device_that_packages_do_not_run_on(tmp_path):
    path = tmp_path / "a.stepwell"
    stepwell.export(nn.ReLU(), (torch.ones(2),), to=path, targets=["cpu-v3"], ir=False)
    with pytest.raises(PackageError, match="it runs on 'cpu' and 'cuda:0', not on 'mps'"):
        stepwell.load(path, device="mps")
    with pytest.raises(PackageError, match="it has no code for cuda; it has code for cpu-v3"):
        stepwell.load(path, device="cuda")
    assert Section("cubin", "k", 0, 0, "", "sm_90").label == "cubin 'k' for sm_90"


def test_places_of_kernels_name_no_folder():
    assert without_folders("kernel @k0 (/home/me/model.py:12)") == "kernel @k0 (model.py:12)"
    assert without_folders("kernel @k0 (model.py:12)") == "kernel @k0 (model.py:12)"
    assert without_folders("kernel @k0") == "kernel @k0"
