"""Sample inputs of entry points, with eager's results: what `stepwell inspect --verify` runs on the machine that has the file.

They lie in the file as weights do, below the names `argument K` (a leaf of the arguments, in the order of the signature) and `result K`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...targets.package import schema
from ...targets.package.calls import Entry
from ...targets.package.errors import PackageError
from ...targets.package.format import PackageFile, Section
from ...targets.package.programs import decode_leaf
from ...targets.package.signature import EntryPoint, Leaf
from ...targets.package.weights import WeightStore
from .tensors import WeightTable

log = logging.getLogger("stepwell")

Content = tuple[Section, bytes | memoryview]

MAX_SAMPLE_BYTES = 2 << 20
"""Of arguments, and of results. Larger ones would make the file larger than what they show is worth."""

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far a result may be from eager's, relative to its norm: sums are added in another order."""


@dataclass(frozen=True)
class Sample:
    """A call of an exported program by eager, before the compiler has changed its graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Any]


def take_sample(name: str, program: Any) -> Sample | None:
    """What an ExportedProgram gives for the arguments that it was made with. None where there are none, they are large, eager would
    not give the same results twice, or cannot run it here."""
    if program.example_inputs is None or _bytes(program.example_inputs) > MAX_SAMPLE_BYTES:
        return None
    try:
        args, kwargs = copy.deepcopy(program.example_inputs)
        model = program.module()
        results, again = (_eager(program, model, *copy.deepcopy((args, kwargs))) for _ in range(2))
    except Exception as error:  # what eager cannot run here may run where the file goes
        log.info("entry point '%s' has no sample inputs in the package: %s: %s", name, type(error).__name__, error)
        return None
    pairs = [(a, b) for a, b in zip(again, results, strict=True) if isinstance(b, torch.Tensor)]
    if _bytes(results) > MAX_SAMPLE_BYTES or any(_difference(a, b) for a, b in pairs):
        return None
    return Sample(args, kwargs, results)


def sample_sections(point: EntryPoint, sample: Sample) -> list[Content]:
    """The sections of an entry point's sample."""
    table = WeightTable()
    _add(table, "argument", _leaves(point, sample.args, sample.kwargs), point.name)
    _add(table, "result", sample.results, point.name)
    found, parts = table.finish()
    return [
        (Section("samples-table", point.name, 0, 0, ""), schema.dump(found)),
        (Section("samples", point.name, 0, 0, ""), b"".join(parts)),
    ]


def _bytes(values: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _add(table: WeightTable, what: str, leaves: Iterable[Any], entry: str) -> None:
    """Put the tensors and numbers among leaves into a table."""
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) or type(leaf) is int:
            value = torch.as_tensor(leaf).detach()
            table.add(f"{what} {k}", value.clone(memory_format=torch.preserve_format), "constant", entry)


def _leaves(point: EntryPoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    given = {**dict(zip(point.parameters, args, strict=False)), **kwargs}
    for name, tree in zip(point.parameters, point.arguments.items, strict=True):
        yield from tree.flatten(given[name], name)


def _eager(program: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of what a program gives, which `model` runs on its buffers; these are as before. Before it is decomposed a program does
    not say which it updates."""
    held = {name: _buffer(program, name) for name in program.graph_signature.buffers}
    before = {name: value.detach().clone() for name, value in held.items()}
    with torch.no_grad():
        results = pytree.tree_leaves(model(*args, **kwargs))
        for name, value in before.items():
            held[name].copy_(value)
    return results


def _buffer(program: Any, name: str) -> torch.Tensor:
    return program.state_dict[name] if name in program.state_dict else program.constants[name]


def judged(file: PackageFile, entry: Entry) -> list[str]:
    """Run an entry point with its sample inputs; for each result that is not eager's a line. PackageError for samples that do not fit."""
    point = entry.signature
    tensors = WeightStore(file, True, "samples", point.name).tensors
    leaves = [_given(leaf, tensors.get(f"argument {k}"), entry) for k, leaf in enumerate(point.leaves)]
    values = point.arguments.unflatten(leaves)
    named = dict(zip(point.parameters[point.positional :], values[point.positional :], strict=True))
    results = pytree.tree_leaves(entry(*values[: point.positional], **named))
    off: list[str] = []
    for k, result in enumerate(results):
        wanted = tensors.get(f"result {k}")
        if wanted is not None and (problem := _difference(torch.as_tensor(result).cpu(), wanted)):
            off.append(f"result {k} of '{point.name}' {problem}")
    return off


def _given(leaf: Leaf, sample: torch.Tensor | None, entry: Entry) -> Any:
    if leaf.kind == "constant":
        return decode_leaf(leaf.value)
    if sample is None:
        raise PackageError(f"the samples of entry point '{entry.signature.name}' lack argument '{leaf.name}'")
    return int(sample) if leaf.kind == "number" else sample.clone(memory_format=torch.preserve_format).to(leaf.device)


def _difference(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """What is wrong with a result; "" for eager's but for rounding."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"is {got.dtype} of {tuple(got.shape)}, eager's {wanted.dtype} of {tuple(wanted.shape)}"
    if torch.equal(got, wanted) or got.numel() == 0:
        return ""
    if not (got.is_floating_point() or got.is_complex()):
        return f"differs from eager's in {int((got != wanted).sum())} elements"
    a, b = (x.nan_to_num(0.0, 1.0, -1.0).to(torch.complex128 if x.is_complex() else torch.float64) for x in (got, wanted))
    same_kind = torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
    error = float((a - b).norm() / b.norm().clamp(min=1e-30))
    if same_kind and error <= TOLERANCE.get(got.dtype, TOLERANCE[torch.float32]):
        return ""
    return f"is off by {error:.1e} of eager's norm" + ("" if same_kind else ", and has NaN or infinity elsewhere")
