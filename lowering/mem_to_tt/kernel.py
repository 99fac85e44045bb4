"""The kernel of one nest: its arguments, rows, inner loops and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, gpu, scf
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    f32,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...dialects import loop
from ...dialects.expr import ONE, Expr, Sym, free_syms, product
from ...dialects.expr_ranges import RangeEnv
from ...dialects.mem import BufferType
from ...dialects.nd_types import UNSIGNED, compute_type
from ...dialects.tt_compute import ReduceOp, ReduceReturnOp
from ...dialects.tt_memory import AddPtrOp, LoadOp, StoreOp
from ...dialects.tt_shape import ExpandDimsOp, MakeRangeOp
from ...dialects.tt_structure import FuncOp, GetProgramIdOp, ReturnOp
from ...dialects.tt_types import element_of, ptr, shape_of
from ...passes.loop.nest_access import Access, Loop, NestAccess, Node
from .body import lower_op
from .tile import Tile, choose_tile
from .values import UnsupportedNest, Values, fits_32_bits, float_attr


@dataclass(frozen=True)
class NestKernel:
    """A nest as a module with one kernel. Its arguments are a pointer for each of `buffers` (at the buffer's first
    element), an i64 for each of `symbols`, then `scalars`; its grid has one dimension, of `grid` programs."""

    module: ModuleOp
    buffers: list[SSAValue]
    symbols: list[Sym]
    scalars: list[SSAValue]
    grid: Expr
    tile: Tile


_COMBINE: dict[str, tuple[type[Operation], type[Operation]]] = {
    "sum": (arith.AddfOp, arith.AddiOp),
    "prod": (arith.MulfOp, arith.MuliOp),
    "max": (arith.MaximumfOp, arith.MaxSIOp),
    "min": (arith.MinimumfOp, arith.MinSIOp),
    "any": (arith.OrIOp, arith.OrIOp),
    "all": (arith.AndIOp, arith.AndIOp),
    "xor": (arith.XOrIOp, arith.XOrIOp),
}
_FAST: dict[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}
_NO_OVERFLOW: dict[str, Attribute] = {"overflowFlags": arith.IntegerOverflowAttr("none")}


def nest_to_tt(
    nest: loop.NestOp, symbols: RangeEnv, *, name: str = "kernel", tile: Tile | None = None, library: str = "nv"
) -> NestKernel:
    """The kernel of a nest on buffers.

    `symbols` says what is known of size symbols, `tile` fixes the block, `library` names the device library ("nv" or
    "ocml"). Raises UnsupportedNest that says what the nest has that is not covered."""
    return _Lowering(nest, symbols, name, tile, library).run()


class _Lowering:
    def __init__(self, nest: loop.NestOp, symbols: RangeEnv, name: str, tile: Tile | None, library: str):
        self.nest = nest
        self.name = name
        self.library = library
        self.info = NestAccess(nest, symbols)
        self.root = self.info.root
        self._check()
        sizes = [product(one.size for one in child.loops) for child in self.root.children]
        known = [s.value for s in sizes]
        longest = max((v for v in known if v is not None), default=1)
        self.tile = tile or choose_tile(None if None in known else longest, bool(self.root.children))
        self.buffers = list(dict.fromkeys(a.buffer for a in self.root.all_accesses()))
        self.scalars = self._captured()
        self.rows = product(one.size for one in self.root.loops)
        exprs = [a.offset for a in self.root.all_accesses()] + [
            self.info.exprs[v] for node in self.root.walk() for v in node.values
        ]
        self.symbols = sorted(
            set().union(*(free_syms(e) for e in [*exprs, self.rows, *sizes, *self._loop_sizes()])), key=str
        )
        tail = max(self.tile.rows, self.tile.columns)
        wide = [*exprs, *(n + tail for n in (self.rows, *sizes)), *self._loop_sizes()]
        self.index: IntegerType = i32 if all(fits_32_bits(e, self.info) for e in wide) else i64

    def _loop_sizes(self) -> list[Expr]:
        return [one.size for node in self.root.walk() for one in node.loops]

    def _check(self) -> None:
        for node in self.root.walk():
            if node.parent is not None and node.parent is not self.root:
                raise UnsupportedNest("it has loops within inner loops")
            if not isinstance(node.op, (loop.NestOp, loop.ForOp, loop.ReduceOp)):
                raise UnsupportedNest(f"there is no rule for '{node.op.name}' in a Triton kernel")
            if isinstance(node.op, loop.ForOp) and node.op.sequential is not None:
                raise UnsupportedNest("it has a loop that must run in order")
            for access in node.accesses:
                if access.mode != "set":
                    raise UnsupportedNest(f"it stores with mode '{access.mode}'")

    def _captured(self) -> list[SSAValue]:
        """Values from outside of the nest that are no buffers."""
        found: dict[SSAValue, None] = {}
        inside = set(self.nest.walk())
        for op in inside:
            for value in op.operands:
                owner = value.owner.parent_op() if isinstance(value.owner, Block) else value.owner
                if owner not in inside and not isinstance(value.type, BufferType):
                    found[value] = None
        return list(found)

    # ---- the kernel

    def run(self) -> NestKernel:
        types: list[Attribute] = [ptr(_stored(b.type.element_type)) for b in self._typed()]
        types += [i64] * len(self.symbols)
        types += [i64 if isinstance(v.type, IndexType) else v.type for v in self.scalars]
        block = Block(arg_types=types)
        s = self.s = Values(self.info, block)
        s.index = self.index
        arguments = iter(block.args)
        self.pointers = {b: next(arguments) for b in self.buffers}
        self.touched: dict[SSAValue, set[tuple[Node, bool]]] = {}
        """Which loops loaded (False) or stored (True) a buffer since the threads of the program last waited."""
        s.syms = {sym: next(arguments) for sym in self.symbols}
        s.values.update((v, next(arguments)) for v in self.scalars)
        mask = self._enter_rows(s)
        self._block(s, self.root, mask)
        block.add_op(ReturnOp.create())
        func = FuncOp.make(self.name, Region(block))
        func.attributes["num_warps"] = IntegerAttr(self.tile.num_warps, i32)
        func.location = self.nest.location
        count = (self.rows + (self.tile.rows - 1)) // self.tile.rows
        return NestKernel(ModuleOp([func]), self.buffers, self.symbols, self.scalars, count, self.tile)

    def _typed(self) -> list[SSAValue[BufferType]]:
        return [b for b in self.buffers if isinstance(b.type, BufferType)]  # pyright: ignore[reportReturnType]

    def _enter_rows(self, s: Values) -> SSAValue | None:
        """The indices of the nest's own loops for the rows of this program; which of them there are."""
        count = self.tile.rows
        pid = s.resize(s.add(GetProgramIdOp.make(0)), self.index)
        first = s.elementwise(arith.MuliOp, (pid, s.int(count)), None, _NO_OVERFLOW)
        lanes: SSAValue = s.add(MakeRangeOp.make(count))
        if self.root.children:
            lanes = s.add(ExpandDimsOp.make(lanes, 1))
        row = s.elementwise(arith.AddiOp, (s.resize(lanes, self.index), first), None, _NO_OVERFLOW)
        self._delinearise(s, self.root.loops, row)
        known = self.rows.value
        if known is not None and known % count == 0:
            return None
        return s.compare("slt", row, s.number(self.rows))

    def _delinearise(self, s: Values, loops: Sequence[Loop], linear: SSAValue) -> None:
        for k, one in enumerate(loops):
            inner = product(o.size for o in loops[k + 1 :])
            value = linear if inner is ONE else s.elementwise(arith.DivSIOp, (linear, s.number(inner)))
            if k:
                value = s.elementwise(arith.RemSIOp, (value, s.number(one.size)))
            s.dims[one.dim] = value

    def _block(self, s: Values, node: Node, mask: SSAValue | None) -> None:
        """The statements of a body, for the elements where the mask is set."""
        for op in node.op.regions[0].block.ops:
            if isinstance(op, loop.LoadOp):
                s.values[op.result] = self._load(s, op, mask)
            elif isinstance(op, loop.StoreOp):
                self._store(s, op, mask)
            elif isinstance(op, (loop.ForOp, loop.ReduceOp)):
                self._inner(s, self.info.nodes[op], mask)
            elif isinstance(op, (loop.IndexOp, loop.YieldOp)):
                continue
            else:
                lower_op(s, op, self.library)

    # ---- memory

    def _order(self, s: Values, accesses: Sequence[Access]) -> None:
        """Let the threads of the program wait for each other, if another loop stored what these accesses read, or reads
        or stored what they overwrite: it shares out the elements in another way."""
        if any(
            node is not access.node and (stored or access.is_store)
            for access in accesses
            for node, stored in self.touched.get(access.buffer, ())
        ):
            s.block.add_op(gpu.BarrierOp.create())
            self.touched.clear()
        for access in accesses:
            self.touched.setdefault(access.buffer, set()).add((access.node, access.is_store))

    def _place(self, s: Values, op: loop.LoadOp | loop.StoreOp, shape: tuple[int, ...] | None) -> SSAValue:
        """The pointers of an access, at least of the shape given."""
        access = self.info.access[op]
        offset = s.number(access.offset)
        if shape is not None:
            offset = s.broadcast(offset, tuple(map(max, shape, shape_of(offset.type) or shape)))
        base = self.pointers[access.buffer]
        found = shape_of(offset.type)
        if found is not None:
            base = s.broadcast(base, found)
        return s.add(AddPtrOp.create(operands=(base, offset), result_types=(base.type,)))

    def _load(self, s: Values, op: loop.LoadOp, mask: SSAValue | None) -> SSAValue:
        access = self.info.access[op]
        if access.node is self.root:
            self._order(s, [access])
        condition = None if op.mask is None else s.get(op.mask)
        offset = shape_of(s.number(access.offset).type)
        chosen = s.both(mask, condition)
        if offset is None and mask is not None and condition is None:
            chosen = None  # the same element for all, which is there
        shape = None if chosen is None else shape_of(chosen.type)
        pointers = self._place(s, op, shape)
        found = shape_of(pointers.type)
        stored = _stored(access.dtype)
        if chosen is None:
            value = s.add(LoadOp.make(pointers))
        else:
            zero = _number(0, stored)
            fill = s.constant(zero)
            if found is not None:
                chosen, fill = s.broadcast(chosen, found), s.broadcast(fill, found)
            value = s.add(LoadOp.make(pointers, chosen, fill))
        value = self._widen(s, value, access.dtype)
        if condition is not None and op.other is not None:
            value = s.select(condition, value, s.get(op.other))
        return value

    def _widen(self, s: Values, value: SSAValue, dtype: Attribute) -> SSAValue:
        if dtype == i1:
            return s.compare("ne", value, s.int(0, i8))
        if compute_type(dtype) == f32 and dtype != f32:
            return s.elementwise(arith.ExtFOp, (value,), f32)
        return value

    def _store(self, s: Values, op: loop.StoreOp, mask: SSAValue | None) -> None:
        access = self.info.access[op]
        if access.node is self.root:
            self._order(s, [access])
        value = s.get(op.value)
        if access.dtype == i1:
            value = s.elementwise(arith.ExtUIOp, (value,), i8)
        elif isinstance(access.dtype, (Float16Type, BFloat16Type)) and element_of(value.type) == f32:
            value = s.elementwise(arith.TruncFOp, (value,), access.dtype)
        chosen = s.both(mask, None if op.mask is None else s.get(op.mask))
        shapes = [shape for v in (value, chosen) if v is not None and (shape := shape_of(v.type)) is not None]
        shape = tuple(map(max, zip(*shapes, strict=True))) if shapes else None
        pointers = self._place(s, op, shape)
        if (found := shape_of(pointers.type)) is not None:
            value = s.broadcast(value, found)
            chosen = None if chosen is None else s.broadcast(chosen, found)
        s.block.add_op(StoreOp.make(pointers, value, chosen))

    # ---- inner loops

    def _inner(self, s: Values, node: Node, mask: SSAValue | None) -> None:
        """A `loop.for` or `loop.reduce`: one block of columns if it holds them all, else a loop over blocks."""
        self._order(s, node.accesses)
        size = product(one.size for one in node.loops)
        width = self.tile.columns
        reduce = node.op if isinstance(node.op, loop.ReduceOp) else None
        if size.value is not None and size.value <= width:
            start = s.int(0)
            values = self._columns(s.inside(s.block), node, size, start, mask)
            partial = values
        else:
            partial = self._over_blocks(s, node, size, mask)
        if reduce is None:
            return
        for kind, value, result in zip(reduce.kind_names, partial, reduce.outputs, strict=True):
            s.values[result] = self._reduced(s, kind, value)

    def _over_blocks(self, s: Values, node: Node, size: Expr, mask: SSAValue | None) -> list[SSAValue]:
        initial: list[SSAValue] = []
        shape = (self.tile.rows, self.tile.columns)
        if isinstance(node.op, loop.ReduceOp):
            for kind, result in zip(node.op.kind_names, node.op.outputs, strict=True):
                initial.append(s.broadcast(s.constant(_identity(kind, result.type)), shape))
        body = Block(arg_types=[self.index, *(v.type for v in initial)])
        inner = s.inside(body)
        found = self._columns(inner, node, size, body.args[0], mask)
        carried = []
        if isinstance(node.op, loop.ReduceOp):
            for kind, before, value in zip(node.op.kind_names, body.args[1:], found, strict=True):
                carried.append(_combine(inner, kind, before, value))
        body.add_op(scf.YieldOp.create(operands=carried))
        bounds = (s.int(0), s.number(size), s.int(self.tile.columns))
        op = scf.ForOp.create(
            operands=(*bounds, *initial), result_types=[v.type for v in initial], regions=[Region(body)]
        )
        s.block.add_op(op)
        return list(op.results)

    def _columns(
        self, s: Values, node: Node, size: Expr, start: SSAValue, mask: SSAValue | None
    ) -> list[SSAValue]:
        """One block of columns from `start`; what a reduction yields, its identity where there is no element."""
        width = self.tile.columns
        lanes = s.resize(s.add(ExpandDimsOp.make(s.add(MakeRangeOp.make(width)), 0)), self.index)
        column = s.elementwise(arith.AddiOp, (lanes, start), None, _NO_OVERFLOW)
        self._delinearise(s, node.loops, column)
        exact = size.value is not None and size.value % width == 0
        inside = None if exact else s.compare("slt", column, s.number(size))
        chosen = s.both(mask, inside)
        self._block(s, node, chosen)
        if not isinstance(node.op, loop.ReduceOp):
            return []
        last = node.op.regions[0].block.last_op
        assert isinstance(last, loop.YieldOp)
        found = []
        for kind, value, result in zip(node.op.kind_names, last.operands, node.op.outputs, strict=True):
            block = s.broadcast(s.get(value), (self.tile.rows, width))
            if chosen is not None:
                block = s.select(chosen, block, s.constant(_identity(kind, result.type)))
            found.append(block)
        return found

    def _reduced(self, s: Values, kind: str, value: SSAValue) -> SSAValue:
        """The columns of a block combined, one value a row."""
        element = element_of(value.type)
        body = Block(arg_types=[element, element])
        inner = s.inside(body)
        body.add_op(ReduceReturnOp.make([_combine(inner, kind, *body.args)]))
        rows = s.add(ReduceOp.make([value], 1, Region(body)))
        return s.add(ExpandDimsOp.make(rows, 1))


