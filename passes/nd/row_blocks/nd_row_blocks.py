"""nd-row-blocks: rows of a wide product are computed and used block by block, so that the product is not in memory as a whole.

    %p = nd.matmul %x, %w ; %l = f(%p)     ->     %l = nd.cat f(nd.matmul %x[0:256], %w), f(nd.matmul %x[256:512], %w)

The loss of a vocabulary is such: logits have as many columns as there are words, and of each row little is left (region.py finds what).
Its gradients are, too: that of the rows is put together from those of the blocks, those of weight and bias are sums over blocks. Whatever
lies between goes along: bias, scale, softcap, class weights, smoothing, ignored targets.

Under a bound on memory (`bytes`) the same is done for other values: rows that are normalised for a product, the hidden layer of a network.

What blocks cost is that each reads the weight again, and adds to its gradient. So a block has at least as many rows as keep that to a
part of the time of its products. The counterparts elsewhere are losses written by hand (Liger's; Wijmans and others, "Cut your losses").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import Expr, as_expr, floordiv
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import LOW_PRECISION, element_bytes, tensor_type
from ...analysis.symbols import symbol_hints
from ...cost.library_cost import size
from ...cost.machine import Machine, machine_of
from ...cost.machine.gpu import Gpu
from ...manager.pass_manager import Pass
from ..algebra.rewriter import drop_dead
from ..nd_attention import keeps_eager_numerics
from ..products.product_choice import is_not_stored
from .early_gathers import take_early
from .region import NotByBlocks, RowRegion, region_of
from .writer import BlockWriter


@dataclass(frozen=True)
class NdRowBlocks(Pass):
    """Computes rows of wide products block by block, with all that reads them; not under numerics "eager"."""

    name = "nd-row-blocks"

    rows: int = 0
    """Rows of a block, whatever that costs. 0: by price."""

    bytes: int = 0
    """Bytes of a product, or of what is computed by elements, that are in memory at once, whatever that costs. 0: products by price."""

    blocks: int = 16
    """Blocks at most: each is code of its own in the program of a graph."""

    part: int = 4
    """What each block moves again takes at most 1 / part of the time of its products."""

    wide: int = 3
    """How many times more elements a row of the product has than what is read and given for it."""

    step: int = 16
    """Rows of a block are a multiple of that."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if keeps_eager_numerics(op):
            return
        hints, machine = symbol_hints(op), machine_of(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and f.sym_visibility is None]:
            for seed in list(func.body.block.ops):
                if seed.parent is not None and self._is_wanted(seed, hints, machine):
                    self._seed(op, func, seed, hints, machine)

    def _is_wanted(self, op: Operation, hints: Mapping[str, int], machine: Machine) -> bool:
        """Whether blocks of what an operation computes are looked for: of a large product; where only so much may be in memory, of any
        value that has more and that is computed from none such."""
        if isinstance(op, nd.MatmulOp):
            return bool(self.rows) or self._has_more(op.result, hints) or _is_large(op, hints, machine)
        if not isinstance(op, PointwiseOp) or not self._has_more(op.results[0], hints):
            return False
        return not any(isinstance(x.owner, PointwiseOp) and self._has_more(x, hints) for x in op.operands)

    def _has_more(self, x: SSAValue, hints: Mapping[str, int]) -> bool:
        """Whether a value has more than the bytes that may be in memory at once."""
        return bool(self.bytes) and tensor_type(x).rank > 1 and _bytes(x, hints) > self.bytes

    def _seed(self, module: ModuleOp, func: FuncOp, op: Operation, hints: Mapping[str, int], machine: Machine) -> None:
        try:
            region = _region(func, op, hints)
            if isinstance(machine, Gpu) and not self.rows and not self.bytes and is_not_stored(module, func, op, machine, hints):
                raise NotByBlocks("by price it is generated, and its rows are reduced as they are computed")
            counts = self._counts(region, hints, machine)
        except NotByBlocks as why:
            self.remark(op, f"all rows at once: {why}", "missed")
            return
        megabytes = _bytes(region.wide, hints) / len(counts) / 1e6
        text = f"{len(counts)} blocks of {counts[0]} rows, {len(region.members)} operations: {megabytes:.3g} MB at once"
        self.remark(op, text, "applied")
        self.statistic("num-blocks", len(counts))
        BlockWriter(module, func, region, counts, adds=isinstance(machine, Gpu)).write()
        drop_dead(func.body.block)

    def _counts(self, region: RowRegion, hints: Mapping[str, int], machine: Machine) -> Sequence[Expr]:
        """The rows of each block. Raises NotByBlocks where there would be one."""
        if isinstance(machine, Gpu) and not self.rows and _is_read_once(region):
            raise NotByBlocks("its rows are reduced as they are computed")
        rows = size(region.rows, hints)
        given = self.rows or self._given(region, hints)
        least = given or self._least(region, hints, machine)
        number = rows // least if not given else ceil(rows / least)
        number = min(self.blocks, number)
        if number < 2:
            raise NotByBlocks(f"a block would have to have {least} of {rows} rows")
        saved, added = _bytes(region.wide, hints) * (number - 1) // number, self._added(region, hints, machine)
        if not given and saved <= added:
            raise NotByBlocks(f"blocks would save {saved / 1e6:.3g} MB, and sums over them take {added / 1e6:.3g}")
        if region.rows.value is None:
            count = floordiv(region.rows, as_expr(number))
            return [*[count] * (number - 1), region.rows - count * (number - 1)]
        count = given or ceil(rows / number / self.step) * self.step
        full = (rows - 1) // count
        return [*[as_expr(count)] * full, as_expr(rows - count * full)]

    def _given(self, region: RowRegion, hints: Mapping[str, int]) -> int:
        """Rows of a block where `bytes` says how much of the product is in memory, and the product has more; else 0."""
        rows, whole = size(region.rows, hints), _bytes(region.wide, hints)
        if not self.bytes or whole <= self.bytes:
            return 0
        return max(1, rows * self.bytes // whole, ceil(rows / self.blocks))

    def _added(self, region: RowRegion, hints: Mapping[str, int], machine: Machine) -> int:
        """Bytes that sums over blocks take besides the result: those of 16-bit numbers, in f32, and on a GPU those of one block."""
        found = 0
        for x in region.joined:
            narrow = tensor_type(x).element_type in LOW_PRECISION
            found += narrow * element_bytes(f32) * size(tensor_type(x).numel, hints) + isinstance(machine, Gpu) * _bytes(x, hints)
        return found

    def _least(self, region: RowRegion, hints: Mapping[str, int], machine: Machine) -> int:
        """Rows from which on a block keeps what it moves again, as any block does, to a part of the time of its products."""
        rows = size(region.rows, hints)
        flops, again = 0, self._added(region, hints, machine)
        beside: dict[SSAValue, None] = {}
        for op in region.members:
            if isinstance(op, nd.MatmulOp):
                flops += 2 * size(tensor_type(op.result).numel * tensor_type(op.lhs).dims[-1], hints)
                whole = [x for k, x in enumerate(op.operands) if region.is_given(x) and k == 1 and op.result in region.places]
                again += sum(_bytes(x, hints) for x in whole)
                beside.update((_source(x), None) for x in op.operands if region.is_given(x) and x not in whole)
        for x in region.outputs:
            if x in region.joined:
                again += 2 * _bytes(x, hints)
            else:
                beside[x] = None
        columns = size(tensor_type(region.wide).dims[1], hints)
        others = sum(size(tensor_type(x).numel, hints) for x in beside) // rows
        if columns < self.wide * others:
            raise NotByBlocks(f"its rows have {columns} elements, what is read and given for each {others}")
        return ceil(self.part * machine.ridge(float("inf")) * again * rows / max(1, flops))


def _region(func: FuncOp, op: Operation, hints: Mapping[str, int]) -> RowRegion:
    """The region of a value, with lookups of its rows as early as they can be. Raises NotByBlocks."""

    def found() -> RowRegion:
        return region_of(op, {o: k for k, o in enumerate(func.body.block.ops)}, hints)

    region = found()
    wide = [o.results[0] for o in region.members if isinstance(o, PointwiseOp | nd.MatmulOp) and o.results[0] in region.places]
    if not any([take_early(func.body.block, x) for x in wide]):
        return region
    drop_dead(func.body.block)  # what was looked up in
    return found()


def _is_read_once(region: RowRegion) -> bool:
    """Whether all that is done with a product is computed of each element as it comes: a generated kernel needs to store nothing then."""
    chain = [x for op in region.members for x in op.results if op in region.after]
    return all(len(list(x.uses)) == 1 for x in chain if x in region.places and x not in region.outputs)


def _source(x: SSAValue) -> SSAValue:
    """What a transposed matrix is of."""
    return x.owner.input if isinstance(x.owner, nd.PermuteOp) else x


def _bytes(x: SSAValue, hints: Mapping[str, int]) -> int:
    t = tensor_type(x)
    return size(t.numel, hints) * element_bytes(t.element_type)


def _is_large(op: nd.MatmulOp, hints: Mapping[str, int], machine: Machine) -> bool:
    """Whether a product of two matrices is larger than both, and than the last cache."""
    if tensor_type(op.result).rank != 2:
        return False
    elements = size(tensor_type(op.result).numel, hints)
    cache = machine.cache_bytes if isinstance(machine, Gpu) else machine.levels[-2].bytes
    return elements > sum(size(tensor_type(x).numel, hints) for x in op.operands) and _bytes(op.result, hints) > cache
