"""python -m stepwell.tools.lsp"""

import sys

from .main import main

sys.exit(main())
