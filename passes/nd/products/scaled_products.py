"""Calls of the library for products of 8-bit floats with scales, or of bytes, as products that may be generated.

    %y = nd.extern %a, %b, %s, %t, %bias {call = _scaled_mm}     ->     %p = nd.matmul (nd.cast %a), (nd.cast %b)
                                                                        %y = nd.cast (nd.add (nd.mul (nd.mul %p, %s), %t), %bias)
    %y = nd.extern %a, %b {call = _int_mm}                       ->     %y = nd.matmul (nd.cast %a), (nd.cast %b)

Scales are those of whole factors, or of their rows and columns, or of blocks of 128 terms (of one row, or of 128): then the sums of each
block are scaled before they are added up, as terms of two loops.

    sum over (kb, k) of (%a[i, 128 kb + k] * %b[128 kb + k, j]) * (%s[i, kb] * %t[kb, j floordiv 128])

The sums of such a product are less exact than those of f32: a unit for 8-bit floats rounds them to fewer bits. Where the library stays, its
call comes back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from xdsl.dialects.builtin import ArrayAttr, Float32Type, StringAttr, bf16, f16, f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, IndexMap, as_expr, dim
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import Arg, Enum
from ....dialects.nd.pointwise import CONTRACT, OPS, PARTLY_ROUNDED, ROUNDED, CastOp
from ....dialects.nd.types import LayoutAttr, TensorType, tensor_type
from ....dialects.support.float8 import UNIT_FLOAT8
from ....dialects.support.replace import erase_op
from ...cost.machine import Gpu
from ..algebra.rewriter import Rewriter

BLOCK_LENGTH = 128
"""Terms, and rows or columns, of a block that has a scale."""

RESULTS: dict[str, Attribute] = {"bfloat16": bf16, "float16": f16, "float32": f32}
"""Types of results, as a call names them."""


class Recipe(IntEnum):
    """Codes of torch.nn.functional.ScalingType."""

    TENSORWISE = 0
    ROWWISE = 1
    BLOCKS_OF_ONE_ROW = 4
    BLOCKS_OF_ROWS = 5


@dataclass(frozen=True)
class BlockScales:
    """Scales of blocks of a factor: of BLOCK_LENGTH terms, and `length` rows of it, or columns."""

    scales: SSAValue
    length: int


@dataclass(frozen=True)
class ScaledProduct:
    """What a call became. `sums`: how a unit may round the sums (dialects/nd/pointwise.py), None for bytes, whose are exact; `result`: what
    the call gave; `ops`: all that computes it; `call`: operands, types of results, properties and attributes that the call had."""

    product: nd.MatmulOp
    sums: str | None
    result: SSAValue
    ops: Sequence[Operation]
    call: tuple[Sequence[SSAValue], Sequence[Attribute], dict[str, Attribute], dict[str, Attribute]]
    blocks: Sequence[BlockScales] = ()
    """The scales of blocks of each factor, which `ops` leave out: `block_terms` multiplies by them."""

    @property
    def casts(self) -> tuple[CastOp, CastOp]:
        """Those of its factors."""
        left, right = self.product.lhs.owner, self.product.rhs.owner
        assert isinstance(left, CastOp) and isinstance(right, CastOp)
        return left, right

    @property
    def rate(self) -> str:
        """The name that the rates of a GPU have for such sums."""
        return {None: "i8", ROUNDED: "f8", PARTLY_ROUNDED: "f8_f32"}[self.sums]

    def cannot(self, gpu: Gpu) -> str:
        """Why a GPU has no units for it; "" if it has."""
        return "" if self.sums is None or gpu.multiplies_float8 else "the GPU has no units for products of 8-bit floats"

    @property
    def terms_lie_apart(self) -> bool:
        """Whether neighbours among the terms of a factor do not lie side by side: the units of Hopper take no 8-bit factors so."""
        layouts = self.call[2].get("operand_layouts")
        places = zip(layouts.data[:2], (-1, 0), strict=True) if isinstance(layouts, ArrayAttr) else ()
        return any(isinstance(one, LayoutAttr) and one.stride_exprs[at] is not ONE for one, at in places)

    def as_call(self) -> nd.ExternOp:
        """Have the library make it after all."""
        operands, types, properties, attributes = self.call
        call = nd.ExternOp.create(operands=operands, result_types=types, properties=properties, attributes=attributes)
        last = self.result.owner
        assert isinstance(last, Operation) and (block := last.parent) is not None
        call.location = last.location
        block.insert_op_before(call, last)
        call.results[0].name_hint = self.result.name_hint
        self.result.replace_all_uses_with(call.results[0])
        for op in reversed(self.ops):
            erase_op(op)
        return call


@dataclass(frozen=True)
class _Arguments:
    """What is multiplied and scaled; `sums` as in ScaledProduct."""

    factors: tuple[SSAValue, SSAValue]
    scales: tuple[SSAValue, ...]
    bias: SSAValue | None
    sums: str | None
    blocks: Sequence[BlockScales] = ()


def scaled_product(call: nd.ExternOp) -> ScaledProduct | None:
    """A call as a product, which takes its place; None for another call."""
    found = _arguments(call)
    if found is None:
        return None
    t = tensor_type(call.results[0])
    wide = t.with_dtype(i32 if found.sums is None else f32)
    casts = [CastOp.new((x,), tensor_type(x).with_dtype(wide.element_type)) for x in found.factors]
    schedule = {} if call.schedule is None else {"schedule": call.schedule}
    product = nd.MatmulOp.new([cast.result for cast in casts], wide, **schedule)
    ops: list[Operation] = [*casts, product]

    def then(op: Operation) -> SSAValue:
        ops.append(op)
        return op.results[0]

    value: SSAValue = product.result
    for scale in found.scales:
        if tensor_type(scale).rank != t.rank:
            scale = then(nd.ReshapeOp.new((scale,), tensor_type(scale).with_dims([ONE] * t.rank)))
        value = then(OPS["mul"].new((value, scale), wide))
    if (bias := found.bias) is not None:
        if tensor_type(bias).element_type != f32:
            bias = then(CastOp.new((bias,), tensor_type(bias).with_dtype(f32)))
        value = then(OPS["add"].new((value, bias), wide))
    if t != wide:
        value = then(CastOp.new((value,), t))
    for op in ops:
        op.location = call.location
    assert (block := call.parent) is not None
    block.insert_ops_before(ops, call)
    value.name_hint = call.results[0].name_hint
    call.results[0].replace_all_uses_with(value)
    kept = tuple(call.operands), [r.type for r in call.results], dict(call.properties), dict(call.attributes)
    erase_op(call)
    return ScaledProduct(product, found.sums, value, ops, kept, found.blocks)


def block_terms(rw: Rewriter, one: ScaledProduct) -> SSAValue:
    """A product of factors with scales of blocks as multiplications and a sum, in f32."""
    assert one.sums is not None
    t = tensor_type(one.product.result)
    rows, columns = t.dims
    blocks = tensor_type(one.blocks[0].scales).dims[1]
    sizes = (rows, columns, blocks, as_expr(BLOCK_LENGTH))
    row, column, block, inside = (dim(k) for k in range(len(sizes)))
    term = block * BLOCK_LENGTH + inside

    def seen(value: SSAValue, *index: Expr) -> SSAValue:
        view = tensor_type(value).with_dims(sizes)
        return rw.new(nd.IndexViewOp.new((value,), view, map=IndexMapAttr.get(IndexMap(len(sizes), index))))

    def times(a: SSAValue, b: SSAValue, sums: str | None = None) -> SSAValue:
        op = OPS["mul"].new((a, b), t.with_dims(sizes))
        if sums is not None:
            op.attributes[CONTRACT] = StringAttr(sums)
        return rw.new(op)

    left, right = one.blocks
    terms = times(seen(one.product.lhs, row, term), seen(one.product.rhs, term, column), one.sums)
    scales = times(seen(left.scales, row // left.length, block), seen(right.scales, block, column // right.length))
    return rw.new(nd.ReduceOp.new((times(terms, scales),), t, kind=StringAttr("sum"), dims=IntsAttr.get((2, 3))))


def _arguments(op: nd.ExternOp) -> _Arguments | None:
    """What a call multiplies; None for one that no kernel of ours makes."""
    call = op.call.data
    given = dict(zip(ORDERS.get(call.target, ()), call.args, strict=False)) | dict(call.kwargs)
    if not given or len(op.results) != 1 or {"effect", "mutates", "binds"} & op.properties.keys():
        return None
    if call.target == BYTES:
        factors = op.operands[0], op.operands[1]
        return _Arguments(factors, (), None, None) if all(tensor_type(x).element_type == i8 for x in factors) else None
    if call.target == V2:
        recipes = [(int(recipe),) for recipe in Recipe]
        plain = all(given.get(f"recipe_{x}") in recipes and given.get(f"swizzle_{x}") in ((), (0,)) for x in "ab")
        if not plain or given.get("contraction_dim"):
            return None
        given |= {f"scale_{x}": given[f"scale_{x}"][0] for x in "ab"}
    names = ("self", "mat2", "scale_a", "scale_b")
    wanted = [given.get(name) for name in names]
    out, bias = given.get("out_dtype"), given.get("bias")
    if not all(isinstance(a, Arg) for a in wanted) or given.get("scale_result") is not None:
        return None
    left, right, *scales = (op.operands[a.index] for a in wanted if isinstance(a, Arg))
    kinds = {tensor_type(x).element_type for x in (left, right)}
    if len(kinds) != 1 or not kinds <= UNIT_FLOAT8 or not isinstance(out, Enum) or out.value not in RESULTS:
        return None
    rows, columns = tensor_type(op.results[0]).dims
    added = op.operands[bias.index] if isinstance(bias, Arg) else None
    sums = ROUNDED if given.get("use_fast_accum") is True else PARTLY_ROUNDED
    if all(_scales(tensor_type(s), of) for s, of in zip(scales, ((rows, ONE), (ONE, columns)), strict=True)):
        return _Arguments((left, right), (scales[0], scales[1]), added, sums)
    depth = tensor_type(left).dims[1].value
    found = [_blocks(s, side, depth, axis) for s, side, axis in zip(scales, (rows, columns), (0, 1), strict=True)]
    blocks = [one for one in found if one is not None]
    return _Arguments((left, right), (), added, sums, blocks) if len(blocks) == len(found) else None


BYTES = "aten._int_mm.default"
V2 = "aten._scaled_mm_v2.default"
ORDERS: dict[str, tuple[str, ...]] = {
    BYTES: ("self", "mat2"),
    "aten._scaled_mm.default": ("self", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype", "use_fast_accum"),
    V2: (
        "self", "mat2", "scale_a", "recipe_a", "swizzle_a", "scale_b", "recipe_b", "swizzle_b", "bias", "out_dtype", "contraction_dim",
        "use_fast_accum",
    ),
}  # fmt: skip
"""The arguments of the library's operators, by name."""


def _scales(t: TensorType, of: tuple[object, object]) -> bool:
    """Whether a tensor is the scale of a whole factor, or has one for each of its rows, or columns."""
    return isinstance(t.element_type, Float32Type) and (t.numel is ONE or t.dims == of)


def _blocks(scales: SSAValue, side: Expr, depth: int | None, axis: int) -> BlockScales | None:
    """Scales of blocks of a factor with `side` rows, along `axis` of the scales, and `depth` terms; None where they are something else."""
    t = tensor_type(scales)
    if depth is None or depth % BLOCK_LENGTH or t.rank != 2 or not isinstance(t.element_type, Float32Type):
        return None
    if t.dims[1 - axis].value != depth // BLOCK_LENGTH:
        return None
    lengths = {side: 1, (side + (BLOCK_LENGTH - 1)) // BLOCK_LENGTH: BLOCK_LENGTH}
    return BlockScales(scales, lengths[t.dims[axis]]) if t.dims[axis] in lengths else None
