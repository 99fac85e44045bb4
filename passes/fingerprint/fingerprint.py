"""What code of users does, as one hash, for keys of caches and for what is remembered within a process.

    told = Fingerprint()
    told.add(function, "the check")         # Uncacheable: nothing says all that it does
    told.hexdigest()

A function counts with its code, defaults, what it closes over, and the globals that it reads; a class with its bases and attributes; an
instance with its class and state. Modules of the user's that are reached count with their source, and so do those that they import. What
belongs to Python, to installed packages or to stepwell counts by name and version."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import count
from pathlib import Path, PurePath
from typing import Any

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from .code_modules import KEYED, OURS, Owners, Uncacheable, source_of, version_of
from .code_reads import reads

DIGESTS: dict[type, Callable[[Any], str]] = {}
"""Type -> the text of a value of it (or of a type derived from it); layers above add torch's."""

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, range, types.EllipsisType, types.NotImplementedType))
_REPEATED = (Fraction, Decimal, PurePath, types.GenericAlias, types.UnionType)
"""Values whose text says all."""
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
                types.MemberDescriptorType)  # fmt: skip
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, types.MappingProxyType, OrderedDict, defaultdict)
_SCALARS = (int, float, complex, str, bytes)
_NO_STATE = frozenset(("object", "Generic", "Protocol", "ABC"))
_CLASS_NOISE = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ __annotations__ __annotate__ __annotate_func__ __annotations_cache__ "
    "__dataclass_fields__ __dataclass_params__ __match_args__ __abstractmethods__ _abc_impl __parameters__ __orig_bases__ "
    "__static_attributes__ __firstlineno__ __slots__ __hash__ __classdictcell__".split()
)
"""Attributes of classes that say nothing of what they do, or are looked at elsewhere."""

_NAMED_TUPLE = frozenset("__new__ _make _replace __replace__ __repr__ _asdict __getnewargs__".split())
"""What collections.namedtuple writes for each class."""
_DATACLASS = frozenset("__init__ __repr__ __eq__ __lt__ __le__ __gt__ __ge__ __setattr__ __delattr__".split())
"""What a dataclass may have of methods that its fields say all of."""

_OUTSIDE_BUILTINS = {"open": "a file", "input": "its input", "eval": "code", "exec": "code", "__import__": "a module", "compile": "code"}
_OUTSIDE_ATTRIBUTES = {
    "os": {"environ": "the environment", "environb": "the environment", "getenv": "the environment"},
    "importlib": {"import_module": "a module", "reload": "a module"},
    "torch": {"load": "a file"},
    "numpy": {"load": "a file", "loadtxt": "a file", "fromfile": "a file", "memmap": "a file"},
}
_OUTSIDE_METHODS = {"read_text": "a file", "read_bytes": "a file"}
"""What reads something that a key cannot hold."""


