"""From location attributes to places that a person can open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from xdsl.dialects.builtin import UNKNOWN_LOC, ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, LocationAttr, NameLoc, NoneAttr
from xdsl.ir import Attribute


class SourceLocation(NamedTuple):
    """A line of a file (`line` 0: the file alone); `name` is the name that the location carries, e.g. an FX node."""

    file: str
    line: int
    column: int
    name: str = ""

    def __str__(self) -> str:
        if not self.file:
            return self.name
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


def source_location(location: Attribute | None) -> SourceLocation | None:
    """The innermost file, line and column of `location` and its outermost name; None if it holds neither."""
    name = ""
    while True:
        if isinstance(location, FileLineColLoc):
            return SourceLocation(location.filename.data, location.line.data, location.column.data, name)
        if isinstance(location, NameLoc):
            name = name or location.desc.data
            location = location.location
        elif isinstance(location, CallSiteLoc):
            location = location.callee
        elif isinstance(location, FusedLoc):
            parts = location.locations.data if isinstance(location.locations, ArrayAttr) else ()
            found = [place for place in map(source_location, parts) if place is not None]
            best = next((place for place in found if place.file), found[0] if found else None)
            if best is not None:
                return best._replace(name=name or best.name)
            location = None
        else:
            return SourceLocation("", 0, 0, name) if name else None


def joined(locations: Iterable[LocationAttr]) -> LocationAttr:
    """The location of what several operations became: theirs, each once."""
    known = [location for location in dict.fromkeys(locations) if location != UNKNOWN_LOC]
    if len(known) > 1:
        return FusedLoc(ArrayAttr(known), NoneAttr())
    return known[0] if known else UNKNOWN_LOC
