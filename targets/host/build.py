"""From a module of kernels and one host program to something that runs; the two halves can lie in a cache in between.

compiled = compile_program(module)            # can be pickled
run = load_compiled(compiled, constants)
outputs = run([x, w])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...dialects.host import program_of
from ..cpu.cache import cached_object
from ..cpu.emit.module import emit_kernels
from ..cpu.features import Target
from .description import ProgramDescription
from .emit import emit_host
from .load import load_object_code, load_program


@dataclass(frozen=True)
class CompiledProgram:
    """Machine code and description of a graph, free of addresses of this process.

    `text` is the LLVM text that `code` was made of, `from_disk` whether the object cache had it."""

    description: ProgramDescription
    code: bytes
    text: str
    from_disk: bool


def llvm_text(module: ModuleOp, wanted: Target | None = None) -> tuple[str, ProgramDescription]:
    """The LLVM text of the kernels and of the entry of the module's only `host.program`, and what belongs to it."""
    unit = emit_kernels(module, wanted)
    description = emit_host(unit, program_of(module))
    return unit.text(), description


def compile_program(module: ModuleOp) -> CompiledProgram:
    """Kernels and host program of a module as one object. ValueError without exactly one `host.program`."""
    text, description = llvm_text(module)
    code, from_disk = cached_object(text)
    return CompiledProgram(description, code, text, from_disk)


def load_compiled(
    compiled: CompiledProgram, constants: Sequence[Any] = (), objects: Sequence[Any] = ()
) -> Callable[[list[Any]], list[Any]]:
    """The callable of a compiled program; see `load_program`."""
    description = compiled.description
    return load_program(description, load_object_code(compiled.code, description.native), constants, objects)
