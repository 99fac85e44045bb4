"""What planning asks about the nests of a function: sizes, what they read once their producers are computed in them, what that costs,
whether a nest can and should be computed where it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import i1
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, Expr, dim, dims_subs, free_dims
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import TensorType, element_bytes, tensor_type
from ...analysis.nest_info import NestInfo, nest_info, uses_opaque
from ...cost.machine import Machine
from ...cost.machine.cpu import SERVER
from .price import GroupWork, group_ns
from .product_facts import MAX_FACTOR_PRODUCTS, ProductFacts
from .types import Extents, Read

if TYPE_CHECKING:
    from .directives import Directives

SPARSE_READ_DIVISOR = 8
"""A nest whose loops could read at most 1 / SPARSE_READ_DIVISOR of a tensor is taken to read as many elements as they run; any other one,
all of it."""
MAX_MEETING_DEPTH = 8
"""How many nests down the meeting of the readers of a value is looked for."""

MAX_AVERAGE_COPIES, MIN_TRIPS_PER_ELEMENT = 1.5, 8
"""A producer is computed in its only reader where that needs each element fewer times than the one, on the average, or the loops of the
reader go round the other times for each element that it makes or needs: then it costs little beside the rest."""
MAX_REPEATED_OPS = 24
"""A nest of more operations is not repeated in several readers, nor a value of more in the nest that keeps it."""
MAX_BODY_OPS = 192
"""Ops that a body may grow to by inlining; beyond it a value is stored (very deep expressions stay compilable)."""
MAX_COPIED_OPS = 512
"""Ops of all copies of a producer, one for each element that its readers need at a time, their own counting once (three passes of an
interpolation, each of six taps, would be 216 loads in one body, which Triton compiles for a minute)."""


@dataclass(frozen=True)
class NestWork:
    """What a nest takes, in units of op_costs.py, and how often its innermost loops run; of each tensor that it reads a number, the place
    of the op that makes it (-1: none), the bytes that it reads and those that there are."""

    units: float
    trips: int
    reads: list[tuple[int, int, int, int]]


class NestFacts(Extents):
    """Facts about the nests of one function. `inlined` are the nests that are computed where they are read; whoever changes it calls
    `forget`."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, hints: Mapping[str, int], directives: Directives | None = None):
        super().__init__(hints)
        self.symbols = symbols
        self.directives = directives
        self.ops = list(func.body.block.ops)
        self.position = {op: k for k, op in enumerate(self.ops)}
        self.infos = {op: nest_info(op) for op in self.ops if isinstance(op, loop.NestOp)}
        self.consumers: dict[SSAValue, list[NestInfo]] = {}
        for info in self.infos.values():
            for tensor in dict.fromkeys([a.tensor for a in info.reads]):
                self.consumers.setdefault(tensor, []).append(info)
        self.scalars = _captured_scalars(self.ops)
        self.inlined: dict[SSAValue, NestInfo] = {}
        self.machine: Machine = SERVER
        """What the nests are for; see LoopFuse."""
        self.price: Callable[[GroupWork], float] = group_ns
        """Nanoseconds of one nest of a plan; see LoopFuse."""
        self._reads: dict[Operation, list[Read]] = {}
        self._weight: dict[Operation, tuple[int, int]] = {}
        self._read_bytes: dict[Operation, dict[SSAValue, int]] = {}
        self._units: dict[Operation, float] = {}
        self._whole_users: dict[SSAValue, list[Operation]] = {}
        self._work: dict[int, NestWork] = {}
        self._users: dict[int, list[tuple[int, frozenset[int]]]] = {}
        self._readers: dict[SSAValue, list[NestInfo]] = {}
        self.products = ProductFacts(self, func)

    def iterations(self, info: NestInfo) -> int:
        """How often the innermost loops of a nest run."""
        return max([self.count(sizes) for sizes, _ in info.parts])

    # ---- reads and work after inlining

    def reads(self, info: NestInfo) -> list[Read]:
        """What a nest reads once its inlined producers are computed in it (each access once)."""
        found = self._reads.get(info.op)
        if found is not None:
            return found
        table: dict[tuple[SSAValue, tuple[Expr, ...] | None], Read] = {}
        for access in info.reads:
            index = None if uses_opaque(access.index, info.opaque) else access.index
            producer = self.inlined.get(access.tensor)
            if producer is None:
                key = access.tensor, index
                if key not in table:
                    table[key] = Read(access.tensor, index)
                continue
            for inner in self.reads(producer):
                through = None if index is None or inner.index is None else tuple([dims_subs(e, index) for e in inner.index])
                key = inner.tensor, through
                if key not in table:
                    table[key] = Read(inner.tensor, through)
        found = self._reads[info.op] = list(table.values())
        return found

    def read_bytes(self, info: NestInfo) -> dict[SSAValue, int]:
        """Bytes that a nest reads of each tensor: all, but where its loops run far too seldom for that (a few rows of a table)."""
        found = self._read_bytes.get(info.op)
        if found is None:
            found = self._read_bytes[info.op] = {}
            trips = self.iterations(info)
            for read in self.reads(info):
                t = read.tensor.type
                whole = self.bytes(read.tensor)
                once = trips * element_bytes(t.element_type) if isinstance(t, TensorType) else whole
                few = once * SPARSE_READ_DIVISOR <= whole
                found[read.tensor] = min(found.get(read.tensor, 0) + (once if few else whole), whole)
        return found

    def weight(self, info: NestInfo) -> tuple[int, int]:
        """Ops and costly ops of a nest's body, inlined producers counted in."""
        found = self._weight.get(info.op)
        if found is None:
            ops, heavy = info.ops, info.heavy
            for access in info.reads:
                producer = self.inlined.get(access.tensor)
                if producer is not None:
                    more = self.weight(producer)
                    ops, heavy = ops + more[0], heavy + more[1]
            found = self._weight[info.op] = (ops, heavy)
        return found

    def units(self, info: NestInfo) -> float:
        """Operations on elements that a nest takes, in units of op_costs.py, inlined producers counted in."""
        found = self._units.get(info.op)
        if found is None:
            found = sum([self.count(sizes) * units for sizes, units in info.parts])
            inlined = [p for a in info.reads if (p := self.inlined.get(a.tensor)) is not None]
            for producer in inlined:
                # a producer computes its whole tensor; here it runs as often as the reader
                once = max(self.count(producer.sizes), 1)
                found += self.units(producer) * self.iterations(info) / once
            self._units[info.op] = found
        return found

    def work_of(self, k: int) -> NestWork:
        """What the nest at place `k` takes and reads."""
        found = self._work.get(k)
        if found is None:
            info = self.infos[self.ops[k]]  # pyright: ignore[reportArgumentType]
            reads = [
                (id(t), self.position.get(t.owner, -1), size, self.bytes(t))  # pyright: ignore[reportArgumentType, reportCallIssue]
                for t, size in self.read_bytes(info).items()
            ]
            found = self._work[k] = NestWork(self.units(info), self.iterations(info), reads)
        return found

    def users_of(self, k: int) -> list[tuple[int, frozenset[int]]]:
        """For each result of the nest at place `k` its bytes, and the places of what uses it; -1 is in an op with a region."""
        found = self._users.get(k)
        if found is None:
            found = self._users[k] = [
                (self.bytes(t), frozenset(self.position.get(op, -1) for op in (*self.whole_users(t), *(i.op for i in self.readers(t)))))
                for t in self.ops[k].results
            ]
        return found

    def computed_in(self, infos: Iterable[NestInfo]) -> list[Operation]:
        """Nests, the last one first, with those that are computed in them."""
        found: dict[Operation, None] = {}
        worklist = list(infos)
        while worklist:
            info = worklist.pop()
            if info.op not in found:
                found[info.op] = None
                worklist += [self.inlined[a.tensor] for a in info.reads if a.tensor in self.inlined]
        return list(found)

    def readers(self, tensor: SSAValue) -> list[NestInfo]:
        """The nests that read a tensor or compute what reads it, those that are computed in others left out."""
        known = self._readers.get(tensor)
        if known is not None:
            return known
        found: dict[Operation, NestInfo] = {}
        for info in self.consumers.get(tensor, ()):
            through = info.op.results and info.op.results[0] in self.inlined
            found.update({i.op: i for i in self.readers(info.op.results[0])} if through else {info.op: info})
        ordered = self._readers[tensor] = sorted(found.values(), key=lambda info: self.position[info.op])
        return ordered

    def forget(self, info: NestInfo) -> list[NestInfo]:
        """Drop what was derived from whether a nest's result is stored; returns the nests that this concerns."""
        makers, passed = [info], set[Operation]()
        while makers:  # of all that the nest reads, and what is computed in it
            for access in makers.pop().reads:
                self._readers.pop(access.tensor, None)
                maker = access.tensor.owner
                if not isinstance(maker, Operation) or maker in passed:
                    continue
                passed.add(maker)
                self._users.pop(self.position[maker], None)
                if access.tensor in self.inlined:
                    makers.append(self.inlined[access.tensor])
        worklist = list(self.consumers.get(info.op.results[0], ()))
        found: list[NestInfo] = []
        while worklist:
            reader = worklist.pop()
            found.append(reader)
            self._reads.pop(reader.op, None)
            self._read_bytes.pop(reader.op, None)
            self._weight.pop(reader.op, None)
            self._units.pop(reader.op, None)
            self._work.pop(self.position[reader.op], None)
            if reader.op.results and reader.op.results[0] in self.inlined:
                worklist += self.consumers.get(reader.op.results[0], ())
        return found

    # ---- inlining

    def whole_users(self, tensor: SSAValue) -> list[Operation]:
        """Uses of a tensor other than loads in nests: they need it in memory."""
        found = self._whole_users.get(tensor)
        if found is None:
            users = [u.operation for u in tensor.uses]
            found = self._whole_users[tensor] = [op for op in users if type(op) is not loop.LoadOp or _is_in_epilogue(op)]
        return found

    def cannot_inline(self, info: NestInfo) -> str:
        """Why a nest cannot be computed where it is read; "" if it can."""
        op = info.op
        if info.has_loops:
            return "it has loops inside (a reduction or a scan)"
        if len(op.results) != 1:
            return "it has several results"
        if not info.is_pointwise:
            return "it does not store each element once, where it computes it"
        if "no_fuse" in op.attributes:
            return "it is marked no_fuse"
        tensor = op.results[0]
        if self.whole_users(tensor):
            return "it is needed in memory (a result, an update or an operand of a library call or contraction)"
        consumers = self.consumers.get(tensor, [])
        if any("no_fuse" in c.op.attributes for c in consumers):
            return "a reader is marked no_fuse"
        if self.directives is not None:
            for c in consumers:
                reason = self.directives.forbids(op, c.op)
                if reason is not None:
                    return reason
        ops = self.weight(info)[0]
        if ops > MAX_BODY_OPS:
            return f"its body would be over {MAX_BODY_OPS} operations"
        accesses = [(a, c) for c in consumers for a in c.reads if a.tensor is tensor]
        if len(accesses) * ops > MAX_COPIED_OPS:
            places = [None if uses_opaque(a.index, c.opaque) else tuple(a.index) for a, c in accesses]
            copies = places.count(None) + len({place for place in places if place is not None})
            if copies > 1 and copies * ops > MAX_COPIED_OPS:
                return f"its readers need {copies} elements at a time, and would have {copies * ops} operations for them"
        return ""

    def not_worth_inlining(self, info: NestInfo) -> str:
        """Why it does not pay to compute a nest where it is read, as far as its readers alone tell; "" if it does."""
        tensor = info.op.results[0]
        consumers = self.consumers[tensor]
        ops, heavy = self.weight(info)
        for reader in consumers:
            repeats = self.iterations(reader) // max(self.times_read(reader, tensor), 1) if reader.multiplies else 0
            if repeats <= MAX_FACTOR_PRODUCTS:
                continue
            if heavy or sum(self.bytes(r.tensor) for r in self.reads(info)) > 2 * self.bytes(tensor) or self.products.is_large(reader):
                return f"each of its elements is a factor of {repeats} products, and costs more than to load it"
        if self.products.ends(info):
            return "it is computed where the product is that it reads: its elements are the fewest bytes to hand on"
        if len(consumers) == 1:
            if heavy == 0:
                return ""
            numel, times = self.count(info.sizes), self.times_read(consumers[0], tensor)
            if times <= MAX_AVERAGE_COPIES * numel or max(numel, times) * MIN_TRIPS_PER_ELEMENT <= self.iterations(consumers[0]):
                return ""
            return f"its reader needs each element {times / max(numel, 1):.3g} times, and it costs {heavy} heavy operations"
        if ops <= MAX_BODY_OPS // 4 and self._meet(info, consumers):
            return ""
        if self.is_free_table(info):
            return ""
        uses = len(consumers)
        if heavy:
            return f"{uses} nests read it, and each would repeat {heavy} heavy operations"
        if ops > MAX_REPEATED_OPS:
            return f"{uses} nests read it, and each would repeat {ops} operations"
        large = sum(1 for r in self.reads(info) if self.bytes(r.tensor) * 2 > self.bytes(tensor))
        if uses * large > large + 1 + uses:
            return f"{uses} nests read it, and each would read its {large} operands instead"
        return ""

    def is_free_table(self, info: NestInfo) -> bool:
        """Whether a nest computes a table from its indices (places and weights of an interpolation, a ramp), or a condition from these and
        what it reads for each row or column (which terms bounds leave), and its readers run on a GPU: they compute it once a row or column
        of a tile, for less than a launch and the loads would cost."""
        if not self.machine.resident_programs or self.weight(info)[1]:
            return False
        reads = self.reads(info)
        is_condition = tensor_type(info.op.results[0]).element_type == i1
        return not reads or (is_condition and info.is_pointwise and all(_is_of_line(r, info) for r in reads))

    def _meet(self, info: NestInfo, consumers: Sequence[NestInfo]) -> bool:
        """Whether the readers of a nest all end up in one nest, element by element: there it is computed once."""
        last = {self._end(info, c).op for c in consumers}
        return len(last) == 1

    def _end(self, producer: NestInfo, reader: NestInfo) -> NestInfo:
        """Follow a reader down its only readers as long as each reads the one before at its own element."""
        for _ in range(MAX_MEETING_DEPTH):
            if not _reads_its_own(reader, producer) or not reader.is_pointwise or reader.has_loops or len(reader.op.results) != 1:
                return reader
            tensor = reader.op.results[0]
            following = self.consumers.get(tensor, [])
            if len(following) != 1 or self.whole_users(tensor) or "no_fuse" in reader.op.attributes:
                return reader
            producer, reader = reader, following[0]
        return reader

    def times_read(self, info: NestInfo, tensor: SSAValue) -> int:
        """How often elements of `tensor` are read by a nest, all accesses together."""
        sizes = [*info.sizes, *info.inner_sizes]
        total = 0
        for access in info.reads:
            if access.tensor is tensor:
                loops = {d.index for e in access.index for d in free_dims(e)}
                total += self.count([sizes[k] for k in loops if k < len(sizes)]) if loops else 1
        return total


