"""Which products of a GPU are generated, by price (passes/cost/contraction_price.py), or as was measured.

    %p = nd.matmul %x, %w ; %q = nd.matmul %x, %v ; %y = nd.mul (nd.silu %p), %q     ->     one candidate: two sums, and what follows

A candidate is a product, or a convolution that is one (convolutions/nests.py), with the pointwise operations behind it, or several products
of the same sizes that share a factor and meet in these. Its price is that of one generated kernel beside that of the library's calls and
the kernels around them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects.builtin import ModuleOp, f32, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue, Use

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr, product
from ....dialects.expr.ranges import RangeEnv, range_of
from ....dialects.machine import has_fixed_order
from ....dialects.nd.pointwise import OPS, PARTLY_ROUNDED, CastOp, PointwiseOp
from ....dialects.nd.types import I32_MAX, element_bytes, tensor_type
from ...cost.contraction_price import (
    MAX_SKINNY_ROWS,
    Contraction,
    epilogue_ns,
    generated_ns,
    generated_price,
    is_few,
    library_ns,
    rate_name,
    stream_ns,
    weighed_ns,
)  # fmt: skip
from ...cost.held_numbers import held_numbers
from ...cost.library_cost import bytes_of, size
from ...cost.machine import Gpu
from ...cost.machine.gpu import HALF_BYTES, VECTOR_BYTES
from ..row_blocks.begun_reductions import begun_bytes, looked_up_bytes
from ..weighed.row_sums import sum_rows
from .carried_scores import SHARED, CarriedScores, carried_scores, exact_factors
from .carried_weights import CarriedWeights, carried_weights, give_own_weights, returned_weights, turn_products
from .convolutions.nests import is_depthwise, no_product, no_windows, out_of_order, read_once, reads_elements, sizes_of
from .convolutions.phases import lies_across, phases_are_whole, transposed_sizes
from .factor_types import HALVES, WIDE, FactorTypes
from .grouped_products import GroupedProduct
from .joined_factors import joined_factor
from .library_epilogues import Activation, activation_behind, biased, product_and_bias
from .own_scores import give_own_scores
from .scaled_products import ScaledProduct
from .shared_batches import share_batches

CONSTANT = nd.FullOp | nd.IotaOp
"""Operations whose elements are nowhere in memory."""

TOO_LARGE = "a tensor has more elements than 32 bits count"


@dataclass(frozen=True)
class Candidate:
    """Products of the same sizes that share a factor, with what stands behind them. `parts`: the equal blocks of columns of one product
    that would be products of their own, so that their elements meet (a gate and its values); none for products as they are."""

    ops: tuple[nd.MatmulOp, ...] | tuple[nd.ConvOp] | tuple[nd.ExternOp]
    work: Contraction
    parts: tuple[nd.SliceOp, ...] = ()
    activation: Activation | None = None
    """All that stands behind a product, where the library's call may compute it as well."""
    behind: tuple[Operation, ...] = ()
    """What stands behind the products, element by element."""


Seconds = Callable[[Candidate], tuple[float, float] | None]
"""What a candidate takes with calls of the library, and generated, in seconds; None where that was not measured."""


@dataclass(frozen=True)
class Choice:
    """What becomes of a product and why. Prices are nanoseconds; both are 0 where the product cannot be generated."""

    generated: bool
    reason: str
    library_ns: float = 0.0
    generated_ns: float = 0.0
    carries_scores: bool = False
    """Whether it is to keep the scores that weigh its terms on chip, which a later pass does."""
    activation: Activation | None = None
    """What the library's call computes as well."""

    def __str__(self) -> str:
        prices = f" (library {self.library_ns / 1e3:.4g} us, generated {self.generated_ns / 1e3:.4g} us)" if self.generated_ns else ""
        return f"{'generated' if self.generated else 'a call of the library'}: {self.reason}{prices}"


