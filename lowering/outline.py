"""Nests on buffers as kernels and launches of them, whatever the target: what a kernel takes, and equal nests once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ..dialects import loop
from ..dialects.expr import Expr, Sym, free_syms
from ..dialects.expr.ranges import RangeEnv
from ..dialects.host import Descriptor, LaunchOp
from ..dialects.mem import BufferType
from ..dialects.nd.types import element_bytes
from ..dialects.support.names import keep_name
from ..dialects.support.replace import replace_op
from ..passes.analysis.nest_access import NestAccess
from ..passes.analysis.nest_key import nest_key
from ..passes.analysis.origins import origins

MAX_NAME_CHARACTERS = 64
"""Characters of a kernel's name, without its number."""
_NUMBER, _ODD = re.compile(r"_\d+$"), re.compile(r"\W+", re.ASCII)
_PLUMBING = frozenset((
    "getitem", "view", "expand", "permute", "clone", "unsqueeze", "squeeze", "slice", "to_copy", "convert_element_type", "full",
))  # fmt: skip
"""Operators that say little of what a kernel computes."""


@dataclass(frozen=True)
class DescribedBuffer:
    """A tensor in the memory of a buffer that a launch describes to the GPU: it begins `offset` elements behind the buffer's first one.
    `strides` count elements, the last one is 1; sizes, strides and offset are expressions of size symbols, which the host computes."""

    buffer: SSAValue
    offset: Expr
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    block: tuple[int, ...]
    """Elements of a load or store, along each dimension."""


class Arguments:
    """What a kernel takes: the buffers of the nest (outs first), the size symbols it computes with, other captured
    values, then the descriptors of buffers."""

    def __init__(self, nest: loop.NestOp, info: NestAccess):
        self.buffers: dict[SSAValue, None] = dict.fromkeys(nest.outs)
        self.scalars: dict[SSAValue, None] = {}
        symbols: set[Sym] = set()
        inside: set[SSAValue] = set()
        self._capture(nest, info, inside)
        for node in info.root.walk():
            for one in node.loops:
                symbols |= free_syms(one.size)
        for access in info.access.values():
            symbols |= free_syms(access.offset)
        for e in info.exprs.values():
            symbols |= free_syms(e)
        for op in loop.walk_bodies(nest):
            if isinstance(op, loop.BoundOp):
                symbols |= free_syms(op.size.data)
        self.symbols = sorted(symbols, key=lambda s: s.name)
        self.derived: list[Expr] = []
        """What else is computed from sizes once for all programs, by the host."""
        self.described: list[DescribedBuffer] = []
        """What the launch describes to the GPU (lowering/mem_to_tt/descriptors.py); their buffers are among `buffers`."""

    @property
    def descriptors(self) -> list[Descriptor]:
        """The descriptors that a launch passes behind everything else."""
        places = {buffer: k for k, buffer in enumerate(self.buffers)}
        found: list[Descriptor] = []
        for one in self.described:
            offset = one.offset * element_bytes(loop.element_type(one.buffer.type))
            found.append(Descriptor(places[one.buffer], offset, one.sizes, one.strides))
        return found

    @property
    def sizes(self) -> list[Expr]:
        """The numbers that a launch passes after the addresses."""
        return [*self.symbols, *self.derived]

    def name(self, entry: Block) -> None:
        """Call the arguments of the kernel's block as what they are here."""
        values = list(entry.args)
        for new, old in zip(values, self.buffers, strict=False):
            keep_name(new, old)
        for new, symbol in zip(values[len(self.buffers) :], self.symbols, strict=False):
            new.name_hint = symbol.name
        for new, old in zip(values[len(self.buffers) + len(self.sizes) :], self.scalars, strict=False):
            keep_name(new, old)

    def _capture(self, op: Operation, info: NestAccess, inside: set[SSAValue]) -> None:
        for region in op.regions:
            for block in region.blocks:
                inside.update(block.args)
                for inner in block.ops:
                    for value in inner.operands:
                        if value in inside:
                            continue
                        if loop.is_shaped(value.type):
                            self.buffers[info.buffer(value)] = None
                        else:
                            self.scalars[value] = None
                    inside.update(inner.results)
                    if inner.regions:
                        self._capture(inner, info, inside)

    def operands(self) -> list[SSAValue]:
        """The values that a launch passes (the sizes apart)."""
        return [*self.buffers, *self.scalars]


