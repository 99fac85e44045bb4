"""Finding one `nd` function, a pattern, inside of another, and putting a third in its place.

A pattern is a DAG: its arguments stand for any tensors, its results are what is replaced. Operands of commutative operations match in both
orders. Matching has two strengths: by structure alone (operations, and what kind of reduction or comparison they are), which finds
places where the pattern may stand for other sizes and element types; and exactly, with all types and properties.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from ....dialects import nd
from ....dialects.nd.pointwise import OPS, CastOp, CmpOp, FmaOp
from ....dialects.nd.types import TensorType
from ....dialects.support.replace import erase_op
from .nd_canonicalize import full_value
from .rewriter import has_effect

COMMUTATIVE = frozenset(OPS[name] for name in ("add", "mul", "maximum", "minimum", "fmax", "fmin", "and", "or", "xor", "hypot", "gcd"))

SHARED: tuple[type[Operation], ...] = (nd.FullOp, nd.SizeOp, nd.IotaOp, nd.LiteralOp, nd.ScalarOp, nd.ViewOp, CastOp)
"""Operations that others may use too although they are inside of what is replaced: they cost nothing, or stand there for all who cast."""

KINDS = ("kind", "predicate", "fn")
"""Properties that say what an operation computes, for all sizes and types."""

UNSAID = frozenset(("operand_layouts", "result_layouts", "effect", "fallback", "schedule"))
"""Properties of calls that do not say what they compute: how operands lie in memory, and that they might have drawn random numbers."""

Number = int | float


@dataclass(frozen=True)
class Pattern:
    """What is looked for, or put in: the body of a function. `numbers` are constants of it that stand for any number, by name."""

    func: FuncOp
    numbers: Mapping[Operation, str] = field(default_factory=dict)

    @property
    def block(self) -> Block:
        return self.func.body.block

    @property
    def inputs(self) -> tuple[SSAValue, ...]:
        return tuple(self.block.args)

    @cached_property
    def outputs(self) -> tuple[SSAValue, ...]:
        last = self.block.last_op
        assert last is not None
        return tuple(last.operands)

    @cached_property
    def ops(self) -> list[Operation]:
        """The operations but for the return."""
        return list(self.block.ops)[:-1]

    @cached_property
    def classes(self) -> frozenset[type[Operation]]:
        return frozenset(map(type, self.ops))

    @cached_property
    def shape(self) -> str:
        """Equal for patterns that match by structure in the same places."""
        known: dict[SSAValue, int] = {v: k for k, v in enumerate(self.inputs)}
        parts: list[str] = []
        for op in self.ops:
            for result in op.results:
                known[result] = len(known)
            parts.append(f"{op.name} {_kind(op)} {[known[v] for v in op.operands]} {self.numbers.get(op)}")
        return ";".join((*parts, str([known[v] for v in self.outputs])))


@dataclass(frozen=True)
class Found:
    """A place where a pattern stands: the value for each value of the pattern, and the number for each name."""

    pattern: Pattern
    values: Mapping[SSAValue, SSAValue]
    numbers: Mapping[str, Number]

    @property
    def inputs(self) -> tuple[SSAValue, ...]:
        return tuple(self.values[v] for v in self.pattern.inputs)

    @property
    def outputs(self) -> tuple[SSAValue, ...]:
        return tuple(self.values[v] for v in self.pattern.outputs)

    @cached_property
    def ops(self) -> dict[Operation, None]:
        """What the pattern covers."""
        owners = [self.values[op.results[0]].owner for op in self.pattern.ops]
        return {op: None for op in owners if isinstance(op, Operation)}

    @cached_property
    def inside(self) -> dict[Operation, None]:
        """What the pattern covers, and copies of that which serve nothing else: equal operations that are not one value yet."""
        covered = dict(self.ops)
        block = self.outputs[0].owner.parent if isinstance(self.outputs[0].owner, Operation) else None
        outputs = set(self.outputs)
        while block is not None:
            users = {use.operation for op in covered for r in op.results if r not in outputs for use in r.uses}
            users |= {v.owner for op in covered for v in op.operands if isinstance(v.owner, Operation)}
            added = [
                op
                for op in users
                if op not in covered
                and op.results
                and all(use.operation in covered for r in op.results for use in r.uses)
                and any(type(op) is type(own) and same_value(own.results[0], op.results[0]) for own in self.ops)
            ]
            if not added:
                break
            covered.update(dict.fromkeys(added))
        return covered

    def used_elsewhere(self) -> Operation | None:
        """An operation that computes something inside of the pattern that others use too."""
        outputs = set(self.outputs)
        for op in self.ops:
            if isinstance(op, SHARED):
                continue
            for result in op.results:
                if result not in outputs and any(use.operation not in self.inside for use in result.uses):
                    return op
        return None


def same_value(a: SSAValue, b: SSAValue) -> bool:
    """Whether two values are one, or results of equal trees of operations without effects, which CSE would make one."""
    pairs, seen = [(a, b)], set[tuple[SSAValue, SSAValue]]()
    while pairs:
        pair = pairs.pop()
        mine, theirs = pair
        if mine is theirs or pair in seen:
            continue
        seen.add(pair)
        if mine.type != theirs.type or isinstance(mine, BlockArgument) or isinstance(theirs, BlockArgument):
            return False
        one, other = mine.owner, theirs.owner
        assert isinstance(one, Operation) and isinstance(other, Operation)
        if type(one) is not type(other) or mine.index != theirs.index:  # pyright: ignore[reportAttributeAccessIssue]
            return False
        if one.regions or isinstance(one, (nd.ExternOp, nd.RandomOp)) or has_effect(one) or one.properties != other.properties:
            return False
        if len(one.operands) != len(other.operands):
            return False
        pairs.extend(zip(one.operands, other.operands, strict=True))
    return True


def matches(pattern: Pattern, root: Operation, *, exact: bool) -> Iterator[Found]:
    """Every way in which the pattern can stand so that `root` gives its first result."""
    first = pattern.outputs[0]
    assert not isinstance(first, BlockArgument), "a pattern computes something"
    matcher = _Matcher(pattern, root, exact)
    if type(first.owner) is not type(root):
        return
    goals = ((first, root.results[first.index]), *((v, None) for v in pattern.outputs[1:]))  # pyright: ignore[reportAttributeAccessIssue]
    for values, numbers in matcher.solve(goals, {}, {}):
        yield Found(pattern, values, numbers)


_Goal = tuple[SSAValue, SSAValue | None]
_Values = dict[SSAValue, SSAValue]
_Numbers = dict[str, Number]


class _Matcher:
    def __init__(self, pattern: Pattern, root: Operation, exact: bool):
        self.pattern, self.root, self.exact = pattern, root, exact

    def solve(self, goals: Sequence[_Goal], values: _Values, numbers: _Numbers) -> Iterator[tuple[_Values, _Numbers]]:
        """Every binding under which each wanted value is its value; a goal without a value is any result of the function."""
        if not goals:
            yield values, numbers
            return
        (wanted, value), rest = goals[0], goals[1:]
        bound = values.get(wanted)
        if bound is not None:
            if value is None or same_value(bound, value):
                yield from self.solve(rest, values, numbers)
            return
        if value is None:
            for candidate in self._candidates(wanted, values):
                yield from self.solve(((wanted, candidate), *rest), values, numbers)
            return
        if isinstance(wanted, BlockArgument):
            if isinstance(value.type, TensorType) and (not self.exact or value.type == wanted.type):
                yield from self.solve(rest, {**values, wanted: value}, numbers)
            return
        mine, theirs = wanted.owner, value.owner
        if not isinstance(mine, Operation) or not isinstance(theirs, Operation) or not self._alike(mine, theirs):
            return
        if value.index != wanted.index:  # pyright: ignore[reportAttributeAccessIssue]
            return
        if (name := self.pattern.numbers.get(mine)) is not None:
            number = full_value(value)
            if number is None or numbers.get(name, number) != number:
                return
            numbers = {**numbers, name: number}
        values = {**values, **dict(zip(mine.results, theirs.results, strict=True))}
        for operands in _orders(mine):
            yield from self.solve((*zip(operands, theirs.operands, strict=True), *rest), values, numbers)

    def _candidates(self, wanted: SSAValue, values: _Values) -> Iterator[SSAValue]:
        """What a further result of the pattern may be: results of such operations that are no result of it yet."""
        taken = {values[v] for v in self.pattern.outputs if v in values}
        block = self.root.parent
        assert block is not None
        for op in block.ops:
            if type(op) is type(wanted.owner) and (value := op.results[wanted.index]) not in taken:  # pyright: ignore[reportAttributeAccessIssue]
                yield value

    def _alike(self, mine: Operation, theirs: Operation) -> bool:
        if type(mine) is not type(theirs) or len(mine.operands) != len(theirs.operands) or len(mine.results) != len(theirs.results):
            return False
        if not self.exact or mine in self.pattern.numbers:
            return _kind(mine) == _kind(theirs)
        if any(a.type != b.type for a, b in zip(mine.results, theirs.results, strict=True)):
            return False
        return _properties(mine) == _properties(theirs)


def _kind(op: Operation) -> str:
    """What an operation computes, without sizes and types."""
    if isinstance(op, nd.ExternOp):
        return op.call.data.target
    return " ".join(value.data for key in KINDS if isinstance(value := op.properties.get(key), StringAttr))


def _properties(op: Operation) -> dict[str, Attribute]:
    if isinstance(op, nd.ExternOp):
        return {key: value for key, value in op.properties.items() if key not in UNSAID}
    return op.properties


def _orders(op: Operation) -> tuple[Sequence[SSAValue], ...]:
    """The orders in which the operands may stand."""
    own = tuple(op.operands)
    if type(op) in COMMUTATIVE or (isinstance(op, CmpOp) and op.predicate.data in ("eq", "ne")):
        return (own,) if own[0] is own[1] else (own, (own[1], own[0]))
    if isinstance(op, FmaOp) and own[0] is not own[1]:
        return own, (own[1], own[0], own[2])
    return (own,)


def put_in_place(found: Found, replacement: Pattern) -> str | None:
    """Compute the results of `found` by the body of `replacement`, which takes its inputs, and erase what nothing needs any more
    (patterns have no effects).

    Gives the reason instead where that cannot be: something between the results would have to move, and has effects or is needed
    for an input."""
    outputs = found.outputs
    reason = _sink_uses(found) if len(outputs) > 1 else None
    if reason is not None:
        return reason
    at = _positions(found.outputs[0])
    place = max((_owner(v) for v in outputs), key=at.__getitem__)
    block = place.parent
    assert block is not None
    mapper: dict[SSAValue, SSAValue] = dict(zip(replacement.inputs, found.inputs, strict=True))
    for op in replacement.ops:
        new = op.clone(mapper)
        new.location = place.location
        block.insert_op_before(new, place)
    for old, result in zip(outputs, replacement.outputs, strict=True):
        value = mapper[result]
        if value.name_hint is None or isinstance(value.owner, Operation) and value.owner.parent is block:
            value.name_hint = old.name_hint or value.name_hint
        old.replace_all_uses_with(value)
    for op in sorted(found.inside, key=at.__getitem__, reverse=True):
        if not any(result.uses for result in op.results):
            erase_op(op)
    return None


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value.owner, Operation)
    return value.owner


def _positions(value: SSAValue) -> dict[Operation, int]:
    """Where the operations stand in the block in which a value is made."""
    block = _owner(value).parent
    assert block is not None
    return {op: k for k, op in enumerate(block.ops)}


def _sink_uses(found: Found) -> str | None:
    """Move what uses an earlier result behind the operation that gives the last one; or the reason why that cannot be."""
    at = _positions(found.outputs[0])
    owners = sorted((_owner(v) for v in found.outputs), key=at.__getitem__)
    results = set(found.outputs)
    late: dict[Operation, None] = {}
    for op in list(at)[at[owners[0]] : at[owners[-1]]]:
        if op not in found.ops and any(v in results or v.owner in late for v in op.operands):
            late[op] = None
    if any(has_effect(op) for op in late):
        return "an operation with effects uses one result before another can be computed"
    if any(v in results for v in found.inputs) or any(v.owner in late for op in found.ops for v in op.operands):
        return "an operand of one result is computed from another one"
    after = owners[-1]
    for op in late:
        op.detach()
        assert after.parent is not None
        after.parent.insert_op_after(op, after)
        after = op
    return None