class Fingerprint:
    """Hashes what values and functions mean. With `lasting` another process finds the same, and code needs a file; without, it is told from
    what this process had before."""

    def __init__(self, lasting: bool = True):
        self._lasting = lasting
        self._digest = hashlib.sha256()
        self._seen: dict[Any, tuple[int, Any]] = {}
        self._numbers = count()
        self._owners = Owners()
        self._sources: set[str] = set()

    def add(self, value: Any, what: str) -> None:
        """Add a value, which messages call `what`. Raises Uncacheable. Its package is the user's, wherever it lies."""
        self._owners.own(value)
        try:
            self._value(value, what)
        except RecursionError:
            raise Uncacheable(f"{what} holds objects that hold objects, too deep to be told") from None

    def hexdigest(self) -> str:
        """The hash of what was added."""
        return self._digest.hexdigest()

    def _write(self, *texts: Any) -> None:
        for text in texts:
            self._digest.update(str(text).encode("utf-8", "surrogatepass") + b"\0")

    def _met(self, key: Any, value: Any) -> bool:
        """Whether something was met before, which is then written as its number. `value` is kept, so that no other one gets its address."""
        found = self._seen.get(key)
        if found is None:
            self._seen[key] = (next(self._numbers), value)
            return False
        self._write("again", found[0])
        return True

    # ---- values

    def _value(self, v: Any, what: str) -> None:
        kind = type(v)
        if kind in _PLAIN:
            self._write(kind.__name__, repr(v))
        elif (known := next((DIGESTS[c] for c in kind.__mro__ if c in DIGESTS), None)) is not None:
            self._write(kind.__qualname__, known(v))
        elif not self._met(id(v), v):
            self._compound(v, what)

    def _compound(self, v: Any, what: str) -> None:
        if isinstance(v, types.ModuleType):
            self._module(v, None, what)
        elif isinstance(v, types.FunctionType):
            self._function(v)
        elif isinstance(v, type):
            self._class(v)
        elif isinstance(v, (staticmethod, classmethod, types.MethodType)):
            self._all(f"{type(v).__name__}", (v.__func__, getattr(v, "__self__", None)), what)
        elif isinstance(v, property):
            self._all("property", (v.fget, v.fset, v.fdel), what)
        elif isinstance(v, functools.partial):
            self._all("partial", (v.func, v.args, v.keywords), what)
        elif isinstance(v, functools._lru_cache_wrapper):
            self._all("cached", (v.__wrapped__,), what)
        elif isinstance(v, types.BuiltinFunctionType):
            owner = v.__self__
            self._all(f"{v.__module__} {v.__qualname__}", () if isinstance(owner, (types.ModuleType, type(None))) else (owner,), what)
        elif isinstance(v, _DESCRIPTORS):
            self._write("descriptor", getattr(v, "__objclass__", ""), v.__name__)
        elif isinstance(v, types.CodeType):
            self._code(v)
        elif isinstance(v, re.Pattern):
            self._write("re", v.pattern, v.flags)
        elif isinstance(v, (*_LOCKS, logging.Logger)):
            self._write(type(v).__name__, getattr(v, "name", ""))
        elif isinstance(v, _REPEATED) or type(v).__module__ == "typing":
            self._write(type(v).__qualname__, repr(v))
        elif isinstance(v, Attribute) and not self._owners.has(type(v).__module__):
            self._write(v.name, str(v))
        else:
            self._instance(v, what)

    def _all(self, head: str, values: Iterable[Any], what: str) -> None:
        self._write(head, "(")
        for v in values:
            self._value(v, what)
        self._write(")")

    def _instance(self, v: Any, what: str) -> None:
        """An object: its class, what it contains, its attributes."""
        cls = type(v)
        if isinstance(v, Enum) and not self._owners.has(cls.__module__):
            self._write(cls.__module__, cls.__qualname__, v.name)
            return
        if cls not in _CONTAINERS:
            if cls is not types.SimpleNamespace and not self._is_told(v, cls):
                raise Uncacheable(f"{what} is a {cls.__module__}.{cls.__qualname__}, whose value nothing tells")
            self._value(cls, what)
        if isinstance(v, (dict, types.MappingProxyType)):
            self._value(getattr(v, "default_factory", None), f"the default of {what}")
            self._all("mapping", (x for item in v.items() for x in item), f"an element of {what}")
        elif isinstance(v, (set, frozenset)):
            self._write("set", *sorted(self._alone(x, f"an element of {what}") for x in v))
        elif isinstance(v, (list, tuple, deque)):
            self._all(type(v).__name__, v, f"an element of {what}")
        elif (base := next((c for c in _SCALARS if isinstance(v, c)), None)) is not None:
            self._write(base.__repr__(v))  # pyright: ignore[reportArgumentType]
        for name, held in sorted(_state(v).items()):
            self._write(name)
            self._value(held, f"'{name}' of {what}")

    def _is_told(self, v: Any, cls: type) -> bool:
        """Whether attributes and content say all of an object."""
        if isinstance(v, (Operation, Block, Region, SSAValue)):
            return False
        known = (*_CONTAINERS, *_SCALARS)
        if not all(c in known or c.__name__ in _NO_STATE or self._owners.is_python(c) for c in cls.__mro__):
            return False
        package = cls.__module__.partition(".")[0]
        library = package in sys.stdlib_module_names or package in (OURS, "xdsl") or (package == "torch" and hasattr(cls, "__exit__"))
        return library or self._owners.has(cls.__module__) or is_dataclass(cls)

    def _alone(self, v: Any, what: str) -> str:
        """The hash of a value by itself, for those without an order."""
        other = Fingerprint(self._lasting)
        other._owners = self._owners
        other._value(v, what)
        return other.hexdigest()

    # ---- code

    def _function(self, fn: types.FunctionType) -> None:
        code, name, home = fn.__code__, fn.__qualname__, fn.__globals__.get("__name__")
        users = self._owners.has(home)
        if not users and not self._owners.has(fn.__module__) and _found(fn):
            self._library(fn.__module__, name)
            return
        self._write("function", name)
        if users and self._lasting and not Path(code.co_filename).is_file():
            raise Uncacheable(f"'{name}' has no file that holds its source")
        self._code(code)
        self._all("defaults", (fn.__defaults__, fn.__kwdefaults__), f"a default of '{name}'")
        for variable, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # nothing is bound yet
                self._write("unbound", variable)
                continue
            self._value(held, f"'{variable}', which '{name}' closes over,")
        for attribute, held in sorted(vars(fn).items()):
            self._write(attribute)
            self._value(held, f"'{attribute}' of '{name}'")
        if users:
            self._reach(sys.modules.get(str(home)), f"'{name}'")
            self._globals(fn)

    def _code(self, code: types.CodeType) -> None:
        self._write(
            "code", code.co_code.hex(), code.co_exceptiontable.hex(), code.co_flags, code.co_argcount, code.co_posonlyargcount,
            code.co_kwonlyargcount, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        )  # fmt: skip
        for constant in code.co_consts:
            self._constant(constant)

    def _constant(self, constant: Any) -> None:
        if isinstance(constant, types.CodeType):
            self._code(constant)
        elif isinstance(constant, frozenset):
            self._write("set", *sorted(map(repr, constant)))
        elif isinstance(constant, tuple):
            self._write("(")
            for one in constant:
                self._constant(one)
            self._write(")")
        else:
            self._write(type(constant).__name__, repr(constant))

    def _globals(self, fn: types.FunctionType) -> None:
        """What a function reads of its module, and what it imports when it runs."""
        found, table = reads(fn.__code__), fn.__globals__
        builtins = table.get("__builtins__", {})
        known = builtins if isinstance(builtins, dict) else vars(builtins)
        if found.written:
            raise Uncacheable(f"'{fn.__qualname__}' sets the global '{found.written[0]}'")
        for name, whole in found.names:
            what = f"'{name}', which '{fn.__qualname__}' reads,"
            if name in table and isinstance(table[name], types.ModuleType):
                self._write(name)
                self._module(table[name], None if whole else found.attributes, what)
            elif name in table:
                self._write(name)
                self._value(table[name], what)
            elif name in ("globals", "vars", "locals"):
                self._module(sys.modules.get(str(table.get("__name__"))), None, what)
            elif name in _OUTSIDE_BUILTINS:
                raise Uncacheable(f"'{fn.__qualname__}' reads {_OUTSIDE_BUILTINS[name]} ('{name}')")
            elif name not in known:
                self._write("missing", name)
        if read := next((a for a in found.attributes if a in _OUTSIDE_METHODS), None):
            raise Uncacheable(f"'{fn.__qualname__}' reads {_OUTSIDE_METHODS[read]} ('{read}')")
        for name, taken in found.imports:
            self._import(name, taken, found.attributes, fn)

    def _import(self, name: str, taken: tuple[str, ...], attributes: tuple[str, ...], fn: types.FunctionType) -> None:
        """A module that a function imports when it runs, with the names that it takes from it."""
        what = f"the module '{name}', which '{fn.__qualname__}' imports,"
        module = self._owners.imported(name, taken, fn.__globals__.get("__package__") or "")
        if module is None:  # the function handles it, or fails when it runs
            self._write("missing", name)
            return
        self._module(module, None if "*" in taken else (*taken, *attributes), what)

    # ---- classes

    def _class(self, cls: type) -> None:
        users = self._owners.has(cls.__module__)
        if not users and _found(cls):
            self._library(cls.__module__, cls.__qualname__)
            return
        self._write("class", cls.__qualname__)
        if users:
            self._reach(sys.modules.get(cls.__module__), f"class '{cls.__qualname__}'")
        self._all("bases", (*cls.__bases__, type(cls)), f"class '{cls.__qualname__}'")
        made, named = is_dataclass(cls), tuple in cls.__bases__ and hasattr(cls, "_fields")
        for name, v in cls.__dict__.items():
            generated = made and name in _DATACLASS and _is_of_a_text(v)
            generated |= named and (name in _NAMED_TUPLE or type(v).__name__ == "_tuplegetter")
            if name not in _CLASS_NOISE and not generated:
                self._write(name)
                self._value(v, f"'{cls.__qualname__}.{name}'")
        for f in fields(cls) if made else ():
            self._write(f.name, f.init, f.kw_only, f.compare)
            self._all("default", (_default(f.default), _default(f.default_factory)), f"the default of '{cls.__qualname__}.{f.name}'")

    # ---- modules

    def _module(self, module: types.ModuleType | None, names: tuple[str, ...] | None, what: str) -> None:
        """A module of which something is read: the values under these names (None: under all). One of a library counts by its name."""
        if module is None:
            raise Uncacheable(f"{what} is in no module")
        if not self._owners.has(module.__name__):
            self._library(module.__name__)
            outside = _OUTSIDE_ATTRIBUTES.get(module.__name__, {})
            if read := next((n for n in names or () if n in outside), None):
                raise Uncacheable(f"{outside[read]} is read through {what}")
            return
        self._reach(module, what)
        table = vars(module)
        if names is not None and "__getattr__" in table:
            names = (*names, "__getattr__")
        for name in sorted(n for n in table if not n.startswith("__")) if names is None else [n for n in names if n in table]:
            value = table[name]
            if self._met((id(module), name, names is None), module):
                continue
            self._write(name)
            if isinstance(value, types.ModuleType):
                self._module(value, names, what)
            else:
                self._value(value, f"'{module.__name__}.{name}'")

    def _reach(self, module: types.ModuleType | None, what: str) -> None:
        """The source of a module of the user's, and of those that it imports."""
        if not self._lasting:
            return
        if module is None:
            raise Uncacheable(f"{what} is in no module")
        for one in self._owners.reached(module, self._sources):
            digest = source_of(one)
            if digest is None:
                raise Uncacheable(f"the module '{one.__name__}', which {what} reaches, has no file that holds its source")
            self._write("module", one.__name__, digest)

    def _library(self, module: str, name: str = "") -> None:
        package = module.partition(".")[0]
        self._write("library", module, name)
        if package not in KEYED and not self._met(package, package):
            self._write(*version_of(package))


def _found(value: Any) -> bool:
    """Whether a function or class is what its module has under its name."""
    owner: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        owner = getattr(owner, part, None)
    return owner is value


def _is_of_a_text(value: Any) -> bool:
    """Whether a function was made from a string, as those of dataclasses are."""
    inner = getattr(value, "__wrapped__", value)
    return isinstance(inner, types.FunctionType) and inner.__code__.co_filename == "<string>"


def _default(value: Any) -> Any:
    return "no default" if value is MISSING else value


def _state(v: Any) -> Mapping[str, Any]:
    """The attributes of an instance, those in slots too."""
    found = dict(getattr(v, "__dict__", {}))
    for cls in type(v).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(v, mangled):
                found[name] = getattr(v, mangled)
    return found
