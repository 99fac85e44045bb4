"""gpu-gather-sums: scatters that add up into zeros become sums of what each place gets, without atomic operations.

    loop.nest () outs(%zeros) {                                     loop.nest (%r = 32, %h) outs(%empty) {
      loop.for (%i, %j) {                                             %s = loop.reduce (%i, %j) sum {
        %p = loop.load %places[%i, %j]                                  %p = loop.load %places[%i, %j]
        loop.for (%h) {                                      ->         yield select(%p == %r, %x[%h, %i, %j], 0)
          loop.store %x[%h, %i, %j], %out[%p, %h] add                 }
        }                                                             loop.store %s, %out[%r, %h]
      }                                                             }
    }

Where the place follows from the loops (%i - %j + n), one of them follows from the place, and the sum goes through the others alone:

    %s = loop.reduce (%i) sum { %j = %i - %r + n ; yield %x[%h, %i, %j] if 0 <= %j < n else 0 }

So the gradient of a table of relative positions, or of the buckets of T5, is the same in each run. The price decides: of the additions as
atomic operations, and of all comparisons. `gpu-split-reduction` then cuts sums of few places into parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, f32, f64, i1, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Dim, Expr, dim, dims_subs, free_dims, linear_coeff, product
from ....dialects.expr.ranges import RangeEnv
from ....dialects.machine import has_fixed_order, is_repeatable
from ....dialects.nd.types import element_bytes
from ....dialects.support.replace import erase_op
from ...analysis.reduction_kinds import Cursor
from ...analysis.symbols import symbol_facts
from ...cost.library_cost import size
from ...cost.machine import Gpu, machine_of
from ...loop.fusion.placement import is_zeros
from ...loop.transform.loop_rewrite import Place, clone_into, compact, perfect_loops
from ...manager.pass_manager import Pass

COMPARED = (arith.CmpiOp, arith.SelectOp, arith.AddfOp)
"""What a term of a sum takes where its place is compared."""


@dataclass(frozen=True)
class _Scatter:
    """A nest of one store that adds. `loops`: all indices around it and how many there are; `body`: the operations that compute its value;
    `kept`: index -> the dimension of the result that it names; `place`: the dimension that is computed."""

    nest: loop.NestOp
    store: loop.StoreOp
    loops: dict[SSAValue, Expr]
    body: list[Operation]
    kept: dict[SSAValue, int]
    place: int

    @property
    def result(self) -> list[Expr]:
        return list(loop.shaped_dims(self.nest.outs[0].type))

    @property
    def index(self) -> Expr:
        """The place, in the operands of the store."""
        return self.store.index_map.results[self.place]

    @property
    def solved(self) -> tuple[SSAValue, int] | None:
        """A loop's index that follows from the place and the other indices, and the sign that it has there."""
        values = [self.store.index_operands[d.index] for d in free_dims(self.index)]
        if any(v not in self.loops for v in values):
            return None
        for d in sorted(free_dims(self.index), key=lambda d: d.index, reverse=True):
            value, step = self.store.index_operands[d.index], linear_coeff(self.index, d)
            if value not in self.kept and step is not None and step.value in (1, -1):
                return value, step.value
        return None

    @property
    def is_loaded(self) -> bool:
        """Whether the place is a number that the body computes."""
        return isinstance(self.index, Dim) and self.store.index_operands[self.index.index] not in self.loops


@dataclass(frozen=True)
class GpuGatherSums(Pass):
    """Makes sums of scatters."""

    name = "gpu-gather-sums"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, values = symbol_facts(op)
        hints = {str(symbol): n for symbol, n in values.items()}
        gpu = machine_of(op, Gpu)
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp)]:
            found = _scatter(nest)
            if found is None:
                continue
            added = size(product(found.loops.values()), hints)
            sums_ns, atomics_ns = _sums_ns(found, hints, gpu), added / gpu.rates.atomics_gs
            prices = f"(sums {sums_ns / 1e3:.4g} us, atomic operations {atomics_ns / 1e3:.4g} us)"
            if sums_ns > atomics_ns and (has_fixed_order(op) or not is_repeatable(op)):
                self.remark(nest, f"added with atomic operations: {prices}", kind="missed")
                continue
            self.remark(nest, f"each place sums up what it gets: {prices}", kind="applied")
            _write(found, symbols)
            self.statistic("num-sums")


def _scatter(nest: loop.NestOp) -> _Scatter | None:
    """A nest that adds up floats into zeros which nothing else reads, at places one dimension of which is computed."""
    if len(nest.results) != 1 or not is_zeros(nest.outs[0]) or len(list(nest.outs[0].uses)) != 1:
        return None
    chain = perfect_loops(nest)
    loops = {index: size for one in chain for index, size in zip(one.indices, one.loop_sizes, strict=True)}
    ops = [op for one in chain for op in one.block.ops if op not in chain]
    stores = [op for op in ops if isinstance(op, loop.StoreOp)]
    body = [op for op in ops if not isinstance(op, loop.StoreOp | loop.YieldOp)]
    if len(stores) != 1 or (store := stores[0]).store_mode != "add" or store.mask is not None or store.value.type not in (f32, f64):
        return None
    out = nest.out_args[0]
    if len(list(out.uses)) != 1 or loop.element_type(out.type) != store.value.type:
        return None
    if any(op.regions or (isinstance(op, loop.LoadOp) and op.mask is not None) for op in body):
        return None
    return _placed(nest, store, loops, body)


