"""Complex numbers as pairs of real tensors.

Kernels compute with real numbers only. A complex value keeps its type, but what a rule of this file computes is known
by its real and imaginary part too; the next rule starts from these, and the value itself, both parts side by side in
memory, is only made where a library call or the caller needs it. The parts of an argument are views of its memory.
Element-wise arithmetic is written out; what moves or adds elements up is done to each part by the rule for real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from xdsl.dialects.builtin import f32, f64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import as_expr, strides_contiguous
from ....dialects.nd.call_args import Arg, Call
from ....dialects.nd.types import FLOATS, TensorType, c64, c128
from ..calls import externs
from ..calls.deterministic import fills_memory
from ..core.metadata import element_type, is_nonoverlapping_dense
from ..core.registry import find_rule

if TYPE_CHECKING:
    from ..core.importer import Importer

aten = torch.ops.aten

PART: dict[Attribute, Attribute] = {c64: f32, c128: f64}
"""Complex element types that rules handle -> that of their parts."""


@dataclass(frozen=True)
class ComplexPair:
    """A complex tensor: real and imaginary part, of one element type; the imaginary part of a real number is None."""

    re: SSAValue
    im: SSAValue | None


Function = Callable[..., Any]
RULES: dict[str, Function] = {}
"""Name of an ATen operator -> what it does with pairs: `function(b, *arguments)` with tensors and complex numbers as
pairs gives a pair, a real tensor, or NotImplemented."""


def complex_rule(*names: str) -> Callable[[Function], Function]:
    """Register what operators of these names do with pairs."""

    def register(fn: Function) -> Function:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def has_rule(name: str) -> bool:
    """Whether an ATen operator of that name is computed on pairs."""
    return name in RULES or name in _BY_PARTS


# ---- between pairs and values


def complex_call(b: Importer, node: Node, val: Any) -> Any:
    """The value of an operator's call that takes or gives complex numbers, by the rules of this file; NotImplemented
    where they do not serve."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or b.mixed_devices:
        return NotImplemented
    name = target._schema.name.split("::")[1]
    function = _view_dtype if target is torch.ops.aten.view.dtype else RULES.get(name)
    if not has_rule(name) or not _served(b, node, val):
        return NotImplemented
    part = _part_type(node, val)
    if part is None:
        return NotImplemented
    if function is None:
        if target in externs.TYPE_NEUTRAL and not any(b.env[n] in b.pairs for n in node.all_input_nodes):
            return NotImplemented
        function = _by_parts(target)
    args = [_operand(b, a, part) for a in node.args]
    kwargs = {key: _operand(b, a, part) for key, a in node.kwargs.items()}
    result = function(b, *args, **kwargs)
    if result is NotImplemented:
        return NotImplemented
    b.counts.rule += 1
    if name == "view_as_complex":  # the value is a view of memory that is there
        value = externs.overload_call(b, node, target, node.args, {}, val)
        b.pairs[value] = result
        return value
    if isinstance(result, (tuple, list)):
        return tuple(_value(b, r, v) for r, v in zip(result, val, strict=True))
    return _value(b, result, val)


def _tensors(node: Node, val: Any) -> list[torch.Tensor]:
    metas = (n.meta.get("val") for n in node.all_input_nodes)
    return [t for item in (val, *metas) for t in externs.flat(item) if isinstance(t, torch.Tensor)]


def _served(b: Importer, node: Node, val: Any) -> bool:
    """Whether all tensors are common ones of element types that kernels handle or pairs of these; an argument with
    torch's conjugate bit is not what its memory says."""
    for tensor in _tensors(node, val):
        dtype = element_type(tensor.dtype)
        if tensor.layout is not torch.strided or not (dtype in PART or externs.handles(aten.add.Tensor, dtype)):
            return False
    for source in node.all_input_nodes:
        meta = source.meta.get("val")
        if isinstance(meta, torch.Tensor) and (meta.is_conj() or meta.is_neg()) and b.env[source] not in b.pairs:
            return False
    return True


