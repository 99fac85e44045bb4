"""Runs a kernel of `tt` through torch on the CPU, for small inputs: every program of the grid, one after the other (those that wait for
each other by turns, together.py).

Pointers are the addresses of the tensors that are passed, so tables of pointers work; every access is checked against
the tensors, and names the operation, the program and the address if it is outside. Elements that a masked load does
not define are NaN or a number that no index is, so that a kernel which uses them is found out; so is one that relies on an
order of threads or programs which a GPU does not keep (races.py). Floating point sums and products are those of
torch: a comparison with a GPU needs tolerances.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ....dialects.tt.structure import FuncOp
from ....dialects.tt.types import PointerType, TensorDescType, element_of, ptr, shape_of
from ....passes.manager.locations import source_location
from ..errors import InterpreterError
from .races import Order, Races, TracedAccess
from .together import RESIDENT, Turns, wait_for_each_other
from .types import dtype_of, poison

RULES: dict[str, Callable[[Any, Operation], Sequence[Any] | None]] = {}
"""Operation name -> rule(runner, op): the values of the results (None for no result)."""


class KernelError(InterpreterError):
    """A kernel did what it must not: an access outside of its tensors, an assert that does not hold, ..."""


class Memory:
    """The tensors that a kernel may reach, by address."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        spans: dict[int, tuple[int, torch.UntypedStorage]] = {}
        for t in tensors:
            if t.numel() == 0:
                continue
            reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
            start, size = t.data_ptr(), reach * t.element_size()
            if start not in spans or spans[start][0] < size:
                spans[start] = (size, t.untyped_storage())
        self.starts: list[int] = []
        self.sizes: list[int] = []
        self.storages: list[torch.UntypedStorage] = []
        for start in sorted(spans):
            size, storage = spans[start]
            if self.starts and start < self.starts[-1] + self.sizes[-1]:  # a view of what another one is a view of, too
                self.sizes[-1] = max(self.sizes[-1], start + size - self.starts[-1])
                continue
            self.starts.append(start)
            self.sizes.append(size)
            self.storages.append(storage)
        self.stores = 0
        """How often something was stored."""

    def _places(self, addresses: torch.Tensor, size: int) -> list[tuple[torch.UntypedStorage, torch.Tensor, torch.Tensor]]:
        """For each tensor that is reached: its storage, which addresses lie in it, and their elements."""
        found = []
        left = torch.ones_like(addresses, dtype=torch.bool)
        while bool(left.any()):
            first = int(addresses[left][0])
            index = bisect_right(self.starts, first) - 1
            if index < 0 or first + size > self.starts[index] + self.sizes[index]:
                raise KernelError(self._outside(first, size, index))
            start, end = self.starts[index], self.starts[index] + self.sizes[index]
            inside = left & (addresses >= start) & (addresses + size <= end)
            storage = self.storages[index]
            offset = addresses[inside] - storage.data_ptr()
            if bool((offset % size).any()):
                raise KernelError(f"an address is no multiple of the {size} bytes of an element")
            found.append((storage, inside, offset // size))
            left &= ~inside
        return found

    def _outside(self, address: int, size: int, index: int) -> str:
        if index < 0:
            return f"{size} bytes at address {address:#x}, where no tensor lies"
        distance = address - self.starts[index]
        return f"{size} bytes at byte {distance} of a tensor of {self.sizes[index]} bytes"

    def load(self, addresses: torch.Tensor, dtype: torch.dtype, access: TracedAccess | None = None) -> torch.Tensor:
        """The elements at `addresses` (1-D). `access`: who looks at their order."""
        out = torch.empty(addresses.shape, dtype=dtype)
        for storage, inside, elements in self._places(addresses, dtype.itemsize):
            out[inside] = _view(storage, dtype)[elements]
            if access is not None:
                access.load(storage, inside, elements * dtype.itemsize)
        return out

    def store(self, addresses: torch.Tensor, values: torch.Tensor, access: TracedAccess | None = None) -> None:
        """Store `values` at `addresses` (1-D); the last of several at one address stays. `access`: who looks at their order."""
        self.stores += 1
        for storage, inside, elements in self._places(addresses, values.dtype.itemsize):
            there = _view(storage, values.dtype)
            if access is not None:
                access.store(storage, inside, elements * values.dtype.itemsize, there[elements], values[inside])
            there[elements] = values[inside]


def _view(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,))


class Runner:
    """One program of a kernel: `program` is its place in `grid`."""

    def __init__(
        self,
        module: ModuleOp,
        memory: Memory,
        grid: tuple[int, ...],
        program: tuple[int, ...],
        functions: dict[str, Callable[..., Any]],
        printed: list[str],
        order: Order,
    ) -> None:
        self.module = module
        self.memory = memory
        self.grid = grid
        self.program = program
        self.functions = functions
        self.printed = printed
        self.turns: Turns | None = None
        """Who lets the other programs run where this one waits for them; None: nobody waits."""
        self.order = order
        """Looks for accesses whose order nothing settles."""
        self.values: dict[SSAValue, Any] = {}
        self.callees = {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)}

    def get(self, value: SSAValue) -> Any:
        """What a value is: a tensor of torch (0-d for a scalar), a descriptor or a block pointer."""
        return self.values[value]

    def operands(self, op: Operation) -> list[Any]:
        """What the operands of `op` are."""
        return [self.values[v] for v in op.operands]

    def call(self, func: FuncOp, arguments: Sequence[Any]) -> list[Any]:
        """Run a function; what it returns."""
        if not func.body.blocks:
            raise KernelError(f"@{func.sym_name.data} is declared only")
        return self.region(func.body, arguments)

    def region(self, region: Region, arguments: Sequence[Any]) -> list[Any]:
        """Run a region from its first block; the operands of the terminator that leaves it."""
        block: Block | None = region.blocks[0]
        while True:
            assert block is not None
            self.values.update(zip(block.args, arguments, strict=True))
            last = block.last_op
            for op in block.ops:
                if op is not last or not (op.successors or _leaves(op)):
                    self.run(op)
            assert last is not None
            if not last.successors:
                return self.operands(last) if _leaves(last) else []
            block, arguments = self._branch(last)

    def _branch(self, op: Operation) -> tuple[Block, list[Any]]:
        values = self.operands(op)
        if op.name == "cf.br":
            return op.successors[0], values
        if op.name != "cf.cond_br":
            raise KernelError(f"'{op.name}' cannot be interpreted")
        taken = 0 if bool(values[0]) else 1
        count = len(op.successors[0].args)
        return op.successors[taken], values[1 : 1 + count] if taken == 0 else values[1 + count :]

    def run(self, op: Operation) -> None:
        """Run one operation and note its results.  KernelError that says where it stands, if it fails."""
        rule = RULES.get(op.name)
        try:
            if rule is None:
                raise KernelError("it cannot be interpreted")
            results = rule(self, op)
        except _Located:
            raise
        except (KernelError, RuntimeError) as error:
            place = source_location(op.location)
            at = f"{place}: " if place is not None else ""
            text = f"{at}'{op.name}' op: {error} (program {', '.join(map(str, self.program))})"
            raise _Located(text) from error
        if results is not None:
            self.values.update(zip(op.results, results, strict=True))

    # Memory.

    def load(
        self,
        pointers: torch.Tensor,
        element: Attribute,
        mask: torch.Tensor | None,
        other: Any,
        unordered: bool = False,
        copied: bool = False,
    ) -> torch.Tensor:
        """The elements that `pointers` point to, where the mask is set; elsewhere `other`, or poison. `unordered`: other programs may store
        them meanwhile; `copied`: they are a block of a descriptor."""
        dtype = dtype_of(element)
        if other is None:
            out = torch.full(pointers.shape, poison(dtype), dtype=torch.float32 if dtype.itemsize == 1 else dtype)
            out = out.to(dtype)
        else:
            out = other.expand(pointers.shape).clone()
        chosen = torch.ones(pointers.shape, dtype=torch.bool) if mask is None else mask.expand(pointers.shape)
        if bool(chosen.any()):
            access = None if unordered else self.order.access(chosen, copied=copied)
            loaded = self.memory.load(pointers[chosen].reshape(-1), dtype, access)
            if out.dim() == 0:
                return loaded.reshape(())
            out[chosen] = loaded
        return out

    def store(
        self,
        pointers: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        unordered: bool = False,
        scattered: bool = False,
        copied: bool = False,
    ) -> None:
        """Store values where the mask is set. `unordered`: as atomic operations do; `scattered`: at places that memory says; `copied`: as
        a block of a descriptor."""
        chosen = torch.ones(pointers.shape, dtype=torch.bool) if mask is None else mask.expand(pointers.shape)
        if bool(chosen.any()):
            access = None if unordered else self.order.access(chosen, scattered, copied)
            self.memory.store(pointers[chosen].reshape(-1), values.expand(pointers.shape)[chosen].reshape(-1), access)


