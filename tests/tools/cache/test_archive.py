"""The cache as one file: made here, found there, and what is refused."""

from __future__ import annotations

import os
import random
import shutil
import time

import pytest
import torch
from torch import nn

from stepwell.targets.cpu import cache as files
from stepwell.targets.cpu import cache_remote
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import Section, open_package, write_package
from stepwell.tools.cache import archive, cache
from stepwell.tools.cache.archive import export_cache, import_cache
from stepwell.tools.compiled.counters import counters, reset_counters


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A cache with five entries and a table."""
    folder = tmp_path / "here"
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(folder))
    for kind, name in (("graphs", "a1"), ("objects", "b2.o"), ("constants", "c3"), ("kernels", "d4.cubin"), ("sources", "e5")):
        assert files.write(folder / kind / name, name.encode() * 100)
    (folder / "gemm.json").write_text("{}")
    return folder


def test_what_was_exported_is_imported(root, tmp_path):
    there = tmp_path / "there"
    moved = export_cache(root, tmp_path / "c.stepwell")
    assert moved.by_kind == {"graphs": 1, "objects": 1, "constants": 1, "kernels": 1}, "sources are of one machine"
    assert moved.size == (tmp_path / "c.stepwell").stat().st_size
    assert import_cache(there, tmp_path / "c.stepwell").by_kind == moved.by_kind
    for entry in ("graphs/a1", "objects/b2.o", "constants/c3", "kernels/d4.cubin"):
        assert (there / entry).read_bytes() == (root / entry).read_bytes()
    again = import_cache(there, tmp_path / "c.stepwell")
    assert (again.by_kind, again.known) == ({}, 4)


def test_the_same_entries_give_the_same_bytes(root, tmp_path):
    for name in "xy":
        export_cache(root, tmp_path / name)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_only_some(root, tmp_path):
    old = root / "graphs" / "old"
    files.write(old, b"old")
    then = time.time() - 10 * 86400
    os.utime(old, (then, then))
    assert export_cache(root, tmp_path / "c", ["graphs"]).by_kind == {"graphs": 2}
    assert export_cache(root, tmp_path / "c", ["graphs"], used_days=2).by_kind == {"graphs": 1}
    assert export_cache(root, tmp_path / "c", ["graphs"], measured=True).by_kind == {"graphs": 2, "measured": 1}
    import_cache(tmp_path / "there", tmp_path / "c")
    assert (tmp_path / "there" / "gemm.json").read_text() == "{}"
    (root / "objects" / "b2.o").write_bytes(b"damaged")
    with pytest.raises(PackageError, match="nothing is written: the cache in .* has no such entries"):
        export_cache(root, tmp_path / "d", ["objects"])


def test_an_import_fills_the_shared_place(root, tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    export_cache(root, tmp_path / "c")
    monkeypatch.setenv("STEPWELL_CACHE_URL", f"file://{tmp_path}/shared")
    import_cache(tmp_path / "there", tmp_path / "c")
    place = cache_remote.place()
    assert place is not None
    place.flush()
    for entry in ("graphs/a1", "objects/b2.o"):
        assert (tmp_path / "shared" / entry).read_bytes() == (root / entry).read_bytes()


def test_another_environment_is_refused(root, tmp_path, monkeypatch):
    export_cache(root, tmp_path / "c")
    parts = files.parts_of_environment()
    monkeypatch.setattr(archive, "parts_of_environment", lambda: {**parts, "torch": "1.0"})
    with pytest.raises(PackageError, match=r"nothing of it would be found here: it was made with torch \d.*, here 1\.0; --anyway"):
        import_cache(tmp_path / "there", tmp_path / "c")
    monkeypatch.setattr(archive, "parts_of_environment", lambda: {**parts, "source": "another"})
    with pytest.raises(PackageError, match="the source of stepwell differs"):
        import_cache(tmp_path / "there", tmp_path / "c")
    assert not (tmp_path / "there").exists()
    assert import_cache(tmp_path / "there", tmp_path / "c", anyway=True).by_kind["graphs"] == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [("graphs", "../../x"), ("graphs", ".hidden"), ("measured", "x.json"), ("sources", "x"), ("programs", "x"), ("graphs", "x/y")],
)
def test_no_file_is_written_elsewhere(root, tmp_path, kind, name):
    content = (root / "graphs" / "a1").read_bytes()
    notes = {"content": "cache", **files.parts_of_environment()}
    write_package(tmp_path / "c", [(Section("graphs", "a1", 0, 0, ""), content), (Section(kind, name, 0, 0, ""), content)], notes, "0")
    with pytest.raises(PackageError, match="is none of a cache"):
        import_cache(tmp_path / "there", tmp_path / "c")
    assert not (tmp_path / "there").exists()


def test_foreign_and_damaged_files(root, tmp_path):
    file = tmp_path / "c"
    write_package(file, [(Section("graphs", "a1", 0, 0, ""), b"no entry")], {}, "0")
    with pytest.raises(PackageError, match="it is no exported cache"):
        import_cache(tmp_path / "there", file)
    write_package(file, [(Section("graphs", "a1", 0, 0, ""), b"no entry")], {"content": "cache"}, "0")
    with pytest.raises(PackageError, match="section graphs 'a1' is damaged"):
        import_cache(tmp_path / "there", file, anyway=True)
    export_cache(root, file)
    with open_package(file) as package:
        place = package.section("objects", "b2.o").offset
    content = bytearray(file.read_bytes())
    content[place + 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(PackageError, match="section objects 'b2.o' is damaged"):
        import_cache(tmp_path / "there", file)
    assert not (tmp_path / "there").exists()


def test_any_damage_is_found_or_harmless(root, tmp_path):
    """A byte that is another one: an error before anything is written, or, between sections, the same entries."""
    file, there = tmp_path / "c", tmp_path / "there"
    export_cache(root, file)
    whole = file.read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(200):
        place = draw.randrange(len(whole))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << draw.randrange(8))]) + whole[place + 1 :])
        try:
            import_cache(there, file)
        except PackageError:
            assert not there.exists()
            continue
        for entry in ("graphs/a1", "objects/b2.o", "constants/c3", "kernels/d4.cubin"):
            assert (there / entry).read_bytes() == (root / entry).read_bytes()
        shutil.rmtree(there)


def test_the_commands(root, tmp_path, capsys, monkeypatch):
    file = str(tmp_path / "c.stepwell")
    assert cache.main(["export", file, "graphs", "objects"]) == 0
    assert "1 graphs, 1 objects: " in capsys.readouterr().out
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "there"))
    assert cache.main(["import", file]) == 0
    assert cache.main(["import", file]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("1 graphs, 1 objects: ") and out[1] == "nothing new: 0 bytes read; 2 were there"
    assert cache.main(["import", str(tmp_path / "none")]) == 1
    assert "it cannot be opened: No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cache.main(["export", file, "grapfs"])
    assert "there is no kind 'grapfs'" in capsys.readouterr().err


def compiled(folder, monkeypatch) -> tuple[float, float, list[int], int]:
    """What a plain and a frozen graph give with the cache in a folder; traces and graphs found, graphs and objects not found."""
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    reset_counters()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).eval()
    with torch.no_grad():
        plain = torch.compile(net, backend="stepwell")(torch.ones(4, 64))
        frozen = torch.compile(net, backend="stepwell", options={"freezing": True})(torch.ones(4, 64))
    names = ("graph_cache_hits", "graph_cache_misses", "cache_misses")
    # what other tests of the process registered may keep a graph from having a key of its own
    traced = int(counters["aot_cache_hits"]) + int(counters["aot_cache_bypasses"])
    return plain.sum().item(), frozen.sum().item(), [int(counters[name]) for name in names], traced


def test_another_machine_compiles_nothing(tmp_path, monkeypatch):
    """AOTI-12: a plain graph and a frozen one."""
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    first = compiled(tmp_path / "a", monkeypatch)
    assert first[2] == [0, 2, 2]
    export_cache(tmp_path / "a", tmp_path / "file")
    import_cache(tmp_path / "b", tmp_path / "file")
    assert compiled(tmp_path / "b", monkeypatch) == (*first[:2], [2, 0, 0], 1)
