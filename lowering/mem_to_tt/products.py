"""Products of matrices as `tt.dot`: sums of products of a value along the first axis of the tile and one along the second, over the last.

    loop.reduce (%k = 8192) sum { mulf %x[%i, %k], %w[%j, %k] }     ->     scf.for: tt.dot %x [16 x 128], (tt.trans %w [128 x 128]), %sums

The tile has three axes, of which each factor varies along two. Triton keeps what it loads for a product in shared memory, several steps
ahead, only where it sees matrices: what a factor is computed from is written once more without the axis that it does not vary along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, DenseIntOrFPElementsAttr, IntegerType, TensorType, f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from ...dialects import loop
from ...dialects.expr import ONE, free_dims, linear_coeff
from ...dialects.tt import arith as tt_arith
from ...dialects.tt.compute import DotOp
from ...dialects.tt.memory import LoadOp
from ...dialects.tt.shape import BroadcastOp, ExpandDimsOp, ReshapeOp, SplatOp, TransOp
from ...dialects.tt.types import element_of, int32, shape_of, tensor
from ...passes.analysis.nest_access import Loop, NestAccess, Node
from ...passes.gpu.nest_types import UnsupportedNest
from ...passes.gpu.tiles.product_nests import EXACT_BITS, factors
from ..nest.builder import NO_FLAGS
from .builder import Builder

if TYPE_CHECKING:
    from .kernel import NestLowering

LEFT, RIGHT = 0, 1
"""The axes along which one factor varies, and the other."""


def lower_product(kernel: NestLowering, op: loop.ReduceOp, node: Node) -> list[SSAValue]:
    """The sums of a reduction that is a product, or several, in the shape of the tile without its last axis."""
    s, b = kernel.s, kernel.s.b
    axes = [loops[0] for loops, _ in kernel.tile.axes if len(loops) == 1]
    parts = factors(s.info, node)
    if not parts or any(list(f.along) not in (axes, axes[::-1]) for f in parts):
        raise UnsupportedNest("schedule: with dot the loops inside are sums of products, of one factor along each of the axes")
    start = [b.constant(0.0, f32, (s.full[LEFT], s.full[RIGHT]))] * len(parts)

    def step(state: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
        kernel.lower_body(op.body.block)
        sums: list[SSAValue] = []
        for one, total in zip(parts, state, strict=True):
            left, right = (_matrix(kernel, one.along[axes[k]], one.element, k, mask) for k in (LEFT, RIGHT))
            turn, kind = Transposed(b), tensor((shape_of(right.type) or ())[::-1], one.element)
            right = turn(right) if _lies_along(s.info, node, axes[RIGHT]) else turn.moved(right, kind)
            sums.append(b.place(DotOp.make(left, right, total)).results[0])
        return sums

    return [b.place(ExpandDimsOp.make(total, s.rank - 1)).results[0] for total in kernel.tiled(node, start, step)]


def _lies_along(info: NestAccess, node: Node, one: Loop) -> bool:
    """Whether neighbours along a loop of the nest lie side by side in memory, of a matrix that a reduction reads."""
    matrices = [a.offset for a in node.accesses if node.loops[-1].dim in free_dims(a.offset)]
    return any(linear_coeff(offset, one.dim) is ONE for offset in matrices)


def _matrix(kernel: NestLowering, value: SSAValue, element: Attribute, axis: int, mask: SSAValue | None) -> SSAValue:
    """A factor as a matrix of `element`: 0 behind the end of the sum, without the axis of the other factor."""
    s, b = kernel.s, kernel.s.b
    narrow = _rounded(b, s.get(value), element)
    shape = tuple(1 if k == 1 - axis else n for k, n in enumerate(s.full))
    narrow = b.to_shape(narrow, shape)
    if mask is not None:
        narrow = b.select(mask, narrow, b.constant(0.0, element))
    return WithoutAxis(b, 1 - axis)(narrow)


def _rounded(b: Builder, value: SSAValue, element: Attribute) -> SSAValue:
    """A number of 32 bits that is one of 16 as that: what was widened as it was, a short integer by one cast, a product of two of 16 bits,
    which 32 have room for, by one multiplication."""
    narrow = _widened_from(value, element)
    if narrow is not None and not isinstance(narrow.owner, arith.TruncFOp):
        return narrow
    op = value.owner if narrow is None else narrow.owner.operands[0].owner  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(op, tt_arith.SIToFPOp | tt_arith.UIToFPOp):
        source = op.operands[0]
        kind = element_of(source.type)
        if isinstance(kind, IntegerType) and kind.width.data <= EXACT_BITS:
            return _from_integer(b, source, element, isinstance(op, tt_arith.SIToFPOp))
    if isinstance(op, arith.MulfOp):
        pair = [_widened_from(x, element) for x in op.operands]
        if pair[0] is not None and pair[1] is not None:
            return b.elementwise(arith.MulfOp, [_rounded(b, x, element) for x in op.operands], NO_FLAGS)
    return b.cast(arith.TruncFOp, value, element) if narrow is None else narrow


def _from_integer(b: Builder, source: SSAValue, element: Attribute, signed: bool) -> SSAValue:
    """A short integer as a float. Triton has instructions for four signed bytes at once: one without a sign is 128 more than that with
    its first bit inverted."""
    if signed or element_of(source.type) != i8:
        return b.cast(tt_arith.SIToFPOp if signed else tt_arith.UIToFPOp, source, element)
    near = b.cast(tt_arith.SIToFPOp, b.elementwise(arith.XOrIOp, (source, b.constant(-128, i8))), element)
    return b.elementwise(arith.AddfOp, (near, b.constant(128.0, element)), NO_FLAGS)


def _widened_from(value: SSAValue, element: Attribute) -> SSAValue | None:
    """The number of type `element` that one of 32 bits is, in the smallest shape; None where it is none."""
    while isinstance(op := value.owner, BroadcastOp):
        value = op.operands[0]
    return op.input if isinstance(op, arith.ExtFOp) and element_of(op.input.type) == element else None


class Again(ABC):
    """Tensors in another shape: what they are computed from once more in that shape, as far as it is work on elements of one place; loads
    too, so that they are of that shape."""

    def __init__(self, b: Builder):
        self.b = b

    def __call__(self, value: SSAValue) -> SSAValue:
        """A tensor in the other shape; a scalar as it is."""
        shape = shape_of(value.type)
        if shape is None:
            return value
        key = (*self.key, value)
        found = self.b.find(key)
        if found is None:
            found = self._again(value, self.shape(shape))
            self.b.remember(key, found)
        return found

    def _again(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        b, op = self.b, value.owner
        kind = tensor(shape, element_of(value.type))
        if isinstance(op, ExpandDimsOp):
            return self.expanded(op.operands[0], op.axis.value.data, kind)
        if isinstance(op, SplatOp):
            return b.splat(op.operands[0], shape)
        if isinstance(op, BroadcastOp):
            return b.to_shape(self(op.operands[0]), shape)
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, DenseIntOrFPElementsAttr):
            return b.constant(op.value.get_values()[0], element_of(value.type), shape)  # pyright: ignore[reportArgumentType]
        if isinstance(op, LoadOp):
            operands = [self(x) for x in op.operands]
            load = LoadOp.create(operands=operands, result_types=[kind], properties=op.properties, attributes=op.attributes)
            return b.place(load).results[0]
        if isinstance(op, Operation) and _is_elementwise(op):
            return b.pure(type(op), [self(x) for x in op.operands], kind, op.properties)
        return self.moved(value, kind)

    @property
    @abstractmethod
    def key(self) -> tuple[object, ...]:
        """What tells this change of shapes from others."""

    @abstractmethod
    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What becomes of a shape."""

    @abstractmethod
    def expanded(self, source: SSAValue, at: int, kind: TensorType[Any]) -> SSAValue:
        """What becomes of a tensor with a new axis `at`."""

    @abstractmethod
    def moved(self, value: SSAValue, kind: TensorType[Any]) -> SSAValue:
        """A tensor that is there, its elements moved."""


