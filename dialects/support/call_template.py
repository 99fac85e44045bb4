"""The argument template of a call of a library operator as plain data: what programs keep of a call when no compiler is loaded.

dialects/nd/call_args.py says what it means, reads it and prints it as an attribute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .record import Record


class Arg(Record):
    """Operand `index` of the op."""

    index: int


class Enum(Record):
    """A value of one of torch's enumerations: kind is dtype, device, layout or memory_format."""

    kind: str
    value: str


class Obj(Record):
    """Entry `index` of the module's table of Python objects."""

    index: int


class Call(Record):
    """Operator name and the templates of its positional and keyword arguments (tuples stand for lists)."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def leaves(self) -> Iterator[Any]:
        """All leaves, in order."""
        stack: list[Any] = [v for _, v in reversed(self.kwargs)] + list(reversed(self.args))
        while stack:
            item = stack.pop()
            if isinstance(item, tuple):
                stack.extend(reversed(item))
            else:
                yield item

    def map(self, fn: Callable[[Any], Any]) -> Call:
        """The template with `fn` applied to every leaf."""

        def walk(item: Any) -> Any:
            return tuple(walk(x) for x in item) if isinstance(item, tuple) else fn(item)

        return Call(self.target, walk(self.args), tuple((k, walk(v)) for k, v in self.kwargs))


def format_leaf(item: Any) -> str:
    """The text of one template value."""
    if isinstance(item, tuple):
        return f"[{', '.join(map(format_leaf, item))}]"
    if isinstance(item, Arg):
        return f"arg({item.index})"
    if isinstance(item, Obj):
        return f"object({item.index})"
    if isinstance(item, Enum):
        return f'{item.kind}("{item.value}")'
    if is_size(item):
        return f"size({item})"
    if item is None:
        return "none"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        escaped = item.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(item, float):
        return f'float("{item!r}")'
    if isinstance(item, complex):
        return f'complex("{item!r}")'
    return repr(item)


def is_size(item: Any) -> bool:
    """Whether a leaf is a size expression: no other kind of leaf says whether it is constant."""
    return hasattr(item, "is_const")
