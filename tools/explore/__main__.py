"""`python -m stepwell.tools.explore`: the same as `stepwell explore`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