def _part_type(node: Node, val: Any) -> Attribute | None:
    """f32 or f64 by the widest complex tensor of a call; None when there is none."""
    found = {element_type(t.dtype) for t in _tensors(node, val)}
    return f64 if c128 in found else f32 if c64 in found else None


def _operand(b: Importer, arg: Any, part: Attribute) -> Any:
    """An FX argument with complex tensors and numbers as pairs."""
    if isinstance(arg, (list, tuple)):
        return tuple(_operand(b, a, part) for a in arg)
    if isinstance(arg, complex):
        return ComplexPair(b.full(arg.real, part), b.full(arg.imag, part))
    value = b.argument(arg)
    if isinstance(arg, Node) and isinstance(value, SSAValue) and b.dtype(value) in PART:
        pair = _pair(b, arg, value)
        assert pair.im is not None
        return ComplexPair(b.cast(pair.re, part), b.cast(pair.im, part))
    return value


def _pair(b: Importer, node: Node, value: SSAValue) -> ComplexPair:
    """The parts of a complex value: known, or views of its memory."""
    found = b.pairs.get(value)
    if found is None:
        meta, dims = node.meta["val"], b.dims(value)
        dense = is_nonoverlapping_dense(meta.shape, meta.stride())
        strides = b.sizes(meta.stride()) if dense else strides_contiguous(dims)
        real = TensorType.get((*dims, as_expr(2)), PART[b.dtype(value)], b.device)
        (view,) = externs.write(
            b, [value], Call("aten.view_as_real.default", (Arg(0),), ()), [real],
            operand_layouts=[b.layout(strides)], result_layouts=[b.layout([*(s * 2 for s in strides), as_expr(1)])], aliases=[0],
        )  # fmt: skip
        found = b.pairs[value] = _split(b, view)
    return found


def _split(b: Importer, real: SSAValue) -> ComplexPair:
    """[..., 2] as a pair."""
    last = b.rank(real) - 1
    return ComplexPair(b.select_dim(real, last, 0), b.select_dim(real, last, 1))


def _joined(b: Importer, re: SSAValue, im: SSAValue) -> SSAValue:
    """[..., 2] from both parts."""
    last = b.rank(re)
    return b.cat([b.unsqueeze(re, last), b.unsqueeze(im, last)], last)


def _value(b: Importer, result: Any, val: Any) -> Any:
    """The result of a rule as the value of a node."""
    if not isinstance(result, ComplexPair):
        return b.conform(result, b.sizes(val.shape), element_type(val.dtype)) if isinstance(result, SSAValue) else result
    dims, dtype = b.sizes(val.shape), element_type(val.dtype)
    if dtype not in PART:  # a cast to a real type drops the imaginary part
        return b.conform(result.re, dims, dtype)
    zero = b.full(0.0, PART[dtype])
    re, im = (b.conform(b.expand(x, dims), dims, PART[dtype]) for x in (result.re, zero if result.im is None else result.im))
    strides = strides_contiguous(dims)
    (value,) = externs.write(
        b, [_joined(b, re, im)], Call("aten.view_as_complex.default", (Arg(0),), ()), [TensorType.get(dims, dtype, b.device)],
        operand_layouts=[b.layout([*(s * 2 for s in strides), as_expr(1)])], result_layouts=[b.layout(strides)], aliases=[0],
    )  # fmt: skip
    b.pairs[value] = ComplexPair(re, im)
    b.computed_pairs.add(value)
    return value


def as_pair(b: Importer, value: Any, like: ComplexPair | None = None) -> ComplexPair:
    """An operand of arithmetic as a pair: a real tensor or number has no imaginary part."""
    if isinstance(value, ComplexPair):
        return value
    assert like is not None
    return ComplexPair(b.scalar(value, b.dtype(like.re)), None)


def _pairs(b: Importer, x: Any, y: Any) -> tuple[ComplexPair, ComplexPair]:
    like = x if isinstance(x, ComplexPair) else y
    return as_pair(b, x, like), as_pair(b, y, like)


# ---- arithmetic


