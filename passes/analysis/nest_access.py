"""What a nest reads and writes, in terms of its own loops: the analysis under loop-schedule and mem-to-cpu.

Every access of a nest becomes one offset: an index expression, in elements, over the indices of the loops around it
(and over indices that were loaded from memory, each an opaque dimension of its own). On these offsets the loops are
normalised, unless the schedule fixes them and without touching the IR: loops of size 1 go, loops whose indices are
only ever divided by a constant are split so that the division goes, and loops that every access walks through as if
they were one are merged. The counterpart in MLIR: drop-unit-dims and collapse of linalg.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, i1
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import (
    ONE,
    ZERO,
    Dim,
    Expr,
    FloorDiv,
    Mod,
    as_expr,
    dim,
    dims_subs,
    exact_quotient,
    free_dims,
    linear_coeff,
    product,
    strides_contiguous,
)
from ...dialects.expr.ranges import Range, RangeEnv, simplify
from ...dialects.expr.walk import children
from .op_costs import op_cost
from .repeated_fills import repeated_fills
from .schedule_attrs import is_fixed

P = ParamSpec("P")
R = TypeVar("R")

_MAX_SPLITS = 6


class Loop:
    """One loop of a node after normalisation. `positions` are the loops of the op that it stands for, by number (none
    for a loop that came from inside)."""

    __slots__ = ("dim", "size", "positions")

    def __init__(self, d: Dim, size: Expr, positions: tuple[int, ...]):
        self.dim = d
        self.size = size
        self.positions = positions

    def __repr__(self) -> str:
        return f"{self.dim} = {self.size} {self.positions}"


class Access:
    """One load or store: `offset` counts elements from the buffer's first one."""

    __slots__ = ("op", "buffer", "offset", "dtype", "is_store", "mode", "node")

    def __init__(self, op: loop.LoadOp | loop.StoreOp, buffer: SSAValue, offset: Expr, node: Node):
        self.op = op
        self.buffer = buffer
        self.offset = offset
        self.dtype: Attribute = loop.element_type(buffer.type)
        self.is_store = isinstance(op, loop.StoreOp)
        self.mode = op.store_mode if isinstance(op, loop.StoreOp) else "set"
        self.node = node


