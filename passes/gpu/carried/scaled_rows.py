"""Nests that store rows of numbers with a scale that is computed from the row: norms without a mean, and quotients by a row's length.

    s = sum_j x[i, j]^2; for k: store round(x[i, k] * r(s) * g[k]), h[i, k]     ->     factors x[i, k], g[k]; scale r(s); sum of x[i, j]^2
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, Dim, Expr, as_expr, dim, free_dims, linear_coeff
from ...loop.transform.loop_rewrite import Place
from ..tiles.product_nests import HALVES
from .softmax_weights import same_row

Scale = tuple[type[Operation], SSAValue]
"""A multiplication by a number of the row, or a quotient."""


@dataclass(frozen=True)
class ScaledRows:
    """A nest that stores rows, each element as a product of `factors`, which vary along the row, and `scales`, which do not and are
    computed from `sums` over it. `known`: what loads of numbers give that the nest itself has stored."""

    nest: loop.NestOp
    store: loop.StoreOp
    row: loop.ForOp
    sums: tuple[loop.ReduceOp, ...]
    factors: tuple[SSAValue, ...]
    scales: tuple[Scale, ...]
    known: Mapping[SSAValue, SSAValue]

    @property
    def rows(self) -> SSAValue:
        """The tensor of the rows."""
        return self.nest.results[list(self.nest.out_args).index(self.store.target)]  # pyright: ignore[reportArgumentType]

    @property
    def sums_results(self) -> set[SSAValue]:
        """All that the sums give."""
        return {r for op in self.sums for r in op.results}

    def needed(self, values: Iterable[SSAValue]) -> list[Operation]:
        """The operations outside of the sums that values are computed by, in order. A load of what the nest has stored is none."""
        blocks = (self.nest.block, self.row.block)
        found: set[Operation] = set()
        worklist = list(values)
        while worklist:
            value = worklist.pop()
            if value in self.known:
                worklist.append(self.known[value])
                continue
            op = value.owner
            if isinstance(op, Operation) and op.parent in blocks and op not in found and op not in self.sums:
                found.add(op)
                worklist += op.operands
        return [op for block in blocks for op in block.ops if op in found]

    def indices_at(self, load: loop.LoadOp) -> dict[SSAValue, Place] | None:
        """The indices of the nest, and of the row, for the element that a load reads; None where that cannot be told."""
        found: dict[SSAValue, Place] = {index: (ZERO, []) for index in self.nest.indices}
        sizes = {index: n for op in (self.nest, self.row) for index, n in zip(op.indices, op.loop_sizes, strict=True)}
        operands = list(load.index_operands)
        for e, at in zip(self.store.index_map.results, load.index_map.results, strict=True):
            digits = digits_of(e, {d: sizes[self.store.index_operands[d.index]] for d in free_dims(e)})
            if digits is None:
                return None
            for d, step, size, last in digits:
                part = at if step is ONE else at // step
                found[self.store.index_operands[d.index]] = (part if last else part % size, operands)
        return found


def scaled_rows(nest: loop.NestOp) -> ScaledRows | None:
    """What a nest is, if it stores scaled rows of 16-bit numbers and nothing else that others read."""
    inside = [op for op in nest.block.ops if op.regions]
    sums = tuple(op for op in inside if isinstance(op, loop.ReduceOp))
    row = inside[-1] if inside else None
    if not sums or not isinstance(row, loop.ForOp) or len(sums) + 1 != len(inside) or len(row.indices) != 1:
        return None
    if not all(_is_plain_sum(op, row) for op in sums) or any(op.regions for op in row.block.ops):
        return None
    stores = [op for op in row.block.ops if isinstance(op, loop.StoreOp)]
    if len(stores) != 1 or not _is_whole(store := stores[0], nest, row) or loop.element_type(store.target.type) not in HALVES:
        return None
    known = _stored_numbers(nest, row, store)
    if known is None:
        return None
    varying = _varying(row)
    factors: list[SSAValue] = []
    scales: list[Scale] = []
    _divide(store.value, row.block, varying, factors, scales)
    if not scales or not all(f in varying for f in factors) or not factors:
        return None
    return ScaledRows(nest, store, row, sums, tuple(factors), tuple(scales), known)


def digits_of(e: Expr, sizes: Mapping[Dim, Expr]) -> list[tuple[Dim, Expr, Expr, bool]] | None:
    """An index as digits, the fastest one first: dimension, step, size, whether it is the last one. None for something else."""
    steps = {d: linear_coeff(e, d) for d in sizes}
    if any(step is None for step in steps.values()):
        return None
    found: list[tuple[Dim, Expr, Expr, bool]] = []
    expected: Expr = ONE
    total: Expr = ZERO
    while steps:
        one = next((d for d, step in steps.items() if step is expected), None)
        if one is None:
            return None
        del steps[one]
        found.append((one, expected, sizes[one], not steps))
        total = total + one * expected
        expected = expected * sizes[one]
    return found if total is e else None


def _is_whole(store: loop.StoreOp, nest: loop.NestOp, row: loop.ForOp) -> bool:
    """Whether a store writes each element of a tensor once, by the loops around it."""
    if store.mask is not None or store.store_mode != "set":
        return False
    sizes = {index: n for op in (nest, row) for index, n in zip(op.indices, op.loop_sizes, strict=True)}
    seen: set[SSAValue] = set()
    for e, whole in zip(store.index_map.results, loop.shaped_dims(store.target.type), strict=True):
        own = {d: store.index_operands[d.index] for d in free_dims(e)}
        if not seen.isdisjoint(own.values()) or any(v not in sizes for v in own.values()):
            return False
        digits = digits_of(e, {d: sizes[v] for d, v in own.items()})
        if digits is None or (digits[-1][1] * digits[-1][2] if digits else ONE) is not whole:
            return False
        seen.update(own.values())
    return row.indices[0] in seen and all(v in seen or n is ONE for v, n in sizes.items())


def _is_plain_sum(op: loop.ReduceOp, row: loop.ForOp) -> bool:
    """Whether a reduction adds up numbers of f32 over the row."""
    plain = set(op.kind_names) == {"sum"} and same_row(op, row) and all(r.type == f32 for r in op.results)
    return plain and not any(inner.regions or isinstance(inner, loop.StoreOp) or loop.is_contracted(inner) for inner in op.block.ops)


def _stored_numbers(nest: loop.NestOp, row: loop.ForOp, store: loop.StoreOp) -> dict[SSAValue, SSAValue] | None:
    """What loads of the nest's own numbers of a row give; None where others read those, or the nest stores something else."""
    found: dict[SSAValue, SSAValue] = {}
    for argument, result in zip(nest.out_args, nest.results, strict=True):
        users = [use.operation for use in argument.uses]
        if argument is store.target:
            if users != [store]:
                return None
            continue
        stores = [op for op in users if isinstance(op, loop.StoreOp) and op.parent is nest.block]
        loads = [op for op in users if isinstance(op, loop.LoadOp) and op.parent is row.block]
        if len(stores) != 1 or len(stores) + len(loads) != len(users) or any(True for _ in result.uses):
            return None
        if any(n is not ONE for n in loop.shaped_dims(argument.type)) or loop.element_type(argument.type) != f32:
            return None
        found.update((op.result, stores[0].value) for op in loads)
    return found


