"""Checks of the `schedule` attribute (docs/reference/schedule.md) of nests, contractions and library calls, and of `vector` and `lanes` of
a loop. The verifiers of the `loop` dialect call them. A misspelt key, or a loop that is not there, would otherwise change nothing without a
word."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute

KEYS = ("vector", "piece", "lanes", "tile", "fixed", "tiles", "index_bits", "parallel", "grain", "gpu", "bounds", "measured")
_NUMBERS = ("piece", "fixed", "index_bits", "parallel", "grain")


def schedule_problem(schedule: Attribute, loops: int) -> str:
    """What is wrong with the schedule of a nest of so many loops; "" if nothing is. What stands under `gpu` (a tile) and `bounds` (of
    size symbols) is read by mem-to-tt."""
    if not isinstance(schedule, DictionaryAttr):
        return f"schedule is a dictionary, not {schedule}"
    table = schedule.data
    for key, value in table.items():
        if key not in KEYS:
            return f"schedule has no key '{key}' (it has: {', '.join(KEYS)})"
        if key in _NUMBERS and not isinstance(value, IntegerAttr):
            return f"schedule: '{key}' is a number, not {value}"
    for key in ("vector", "tile"):
        if (value := table.get(key)) is not None and (problem := loop_problem(key, value, loops, "inner" if key == "vector" else "")):
            return problem
    lanes = table.get("lanes")
    if lanes is not None and (problem := lanes_problem(lanes)):
        return problem
    grain = table.get("grain")
    if isinstance(grain, IntegerAttr) and grain.value.data < 1:
        return f"schedule: 'grain' is a number of nanoseconds from 1, not {grain}"
    tiles = table.get("tiles")
    if tiles is not None and not (isinstance(tiles, DenseArrayBase) and len(tiles) <= loops and all(n >= 0 for n in tiles.iter_values())):
        return f"schedule: 'tiles' is an array of at most {loops} numbers from 0, one for each loop of the nest, not {tiles}"
    return ""


def choice_problem(schedule: Attribute | None, choices: tuple[str, ...]) -> str:
    """What is wrong with the schedule of an operation that says by one word what computes it; "" if nothing is, or nothing is said."""
    if schedule is None or isinstance(schedule, StringAttr) and schedule.data in choices:
        return ""
    words = " or ".join([f'"{word}"' for word in choices])
    return f"schedule is {words}, not {schedule}"


ATTRIBUTES = ("vector", "lanes", "fixed", "no_fuse", "asked", "join", "layouts", "window_rows", "schedule", "label", "sequential")
"""What the passes look for on nests and the loops inside."""


def misspelt(names: Iterable[str]) -> str:
    """What is wrong with the names of attributes: one that is nearly one of ours, or belongs into the schedule; "" if nothing is. Others
    may be anybody's."""
    for name in names:
        if name in ("piece", "tile", "tiles", "index_bits", "parallel", "grain"):
            return f"'{name}' is a key of its schedule: schedule = {{{name} = ...}}"
        if name not in ATTRIBUTES and (near := get_close_matches(name, ATTRIBUTES, 1, 0.75)):
            return f"it has no attribute '{name}'; did you mean '{near[0]}'?"
    return ""


def loop_problem(key: str, value: Attribute, loops: int, word: str) -> str:
    """What is wrong with an attribute that names one of `loops` loops by its number, or says `word` instead."""
    if isinstance(value, IntegerAttr) and 0 <= value.value.data < loops:
        return ""
    if word and isinstance(value, StringAttr) and value.data == word:
        return ""
    numbers = f"one of 0 to {loops - 1}" if loops else "not possible without loops"
    return f"schedule: '{key}' is the number of a loop ({numbers})" + (f' or "{word}"' if word else "") + f", not {value}"


def lanes_problem(value: Attribute) -> str:
    """What is wrong with a number of lanes."""
    n = value.value.data if isinstance(value, IntegerAttr) else 0
    return "" if n >= 1 and n & (n - 1) == 0 else f"schedule: 'lanes' is a power of two, not {value}"
