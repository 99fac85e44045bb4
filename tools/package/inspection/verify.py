"""A package against itself: every section by its checksum, and each entry point by the sample inputs that were kept at export."""

from __future__ import annotations

from collections.abc import Iterator

from ....targets.package.errors import PackageError
from ....targets.package.format import PackageFile
from ....targets.package.signature import Signature


def verify(file: PackageFile) -> Iterator[str]:
    """A line for what was checked. PackageError for a damaged section, and for an entry point whose results are not eager's."""
    for section in file.index.sections:
        file.check(section)
    yield f"{len(file.index.sections)} sections have their checksums"
    if not file.of_kind("samples-table"):
        yield "there are no sample inputs"
        return
    from ....targets.package.load import load_file
    from ..samples import judged

    signature: Signature = file.load(Signature, "signature")
    tried = 0
    for target in signature.targets:
        try:
            package = load_file(file, verify=True, target=target.name)
        except PackageError as problem:
            yield f"code for {target.name} was not run: {problem.message}"
            continue
        for section in file.of_kind("samples-table"):
            off = judged(file, getattr(package, section.name))
            if off:
                raise file.error(f"its code for {package.target} is wrong on this machine: {'; '.join(off)}")
            yield f"'{section.name}' gives eager's results for its sample inputs, by its code for {package.target}"
            tried += 1
    if not tried:
        raise file.error("none of its code runs on this machine")