@complex_rule("mul")
def _mul(b: Importer, x: Any, y: Any) -> ComplexPair:
    if not isinstance(x, ComplexPair) and not isinstance(y, ComplexPair):
        return NotImplemented
    x, y = _pairs(b, x, y)
    if x.im is None:
        x, y = y, x
    if y.im is None:
        return ComplexPair(b.mul(x.re, y.re), None if x.im is None else b.mul(x.im, y.re))
    assert x.im is not None
    return ComplexPair(b.sub(b.mul(x.re, y.re), b.mul(x.im, y.im)), b.add(b.mul(x.re, y.im), b.mul(x.im, y.re)))


@complex_rule("div", "true_divide")
def _div(b: Importer, x: Any, y: Any, *, rounding_mode: str | None = None) -> ComplexPair:
    """Both parts of the divisor are scaled by the larger, so that no square overflows."""
    if rounding_mode is not None or not (isinstance(x, ComplexPair) or isinstance(y, ComplexPair)):
        return NotImplemented
    x, y = _pairs(b, x, y)
    if y.im is None:
        return ComplexPair(b.div(x.re, y.re), None if x.im is None else b.div(x.im, y.re))
    scale = b.op("maximum", b.op("abs", y.re), b.op("abs", y.im))
    c, d = b.div(y.re, scale), b.div(y.im, scale)
    whole = b.add(b.mul(y.re, c), b.mul(y.im, d))
    if x.im is None:
        return ComplexPair(b.div(b.mul(x.re, c), whole), b.op("neg", b.div(b.mul(x.re, d), whole)))
    re, im = b.add(b.mul(x.re, c), b.mul(x.im, d)), b.sub(b.mul(x.im, c), b.mul(x.re, d))
    return ComplexPair(b.div(re, whole), b.div(im, whole))


@complex_rule("reciprocal")
def _reciprocal(b: Importer, x: ComplexPair) -> ComplexPair:
    return _div(b, 1.0, x)


def _sum(b: Importer, x: Any, y: Any, alpha: Any, sign: str) -> ComplexPair:
    if not isinstance(x, ComplexPair) and not isinstance(y, ComplexPair):
        return NotImplemented
    x, y = _pairs(b, x, y)
    if isinstance(alpha, ComplexPair) or alpha != 1:
        y = _mul(b, y, alpha)
    re = b.op(sign, x.re, y.re)
    if x.im is None:
        return ComplexPair(re, y.im if sign == "add" or y.im is None else b.op("neg", y.im))
    return ComplexPair(re, x.im if y.im is None else b.op(sign, x.im, y.im))


@complex_rule("add")
def _add(b: Importer, x: Any, y: Any, alpha: Any = 1) -> ComplexPair:
    return _sum(b, x, y, alpha, "add")


@complex_rule("sub")
def _sub(b: Importer, x: Any, y: Any, alpha: Any = 1) -> ComplexPair:
    return _sum(b, x, y, alpha, "sub")


@complex_rule("rsub")
def _rsub(b: Importer, x: Any, y: Any, alpha: Any = 1) -> ComplexPair:
    return _sum(b, y, x, alpha, "sub")


@complex_rule("neg")
def _neg(b: Importer, x: ComplexPair) -> ComplexPair:
    assert x.im is not None
    return ComplexPair(b.op("neg", x.re), b.op("neg", x.im))


@complex_rule("_conj", "conj_physical", "_conj_physical", "conj")
def _conj(b: Importer, x: Any) -> ComplexPair:
    if not isinstance(x, ComplexPair) or x.im is None:
        return NotImplemented
    return ComplexPair(x.re, b.op("neg", x.im))


@complex_rule("square")
def _square(b: Importer, x: ComplexPair) -> ComplexPair:
    return _mul(b, x, x)


@complex_rule("pow")
def _pow(b: Importer, x: Any, exponent: Any) -> ComplexPair:
    if not isinstance(x, ComplexPair) or isinstance(exponent, (bool, ComplexPair, SSAValue)):
        return NotImplemented
    if exponent == 2 or exponent == 3:
        square = _mul(b, x, x)
        return square if exponent == 2 else _mul(b, square, x)
    return _reciprocal(b, x) if exponent == -1 else NotImplemented


