"""`opt-tool`, as `python -m stepwell.tools.opt`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
