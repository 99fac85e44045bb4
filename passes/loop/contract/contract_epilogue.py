"""contract-epilogue: nests that compute element by element from a product become the epilogue of its contraction.

    %p = loop.contract (%i = M, %j = N) ... { store acc }                 %y = loop.contract (%i = M, %j = N) ... {
    %q = loop.nest (%c = N, %h = H, %w = W) { %p[%h * W + %w, %c] + %b[%c] }       store relu(acc + %b[%j]), %y[%i, %j]
    %y = loop.nest (...) { relu(%q[%c, %h, %w]) }                          }

The counterpart of a library's post-operations, for whatever a program computes: activations, scales, residuals, gates. It runs before
loop-fuse, which would compute again in each reader what is cheap. Here it is computed once, from sums in the first-level cache, and nothing
but the result is stored. Nests are taken as long as one tensor in the end is all that others read. The rows of the product may be
several loops of a nest, in any order. Of products of f16 and bf16, and with numerics "eager", it is only the addition of a bias: that is
rounded once, as the library's addmm does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop, nd
from ....dialects.expr import ONE, ZERO, Dim, Expr, IndexMap, dim, dims_subs, free_dims, linear_coeff
from ....dialects.expr.ranges import Range, RangeEnv, simplify
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd import symbol_ranges
from ....dialects.nd.types import TensorType, tensor_type
from ....dialects.support.replace import erase_op
from ...analysis.nest_info import is_in_place
from ...analysis.origins import is_named, operator_of
from ...manager.locations import joined
from ...manager.pass_manager import Pass
from ..fusion.facts import MAX_BODY_OPS
from ..transform.loop_rewrite import Place, clone_into


@dataclass(frozen=True)
class ContractEpilogue(Pass):
    """Puts what is computed from a product element by element into its contraction."""

    name = "contract-epilogue"

    apart: tuple[str, ...] = ()
    """Values (by name) and source lines that a directive keeps in nests of their own, or puts with others."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        numerics = op.attributes.get("nd.numerics")
        eager = isinstance(numerics, StringAttr) and numerics.data == "eager"
        symbols = symbol_ranges(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            apart = {o for o in func.body.block.ops if any(is_named(o, operator_of(entry)) for entry in self.apart)}
            contracts = [o for o in func.body.block.ops if isinstance(o, loop.ContractOp) and _takes_epilogue(o) and o not in apart]
            position = {o: k for k, o in enumerate(func.body.block.ops)} if contracts else {}
            for contract in contracts:
                kept = tensor_type(contract.results[0]).element_type == contract.accumulator.type
                region = _Region(contract, symbols, position, apart, bias_only=eager or not kept)
                region.grow()
                if region.taken:
                    self.remark(contract, f"computes {len(region.taken)} operations on its sums", kind="applied")
                    self.statistic("num-fused", len(region.taken))
                    position[region.fuse()] = position[contract]


def is_plain(op: loop.ContractOp) -> bool:
    """Whether a contraction only stores its accumulator, once and without a condition."""
    stores = [o for o in op.block.ops if isinstance(o, loop.StoreOp)]
    plain = len(stores) == 1 and len(list(op.block.ops)) == 1 and stores[0].value is op.accumulator
    return plain and stores[0].mode is None and stores[0].masked is None


def _takes_epilogue(op: loop.ContractOp) -> bool:
    """Whether a contraction is one matrix product of floats whose sums are stored in their order."""
    if not is_plain(op) or "no_fuse" in op.attributes or len(op.loop_sizes) != 2 or not isinstance(op.outs[0].owner, loop.EmptyOp):
        return False
    store = op.block.first_op
    assert isinstance(store, loop.StoreOp)
    return is_in_place(op, store) and op.accumulator.type in (f32, f64)


@dataclass
class _Member:
    """A nest of the region, with the row and column of the product (d0, d1) for each of its loops."""

    nest: loop.NestOp
    loops: tuple[Expr, ...]


@dataclass
class _Region:
    """A contraction and the nests that may be computed with it. `places`: for each tensor that they make, row and column of the product at
    an index of it; `taken`: the nests that are, behind which one tensor is read by others."""

    contract: loop.ContractOp
    symbols: RangeEnv
    position: dict[Operation, int]
    apart: set[Operation]
    bias_only: bool
    places: dict[SSAValue, tuple[Expr, Expr]] = field(default_factory=dict)
    members: list[_Member] = field(default_factory=list)
    taken: list[_Member] = field(default_factory=list)

    def grow(self) -> None:
        """Find what can be taken: each nest is looked at once, in the order of the program."""
        self.places[self.contract.results[0]] = (dim(0), dim(1))
        waiting = self._readers(self.contract.results[0])
        seen: set[Operation] = set()
        ops = 0
        while waiting:
            nest = min(waiting, key=self.position.__getitem__)
            waiting.discard(nest)
            if nest in seen:
                continue
            seen.add(nest)
            member = self._member(nest)
            ops += len(list(member.nest.block.ops)) if member is not None else 0
            if member is None or ops > MAX_BODY_OPS // 3:  # beyond it a nest of its own is as good
                break
            self.members.append(member)
            waiting |= self._readers(member.nest.results[0])
            if self._ends_here():
                self.taken = list(self.members)

    def _readers(self, tensor: SSAValue) -> set[Operation]:
        """The nests of the function that read a tensor."""
        nests = [loop.nest_around(use.operation) for use in tensor.uses]
        return {nest for nest in nests if nest is not None}

    def _ends_here(self) -> bool:
        """Whether of all tensors made so far only that of the last member is read by others."""
        inside: set[Operation] = {m.nest for m in self.members}
        made = [self.contract.results[0], *(m.nest.results[0] for m in self.members[:-1])]
        return all(loop.nest_around(use.operation) in inside for tensor in made for use in tensor.uses)

    def _member(self, nest: Operation) -> _Member | None:
        """A nest as a part of the region, if it stores one element for each of the product, from elements of the region at the same place
        and from what is there before the contraction."""
        if not isinstance(nest, loop.NestOp) or nest not in self.position or nest in self.apart or not _is_pointwise(nest):
            return None
        if not self.bias_only and tensor_type(nest.results[0]).element_type not in (f32, f64):
            return None
        rows, columns = self.contract.loop_sizes
        env = {**self.symbols, **{dim(k): Range.of_size(s) for k, s in enumerate(nest.loop_sizes)}}
        ranges = RangeEnv(env)
        place: tuple[Expr, ...] | None = None
        for op in nest.block.ops:
            if not isinstance(op, loop.LoadOp):
                continue
            if op.source not in self.places:
                if self._is_late(op.source):
                    return None
                continue
            index = _index_of(nest, op)
            if index is None or op.masked is not None:
                return None
            found = tuple(simplify(dims_subs(e, index), ranges) for e in self.places[op.source])
            if place is not None and found != place:
                return None
            place = found
        if place is None or (self.bias_only and not self._adds_bias(nest, place)):
            return None
        loops = _loops_at(nest, place, rows, columns)
        store = nest.block.last_op
        stored = _index_of(nest, store) if isinstance(store, loop.StoreOp) and loops is not None else None
        if loops is None or stored is None:
            return None
        at = _place_by_index(nest, stored, place)
        if at is None:
            return None
        self.places[nest.results[0]] = at
        return _Member(nest, loops)

    def _adds_bias(self, nest: loop.NestOp, place: tuple[Expr, ...]) -> bool:
        """Whether all that a nest does is to add a vector to the columns of the product, in the type of its operands."""
        product, (*loads, add, _) = self.contract, nest.block.ops
        if not isinstance(add, arith.AddfOp) or add.result.type != product.accumulator.type or len(loads) != 2:
            return False
        if {*add.operands} != {v for op in loads for v in op.results}:
            return False
        others = [op for op in loads if isinstance(op, loop.LoadOp) and op.source is not product.results[0]]
        if len(others) != 1 or others[0].masked is not None or _index_of(nest, others[0]) != (place[1],):
            return False
        tensors = (product.lhs, product.rhs, product.results[0], nest.results[0], others[0].source)
        return len({tensor_type(v).element_type for v in tensors}) == 1

    def _is_late(self, tensor: SSAValue) -> bool:
        """Whether a tensor is made behind the contraction."""
        owner = tensor.owner
        while isinstance(owner, nd.IndexViewOp):
            if self.position.get(owner, 0) > self.position[self.contract]:
                return True
            owner = owner.operands[0].owner
        return not isinstance(owner, Block) and self.position.get(owner, 0) > self.position[self.contract]

    # ---- the rewrite

    def fuse(self) -> loop.ContractOp:
        """One contraction in the place of the old one and the nests taken."""
        old, last = self.contract, self.taken[-1].nest
        block = old.parent
        assert block is not None
        t = tensor_type(last.results[0])
        empty = loop.EmptyOp.create(result_types=[TensorType.get(old.loop_sizes, t.element_type, t.device.data)])
        block.insert_op_before(empty, old)
        new = loop.ContractOp.build_contract(
            old.loop_sizes, old.depth.data, (old.lhs, old.lhs_map.data), (old.rhs, old.rhs_map.data), [empty.results[0]],
            old.accumulator.type,
        )  # fmt: skip
        new.location = joined([old.location, *(m.nest.location for m in self.taken)])
        if last.label is not None:
            new.properties["label"] = last.label
        block.insert_op_before(new, old)
        known: dict[SSAValue, SSAValue] = {old.results[0]: new.accumulator}
        for member in self.taken:
            known[member.nest.results[0]] = _copy_body(member, new, known, self.symbols)
        final = loop.StoreOp.new(known[last.results[0]], new.out_args[0], IndexMap.identity(2), list(new.indices))
        new.block.add_op(final)
        self._hand_on(last.results[0], new)
        for op in (*(m.nest for m in reversed(self.taken)), old):
            loop.drop_nest(op)
        return new

    def _hand_on(self, tensor: SSAValue, new: loop.ContractOp) -> None:
        """Have those who read `tensor` read the result of the contraction: accesses at its rows and columns, others a view."""
        made = new.results[0]
        made.name_hint = tensor.name_hint
        row, column = self.places[tensor]
        map_ = IndexMap(tensor_type(tensor).rank, (row, column))
        same = tensor.type == made.type and _keeps_indices(map_, tensor_type(tensor).dims)
        view: nd.IndexViewOp | None = None
        for use in list(tensor.uses):
            op = use.operation
            if isinstance(op, loop.LoadOp) and loop.nest_around(op) is not None and use.index == 0:
                operands = [made, *op.operands[1:]]
                properties = {**op.properties, "map": IndexMapAttr.get(map_.compose(op.index_map))}
                changed = loop.LoadOp.create(operands=operands, result_types=[op.result.type], properties=properties, location=op.location)
                assert op.parent is not None
                op.parent.insert_op_before(changed, op)
                op.result.replace_all_uses_with(changed.result)
                erase_op(op)
                continue
            if isinstance(op, nd.IndexViewOp):
                whole = map_.compose(op.map.data)
                sizes = {dim(k): Range.of_size(s) for k, s in enumerate(tensor_type(op.result).dims)}
                op.properties["map"] = IndexMapAttr.get(whole.simplify(RangeEnv({**self.symbols, **sizes})))
                op.operands[0] = made
                continue
            if same:
                op.operands[use.index] = made
                continue
            if view is None:
                view = nd.IndexViewOp.create(operands=[made], result_types=[tensor.type], properties={"map": IndexMapAttr.get(map_)})
                view.location = new.location
                assert new.parent is not None
                new.parent.insert_op_after(view, new)
            op.operands[use.index] = view.result


def _keeps_indices(map_: IndexMap, sizes: Sequence[Expr]) -> bool:
    """Whether a map sends each index of a tensor to itself; of a dimension with one element that is 0, too."""
    return all(e is dim(k) or (e is ZERO and size is ONE) for k, (e, size) in enumerate(zip(map_.results, sizes, strict=True)))


def _is_pointwise(nest: loop.NestOp) -> bool:
    """Whether a nest computes one element in each iteration, by loads and arithmetic, and stores it without a condition."""
    store = nest.block.last_op
    if len(nest.results) != 1 or "no_fuse" in nest.attributes or not isinstance(nest.outs[0].owner, loop.EmptyOp):
        return False
    if not isinstance(store, loop.StoreOp) or store.mode is not None or store.masked is not None:
        return False
    inner = list(nest.block.ops)[:-1]
    return all(not o.regions and not isinstance(o, loop.StoreOp) and _is_plain_op(o) for o in inner)


def _is_plain_op(op: Operation) -> bool:
    """Whether an operation of a body is arithmetic, a constant or an access with indices of loops."""
    if isinstance(op, loop.LoadOp):
        return True
    return op.name.startswith(("arith.", "math.", "loop.math")) or isinstance(op, loop.IndexOp)


def _index_of(nest: loop.NestOp, op: loop.LoadOp | loop.StoreOp) -> tuple[Expr, ...] | None:
    """The index of an access over the nest's loops; 0 for a loop of one iteration; None where something else indexes."""
    numbers = {value: k for k, value in enumerate(nest.indices)}
    if any(v not in numbers for v in op.index_operands):
        return None
    sizes = nest.loop_sizes
    return tuple(op.index_map.apply([ZERO if sizes[numbers[v]] is ONE else dim(numbers[v]) for v in op.index_operands]))


def _loops_at(nest: loop.NestOp, place: Sequence[Expr], rows: Expr, columns: Expr) -> tuple[Expr, ...] | None:
    """For each loop of a nest its index at row d0 and column d1 of the product, where row and column are numbers that the loops count
    between them, each element once."""
    sizes = nest.loop_sizes
    found: list[Expr | None] = [ZERO if size is ONE else None for size in sizes]
    for index, whole, at in ((place[0], rows, dim(0)), (place[1], columns, dim(1))):
        steps = [(k, linear_coeff(index, dim(k))) for k in range(len(sizes)) if dim(k) in free_dims(index)]
        step: Expr = ONE
        left = dict(steps)
        while left:
            k = next((k for k, c in left.items() if c is step), None)
            if k is None or found[k] is not None:
                return None
            del left[k]
            last = step * sizes[k] is whole
            found[k] = at // step if last else at // step % sizes[k]
            step = step * sizes[k]
        if step is not whole or dims_subs(index, [ZERO] * len(sizes)) is not ZERO:
            return None
    return None if None in found else tuple(e for e in found if e is not None)


def _place_by_index(nest: loop.NestOp, stored: Sequence[Expr], place: Sequence[Expr]) -> tuple[Expr, Expr] | None:
    """Row and column of the product at an index of the tensor that a nest stores; each index is a loop over all of it, or 0."""
    back: list[Expr] = [ZERO] * len(nest.loop_sizes)
    for k, (e, size) in enumerate(zip(stored, tensor_type(nest.results[0]).dims, strict=True)):
        if isinstance(e, Dim) and back[e.index] is ZERO and nest.loop_sizes[e.index] is size:
            back[e.index] = dim(k)
        elif e is not ZERO or size is not ONE:
            return None
    if any(size is not ONE and back[k] is ZERO for k, size in enumerate(nest.loop_sizes)):
        return None
    row, column = (dims_subs(e, back) for e in place)
    return row, column


def _copy_body(member: _Member, new: loop.ContractOp, known: dict[SSAValue, SSAValue], symbols: RangeEnv) -> SSAValue:
    """Append what a nest computes to the contraction's body; the value that it would store."""
    nest, indices = member.nest, list(new.indices)
    places: dict[SSAValue, Place] = {index: (e, indices) for index, e in zip(nest.indices, member.loops, strict=True)}
    values = {index: indices[e.index] for index, (e, _) in places.items() if isinstance(e, Dim)}
    for op in nest.block.ops:
        if isinstance(op, loop.LoadOp) and op.source in known:
            values[op.result] = known[op.source]
        elif isinstance(op, loop.StoreOp):
            return values[op.value]
        else:
            new.block.add_op(clone_into(op, values, places, symbols))
    raise AssertionError("a nest ends with a store")
