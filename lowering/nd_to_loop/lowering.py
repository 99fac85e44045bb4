"""The visitor that turns one `nd` function into nests: which values are computed, which are only re-indexed.

A value of `nd` is either in a tensor of the new function (a nest's result, an argument, an extern result) or computed where it is read
(constants, iota, padding). In both cases it is reached through an index map, which is how views vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from xdsl.dialects.builtin import IntegerType, LocationAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import ONE, ZERO, Expr, IndexMap, dim, strides_contiguous
from ...dialects.expr.ranges import Range, RangeEnv, prove_eq
from ...dialects.expr.syntax import IndexMapAttr
from ...dialects.nd.types import LOW_PRECISION, TensorType, compute_type, tensor_type
from ...dialects.support.names import keep_name
from ...passes.loop.transform.body import INDEX, Body
from ..loop_to_mem.layouts import base_strides, view_strides
from . import scalars


@dataclass(frozen=True)
class LoweredValue:
    """Where the elements of an `nd` value come from: element `index` is element map(index) of `root`, which is a tensor of the new
    function (of f16 or bf16, say, for a value of f32 that is cast from one: the same in their compute type) or an inline op (see INLINE
    in passes/loop/repeats/repeat_find.py) of the old one."""

    root: SSAValue | Operation
    map: IndexMap

    def through(self, view: IndexMap) -> LoweredValue:
        """This value seen through a view's index map."""
        return LoweredValue(self.root, self.map.compose(view))


def view_map(op: nd.ViewOp, env: RangeEnv) -> IndexMap:
    """The map from an index of the view to an index of its operand."""
    source, target = tensor_type(op.input).dims, tensor_type(op.result).dims
    dims = [dim(k) for k in range(len(target))]
    if isinstance(op, nd.PermuteOp):
        order = op.dims.data
        return IndexMap(len(dims), tuple(dims[order.index(k)] for k in range(len(order))))
    if isinstance(op, nd.ExpandOp):
        return broadcast_map(source, target)
    if isinstance(op, nd.SliceOp):
        return IndexMap(len(dims), tuple(s + d * t for s, t, d in zip(op.starts.data, op.steps.data, dims, strict=True)))
    if isinstance(op, nd.FlipOp):
        flipped = op.dims.data
        return IndexMap(len(dims), tuple(s - 1 - d if k in flipped else d for k, (s, d) in enumerate(zip(source, dims, strict=True))))
    if isinstance(op, nd.ReshapeOp):
        return reshape_map(source, target, env)
    assert isinstance(op, nd.IndexViewOp), op.name
    return op.map.data


@cache
def broadcast_map(source: tuple[Expr, ...], target: tuple[Expr, ...]) -> IndexMap:
    """Index of an operand of sizes `source` for an index of its broadcast to `target`."""
    shift = len(target) - len(source)
    return IndexMap(len(target), tuple(ZERO if s is ONE else dim(k + shift) for k, s in enumerate(source)))


def reshape_map(source: Sequence[Expr], target: Sequence[Expr], env: RangeEnv) -> IndexMap:
    """Row-major re-indexing, matched group by group so that only the dimensions that change meet division."""
    results: list[Expr] = [ZERO] * len(source)
    if ZERO in source or ZERO in target:
        return IndexMap(len(target), tuple(results))  # no element to find
    i = j = 0
    while i < len(source) or j < len(target):
        i0, j0 = i, j
        a = source[i] if i < len(source) else ONE
        b = target[j] if j < len(target) else ONE
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while not prove_eq(a, b, env) and (i < len(source) or j < len(target)):
            grow_source = j >= len(target) or (i < len(source) and _smaller(a, b))
            if grow_source:
                a, i = a * source[i], i + 1
            else:
                b, j = b * target[j], j + 1
        _reshape_group(results, range(i0, i), source, range(j0, j), target)
    ranges = {**env, **{dim(k): Range.of_size(s) for k, s in enumerate(target)}}
    return IndexMap(len(target), tuple(results)).simplify(RangeEnv(ranges))


def _smaller(a: Expr, b: Expr) -> bool:
    """Whether `a` should grow first; symbolic products are compared by how many factors they have."""
    if a.is_const and b.is_const:
        return int(a) < int(b)
    return len(str(a)) <= len(str(b))


def _reshape_group(results: list[Expr], sources: range, source: Sequence[Expr], targets: range, target: Sequence[Expr]) -> None:
    steps = strides_contiguous([target[k] for k in targets])
    flat = sum((dim(k) * s for k, s in zip(targets, steps, strict=True)), ZERO)
    if len(sources) == 1:
        results[sources[0]] = flat
        return
    for k, step in zip(sources, strides_contiguous([source[k] for k in sources]), strict=True):
        place = flat // step
        results[k] = place if k == sources.start else place % source[k]
        if source[k] is ONE:
            results[k] = ZERO


