"""Kernels that take descriptors, as kernels that take addresses: blocks are loaded and stored element by element.

    %v = tt.descriptor_load %d[%i, %j] : !tt.tensordesc<tensor<64x32xf32>> -> tensor<64x32xf32>
->  %v = tt.load (%d + (%i + 0..64) * %stride + %j + 0..32), inside, 0 : tensor<64x32x!tt.ptr<f32>>

The arguments stay where they are: the descriptor's is the address of its tensor, those behind it are its sizes and strides. GPUs that do
not copy blocks get such kernels, and so do launches whose tensors the hardware cannot copy (targets/host/gpu)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import FunctionType, ModuleOp, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from ...dialects.nd.types import is_float
from ...dialects.tt.blocks import DescriptorGatherOp, DescriptorLoadOp, DescriptorReduceOp, DescriptorScatterOp, DescriptorStoreOp
from ...dialects.tt.memory import AddPtrOp, AtomicRMWOp, LoadOp, StoreOp
from ...dialects.tt.shape import ExpandDimsOp, MakeRangeOp, ReshapeOp
from ...dialects.tt.structure import FuncOp
from ...dialects.tt.types import DESCRIPTOR_REDUCE, TensorDescType, ptr, shape_of
from ...lowering.mem_to_tt.builder import Builder
from ...passes.manager.errors import PassError
from .emit import kernel_of


def takes_descriptors(function: FuncOp) -> bool:
    """Whether a kernel has descriptors among its arguments."""
    return any(isinstance(t, TensorDescType) for t in function.body.blocks[0].arg_types)


def with_pointer_blocks(module: ModuleOp) -> ModuleOp:
    """A copy of a module whose kernel takes addresses in place of descriptors. PassError where the kernel does more with a descriptor than
    load, store or combine blocks of it."""
    module = module.clone()
    function = kernel_of(module)
    entry = function.body.blocks[0]
    for k, argument in enumerate(list(entry.args)):
        if not isinstance(argument.type, TensorDescType):
            continue
        rank = len(argument.type.block.get_shape())
        behind = entry.args[k + 1 : k + 1 + 2 * rank]
        if [a.type for a in behind] != [i32] * rank + [i64] * rank:
            raise PassError(f"argument {k} is a descriptor, behind which come an i32 for each size and an i64 for each stride", op=function)
        block = argument.type.block
        base = Rewriter.replace_value_with_new_type(argument, ptr(block.element_type))
        whole = _Described(base, block.get_shape(), block.element_type, behind[:rank], behind[rank:])
        for op in [use.operation for use in base.uses]:
            if (rule := _RULES.get(type(op))) is None or op.operands[0] is not base:
                raise PassError("it uses a descriptor for something else than blocks, which addresses cannot do", op=op)
            _replace(op, rule, whole)
    function.properties["function_type"] = FunctionType.from_lists(list(entry.arg_types), list(function.function_type.outputs))
    return module


@dataclass(frozen=True)
class _Described:
    """A tensor in memory: an argument with its address, the shape of its blocks, and arguments with its sizes and strides."""

    base: SSAValue
    block: tuple[int, ...]
    element: Attribute
    sizes: Sequence[SSAValue]
    strides: Sequence[SSAValue]

    def places(self, b: Builder, indices: Sequence[SSAValue], shape: tuple[int, ...]) -> tuple[SSAValue, SSAValue]:
        """Pointers to the elements of a block, and which of them lie inside of the tensor. An index is where the block begins along its
        dimension, or a tensor of the places there."""
        rank = len(shape)
        ones = (1,) * rank
        pointers, inside = b.splat(self.base, ones), None
        for d, (index, size) in enumerate(zip(indices, shape, strict=True)):
            if shape_of(index.type) is None:
                lanes = b.place(MakeRangeOp.make(size)).results[0]
                index = b.add(b.splat(index, (size,)), lanes)
            for axis in range(rank):
                if axis != d:
                    index = b.place(ExpandDimsOp.make(index, axis)).results[0]
            zero = b.splat(b.int(0), ones)
            for one in (b.cmpi("sge", index, zero), b.cmpi("slt", index, b.splat(self.sizes[d], ones))):
                inside = b.both(inside, one)
            if d < rank - 1:  # the last stride is 1
                index = b.mul(b.resize(index, i64), b.splat(self.strides[d], ones))
            pointers, index = b.together(pointers, index)
            pointers = b.pure(AddPtrOp, (pointers, index), pointers.type)
        assert inside is not None
        return b.to_shape(pointers, shape), b.to_shape(inside, shape)


def _replace(op: Operation, rule: Callable[[Builder, Operation, _Described], SSAValue | None], whole: _Described) -> None:
    place = Block()
    b = Builder(place)
    b.location = op.location
    value = rule(b, op, whole)
    block = op.parent
    assert block is not None
    for new in list(place.ops):
        new.detach()
        block.insert_op_before(new, op)
    if value is not None:
        op.results[0].replace_all_uses_with(value)
    op.detach()
    op.erase()


def _load(b: Builder, op: DescriptorLoadOp, whole: _Described) -> SSAValue:
    return _loaded(b, whole, op.indices, whole.block, op.result.type)


def _gather(b: Builder, op: DescriptorGatherOp, whole: _Described) -> SSAValue:
    shape = shape_of(op.result.type)
    assert shape is not None
    return _loaded(b, whole, (op.x_offsets, op.y_offset), shape, op.result.type)


def _loaded(b: Builder, whole: _Described, indices: Sequence[SSAValue], shape: tuple[int, ...], result: Attribute) -> SSAValue:
    pointers, inside = whole.places(b, indices, shape)
    value = b.place(LoadOp.make(pointers, inside, b.constant(0, whole.element, shape))).results[0]
    wanted = shape_of(result)
    return value if wanted == shape or wanted is None else b.place(ReshapeOp.make(value, wanted)).results[0]


def _store(b: Builder, op: DescriptorStoreOp, whole: _Described) -> None:
    pointers, inside = whole.places(b, op.indices, whole.block)
    b.place(StoreOp.make(pointers, _in_shape(b, op.src, whole.block), inside))


def _scatter(b: Builder, op: DescriptorScatterOp, whole: _Described) -> None:
    shape = shape_of(op.src.type)
    assert shape is not None
    pointers, inside = whole.places(b, (op.x_offsets, op.y_offset), shape)
    b.place(StoreOp.make(pointers, op.src, inside))


def _reduce(b: Builder, op: DescriptorReduceOp, whole: _Described) -> None:
    kind = DESCRIPTOR_REDUCE.keyword(op.kind)
    if is_float(whole.element):
        kind = f"f{kind}"
    if kind not in ("fadd", "add", "min", "max", "and", "or", "xor"):
        raise PassError(f"'{kind}' of {whole.element} has no atomic operation on addresses", op=op)
    pointers, inside = whole.places(b, op.indices, whole.block)
    b.place(AtomicRMWOp.make(kind, pointers, _in_shape(b, op.src, whole.block), inside))


def _in_shape(b: Builder, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    """A block with the dimensions of size 1 that it has lost."""
    return value if shape_of(value.type) == shape else b.place(ReshapeOp.make(value, shape)).results[0]


_RULES: dict[type[Operation], Callable[[Builder, Operation, _Described], SSAValue | None]] = {
    DescriptorLoadOp: _load,
    DescriptorStoreOp: _store,
    DescriptorReduceOp: _reduce,
    DescriptorGatherOp: _gather,
    DescriptorScatterOp: _scatter,
}  # pyright: ignore[reportAssignmentType]
