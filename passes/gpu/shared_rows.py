"""The workspace in which programs that share a row exchange the states of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import Float32Type, Float64Type, f32, i1, i32, i64
from xdsl.ir import Attribute

from ...dialects.expr import Expr
from ...dialects.nd.types import element_bytes
from ..cost.machine.gpu import LINE_BYTES
from .nest_types import UnsupportedNest

HEADER_WORDS = LINE_BYTES // element_bytes(i64)
"""Words in front of the states: the first counts programs, the others keep it in a line of the cache of its own."""

_FULL_BIT = 1 << 32
"""Half of a number is written with this bit."""

_SECOND_BIT = 1 << 63
"""The bit of the first word that says that the second half is in use."""


def words_of(kind: str, types: Sequence[Attribute]) -> int:
    """How many words the state of a reduction with results of these types takes.  UnsupportedNest for a type that has none."""
    sent = types[: SENT_NUMBERS.get(kind, len(types))]
    floats = sum(isinstance(t, Float32Type) for t in sent)
    total = -(-floats // 2)
    for t in sent:
        if t == i64 or isinstance(t, Float64Type):
            total += 2
        elif t in (i1, i32):
            total += 1
        elif not isinstance(t, Float32Type):
            raise UnsupportedNest(f"programs that share a row do not exchange numbers of type {t}")
    return total


def numbers_in_word(kind: Attribute) -> int:
    """How many numbers of a type a word holds, at least 1."""
    return 2 if kind == f32 else 1


SENT_NUMBERS = {"welford": 2}
"""How many numbers of a state are sent, where that is not all: how many values each program has the others know."""


def half_words(rows: Expr, group: int, words: int) -> Expr:
    """Words of a half of the workspace of a kernel of `rows` rows, each shared by `group` programs that exchange `words` words."""
    return rows * (group * words)


def part_of(trips: int, group: int, run: int = 0) -> int:
    """Iterations of a program that shares `trips` of them with group - 1 others: as many as they have where these are whole runs, or a
    multiple of 8, so that parts begin where vectors do; else a multiple of 16."""
    part = -(-trips // group)
    even = part * group == trips and (part % run if run else part % 8) == 0
    return part if even else -(-part // 16) * 16
