"""nd-bucket-collectives: small collectives of one kind, group and type become one.

    %a = nd.extern %x {call = all_reduce}        %c = nd.cat (flat %x), (flat %y)
    %b = nd.extern %y {call = all_reduce}   ->   %r = nd.extern %c {call = all_reduce}
    ... wait_tensor %a ... wait_tensor %b        ... wait_tensor %r, then parts of it

A collective is small where it takes longer to start than to send (`Link.small_bytes`). A bucket takes collectives in the order of the
program until it is no longer small. Its parts are independent: none needs what another gave, by any way, other buckets included. Gathered
and scattered tensors are joined as rows, one for each rank. What is computed for a bucket is stored straight into it. Sums of three and
more ranks may be added in another order than alone: numerics "eager" and sums of a fixed order keep them apart.

All ranks must come to the same buckets. So nothing is asked but the graph, and sizes that are symbols, whose hints may differ, are left
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import ONE, Expr, as_expr, product
from ...dialects.machine import has_fixed_order
from ...dialects.nd.base import ExprsAttr, IntsAttr
from ...dialects.nd.call_args import CallAttr
from ...dialects.nd.types import LayoutAttr, TensorType, tensor_type
from ...dialects.support.call_template import Arg
from ...dialects.support.replace import erase_op
from ..analysis.call_order import needs_besides_values
from ..cost.collective_cost import NAMESPACE, collective_bytes, collective_kind, group_ranks, is_begin, is_wait, link_of
from ..cost.machine import machine_of
from ..manager.pass_manager import Pass
from .nd_attention import keeps_eager_numerics

SUMS = ("all_reduce", "reduce_scatter_tensor")
JOINED = (*SUMS, "all_gather_into_tensor")
"""The collectives that are put into buckets."""


@dataclass(eq=False)
class _Collective:
    """A begun collective with the wait for it. `upstream`: a bit for each collective that its operand needs."""

    begin: nd.ExternOp
    wait: nd.ExternOp
    place: int
    upstream: int

    @property
    def source(self) -> SSAValue:
        return self.begin.operands[0]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for those that may be one: operator, group and ranks; type and device."""
        t = tensor_type(self.source)
        return self.begin.call.data, t.element_type, t.device


@dataclass(eq=False)
class _Bucket:
    """Collectives that become one, in the order of the program."""

    parts: list[_Collective] = field(default_factory=list)
    bytes: int = 0

    @property
    def places(self) -> int:
        return sum(1 << part.place for part in self.parts)


@dataclass(frozen=True)
class NdBucketCollectives(Pass):
    """Joins small collectives that do not need each other."""

    name = "nd-bucket-collectives"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            if sum(is_begin(o) for o in func.body.block.ops) > 1:
                self._join(func, link_of(machine_of(op)).small_bytes, keeps_eager_numerics(op) or has_fixed_order(op))

    def _join(self, func: FuncOp, small: float, keeps_sums: bool) -> None:
        block = func.body.block
        order = _dependences(list(block.ops))
        buckets = [b for b in _buckets(self._candidates(order, small, keeps_sums), small) if len(b.parts) > 1]
        for bucket in buckets:
            self.statistic("num-joined", len(bucket.parts))
            self.remark(bucket.parts[0].begin, f"one collective of {bucket.bytes} bytes in the place of {len(bucket.parts)}", "applied")
            _write(bucket)
        if buckets:
            _sort(func)

    def _candidates(self, order: dict[Operation, list[Operation]], small: float, keeps_sums: bool) -> Iterator[_Collective]:
        upstream: dict[Operation, int] = {}
        begun = 0
        for op, needed in order.items():
            bits = 0
            for other in needed:
                bits |= upstream[other]
            upstream[op] = bits
            if not is_begin(op):
                continue
            upstream[op] |= 1 << begun
            assert isinstance(op, nd.ExternOp)
            refused = _refusal(op, small, keeps_sums)
            if refused:
                self.remark(op, f"it is no part of a bucket: {refused}", "missed")
            else:
                yield _Collective(op, next(iter(op.results[0].uses)).operation, begun, bits)  # pyright: ignore[reportArgumentType]
            begun += 1


def _refusal(op: nd.ExternOp, small: float, keeps_sums: bool) -> str:
    """Why a collective stays as it is; nothing where it may be joined."""
    if collective_kind(op) not in JOINED or len(op.operands) != 1 or len(op.results) != 1 or {"mutates", "effect"} & op.properties.keys():
        return f"it is a {collective_kind(op)} of {len(op.operands)} tensors"
    if keeps_sums and collective_kind(op) in SUMS:
        return "its sums are kept in their order"
    sizes = [*tensor_type(op.operands[0]).dims, *tensor_type(op.results[0]).dims]
    if any(size.value is None for size in sizes):
        return "a size is not known"
    if not 0 < collective_bytes(op) <= small:
        return f"{collective_bytes(op)} bytes are not more than nothing and at most {small:.0f}"
    users = [use.operation for use in op.results[0].uses]
    return "" if len(users) == 1 and is_wait(users[0]) else "its result is not waited for once"


def _dependences(ops: Sequence[Operation]) -> dict[Operation, list[Operation]]:
    """For each operation of a function those that it needs, in the order of the program."""
    besides = needs_besides_values(ops)
    found: dict[Operation, list[Operation]] = {}
    for op in ops:
        owners = [v.owner for inner in op.walk() for v in inner.operands]
        needed = dict.fromkeys([o for o in owners if isinstance(o, Operation) and o in found] + besides.get(op, []))
        found[op] = list(needed)
    return found


