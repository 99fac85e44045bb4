"""Library calls: an FX node without a rule as `nd.extern` with what eager would see - strides, aliases, mutations,
effects.

Results of the op are the tensors and numbers of the operator's result in order, None left out, then the new values of
the operands that it mutates. The target "py" calls a Python object of the module: `py(object(k), arguments...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from xdsl.dialects.builtin import ArrayAttr, IndexType, f64, i1
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import Expr
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import Arg, Call, CallAttr, Enum, Obj
from ....dialects.nd.types import TensorType
from ....dialects.support.float8 import FLOAT8
from ..core.builder import UNIT, number_attr, text
from ..core.errors import MissingRuleError
from ..core.metadata import COMPUTED, INLINE_LIMIT, device_name, element_type, is_nonoverlapping_dense
from ..core.scalars import ScalarValue, SymScalar, scalar_number
from .library import BY_CHOICE, library_reason

if TYPE_CHECKING:
    from ..core.node_builder import NodeBuilder

aten = torch.ops.aten
_INDEX = IndexType()
TYPE_NEUTRAL: frozenset[Any] = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.lift_fresh_copy.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.permute.default,
        aten.expand.default,
        aten.clone.default,
        aten.copy_.default,
    }
)
"""Operators whose rule only moves elements, so that it serves element types that kernels do not compute with."""

FLOAT8_OPERATORS: frozenset[str] = frozenset(
    """
    _reshape_alias _reshape_copy _to_copy _unsafe_index _unsafe_index_put _unsafe_view abs alias alias_copy as_strided
    as_strided_copy as_strided_scatter broadcast_in_dim cat clone constant_pad_nd contiguous convert_element_type copy
    copy_ detach diagonal diagonal_copy diagonal_scatter embedding empty empty_like eq expand expand_copy fill full
    full_like index index_put index_select isnan lift_fresh_copy movedim narrow ne new_empty new_full new_ones
    new_zeros ones ones_like permute permute_copy pixel_shuffle repeat reshape roll scalar_tensor select select_copy
    select_scatter slice slice_copy slice_scatter split split_with_sizes split_with_sizes_copy squeeze squeeze_copy
    stack t t_copy to transpose transpose_copy unbind unbind_copy unfold unfold_copy unsqueeze unsqueeze_copy view
    view_copy view_of where zeros zeros_like
    """.split()
)
"""Operators whose rules serve 8-bit floats too: moves, conversions and what else eager has for them."""


def handles(target: Any, dtype: Attribute) -> bool:
    """Whether the rule of an operator serves operands or results of that element type."""
    if dtype in COMPUTED or target in TYPE_NEUTRAL:
        return True
    return dtype in FLOAT8 and target._schema.name.partition("::")[2] in FLOAT8_OPERATORS


# ---- constants


def constant(b: NodeBuilder, value: torch.Tensor, in_memory: bool = False) -> SSAValue:
    """A constant tensor: literal when tiny, else an argument at the end of the function; with `in_memory` (the library reads it) always an
    argument, since a literal would be stored in each call."""
    if not in_memory and value.device.type == b.torch_device.type and (literal := tiny_constant(b, value)) is not None:
        return literal
    dtype = element_type(value.dtype)
    key = _constant_key(value)
    found = b.constant_arguments.get(key)
    if found is None:
        b.constants.append(value)
        kind = TensorType.get(b.sizes(value.shape), dtype, device_name(value.device))
        found = b.constant_arguments[key] = b.block.insert_arg(kind, len(b.block.args))
    return found


def tiny_constant(b: NodeBuilder, value: torch.Tensor) -> SSAValue | None:
    """A tiny constant tensor as a literal on the graph's device; None for any other. Tracing makes `torch.tensor(1.0, device=x.device)` a
    constant of the GPU, where there is one."""
    dtype = element_type(value.dtype)
    plain = value.device.type != "meta" and value.layout == torch.strided and not _is_fake(value)
    known = type(value) in (torch.Tensor, torch.nn.Parameter)
    if not (plain and known and dtype in COMPUTED and value.numel() <= INLINE_LIMIT):
        return None
    with _disable_current_modes():  # the caller's fake mode refuses real tensors
        values = value.detach().reshape(-1).tolist()
    dims = b.sizes(value.shape)
    if not dims:
        return b.full(values[0], dtype)
    if not values:
        return b.full(0, dtype, dims)
    return b.emit(nd.LiteralOp, (), dims, dtype, values=ArrayAttr([number_attr(v, dtype) for v in values]))


def _is_fake(value: torch.Tensor) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)


def _constant_key(value: torch.Tensor) -> Any:
    """Equal for tensors that are the same view of the same storage."""
    if value.layout != torch.strided or _is_fake(value):
        return id(value)
    return (
        value.untyped_storage()._cdata,
        value.storage_offset(),
        tuple(value.shape),
        value.stride(),
        value.dtype,
        value.device,
    )


# ---- call templates


def leaf(b: NodeBuilder, value: Any, operands: list[SSAValue]) -> Any:
    """One argument of a call as a template; see dialects/nd/call_args.py for the forms."""
    if isinstance(value, SSAValue):
        operands.append(value)
        return Arg(len(operands) - 1)
    if value is None or isinstance(value, (bool, int, float, str, complex)):
        return value
    if isinstance(value, Expr):
        return int(value) if value.is_const else value
    if isinstance(value, SymScalar):
        value = scalar_number(b, value)
    if isinstance(value, ScalarValue):
        operands.append(value.value)
        return Arg(len(operands) - 1)
    if isinstance(value, (tuple, list)):
        return tuple([leaf(b, v, operands) for v in value])
    if isinstance(value, torch.dtype):
        return Enum("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Enum("device", str(value))
    if isinstance(value, torch.layout):
        return Enum("layout", str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return Enum("memory_format", str(value).removeprefix("torch."))
    return Obj(b.add_object(value))


def target_name(target: Any) -> str:
    """`aten.add.Tensor`: namespace, operator and overload."""
    return f"{target.namespace}.{target._schema.name.split('::')[1]}.{target._overloadname}"


# ---- writing


def write(
    b: NodeBuilder,
    operands: Sequence[SSAValue],
    call: Call,
    types: Sequence[Attribute],
    *,
    operand_layouts: Sequence[Attribute] | None = None,
    result_layouts: Sequence[Attribute] | None = None,
    mutates: Sequence[int] = (),
    aliases: Sequence[int] = (),
    binds: str | None = None,
    effect: bool = False,
    fallback: bool = False,
    kept: Sequence[int] = (),
    fresh: bool = False,
) -> tuple[SSAValue, ...]:
    """Append an nd.extern and return its results (the new values of mutated operands at the end)."""
    properties: dict[str, Attribute] = {"call": CallAttr(call)}
    if operand_layouts is not None and any(a is not UNIT for a in operand_layouts):
        properties["operand_layouts"] = ArrayAttr(operand_layouts)
    if result_layouts is not None and any(a is not UNIT for a in result_layouts):
        properties["result_layouts"] = ArrayAttr(result_layouts)
    if mutates:
        properties["mutates"] = IntsAttr.get(mutates)
        types = [*types, *(operands[k].type for k in mutates)]
    if any(a >= 0 for a in aliases):
        properties["aliases"] = IntsAttr.get(aliases)
    if binds:
        properties["binds"] = text(binds)
    if effect or (b.defines_sizes and any(isinstance(t, TensorType) for t in types)):
        properties["effect"] = UNIT
    if fallback:
        properties["fallback"] = UNIT
    if fresh:
        properties["fresh"] = UNIT
    if kept:
        properties["kept"] = IntsAttr.get(kept)
    return b.emit_many(nd.ExternOp, operands, types, **properties)


def result_types(b: NodeBuilder, val: Any) -> tuple[list[Attribute], list[Attribute]]:
    """Types and layouts of the results of an operator, None left out."""
    types: list[Attribute] = []
    layouts: list[Attribute] = []
    for item in flat(val):
        if isinstance(item, torch.Tensor):
            types.append(TensorType.get(b.sizes(item.shape), element_type(item.dtype), device_name(item.device)))
            layouts.append(b.layout(b.sizes(item.stride())) if item.layout == torch.strided else UNIT)
        elif item is not None:
            types.append(_number_type(item))
            layouts.append(UNIT)
    return types, layouts


def _kept(val: Any) -> list[int]:
    """The places of the results among what an operator returns, if None is among that."""
    items = flat(val)
    return [k for k, item in enumerate(items) if item is not None] if any(item is None for item in items) else []


def flat(val: Any) -> list[Any]:
    """The leaves of a result: tensors, numbers, None."""
    return [leaf for item in val for leaf in flat(item)] if isinstance(val, (tuple, list)) else [val]


def _number_type(item: Any) -> Attribute:
    if isinstance(item, (bool, torch.SymBool)):
        return i1
    return f64 if isinstance(item, (float, torch.SymFloat)) else _INDEX


def regroup(b: NodeBuilder, val: Any, results: Sequence[SSAValue]) -> Any:
    """Results in the shape of the operator's result: the value of the FX node."""
    source = iter(results)

    def walk(item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            return tuple(walk(x) for x in item)
        if item is None:
            return None
        result = next(source)
        if isinstance(item, torch.Tensor):
            return result
        return bind_number(b, item, result)

    return walk(val)


def bind_number(b: NodeBuilder, item: Any, result: SSAValue) -> Any:
    """A number that a call returned: it defines the unbacked symbol that torch gave it."""
    if isinstance(item, (torch.SymInt, torch.SymFloat)):
        symbol = item.node.expr
        if getattr(symbol, "is_symbol", False):
            if isinstance(item, torch.SymInt):
                b.bind_symbol(symbol.name, result)
                return b.size_of(item)
            b.float_symbols[symbol.name] = result
            return SymScalar("float", symbol)
    kind = {_INDEX: "int", f64: "float", i1: "bool"}[result.type]
    return ScalarValue(kind, result)


# ---- operators


def operator_call(b: NodeBuilder, node: Node, chosen: bool = False) -> Any:
    """A library call of the node's operator, counted as chosen or as fallback."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return python_function(b, node)
    fallback = not chosen and is_fallback(target)
    if fallback:
        b.counts.fallback += 1
        b.counts.names["fallback"][target_name(target)] += 1
    else:
        b.counts.extern += 1
        b.counts.names["extern"][target_name(target)] += 1
    physical = _PHYSICAL.get(target)
    if physical is not None:
        return overload_call(b, node, physical, node.args, {}, _physical_value(b.val))
    return overload_call(b, node, target, node.args, node.kwargs, b.val, fallback=fallback)


_PHYSICAL: dict[Any, Any] = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
"""Views that only set a bit of the tensor, which memory does not hold: they are computed instead."""


def _physical_value(val: Any) -> Any:
    """Torch's metadata of what such a view becomes: as a tensor of its own it has no gaps."""
    mode = getattr(val, "fake_mode", None)
    if mode is None:
        return val
    with mode, torch.no_grad():
        return torch.empty_like(val)


def refuse_fallback(node: Node) -> None:
    """Raise for an operator that has no rule and is no library call by choice; says what could be added."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or (target.namespace in ("aten", "prims") and not is_fallback(target)):
        return
    from torch._decomp import decomposition_table

    if target in decomposition_table:
        raise MissingRuleError(
            f"missing decomposition: {target} at node {node.name} has no rule; torch has a decomposition of it: "
            "give it by options={'decompositions': ...} or allow implicit_fallbacks"
        )
    raise MissingRuleError(f"missing rule: {target} at node {node.name} has neither a rule nor a decomposition; implicit_fallbacks are off")


def is_fallback(target: Any) -> bool:
    """Whether an operator has no rule but should: ATen's that are not in the list of library operators, and those of users and of libraries
    outside of torch."""
    if target.namespace in ("aten", "prims"):
        return library_reason(target._schema.name.split("::")[1]) is None
    return target.namespace not in BY_CHOICE


def overload_call(
    b: NodeBuilder, node: Node, target: Any, args: Sequence[Any], kwargs: dict[str, Any], val: Any, fallback: bool = False
) -> Any:
    """Write the call of `target` with FX arguments and return the node's value; mutated arguments are given their new
    values."""
    operands: list[SSAValue] = []
    sources: list[Any] = []

    def template(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return tuple([template(a) for a in arg])
        value = b.argument(arg)
        before = len(operands)
        result = leaf(b, value, operands)
        sources.extend([arg] * (len(operands) - before))
        return result

    schema_args = target._schema.arguments
    places: dict[str, tuple[int, int]] = {}

    def argument(name: str, arg: Any) -> Any:
        before = len(operands)
        result = template(arg)
        places[name] = (before, len(operands))
        return result

    positional = tuple([argument(schema_args[k].name, a) for k, a in enumerate(args)])
    named = tuple([(key, argument(key, a)) for key, a in kwargs.items()])
    mutates = [
        k
        for a in schema_args
        if a.is_write and a.name in places
        for k in range(*places[a.name])
        if _is_tensor(operands[k])
    ]
    types, layouts = ([], []) if _returns_only_mutated(target) else result_types(b, val)
    own = len(types)
    call = Call(target_name(target), positional, named)
    results = write(
        b,
        operands,
        call,
        types,
        operand_layouts=[operand_layout(b, s, target) for s in sources],
        result_layouts=layouts,
        mutates=mutates,
        aliases=_aliases(target, places, val, own),
        binds=bound_symbol(node),
        effect=has_effect(target) and not _drops_nothing(target, call),
        fallback=fallback,
        kept=() if _returns_only_mutated(target) else _kept(val),
    )
    for k, value in zip(mutates, results[own:], strict=True):
        b.rebind(sources[k], value)
    if not types and mutates:
        return results[own] if len(mutates) == 1 else tuple(results[own:])
    return regroup(b, val, results[:own])


def _is_tensor(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType)


def _returns_only_mutated(target: Any) -> bool:
    """Whether every result of the schema is one of its written arguments (`aten.add_`)."""
    returns = target._schema.returns
    return all(r.alias_info is not None and r.alias_info.is_write for r in returns)


def operand_layout(b: NodeBuilder, source: Any, target: Any = None) -> Attribute:
    """The strides that eager has for an operand. Overlapping ones of a torch operator are left free: its own kernels
    take any."""
    val = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(val, torch.Tensor) or val.layout != torch.strided:
        return UNIT
    strides = val.stride()
    custom = target is not None and target.namespace not in ("aten", "prims")
    if (
        not custom
        and any(type(s) is int and s == 0 for s in strides)
        and not is_nonoverlapping_dense(val.shape, strides)
    ):
        return UNIT
    return b.layout(b.sizes(strides))


def _aliases(target: Any, places: dict[str, tuple[int, int]], val: Any, results: int) -> list[int]:
    """For each result the operand that it is a view of, -1 for none."""
    schema = target._schema
    if not any(r.alias_info is not None for r in schema.returns):
        return []
    by_set = {
        name: places[a.name][0]
        for a in schema.arguments
        if a.alias_info and a.name in places
        for name in a.alias_info.before_set
    }
    found: list[int] = []
    items = val if isinstance(val, (tuple, list)) and len(schema.returns) > 1 else [val]
    for item, returned in zip(items, schema.returns, strict=False):
        names = returned.alias_info.before_set if returned.alias_info is not None else ()
        operand = next((by_set[n] for n in names if n in by_set), -1)
        found.extend(operand for leaf in flat(item) if leaf is not None)
    return found[:results]


def bound_symbol(node: Node) -> str | None:
    """The size symbol that the node's number defines."""
    val = node.meta.get("val")
    if not isinstance(val, torch.SymInt):
        return None
    expr = val.node.expr
    return expr.name if getattr(expr, "is_symbol", False) else None


_EFFECT_NAMES = frozenset(
    ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_async", "sym_constrain_range")
)


def has_effect(target: Any) -> bool:
    """Whether a call must be kept, once and in order: assertions and random numbers."""
    if target._schema.name.split("::")[1] in _EFFECT_NAMES:
        return True
    if torch.Tag.nondeterministic_seeded in target.tags:
        return True
    return not target._schema.returns


def _drops_nothing(target: Any, call: Call) -> bool:
    """Whether a call would draw random numbers only to drop elements, and drops none (attention)."""
    for k, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = call.args[k] if k < len(call.args) else dict(call.kwargs).get(argument.name, argument.default_value)
            return not isinstance(given, Arg) and given == 0.0
    return False


def python_function(b: NodeBuilder, node: Node) -> Any:
    """A call of a Python function on run-time numbers (`math.floor`, `operator.add`)."""
    from ..core.scalars import python_call

    val = b.val
    args = [b.argument(a) for a in node.args]
    if val is None and any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes):
        raise TypeError(f"{node.target} is not an ATen operator")
    kind = (
        "bool"
        if isinstance(val, (bool, torch.SymBool))
        else "float"
        if isinstance(val, (float, torch.SymFloat))
        else "int"
    )
    (result,) = python_call(b, node.target, args, [kind])  # pyright: ignore[reportArgumentType]
    return bind_number(b, val, result)
