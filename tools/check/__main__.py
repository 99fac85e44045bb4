"""The command line of `stepwell.check`.

    python -m stepwell.tools.check model.py:step --args "torch.randn(8, 16)"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ...errors import StepwellError
from ..explain.main import load_function
from . import check


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the results are right, 1 where they are not, 2 for what cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.tools.check", description="Which operation of a compiled function is wrong.")
    parser.add_argument("target", help="file.py:function")
    parser.add_argument("--args", help="arguments of the function, as a Python expression that may use torch and the names of the file")
    parser.add_argument("--tolerance", type=float, help="difference of the whole that is right, relative to the largest element")
    given = parser.parse_args(arguments)
    try:
        fn, values = load_function(given.target, given.args)
        report = check(fn, *values, tolerance=given.tolerance)
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
