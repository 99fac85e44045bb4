"""nd-weigh-rows: attention and its gradients on the CPU keep no scores in memory, whatever a program computes of them.

    %s = nd.matmul %q, %k ; %x = f(%s) ; %p = softmax(%x) ; %o = nd.matmul %p, %v    ->    %o = weighed rows of %v, by @terms0 = f
    %s = nd.matmul %q, %k ; %t = nd.matmul %g, %v ; %w = f(%s, %t)                   ->    %dq = weighed rows of %k, by @terms1 = f
    %dq = nd.matmul %w, %k ; %dk = nd.matmul (nd.permute %w), %q                           %dk = weighed rows of %q, by @terms2

f becomes a private function (terms.py) that later stages lower as any other: mem-term-blocks makes it one of blocks of scores in the cache,
and finds the blocks in which it hides all. What the call means: passes/analysis/weighed_calls.py. The counterpart
in MLIR is `linalg_ext.online_attention`.

Attention without anything but a scale, a causal mask or numbers that are added is a call before that (nd-attention).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, bf16, f16, f32, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, exact_quotient, product
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp, CmpOp, PointwiseOp, SelectOp
from ....dialects.nd.types import TensorType, tensor_type
from ...analysis.symbols import symbol_hints
from ...analysis.weighed_calls import weighed_call
from ...cost.contraction_price import MAX_WEIGHED_ELEMENTS
from ...cost.library_cost import size
from ...cost.machine import Cpu, machine_of
from ...manager.pass_manager import Pass
from ..algebra.rewriter import drop_dead
from ..attention_masks import LOWEST, is_number
from ..nd_attention import MIN_CPU_SCORES, keeps_eager_numerics
from ..products.carried_scores import CarriedScores, carried_scores, is_of_products
from ..products.carried_weights import CarriedWeights, WeighedRows, carried_weights
from ..products.shared_batches import share_batches
from ..repeated_heads import without_repeats
from .inserter import Inserter
from .row_sums import multiply_by_ones, sum_rows
from .terms import FREE, Dims, TermsFunction, four_dims, operands_first, swapped, swaps, without_views

End = nd.MatmulOp | nd.ReduceOp | nd.ScatterOp
"""What a call takes the place of: sums of rows that are weighed, or of the weights."""
TYPES = (f32, bf16, f16)
"""Element types of factors and rows."""
MIN_ROWS = 3
"""Rows below which packing the terms costs more than it saves."""
MAX_JOINED_KINDS = 2
"""Kinds of weights of one call: those of a strip of rows share the first-level cache."""


@dataclass(frozen=True)
class NdWeighRows(Pass):
    """Makes calls of sums that are weighed by what is computed of scores; not under numbers as in eager."""

    name = "nd-weigh-rows"

    fewest: int = MIN_CPU_SCORES
    """Scores of one head from which on."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if keeps_eager_numerics(op) or not isinstance(machine_of(op), Cpu):
            return
        symbols, hints = nd.symbol_ranges(op), symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            writer = _Writer(op, self.fewest, hints)
            _share_batches(func, symbols)
            products = [o for o in func.body.block.ops if isinstance(o, nd.MatmulOp)]
            for one in products:
                why = writer.softmax(one)
                if why is not None:
                    self._said(one, why)
            if len(products) > 1:
                sum_rows(func, self.fewest, hints)
                for group in _groups(func, symbols):
                    for one in group.summed:
                        if one.of_terms:
                            multiply_by_ones(one.op)  # pyright: ignore[reportArgumentType]
                _share_batches(func, symbols)
            for group in _groups(func, symbols) if len(products) > 1 else ():
                self._said(group.scores[0], writer.sums(group))
            drop_dead(func.body.block)

    def _said(self, op: Operation, why: str) -> None:
        if why:
            self.remark(op, f"scores are in memory: {why}", kind="missed")
        else:
            self.statistic("num-weighed")


def _groups(func: FuncOp, symbols: RangeEnv) -> list[CarriedWeights]:
    products = [op for op in func.body.block.ops if isinstance(op, nd.MatmulOp)]
    return list(carried_weights(products, symbols, by_blocks=True))


