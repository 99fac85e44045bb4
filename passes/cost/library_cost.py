"""What matrix products, convolutions and other calls of a library cost: flops and bytes by operator, the time from both.

A product runs at the machine's rate for its type once its operands are packed; packing goes through them at the bandwidth of the level that
holds them, and a call costs a fixed time. Operators of which nothing is known count as one pass over operands and results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop, mem, nd
from ...dialects.expr import Expr, as_expr, evaluate, free_syms
from ...dialects.nd.base import prop
from ...dialects.nd.call_args import Arg
from ...dialects.nd.types import LOW_PRECISION, element_bytes
from ..analysis.op_costs import op_cost
from .batch_cost import batch_cost
from .cost_model import SERVER, Cost, Work, nest_cost
from .machine.cpu import Cpu
from .machine.prices import prices


@dataclass(frozen=True)
class LibraryPrices:
    """How the library's operators use a CPU.

    `half_passes`: passes over the operands of a 16-bit product, which the matrix units take in an order of their own.
    `convolution_rate_share`: part of the machine's rate that a convolution reaches. Operations on 512 bits: `sort_units` for each element
    and each level of a sort, `score_units` for each score of an attention (the exponential, and the row's maximum and sum),
    `element_units` for each element of an operator of which nothing is known."""

    half_passes: float
    convolution_rate_share: float
    sort_units: float
    score_units: float
    element_units: float


LIBRARY = prices("cpu_library", LibraryPrices)
Sizes = Sequence[int]


def price(
    flops: float, read: float, written: float, gflops: float, machine: Cpu, *, passes: float = 1.0, start_ns: float, units: float = 0.0
) -> Cost:
    """The cost of arithmetic at a given rate with its operands gone through `passes` times; `start_ns` is the time of the call."""
    level = machine.home(read + written)
    compute = flops / gflops + units * machine.unit_ns
    memory = (read * passes + written) / level.gbs
    busy = machine.busy(compute, memory)
    bound = "launch" if start_ns > busy else "compute" if compute >= memory else "memory"
    threads = machine.threads if busy > 2 * machine.region_ns else 1
    by_level = {one.name: read * passes + written if one is level else 0.0 for one in machine.levels[1:]}
    work = Work(read, written, units, flops)
    return Cost(work, by_level, compute * 1e-9, memory * 1e-9, (busy / threads + start_ns) * 1e-9, bound, "library")


def matmul_cost(
    m: int, n: int, k: int, machine: Cpu = SERVER, *, batch: int = 1, dtype_bytes: int = 4, library: bool = True, units: float = 0.0
) -> Cost:
    """The cost of C[batch, m, n] = A[batch, m, k] B[batch, k, n]; `units` for what is done with C on the way."""
    read, written = float(batch * (m * k + k * n) * dtype_bytes), float(batch * m * n * dtype_bytes)
    half = dtype_bytes < 4
    rate = machine.half_gflops or machine.gflops if half else machine.gflops / (dtype_bytes / 4)
    start = machine.call_ns * (1 + (batch > 1)) if library else machine.launch_ns
    passes = LIBRARY.half_passes if half else 1.0
    return price(2.0 * batch * m * n * k, read, written, rate, machine, passes=passes, start_ns=start, units=units)


def step_cost(op: Operation, hints: Mapping[str, int] | None = None, machine: Cpu = SERVER) -> Cost | None:
    """The cost of one op of a function at the loop or memory level: a nest, contraction, batch or call of the library; None for what
    does nothing at run time."""
    if isinstance(op, loop.NestOp):
        return nest_cost(op, hints, machine)
    if isinstance(op, loop.ContractOp):
        return contract_cost(op, hints, machine)
    if isinstance(op, mem.ExternOp | nd.ExternOp):
        return extern_cost(op, hints, machine)
    if isinstance(op, loop.BatchOp):
        return batch_cost(op, hints, machine)
    return None


def contract_cost(op: loop.ContractOp, hints: Mapping[str, int] | None = None, machine: Cpu = SERVER) -> Cost:
    """The cost of a contraction, its epilogue included."""
    *batch, m, n = [1, 1, *(size(e, hints) for e in op.loop_sizes)]
    k = size(op.depth.data, hints)
    trips = prod(batch) * m * n
    units = sum(op_cost(inner) for inner in loop.walk_bodies(op)) * trips / 16
    library = isinstance(op.schedule, StringAttr) and op.schedule.data == "library"
    width = max(element_bytes(loop.element_type(v.type)) for v in op.operands[:2])
    return matmul_cost(m, n, k, machine, batch=prod(batch), dtype_bytes=width, library=library, units=units)


def extern_cost(op: mem.ExternOp | nd.ExternOp, hints: Mapping[str, int] | None = None, machine: Cpu = SERVER) -> Cost:
    """The cost of a call of the library."""
    name, (arguments, outs) = _operator(op), _shapes(op, hints)
    destinations = _destinations(op)
    inputs = [v for k, v in enumerate(op.operands) if k not in destinations]
    written = sum(bytes_of(v, hints) for v in (*op.results, *(op.operands[k] for k in destinations)))
    read = sum(bytes_of(v, hints) for v in inputs)
    rule = _RULES.get(name)
    flops = rule(arguments, outs) if rule else 0.0
    half = any(_is_half(v.type) for v in inputs)
    rate = (machine.half_gflops or machine.gflops) if half else machine.gflops
    if "conv" in name:
        rate *= LIBRARY.convolution_rate_share
    elements = sum(map(prod, outs))
    units = 0.0
    if "sort" in name or name == "topk":
        units = LIBRARY.sort_units * elements * log2(max([2, *(s[-1] for s in (*arguments, *outs) if s)])) / (1 if "sort" in name else 8)
    elif rule in (_attention, _attention_backward):
        units = LIBRARY.score_units * _scores(arguments[rule is _attention_backward :])
    elif not flops:
        units = LIBRARY.element_units * elements
    passes = LIBRARY.half_passes if half and flops else 1.0
    return price(flops, read, written, rate, machine, passes=passes, start_ns=machine.call_ns, units=units)


def product_sizes(op: mem.ExternOp | nd.ExternOp, hints: Mapping[str, int] | None = None) -> tuple[int, int, int, int] | None:
    """(batch, rows, columns, terms of a sum) of a call that is a product of matrices; None for another call."""
    arguments, outs = _shapes(op, hints)
    if _RULES.get(_operator(op)) is not _product or len(arguments) < 2 or not outs or len(outs[0]) < 2 or not arguments[-2]:
        return None
    *batch, rows, columns = outs[0]
    return prod(batch), rows, columns, arguments[-2][-1]


def is_attention(op: mem.ExternOp | nd.ExternOp) -> bool:
    """Whether a call is an attention, or its gradient."""
    return _RULES.get(_operator(op)) in (_attention, _attention_backward)


def _operator(op: mem.ExternOp | nd.ExternOp) -> str:
    """The name of the operator that is called, without its overload."""
    target = op.call.data.target.split(".")
    return target[1] if len(target) > 1 else target[0]


def _shapes(op: mem.ExternOp | nd.ExternOp, hints: Mapping[str, int] | None) -> tuple[Sequence[Sizes], Sequence[Sizes]]:
    """The sizes of the tensors that are arguments, and of the results."""
    shapes = [shape(v, hints) for v in op.operands]
    outs = [shape(v, hints) for v in op.results] + [shapes[k] for k in _destinations(op)]
    arguments = [s for a in op.call.data.args if isinstance(a, Arg) and (s := shapes[a.index]) is not None]
    return arguments, [o for o in outs if o is not None]


def size(e: Expr | int, hints: Mapping[str, int] | None) -> int:
    """A size, with the hints for symbols (else 64)."""
    e = as_expr(e)
    return e.value if e.value is not None else evaluate(e, {s: (hints or {}).get(s.name, 64) for s in free_syms(e)})


def shape(value: SSAValue, hints: Mapping[str, int] | None) -> tuple[int, ...] | None:
    """The sizes of a tensor or buffer; None for a scalar."""
    dims = getattr(value.type, "dims", None)
    return None if dims is None else tuple(size(e, hints) for e in dims)


def bytes_of(value: SSAValue, hints: Mapping[str, int] | None) -> int:
    """Bytes of the elements of a tensor or buffer; 0 for a scalar."""
    found = shape(value, hints)
    return 0 if found is None else prod(found) * element_bytes(loop.element_type(value.type))


def _destinations(op: mem.ExternOp | nd.ExternOp) -> Sequence[int]:
    """Operands that the call stores its result to."""
    return prop(op, "out") or () if isinstance(op, mem.ExternOp) else ()


def _is_half(t: Attribute) -> bool:
    return getattr(t, "element_type", None) in LOW_PRECISION


# ---- flops by operator: of the shapes of the tensor arguments and of the results


def _product(arguments: Sequence[Sizes], outs: Sequence[Sizes]) -> float:
    """The contracted size is the last one of the first matrix among the last two arguments."""
    return 2.0 * prod(outs[0]) * arguments[-2][-1] if len(arguments) > 1 and arguments[-2] else 0.0


def _convolution(arguments: Sequence[Sizes], outs: Sequence[Sizes]) -> float:
    weight = arguments[1]
    return 2.0 * prod(outs[0]) * prod(weight[1:])


def _convolution_backward(arguments: Sequence[Sizes], outs: Sequence[Sizes]) -> float:
    gradient, weight = arguments[0], arguments[2]
    return 2.0 * prod(gradient) * prod(weight[1:]) * max(1, sum(len(o) == len(weight) for o in outs))


def _scores(arguments: Sequence[Sizes]) -> int:
    """Scores of an attention, of the shapes of its query and key."""
    query, key = arguments[:2]
    return prod(query[:-1]) * key[-2]


def _attention(arguments: Sequence[Sizes], outs: Sequence[Sizes]) -> float:
    return 4.0 * _scores(arguments) * arguments[0][-1]


def _attention_backward(arguments: Sequence[Sizes], outs: Sequence[Sizes]) -> float:
    return 10.0 * _scores(arguments[1:]) * arguments[1][-1]


_ATTENTIONS = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
_RULES: dict[str, Callable[[Sequence[Sizes], Sequence[Sizes]], float]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_int_mm", "addmm", "baddbmm", "addbmm", "_addmm_activation"), _product),
    **dict.fromkeys(("convolution", "_convolution", "conv2d", "conv1d", "conv3d", "mkldnn_convolution"), _convolution),
    "convolution_backward": _convolution_backward,
    **{name: _attention for name in _ATTENTIONS},
    **{f"{name}_backward": _attention_backward for name in _ATTENTIONS},
}
