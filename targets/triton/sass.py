"""The instructions of compiled kernels of NVIDIA's GPUs, as nvdisasm shows them, which comes in Triton's wheel; no GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from ..cpu.cache import cache_folder, read, write
from .compile import CompiledKernel
from .gpu import TargetError

_SECTION = re.compile(r"^//-+ \.text\.(\S+)")
_SHOWN = re.compile(r"^(?:[\w$.]+:|\s*/\*[0-9a-f]+\*/.*)$")
"""Labels and instructions; the rest are directives of an assembler."""


def sass_texts(kernels: Sequence[CompiledKernel]) -> list[str]:
    """The SASS of kernels that were compiled to cubins, kept on disk beside them. TargetError where nvdisasm cannot be run."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_kept, kernels))


def _kept(kernel: CompiledKernel) -> str:
    path = cache_folder() / "kernels" / f"{kernel.key}.sass"
    found = read(path)
    if found is not None:
        return found.decode()
    assert isinstance(kernel.code, bytes), "a cubin"
    text = instructions(_disassembled(kernel.code))
    write(path, text.encode())
    return text


def _disassembled(cubin: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="stepwell-sass-") as folder:
        path = os.path.join(folder, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(cubin)
        try:
            done = subprocess.run([disassembler(), "-c", path], capture_output=True, text=True)
        except OSError as error:
            raise TargetError(f"nvdisasm cannot be run: {error}") from error
    if done.returncode:
        raise TargetError(f"nvdisasm ended with code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


@cache
def disassembler() -> str:
    """The path of nvdisasm: what TRITON_NVDISASM_PATH names, else the one in Triton's wheel. TargetError where neither can be run."""
    from triton import knobs  # pyright: ignore

    try:
        return knobs.nvidia.nvdisasm.path
    except RuntimeError as error:
        raise TargetError("nvdisasm cannot be run: this Triton brings none, and TRITON_NVDISASM_PATH names none") from error


def instructions(listing: str) -> str:
    """Of what `nvdisasm -c` says the labels and instructions, an empty line behind each section; a section's first line is its name."""
    found: list[str] = []
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            found += ["", f"{section[1]}:"] if found else [f"{section[1]}:"]
        elif found and _SHOWN.match(line) and line not in (found[-1], f".text.{found[-1]}"):
            found.append(line.removeprefix("    "))
    return "".join(f"{line}\n" for line in (*found, ""))