@dataclass(frozen=True)
class ProductChooser:
    """Decides for the products of functions. `library`: see NdLibraryProducts."""

    gpu: Gpu
    hints: Mapping[str, int]
    symbols: RangeEnv
    library: str
    types: FactorTypes
    scaled: Mapping[Operation, ScaledProduct] = field(default_factory=dict)
    """Products that are calls for 8-bit factors."""
    seconds: Seconds | None = None
    """What measures candidates; None: the price alone decides."""

    def choose(self, func: FuncOp) -> tuple[dict[Operation, Choice], list[Candidate]]:
        """What becomes of each product of a function, and the candidates of which blocks of columns are to be products of their own."""
        sum_rows(func, 0, self.hints)
        self._give_own_scores(func)
        self._give_own_weights(func)
        self._share_batches(func)
        found: dict[Operation, Choice] = {}
        parted: list[Candidate] = []
        works: dict[Operation, Contraction] = {}
        for one in candidates(func, self.gpu, self.hints, self.symbols, self.scaled, self.types):
            for op in one.ops:
                found[op] = self._with_activation(one, self.choice(one, op))
                works[op] = one.work if len(one.ops) == 1 and not one.parts else replace(one.work, sums=1)
            if one.parts and found[one.ops[0]].generated:
                parted.append(one)
        for op in _products(func):
            if op not in works and op not in self.scaled and self.may_be_scores(op):
                works[op] = _work((op,), _Region([op.result], set()), 0, self.hints, self.types)
        for op in _products(func):
            self._choose_carried(op, found, works)
        for one in carried_weights([op for op in _products(func) if op in works and _is_of_halves(op)], self.symbols):
            self._choose_weights(one, found, works)
        for op in (*_products(func), *_convolutions(func), *_grouped(func)):
            if op not in found:
                found[op] = Choice(False, cannot(op, self.gpu, self.symbols, self.scaled.get(op)))
        return found, parted

    def library_products(self, func: FuncOp) -> tuple[float, int]:
        """Nanoseconds of all products of a function as calls of the library, and how many there are."""
        found = _products(func)
        works = [_work((op,), _Region([op.result], set()), 0, self.hints, self.types) for op in found]
        return sum(library_ns(work, self.gpu) for work in works), len(found)

    def _give_own_scores(self, func: FuncOp) -> None:
        """Attention whose scores others need, too, computes them for itself where it is cheaper to do that than to read the weights."""
        possible = [op for op in _products(func) if self.may_be_scores(op)]
        for op in possible if self.library == "price" else ():
            if carried_scores(op, possible, self.symbols) == SHARED:
                one = carried_scores(op, possible, self.symbols, shared=True)
                if isinstance(one, CarriedScores) and all(p.schedule is None for p in one.products):
                    weighed = library_ns(_work((op,), _Region([op.result], set()), 0, self.hints, self.types), self.gpu)
                    if self._kernel_ns(one) <= weighed + stream_ns(float(bytes_of(one.weights, self.hints)), self.gpu):
                        give_own_scores(one)

    def _give_own_weights(self, func: FuncOp) -> None:
        """Weights that are results, too, are computed once more for that where reading them for all products would cost more."""
        possible = [op for op in _products(func) if self.may_be_scores(op)]
        for op in possible if self.library == "price" else ():
            found = returned_weights(op, possible, self.symbols)
            if found is None or any(p.schedule is not None for p in found[0].products):
                continue
            products = [one.op for one in found[0].weighed]
            calls = sum(library_ns(_work((p,), _Region([p.result], set()), 0, self.hints, self.types), self.gpu) for p in products)
            calls += len(products) * stream_ns(float(bytes_of(op.result, self.hints)), self.gpu)
            if sum(weighed_ns(work, self.gpu) for work in found[0].works(self.hints)) <= calls:
                give_own_weights(*found)

    def _share_batches(self, func: FuncOp) -> None:
        """What may be one kernel has the same batch dimensions."""
        made: set[Operation] = set()
        while True:
            possible = [op for op in _products(func) if self.may_be_scores(op)]
            one = next((one for one in self._carried(possible) if share_batches(one.scores, one.products) or _turned(one, made)), None)
            if one is None:
                return

    def _carried(self, possible: Sequence[nd.MatmulOp]) -> Iterator[CarriedScores | CarriedWeights]:
        """The attention, and the groups of products, that are seen."""
        yield from (one for op in possible if isinstance(one := carried_scores(op, possible, self.symbols), CarriedScores))
        yield from carried_weights(possible, self.symbols)

    def _kernel_ns(self, one: CarriedScores) -> float:
        """The price of a kernel that keeps scores on chip."""
        casts = exact_factors(one.weighed)
        kind = tensor_type(one.weighed.result if casts is None else casts[0].input).element_type
        return weighed_ns(one.work(self.hints, rate_name(kind), element_bytes(kind)), self.gpu)

    def may_be_scores(self, op: nd.MatmulOp) -> bool:
        """Whether a product can be generated if it is not stored."""
        reason = cannot(op, self.gpu, self.symbols)
        return _is_of_halves(op) and (not reason or reason == TOO_LARGE)

    def _choose_carried(self, weighed: nd.MatmulOp, found: dict[Operation, Choice], works: Mapping[Operation, Contraction]) -> None:
        """All products of an attention are generated where that is cheaper than calls with the scores in memory between them."""
        possible = {op for op in works if op not in self.scaled and isinstance(op, nd.MatmulOp) and _is_of_halves(op)}
        one = carried_scores(weighed, possible, self.symbols)
        if isinstance(one, str):
            if one and weighed in found:
                found[weighed] = replace(found[weighed], reason=f"{found[weighed].reason}; scores stay in memory: {one}")
            return
        if self.library in ("always", "never") or any(op.schedule is not None for op in one.products):
            return
        factors = _exact_work(works[weighed], weighed, self.hints)
        calls = sum(library_ns(works[op], self.gpu) for op in one.products) + stream_ns(float(bytes_of(one.weights, self.hints)), self.gpu)
        kernel = weighed_ns(one.work(self.hints, factors.kind, factors.width), self.gpu)
        if kernel > calls:
            found[weighed] = Choice(False, "scores stay in memory by price", calls, kernel)
            return
        reason = "its scores are weights of another product, and stay on chip"
        for op in one.products:
            why = "its terms are weighed by scores that stay on chip" if op is weighed else reason
            found[op] = Choice(True, why, calls, kernel, carries_scores=op is weighed)

    def _choose_weights(self, one: CarriedWeights, found: dict[Operation, Choice], works: Mapping[Operation, Contraction]) -> None:
        """All products of a group are generated where that is cheaper than each by its own price, with the weights in memory."""
        if self.library in ("always", "never") or any(op.schedule is not None for op in one.products):
            return
        apart = {op: library_ns(works[op], self.gpu) for op in one.products}
        apart.update((op, min(ns, found[op].generated_ns)) for op, ns in apart.items() if op in found and found[op].generated_ns)
        calls, kernels = sum(apart.values()), sum(weighed_ns(work, self.gpu) for work in one.works(self.hints))
        if kernels <= calls:
            for op in one.products:
                reason = "its elements weigh rows of other products" if op in one.scores else "its terms are weighed by products"
                found[op] = Choice(True, f"{reason}: the weights stay on chip", calls, kernels)
        elif all(op in found and found[op].generated for op in one.products):
            for rows in one.weighed:
                found[rows.op] = Choice(False, "weights stay in memory by price", calls, kernels)

    def choice(self, one: Candidate, op: nd.MatmulOp | nd.ConvOp | nd.ExternOp) -> Choice:
        """What becomes of a product of a candidate."""
        work = one.work if op in self.scaled else _exact_work(one.work, op, self.hints)
        work = replace(work, kind="f32") if work.kind == "tf32" else work
        prices = library_ns(one.work, self.gpu), generated_ns(work, self.gpu)
        if op.schedule is not None:
            return Choice(op.schedule.data == "generated", f'schedule = "{op.schedule.data}"', *prices)
        if self.library in ("always", "never"):
            return Choice(self.library == "never", f"library={self.library}", *prices)
        if work.kind in WIDE and not work.vector and (what := self._not_measured(op, work)):
            return Choice(False, f"nobody has measured what generated {what} of {work.kind} reach on this GPU", *prices)
        if op in self.scaled and self.scaled[op].terms_lie_apart:
            return Choice(False, "terms of a factor of 8 bits lie apart", *prices)
        if isinstance(op, nd.ConvOp):
            if slow := reads_elements(op):
                return Choice(False, slow, *prices)
        elif any(_rows_are_odd(x) for x in op.operands[:2]):
            return Choice(False, "rows of a factor are no multiple of 16 bytes", *prices)
        elif any(self._may_be_few(n) for n in (*tensor_type(op.results[0]).dims[-2:], tensor_type(op.operands[0]).dims[-1])):
            return Choice(False, f"a size may be at most {MAX_SKINNY_ROWS}, or more: no tile is good at both", *prices)
        if self.seconds is not None and (measured := self.seconds(one)) is not None:
            library, generated = (1e9 * s for s in measured)
            return Choice(generated <= library, "measured", library, generated)
        return Choice(prices[1] <= prices[0], "by price" + self._narrowed(one.work), *prices)

    def _with_activation(self, one: Candidate, choice: Choice) -> Choice:
        """A choice, with the activation that the library's call computes as well where that is cheaper than a kernel behind the call."""
        if choice.generated or one.activation is None or epilogue_ns(one.work, self.gpu) > library_ns(one.work, self.gpu):
            return choice
        return replace(choice, reason=f"{choice.reason}, and {one.activation.name} with it", activation=one.activation)

    def _not_measured(self, op: nd.MatmulOp | nd.ConvOp | nd.ExternOp, work: Contraction) -> str:
        """What a product of a wide type is one of, if it is not known what such kernels reach; "" if it is known."""
        if isinstance(op, nd.ConvOp):
            return "convolutions"
        if work.kind not in self.gpu.rates.generated:
            return "products"
        return "products of few rows" if is_few(work) and work.kind == "f64" else ""

    def _may_be_few(self, size: Expr) -> bool:
        """Whether a symbolic size may be that of few rows, and of many."""
        bounds = range_of(size, self.symbols)
        return (bounds.lo is None or bounds.lo <= MAX_SKINNY_ROWS) and (bounds.hi is None or bounds.hi > MAX_SKINNY_ROWS)

    def _narrowed(self, work: Contraction) -> str:
        """Which block of the result what stands behind a product leaves room for, where that is less than the product alone has."""
        wide, narrow = (generated_price(replace(work, held=held), self.gpu) for held in (1, work.held))
        if is_few(work) or wide.tile == narrow.tile:
            return ""
        return f", a thread keeps {work.held} numbers of each element, so that a program has {narrow.tile[0]} x {narrow.tile[1]} of them"


