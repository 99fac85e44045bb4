"""Packages for GPUs, made where there is none: graphs on another device, kernels in all variants, what a machine without a GPU says."""

import ctypes
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import stepwell
from stepwell.dialects.support.record import changed
from stepwell.targets.host.description import Check
from stepwell.targets.host.gpu.runtime_ir import FIRST_GPU, Variant
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import Section, open_package, packed, read_package
from stepwell.targets.package.gpu import Place, first_gpu, gpu_place, on_device
from stepwell.targets.package.kernels import has_ptx, kernels_of
from stepwell.targets.package.layout import HEADER, Feature
from stepwell.targets.package.process import host_image
from stepwell.targets.package.programs import ItemRecord, ProgramRecord
from stepwell.targets.package.schema import dump
from stepwell.targets.package.signature import Target
from stepwell.tools.options.options import make_options
from stepwell.tools.package.code import CodeSections, without_folders
from stepwell.tools.package.exported import exported_graph
from stepwell.tools.package.inspection.facts import facts_of
from stepwell.tools.package.levels import default_levels, level_of
from stepwell.tools.package.retarget import retarget

FILES = Path(__file__).parents[2] / "targets" / "package" / "files"
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

    def ptx(self, addresses, sizes):
        return f"ptx of {self.name} {addresses} {sizes}"


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


def gpu_sections(*names):
    """The file of a kernel for some GPUs, best first, and its record for each."""
    code, records = CodeSections(), {}
    for name in names:
        with code.level(level_of(name)):
            records[name] = code.add_kernels(FakeDescription([FakeKernel(name)]))
    return read_package(b"".join(packed([(s, c) for s, c in code.finish() if s.kind in ("cubin", "ptx")], {}, "0"))), records


def test_the_best_target_whose_ptx_later_gpus_take_has_some():
    file, records = gpu_sections("sm_90", "sm_89", "sm_80")
    assert [name for name in records if has_ptx(file, name)] == ["sm_89"]
    (kernel,) = kernels_of(file, records["sm_89"], "sm_89", from_ptx=True)
    assert {b.code for b in kernel.binaries} == {
        b"ptx of sm_89 True True\0", b"ptx of sm_89 False False\0", b"ptx of sm_89 True False\0",
    }  # fmt: skip
    assert len({b.key for b in (*kernel.binaries, *kernels_of(file, records["sm_89"], "sm_89")[0].binaries)}) == 6
    with pytest.raises(PackageError, match="no section ptx"):
        kernels_of(file, records["sm_80"], "sm_80", from_ptx=True)


def test_kernels_for_amd_are_hsaco_with_a_runtime_of_their_own():
    code, records = CodeSections(), {}
    for name in ("sm_90", "gfx942"):
        with code.level(level_of(name)):
            records[name] = code.add_kernels(FakeDescription([FakeKernel("a")]))
    sections = code.finish()
    data = b"".join(packed(sections, {}, "0"))
    file = read_package(data)
    assert HEADER.unpack(data[: HEADER.size])[3] == Feature.AMD_GPUS
    kinds = {(s.kind, s.target) for s in file.index.sections if s.kind in ("cubin", "hsaco", "ptx")}
    assert kinds == {("cubin", "sm_90"), ("hsaco", "gfx942")}
    assert {s.target for s in file.of_kind("code") if s.name == "gpu-runtime"} == {"", "hip"}
    (kernel,) = kernels_of(file, records["gfx942"], "gfx942")
    assert {b.code for b in kernel.binaries} == {b"a True True", b"a False False", b"a True False"}
    only = [(s, c) for s, c in sections if s.kind == "cubin"]
    assert HEADER.unpack(b"".join(packed(only, {}, "0"))[: HEADER.size])[3] == Feature.NONE


@dataclass(frozen=True)
class FakeProperties:
    multi_processor_count: int = 100
    shared_memory_per_block_optin: int = 1 << 17
    gcnArchName: str = "gfx942:sramecc+:xnack-"  # noqa: N815


