"""Long sums are added up as their terms come, where all of the terms together would set the peak of memory.

The gradient of a weight that is used in many places is a sum of as many products. As one nest it reads each term once,
but all terms live until the last one is there. Where that is when (about) most memory is alive, the nest is divided: the sum
of the first terms becomes a nest of its own behind the last of them. The order of the additions stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from xdsl.dialects import arith
from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import IndexMap, dim, product
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd.base import prop
from ...dialects.nd.types import TensorType, element_bytes, tensor_type
from ...dialects.support.replace import erase_op
from ...passes.loop.transform.body import Body
from ...passes.manager.instrumentation import remark, statistic
from ...passes.mem.arena.peak import DONATED
from .liveness import Liveness, is_tensor

MIN_TERM_BYTES = 16384
"""Bytes of a term that is worth a nest."""
MAX_SPLITS = 64
"""Limit on the time that this takes; every split looks at the function once."""
MIN_SUM_TERMS = 3
MIN_GAIN_PARTS = 100
"""What a division saves has to be at least one part in so many of all that is alive."""


@dataclass
class _Sum:
    """A chain of additions in a nest: `terms` are its loads, `adds[k]` adds up the first k + 2 of them."""

    nest: loop.NestOp
    terms: list[loop.LoadOp]
    adds: list[arith.AddfOp]


def split_sums(func: FuncOp, symbols: RangeEnv) -> int:
    """Divide the sums of `func` that set the peak; how many nests were made."""
    found = [s for op in func.body.block.ops if isinstance(op, loop.NestOp) for s in _sums(op)]
    count = 0
    while found and count < MAX_SPLITS and _split_one(func, found, symbols):
        count += 1
    if count:
        statistic("num-sums-divided", count)
    return count


def _sums(nest: loop.NestOp) -> Iterator[_Sum]:
    """The sums of a nest whose terms are whole tensors that nothing else reads."""
    if not all(s.is_const for s in nest.loop_sizes) or not nest.loop_sizes:
        return
    for op in nest.block.ops:
        if not isinstance(op, arith.AddfOp) or _next_add(op) is not None:
            continue
        terms: list[loop.LoadOp] = []
        adds: list[arith.AddfOp] = []
        at: Operation | None = op
        while isinstance(at, arith.AddfOp):
            adds.append(at)
            right, left = (_term(nest, at.rhs), at.lhs)
            if right is None:
                right, left = (_term(nest, at.lhs), at.rhs)
            if right is None:
                break
            terms.append(right)
            last = _term(nest, left)
            if last is not None:
                terms.append(last)
                yield _Sum(nest, terms[::-1], adds[::-1])
                break
            owner = left.owner
            at = owner if isinstance(owner, arith.AddfOp) and _next_add(owner) is adds[-1] else None


def _next_add(op: arith.AddfOp) -> arith.AddfOp | None:
    uses = [use.operation for use in op.result.uses]
    return uses[0] if len(uses) == 1 and isinstance(uses[0], arith.AddfOp) and uses[0].parent is op.parent else None


def _term(nest: loop.NestOp, value: SSAValue) -> loop.LoadOp | None:
    """The load behind a term: of each element of a tensor just once, by this nest only."""
    op = value.owner
    if not isinstance(op, loop.LoadOp) or op.masked is not None or op.parent is not nest.block:
        return None
    tensor = op.shaped
    if not isinstance(tensor.owner, (loop.NestOp, loop.ContractOp)) or len(list(tensor.uses)) != 1 or len(list(value.uses)) != 1:
        return None
    loops = [f"d{k}" for k in range(len(nest.indices))]
    if tensor_type(tensor).element_type != value.type or sorted(map(str, op.map.data.results)) != loops:
        return None
    same = len(op.index_operands) == len(nest.indices) and set(op.index_operands) == set(nest.indices)
    return op if same and _bytes(tensor) >= MIN_TERM_BYTES else None


def _bytes(tensor: SSAValue) -> int:
    t = tensor_type(tensor)
    size = product(t.dims)
    return int(size) * element_bytes(t.element_type) if size.is_const else 0


def _split_one(func: FuncOp, sums: list[_Sum], symbols: RangeEnv) -> bool:
    """Divide the sum under which most memory is alive; whether there is one that is worth it."""
    live = Liveness(func)
    position = {op: k for k, op in enumerate(live.ops)}
    alive = _alive(func, live)
    most = max(alive)
    best: tuple[int, int, _Sum] | None = None
    for one in sums:
        if len(one.terms) < MIN_SUM_TERMS:
            continue
        ends = [position[_owner(t)] for t in one.terms]
        top = max(range(max(ends[:MIN_SUM_TERMS]), position[one.nest] + 1), key=lambda k: (alive[k], k))
        ready = next((k for k, end in enumerate(ends) if end > top), len(ends))
        gain = ((ready + 1) // 2 - 1) * _bytes(one.terms[0].shaped)
        worth = ready >= MIN_SUM_TERMS and gain * MIN_GAIN_PARTS >= most and alive[top] * 4 >= most * 3
        if worth and (best is None or alive[top] > best[0]):
            best = alive[top], ready, one
    if best is None:
        return False
    _, ready, one = best
    sums.append(_divide(one, (ready + 1) // 2, position, symbols))
    return True


def _owner(term: loop.LoadOp) -> Operation:
    owner = term.shaped.owner
    assert isinstance(owner, Operation)
    return owner


def _alive(func: FuncOp, live: Liveness) -> list[int]:
    """Bytes that are alive at each position: a bound, since it does not see which results share memory."""
    steps = [0] * (len(live.ops) + 1)
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    for argument, attr in zip(func.body.block.args, attrs, strict=False):
        if is_tensor(argument) and isinstance(attr, DictionaryAttr) and DONATED in attr.data:
            steps[0] += _bytes(argument)
            steps[live.last_use(argument) + 1] -= _bytes(argument)
    for position, op in enumerate(live.ops):
        if not isinstance(op, (loop.NestOp, loop.ContractOp, loop.BatchOp, nd.ExternOp)) or prop(op, "aliases"):
            continue
        for result in op.results:
            if is_tensor(result) and live.last_use(result) >= position:
                steps[position] += _bytes(result)
                steps[live.last_use(result) + 1] -= _bytes(result)
    return list(accumulate(steps[:-1]))


def _divide(one: _Sum, count: int, position: dict[Operation, int], symbols: RangeEnv) -> _Sum:
    """Add up the first `count` terms in a nest of their own, behind the last of them; gives that sum."""
    old, terms, adds = one.nest, one.terms[:count], one.adds[: count - 1]
    sizes = list(old.loop_sizes)
    like = tensor_type(terms[0].shaped)
    empty = loop.EmptyOp.create(result_types=[TensorType.get(sizes, like.element_type, like.device.data)])
    empty.result.name_hint = adds[-1].result.name_hint or "partial_sum"
    new = loop.NestOp.build_nest(sizes, [empty.result], adds[-1].location)
    new.properties["label"] = StringAttr("add")
    values: dict[SSAValue, SSAValue] = dict(zip(old.indices, new.indices, strict=True))
    made = _Sum(new, [t.clone(values) for t in terms], [a.clone(values) for a in adds])
    new.block.add_ops([*made.terms, *made.adds])
    body = Body(new.block, sizes, symbols, adds[-1].location)
    body.store(values[adds[-1].result], new.out_args[0], [dim(k) for k in range(len(sizes))])
    last = max((_owner(t) for t in terms), key=lambda op: position[op])
    block = last.parent
    assert block is not None
    block.insert_op_after(empty, last)
    block.insert_op_after(new, empty)
    (result,) = new.results
    load = loop.LoadOp.new(result, IndexMap.identity(len(sizes)), list(old.indices))
    old.block.insert_op_before(load, adds[-1])
    adds[-1].result.replace_all_uses_with(load.result)
    for op in (*adds[::-1], *terms):
        erase_op(op)
    one.terms[:count] = [load]
    one.adds[: count - 1] = []
    remark(new, lambda: f"adds up {count} terms before the others are there: all of them would set the peak of memory", "applied")
    return made
