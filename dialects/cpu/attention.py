"""`cpu.attention`, `cpu.weighed`: generated attention as functions of the module (targets/cpu/attention makes their bodies)."""

from __future__ import annotations

from enum import IntEnum

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, SymbolNameConstraint, SymbolRefAttr, UnitAttr
from xdsl.irdl import ParsePropInAttrDict, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.traits import SymbolOpInterface

from ..support.create import QuickOp


@irdl_op_definition
class AttentionOp(QuickOp):
    """Declares the function `@name` that computes softmax(Q K^T * scale + mask) V for all sizes; `cpu.call` runs it.

        cpu.attention @attention_bf16 {dtype = "bf16", logsumexp}

    `dtype` is the element type of Q, K, V, the mask and the result. The arguments are pointers to Q, K, V and the result O, with
    `logsumexp` one to the logarithms of the sums (f32), with `mask` one to the numbers that are added to the scores; then i64: batch,
    heads, queries, keys, depth, the strides of batch, heads and rows of Q, K, V, O, logsumexp and mask (0 where there is none), the
    heads of Q that share one of K and V, 1 for a causal mask; then the scale, f32.
    """

    name = "cpu.attention"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    logsumexp = opt_prop_def(UnitAttr)
    mask = opt_prop_def(UnitAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    @staticmethod
    def make(name: str, dtype: str, logsumexp: bool, mask: bool) -> AttentionOp:
        """The declaration of one kind of attention."""
        flags = {key: UnitAttr() for key, on in (("logsumexp", logsumexp), ("mask", mask)) if on}
        return AttentionOp.create(properties={"sym_name": StringAttr(name), "dtype": StringAttr(dtype), **flags})


BLOCK_ROWS, BLOCK_TERMS = 6, 16
"""Rows and terms of which a table of `cpu.weighed` says in one byte what is known of them: a `BlockKind`."""


class BlockKind(IntEnum):
    """No term of a block counts, some may, all do."""

    HIDDEN = 0
    MIXED = 1
    SEEN = 2


def weighed_fields(scores: int, weights: int, softmax: bool, added: bool = False) -> list[str]:
    """What rows that are weighed by functions of scores are computed from, in order: pointers (`is_pointer`), floats (`is_scale`) and
    numbers. Strides are those of batches, heads and rows. targets/cpu/attention/weighed.py says what each means."""
    found = ["batches", "heads", "rows", "terms", "masked", "sure", "context"]
    found += [f"blocks{part}" for part in ("", *_STRIDES)]
    for k in range(scores):
        found += [f"depth{k}", f"scale{k}"]
        found += [f"{x}{k}{part}" for x in "ab" for part in ("", *_STRIDES, "_group")]
    for k in range(weights):
        found += [f"columns{k}", *(f"v{k}{part}" for part in ("", *_STRIDES, "_group")), *(f"o{k}{part}" for part in ("", *_STRIDES))]
    found += [f"s0{part}" for part in ("", *_STRIDES, "_length")] if added else []
    return [*found, *(f"{x}{part}" for x in ("top", "total") for part in ("", *_STRIDES)), "empty"] if softmax else found


_STRIDES = ("_batch", "_head", "_row")
_POINTERS = ("masked", "sure", "context", "blocks", "top", "total")


def is_pointer(field: str) -> bool:
    """Whether a field is an address."""
    return field in _POINTERS or field[1:].isdigit()


def is_scale(field: str) -> bool:
    """Whether a field is a float."""
    return field.startswith("scale") or field == "empty"


@irdl_op_definition
class WeighedOp(QuickOp):
    """Declares the function `@name` that weighs rows by what kernels of the module make of scores; `cpu.call` runs it.

        cpu.weighed @weighed0 {dtype = "f32", scores = 1, weights = 1, softmax, captured = 1, symbols = ["s0"],
                               masked = @k_where, masked_arguments = ["block 0", "captured 0", "block_row", "s0"]}

    The arguments are the fields of `weighed_fields` but for `masked`, `sure` and `context`, and without `blocks`, those behind it 0, where
    there is no table; then `captured` pointers and the numbers `symbols`, which the kernels take. `masked` is called with blocks of scores
    in the cache, `sure` with those of which nothing is hidden; with `scaled` they give factors of the weights of a softmax, too. `added`:
    weights are added up instead of rows, of which there are none (`weights` is 0); `placed`: within their rows, at places that
    functions give beside. What each function
    takes is named: `block k`, `captured k`, a symbol of the call, or `block_batch`, `block_head`, `block_row`, `block_rows`, `block_term`,
    `block_terms`, `block_length`.
    """

    name = "cpu.weighed"
    sym_name = prop_def(SymbolNameConstraint())
    dtype = prop_def(StringAttr)
    scores = prop_def(IntegerAttr)
    weights = prop_def(IntegerAttr)
    softmax = opt_prop_def(UnitAttr)
    scaled = opt_prop_def(UnitAttr)
    added = opt_prop_def(UnitAttr)
    placed = opt_prop_def(UnitAttr)
    blocks = opt_prop_def(UnitAttr)
    captured = prop_def(IntegerAttr)
    symbols = prop_def(ArrayAttr)
    masked = opt_prop_def(SymbolRefAttr)
    masked_arguments = opt_prop_def(ArrayAttr)
    sure = opt_prop_def(SymbolRefAttr)
    sure_arguments = opt_prop_def(ArrayAttr)
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$sym_name attr-dict"

    def fields(self) -> list[str]:
        """The names of the first arguments."""
        every = weighed_fields(self.scores.value.data, self.weights.value.data, self.softmax is not None, self.added is not None)
        absent = {"masked", "sure", "context", *(() if self.blocks is not None else ("blocks",))}
        return [name for name in every if name not in absent]
