"""Rows of windows in a product: where each begins, and the runs of terms that they are made of.

A block writes a table for each strip: where in bytes every row begins, then the first term, then the address of the `WINDOW` record.
"""

from __future__ import annotations

from .ir import Function, Value
from .spec import WINDOW, Shape


def read_window(f: Function, address: str) -> dict[str, str]:
    """The numbers of a `WINDOW` record by name."""
    record = f.let(f"inttoptr i64 {address} to ptr")
    return {name: f.load("i64", f.at(record, 8 * k), 8) for k, name in enumerate(WINDOW)} | {"record": address}


def write_table(f: Function, shape: Shape, table: str, numbers: dict[str, str], i: str, left: Value, term: Value) -> None:
    """The table of the strip at row `i`, `left` rows from the end, and of the terms from `term` on; rows beyond the last one repeat it.

    The first row is divided into its digits; the others count on from there, which takes no division."""
    rows = shape.isa.rows
    counts, steps = ([numbers[f"{name}{level}"] for level in range(size)] for name, size in (("count", 3), ("step", 4)))
    place, rest = 0, i
    digits: list[Value] = []
    for count, step in zip(counts, steps, strict=False):
        digits.append(f.let(f"urem i64 {rest}, {count}"))
        place = f.add(place, f.mul(digits[-1], step))
        rest = f.div(rest, count)
    place = f.add(place, f.mul(rest, steps[3]))
    over = [f.sub(steps[level + 1], f.mul(counts[level], steps[level])) for level in range(3)]
    for k in range(rows):
        f.store("i64", f.mul(place, shape.element), f.at(table, 8 * k), 8)
        carry = f.cmp("slt", k + 1, left)
        place = f.add(place, f.pick(carry, steps[0], 0))
        for level in range(3):
            digits[level] = f.add(digits[level], f.pick(carry, 1, 0))
            carry = f.both(carry, f.cmp("eq", digits[level], counts[level]))
            digits[level] = f.pick(carry, 0, digits[level])
            place = f.add(place, f.pick(carry, over[level], 0))
    f.store("i64", term, f.at(table, 8 * rows), 8)
    f.store("i64", numbers["record"], f.at(table, 8 * (rows + 1)), 8)


class Runs:
    """The terms of a table's windows, run after run.

    `start` is the state of a loop over runs: terms of the run that are done, the digit of its inner tap, and the elements before it.
    """

    def __init__(self, f: Function, shape: Shape, table: str):
        self.f = f
        rows = shape.isa.rows
        record = f.load("ptr", f.at(table, 8 * (rows + 1)), 8)
        self.run, self.taps, outer, self.inner = (f.load("i64", f.at(record, 8 * k), 8) for k in range(4))
        first = f.load("i64", f.at(table, 8 * rows), 8)
        tap = f.div(first, self.run)
        digit = f.let(f"urem i64 {tap}, {self.taps}")
        begin = f.add(f.mul(f.div(tap, self.taps), outer), f.mul(digit, self.inner))
        self.over = f.sub(outer, f.mul(f.sub(self.taps, 1), self.inner))
        self.start: tuple[Value, ...] = (f.let(f"urem i64 {first}, {self.run}"), digit, begin)

    def next(self, digit: Value, place: Value) -> list[Value]:
        """The state at the run behind one."""
        f = self.f
        last = f.cmp("eq", f.add(digit, 1), self.taps)
        return [0, f.pick(last, 0, f.add(digit, 1)), f.add(place, f.pick(last, self.over, self.inner))]
