"""Copies of layers: values of the second layer are called as its nodes are, as names that the printer can make unique."""

from __future__ import annotations

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import ArrayAttr, FusedLoc, NameLoc, NoneAttr, StringAttr, UnknownLoc

from stepwell.passes.loop.repeats.loop_inline import Copier


def layer(name: str) -> FusedLoc:
    return FusedLoc(ArrayAttr([NameLoc(StringAttr(name), UnknownLoc())]), NoneAttr())


def test_names_have_no_numbers_of_their_own():
    """The printer numbers values of one name; a name that ends in a number could be that of another value."""
    op = ConstantOp.from_int_and_width(1, 32)
    op.result.name_hint = "exp"
    assert Copier(layer("exp"), layer("tanh")).op(op).results[0].name_hint == "tanh"
    assert Copier(layer("exp"), layer("exp_2")).op(op).results[0].name_hint == "exp"
