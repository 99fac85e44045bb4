"""Runs one nest or contraction on torch tensors, element by element: each is turned into a Python function of plain
loops.

The iterations of parallel loops and of reductions run in an order that the caller chooses (forward, reverse,
shuffled), so that a nest which overwrites what a later iteration reads gives different results in different orders.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from xdsl.dialects.builtin import IndexType, IntegerType, bf16
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, IndexMap, evaluate, free_dims, to_python
from ...dialects.expr.syntax import IndexMapAttr
from ...lowering.fx.philox import random_numbers
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from . import reductions as interpret_reductions
from . import scalars as interpret_scalars
from .errors import InterpreterError

_INTEGERS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64, torch.uint8: torch.int8}


class Memory:
    """The elements of a strided tensor by index, as values of the compute type; an index outside is a InterpreterError."""

    def __init__(self, tensor: torch.Tensor, dtype: Attribute, what: str):
        signed = tensor.view(_INTEGERS[tensor.dtype]) if tensor.dtype in _INTEGERS else tensor
        if dtype == bf16:
            signed = signed.view(torch.int16)
        self.shape, self.strides, self.start = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
        self.what = what
        extent = signed.untyped_storage().nbytes() // signed.element_size()
        self.flat: np.ndarray[Any, Any] = signed.as_strided((extent,), (1,), 0).numpy()
        self.decode, self.encode = _codec(tensor.dtype)

    def place(self, index: tuple[int, ...]) -> int:
        at: Any = self.start
        for i, n, s in zip(index, self.shape, self.strides, strict=True):
            if not 0 <= i < n:
                raise InterpreterError(
                    f"{self.what}: index {list(index)} is outside of a tensor of sizes {list(self.shape)}"
                )
            at += i * s
        return at

    def load(self, *index: int) -> Any:
        return self.decode(self.flat[self.place(index)])

    def store(self, value: Any, *index: int) -> None:
        self.flat[self.place(index)] = self.encode(value)

    def combine(self, mode: str, value: Any, *index: int) -> None:
        """A store that combines with what is there."""
        at = self.place(index)
        old = self.decode(self.flat[at])
        self.flat[at] = self.encode(_MODES[mode](old, value))


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Contents that show when something reads an element before it is stored."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


class AccessCounter:
    """Counts the distinct bytes that nests read and write, for `run_loop(counter=...)`: within one nest an element counts as read when
    it is loaded (or combined with) before the nest stored it, and as written when it is stored."""

    def __init__(self) -> None:
        self.read = 0
        self.written = 0
        self.loaded: set[tuple[int, int]] = set()
        self.stored: set[tuple[int, int]] = set()

    def memory(self, tensor: torch.Tensor, dtype: Attribute, what: str) -> Memory:
        """The memory of a tensor whose accesses are counted."""
        return _CountedMemory(tensor, dtype, what, self)

    def end_nest(self) -> None:
        """Add what the nest that ran touched."""
        self.read += sum(size for _, size in self.loaded)
        self.written += sum(size for _, size in self.stored)
        self.loaded.clear()
        self.stored.clear()


class _CountedMemory(Memory):
    def __init__(self, tensor: torch.Tensor, dtype: Attribute, what: str, counter: AccessCounter):
        super().__init__(tensor, dtype, what)
        self.counter = counter
        self.size = tensor.element_size()
        self.base = tensor.untyped_storage().data_ptr()

    def _element(self, index: tuple[int, ...]) -> tuple[int, int]:
        return self.base + self.place(index) * self.size, self.size

    def load(self, *index: int) -> Any:
        element = self._element(index)
        if element not in self.counter.stored:
            self.counter.loaded.add(element)
        return super().load(*index)

    def store(self, value: Any, *index: int) -> None:
        self.counter.stored.add(self._element(index))
        super().store(value, *index)

    def combine(self, mode: str, value: Any, *index: int) -> None:
        element = self._element(index)
        if element not in self.counter.stored:
            self.counter.loaded.add(element)
        self.counter.stored.add(element)
        super().combine(mode, value, *index)


def _same(value: Any) -> Any:
    return value


def _codec(dtype: torch.dtype) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How an element in memory becomes a value, and back."""
    if dtype == torch.bool:
        return bool, _same
    if dtype == torch.bfloat16:
        return _bf16_value, _bf16_bits
    if dtype == torch.float16:
        return np.float32, np.float16
    if dtype.is_floating_point:
        return _same, _same
    bits = dtype.itemsize * 8
    return int, lambda value: interpret_scalars.wrap(int(value), bits)


