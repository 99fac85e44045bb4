"""Compiled objects on disk, found again by what went into them.

The key is a hash of the LLVM text, the CPU and its features, the versions of LLVM and llvmlite and the level of the
code generator. Objects are relocatable and hold no address of this process. A file carries its own checksum: one that
was cut short or is not ours is compiled again without a word, and a folder that cannot be written to costs nothing
but the time."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from .features import Target, target

_MAGIC = b"stepwell object 1\n"


def cache_folder() -> Path:
    """`STEPWELL_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("STEPWELL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "stepwell"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stepwell"


def object_key(text: str, wanted: Target | None = None, opt: int = 2) -> str:
    """The hexadecimal name of the object for `text`."""
    import llvmlite
    from llvmlite import binding

    wanted = wanted or target()
    version = ".".join(map(str, binding.llvm_version_info))
    head = "\0".join((llvmlite.__version__, version, wanted.triple, wanted.cpu, wanted.features, str(opt)))
    return hashlib.sha256(head.encode() + b"\0" + text.encode()).hexdigest()


def cached_object(text: str, opt: int = 2, wanted: Target | None = None) -> tuple[bytes, bool]:
    """(the object for `text`, whether it came from the disk); compiled and kept if it is not there."""
    from .jit import compile_text

    path = cache_folder() / "objects" / f"{object_key(text, wanted, opt)}.o"
    found = read(path)
    if found is not None:
        return found, True
    data = compile_text(text, opt, wanted)
    write(path, data)
    return data, False


def read(path: Path) -> bytes | None:
    """What `write` put there; None if the file is missing, cut short or somebody else's."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + 32
    if not content.startswith(_MAGIC) or len(content) <= head:
        return None
    data = content[head:]
    return data if hashlib.sha256(data).digest() == content[len(_MAGIC) : head] else None


def write(path: Path, data: bytes) -> bool:
    """Keep `data` under `path`, whole or not at all (written beside it, then renamed); False if that is not
    possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    except OSError:
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(data).digest() + data)
        os.replace(name, path)
    except OSError:
        try:
            os.unlink(name)
        except OSError:
            return False
        return False
    return True
