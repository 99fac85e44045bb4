"""mem-pack-operands: an operand that a nest's inner loops read across its rows is first copied into the order in which it is read.

    loop.nest (%i = 512) { loop.reduce (%j = 256) { loop.load %x[%i, %j] : buffer<512 x 256, [1, 512]> ...
      ->   %p = mem.alloc : buffer<512 x 256>;  loop.nest (%i = 512, %j = 256) { %p[%i, %j] = %x[%i, %j] }; the nest with %p

Each read of such an operand takes a gather, and a nest that goes over its rows several times (softmax, a norm of a transposed tensor)
takes it several times. The copy goes by square tiles that are transposed in registers, and holds what the nest reads, loop by loop. The
cost model says where it pays. The counterpart in MLIR: linalg's packing. It runs behind loop-to-mem, when strides are known, and before
mem-plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import ONE, Expr, IndexMap, free_dims
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd import symbol_ranges
from ..analysis.dependences import memory_of
from ..analysis.nest_key import nests_in_memory
from ..analysis.symbols import symbol_hints
from ..cost.cost_model import nest_cost
from ..cost.machine.cpu import SERVER
from ..manager.pass_manager import Pass

MIN_GAIN_SHARE, MIN_GAIN_NS = 0.15, 2000.0
"""Share of the nest's time that has to be saved, and time."""


@dataclass(frozen=True)
class MemPackOperands(Pass):
    """Copies operands that a nest reads across their rows into the order of its loops, where the cost model says that it is faster."""

    name = "mem-pack-operands"

    always: bool = False
    """Pack whatever is read across its rows, without asking the cost model."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts: tuple[dict[str, int], RangeEnv] | None = None

        def nanoseconds(nest: loop.NestOp) -> float:
            nonlocal facts
            if facts is None:
                facts = symbol_hints(op), symbol_ranges(op)
            return nest_cost(nest, facts[0], SERVER, facts[1]).seconds * 1e9

        for func in [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks and loop.batch_symbols(f) is None]:
            for nest in nests_in_memory(func):
                for reads in _reads_across(nest):
                    self._pack(nest, reads, nanoseconds)

    def _pack(self, nest: loop.NestOp, reads: _Reads, nanoseconds: Callable[[loop.NestOp], float]) -> None:
        source = reads.loads[0].source
        before = nanoseconds(nest)
        if before * MIN_GAIN_SHARE < MIN_GAIN_NS and not self.always:
            return
        alloc = mem.AllocOp.create(
            properties={"kind": StringAttr("arena")}, result_types=[_packed_type(source.type, reads.sizes)], location=nest.location
        )
        copy = _copy(source, alloc.result, reads, nest)
        old = [(load, load.index_map, tuple(load.index_operands)) for load in reads.loads]
        for load in reads.loads:
            _redirect(load, alloc.result, IndexMap.identity(len(reads.sizes)), reads.indices(load))
        after = nanoseconds(nest) + nanoseconds(copy)
        shape = " x ".join(map(str, reads.sizes))
        figures = f"{before / 1000:.1f} us as it lies, {after / 1000:.1f} us with a copy of {shape}"
        if self.always or before - after >= max(MIN_GAIN_SHARE * before, MIN_GAIN_NS):
            assert nest.parent is not None
            nest.parent.insert_ops_before([alloc, copy], nest)
            self.remark(nest, f"an operand is packed: {figures}", "applied")
            self.statistic("num-packed")
            return
        for load, m, indices in old:
            _redirect(load, source, m, indices)
        copy.erase()
        self.remark(nest, f"an operand is read across its rows: {figures}", "missed")


@dataclass
class _Reads:
    """Loads of one buffer through one map, in loops of the same sizes. `places`: for each loop of the copy, which operand of the map it
    stands for; `sizes`: how long it is."""

    map: IndexMap
    places: tuple[int, ...]
    sizes: tuple[Expr, ...]
    loads: list[loop.LoadOp] = field(default_factory=list)

    def indices(self, load: loop.LoadOp) -> tuple[SSAValue, ...]:
        return tuple(load.index_operands[k] for k in self.places)


def _reads_across(nest: loop.NestOp) -> list[_Reads]:
    """The reads of a nest that go across the rows of a buffer that the nest does not write."""
    written = {memory_of(out) for out in nest.outs}
    found: dict[object, _Reads] = {}
    for load, depth in _inner_loads(nest, 0):
        if depth == 0 or load.masked is not None or isinstance(load.source.owner, Block) and load.source in nest.out_args:
            continue
        if isinstance(load.source.owner, loop.LocalOp) or memory_of(load.source) in written or not _is_across(load):
            continue
        loops = _loops(load, nest)
        if loops is None:
            continue
        key = (load.source, load.index_map, tuple((depth, k, size) for depth, k, size, _ in loops))
        reads = found.get(key)
        if reads is None:
            reads = found[key] = _Reads(load.index_map, tuple(place for *_, place in loops), tuple(size for _, _, size, _ in loops))
        reads.loads.append(load)
    return list(found.values())


def _inner_loads(op: Operation, depth: int) -> Iterator[tuple[loop.LoadOp, int]]:
    """The loads in the body of `op`, with the number of loop-like ops around each, `op` apart."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                if isinstance(inner, loop.LoadOp):
                    yield inner, depth
                elif inner.regions:
                    yield from _inner_loads(inner, depth + 1)