def _placed(nest: loop.NestOp, store: loop.StoreOp, loops: dict[SSAValue, Expr], body: list[Operation]) -> _Scatter | None:
    """The scatter, where all dimensions but one are loops over all of them."""
    kept, computed = dict[SSAValue, int](), list[int]()
    for k, (e, n) in enumerate(zip(store.index_map.results, loop.shaped_dims(nest.outs[0].type), strict=True)):
        value = store.index_operands[e.index] if isinstance(e, Dim) else None
        if value is not None and loops.get(value) is n and value not in kept:
            kept[value] = k
        else:
            computed.append(k)
    if len(computed) != 1:
        return None
    found = _Scatter(nest, store, loops, body, kept, computed[0])
    return found if found.solved is not None or found.is_loaded else None


def _sums_ns(found: _Scatter, hints: Mapping[str, int], gpu: Gpu) -> float:
    """The time of the sums: of their comparisons, or of what they read from the cache. Where indices are loaded, a program has one sum."""
    solved, results = found.solved, size(product(found.result), hints)
    gone = set(found.kept) | ({solved[0]} if solved else set())
    terms = results * size(product([n for index, n in found.loops.items() if index not in gone]), hints)
    width = sum(element_bytes(loop.element_type(op.source.type)) for op in found.body if isinstance(op, loop.LoadOp))
    computed = len(COMPARED) / (gpu.rates.tflops["f32"] * 1e3 / 2)
    starts = 0.0 if solved else results * gpu.rates.program_start_us * 1e3 / gpu.resident_programs
    return terms * max(computed, width / gpu.rates.cache_gbs) + starts


def _write(found: _Scatter, symbols: RangeEnv) -> None:
    """Put a nest of sums in the place of the scatter and of the zeros."""
    old, kind, solved = found.nest, found.store.value.type, found.solved
    filled = old.outs[0].owner
    assert isinstance(filled, loop.NestOp) and old.parent is not None
    nest = loop.NestOp.build_nest(found.result, filled.outs, old.location, old.label)
    rest = [index for index in found.loops if index not in found.kept and not (solved and index is solved[0])]
    reduce = loop.ReduceOp.build_reduce([found.loops[index] for index in rest], ["sum"], [kind], old.location)
    nest.block.add_op(reduce)
    places: dict[SSAValue, Place] = {index: (dim(0), [nest.indices[k]]) for index, k in found.kept.items()}
    places |= {index: (dim(0), [new]) for index, new in zip(rest, reduce.indices, strict=True)}
    for index, (_, (new,)) in places.items():
        new.name_hint = index.name_hint
    at = Cursor(reduce.block)
    counts = _solve(found, solved, places, nest.indices[found.place], at) if solved else None
    values: dict[SSAValue, SSAValue] = {}
    for op in found.body:
        made = at.place(clone_into(op, values, places, symbols))
        if counts is not None and isinstance(made, loop.LoadOp):
            values[op.results[0]] = _where(made, counts, at)
    if counts is None:
        assert isinstance(found.index, Dim)
        loaded = values[found.store.index_operands[found.index.index]]
        away = at.place(loop.IndexOp.new(dim(0) - dim(1), [loaded, nest.indices[found.place]], i64)).results[0]
        counts = at.compare("eq", away, at.constant(0, i64))
    term = at.select(counts, values.get(found.store.value, found.store.value), at.constant(0.0, kind))
    at.place(loop.YieldOp.create(operands=[term]))
    nest.store(reduce.results)
    old.parent.insert_op_before(nest, old)
    loop.take_uses(list(old.results), nest.results)
    loop.drop_nest(old)
    loop.drop_nest(filled)


def _where(load: loop.LoadOp, condition: SSAValue, at: Cursor) -> SSAValue:
    """A load in the place of another one, which reads nothing where a condition does not hold."""
    zero = at.constant(0, load.result.type)
    made = loop.LoadOp.new(load.source, load.index_map, list(load.index_operands), condition, zero, load.location)
    erase_op(load)
    return at.place(made).results[0]


def _solve(found: _Scatter, solved: tuple[SSAValue, int], places: dict[SSAValue, Place], place: SSAValue, at: Cursor) -> SSAValue:
    """Says in `places` where the index lies that follows from the place, and gives whether there is such an iteration."""
    index, sign = solved
    operands = list(found.store.index_operands)
    others = dims_subs(found.index, [ZERO if v is index else dim(k + 1) for k, v in enumerate(operands)])
    known = [place, *(place if v is index else places[v][1][0] for v in operands)]
    indices, values = compact([(dim(0) - others) * sign], known)
    (exact,), count = indices.results, found.loops[index]
    places[index] = exact, values
    number = at.place(loop.IndexOp.new(exact, values, i64)).results[0]
    behind = at.place(loop.IndexOp.new(count - exact - 1, values, i64)).results[0]
    zero = at.constant(0, i64)
    return at.emit(arith.AndIOp, (at.compare("sge", number, zero), at.compare("sge", behind, zero)), i1)
