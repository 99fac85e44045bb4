"""Files of the cache on disk: whole or not at all, each with a checksum, found again by what went into them.

| folder | files | key |
|---|---|---|
| `objects` | machine code of a graph or of a library body | LLVM text, CPU and features, versions, level of the code generator |
| `graphs` | compiled graphs (tools/cache/graph_cache.py) | the graph and all that decides what becomes of it |
| `constants` | large constants of graphs | their bytes |
| `selftest` | the program that tries native entries, as a graph | versions, source, target |
| `kernels` | GPU kernels (targets/triton/compile.py) | text, target, options, versions |
| `sources` | the hash of this package's source | names, sizes and times of its files |

Nothing in a file is an address or a path of this process, so that folders can be shared and copied. A file that was cut short or is not
ours is made again, with one line in the log; a folder that cannot be written to (or a full disk) costs nothing but the time, and is
mentioned once. Behind the disk there may be a place that machines share (cache_remote.py)."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ...errors import CompileError
from . import cache_limit, cache_remote
from .features import Target, target

log = logging.getLogger("stepwell")

_MAGIC = b"stepwell object 1\n"
_HEAD = len(_MAGIC) + 32
_LEFT_SECONDS = 3600.0
"""A file that is being written is renamed within this time, or its process is gone."""
_SETTLED_SECONDS = 2.0
"""File systems count time in steps of up to two seconds."""

_SOURCES = (".py", ".ll", ".json")
"""The kinds of files of the package that decide what code it makes."""

BYSTANDERS = frozenset(("bench", "check", "demo", "docs", "explain", "explore", "fuzz", "highlight", "lsp", "opt", "package", "reduce"))
"""Rooms of `tools` that only look at what is compiled: a change there leaves every program as it is. A room without its name
here counts."""

_swept: set[Path] = set()
_mentioned: set[Path] = set()


def cache_folder() -> Path:
    """`STEPWELL_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("STEPWELL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "stepwell"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stepwell"


@cache
def environment() -> str:
    """All that takes part, as one hash."""
    return hashlib.sha256(repr(sorted(parts_of_environment().items())).encode()).hexdigest()


@cache
def parts_of_environment() -> dict[str, str]:
    """What takes part, by name: Python (its minor version and build, whose objects native entries look into), the versions of packages
    (torch and Triton if they are installed), and the parts of this package that compile, as a hash."""
    from importlib.metadata import PackageNotFoundError, version

    parts = {"python": f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"}
    for name in ("torch", "llvmlite", "xdsl", "triton"):
        try:
            parts[name] = version(name)
        except PackageNotFoundError:
            continue
    parts["source"] = source_digest(Path(__file__).resolve().parents[2]).hex()
    return parts


def source_digest(root: Path) -> bytes:
    """The hash of what compiles of the package in `root`: names and contents of files, wherever it is installed. It is kept under the hash
    of what the file system knows of the files, so that they need not be read; not while one has just changed: another change might have the
    same time."""
    files = sorted(_source_files(root))
    about = repr((str(root), [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in files]))
    path = cache_folder() / "sources" / hashlib.sha256(about.encode()).hexdigest()
    kept = read(path)
    if kept is not None:
        return kept
    digest = hashlib.sha256()
    for name, _ in files:
        content = Path(name).read_bytes()
        digest.update(f"{Path(name).relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    if time.time() - max((s.st_ctime for _, s in files), default=0.0) > _SETTLED_SECONDS:
        write(path, digest.digest())
    return digest.digest()


def _source_files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    folders = [str(root / name) for name in ("dialects", "passes", "lowering", "targets", "tools")]
    apart = {str(root / "tools" / name) for name in BYSTANDERS}
    while folders:
        with os.scandir(folders.pop()) as found:
            for one in found:
                if one.name.endswith(_SOURCES):
                    yield one.path, one.stat()
                elif one.name != "__pycache__" and one.path not in apart and one.is_dir():
                    folders.append(one.path)


def object_key(text: str, wanted: Target | None = None, opt: int = 2) -> str:
    """The hexadecimal name of the object for `text`."""
    import llvmlite
    from llvmlite import binding

    wanted = wanted or target()
    version = ".".join(map(str, binding.llvm_version_info))
    head = "\0".join((llvmlite.__version__, version, wanted.triple, wanted.cpu, wanted.features, str(opt)))
    return hashlib.sha256(head.encode() + b"\0" + text.encode()).hexdigest()


def object_path(key: str) -> Path:
    """Where the object of that key lies."""
    return cache_folder() / "objects" / f"{key}.o"


class CacheError(CompileError):
    """An access to the cache failed: what needs none can be compiled."""


@contextmanager
def access() -> Iterator[None]:
    """Whatever goes wrong in the block is a CacheError."""
    try:
        yield
    except Exception as error:
        raise CacheError(f"an access to the cache failed: {type(error).__name__}: {error}") from error


def cached_object(
    text: str, opt: int = 2, wanted: Target | None = None, written: Callable[[], str] | None = None
) -> tuple[bytes, bool]:
    """(the object for `text`, whether it came from the disk); compiled and kept if it is not there. With `written`, which gives the text,
    `text` is a name for it. Raises CacheError."""
    from .jit import compile_text

    with access():
        path = object_path(object_key(text, wanted, opt))
        found = read(path)
    if found is not None:
        return found, True
    data = compile_text(text if written is None else written(), opt, wanted)
    with access():
        write(path, data)
    return data, False


def shared_object(text: str, written: Callable[[], str] | None = None) -> bytes:
    """The object of code that many graphs call: an access to the cache that fails costs the time that it would have saved. With `written`,
    which gives the text, `text` is what it follows from, beside this package's sources: a text that is not needed is not written."""
    from .jit import compile_text

    try:
        return cached_object(text if written is None else f"{text}\0{environment()}", written=written)[0]
    except CacheError as error:
        log.info("cache: %s", error)
        return compile_text(text if written is None else written())


def read(path: Path) -> bytes | None:
    """What `write` put there, here or on another machine that shares a place with this one (cache_remote.py); None if the file is missing,
    cut short or somebody else's."""
    try:
        with open(path, "rb") as file:
            content, changed = file.read(), os.fstat(file.fileno()).st_mtime
    except (FileNotFoundError, NotADirectoryError):  # of a folder that is none, whoever writes to it says so
        return _fetched(path)
    except OSError as error:
        log.warning("cache: %s cannot be read and is made again: %s", path, error)
        return None
    data = checked(content)
    if data is not None:
        cache_limit.used(path, changed)
        return data
    discard(path, "is damaged or of another program")
    return _fetched(path)


def checked(content: bytes) -> bytes | None:
    """The data of a file of the cache; None for another file, or a damaged one."""
    data = content[_HEAD:]
    if data and content.startswith(_MAGIC) and hashlib.sha256(data).digest() == content[len(_MAGIC) : _HEAD]:
        return data
    return None


def _fetched(path: Path) -> bytes | None:
    """The entry of the place that machines share, which is then on the disk too; None without one."""
    kind = path.parent.name
    shared = cache_remote.place() if kind in cache_remote.SHARED else None
    content = shared.get(kind, path.name) if shared is not None else None
    if content is None:
        return None
    data = checked(content)
    if data is None:
        log.info("cache: %s of %s is damaged and is made again", path.name, shared.address if shared else "")
    elif write_atomically(path, content):
        cache_limit.wrote(path, len(content))
    return data


def discard(path: Path, problem: str) -> None:
    """Say what is wrong with a file, and remove it, so that it is said once."""
    log.warning("cache: %s %s and is made again", path, problem)
    forget(path)


def forget(path: Path) -> None:
    """Remove a file, if there is one."""
    try:
        path.unlink()
    except OSError:  # what cannot be removed is written over, or mentioned again
        return


def write(path: Path, data: bytes) -> bool:
    """Keep `data` under `path` with a checksum, for `read`; False if that is not possible."""
    content = _MAGIC + hashlib.sha256(data).digest() + data
    done = write_atomically(path, content)
    if done:
        cache_limit.wrote(path, len(content))
    if path.parent.name in cache_remote.SHARED and (shared := cache_remote.place()) is not None:
        shared.put(path.parent.name, path.name, content)
    return done


def write_atomically(path: Path, content: bytes) -> bool:
    """Make `path` a file of that content, whole or not at all (written beside it, then renamed), whoever else writes it at the same time;
    False if that is not possible."""
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=cache_limit.NEW)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
        return True
    except OSError as error:
        if path.parent not in _mentioned:
            _mentioned.add(path.parent)
            log.warning("cache: nothing is kept in %s: %s", path.parent, error)
    if name is not None:
        try:
            os.unlink(name)
        except OSError:
            return False
    return False


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed while they wrote left behind; once a process."""
    if folder in _swept:
        return
    _swept.add(folder)
    for path in folder.glob(f"{cache_limit.NEW}*"):
        try:
            if time.time() - path.stat().st_mtime > _LEFT_SECONDS:
                path.unlink()
        except OSError:  # another process was quicker
            continue