def _is_of_line(read: Read, info: NestInfo) -> bool:
    """Whether what a nest reads is the same along a loop of it."""
    dims = {d for e in read.index or () for d in free_dims(e)}
    return read.index is not None and any(dim(k) not in dims for k, size in enumerate(info.sizes) if size is not ONE)


def _reads_its_own(reader: NestInfo, producer: NestInfo) -> bool:
    """Whether a nest reads what another one makes only at the element that it computes itself."""
    if reader.sizes != producer.sizes:
        return False
    own = tuple(dim(k) for k in range(len(reader.sizes)))
    return all(tuple(a.index) == own for a in reader.reads if a.tensor is producer.op.results[0])


def _captured_scalars(ops: Iterable[Operation]) -> dict[Operation, list[SSAValue]]:
    """The scalars that other operations make (an `.item()`) and bodies of nests use, by nest."""
    found: dict[Operation, list[SSAValue]] = {}
    for op in ops:
        for value in op.results:
            if isinstance(value.type, TensorType):
                continue
            for use in value.uses:
                user = use.operation
                while user is not None and user.parent is not op.parent:
                    user = user.parent_op()
                if isinstance(user, loop.NestOp):
                    found.setdefault(user, []).append(value)
    return found


def _is_in_epilogue(op: Operation) -> bool:
    """Whether an operation of a body belongs to a contraction, with which no nest is fused."""
    around = op.parent_op()
    while around is not None and not isinstance(around, loop.NestOp | loop.ContractOp):
        around = around.parent_op()
    return isinstance(around, loop.ContractOp)
