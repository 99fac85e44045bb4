"""A process that tries candidates of ``opt-tool --reduce -j N``."""

from __future__ import annotations

from ..worker_pool import serve
from .opt import answer

if __name__ == "__main__":
    serve(answer)