def _share_batches(func: FuncOp, symbols: RangeEnv) -> None:
    """Give what is one call the same batches and heads, which a program may merge and part."""
    while True:
        products = [op for op in func.body.block.ops if isinstance(op, nd.MatmulOp)]
        attention = (one for op in products if isinstance(one := carried_scores(op, products, symbols, shared=True), CarriedScores))
        groups = (*attention, *carried_weights(products, symbols, by_blocks=True))
        if not any(share_batches(one.scores, one.products, two=True) for one in groups):
            return


@dataclass(frozen=True)
class _Softmax:
    """A softmax over the last dimension: its exponents, what gives the highest of a row, and the sum of their exponentials."""

    exponents: SSAValue
    top: nd.ReduceOp
    total: nd.ReduceOp
    empty: float
    """What a row without a finite exponent has."""
    factors: tuple[SSAValue, ...] = ()
    """What each weight is multiplied by behind its exponential (dropout)."""


class _Writer:
    """Writes the calls of one module."""

    def __init__(self, module: ModuleOp, fewest: int, hints: dict[str, int]):
        self.module, self.fewest, self.hints = module, fewest, hints

    def softmax(self, op: nd.MatmulOp) -> str | None:
        """The call of an attention, in place of the product that ends it: "", or why there is none. None: it is no attention."""
        found = _softmax_of(op.lhs)
        if found is None:
            return None
        if isinstance(found, str):
            return found
        dims = _dims_of(op.lhs, False)
        terms = TermsFunction(dims)
        given = [found.exponents, *self._factor(op, found.factors)]
        for value in given:
            terms.add(value, False)
        terms.finish([(value, False) for value in given])
        kind = tensor_type(op.result).element_type
        problem = self._problem(terms, [tensor_type(op.rhs).dims[-1]], kind)
        if not terms.scores or problem:
            return problem or None
        made = self._call(op, terms, [(op.rhs, False)], found)
        _replace(op, op.result, made.results[0])
        for row, value in ((found.top, made.results[1]), (found.total, made.results[2])):
            _replace(op, row.result, value)
        return ""

    def sums(self, group: CarriedWeights) -> str:
        """The calls of sums that are no softmax's, in place of all products of a group: "", or why there is none."""
        sums = [one.op for one in group.summed]
        added = [self._added(op) if isinstance(op, nd.ReduceOp) else self._placed(op) for op in sums]
        if problem := next((why for why in added if isinstance(why, str)), ""):
            return problem
        plans: list[tuple[list[WeighedRows], TermsFunction]] = []
        for rows in _joined(group.weighed):
            weights = [(one.op.operands[one.side], one.side == 1) for one in rows]
            terms = TermsFunction(_dims_of(*weights[0]))
            for value, turned in weights:
                terms.add(value, turned)
            terms.finish(weights)
            kind = tensor_type(rows[0].op.result).element_type
            problem = self._problem(terms, [tensor_type(one.rows).dims[-1 - one.side] for one in rows], kind)
            if problem or not terms.scores:
                return problem or "no scores"
            plans.append((rows, terms))
        for op, terms in zip(sums, added, strict=True):
            assert isinstance(terms, TermsFunction)
            _replace(op, op.result, self._call(op, terms, [], None).results[0])
        for rows, terms in plans:
            at = _last([one.op for one in rows])
            values = [(one.rows, one.side == 1) for one in rows]
            made = self._call(at, terms, values, None)
            for one, value in zip(rows, made.results, strict=True):
                _replace(at, one.op.result, value, one.side == 1)
        return ""

    def _added(self, op: nd.ReduceOp) -> TermsFunction | str:
        """What computes the weights that a sum over batches, or heads, adds up; or why no call does."""
        terms = TermsFunction(_dims_of(op.input, False))
        terms.add(op.input, False)
        terms.finish([(op.input, False)])
        given = tensor_type(op.input).dims
        if given[:-2] not in (terms.dims[:2], (product(terms.dims[:2]),)) or (len(given) < 4 and len(op.dims.data) < len(given) - 2):
            return "weights are added up over a part of the batches"
        return self._problem(terms, [], f32) or (terms if terms.scores else "no scores")

    def _placed(self, op: nd.ScatterOp) -> TermsFunction | str:
        """What computes weights that are added up within their rows, and their places; or why no call does. Reading a place from a list of
        all checks it."""
        t, length = tensor_type(op.source), tensor_type(op.base).dims[-1]
        if length.value is None or not 0 < length.value < 1 << 24:
            return "places that float32 does not number"
        new = Inserter(op)
        every = new(nd.IotaOp.create(result_types=[TensorType.get((length,), i64, t.device.data)], properties={"dim": IntsAttr.get((0,))}))
        _, turned = without_views(op.source, False)
        index = _copied(new, op.index)
        index = _turned(new, index) if turned else index
        dims = tensor_type(index).dims
        place = new(nd.IndexOp.create(
            operands=[every, index], result_types=[TensorType.get(dims, i64, t.device.data)], properties={"dims": IntsAttr.get((0,))},
            attributes=op.attributes,
        ))  # fmt: skip
        place = new(CastOp.new((place,), TensorType.get(dims, f32, t.device.data)))
        given = [op.source, _turned(new, place) if turned else place]
        terms = TermsFunction(_dims_of(op.source, False))
        for value in given:
            terms.add(value, False)
        terms.finish([(value, False) for value in given])
        if terms.dims != t.dims:
            return "places of weights that are parted into batches and heads in several ways"
        return self._problem(terms, [], f32) or (terms if terms.scores else "no scores")

    def _factor(self, at: nd.MatmulOp, factors: Sequence[SSAValue]) -> list[SSAValue]:
        """The product of factors of weights, in front of `at`."""
        if not factors:
            return []
        new, found = Inserter(at), factors[0]
        for one in factors[1:]:
            found = new(OPS["mul"].create(operands=[found, one], result_types=[found.type]))
        return [found]

    def _problem(self, terms: TermsFunction, columns: Sequence[Expr], kind: object) -> str:
        """Why no call computes sums of so many columns; "" if one does."""
        rows, count = terms.dims[-2:]
        if terms.scores:
            terms.check()
        if terms.problem:
            return terms.problem
        if kind not in TYPES:
            return f"numbers of {kind}"
        if len(terms.scores) > MAX_JOINED_KINDS:
            return f"{len(terms.scores)} products of scores, the most are {MAX_JOINED_KINDS}"
        if not terms.scores:
            return ""
        lengths = [*(tensor_type(op.lhs).dims[-1] for op in terms.scores), *columns]
        if any(n.value is None or not 0 < n.value <= MAX_WEIGHED_ELEMENTS for n in lengths):
            return f"rows have more than {MAX_WEIGHED_ELEMENTS} elements, or nobody knows how many"
        if rows.value is not None and rows.value < MIN_ROWS:
            return "few rows"
        if size(rows, self.hints) * size(count, self.hints) < self.fewest:
            return "few scores"
        return ""

    def _call(
        self, at: End, terms: TermsFunction, values: Sequence[tuple[SSAValue, bool]], softmax: _Softmax | None
    ) -> nd.ExternOp:
        """The call, in front of `at`. Without `values` weights are added up."""
        function, scales = terms.build("terms")
        batch, heads, rows, _ = terms.dims
        t = tensor_type(at.result)
        new = Inserter(at)
        given = [pair for op, is_turned in terms.scores.items() for pair in ((op.lhs, is_turned), (op.rhs, is_turned))]
        sources = [_by_rows(new, x, k % 2 == 1) for k, (x, _) in enumerate(given)]
        pairs = [sources[k : k + 2][:: -1 if given[k][1] else 1] for k in range(0, len(sources), 2)]
        weighed = [_by_rows(new, v, is_turned) for v, is_turned in values]
        factors = [x for pair in pairs for x in pair]
        kind = t.element_type if values else _kind_of(factors)
        tensors = [_unrepeated(new, x, batch, heads, kind) for x in (*factors, *weighed)]
        columns = [tensor_type(v).dims[-1] for v in weighed]
        results = [TensorType.get((batch, heads, rows, n), kind, t.device.data) for n in columns]
        if isinstance(at, nd.ScatterOp):
            results = [TensorType.get((batch, heads, rows, t.dims[-1]), f32, t.device.data)]
        if not values:
            tensors[0] = _of_all_heads(new, tensors[0], batch, heads)
        if isinstance(at, nd.ReduceOp):
            summed = range(2) if tensor_type(at.input).rank < 4 else at.dims.data
            kept = [ONE if d in summed else n for d, n in enumerate((batch, heads))]
            results = [TensorType.get((*kept, *terms.dims[2:]), f32, t.device.data)]
        if softmax is not None:
            results += [TensorType.get((batch, heads, rows), f32, t.device.data)] * 2
        made = weighed_call(
            tensors[: len(factors)], tensors[len(factors) :], terms.operands(), self._named(function), results,
            softmax is not None, scales, softmax.empty if softmax is not None else 0.0, terms.turned,
            softmax is not None and bool(softmax.factors), not values, isinstance(at, nd.ScatterOp),
        )  # fmt: skip
        new(made)
        for k, (old, _) in enumerate(values):
            made.results[k].name_hint = at.result.name_hint or old.name_hint
        return made

    def _named(self, function: FuncOp) -> str:
        """The name under which the module has a function: equal ones are one."""
        taken = {f.sym_name.data: f for f in self.module.ops if isinstance(f, FuncOp)}
        for name, other in taken.items():
            if other.function_type == function.function_type and other.body.is_structurally_equivalent(function.body):
                return name
        name = next(n for k in range(len(taken) + 1) if (n := f"terms{k}") not in taken)
        function.properties["sym_name"] = type(function.sym_name)(name)
        self.module.body.block.add_op(function)
        return name