def _turned(one: CarriedScores | CarriedWeights, made: set[Operation]) -> bool:
    return isinstance(one, CarriedWeights) and turn_products(one, made)


def _rows_are_odd(x: SSAValue) -> bool:
    """Whether rows of a factor, as it lies in memory, are known to be no multiple of VECTOR_BYTES; bytes count as the halves that they
    become."""
    while isinstance(op := x.owner, nd.PermuteOp | PointwiseOp):
        t = tensor_type(x)
        turned = isinstance(op, nd.PermuteOp)
        same = [v for v in op.operands if turned or (tensor_type(v).dims == t.dims and not isinstance(v.owner, nd.ExpandOp))]
        if not same:
            break
        x = same[0]
    last = tensor_type(x).dims[-1].value
    return last is not None and last * max(_width(x), HALF_BYTES) % VECTOR_BYTES != 0 and tensor_type(x).rank > 1


def _is_of_halves(op: nd.MatmulOp) -> bool:
    """Whether a product is one of numbers of 16 bits or 8."""
    return tensor_type(op.result).element_type in HALVES or exact_factors(op) is not None


def cannot(op: nd.MatmulOp | nd.ConvOp | nd.ExternOp, gpu: Gpu, symbols: RangeEnv, scaled: ScaledProduct | None = None) -> str:
    """Why a product cannot be generated; "" if it can. `scaled`: it is a call for 8-bit factors."""
    t, tensors = tensor_type(op.results[0]), [tensor_type(v) for v in (*op.operands[:2], op.results[0])]
    depthwise = isinstance(op, nd.ConvOp) and is_depthwise(op)
    if not gpu.multiplies_halves and not depthwise:
        return "the GPU has no units for products"
    if scaled is not None and (reason := scaled.cannot(gpu)):
        return reason
    kinds = (*HALVES, f32) if depthwise else (*HALVES, f32, f64)
    exact = scaled is not None or (isinstance(op, nd.MatmulOp) and exact_factors(op) is not None)
    if not exact and (t.element_type not in kinds or any(x.element_type != t.element_type for x in tensors)):
        return f"its factors are of {tensors[0].element_type} and {tensors[1].element_type}, not of one type of floats"
    if any(n.value == 0 for x in tensors for n in x.dims):
        return "it is empty"
    if any((hi := range_of(product(x.dims), symbols).hi) is not None and hi > I32_MAX for x in tensors):
        return TOO_LARGE
    if isinstance(op, nd.ConvOp):
        return no_windows(op) if depthwise else no_product(op)
    return ""