class Lowering:
    """State of one function's lowering; `rules` (rules.py) fill in what each op does."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, eager_rounding: bool):
        self.symbols = symbols
        self.eager_rounding = eager_rounding
        self.values: dict[SSAValue, LoweredValue] = {}
        old = func.body.block
        self.block = Block(arg_types=[a.type for a in old.args])
        for before, after in zip(old.args, self.block.args, strict=True):
            after.name_hint = before.name_hint
            self.bind(before, after)
        self._materialised: dict[tuple[object, IndexMap], SSAValue] = {}
        self._reshapes: dict[tuple[tuple[Expr, ...], tuple[Expr, ...]], IndexMap] = {}

    def view_map(self, op: nd.ViewOp) -> IndexMap:
        """The map of a view; equal reshapes (one in every layer) are solved once."""
        if not isinstance(op, nd.ReshapeOp):
            return view_map(op, self.symbols)
        key = tensor_type(op.input).dims, tensor_type(op.result).dims
        found = self._reshapes.get(key)
        if found is None:
            found = self._reshapes[key] = view_map(op, self.symbols)
        return found

    # ---- values

    def bind(self, old: SSAValue, tensor: SSAValue) -> None:
        """The elements of `old` are those of `tensor`."""
        rank = old.type.rank if isinstance(old.type, TensorType) else 0
        self.values[old] = LoweredValue(tensor, IndexMap.identity(rank))
        if tensor.name_hint is None and old.name_hint is not None:
            tensor.name_hint = old.name_hint

    def inline(self, op: Operation) -> None:
        self.values[op.results[0]] = LoweredValue(op, IndexMap.identity(tensor_type(op.results[0]).rank))

    def element(self, b: Body, old: SSAValue, index: Sequence[Expr], within: SSAValue | None = None) -> SSAValue:
        """The element of `old` at `index`, in the compute type of its dtype. `within`: where it is needed (None: everywhere);
        elsewhere nothing is loaded."""
        value = self.values[old]
        at = [b.simplify(e) for e in value.map.apply(index)]
        if isinstance(value.root, SSAValue):
            mask = b.logical_and(within, b.holds_elements(at))
            if mask is None:
                return b.load(value.root, at)
            return b.load(value.root, at, mask, b.constant(0, compute_type(tensor_type(old).element_type)))
        return self._inline_element(b, value.root, at, within)

    def _inline_element(self, b: Body, op: Operation, at: list[Expr], within: SSAValue | None) -> SSAValue:
        dtype = tensor_type(op.results[0]).element_type
        kind = compute_type(dtype)
        if isinstance(op, nd.FullOp):
            return b.constant(op.value.value.data, kind)
        if isinstance(op, nd.SizeOp):
            return scalars.index_to(b, b.index_value(op.value.data, i64), dtype)
        if isinstance(op, nd.IotaOp):
            if isinstance(kind, IntegerType) and kind.width.data >= 32:
                return b.index_value(at[op.dim.data[0]], kind)
            return scalars.index_to(b, b.index_value(at[op.dim.data[0]], i64), dtype)
        if isinstance(op, nd.ScalarOp):
            x = self.values[op.input].root
            assert isinstance(x, SSAValue)
            source = i64 if x.type == INDEX else x.type
            if x.type == INDEX:
                x = b.emit(scalars.arith.IndexCastOp, (x,), i64)
            return scalars.cast(b, x, source, dtype)
        if isinstance(op, nd.LiteralOp):
            return self._literal_element(b, op, at, dtype)
        assert isinstance(op, nd.PadOp)
        return self._padded_element(b, op, at, within)

    def _literal_element(self, b: Body, op: nd.LiteralOp, at: list[Expr], dtype: Attribute) -> SSAValue:
        kind = compute_type(dtype)
        constants = [b.constant(v.value.data, kind) for v in op.values.data]  # pyright: ignore[reportAttributeAccessIssue]
        steps = strides_contiguous(tensor_type(op.result).dims)
        flat = b.simplify(sum((e * s for e, s in zip(at, steps, strict=True)), ZERO))
        if flat.is_const:
            return constants[int(flat)]
        place, result = b.index_value(flat, i64), constants[-1]
        for k in range(len(constants) - 2, -1, -1):
            result = b.select(b.cmpi("eq", place, b.constant(k, i64)), constants[k], result)
        return result

    def _padded_element(self, b: Body, op: nd.PadOp, at: list[Expr], within: SSAValue | None) -> SSAValue:
        inner = [e - low for e, low in zip(at, op.low.data, strict=True)]
        mask: SSAValue | None = None
        for e, size, low, high in zip(inner, tensor_type(op.input).dims, op.low.data, op.high.data, strict=True):
            if low is not ZERO or high is not ZERO:
                mask = b.logical_and(mask, b.inside(e, size))
        if mask is None:
            return self.element(b, op.input, inner, within)
        other = self.element(b, op.value, [])
        both = b.logical_and(within, mask)
        source = self.values[op.input]
        if isinstance(source.root, SSAValue):
            return b.load(source.root, source.map.apply(inner), both, other)
        return b.select(mask, self.element(b, op.input, inner, both), other)

    # ---- tensors

    def add(self, op: Operation, like: Operation | None = None) -> None:
        """Append a top-level op, with the location of `like`."""
        if like is not None:
            op.location = like.location
        self.block.add_op(op)

    def empty(self, t: Attribute) -> SSAValue:
        op = loop.EmptyOp.create(result_types=[t])
        self.block.add_op(op)
        return op.results[0]

    def nest(
        self,
        like: Operation,
        sizes: Sequence[Expr],
        outs: Sequence[SSAValue],
        build: Callable[[Body, tuple[Expr, ...], Sequence[SSAValue]], None],
    ) -> loop.NestOp:
        """A nest over `sizes`; `build(body, loop indices, outs inside)` writes its body."""
        nest = loop.NestOp.build_nest(sizes, outs, like.location)
        body = Body(nest.block, sizes, self.symbols, like.location if known(like.location) else None)
        build(body, tuple(dim(k) for k in range(len(sizes))), nest.out_args)
        _name_elements(nest, like)
        self.add(nest)
        return nest

    def compute(self, op: Operation, build: Callable[[Body, tuple[Expr, ...]], SSAValue]) -> None:
        """A nest that computes the one result of `op` element by element."""
        t = tensor_type(op.results[0])

        def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
            b.store(self.rounded(b, build(b, index), op.results[0]), outs[0], index)

        nest = self.nest(op, t.dims, [self.empty(t)], body)
        self.bind(op.results[0], nest.results[0])

    def rounded(self, b: Body, x: SSAValue, result: SSAValue) -> SSAValue:
        """`x`, an element of `result` that was just computed: one of f16 or bf16 is rounded at once with eager numerics (else when it is
        stored)."""
        dtype = tensor_type(result).element_type
        return scalars.round_to(b, x, dtype) if self.eager_rounding and dtype in LOW_PRECISION else x

    def tensor(self, old: SSAValue) -> SSAValue:
        """`old` as a tensor (or view of one) of the new function, for ops that take whole tensors."""
        value = self.values[old]
        if not isinstance(old.type, TensorType):
            assert isinstance(value.root, SSAValue)
            return value.root
        if isinstance(value.root, SSAValue) and value.map.is_identity and value.root.type == old.type:
            return value.root
        key = (value.root, value.map)
        found = self._materialised.get(key)
        if found is not None and found.type == old.type:
            return found
        found = None
        root = value.root
        if isinstance(root, nd.PadOp) and root.result is not old and tensor_type(root.result).numel is tensor_type(old).numel:
            root = self.tensor(root.result)  # stored once for all that view it, in whatever order
        if isinstance(root, SSAValue) and tensor_type(root).element_type == tensor_type(old).element_type:
            view = nd.IndexViewOp.create(operands=[root], result_types=[old.type], properties={"map": IndexMapAttr.get(value.map)})
            if self._has_strides(view):
                self.block.add_op(view)
                found = view.result
            else:
                view.erase()
        found = found or self.copy(old)
        self._materialised[key] = found
        return found

    def _has_strides(self, view: nd.IndexViewOp) -> bool:
        """Whether strides may express a view. Of what a nest computes they do, row-major or so that the view is row-major, or the view
        is a copy: a nest of its own, so that what computes its elements may fuse with it."""
        if not isinstance(view.input.owner, loop.NestOp):
            return True
        base, seen = tensor_type(view.input), tensor_type(view.result)
        if view_strides(seen.dims, strides_contiguous(base.dims), ZERO, view.map.data, self.symbols) is not None:
            return True
        return base_strides(view, strides_contiguous(seen.dims), self.symbols) is not None

    def tensor_or_copy(self, old: SSAValue) -> SSAValue:
        """`old` as a tensor with its own dimensions that a nest can take as the initial value of an out."""
        value = self.values[old]
        if isinstance(value.root, SSAValue) and value.map.is_identity and value.root.type == old.type:
            return value.root
        return self.copy(old)

    def copy(self, old: SSAValue, initial: SSAValue | None = None) -> SSAValue:
        """A nest that writes the elements of `old` to a tensor of their own."""
        owner = old.owner if isinstance(old.owner, Operation) else None
        t = tensor_type(old)

        def body(b: Body, index: tuple[Expr, ...], outs: Sequence[SSAValue]) -> None:
            b.store(self.element(b, old, index), outs[0], index)

        like = owner or loop.EmptyOp.create(result_types=[t])
        return self.nest(like, t.dims, [initial or self.empty(t)], body).results[0]


def _name_elements(nest: loop.NestOp, like: Operation) -> None:
    """What a nest stores is called as the results of `like`."""
    for out, result in zip(nest.out_args, like.results, strict=False):
        for use in out.uses:
            store = use.operation
            if isinstance(store, loop.StoreOp) and isinstance(store.value.owner, Operation):
                keep_name(store.value, result)


def known(location: LocationAttr) -> bool:
    """Whether a location says anything."""
    return type(location).__name__ != "UnknownLoc"
