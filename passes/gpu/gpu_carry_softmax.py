"""gpu-carry-softmax: products of a softmax of products by rows keep their scores on chip (attention).

    A: s[i, j] = sum_e q[i, e] * k[j, e]                                    loop.reduce (%j) softmax_dot {
    B: m[i] = max_j f(s[i, j]); p[i, j] = exp(f(s[i, j]) - m[i]);             %s = loop.reduce (%e) sum { q[i, e] * k[j, e] }
       l[i] = sum_j p[i, j]                                           ->      yield f(%s), v[j, d]
    C: o[i, d] = sum_j p[i, j] * (1 / l[i]) * v[j, d]                       }; o[i, d] = %dot * (1 / %sum)

What lies between the products and the exponentials (f) goes along as it is. Factors of a row behind the exponentials multiply the result;
those that each weight has of its own (dropout) the rows that are weighed, of which the kernel takes them to the weights again;
where a condition on the row makes its weights 0 (no score is finite), the result is 0. Numbers of a row that others read, too (logsumexp,
for training), are stored by the first iterations of the loops that they do not vary along. Exponentials that the program rounds to the
type of v are rounded before they are divided, by one reciprocal for a row. The counterpart in MLIR is `linalg_ext.online_attention` of
IREE, which is made from an operation that says attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import free_dims, product
from ...dialects.expr.ranges import RangeEnv, range_of
from ...dialects.machine import has_fixed_order
from ...dialects.support.replace import erase_op
from ..analysis.accesses.disjoint import separate_iterations
from ..analysis.nest_access import NestAccess
from ..analysis.reduction_kinds import Cursor
from ..analysis.schedule_attrs import CARRIED
from ..analysis.symbols import symbol_facts
from ..cost.contraction_price import MAX_WEIGHED_ELEMENTS
from ..cost.machine import Gpu, machine_of
from ..loop.fusion.placement import final_store, places_at
from ..loop.transform.loop_rewrite import clone_into, needed
from ..loop.transform.nest_transform import Refused
from ..manager.pass_manager import Pass
from .carried.mask_nests import compute_masks
from .carried.product_weights import carry_weights, check_weighed, stored_weights
from .carried.row_numbers import compute_where_read
from .carried.softmax_weights import SoftmaxWeights, same_row, softmax_weights
from .carried.term_writer import TermWriter, product_of, store_once
from .gpu_online_softmax import computed_alike
from .tiles.tile import Sizes

CASTS = (arith.ExtFOp, arith.TruncFOp)


@dataclass(frozen=True)
class GpuCarrySoftmax(Pass):
    """Keeps scores of attention on chip."""

    name = "gpu-carry-softmax"

    columns: int = MAX_WEIGHED_ELEMENTS
    """Columns of the rows that are weighed at most, which a program has all of; 0: scores stay in memory."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        funcs = [f for f in op.ops if isinstance(f, FuncOp)]
        wanted = [f.attributes.pop(CARRIED, None) for f in funcs]
        if not self.columns or not machine_of(op, Gpu).multiplies_halves:
            return
        for func, number in zip(funcs, wanted, strict=True):
            self._carry_scores(func, number.value.data if isinstance(number, IntegerAttr) else 0, symbols)
        nests = [n for n in op.walk() if isinstance(n, loop.NestOp) and n.results]
        self._carry_weights(nests, symbols, Sizes(hints), machine_of(op, Gpu) if has_fixed_order(op) else None)

    def _carry_scores(self, func: FuncOp, wanted: int, symbols: RangeEnv) -> None:
        """Attention of a function; a remark says where the nests of products that were chosen for it (`wanted`) have no such form."""
        seen = 0
        for nest in [n for n in func.walk() if isinstance(n, loop.NestOp)]:
            compute_masks(nest, symbols)
        for nest in [n for n in func.walk() if isinstance(n, loop.NestOp) and n.results]:
            found = softmax_weights(nest)
            if isinstance(found, SoftmaxWeights):
                seen += 1
                refused = _rewrite(nest, found, symbols, self.columns, machine_of(func, Gpu) if has_fixed_order(func) else None)
                self.remark(nest, refused or "scores are computed where their rows are weighed", kind="missed" if refused else "applied")
                if refused is None:
                    self.statistic("num-carried")
        if wanted > seen:
            why = "no nest stores weights of a softmax that another one weighs rows by"
            lost = f"scores are in memory though products were chosen to keep them on chip ({wanted - seen})"
            self.remark(func, f"{lost}: {why}", kind="missed")

    def _carry_weights(self, nests: list[loop.NestOp], symbols: RangeEnv, sizes: Sizes, in_order: Gpu | None) -> None:
        """Weights that are no softmax; `in_order`: see `_rewrite`. Some may be carried only when those are that are computed from them, by
        nests that sum up products of them only then: a round carries some, or is the last one."""
        carried, refused = True, dict[loop.NestOp, str]()
        while carried:
            carried, refused = False, {}
            left: list[loop.NestOp] = []
            for nest in (n for n in nests if n.parent is not None):
                if not (readers := stored_weights(nest)):
                    left.append(nest)
                    continue
                try:
                    count = carry_weights(nest, readers, symbols, sizes, self.columns, in_order)
                except Refused as why:
                    refused[nest] = str(why)
                    left.append(nest)
                    continue
                carried = True
                self.remark(nest, f"weights are computed where rows are weighed by them: kernels: {count}", kind="applied")
                self.statistic("num-carried")
            nests = left
        for nest, why in refused.items():
            self.remark(nest, why, kind="missed")


