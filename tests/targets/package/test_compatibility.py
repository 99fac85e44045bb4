"""Files of earlier versions of the format open forever, files of later minor versions open as far as they are known. A change that these
tests refuse needs a new version beside the old one."""

import json
import struct
import zlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import Section, packed, read_package
from stepwell.targets.package.kernels import has_ptx, kernels_of
from stepwell.targets.package.layout import HEADER, FileLayout
from stepwell.targets.package.load import load_file
from stepwell.targets.package.programs import ProgramRecord

FILES = Path(__file__).with_name("files")
VERSIONS = ["version-1", "version-1.1"]


def called(loaded, rows=5):
    """A call of `step`, and what its `y` should be."""
    weights = {name: value.clone() for name, value in loaded.weights.items()}
    x, table = torch.randn(rows, 6), {"scale": torch.tensor(2.0)}
    want = F.gelu(F.linear(x, weights["layer.weight"], weights["layer.bias"])) * 2 + 1
    return loaded.step(x, table), want


@pytest.mark.parametrize("name", VERSIONS)
def test_stored_files(name):
    """Written by release 0.1.0: `stepwell.export({"step": (Model(), (x, table))}, targets=["cpu-v3"])`, of the model below, before there
    were minor versions; version 1.1 for sm_80, too."""
    loaded = stepwell.load(FILES / f"{name}.stepwell", device="cpu")
    assert loaded.native and loaded.target == "cpu-v3" and loaded.entries == ("step",)
    found, want = called(loaded)
    assert sorted(found) == ["calls", "y"] and found["calls"][0].item() == 1 and found["calls"][1] == 5
    torch.testing.assert_close(found["y"], want)
    assert called(loaded)[0]["calls"][0].item() == 2
    loaded.reset()
    assert called(loaded, 2)[0]["calls"][0].item() == 1
    with pytest.raises(TypeError, match="argument 'x', dimension 0, is 9; the package was exported for 0 to 8"):
        called(loaded, 9)


@pytest.mark.parametrize("name", VERSIONS)
def test_stored_files_without_native_entries(name, monkeypatch):
    monkeypatch.setenv("STEPWELL_HOST", "python")
    loaded = stepwell.load(FILES / f"{name}.stepwell", device="cpu")
    assert not loaded.native and called(loaded)[0]["calls"][1] == 5


def test_a_stored_file_has_kernels_for_a_gpu_and_for_later_ones():
    file = read_package((FILES / "version-1.1.stepwell").read_bytes())
    record = file.load(ProgramRecord, "program", "step", "sm_80")
    binaries, texts = (kernels_of(file, record.kernels, "sm_80", from_ptx) for from_ptx in (False, True))
    assert has_ptx(file, "sm_80") and not has_ptx(file, "cpu-v3") and len(binaries) == len(texts) == 2
    for binary, text in zip(binaries, texts, strict=True):
        for first, second in zip(binary.binaries, text.binaries, strict=True):
            assert first.code.startswith(b"\x7fELF") and b".target sm_80" in second.code and second.code.endswith(b"\0")
            assert f".entry {second.name}(".encode() in second.code and first.key != second.key


def as_written_later(major, minor, features=0, more=()):
    """The stored file as a later release would write it: a field more in its signature, sections of a kind that nobody knows."""
    file = read_package((FILES / "version-1.1.stepwell").read_bytes())
    sections = [(s, bytes(file.bytes_of(s))) for s in file.index.sections]
    signature = {**json.loads(sections[0][1]), "mood": "good", **dict(more)}
    assert sections[0][0].kind == "signature"
    sections[0] = sections[0][0], json.dumps(signature).encode()
    data = bytearray(b"".join(packed([*sections, (Section("dreams", "of", 0, 0, ""), b"sheep")], {}, "9.1.0")))
    struct.pack_into("<I", data, 16, major | minor << FileLayout.MINOR_BITS)
    struct.pack_into("<Q", data, 24, features)
    data[HEADER.size : HEADER.size + 4] = zlib.crc32(data[: HEADER.size]).to_bytes(4, "little")
    return bytes(data)


def test_a_file_of_a_later_minor_version_runs_as_far_as_it_is_known():
    loaded = load_file(read_package(as_written_later(1, FileLayout.MINOR + 1)), device="cpu")
    found, want = called(loaded)
    assert loaded.native
    torch.testing.assert_close(found["y"], want)


def test_what_a_file_of_this_version_has_too_much_is_damage():
    with pytest.raises(PackageError, match="section signature has unknown fields: mood"):
        load_file(read_package(as_written_later(1, FileLayout.MINOR)), device="cpu")


def test_what_cannot_be_read_of_a_later_file_names_the_writer():
    later = read_package(as_written_later(1, FileLayout.MINOR + 1, more={"handle_offset": "here"}.items()))
    with pytest.raises(PackageError, match=r"handle_offset should be int.*\(stepwell 9.1.0, which is newer, wrote it\)"):
        load_file(later, device="cpu")


def test_files_of_a_later_major_version_and_with_unknown_features_are_refused():
    with pytest.raises(PackageError, match=r"version 2.3 of the format, written by stepwell 9.1.0; this stepwell reads versions up to 1"):
        read_package(as_written_later(2, 3))
    with pytest.raises(PackageError, match="needs features 0x8 that this stepwell lacks; stepwell 9.1.0 wrote it"):
        read_package(as_written_later(1, FileLayout.MINOR + 1, features=8))