@pytest.fixture
def pretend_gpus(monkeypatch):
    """A function that has torch find GPUs of these capabilities."""

    def pretend(*capabilities, properties=FakeProperties()):  # noqa: B008
        find = lambda device: capabilities[torch.device(device).index or 0]  # noqa: E731
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: divmod(find(device), 10))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return pretend


@pytest.mark.parametrize(
    ("made", "gpu", "how"),
    [
        ("sm_80", 80, "binary"), ("sm_80", 86, "binary"), ("sm_80", 90, "ptx"), ("sm_80", 120, "ptx"), ("sm_90", 90, "binary"),
        ("sm_89", 80, "the GPU is an sm_80"), ("sm_90", 100, "the GPU is an sm_100"), ("sm_80", 75, "the GPU is an sm_75"),
    ],
)  # fmt: skip
def test_code_runs_as_a_binary_or_from_ptx(made, gpu, how, pretend_gpus):
    pretend_gpus(gpu)
    file, _ = gpu_sections(made)
    place = gpu_place(file, Target(made, capability=int(made[3:])), "cuda")
    assert place == (how if " " in how else Place(Target(made, capability=int(made[3:])), "cuda:0", how == "ptx"))


def test_what_a_gpu_lacks_is_named(pretend_gpus):
    file, records = gpu_sections("sm_80")
    record = ProgramRecord("f", 0, True, "", "cuda:0", "gpu", (), (), kernels=records["sm_80"])
    sections = [(s, bytes(file.bytes_of(s))) for s in file.index.sections]
    file = read_package(b"".join(packed([*sections, (Section("program", "f.1", 0, 0, "", "sm_80"), dump(record))], {}, "0")))
    pretend_gpus(90, 90, properties=FakeProperties(20, 1000))
    target = Target("sm_80", capability=80, multiprocessors=16)
    assert gpu_place(file, target, "cuda:1") == "a program on the GPU has 1000 bytes of shared memory, and 65536 are needed"
    assert "20 multiprocessors, and 27" in str(gpu_place(file, changed(target, multiprocessors=27), "cuda:1"))
    assert gpu_place(file, target, "cuda:2") == "torch finds no cuda:2"
    pretend_gpus(80, 80, properties=FakeProperties(20, 1000))
    assert gpu_place(file, target, "cuda:1") == Place(target, "cuda:1")


def test_code_for_amd_runs_on_its_architecture(pretend_gpus, monkeypatch):
    file, _ = gpu_sections("gfx942")
    place = partial(gpu_place, file)
    target, other = (level_of(name).target for name in ("gfx942", "gfx90a"))
    pretend_gpus(90, 90)
    assert place(target, "cuda") == "torch finds no GPU of AMD's"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert place(target, "cuda:1") == Place(target, "cuda:1")
    assert place(other, "cuda") == "the GPU is a gfx942"
    assert place(Target("sm_90", capability=90), "cuda") == "torch finds no GPU of NVIDIA's"
    assert "100 multiprocessors, and 101 are needed" in str(place(changed(target, multiprocessors=101), "cuda"))
    assert default_levels("cuda:0") == ("gfx90a", "gfx942")


def test_programs_are_moved_to_another_gpu():
    device = {"enum": ["device", "cuda:0"]}
    record = ProgramRecord(
        "f", 0, True, "rt.empty((2,), (1,), 'float32', 'cuda:0')", "cuda:0", "gpu", (), (),
        items=(ItemRecord("value", [device, 1]), ItemRecord("operator", "cuda:0")), checks=(Check("x", "float32", 1, "cuda:0"),),
    )  # fmt: skip
    moved = on_device(record, "cuda:3")
    assert moved.python.endswith("'cuda:3')") and moved.device == moved.checks[0].device == "cuda:3"
    assert [one.value for one in moved.items] == [[{"enum": ["device", "cuda:3"]}, 1], "cuda:0"]
    assert first_gpu(record, "cuda:3") == 3 and first_gpu(moved, "cuda:1") == -2 and on_device(moved, "cuda:3") is moved
    assert first_gpu(changed(record, device="cpu"), "cpu") == 0