class Node:
    """A loop-like op of a nest with its normalised loops, what its body accesses directly, and the loop-like ops in
    its body."""

    __slots__ = ("op", "loops", "children", "accesses", "values", "parent", "num_ops")

    def __init__(self, op: Operation, loops: list[Loop], parent: Node | None):
        self.op = op
        self.loops = loops
        self.children: list[Node] = []
        self.accesses: list[Access] = []
        self.values: list[SSAValue] = []
        """Results of loop.index in the body: used as numbers, so normalisation must keep them right."""
        self.parent = parent
        self.num_ops = 0.0
        """Cost of the ops of the body other than accesses and loops."""

    @property
    def last_dim(self) -> Dim | None:
        """The index of its last loop; None where normalisation has left none, as of loops of one iteration."""
        return self.loops[-1].dim if self.loops else None

    @property
    def trips(self) -> Expr:
        """How many iterations its loops have."""
        return product(one.size for one in self.loops)

    def walk(self) -> Iterator[Node]:
        """This node and all inside it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all_accesses(self) -> Iterator[Access]:
        for node in self.walk():
            yield from node.accesses


def buffer_strides(t: Attribute) -> tuple[Expr, ...]:
    """The strides of a buffer; a tensor counts as row-major."""
    found = getattr(t, "stride_exprs", None)
    return strides_contiguous(loop.shaped_dims(t)) if found is None else found


def asked_once(question: Callable[Concatenate[NestAccess, P], R]) -> Callable[Concatenate[NestAccess, P], R]:
    """A question about a nest, of arguments that can be keys: the analysis keeps the answer. An analysis is of a nest as it stands, and is
    made again for one that was changed."""

    @wraps(question)
    def answer(info: NestAccess, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (question, args, *kwargs.items())
        if key not in info.answers:
            info.answers[key] = question(info, *args, **kwargs)
        return info.answers[key]

    return answer


class NestAccess:
    """The analysis of one nest, see the module's docstring. `root` is the nest's node, `exprs` gives index values as
    expressions, `opaque` says which value an opaque dimension stands for, `ranges` what is known of dimensions and
    symbols."""

    def __init__(
        self, nest: Operation, symbols: RangeEnv, normalise: bool = True, strides: Mapping[SSAValue, Sequence[Expr]] | None = None
    ):
        self.nest = nest
        self.exprs: dict[SSAValue, Expr] = {}
        self.opaque: dict[Dim, SSAValue] = {}
        self.access: dict[Operation, Access] = {}
        self.local: set[SSAValue] = set()
        """Buffers that each iteration of the nest has for itself."""
        self.nodes: dict[Operation, Node] = {}
        self._strides = strides or {}
        """Of tensors that are known to lie otherwise than row-major."""
        self.answers: dict[Hashable, Any] = {}
        """What `asked_once` keeps."""
        self._count = 0
        self._numbers: dict[SSAValue, Dim] = {}
        self._known: dict[Expr, Range] = dict(symbols)
        self._buffers: dict[SSAValue, SSAValue] = {}
        assert isinstance(nest, (loop.NestOp, loop.ContractOp))
        for argument, out in zip(nest.out_args, nest.outs, strict=True):
            self._buffers[argument] = out
        self.ranges = RangeEnv(self._known)
        self.root = self._node(nest, None)
        self.repeated = repeated_fills(nest) if self.local and isinstance(nest, loop.NestOp) else frozenset[Operation]()
        """Loops that fill memory of the iteration with the same in all iterations, and that memory."""
        if normalise:
            self._interchange()
            for node in self.root.walk():
                self._normalise(node)
        else:
            self._refresh()

    def buffer(self, value: SSAValue) -> SSAValue:
        """The buffer outside of the nest that a value inside stands for."""
        return self._buffers.get(value, value)

    def expr(self, value: SSAValue) -> Expr:
        """An index value as an expression (an opaque dimension where it was computed or loaded)."""
        found = self.exprs.get(value)
        if found is None:
            found = self.exprs[value] = self.new_dim(Range())
            self.opaque[found] = value
        return found

    def loaded(self, value: SSAValue) -> Dim:
        """A dimension for a number that was loaded or computed and is no index."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = self.new_dim(Range())
            self.opaque[found] = value
        return found

    # ---- reading the IR

    def new_dim(self, known: Range) -> Dim:
        """A dimension of its own, of which `known` is known."""
        d = dim(self._count)
        self._count += 1
        self._known[d] = self.ranges[d] = known  # nobody has asked for it yet
        return d

    def _node(self, op: Operation, parent: Node | None) -> Node:
        assert isinstance(op, loop.LoopLike)
        loops = [Loop(self.new_dim(Range.of_size(s)), s, (k,)) for k, s in enumerate(op.loop_sizes)]
        node = self.nodes[op] = Node(op, loops, parent)
        for region in op.regions:
            for block in region.blocks:
                for value, one in zip(block.args, loops, strict=False):
                    self.exprs[value] = one.dim
                self._block(node, block)
        return node

    def _block(self, node: Node, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, (loop.LoadOp, loop.StoreOp)):
                buffer = self.buffer(op.shaped)
                index = [self.expr(v) for v in op.index_operands]
                offset: Expr = ZERO
                for e, stride in zip(op.index_map.results, self._strides.get(buffer) or buffer_strides(buffer.type), strict=True):
                    offset = offset + dims_subs(e, index) * stride
                found = self.access[op] = Access(op, buffer, offset, node)
                node.accesses.append(found)
            elif isinstance(op, loop.IndexOp):
                self.exprs[op.result] = dims_subs(op.expression, [self.expr(v) for v in op.args])
                node.values.append(op.result)
            elif isinstance(op, loop.BoundOp):
                d = self.exprs[op.result] = self.new_dim(Range.of_size(op.size.data))
                self.opaque[d] = op.result
                node.num_ops += op_cost(op)
            elif isinstance(op, loop.LoopLike):
                node.children.append(self._node(op, node))
            elif isinstance(op, loop.LocalOp):
                self.local.add(op.result)
            elif isinstance(op, arith.ConstantOp):
                if isinstance(op.result.type, (IndexType, IntegerType)) and op.result.type != i1:
                    assert isinstance(op.value, IntegerAttr)
                    self.exprs[op.result] = as_expr(op.value.value.data)
            elif not isinstance(op, loop.YieldOp):
                node.num_ops += op_cost(op)

    # ---- normalising

    def _refresh(self) -> None:
        """Simplify all expressions under what is known of the dimensions now."""
        self.ranges = RangeEnv(self._known)
        for access in self.access.values():
            if access.offset.has_div:
                access.offset = simplify(access.offset, self.ranges)
        for value, e in self.exprs.items():
            if e.has_div:
                self.exprs[value] = simplify(e, self.ranges)

    def _substitute(self, mapping: dict[Expr, Expr]) -> None:
        for access in self.access.values():
            if not free_dims(access.offset).isdisjoint(mapping):
                access.offset = access.offset.subs(mapping)
        for value, e in self.exprs.items():
            if not free_dims(e).isdisjoint(mapping):
                self.exprs[value] = e.subs(mapping)
        self._refresh()

    def _under(self, node: Node) -> list[Expr]:
        """The distinct expressions that depend on the loops of `node`."""
        found: dict[Expr, None] = {}
        for inner in node.walk():
            for access in inner.accesses:
                found[access.offset] = None
            for value in inner.values:
                found[self.exprs[value]] = None
        return list(found)

    def _normalise(self, node: Node) -> None:
        units: dict[Expr, Expr] = {one.dim: ZERO for one in node.loops if one.size is ONE}
        if units:
            node.loops = [one for one in node.loops if one.dim not in units]
            self._substitute(units)
        elif node.parent is None:
            self._refresh()
        if isinstance(node.op, (loop.ScanOp, loop.ContractOp)) or is_fixed(node.op):
            return
        if isinstance(node.op, loop.ForOp) and node.op.sequential is not None:
            return
        self._merge(node)
        splits = 0
        while splits < _MAX_SPLITS and self._split(node):
            splits += 1
        if splits:
            self._merge(node)

    def _interchange(self) -> None:
        """Parallel loops inside of a sequential one go outside, as loops of the nest, where nothing is contiguous along
        them: each then walks through its own part of memory, on a thread of its own."""
        root = self.root
        if len(root.children) != 1 or root.accesses or is_fixed(root.op):
            return
        (outer,) = root.children
        if not isinstance(outer.op, loop.ForOp) or outer.op.sequential is None or len(outer.children) != 1:
            return
        (inner,) = outer.children
        if any(a.is_store for a in outer.accesses) or not isinstance(inner.op, loop.ForOp) or inner.op.sequential:
            return
        offsets = [a.offset for a in inner.all_accesses()]
        moved = [one for one in inner.loops if not any(linear_coeff(e, one.dim) is ONE for e in offsets)]
        inner.loops = [one for one in inner.loops if one not in moved]
        root.loops = [*root.loops, *(Loop(one.dim, one.size, ()) for one in moved)]

    def _merge(self, node: Node) -> None:
        while len(node.loops) > 1:
            exprs = self._under(node)
            pair = self._mergeable_pair(node.loops, exprs)
            if pair is None:
                return
            outer, inner = pair
            merged = Loop(inner.dim, outer.size * inner.size, (*outer.positions, *inner.positions))
            node.loops = [merged if one is inner else one for one in node.loops if one is not outer]
            self._known[inner.dim] = Range.of_size(merged.size)
            self._substitute({outer.dim: ZERO})

    def _mergeable_pair(self, loops: Sequence[Loop], exprs: Sequence[Expr]) -> tuple[Loop, Loop] | None:
        coefficients = [{one.dim: linear_coeff(e, one.dim) for one in loops} for e in exprs]
        for k in range(len(loops) - 1, -1, -1):
            for j in range(len(loops) - 1, -1, -1):
                if j == k:
                    continue
                outer, inner = loops[j], loops[k]
                if all(_as_one(e, c, outer, inner) for e, c in zip(exprs, coefficients, strict=True)):
                    return outer, inner
        return None

    def _split(self, node: Node) -> bool:
        """Split one loop whose index is divided by a constant that divides its size; whether one was found."""
        for e in self._under(node):
            if not e.has_div:
                continue
            for atom in _divisions(e):
                for k, one in enumerate(node.loops):
                    size = _split_size(atom, one)
                    if size is None:
                        continue
                    inner = Loop(one.dim, size, _fastest(node, one.positions, size))
                    count = exact_quotient(one.size, size)
                    assert count is not None
                    outer = Loop(self.new_dim(Range.of_size(count)), count, one.positions)
                    node.loops[k : k + 1] = [outer, inner]
                    self._known[inner.dim] = Range.of_size(size)
                    self._substitute({one.dim: outer.dim * size + inner.dim})
                    return True
        return False