def _bf16_value(word: Any) -> np.float32:
    return (np.uint32(np.uint16(word)) << np.uint32(16)).view(np.float32)


def _bf16_bits(value: Any) -> np.int16:
    word = interpret_scalars.round_bf16(value).view(np.uint32) >> np.uint32(16)
    return np.uint16(word).view(np.int16)


def _larger(a: Any, b: Any) -> Any:
    return b if b != b or b > a else a


def _smaller(a: Any, b: Any) -> Any:
    return b if b != b or b < a else a


_MODES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a | b if isinstance(a, bool) else a + b,
    "prod": lambda a, b: a & b if isinstance(a, bool) else a * b,
    "max": _larger,
    "min": _smaller,
}


def bounded(value: int, size: int, what: str, wrap: bool, dim: int | None = None) -> int:
    """loop.bound: a loaded index in [0, size). IndexError that names the operator."""
    found = value + size if wrap and value < 0 else value
    if not 0 <= found < size:
        place = "a dimension of" if dim is None else f"dimension {dim} with"
        raise IndexError(f"{what}: index {value} is out of bounds for {place} size {size}")
    return found


def random_number(kind: str, seed: int, offset: int) -> Any:
    made = random_numbers(kind, seed, offset, 1)[0].item()
    return int(made) if kind == "randint" else np.float32(made)


class Order:
    """The order of parallel iterations: "forward", "reverse" or "shuffle" (with a seed)."""

    def __init__(self, how: str = "forward", seed: int = 0):
        if how not in ("forward", "reverse", "shuffle"):
            raise ValueError(f"unknown order '{how}', known: forward, reverse, shuffle")
        self.how = how
        self.random = random.Random(seed)

    def __call__(self, count: int) -> Sequence[int]:
        if self.how == "forward":
            return range(count)
        if self.how == "reverse":
            return range(count - 1, -1, -1)
        found = list(range(count))
        self.random.shuffle(found)
        return found


