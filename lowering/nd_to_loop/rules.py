"""What each `nd` op becomes: a table from op class to a rule (lowering, op)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntAttr, IntegerType, StringAttr, UnitAttr, f32, i1, i32, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import ZERO, Expr, FloorDiv, IndexMap, Mod, as_expr, dim, free_dims, product, strides_contiguous
from ...dialects.expr.ranges import Range, RangeEnv
from ...dialects.expr.walk import children
from ...dialects.nd.call_args import UNDEFINED, Arg, Call, CallAttr
from ...dialects.nd.pointwise import CONTRACT, OPS, PARTLY_ROUNDED, PREDICATES, ROUNDED, BitcastOp, CastOp, CmpOp, FmaOp, MapOp, SelectOp
from ...dialects.nd.types import LOW_PRECISION, UNSIGNED, compute_type, is_float, tensor_type
from ...dialects.support.create import create
from ...passes.analysis.accesses.panels import panel_columns
from ...passes.analysis.accesses.windows import WINDOWS
from ...passes.analysis.reduction_kinds import unscaled
from ...passes.loop.repeats.repeat_find import INLINE
from ...passes.loop.transform.body import Body
from . import scalars
from .lowering import Lowering, broadcast_map

Rule = Callable[[Lowering, Any], None]
_UNIT = UnitAttr()


# ---- pointwise


def _operands(low: Lowering, op: Operation, b: Body, index: Sequence[Expr]) -> list[SSAValue]:
    dims = tensor_type(op.results[0]).dims
    return [low.element(b, x, broadcast_map(tensor_type(x).dims, dims).apply(index)) for x in op.operands]


_SUMS: dict[Attribute, Attribute] = {
    UnitAttr(): loop.CONTRACTED,
    StringAttr(PARTLY_ROUNDED): loop.PARTLY_ROUNDED_SUMS,
    StringAttr(ROUNDED): loop.ROUNDED_SUMS,
}


def _named_pointwise(low: Lowering, op: Operation) -> None:
    name = op.name[3:]
    dtype = tensor_type(op.results[0]).element_type
    emit = scalars.POINTWISE.get(name)

    def build(b: Body, index: tuple[Expr, ...]) -> SSAValue:
        x = _operands(low, op, b, index)
        made = emit(b, dtype, x) if emit else scalars.named(b, name, x, compute_type(dtype))
        if CONTRACT in op.attributes and isinstance(made.owner, arith.MulfOp):
            made.owner.properties["fastmath"] = _SUMS[op.attributes[CONTRACT]]
        return made

    low.compute(op, build)


def _predicate(low: Lowering, op: Operation) -> None:
    source = tensor_type(op.operands[0]).element_type
    low.compute(op, lambda b, index: scalars.predicate(b, op.name[3:], source, _operands(low, op, b, index)[0]))


def _cmp(low: Lowering, op: CmpOp) -> None:
    source = tensor_type(op.lhs).element_type
    exact = source in LOW_PRECISION and op.predicate.data in ("eq", "ne")

    def build(b: Body, index: tuple[Expr, ...]) -> SSAValue:
        operands = _operands(low, op, b, index)
        if exact:  # what was stored in between has been rounded, what is computed here has not
            operands = [scalars.round_to(b, x, source) for x in operands]
        return scalars.compare(b, op.predicate.data, source, *operands)

    low.compute(op, build)


def _select(low: Lowering, op: SelectOp) -> None:
    low.compute(op, lambda b, index: b.select(*_operands(low, op, b, index)))


def _fma(low: Lowering, op: FmaOp) -> None:
    def build(b: Body, index: tuple[Expr, ...]) -> SSAValue:
        x = _operands(low, op, b, index)
        if is_float(tensor_type(op.result).element_type):
            return b.emit(math.FmaOp, x, x[0].type)
        return b.emit(arith.AddiOp, (b.emit(arith.MuliOp, x[:2], x[0].type), x[2]), x[0].type)

    low.compute(op, build)


def _cast(low: Lowering, op: CastOp) -> None:
    source, target = tensor_type(op.input).element_type, tensor_type(op.result).element_type
    if source == target or (source in LOW_PRECISION and target == f32):
        low.values[op.result] = low.values[op.input]  # whose elements are read in their compute type, f32, and stored in half of it
        return
    low.compute(op, lambda b, index: scalars.cast(b, _operands(low, op, b, index)[0], source, target))


def _bitcast(low: Lowering, op: BitcastOp) -> None:
    source, target = tensor_type(op.input).element_type, tensor_type(op.result).element_type
    low.compute(op, lambda b, index: scalars.bitcast(b, _operands(low, op, b, index)[0], source, target))


def _map(low: Lowering, op: MapOp) -> None:
    kind = compute_type(tensor_type(op.result).element_type)
    low.compute(op, lambda b, index: scalars.named(b, op.fn.data, _operands(low, op, b, index), kind))


def _random(low: Lowering, op: nd.RandomOp) -> None:
    t = tensor_type(op.result)
    (site,) = op.index.data
    kind = i64 if op.kind.data == "randint" else f32

    def build(b: Body, index: tuple[Expr, ...]) -> SSAValue:
        seed = low.element(b, op.seeds, [as_expr(2 * site)])
        # a multiple of 16: neighbours then share blocks of four numbers, and a compiler that computes several of them sees it
        drawn = low.element(b, op.seeds, [as_expr(2 * site + 1)])
        start = b.emit(arith.AndIOp, (drawn, b.constant(-16, i64)), i64)
        flat = sum((e * s for e, s in zip(index, strides_contiguous(t.dims), strict=True)), ZERO)
        offset = b.emit(arith.AddiOp, (start, b.index_value(flat, i64)), i64)
        x = b.emit(loop.RandomOp, (seed, offset), kind, kind=StringAttr(op.kind.data))
        return scalars.cast(b, x, kind, t.element_type)

    low.compute(op, build)


# ---- views and inline values


def _view(low: Lowering, op: nd.ViewOp) -> None:
    low.values[op.result] = low.values[op.input].through(low.view_map(op))


def _inline(low: Lowering, op: Operation) -> None:
    low.inline(op)


def _barrier(low: Lowering, op: nd.BarrierOp) -> None:
    copied = low.copy(op.input)
    assert isinstance(copied.owner, loop.NestOp)
    copied.owner.attributes["no_fuse"] = StringAttr(nd.BarrierOp.name)
    low.bind(op.result, copied)


# ---- reductions and scans


def _split_dims(dims: Sequence[Expr], reduced: Sequence[int]) -> tuple[list[int], list[int]]:
    inner = sorted(reduced)
    return [k for k in range(len(dims)) if k not in inner], inner


def _merge(kept: Sequence[int], inner: Sequence[int], outer_index: Sequence[Expr], inner_index: Sequence[Expr]) -> list[Expr]:
    """The full index from the indices of kept and reduced dimensions."""
    full: list[Expr] = [ZERO] * (len(kept) + len(inner))
    for k, e in zip([*kept, *inner], [*outer_index, *inner_index], strict=True):
        full[k] = e
    return full


def _reduction(
    low: Lowering,
    op: Operation,
    reduced: Sequence[int],
    kind: str,
    types: Sequence[Attribute],
    yielded: Callable[[Body, SSAValue, Sequence[Expr], Sequence[Expr]], list[SSAValue]],
    finish: Callable[[Body, Sequence[SSAValue]], Sequence[SSAValue]],
) -> None:
    """A nest over the kept dimensions around a loop.reduce over the others; `finish` makes the stored values from its results."""
    source = tensor_type(op.operands[0])
    kept, inner = _split_dims(source.dims, reduced)
    sizes = [source.dims[k] for k in inner]

    def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
        reduce = loop.ReduceOp.build_reduce(sizes, [kind], types)
        with b.inner(reduce, reduce.body, sizes) as inner_index:
            x = low.element(b, op.operands[0], _merge(kept, inner, index, inner_index))
            b.append(loop.YieldOp.create(operands=yielded(b, x, inner_index, sizes)))
        for value, out in zip(finish(b, reduce.results), outs, strict=True):
            b.store(value, out, index)

    outer = [source.dims[k] for k in kept]
    nest = low.nest(op, outer, [low.empty(r.type) for r in op.results], body)
    for old, new in zip(op.results, nest.results, strict=True):
        low.bind(old, new)


def _reduce(low: Lowering, op: nd.ReduceOp) -> None:
    source, target = tensor_type(op.input).element_type, tensor_type(op.result).element_type
    kind, order = compute_type(target), _signed_order if op.kind.data in ("max", "min") else _as_is
    if op.kind.data == "prod" and is_float(kind):
        _reduction(
            low, op, op.dims.data, "scaled_prod", [kind, i32],
            lambda b, x, i, s: [scalars.cast(b, x, source, target, exact=False)],
            lambda b, r: [low.rounded(b, unscaled(b, r, kind), op.result)],
        )  # fmt: skip
        return
    _reduction(
        low, op, op.dims.data, op.kind.data, [kind],
        lambda b, x, i, s: [order(b, scalars.cast(b, x, source, target, exact=False), target)],
        lambda b, r: [low.rounded(b, order(b, r[0], target), op.result)],
    )  # fmt: skip


def _as_is(b: Body, x: SSAValue, t: Attribute) -> SSAValue:
    return x


def _signed_order(b: Body, x: SSAValue, t: Attribute) -> SSAValue:
    """Reductions compare signed: an unsigned integer with its top bit flipped is in the same order there (twice: itself)."""
    if t not in UNSIGNED or t == i1:
        return x
    assert isinstance(x.type, IntegerType)
    return b.emit(arith.XOrIOp, (x, b.constant(-(1 << (x.type.width.data - 1)), x.type)), x.type)


def _arg_reduce(low: Lowering, op: nd.ArgReduceOp) -> None:
    source, target = tensor_type(op.input).element_type, tensor_type(op.indices).element_type

    def yielded(b: Body, x: SSAValue, index: Sequence[Expr], sizes: Sequence[Expr]) -> list[SSAValue]:
        flat = sum((e * s for e, s in zip(index, strides_contiguous(sizes), strict=True)), ZERO)
        return [_signed_order(b, x, source), b.index_value(flat, i64)]

    _reduction(
        low, op, op.dims.data, op.kind.data, [compute_type(source), i64], yielded,
        lambda b, r: [_signed_order(b, r[0], source), scalars.index_to(b, r[1], target)],
    )  # fmt: skip


def _var_mean(low: Lowering, op: nd.VarMeanOp) -> None:
    source = tensor_type(op.input)
    target = tensor_type(op.var).element_type
    kind = compute_type(target)
    count = product(source.dims[k] for k in op.dims.data)
    correction = op.correction.value.data

    def finish(b: Body, r: Sequence[SSAValue]) -> Sequence[SSAValue]:
        n = b.constant(float(int(count)), kind) if count.is_const else b.emit(arith.SIToFPOp, (b.index_value(count, i64),), kind)
        if correction:
            n = b.emit(arith.SubfOp, (n, b.constant(correction, kind)), kind)
            n = b.emit(arith.MaximumfOp, (n, b.constant(0.0, kind)), kind)
        var = b.emit(arith.DivfOp, (r[1], n), kind)
        return [low.rounded(b, var, op.var), low.rounded(b, r[0], op.mean)]

    _reduction(
        low, op, op.dims.data, "welford", [kind, kind, kind],
        lambda b, x, i, s: [scalars.cast(b, x, source.element_type, target)], finish,
    )  # fmt: skip


def _scan(low: Lowering, op: nd.ScanOp) -> None:
    t = tensor_type(op.input)
    target = tensor_type(op.results[0]).element_type
    (axis,) = op.dim.data
    kept = [k for k in range(t.rank) if k != axis]
    with_index = len(op.results) == 2
    kind, order = compute_type(target), _signed_order if op.kind.data in ("max", "min") else _as_is

    def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
        scan = loop.ScanOp.build_scan(t.dims[axis], op.kind.data, [kind, i64] if with_index else [kind])
        with b.inner(scan, scan.body, [t.dims[axis]]) as inner:
            x = low.element(b, op.input, _merge(kept, [axis], index, inner))
            x = order(b, scalars.cast(b, x, t.element_type, target, exact=False), target)
            values = [x, b.index_value(inner[0], i64)] if with_index else [x]
            b.append(loop.YieldOp.create(operands=values))
        with b.inner(scan, scan.do, [t.dims[axis]]) as inner:
            found, *rest = scan.do_block.args[1:]
            for value, out in zip([order(b, found, target), *rest], outs, strict=True):
                b.store(value, out, _merge(kept, [axis], index, inner))

    nest = low.nest(op, [t.dims[k] for k in kept], [low.empty(r.type) for r in op.results], body)
    for old, new in zip(op.results, nest.results, strict=True):
        low.bind(old, new)


# ---- joins


def _cat(low: Lowering, op: nd.CatOp) -> None:
    if _is_part(op):
        return  # its operands go to their places in the whole
    tensor = low.empty(op.result.type)
    for x, starts in _pieces(op):
        tensor = _store_slice(low, op, x, tensor, starts, [as_expr(1)] * len(starts))
    low.bind(op.result, tensor)


def _is_part(op: Operation) -> bool:
    """Whether all that becomes of a joined tensor is a part of another one."""
    return isinstance(op, nd.CatOp) and [isinstance(use.operation, nd.CatOp) for use in op.result.uses] == [True]


def _pieces(op: nd.CatOp) -> Iterator[tuple[SSAValue, list[Expr]]]:
    """What a join is made of and where each begins in it, joins of joins included."""
    worklist: list[tuple[SSAValue, list[Expr]]] = [(op.result, [ZERO] * tensor_type(op.result).rank)]
    while worklist:
        joined, starts = worklist.pop()
        cat = joined.owner
        if not isinstance(cat, nd.CatOp) or not (cat is op or _is_part(cat)):
            yield joined, starts
            continue
        (axis,) = cat.dim.data
        parts: list[tuple[SSAValue, list[Expr]]] = []
        for x in cat.operands:
            size = tensor_type(x).dims[axis]
            if size is not ZERO:
                parts.append((x, starts))
                starts = [s + size if k == axis else s for k, s in enumerate(starts)]
        worklist += reversed(parts)


def _store_slice(
    low: Lowering, op: Operation, x: SSAValue, into: SSAValue, starts: Sequence[Expr], steps: Sequence[Expr]
) -> SSAValue:
    """A nest that writes `x` to elements starts + i * steps of `into`."""

    def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
        place = [s + e * t for s, e, t in zip(starts, index, steps, strict=True)]
        b.store(low.element(b, x, index), outs[0], place)

    return low.nest(op, tensor_type(x).dims, [into], body).results[0]


def _slice_scatter(low: Lowering, op: nd.SliceScatterOp) -> None:
    low.bind(op.result, _store_slice(low, op, op.source, low.tensor_or_copy(op.base), op.starts.data, op.steps.data))


# ---- indexing by tensors


def _loaded_index(
    low: Lowering, b: Body, x: SSAValue, at: Sequence[Expr], size: Expr, what: StringAttr, axis: int, wrap: bool
) -> Expr:
    value = low.element(b, x, at)
    value = scalars.cast(b, value, tensor_type(x).element_type, i64)
    return b.bound(value, size, what, wrap, IntAttr(axis))


def _index_parts(
    low: Lowering, op: nd.IndexOp | nd.IndexPutOp, base: SSAValue
) -> tuple[list[Expr], list[int], int, Callable[[Body, Sequence[Expr]], list[Expr]]]:
    """Sizes of the indexed shape, the positions that index tensors take in it, and a function from its index to the index of base."""
    dims = tensor_type(base).dims
    indexed = op.dims.data
    shapes = [tensor_type(i).dims for i in op.indices]
    shape = nd.index_result_dims(dims, indexed, shapes)
    inner_rank = len(shape) - (len(dims) - len(indexed))
    adjacent = list(indexed) == list(range(indexed[0], indexed[0] + len(indexed)))
    at = indexed[0] if adjacent else 0
    inner = list(range(at, at + inner_rank))
    rest = [k for k in range(len(shape)) if k not in inner]
    free = [k for k in range(len(dims)) if k not in indexed]
    inner_dims = tuple(shape[k] for k in inner)

    def place(b: Body, index: Sequence[Expr]) -> list[Expr]:
        full: list[Expr] = [ZERO] * len(dims)
        for k, r in zip(free, rest, strict=True):
            full[k] = index[r]
        tensor_index = [index[k] for k in inner]
        for k, x in zip(indexed, op.indices, strict=True):
            where = broadcast_map(tensor_type(x).dims, inner_dims).apply(tensor_index)
            full[k] = _loaded_index(low, b, x, where, dims[k], _user_name(op), k, op.wrap is not None)
        return full

    return list(shape), inner, inner_rank, place


def _user_name(op: Operation) -> StringAttr:
    """What an index error calls the operator."""
    name = op.attributes.get("what")
    return name if isinstance(name, StringAttr) else StringAttr(op.name[3:])


def _index(low: Lowering, op: nd.IndexOp) -> None:
    _, _, _, place = _index_parts(low, op, op.input)
    low.compute(op, lambda b, index: low.element(b, op.input, place(b, index)))


def _gather(low: Lowering, op: nd.GatherOp) -> None:
    (axis,) = op.dim.data
    size = tensor_type(op.input).dims[axis]

    def build(b: Body, index: tuple[Expr, ...]) -> SSAValue:
        loaded = _loaded_index(low, b, op.index, index, size, _user_name(op), axis, False)
        return low.element(b, op.input, [loaded if k == axis else e for k, e in enumerate(index)])

    low.compute(op, build)


def _scatter(low: Lowering, op: nd.ScatterOp) -> None:
    (axis,) = op.dim.data
    dims = tensor_type(op.index).dims
    size = tensor_type(op.base).dims[axis]
    kept, columns = list(range(axis)), list(range(axis + 1, len(dims)))

    def store(b: Body, full: list[Expr], out: SSAValue) -> None:
        loaded = _loaded_index(low, b, op.index, full, size, _user_name(op), axis, False)
        value = low.element(b, op.source, full)
        target = [loaded if k == axis else e for k, e in enumerate(full)]
        b.store(value, out, target, op.mode.data, b.holds_elements(target))

    def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
        inner = loop.ForOp.build_for([dims[axis]])
        inner.properties["sequential"] = _UNIT
        with b.inner(inner, inner.body, [dims[axis]]) as inner_index:
            if not columns:
                store(b, _merge(kept, [axis], index, inner_index), outs[0])
                return
            along = loop.ForOp.build_for([dims[k] for k in columns])  # as they lie in memory
            with b.inner(along, along.body, [dims[k] for k in columns]) as column:
                store(b, [*index, *inner_index, *column], outs[0])

    nest = low.nest(op, [dims[k] for k in kept], [low.tensor_or_copy(op.base)], body)
    low.bind(op.result, nest.results[0])


def _index_put(low: Lowering, op: nd.IndexPutOp) -> None:
    shape, inner, _, place = _index_parts(low, op, op.base)
    rest = [k for k in range(len(shape)) if k not in inner]
    values = tensor_type(op.values).dims

    def store(b: Body, full: Sequence[Expr], rest_index: Sequence[Expr], inner_index: Sequence[Expr], out: SSAValue) -> None:
        free = iter(rest_index)
        target = [e if k in op.dims.data else next(free) for k, e in enumerate(full)]
        source = _merge(rest, inner, rest_index, inner_index)
        value = low.element(b, op.values, broadcast_map(values, tuple(shape)).apply(source))
        b.store(value, out, target, op.mode.data, b.holds_elements(target))

    def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
        outer = loop.ForOp.build_for([shape[k] for k in inner])
        outer.properties["sequential"] = _UNIT
        with b.inner(outer, outer.body, [shape[k] for k in inner]) as inner_index:
            full = place(b, _merge(rest, inner, [ZERO] * len(rest), inner_index))
            if not rest:
                store(b, full, (), inner_index, outs[0])
                return
            columns = loop.ForOp.build_for([shape[k] for k in rest])
            with b.inner(columns, columns.body, [shape[k] for k in rest]) as rest_index:
                store(b, full, rest_index, inner_index, outs[0])

    nest = low.nest(op, [], [low.tensor_or_copy(op.base)], body)
    low.bind(op.result, nest.results[0])


# ---- whole-tensor ops


def _matmul(low: Lowering, op: nd.MatmulOp) -> None:
    t = tensor_type(op.result)
    depth = tensor_type(op.lhs).dims[-1]
    sizes: list[Expr] = []
    index: list[Expr] = []  # of the product, in the loops of the contraction
    for k, size in enumerate(t.dims):
        parts = _parts(low, op, k, size) if k < t.rank - 2 else [size]
        steps = strides_contiguous(parts)
        index.append(sum((dim(len(sizes) + i) * step for i, step in enumerate(steps)), as_expr(0)))
        sizes += parts
    (*batch, m, n), k = index, dim(len(sizes))
    lhs, rhs = (
        _contract_operand(low, x, IndexMap(len(sizes) + 1, (*batch, *at)), sizes, depth, divided)
        for x, at, divided in ((op.lhs, (m, k), WINDOWS in op.attributes), (op.rhs, (k, n), False))
    )
    contract = loop.ContractOp.build_contract(sizes, depth, lhs, rhs, [low.empty(t)], compute_type(t.element_type))
    body = Body(contract.block, sizes, low.symbols, None)
    body.store(contract.accumulator, contract.out_args[0], index)
    low.add(contract, op)
    low.bind(op.result, contract.results[0])


def _parts(low: Lowering, op: nd.MatmulOp, k: int, size: Expr) -> list[Expr]:
    """The sizes of the loops that batch dimension `k` is made of: where an operand divides its index (heads that share keys), what is
    outside of the divisor and what is inside, so that no loop is divided and nothing copied."""
    divisors: set[int] = set()
    for x in op.operands:
        for e in low.values[x].map.results:
            divisors |= {int(d.rhs) for d in _divisions(e) if free_dims(d) == {dim(k)} and d.rhs.is_const}
    inner, parts = 1, []
    for divisor in sorted(divisors):
        if size.value is None or size.value % divisor or divisor % inner:
            return [size]
        parts.insert(0, as_expr(divisor // inner))
        inner = divisor
    return [size // inner, *parts]


def _divisions(e: Expr) -> list[FloorDiv | Mod]:
    """The divisions in an expression."""
    found = [e] if isinstance(e, (FloorDiv, Mod)) else []
    return found + [d for inner in children(e) if inner.has_div for d in _divisions(inner)]


def _contract_operand(
    low: Lowering, x: SSAValue, access: IndexMap, sizes: Sequence[Expr], depth: Expr, divided: bool = False
) -> tuple[SSAValue, IndexMap]:
    """A tensor and the map of a contraction's indices (over `sizes`, then the depth) into it; views are absorbed when they stay linear,
    and where a factor is stored in panels. `divided`: the operand is a view, and is absorbed as it is: windows."""
    ranges = {**low.symbols, **{dim(k): Range.of_size(s) for k, s in enumerate((*sizes, depth))}}
    if divided and isinstance(x.owner, nd.IndexViewOp):
        return low.tensor(x.owner.input), x.owner.map.data.compose(access).simplify(RangeEnv(ranges))
    value = low.values[x]
    if isinstance(value.root, SSAValue) and tensor_type(value.root).element_type == tensor_type(x).element_type:
        seen = value.map.compose(access).simplify(RangeEnv(ranges))
        if not any(e.has_div for e in seen.results) or _is_in_panels(value.root, seen, sizes, depth):
            return value.root, seen
    return low.tensor(x), access


def _is_in_panels(x: SSAValue, access: IndexMap, sizes: Sequence[Expr], depth: Expr) -> bool:
    """Whether a contraction reads a tensor that it is given as its right factor in panels."""
    t = tensor_type(x)
    return isinstance(x, BlockArgument) and panel_columns(access, sizes[-1], depth, t.element_type, t) > 0


def _conv(low: Lowering, op: nd.ConvOp) -> None:
    p = op.properties
    operands = [low.tensor(x) for x in op.operands]
    args = (
        Arg(0), Arg(1), Arg(2) if len(operands) == 3 else None, op.stride.data, op.padding.data, op.dilation.data,
        "transposed" in p, op.output_padding.data, op.groups.data[0],
    )  # fmt: skip
    properties: dict[str, Attribute] = {"call": CallAttr(Call("aten.convolution.default", args))}
    if "layout" in p:
        properties["result_layouts"] = ArrayAttr([p["layout"]])
    for name in ("operand_layouts", "result_layouts"):
        if name in op.attributes:
            properties[name] = op.attributes[name]
    extern = nd.ExternOp.create(operands=operands, result_types=[op.result.type], properties=properties)
    if "layout_choices" in op.attributes:
        extern.attributes["layout_choices"] = op.attributes["layout_choices"]
    low.add(extern, op)
    low.bind(op.result, extern.results[0])


def _extern(low: Lowering, op: nd.ExternOp) -> None:
    undefined: Any = op.attributes.get(UNDEFINED)
    fresh = undefined.data if undefined is not None else ()
    new = nd.ExternOp.create(
        operands=[low.empty(tensor_type(x)) if k in fresh else low.tensor(x) for k, x in enumerate(op.operands)],
        result_types=[r.type for r in op.results],
        properties=op.properties,
        attributes={k: v for k, v in op.attributes.items() if k != UNDEFINED},
    )
    low.add(new, op)
    for old, result in zip(op.results, new.results, strict=True):
        low.bind(old, result)


def _called(low: Lowering, op: Operation) -> None:
    """A call of another function of the module, or a batch of calls."""
    new = create(type(op), [low.tensor(x) for x in op.operands], [r.type for r in op.results], op.properties)
    new.attributes.update(op.attributes)
    low.add(new, op)
    for old, result in zip(op.results, new.results, strict=True):
        low.bind(old, result)


def _update(low: Lowering, op: nd.UpdateOp) -> None:
    target = low.values[op.target].root
    assert isinstance(target, SSAValue)
    low.add(nd.UpdateOp.create(operands=[target, low.tensor(op.value)]), op)


def _return(low: Lowering, op: ReturnOp) -> None:
    values = [low.empty(x.type) if _is_reinterpreted(op, k) else low.tensor(x) for k, x in enumerate(op.operands)]
    low.add(ReturnOp.create(operands=values), op)


def _is_reinterpreted(op: ReturnOp, k: int) -> bool:
    """Whether result `k` is the memory of an earlier result seen as another element type: nothing is computed for it."""
    func = op.parent_op()
    attrs = func.res_attrs.data if isinstance(func, FuncOp) and func.res_attrs is not None else ()
    attr = attrs[k].data.get("nd.alias") if k < len(attrs) and isinstance(attrs[k], DictionaryAttr) else None
    what, _, number = attr.data.partition(" ") if isinstance(attr, StringAttr) else ("", "", "")
    if what != "result" or not number.isdigit() or int(number) >= k:
        return False
    return tensor_type(op.operands[int(number)]).element_type != tensor_type(op.operands[k]).element_type


RULES: dict[type[Operation], Rule] = {
    **{cls: _named_pointwise for name, cls in OPS.items() if name not in PREDICATES},
    **{OPS[name]: _predicate for name in PREDICATES},
    CmpOp: _cmp,
    SelectOp: _select,
    FmaOp: _fma,
    CastOp: _cast,
    BitcastOp: _bitcast,
    MapOp: _map,
    nd.RandomOp: _random,
    **{cls: _inline for cls in INLINE},
    **{cls: _view for cls in (nd.ReshapeOp, nd.PermuteOp, nd.ExpandOp, nd.SliceOp, nd.FlipOp, nd.IndexViewOp)},
    nd.BarrierOp: _barrier,
    nd.ReduceOp: _reduce,
    nd.ArgReduceOp: _arg_reduce,
    nd.VarMeanOp: _var_mean,
    nd.ScanOp: _scan,
    nd.CatOp: _cat,
    nd.SliceScatterOp: _slice_scatter,
    nd.IndexOp: _index,
    nd.GatherOp: _gather,
    nd.ScatterOp: _scatter,
    nd.IndexPutOp: _index_put,
    nd.MatmulOp: _matmul,
    nd.ConvOp: _conv,
    nd.ExternOp: _extern,
    loop.BatchOp: _called,
    CallOp: _called,
    nd.UpdateOp: _update,
    ReturnOp: _return,
}
