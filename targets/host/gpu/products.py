"""Products of matrices that are the library's, planned once for the tensors of a call: what the call is to cuBLASLt, which of its
algorithms computes it, in which memory.

    aten.addmm.out(b, x, w, out=y)     ->   Problem(columns, rows, terms, the matrices as they lie, bias=True)
    Problem                            ->   a node of products.ll, which the call finds by the sizes and strides of its tensors

A call through torch asks the library again each time which algorithm it takes, and makes descriptions of the matrices anew. Products of
16-bit numbers are planned, in float32 sums, whatever is left is torch's. With the option `autotune` the algorithms that the library
proposes are measured, on the tensors of the first call, and the fastest is kept (`products.json` in the cache folder)."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, Protocol

from xdsl.dialects.builtin import StringAttr, bf16, f16

from ....dialects import host
from ....dialects.machine import is_repeatable, module_of
from ....dialects.nd.call_args import Arg, Call
from ....dialects.support.record import Record
from ...measurements import Measurements
from .runtime_ir import Node, ProductLimit


class PlanLimit(IntEnum):
    """How much is planned."""

    NODES = 64
    """Sizes for which a call has a plan; with others it is torch's."""
    PROPOSED = 16
    """Algorithms that the library is asked for where they are measured."""
    ROUNDS = 3
    """How often each of them is measured."""
    WORKSPACE_BYTES = 32 << 20
    """Memory beside its tensors that a product may take, as torch lets the library take on its newest GPUs."""


TYPES = ("bfloat16", "float16")
"""The types of elements of products that are planned."""


class Operands(Record):
    """The names that an operator has for the tensors of a product: `out` = `left` `right`, and `added`, "" where nothing is."""

    left: str
    right: str
    added: str = ""


OPERATORS: Mapping[str, Operands] = {
    "aten.mm.out": Operands("self", "mat2"),
    "aten.bmm.out": Operands("self", "mat2"),
    "aten.addmm.out": Operands("mat1", "mat2", "self"),
    "aten.baddbmm.out": Operands("batch1", "batch2", "self"),
    "aten._addmm_activation.out": Operands("mat1", "mat2", "self"),
}
"""The operators that are products."""


def product_operands(op: host.ExternOp, named: Mapping[str, tuple[Any, Any]]) -> tuple[Arg, ...] | None:
    """The tensors of a call that may be planned: the factors, the result and what is added to it. None of another call, for types that are
    torch's, and where sums are to be those of eager mode, or of every run. `named`: the arguments by their names in the schema, each with
    its type."""
    names, module = OPERATORS.get(op.call.data.target), module_of(op)
    if names is None or module is None or is_repeatable(op) or module.attributes.get("nd.numerics") == StringAttr("eager"):
        return None
    values = [named[n][1] for n in (names.left, names.right, "out", names.added) if n]
    numbers = [named[n][1] for n in ("alpha", "beta") if n in named]
    types = {t.element_type for v in values if isinstance(v, Arg) and isinstance(t := op.inputs[v.index].type, host.TensorType)}
    fits = all(isinstance(v, Arg) for v in values) and all(isinstance(n, int | float) for n in numbers)
    return tuple(values) if fits and types in ({bf16}, {f16}) else None


