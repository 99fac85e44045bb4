"""Measured prices that are facts of machines and their libraries, from prices.json.

A section says where its figures come from (`source`) and has the fields of one record, which stands where the price is asked for. The units
are in the names of the fields.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TypeVar

DATA = Path(__file__).with_name("prices.json")
Record = TypeVar("Record")


@cache
def _sections() -> dict[str, dict[str, object]]:
    return json.loads(DATA.read_text(encoding="utf-8"))


def prices(section: str, record: type[Record]) -> Record:
    """The record of a section; KeyError names a section that is not there, TypeError a field too many or too few."""
    table = {name: value for name, value in _sections()[section].items() if name != "source"}
    known = {f.name for f in fields(record)}  # pyright: ignore[reportArgumentType]
    if known != set(table):
        raise TypeError(f"{DATA.name}, section {section!r}: fields {sorted(known ^ set(table))} are in the record or in the file alone")
    return record(**table)
