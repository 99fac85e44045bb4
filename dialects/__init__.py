"""The dialects of stepwell: one folder a dialect.  This module is the table of them; it imports none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.ir import Dialect

DIALECTS: dict[str, str] = {
    "nd": "nd:Nd",
    "loop": "loop:Loop",
    "mem": "mem:Mem",
    "cpu": "cpu:Cpu",
    "tt": "tt:Tt",
    "host": "host:Host",
    "stepwell": "machine:Stepwell",
}
"""Dialect name -> ``module:attribute`` that holds its xDSL ``Dialect``, relative to this package, by level, then that of the module."""


def dialect_loader(name: str) -> Callable[[], Dialect]:
    """A function that imports dialect `name` of ours and returns it; KeyError if it is not in the table."""
    module, _, attribute = DIALECTS[name].partition(":")

    def load() -> Dialect:
        return getattr(import_module(f".{module}", __name__), attribute)

    return load


def _arith() -> Dialect:
    """`arith` with the operations on tensors that xDSL lacks."""
    from .tt.arith import arith_dialect

    return arith_dialect()


def load_dialects(ctx: Context) -> Context:
    """Make every dialect known to `ctx`: ours and xDSL's, each imported when the first op of it is parsed.

    Returns `ctx`.  Dialects that `ctx` knows already are left as they are.
    """
    from xdsl.dialects import get_all_dialects

    known = set(ctx.registered_dialect_names)
    for name in DIALECTS:
        if name not in known:
            ctx.register_dialect(name, dialect_loader(name))
            known.add(name)
    for name, factory in get_all_dialects().items():
        if name not in known:
            ctx.register_dialect(name, _arith if name == "arith" else factory)
    if "builtin" not in ctx._loaded_dialects:  # the parser needs its types at once
        ctx.load_registered_dialect("builtin")
    return ctx