def _leaves(op: Operation) -> bool:
    return op.name.endswith((".return", ".yield", ".condition"))


class _Located(KernelError):
    """An error that says where it happened."""


def run_kernel(
    module: ModuleOp,
    arguments: Sequence[Any],
    grid: Sequence[int],
    *,
    reachable: Sequence[torch.Tensor] = (),
    functions: dict[str, Callable[..., Any]] | None = None,
    resident: int = RESIDENT,
) -> list[str]:
    """Run the kernel of `module` for every program of `grid` (one to three sizes); what it printed.

    arguments: a CPU tensor for each pointer, which is written in place, and a number for each scalar; for a descriptor a tensor of which
    only the address counts: sizes and strides are the arguments behind it. reachable: tensors that the kernel finds by address.
    functions: what inline assembly and external functions that are not known compute, by their text or symbol. resident: how many
    programs are under way at once, if they wait for each other. Raises KernelError for an access outside of the tensors or in an order
    that nothing settles, an assert that does not hold, programs that wait for ever, and what cannot be interpreted."""
    from . import ops as interpret_tt_ops  # noqa: F401  (fills RULES)

    kernels = [op for op in module.ops if isinstance(op, FuncOp) and op.is_kernel]
    if len(kernels) != 1:
        raise KernelError(f"the module holds {len(kernels)} kernels, not one")
    (kernel,) = kernels
    types = [a.type for a in kernel.body.blocks[0].args]
    if len(types) != len(arguments):
        raise KernelError(f"@{kernel.sym_name.data} takes {len(types)} arguments, got {len(arguments)}")
    memory = Memory([a for a in (*arguments, *reachable) if isinstance(a, torch.Tensor)])
    values = [_argument(a, t, i) for i, (a, t) in enumerate(zip(arguments, types, strict=True))]
    for i, type in enumerate(types):
        if isinstance(type, TensorDescType):
            values[i] = _described(type, values, i)
    sizes = (*grid, 1, 1)[:3]
    printed: list[str] = []
    races = Races(_threads(kernel))
    runners = (
        Runner(module, memory, sizes, (x, y, z), functions or {}, printed, Order(races))
        for z, y, x in itertools.product(*(range(n) for n in reversed(sizes)))
    )
    if wait_for_each_other(module):
        _by_turns(runners, memory, kernel, values, resident)
        return printed
    with torch.no_grad():
        for runner in runners:
            runner.call(kernel, values)
    return printed


