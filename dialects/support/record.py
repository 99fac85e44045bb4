"""Records: plain data by named fields, as frozen dataclasses are, but classes that are made in a tenth of the time. Programs that load
packages begin by making them."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, dataclass_transform

R = TypeVar("R", bound="Record")


@dataclass_transform(frozen_default=True)
class Record:
    """A class whose annotations are its fields, in the order of its arguments, and whose attributes are their defaults. Its objects are not
    changed."""

    record_fields: ClassVar[tuple[str, ...]] = ()
    """The names of the fields."""

    def __init_subclass__(cls) -> None:
        cls.record_fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any):
        names = self.record_fields
        if named or len(values) != len(names):
            values = _all_values(type(self), values, named)
        self.__dict__.update(zip(names, values, strict=True))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def _all_values(cls: type[Record], values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The values of all fields, in order. TypeError for one that is missing, unknown or given twice."""
    names = cls.record_fields
    if len(values) > len(names) or not named.keys() <= set(names[len(values) :]):
        raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
    found = list(values)
    for name in names[len(values) :]:
        if name not in named and not hasattr(cls, name):
            raise TypeError(f"{cls.__name__} lacks {name}")
        found.append(named[name] if name in named else getattr(cls, name))
    return tuple(found)


def changed(record: R, **values: Any) -> R:
    """A record with other values of some fields."""
    return type(record)(**{**vars(record), **values})
