"""The rewriting of one function from tensors to buffers, op by op in order.

Every tensor gets a buffer in some storage (an argument's memory, an allocation, the result of a library call). A
storage holds one tensor at a time; `until` is the last position at which that tensor, or a view of it, is read. After
that its memory may be stored to: by a nest that builds on the tensor (scatter, slices), by a nest that reads it
element by element (reuse), or, for an argument's memory, by the nest that computes the argument's new value. Whatever
is not allowed becomes a copy nest, with a remark that says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue, Use
from xdsl.rewriter import Rewriter

from ...dialects import loop, mem, nd
from ...dialects.expr import ONE, ZERO, IndexMap, dim, dims_subs, free_dims
from ...dialects.expr.ranges import RangeEnv
from ...dialects.expr.syntax import IndexMapAttr
from ...dialects.mem import BufferType
from ...dialects.nd.base import IntsAttr
from ...dialects.nd.call_args import Arg, Call, CallAttr
from ...dialects.nd.types import TensorType, tensor_type
from ...dialects.support.replace import erase_op
from ...passes.analysis.accesses.in_place import InPlaceAccesses
from ...passes.analysis.accesses.panels import panel_columns
from ...passes.analysis.accesses.windows import windows_of
from ...passes.manager.errors import PassError
from ...passes.manager.instrumentation import remark, statistic
from .copies import copy_nest
from .layouts import Layouts, Strides, overlaps, same_strides, view_strides
from .liveness import Liveness, is_tensor

ARENA, OUTPUT = StringAttr("arena"), StringAttr("output")
PASS = "loop-to-mem"


class Storage:
    """One piece of memory: `kind` is "argument", "donated" (an argument's that is ours to overwrite), "fresh" (ours) or "extern" (a
    library call's result)."""

    __slots__ = ("kind", "root", "until", "exclusive", "claimed")

    def __init__(self, kind: str, root: SSAValue, exclusive: bool = True):
        self.kind = kind
        self.root = root
        self.until: float = -math.inf
        """The position of the last operation that needs what it holds."""
        self.exclusive = exclusive
        """Whether nobody else can hold a reference to the memory, so that it may be overwritten or given to the
        caller."""
        self.claimed: str | None = None
        """Set when a result of the function is this storage: the name of the value that the result is a view of, or
        ""."""


class Lowering:
    """State of the rewriting; the rules of calls and of the function's end are in externs.py and results.py."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, several_buffers: Callable[..., list[SSAValue]]):
        self.func = func
        module = func.parent_op()
        self.device = module.attributes.get(nd.DEVICE) if module is not None else None
        self._several_buffers = several_buffers
        self.env = symbols
        self.block = func.body.block
        self.live = Liveness(func)
        self.layouts = Layouts(func, self.live, symbols)
        self.storage: dict[SSAValue, Storage] = {}
        """By buffer."""
        self.buffers: dict[SSAValue, SSAValue] = {}
        """By tensor; a tensor that is an operand is replaced by its buffer everywhere as soon as that exists."""
        self.position = 0
        self.current: Operation = func
        self.arguments: list[SSAValue] = []
        self.updates: list[tuple[Operation, SSAValue, SSAValue]] = []
        """Updates that the end of the function has to look at: op, the argument's buffer, the value's buffer."""
        self.stored_updates: set[Operation] = set()
        """Updates whose value a nest has stored in the argument besides its own buffer."""
        self.stored_results: dict[int, SSAValue] = {}
        """Results of the function for which a nest has filled a buffer besides its own."""

    def run(self, rules: dict[type[Operation], Callable[[Lowering, Any], None]]) -> None:
        """Rewrite the function; `rules` says what to do with each op."""
        self._take_arguments()
        for position, op in enumerate(self.live.ops):
            self.position, self.current = position, op
            rule = rules.get(type(op))
            if rule is None:
                if any(is_tensor(v) for v in (*op.operands, *op.results)):
                    raise PassError(
                        f"{op.name} has no form on buffers; an earlier pass should have lowered it",
                        pass_name=PASS,
                        op=op,
                    )
                continue
            rule(self, op)
        for op in self.live.ops:
            if isinstance(op, loop.EmptyOp):
                self.erase(op)
        self.func.update_function_type()

    def _take_arguments(self) -> None:
        for argument in list(self.block.args):
            if not is_tensor(argument):
                self.arguments.append(argument)
                continue
            kind, until = self.layouts.argument_type(argument), self.live.last_use(argument)
            buffer = Rewriter.replace_value_with_new_type(argument, kind)
            self.arguments.append(buffer)
            self.buffers[argument] = buffer
            donated = argument in self.live.donated and not overlaps(kind.dims, kind.stride_exprs)
            storage = self.storage[buffer] = Storage("donated" if donated else "argument", buffer, exclusive=donated)
            storage.until = until

    # ---- building

    def insert(self, op: Operation) -> None:
        """Put `op` in front of the op that is being rewritten, with its location."""
        op.location = self.current.location
        self.block.insert_op_before(op, self.current)

    def erase(self, op: Operation) -> None:
        """Remove an op whose results have no uses any more."""
        erase_op(op)

    def alloc(self, t: BufferType, name: str | None, kind: StringAttr = ARENA) -> SSAValue:
        """A new buffer with a storage of its own; one on another device than the program's has memory of its own."""
        kind = OUTPUT if self.is_elsewhere(t) else kind
        op = mem.AllocOp.create(result_types=[t], properties={"kind": kind})
        self.insert(op)
        op.result.name_hint = name
        self.storage[op.result] = Storage("fresh", op.result)
        return op.result

    def is_elsewhere(self, t: BufferType) -> bool:
        """Whether a buffer lies where no kernel of the program reaches it."""
        return self.device is not None and t.device != self.device

    def view(self, buffer: SSAValue, t: BufferType, name: str | None = None) -> SSAValue:
        """`buffer` with another type, in the same storage."""
        return buffer if buffer.type == t else self.own_view(buffer, t, name)

    def own_view(self, buffer: SSAValue, t: BufferType, name: str | None = None) -> SSAValue:
        """`buffer` as a buffer of its own in the same storage, even where the types are equal."""
        op = mem.ViewOp.create(operands=[buffer], result_types=[t])
        self.insert(op)
        op.result.name_hint = name
        self.storage[op.result] = self.storage[buffer]
        return op.result

    def copy(
        self,
        source: SSAValue,
        target: SSAValue,
        reason: str,
        m: IndexMap | None = None,
        origin: Operation | None = None,
    ) -> None:
        """A copy in front of the current op, with a remark that says why it is needed; `origin` is the op that
        needs it. It is a nest, and on another device than the program's a call of the library."""
        assert isinstance(target.type, BufferType)
        if self.is_elsewhere(target.type):
            assert m is None, "views of what lies on another device are calls of the library"
            call = CallAttr(Call("aten.copy_.default", (Arg(0), Arg(1))))
            self.insert(mem.ExternOp.create(operands=[target, source], properties={"call": call, "mutates": IntsAttr.get([0])}))
            return
        nest = copy_nest(source, target, (origin or self.current).location, m)
        if nest is not None:
            self.block.insert_op_before(nest, self.current)
            statistic("num-copies")
            remark(origin or self.current, lambda: f"copies {_shape(source)}: {reason}", "missed")

    def place(self, tensor: SSAValue, buffer: SSAValue) -> None:
        """`tensor` lives in `buffer` from here on."""
        storage = self.storage[buffer]
        storage.until = max(storage.until, self.live.last_use(tensor))
        self.buffers[tensor] = buffer
        tensor.replace_all_uses_with(buffer)

    # ---- questions

    def is_dead(self, storage: Storage) -> bool:
        """Whether nothing after the current op reads what the storage holds."""
        return storage.until <= self.position

    def argument_storage(self, argument: int) -> Storage:
        return self.storage[self.arguments[argument]]

    def goal_buffer(self, tensor: SSAValue) -> BufferType | None:
        """The type that `tensor` has in the memory of the argument that it is the new value of; None when it has no
        such goal, or when somebody still reads the argument after the current op."""
        goal = self.layouts.goals.get(tensor)
        if goal is None or goal.argument is None or not self.is_dead(self.argument_storage(goal.argument)):
            return None
        t = tensor_type(tensor)
        return BufferType.get(t.dims, t.element_type, goal.strides, 0, t.device.data)

    def captured(self, op: Operation) -> list[SSAValue]:
        """The buffers that a nest or contraction reads."""
        return [self.buffers[v] for v in self.live.captured[op]]

    # ---- nests

    def empty(self, op: loop.EmptyOp) -> None:
        """A tensor without contents gets memory here only when something else than a nest's outs, or a result that is a view, uses it."""
        if not all(_is_out(use.operation, use.index) or self._is_view_result(use) for use in op.result.uses):
            self.place(op.result, self.alloc(self.layouts.buffer_type(op.result), op.result.name_hint))

    def _is_view_result(self, use: Use) -> bool:
        return isinstance(use.operation, ReturnOp) and self.live.alias(use.index) is not None

    def nest(self, op: loop.NestOp | loop.ContractOp) -> None:
        """A nest or contraction: choose a buffer for each out, then give it the form without results."""
        accesses: list[InPlaceAccesses] = []

        def reads_before_stores(source: SSAValue, out: SSAValue, stored: BufferType) -> bool:
            if isinstance(op, loop.ContractOp):
                return False  # a blocked product may store partial sums early
            if not accesses:
                accesses.append(InPlaceAccesses(op))
            t = source.type
            assert isinstance(t, BufferType)
            if t == stored:
                return accesses[0].allows(source, out, self.env)
            return accesses[0].same_address(source, t, out, stored, self.env)

        if isinstance(op, loop.ContractOp):
            self._take_operand(op, 0, "lhs_map")
            self._take_operand(op, 1, "rhs_map")
        captured = self.captured(op)
        taken: set[Storage] = set()
        buffers: list[SSAValue] = []
        choices: list[_OutChoice] = []
        outs, arguments, results = list(op.outs), list(op.out_args), list(op.results)
        for init, argument, result in zip(outs, arguments, results, strict=True):
            choice = _OutChoice(self, op, captured, taken, reads_before_stores, init, argument, result)
            buffer = choice.choose()
            taken.add(self.storage[buffer])
            buffers.append(buffer)
            choices.append(choice)
        second: list[SSAValue] = []
        for choice, buffer in zip(choices, buffers, strict=True):
            if isinstance(op, loop.NestOp) and isinstance(choice.init.owner, loop.EmptyOp):
                second += self._several_buffers(self, op, choice.argument, choice.result, buffer, taken, choice.may_store)
        for argument, buffer in zip(arguments, buffers, strict=True):
            Rewriter.replace_value_with_new_type(argument, buffer.type)
        for local in [inner for inner in op.block.ops if isinstance(inner, loop.LocalOp)]:
            t = tensor_type(local.result)
            Rewriter.replace_value_with_new_type(local.result, BufferType.get(t.dims, t.element_type, None, 0, t.device.data))
        for result, buffer in zip(results, buffers, strict=True):
            self.place(result, buffer)
        if not any(size is ZERO for size in op.loop_sizes):
            self._buffer_form(op, [*buffers, *second])
        self.erase(op)

    def _take_operand(self, op: loop.ContractOp, k: int, map_name: str) -> None:
        """Give operand `k` of a contraction a stride for every loop: a copy where it has none (reversed dimensions)."""
        buffer, m = op.operands[k], op.properties[map_name].data  # pyright: ignore[reportAttributeAccessIssue]
        t = buffer.type
        assert isinstance(t, BufferType) and isinstance(m, IndexMap)
        sizes = (*op.loop_sizes, op.depth.data)
        if view_strides(sizes, t.stride_exprs, t.offset_expr, m, self.env) is not None:
            return
        if k == 0 and len(op.loop_sizes) == 2 and windows_of(m, op.loop_sizes[0], op.depth.data, t.stride_exprs, t.offset_expr) is not None:
            return
        if k == 1 and panel_columns(m, op.loop_sizes[-1], op.depth.data, loop.element_type(op.lhs.type), t):
            return
        used = sorted({d.index for e in m.results for d in free_dims(e)})
        place = [dim(used.index(d)) if d in used else ZERO for d in range(len(sizes))]
        kind = BufferType.get([sizes[d] for d in used], t.element_type, None, 0, t.device.data)
        copied = self.alloc(kind, buffer.name_hint)
        through = IndexMap(len(used), tuple(dims_subs(e, place) for e in m.results))
        self.copy(buffer, copied, f"no strides express its access {m}", through)
        op.operands[k] = copied
        op.properties[map_name] = IndexMapAttr.get(IndexMap(len(sizes), tuple(dim(d) for d in used)))

    def _buffer_form(self, op: loop.NestOp | loop.ContractOp, buffers: Sequence[SSAValue]) -> None:
        operands = [*op.operands[: len(op.operands) - len(op.outs)], *buffers]
        properties, attributes = dict(op.properties), dict(op.attributes)
        regions = [op.detach_region(0) for _ in range(len(op.regions))]
        new = type(op).create(operands=operands, properties=properties, attributes=attributes, regions=regions)
        self.insert(new)

    # ---- views

    def index_view(self, op: nd.IndexViewOp) -> None:
        """A view: of the same memory where strides can express it, else a copy."""
        t = tensor_type(op.result)
        source = op.input
        base = source.type
        assert isinstance(base, BufferType)
        m = op.map.data
        found = view_strides(t.dims, base.stride_exprs, base.offset_expr, m, self.env)
        if found is not None:
            kind = BufferType.get(t.dims, t.element_type, found[0], found[1], t.device.data)
            self.place(op.result, self.view(source, kind, op.result.name_hint))
        else:
            self.place(op.result, self._gathered(op, source, m))
        self.erase(op)

    def _gathered(self, op: nd.IndexViewOp, source: SSAValue, m: IndexMap) -> SSAValue:
        goal = self.goal_buffer(op.result)
        if goal is not None:
            argument = self.layouts.goals[op.result].argument
            assert argument is not None
            if self.storage[source] is not self.argument_storage(argument):
                target = self.view(self.arguments[argument], goal)
                self.copy(source, target, "it goes to the argument that it updates", m)
                return target
        target = self.alloc(self.layouts.buffer_type(op.result), op.result.name_hint)
        self.copy(source, target, f"no strides express the view {m}", m)
        return target

    def with_strides(self, tensor: SSAValue, buffer: SSAValue, strides: Strides, reason: str) -> SSAValue:
        """`buffer` itself when its elements lie as `strides` say, else a copy that does. A stride of a dimension of one element, by which a
        library sees what layout a tensor has, becomes what is asked for."""
        t = buffer.type
        assert isinstance(t, BufferType)
        if same_strides(t.dims, t.stride_exprs, strides, self.env):
            alone = any(d is ONE and a is not b for d, a, b in zip(t.dims, t.stride_exprs, strides, strict=True))
            asked = BufferType.get(t.dims, t.element_type, strides, t.offset_expr, t.device.data)
            return self.view(buffer, asked, tensor.name_hint) if alone and not any(d is ZERO for d in t.dims) else buffer
        copied = self.alloc(BufferType.get(t.dims, t.element_type, strides, 0, t.device.data), tensor.name_hint)
        self.storage[copied].until = self.position
        self.copy(buffer, copied, reason)
        return copied


class _OutChoice:
    """Which buffer one out of a nest gets."""

    def __init__(
        self,
        low: Lowering,
        op: loop.NestOp | loop.ContractOp,
        captured: list[SSAValue],
        taken: set[Storage],
        reads_before_stores: Callable[[SSAValue, SSAValue, BufferType], bool],
        init: SSAValue,
        argument: SSAValue,
        result: SSAValue,
    ):
        self.low = low
        self.op = op
        self.captured = captured
        self.taken = taken
        self.reads_before_stores = reads_before_stores
        self.init = init
        self.argument = argument
        self.result = result

    def choose(self) -> SSAValue:
        """The buffer; allocates and copies as needed, in front of the nest."""
        low, init = self.low, self.init
        if isinstance(self.op, loop.ContractOp) and any(e.has_div for m in (self.op.lhs_map, self.op.rhs_map) for e in m.data.results):
            t = tensor_type(self.result)  # a product of windows, or of panels, stores rows; who wants columns gets a copy
            return low.alloc(BufferType.get(t.dims, t.element_type, None, 0, t.device.data), self.result.name_hint)
        if isinstance(init.owner, loop.EmptyOp):
            return (
                self._goal() or self._reused() or low.alloc(low.layouts.buffer_type(self.result), self.result.name_hint)
            )
        reason = self._keeps_initial_value()
        if reason is None:
            statistic("num-in-place")
            return init
        buffer = self._goal_for_copy() or low.alloc(low.layouts.buffer_type(self.result), self.result.name_hint)
        low.copy(init, buffer, reason)
        return buffer

    def _keeps_initial_value(self) -> str | None:
        """Why the nest cannot store into the memory of its initial tensor; None when it can."""
        low, storage = self.low, self.low.storage[self.init]
        if storage in self.taken:
            return "another out of the nest is built on the same tensor"
        if not low.is_dead(storage):
            return "the tensor that it is built on is read again later"
        if storage.kind == "argument":
            goal = low.goal_buffer(self.result)
            if goal is None or goal != self.init.type or low.argument_storage(self._goal_argument()) is not storage:
                return "the tensor that it is built on is an argument"
        elif not storage.exclusive:
            return "the tensor that it is built on may share its memory"
        t = self.init.type
        assert isinstance(t, BufferType)
        if overlaps(t.dims, t.stride_exprs):
            return "elements of the tensor that it is built on share memory"
        if not self.may_store(storage, t):
            return "the nest reads the tensor that it is built on at other places than it stores to"
        return None

    def may_store(self, storage: Storage, t: BufferType) -> bool:
        """Whether no read of the nest from `storage` meets a store of the out, which has type `t` there."""
        low = self.low
        return all(
            _element(c.type) == t.element_type and self.reads_before_stores(c, self.argument, t)
            for c in self.captured
            if low.storage[c] is storage
        )

    def _goal_argument(self) -> int:
        argument = self.low.layouts.goals[self.result].argument
        assert argument is not None
        return argument

    def _goal(self) -> SSAValue | None:
        """The memory of the argument that the result is the new value of, if the nest may store there."""
        low = self.low
        t = low.goal_buffer(self.result)
        if t is None:
            return None
        target = low.arguments[self._goal_argument()]
        storage = low.storage[target]
        if storage in self.taken or not self.may_store(storage, t):
            return None
        statistic("num-in-place")
        return low.view(target, t, self.result.name_hint)

    def _goal_for_copy(self) -> SSAValue | None:
        """The same for a nest in front of which the initial tensor is copied there: nothing may be read from that
        memory then."""
        goal = self.low.layouts.goals.get(self.result)
        if goal is None or goal.argument is None:
            return None
        storage = self.low.argument_storage(goal.argument)
        if any(self.low.storage.get(b) is storage for b in (*self.captured, *self.op.outs)):
            return None
        return self._goal()

    def _reused(self) -> SSAValue | None:
        """A buffer that the nest reads, that dies here, and that may be overwritten element by element."""
        low = self.low
        if isinstance(self.op, loop.ContractOp):
            return None
        wanted = low.layouts.buffer_type(self.result)
        returned = self.result in low.live.returned
        for buffer in self.captured:
            storage = low.storage[buffer]
            if buffer.type != wanted and not self._holds(storage, wanted) or (returned and storage.kind == "donated"):
                continue
            fits = storage.exclusive and storage not in self.taken and low.is_dead(storage)
            fits = fits and storage.root.type.numel is wanted.numel  # pyright: ignore[reportAttributeAccessIssue]
            if (
                fits
                and self.may_store(storage, wanted)
                and not any(low.storage.get(o) is storage for o in self.op.outs)
            ):
                statistic("num-reused")
                return low.view(buffer, wanted, self.result.name_hint)
        return None

    @staticmethod
    def _holds(storage: Storage, t: BufferType) -> bool:
        """Whether a storage of ours, or one donated to us, has just the memory that a buffer of type `t` takes."""
        root = storage.root.type
        assert isinstance(root, BufferType)
        dense = root.extent() is root.numel and t.extent() is t.numel
        return storage.kind in ("fresh", "donated") and root.element_type == t.element_type and dense and root.numel is t.numel


def _is_out(op: Operation, index: int) -> bool:
    return isinstance(op, loop.NestOp) or (isinstance(op, loop.ContractOp) and index >= 2)


def _element(t: Attribute) -> Attribute | None:
    return t.element_type if isinstance(t, BufferType) else None


def _shape(value: SSAValue) -> str:
    t = value.type
    return " x ".join(map(str, t.dims)) + f" x {t.element_type}" if isinstance(t, (BufferType, TensorType)) else str(t)
