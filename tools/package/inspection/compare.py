"""What differs between two packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .facts import Facts


def differences(a: Facts, b: Facts) -> Iterator[str]:
    """A line for each difference, as `what: there, here`; what only one of them has is a line of its own."""
    yield from _tables("made with", a.versions, b.versions)
    yield from _tables("entry", _signatures(a), _signatures(b))
    yield from _tables("target", _needs(a), _needs(b))
    mine, others = ({(p.entry, p.target): p for p in facts.programs} for facts in (a, b))
    for key in (key for key in mine if key in others):
        place = " for ".join(key)
        yield from _tables(f"{place}: kernel", mine[key].kernels, others[key].kernels, "launches")
        yield from _tables(f"{place}: ATen's", mine[key].operators, others[key].operators, "calls")
        if mine[key].code_bytes != others[key].code_bytes:
            yield f"{place}: {mine[key].code_bytes} bytes of code, {others[key].code_bytes}"
    yield from _tables("weight", {w.name: w.type for w in a.weights}, {w.name: w.type for w in b.weights})
    values, other_values = ({w.name: (w.type, w.digest) for w in facts.weights} for facts in (a, b))
    same_type = [name for name in values if name in other_values and values[name][0] == other_values[name][0]]
    yield from (f"weight {name}: other values" for name in same_type if values[name] != other_values[name])


def _signatures(facts: Facts) -> dict[str, str]:
    return {e.name: e.signature + (f" with {', '.join(e.sizes)}" if e.sizes else "") for e in facts.entries}


def _needs(facts: Facts) -> dict[str, str]:
    return {name: f"needs {' '.join(features)}" for name, features in facts.targets.items()}


def _tables(what: str, a: Mapping[str, Any], b: Mapping[str, Any], unit: str = "") -> Iterator[str]:
    unit = unit and f" {unit}"
    for name in dict.fromkeys((*a, *b)):
        if name not in b:
            yield f"{what} {name}: only in the first"
        elif name not in a:
            yield f"{what} {name}: only in the second"
        elif a[name] != b[name]:
            yield f"{what} {name}: {a[name]}{unit}, {b[name]}{unit}"