def candidates(
    func: FuncOp, gpu: Gpu, hints: Mapping[str, int], symbols: RangeEnv, scaled: Mapping[Operation, ScaledProduct], types: FactorTypes
) -> Iterator[Candidate]:
    """The candidates of a function, those of most work first: what stands behind two that do not fit together is the first one's."""
    ordered = sorted(_products(func), key=lambda op: -_flops(op, hints))
    possible = {op: None for op in ordered if not cannot(op, gpu, symbols, scaled.get(op))}
    results = {one.result: one.product for one in scaled.values()}
    taken: set[Operation] = set()
    done: set[Operation] = set()
    for op in possible:
        if op in done:
            continue
        result = _result(op, scaled)
        parts = () if op in scaled else equal_columns(op)
        region = _Region([part.result for part in parts] or [result], taken, results)
        if parts and not region.meet():
            parts, region = (), _Region([result], taken, results)
        partners = [p for p in region.meets if not parts and p is not op and p not in done and p in possible and _fit(op, p)]
        for partner in partners:
            region.add(_result(partner, scaled))
        done.update((op, *partners))
        taken.update(region.behind)
        work = _work((op, *partners), region, len(parts), hints, types, scaled.get(op))
        activation = None if partners or parts or op in scaled else activation_behind(op)
        if activation is None or region.computed() - set(activation.ops) or any(_rows_are_odd(x) for x in op.operands):
            yield Candidate((op, *partners), work, parts, behind=tuple(region.behind))
        else:
            yield Candidate((op,), replace(work, epilogue=activation.name), activation=activation, behind=tuple(region.behind))
    for one in _convolutions(func):
        if not cannot(one, gpu, symbols):
            region = _Region([one.result], taken, results)
            taken.update(region.behind)
            yield Candidate((one,), _convolution_work(one, region, hints, types), behind=tuple(region.behind))
    for one, found in _grouped(func).items():
        if not cannot(one, gpu, symbols):
            region = _Region([one.results[0]], taken)
            taken.update(region.behind)
            t = tensor_type(one.results[0])
            work = found.work(rate_name(t.element_type), element_bytes(t.element_type), hints)
            yield Candidate((one,), _with_neighbours(work, region, hints))