def _varying(row: loop.ForOp) -> set[SSAValue]:
    """The values in a row's body that are not the same for all of its elements."""
    found: set[SSAValue] = {row.indices[0]}
    for op in row.block.ops:
        if any(v in found for v in op.operands):
            found.update(op.results)
    return found


def _divide(value: SSAValue, inside: Block, varying: Collection[SSAValue], factors: list[SSAValue], scales: list[Scale]) -> None:
    """Divide a product into what varies along the row and what does not. Rounding between is left out: the whole is rounded."""
    op = value.owner
    while isinstance(op, arith.ExtFOp) and isinstance(op.input.owner, arith.TruncFOp) and op.input.owner.input.type == op.result.type:
        value = op.input.owner.input
        op = value.owner
    if value not in varying:
        scales.append((arith.MulfOp, value))
    elif isinstance(op, arith.MulfOp):
        for one in op.operands:
            _divide(one, inside, varying, factors, scales)
    elif isinstance(op, arith.DivfOp) and op.rhs not in varying:
        scales.append((arith.DivfOp, op.rhs))
        _divide(op.lhs, inside, varying, factors, scales)
    else:
        factors.append(value)


def is_all_of_row(places: Sequence[Place], loops: Mapping[SSAValue, Expr], size: Expr) -> bool:
    """Whether elements at `places`, expressions over the indices of loops of these sizes, are all of a row's, each once."""
    first, operands = places[0]
    found = [(at - first).value for at, _ in places]
    starts = sorted({n for n in found if n is not None})
    if None in found or any(list(values) != list(operands) for _, values in places) or len(places) != len(starts):
        return False
    apart = starts[1] - starts[0] if len(starts) > 1 else 0
    if any(b - a != apart for a, b in zip(starts, starts[1:], strict=False)):
        return False
    extra = dim(len(operands))
    sizes: dict[Dim, Expr] = {d: loops.get(operands[d.index], ZERO) for d in free_dims(first)}
    whole = first + starts[0]
    if len(starts) > 1:
        sizes[extra], whole = as_expr(len(starts)), whole + extra * apart
    digits = digits_of(whole, sizes)
    used = {operands[d.index] for d in free_dims(first)}
    return bool(digits) and all(v in used or n is ONE for v, n in loops.items()) and digits[-1][1] * digits[-1][2] is size
