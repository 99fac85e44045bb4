"""Whose a module is: the user's, or Python's, an installed package's or stepwell's; and where its source lies."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ...errors import StepwellError


class Uncacheable(StepwellError):
    """What is made depends on something that has no lasting name or value; the message says on what."""


OURS = __name__.partition(".")[0]
KEYED = frozenset((OURS, "torch", "xdsl", "llvmlite", "triton", "sympy", "numpy", *sys.stdlib_module_names))
"""Packages whose versions are in every key, or whose functions mean the same in all of them."""

_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple({str(Path(path).resolve()) for name, path in sysconfig.get_paths().items() if name in _PATHS})
_PACKAGES = frozenset(("site-packages", "dist-packages"))
_HEAP_TYPE = 1 << 9


@lru_cache(4096)
def _digest(file: str, size: int, changed: int, inode: int) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def source_of(module: ModuleType) -> str | None:
    """The hash of a module's file; None if there is none."""
    file = getattr(module, "__file__", None)
    if file is None:
        return "namespace" if hasattr(module, "__path__") else None
    with suppress(OSError):
        found = Path(file).stat()
        return _digest(file, found.st_size, found.st_mtime_ns, found.st_ino)
    return None


def version_of(package: str) -> tuple[Any, ...]:
    """What tells one version of an installed package from another."""
    module = sys.modules.get(package)
    file, version = getattr(module, "__file__", None), getattr(module, "__version__", "")
    with suppress(OSError):
        if file:
            found = Path(file).stat()
            return package, version, found.st_size, found.st_mtime_ns
    return package, version


@lru_cache(4096)
def lies_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    path = Path(file).resolve()
    return not _PACKAGES.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in _INSTALLED)


class Owners:
    """Tells modules of the user's from others: those outside of Python, of the installed packages and of stepwell, and those in packages
    that are said to be the user's."""

    def __init__(self) -> None:
        self._packages: set[str] = set()

    def own(self, value: Any) -> None:
        """The package of a value is the user's, wherever it lies."""
        owner = value if isinstance(value, (type, FunctionType)) else type(value)
        package = str(getattr(owner, "__module__", "")).partition(".")[0]
        if package not in KEYED:
            self._packages.add(package)

    def has(self, name: str | None) -> bool:
        """Whether a module is the user's."""
        package = (name or "").partition(".")[0]
        if name is None or package in self._packages:
            return True
        if package in (OURS, "torch", "xdsl"):
            return False
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        return package not in sys.stdlib_module_names if file is None else not lies_installed(str(file))

    def is_python(self, cls: type) -> bool:
        """Whether all state of a class's own is in attributes."""
        if not cls.__flags__ & _HEAP_TYPE:
            return False
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        return self.has(cls.__module__) or str(file).endswith(".py")

    def reached(self, module: ModuleType, done: set[str]) -> Iterator[ModuleType]:
        """A module of the user's with those of the user's that it imports, as its values tell, but for those that are `done`."""
        pending = [module]
        while pending:
            module = pending.pop()
            if module.__name__ in done:
                continue
            done.add(module.__name__)
            yield module
            for _, value in sorted(vars(module).items()):
                owner = value.__module__ if isinstance(value, (FunctionType, type)) else type(value).__module__
                used = value if isinstance(value, ModuleType) else sys.modules.get(str(owner))
                if used is not None and self.has(used.__name__):
                    pending.append(used)

    def imported(self, name: str, taken: tuple[str, ...], package: str) -> ModuleType | None:
        """The module of which code in `package` reads something behind `import name` or `from name import taken`; None if there is none.
        One of a library that nobody has imported is empty."""
        try:
            full = importlib.util.resolve_name(name, package)
            top = full.partition(".")[0]
            spec = None if top in sys.modules else importlib.util.find_spec(top)
            if spec is None and top not in sys.modules:
                return None
            place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
            if not self.has(top) or (place and lies_installed(place)):
                return sys.modules.get(full) or ModuleType(full)
            module = importlib.import_module(full)
            for part in (p for p in taken if p != "*" and not hasattr(module, p)):
                importlib.import_module(f"{full}.{part}")
        except (ImportError, ValueError):
            return None
        return module if taken else sys.modules[top]