def _fastest(node: Node, positions: tuple[int, ...], size: Expr) -> tuple[int, ...]:
    """Those of the loops that were merged into one, the last ones, whose iterations its innermost `size` are."""
    left = ONE
    for k in range(len(positions) - 1, -1, -1):
        left = node.op.loop_sizes[positions[k]] * left  # pyright: ignore[reportAttributeAccessIssue]
        if exact_quotient(left, size) is not None:
            return positions[k:]
    return positions


def _as_one(e: Expr, coefficients: dict[Dim, Expr | None], outer: Loop, inner: Loop) -> bool:
    """Whether `e` depends on the two loops only through outer * size + inner."""
    a, b = coefficients[outer.dim], coefficients[inner.dim]
    if a is not None and b is not None:
        return a is b * inner.size
    if not e.has_div:
        return False
    flat = e.subs({outer.dim: ZERO}).subs({inner.dim: outer.dim * inner.size + inner.dim})
    return flat is e


def _divisions(e: Expr) -> Iterator[FloorDiv | Mod]:
    """Divisions and remainders in `e`, inner ones first."""
    for child in children(e):
        if child.has_div:
            yield from _divisions(child)
    if isinstance(e, (FloorDiv, Mod)):
        yield e


def _split_size(atom: FloorDiv | Mod, one: Loop) -> Expr | None:
    """The size of the inner part of `one` that makes `atom` divide only the outer part; None when there is none."""
    if one.dim not in free_dims(atom.lhs) or one.dim in free_dims(atom.rhs):
        return None
    coefficient = linear_coeff(atom.lhs, one.dim)
    if coefficient is None or coefficient is ZERO or free_dims(coefficient):
        return None
    size = exact_quotient(atom.rhs, coefficient)
    if size is None or size is ONE or size is one.size:
        return None
    if size.value is not None and size.value <= 1:
        return None
    if exact_quotient(one.size, size) is None:
        return None
    rest = atom.lhs - coefficient * one.dim
    # what is added must not carry into the quotient: it is a multiple of the divisor or below one step
    if exact_quotient(rest, atom.rhs) is None and rest is not ZERO and not _below(rest, coefficient):
        return None
    return size


def _below(rest: Expr, step: Expr) -> bool:
    return rest.value is not None and step.value is not None and 0 <= rest.value < step.value
