"""What an installation holds: every module of the checkout, once, and nothing else."""

from __future__ import annotations

import importlib.metadata
import pkgutil
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dialects", "passes", "lowering", "targets", "tools")
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_on_disk() -> set[str]:
    found = {file.parent for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    return {"stepwell", *(".".join(("stepwell", *folder.relative_to(ROOT).parts)) for folder in found)}


def modules_on_disk() -> set[str]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files += [file for file in ROOT.glob("*.py") if file.name != "setup.py"]
    return {"/".join(("stepwell", *file.relative_to(ROOT).parts)) for file in files}


def test_every_sub_package_is_listed():
    assert sorted(CONFIG["tool"]["setuptools"]["packages"]) == sorted(packages_on_disk())


def test_every_sub_package_has_an_init():
    missing = [name for name in packages_on_disk() if not ROOT.joinpath(*name.split(".")[1:], "__init__.py").exists()]
    assert not missing


def test_an_editable_install_holds_the_modules_of_the_wheel():
    import stepwell

    if Path(stepwell.__file__).parent != ROOT:
        pytest.skip("this run tests an installation apart from the checkout")
    found = {info.name for info in pkgutil.walk_packages(stepwell.__path__, "stepwell.")}
    wheel = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in modules_on_disk()}
    assert found - {"stepwell.setup"} == wheel - {"stepwell"}


@pytest.mark.long
def test_a_wheel_holds_the_modules_on_disk_and_nothing_of_a_stale_build_folder(tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in (*FOLDERS, "tests"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, checkout / file.name)
    stale = checkout / "build" / "lib" / "stepwell" / "passes" / "deleted_long_ago.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*build, "-w", tmp_path, "."], cwd=checkout, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("stepwell-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name for name in names if name.endswith(".py")} == modules_on_disk()
    assert "stepwell/py.typed" in names
    for end in (".ll", ".js", ".css"):
        texts = {"/".join(("stepwell", *file.relative_to(ROOT).parts)) for folder in FOLDERS for file in (ROOT / folder).rglob(f"*{end}")}
        assert {name for name in names if name.endswith(end)} == texts


@pytest.mark.parametrize(
    ("group", "name"),
    [("console_scripts", "opt-tool"), ("xdsl.universe", "stepwell")],
)
def test_entry_point_loads(group, name):
    (entry,) = [e for e in importlib.metadata.entry_points(group=group, name=name) if e.value.startswith("stepwell.")]
    assert entry.load() is not None


def test_torch_lists_the_backend():
    import torch
    from torch._dynamo.backends.registry import lookup_backend

    assert "stepwell" in torch.compiler.list_backends()
    assert lookup_backend("stepwell").__module__ == "stepwell.tools.backend.torch_backend"


def test_version_is_that_of_the_distribution():
    import stepwell

    assert stepwell.__version__ == importlib.metadata.version("stepwell")
