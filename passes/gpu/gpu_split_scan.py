"""gpu-split-scan: parts for scans of nests that would keep only a few programs busy.

    loop.scan (%j = N) sum { f(%j) } do (%k, %r) { g(%k, %r) }
->  parts[p] = loop.reduce (%l = L) sum { f(p * L + l) }                                  (a nest, over p too, but for the last part)
    loop.scan (%l = L) sum { f(p * L + l) } do (%k, %r) { g(p * L + k, before + %r) }     (the nest, over p too)

where `before` is what the parts before p come to, which each program finds by itself: they are few. What is scanned is read twice, and
its values are computed twice. Parts are a number of whole blocks; where they do not divide the loop, the last one is shorter, under a
mask. It runs behind gpu-split-reduction, which would take the reductions apart once more. Counterparts: the scan of Blelloch (1990) by
blocks; `split_scan` of Inductor, which reads once, and where a part waits for those before it.

As in scans.py, sums of f32 are kept as f64 and products of floats as `scaled_prod`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ModuleOp, f32, f64, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Expr, as_expr, ceildiv, dim, free_dims, maximum, product
from ...dialects.expr.ranges import RangeEnv, simplify
from ...dialects.machine import has_fixed_order
from ...dialects.nd.types import is_float
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor, combine, is_later_extreme, log_add, unscaled
from ..analysis.schedule_attrs import GPU
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..loop.transform.loop_rewrite import Values, clone_into, drop_index, index_op, needed, replace_loops, used_by
from ..loop.transform.nest_transform import Refused
from ..loop.transform.split_loop import SplitLoop, clone_iteration, only_where
from ..manager.pass_manager import Pass
from .gpu_fission import MIN_SPEEDUP
from .gpu_split_reduction import MIN_SPLIT_PARTS, SPLIT_PROGRAMS_PER_MULTIPROCESSOR, programs_of
from .tiles.rules import LONG_ROW_STEP_ELEMENTS, MAX_UNROLLED_TRIPS, REDUCTION_TILE_ELEMENTS, choose, column_loop
from .tiles.tile import Sizes, bytes_moved, power_of_two

KINDS = {"sum": "sum", "prod": "prod", "scaled_prod": "scaled_prod", "max": "argmax", "min": "argmin", "logsumexp": "softmax"}
"""Kinds of scans, and of the reduction of a part. argmax and argmin find the lowest index, a scan keeps the last one: what they get is
counted from the end."""


@dataclass(frozen=True)
class GpuSplitScan(Pass):
    """Splits scans of nests that have too few programs for a GPU."""

    name = "gpu-split-scan"

    programs: int = 0
    """How many programs there should be; 0: SPLIT_PROGRAMS_PER_MULTIPROCESSOR for each multiprocessor."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return
        gpu = machine_of(op, Gpu)
        symbols, hints = symbol_facts(op)
        for nest in nests_in_memory(op, without=GPU):
            scans = [o for o in nest.block.ops if isinstance(o, loop.ScanOp)]
            if not scans or any(scan.kind not in KINDS for scan in scans):
                continue
            info = NestAccess(nest, symbols)
            length = self._length(scans, info, hints, gpu)
            if length:
                self._split(_Split(nest, scans, length, info, Sizes(hints), symbols))

    def _split(self, split: _Split) -> None:
        try:
            split.check()
        except Refused as refused:
            self.remark(split.nest, f"scan not split: {refused}", kind="missed")
            return
        split.rewrite()
        self.remark(split.nest, f"scan split: {split.count} parts of {split.length}", kind="applied")
        self.statistic("num-split")

    def _length(self, scans: list[loop.ScanOp], info: NestAccess, hints: dict[Expr, int], gpu: Gpu) -> int:
        """The length of the parts of scans: a number of blocks, one that leaves no rest if there is one near; 0: they stay whole."""
        sizes = Sizes(hints)
        programs, columns = programs_of(info, sizes)
        # elements of a part, or of parts of columns side by side, are a multiple of those that are scanned at once
        block = max(1, LONG_ROW_STEP_ELEMENTS // power_of_two(columns))
        trips = max(sizes(scan.loop_sizes[0]) for scan in scans)
        parts = min(-(-(self.programs or SPLIT_PROGRAMS_PER_MULTIPROCESSOR * gpu.multiprocessors) // programs), trips // block)
        if parts < MIN_SPLIT_PARTS:
            return 0
        inside = [n for scan in scans for n in info.nodes[scan].walk()]
        moved = [(a.is_store, number) for n in inside for a, _, number in bytes_moved(n, info, sizes)]
        once, read = sum(number for _, number in moved), sum(number for stores, number in moved if not stores)
        whole = choose(info, hints, gpu).programs(sizes)
        reached = gpu.programs_gbs(whole, "scanned_rows" if columns == 1 else "scanned_columns")
        if once / reached < MIN_SPEEDUP * ((once + read) / gpu.rates.memory_gbs + gpu.start_ns):
            return 0
        blocks = round(trips / (block * parts))
        near = range(-(-blocks // 2), blocks * 3 // 2 + 1)
        return block * min((n for n in near if trips % (block * n) == 0), key=lambda n: abs(n - blocks), default=blocks)


class _Split:
    """Of `length` iterations are the parts of the scans of a nest."""

    def __init__(self, nest: loop.NestOp, scans: list[loop.ScanOp], length: int, info: NestAccess, sizes: Sizes, symbols: RangeEnv):
        self.nest = nest
        self.length = as_expr(length)
        self.info = info
        self.sizes = sizes
        self.symbols = symbols
        self.size = scans[0].loop_sizes[0]
        self.count = simplify(ceildiv(self.size, length), symbols)
        self.before = simplify(maximum(self.size - 1, ZERO) // length, symbols)
        """How many parts are before the last one."""
        self.even = simplify(self.count * length - self.size, symbols) is ZERO
        columns = column_loop(info, sizes) is not None
        self.split = SplitLoop(nest, symbols, scans[0].location, parts_first=columns)
        self.scans = [_Scan(scan) for scan in scans]

    # ---- legality

    def check(self) -> None:
        """Raises Refused where the parts cannot be computed one beside the other."""
        for op in self.nest.block.ops:
            if isinstance(op, loop.LocalOp):
                raise Refused("the nest has memory of its own")
            if isinstance(op, loop.ScanOp):
                if op.loop_sizes[0] is not self.size:
                    raise Refused("the nest has scans of several lengths")
            elif isinstance(op, loop.LoopLike):
                short = isinstance(op, loop.ReduceOp) and self.sizes(product(op.loop_sizes)) <= REDUCTION_TILE_ELEMENTS
                if not short or any(isinstance(o, loop.StoreOp) for o in loop.walk_bodies(op)):
                    raise Refused(f"the nest has another loop over {' x '.join(map(str, op.loop_sizes))}")
        for scan in self.scans:
            scan.check(self.sizes, self.even)
        self._check_memory()

    def _check_memory(self) -> None:
        """Parts may not see what others store."""
        accesses = list(self.info.root.all_accesses())
        scans = [self.info.nodes[scan.op] for scan in self.scans]
        for store in [a for a in accesses if a.is_store]:
            dims = free_dims(store.offset)
            if store.mode != "set" or not dims.isdisjoint(self.info.opaque):
                raise Refused("it does not store each element to a place of its own")
            if store.node in scans and store.node.loops[0].dim not in dims:
                raise Refused("it stores all elements to one place")
            memory = memory_of(store.buffer)
            others = [a for a in accesses if a is not store and memory_of(a.buffer) is memory]
            if any(a.is_store or a.buffer is not store.buffer or a.offset is not store.offset for a in others):
                raise Refused("it reads or stores elsewhere what it stores to")
            if others and store.node not in scans:
                raise Refused("each part would read what the nest stores")

    # ---- the rewrite

    def rewrite(self) -> None:
        """Make the nest of parts, and scans of each part of the nest."""
        outer = self.nest.loop_sizes
        memory = [[self.split.memory(self.before, outer, t) for t in scan.kept] for scan in self.scans]
        self._reduce_parts([buffer for parts in memory for buffer in parts])
        replace_loops(self.nest, [*outer, self.count], [dim(k) for k in range(len(outer))], self.symbols)
        part = self.nest.indices[-1]
        for scan, parts in zip(self.scans, memory, strict=True):
            self._scan_part(scan, parts, part)
        for store in [o for o in self.nest.block.ops if isinstance(o, loop.StoreOp)]:
            at = Cursor(self.nest.block, store)
            first = at.compare("eq", part, at.place(index_op(ZERO, [])).results[0])
            only_where(first, [store], set())

    def _reduce_parts(self, memory: list[SSAValue]) -> None:
        """A nest that reduces each part but the last."""
        made, values = self.split.open([*self.nest.loop_sizes, self.before], memory, f"{self.split.name}_parts")
        at = Cursor(made.block)
        for op in needed(used_by(op for scan in self.scans for op in scan.op.block.ops), self.nest.block):
            at.place(clone_into(op, values, {}, self.symbols))
        found: list[SSAValue] = []
        for scan in self.scans:
            reduce = loop.ReduceOp.build_reduce([self.length], [scan.kind], scan.kept, scan.op.location)
            self._clone(scan.op.block, reduce.block, made.indices[-1], values)
            last = reduce.block.last_op
            assert last is not None
            last.operands = last.operands[: loop.KINDS[scan.kind][0]]
            scan.widen(last)
            if scan.with_index:
                _count_from_end(last, self.size)
            found += at.place(reduce).results
        self.split.store(at, found, made, self.split.place(len(self.nest.loop_sizes)))

    def _scan_part(self, scan: _Scan, memory: list[SSAValue], part: SSAValue) -> None:
        """The scan becomes one of a part, which goes on from what is before it."""
        old = scan.op
        before = self._before(scan, Cursor(self.nest.block, old), memory, part)
        new = loop.ScanOp.build_scan(self.length, scan.scanned, scan.running)
        new.location = old.location
        end = None if self.even else self.size
        self._clone(old.block, new.block, part, {}, end)
        last = new.block.last_op
        assert last is not None
        scan.widen(last)
        found = scan.join(Cursor(new.do_block), before, new.do_block.args[1:])
        self._clone(old.do_block, new.do_block, part, dict(zip(old.do_block.args[1:], found, strict=False)), end)
        self.nest.block.insert_op_before(new, old)
        erase_op(old)

    def _clone(self, old: Block, new: Block, part: SSAValue, values: Values, end: Expr | None = None) -> None:
        """The ops of a region of the scan for one part, with `values` for what they use; what they access behind `end` is masked."""
        new.args[0].name_hint = old.args[0].name_hint
        place = (dim(0) + dim(1) * self.length, [new.args[0], part])
        clone_iteration(old, Cursor(new), old.args[0], place, {**values}, self.symbols, end)

    def _before(self, scan: _Scan, at: Cursor, memory: list[SSAValue], part: SSAValue) -> list[SSAValue]:
        """What the parts before `part` come to."""
        found = self.split.merged(at, [scan.kind], memory, self.before, self.nest.indices[:-1], part)
        if scan.kind == "softmax":
            return [_log_sum(at, *found)]
        if scan.with_index:
            last = at.place(loop.IndexOp.new(self.size - 1, [], i64)).results[0]
            found[1] = at.emit(arith.SubiOp, (last, found[1]), i64, overflowFlags=arith.IntegerOverflowAttr("none"))
        return found


class _Scan:
    """A scan that is split, the reduction of its parts, and how running values join those."""

    def __init__(self, op: loop.ScanOp):
        self.op = op
        self.with_index = len(op.do_block.args) == 3 and op.do_block.args[2].first_use is not None
        """Whether anybody wants the index of an extreme."""
        self.kind = KINDS[op.kind] if op.kind not in ("max", "min") or self.with_index else op.kind
        self.kept: list[Attribute] = [v.type for v in op.yielded][: 2 if self.with_index else 1]
        """The types of what is kept of a part."""
        self.scanned = op.kind
        """The kind of the scan of a part, and the types of its running values."""
        self.running: list[Attribute] = [a.type for a in op.do_block.args[1:]]
        if op.kind == "prod" and is_float(self.kept[0]):
            self.kind = self.scanned = "scaled_prod"
            self.kept = self.running = [self.kept[0], i32]
        if op.kind == "sum" and self.kept[0] == f32:
            self.kept = self.running = [f64]
        if self.kind == "softmax":
            self.kept = self.kept * 2

    def check(self, sizes: Sizes, even: bool) -> None:
        """See _Split.check."""
        for op in loop.walk_bodies(self.op):
            if isinstance(op, loop.LoopLike) and sizes(product(op.loop_sizes)) > MAX_UNROLLED_TRIPS:
                raise Refused(f"it has a loop over {' x '.join(map(str, op.loop_sizes))} inside")
            if isinstance(op, loop.LocalOp):
                raise Refused("it has memory of its own")
            if isinstance(op, loop.BoundOp) and not even:
                raise Refused("it checks indices, and the last part is shorter")
        if any(isinstance(o, loop.StoreOp) for top in self.op.block.ops for o in (top, *loop.walk_bodies(top))):
            raise Refused("it stores what is scanned")
        if self.with_index and not isinstance(self.op.yielded[1].owner, loop.IndexOp):
            raise Refused("the index of an extreme is computed")

    def widen(self, last: Operation) -> None:
        """Make what a body yields f64 where that is kept."""
        (value, *_), block = last.operands, last.parent
        assert block is not None
        if value.type == f32 and self.kept[0] == f64:
            last.operands = [Cursor(block, last).emit(arith.ExtFOp, (value,), f64), *last.operands[1:]]

    def join(self, at: Cursor, before: list[SSAValue], running: Sequence[SSAValue]) -> list[SSAValue]:
        """Running values of a part and what is before it."""
        here = running[0]
        if self.kind == "scaled_prod":
            return [unscaled(at, combine(at, self.kind, before, running), here.type)]
        if self.op.kind in ("sum", "prod"):
            found = combine(at, self.op.kind, before, running)
            wide = found[0].type != self.op.do_block.args[1].type
            return [at.emit(arith.TruncFOp, found, f32)] if wide else found
        if self.op.kind == "logsumexp":
            exp, log1p = ((lambda x, f=function: at.emit(f, (x,), x.type)) for function in (math.ExpOp, math.Log1pOp))
            return [log_add(at, before[0], here, here.type, exp, log1p)]
        later = is_later_extreme(at, self.op.kind, before[0], here, here.type)
        return [at.select(later, b, a) for a, b in zip(before, running, strict=False)]


def _count_from_end(last: Operation, size: Expr) -> None:
    """The index of an extreme that is yielded becomes how far it is from the end."""
    owner, block = last.operands[1].owner, last.parent
    assert isinstance(owner, loop.IndexOp) and block is not None
    made = loop.IndexOp.new(size - 1 - owner.expression, list(owner.args), i64)
    block.insert_op_before(made, last)
    last.operands = [last.operands[0], made.result]
    drop_index(owner.result)


def _log_sum(at: Cursor, top: SSAValue, total: SSAValue) -> SSAValue:
    """log(sum of exp) of a maximum and the sum of exponentials below it."""
    log = at.emit(math.LogOp, (total,), top.type)
    infinite = at.compare("oeq", at.emit(math.AbsFOp, (top,), top.type), at.constant(float("inf"), top.type))
    return at.select(infinite, top, at.emit(arith.AddfOp, (top, log), top.type))
