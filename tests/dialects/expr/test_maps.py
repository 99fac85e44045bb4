"""Index expressions and maps: canonical forms, text, substitution, linear views."""

from __future__ import annotations

import copy
import pickle

import pytest

from stepwell.dialects.expr import (
    ONE,
    ZERO,
    Const,
    IndexMap,
    as_expr,
    ceildiv,
    const,
    dim,
    dims_subs,
    divide,
    evaluate,
    exact_quotient,
    floordiv,
    free_dims,
    free_syms,
    linear_coeff,
    maximum,
    minimum,
    mod,
    product,
    split_linear,
    strides_contiguous,
    sym,
    to_python,
)

d0, d1, d2 = map(dim, range(3))
s0, s1 = sym("s0"), sym("s1")

CANONICAL = [
    # sums and products
    (d0 + d1 - d0, "d1"),
    (d0 * 0 + 3, "3"),
    ((d0 + 1) * (s0 + 2), "d0 * 2 + d0 * s0 + s0 + 2"),
    (d0 * s0 - s0 * d0, "0"),
    (2 - (d0 - 3), "-d0 + 5"),
    (s0 * s0 * d0, "d0 * s0 * s0"),
    # quotients by a constant
    ((4 * d0 + 6) // 2, "d0 * 2 + 3"),
    ((4 * d0 + d1) // 4, "d0 + d1 floordiv 4"),
    ((2 * d0 + 3) // 4, "(d0 + 1) floordiv 2"),
    ((d0 + 9) // 4, "(d0 + 1) floordiv 4 + 2"),
    (5 * d0 // 4, "d0 + d0 floordiv 4"),
    (d0 // 1, "d0"),
    (d0 // -3, "(-d0) floordiv 3"),
    ((d0 // 3) // 5, "d0 floordiv 15"),
    ((d0 // s0) // 5, "d0 floordiv (s0 * 5)"),
    ((d0 % 12) // 4, "(d0 floordiv 4) mod 3"),
    ((d0 % 4) // 4, "0"),
    (ceildiv(d0, 4), "(d0 + 3) floordiv 4"),
    (ceildiv(7, 2), "4"),
    (ceildiv(-7, 2), "-3"),
    (ceildiv(d0, s0), "-((-d0) floordiv s0)"),
    # remainders by a constant
    ((4 * d0 + d1) % 4, "d1 mod 4"),
    ((d0 * 6 + 5) % 4, "(d0 mod 2) * 2 + 1"),
    ((d0 * 6 + 3) % 4, "((d0 + 1) mod 2) * 2 + 1"),
    (d0 % 1, "0"),
    ((d0 % 12) % 4, "d0 mod 4"),
    ((d0 % 3) % 4, "d0 mod 3"),
    ((d1 + d0 % 8) % 4, "(d0 + d1) mod 4"),
    (d0 % -3, "-((-d0) mod 3)"),
    # quotient and remainder together
    (d0 - (d0 // 4) * 4, "d0 mod 4"),
    ((d0 // 4) * 4 + d0 % 4, "d0"),
    (s1 * (d0 // 4) * 4 + s1 * (d0 % 4), "d0 * s1"),
    (d0 // 16 * 16 + d0 // 4 % 4 * 4 + d0 % 4, "d0"),
    (d0 // 8 - 4 * (d0 // 32), "(d0 floordiv 8) mod 4"),
    ((2 * d0 + 3) - 4 * ((2 * d0 + 3) // 4), "((d0 + 1) mod 2) * 2 + 1"),
    (d0 - (d0 // s0) * s0, "d0 mod s0"),
    ((d0 // s0) * s0 + d0 % s0, "d0"),
    (d0 - (d0 // (s0 + 1)) * (s0 + 1), "d0 mod (s0 + 1)"),
    # symbolic divisors
    ((d0 * s0 + d1) // s0, "d0 + d1 floordiv s0"),
    ((d0 * s0 + d1) % s0, "d1 mod s0"),
    (((s0 + 1) * d0 + d1) // (s0 + 1), "d0 + d1 floordiv (s0 + 1)"),
    (d0 * 4 // (s0 * 4), "d0 floordiv s0"),
    ((d0 * 4) % (s0 * 4), "(d0 mod s0) * 4"),
    ((d1 + d0 % s0) % s0, "(d0 + d1) mod s0"),
    # the divisor may be zero, so the division stays
    ((d0 * s0) // s0, "(d0 * s0) floordiv s0"),
    ((d0 * s0) % s0, "(d0 * s0) mod s0"),
    # min and max
    (minimum(d0, s0 - 1), "min(d0, s0 - 1)"),
    (minimum(d0 + 3, d0, 4, minimum(7, d1)), "min(d0, d1, 4)"),
    (maximum(d0 + 3, d0), "d0 + 3"),
    (minimum(3, 5), "3"),
    (-minimum(d0, 3), "-min(d0, 3)"),
]


@pytest.mark.parametrize(("e", "text"), CANONICAL, ids=[text for _, text in CANONICAL])
def test_canonical_form(e, text):
    assert str(e) == text


TEXTS = [
    (d0 * 4 + d1 + s0 // 2, "d0 * 4 + d1 + s0 floordiv 2"),
    ((d0 + 1) % 3, "(d0 + 1) mod 3"),
    (-d0 + 3, "-d0 + 3"),
    (-(d0 // 2), "-(d0 floordiv 2)"),
    (-3 * (d0 // 2) - 1, "-((d0 floordiv 2) * 3) - 1"),
    ((d0 // 2) * s0, "s0 * (d0 floordiv 2)"),
    (const(-4), "-4"),
    (sym("s10") + sym("s9") + sym("u0"), "s9 + s10 + u0"),
    (dim(10) + dim(9), "d9 + d10"),
    (d0 // (s0 + 1), "d0 floordiv (s0 + 1)"),
]


@pytest.mark.parametrize(("e", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_text(e, text):
    assert str(e) == text


def test_equal_expressions_are_the_same_object():
    assert d0 * 4 + d1 is d1 + d0 * 2 + d0 * 2
    assert (d0 + 1) * s0 is s0 + s0 * d0
    assert const(1) is ONE and d0 - d0 is ZERO
    assert as_expr(True) is ONE
    assert minimum(d0, d1) is minimum(d1, d0)


@pytest.mark.parametrize(
    "e", [const(3), s0, d0, d0 * 4 + s0, d0 * s0, d0 // s0, d0 % 7, minimum(d0, s0), maximum(d0, 2)]
)
def test_copies_are_the_same_object(e):
    assert copy.copy(e) is e
    assert copy.deepcopy([e])[0] is e
    assert pickle.loads(pickle.dumps(e)) is e


def test_constants():
    assert int(const(7)) == 7
    assert const(7).is_const and const(7).value == 7 and isinstance(const(7), Const)
    assert not d0.is_const and d0.value is None
    with pytest.raises(TypeError, match="`d0 \\+ 1` is not a constant"):
        int(d0 + 1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: d0 // 0, ZeroDivisionError, "`d0` is divided by zero"),
        (lambda: d0 % 0, ZeroDivisionError, "remainder of the index expression `d0` by zero"),
        (lambda: as_expr("s0"), TypeError, "expected an index expression or an int, got str: 's0'"),
        (lambda: as_expr(1.0), TypeError, "got float"),
        (lambda: d0 + 1.5, TypeError, "unsupported operand"),
        (lambda: sym("d3"), ValueError, "`d3` cannot name a size symbol"),
        (lambda: sym("mod"), ValueError, "`mod` cannot name a size symbol"),
        (lambda: sym("a b"), ValueError, "`a b` cannot name a size symbol"),
        (lambda: dim(-1), ValueError, "must not be negative, got -1"),
        (lambda: minimum(), ValueError, "min of no index expressions"),
        (lambda: dims_subs(d0 + d2, [1, 2]), IndexError, "`d0 \\+ d2` uses d2, but only 2 dimensions are given"),
        (lambda: evaluate(d0 + s0, {"d0": 1}), KeyError, "no value for s0"),
        (lambda: IndexMap(1, (d1,)), ValueError, "the result `d1` uses d1, but the map has 1 dimensions"),
        (lambda: IndexMap.identity(2).apply((d0,)), ValueError, "takes 2 indices, got 1"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_free_variables():
    e = d0 * s0 + minimum(d2, s1) // 4
    assert free_dims(e) == {d0, d2}
    assert free_syms(e) == {s0, s1}
    assert free_dims(const(1)) == free_syms(const(1)) == frozenset()


def test_substitution():
    e = d0 * 4 + d1 % s0
    assert e.subs({d0: d1, d1: d0}) is d1 * 4 + d0 % s0
    assert e.subs({s0: 4}) is d0 * 4 + d1 % 4
    assert e.subs({d1 % s0: d2}) is d0 * 4 + d2
    assert e.subs({}) is e
    assert dims_subs(e, (d2, 5)) is d2 * 4 + 5 % s0
    assert dims_subs(s0 + 1, ()) is s0 + 1


def test_evaluate_takes_names_and_expressions():
    assert evaluate(d0 * s0 + d1, {"d0": 3, s0: 5, d1: 1}) == 16
    assert evaluate(maximum(d0, 2) - minimum(d0, 2), {d0: 7}) == 5
    assert evaluate(floordiv(-7, s0), {"s0": 2}) == -4
    assert evaluate(3, {}) == 3


def test_to_python():
    e = d0 // 4 * 3 + minimum(d0, s0) - mod(d1 + 1, s0)
    text = to_python(e, {d0: "i", "d1": "self.j"})
    assert text == "(i // 4) * 3 - (self.j + 1) % s0 + min(i, s0)"
    assert to_python(-(d0 // 2)) == "-(d0 // 2)"


def test_linear_coeff():
    assert linear_coeff(d0 * s0 * 4 + d0 + d1, d0) is s0 * 4 + 1
    assert linear_coeff(d0 * s0, s0) is d0
    assert linear_coeff(d1 + d0 // 4, d2) is ZERO
    assert linear_coeff(d1 + d0 // 4, d0) is None
    assert linear_coeff(d0 + d0 // 4, d0) is None
    assert linear_coeff(d0 * d0, d0) is None
    assert linear_coeff(d0 * (d0 // 2), d0) is None
    assert linear_coeff(d1 * (d0 // 2), d1) is d0 // 2


def test_split_linear():
    e = d0 * s0 + d1 * 4 + d2 // 3 + s0 + 7
    assert split_linear(e, (d0, d1)) == ({d0: s0, d1: const(4)}, d2 // 3 + s0 + 7)
    assert split_linear(e, (d0, d1, d2)) is None
    assert split_linear(d0 * d1, (d0, d1)) is None
    assert split_linear(d0 * d1, (d0,)) == ({d0: d1}, ZERO)
    assert split_linear(s0 + 1, (d0,)) == ({}, s0 + 1)


def test_exact_division():
    assert divide(d0 * 8 + d1 * 3 + 6, const(4)) == (d0 * 2 + 1, d1 * 3 + 2)
    assert divide((s0 + 1) * (d0 + 2) + d1, s0 + 1) == (d0 + 2, d1)
    assert exact_quotient(s0 * s1 * 6 + s0 * 4, s0 * 2) is s1 * 3 + 2
    assert exact_quotient((s0 + s1) * (s0 - s1), s0 + s1) is s0 - s1
    assert exact_quotient(s0 + 1, s0) is None


def test_products_and_strides():
    assert product([]) is ONE
    assert product([2, s0, 3]) is s0 * 6
    assert strides_contiguous((2, s0, 3)) == (s0 * 3, const(3), ONE)
    assert strides_contiguous((2, 0, 3)) == (const(3), const(3), ONE)
    assert strides_contiguous(()) == ()


def test_maps():
    swap = IndexMap(2, (d1, d0))
    split = IndexMap(1, (d0 // 4, d0 % 4))
    join = IndexMap(2, (d0 * 4 + d1,))
    assert IndexMap(2, [d1, d0]) is swap
    assert str(IndexMap(2, (d1, d0 + 4))) == "(d0, d1) -> (d1, d0 + 4)"
    assert swap.compose(swap) is IndexMap.identity(2)
    assert join.compose(split).is_identity
    assert swap.compose(split) is IndexMap(1, (d0 % 4, d0 // 4))
    assert swap.apply((3, s0)) == (s0, const(3))
    assert swap.permutation() == (1, 0)
    assert IndexMap.identity(3).permutation() == (0, 1, 2)
    assert split.permutation() is None
    assert IndexMap(2, (d0,)).permutation() is None and IndexMap(2, (d0, d0)).permutation() is None
    assert not IndexMap(2, (d0,)).is_identity
    assert pickle.loads(pickle.dumps(split)) is split and copy.deepcopy(split) is split
    assert IndexMap(1, (d0 * s0,)).subs({s0: 3}) is IndexMap(1, (d0 * 3,))
