"""Makes the helpers of this folder importable: under importlib mode pytest adds no folder to the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
