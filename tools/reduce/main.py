"""The command line of `stepwell.reduce`, and of `opt-tool --reduce`.

    stepwell reduce model.py:step --args "torch.randn(8, 16)"
    stepwell reduce model.mlir -p stepwell-cpu --verify-results
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import StepwellError


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where something was reduced, 1 where nothing fails, 2 for what cannot be tried; the exit code of opt-tool for IR."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(a.endswith(".mlir") for a in given[:1]):
        from ..opt.main import main as opt

        return opt(given if any(a.split("=")[0] == "--reduce" for a in given) else [*given, "--reduce"])
    return _reduce_function(_parser().parse_args(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stepwell reduce",
        description="The smallest graph of a function that fails or differs from eager, as a program.",
        epilog="For a file of IR (FILE.mlir first) the flags are those of opt-tool: -p, --verify-results, --reduce='COMMAND', -o.",
    )
    parser.add_argument("target", help="file.py:function, or FILE.mlir")
    parser.add_argument("--args", help="arguments of the function, as a Python expression that may use torch and the names of the file")
    parser.add_argument("--seconds", type=float, help="after so long, the smallest so far is taken")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.py", help="where the program goes (default: standard output)")
    return parser


def _reduce_function(given: argparse.Namespace) -> int:
    from ..explain.main import load_function
    from .graph import ReduceError, reduce

    try:
        fn, values = load_function(given.target, given.args)
        found = str(reduce(fn, *values, seconds=given.seconds))
    except ReduceError as error:
        print(error, file=sys.stderr)
        return 1
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.output is None:
        print(found)
    else:
        given.output.write_text(found)
    return 0