class Outliner:
    """Replaces nests by launches; kernels are appended to the module as they are needed. A target says how one is made."""

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int]):
        self.module = module
        self.symbols = symbols
        self.hints = hints
        self._kernels: dict[tuple[object, ...], tuple[str, list[int], list[Expr], dict[str, Any]]] = {}
        self._taken = {name.data for op in module.ops if (name := op.properties.get("sym_name")) is not None}  # pyright: ignore[reportAttributeAccessIssue]
        self._numbers: Counter[str] = Counter()

    def kernel(self, name: str, nest: loop.NestOp, info: NestAccess) -> tuple[Operation, Arguments, dict[str, Any]]:
        """The kernel of a nest, what it takes, and what a launch says beside (arguments of LaunchOp.make)."""
        raise NotImplementedError

    def access(self, nest: loop.NestOp) -> NestAccess:
        """The analysis of a nest that its kernel is made from."""
        return NestAccess(nest, self.symbols)

    def new_name(self, nests: Sequence[Operation]) -> str:
        """What a kernel of nests is called: `k_` and the operators that they compute, as profilers show it (`k_add_relu`, a second one
        `k_add_relu_1`); `k0`, `k1`, ... where nothing says them."""
        base = operators(nests)
        stem = f"k_{base}" if base else "k"
        while True:
            number = self._numbers[stem]
            self._numbers[stem] += 1
            name = stem if base and not number else f"{stem}_{number}" if base else f"{stem}{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def facts(self, buffers: Sequence[SSAValue]) -> tuple[object, ...]:
        """What kernels depend on beside the structure of their nest."""
        return ()

    def outline(self, nest: Operation) -> tuple[LaunchOp, bool]:
        """Replace one nest; its launch, and whether the kernel was there already."""
        assert isinstance(nest, loop.NestOp)
        key, numbers = nest_key(nest)
        key = (*key, *self.facts([v for v in numbers if isinstance(v.type, BufferType)]))
        shared = self._kernels.get(key)
        if shared is None:
            name = self.new_name([nest])
            kernel, arguments, launch = self.kernel(name, nest, self.access(nest))
            if arguments.described:
                launch = {**launch, "descriptors": arguments.descriptors}
            kernel.location = nest.location
            self.module.body.block.add_op(kernel)
            operands, sizes = arguments.operands(), arguments.sizes
            self._kernels[key] = name, [numbers[v] for v in operands], sizes, launch
        else:
            name, places, sizes, launch = shared
            values = {number: value for value, number in numbers.items()}
            operands = [values[k] for k in places]
        op = LaunchOp.make(name, operands, sizes, bytes=traffic(operands), **launch)
        replace_op(nest, op)
        return op, shared is not None


def operators(nests: Sequence[Operation]) -> str:
    """The operators that nests compute, as their places name them, each once and without its number; "" where none is named."""
    names: dict[str, None] = {}
    for op in (op for nest in nests for op in _innermost_first(nest)):
        names |= dict.fromkeys(_NUMBER.sub("", _ODD.sub("_", name)).strip("_") for name, _, _ in origins(op.location) if name)
    text = ""
    for name in [n for n in names if n and n not in _PLUMBING] or list(names):
        if text and len(text) + len(name) >= MAX_NAME_CHARACTERS:
            break
        text += f"_{name}" if text else name
    return text[:MAX_NAME_CHARACTERS]


def _innermost_first(op: Operation) -> Iterator[Operation]:
    """The operations of a nest as they are computed: a reduction behind what it is of."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield from _innermost_first(inner)
    yield op


def traffic(operands: Sequence[SSAValue]) -> Expr | int:
    """Bytes of all buffers that a kernel touches: what its launch moves at most, once."""
    total: Expr | int = 0
    for value in operands:
        if isinstance(value.type, BufferType):
            total = total + value.type.numel * element_bytes(value.type.element_type)
    return total
