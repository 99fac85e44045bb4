"""Copy nests: the elements of one buffer, maybe through an index map, into another."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, IndexMap
from ...dialects.mem import BufferType

_LABEL = StringAttr("copy")


def copy_nest(source: SSAValue, target: SSAValue, location: Attribute, m: IndexMap | None = None) -> loop.NestOp | None:
    """A nest that stores element m(i) of `source` as element i of `target`; None when there are no elements."""
    t = target.type
    assert isinstance(t, BufferType)
    if any(s is ZERO for s in t.dims):
        return None
    order = _by_stride(t)
    nest = loop.NestOp.build_nest([t.dims[k] for k in order], [target], location)
    nest.properties["label"] = _LABEL
    place = [nest.indices[order.index(k)] for k in range(len(order))]
    identity = IndexMap.identity(len(order))
    load = loop.LoadOp.new(source, m or identity, place)
    nest.block.add_op(load)
    nest.block.add_op(loop.StoreOp.new(load.result, nest.out_args[0], identity, place))
    return nest


def _by_stride(t: BufferType) -> list[int]:
    """The dimensions from the largest stride to the smallest, so that the last loop stores to adjacent elements."""
    dims = list(range(t.rank))
    if all(s.is_const for s in t.stride_exprs):
        dims.sort(key=lambda k: -int(t.stride_exprs[k]))
    return dims