class WithoutAxis(Again):
    """Without an axis of size 1."""

    def __init__(self, b: Builder, axis: int):
        super().__init__(b)
        self.axis = axis

    @property
    def key(self) -> tuple[object, ...]:
        return WithoutAxis, self.axis

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.axis], *shape[self.axis + 1 :])

    def expanded(self, source: SSAValue, at: int, kind: TensorType[Any]) -> SSAValue:
        if at == self.axis:
            return source
        inner = WithoutAxis(self.b, self.axis - (at < self.axis))(source)
        return self.b.pure(ExpandDimsOp, (inner,), kind, {"axis": int32(at - (self.axis < at))})

    def moved(self, value: SSAValue, kind: TensorType[Any]) -> SSAValue:
        return self.b.pure(ReshapeOp, (value,), kind)


class Transposed(Again):
    """The transpose of matrices."""

    @property
    def key(self) -> tuple[object, ...]:
        return (Transposed,)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[::-1]

    def expanded(self, source: SSAValue, at: int, kind: TensorType[Any]) -> SSAValue:
        return self.b.pure(ExpandDimsOp, (source,), kind, {"axis": int32(1 - at)})

    def moved(self, value: SSAValue, kind: TensorType[Any]) -> SSAValue:
        return self.b.pure(TransOp, (value,), kind, {"order": DenseArrayBase.from_list(i32, [1, 0])})


def _is_elementwise(op: Operation) -> bool:
    """Whether each element of what a pure operation gives comes of those at the same place."""
    if len(op.results) != 1 or op.regions or not op.operands or isinstance(op, TransOp | ReshapeOp) or not is_side_effect_free(op):
        return False
    return all(shape_of(v.type) == shape_of(op.results[0].type) for v in op.operands)
