"""The call of rows that are weighed by functions of scores, as an operation: `nd.extern` with the target `stepwell.weighed_rows`.

    %o, %top, %total = nd.extern %q, %k, %v, %ids {call = #nd.call<"stepwell.weighed_rows", [[arg(0), arg(1)], [arg(2)], [arg(3)]],
                       {softmax = true, scales = [0.125], empty = 0.0, turned = false, ...}>, ...} {terms = @terms0}

    o[b, h, i, :] = sum over j of w(i, j) v[b, h, j, :]        w = @terms0(scale * (q[b, h, i, :] . k[b, h, j, :]), ids)

Lists: two factors for each kind of scores, rows for each kind of weights, what else the function `terms` takes. It is one from the tensors
of all scores [batches, heads, rows, terms], float32, to those of the weights; with `softmax` these are exponents, whose exponentials less
the highest of a row, divided by their sum, are the weights. Then the call gives these two numbers of a row, too; a row without a finite
exponent has -inf, 0, and the result `empty`. `scaled`: the function gives a factor of each of these weights, too (dropout). `turned`: the
function gives weights whose rows are the terms. Factors and rows have one batch or all, and heads that divide the result's. `added`: the
call has no rows, and its result is the sum of the weights, of float32, over batches, or heads, of which that has one; its first factor has
all of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import strides_contiguous
from ...dialects.nd.call_args import Arg, Call, CallAttr
from ...dialects.nd.types import LayoutAttr, TensorType, tensor_type

TARGET = "stepwell.weighed_rows"
TERMS, MASKED, SURE = "terms", "masked", "sure"
"""The attributes that name the function of terms, and those that mem-term-blocks makes of it: of any block of scores, and of one of which
nothing is hidden. Without one, the scores are the weights."""


@dataclass(frozen=True)
class WeighedCall:
    """Such a call: places of its operands, and its numbers."""

    factors: tuple[int, ...]
    """Two for each kind of scores."""
    rows: tuple[int, ...]
    captured: tuple[int, ...]
    softmax: bool
    scales: tuple[float, ...]
    empty: float
    turned: bool
    scaled: bool = False
    added: bool = False
    """Weights are added up over batches, or heads: those of which the result has one. They weigh no rows."""
    placed: bool = False
    """Those of a row are added up, in a row of the result, at places that the function gives beside, as float32."""
    blocks: int | None = None
    """The table that says which blocks of terms count."""

    @staticmethod
    def of(call: Call) -> WeighedCall | None:
        """What a call says; None for another one."""
        if call.target != TARGET:
            return None
        factors, rows, captured, *more = [tuple(a.index for a in arguments) for arguments in call.args]
        kwargs = dict(call.kwargs)
        blocks = more[0][0] if more else None
        return WeighedCall(
            factors, rows, captured, bool(kwargs["softmax"]), tuple(map(float, kwargs["scales"])), float(kwargs["empty"]),
            bool(kwargs["turned"]), bool(kwargs["scaled"]), bool(kwargs["added"]),
            bool(kwargs["placed"]), blocks,
        )  # fmt: skip

    def as_call(self) -> Call:
        """The template."""
        lists = [self.factors, self.rows, self.captured, *([(self.blocks,)] if self.blocks is not None else [])]
        numbers = (
            ("softmax", self.softmax), ("scales", self.scales), ("empty", self.empty), ("turned", self.turned), ("scaled", self.scaled),
            ("added", self.added), ("placed", self.placed),
        )  # fmt: skip
        return Call(TARGET, tuple(tuple(map(Arg, places)) for places in lists), numbers)


def weighed_call(
    factors: Sequence[SSAValue], rows: Sequence[SSAValue], captured: Sequence[SSAValue], function: str, results: Sequence[TensorType],
    softmax: bool, scales: Sequence[float], empty: float, turned: bool, scaled: bool = False,
    added: bool = False, placed: bool = False,
) -> nd.ExternOp:
    """The operation; `results`: the types of its results, those of a softmax with the two numbers of rows."""
    operands = [*factors, *rows, *captured]
    ends = len(factors), len(factors) + len(rows), len(operands)
    places = [tuple(range(a, b)) for a, b in zip((0, *ends), ends, strict=False)]
    call = WeighedCall(places[0], places[1], places[2], softmax, tuple(scales), empty, turned, scaled, added, placed)

    def layouts(types: Sequence[Attribute]) -> ArrayAttr:
        return ArrayAttr([LayoutAttr.get(strides_contiguous(t.dims)) for t in types])  # pyright: ignore[reportAttributeAccessIssue]

    properties = {
        "call": CallAttr(call.as_call()), "operand_layouts": layouts([tensor_type(v) for v in operands]),
        "result_layouts": layouts(results), "schedule": StringAttr("generated"),
    }  # fmt: skip
    return nd.ExternOp.create(
        operands=operands, result_types=list(results), properties=properties, attributes={TERMS: SymbolRefAttr(function)}
    )


def called_terms(op: Operation) -> str:
    """The name of the function of terms of a call."""
    name = op.attributes[TERMS]
    assert isinstance(name, SymbolRefAttr)
    return name.string_value()
