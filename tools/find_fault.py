"""`python -m stepwell.tools.find_fault`: see check/find_fault.py."""

import sys

from .check.find_fault import main

if __name__ == "__main__":
    sys.exit(main())
