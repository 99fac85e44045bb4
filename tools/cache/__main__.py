"""`python -m stepwell.tools.cache`."""

import sys

from .cache import main

if __name__ == "__main__":
    sys.exit(main())
