"""The schedule that costs least: parallel loops, tiles, lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, StringAttr
from xdsl.ir import Attribute, Operation

from ...dialects import loop
from ...dialects.expr import Expr, free_dims, linear_coeff
from ...dialects.machine import has_fixed_order
from ...dialects.nd.types import element_bytes
from ..analysis.nest_access import Access, Loop, NestAccess, Node
from ..analysis.schedule_attrs import is_fixed, schedule_table, tile_sizes
from .loops_inside import loops_inside
from .nest_cost import (
    LANE_COUNTS,
    MAX_HALF_LANES_VALUES,
    MAX_WIDE_OPS,
    MIN_STEP_UNITS,
    MIN_TILE_TRIPS,
    MIN_WIDE_TRIPS,
    NS_PER_UNIT,
    SERIAL_NS,
    UNROLL_OPS,
    VECTOR_LANES,
    WIDEST_LANES,
    Cost,
    Schedule,
    _loop_at,
    _number,
)
from .window_reuse import window_reuses


def serial_dims(cost: Cost) -> frozenset[Expr]:
    """Dimensions of the nest's loops whose iterations may combine into the same element."""
    found: set[Expr] = set()
    for access in cost.info.root.all_accesses():
        if access.mode != "set":
            found |= {one.dim for one in cost.info.root.loops if not cost.injective(access, one.dim)}
    return frozenset(found)


def grain_of(nest: Operation, default: int = SERIAL_NS) -> int:
    """Nanoseconds of a nest's work that are worth a thread: what its schedule says."""
    given = schedule_table(nest).get("grain")
    return given.value.data if isinstance(given, IntegerAttr) else default


def choose(info: NestAccess, hints: Mapping[Expr, int], grain: int = SERIAL_NS) -> Schedule:
    """The schedule of a nest: what its attributes say, the cheapest where they are silent; `grain` of those that do not say theirs."""
    cost = Cost(info, hints)
    table = schedule_table(info.nest)
    best = _cheapest(cost, table)
    root = info.root
    best.fixed, best.ordered = is_fixed(info.nest), has_fixed_order(info.nest)
    best.tiles = _tile_dims(root, tile_sizes(table))
    if best.style == "lanes" and not root.children and best.vector is not None and not best.fixed:
        best.inside = loops_inside(cost, best.vector, best.lanes)
    best.windows = window_reuses(info, best, UNROLL_OPS, MAX_HALF_LANES_VALUES)
    if best.windows:
        best.lanes = min(best.lanes, VECTOR_LANES)
        best.inside = frozenset(one.dim for one in root.loops if one.dim in best.windows)
    lanes = table.get("lanes")
    if isinstance(lanes, IntegerAttr):
        best.lanes = lanes.value.data
    best.free = any(one.dim not in best.serial for one in root.loops) or bool(root.children and not best.serial)
    best.grain = grain_of(info.nest, grain)
    threads = table.get("parallel")
    if isinstance(threads, IntegerAttr):
        best.parallel = bool(threads.value.data)
    else:
        best.parallel = best.free and best.cost * NS_PER_UNIT >= 2 * best.grain
    return best


