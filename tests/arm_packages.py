"""Packages for 64-bit Arm, run on an emulated processor: a C program maps their code (package_driver.c) and calls their kernels."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from arm_processors import COMPILER, on

from stepwell.targets.package.format import PackageFile, open_package
from stepwell.targets.package.image import ImageTable
from stepwell.targets.package.programs import ProgramRecord
from stepwell.targets.package.weights import WeightStore

DRIVER = Path(__file__).with_name("package_driver.c")
ALIGN_BYTES = 64


def driver(folder: Path) -> Path:
    """The program that maps images."""
    program = folder / "driver"
    words = ["-std=gnu11", "-O1", "-static", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([COMPILER, *words, str(DRIVER), "-o", str(program)], check=True)
    return program


def image_words(table: ImageTable, offset: int) -> list[str]:
    """What the program has to do for an image that begins at a place of the file."""
    words = [f"image {offset} {table.code} {table.constants} {table.data} {table.zeros}"]
    words += [f"rebase {place}" for place in table.rebases]
    words += [f"import {place} {name}" for name, places in table.imports.items() for place in places]
    return [*words, *(f"export {place} {name}" for name, place in table.exports.items())]


class _Recorder:
    """Takes the place of what host programs in Python call: memory is an offset, a launch a line of the script."""

    def __init__(self):
        self.memory = bytearray()
        self.lines: list[str] = []

    def place(self, content: bytes, size: int) -> int:
        """Where memory of so many bytes is, which begins with some."""
        start = -(-len(self.memory) // ALIGN_BYTES) * ALIGN_BYTES
        self.memory.extend(bytes(start - len(self.memory)) + content + bytes(size - len(content)))
        return start

    def kernel(self, name: str, signature: str):
        def launch(*args: int) -> None:
            words = [f"@{arg}" if kind == "p" else str(arg) for kind, arg in zip(signature, args, strict=True)]
            self.lines.append(f"call {name} {len(words)} {' '.join(words)}")

        return launch

    def count(self, *_: Any) -> None: ...
    def tensor(self, *_: Any) -> None: ...
    def check(self, *_: Any) -> None: ...

    def address(self, tensor: Any, _: int) -> int:
        return tensor.data_ptr()

    def arena(self, size: int, _: str) -> _Memory:
        return _Memory(self.place(b"", size), (size,), torch.uint8)

    def empty(self, sizes: Sequence[int], strides: Sequence[int], dtype: str, _: str) -> _Memory:
        kind = getattr(torch, dtype)
        return _Memory(self.place(b"", math.prod(sizes) * kind.itemsize), sizes, kind, strides)

    def view(self, of: _Memory, sizes: Sequence[int], strides: Sequence[int], dtype: str, _: str, offset: int) -> _Memory:
        kind = getattr(torch, dtype)
        return _Memory(of.place + offset * kind.itemsize, sizes, kind, strides)

    def given(self, tensor: torch.Tensor) -> _Memory:
        content = bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist())
        return _Memory(self.place(content, len(content)), tuple(tensor.shape), tensor.dtype)


class _Memory:
    def __init__(self, place: int, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] = ()):
        self.place, self.shape, self.dtype, self.strides = place, tuple(shape), dtype, tuple(strides)

    def read(self, memory: bytearray) -> torch.Tensor:
        """What is in the memory."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(memory, dtype=self.dtype, offset=self.place).as_strided(self.shape, self.strides)

    def data_ptr(self) -> int:
        return self.place


def run_entry(path: Path, target: str, args: Sequence[torch.Tensor], processor: str, program: Path) -> list[torch.Tensor]:
    """The results of the entry `forward` of a package by its code for a target, on an emulated processor."""
    with open_package(path) as file:
        record: ProgramRecord = file.load(ProgramRecord, "program", "forward", target)
        recorder, store = _Recorder(), WeightStore(file, False)
        inputs = [store.tensor(one.name) if one.kind == "weight" else args[one.index] for one in record.sources]
        scope: dict[str, Any] = {"rt": recorder}
        scope.update({f"i{k}": recorder.kernel(*item.value) for k, item in enumerate(record.python_items)})
        exec(record.python, scope)
        results = scope["program"]([recorder.given(one) for one in inputs])
        words = [*_image(file, "functions", target), *_image(file, "forward", target), *recorder.lines]
    folder = program.parent
    (folder / "script").write_text("\n".join(words))
    recorder.place(b"", ALIGN_BYTES)  # whole elements of each size behind each place
    (folder / "memory").write_bytes(recorder.memory)
    done = on(processor)(program, str(path), "script", "memory")
    assert done.returncode == 0, done.stdout + done.stderr
    memory = bytearray((folder / "memory").read_bytes())
    return [one.read(memory) for one in results]


def _image(file: PackageFile, name: str, target: str) -> list[str]:
    section = file.find("code", name, target)
    return [] if section is None else image_words(file.load(ImageTable, "code-table", name, target), section.offset)