def _copied(new: Inserter, value: SSAValue) -> SSAValue:
    """A value computed once more, as far as that costs no memory: fusion stores what two nests of a function share."""
    needed: dict[Operation, None] = {}
    worklist = [value]
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, (PointwiseOp, *FREE)) and op not in needed:
            needed[op] = None
            worklist += op.operands
    values: dict[SSAValue, SSAValue] = {}
    for op in operands_first(needed):
        values[op.results[0]] = new(op.clone(values))
    return values.get(value, value)


def _last(ops: Sequence[nd.MatmulOp]) -> nd.MatmulOp:
    """The last of some operations in their block."""
    return reduce(lambda one, other: other if _is_before(one, other) else one, ops)


def _is_before(one: Operation, other: Operation) -> bool:
    """Whether an operation stands before another one: who walks on from both is soon at one of them, or at the end."""
    behind_one, behind_other = one.next_op, other.next_op
    while behind_one is not None and behind_other is not None:
        if behind_one is other or behind_other is one:
            return behind_one is other
        behind_one, behind_other = behind_one.next_op, behind_other.next_op
    return behind_other is None


def _joined(weighed: Sequence[WeighedRows]) -> list[list[WeighedRows]]:
    """Sums whose weights have the same rows and terms, as many as one call makes."""
    found: list[list[WeighedRows]] = []
    for one in weighed:
        for group in found:
            types = [tensor_type(each.op.result).element_type for each in (group[0], one)]
            if group[0].key == one.key and types[0] == types[1] and len(group) < MAX_JOINED_KINDS:
                group.append(one)
                break
        else:
            found.append([one])
    return found