def is_not_stored(module: ModuleOp, func: FuncOp, op: Operation, gpu: Gpu, hints: Mapping[str, int]) -> bool:
    """Whether by price a product is generated, and stores nothing of its size, since its kernel begins all that reads it."""
    if has_fixed_order(module):
        return False  # blocks of a row would be added up in an order of their own
    symbols, types = nd.symbol_ranges(module), FactorTypes.of(module)
    one = next((one for one in candidates(func, gpu, hints, symbols, {}, types) if op in one.ops), None)
    if one is None or not isinstance(op, nd.MatmulOp) or one.work.stored is None or one.work.stored >= one.work.result:
        return False
    return ProductChooser(gpu, hints, symbols, "price", types).choice(one, op).generated


def equal_columns(op: nd.MatmulOp) -> tuple[nd.SliceOp, ...]:
    """The slices of a product's columns, all of the same width, where nothing else reads it and each column is in one of them."""
    value: SSAValue = op.result
    while len(uses := list(value.uses)) == 1 and isinstance(uses[0].operation, nd.ReshapeOp):
        reshaped = uses[0].operation.result
        if tensor_type(reshaped).dims[-1] is not tensor_type(value).dims[-1]:
            return ()
        value = reshaped
    found = [use.operation for use in value.uses]
    t = tensor_type(value)
    parts = [o for o in found if isinstance(o, nd.SliceOp) and o.steps.data[-1] is ONE and all(n is ZERO for n in o.starts.data[:-1])]
    if len(parts) < 2 or len(parts) != len(found) or any(p.result.type != parts[0].result.type for p in parts):
        return ()
    width, columns = tensor_type(parts[0].result).dims[-1].value, t.dims[-1].value
    if width is None or columns is None or columns != width * len(parts) or tensor_type(parts[0].result).dims[:-1] != t.dims[:-1]:
        return ()
    parts.sort(key=lambda p: p.starts.data[-1].value or 0)
    return tuple(parts) if [p.starts.data[-1].value for p in parts] == list(range(0, columns, width)) else ()


def _products(func: FuncOp) -> list[nd.MatmulOp]:
    return [op for op in func.body.block.ops if isinstance(op, nd.MatmulOp)]


def _convolutions(func: FuncOp) -> list[nd.ConvOp]:
    return [op for op in func.body.block.ops if isinstance(op, nd.ConvOp)]


def _grouped(func: FuncOp) -> dict[nd.ExternOp, GroupedProduct]:
    found = {op: GroupedProduct.of(op) for op in func.body.block.ops if isinstance(op, nd.ExternOp)}
    return {op: one for op, one in found.items() if one is not None}


def _result(op: nd.MatmulOp, scaled: Mapping[Operation, ScaledProduct]) -> SSAValue:
    """What the library's call gives: a product, with its scales and its bias."""
    if op in scaled:
        return scaled[op].result
    add = biased(op)
    return op.result if add is None else add.results[0]


