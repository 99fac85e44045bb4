"""Pass "loop-layout": which 4-d tensors lie channels-last, decided for the whole function at once.

A library call may run in a second layout of its operands and results: its attribute `layout_choices`, one dictionary a
choice with `operands`, `results` (as operand_layouts and result_layouts) and `cost`, the nanoseconds that the call takes
more than as it stands. Nests write any order. What does not fit costs too: a copy in front of a call, a nest that reads
across the order in which it stores, a result that the caller wants otherwise.

Each call with a choice and each nest with a free 4-d result is on one of two sides, and every pair that disagrees pays for
the bytes between them: the least sum is a minimum cut, found exactly (augmenting paths). The decision is written down:
`operand_layouts` and `result_layouts` of calls, and `layouts` on nests (one #nd.layout or unit a result), which
loop-to-mem obeys and a person may edit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import ONE, ZERO, Dim, Expr, dim, evaluate, free_dims, free_syms
from ...dialects.nd.types import LayoutAttr, TensorType, element_bytes, tensor_type
from ..cost.machine import machine_of
from ..cost.machine.prices import prices
from ..manager.pass_manager import Pass
from ..mem.arena.mem_plan import symbol_hints
from .fusion.loop_fuse import BORDER

CHOICES, LAYOUTS = "layout_choices", "layouts"


@dataclass(frozen=True)
class Prices:
    """What a copy into another order takes (read and write), its launch too, and reading across the order of the stores.

    `plane_ns_per_byte`: a nest over samples and groups of channels whose inner loops go over the pixels, to read or store channels-last; 0
    where it is a read across like any other."""

    copy_ns_per_byte: float
    across_ns_per_byte: float
    launch_ns: float
    plane_ns_per_byte: float


def layout_prices(kind: str) -> Prices:
    """The prices of a kind of machine, "cpu" or "gpu"."""
    return prices(f"{kind}_layout_copy", Prices)


_ROWS, _LAST = "rows", "channels-last"


def channels_last(dims: Sequence[Expr]) -> tuple[Expr, ...]:
    """Strides of [N, C, H, W] with the channels next to each other."""
    _, c, h, w = dims
    return h * w * c, ONE, w * c, c


@dataclass(frozen=True)
class LoopLayout(Pass):
    """Chooses between row-major and channels-last for the 4-d tensors of a function."""

    name = "loop-layout"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Writes the choices on the calls and nests of the module's functions."""
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            problem = _Problem(func, symbol_hints(op), layout_prices(machine_of(op).kind))
            if problem.nodes and (problem.costs or problem.factors or _LAST in problem.owner.values()):
                self._function(problem)

    def _function(self, problem: _Problem) -> None:
        rows = problem.cut.side_of(_ROWS)
        chosen = 0
        for op in problem.nodes:
            moved = op in problem.cut.room and op not in rows
            chosen += moved
            if isinstance(op, nd.ExternOp):
                choice = op.attributes.pop(CHOICES)
                if moved:
                    _take(op, choice)
                what = "channels-last" if moved else "as it stands"
                costs = problem.costs[op]
                self.remark(op, f"runs {what}: channels-last alone would make it {costs:+d} ns", "applied" if moved else "missed")
            elif moved:
                free = problem.chosen[op]
                op.attributes[LAYOUTS] = ArrayAttr([_layout(r) if k in free else UnitAttr() for k, r in enumerate(op.results)])
                self.remark(op, "stores channels-last, as the calls around it do", "applied")
        self.statistic("num-channels-last", chosen)


def _take(op: nd.ExternOp, choice: object) -> None:
    assert isinstance(choice, ArrayAttr) and isinstance(choice.data[0], DictionaryAttr)
    table = choice.data[0].data
    op.properties["operand_layouts"], op.properties["result_layouts"] = table["operands"], table["results"]


def _lies_both_ways(t: TensorType) -> bool:
    """Whether rows and channels-last are the same order: of one channel or one pixel (weights of 1x1 convolutions)."""
    _, c, h, w = t.dims
    return c is ONE or (h is ONE and w is ONE)