def _is_across(load: loop.LoadOp) -> bool:
    """Whether the innermost loops around a load move its address by more than one element, and one further out by the least of all. A cheap
    test that most loads fail; what it is worth is asked of the cost model."""
    t = load.source.type
    assert isinstance(t, mem.BufferType)
    inner = load.parent_op()
    around = [isinstance(v.owner, Block) and v.owner.parent_op() is inner for v in load.index_operands]
    steps: list[tuple[int, bool]] = []
    for e, size, stride in zip(load.index_map.results, t.dims, t.stride_exprs, strict=True):
        own = free_dims(e)
        if own and size is not ONE:
            steps.append((stride.value if stride.value is not None else 1 << 40, any(around[d.index] for d in own)))
    return len(steps) > 1 and not min(steps)[1] and any(along for _, along in steps)


def _loops(load: loop.LoadOp, nest: loop.NestOp) -> list[tuple[int, int, Expr, int]] | None:
    """(depth, number, size, operand of the map) of the loops that a load's address depends on, outermost first; None where it depends on
    anything else."""
    found: list[tuple[int, int, Expr, int]] = []
    used = {d.index for e in load.index_map.results for d in free_dims(e)}
    for place, value in enumerate(load.index_operands):
        if place not in used:
            continue
        op = value.owner.parent_op() if isinstance(value.owner, Block) else None
        if not isinstance(op, loop.LoopLike):
            return None
        depth, at = 0, op
        while at is not nest and at is not None:
            depth, at = depth + 1, at.parent_op()
        number = value.index  # pyright: ignore[reportAttributeAccessIssue]
        found.append((depth, number, op.loop_sizes[number], place))
    return sorted(found, key=lambda one: one[:2])


def _packed_type(t: object, sizes: tuple[Expr, ...]) -> mem.BufferType:
    assert isinstance(t, mem.BufferType)
    return mem.BufferType.get(sizes, t.element_type, device=t.device.data)


def _copy(source: SSAValue, target: SSAValue, reads: _Reads, nest: loop.NestOp) -> loop.NestOp:
    """The nest that fills the packed buffer."""
    copy = loop.NestOp.build_nest(reads.sizes, [target], nest.location)
    copy.properties["label"] = StringAttr("pack")
    load = reads.loads[0]
    operands: list[SSAValue] = [copy.indices[0]] * load.index_map.num_dims
    for index, place in zip(copy.indices, reads.places, strict=True):
        operands[place] = index
    value = loop.LoadOp.new(source, reads.map, operands, location=load.location)
    copy.block.add_op(value)
    copy.block.add_op(loop.StoreOp.new(value.result, copy.out_args[0], IndexMap.identity(len(reads.sizes)), copy.indices))
    return copy


def _redirect(load: loop.LoadOp, source: SSAValue, m: IndexMap, indices: tuple[SSAValue, ...]) -> None:
    """Let a load read `source` through another map."""
    new = loop.LoadOp.new(source, m, indices)
    load.operands = list(new.operands)
    load.properties["map"] = new.properties["map"]
    new.erase()
