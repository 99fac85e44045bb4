"""The kinds of random programs, by name."""

from __future__ import annotations

from collections.abc import Callable

from .case import Case
from .ir import IRCase, ir_case
from .operators import operators_case
from .structures import cells_case, flow_case, lists_case
from .writer import SIZES, Writer


def written_case(seed: int, updates: bool = False) -> Case:
    """A program of writer.py."""
    program = Writer(seed, updates).write(steps=6 + seed % 15)
    lines = []
    for which in range(2):
        made = [f"make({tuple(SIZES[s][which] for s in names)}, {dtype}, {layout!r}, g)" for names, dtype, layout in program.arguments]
        lines.append(f"[{', '.join(made)}]")
    body = [f"g = torch.Generator().manual_seed({seed})", "if which:", f"    return {lines[1]}", f"return {lines[0]}"]
    inputs = "\n    ".join(["def inputs(which=0):", *body])
    return Case(
        "updates" if updates else "random", seed, program.text, inputs, sets=2 if program.dynamic else 1, dynamic=program.dynamic,
        grad=program.grad, fullgraph=not updates, tolerance=program.tolerance, exact=True,
    )  # fmt: skip


KINDS: dict[str, Callable[[int, str], Case | IRCase]] = {
    "random": lambda seed, device: written_case(seed),
    "updates": lambda seed, device: written_case(seed, updates=True),
    "operators": lambda seed, device: operators_case(seed),
    "ir": ir_case,
    "cells": lambda seed, device: cells_case(seed),
    "lists": lambda seed, device: lists_case(seed),
    "flow": lambda seed, device: flow_case(seed),
}
"""Name -> what writes the program of a seed for a device."""