def _dims_of(weights: SSAValue, turned: bool) -> Dims:
    """Batches, heads, rows and terms of weights: as they are parted in front of casts and views."""
    value, flips = weights, turned
    best, best_flips = tensor_type(value).dims, flips
    while len(best) != 4:
        op = value.owner
        keeps = isinstance(op, nd.ReshapeOp) and tensor_type(op.input).dims[-2:] == tensor_type(value).dims[-2:]
        if isinstance(op, SelectOp):
            value = next(v for v in (op.on_false, op.on_true) if tensor_type(v).dims == tensor_type(value).dims)
        elif isinstance(op, CastOp | OPS["div"] | OPS["mul"]) and tensor_type(op.operands[0]).dims == tensor_type(value).dims:
            value = op.operands[0]
        elif keeps or swaps(op):
            flips ^= swaps(op)
            value = op.operands[0]  # pyright: ignore[reportAttributeAccessIssue]
        else:
            break
        if len(tensor_type(value).dims) == 4:
            best, best_flips = tensor_type(value).dims, flips
    return four_dims(swapped(best) if best_flips else best)


def _by_rows(new: Inserter, x: SSAValue, turned: bool) -> SSAValue:
    """A factor as rows over which a product sums: of one that has them as columns (`turned`) with these in the other order."""
    if not turned:
        return x
    if swaps(x.owner):
        return x.owner.input  # pyright: ignore[reportAttributeAccessIssue]
    t = tensor_type(x)
    order = (*range(t.rank - 2), t.rank - 1, t.rank - 2)
    return new(nd.PermuteOp.new((x,), t.with_dims(swapped(t.dims)), dims=IntsAttr.get(order)))