def _buckets(collectives: Iterator[_Collective], small: float) -> list[_Bucket]:
    """Collectives in buckets. One goes into the last bucket of its kind if that has room, and neither needs the other."""
    buckets: list[_Bucket] = []
    last: dict[tuple[object, ...], _Bucket] = {}
    for one in collectives:
        size = collective_bytes(one.begin)
        bucket = last.get(one.key)
        if bucket is None or bucket.bytes + size > small or _needs(bucket, one, buckets):
            bucket = last[one.key] = _Bucket()
            buckets.append(bucket)
        bucket.parts.append(one)
        bucket.bytes += size
    return buckets


def _needs(bucket: _Bucket, one: _Collective, buckets: Sequence[_Bucket]) -> bool:
    """Whether a collective and a bucket need each other by any way: a bucket needs what each of its parts needs."""
    return bool(_closure(one.upstream, buckets) & bucket.places) or bool(_upstream(bucket, buckets) & 1 << one.place)


def _upstream(bucket: _Bucket, buckets: Sequence[_Bucket]) -> int:
    bits = 0
    for part in bucket.parts:
        bits |= part.upstream
    return _closure(bits, buckets)


def _closure(bits: int, buckets: Sequence[_Bucket]) -> int:
    """The collectives of `bits`, and all that they need now that some are together. It grows in each round, to all of them at most."""
    while True:
        grown = bits
        for bucket in buckets:
            if bits & bucket.places:
                grown |= bucket.places
                for part in bucket.parts:
                    grown |= part.upstream
        if grown == bits:
            return bits
        bits = grown


# ---- writing


def _write(bucket: _Bucket) -> None:
    """Put one collective, and parts of its result, in the place of a bucket's."""
    parts = bucket.parts
    first, last = parts[0], parts[-1]
    ranks = group_ranks(first.begin)
    kind = collective_kind(first.begin)
    new: list[Operation] = []

    def put(op: Operation) -> SSAValue:
        op.location = last.begin.location
        new.append(op)
        return op.results[0]

    # Scattered operands and gathered results are a row for each rank; all else is one row.
    rows_in = ranks if kind == "reduce_scatter_tensor" and ranks else 1
    rows_out = ranks if kind == "all_gather_into_tensor" and ranks else 1
    columns = [_count(part.source) // rows_in for part in parts]
    flat = [put(_reshaped(part.source, (rows_in, n))) for part, n in zip(parts, columns, strict=True)]
    t = tensor_type(first.source)
    joined = put(nd.CatOp.new(flat, t.with_dims(_dims(rows_in, sum(columns))), dim=IntsAttr.get([1])))
    width = sum(_count(part.begin.results[0]) for part in parts) // rows_out
    sent = put(_reshaped(joined, (rows_in * sum(columns),)))
    begun = put(_call(first.begin, (sent,), t.with_dims(_dims(rows_out * width))))
    waited = put(_call(first.wait, (begun, sent), t.with_dims(_dims(rows_out * width))))
    table = put(_reshaped(waited, (rows_out, width)))
    start = 0
    for part in parts:
        own = tensor_type(part.wait.results[0])
        n = _count(part.begin.results[0]) // rows_out
        piece = put(_columns(table, start, (rows_out, n)))
        value = put(nd.ReshapeOp.new((piece,), own))
        value.name_hint = part.wait.results[0].name_hint
        part.wait.results[0].replace_all_uses_with(value)
        start += n
    block = last.begin.parent
    assert block is not None
    block.insert_ops_before(new, last.begin)
    for part in parts:
        for op in (part.wait, part.begin):
            erase_op(op)


def _count(value: SSAValue) -> int:
    count = product(tensor_type(value).dims).value
    assert count is not None
    return count


def _dims(*sizes: int) -> list[Expr]:
    return [as_expr(n) for n in sizes]


def _reshaped(value: SSAValue, sizes: tuple[int, ...]) -> nd.ReshapeOp:
    return nd.ReshapeOp.new((value,), tensor_type(value).with_dims(_dims(*sizes)))


def _columns(table: SSAValue, start: int, sizes: tuple[int, int]) -> nd.SliceOp:
    """The columns of a matrix from `start` on."""
    starts, steps = ExprsAttr.get([as_expr(0), as_expr(start)]), ExprsAttr.get([ONE, ONE])
    return nd.SliceOp.new((table,), tensor_type(table).with_dims(_dims(*sizes)), starts=starts, steps=steps)


def _call(like: nd.ExternOp, operands: tuple[SSAValue, ...], result: TensorType) -> nd.ExternOp:
    """A call of the same operator with the same arguments on tensors of one dimension."""
    flat = LayoutAttr.get([1])
    layouts = [flat, *(UnitAttr() for _ in operands[1:])]
    properties = {**like.properties, "operand_layouts": ArrayAttr(layouts), "result_layouts": ArrayAttr([flat])}
    assert isinstance(like.call, CallAttr) and like.call.data.args[0] == Arg(0) and like.call.data.target.startswith(NAMESPACE)
    return nd.ExternOp.create(operands=operands, result_types=(result,), properties=properties)


def _sort(func: FuncOp) -> None:
    """Put operations behind all that they need, each as early as its place in the program allows."""
    block = func.body.block
    ops = list(block.ops)
    besides, inside = needs_besides_values(ops), set(ops)
    placed: dict[Operation, None] = {}
    for root in ops:
        pending = [root]
        while pending:
            op = pending[-1]
            owners = [v.owner for inner in op.walk() for v in inner.operands]
            needed = dict.fromkeys([o for o in (*owners, *besides.get(op, [])) if isinstance(o, Operation) and o is not op])
            missing = [o for o in needed if o in inside and o not in placed]
            if missing:
                pending += missing
                continue
            pending.pop()
            placed.setdefault(op)
    for op in placed:
        op.detach()
    block.add_ops(placed)
