"""The machine code of a package: each program for each target, and what programs share, as images."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...lowering.fx_to_nd.core.metadata import shape_env
from ...targets.cpu import features as cpu
from ...targets.cpu.cache import shared_object
from ...targets.cpu.jit import compile_text, object_symbols
from ...targets.cpu.library import module_of, settle, spec_of
from ...targets.host.runtime.runtime_ir import runtime_text
from ...targets.host.selftest import compile_selftest
from ...targets.host.symbols import handle_offset
from ...targets.package import schema
from ...targets.package.errors import PackageError
from ...targets.package.format import Section
from ...targets.package.programs import record_of
from ..backend.compile_graph import lower_graph
from ..compiled.compiled import CompiledGraph
from ..debug.compile_log import compile_lock
from .elf_image import exported, link_image

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from ..options.options import Options
    from .levels import Level

BASELINE = "generic-sse"
"""What every x86-64 has: the instruction set of the runtime, which has no vectors."""


@contextmanager
def _no_new_guards(gm: GraphModule, name: str) -> Iterator[None]:
    """What is compiled inside of the block holds for all sizes of the ranges. PackageError names what it would assume of them."""
    env = shape_env(gm)
    if env is None:
        yield
        return
    frozen, env.frozen, before = env.frozen, False, len(env.guards)
    try:
        yield
    finally:
        env.frozen = frozen
    added = [str(guard.expr) for guard in env.guards[before:]]
    if added:
        raise PackageError(
            f"entry point '{name}': the program would hold for some sizes of the ranges alone, where {' and '.join(added)}; "
            "give the dimension a narrower range, or a fixed size"
        )


class CodeSections:
    """Compiles programs and collects the images of a package."""

    def __init__(self) -> None:
        self._sections: list[tuple[Section, bytes]] = []
        self._level: Level | None = None
        self._functions: set[str] = set()

    @contextmanager
    def level(self, level: Level) -> Iterator[None]:
        """Code is made for a target inside of the block; at its end, the functions that its programs share."""
        self._level = level
        self._functions = set()
        settle()  # functions of the library are made in threads, for the target of the moment
        with compile_lock, _disable_current_modes(), cpu.use_target(level.code):
            yield
            self._share()
            settle()
        self._level = None

    def compile(self, gm: GraphModule, options: Options, name: str) -> CompiledGraph:
        """A graph for the target of the moment; the graph stays as it is."""
        with torch.no_grad(), _no_new_guards(gm, name):
            return lower_graph(copy.deepcopy(gm), (), options, kind="inference")

    def add_program(self, name: str, compiled: CompiledGraph) -> None:
        """The image of a program."""
        assert self._level is not None
        undefined = object_symbols(compiled.code)[1]
        self._functions |= {symbol for symbol in undefined if spec_of(symbol) is not None}
        self._add(name, self._level.target.name, [compiled.code], exported([compiled.code]))

    def _share(self) -> None:
        """The image of the products and attention of a target."""
        assert self._level is not None
        specs = {symbol: spec_of(symbol) for symbol in sorted(self._functions)}
        objects = [shared_object(module_of(spec)) for spec in specs.values() if spec is not None]
        if objects:
            self._add("functions", self._level.target.name, objects, frozenset(specs))

    def _add(self, name: str, target: str, objects: list[bytes], exports: frozenset[str]) -> None:
        table, content = link_image(objects, exports)
        self._sections.append((Section("code-table", name, 0, 0, "", target), schema.dump(table)))
        self._sections.append((Section("code", name, 0, 0, "", target), content))

    def handle_offset(self) -> int:
        """Where this torch keeps the tensor in a Python object. PackageError where that is not known."""
        found = handle_offset()
        if found is None:
            raise PackageError("this torch keeps its tensors in an unknown place: packages cannot be made with it")
        return found

    def finish(self) -> list[tuple[Section, bytes]]:
        """All sections, with the runtime and the program that tries native entries."""
        wanted = cpu.target(BASELINE)
        runtime = compile_text(runtime_text(self.handle_offset()), wanted=wanted)
        self._add("runtime", "", [runtime], exported([runtime]))
        description, code = compile_selftest(wanted)
        self._add("selftest", "", [code], exported([code]))
        record: Any = record_of(description, (), (), ())
        self._sections.append((Section("program", "selftest", 0, 0, ""), schema.dump(record)))
        return self._sections