def _unrepeated(new: Inserter, x: SSAValue, batch: Expr, heads: Expr, kind: object) -> SSAValue:
    """A factor as batches, heads, rows, without what heads or batches repeat, in its own type where a cast has widened it."""
    while (source := _widened(x) or without_repeats(x)) is not None:
        x = source
    t = tensor_type(x)
    if t.element_type != kind:
        x, t = new(CastOp.new((x,), TensorType.get(t.dims, kind, t.device.data))), t  # pyright: ignore[reportArgumentType]
        t = tensor_type(x)
    if t.rank == 4:
        return x
    size = batch if product(t.dims[:-2]) is product((batch, heads)) else ONE
    return new(nd.ReshapeOp.new((x,), t.with_dims((size, product(t.dims[:-2]) if size is ONE else heads, *t.dims[-2:]))))


def _kind_of(factors: Sequence[SSAValue]) -> Attribute:
    """The type that all factors have in front of casts to float32."""
    kinds = {tensor_type(_widened(x) or x).element_type for x in factors}
    return kinds.pop() if len(kinds) == 1 else f32


def _of_all_heads(new: Inserter, x: SSAValue, batch: Expr, heads: Expr) -> SSAValue:
    """A factor with all batches and heads, repeated where it has fewer."""
    t = tensor_type(x)
    if t.dims[:2] == (batch, heads):
        return x
    group = exact_quotient(heads, t.dims[1])
    assert group is not None
    split = new(nd.ReshapeOp.new((x,), t.with_dims((t.dims[0], t.dims[1], ONE, *t.dims[2:]))))
    wide = new(nd.ExpandOp.new((split,), t.with_dims((batch, t.dims[1], group, *t.dims[2:]))))
    return new(nd.ReshapeOp.new((wide,), t.with_dims((batch, heads, *t.dims[2:]))))


def _widened(x: SSAValue) -> SSAValue | None:
    """What a tensor of float32 is a cast of."""
    op = x.owner
    if not isinstance(op, CastOp) or tensor_type(x).element_type != f32:
        return None
    return op.input if tensor_type(op.input).element_type in TYPES else None


def _replace(at: Operation, old: SSAValue, value: SSAValue, turned: bool = False) -> None:
    """Have `value`, with the sizes of `old`, take its place behind a call in front of `at`."""
    if not any(True for _ in old.uses):
        return
    new, made, t = Inserter(at), value, tensor_type(old)
    if turned:
        made = _turned(new, made)
    if tensor_type(made).element_type != t.element_type:
        made = new(CastOp.new((made,), TensorType.get(tensor_type(made).dims, t.element_type, t.device.data)))
    if tensor_type(made).dims != t.dims:
        made = new(nd.ReshapeOp.new((made,), t))
    made.name_hint = made.name_hint or old.name_hint
    old.replace_all_uses_with(made)
    _move_behind(made, old.owner, at)


def _turned(new: Inserter, x: SSAValue) -> SSAValue:
    t = tensor_type(x)
    return new(nd.PermuteOp.new((x,), t.with_dims(swapped(t.dims)), dims=IntsAttr.get((*range(t.rank - 2), t.rank - 1, t.rank - 2))))


