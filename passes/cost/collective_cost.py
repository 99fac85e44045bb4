"""Collectives as calls of the library: which calls they are, what they send, and how long that takes between any number of ranks.

A collective begins where it is called and goes on beside the program until `wait_tensor` of its result. Its time is that of a ring
(Patarasuk and Yuan, 2009) for the bytes and of a tree for the hops: a start, log2(ranks) hops, and (ranks - 1) / ranks of the bytes over
the link; an all-reduce goes round twice. Ranks of one host have the link of the host, more ranks the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

from xdsl.ir import Operation

from ...dialects import mem, nd
from .library_cost import bytes_of
from .machine import Gpu, Machine
from .machine.prices import prices

NAMESPACE = "_c10d_functional."
WAIT = f"{NAMESPACE}wait_tensor.default"


@dataclass(frozen=True)
class Link:
    """What joins ranks. `host_ranks`: ranks of one host; `start_us`: of a collective of no bytes between ranks at no distance; `*_hop_us`:
    to the next rank; `*_gbs`: GB/s of a ring, for each rank."""

    host_ranks: int
    start_us: float
    host_hop_us: float
    host_gbs: float
    network_hop_us: float
    network_gbs: float

    def seconds(self, kind: str, size: float, ranks: int) -> float:
        """The time of a collective (`collective_kind`) of `size` bytes, all ranks' parts together where each has one."""
        if ranks < 2:
            return self.start_us * 1e-6
        near = ranks <= self.host_ranks
        hop, gbs = (self.host_hop_us, self.host_gbs) if near else (self.network_hop_us, min(self.network_gbs, self.host_gbs))
        rounds = 2.0 if kind == "all_reduce" else 1.0
        sent = rounds * size * (ranks - 1) / ranks
        return (self.start_us + rounds * ceil(log2(ranks)) * hop) * 1e-6 + sent / gbs * 1e-9

    @property
    def small_bytes(self) -> float:
        """Bytes that are sent in the time of a start: with fewer, a collective is more start than transfer."""
        return self.start_us * self.host_gbs * 1e3


def link_of(machine: Machine) -> Link:
    """The link between machines of a kind. It is the same for all machines of that kind: ranks must come to the same plan."""
    return prices("gpu_links" if isinstance(machine, Gpu) else "cpu_links", Link)


def is_begin(op: Operation) -> bool:
    """Whether an operation begins a collective."""
    return isinstance(op, nd.ExternOp | mem.ExternOp) and op.call.data.target.startswith(NAMESPACE) and op.call.data.target != WAIT


def is_wait(op: Operation) -> bool:
    """Whether an operation waits for the result of a collective, its first operand."""
    return isinstance(op, nd.ExternOp | mem.ExternOp) and op.call.data.target == WAIT


def collective_kind(op: nd.ExternOp | mem.ExternOp) -> str:
    """Which collective a call begins: "all_reduce", "all_gather_into_tensor"."""
    return op.call.data.target.removeprefix(NAMESPACE).partition(".")[0].removesuffix("_").removesuffix("_coalesced")


def collective_bytes(op: nd.ExternOp | mem.ExternOp, hints: Mapping[str, int] | None = None) -> int:
    """Bytes of what is gathered, scattered or reduced: all parts together."""
    return max(sum(bytes_of(v, hints) for v in op.operands), sum(bytes_of(v, hints) for v in op.results))


def group_ranks(op: nd.ExternOp | mem.ExternOp) -> int | None:
    """The number of ranks, where the call says it: gathering and scattering ones do."""
    numbers = [a for a in op.call.data.args if isinstance(a, int) and not isinstance(a, bool)]
    return numbers[0] if collective_kind(op).startswith(("all_gather", "reduce_scatter")) and numbers else None


class Clock:
    """Time on one rank: its own work, and one collective after the other beside it. `now`, `communication` and `exposed`, the time in
    which it did nothing but wait, are in seconds."""

    def __init__(self) -> None:
        self.now = self.communication = self.exposed = 0.0
        self._free = 0.0
        self._ends: dict[object, float] = {}

    def work(self, seconds: float) -> None:
        """The rank computes."""
        self.now += seconds

    def begin(self, key: object, seconds: float) -> None:
        """A collective is called; it begins behind those before it."""
        self._free = self._ends[key] = max(self.now, self._free) + seconds
        self.communication += seconds

    def left(self, key: object) -> float:
        """Seconds until a collective ends; 0 for one that has, or that began elsewhere."""
        return max(0.0, self._ends.get(key, 0.0) - self.now)

    def wait(self, key: object) -> None:
        """Nothing is done until a collective ends."""
        left = self.left(key)
        self.exposed += left
        self.now += left


def simulate(steps: Sequence[tuple[Operation, float]], ranks: int, machine: Machine, hints: Mapping[str, int] | None = None) -> Clock:
    """The time of a schedule between `ranks`: operations of one level, each with the seconds that it takes by itself. What is gathered,
    scattered or reduced has one size for each number of ranks, as the parameters of a model have that more ranks share."""
    link, clock = link_of(machine), Clock()
    for op, seconds in steps:
        if isinstance(op, nd.ExternOp | mem.ExternOp) and is_begin(op):
            clock.begin(op, link.seconds(collective_kind(op), collective_bytes(op, hints), ranks))
        elif is_wait(op):
            clock.wait(op.operands[0].owner)
        else:
            clock.work(seconds)
    return clock
