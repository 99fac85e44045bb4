"""`nd`: the tensor level. Values are immutable n-d tensors; an op says what is computed, not how.

A function holds one graph: `func.func` with tensors (and `index`, `f64`, `i1` scalars for Python numbers that vary) as arguments.
Argument attributes: `nd.layout` (#nd.layout, the strides that come in), `nd.symbol` (the size symbol that an index argument binds),
`nd.constant` (entry of the table of constant tensors that is passed), `nd.name`, `nd.donated` (nobody needs its memory after its last
use), `nd.base` (a name: arguments with the same one share memory). Result attributes: `nd.layout` (the strides that
the caller gets), `nd.alias` ("arg 2" or "result 0": a view of it, not a copy), `nd.base` (a name: results with the same one
are views of one value, which may share memory).
The module attribute `nd.symbols` holds what is known of the symbols: `{s0 = #nd.range<2, -1, 64>}`; `nd.device`, in a module with tensors
on several devices, the one that kernels are made for.
The types are in types.py, the pointwise ops in pointwise.py, the shared format in base.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, IntegerAttr, IntegerType, ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, as_expr, sym
from ..expr.ranges import Range, RangeEnv
from ..expr.syntax import ExprAttr, IndexMapAttr
from ..support.schedule_check import choice_problem
from .base import ExprsAttr, IntsAttr, NdOp, prop
from .call_args import CallAttr, check_call
from .pointwise import ALL as POINTWISE
from .pointwise import broadcast_dims
from .types import LayoutAttr, RangeAttr, TensorType, is_float, tensor_type

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "xor")
ARG_REDUCTIONS = ("argmax", "argmin")
SCANS = ("sum", "prod", "max", "min", "logsumexp", "sort")
SCATTERS = ("set", "add", "prod", "max", "min")


def _dims_text(dims: tuple[Expr, ...]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def _check_kind(op: NdOp, kind: str, known: Collection[str]) -> None:
    if kind not in known:
        raise VerifyException(f"{op.name}: unknown kind '{kind}', known: {', '.join(known)}")


def _want_without(op: NdOp, given: SSAValue, dims: Sequence[int]) -> None:
    """The results have the dimensions of a tensor but for `dims`."""
    t = tensor_type(given)
    _check_dims(op, dims, t.rank)
    _want(op, tuple(s for k, s in enumerate(t.dims) if k not in dims))


def _check_dims(op: NdOp, dims: Sequence[int], rank: int, what: str = "dims") -> None:
    if len(set(dims)) != len(dims) or any(not 0 <= d < rank for d in dims):
        raise VerifyException(f"{op.name}: {what} {list(dims)} must be distinct and in 0..{rank - 1} for a tensor of rank {rank}")


def _want(op: NdOp, dims: tuple[Expr, ...]) -> None:
    got = tensor_type(op.results[0]).dims
    if got != dims:
        raise VerifyException(f"{op.name}: result sizes are {_dims_text(got)}, must be {_dims_text(dims)}")


# ---- creation


@irdl_op_definition
class FullOp(NdOp):
    """Every element one value: `nd.full {value = 2.5 : f32} : !nd.tensor<4 x f32>`; rank 0 is a scalar constant. An f32
    value of f16 or bf16 elements is not rounded until it is stored (torch's arithmetic with Python numbers)."""

    name = "nd.full"
    SYNTAX: ClassVar = {"value": "attr"}
    value = prop_def(IntegerAttr | FloatAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        wants_float = is_float(tensor_type(self.result).element_type)
        if wants_float != isinstance(self.value, FloatAttr):
            raise VerifyException(f"nd.full: value {self.value} does not fit element type {tensor_type(self.result).element_type}")


@irdl_op_definition
class SizeOp(NdOp):
    """A size as a 0-d integer tensor: `nd.size {value = s0 * 2} : !nd.tensor<i64>`."""

    name = "nd.size"
    SYNTAX: ClassVar = {"value": "expr"}
    value = prop_def(ExprAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class ScalarOp(NdOp):
    """A scalar argument of the function as a 0-d tensor: `nd.scalar %arg0 : (f64) -> !nd.tensor<f64>`."""

    name = "nd.scalar"
    input = operand_def()
    result = result_def(TensorType)
    traits = traits_def(Pure())


@irdl_op_definition
class IotaOp(NdOp):
    """Element i along `dim` is i: `nd.iota {dim = [0]} : !nd.tensor<s0 x i64>`."""

    name = "nd.iota"
    SYNTAX: ClassVar = {"dim": "ints"}
    dim = prop_def(IntsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _check_dims(self, self.dim.data, tensor_type(self.result).rank, "dim")


@irdl_op_definition
class LiteralOp(NdOp):
    """A small constant tensor (at most 8 elements, row-major): `nd.literal {values = [1 : i64, 2 : i64]} : !nd.tensor<2 x i64>`."""

    name = "nd.literal"
    SYNTAX: ClassVar = {"values": "attr"}
    values = prop_def(ArrayAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        numel = tensor_type(self.result).numel
        if not numel.is_const or int(numel) != len(self.values.data) or len(self.values.data) > 8:
            raise VerifyException(f"nd.literal: {len(self.values.data)} values for {numel} elements (at most 8)")


@irdl_op_definition
class RandomOp(NdOp):
    """Random numbers by Philox4x32-10: element i of the result uses (seed, offset + i) of `seeds` (i64, two a call site:
    seed and offset, its last four bits cleared). `kind` is rand (uniform in [0, 1)), randn (normal) or randint (raw 32 bits as i64)."""

    name = "nd.random"
    SYNTAX: ClassVar = {"kind": "str", "index": "ints"}
    seeds = operand_def(TensorType)
    kind = prop_def(StringAttr)
    index = prop_def(IntsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if self.kind.data not in ("rand", "randn", "randint"):
            raise VerifyException(f"nd.random: unknown kind '{self.kind.data}', known: rand, randn, randint")
        if len(self.index.data) != 1:
            raise VerifyException(f"nd.random: index has {len(self.index.data)} numbers instead of one, the call site's")


# ---- views: the same elements at other places


class ViewOp(NdOp):
    """Base of the ops that only re-index: `index_map()` maps an index of the result to an index of the operand."""

    input = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if tensor_type(self.input).element_type != tensor_type(self.result).element_type:
            raise VerifyException(f"{self.name}: a view keeps the element type")
        self.verify_view()

    def verify_view(self) -> None:
        raise NotImplementedError


@irdl_op_definition
class ReshapeOp(ViewOp):
    """Same elements in row-major order with other sizes."""

    name = "nd.reshape"

    def verify_view(self) -> None:
        a, b = tensor_type(self.input), tensor_type(self.result)
        if a.numel is not b.numel and a.numel.is_const and b.numel.is_const:
            raise VerifyException(f"nd.reshape: {_dims_text(a.dims)} has {a.numel} elements, {_dims_text(b.dims)} has {b.numel}")


@irdl_op_definition
class PermuteOp(ViewOp):
    """Dimension k of the result is dimension dims[k] of the operand."""

    name = "nd.permute"
    SYNTAX: ClassVar = {"dims": "ints"}
    dims = prop_def(IntsAttr)

    def verify_view(self) -> None:
        t = tensor_type(self.input)
        if sorted(self.dims.data) != list(range(t.rank)):
            raise VerifyException(f"nd.permute: dims {list(self.dims.data)} are not a permutation of 0..{t.rank - 1}")
        _want(self, tuple(t.dims[d] for d in self.dims.data))


@irdl_op_definition
class ExpandOp(ViewOp):
    """Repeats dimensions of size 1 and adds leading ones, as torch's expand."""

    name = "nd.expand"

    def verify_view(self) -> None:
        a, b = tensor_type(self.input).dims, tensor_type(self.result).dims
        if broadcast_dims(a, b) != b:
            raise VerifyException(f"nd.expand: {_dims_text(a)} does not expand to {_dims_text(b)}")


@irdl_op_definition
class SliceOp(ViewOp):
    """Element i of dimension d is element starts[d] + i * steps[d]; the result's type says how many."""

    name = "nd.slice"
    SYNTAX: ClassVar = {"starts": "exprs", "steps": "exprs"}
    starts = prop_def(ExprsAttr)
    steps = prop_def(ExprsAttr)

    def verify_view(self) -> None:
        rank = tensor_type(self.input).rank
        if not len(self.starts.data) == len(self.steps.data) == rank == tensor_type(self.result).rank:
            raise VerifyException(f"nd.slice: needs a start and a step for each of the {rank} dimensions")


@irdl_op_definition
class FlipOp(ViewOp):
    """Reverses the order along dims."""

    name = "nd.flip"
    SYNTAX: ClassVar = {"dims": "ints"}
    dims = prop_def(IntsAttr)

    def verify_view(self) -> None:
        _check_dims(self, self.dims.data, tensor_type(self.input).rank)
        _want(self, tensor_type(self.input).dims)


@irdl_op_definition
class IndexViewOp(ViewOp):
    """Any other re-indexing by an index map (diagonal, unfold, pooling windows, repeat):
    `nd.view %x {map = #nd.map<(d0, d1) -> (d0 * 2 + d1)>}`. The map takes an index of the result to one of the operand; it must
    stay inside the operand for every index of the result."""

    name = "nd.view"
    SYNTAX: ClassVar = {"map": "attr"}
    map = prop_def(IndexMapAttr)

    def verify_view(self) -> None:
        m = self.map.data
        if m.num_dims != tensor_type(self.result).rank or len(m.results) != tensor_type(self.input).rank:
            raise VerifyException(
                f"nd.view: the map takes {m.num_dims} to {len(m.results)} dimensions, the types need "
                f"{tensor_type(self.result).rank} to {tensor_type(self.input).rank}"
            )


# ---- joining


@irdl_op_definition
class CatOp(NdOp):
    """Operands after each other along `dim`."""

    name = "nd.cat"
    SYNTAX: ClassVar = {"dim": "ints"}
    inputs = var_operand_def(TensorType)
    dim = prop_def(IntsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        (dim,) = self.dim.data
        shapes = [tensor_type(o).dims for o in self.operands]
        if not shapes:
            raise VerifyException("nd.cat: needs an operand")
        _check_dims(self, (dim,), len(shapes[0]), "dim")
        rest = {s[:dim] + s[dim + 1 :] for s in shapes}
        if len(rest) != 1:
            raise VerifyException(f"nd.cat: operands differ outside dimension {dim}: {', '.join(map(_dims_text, shapes))}")
        total = sum((s[dim] for s in shapes), as_expr(0))
        _want(self, (*shapes[0][:dim], total, *shapes[0][dim + 1 :]))


@irdl_op_definition
class PadOp(NdOp):
    """Adds low[d] elements `value` before and high[d] after dimension d (negative: cuts): operands are the tensor and a 0-d value."""

    name = "nd.pad"
    SYNTAX: ClassVar = {"low": "exprs", "high": "exprs"}
    input = operand_def(TensorType)
    value = operand_def(TensorType)
    low = prop_def(ExprsAttr)
    high = prop_def(ExprsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        t = tensor_type(self.input)
        if not len(self.low.data) == len(self.high.data) == t.rank:
            raise VerifyException(f"nd.pad: needs low and high for each of the {t.rank} dimensions")
        _want(self, tuple(a + b + c for a, b, c in zip(self.low.data, t.dims, self.high.data, strict=True)))


@irdl_op_definition
class SliceScatterOp(NdOp):
    """The first operand with elements starts[d] + i * steps[d] replaced by the second: the functional form of an assignment to a slice."""

    name = "nd.slice_scatter"
    SYNTAX: ClassVar = {"starts": "exprs", "steps": "exprs"}
    base = operand_def(TensorType)
    source = operand_def(TensorType)
    starts = prop_def(ExprsAttr)
    steps = prop_def(ExprsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if tensor_type(self.base) != tensor_type(self.result):
            raise VerifyException("nd.slice_scatter: the result has the type of the first operand")
        if not len(self.starts.data) == len(self.steps.data) == tensor_type(self.source).rank == tensor_type(self.base).rank:
            raise VerifyException("nd.slice_scatter: needs a start and a step for each dimension, and a source of equal rank")


# ---- reductions and scans


@irdl_op_definition
class ReduceOp(NdOp):
    """Reduces dims away: kinds sum prod max min any all xor. max and min propagate NaN; f16 and bf16 accumulate in f32; sum and prod
    accumulate in the result's element type when it is wider than the operand's."""

    name = "nd.reduce"
    SYNTAX: ClassVar = {"kind": "str", "dims": "ints"}
    input = operand_def(TensorType)
    kind = prop_def(StringAttr)
    dims = prop_def(IntsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _check_kind(self, self.kind.data, REDUCTIONS)
        _want_without(self, self.input, self.dims.data)


@irdl_op_definition
class ArgReduceOp(NdOp):
    """The extreme value and its row-major index within dims: `%v, %i = nd.arg_reduce %x {kind = "argmax", dims = [1]}`. NaN wins, the
    lowest index wins among equals."""

    name = "nd.arg_reduce"
    SYNTAX: ClassVar = {"kind": "str", "dims": "ints"}
    input = operand_def(TensorType)
    kind = prop_def(StringAttr)
    dims = prop_def(IntsAttr)
    values = result_def(TensorType)
    indices = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _check_kind(self, self.kind.data, ARG_REDUCTIONS)
        _want_without(self, self.input, self.dims.data)


@irdl_op_definition
class VarMeanOp(NdOp):
    """Variance (divided by n - correction) and mean over dims in one reduction: `%var, %mean = nd.var_mean %x {...}`."""

    name = "nd.var_mean"
    SYNTAX: ClassVar = {"dims": "ints", "correction": "attr"}
    input = operand_def(TensorType)
    dims = prop_def(IntsAttr)
    correction = prop_def(FloatAttr)
    var = result_def(TensorType)
    mean = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _want_without(self, self.input, self.dims.data)


@irdl_op_definition
class ScanOp(NdOp):
    """Running reduction along `dim`, the element itself included: kinds sum prod max min logsumexp. max and min have a second result,
    the index of the extreme (the last one among equals, as torch's cummax). Kind sort puts signed integers in order, the smallest first."""

    name = "nd.scan"
    SYNTAX: ClassVar = {"kind": "str", "dim": "ints"}
    input = operand_def(TensorType)
    kind = prop_def(StringAttr)
    dim = prop_def(IntsAttr)
    outputs = var_result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _check_kind(self, self.kind.data, SCANS)
        wants = 2 if self.kind.data in ("max", "min") else 1
        if len(self.outputs) != wants:
            raise VerifyException(f"nd.scan: kind '{self.kind.data}' has {wants} results, got {len(self.outputs)}")
        if self.kind.data == "sort" and not isinstance(tensor_type(self.input).element_type, IntegerType):
            raise VerifyException(f"nd.scan: kind 'sort' takes integers, got {tensor_type(self.input).element_type}")
        _check_dims(self, self.dim.data, tensor_type(self.input).rank, "dim")
        _want(self, tensor_type(self.input).dims)


# ---- indexing by tensors


@irdl_op_definition
class IndexOp(NdOp):
    """Advanced indexing as torch's x[i, :, j]: dims[k] of the operand is indexed by indices[k]; index tensors broadcast together, their
    dimensions stand at the place of dims[0] if dims are adjacent and first otherwise. `wrap`: negative indices count from the end.
    Every index is checked against its size."""

    name = "nd.index"
    SYNTAX: ClassVar = {"dims": "ints", "wrap": "unit"}
    input = operand_def(TensorType)
    indices = var_operand_def(TensorType)
    dims = prop_def(IntsAttr)
    wrap = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        t = tensor_type(self.input)
        _check_dims(self, self.dims.data, t.rank)
        if len(self.indices) != len(self.dims.data):
            raise VerifyException(f"nd.index: {len(self.dims.data)} dims but {len(self.indices)} index tensors")
        _want(self, index_result_dims(t.dims, self.dims.data, [tensor_type(i).dims for i in self.indices]))


def index_result_dims(dims: tuple[Expr, ...], indexed: tuple[int, ...], shapes: list[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """Sizes of x[...] with tensors of `shapes` at dimensions `indexed` (torch's placement rule)."""
    inner = broadcast_dims(*shapes)
    if inner is None:
        raise VerifyException(f"nd.index: index sizes {' and '.join(map(_dims_text, shapes))} do not broadcast")
    rest = [(k, s) for k, s in enumerate(dims) if k not in indexed]
    adjacent = list(indexed) == list(range(indexed[0], indexed[0] + len(indexed)))
    at = indexed[0] if adjacent else 0
    before, after = [s for k, s in rest if k < at], [s for k, s in rest if k >= at]
    return (*before, *inner, *after)


@irdl_op_definition
class GatherOp(NdOp):
    """result[i, j, k] = input[i, index[i, j, k], k] for dim 1: torch.gather."""

    name = "nd.gather"
    SYNTAX: ClassVar = {"dim": "ints"}
    input = operand_def(TensorType)
    index = operand_def(TensorType)
    dim = prop_def(IntsAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _check_dims(self, self.dim.data, tensor_type(self.input).rank, "dim")
        _want(self, tensor_type(self.index).dims)


@irdl_op_definition
class ScatterOp(NdOp):
    """base with base[i, index[i, j, k], k] combined with source[i, j, k]: torch.scatter and scatter_reduce (include_self). The mode is
    set (the last one in row-major order of the source wins), add, prod, max or min."""

    name = "nd.scatter"
    SYNTAX: ClassVar = {"dim": "ints", "mode": "str"}
    base = operand_def(TensorType)
    index = operand_def(TensorType)
    source = operand_def(TensorType)
    dim = prop_def(IntsAttr)
    mode = prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        _check_dims(self, self.dim.data, tensor_type(self.base).rank, "dim")
        if self.mode.data not in SCATTERS:
            raise VerifyException(f"nd.scatter: unknown mode '{self.mode.data}', known: {', '.join(SCATTERS)}")
        _want(self, tensor_type(self.base).dims)


@irdl_op_definition
class IndexPutOp(NdOp):
    """base with base[i, :, j] set to (or, with mode add, increased by) values, which broadcast to the indexed shape: torch's index_put.
    Operands: base, values, then one index tensor for each of dims."""

    name = "nd.index_put"
    SYNTAX: ClassVar = {"dims": "ints", "mode": "str", "wrap": "unit"}
    base = operand_def(TensorType)
    values = operand_def(TensorType)
    indices = var_operand_def(TensorType)
    dims = prop_def(IntsAttr)
    mode = prop_def(StringAttr)
    wrap = opt_prop_def(UnitAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if self.mode.data not in ("set", "add"):
            raise VerifyException(f"nd.index_put: unknown mode '{self.mode.data}', known: set, add")
        if len(self.indices) != len(self.dims.data):
            raise VerifyException(f"nd.index_put: {len(self.dims.data)} dims but {len(self.indices)} index tensors")
        _check_dims(self, self.dims.data, tensor_type(self.base).rank)
        _want(self, tensor_type(self.base).dims)


# ---- structured contractions


@irdl_op_definition
class MatmulOp(NdOp):
    """Batched matrix product: [B..., M, K] x [B..., K, N] -> [B..., M, N] (equal batch sizes; no broadcasting). f16 and bf16 accumulate
    in f32. On a CPU operands may be of types whose values the type of the sums has, all of them: bytes, halves beside f32. `schedule` as in
    nd.extern."""

    name = "nd.matmul"
    SYNTAX: ClassVar = {"schedule": "str"}
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    schedule = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        a, b = tensor_type(self.lhs).dims, tensor_type(self.rhs).dims
        if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise VerifyException(f"nd.matmul: {_dims_text(a)} x {_dims_text(b)} do not match")
        _want(self, (*a[:-1], b[-1]))
        if problem := choice_problem(self.schedule, ("generated", "library")):
            raise VerifyException(f"nd.matmul: {problem}")


@irdl_op_definition
class ConvOp(NdOp):
    """Convolution of [N, C, spatial...] with a weight [O, C / groups, window...] and an optional bias [O], as torch.convolution. `schedule`
    as in nd.extern."""

    name = "nd.conv"
    SYNTAX: ClassVar = {
        "stride": "ints", "padding": "ints", "dilation": "ints", "transposed": "unit", "output_padding": "ints", "groups": "ints",
        "layout": "attr", "schedule": "str",
    }  # fmt: skip
    input = operand_def(TensorType)
    weight = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    stride = prop_def(IntsAttr)
    padding = prop_def(IntsAttr)
    dilation = prop_def(IntsAttr)
    transposed = opt_prop_def(UnitAttr)
    output_padding = prop_def(IntsAttr)
    groups = prop_def(IntsAttr)
    layout = opt_prop_def(LayoutAttr)
    schedule = opt_prop_def(StringAttr)
    result = result_def(TensorType)
    traits = traits_def(Pure())

    def verify_(self) -> None:
        spatial = tensor_type(self.input).rank - 2
        if spatial < 1 or len(self.stride.data) != spatial or len(self.padding.data) != spatial or len(self.dilation.data) != spatial:
            raise VerifyException(f"nd.conv: stride, padding and dilation need one number for each of the {spatial} spatial dimensions")
        if problem := choice_problem(self.schedule, ("generated", "library")):
            raise VerifyException(f"nd.conv: {problem}")


# ---- what runs elsewhere


@irdl_op_definition
class ExternOp(NdOp):
    """A call of a library operator: `%y = nd.extern %a, %b {call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>} : ...`.

    `operand_layouts` (one #nd.layout or unit per operand) are strides that the operator must see; `result_layouts` the strides that it
    produces. `mutates` lists operands that the operator writes: they are copied first unless nothing else needs them, and their new
    values are extra results at the end. `aliases` gives for each result the operand that it is a view of (-1: none). A result of type
    index, f64 or i1 is a Python number; `binds` names the size symbol that an index result defines. `effect`: keep it and its order.
    `kept` says which of what the operator returns (lists flattened) the results are, where it also returns None. `fresh`: the results share
    memory with nothing else (of torch's own operators that is known). `schedule`: "generated" where code of ours computes what the operator
    does, "library" where it is called.
    """

    name = "nd.extern"
    SYNTAX: ClassVar = {
        "call": "attr", "operand_layouts": "attr", "result_layouts": "attr", "mutates": "ints", "aliases": "ints",
        "binds": "str", "effect": "unit", "fallback": "unit", "kept": "ints", "fresh": "unit", "schedule": "str",
    }  # fmt: skip
    inputs = var_operand_def()
    call = prop_def(CallAttr)
    operand_layouts = opt_prop_def(ArrayAttr)
    result_layouts = opt_prop_def(ArrayAttr)
    mutates = opt_prop_def(IntsAttr)
    aliases = opt_prop_def(IntsAttr)
    binds = opt_prop_def(StringAttr)
    effect = opt_prop_def(UnitAttr)
    fallback = opt_prop_def(UnitAttr)
    kept = opt_prop_def(IntsAttr)
    fresh = opt_prop_def(UnitAttr)
    schedule = opt_prop_def(StringAttr)
    outputs = var_result_def()

    def verify_(self) -> None:
        check_call(self, self.call.data, {"mutates": prop(self, "mutates") or ()}, self.schedule)
        for name, values in (("operand_layouts", self.operands), ("result_layouts", self.results)):
            self._check_layouts(name, values)

    def _check_layouts(self, name: str, values: Sequence[SSAValue]) -> None:
        layouts = self.properties.get(name)
        for k, (layout, value) in enumerate(zip(layouts.data if isinstance(layouts, ArrayAttr) else (), values, strict=False)):
            if not isinstance(layout, LayoutAttr) or not isinstance(value.type, TensorType):
                continue
            if (strides := len(layout.stride_exprs)) != (rank := value.type.rank):
                raise VerifyException(f"nd.extern: item {k} of {name} has {strides} strides, the tensor {rank} dimensions")


@irdl_op_definition
class UpdateOp(NdOp):
    """Writes a value into an argument of the function (an in-place update that the caller sees): `nd.update %arg0, %value`."""

    name = "nd.update"
    target = operand_def(TensorType)
    value = operand_def(TensorType)
    traits = traits_def(MemoryWriteEffect())

    def verify_(self) -> None:
        if tensor_type(self.target) != tensor_type(self.value):
            raise VerifyException(f"nd.update: value {self.value.type} does not have the type of the target {self.target.type}")


@irdl_op_definition
class BarrierOp(NdOp):
    """The same value as a new tensor, each element computed once: a border that fusion does not cross. A small table behind one may become
    memory of the nest that reads it (loop-fuse-tables)."""

    name = "nd.barrier"
    input = operand_def(TensorType)
    result = result_def(TensorType)


DEVICE = "nd.device"
"""Attribute of a module: the device that kernels are made for, where there are tensors on others too."""


def symbol_ranges(module: ModuleOp) -> RangeEnv:
    """Ranges of the size symbols of a module (attribute nd.symbols)."""
    table = module.attributes.get("nd.symbols")
    return range_env(table.data) if isinstance(table, DictionaryAttr) else RangeEnv()


def range_env(table: Mapping[str, Attribute]) -> RangeEnv:
    """Ranges of size symbols, by name."""
    ranges = {}
    for name, value in table.items():
        assert isinstance(value, RangeAttr)
        low, high, _ = value.bounds
        ranges[sym(name)] = Range(low, high)
    return RangeEnv(ranges)


NON_POINTWISE: list[type[NdOp]] = [
    FullOp, SizeOp, ScalarOp, IotaOp, LiteralOp, RandomOp, ReshapeOp, PermuteOp, ExpandOp, SliceOp, FlipOp, IndexViewOp, CatOp, PadOp,
    SliceScatterOp, ReduceOp, ArgReduceOp, VarMeanOp, ScanOp, IndexOp, GatherOp, ScatterOp, IndexPutOp, MatmulOp, ConvOp, ExternOp,
    UpdateOp, BarrierOp,
]  # fmt: skip
ATTRIBUTES: list[type[Attribute]] = [TensorType, LayoutAttr, RangeAttr, ExprAttr, IndexMapAttr, IntsAttr, ExprsAttr, CallAttr]

Nd = Dialect("nd", [*NON_POINTWISE, *POINTWISE], ATTRIBUTES)
