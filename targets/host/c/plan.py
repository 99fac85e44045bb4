"""What the C entry of a program is told beside the program: where its arguments come from, and what becomes of what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from xdsl.dialects.builtin import ModuleOp

from ....errors import CompileError

if TYPE_CHECKING:
    from ...triton.kernels import Binary
    from .signature import Value


class CEntryError(CompileError):
    """A program that has no C entry; the message names what stands in the way, where it comes from, and what to do."""


@dataclass(frozen=True)
class Given:
    """An argument that the caller of the entry gives: input `number`."""

    name: str
    number: int


@dataclass(frozen=True)
class Weight:
    """A tensor of the package, `offset` bytes behind the beginning of its weights; nobody writes to it."""

    offset: int


@dataclass(frozen=True)
class State:
    """A tensor of the model, `offset` bytes behind the beginning of its updated buffers."""

    offset: int


@dataclass(frozen=True)
class Result:
    """What the caller gets: `value` is its number among what the program returns."""

    name: str
    value: int


Source = Given | Weight | State
"""Where an argument or a constant of a program comes from."""


class Kernel(Protocol):
    """What launches and the table of kernels take of a kernel of a GPU (targets/triton/kernels.py)."""

    @property
    def name(self) -> str: ...

    @property
    def aligned(self) -> tuple[int, ...]: ...

    @property
    def even(self) -> tuple[int, ...]: ...

    def variant(self, addresses: bool, sizes: bool) -> Binary:
        """Its code where it relies on addresses, and on sizes, that are multiples of 16."""
        ...


@dataclass(frozen=True)
class EntryPlan:
    """One entry: a module down to its host program, and how its values meet the caller's.

    arguments: of the program, in order. constants: by the number of `host.constant`. ranges: lowest and highest value (None: any) of size
    symbols. device: where the program computes, "cpu" or "cuda"; kernels: those of the latter. unused: inputs that the program does not
    take, by number; they are not looked at."""

    name: str
    module: ModuleOp
    arguments: Sequence[Source]
    constants: Sequence[Weight | State] = ()
    results: Sequence[Result] = ()
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    device: str = "cpu"
    kernels: Sequence[Kernel] = ()
    unused: Mapping[int, Value] = field(default_factory=dict)
