"""Products of matrices as `tt.dot`: sums of products of a value along the first axis of the tile and one along the second, over the last.

    loop.reduce (%k = 8192) sum { mulf %x[%i, %k], %w[%j, %k] }     ->     scf.for: tt.dot %x [16 x 128], (tt.trans %w [128 x 128]), %sums

The tile has three axes, of which each factor varies along two. Triton keeps what it loads for a product in shared memory, several steps ahead,
only where it sees matrices: what a factor is computed from is written once more without the axis that it does not vary along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, IntegerType, TensorType, f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from ...dialects import loop, tt_arith
from ...dialects.expr import ONE, linear_coeff
from ...dialects.tt_compute import DotOp
from ...dialects.tt_memory import LoadOp
from ...dialects.tt_shape import BroadcastOp, ExpandDimsOp, ReshapeOp, SplatOp, TransOp
from ...dialects.tt_types import element_of, int32, shape_of, tensor
from ...passes.loop.nest_access import Loop, NestAccess, Node
from .builder import NO_FLAGS, Builder
from .product_nests import EXACT_BITS, factors
from .state import UnsupportedNest

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
            right = turned(b, right) if _lies_along(s.info, node, axes[RIGHT]) else transposed(b, right)
            sums.append(b.place(DotOp.make(left, right, total)).results[0])
        return sums

    return [b.place(ExpandDimsOp.make(total, s.rank - 1)).results[0] for total in kernel.tiled(node, start, step)]


def _lies_along(info: NestAccess, node: Node, one: Loop) -> bool:
    """Whether neighbours along a loop of the nest lie side by side in memory, of something that a reduction reads."""
    return any(linear_coeff(access.offset, one.dim) is ONE for access in node.accesses)


def _matrix(kernel: NestLowering, value: SSAValue, element: Attribute, axis: int, mask: SSAValue | None) -> SSAValue:
    """A factor as a matrix of `element`: 0 behind the end of the sum, without the axis of the other factor."""
    s, b = kernel.s, kernel.s.b
    narrow = _rounded(b, s.get(value), element)
    shape = tuple(1 if k == 1 - axis else n for k, n in enumerate(s.full))
    narrow = b.to_shape(narrow, shape)
    if mask is not None:
        narrow = b.select(mask, narrow, b.constant(0.0, element))
    return without_axis(b, narrow, 1 - axis)


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


def without_axis(b: Builder, value: SSAValue, axis: int) -> SSAValue:
    """A tensor without an axis of size 1: what it is computed from once more, as far as that is work on elements of one place; loads too."""

    def expanded(op: ExpandDimsOp, at: int, kind: TensorType[Any]) -> SSAValue:
        if at == axis:
            return op.operands[0]
        inner = without_axis(b, op.operands[0], axis - (at < axis))
        return b.pure(ExpandDimsOp, (inner,), kind, {"axis": int32(at - (axis < at))})

    def shaped(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:axis], *shape[axis + 1 :])

    return _once_more(b, value, ("without", axis), shaped, expanded, lambda kind: b.pure(ReshapeOp, (value,), kind))


def turned(b: Builder, value: SSAValue) -> SSAValue:
    """The transpose of a matrix: what it is computed from once more, loads too, so that it is loaded as it lies in memory."""

    def expanded(op: ExpandDimsOp, at: int, kind: TensorType[Any]) -> SSAValue:
        return b.pure(ExpandDimsOp, (op.operands[0],), kind, {"axis": int32(1 - at)})

    return _once_more(b, value, ("turned",), lambda shape: shape[::-1], expanded, lambda kind: transposed(b, value))


def transposed(b: Builder, value: SSAValue) -> SSAValue:
    """The transpose of a matrix that is there."""
    shape = shape_of(value.type)
    assert shape is not None
    return b.pure(TransOp, (value,), tensor(shape[::-1], element_of(value.type)), {"order": DenseArrayBase.from_list(i32, [1, 0])})


def _once_more(
    b: Builder,
    value: SSAValue,
    how: tuple[object, ...],
    shaped: Callable[[tuple[int, ...]], tuple[int, ...]],
    expanded: Callable[[ExpandDimsOp, int, TensorType[Any]], SSAValue],
    otherwise: Callable[[TensorType[Any]], SSAValue],
) -> SSAValue:
    """A tensor in another shape (`shaped`), computed from what it is computed from, in that shape: `expanded` says what becomes of new axes,
    `otherwise` of what is no work on elements of one place. `how`: what tells this change of shapes from others."""
    shape = shape_of(value.type)
    if shape is None:
        return value
    key = (*how, value)
    found = b.find(key)
    if found is not None:
        return found
    op, wanted = value.owner, shaped(shape)
    kind = tensor(wanted, element_of(value.type))

    def again(x: SSAValue) -> SSAValue:
        return without_axis(b, x, how[1]) if len(how) > 1 else turned(b, x)  # pyright: ignore[reportArgumentType]

    if isinstance(op, ExpandDimsOp):
        made = expanded(op, op.axis.value.data, kind)
    elif isinstance(op, SplatOp):
        made = b.splat(op.operands[0], wanted)
    elif isinstance(op, BroadcastOp):
        made = b.to_shape(again(op.operands[0]), wanted)
    elif isinstance(op, arith.ConstantOp):
        made = b.constant(op.value.get_values()[0], element_of(value.type), wanted)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(op, LoadOp):
        operands = [again(x) for x in op.operands]
        made = b.place(LoadOp.create(operands=operands, result_types=[kind], properties=op.properties, attributes=op.attributes)).results[0]
    elif isinstance(op, Operation) and _is_elementwise(op):
        made = b.pure(type(op), [again(x) for x in op.operands], kind, op.properties)
    else:
        made = otherwise(kind)
    b.remember(key, made)
    return made


def _is_elementwise(op: Operation) -> bool:
    """Whether each element of what a pure operation gives comes of those at the same place."""
    if len(op.results) != 1 or op.regions or not op.operands or isinstance(op, TransOp | ReshapeOp) or not is_side_effect_free(op):
        return False
    return all(shape_of(v.type) == shape_of(op.results[0].type) for v in op.operands)
