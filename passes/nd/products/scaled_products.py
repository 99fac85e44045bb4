"""Calls of the library for products of 8-bit floats with scales as products that may be generated.

    %y = nd.extern %a, %b, %s, %t, %bias {call = _scaled_mm}     ->     %p = nd.matmul (nd.cast %a), (nd.cast %b)
                                                                        %y = nd.cast (nd.add (nd.mul (nd.mul %p, %s), %t), %bias)

Scales are those of whole factors, or of their rows and columns. The sums of such a product are less exact than those of f32: a unit for
8-bit floats rounds them to fewer bits. Where the library stays, its call comes back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from xdsl.dialects.builtin import Float32Type, bf16, f16, f32
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE
from ....dialects.nd.call_args import Arg, Enum
from ....dialects.nd.pointwise import OPS, PARTLY_ROUNDED, ROUNDED, CastOp
from ....dialects.nd.types import TensorType, tensor_type
from ....dialects.support.float8 import UNIT_FLOAT8

RESULTS: dict[str, Attribute] = {"bfloat16": bf16, "float16": f16, "float32": f32}
"""Types of results, as a call names them."""


class Recipe(IntEnum):
    """Codes of torch.nn.functional.ScalingType."""

    TENSORWISE = 0
    ROWWISE = 1


@dataclass(frozen=True)
class ScaledProduct:
    """What a call became. `sums`: how a unit may round the sums (dialects/nd/pointwise.py); `result`: what the call gave; `ops`: all that
    computes it; `call`: operands, types of results, properties and attributes that the call had."""

    product: nd.MatmulOp
    sums: str
    result: SSAValue
    ops: Sequence[Operation]
    call: tuple[Sequence[SSAValue], Sequence[Attribute], dict[str, Attribute], dict[str, Attribute]]

    @property
    def rate(self) -> str:
        """The name that the rates of a GPU have for such sums."""
        return "f8" if self.sums == ROUNDED else "f8_f32"

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
            op.detach()
            op.erase()
        return call


@dataclass(frozen=True)
class _Arguments:
    """What is multiplied and scaled; `fast`: all of a sum may be rounded to what the unit has."""

    factors: tuple[SSAValue, SSAValue]
    scales: tuple[SSAValue, SSAValue]
    bias: SSAValue | None
    fast: bool


def scaled_product(call: nd.ExternOp) -> ScaledProduct | None:
    """A call as a product, which takes its place; None for another call."""
    found = _arguments(call)
    if found is None:
        return None
    t = tensor_type(call.results[0])
    wide = t.with_dtype(f32)
    casts = [CastOp.new((x,), tensor_type(x).with_dtype(f32)) for x in found.factors]
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
    call.detach()
    call.erase()
    return ScaledProduct(product, ROUNDED if found.fast else PARTLY_ROUNDED, value, ops, kept)


def _arguments(op: nd.ExternOp) -> _Arguments | None:
    """What a call multiplies; None for one that no kernel of ours makes."""
    call = op.call.data
    given = dict(zip(ORDERS.get(call.target, ()), call.args, strict=False)) | dict(call.kwargs)
    if not given or len(op.results) != 1 or {"effect", "mutates", "binds"} & op.properties.keys():
        return None
    if call.target == V2:
        recipes = [(recipe,) for recipe in Recipe]
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
    if not all(_scales(tensor_type(s), of) for s, of in zip(scales, ((rows, ONE), (ONE, columns)), strict=True)):
        return None
    added = op.operands[bias.index] if isinstance(bias, Arg) else None
    return _Arguments((left, right), (scales[0], scales[1]), added, given.get("use_fast_accum") is True)


V2 = "aten._scaled_mm_v2.default"
ORDERS: dict[str, tuple[str, ...]] = {
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
