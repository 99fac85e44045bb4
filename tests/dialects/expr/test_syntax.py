"""The text of index expressions and maps: what parses, what is printed, and what the errors say."""

from __future__ import annotations

import copy
import pickle
from io import StringIO

import pytest
from xdsl.context import Context
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError

from stepwell.dialects.expr import IndexMap, const, dim, maximum, minimum, sym
from stepwell.dialects.expr.syntax import ExprAttr, IndexMapAttr, format_expr, parse_expr, parse_expr_with_names

d0, d1, d2 = map(dim, range(3))
s0, u0 = sym("s0"), sym("u0")


def parser(text: str) -> Parser:
    ctx = Context()
    ctx.load_attr_or_type(ExprAttr)
    ctx.load_attr_or_type(IndexMapAttr)
    return Parser(ctx, text)


def show(attribute) -> str:
    stream = StringIO()
    Printer(stream).print_attribute(attribute)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "e"),
    [
        ("4", const(4)),
        ("-4", const(-4)),
        ("0x10", const(16)),
        ("s0 * 2", s0 * 2),
        ("2 * s0", s0 * 2),
        ("d0 * 4 + d1", d0 * 4 + d1),
        ("d0+d1*4-1", d0 + d1 * 4 - 1),
        ("d0 - d1 - d2", d0 - d1 - d2),
        ("d0 floordiv 4 * 2", d0 // 4 * 2),
        ("d0 * 3 floordiv 4", d0 * 3 // 4),
        ("d0 * (s0 floordiv 4)", d0 * (s0 // 4)),
        ("-d0 floordiv 2", (-d0) // 2),
        ("-(d0 floordiv 2)", -(d0 // 2)),
        ("- -d0", d0),
        ("d0 ceildiv 4", (d0 + 3) // 4),
        ("d0 mod s0 mod 3", d0 % s0 % 3),
        ("min(d0, s0 - 1)", minimum(d0, s0 - 1)),
        ("max(d0, 0, u0) + min(1 + s0, 5)", maximum(d0, 0, u0) + minimum(s0 + 1, 5)),
        ("batch * 4", sym("batch") * 4),
    ],
)
def test_parse(text, e):
    assert parse_expr(parser(text)) is e


@pytest.mark.parametrize(
    "text",
    [
        "#nd.expr<s0 * 2>",
        "#nd.expr<-d0 + min(d1, s0 floordiv 2) + 3>",
        "#nd.map<(d0, d1) -> (d1, d0 + 4)>",
        "#nd.map<(d0) -> ((d0 * 4 + 1) mod s0, d0 floordiv 8)>",
        "#nd.map<() -> ()>",
        "#nd.map<() -> (s0)>",
    ],
)
def test_attributes_round_trip(text):
    attribute = parser(text).parse_attribute()
    assert show(attribute) == text
    assert parser(text).parse_attribute() is attribute


def test_dimensions_of_a_map_may_have_any_names():
    attribute = parser("#nd.map<(row, d0) -> (d0, row + s0)>").parse_attribute()
    assert attribute is IndexMapAttr.get(IndexMap(2, (d1, d0 + s0)))


def test_attributes_are_interned():
    assert ExprAttr.get(d0 + 1) is ExprAttr(d0 + 1) is ExprAttr.new(d0 + 1)
    assert ExprAttr.get(4) is ExprAttr.get(const(4)) is ExprAttr.get(ExprAttr.get(4))
    assert ExprAttr.get(4) != ExprAttr.get(5)
    m = IndexMapAttr.get(IndexMap.identity(2))
    assert IndexMapAttr(IndexMap.identity(2)) is IndexMapAttr.get(m) is m
    for attribute in (ExprAttr.get(s0), m):
        assert copy.deepcopy(attribute) is attribute
        assert pickle.loads(pickle.dumps(attribute)) is attribute
    assert {ExprAttr.get(s0): 1}[ExprAttr.get(s0)] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#nd.expr<s0 * >", "expected an index expression, found `>`"),
        ("#nd.expr<1.5>", "expected an index expression, found `1.5`"),
        ("#nd.expr<%i>", "expected an index expression, found `%i`"),
        ("#nd.expr<(d0>", "Expected ')' to close the parenthesis of an index expression"),
        ("#nd.expr<d0 1>", "'>' expected"),
        ("#nd.expr<d0 floordiv 0>", "division by zero in an index expression"),
        ("#nd.expr<d0 mod (2 - 2)>", "division by zero in an index expression"),
        ("#nd.expr<d0 ceildiv 0>", "division by zero in an index expression"),
        ("#nd.expr<mod>", "`mod` is not a dimension or size symbol here"),
        ("#nd.expr<min()>", "`min` needs at least one argument"),
        ("#nd.expr<min d0>", "in the arguments of min"),
        ("#nd.map<(d0) -> (d1)>", "`d1` is not a dimension or size symbol here"),
        ("#nd.map<(i, i) -> (i)>", "the dimension `i` is listed twice"),
        ("#nd.map<(i) (i)>", "after the dimensions of an index map"),
        ("#nd.map<(4) -> ()>", "naming a dimension of an index map"),
        ("#nd.map<d0 -> d0>", "in the dimensions of an index map"),
    ],
)
def test_errors(text, message):
    with pytest.raises(ParseError) as caught:
        parser(text).parse_attribute()
    assert message in str(caught.value)


def test_expressions_over_ssa_names():
    names: list[str] = []

    def resolve(operand):
        if operand.operand_name not in names:
            names.append(operand.operand_name)
        return dim(names.index(operand.operand_name))

    e = parse_expr_with_names(parser("%i * 4 + %row floordiv 2 - min(%i, s0)"), resolve)
    assert names == ["i", "row"]
    assert e is d0 * 4 + d1 // 2 - minimum(d0, s0)
    with pytest.raises(ParseError, match="`d0` is not a dimension or size symbol here"):
        parse_expr_with_names(parser("%i + d0"), resolve)


def test_format_with_names():
    e = d0 * 4 + d1 // 2 - minimum(d0, s0)
    text = format_expr(e, ["%i", "%row"])
    assert text == "%i * 4 + %row floordiv 2 - min(%i, s0)"
    assert format_expr(3, []) == "3"
    with pytest.raises(IndexError, match="uses d1, but only 1 dimensions are named"):
        format_expr(e, ["%i"])
