"""nd-cut-products: a product and the collective beside it become parts that overlap, where that is cheaper.

    %p = nd.matmul %x, %w                            %p0 = nd.matmul (rows of %x), %w ; %r0 = all_reduce %p0
    %r = nd.extern %p {call = all_reduce}     ->     %p1 = nd.matmul (rows of %x), %w ; %r1 = all_reduce %p1
    %y = wait_tensor %r                              %y = nd.cat (wait_tensor %r0), (wait_tensor %r1)

What is scattered is cut by columns, each of which all ranks have; what is gathered is cut by the rows of a rank, and products of the parts
are put together. A part is computed while another one is sent, as asynchronous tensor parallelism does by hand. `loop-order` then says
where collectives begin and are waited for. What other work hides anyway stays whole.

All ranks must come to the same parts. So the prices are those of the usual machine of a kind, and sizes that are symbols are left alone.
Sums of three and more ranks may be added in another order than as a whole: numerics "eager" and sums of a fixed order keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import ONE, ZERO, as_expr, strides_contiguous
from ...dialects.machine import USUAL_GPU, has_fixed_order
from ...dialects.nd.base import ExprsAttr, IntsAttr
from ...dialects.nd.types import LayoutAttr, TensorType, element_bytes, tensor_type
from ...dialects.support.replace import erase_op
from ..cost.collective_cost import Clock, Link, collective_bytes, collective_kind, group_ranks, is_begin, is_wait, link_of
from ..cost.contraction_price import Contraction, price, rate_name
from ..cost.cost_model import SERVER
from ..cost.library_cost import bytes_of, matmul_cost, size
from ..cost.machine import Gpu, Machine, machine_of
from ..cost.machine.gpu import MACHINES
from ..manager.pass_manager import Pass
from .nd_attention import keeps_eager_numerics

REDUCED, SCATTERED, GATHERED = "all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"


@dataclass(frozen=True)
class _Pair:
    """A collective, the wait for it, and the products of matrices whose result it sends, or whose left factor it gives. `extent`: the rows
    or columns that are parted, of known number."""

    begin: nd.ExternOp
    wait: nd.ExternOp
    products: tuple[nd.MatmulOp, ...]
    ranks: int
    extent: int

    @property
    def kind(self) -> str:
        return collective_kind(self.begin)


@dataclass(frozen=True)
class NdCutProducts(Pass):
    """Cuts products whose result is reduced or scattered between ranks, or that need what is gathered."""

    name = "nd-cut-products"

    least_gain: float = 0.05
    """The share of the time that parts must save: what a collective takes of the units that compute meanwhile is not in the price."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if keeps_eager_numerics(op) or has_fixed_order(op):
            return
        machine = machine_of(op)
        usual = MACHINES[USUAL_GPU] if isinstance(machine, Gpu) else SERVER
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            begins = [o for o in func.body.block.ops if isinstance(o, nd.ExternOp) and is_begin(o)]
            for pair in [found for begin in begins if (found := _pair(begin, link_of(machine))) is not None]:
                self._cut(pair, _Prices(pair, link_of(machine), usual, _beside(func, pair, usual)))

    def _cut(self, pair: _Pair, prices: _Prices) -> None:
        parts = prices.fewest_seconds(1.0 - self.least_gain)
        other = max(2, parts)
        text = f"{prices.seconds(1) * 1e6:.4g} us as a whole, {prices.seconds(other) * 1e6:.4g} in {other} parts"
        self.remark(pair.begin, text, "applied" if parts > 1 else "missed")
        if parts > 1:
            _write(pair, parts)
            self.statistic("num-cut")


# ---- what can be cut