class NestRunner:
    """Writes and runs the Python function of one nest or contraction.

    `tensors` and `scalars` hold what the body captures; `outs` are the keys of the outs in `tensors`; `memory` makes the memory of a
    tensor."""

    def __init__(
        self,
        op: loop.NestOp | loop.ContractOp,
        tensors: Mapping[SSAValue, torch.Tensor],
        scalars: Mapping[SSAValue, Any],
        symbols: Mapping[str, int],
        order: Order,
        outs: Sequence[SSAValue],
        memory: Callable[[torch.Tensor, Attribute, str], Memory] = Memory,
    ):
        self.op = op
        self.memory = memory
        self.outs = outs
        self.tensors = tensors
        self.scalars = scalars
        self.symbols = symbols
        self.lines: list[str] = []
        self.names: dict[SSAValue, str] = {}
        self.space: dict[str, Any] = {
            "np": np, "math": math, "order": order, "bounded": bounded, "random_number": random_number,
            "reduction": interpret_reductions.reduction, "scan": interpret_reductions.scan,
            "typed": interpret_reductions.typed,
            "named_function": interpret_scalars.named_function,
            **{k: getattr(interpret_scalars, k) for k in _SCALAR_FUNCTIONS},
        }  # fmt: skip

    def run(self) -> None:
        """Execute the nest; outs are written in place."""
        op = self.op
        for argument, out in zip(op.out_args, self.outs, strict=True):
            self.names[argument] = self._memory(out)
        depth = self._loops(op, 0)
        if isinstance(op, loop.ContractOp):
            index = ", ".join(self.names[i] for i in op.indices)
            self.names[op.accumulator] = "acc"
            self.space["accumulate"] = self._accumulator(op)
            self.lines.append(f"{'    ' * depth}acc = accumulate({index})")
        self._block(op.block, depth)
        text = "\n".join(self.lines) or "pass"
        with np.errstate(all="ignore"):
            exec(compile(text, f"<{op.name}>", "exec"), self.space)

    # ---- names

    def _new(self, prefix: str) -> str:
        self._count = getattr(self, "_count", 0) + 1
        return f"{prefix}{self._count}"

    def _memory(self, value: SSAValue) -> str:
        name = self.names.get(value)
        if name is None:
            name = self.names[value] = self._new("m")
            what = value.name_hint or self.op.name
            self.space[name] = self.memory(self.tensors[value], loop.element_type(value.type), what)
        return name

    def _name(self, value: SSAValue) -> str:
        name = self.names.get(value)
        if name is None:
            name = self.names[value] = self._new("c")
            self.space[name] = self.scalars[value]
        return name

    def _expr(self, e: Expr, dims: Sequence[str]) -> str:
        names: dict[Any, str] = {f"d{k}": n for k, n in enumerate(dims)}
        names.update({k: str(v) for k, v in self.symbols.items()})
        return to_python(e, names)

    def _map(self, m: IndexMap, operands: Sequence[SSAValue]) -> str:
        dims = [self._name(v) for v in operands]
        return ", ".join(self._expr(e, dims) for e in m.results)

    # ---- code

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _define(self, depth: int, value: SSAValue, text: str) -> None:
        name = self.names[value] = self._new("v")
        self._line(depth, f"{name} = {text}")

    def _loops(self, op: loop.LoopLike, depth: int, sequential: bool = False) -> int:
        for value, size in zip(op.indices, op.loop_sizes, strict=True):
            name = self.names[value] = self._new("i")
            count = evaluate(size, self.symbols)
            self._line(depth, f"for {name} in {'range' if sequential else 'order'}({count}):")
            depth += 1
        return depth

    def _block(self, block: Block, depth: int) -> None:
        start = len(self.lines)
        for op in block.ops:
            rule = _RULES.get(type(op))
            if rule is not None:
                rule(self, op, depth)
            else:
                self._define(
                    depth, op.results[0], interpret_scalars.expression(op, [self._name(v) for v in op.operands])
                )
        if len(self.lines) == start:
            self._line(depth, "pass")

    def _load(self, op: loop.LoadOp, depth: int) -> None:
        text = f"{self._memory(op.source)}.load({self._map(op.index_map, op.index_operands)})"
        if op.mask is not None and op.other is not None:
            text = f"{text} if {self._name(op.mask)} else {self._name(op.other)}"
        self._define(depth, op.result, text)

    def _store(self, op: loop.StoreOp, depth: int) -> None:
        index = self._map(op.index_map, op.index_operands)
        call = "store(" if op.store_mode == "set" else f"combine({op.store_mode!r}, "
        guard = f"if {self._name(op.mask)}: " if op.mask is not None else ""
        self._line(
            depth, f"{guard}{self._memory(op.target)}.{call}{', '.join(x for x in (self._name(op.value), index) if x)})"
        )

    def _index(self, op: loop.IndexOp, depth: int) -> None:
        text = self._map(op.map.data, op.args)
        self._define(depth, op.result, f"wrap({text}, {interpret_scalars.width(op.result.type)})")

    def _bound(self, op: loop.BoundOp, depth: int) -> None:
        size = evaluate(op.size.data, self.symbols)
        axis = op.dim.data if op.dim is not None else None
        text = f"bounded({self._name(op.input)}, {size}, {op.what.data!r}, {op.wrap is not None}, {axis})"
        self._define(depth, op.result, text)

    def _math(self, op: loop.MathOp, depth: int) -> None:
        operands = ", ".join([repr(op.fn.data), *(self._name(v) for v in op.inputs)])
        self._define(depth, op.result, f"named_function({operands})")

    def _random(self, op: loop.RandomOp, depth: int) -> None:
        self._define(
            depth, op.result, f"random_number({op.kind.data!r}, {self._name(op.seed)}, {self._name(op.offset)})"
        )

    def _local(self, op: loop.LocalOp, depth: int) -> None:
        kind = op.result.type
        name, sizes, dtype = self._new("m"), [int(d) for d in loop.shaped_dims(kind)], loop.element_type(kind)
        what = op.result.name_hint or op.name
        self.space[f"new_{name}"] = lambda: Memory(poisoned(torch.empty(sizes, dtype=TORCH_DTYPES[dtype])), dtype, what)
        self.names[op.result] = name
        self._line(depth, f"{name} = new_{name}()")

    def _for(self, op: loop.ForOp, depth: int) -> None:
        self._block(op.block, self._loops(op, depth, op.sequential is not None))

    def _type(self, t: Attribute) -> str:
        name = self._new("t")
        self.space[name] = t
        return name

    def _reduce(self, op: loop.ReduceOp, depth: int) -> None:
        states: list[str] = []
        last = op.block.last_op
        assert last is not None
        taken = 0
        for kind in op.kind_names:
            states.append(self._new("s"))
            self._line(depth, f"{states[-1]} = reduction({kind!r}, {self._type(last.operands[taken].type)})")
            taken += loop.KINDS[kind][0]
        inner = self._loops(op, depth)
        self._block(op.block, inner)
        values = [self._name(v) for v in last.operands]
        for state, kind in zip(states, op.kind_names, strict=True):
            count = loop.KINDS[kind][0]
            self._line(inner, f"{state}.add({', '.join(values[:count])})")
            values = values[count:]
        results = list(op.outputs)
        for state, kind in zip(states, op.kind_names, strict=True):
            for k, result in enumerate(results[: loop.KINDS[kind][1]]):
                self._define(depth, result, f"typed({state}.value()[{k}], {self._type(result.type)})")
            results = results[loop.KINDS[kind][1] :]

    def _scan(self, op: loop.ScanOp, depth: int) -> None:
        last, state = op.block.last_op, self._new("s")
        assert last is not None
        self._line(depth, f"{state} = scan({op.kind!r}, {self._type(last.operands[0].type)})")
        inner = self._loops(op, depth, sequential=True)
        self._block(op.block, inner)
        self._line(inner, f"{state}.add({', '.join(self._name(v) for v in last.operands)})")
        if op.kind == "sort":
            inner = self._loops(op, depth, sequential=True)
        self.names[op.do_block.args[0]] = self.names[op.indices[0]]
        for k, running in enumerate(op.do_block.args[1:]):
            self._define(inner, running, f"typed({state}.value()[{k}], {self._type(running.type)})")
        self._block(op.do_block, inner)

    def _yield(self, op: Operation, depth: int) -> None:
        return

    # ---- contractions

    def _accumulator(self, op: loop.ContractOp) -> Callable[..., Any]:
        """The function of the loop indices that gives the contracted sum."""
        depth = evaluate(op.depth.data, self.symbols)
        lhs, rhs = self._row(op, depth, op.lhs, op.lhs_map), self._row(op, depth, op.rhs, op.rhs_map)
        t = op.accumulator.type

        def accumulate(*index: int) -> Any:
            a, b = lhs(index), rhs(index)
            exact = isinstance(t, (IntegerType, IndexType))  # numpy's integers would wrap
            return interpret_reductions.typed(sum(x * y for x, y in zip(a, b, strict=True)) if exact else float(np.dot(a, b)), t)

        return accumulate

    def _row(self, op: loop.ContractOp, depth: int, value: SSAValue, m: IndexMapAttr) -> Callable[..., Any]:
        """The function of the loop indices that gives the `depth` elements of an operand that are multiplied: read once for all
        indices that the map does not use."""
        element, kept = self._side(value, m), dict[tuple[int, ...], Any]()
        last = m.data.num_dims - 1
        used = sorted({d.index for e in m.data.results for d in free_dims(e)} - {last})
        exact = isinstance(op.accumulator.type, (IntegerType, IndexType))

        def row(index: tuple[int, ...]) -> Any:
            key = tuple(index[k] for k in used)
            found = kept.get(key)
            if found is None:
                values = [_wide(element(*index, k)) for k in range(depth)]
                found = kept[key] = values if exact else np.array(values, dtype=np.float64)
            return found

        return row

    def _side(self, value: SSAValue, m: IndexMapAttr) -> Callable[..., Any]:
        for out in self.outs:
            if _share_memory(self.tensors[value], self.tensors[out]):
                raise InterpreterError("loop.contract: an out shares memory with an operand")
        name = self._memory(value)
        count = m.data.num_dims
        dims = [f"d{k}" for k in range(count)]
        element = f"{name}.load({', '.join(self._expr(e, dims) for e in m.data.results)})"
        return eval(f"lambda {', '.join(dims)}: {element}", self.space)


