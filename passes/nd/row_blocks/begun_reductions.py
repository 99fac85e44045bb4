"""Which results of products are not stored, since all that reads them are reductions that a generated kernel begins (gpu-carry-reductions).

    %p = nd.matmul %x, %w ; %m = nd.reduce max %p over the rows or the columns      the kernel leaves the states of its blocks

Where something behind a reduction needs the product again (a norm, a softmax), the product is read anyway. A maximum and the sum of the
exponentials less it are found together: the states of a softmax.

One element of each row that is looked up (the class of a loss) is a product of its own, of the row and of the column that it names:

    nd.gather (nd.matmul %x, %w), %i     ->     nd.reduce sum (nd.mul %x, (nd.index (nd.permute %w), %i))"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from xdsl.dialects.builtin import StringAttr, f32
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp, PointwiseOp
from ....dialects.nd.types import LOW_PRECISION, element_bytes, tensor_type
from ....dialects.support.replace import erase_op
from ...cost.contraction_price import TILE_SIDES
from ...cost.library_cost import size


def begun_bytes(
    value: SSAValue, readers: Sequence[Operation], dims: Sequence[Expr], behind: Collection[Operation], hints: Mapping[str, int]
) -> int | None:
    """Bytes of the states that a kernel leaves of a value of a product's elements for those who read it, `dims` being the product's; None
    where the value is read as a whole. `behind`: what is computed of the product element by element."""
    sides = {len(dims) - 1, len(dims) - 2}
    along = {_side(op, sides) for op in readers}
    if tensor_type(value).dims != tuple(dims) or len(along) != 1 or None in along:
        return None
    if any(_reaches(op, value, behind) for op in readers):
        return None
    numbers = sum(len(op.results) for op in readers)
    return numbers * element_bytes(f32) * size(tensor_type(value).numel, hints) // TILE_SIDES[1]


def _side(op: Operation, sides: Collection[int]) -> int | None:
    """The dimension that an operation reduces, if it is a side of the product. Places of extremes are found apart."""
    dims = list(op.dims.data) if isinstance(op, nd.ReduceOp | nd.VarMeanOp) else []
    return dims[0] if len(dims) == 1 and dims[0] in sides else None


def _reaches(op: Operation, value: SSAValue, behind: Collection[Operation]) -> bool:
    """Whether what is computed of a reduction of `value`, element by element, meets the product again, other than in exponentials that are
    added up."""
    worklist, seen = [op], {op}
    while worklist:
        for use in [use for r in worklist.pop().results for use in r.uses]:
            if use.operation in behind:
                if _is_softmax(op, use.operation, value):
                    continue
                return True
            if use.operation not in seen and isinstance(use.operation, PointwiseOp | nd.ViewOp):
                seen.add(use.operation)
                worklist.append(use.operation)
    return False


def _is_softmax(reduction: Operation, op: Operation, value: SSAValue) -> bool:
    """Whether an operation takes numbers of a maximum of `value` from it, and all that is done with the differences is to add up their
    exponentials along the same dimension."""
    if not isinstance(reduction, nd.ReduceOp) or reduction.kind.data != "max":
        return False
    if not isinstance(op, OPS["sub"]) or op.operands[0] is not value:
        return False
    powers = [use.operation for use in op.results[0].uses]
    sums = [use.operation for power in powers for r in power.results for use in r.uses]
    added = all(isinstance(one, nd.ReduceOp) and one.kind.data == "sum" and one.dims == reduction.dims for one in sums)
    return bool(sums) and added and all(isinstance(power, OPS["exp"]) for power in powers)


def looked_up_bytes(op: Operation, readers: Sequence[Operation], hints: Mapping[str, int]) -> int | None:
    """Bytes that are read where `readers` look up one element of each row of a product and compute it by themselves; None where they do
    something else, or where that is more than the product has."""
    if not isinstance(op, nd.MatmulOp) or not all(_looks_up(reader, op) for reader in readers):
        return None
    t = tensor_type(op.lhs)
    read = 2 * len(readers) * element_bytes(t.element_type) * size(t.numel, hints)
    return read if read < element_bytes(t.element_type) * size(tensor_type(op.result).numel, hints) else None


def _looks_up(reader: Operation, op: nd.MatmulOp) -> bool:
    t = tensor_type(op.result)
    if not isinstance(reader, nd.GatherOp) or reader.input is not op.result or t.rank != 2 or t.element_type not in (*LOW_PRECISION, f32):
        return False
    rows = t.dims[0]
    return reader.dim.data == (1,) and tensor_type(reader.index).dims == (rows, ONE)


def look_up_early(op: nd.MatmulOp, hints: Mapping[str, int]) -> int:
    """Have what looks up elements of a product's rows compute them, where nothing but that reads the product as a whole; how many do."""
    readers = [use.operation for use in op.result.uses if not isinstance(use.operation, PointwiseOp | nd.ViewOp | nd.ReduceOp)]
    if not readers or looked_up_bytes(op, readers, hints) is None:
        return 0
    for reader in readers:
        assert isinstance(reader, nd.GatherOp)
        _take_product(reader, op)
    return len(readers)


def _take_product(reader: nd.GatherOp, op: nd.MatmulOp) -> None:
    x, w, t = op.lhs, op.rhs, tensor_type(reader.result)
    made: list[Operation] = []

    def new(one: Operation) -> SSAValue:
        one.location = reader.location
        made.append(one)
        return one.results[0]

    kind, wide = tensor_type(x), tensor_type(x).with_dtype(f32)
    if isinstance(w.owner, nd.PermuteOp):
        w = w.owner.input  # of two dimensions: a product of two matrices has its columns as rows
    else:
        w = new(nd.PermuteOp.new((w,), kind.with_dims(tensor_type(w).dims[::-1]), dims=IntsAttr.get((1, 0))))
    index = new(nd.ReshapeOp.new((reader.index,), tensor_type(reader.index).with_dims(t.dims[:1])))
    rows = nd.IndexOp.new((w, index), kind, dims=IntsAttr.get((0,)))
    rows.attributes.update(reader.attributes)
    factors = [v if kind == wide else new(CastOp.new((v,), wide)) for v in (x, new(rows))]
    terms = new(OPS["mul"].create(operands=factors, result_types=[wide]))
    total = new(nd.ReduceOp.new((terms,), wide.with_dims(t.dims[:1]), kind=StringAttr("sum"), dims=IntsAttr.get((1,))))
    value = new(nd.ReshapeOp.new((total,), t.with_dtype(f32)))
    value = value if t.element_type == f32 else new(CastOp.new((value,), t))
    block = reader.parent
    assert block is not None
    block.insert_ops_before(made, reader)
    reader.result.replace_all_uses_with(value)
    erase_op(reader)