def _flops(op: nd.MatmulOp, hints: Mapping[str, int]) -> int:
    return size(product((*tensor_type(op.result).dims, tensor_type(op.lhs).dims[-1])), hints)


def _fit(one: nd.MatmulOp, other: nd.MatmulOp) -> bool:
    """Whether two products have the same sizes and share a factor."""
    same = one.result.type == other.result.type and tensor_type(one.lhs).dims[-1] is tensor_type(other.lhs).dims[-1]
    (left, right), (others_left, others_right) = ([_before_cast(x) for x in op.operands] for op in (one, other))
    return same and (left is others_left or right is others_right)


def _before_cast(x: SSAValue) -> SSAValue:
    return x.owner.input if isinstance(x.owner, CastOp) else x


@dataclass
class _Region:
    """The pointwise operations behind results of products, element by element. `results`: those of calls for 8-bit factors; `meets`: other
    products that they need."""

    sources: list[SSAValue]
    taken: set[Operation]
    results: Mapping[SSAValue, nd.MatmulOp] = field(default_factory=dict)
    behind: dict[Operation, None] = field(default_factory=dict)
    meets: dict[nd.MatmulOp, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numel = product(tensor_type(self.sources[0]).dims)
        self.dims = tensor_type(self.sources[0]).dims
        first, *others = self.sources
        self.sources = []
        self.add(first)
        self.reached = [v for v in others if any(use.operation in self.behind for use in _same_elements(v))]
        self.expected = len(others)
        for other in others:
            self.add(other)

    def meet(self) -> bool:
        """Whether what stands behind the first one needs all of them."""
        return len(self.reached) == self.expected

    def add(self, source: SSAValue) -> None:
        """A result, and what stands behind it."""
        self.sources.append(source)
        worklist: list[SSAValue] = [source]
        while worklist:
            for use in worklist.pop().uses:
                found = use.operation
                if found in self.behind or found in self.taken or not self._follows(found):
                    continue
                self.behind[found] = None
                worklist += found.results
                for value in found.operands:
                    if (op := _product_of(value, self.results)) is not None:
                        self.meets[op] = None

    def _follows(self, op: Operation) -> bool:
        """Whether an operation makes one element of each of the product's."""
        if not isinstance(op, PointwiseOp | nd.ReshapeOp | nd.PermuteOp):
            return False
        return product(tensor_type(op.results[0]).dims) is self.numel

    def around(self) -> tuple[list[SSAValue], list[Operation]]:
        """The tensors that are loaded beside the products, and the operations that compute of these alone, element by element, what stands
        behind a product needs, or what is stored as well: they are part of the same nest."""
        inside = {*self.behind, *(v.owner for v in self.sources)}
        loaded, others = dict[SSAValue, None](), dict[Operation, None]()
        worklist = [v for op in self.behind for v in op.operands if v.owner not in inside]
        while worklist:
            value = worklist.pop()
            op = value.owner
            wanted_so = all(self._follows(use.operation) for use in value.uses)
            if wanted_so and isinstance(op, Operation) and op not in self.taken and self._follows(op):
                worklist += op.operands if op not in others else ()
                others[op] = None
            elif not isinstance(op, CONSTANT | nd.RandomOp):
                loaded[value] = None
        worklist = [*loaded, *(op.results[0] for op in others)]
        while worklist:
            for op in [use.operation for use in worklist.pop().uses]:
                known = op in inside or op in others or op in self.taken
                made = all(v in loaded or v.owner in others or isinstance(v.owner, CONSTANT) for v in op.operands)
                if made and not known and self._follows(op):
                    others[op] = None
                    worklist += op.results
        return list(loaded), list(others)

    def values(self) -> list[SSAValue]:
        """The results, and what is computed of them."""
        return [*self.sources, *(op.results[0] for op in self.behind)]

    def computed(self) -> set[Operation]:
        """What stands behind but for views."""
        return {op for op in self.behind if isinstance(op, PointwiseOp)}


def _same_elements(value: SSAValue) -> list[Use]:
    """The uses of a tensor, and of it in other shapes."""
    found: list[Use] = []
    for use in value.uses:
        if isinstance(use.operation, nd.ReshapeOp | nd.PermuteOp):
            found += _same_elements(use.operation.result)
        else:
            found.append(use)
    return found


def _product_of(value: SSAValue, results: Mapping[SSAValue, nd.MatmulOp]) -> nd.MatmulOp | None:
    """The product that a tensor is, with its bias, in another shape."""
    while isinstance(value.owner, nd.ReshapeOp | nd.PermuteOp):
        value = value.owner.operands[0]
    if value in results:
        return results[value]
    pair = product_and_bias(value.owner) if isinstance(value.owner, OPS["add"]) else None
    return pair[0] if pair is not None else value.owner if isinstance(value.owner, nd.MatmulOp) else None


def _work(
    ops: Sequence[nd.MatmulOp], region: _Region, parts: int, hints: Mapping[str, int], types: FactorTypes,
    scaled: ScaledProduct | None = None,
) -> Contraction:
    """What a candidate does, as a contraction with its neighbours. `scaled`: its first product as a call for 8-bit factors."""
    t = tensor_type(ops[0].result)
    *batch, rows, columns = [size(n, hints) for n in t.dims]
    factors = [_source_bytes(x, hints) for x in dict.fromkeys(v for op in ops for v in op.operands)]
    width = element_bytes(t.element_type)
    bare = Contraction(
        rows, columns // max(parts, 1), size(tensor_type(ops[0].lhs).dims[-1], hints), prod(batch), max(parts, len(ops)),
        types.rate(ops[0]), width, width,
        sources=float(sum(source for source, _ in factors)), computed=float(sum(made for _, made in factors)),
        looked_up=float(sum(_lookups(x, hints) for op in ops for x in op.operands)),
    )  # fmt: skip
    if scaled is not None:
        bare = replace(_before_casts(bare, scaled.casts, hints), kind=scaled.rate, out_width=_width(scaled.result))
    found = _with_neighbours(bare, region, hints)
    adds_blocks = t.element_type == f32 if scaled is None else scaled.sums == PARTLY_ROUNDED
    return replace(found, held=found.held + 1) if adds_blocks else found


def _exact_work(work: Contraction, op: nd.MatmulOp | nd.ConvOp | nd.ExternOp, hints: Mapping[str, int]) -> Contraction:
    """What a generated kernel does: a product of float32 takes factors that are casts before they are cast, a transposed convolution makes
    a product for each phase."""
    if isinstance(op, nd.ConvOp):
        return _by_phases(work, op, hints) if op.transposed is not None else work
    casts = exact_factors(op) if isinstance(op, nd.MatmulOp) else None
    if casts is None:
        return work
    return replace(_before_casts(work, casts, hints), kind=rate_name(tensor_type(casts[0].input).element_type))


def _by_phases(work: Contraction, op: nd.ConvOp, hints: Mapping[str, int]) -> Contraction:
    """A transposed convolution as it is generated. What follows it is part of its kernel where all phases have as many elements."""
    rows, columns, terms, batch = transposed_sizes(op, hints)
    ordered = work.ordered + 2.0 * bytes_of(op.weight, hints)
    work = replace(work, rows=rows, columns=columns, depth=terms, batch=batch, ordered=ordered)
    if phases_are_whole(op) and not lies_across(op):
        return work
    behind = work.result + work.beside + (work.result if work.stored is None else work.stored) if work.apart or lies_across(op) else 0.0
    return replace(work, stored=None, beside=0.0, later=work.later + behind)


def _before_casts(work: Contraction, casts: Sequence[CastOp], hints: Mapping[str, int]) -> Contraction:
    """A product of what casts take."""
    factors = [_source_bytes(cast.input, hints) for cast in dict.fromkeys(casts)]
    sources, computed = (float(sum(column)) for column in zip(*factors, strict=True))
    return replace(work, width=_width(casts[0].input), sources=sources, computed=computed)


def _convolution_work(op: nd.ConvOp, region: _Region, hints: Mapping[str, int], types: FactorTypes) -> Contraction:
    """What a convolution does. Its window is read from the cache, each number of the image from memory once."""
    rows, columns, terms, groups = sizes_of(op, hints)
    t = tensor_type(op.result)
    width, vector, moved = element_bytes(t.element_type), is_depthwise(op), out_of_order(op)
    copied = sum(bytes_of(op.operands[k], hints) for k in moved if isinstance(op.operands[k].owner, Block))
    by_rows = 0 in moved  # the library's kernels have channels side by side, too
    bare = Contraction(
        rows, columns, terms, groups, 1, "f32" if vector else types.rate(op), width, width,
        windows=float(read_once(op, hints)), vector=vector, transposed=op.transposed is not None, ordered=2.0 * copied,
        reordered=2.0 * (bytes_of(op.input, hints) + bytes_of(op.result, hints)) if by_rows else 0.0,
    )  # fmt: skip
    return _with_neighbours(bare, region, hints)


def _narrow(value: SSAValue) -> SSAValue:
    """What a value is widened from, which is stored in its place."""
    while isinstance(value.owner, CastOp) and _width(value.owner.operands[0]) < _width(value):
        value = value.owner.operands[0]
    return value


def _width(value: SSAValue) -> int:
    return element_bytes(tensor_type(value).element_type)


def _with_neighbours(bare: Contraction, region: _Region, hints: Mapping[str, int]) -> Contraction:
    """A contraction with what stands behind it."""
    loaded, others = region.around()
    inside = {*region.behind, *others, *(v.owner for v in region.sources)}
    stored = kept = later = 0
    for value in (*region.values(), *(op.results[0] for op in others)):
        outside = [u.operation for u in value.uses if u.operation not in inside]
        read = [op for op in outside if _reads_by_element(op)]
        if not outside or (value.owner in others and len(read) == len(outside)):
            continue
        moved = bytes_of(_narrow(value), hints)
        states = begun_bytes(value, outside, region.dims, region.behind, hints) if not is_few(bare) and not bare.windows else None
        if states is None and isinstance(value.owner, Operation):
            states = looked_up_bytes(value.owner, outside, hints)
        if states is not None:
            stored, later = stored + states, later + states
            continue
        stored += moved
        kept += 0 if value in region.sources or len(read) == len(outside) else moved
        later += moved if read and value.owner not in others else 0
    return replace(
        bare, stored=float(stored), kept=float(kept), beside=float(sum(bytes_of(_loaded(v), hints) for v in loaded)), later=float(later),
        follows=later > 0, apart=bool(region.computed()), held=_held(region, others),
    )  # fmt: skip


def _held(region: _Region, others: Collection[Operation]) -> int:
    """Numbers of each element that a thread of a generated kernel keeps at once."""
    block = region.sources[0].owner
    assert isinstance(block, Operation) and block.parent is not None
    ops = [op for op in block.parent.ops if op in region.behind or op in others]
    outside = {op for op in ops if any(u.operation not in region.behind and u.operation not in others for u in op.results[0].uses)}
    return held_numbers(region.sources, ops, outside, lambda _: True, _draws(region))


def _draws(region: _Region) -> bool:
    """Whether random numbers meet what stands behind a product, one for each element."""
    worklist = [v for op in region.behind for v in op.operands]
    seen = set(worklist)
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, nd.RandomOp) and product(tensor_type(op.results[0]).dims) is region.numel:
            return True
        if isinstance(op, PointwiseOp | nd.ReshapeOp | nd.PermuteOp):
            new = [v for v in op.operands if v not in seen]
            seen.update(new)
            worklist += new
    return False


