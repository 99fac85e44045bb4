"""What a nest reads, writes and costs: pure facts, computed once from its body and used by planning.

Index expressions are over `Dim(k)`: the nest's own loops first, then its inner loops in the order in which they are met, then one
dimension for each loaded index (these are in `opaque`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Dim, Expr, IndexMap, dim, free_dims
from .op_costs import op_cost

HEAVY = frozenset(
    "math.exp math.exp2 math.expm1 math.log math.log2 math.log10 math.log1p math.sin math.cos math.tan math.sinh math.cosh math.tanh "
    "math.asin math.acos math.atan math.asinh math.acosh math.atanh math.erf math.powf math.atan2 math.cbrt loop.math loop.random "
    "math.sqrt math.rsqrt arith.divf arith.floordivsi arith.divsi arith.remsi".split()
)
"""Ops that cost about as much as a memory access or more."""


@dataclass(slots=True)
class TensorAccess:
    """One load or store: the tensor and the index expressions."""

    tensor: SSAValue
    index: tuple[Expr, ...]
    op: Operation


@dataclass
class NestInfo:
    """Facts about one nest (see nest_info)."""

    op: loop.NestOp
    sizes: tuple[Expr, ...]
    indices: tuple[SSAValue, ...]
    """Its loop indices."""
    outs: tuple[SSAValue, ...]
    """The initial tensors of `op`."""
    out_args: tuple[SSAValue, ...]
    """What stands for them in its body."""
    reads: list[TensorAccess] = field(default_factory=list)
    writes: list[TensorAccess] = field(default_factory=list)
    dims: list[Expr] = field(default_factory=list)
    """The size of the loop that a dimension is, or the bound of the loaded index."""
    place: dict[SSAValue, Expr] = field(default_factory=dict)
    """Indices as expressions over the dimensions."""
    inner_sizes: list[Expr] = field(default_factory=list)
    opaque: set[Dim] = field(default_factory=set)
    ops: int = 0
    heavy: int = 0
    parts: list[tuple[tuple[Expr, ...], float]] = field(default_factory=list)
    """For each block of the body, the sizes of all loops around it and its vector operations (op_costs.py)."""
    has_loops: bool = False
    reductions: int = 0
    other_loops: int = 0
    sequential: bool = False
    has_memory: bool = False
    """Whether its iterations have memory of their own."""
    multiplies: bool = False
    """Whether it is the terms of a matrix product (`fastmath<contract>`)."""

    @cached_property
    def is_pointwise(self) -> bool:
        """No inner loops, every out stored once, whole, at the loop indices in order, and not built on an initial tensor."""
        return not self.has_loops and all([self.stores_whole(k) for k in range(len(self.outs))]) and bool(self.outs)

    def stores_whole(self, k: int) -> bool:
        """Out `k` is new, written once and in full: element (i, j, ...) by iteration (i, j, ...)."""
        stores = self.stored(k)
        if len(stores) != 1 or not isinstance(self.outs[k].owner, loop.EmptyOp):
            return False
        store = stores[0].op
        assert isinstance(store, loop.StoreOp)
        identity = stores[0].index == tuple(dim(d) for d in range(len(self.sizes)))
        return identity and store.mode is None and store.masked is None and loop.shaped_dims(self.out_args[k].type) == self.sizes

    def stored(self, k: int) -> list[TensorAccess]:
        """The stores to out `k`."""
        out = self.out_args[k]
        return [w for w in self.writes if w.tensor is out]

    @property
    def reduce(self) -> loop.ReduceOp | None:
        """The one top-level reduction of a nest that has no other loop."""
        if self.reductions != 1 or self.other_loops:
            return None
        return next((op for op in self.op.block.ops if isinstance(op, loop.ReduceOp)), None)

    @property
    def scan(self) -> loop.ScanOp | None:
        """The one top-level scan of a nest that has no other loop."""
        if self.reductions or self.other_loops != 1:
            return None
        return next((op for op in self.op.block.ops if isinstance(op, loop.ScanOp)), None)


def is_in_place(nest: loop.NestOp | loop.ContractOp, access: loop.LoadOp | loop.StoreOp) -> bool:
    """Whether an access is at the loops of a nest or contraction, in order and without a condition."""
    return access.masked is None and access.map.data.is_identity and tuple(access.index_operands) == tuple(nest.indices)


class _Walk:
    def __init__(self, info: NestInfo):
        self.info = info
        self.place = info.place

    def new_dim(self, value: SSAValue, size: Expr) -> Expr:
        d = self.place[value] = dim(len(self.info.dims))
        self.info.dims.append(size)
        return d

    def block(self, block: Block, sizes: tuple[Expr, ...]) -> None:
        """Read a block inside of loops over `sizes`."""
        info = self.info
        units = 0.0
        for op in block.ops:
            kind = type(op)
            if kind is loop.LoadOp:
                info.reads.append(TensorAccess(op._operands[0], self.index(op, 1), op))
            elif kind is loop.StoreOp:
                info.writes.append(TensorAccess(op._operands[1], self.index(op, 2), op))
            elif kind is arith.ConstantOp:
                continue
            elif kind is loop.BoundOp:
                if not info.opaque:
                    self.number(info.op.block)
                d = self.new_dim(op.results[0], op.size.data)  # pyright: ignore[reportAttributeAccessIssue]
                assert isinstance(d, Dim)
                info.opaque.add(d)
            elif kind is loop.IndexOp:
                (self.place[op.results[0]],) = self.index(op, 0)
            elif kind is loop.LocalOp:
                info.has_memory = True
            elif op.regions and isinstance(op, loop.LoopLike):
                self.loop(op, sizes)
            info.ops += 1
            info.heavy += op.name in HEAVY
            info.multiplies |= kind in (arith.MulfOp, arith.MuliOp) and loop.is_contracted(op)
            units += op_cost(op)
        info.parts.append((sizes, units))

    def number(self, block: Block) -> None:
        """Give the loops inside of `block` their dimensions before the first index that was loaded: these come behind all loops."""
        for op in block.ops:
            if op.regions and isinstance(op, loop.LoopLike):
                for region in op.regions:
                    for arg, size in zip(region.blocks[0].args, op.loop_sizes, strict=False):
                        if arg not in self.place:
                            self.new_dim(arg, size)
                    self.number(region.blocks[0])

    def index(self, op: Operation, start: int) -> tuple[Expr, ...]:
        m: IndexMap = op.properties["map"].data  # pyright: ignore[reportAttributeAccessIssue]
        place = self.place
        return m.apply([place[v] for v in op._operands[start : start + m.num_dims]])

    def loop(self, op: loop.LoopLike, sizes: tuple[Expr, ...]) -> None:
        info = self.info
        info.has_loops = True
        if isinstance(op, loop.ReduceOp):
            info.reductions += 1
        else:
            info.other_loops += 1
        info.sequential |= isinstance(op, loop.ForOp) and op.sequential is not None
        for region in op.regions:
            block = region.blocks[0]
            for arg, size in zip(block.args, op.loop_sizes, strict=False):
                if arg not in self.place:
                    self.new_dim(arg, size)
                info.inner_sizes.append(size)
            self.block(block, (*sizes, *op.loop_sizes))


def nest_info(op: loop.NestOp) -> NestInfo:
    """The facts about `op`."""
    sizes, block = op.loop_sizes, op.block
    info = NestInfo(op, sizes, tuple(block.args[: len(sizes)]), tuple(op.outs), tuple(block.args[len(sizes) :]))
    walk = _Walk(info)
    for arg, size in zip(info.indices, sizes, strict=True):
        walk.new_dim(arg, size)
    walk.block(block, sizes)
    return info


def uses_opaque(index: Sequence[Expr], opaque: set[Dim]) -> bool:
    """Whether an index depends on a loaded value."""
    return bool(opaque) and any(not opaque.isdisjoint(free_dims(e)) for e in index)


