"""What a package computes: entry points, their arguments and results, the ranges of sizes, the devices."""

from __future__ import annotations

from typing import Any, Literal

from ...dialects.support.record import Record
from .trees import Tree


class Leaf(Record):
    """An argument or a result: a tensor, a number, or a value that the model was exported for (`encode_leaf`).

    sizes and strides are numbers or expressions of the entry's symbols; device is torch's name."""

    name: str
    kind: Literal["tensor", "number", "constant"] = "tensor"
    dtype: str = ""
    sizes: tuple[int | str, ...] = ()
    strides: tuple[int | str, ...] = ()
    device: str = ""
    value: Any = None


class SizeRange(Record):
    """The sizes that a symbol stands for; high is None where there is no bound."""

    name: str
    low: int
    high: int | None = None


class EntryPoint(Record):
    """A function of the package. parameters: names of its arguments in order, one for each item of `arguments`; the first `positional`
    may be given by place."""

    name: str
    parameters: tuple[str, ...]
    positional: int
    arguments: Tree
    leaves: tuple[Leaf, ...]
    result: Tree
    results: tuple[Leaf, ...]
    symbols: tuple[SizeRange, ...] = ()
    updated_arguments: tuple[int, ...] = ()
    """Leaves that a call writes to."""


class Target(Record):
    """What the code of a package was made for. features: what the CPU must have, as Linux names it; capability: of a GPU of
    NVIDIA's, 90 for sm_90; architecture: of one of AMD's, gfx942; multiprocessors: how many the GPU must have, for kernels whose programs
    wait for each other; machine: the kind of processor that the program runs on, as `uname -m` names it on Linux."""

    name: str
    features: tuple[str, ...] = ()
    capability: int = 0
    multiprocessors: int = 0
    architecture: str = ""
    machine: Literal["x86_64", "aarch64"] = "x86_64"

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run on a GPU."""
        return self.capability > 0 or self.architecture != ""


class Signature(Record):
    """The first thing that is read of a package. targets: best first."""

    entries: tuple[EntryPoint, ...]
    targets: tuple[Target, ...]
    handle_offset: int
    """Where a tensor's Python object holds its `at::Tensor`, as the runtime expects it."""
    versions: dict[str, str] = {}


class Tensor(Record):
    """A weight: a view of a storage. sizes and strides in elements, offset in elements."""

    name: str
    storage: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    kind: Literal["parameter", "buffer", "constant"] = "parameter"


class Storage(Record):
    """Bytes of the section of weights."""

    offset: int
    size: int


class Weights(Record):
    """What is in the section of weights. Tensors that share memory share a storage."""

    storages: tuple[Storage, ...]
    tensors: tuple[Tensor, ...]
