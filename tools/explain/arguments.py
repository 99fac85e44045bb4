"""The arguments of the command line that overrule fusion and tiles."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from .errors import ExplainError


def add_directives(parser: argparse.ArgumentParser) -> None:
    """`--no-fuse`, `--fuse`, `--tile` and `--loop-order`."""
    parser.add_argument("--no-fuse", action="append", default=[], metavar="NAME", help="keep a value (or file:line) in a nest of its own")
    parser.add_argument("--fuse", action="append", default=[], metavar="A+B", help="put values into one nest")
    parser.add_argument("--tile", action="append", default=[], metavar="NAME=8,64", help="run the nest of a value (or file:line) in tiles")
    parser.add_argument("--loop-order", action="append", default=[], metavar="NAME=1,0", help="the order of the loops of a nest")


def add_target(parser: argparse.ArgumentParser) -> None:
    """`--target`, whose value is `gpu`."""
    parser.add_argument("--target", dest="gpu", metavar="GPU", help="compile for a GPU that need not be there: sm_80, sm_90, gfx942, ...")


def directives(given: argparse.Namespace) -> dict[str, Any]:
    """The options of torch.compile that they ask for. Raises ExplainError for numbers that are none."""
    return {
        "no_fuse": given.no_fuse,
        "fuse": [w.split("+") for w in given.fuse],
        "tile": _numbers("tile", given.tile),
        "loop_order": _numbers("loop-order", given.loop_order),
    }


def _numbers(flag: str, given: Sequence[str]) -> dict[str, list[int]]:
    """`NAME=8,64` as the options have it."""
    found: dict[str, list[int]] = {}
    for text in given:
        name, _, numbers = text.rpartition("=")
        try:
            found[name] = [int(n) for n in numbers.split(",")]
        except ValueError:
            raise ExplainError(f"--{flag} takes NAME=NUMBER,..., got '{text}'") from None
    return found
