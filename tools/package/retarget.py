"""`stepwell export --retarget`: the IR of a package compiled for other targets, without the model and without torch.export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.parser import Parser

from ...dialects.support.record import changed
from ...targets.package import schema
from ...targets.package.format import PackageFile, Section, open_package, write_package
from ...targets.package.programs import ProgramRecord, record_of
from ...targets.package.signature import Signature
from ..backend.compile_graph import context
from ..options.options import Options, make_options
from .code import CodeSections, import_target, read_ir
from .levels import Level, ordered

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def retarget(path: str | os.PathLike[str], targets: Sequence[str], *, to: str | os.PathLike[str]) -> int:
    """Write a package that has the entry points and weights of the one at `path`, and code for `targets`; gives its size in bytes.

    Raises PackageError for a package without IR, for a target that its device has not, and for what `stepwell.load` refuses."""
    options = make_options(None, {})
    with open_package(path) as file:
        signature: Signature = file.load(Signature, "signature")
        levels = ordered(targets)
        sections = _sections(file, signature, levels, options)
        return write_package(to, sections, file.index.notes, _version())


def _version() -> str:
    from ... import __version__

    return __version__


def _sections(
    file: PackageFile, signature: Signature, levels: Sequence[Level], options: Options
) -> list[tuple[Section, bytes | memoryview]]:
    code = CodeSections()
    programs: list[tuple[Section, bytes]] = []
    for level in levels:
        with code.level(level):
            for name in _names(file, signature, level):
                module = _module(file, name, level)
                record = _record(file, signature, name, level)
                description, made, _ = code.build(module, record.device, options, name)
                fresh = record_of(description, record.sources, record.results, record.constants, record.updates)
                fresh = changed(fresh, objects=record.objects, kernels=code.add_kernels(description))
                programs.append((Section("program", name, 0, 0, "", level.target.name), schema.dump(fresh)))
                code.add_object(name, made)
    signature = changed(signature, targets=tuple(level.target for level in levels))
    kept = [s for s in file.index.sections if s.kind in ("weights-table", "weights", "samples", "samples-table")]
    head: list[Any] = [(Section("signature", "", 0, 0, ""), schema.dump(signature))]
    for section in kept:
        file.check(section)
    return [*head, *programs, *code.finish(), *((section, file.bytes_of(section)) for section in kept)]


def _known(signature: Signature, level: Level) -> str:
    """A target of the package that is of the same kind of device as a level, "" where there is none."""
    return next((t.name for t in signature.targets if t.is_gpu == level.is_gpu), "")


def _names(file: PackageFile, signature: Signature, level: Level) -> list[str]:
    """The programs of a package: entry points, and the subgraphs that they call."""
    known = _known(signature, level) or signature.targets[0].name
    return [section.name for section in file.of_kind("program") if section.target == known]


def _record(file: PackageFile, signature: Signature, entry: str, level: Level) -> ProgramRecord:
    """A program for any target of that kind of device."""
    return file.load(ProgramRecord, "program", entry, _known(signature, level))


def _module(file: PackageFile, entry: str, level: Level) -> ModuleOp:
    """The graph of an entry point at the level of tensors, as it was imported."""
    section = file.find("ir", f"{entry}/import", import_target(level.device))
    if section is None and not file.of_kind("ir"):
        raise file.error("it has no IR (it was exported with ir=False), and cannot be compiled for other targets")
    if section is None:
        raise file.error(f"its IR is not for the kind of device that {level.target.name} is; export the model for that")
    return Parser(context(), read_ir(file, section)).parse_module()