def _threads(kernel: FuncOp) -> int:
    """How many threads a program has, on a GPU with warps of 32. A kernel that does not say (Triton's text) has one: of the threads that
    share an element Triton lets one store it, which has loaded it before."""
    warps = kernel.attributes.get("num_warps")
    return 32 * warps.value.data if isinstance(warps, IntegerAttr) else 1


def _by_turns(runners: Iterator[Runner], memory: Memory, kernel: FuncOp, values: list[Any], resident: int) -> None:
    def program(runner: Runner) -> Callable[[], object]:
        runner.turns = turns
        return lambda: runner.call(kernel, values)

    turns = Turns((program(runner) for runner in runners), resident, lambda: memory.stores)
    turns.run()


def _described(type: TensorDescType, values: Sequence[torch.Tensor], index: int) -> Any:
    """The descriptor that is an argument, by its address and the sizes and strides behind it."""
    from .blocks import descriptor

    rank = len(type.block.get_shape())
    behind = [int(v) for v in values[index + 1 : index + 1 + 2 * rank]]
    try:
        return descriptor(type, int(values[index]), tuple(behind[:rank]), tuple(behind[rank:]))
    except KernelError as error:
        raise KernelError(f"argument {index}: {error}") from error


def _argument(value: Any, type: Attribute, index: int) -> torch.Tensor:
    if isinstance(type, PointerType | TensorDescType):
        if not isinstance(value, torch.Tensor):
            raise KernelError(f"argument {index} is a pointer, pass a tensor")
        type = type if isinstance(type, PointerType) else ptr(type.block.element_type)
        wanted = dtype_of(type.pointee)
        # a complex number of 128 bits is two of 64
        if value.dtype.itemsize != wanted.itemsize and not (value.dtype == torch.complex128 and wanted == torch.int64):
            raise KernelError(f"argument {index} points to {type.pointee}, got a tensor of {value.dtype}")
        return torch.tensor(value.data_ptr(), dtype=torch.int64)
    if isinstance(value, torch.Tensor):
        raise KernelError(f"argument {index} is a scalar, got a tensor")
    return torch.tensor(value, dtype=dtype_of(element_of(type)))


def shape_or_scalar(type: Attribute) -> tuple[int, ...]:
    """The shape of a tensor type; () for a scalar."""
    return shape_of(type) or ()
