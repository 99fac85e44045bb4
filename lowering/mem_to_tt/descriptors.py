"""Descriptors of buffers as arguments of a kernel: what the launch describes to the GPU, which copies whole blocks of it (TMA).

    %d = describe(entry, arguments, buffer, sizes, strides, block)        tt.descriptor_load %d[%i, %j] : ... -> tensor<128x64xbf16>

A descriptor stands behind all other arguments: `!tt.tensordesc<tensor<128x64xbf16>>`, an i32 for each size, an i64 for each stride. What
a block has outside of the sizes reads as 0, and is not stored. Coordinates count elements of each dimension, as i32; along the last one a
block begins at a multiple of 16 bytes.

Whether a GPU can have the descriptor depends on addresses and sizes, so that each launch looks (targets/host/gpu): the first element lies
at a multiple of 16 bytes, the steps of all dimensions but the last are such multiples, too, and no step or size is 0. A launch for which
that does not hold takes the variant of the kernel whose blocks are loads and stores of elements (targets/triton/pointer_blocks.py). What
it is known never to hold for is not worth a descriptor: `may_describe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects import loop
from ...dialects.expr import ONE, ZERO, Expr, as_expr, exact_quotient, free_dims, linear_coeff
from ...dialects.host import Descriptor
from ...dialects.mem import BufferType
from ...dialects.nd.types import element_bytes
from ...dialects.support.float8 import FLOAT8, UNIT_FLOAT8
from ...dialects.support.names import keep_name
from ...dialects.tt.blocks import DescriptorLoadOp, DescriptorStoreOp
from ...dialects.tt.compute import BitcastOp
from ...dialects.tt.shape import ReshapeOp
from ...dialects.tt.types import DESCRIPTOR_BYTES, TensorDescType, bits_of, check_sizes, element_of, shape_of, tensor
from ...passes.analysis.nest_access import Access, Loop
from ...passes.cost.machine import Gpu
from ...passes.gpu.nest_merge import memory_of
from ...passes.gpu.nest_types import memory_type
from ..outline import Arguments, DescribedBuffer
from .derived_sizes import typical_value
from .program.columns import columns_of
from .state import State

if TYPE_CHECKING:
    from .kernel import NestLowering


def described_type(dtype: Attribute) -> Attribute:
    """The type of an element of a descriptor: 8-bit floats that units for products take are as they are, so that these find them in shared
    memory."""
    return dtype if dtype in UNIT_FLOAT8 else memory_type(dtype)


def may_describe(
    gpu: Gpu,
    buffer: SSAValue,
    sizes: Sequence[Expr | int],
    strides: Sequence[Expr | int],
    block: Sequence[int],
    typical: Mapping[Expr, int],
    offset: Expr | int = 0,
) -> bool:
    """Whether launches of typical sizes (`typical`) can describe a tensor to the GPU: the arguments are those of `describe`. Whether the
    buffer's first element lies at a multiple of 16 bytes is the caller's to ask (`kernel.is_aligned`)."""
    wanted = Descriptor.of(0, offset, sizes, strides)
    element = described_type(loop.element_type(buffer.type))
    try:
        wanted.check(1)
        check_sizes(TensorDescType(tensor(tuple(block), element)), "the descriptor")
    except VerifyException:
        return False
    step = 8 * DESCRIPTOR_BYTES // bits_of(element)
    strides, extents = ([typical_value(e, typical) for e in part] for part in (wanted.strides[:-1], wanted.sizes))
    fits = typical_value(wanted.offset, typical) % step == 0 and all(n > 0 and n % step == 0 for n in strides)
    return gpu.copies_blocks and fits and all(n > 0 for n in extents) and len(block) == len(extents)


def describe(
    entry: Block,
    arguments: Arguments,
    buffer: SSAValue,
    sizes: Sequence[Expr | int],
    strides: Sequence[Expr | int],
    block: Sequence[int],
    offset: Expr | int = 0,
) -> SSAValue:
    """The descriptor of a tensor in the memory of a buffer of the kernel, an argument of its block `entry` (made when it is new).

    The tensor has `sizes` and `strides` (in elements, the last one 1) and begins `offset` elements behind the first of the buffer; they
    are expressions of size symbols, which need not be among the kernel's own arguments. `block` are the elements of one load or store
    along each dimension: powers of two, along the last at least 16 bytes. The launch keeps to what the buffer's own type says of its
    place, so that `offset` is that of an access, not that of a view."""
    one = Descriptor.of(0, offset, sizes, strides)
    wanted = DescribedBuffer(buffer, one.offset, one.sizes, one.strides, tuple(block))
    if wanted in arguments.described:
        before = arguments.described[: arguments.described.index(wanted)]
        return entry.args[_first(arguments) + sum(1 + 2 * len(d.sizes) for d in before)]
    assert buffer in arguments.buffers, "a kernel has descriptors of its own buffers"
    assert len(wanted.block) == len(one.sizes), "a block has the dimensions of its tensor"
    element = described_type(loop.element_type(buffer.type))
    rank = len(one.sizes)
    arguments.described.append(wanted)
    made = entry.insert_arg(TensorDescType(tensor(wanted.block, element)), len(entry.args))
    keep_name(made, buffer)
    for kind in [i32] * rank + [i64] * rank:
        entry.insert_arg(kind, len(entry.args))
    return made


@dataclass(frozen=True)
class BlockAccess:
    """An access of a tile as one block of a tensor: its dimensions (loops outside of the tile and indices that are the same in it, of
    which a block has one, then the two axes of the tile), where the block begins along each, and where the tensor begins in the buffer."""

    sizes: list[Expr]
    strides: list[Expr]
    block: list[int]
    starts: list[SSAValue]
    offset: Expr

    @staticmethod
    def of(s: State, access: Access, loops: Sequence[Loop]) -> BlockAccess | None:
        """The block of an access that varies along both axes of the tile, and is contiguous along the last; None for another."""
        offset = s.fix(access.offset)
        along = {ls[-1].dim: axis for axis, (_, _, ls) in s.blocks.items() if ls[-1].dim in s.halves}
        known = free_dims(offset)
        size = {one.dim: one.size for one in loops}
        size |= {d: v.owner.size.data for d, v in s.info.opaque.items() if d in known and isinstance(v.owner, loop.BoundOp)}
        dims = [d for d in size if d in known and d not in along]
        dims += [d for d in sorted(along, key=lambda d: along[d]) if d in known]
        steps = [linear_coeff(offset, d) for d in dims]
        if s.rank != 2 or len(known & along.keys()) != 2 or known != set(dims) or steps[-1] is not ONE:
            return None
        if any(step is None or free_dims(step) for step in steps) or any(shape_of(s.number(d).type) for d in dims[:-2]):
            return None
        starts = [s.halves[d][0] if d in along else s.number(d) for d in dims]
        block = [s.axes[along[d]].block if d in along else 1 for d in dims]
        return BlockAccess(
            [size[d] for d in dims], [step for step in steps if step is not None], block, starts, offset.subs(dict.fromkeys(dims, ZERO))
        )


def _descriptor(kernel: NestLowering, access: Access, at: BlockAccess) -> SSAValue | None:
    """The descriptor of the tensor in which an access reads or writes blocks; None where there is none."""
    where = at.sizes, at.strides, at.block
    if not is_aligned(access.buffer) or not may_describe(kernel.s.gpu, access.buffer, *where, kernel.typical, at.offset):
        return None
    return describe(kernel.entry, kernel.arguments, access.buffer, *where, at.offset)


def load_block(kernel: NestLowering, s: State, access: Access, loops: Sequence[Loop]) -> SSAValue | None:
    """What an access reads, as it lies in memory, copied as a block; None where it cannot be. Outside of the tensor it is 0."""
    at = BlockAccess.of(s, access, loops)
    descriptor = None if at is None else _descriptor(kernel, access, at)
    if at is None or descriptor is None:
        return None
    kind = described_type(access.dtype)
    load = DescriptorLoadOp.create(operands=[descriptor, *_coordinates(s, at)], result_types=[tensor(tuple(at.block), kind)])
    value = s.b.place(load).results[0]
    shape = tuple(at.block[-2:])
    return value if len(at.block) == 2 else s.b.pure(ReshapeOp, (value,), tensor(shape, kind))


def store_block(kernel: NestLowering, access: Access, value: SSAValue) -> bool:
    """Have the GPU copy a tile, as it is to lie in memory, to where an access stores it; whether it can. A program that goes on to another
    block does so in halves: shared memory holds what that one needs, too."""
    s, info, memory = kernel.s, kernel.s.info, memory_of(access.buffer)
    if any(memory_of(a.buffer) is memory for a in info.root.all_accesses() if a is not access):
        return False
    b, halves = s.b, 2 if kernel.tile.persistent else 1
    found = BlockAccess.of(s, access, [one for loops, _ in kernel.tile.axes for one in loops] + kernel.tile.grid_loops)
    if found is None:
        return False
    found.block[-1] //= halves
    descriptor = _descriptor(kernel, access, found)
    if descriptor is None:
        return False
    value = b.to_shape(value, s.full)
    if (kind := described_type(access.dtype)) in FLOAT8:
        value = b.cast(BitcastOp, value, kind)
    for k, part in enumerate(columns_of(b, value, s.full[-1] // halves)):
        part = part if len(found.block) == 2 else b.pure(ReshapeOp, (part,), tensor(tuple(found.block), element_of(part.type)))
        starts = _coordinates(s, found)
        starts[-1] = b.add(starts[-1], b.int(k * found.block[-1]))
        b.place(DescriptorStoreOp.create(operands=[descriptor, part, *starts]))
    return True


def _coordinates(s: State, at: BlockAccess) -> list[SSAValue]:
    return [s.b.resize(start, i32) for start in at.starts]


def is_aligned(buffer: SSAValue) -> bool:
    """Whether the first element of a buffer lies at a multiple of 16 bytes, if its allocation (or the tensor that the caller
    passes) does: the host program sees to that."""
    t = buffer.type
    if not isinstance(t, BufferType):
        return True
    step = 16 // gcd(16, element_bytes(t.element_type))
    return step == 1 or exact_quotient(t.offset_expr, as_expr(step)) is not None


def _first(arguments: Arguments) -> int:
    """Where the descriptors begin among the arguments of a kernel."""
    return len(arguments.buffers) + len(arguments.sizes) + len(arguments.scalars)