def _rewrite(nest: loop.NestOp, found: SoftmaxWeights, symbols: RangeEnv, columns: int, in_order: Gpu | None = None) -> str | None:
    """Make the nest that keeps its scores on chip; why not, if not. `in_order`: the GPU, where each sum is to have an order of its own."""
    producers = [found.storing, *_producers(found)]
    if len(producers) == 1:
        return "no scores: the exponents are no products of matrices"
    inside = {nest, *producers}
    leaving = [r for p in producers for r in p.results if any(loop.nest_around(use.operation) not in inside for use in r.uses)]
    if any((store := final_store(r)) is None or r.owner is not found.storing or store.parent is not found.storing.block for r in leaving):
        return "the weights or the scores are needed by others, too"
    leaving = compute_where_read({r: [o for u in r.uses if loop.nest_around(o := u.operation) not in inside] for r in leaving})
    made = _with_outs(nest, [found.storing.outs[list(found.storing.results).index(r)] for r in leaving])  # pyright: ignore[reportArgumentType]
    assert nest.parent is not None
    nest.parent.insert_op_before(made, nest)
    again = softmax_weights(made)
    assert again is not None
    try:
        early = _early_readers(made, leaving)
        stores = _Writer(made, again, symbols).write(dict(zip(leaving, made.out_args[len(nest.outs) :], strict=True)))
        info = check_weighed(made, symbols, columns, in_order)
        if any(loop.nest_around(v.owner.parent_op()) not in (None, made) for op in made.walk() for v in op.operands):
            raise Refused("the exponents need what the nest of the weights stores itself")
        if not all(_fills(info, store) for store in stores):
            raise Refused("numbers of rows are needed by others, too, and not each of its rows is one of the weights'")
    except Refused as refused:
        erase_op(made)
        return str(refused)
    for op in reversed(early):
        op.detach()
        nest.parent.insert_op_after(op, nest)
    loop.take_uses([*nest.results, *leaving], made.results)
    for op in (nest, *producers):
        loop.drop_nest(op)
    return None


def _with_outs(nest: loop.NestOp, outs: Sequence[SSAValue]) -> loop.NestOp:
    """A copy of a nest on tensors that stores to more of them."""
    made, values = loop.empty_copy(nest, (*nest.outs, *outs))
    for op in nest.block.ops:
        made.block.add_op(op.clone(values))
    return made


def _early_readers(nest: loop.NestOp, tensors: Sequence[SSAValue]) -> list[Operation]:
    """The nests in front of a nest that need tensors which it will give, directly or not."""
    values = set(tensors)
    found: list[Operation] = []
    for op in () if nest.parent is None else nest.parent.ops:
        if op is nest:
            break
        inner = (v for one in op.walk() for v in one.operands)
        if op not in {v.owner for v in tensors} and any(v in values for v in inner):
            found.append(op)
            values.update(op.results)
    needed_by_nest = any(v in values and v not in tensors for one in nest.walk() for v in one.operands)
    if needed_by_nest or any(not isinstance(op, loop.NestOp) for op in found):
        raise Refused("numbers of rows are needed in between")
    return found


