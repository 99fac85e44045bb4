"""Exported models as C programs: built with gcc, run without an environment, where it is allowed in an empty root."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

DRIVER = Path(__file__).with_name("c_driver.c")
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@cache
def roots_allowed() -> bool:
    """Whether a process may have a root of its own here."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-r", "true"], capture_output=True, check=False).returncode == 0


def build(folder: Path, name: str, source: Path = DRIVER, compiler: str = "gcc") -> Path:
    """The program of an exported model, linked with nothing but the C library."""
    program = folder / f"{name}_{source.stem}"
    words = [f"-DNAME={name}", f'-DHEADER="{name}.h"', f"-I{folder}", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, "-O1", "-static", *words, str(source), str(folder / f"{name}.o"), "-lm", "-lpthread", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "cannot find" in done.stderr:  # no static C library
        command.remove("-static")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run_alone(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The program in its folder, without an environment; with its folder as root where that is allowed, and it needs no shared library."""
    folder = program.parent
    static = "not a dynamic" in subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stderr
    alone = ["unshare", "-r", "chroot", str(folder), f"/{program.name}"] if static and roots_allowed() else [str(program)]
    command = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *alone, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def call(
    program: Path,
    entry: str,
    inputs: Sequence[torch.Tensor],
    like: Sequence[torch.Tensor],
    *words: str,
    run: Callable[..., subprocess.CompletedProcess[str]] = run_alone,
) -> list[torch.Tensor]:
    """The results of an entry, tensors of the types of `like`. AssertionError with what the program says where it fails."""
    folder = program.parent
    (folder / "inputs").write_bytes(b"".join(map(_packed, inputs)))
    done = run(program, entry, "inputs", "results", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    data = (folder / "results").read_bytes()
    results: list[torch.Tensor] = []
    for one in like:
        (rank,) = struct.unpack_from("<q", data)
        sizes = struct.unpack_from(f"<{rank}q", data, 8)
        start, count = 8 + 8 * rank, torch.Size(sizes).numel()
        end = start + count * one.element_size()
        elements = torch.frombuffer(bytearray(data[start:end]), dtype=one.dtype) if count else torch.empty(0, dtype=one.dtype)
        results.append(elements.reshape(sizes))
        data = data[end:]
    assert not data
    return results


def _packed(tensor: torch.Tensor) -> bytes:
    rows = tensor.contiguous()
    elements = bytes(rows.view(torch.uint8).flatten().tolist()) if rows.dim() else bytes(rows.reshape(1).view(torch.uint8).tolist())
    return struct.pack(f"<{1 + tensor.dim()}q", tensor.dim(), *tensor.shape) + elements