class Layout(Record):
    """Sizes and strides of a tensor, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Matrix:
    """A matrix as the library sees it, column after column: elements from one column to the next, whether it is the transposed one that
    is meant, and elements from one matrix of a batch to the next."""

    rows: int
    columns: int
    leading: int
    transposed: bool = False
    step: int = 0


@dataclass(frozen=True)
class Problem:
    """`result` = `left` `right`, in the library's order: the transposed matrices of torch, which keeps rows, the factors swapped.
    `activation`: "relu", "gelu" (by a hyperbolic tangent) or ""."""

    type: str
    batch: int
    left: Matrix
    right: Matrix
    added: Matrix
    result: Matrix
    adds: bool
    has_bias: bool
    activation: str
    alpha: float
    beta: float

    @property
    def key(self) -> str:
        """What tells problems apart, in a file."""
        return sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()[:32]


def problem(type: str, left: Layout, right: Layout, out: Layout, added: Layout | None, call: Call) -> Problem | None:
    """What a call is to the library; None where that has no such product, and for an empty one. `type`: of all elements."""
    keywords = dict(call.kwargs)
    alpha, beta = float(keywords.get("alpha", 1)), float(keywords.get("beta", 1))
    if type not in TYPES or len(out.sizes) not in (2, ProductLimit.RANK) or 0 in (*left.sizes, *right.sizes):
        return None
    x, y, result = _matrix(right), _matrix(left), _matrix(out)
    if x is None or y is None or result is None or result.transposed:
        return None
    has_bias = added is not None and beta == 1 and _is_bias(added, out)
    c = result if added is None or has_bias else _matrix(added) if added.sizes == out.sizes else None
    if c is None or c.transposed:
        return None
    activation = ("gelu" if keywords.get("use_gelu") else "relu") if "activation" in call.target else ""
    batch = out.sizes[0] if len(out.sizes) == ProductLimit.RANK else 1
    adds = added is not None and not has_bias
    return Problem(type, batch, x, y, c, result, adds, has_bias, activation, alpha, beta if adds else 0.0)


def _matrix(layout: Layout) -> Matrix | None:
    """The last two dimensions as a matrix; None where neither follows itself in memory."""
    (rows, columns), (down, along) = layout.sizes[-2:], layout.strides[-2:]
    step = layout.strides[0] if len(layout.sizes) > 2 else 0
    if along == 1 or columns == 1:
        if down >= columns or rows == 1:
            return Matrix(columns, rows, max(down, columns) if rows > 1 else columns, step=step)
    if down == 1 or rows == 1:
        if along >= rows or columns == 1:
            return Matrix(rows, columns, max(along, rows) if columns > 1 else rows, transposed=True, step=step)
    return None


def _is_bias(added: Layout, out: Layout) -> bool:
    """Whether what is added is one number for each column."""
    columns = out.sizes[-1]
    return len(out.sizes) == 2 and added.sizes == (columns,) and (added.strides == (1,) or columns == 1)


class Algorithm(Record):
    """How the library computes a product: its own description, and the bytes of memory that it needs beside."""

    code: bytes
    workspace: int


class Prepared(Protocol):
    """A problem as the library has it."""

    head: tuple[int, ...]
    """Addresses: the function that multiplies, that sets an attribute, the handle, the description, the layouts of the factors, of what is
    added and of the result."""

    def proposed(self, count: int) -> Sequence[Algorithm]:
        """Algorithms, the one that is expected to be the fastest first."""
        ...

    def checked(self, code: bytes) -> Algorithm | None:
        """An algorithm that was found before; None where it does not fit."""
        ...

    def release(self) -> None:
        """Give the descriptions back."""
        ...


class ProductLibrary(Protocol):
    """What multiplies matrices on a GPU."""

    def machine(self, device: str) -> str:
        """What times depend on: the model of the GPU, the name and version of the library."""
        ...

    def prepared(self, context: int, problem: Problem, bias: int) -> Prepared | None:
        """A problem with a bias at that address (0: none) in the current context; None where it takes no such problem."""
        ...

    def workspace(self, context: int, stream: int, bytes: int, device: str) -> Any:
        """Memory for one product after the other of a stream, a tensor."""
        ...

    def can_measure(self, device: str) -> bool:
        """Whether launches can be measured now: not while they are recorded to be run later."""
        ...

    def seconds(self, node: int, addresses: Sequence[int], stream: int, device: str) -> float:
        """What the product of a node takes; inf where it fails. `addresses`: of the tensors, by role."""
        ...


class ProductPlans:
    """What a program has planned of its products."""

    def __init__(self, device: str, library: ProductLibrary | None, measures: bool, times: Path):
        self.device = device
        self.library = library
        self.times = Measurements(times, library.machine(device)) if measures and library is not None else None
        self._counts: dict[int, int] = {}
        self._nodes: list[_Node] = []
        self._lock = threading.RLock()  # what is made for a plan may run other code of the thread

    def plan(self, call: Call, operands: Sequence[Any], site: int, context: int, stream: int) -> None:
        """Add a node for such tensors to those of a call (products.ll). `operands`: the factors, the result, what is added."""
        with self._lock:
            count = self._counts[site] = self._counts.get(site, 0) + 1
            if count > PlanLimit.NODES:
                return
            node, head = _Node(self, operands, context, stream), ctypes.c_int64.from_address(site)
            node.plan(call)
            node.words[Node.NEXT] = head.value
            self._nodes.append(node)
            head.value = node.address  # last: from then on other threads find it


class _Node:
    """A node of products.ll, and what it points to."""

    def __init__(self, plans: ProductPlans, operands: Sequence[Any], context: int, stream: int):
        self.device, self.library, self.times = plans.device, plans.library, plans.times
        self.context, self.stream = context, stream
        self.types = {str(t.dtype).removeprefix("torch.") for t in operands}
        self.layouts = [Layout(tuple(t.shape), tuple(t.stride())) for t in operands]
        self.addresses = [t.data_ptr() for t in operands]
        key = [context, stream, *(w for one in self.layouts for w in (len(one.sizes), *one.sizes, *one.strides))]
        self.words = (ctypes.c_int64 * (Node.KEY + len(key)))()
        self.words[Node.WORDS] = len(key)
        self.words[Node.KEY :] = key
        self._prepared: Prepared | None = None
        self._held: list[Any] = []

    def __del__(self) -> None:
        if self._prepared is not None:
            self._prepared.release()

    @property
    def address(self) -> int:
        return ctypes.addressof(self.words)

    def plan(self, call: Call) -> None:
        """Note how a call with such tensors is computed; nothing where the library does not."""
        left, right, out, *more = self.layouts
        found = problem(next(iter(self.types)), left, right, out, more[0] if more else None, call) if len(self.types) == 1 else None
        if found is None or self.library is None:
            return
        bias = self.addresses[3] if found.has_bias else 0
        prepared = self._prepared = self.library.prepared(self.context, found, bias)
        if prepared is None:
            return
        roles = (1, 0, 3 if found.adds else 2, 2, 3 if found.has_bias else -1)
        self.words[Node.SET : Node.ALGORITHM] = prepared.head[1:]
        self.words[Node.BIAS] = bias
        self.words[Node.FACTORS] = int.from_bytes(struct.pack("=ff", found.alpha, found.beta), "little", signed=True)
        self.words[Node.ROLES : Node.WORDS] = roles
        chosen = self._chosen(self.library, prepared, found)
        if chosen is not None and self._take(self.library, chosen):
            self.words[Node.MATMUL] = prepared.head[0]

    def _take(self, library: ProductLibrary, chosen: Algorithm) -> bool:
        """Note an algorithm, with its memory; False where there is none."""
        import torch

        code = ctypes.create_string_buffer(chosen.code, len(chosen.code))
        try:
            memory = library.workspace(self.context, self.stream, chosen.workspace, self.device) if chosen.workspace else None
        except torch.OutOfMemoryError:
            return False
        self._held = [code, memory]
        self.words[Node.ALGORITHM] = ctypes.addressof(code)
        self.words[Node.WORKSPACE], self.words[Node.BYTES] = (memory.data_ptr() if memory is not None else 0), chosen.workspace
        return True

    def _chosen(self, library: ProductLibrary, prepared: Prepared, found: Problem) -> Algorithm | None:
        """The algorithm that was measured to be the fastest, else the one that the library expects to be; None for none."""
        if self.times is None:
            return next(iter(prepared.proposed(1)), None)
        kept = self.times.find(found.key)
        if kept is not None and (checked := prepared.checked(_algorithm(kept))) is not None:
            return checked
        proposed = prepared.proposed(PlanLimit.PROPOSED)
        aliased = found.adds and self.addresses[2] == self.addresses[3]  # each run would add once more
        if len(proposed) < 2 or aliased or not library.can_measure(self.device):
            return next(iter(proposed), None)
        seconds = [inf] * len(proposed)
        for _ in range(PlanLimit.ROUNDS):  # in turns: a GPU that gets warm becomes slower
            seconds = [min(known, self._seconds(library, one)) for known, one in zip(seconds, proposed, strict=True)]
        best = min(range(len(proposed)), key=seconds.__getitem__)
        if seconds[best] == inf:
            return None
        times = [round(s * 1e6, 2) for s in seconds if s < inf]
        self.times.keep(found.key, {"problem": asdict(found), "microseconds": times, "algorithm": proposed[best].code.hex()})
        return proposed[best]

    def _seconds(self, library: ProductLibrary, one: Algorithm) -> float:
        """What an algorithm takes, with the tensors of the call."""
        addresses = [self.addresses[k] for k in self.words[Node.ROLES : Node.ROLES + 4]]
        return library.seconds(self.address, addresses, self.stream, self.device) if self._take(library, one) else inf


def _algorithm(entry: Mapping[str, Any]) -> bytes:
    """The description of the algorithm of an entry; none where somebody has written another one."""
    try:
        return bytes.fromhex(entry["algorithm"])
    except (KeyError, TypeError, ValueError):
        return b""
