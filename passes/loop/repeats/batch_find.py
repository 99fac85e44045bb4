"""Which operations of a graph of `nd` make equal parts, one for each entry of a list of tensors (an optimiser's step, `torch._foreach_*`).

A part is what hangs together: pointwise ops and reductions to one element, over tensors of one shape and over scalars (tensors of one
element). It takes from outside only arguments of the function and scalars, and gives only results of the function, new values of
arguments and scalars. So nothing that fusion could join to it lies around it. Scalars that several parts use are computed outside.

Two parts are equal when they have the same ops on the same dataflow and element types; shapes may differ, since elements are visited in
the order in which they lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr, product, strides_contiguous
from ....dialects.nd import PointwiseOp
from ....dialects.nd.types import LayoutAttr, TensorType, tensor_type

SEVERAL_PARTS: Operation | None = None
"""In the table of who uses a scalar: several parts."""


@dataclass
class IndependentPart:
    """Ops that hang together, in program order."""

    ops: list[Operation]
    inputs: list[SSAValue] = field(default_factory=list)
    """What the ops take from outside, in the order of use."""

    outputs: list[SSAValue] = field(default_factory=list)
    """What is used outside."""

    dims: tuple[Expr, ...] | None = None
    """The shape of the tensors that are no scalars; None when there are none."""

    strides: tuple[Expr, ...] | None = None
    key: tuple[object, ...] = ()
    """Equal for equal parts, shapes aside."""

    roles: tuple[bool, ...] = ()
    """Which values are scalars, in the order of the key."""

    refused: str = ""
    """Why the part cannot be an entry of a list."""

    @property
    def numel(self) -> Expr:
        return ONE if self.dims is None else product(self.dims)


def is_scalar(value: SSAValue) -> bool:
    """Whether a value is a tensor of one element."""
    return isinstance(value.type, TensorType) and all(d is ONE for d in value.type.dims)


def is_free(op: Operation) -> bool:
    """Whether `op` is written again in each part that uses it: a constant, or a number that is passed."""
    return type(op) in (nd.FullOp, nd.ScalarOp)


def is_member(op: Operation) -> bool:
    """Whether `op` may be in a part."""
    if isinstance(op, PointwiseOp):
        return "no_fuse" not in op.attributes
    return type(op) is nd.ReduceOp and len(op.dims.data) == tensor_type(op.input).rank


class Parts:
    """Finds the parts of one function; `apart` says which ops must stay what they are."""

    def __init__(self, func: FuncOp, apart: Callable[[Operation], bool], fewest: int):
        """`fewest` parts make a list: a scalar argument that so many of them read belongs to none."""
        self.func = func
        self.fewest = fewest
        self.ops = list(func.body.block.ops)
        self.apart = apart
        self.position = {op: k for k, op in enumerate(self.ops)}
        self.level: dict[Operation, int] = {}
        self.parent: dict[Operation, Operation] = {}
        arguments = func.arg_attrs.data if func.arg_attrs is not None else ()
        results = func.res_attrs.data if func.res_attrs is not None else ()
        self._index = {a: k for k, a in enumerate(func.body.block.args)}
        self._arguments = [a.data if isinstance(a, DictionaryAttr) else {} for a in arguments]
        self._results = [a.data if isinstance(a, DictionaryAttr) else {} for a in results]

    def find(self) -> list[IndependentPart]:
        """The parts in the order of their first ops, with keys."""
        self._levels()
        self._join_tensors()
        self._join_scalars()
        self._join_arguments()
        groups: dict[Operation, list[Operation]] = {}
        for op in self.parent:
            groups.setdefault(self._root(op), []).append(op)
        parts = [IndependentPart(sorted(ops, key=self.position.__getitem__)) for ops in groups.values()]
        for part in parts:
            self._describe(part)
        return sorted(parts, key=lambda p: self.position[p.ops[0]])

    # ---- what hangs together

    def _root(self, op: Operation) -> Operation:
        parent = self.parent
        while (above := parent[op]) is not op:
            parent[op] = parent[above]
            op = above
        return op

    def _union(self, a: Operation, b: Operation) -> None:
        a, b = self._root(a), self._root(b)
        if a is not b:
            self.parent[b] = a

    def _levels(self) -> None:
        """Ops that are no members part the graph into levels; parts do not reach over them."""
        level = self.level
        for op in self.ops:
            owners: list[Any] = [v.owner for v in op._operands]
            before = [level[owner] for owner in owners if type(owner) is not Block]
            own = max(before, default=0)
            if is_member(op):
                level[op] = own
                if not all(map(is_scalar, (*op.operands, *op.results))):
                    self.parent[op] = op
            else:
                level[op] = own if is_free(op) else own + 1

    def _join_tensors(self) -> None:
        """Ops that share a tensor which is no scalar, also an argument: one nest reads it once."""
        readers: dict[tuple[SSAValue, int], Operation] = {}
        for op in self.parent:
            for value in op.operands:
                if is_scalar(value):
                    continue
                owner = value.owner
                if owner in self.parent and self.level[owner] == self.level[op]:  # pyright: ignore[reportArgumentType]
                    self._union(owner, op)  # pyright: ignore[reportArgumentType]
                elif isinstance(owner, Block):
                    self._union(readers.setdefault((value, self.level[op]), op), op)

    def _join_scalars(self) -> None:
        """Ops on scalars go to the one part that uses them, or whose results they take."""
        tensors = dict.fromkeys(self.parent)
        users: dict[Operation, Operation | None] = {}
        scalars = [op for op in self.ops if op in self.level and is_member(op) and op not in tensors]
        for op in reversed(scalars):
            found: set[Operation | None] = set()
            for use in op.results[0].uses:
                user = use.operation
                if self.level.get(user) != self.level[op]:
                    continue
                if user in tensors:
                    found.add(self._root(user))
                elif user in users:
                    found.add(users[user])
            if found:
                users[op] = found.pop() if len(found) == 1 else SEVERAL_PARTS
        shared: set[Operation] = set()
        for op in scalars:
            if op in users:
                home = users[op]
                if home is None:  # SEVERAL_PARTS
                    shared.add(op)
                else:
                    self.parent[op] = home
                continue
            owners = [v.owner for v in op.operands if v.owner in self.parent and self.level[v.owner] == self.level[op]]  # pyright: ignore
            makers = dict.fromkeys(map(self._root, owners))  # pyright: ignore[reportArgumentType]
            given = [v.owner for v in op.operands if not (isinstance(v.owner, Operation) and is_free(v.owner))]
            if sum(m in tensors for m in makers) > 1 or (given and all(owner in shared for owner in given)):
                shared.add(op)
                continue
            self.parent[op] = op
            for maker in makers:
                self._union(maker, op)

    def _join_arguments(self) -> None:
        """Parts of scalars alone that read the same argument, as `_join_tensors` does for the other entries of a list."""
        tensors = {self._root(op) for op in self.parent if not all(map(is_scalar, (*op.operands, *op.results)))}
        readers: dict[tuple[SSAValue, int], list[Operation]] = {}
        for op in self.parent:
            for value in op.operands:
                if isinstance(value.owner, Block) and is_scalar(value):
                    readers.setdefault((value, self.level[op]), []).append(op)
        for ops in readers.values():
            roots = {self._root(op) for op in ops}
            if 1 < len(roots) < self.fewest and roots.isdisjoint(tensors):
                for op in ops[1:]:
                    self._union(ops[0], op)

    # ---- what a part is

    def _describe(self, part: IndependentPart) -> None:
        """Fill in what the part takes and gives, its key, and why it is refused."""
        numbers: dict[SSAValue, int] = {}
        key: list[object] = []
        inside = set(part.ops)
        taken: dict[SSAValue, None] = {}
        roles: list[bool] = []
        for op in part.ops:
            if self.apart(op):
                part.refused = "a directive names it"
            key.append(type(op))
            for name, attr in op.properties.items():
                if name != "dims":
                    key.append((name, attr))
            for value in op.operands:
                owner = value.owner
                if isinstance(owner, Operation) and is_free(owner):
                    key.append((type(owner), owner.properties.get("value"), element(value), tuple(owner.operands)))
                    taken.update(dict.fromkeys(owner.operands))
                    self._see(part, value, roles)
                    continue
                number = numbers.get(value)
                if number is None:
                    number = numbers[value] = len(numbers)
                    taken[value] = None
                    key.append((element(value), tensor_type(value).device))
                    self._see(part, value, roles)
                    if not is_scalar(value) and isinstance(owner, Operation):
                        part.refused = part.refused or "it reads a tensor that the graph computes"
                key.append(number)
            for value in op.results:
                numbers[value] = len(numbers)
                used = any(use.operation not in inside for use in value.uses)
                key.append((element(value), used))
                self._see(part, value, roles)
                if used:
                    part.outputs.append(value)
        part.inputs = list(taken)
        part.key, part.roles = tuple(key), tuple(roles)
        if not part.inputs:
            part.refused = part.refused or "it reads nothing"
        part.refused = part.refused or self._ends(part, inside) or self._layout(part)

    def _see(self, part: IndependentPart, value: SSAValue, roles: list[bool]) -> None:
        scalar = is_scalar(value)
        roles.append(scalar)
        if scalar:
            return
        dims = tensor_type(value).dims
        if part.dims is None:
            part.dims = dims
        elif part.dims != dims:
            part.refused = part.refused or "its tensors have different shapes"

    def _ends(self, part: IndependentPart, inside: set[Operation]) -> str:
        for value in part.outputs:
            for use in value.uses:
                user = use.operation
                if isinstance(user, ReturnOp):
                    attrs = self._results[use.index] if use.index < len(self._results) else {}
                    if not self._is_argument(use.index) and ("nd.alias" in attrs or "nd.base" in attrs):
                        return "a result is a view of another value"
                elif not is_scalar(value) and not isinstance(user, nd.UpdateOp) and user not in inside:
                    return "the graph goes on computing with its tensors"
        return ""

    def _is_argument(self, result: int) -> bool:
        """Whether a result of the function is an argument itself or a view of one: then nobody reads the value that is returned."""
        alias = self._results[result].get("nd.alias") if result < len(self._results) else None
        return isinstance(alias, StringAttr) and alias.data.startswith("arg ")

    # ---- where the elements lie

    def _layout(self, part: IndependentPart) -> str:
        """Why the tensors of a part cannot be walked through in one order; sets their strides."""
        if part.dims is None:
            return ""
        if any(d is ZERO for d in part.dims):
            part.strides = strides_contiguous(part.dims)
            return ""  # without elements they lie nowhere
        for strides in self._strides(part):
            if part.strides is None:
                if not is_dense(part.dims, strides):
                    return "its tensors have holes or overlap in memory"
                part.strides = strides
            elif any(a is not b and d is not ONE for a, b, d in zip(strides, part.strides, part.dims, strict=True)):
                return "its tensors lie in memory in different orders"
        return ""

    def _strides(self, part: IndependentPart) -> Sequence[tuple[Expr, ...]]:
        found = [self._argument_strides(v) for v in part.inputs if isinstance(v.owner, Block) and not is_scalar(v) and _is_tensor(v)]
        for value in part.outputs:
            if is_scalar(value):
                continue
            for use in value.uses:
                if isinstance(use.operation, nd.UpdateOp):
                    found.append(self._argument_strides(use.operation.target))
                elif isinstance(use.operation, ReturnOp) and not self._is_argument(use.index):
                    found.append(_given(self._results, use.index, value))
        return found

    def _argument_strides(self, value: SSAValue) -> tuple[Expr, ...]:
        return _given(self._arguments, self._index[value], value)  # pyright: ignore[reportArgumentType]


def _is_tensor(value: SSAValue) -> bool:
    return isinstance(value.type, TensorType)


def element(value: SSAValue) -> Attribute:
    """The element type of a tensor."""
    return tensor_type(value).element_type


def _given(attrs: Sequence[object], k: int, value: SSAValue) -> tuple[Expr, ...]:
    layout = attrs[k].get("nd.layout") if k < len(attrs) else None  # pyright: ignore[reportAttributeAccessIssue]
    return layout.stride_exprs if isinstance(layout, LayoutAttr) else tensor_type(value).contiguous_strides()


def is_dense(dims: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether the dims in some order are row-major without holes (so that the elements are those of one piece of memory)."""
    left = [(d, s) for d, s in zip(dims, strides, strict=True) if d is not ONE]
    expected = ONE
    while left:
        found = next((pair for pair in left if pair[1] is expected), None)
        if found is None:
            return False
        left.remove(found)
        expected = expected * found[0]
    return True
