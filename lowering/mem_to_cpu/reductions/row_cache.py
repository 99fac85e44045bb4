"""Values that several loops over the same row compute: kept in a row of scratch memory instead.

Fusion gives each pass over a row (maximum, sum of exponentials, quotient) the whole expression again. Where that
costs more than a load from the first cache, the first pass stores the value and the later ones load it. Also for the
two passes of one reduction (`welford`, `softmax`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import fsum, prod

from xdsl.dialects.builtin import Float32Type, Float64Type, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import cpu, loop
from ....dialects.expr import ZERO, Dim, Expr, as_expr
from ....dialects.expr.ranges import Range
from ....dialects.nd.types import element_bytes
from ....passes.analysis.dependences import memory_of
from ....passes.analysis.nest_access import Loop, Node
from ....passes.analysis.op_costs import has_effect, op_cost
from ....passes.cost.nest_cost import LANE_COUNTS
from ....passes.loop.fusion.windows.plan import MAX_LOCAL_BYTES
from ..loops import straight
from ..memory import address
from ..state import State

MIN_KEPT_COST = 6.0
"""Cost of a value (in vector operations) from which on it is kept."""
MAX_STRAIGHT_OPS = 50.0
"""Operations of a body worth caching, about: rows that stand without a loop even so need no cache."""


class Row:
    """The scratch row of one value."""

    __slots__ = ("dtype", "pointer")

    def __init__(self, dtype: Attribute):
        self.dtype = dtype
        self.pointer: SSAValue | None = None


class RowCache:
    """Which values each loop of the nest's body stores to a row, and which it loads from one."""

    def __init__(self, s: State, choice: Callable[[Node], tuple[Loop, int] | None]):
        self.s = s
        self.choice = choice
        self.define: dict[SSAValue, tuple[Row, Node]] = {}
        self.use: dict[SSAValue, tuple[Row, Node]] = {}
        self.second: dict[Operation, dict[SSAValue, Row]] = {}
        """Reductions in two passes: what the second one loads."""
        self.skip: set[Operation] = set()
        self._numbers: dict[object, int] = {}
        self._canonical: list[Dim] = []
        self._bytes = 0
        self._plan()

    @staticmethod
    def _must_keep(op: Operation) -> bool:
        """Whether a reduction in two passes stores something, so that its body must not run again."""
        return (
            isinstance(op, loop.ReduceOp)
            and any(k in ("welford", "softmax") for k in op.kind_names)
            and any(isinstance(inner, loop.StoreOp) for inner in loop.walk_bodies(op))
        )

    def keeps(self, op: loop.ReduceOp) -> bool:
        """Whether the second pass of a reduction finds all its values in rows."""
        kept = self.second.get(op, {})
        wanted = [values[0] for kind, values, _ in op.each() if kind in ("welford", "softmax")]
        return all(value in kept or value in self.use for value in wanted)

    # ---- planning

    def _plan(self) -> None:
        for node in self.s.info.root.walk():
            if node.children and self.choice(node) is None:
                self._plan_body(node)

    def _plan_body(self, body: Node) -> None:
        """The loops that stand one after the other in a body."""
        groups: dict[tuple[object, ...], list[Node]] = {}
        for node in body.children:
            chosen = self.choice(node)
            if chosen is None or node.children or isinstance(node.op, loop.ScanOp) or not has_effect(node.op):
                continue
            sizes = tuple(one.size.value for one in node.loops)
            if any(size is None for size in sizes):
                continue
            if len(sizes) == 1 and not self._must_keep(node.op) and straight(-(-(sizes[0] or 0) // chosen[1]), MAX_STRAIGHT_OPS):
                continue
            place = next(k for k, one in enumerate(node.loops) if one is chosen[0])
            groups.setdefault((sizes, place), []).append(node)
        for (sizes, place), nodes in groups.items():
            self._group(nodes, self._row_elements(sizes, place))  # pyright: ignore[reportArgumentType]

    @staticmethod
    def _row_elements(sizes: tuple[int, ...], place: int) -> int:
        return prod(s for k, s in enumerate(sizes) if k != place) * (-(-sizes[place] // LANE_COUNTS[0]) * LANE_COUNTS[0])

    def _group(self, nodes: list[Node], elements: int) -> None:
        known: dict[int, SSAValue] = {}
        first_node: dict[int, Node] = {}
        rows: dict[int, Row] = {}
        for node in nodes:
            keys = self._value_keys(node)
            costs = self._recompute_costs(node)
            shared = {v: None for v, key in keys.items() if key in known}
            for value in self._roots(node, shared):
                key = keys[value]
                if costs[value] < MIN_KEPT_COST or not self._keepable(value.type):
                    continue
                if known[key] in self.define:
                    rows[key] = self.define[known[key]][0]
                elif key not in rows and not self._allot(value.type, elements):
                    continue
                row = rows.setdefault(key, Row(value.type))
                self.define[known[key]] = (row, first_node[key])
                self.use[value] = (row, node)
            if isinstance(node.op, loop.ReduceOp) and any(k in ("welford", "softmax") for k in node.op.kind_names):
                self._two_passes(node, node.op, costs, elements)
            for value, key in keys.items():
                if key not in known:
                    known[key] = value
                    first_node[key] = node
            self._skip_dead(node)

    def _allot(self, dtype: Attribute, elements: int) -> bool:
        size = elements * element_bytes(dtype)
        if self._bytes + size > MAX_LOCAL_BYTES:
            return False
        self._bytes += size
        return True

    @staticmethod
    def _keepable(dtype: Attribute) -> bool:
        if isinstance(dtype, IntegerType):
            return dtype.width.data >= 8
        return isinstance(dtype, (Float32Type, Float64Type))

    def _two_passes(self, node: Node, op: loop.ReduceOp, costs: dict[SSAValue, float], elements: int) -> None:
        for kind, (value, *_), _ in op.each():
            if kind not in ("welford", "softmax") or value in self.use:
                continue
            if costs.get(value, 0.0) < MIN_KEPT_COST and not self._must_keep(op):
                continue
            if value in self.define or self._allot(value.type, elements):
                row, _ = self.define.setdefault(value, (Row(value.type), node))
                self.second.setdefault(op, {})[value] = row

    def _canonical_dims(self, node: Node) -> dict[Expr, Expr]:
        while len(self._canonical) < len(node.loops):
            self._canonical.append(self.s.info.new_dim(Range(0)))
        return {one.dim: d for one, d in zip(node.loops, self._canonical, strict=False)}

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _value_keys(self, node: Node) -> dict[SSAValue, int]:
        """A number for each value of the body: equal for values that are computed alike at the same index of the
        row."""
        info = self.s.info
        dims = self._canonical_dims(node)
        found: dict[SSAValue, int] = {}

        def key(value: SSAValue) -> int:
            known = found.get(value)
            return self._number(("outside", value)) if known is None else known

        for op in node.op.regions[0].blocks[0].ops:
            if len(op.results) != 1:
                continue
            result = op.results[0]
            if isinstance(op, loop.LoadOp):
                access = info.access[op]
                if memory_of(access.buffer) in self.s.written:
                    continue
                extra = (key(op.mask), key(op.other)) if op.mask is not None and op.other is not None else ()
                offset = access.offset.subs(dims)
                found[result] = self._number(("load", access.buffer, offset, *extra))
            elif isinstance(op, loop.IndexOp):
                found[result] = self._number(("index", info.exprs[result].subs(dims), result.type))
            elif op.name.partition(".")[0] in ("arith", "math") or isinstance(op, (loop.MathOp, loop.RandomOp)):
                parts = (type(op), *op.properties.values(), *(key(v) for v in op.operands), result.type)
                found[result] = self._number(parts)
        return found

    def _recompute_costs(self, node: Node) -> dict[SSAValue, float]:
        """What each value of the body costs, everything it needs included (things used twice count once where that
        matters least)."""
        block = node.op.regions[0].blocks[0]
        found: dict[SSAValue, float] = {}
        needs: dict[SSAValue, frozenset[Operation]] = {}
        for op in block.ops:
            if len(op.results) != 1:
                continue
            own: set[Operation] = {op}
            for operand in op.operands:
                own |= needs.get(operand, frozenset())
            needs[op.results[0]] = frozenset(own)
            found[op.results[0]] = fsum(op_cost(o) for o in own)  # rounded the same in every order
        return found

    @staticmethod
    def _roots(node: Node, shared: Mapping[SSAValue, None]) -> list[SSAValue]:
        """The shared values that something not shared uses, in their order: the first ones get what room there is."""
        found: list[SSAValue] = []
        for value in shared:
            users = (use.operation for use in value.uses)
            if any(not u.results or u.results[0] not in shared for u in users):
                found.append(value)
        return found

    def _skip_dead(self, node: Node, stores: bool = True) -> None:
        """Note the ops that nobody needs once the cached values are loaded (nor `stores`)."""
        block = node.op.regions[0].blocks[0]
        if not any(r in self.use for op in block.ops for r in op.results):
            return
        needed: set[SSAValue] = set()
        for op in reversed(list(block.ops)):
            effect = isinstance(op, (loop.BoundOp, loop.YieldOp)) or bool(op.regions)
            effect = effect or (stores and isinstance(op, loop.StoreOp))
            if not effect and not any(r in needed for r in op.results):
                self.skip.add(op)
            elif not any(r in self.use for r in op.results):
                needed.update(op.operands)

    # ---- lowering

    def _place(self, row: Row, node: Node) -> tuple[SSAValue, SSAValue]:
        """The address of the current lanes in a row."""
        s, b = self.s, self.s.b
        chosen = self.choice(node)
        assert chosen is not None
        if row.pointer is None:
            elements = self._row_elements(
                tuple(one.size.value or 0 for one in node.loops),
                next(k for k, one in enumerate(node.loops) if one is chosen[0]),
            )
            local = cpu.LocalOp.make(elements * element_bytes(row.dtype), 64)
            row.pointer = b.place(local, b.floor).results[0]
        stride: Expr = as_expr(1)
        offset: Expr = ZERO
        for one in (chosen[0], *(o for o in reversed(node.loops) if o is not chosen[0])):
            offset = offset + one.dim * stride
            size = one.size.value or 0
            stride = stride * (-(-size // LANE_COUNTS[0]) * LANE_COUNTS[0] if one is chosen[0] else size)
        s.pointers[row.pointer] = row.pointer
        return address(s, row.pointer, s.fix(offset), row.dtype)

    def store(self, value: SSAValue) -> None:
        """After `value` was computed: keep it, if somebody wants it."""
        found = self.define.get(value)
        if found is None:
            return
        base, at = self._place(*found)
        vector = self.s.get_vector(value)
        self.s.b.place(cpu.StoreOp.make(vector, base, at))

    def load(self, row: Row, node: Node, value: SSAValue) -> None:
        """Take a kept value."""
        s = self.s
        base, at = self._place(row, node)
        op = cpu.LoadOp.make(cpu.vec(s.width, row.dtype), base, at)
        s.values[value] = s.b.place(op).results[0]

    def begin_second(self, op: Operation) -> Iterable[SSAValue]:
        """The second pass of a reduction begins: values that it loads. `end_second` undoes it."""
        wanted = self.second.get(op, {})
        node = self.s.info.nodes[op]
        for value, row in wanted.items():
            self.define.pop(value, None)
            self.use[value] = (row, node)
        self._skip_dead(node, stores=False)
        return wanted

    def end_second(self, op: Operation) -> None:
        """The second pass is over."""
        node = self.s.info.nodes[op]
        for value, row in self.second.get(op, {}).items():
            self.use.pop(value, None)
            self.define[value] = (row, node)
        for inner in node.op.regions[0].blocks[0].ops:
            self.skip.discard(inner)
        self._skip_dead(node)
