"""A Python with torch for 64-bit Arm that an emulator runs: `python tests/arm_torch.py FOLDER` makes FOLDER/python, or says which
tool is missing.

Python is Debian's, taken by apt (Debian, no root rights needed); packages are pip's, in the versions of this environment.
torch's package for Arm is made for CUDA. A small library takes the place of CUDA's: each of its functions fails with
`cudaErrorNoDevice`.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SYSTEM = ("python3", "libpython3-stdlib", "zlib1g", "libstdc++6", "libgomp1")
PACKAGES = ("numpy", "llvmlite", "xdsl", "sympy", "networkx", "jinja2", "fsspec", "filelock", "typing_extensions")
TEST_PACKAGES = ("pytest", "hypothesis", "expecttest", "filecheck", "setuptools")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
FEATURES = "fp asimd crc32 atomics fphp asimdhp asimdrdm jscvt fcma lrcpc dcpop asimddp asimdfhm dit flagm i8mm bf16"
"""What Linux calls the features of `PROCESSOR` that programs ask for."""
PROCESSOR = "max,sve=off,pauth-impdef=on"
"""The emulated processor. Addresses are signed by the emulator's own function, because the standard one is slow."""


def run(*words: str | Path, cwd: Path | None = None) -> str:
    """Output of a command; a failure ends the program with what the command said."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def install_python(root: Path, work: Path) -> str:
    """Unpacks Debian's Python and its libraries for Arm into `root`. Its version, such as `3.11`."""
    for folder in ("lists/partial", "archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    state = {"State": work, "State::status": "/dev/null", "Cache": work}
    options = [f"-oDir::{name}={place}" for name, place in state.items()]
    apt = ("apt-get", "-q", "-y", "-oAPT::Architecture=arm64", "-oAPT::Architectures::=arm64", *options)
    run(*apt, "update")
    run(*apt, "--no-install-recommends", "--download-only", "install", *SYSTEM)
    for package in sorted((work / "archives").glob("*.deb")):
        run("dpkg-deb", "--extract", package, root)
    return next((root / "usr/bin").glob("python3.[0-9]*")).name.removeprefix("python")


def install_packages(site: Path, version: str) -> None:
    """torch, what stepwell and its tests need, and stepwell itself as a link, for a version of Python."""
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", *platforms)
    pip = (*pip, f"--python-version={version}", "--implementation=cp", f"--target={site}")
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in (*PACKAGES, *TEST_PACKAGES)}
    run(*pip, *(f"{name}=={number}" for name, number in versions.items()))
    run(*pip, "--no-deps", "--upgrade", f"torch=={importlib.metadata.version('torch').partition('+')[0]}")
    described = site / "stepwell.dist-info"
    described.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (described / name).write_text(importlib.metadata.distribution("stepwell").read_text(name) or "")
    (site / "stepwell").symlink_to(Path(__file__).resolve().parents[1])


def symbols(files: list[Path], which: str) -> set[str]:
    """Names of the dynamic symbols of files that are `undefined` or `defined`, without versions."""
    listed = run("aarch64-linux-gnu-nm", "--dynamic", f"--{which}-only", *files).splitlines()
    words = [line.split() for line in listed]
    return {word[-1].partition("@")[0] for word in words if len(word) > 1 and word[-2] != "w"}


def replace_cuda(torch: Path, root: Path) -> None:
    """Puts a small library in place of those of CUDA, which torch asks for when it is imported."""
    folder = torch / "lib"
    there = [path for path in torch.rglob("*.so*") if not path.is_symlink()]
    dynamic = run("aarch64-linux-gnu-readelf", "--dynamic", *there).splitlines()
    needed = {line.split("[")[1].rstrip("]") for line in dynamic if "(NEEDED)" in line}
    missing = [name for name in needed if not (folder / name).exists() and not any(root.rglob(name))]
    system = [path for path in root.rglob("*.so*") if path.is_file() and path.suffix != ".py"]
    unknown = symbols(there, "undefined") - symbols(there + system, "defined")
    unknown = {name for name in unknown if not name.startswith(("Py", "_Py"))}
    text = [".text", "refuse: mov w0, #100", "ret"]
    for name in sorted(unknown):
        text += [f".globl {name}", f".type {name},%function", f".set {name}, refuse"]
    (folder / "no_cuda.s").write_text("\n".join(text) + "\n")
    shared = (COMPILER, "-shared", "-nostdlib", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed")
    run(*shared, "-Wl,-soname,libno_cuda.so", "no_cuda.s", "-o", "libno_cuda.so", cwd=folder)
    # a library that symbols of a version are expected in may define none without versions: the names stand in another one
    run(*shared, "libno_cuda.so", "-o", "libempty_cuda.so", cwd=folder)
    for name in missing:
        (folder / name).symlink_to("libempty_cuda.so")


def write_command(folder: Path, version: str) -> None:
    """Describes the processor, and writes the command that runs Python."""
    (folder / "root/proc").mkdir(exist_ok=True)
    model = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd49\nCPU revision\t: 0\n"
    (folder / "root/proc/cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {FEATURES}\n{model}\n")
    root, python = shlex.quote(str(folder / "root")), shlex.quote(str(folder / "python"))
    (folder / "python").write_text(
        f"#!/bin/sh\nexec env PYTHONHOME={root}/usr PYTHONPATH={shlex.quote(str(folder / 'site'))} {EMULATOR} -cpu {PROCESSOR}"
        f' -L {root} -0 {python} {root}/usr/bin/python{version} "$@"\n'
    )
    (folder / "python").chmod(0o755)


def main(folder: Path) -> None:
    absent = [tool for tool in (COMPILER, EMULATOR, "apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if absent:
        print(f"skipped: this machine has no {' and no '.join(absent)}")
        return
    made = folder / "python"
    sources = (Path(__file__), Path(__file__).resolve().parents[1] / "pyproject.toml")
    if made.exists() and all(made.stat().st_mtime > source.stat().st_mtime for source in sources):
        return
    shutil.rmtree(folder, ignore_errors=True)
    version = install_python(folder / "root", folder / "apt")
    install_packages(folder / "site", version)
    replace_cuda(folder / "site/torch", folder / "root")
    write_command(folder, version)


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C"
    main(Path(sys.argv[1]).resolve())
