"""What a package holds, as plain data: entry points as text, kernels and bytes by target, weights, bytes by part."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ....targets.package.format import PackageFile, Section
from ....targets.package.programs import ProgramRecord
from ....targets.package.signature import EntryPoint, Leaf, Signature, SizeRange, Weights
from ....targets.package.trees import Tree

_GPU_LAUNCH = re.compile(r"\.launcher\.launch\((\d+),")

SELFTEST = "selftest"
"""The entry of the program that tries native entries in each process."""


@dataclass(frozen=True)
class ProgramFacts:
    """The program of an entry point for a target. kernels: name -> launches; operators: calls of ATen, name -> how many; code_bytes: of
    the entry and its kernels, which several entries may share."""

    entry: str
    target: str
    kernels: Mapping[str, int]
    operators: Mapping[str, int]
    code_bytes: int
    native: bool


@dataclass(frozen=True)
class EntryFacts:
    """An entry point. signature: as Python would write it; sizes: the range of each size symbol; updates: what a call writes to."""

    name: str
    signature: str
    sizes: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightFacts:
    """A weight: `float32[64, 8]`, and the checksum of its storage's bytes."""

    name: str
    type: str
    kind: str
    digest: str


@dataclass(frozen=True)
class Facts:
    """A package. parts: kind of section -> bytes; the rest of the file is its header, index and padding."""

    path: str
    size: int
    writer: str
    versions: Mapping[str, str]
    entries: tuple[EntryFacts, ...]
    targets: Mapping[str, tuple[str, ...]]
    programs: tuple[ProgramFacts, ...]
    weights: tuple[WeightFacts, ...]
    storages: int
    parts: Mapping[str, int] = field(default_factory=dict)


def facts_of(file: PackageFile) -> Facts:
    """What an open package holds; every section that is read is checked. PackageError for a file that is no model, or damaged."""
    if file.index.notes.get("content") == "cache":
        raise file.error("it is an exported cache; `stepwell cache import` reads it")
    signature: Signature = file.load(Signature, "signature")
    weights: Weights = file.load(Weights, "weights-table")
    parts = Counter[str]()
    for section in {(s.offset, s.size): s for s in file.index.sections}.values():  # equal ones lie in the file once
        parts[section.kind] += section.size
    programs = [_program(file, s) for s in file.of_kind("program") if s.name != SELFTEST]
    records = {s.name: file.load(ProgramRecord, "program", s.name, s.target) for s in file.of_kind("program")}
    return Facts(
        path=file.path,
        size=len(file.view),
        writer=file.writer,
        versions=dict(file.index.notes),
        entries=tuple(_entry(one, records[one.name].updates) for one in signature.entries if one.name in records),
        targets={one.name: one.features for one in signature.targets},
        programs=tuple(programs),
        weights=_weights(file, weights),
        storages=len(weights.storages),
        parts=dict(sorted(parts.items(), key=lambda item: -item[1])),
    )


def _program(file: PackageFile, section: Section) -> ProgramFacts:
    record: ProgramRecord = file.load(ProgramRecord, "program", section.name, section.target)
    binaries = {binary.section for kernel in record.kernels for binary in kernel.binaries}
    places = [("code", section.name), *((kind, name) for kind in ("cubin", "hsaco") for name in binaries)]
    code = [file.find(kind, name, section.target) for kind, name in places]
    return ProgramFacts(
        section.name,
        section.target,
        dict(Counter(_launched(record))),
        dict(Counter(call.target for call in record.calls)),
        sum(one.size for one in code if one is not None),
        record.native,
    )


def _launched(record: ProgramRecord) -> list[str]:
    """The name of the kernel of each launch: the CPU's stand in a list, a GPU's in the program's text by number."""
    numbers = [int(k) for k in _GPU_LAUNCH.findall(record.python)]
    return [*(one.kernel for one in record.launchers), *(record.kernels[k].name for k in numbers if k < len(record.kernels))]


def _entry(point: EntryPoint, updated: Sequence[str]) -> EntryFacts:
    written = [f"argument {point.leaves[k].name}" for k in point.updated_arguments]
    return EntryFacts(point.name, signature_text(point), tuple(map(range_text, point.symbols)), (*written, *updated))


def signature_text(point: EntryPoint) -> str:
    """An entry point as a line of Python: `forward(x: float32[B, 64], *, scale: number) -> float32[B, 8]`."""
    leaves = iter(point.leaves)
    given: list[str] = []
    for k, (name, tree) in enumerate(zip(point.parameters, point.arguments.items, strict=True)):
        if k == point.positional:
            given.append("*")
        given.append(f"{name}: {_tree_text(tree, leaves)}")
    return f"{point.name}({', '.join(given)}) -> {_tree_text(point.result, iter(point.results))}"


def _tree_text(tree: Tree, leaves: Iterator[Leaf]) -> str:
    if tree.kind == "leaf":
        return leaf_text(next(leaves))
    inner = [_tree_text(item, leaves) for item in tree.items]
    if tree.kind in ("dict", "ordered"):
        return "{" + ", ".join(f"{key!r}: {one}" for key, one in zip(tree.keys, inner, strict=True)) + "}"
    if tree.kind in ("tuple", "list"):
        brackets = "()" if tree.kind == "tuple" else "[]"
        return brackets[0] + ", ".join(inner) + ("," if tree.kind == "tuple" and len(inner) == 1 else "") + brackets[1]
    return f"{tree.type.rpartition('.')[2]}({', '.join(inner)})"


def leaf_text(leaf: Leaf) -> str:
    """An argument or a result: `float32[B, 64]`, with its device where that is no CPU."""
    if leaf.kind == "tensor":
        device = f" on {leaf.device}" if leaf.device and leaf.device != "cpu" else ""
        return f"{leaf.dtype}[{', '.join(map(str, leaf.sizes))}]{device}"
    return "int" if leaf.kind == "number" else repr(leaf.value)


def range_text(one: SizeRange) -> str:
    """`B from 2 to 64`."""
    return f"{one.name} from {one.low}" + (f" to {one.high}" if one.high is not None else "")


def _weights(file: PackageFile, table: Weights) -> tuple[WeightFacts, ...]:
    section = file.section("weights")
    content = file.bytes_of(section)
    file.check(section)
    digests = [hashlib.sha256(content[one.offset : one.offset + one.size]).hexdigest() for one in table.storages]
    found = [(one, digests[one.storage] if 0 <= one.storage < len(digests) else "") for one in table.tensors]
    return tuple(WeightFacts(one.name, f"{one.dtype}[{', '.join(map(str, one.sizes))}]", one.kind, digest) for one, digest in found)