def _layout(result: SSAValue) -> LayoutAttr | UnitAttr:
    t = result.type
    assert isinstance(t, TensorType)
    return LayoutAttr.get(channels_last(t.dims)) if t.rank == 4 else UnitAttr()


# ---- the problem


class _Problem:
    """The graph of a function: who pays how much for being on another side than whom."""

    def __init__(self, func: FuncOp, hints: Mapping[str, int], prices: Prices):
        self.hints, self.prices = hints, prices
        self.cut = Cut()
        self.nodes: list[Operation] = []
        self.costs: dict[Operation, int] = {}
        self.factors = 0
        """Operands of products that are read along channels."""
        self.owner: dict[SSAValue, object] = {}
        """Side or op that decides the order of a 4-d tensor, if it has one."""
        self.chosen: dict[Operation, frozenset[int]] = {}
        """Nests with a choice, and which of their results have it."""
        results = func.res_attrs.data if func.res_attrs is not None else ()
        self.strides = [a.data.get("nd.layout") if isinstance(a, DictionaryAttr) else None for a in results]
        self._arguments(func)
        ops = list(func.body.block.ops)
        fixed = {v: _ROWS for op in ops if isinstance(op, (ReturnOp, nd.UpdateOp)) for v in op.operands}
        for op in ops:
            if isinstance(op, ReturnOp):
                fixed |= {v: self._side(v, s) for v, s in zip(op.operands, self.strides, strict=False)}
        for op in ops:
            if isinstance(op, nd.ExternOp):
                self._call(op)
            elif isinstance(op, loop.NestOp):
                self._nest(op, fixed)
            elif isinstance(op, ReturnOp):
                self._returned(op)
            elif isinstance(op, nd.IndexViewOp):
                self._view(op)
            elif isinstance(op, loop.ContractOp):
                self._contract(op)
            elif not isinstance(op, nd.UpdateOp):
                for v in op.results:
                    self._own(v, _ROWS)

    def _arguments(self, func: FuncOp) -> None:
        attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
        for k, argument in enumerate(func.body.block.args):
            layout = attrs[k].data.get("nd.layout") if k < len(attrs) else None  # pyright: ignore[reportAttributeAccessIssue]
            self._own(argument, self._side(argument, layout))

    def _side(self, value: SSAValue, layout: object) -> str:
        t = value.type
        if isinstance(layout, LayoutAttr) and isinstance(t, TensorType) and t.rank == 4:
            wanted = channels_last(t.dims)
            pairs = zip(t.dims, layout.stride_exprs, wanted, strict=True)
            if all(d is ONE or a is b for d, a, b in pairs) and t.dims[1] is not ONE:
                return _LAST
        return _ROWS

    def _own(self, value: SSAValue, side: object) -> None:
        t = value.type
        if isinstance(t, TensorType) and t.rank == 4 and not _lies_both_ways(t):
            self.owner[value] = side

    def _bytes(self, value: SSAValue) -> int:
        t = value.type
        assert isinstance(t, TensorType)
        return self._number(t.numel * element_bytes(t.element_type))

    def _number(self, size: Expr) -> int:
        return int(size) if size.is_const else evaluate(size, {str(s): self.hints.get(str(s), 64) for s in free_syms(size)})

    def _pay(self, value: SSAValue, reader: object, ns_a_byte: float, fixed: float = 0.0) -> None:
        owner = self.owner.get(value)
        if owner is not None and owner != reader:
            self.cut.edge(owner, reader, fixed + ns_a_byte * self._bytes(value))

    def _pay_copy(self, value: SSAValue, reader: object) -> None:
        self._pay(value, reader, self.prices.copy_ns_per_byte, self.prices.launch_ns)

    def _call(self, op: nd.ExternOp) -> None:
        choice = op.attributes.get(CHOICES)
        table = choice.data[0] if isinstance(choice, ArrayAttr) else None
        if not isinstance(table, DictionaryAttr):
            layouts = op.operand_layouts
            for value, layout in zip(op.operands, layouts.data if isinstance(layouts, ArrayAttr) else (), strict=False):
                if isinstance(layout, LayoutAttr):
                    self._pay_copy(value, self._side(value, layout))
            given = op.result_layouts.data if isinstance(op.result_layouts, ArrayAttr) else ()
            for k, result in enumerate(op.results):
                self._own(result, self._side(result, given[k] if k < len(given) else None))
            return
        self.nodes.append(op)
        operands, cost = table.data["operands"], table.data["cost"]
        assert isinstance(operands, ArrayAttr) and isinstance(cost, IntegerAttr)
        self.costs[op] = cost.value.data
        self.cut.edge(op, _ROWS if cost.value.data > 0 else _LAST, abs(cost.value.data))
        for value, layout in zip(op.operands, operands.data, strict=True):
            if self._side(value, layout) == _LAST:
                self._pay_copy(value, op)
        for result in op.results:
            self._own(result, op)

    def _nest(self, op: loop.NestOp, fixed: Mapping[SSAValue, str]) -> None:
        big = [k for k, r in enumerate(op.results) if isinstance(r.type, TensorType) and r.type.rank == 4]
        in_order = op.attributes.get("no_fuse") == BORDER  # by rows is what it was copied for
        free = [k for k in big if not in_order and op.results[k] not in fixed and isinstance(op.outs[k].owner, loop.EmptyOp)]
        accesses = list(_accesses(op))
        stores = {a.shaped: a for a in reversed(accesses) if a.stores and len(a.index) == 4}
        chosen = _turning({k: stores[op.out_args[k]] for k in big if op.out_args[k] in stores}) if len(free) == len(big) else []
        chooses = bool(chosen)
        if chooses:
            self.nodes.append(op)
            self.chosen[op] = frozenset(chosen)
        for k in big:
            self._own(op.results[k], op if k in chosen else fixed.get(op.results[k], _ROWS))
            if chooses and k not in chosen:
                self.cut.edge(op, _LAST, self.prices.across_ns_per_byte * self._bytes(op.results[k]))
        first = (chosen or big or [None])[0]
        stored = op if chooses else _ROWS if first is None else fixed.get(op.results[first], _ROWS)
        store = None if first is None else stores.get(op.out_args[first])
        last = next((a for a in accesses if a.stores and a.index), None)
        shapes = any(a.stores and len(a.index) == 4 for a in accesses)
        for a in accesses:
            if len(a.index) != 4:
                self._pay_rows_read(op, a, store, stored)
                continue
            if self.prices.plane_ns_per_byte and a.is_convolved():
                self._pay(a.shaped, _LAST, self.prices.plane_ns_per_byte)  # programs read channels side by side
                continue
            if self.prices.plane_ns_per_byte and not a.around & (free_dims(a.index[2]) | free_dims(a.index[3])):
                groups = not free_dims(a.index[1]) <= a.around
                if a.around & free_dims(a.index[0]) and (shapes or groups):
                    self._pay_plane(op, a, self.prices.plane_ns_per_byte if groups else self.prices.across_ns_per_byte)
                continue
            if a.stores or a.shaped not in self.owner:
                continue
            if store is not None and len(store.index) == 4:
                along, across = (_moves(a, store, 3, 3), _moves(a, store, 1, 1)), (_moves(a, store, 3, 1), _moves(a, store, 1, 3))
                side = stored if all(along) else None
                if side is None and all(across) and not chooses:
                    side = _LAST if stored == _ROWS else _ROWS
            else:
                side = None if last is None else _ROWS if _moves(a, last, 3, -1) else _LAST if _moves(a, last, 1, -1) else None
            if side is not None:
                self._pay(a.shaped, side, self.prices.across_ns_per_byte)

    def _view(self, op: nd.IndexViewOp) -> None:
        """A view lies as rows of its source do, and is read along its last dimension."""
        index = op.map.data.results
        by_channels = op.operands[0] not in self.owner and bool(index) and _is_next(index[-1], dim(1))
        self._own(op.result, _LAST if by_channels else _ROWS)
        if len(index) == 4 and any(isinstance(use.operation, loop.ContractOp) for use in op.result.uses):
            self._pay_factor(op.operands[0], index, tensor_type(op.result).rank - 1)

    def _contract(self, op: loop.ContractOp) -> None:
        """A product reads its left factor along the terms of a sum, and what its epilogue reads along its columns."""
        for v in op.results:
            self._own(v, _ROWS)
        index, rank = op.lhs_map.data.results, len(op.loop_sizes)
        if len(index) == 4 and any(e.has_div for e in index):
            # windows are stored where the channels of a pixel do not lie side by side
            stored = self._number(op.loop_sizes[-2] * op.depth.data) * element_bytes(tensor_type(op.lhs).element_type)
            self._pay_factor(op.lhs, index, rank, self.prices.copy_ns_per_byte * stored)
        elif len(index) == 4:
            self._pay_factor(op.lhs, index, rank)
        places = {v: dim(k) for k, v in enumerate(op.indices)}
        for load in [o for o in op.block.ops if isinstance(o, loop.LoadOp) and len(o.index_map.results) == 4]:
            if all(v in places for v in load.index_operands):
                index = load.index_map.apply([places[v] for v in load.index_operands])
                self._pay_factor(load.source, index, len(op.loop_sizes) - 1)

    def _pay_factor(self, source: SSAValue, index: Sequence[Expr], along: int, ns: float = 0.0) -> None:
        """Reading a factor of a product along dimension `along` of `index`, where its channels or its rows lie; what is not so takes `ns`
        more."""
        for place, side in ((1, _LAST), (3, _ROWS)):
            if _steps(index[place], dim(along)):
                self.factors += side == _LAST
                self._pay(source, side, self.prices.across_ns_per_byte, ns)
                return

    def _pay_rows_read(self, op: loop.NestOp, a: _Access, store: _Access | None, stored: object) -> None:
        """Reading a tensor of other rank and of the size of the result, whose rows are channels or rows of the result's pixels."""
        if a.stores or not a.index or store is None or len(store.index) != 4 or self._bytes(a.shaped) < self._bytes(op.results[0]):
            return
        for place, side in ((1, _LAST), (3, _ROWS)):
            if isinstance(step := store.index[place], Dim) and _is_next(a.index[-1], step):
                self.cut.edge(stored, side, self.prices.across_ns_per_byte * self._bytes(a.shaped))
                return

    def _pay_plane(self, op: loop.NestOp, a: _Access, ns_a_byte: float) -> None:
        if not a.stores:
            self._pay(a.shaped, _ROWS, ns_a_byte)
        elif (k := _out_number(op, a.shaped)) in self.chosen.get(op, ()):
            self.cut.edge(op, _ROWS, ns_a_byte * self._bytes(op.results[k]))

    def _returned(self, op: ReturnOp) -> None:
        for k, value in enumerate(op.operands):
            if isinstance(value.owner, nd.ExternOp) and value in self.owner:
                self._pay_copy(value, self._side(value, self.strides[k] if k < len(self.strides) else None))