def has_few_units(cost: Cost, schedule: Schedule) -> bool:
    """Whether the loops of the nest are too few for threads, so that these share the reductions inside."""
    root = cost.info.root
    if schedule.ordered or schedule.serial or not root.children or cost.info.local:
        return False
    units = 1.0
    for one in root.loops:
        size = cost.size(one.size)
        units *= -(-size // schedule.lanes) if one is schedule.vector else size
    return units < MIN_STEP_UNITS


def _tile_dims(root: Node, sizes: Sequence[int]) -> dict[Expr, int]:
    """The loops that run in tiles: those that are longer than one."""
    found: dict[Expr, int] = {}
    for one in root.loops:
        size = sizes[one.positions[0]] if one.positions and one.positions[0] < len(sizes) else 0
        if size > 0 and (one.size.value is None or one.size.value > size):
            found[one.dim] = size
    return found


def _cheapest(cost: Cost, table: Mapping[str, Attribute]) -> Schedule:
    """The cheapest candidate of those that the schedule's `vector` and `tile` allow."""
    root = cost.info.root
    serial = serial_dims(cost)
    trips = cost.trips(root.loops)
    wanted, tile = table.get("vector"), table.get("tile")
    piece = table.get("piece")
    outwards = piece.value.data if isinstance(piece, IntegerAttr) else 0
    named = _loop_at(root, wanted.value.data, outwards) if isinstance(wanted, IntegerAttr) else None
    candidates: list[Schedule] = []
    if not cost.info.local and not (isinstance(wanted, StringAttr) and wanted.data == "inner"):
        for one in root.loops:
            if one.dim in serial or not one.positions or cost.size(one.size) < 2 or named not in (None, one):
                continue
            width = cost.lanes(root, one)
            if root.children and width == LANE_COUNTS[0]:
                width = _column_lanes(root, one, cost)
            total = trips * cost.node(root, one.dim, width, cost.size(one.size))
            candidates.append(Schedule("lanes", one, None, width, cost=total, serial=serial))
        candidates += _tiles(cost, serial, trips)
    if named is not None:
        rows = _loop_at(root, tile.value.data) if isinstance(tile, IntegerAttr) else None
        candidates = [c for c in candidates if c.vector is named and c.tile is rows]
    if named is None or not candidates:
        once = sum(cost.best(child)[0] for child in root.children if child.op in cost.info.repeated)
        inner = Schedule("inner", cost=trips * (cost.node(root, None, 0, 1) - once) + once, serial=serial)
        for child in root.children:
            inner.inner.update(cost.best(child)[1])
        candidates.insert(0, inner)
    return min(candidates, key=lambda c: c.cost)


def _column_lanes(root: Node, one: Loop, cost: Cost) -> int:
    """Lanes of a reduction along other loops: wide, so that a row of accumulators uses whole cache lines."""
    heavy = sum(n.num_ops for n in root.walk()) > MAX_WIDE_OPS
    if any(isinstance(n.op, loop.ReduceOp) and cost.trips(n.loops) > MIN_WIDE_TRIPS for n in root.walk()) and not heavy:
        size = one.size.value
        return WIDEST_LANES if size is None or size >= WIDEST_LANES else LANE_COUNTS[0]
    return LANE_COUNTS[0]


def _tiles(cost: Cost, serial: frozenset[Expr], trips: float) -> list[Schedule]:
    """Tiles for a nest without inner loops in which two loops each are the fastest of some accesses."""
    root = cost.info.root
    if root.children or any(a.mode != "set" or a.op.properties.get("masked") is not None for a in root.accesses):
        return []
    fastest: dict[Expr, int] = {}
    for access in root.accesses:
        if free_dims(access.offset) & cost.info.opaque.keys():
            return []
        for one in root.loops:
            stride = linear_coeff(access.offset, one.dim)
            if stride is None:
                return []
            if stride.value == 1:
                fastest[one.dim] = fastest.get(one.dim, 0) + 1
    named = [one for one in root.loops if _number(root, one) is not None]
    loops = [one for one in named if one.dim in fastest and cost.size(one.size) >= MIN_TILE_TRIPS and one.dim not in serial]
    found: list[Schedule] = []
    for lanes in loops:
        for rows in loops:
            if lanes is rows or not _tiles_well(cost, lanes, rows):
                continue
            idle = VECTOR_LANES / min(VECTOR_LANES, cost.size(lanes.size))
            short = 0.75 + 0.25 * VECTOR_LANES / min(VECTOR_LANES, cost.size(rows.size), cost.size(lanes.size))
            total = trips * idle * root.num_ops / 16
            for access in root.accesses:
                stride = linear_coeff(access.offset, rows.dim)
                total += trips * (short * _across(access) if stride is not None and stride.value == 1 else 0.09 * idle)
            found.append(Schedule("tile", lanes, rows, 16, cost=total, serial=serial))
    return found


def _across(access: Access) -> float:
    """Cost for each element of an access that is transposed in registers: narrow elements take fewer shuffles, and reads in long rows
    with short writes are faster than the opposite (docs/lab/constants.md)."""
    cost = {1: 0.16, 2: 0.18}.get(element_bytes(access.dtype), 0.25)
    return 0.93 * cost if access.is_store else cost


def _tiles_well(cost: Cost, lanes: Loop, rows: Loop) -> bool:
    """Whether every access is along the lanes, along the rows, or the same along one of them."""
    crossed = False
    for access in cost.info.root.accesses:
        a, b = linear_coeff(access.offset, lanes.dim), linear_coeff(access.offset, rows.dim)
        assert a is not None and b is not None
        if element_bytes(access.dtype) not in (1, 2, 4):
            return False
        if b.value == 1 and a.value not in (0, 1):
            crossed = True
        elif a.value not in (0, 1) and b.value != 0:
            return False
        elif a.value not in (0, 1):
            return False
    return crossed