# ---- functions


@complex_rule("abs")
def _abs(b: Importer, x: ComplexPair) -> SSAValue:
    return b.op("hypot", x.re, x.im)


@complex_rule("angle")
def _angle(b: Importer, x: ComplexPair) -> SSAValue:
    return b.op("atan2", x.im, x.re)


@complex_rule("log")
def _log(b: Importer, x: ComplexPair) -> ComplexPair:
    return ComplexPair(b.op("log", _abs(b, x)), _angle(b, x))


@complex_rule("sqrt")
def _sqrt(b: Importer, x: ComplexPair) -> ComplexPair:
    """The root in the right half-plane, by that of the larger part so that nothing cancels."""
    assert x.im is not None
    root = b.op("sqrt", b.mul(b.add(_abs(b, x), b.op("abs", x.re)), 0.5))
    other = b.select(b.cmp("eq", root, 0.0), 0.0, b.div(b.mul(b.op("abs", x.im), 0.5), root))
    right = b.cmp("ge", x.re, 0.0)
    return ComplexPair(b.select(right, root, other), b.op("copysign", b.select(right, other, root), x.im))


@complex_rule("sgn")
def _sgn(b: Importer, x: ComplexPair) -> ComplexPair:
    """z / |z|, 0 at 0."""
    assert x.im is not None
    size = _abs(b, x)
    zero = b.cmp("eq", size, 0.0)
    return ComplexPair(b.select(zero, 0.0, b.div(x.re, size)), b.select(zero, 0.0, b.div(x.im, size)))


# ---- comparisons and choices


def _equal(b: Importer, x: Any, y: Any, predicate: str, join: str) -> SSAValue:
    x, y = _pairs(b, x, y)
    zero = b.full(0.0, b.dtype(x.re))
    imaginary = b.cmp(predicate, zero if x.im is None else x.im, zero if y.im is None else y.im)
    return b.op(join, b.cmp(predicate, x.re, y.re), imaginary)


@complex_rule("eq")
def _eq(b: Importer, x: Any, y: Any) -> SSAValue:
    return _equal(b, x, y, "eq", "and")


@complex_rule("ne")
def _ne(b: Importer, x: Any, y: Any) -> SSAValue:
    return _equal(b, x, y, "ne", "or")


def _predicate(name: str, join: str) -> Function:
    return lambda b, x: b.op(join, b.predicate(name, x.re), b.predicate(name, x.im))


RULES.update(isnan=_predicate("isnan", "or"), isinf=_predicate("isinf", "or"), isfinite=_predicate("isfinite", "and"))


@complex_rule("where")
def _where(b: Importer, condition: Any, x: Any = None, y: Any = None) -> ComplexPair:
    if x is None or isinstance(condition, ComplexPair) or not (isinstance(x, ComplexPair) or isinstance(y, ComplexPair)):
        return NotImplemented
    x, y = _pairs(b, x, y)
    zero = b.full(0.0, b.dtype(x.re))
    imaginary = b.select(condition, zero if x.im is None else x.im, zero if y.im is None else y.im)
    return ComplexPair(b.select(condition, x.re, y.re), imaginary)


@complex_rule("constant_pad_nd")
def _padded(b: Importer, x: ComplexPair, pad: Any, value: Any = 0) -> ComplexPair:
    real = find_rule(aten.constant_pad_nd.default)
    if real is None or x.im is None:
        return NotImplemented
    re, im = (value.re, value.im) if isinstance(value, ComplexPair) else (value, None)
    return ComplexPair(real(b, x.re, pad, re), real(b, x.im, pad, 0.0 if im is None else im))


@complex_rule("masked_fill")
def _masked_fill(b: Importer, x: ComplexPair, mask: SSAValue, value: Any) -> ComplexPair:
    return _where(b, mask, value, x)


# ---- sums