def _steps(e: Expr, along: Dim) -> bool:
    """Whether an index is another one at the second place along a dimension than at the first: the channel of a window's term is, and
    the pixel, which is counted in whole windows of channels, is not."""
    return _first_step(e, along) is not ZERO


def _is_next(e: Expr, along: Dim) -> bool:
    """Whether an index is the next one at the second place along a dimension: the element of a head is, and the head, which is that of many
    elements, is not."""
    return _first_step(e, along) is ONE


def _first_step(e: Expr, along: Dim) -> Expr:
    """How far an index is at the second place along a dimension from where it is at the first."""
    first: dict[Expr, Expr] = dict.fromkeys(free_dims(e), ZERO)
    return e.subs({**first, along: ONE}) - e.subs(first) if along in first else ZERO


@dataclass
class _Access:
    shaped: SSAValue
    index: tuple[Expr, ...]
    stores: bool
    around: frozenset[Dim]
    """The loops of the nest itself."""
    multiplied: bool = False
    """Whether it is a factor of products that are added up."""

    def is_convolved(self) -> bool:
        """Whether products are added up over channels, or over windows of pixels. Where a channel is that of many terms, rows are read."""
        if not self.multiplied:
            return False
        windows = any(free_dims(e) & self.around and free_dims(e) - self.around for e in self.index[2:])
        return windows or any(_steps(self.index[1], term) for term in free_dims(self.index[1]) - self.around)


