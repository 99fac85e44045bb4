"""What values are called in printed IR. Names are for the reader: nothing depends on them, and the printer makes them unique by a number.

An element is called as the operator of the program that it is the value of, at every level; the index of a loop by its depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.ir import SSAValue

_INDICES = "ijklmnpqrstuvw"


def keep_name(new: SSAValue, old: SSAValue) -> None:
    """`new` is called as `old`, unless it has a name already."""
    if new._name is None:  # what xDSL's name_hint does besides, checking the text, was done for the old one
        new._name = old._name


def keep_names(old: Iterable[SSAValue], values: Mapping[SSAValue, object]) -> None:
    """What became of each of `old`, where that is a value, is called as it was."""
    for value in old:
        made = values.get(value) if value._name is not None else None
        if isinstance(made, SSAValue):
            keep_name(made, value)


def name_outs(outs: Iterable[SSAValue]) -> None:
    """Call what a nest writes to, seen from inside."""
    for out in outs:
        out._name = "out"


def name_indices(indices: Iterable[SSAValue], depth: int) -> None:
    """Call indices of loops i, j, k, ...; `depth` loops are around them."""
    for number, index in enumerate(indices, depth):
        index._name = _INDICES[number] if number < len(_INDICES) else f"i{number}"
