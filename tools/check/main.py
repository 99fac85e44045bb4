"""The command lines of `stepwell.check` and `stepwell.find_fault`.

    stepwell check model.py:step --args "torch.randn(8, 16)"
    stepwell check --leave-out model.py:step --args "torch.randn(8, 16)"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ...errors import StepwellError
from ..explain.main import load_function
from .find_fault import find_fault
from .program import check


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the results are right, 1 where they are not, 2 for what cannot be tried."""
    parser = argparse.ArgumentParser(prog="stepwell check", description="Which operation of a compiled function is wrong.")
    parser.add_argument("target", help="file.py:function")
    parser.add_argument("--args", help="arguments of the function, as a Python expression that may use torch and the names of the file")
    parser.add_argument("--tolerance", type=float, help="difference that is right, relative to the largest element of a tensor")
    parser.add_argument(
        "--leave-out",
        action="store_true",
        help="compile again and again, to find the operator that has to be left to ATen, or the pass to be left out, for right results",
    )
    given = parser.parse_args(arguments)
    try:
        fn, values = load_function(given.target, given.args)
        if given.leave_out:
            fault = find_fault(fn, *values, tolerance=given.tolerance)
            right, said = not fault.wrong, str(fault)
        else:
            report = check(fn, *values, tolerance=given.tolerance)
            right, said = report.ok, str(report)
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(said)
    return 0 if right else 1