def _out_number(nest: loop.NestOp, argument: SSAValue) -> int:
    return list(nest.out_args).index(argument) if argument in nest.out_args else -1


def _turning(stores: Mapping[int, _Access]) -> list[int]:
    """Of the 4-d results of a nest, by number, those whose order is a choice: all, unless some are [N, H, W, C] where others are
    [N, C, H, W]. Then these alone, for which channels-last is the order that the others have by rows."""
    orders = {k: _order(a) for k, a in stores.items()}
    turned = [k for k, (n, c, h, w) in orders.items() if (n, h, w, c) in orders.values() and not c == h == w]
    return turned or list(stores)


def _order(a: _Access) -> tuple[object, object, object, object]:
    """The index of an access, loops inside of the nest by their place among those that it has."""
    inside = sorted({d for e in a.index for d in free_dims(e)} - a.around, key=lambda d: d.index)
    n, c, h, w = [inside.index(e) if isinstance(e, Dim) and e in inside else e for e in a.index]
    return n, c, h, w


def _moves(read: _Access, store: _Access, at: int, by: int) -> bool:
    """Whether place `at` of a read follows the loop that place `by` of the store counts."""
    step = store.index[by]
    return isinstance(step, Dim) and step in free_dims(read.index[at])


def _accesses(nest: loop.NestOp) -> Iterator[_Access]:
    numbers: dict[SSAValue, Expr] = {}

    def number(value: SSAValue) -> Expr:
        return numbers.setdefault(value, dim(len(numbers)))

    around = frozenset(dim(k) for k in range(len(nest.loop_sizes)))
    for v in nest.block.args[: len(around)]:
        number(v)
    for op in loop.walk_bodies(nest):
        if isinstance(op, loop.AccessOp):
            index, users = op.index_map.apply([number(v) for v in op.index_operands]), [use.operation for r in op.results for use in r.uses]
            multiplied = any(loop.is_contracted(user) for user in users)
            yield _Access(op.shaped, index, isinstance(op, loop.StoreOp), around, multiplied)