def test_runtimes_for_other_gpus_are_apart():
    file = read_package((FILES / "version-1.1.stepwell").read_bytes())
    words = [ctypes.c_int32.from_address(host_image(file, k).address(FIRST_GPU)) for k in (0, 2, -1)]
    assert [word.value for word in words] == [0, 2, -1] and host_image(file, 2) is host_image(file, 2)
    old = read_package((FILES / "version-1.stepwell").read_bytes())
    with pytest.raises(PackageError, match="packages run on the first GPU alone"):
        host_image(old, 1)


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
        assert {s.target for s in file.of_kind("ptx")} == {"sm_80"}
        (first, *_) = kernels_of(file, file.load(ProgramRecord, "program", "forward", "sm_80").kernels, "sm_80", from_ptx=True)
        assert all(b".target sm_80" in binary.code for binary in first.binaries)
    torch.testing.assert_close(stepwell.load(path)(x), model(x))
    retarget(path, ["gfx942"], to=tmp_path / "b.stepwell")
    with open_package(tmp_path / "b.stepwell") as file:
        binaries = [bytes(file.bytes_of(s)) for s in file.of_kind("hsaco")]
        assert binaries and all(code.startswith(b"\x7fELF") and b"gfx942" in code for code in binaries)
        assert all(p.target == "gfx942" and p.kernels and p.code_bytes > sum(map(len, binaries)) for p in facts_of(file).programs)
    with pytest.raises(PackageError, match="runs none of its code.*gfx942: torch finds no GPU of AMD's"):
        stepwell.load(tmp_path / "b.stepwell")
    if not torch.cuda.is_available():
        with pytest.raises(PackageError, match="runs none of its code.*sm_90: torch finds no GPU"):
            stepwell.load(path, device="cuda")


class Steps(nn.Module):
    """A loop with a branch in it."""

    def forward(self, x, n):
        def step(k, x):
            return k + 1, torch.cond(x.sum() > 0, lambda x: (x * 1.1).sin(), lambda x: x.softmax(-1), (x,))

        return while_loop(lambda k, x: k < n, step, (torch.zeros((), dtype=torch.int64), x))


@needs_triton
@pytest.mark.long
def test_control_flow_of_a_package_for_gpus(tmp_path):
    """The programs of subgraphs are for the GPU, too, and have its kernels."""
    path = tmp_path / "a.stepwell"
    stepwell.export(Steps(), (torch.ones(3, 4), torch.tensor(3)), to=path, targets=["sm_90", "gfx942", "cpu-v3"])
    with open_package(path) as file:
        for target in ("sm_90", "gfx942"):
            names = [s.name for s in file.of_kind("program") if s.target == target]
            records = [file.load(ProgramRecord, "program", name, target) for name in names]
            assert len(names) == 5 and {r.device for r in records} == {"cuda:0"} and all(r.native and r.kernels for r in records)
            assert sorted(o.name for r in records for o in r.objects) == ["Cond", "WhileLoop"]
            assert all(kernels_of(file, r.kernels, target) for r in records)
            moved = [on_device(r, "cuda:1") for r in records]
            assert "cuda:0" not in "".join(r.python + str(r.items) + str(r.checks) for r in moved)
    args = torch.full((3, 4), -1.0), torch.tensor(2)
    torch.testing.assert_close(stepwell.load(path)(*args), Steps()(*args))


def test_a_device_that_packages_do_not_run_on(tmp_path):
    path = tmp_path / "a.stepwell"
    stepwell.export(nn.ReLU(), (torch.ones(2),), to=path, targets=["cpu-v3"], ir=False)
    with pytest.raises(PackageError, match="it runs on 'cpu', 'cuda' and 'cuda:1', not on 'mps'"):
        stepwell.load(path, device="mps")
    with pytest.raises(PackageError, match="it has no code for cuda; it has code for cpu-v3"):
        stepwell.load(path, device="cuda")
    assert Section("cubin", "k", 0, 0, "", "sm_90").label == "cubin 'k' for sm_90"


def test_places_of_kernels_name_no_folder():
    assert without_folders("kernel @k0 (/home/me/model.py:12)") == "kernel @k0 (model.py:12)"
    assert without_folders("kernel @k0 (model.py:12)") == "kernel @k0 (model.py:12)"
    assert without_folders("kernel @k0") == "kernel @k0"