def _pair(begin: nd.ExternOp, link: Link) -> _Pair | None:
    """A collective with its products; None where there are none, or nothing of known size can be parted."""
    users = [use.operation for use in begin.results[0].uses] if len(begin.results) == 1 else []
    if len(begin.operands) != 1 or {"mutates", "effect"} & begin.properties.keys() or len(users) != 1 or not is_wait(users[0]):
        return None
    wait, kind = users[0], collective_kind(begin)
    assert isinstance(wait, nd.ExternOp)
    if kind == GATHERED:
        products = _behind(wait.results[0])
    else:
        products = _before(begin.operands[0], {begin, wait}) if kind in (REDUCED, SCATTERED) else []
    ranks = group_ranks(begin) or link.host_ranks
    sizes = [_sizes(p) for p in products]
    if not sizes or any(n is None for three in sizes for n in three):
        return None
    rows, columns, _ = sizes[0]
    assert rows is not None and columns is not None
    if kind != REDUCED and (group_ranks(begin) is None or rows % ranks or any(three[0] != rows for three in sizes)):
        return None
    return _Pair(begin, wait, tuple(products), ranks, {REDUCED: rows, SCATTERED: columns, GATHERED: rows // ranks}[kind])


def _sizes(op: nd.MatmulOp) -> tuple[int | None, int | None, int | None]:
    """Rows, columns, terms of a product."""
    rows, columns = (n.value for n in tensor_type(op.result).dims[-2:])
    return rows, columns, tensor_type(op.lhs).dims[-1].value


def _before(value: SSAValue, readers: set[Operation]) -> list[nd.MatmulOp]:
    """The product of two matrices that a value is, in whatever shape, if only `readers` have it."""
    while isinstance(value.owner, nd.ReshapeOp) and {use.operation for use in value.uses} <= readers:
        readers, value = {value.owner}, value.owner.input
    op = value.owner
    alone = {use.operation for use in value.uses} <= readers
    return [op] if alone and isinstance(op, nd.MatmulOp) and tensor_type(value).rank == 2 else []


def _behind(value: SSAValue) -> list[nd.MatmulOp]:
    """The products that alone read a gathered tensor, as matrices of its rows; none otherwise."""
    while len(users := list(value.uses)) == 1 and isinstance(users[0].operation, nd.ReshapeOp):
        value = users[0].operation.result
    found = [use.operation for use in value.uses]
    if tensor_type(value).rank != 2 or not all(isinstance(o, nd.MatmulOp) and o.lhs is value and o.rhs is not value for o in found):
        return []
    return [o for o in found if isinstance(o, nd.MatmulOp)]


# ---- what it costs


def _product_seconds(op: nd.MatmulOp, machine: Machine, row_parts: int = 1, column_parts: int = 1) -> float:
    """A product of known sizes, or a part of its rows or columns."""
    t = tensor_type(op.result)
    *batch, rows, columns = (size(n, None) for n in t.dims)
    terms, width = size(tensor_type(op.lhs).dims[-1], None), element_bytes(t.element_type)
    rows, columns = rows // row_parts, columns // column_parts
    if isinstance(machine, Gpu):
        return price(Contraction(rows, columns, terms, prod(batch), 1, rate_name(t.element_type), width, width), machine).ns * 1e-9
    return matmul_cost(rows, columns, terms, machine, batch=prod(batch), dtype_bytes=width).seconds


def _beside(func: FuncOp, pair: _Pair, machine: Machine) -> float:
    """Seconds of the products that neither need a collective nor are needed for it."""
    ops = list(func.body.block.ops)
    around: set[Operation] = {pair.begin, pair.wait, *pair.products}
    needed = set(around)
    for op in reversed(ops):
        if op in needed:
            needed.update(o for inner in op.walk() for v in inner.operands if isinstance(o := v.owner, Operation))
    behind = set(around)
    for op in ops:
        if any(v.owner in behind for inner in op.walk() for v in inner.operands):
            behind.add(op)
    return sum(_product_seconds(o, machine) for o in ops if isinstance(o, nd.MatmulOp) and o not in needed and o not in behind)


@dataclass(frozen=True)
class _Prices:
    """Seconds of a pair by the number of its parts; `beside`: of other work that goes on meanwhile."""

    pair: _Pair
    link: Link
    machine: Machine
    beside: float

    def fewest_seconds(self, share: float) -> int:
        """The number of parts, doubled as long as that helps; 1 if no parts take at most a share of the time of the whole."""
        parts = 1
        while self.pair.extent % (2 * parts) == 0 and self.seconds(2 * parts) < self.seconds(parts):
            parts *= 2
        return parts if self.seconds(parts) <= share * self.seconds(1) else 1

    def seconds(self, parts: int) -> float:
        """From the first part to the result, which is put together of several."""
        kind, numbers, clock = self.pair.kind, range(parts), Clock()
        sent = self.link.seconds(kind, collective_bytes(self.pair.begin) / parts, self.pair.ranks)
        by_columns = {"column_parts": parts} if kind == SCATTERED else {"row_parts": parts}
        work = sum(_product_seconds(p, self.machine, **by_columns) for p in self.pair.products)
        for part in numbers:
            clock.work(work if kind != GATHERED else 0.0)
            clock.begin(part, sent)
        clock.work(self.beside)
        for part in numbers:
            clock.wait(part)
            clock.work(work if kind == GATHERED else 0.0)
        joined = [p.result for p in self.pair.products] if kind == GATHERED else [self.pair.wait.results[0]]
        moved = 2.0 * sum(bytes_of(v, None) for v in joined)
        clock.work((moved / self.machine.bandwidth(moved) + self.machine.start_ns) * 1e-9 if parts > 1 else 0.0)
        return clock.now


# ---- writing


def _write(pair: _Pair, parts: int) -> None:
    """Put the parts in the place of a product and its collective."""
    made = _gathered(pair, parts) if pair.kind == GATHERED else [(pair.wait.results[0], _sent(pair, parts))]
    for old, new in made:
        assert isinstance(owner := old.owner, Operation)
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
        while isinstance(owner, Operation) and not any(r.uses for r in owner.results) and _is_replaced(owner, pair):
            before = owner.operands[0].owner
            erase_op(owner)
            owner = before


def _is_replaced(op: Operation, pair: _Pair) -> bool:
    return op in (pair.begin, pair.wait, *pair.products) or isinstance(op, nd.ReshapeOp)


def _sent(pair: _Pair, parts: int) -> SSAValue:
    """Parts of a product, each of which is sent when it is there; what is received, together."""
    (product,), step, by_rows = pair.products, pair.extent // parts, pair.kind == REDUCED
    first, last = _Writer(pair.begin), _Writer(pair.wait)
    t, waited = tensor_type(product.result), list[SSAValue]()
    for start in range(0, pair.extent, step):
        factor, dim = (product.lhs, 0) if by_rows else (product.rhs, 1)
        piece = first.part(factor, dim, start, step)
        factors = (piece, product.rhs) if by_rows else (product.lhs, piece)
        of_part = t.with_dims((as_expr(step), t.dims[1]) if by_rows else (t.dims[0], as_expr(step)))
        made = first.put(nd.MatmulOp.new(factors, of_part, **product.properties))
        got = of_part if by_rows else of_part.with_dims((as_expr(size(t.dims[0], None) // pair.ranks), as_expr(step)))
        begun = first.put(_call(pair.begin, (made,), got))
        waited.append(last.put(_call(pair.wait, (begun, made), got)))
    return last.together(waited, 0 if by_rows else 1, tensor_type(pair.wait.results[0]))


def _gathered(pair: _Pair, parts: int) -> list[tuple[SSAValue, SSAValue]]:
    """Parts that are gathered one after the other, and the products of each; the products by what takes their place."""
    source, step = pair.begin.operands[0], pair.extent // parts
    terms = tensor_type(pair.products[0].lhs).dims[1]
    first, last = _Writer(pair.begin), _Writer(pair.wait)
    own = first.shaped(source, tensor_type(source).with_dims((as_expr(pair.extent), terms)))
    waited: list[SSAValue] = []
    for start in range(0, pair.extent, step):
        piece = first.part(own, 0, start, step)
        got = tensor_type(source).with_dims((as_expr(step * pair.ranks), terms))
        begun = first.put(_call(pair.begin, (piece,), got))
        waited.append(last.put(_call(pair.wait, (begun, piece), got)))
    made: list[tuple[SSAValue, SSAValue]] = []
    for product in pair.products:
        at, t = _Writer(product), tensor_type(product.result)
        of_part = t.with_dims((as_expr(step * pair.ranks), t.dims[1]))
        rows = [at.put(nd.MatmulOp.new((x, product.rhs), of_part, **product.properties)) for x in waited]
        table = t.with_dims((as_expr(pair.ranks), as_expr(step), t.dims[1]))
        made.append((product.result, at.together([at.shaped(x, table) for x in rows], 1, t)))
    return made


@dataclass(frozen=True)
class _Writer:
    """Puts operations in front of another one."""

    at: Operation

    def put(self, op: Operation) -> SSAValue:
        """An operation at the place, and its result."""
        op.location = self.at.location
        assert self.at.parent is not None
        self.at.parent.insert_op_before(op, self.at)
        return op.results[0]

    def shaped(self, x: SSAValue, t: TensorType) -> SSAValue:
        """A tensor in another shape."""
        return x if x.type == t else self.put(nd.ReshapeOp.new((x,), t))

    def part(self, x: SSAValue, dim: int, start: int, count: int) -> SSAValue:
        """Rows (`dim` 0) or columns of a matrix."""
        t = tensor_type(x)
        starts = [as_expr(start) if d == dim else ZERO for d in range(2)]
        part = t.with_dims(tuple(as_expr(count) if d == dim else n for d, n in enumerate(t.dims)))
        return self.put(nd.SliceOp.new((x,), part, starts=ExprsAttr.get(starts), steps=ExprsAttr.get([ONE, ONE])))

    def together(self, parts: Sequence[SSAValue], dim: int, t: TensorType) -> SSAValue:
        """Parts one after the other, as a tensor of that type."""
        one = tensor_type(parts[0])
        dims = tuple(as_expr(len(parts)) * n if d == dim else n for d, n in enumerate(one.dims))
        return self.shaped(self.put(nd.CatOp.new(parts, one.with_dims(dims), dim=IntsAttr.get([dim]))), t)


def _call(like: nd.ExternOp, operands: tuple[SSAValue, ...], result: TensorType) -> nd.ExternOp:
    """A call of the same operator with the same arguments on matrices, rows one after the other."""
    operands = operands[: len(like.operands)]
    layouts = [LayoutAttr.get(strides_contiguous(tensor_type(operands[0]).dims)), *(UnitAttr() for _ in operands[1:])]
    result_layouts = ArrayAttr([LayoutAttr.get(strides_contiguous(result.dims))])
    properties = {**like.properties, "operand_layouts": ArrayAttr(layouts), "result_layouts": result_layouts}
    return nd.ExternOp.create(operands=operands, result_types=(result,), properties=properties)