def _reads_by_element(user: Operation) -> bool:
    """Whether an operation becomes a nest that reads its operand, so that what stands before it may be computed there."""
    return isinstance(user, nd.ReduceOp | nd.ArgReduceOp | nd.VarMeanOp | nd.ScanOp | PointwiseOp | nd.ViewOp)


def _loaded(value: SSAValue) -> SSAValue:
    """What is loaded for a tensor: the one that it repeats."""
    while isinstance(value.owner, nd.ExpandOp):
        value = value.owner.operands[0]
    return value


def _lookups(value: SSAValue, hints: Mapping[str, int]) -> int:
    """Elements that a factor takes from a vector, each by an index of its own: the numbers that codes of a few bits stand for."""
    worklist, seen, found = [value], {value}, 0
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, nd.IndexOp) and tensor_type(op.operands[0]).rank == 1:
            found += size(tensor_type(op.results[0]).numel, hints)
        elif isinstance(op, PointwiseOp | nd.ViewOp | nd.CatOp):
            new = [v for v in op.operands if v not in seen]
            seen.update(new)
            worklist += new
    return found


def _source_bytes(value: SSAValue, hints: Mapping[str, int]) -> tuple[int, int]:
    """Bytes that a factor is computed from for this product alone, and its own; 0 and 0 where it is there anyway."""
    read, computed = 0, False
    worklist, own = [value], bytes_of(value, hints)
    seen, joined = {value}, joined_factor(value)
    while worklist:
        one = worklist.pop()
        op = one.owner
        on_the_way = op is joined or (isinstance(op, PointwiseOp | nd.ViewOp) and len({u.operation for u in one.uses}) == 1)
        if isinstance(op, Block) or not on_the_way:
            read += bytes_of(one, hints)
            continue
        computed = computed or not isinstance(op, nd.ViewOp)
        worklist += [v for v in dict.fromkeys(op.operands) if v not in seen]
        seen.update(op.operands)
    return (read, own) if computed else (0, 0)