@complex_rule("sum")
def _total(b: Importer, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> ComplexPair:
    if not isinstance(x, ComplexPair) or x.im is None or (dtype is not None and not dtype.is_complex):
        return NotImplemented  # the real parts are cast before they are summed
    over = reduced_dims(b, x, dim)
    return ComplexPair(b.reduce("sum", x.re, over, keepdim), b.reduce("sum", x.im, over, keepdim))


@complex_rule("mean")
def _mean(b: Importer, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> ComplexPair:
    if not isinstance(x, ComplexPair) or x.im is None:
        return NotImplemented
    over = reduced_dims(b, x, dim)
    return ComplexPair(b.mean(x.re, over, keepdim), b.mean(x.im, over, keepdim))


def reduced_dims(b: Importer, x: ComplexPair, dim: Any) -> list[int]:
    """The dimensions of a reduction, none given: all."""
    rank = b.rank(x.re)
    given = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return sorted({d % max(rank, 1) for d in given}) if rank else []


# ---- made of, and made into, real numbers


@complex_rule("view_as_real", "view_as_real_copy")
def _view_as_real(b: Importer, x: ComplexPair) -> SSAValue:
    assert x.im is not None
    if b.env[b.node.args[0]] not in b.computed_pairs:  # pyright: ignore[reportArgumentType]
        return NotImplemented  # a view of memory that is there
    return _joined(b, x.re, x.im)


def _view_dtype(b: Importer, x: Any, dtype: torch.dtype) -> Any:
    """Complex numbers seen as twice as many real ones of their parts' type, or the other way round; other types are the library's."""
    target = element_type(dtype)
    if isinstance(x, ComplexPair):
        if x.im is None or PART.get(target, target) != b.dtype(x.re):
            return NotImplemented
        return x if dtype.is_complex else b.reshape(_joined(b, x.re, x.im), b.out_dims)
    if PART.get(target) != b.dtype(x):
        return NotImplemented
    return _split(b, b.reshape(x, [*b.out_dims, as_expr(2)]))


@complex_rule("view_as_complex", "view_as_complex_copy")
def _view_as_complex(b: Importer, x: SSAValue) -> ComplexPair:
    return _split(b, x)


@complex_rule("real")
def _real(b: Importer, x: Any) -> SSAValue:
    return x.re if isinstance(x, ComplexPair) else NotImplemented


@complex_rule("imag")
def _imag(b: Importer, x: Any) -> SSAValue:
    return x.im if isinstance(x, ComplexPair) else NotImplemented


@complex_rule("complex")
def _complex(b: Importer, re: SSAValue, im: SSAValue) -> Any:
    part = PART[b.out_dtype]
    return ComplexPair(re, im) if b.dtype(re) == b.dtype(im) == part else NotImplemented


@complex_rule("polar")
def _polar(b: Importer, size: SSAValue, angle: SSAValue) -> ComplexPair:
    return ComplexPair(b.mul(size, b.op("cos", angle)), b.mul(size, b.op("sin", angle)))


@complex_rule("_to_copy")
def _to_copy(b: Importer, x: Any, **options: Any) -> Any:
    if options.get("device") is not None or not (isinstance(x, ComplexPair) or b.dtype(x) in FLOATS):
        return NotImplemented
    return x if isinstance(x, ComplexPair) else ComplexPair(x, None)


@complex_rule("zeros", "zeros_like", "new_zeros")
def _zeros(b: Importer, *args: Any, **kwargs: Any) -> ComplexPair:
    return _filled(b, 0.0)


@complex_rule("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
def _empty(b: Importer, *args: Any, **kwargs: Any) -> ComplexPair:
    """Zeros, as for real numbers; where the program asks for deterministic algorithms NaN, with which eager fills new memory."""
    return _filled(b, float("nan") if fills_memory() else 0.0)


@complex_rule("ones", "ones_like", "new_ones")
def _ones(b: Importer, *args: Any, **kwargs: Any) -> ComplexPair:
    return _filled(b, 1.0)


@complex_rule("full", "full_like")
def _full(b: Importer, shape: Any, value: Any, **kwargs: Any) -> ComplexPair:
    if isinstance(value, ComplexPair):
        return value
    return _filled(b, float(value)) if isinstance(value, (int, float)) else NotImplemented


@complex_rule("new_full")
def _new_full(b: Importer, x: Any, shape: Any, value: Any, **kwargs: Any) -> ComplexPair:
    return _full(b, shape, value)


@complex_rule("eye")
def _eye(b: Importer, *args: Any, **kwargs: Any) -> ComplexPair:
    dims = b.out_dims
    part = PART.get(b.out_dtype)
    return NotImplemented if part is None else ComplexPair(b.cast(b.cmp("eq", b.iota(dims, 0), b.iota(dims, 1)), part), None)


@complex_rule("scalar_tensor")
def _scalar_tensor(b: Importer, value: Any, **kwargs: Any) -> ComplexPair:
    return _full(b, (), value)


def _filled(b: Importer, value: float) -> ComplexPair:
    part = PART.get(b.out_dtype)
    return NotImplemented if part is None else ComplexPair(b.full(value, part), None)


# ---- moves: each part by the rule for real numbers

_BY_PARTS = frozenset(
    """
    alias alias_copy as_strided_scatter cat clone copy cumsum detach diagonal diagonal_backward diagonal_copy
    diagonal_scatter expand narrow_copy split_with_sizes_copy unsafe_split unsafe_split_with_sizes
    expand_copy flip gather index index_select lift_fresh_copy movedim permute permute_copy repeat reshape roll select
    select_backward select_copy select_scatter slice slice_backward slice_copy slice_scatter split split_with_sizes
    squeeze squeeze_copy stack t t_copy transpose transpose_copy tril triu unbind unbind_copy unfold unfold_copy
    unsqueeze unsqueeze_copy view view_copy _unsafe_view
    """.split()
)


_INDEXED = frozenset("gather index index_select".split())
"""Moves whose real operands are indices; those of the others are values."""


def _by_parts(target: Any) -> Function:
    real = find_rule(target)
    indexed = target.__name__.partition(".")[0] in _INDEXED

    def apply(b: Importer, *args: Any, **kwargs: Any) -> Any:
        pairs = [a for a in externs.flat(tuple(args)) if isinstance(a, ComplexPair)]
        if real is None or not pairs or "dtype" in kwargs:
            return NotImplemented
        if not indexed:
            args = _as_pairs(b, args, b.dtype(pairs[0].re))
        results, whole = [], b.val
        b.val = _real_value(whole)
        try:
            for imaginary in (False, True):
                results.append(real(b, *[_part(b, a, imaginary) for a in args], **kwargs))
        finally:
            b.val = whole
        if any(r is NotImplemented for r in results):
            return NotImplemented
        re, im = results
        return tuple(map(ComplexPair, re, im)) if isinstance(re, (tuple, list)) else ComplexPair(re, im)

    return apply


def _real_value(val: Any) -> Any:
    """Torch's metadata of one part of a complex result."""
    if isinstance(val, (list, tuple)):
        return [_real_value(v) for v in val]
    with val.fake_mode if getattr(val, "fake_mode", None) is not None else nullcontext(), torch.no_grad():
        return torch.empty_like(val, dtype=val.real.dtype if val.is_complex() else val.dtype)


def _as_pairs(b: Importer, arg: Any, part: Attribute) -> Any:
    """An argument whose real tensors are complex numbers."""
    if isinstance(arg, (list, tuple)):
        return tuple(_as_pairs(b, a, part) for a in arg)
    if not isinstance(arg, SSAValue):
        return arg
    re = arg if b.dtype(arg) in FLOATS else b.cast(arg, part)
    return ComplexPair(re, b.full(0.0, b.dtype(re), b.dims(re)))


def _part(b: Importer, arg: Any, imaginary: bool) -> Any:
    if isinstance(arg, (list, tuple)):
        return tuple(_part(b, a, imaginary) for a in arg)
    if isinstance(arg, ComplexPair):
        return arg.im if imaginary else arg.re
    if imaginary and isinstance(arg, float) and not math.isnan(arg):
        return 0.0  # what is filled in
    return arg
