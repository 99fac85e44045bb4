"""Which operation of a compiled program is wrong, in which pass that arose, and by how much: `stepwell.check`, the option `check`.

exact_graph.py says what a graph is to give, judge.py compares, node_errors.py finds the operation, pass_search.py the pass; graph_check.py
is what compiled graphs call, program.py the whole for users."""

from .program import check
from .report import Report, WrongResult

__all__ = ["Report", "WrongResult", "check"]
