"""What a nest costs on the CPU under a schedule, in units of one vector operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IntegerAttr, IntegerType, StringAttr, f64
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Dim, Expr, evaluate, free_dims, free_syms, linear_coeff
from ...dialects.nd.types import element_bytes
from ..analysis.accesses.neighbours import Adjacency, shuffles
from ..analysis.accesses.varying import Varying
from ..analysis.accesses.wrapped import wrap_of
from ..analysis.dependences import memory_of
from ..analysis.needed_terms import needed_terms, solved_for
from ..analysis.nest_access import Access, Loop, NestAccess, Node
from ..analysis.symbols import DEFAULT_SIZE
from .machine.accesses import ACCESSES
from .machine.cpu import SERVER

if TYPE_CHECKING:
    from .window_reuse import WindowReuse

NS_PER_UNIT = SERVER.unit_ns
"""Time of one operation on 16 lanes of 32 bits, data in the nearest cache."""
WORD_BYTES = 4
"""Bytes of the usual element: four registers of 16 of them are the first of LANE_COUNTS."""
REGISTER_BYTES = SERVER.register_bytes
"""Bytes of the widest vector register."""
VECTOR_LANES = REGISTER_BYTES // WORD_BYTES
"""Usual elements in it; the rows and lanes of a tile that is transposed. Lanes that a tile does not have idle."""
LANE_COUNTS = (64, 32, 16, 8, 4)
WIDEST_LANES = 2 * LANE_COUNTS[0]
"""Lanes of a reduction along other loops: 512 bytes of accumulators of 32 bits are eight whole cache lines."""
MIN_TILE_TRIPS = 4
"""Loops of fewer iterations are not transposed in tiles: strided loads of them are shuffles."""
UNROLL_TRIPS = 32
UNROLL_OPS = 256
"""Loops inside of a vector loop that make at most so many iterations, and so many operations in all, are unrolled."""
SERIAL_NS = 4000
"""Work below this is not worth a second thread."""
LINE_BYTES = SERVER.line_bytes
"""Bytes of a cache line."""
MIN_STEP_UNITS = 2
"""With fewer units of work in the loops of a nest, threads share the reductions in it."""
MAX_FULL_LANES_VALUES, MAX_HALF_LANES_VALUES, MAX_ROW_LANES_VALUES = 7, 12, 14
"""With more values alive at once than this there are half as many lanes, and a quarter: about what 32 registers hold at four for each
value, and at two. A row that one vector holds keeps all its lanes up to the last number: what depends on it alone is computed once."""
MAX_WIDE_OPS, MIN_WIDE_TRIPS = 12, 32
"""A reduction along other loops is wide where its nest has no more operations than the one (their values would not fit the registers) and
it sums more rows than the other (what follows each row of accumulators would weigh more)."""
MAX_STRIDE, MAX_WIDE_STRIDE = 8, 4
"""Loads with steps up to this from lane to lane are consecutive vectors and shuffles, others gathers; elements of 64 bits: the second."""


@dataclass
class Schedule:
    """How a nest runs. `style`: "lanes" (a loop of the nest along the lanes), "inner" (the loops inside each choose),
    "tile" (square tiles transposed in registers, lanes along `vector`, rows along `tile`)."""

    style: str
    vector: Loop | None = None
    tile: Loop | None = None
    lanes: int = 64
    inner: dict[Node, tuple[Loop, int] | None] = field(default_factory=dict)
    parallel: bool = True
    free: bool = True
    """Whether threads may share the nest, were it long enough."""
    grain: int = SERIAL_NS
    """Nanoseconds of work that are worth a thread."""
    cost: float = 0.0
    inside: frozenset[Expr] = frozenset()
    """Style "lanes": the dimensions of the loops that run inside of the vector loop, because much does not depend on them."""
    windows: dict[Expr, WindowReuse] = field(default_factory=dict)
    """Style "lanes": loops (by dimension) several iterations of which run together, because their windows share elements."""
    fixed: bool = False
    """The loops of the nest run in the order in which they are written, those after the vector loop inside of it."""
    tiles: dict[Expr, int] = field(default_factory=dict)
    """Loops (by dimension) that run in tiles, with the iterations of one."""
    ordered: bool = False
    """The order of a reduction depends on nothing but its terms: threads do not share it, and its last vector is as wide as the others."""
    serial: frozenset[Expr] = frozenset()
    """Dimensions whose iterations may write the same element: neither threads nor lanes."""


def is_shuffled(step: int, size: int) -> bool:
    """Whether a load of elements of `size` bytes with a step from lane to lane is consecutive vectors and shuffles."""
    return 2 <= step <= (MAX_STRIDE if size <= WORD_BYTES else MAX_WIDE_STRIDE)


class Cost:
    """The cost model over one nest; sizes that are symbols count with their hints."""

    def __init__(self, info: NestAccess, hints: Mapping[Expr, int]):
        self.info = info
        self.hints = hints
        self.varying = Varying(info)
        self.written = {memory_of(a.buffer) for a in info.root.all_accesses() if a.is_store}
        self._groups: dict[tuple[Block, Expr], Mapping[Operation, object]] = {}
        self._weights: dict[Node, tuple[int, int]] = {}
        self._bounds: dict[Node, list[tuple[Expr, int]]] = {}
        self._best: dict[Node, tuple[float, dict[Node, tuple[Loop, int] | None]]] = {}

    def size(self, e: Expr) -> int:
        if e.value is not None:
            return e.value
        known = {s: self.hints.get(s, DEFAULT_SIZE) for s in free_syms(e)}
        return max(1, evaluate(e, known))

    def trips(self, loops: Sequence[Loop]) -> float:
        total = 1.0
        for one in loops:
            total *= max(1, self.size(one.size))
        return total

    def roots(self, e: Expr) -> frozenset[Expr]:
        """The loop dimensions that `e` depends on, through loaded indices too."""
        return self.varying.of(e)

    def access(self, access: Access, lanes_dim: Expr, width: int, mode_serial: bool) -> float:
        """Cost for each lane-element of one access when `lanes_dim` runs along the lanes; a unit is an op on 16 lanes
        of 32 bits."""
        size = element_bytes(access.dtype)
        unit = max(1.0, size / 4) / 16 if size >= 4 else 0.75 / 16
        roots = self.roots(access.offset)
        if lanes_dim not in roots:
            return 0.1 / 16 if not access.is_store else 1.0 / 16
        if mode_serial:
            return 2.0
        own = free_dims(access.offset)
        stride = linear_coeff(access.offset, lanes_dim) if lanes_dim in own else None
        if any(d in self.info.opaque and lanes_dim in self.roots(d) for d in own):
            stride = None
        if stride is None:
            plain = not access.is_store and access.op.mask is None and own.isdisjoint(self.info.opaque)
            if plain and wrap_of(access.offset, lanes_dim, width, self.info.ranges) is not None:
                return unit * ACCESSES.wrapped_load
            return ACCESSES.strided_store if access.is_store else 0.6
        if stride.value == 1:
            return unit * (2 if access.is_store else 1)
        if stride.value is not None and is_shuffled(stride.value, size) and not access.is_store:
            return min(size / WORD_BYTES / 16 * (2 * stride.value - 1), self._strided(stride, size, width, access.is_store))
        if stride.value == -1 and not access.is_store:
            return unit * 2
        if access.is_store and self._fills(access, lanes_dim, width):
            assert stride.value is not None
            return unit * (2 + shuffles(stride.value))
        if access.mode != "set":
            return 2.3
        return self._strided(stride, size, width, access.is_store)

    def _fills(self, access: Access, lanes: Expr, width: int) -> bool:
        """Whether a strided store and its neighbours are stored together, as whole vectors."""
        block = access.op.parent
        assert block is not None and isinstance(lanes, Dim)
        groups = self._groups.get((block, lanes))
        if groups is None:
            groups = self._groups[block, lanes] = Adjacency(self.info, lanes, width).groups(block)
        return access.op in groups

    def _strided(self, stride: Expr, size: int, width: int, is_store: bool) -> float:
        """A load or store whose address moves by `stride` elements of `size` bytes from lane to lane: for a load a part for the gather, one
        for the share of a line that each lane needs, since its neighbours come later; and far more where the lines do not stay in the
        first cache until then, because they all belong to a few of its sets. See docs/lab/cost-model.md."""
        step = size * (abs(stride.value) if stride.value is not None else 1 if free_dims(stride) else self.size(stride))
        period = int(SERVER.levels[0].bytes) // SERVER.cache_ways
        if step >= LINE_BYTES and width > SERVER.cache_ways * (period // gcd(step, period)):
            return ACCESSES.evicted_store if is_store else ACCESSES.evicted_load
        if is_store:
            return ACCESSES.strided_store
        return 0.35 + 0.2 * min(1.0, step / LINE_BYTES)

    def node(self, node: Node, lanes: Expr | None, width: int, size: int) -> float:
        """Cost of one run of the body of `node`, all inside included, for one lane-element (or for one run, without
        lanes)."""
        if lanes is None:
            total = self.scalar(node)
            for child in node.children:
                total += self.best(child)[0]
            return total
        # a vector is never narrower than 4 lanes in effect, and the rest of the last one idles
        idle = max(1.0, 8 / max(1, size))
        total = node.num_ops * idle / 16
        kept = self._unrolled_in(node)
        for access in node.accesses:
            cost = self.access(access, lanes, width, access.mode != "set" and not self.injective(access, lanes))
            if kept is not None and memory_of(access.buffer) not in self.written and self.roots(access.offset).isdisjoint(kept):
                cost = min(cost, cost / self.trips(node.parent.loops) + 1 / 16)  # pyright: ignore[reportOptionalMemberAccess]
            total += idle * cost
        for child in node.children:
            total += self.terms(child, lanes) * self.node(child, lanes, width, size)
        return total

    def terms(self, node: Node, lanes: Expr) -> float:
        """How many iterations a loop inside of one along the lanes makes. Of terms that loaded numbers bound at one end it makes half of
        all, where these are the same for all lanes; else all."""
        trips = self.trips(node.loops)
        if len(node.loops) != 1 or not isinstance(node.op, loop.ReduceOp):
            return trips
        found = self._bounds.get(node)
        if found is None:
            loaded = [e for e in needed_terms(self.info, node) if not free_dims(e).isdisjoint(self.info.opaque)]
            solved = [(e, solved_for(e, node.loops[0].dim)) for e in loaded]
            found = self._bounds[node] = [(e, one[0]) for e, one in solved if one is not None]
        return trips / 2 ** len({sign for e, sign in found if lanes not in self.roots(e)})

    def _unrolled_in(self, node: Node) -> set[Expr] | None:
        """The dimensions of the loop around a loop that is unrolled in it: what the latter loads and does not depend on them is loaded
        once, before that loop, and kept. None where there is no such loop."""
        parent = node.parent
        if parent is None or parent.parent is None:
            return None
        trips = self.trips(node.loops)
        if trips > UNROLL_TRIPS or trips * (node.num_ops + 2) > UNROLL_OPS:
            return None
        return {one.dim for one in parent.loops}

    def scalar(self, node: Node) -> float:
        """Cost of the ops directly in a body that runs as scalar code. A combining store waits for the one before it."""
        waits = sum(1 for a in node.accesses if a.mode != "set")
        return 0.7 * len(node.accesses) + 0.3 * node.num_ops + 8.0 * waits

    def injective(self, access: Access, d: Expr) -> bool:
        """Whether different indices of loop `d` surely write different elements."""
        own = free_dims(access.offset)
        if d not in own or any(d in self.roots(o) for o in own if o in self.info.opaque):
            return False
        stride = linear_coeff(access.offset, d)
        return stride is not None and stride is not ZERO

    def best(self, node: Node) -> tuple[float, dict[Node, tuple[Loop, int] | None]]:
        """The cheapest way to run an inner loop op from scalar code: one of its loops along the lanes, or none."""
        found = self._best.get(node)
        if found is None:
            found = self._best[node] = self._choose(node)
        return found

    def _choose(self, node: Node) -> tuple[float, dict[Node, tuple[Loop, int] | None]]:
        sequential = isinstance(node.op, loop.ForOp) and node.op.sequential is not None
        scan = isinstance(node.op, loop.ScanOp)
        trips = self.trips(node.loops)
        children = {child: self.best(child) for child in node.children}
        cost = trips * (self.scalar(node) + sum(c for c, _ in children.values()) + 0.5)
        choice: dict[Node, tuple[Loop, int] | None] = {node: None}
        for _, inner in children.values():
            choice.update(inner)
        given = _given_loop(node)
        for one in node.loops:
            if given is False or (given is not None and one is not given) or _number(node, one) is None:
                continue
            if not self._keeps_order(node, one) if sequential else any(self._meets(node, one.dim)):
                continue
            size = self.size(one.size)
            if size < 2:
                continue
            width = self.lanes(node, one)
            found = trips * self.node(node, one.dim, width, size)
            found += _joining(node.op) * trips / size if isinstance(node.op, loop.ReduceOp) else 0
            found *= 2 if scan else 1
            if found < cost or given is one:
                cost = found
                choice = {node: (one, width)}
        return cost, choice

    def _keeps_order(self, node: Node, one: Loop) -> bool:
        """Whether a loop whose iterations run in order may run along the lanes: lanes that combine into one element do so one after the
        other, those that overwrite one too; what is loaded must not have been stored in the loop."""
        stores = [a for a in node.all_accesses() if a.is_store]
        memory = {memory_of(a.buffer) for a in stores}
        if one is not node.loops[-1] or len(memory) != len(stores):
            return False
        if any(not a.is_store and memory_of(a.buffer) in memory for a in self.info.root.all_accesses()):
            return False
        return not node.children or all(a.mode != "set" for a in stores)

    def _meets(self, node: Node, d: Expr) -> list[bool]:
        return [True for a in node.all_accesses() if a.mode != "set" and not self.injective(a, d)]

    def lanes(self, node: Node, one: Loop) -> int:
        """How many lanes: four registers of the usual type, fewer where many or wide values are alive at once."""
        given = node.op.attributes.get("lanes")
        if isinstance(given, IntegerAttr):
            return given.value.data
        widest, alive = self.weight(node)
        lanes = LANE_COUNTS[0] if widest <= WORD_BYTES else LANE_COUNTS[1]
        if alive > MAX_HALF_LANES_VALUES:
            lanes //= 4
        elif alive > MAX_FULL_LANES_VALUES:
            lanes //= 2
        short = node.parent is None and one.size.value is not None and one.size.value <= LANE_COUNTS[0]
        if short and widest <= WORD_BYTES and alive <= MAX_ROW_LANES_VALUES:
            lanes = LANE_COUNTS[0]  # one vector holds the row: what depends on it alone is computed once
        if one.size.value is not None:
            while lanes > 4 and lanes // 2 >= one.size.value:
                lanes //= 2
        return max(4, lanes)

    def weight(self, node: Node) -> tuple[int, int]:
        """(bytes of the widest value, most values alive at once) in the bodies of `node`."""
        found = self._weights.get(node)
        if found is None:
            found = self._weights[node] = _weight(node.op, self.info)
        return found


def _joining(op: loop.ReduceOp) -> float:
    """Cost of joining the lanes of a reduction's accumulators (docs/lab/constants.md); a maximum keeps NaN, too."""
    return sum(ACCESSES.joins.get(kind, 10.0) for kind in op.kind_names)


