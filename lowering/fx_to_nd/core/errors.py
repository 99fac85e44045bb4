"""The errors of the import of FX graphs."""

from __future__ import annotations

from ....errors import StepwellError, UserError


class GraphImportError(StepwellError):
    """A node that could not be imported: names the node, its operator and the user's line."""

    node = ""
    """The name of the node."""


class MissingRuleError(UserError):
    """An operator that nothing covers, in a graph that is to have no implicit fallbacks."""
