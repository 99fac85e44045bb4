"""What is wrong with the arguments of a call, and copies with the strides that a package was exported for. Only calls that were refused
come here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .programs import decode_leaf, parse_size, size_value
from .signature import EntryPoint, Leaf


def problem_of(point: EntryPoint, leaves: Sequence[Any]) -> str | None:
    """What is wrong with the leaves of a call, for people; None where nothing but strides is."""
    for leaf, value in zip(point.leaves, leaves, strict=True):
        problem = _kind_problem(leaf, value)
        if problem is not None:
            return f"argument '{leaf.name}' {problem}"
    values = _values(point, leaves)
    for one in point.symbols:
        if one.name in values and not (one.low <= values[one.name][0] and (one.high is None or values[one.name][0] <= one.high)):
            size, place = values[one.name]
            limit = "any size" if one.high is None else str(one.high)
            return f"{place} is {size}; the package was exported for {one.low} to {limit}"
    known = {name: size for name, (size, _) in values.items()}
    for leaf, value in zip(point.leaves, leaves, strict=True):
        for dim, want in enumerate(leaf.sizes):
            size = _number(want, known)
            if size is not None and value.shape[dim] != size:
                why = f" ({want}, as {_origin(want, values)} is)" if isinstance(want, str) else ""
                return f"argument '{leaf.name}', dimension {dim}, is {value.shape[dim]}; it should be {size}{why}"
    return None


def _kind_problem(leaf: Leaf, value: Any) -> str | None:
    import torch

    if leaf.kind == "constant":
        want = decode_leaf(leaf.value)
        if type(value) is type(want) and value == want:
            return None
        return f"is {_shown(value)}; the package was exported for {want!r}, which is part of the program"
    if leaf.kind == "number":
        fits = isinstance(value, (int, float)) and (leaf.dtype != "int" or type(value) is int)
        return None if fits else f"should be a number ({leaf.dtype or 'int'}), and is {_shown(value)}"
    if not isinstance(value, torch.Tensor):
        return f"should be a tensor, and is {_shown(value)}"
    if str(value.dtype) != f"torch.{leaf.dtype}":
        return f"has the type {value.dtype}; it should have torch.{leaf.dtype}"
    if value.dim() != len(leaf.sizes):
        return f"has {value.dim()} dimensions; it should have {len(leaf.sizes)}"
    if value.layout is not torch.strided:
        return f"is a tensor of {value.layout}; it should be strided"
    if leaf.device and value.device.type != leaf.device.partition(":")[0]:
        return f"is on {value.device}; it should be on {leaf.device}"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def _values(point: EntryPoint, leaves: Sequence[Any]) -> dict[str, tuple[int, str]]:
    """The size of each symbol, and where it was found."""
    names = {one.name for one in point.symbols}
    found: dict[str, tuple[int, str]] = {}
    for leaf, value in zip(point.leaves, leaves, strict=True):
        if leaf.kind == "number" and isinstance(leaf.value, str) and leaf.value in names:
            found.setdefault(leaf.value, (value, f"argument '{leaf.name}'"))
        for dim, size in enumerate(leaf.sizes):
            if isinstance(size, str) and size in names:
                found.setdefault(size, (value.shape[dim], f"argument '{leaf.name}', dimension {dim},"))
    return found


def _origin(want: str, values: Mapping[str, tuple[int, str]]) -> str:
    return next((place.rstrip(",") for name, (_, place) in values.items() if name in want), "another argument")


def _number(want: int | str, values: Mapping[str, int]) -> int | None:
    """A size of the signature in a call; None where its symbols are nowhere."""
    if isinstance(want, int):
        return want
    try:
        return size_value(parse_size(want), values)
    except (KeyError, ValueError):
        return None


def as_exported(point: EntryPoint, leaves: Sequence[Any]) -> list[Any] | None:
    """The leaves with copies of the tensors whose strides are others than the exported ones; None where there are none, or a call writes to
    one: what it writes would be lost."""
    import torch

    known = {name: size for name, (size, _) in _values(point, leaves).items()}
    fitting, copied = list(leaves), False
    for k, (leaf, value) in enumerate(zip(point.leaves, leaves, strict=True)):
        if leaf.kind != "tensor" or 0 in value.shape:
            continue
        steps = tuple(_number(step, known) for step in leaf.strides)
        if None in steps or all(have == want or size == 1 for have, want, size in zip(value.stride(), steps, value.shape, strict=True)):
            continue
        if k in point.updated_arguments:
            return None
        fitting[k] = torch.empty_strided(value.shape, steps, dtype=value.dtype, device=value.device).copy_(value)  # pyright: ignore[reportArgumentType]
        copied = True
    return fitting if copied else None
