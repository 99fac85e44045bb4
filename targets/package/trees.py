"""Trees of arguments and results: tuples, lists and dictionaries with tensors and numbers as leaves, as torch's pytrees have them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ...dialects.support.record import Record, changed
from .errors import CallError, PackageError
from .programs import decode_leaf

Kind = Literal["leaf", "tuple", "list", "dict", "ordered", "named", "registered"]


class Tree(Record):
    """A node.

    keys: of a dictionary, as leaves of JSON; names of the parts of a named tuple, and of a registered type that has some. type: of a named
    tuple or of a type that the program registered with torch's pytrees: the name that it is registered by; context: what its registration
    keeps of it."""

    kind: Kind = "leaf"
    items: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()
    type: str = ""
    context: str = ""

    @property
    def leaves(self) -> int:
        """How many leaves there are."""
        return 1 if self.kind == "leaf" else sum(item.leaves for item in self.items)

    @property
    def is_flat(self) -> bool:
        """Whether all items are leaves."""
        return all(item.kind == "leaf" for item in self.items)

    def flatten(self, value: Any, place: str) -> Iterator[Any]:
        """The leaves of a value of this structure. CallError names `place` where it has another one."""
        if self.kind == "leaf":
            yield value
            return
        for item, (part, where) in zip(self.items, self._parts(value, place), strict=True):
            yield from item.flatten(part, where)

    def _parts(self, value: Any, place: str) -> list[tuple[Any, str]]:
        if self.kind in ("dict", "ordered"):
            wanted = OrderedDict if self.kind == "ordered" else dict
            keys = [decode_leaf(key) for key in self.keys]
            if type(value) is not wanted or value.keys() != set(keys):
                names = ", ".join(map(repr, keys))
                raise CallError(f"{place} should be {_a(wanted)} with the keys {names}, and is {_shown(value)}")
            return [(value[key], f"{place}[{key!r}]") for key in keys]
        if self.kind == "registered":
            return [(part, f"{place}.{k}") for k, part in enumerate(_registered_parts(self, value, place))]
        wanted = {"tuple": tuple, "list": list}.get(self.kind)
        if wanted is None:
            fits = isinstance(value, tuple) and list(getattr(value, "_fields", ())) == [decode_leaf(key) for key in self.keys]
        else:
            fits = type(value) is wanted
        if not fits or len(value) != len(self.items):
            raise CallError(f"{place} should be {_a(wanted) if wanted else self.type} of {len(self.items)}, and is {_shown(value)}")
        return [(part, f"{place}[{k}]") for k, part in enumerate(value)]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value of this structure with these leaves."""
        return self._build(iter(leaves))

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self.kind == "leaf":
            return next(leaves)
        parts = [item._build(leaves) for item in self.items]
        if self.kind == "list":
            return parts
        if self.kind == "tuple":
            return tuple(parts)
        if self.kind in ("dict", "ordered"):
            made: dict[Any, Any] = OrderedDict() if self.kind == "ordered" else {}
            made.update(zip(map(decode_leaf, self.keys), parts, strict=True))
            return made
        return _rebuild(self, parts)

    def names(self, place: str) -> Iterator[str]:
        """What messages call the leaves."""
        if self.kind == "leaf":
            yield place
        for k, item in enumerate(self.items):
            key = repr(decode_leaf(self.keys[k])) if self.kind in ("dict", "ordered") else str(k)
            yield from item.names(f"{place}[{key}]")

    def check(self) -> None:
        """PackageError where it is no tree that `unflatten` can build."""
        if (self.keys or self.kind in ("dict", "ordered", "named")) and len(self.keys) != len(self.items):
            raise PackageError("a dictionary of the signature has not as many keys as items")
        if self.kind in ("named", "registered"):
            _registered(self)
        for item in self.items:
            item.check()


def _a(kind: type) -> str:
    return {"OrderedDict": "an OrderedDict", "dict": "a dict", "list": "a list", "tuple": "a tuple"}[kind.__name__]


def _shown(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"a {type(value).__name__}{size}"


def _registered(tree: Tree) -> Any:
    """The type of that name among those that torch's pytrees know, dict in place of one with names for its parts that they do not know: a
    package imports nothing."""
    if tree.kind == "named":
        return _named_tuple(tree)
    from torch.utils import _pytree

    found = _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(tree.type)
    if found is None and tree.keys:
        return dict
    if found is None:
        raise PackageError(f"the signature has a {tree.type}; import the module that registers it with torch's pytrees first")
    return found


def _registered_parts(tree: Tree, value: Any, place: str) -> Sequence[Any]:
    from torch.utils import _pytree

    kind = _registered(tree)
    if kind is dict:
        return [part for part, _ in changed(tree, kind="dict")._parts(value, place)]
    if type(value) is not kind:
        raise CallError(f"{place} should be a {tree.type}, and is {_shown(value)}")
    parts, context = _pytree.SUPPORTED_NODES[kind].flatten_fn(value)
    if len(parts) != len(tree.items) or registered_spec(kind, context, len(parts)) != tree.context:
        raise CallError(f"{place} is a {tree.type} of another structure than the exported one")
    return parts


def registered_spec(kind: type, context: Any, count: int) -> str:
    """What is kept of a value of a registered type with so many parts."""
    from torch.utils import _pytree

    leaf = getattr(_pytree, "treespec_leaf", _pytree.LeafSpec)
    return _pytree.treespec_dumps(_pytree.TreeSpec(kind, context, [leaf() for _ in range(count)]))


def _rebuild(tree: Tree, parts: list[Any]) -> Any:
    kind = _registered(tree)
    if tree.kind == "named":
        return kind(*parts)
    if kind is dict:
        return dict(zip(map(decode_leaf, tree.keys), parts, strict=True))
    from torch.utils import _pytree

    return _pytree.SUPPORTED_NODES[kind].unflatten_fn(parts, _pytree.treespec_loads(tree.context).context)


def _named_tuple(tree: Tree) -> Any:
    """The class of a named tuple where its module is loaded, else one like it: a package imports nothing."""
    from collections import namedtuple

    names = [str(decode_leaf(key)) for key in tree.keys]
    module, _, name = tree.type.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type) and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == names:
        return found
    try:
        return namedtuple(name, names)
    except ValueError as error:
        raise PackageError(f"the signature has a named tuple that cannot be made: {error}") from None