def _fills(info: NestAccess, store: loop.StoreOp) -> bool:
    """Whether the iterations that store something store each element of a tensor, once."""
    access = info.access[store]
    loops = [one for one in info.root.loops if one.dim in free_dims(access.offset)]
    others = [one for one in info.root.loops if one not in loops]
    some = all((range_of(one.size, info.ranges).lo or 0) > 0 for one in others)
    every = product(one.size for one in loops) is product(loop.shaped_dims(store.target.type))
    return some and every and separate_iterations(access.offset, loops, info.opaque)


def _producers(found: SoftmaxWeights) -> list[loop.NestOp]:
    """The nests that store products which the scores are computed from."""
    loads = [op for op in needed([found.top.yielded[0]], found.top.block) if isinstance(op, loop.LoadOp)]
    return list(dict.fromkeys(made for op in loads if (made := product_of(op)) is not None))


class _Writer(TermWriter):
    """Puts the scores into the reduction that weighs by them."""

    def __init__(self, nest: loop.NestOp, found: SoftmaxWeights, symbols: RangeEnv):
        self.nest, self.found = nest, found
        old = found.reduce
        self.made = loop.ReduceOp.build_reduce(list(old.loop_sizes), ["softmax_dot"], [f32, f32, f32], old.location)
        nest.block.insert_op_before(self.made, old)
        super().__init__(nest, self.made, symbols)
        self.values[old.indices[0]] = self.made.indices[0]
        self.made.indices[0].name_hint = old.indices[0].name_hint

    def write(self, outs: Mapping[SSAValue, SSAValue]) -> list[loop.StoreOp]:
        """`outs`: where numbers of the row go that others need, by where they are; the stores to these are given."""
        found = self.found
        for op in needed([found.value], found.reduce.block):
            self.place(op, self.body)
        self.locate(found.load)
        exponent = found.top.yielded[0]
        self.values[found.top.indices[0]] = self.made.indices[0]
        for op in needed([exponent], found.storing.block, found.top.block):
            if isinstance(op, loop.LoopLike):
                raise Refused("the exponents are computed from the result of another loop over the row")
            if op.parent is found.top.block and isinstance(op, loop.LoadOp) and product_of(op) is not None:
                self.values[op.result] = self.element(op)
            else:
                self.place(op, self.body if op.parent is found.top.block else self.row)
        weighed = self.values.get(found.value, found.value)
        for factor in self._factors():
            weighed = self.body.emit(arith.MulfOp, (factor, weighed), f32, fastmath=arith.FastMathFlagsAttr("none"))
        self.body.place(loop.YieldOp.create(operands=[self.values.get(exponent, exponent), weighed]))
        self.after = Cursor(self.nest.block, found.reduce)
        self._rows()
        stores = [self._stored(tensor, out) for tensor, out in outs.items()]
        erase_op(found.reduce)
        self.finish()
        return stores

    def _factors(self) -> list[SSAValue]:
        """What each weight is multiplied by behind its exponential, in the body."""
        found, made = self.found, list[SSAValue]()
        scores = {found.storing, *_producers(found)}
        for factor, block in found.scales.each:
            around = block.parent_op()
            assert isinstance(around, loop.LoopLike)
            self.values[around.indices[0]] = self.made.indices[0]
            blocks = (block,) if around is found.reduce else (found.storing.block, block)
            for op in needed([factor], *blocks):
                if isinstance(op, loop.LoopLike) or (isinstance(op, loop.LoadOp) and op.source.owner in scores):
                    raise Refused("a factor of a weight is computed of scores")
                if op.results[0] not in self.values:
                    self.place(op, self.body if op.parent is block else self.row)
            made.append(self.values.get(factor, factor))
        return made

    def _rows(self) -> None:
        """What the nest knows of the row stands behind the reduction, then the scaled sums."""
        found, storing = self.found, self.found.storing
        known = self._known()
        read: dict[SSAValue, SSAValue] = {}
        for op in list(self.nest.block.ops):
            if isinstance(op, loop.LoadOp) and op.source.owner is storing:
                store = final_store(op.source)
                if store is None or store.parent is not storing.block or not self._is_row(op, store):
                    raise Refused("it reads more than its own row of what goes with the weights")
                read[op.result] = self._row_value(store.value, known)
                op.result.replace_all_uses_with(read[op.result])
                erase_op(op)
        _move_behind(self.made, found.reduce)
        total = self.made.results[2]
        for cls, by in reversed(found.scales.rows):
            of_weights = isinstance(by.owner, Operation) and by.owner.parent is storing.block
            value = self._row_value(by, known) if of_weights else read.get(by, by)
            if cls is arith.DivfOp and value is self.made.results[1]:  # which is 1 or more, or of a row without a score
                one = self.after.place(arith.ConstantOp(FloatAttr(1.0, f32))).results[0]
                value, cls = self.after.emit(cls, (one, value), f32, fastmath=arith.FastMathFlagsAttr("none")), arith.MulfOp
            if cls is arith.SelectOp:
                zero = self.after.place(arith.ConstantOp(FloatAttr(0.0, f32))).results[0]
                total = self.after.emit(cls, (value, zero, total), f32)
            else:
                total = self.after.emit(cls, (total, value), f32, fastmath=arith.FastMathFlagsAttr("none"))
        found.reduce.results[0].replace_all_uses_with(total)

    def _stored(self, tensor: SSAValue, out: SSAValue) -> loop.StoreOp:
        """A number of the row that others need is stored, once."""
        store, known, at = final_store(tensor), self._known(), self.after
        assert store is not None
        top, total = self.made.results[:2]
        sums = {old for old, new in known.items() if new is total}
        used = [store.value, *(v for op in needed([store.value], self.found.storing.block, known=known) for v in op.operands)]
        if not sums.isdisjoint(used):  # inf - inf is NaN
            size = at.emit(mlir_math.AbsFOp, (top,), f32, fastmath=arith.FastMathFlagsAttr("none"))
            infinite = at.compare("oeq", size, at.constant(math.inf, f32))
            known.update(dict.fromkeys(sums, at.select(infinite, at.constant(math.nan, f32), total)))
        value = self._row_value(store.value, known)
        copied = clone_into(store, {**self.values, store.value: value, store.target: out}, self.places, self.symbols)
        assert isinstance(copied, loop.StoreOp)
        return store_once(copied, [index for index in self.nest.indices if index not in copied.index_operands], at)

    def _is_row(self, op: loop.LoadOp, store: loop.StoreOp) -> bool:
        """Whether a load of the nest reads what belongs to the row of its weights."""
        weights, load = final_store(self.found.load.source), self.found.load
        assert weights is not None
        at: dict[SSAValue, object] = {}
        for one, read in ((weights, load), (store, op)):
            for index, (place, operands) in places_at(one, read).items():
                key = place, [operands[d.index] for d in sorted(free_dims(place), key=str)]
                if at.setdefault(index, key) != key:
                    return False
        return True

    def _known(self) -> dict[SSAValue, SSAValue]:
        """The maximum and the sum of the exponentials in the nest that stores the weights."""
        found = self.found
        known: dict[SSAValue, SSAValue] = {found.top.results[0]: self.made.results[0]}
        row = found.inside.parent_op()
        assert isinstance(row, loop.LoopLike)
        for op in found.storing.block.ops:
            if isinstance(op, loop.ReduceOp) and op.kind_names == ["sum"] and same_row(op, row):
                if computed_alike(op.yielded[0], found.power.result, dict(zip(op.indices, row.indices, strict=True))):
                    known[op.results[0]] = self.made.results[1]
        return known

    def _row_value(self, value: SSAValue, known: dict[SSAValue, SSAValue]) -> SSAValue:
        """A number of the row of the nest that stores the weights, computed behind the reduction."""
        values = {**self.values, **known}
        for op in needed([value], self.found.storing.block, known=known):
            if isinstance(op, loop.LoopLike):
                raise Refused("a number of the row is the result of another loop over it")
            self.after.place(clone_into(op, values, self.places, self.symbols))
        return values.get(value, value)


def _move_behind(made: loop.ReduceOp, old: loop.ReduceOp) -> None:
    """Put what uses the results of a reduction, directly or not, between it and the one that it replaces, in an order that holds."""
    block = made.parent
    assert block is not None
    late = set(made.results)
    waiting: list[Operation] = []
    before = [op for op in takewhile(lambda op: op is not old, block.ops) if op is not made]
    for _ in before:
        more = [op for op in before if op not in waiting and any(v in late for v in op.operands)]
        waiting += more
        late.update(r for op in more for r in op.results)
    while waiting:
        ready = [op for op in waiting if not any(v.owner in waiting for v in op.operands)]
        for op in ready:
            op.detach()
            block.insert_op_before(op, old)
        waiting = [op for op in waiting if op not in ready]
