"""`python -m stepwell.tools.find_fault`: `stepwell check --leave-out`."""

import sys

from .check.main import main

if __name__ == "__main__":
    sys.exit(main(["--leave-out", *sys.argv[1:]]))