def _move_behind(value: SSAValue, first: Operation | Block, at: Operation) -> None:
    """Put what needs a value behind `at`, in its order, where it stands before it: between it and `first`, whose value was needed."""
    block, late = at.parent, {value}
    assert block is not None and isinstance(first, Operation)
    if first is at or not _is_before(first, at):
        return
    moved: list[Operation] = []
    op = first
    while op is not at:
        assert op is not None
        if op is not value.owner and any(v in late for v in op.operands):
            moved.append(op)
            late.update(op.results)
        op = op.next_op
    for op in reversed(moved):
        op.detach()
        block.insert_op_after(op, at)


def _softmax_of(weights: SSAValue) -> _Softmax | str | None:
    """The softmax that weights are; why it cannot be left out of memory, or None where they are none."""
    chain, factors = [weights], list[SSAValue]()
    value = _before(chain, factors)
    op, empty, tested = value.owner, math.nan, None
    if isinstance(op, SelectOp) and is_number(op.on_true, 0.0):
        empty, tested = 0.0, op.condition
        chain.append(op.on_false)
        value = _before(chain, factors)
    powers, total = _quotient(value)
    added = None if total is None else _reduced(total, "sum")
    difference = powers.owner.operands[0].owner if powers is not None and isinstance(powers.owner, OPS["exp"]) else None
    if powers is None or added is None or added.input is not powers or not isinstance(difference, OPS["sub"]):
        return None
    exponents, top = difference.operands
    highest = _reduced(top, "max")
    if highest is None or highest.input is not exponents:
        return None
    if tested is not None and not _tests(tested, highest):
        return None
    inside = {difference, highest, added, *(v.owner for v in chain), powers.owner, value.owner}
    if isinstance(value.owner, OPS["mul"]):
        inside.add(value.owner.operands[1].owner)
    if any(not v.has_one_use() for v in chain) or any(u.operation not in inside for v in (exponents, powers) for u in v.uses):
        return "something else needs the scores or the weights"
    return _Softmax(exponents, highest, added, empty, tuple(factors))


def _before(chain: list[SSAValue], factors: list[SSAValue]) -> SSAValue:
    """What the last tensor of a chain is in front of casts, views of whole rows, and factors of each weight; all go to their lists."""
    while True:
        value = chain[-1]
        op = value.owner
        if isinstance(op, CastOp) or _keeps_rows(op):
            chain.append(op.operands[0])  # pyright: ignore[reportAttributeAccessIssue]
            continue
        if not isinstance(op, OPS["mul"]) or _quotient(value)[1] is not None:
            return value
        products = [is_of_products(v) for v in op.operands]
        given, factor = op.operands[:: 1 if products[0] else -1]
        if all(products) or any(v.type != value.type for v in op.operands):
            return value
        chain.append(given)
        factors.append(factor)


def _quotient(value: SSAValue) -> tuple[SSAValue | None, SSAValue | None]:
    """e and l of e / l, or of e * (1 / l)."""
    op = value.owner
    if isinstance(op, OPS["div"]):
        return op.operands[0], op.operands[1]
    if isinstance(op, OPS["mul"]) and isinstance(inverse := op.operands[1].owner, OPS["reciprocal"]):
        return op.operands[0], inverse.operands[0]
    return None, None


def _keeps_rows(op: object) -> bool:
    return isinstance(op, nd.ReshapeOp) and tensor_type(op.input).dims[-2:] == tensor_type(op.result).dims[-2:]


def _reduced(value: SSAValue, kind: str) -> nd.ReduceOp | None:
    """What reduces a tensor over its last dimension, which is kept with size 1."""
    while isinstance(value.owner, nd.ReshapeOp):
        value = value.owner.input
    op = value.owner
    if not isinstance(op, nd.ReduceOp) or op.kind.data != kind or list(op.dims.data) != [tensor_type(op.input).rank - 1]:
        return None
    return op


def _tests(condition: SSAValue, top: nd.ReduceOp) -> bool:
    """Whether a condition is that the highest exponent of a row is -inf."""
    while isinstance(condition.owner, nd.ReshapeOp):
        condition = condition.owner.input
    test = condition.owner
    if not isinstance(test, CmpOp) or test.predicate.data != "eq" or not is_number(test.rhs, LOWEST):
        return False
    return _reduced(test.lhs, "max") is top