def _weight(op: Operation, info: NestAccess) -> tuple[int, int]:
    widest, most = 4, 0
    for region in op.regions:
        for block in region.blocks:
            alive: set[SSAValue] = set()
            for inner in reversed(list(block.ops)):
                for result in inner.results:
                    alive.discard(result)
                if inner.regions:
                    w, m = _weight(inner, info)
                    widest, most = max(widest, w), max(most, m + len(alive))
                if isinstance(inner, loop.IndexOp):
                    continue
                for value in (*inner.operands, *inner.results):
                    t = value.type
                    if t == f64 or (isinstance(t, IntegerType) and t.width.data == 64 and value not in info.exprs):
                        widest = 8
                for operand in inner.operands:
                    owner = operand.owner
                    if isinstance(owner, Operation) and owner.parent is block and operand not in info.exprs:
                        alive.add(operand)
                most = max(most, len(alive))
    return widest, most


def _given_loop(node: Node) -> Loop | bool | None:
    """The loop that the IR names for the lanes (attribute `vector`), False for "none", None where nothing is said."""
    attr = node.op.attributes.get("vector")
    if isinstance(attr, StringAttr) and attr.data == "none":
        return False
    if isinstance(attr, IntegerAttr):
        return _loop_at(node, attr.value.data)
    return None


def _loop_at(node: Node, position: int, piece: int = 0) -> Loop | None:
    """A piece of the loop at `position` of the op: the innermost, or the one `piece` further out, as far as there are any."""
    pieces = [one for one in reversed(node.loops) if position in one.positions]
    return pieces[min(max(piece, 0), len(pieces) - 1)] if pieces else None


def _number(node: Node, one: Loop, piece: int = 0) -> int | None:
    """The position of a loop of the op of which another one is that piece."""
    return next((p for p in reversed(one.positions) if _loop_at(node, p, piece) is one), None)


def _name(node: Node, one: Loop) -> tuple[int, int]:
    """The position of a loop of the op, and which piece of it another one is, as near to the innermost as can be."""
    return next((p, piece) for piece in range(len(node.loops)) if (p := _number(node, one, piece)) is not None)