# ---- the minimum cut


class Cut:
    """An undirected graph with weights, cut between "rows" and "channels-last"."""

    def __init__(self) -> None:
        self.room: dict[object, dict[object, float]] = {_ROWS: {}, _LAST: {}}

    def edge(self, a: object, b: object, weight: float) -> None:
        """Cutting `a` from `b` costs `weight` (more)."""
        if a != b and weight > 0:
            for x, y in ((a, b), (b, a)):
                row = self.room.setdefault(x, {})
                row[y] = row.get(y, 0.0) + weight

    def side_of(self, source: str) -> set[object]:
        """What stays with `source` in a cut of the least cost; that of the fewest nodes on the other side."""
        target = _LAST if source == _ROWS else _ROWS
        while (path := self._path(source, target)) is not None:
            least = min(self.room[a][b] for a, b in path)
            for a, b in path:
                self.room[a][b] -= least
                self.room[b][a] = self.room[b].get(a, 0.0) + least
        other = self._reached(target, backwards=True)
        return {node for node in self.room if node not in other}

    def _path(self, source: object, target: object) -> list[tuple[object, object]] | None:
        before: dict[object, object] = {source: source}
        queue = deque([source])
        while queue and target not in before:
            node = queue.popleft()
            for other, room in self.room[node].items():
                if room > 1e-6 and other not in before:
                    before[other] = node
                    queue.append(other)
        if target not in before:
            return None
        path: list[tuple[object, object]] = []
        while target != source:
            path.append((before[target], target))
            target = before[target]
        return path

    def _reached(self, start: object, backwards: bool) -> set[object]:
        found, queue = {start}, deque([start])
        while queue:
            node = queue.popleft()
            for other, row in self.room[node].items():
                room = self.room[other].get(node, 0.0) if backwards else row
                if room > 1e-6 and other not in found:
                    found.add(other)
                    queue.append(other)
        return found