def _wide(x: Any) -> Any:
    return x if isinstance(x, int) else float(x)


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the address ranges of two tensors meet."""
    if not a.numel() or not b.numel():
        return False
    ends = []
    for x in (a, b):
        reach = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
        ends.append((x.data_ptr(), x.data_ptr() + reach * x.element_size()))
    return ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]


_SCALAR_FUNCTIONS = (
    "wrap", "bits", "divide", "remainder", "shift", "int_power", "trailing_zeros", "to_int", "round_bf16", "bitcast",
)  # fmt: skip

_RULES: dict[type[Operation], Callable[[NestRunner, Any, int], None]] = {
    loop.LoadOp: NestRunner._load,
    loop.StoreOp: NestRunner._store,
    loop.IndexOp: NestRunner._index,
    loop.BoundOp: NestRunner._bound,
    loop.MathOp: NestRunner._math,
    loop.RandomOp: NestRunner._random,
    loop.LocalOp: NestRunner._local,
    loop.ForOp: NestRunner._for,
    loop.ReduceOp: NestRunner._reduce,
    loop.ScanOp: NestRunner._scan,
    loop.YieldOp: NestRunner._yield,
}

__all__ = ["AccessCounter", "Memory", "NestRunner", "Order", "bounded", "poisoned"]
