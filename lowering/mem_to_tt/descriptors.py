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

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects import loop
from ...dialects.expr import Expr
from ...dialects.host import Descriptor
from ...dialects.support.names import keep_name
from ...dialects.tt.types import DESCRIPTOR_BYTES, TensorDescType, bits_of, check_sizes, tensor
from ...passes.cost.machine import Gpu
from ...passes.gpu.nest_types import memory_type
from ..outline import Arguments, DescribedBuffer
from .derived_sizes import typical_value


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
    element = memory_type(loop.element_type(buffer.type))
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
    element = memory_type(loop.element_type(buffer.type))
    rank = len(one.sizes)
    arguments.described.append(wanted)
    made = entry.insert_arg(TensorDescType(tensor(wanted.block, element)), len(entry.args))
    keep_name(made, buffer)
    for kind in [i32] * rank + [i64] * rank:
        entry.insert_arg(kind, len(entry.args))
    return made


def _first(arguments: Arguments) -> int:
    """Where the descriptors begin among the arguments of a kernel."""
    return len(arguments.buffers) + len(arguments.sizes) + len(arguments.scalars)