def _combine(s: Values, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
    of_floats, of_integers = _COMBINE[kind]
    integers = isinstance(element_of(a.type), IntegerType)
    op = of_integers if integers else of_floats
    properties = _FAST if not integers else _NO_OVERFLOW if op in (arith.AddiOp, arith.MuliOp) else None
    return s.elementwise(op, (a, b), None, properties)


def _identity(kind: str, type: Attribute) -> IntegerAttr | FloatAttr:
    """The number that a reduction of elements of `type` begins with."""
    if kind not in _COMBINE:
        raise UnsupportedNest(f"there is no rule for reductions of kind '{kind}' in a Triton kernel")
    if isinstance(type, IntegerType):
        bits = type.width.data
        lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        numbers = {"prod": 1, "max": lowest, "min": highest, "all": -1}
        return _number(numbers.get(kind, 0), type)
    infinity = float("inf")
    return _number({"prod": 1.0, "max": -infinity, "min": infinity}.get(kind, 0.0), type)


def _number(value: float, type: Attribute) -> IntegerAttr | FloatAttr:
    if isinstance(type, IntegerType):
        return IntegerAttr(int(value), type)
    return float_attr(float(value), type)


def _stored(dtype: Attribute) -> Attribute:
    """The type of an element in memory: a bool takes a byte."""
    if dtype == i1:
        return i8
    if dtype in UNSIGNED:
        raise UnsupportedNest(f"elements of {dtype} have no Triton kernel")
    return dtype


__all__ = ["NestKernel", "nest_to_tt"]
