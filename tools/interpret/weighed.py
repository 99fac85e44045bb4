"""What a call of rows weighed by functions of scores computes, at each level, with the scores in memory (weighed_calls.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from ...dialects.expr import ONE, Expr
from ...dialects.mem import BufferType
from ...dialects.nd.base import prop
from ...dialects.nd.call_args import Call
from ...passes.analysis.weighed_calls import MASKED, TERMS, WeighedCall

if TYPE_CHECKING:
    from .nd import NdInterpreter


def run_weighed(run: NdInterpreter, op: Operation, template: Call, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The results of a call with these operands."""
    call = WeighedCall.of(template)
    assert call is not None
    factors = [values[k] for k in call.factors]
    rows = [values[k] for k in call.rows]
    batches, heads = (max(x.shape[d] for x in (*factors, *rows)) for d in (0, 1))
    factors, rows = ([_repeated(x, batches, heads) for x in some] for some in (factors, rows))
    scores = [a.float() @ b.float().mT * scale for a, b, scale in zip(factors[::2], factors[1::2], call.scales, strict=True)]
    captured = [values[k] for k in call.captured]
    if TERMS in op.attributes:
        weights = _function(run, op, op.attributes[TERMS], [*scores, *captured])
        weights = [(w.mT if call.turned else w).reshape(scores[0].shape) for w in weights]
    else:
        weights = _by_blocks(run, op, len(rows) + call.scaled + call.added + call.placed, scores, captured)
    if call.added:
        out = op.results[0] if op.results else op.operands[(prop(op, "out") or (0,))[0]]
        kept: tuple[Expr, ...] = out.type.dims  # pyright: ignore[reportAttributeAccessIssue]
        if call.placed:
            sums = weights[0].new_zeros((*scores[0].shape[:3], run.size(kept[3])))
            return (sums.scatter_add(-1, weights[1].long(), weights[0]),)
        summed = [d for d in (0, 1) if kept[d] is ONE]
        return (weights[0].sum(summed, keepdim=True) if summed else weights[0],)
    kind = rows[0].dtype
    if not call.softmax:
        return tuple((w @ v.float()).to(kind) for w, v in zip(weights, rows, strict=True))
    exponents, *factors = weights
    top = exponents.amax(-1) if exponents.shape[-1] else exponents.new_full(exponents.shape[:-1], -torch.inf)
    powers = torch.exp(exponents - torch.where(top == -torch.inf, 0.0, top).unsqueeze(-1))
    total = powers.sum(-1)
    powers = powers * factors[0] if factors else powers
    out = torch.where((total == 0).unsqueeze(-1), call.empty, (powers @ rows[0].float()) / total.unsqueeze(-1))
    return out.to(kind), top, total


def _repeated(x: torch.Tensor, batches: int, heads: int) -> torch.Tensor:
    """A factor for each batch and head."""
    x = x.expand(batches, *x.shape[1:])
    return x.repeat_interleave(heads // x.shape[1], 1) if x.shape[1] else x


def _named(op: Operation, name: Any) -> FuncOp:
    module = op.get_toplevel_object()
    assert isinstance(module, ModuleOp) and isinstance(name, SymbolRefAttr)
    return next(f for f in module.ops if isinstance(f, FuncOp) and f.sym_name.data == name.string_value())


def _function(run: NdInterpreter, op: Operation, name: Any, given: Sequence[Any], symbols: Sequence[tuple[str, int]] = ()) -> list[Any]:
    """What a function of the module gives."""
    func = _named(op, name)
    inner = run.nested(func)
    inner.symbols.update({**run.symbols, **dict(symbols)})
    for formal, value in zip(func.body.block.args, given, strict=True):
        inner.values[formal] = value
        if isinstance(formal.type, BufferType):
            inner.starts[formal] = value.storage_offset()  # pyright: ignore[reportAttributeAccessIssue]
    for inside in func.body.block.ops:
        if isinstance(inside, ReturnOp):
            return [inner.values[v] for v in inside.operands]
        inner.run(inside)
    raise AssertionError("a function ends with func.return")


def _by_blocks(
    run: NdInterpreter, op: Operation, count: int, scores: Sequence[torch.Tensor], captured: Sequence[Any]
) -> Sequence[torch.Tensor]:
    """The weights by the function of blocks, each matrix as one block."""
    if MASKED not in op.attributes:
        return scores
    whole = [x.clone(memory_format=torch.contiguous_format) for x in scores]
    whole += [torch.empty_like(whole[0]) for _ in range(count - len(whole))]
    batches, heads, rows, terms = whole[0].shape
    for batch in range(batches if rows * terms else 0):
        for head in range(heads):
            sizes = {"batch": batch, "head": head, "row": 0, "rows": rows, "term": 0, "terms": terms, "length": terms}
            blocks = [x[batch, head] for x in whole]
            _function(run, op, op.attributes[MASKED], [*blocks, *captured], [(f"block_{name}", n) for name, n in sizes.items()])
    return whole[:count]
