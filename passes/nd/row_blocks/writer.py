"""A region of rows as a private function of one block of them, and its calls.

    %r0 = func.call @rows0(%x[0:256], %w, ...) ; %r1 = func.call @rows0(%x[256:512], %w, ...) ; %r = nd.cat %r0, %r1

A function keeps blocks apart: no nest of one is fused with one of another, and equal blocks are planned once (`loop-inline` takes the
functions back). All blocks but the last have the same number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, SymbolRefAttr, f32
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp, PointwiseOp
from ....dialects.nd.types import LOW_PRECISION, TensorType, tensor_type
from ....dialects.support.create import create
from .region import JOINED_BY, RowRegion

_COPIED = (nd.FullOp, nd.SizeOp, nd.PermuteOp)
"""What a function makes of its own where it reads it as a whole: constants, and transposed matrices, which their products see through."""


class BlockWriter:
    """Writes the blocks of one region, `blocks` of them."""

    def __init__(self, module: ModuleOp, func: FuncOp, region: RowRegion, counts: Sequence[Expr], adds: bool):
        """`adds`: the function of a block adds to the sums of those before it. Else they are added up behind the calls."""
        self.module, self.func, self.region = module, func, region
        self.counts, self.adds = counts, adds
        self.at: Operation = region.members[-1]
        """Where new operations go: in front of this one."""

    def write(self) -> list[CallOp]:
        """Put calls in the place of the region; gives them."""
        following = self.at.next_op
        assert following is not None  # a function returns
        self.at = following
        bodies: dict[tuple[Expr, bool], _Body] = {}
        calls: list[CallOp] = []
        start: Expr = ZERO
        joined = [k for k, output in enumerate(self.region.outputs) if output in self.region.joined]
        for count in self.counts:
            adds = self.adds and bool(calls)
            body = bodies.get((count, adds))
            if body is None:
                body = bodies[count, adds] = _Body(self.region, count, self._layouts(), self.adds, adds)
                body.add_to(self.module)
            operands = [self._slice(x, axis, start, count) for x, axis in body.given]
            operands += [calls[-1].results[k] for k in joined] if adds else []
            start = start + count
            callee = {"callee": SymbolRefAttr(body.name)}
            call = create(CallOp, operands, body.results, callee, location=self.region.seed.location)
            self._add(call)
            calls.append(call)
        for k, output in enumerate(self.region.outputs):
            output.replace_all_uses_with(self._joined(output, [call.results[k] for call in calls]))
        for op in self.region.behind:
            op.detach()
            self._add(op)
        return calls

    def _add(self, op: Operation) -> None:
        block = self.at.parent
        assert block is not None
        block.insert_op_before(op, self.at)

    def _new(self, op: Operation) -> SSAValue:
        op.location = self.region.seed.location
        self._add(op)
        return op.results[0]

    def _layouts(self) -> dict[SSAValue, Attribute]:
        given = self.func.arg_attrs.data if self.func.arg_attrs is not None else ()
        return dict(zip(self.func.body.block.args, given, strict=False))

    def _slice(self, x: SSAValue, axis: int | None, start: Expr, count: Expr) -> SSAValue:
        """The part of a value that a block reads; `axis`: which dimension its rows are, None for all of it."""
        if axis is None:
            return x
        t = tensor_type(x)
        if axis == 0 and (leading := self.region.leading(t)) != 1:
            t = t.with_dims((self.region.rows, *t.dims[leading:]))
            x = self._new(nd.ReshapeOp.new((x,), t))
        place = [start if k == axis else ZERO for k in range(t.rank)]
        dims = (*t.dims[:axis], count, *t.dims[axis + 1 :])
        steps = ExprsAttr.get([ONE] * t.rank)
        return self._new(nd.SliceOp.new((x,), t.with_dims(dims), starts=ExprsAttr.get(place), steps=steps))

    def _joined(self, output: SSAValue, parts: Sequence[SSAValue]) -> SSAValue:
        """A value of all rows from those of the blocks."""
        t = tensor_type(output)
        kind = self.region.joined.get(output)
        if kind is not None:
            join = OPS[JOINED_BY[kind]]
            parts = parts[-1:] if self.adds else parts
            made = reduce(lambda a, b: self._new(join.create(operands=(a, b), result_types=(a.type,))), parts)
            made = made if made.type == t else self._new(CastOp.new((made,), t))
        else:
            rows = t.with_dims((self.region.rows, *t.dims[self.region.places[output] :]))
            made = self._new(nd.CatOp.new(parts, rows, dim=IntsAttr.get([0])))
            made = made if rows == t else self._new(nd.ReshapeOp.new((made,), t))
        made.name_hint = output.name_hint
        return made


def _sum_type(t: TensorType, kind: str) -> TensorType:
    """The type that results of blocks are put together in."""
    return t.with_dtype(f32) if kind == "sum" and t.element_type in LOW_PRECISION else t


class _Body:
    """The function of a block of `count` rows. `given`: the values that it takes, with the dimension that their rows are, None where a
    block reads all of the value. `results`: the types of its results. `rounds`: products are of their own type, and only their sums are
    of f32. `adds`: behind the values it takes the sums of the blocks before it, and adds to them."""

    def __init__(self, region: RowRegion, count: Expr, layouts: dict[SSAValue, Attribute], rounds: bool, adds: bool):
        self.region, self.count, self.rounds = region, count, rounds
        self.block = Block()
        self.given: list[tuple[SSAValue, int | None]] = []
        self.new: dict[tuple[SSAValue, int | None], SSAValue] = {}
        for op in region.members:
            self._copy(op)
        returned = [self._summed(output, adds) for output in region.outputs]
        self.results = [x.type for x in returned]
        self.block.add_op(create(ReturnOp, returned))
        self.layouts = [layouts.get(x, DictionaryAttr({})) if axis is None else DictionaryAttr({}) for x, axis in self.given]
        self.layouts += [DictionaryAttr({})] * (len(self.block.args) - len(self.given))
        self.name = ""

    def add_to(self, module: ModuleOp) -> None:
        """Make a private function of the module of it."""
        taken = {o.sym_name.data for o in module.ops if isinstance(o, FuncOp)}
        self.name = next(n for k in range(len(taken) + 1) if (n := f"rows{k}") not in taken)
        kinds = [x.type for x in self.block.args], self.results
        made = FuncOp(self.name, kinds, Region(self.block), "private", arg_attrs=ArrayAttr(self.layouts))  # pyright: ignore[reportArgumentType]
        made.location = self.region.seed.location
        module.body.block.add_op(made)

    def _summed(self, output: SSAValue, adds: bool) -> SSAValue:
        """A result, with that of the blocks before it if they are added up here."""
        value = self.new[output, None]
        kind = self.region.joined.get(output)
        if kind is None:
            return value
        t = tensor_type(value)
        wide = _sum_type(t, kind)
        if wide != t:
            value = self._last(CastOp.new((value,), wide))
        if adds:
            before = self.block.insert_arg(wide, len(self.block.args))
            value = self._last(OPS[JOINED_BY[kind]].create(operands=(value, before), result_types=(wide,)))
        return value

    def _last(self, op: Operation) -> SSAValue:
        op.location = self.region.seed.location
        self.block.add_op(op)
        return op.results[0]

    def _copy(self, op: Operation) -> None:
        operands = self._operands(op)
        properties = dict(op.properties)
        shift = self._shift(op)
        for name in ("dims", "dim"):
            if shift and isinstance(numbers := properties.get(name), IntsAttr):  # the leading dimensions are one
                properties[name] = IntsAttr.get(list(dict.fromkeys(max(0, d - shift) for d in numbers.data)))
        for name in ("starts", "steps"):
            if shift and isinstance(numbers := properties.get(name), ExprsAttr):
                properties[name] = ExprsAttr.get(numbers.data[shift:])
        made = create(type(op), operands, [self._type(r) for r in op.results], properties, location=op.location)
        made.attributes.update(op.attributes)
        self.block.add_op(made)
        for old, result in zip(op.results, made.results, strict=True):
            result.name_hint = old.name_hint
            self.new[old, None] = result

    def _shift(self, op: Operation) -> int:
        """How many dimensions fewer the rows of a block have than those of the operand, or result, whose dimensions `op` names."""
        named = op.results[0] if isinstance(op, nd.IotaOp) else op.operands[0] if op.operands else None
        if named is None:
            return 0
        count = self.region.leading(tensor_type(named)) if self.region.is_given(named) else self.region.places[named]
        return max(0, (count or 1) - 1)

    def _type(self, result: SSAValue) -> TensorType:
        """What a result is for one block; sums of 16-bit numbers over rows are rounded when they are complete."""
        t = tensor_type(result)
        kind = self.region.joined.get(result)
        if kind is not None:
            return t if self.rounds and isinstance(result.owner, nd.MatmulOp) else _sum_type(t, kind)
        count = self.region.places[result]
        return t.with_dims((t.dims[0], self.count) if count is None else (self.count, *t.dims[count:]))

    def _operands(self, op: Operation) -> list[SSAValue]:
        if isinstance(op, nd.MatmulOp):
            return [self._factor(op, x, k) for k, x in enumerate(op.operands)]
        if isinstance(op, (PointwiseOp, nd.ExpandOp)):
            return [self._aligned(op, x) for x in op.operands]
        return [self._value(x, 0) for x in op.operands]

    def _factor(self, op: nd.MatmulOp, x: SSAValue, side: int) -> SSAValue:
        """A factor of a product: rows of its own, all of a matrix, or the columns of one that stand for rows."""
        summed = op.result in self.region.joined
        return self._value(x, (1 - side) if summed else 0 if side == 0 else None)

    def _aligned(self, op: Operation, x: SSAValue) -> SSAValue:
        """An operand of an operation on elements, whose dimensions stand under the last ones of the result."""
        if not self.region.is_given(x):
            return self.new[x, None]
        t, wanted = tensor_type(x), tensor_type(op.results[0])
        count = self.region.places[op.results[0]]
        assert count is not None
        columns = wanted.rank - count
        front = t.dims[: max(0, t.rank - columns)]
        if all(d is ONE for d in front):
            made = self._value(x, None)
            return made if len(front) <= 1 else self._reshaped(made, t.dims[len(front) :])
        if front == wanted.dims[:count]:
            return self._value(x, 0)
        return self._value(self._spread(op, x, (*wanted.dims[:count], *t.dims[len(front) :])), 0)

    def _spread(self, op: Operation, x: SSAValue, dims: Sequence[Expr]) -> SSAValue:
        """A value with a number for each row, made where the region was."""
        made = nd.ExpandOp.new((x,), tensor_type(x).with_dims(dims))
        made.location = op.location
        block = op.parent
        assert block is not None
        block.insert_op_before(made, op)
        return made.result

    def _reshaped(self, x: SSAValue, dims: Sequence[Expr]) -> SSAValue:
        made = nd.ReshapeOp.new((x,), tensor_type(x).with_dims(dims))
        self.block.add_op(made)
        return made.result

    def _value(self, x: SSAValue, axis: int | None) -> SSAValue:
        """A value in the function. `axis`: where it comes from outside, the dimension that its rows are, leading ones as one."""
        if not self.region.is_given(x):
            return self.new[x, None]
        found = self.new.get((x, axis))
        if found is None:
            turned = axis == 1 and isinstance(x.owner, nd.PermuteOp)
            known = turned or (axis is None and isinstance(x.owner, _COPIED))
            found = self.new[x, axis] = self._made(x, 0 if turned else None) if known else self._argument(x, axis)
        return found

    def _made(self, x: SSAValue, axis: int | None) -> SSAValue:
        op = x.owner
        assert isinstance(op, Operation)
        t = tensor_type(x)
        t = t if axis is None else t.with_dims((t.dims[0], self.count))
        made = create(type(op), [self._value(v, axis) for v in op.operands], [t], op.properties, location=op.location)
        self.block.add_op(made)
        return made.results[0]

    def _argument(self, x: SSAValue, axis: int | None) -> SSAValue:
        t = tensor_type(x)
        if axis == 0:
            count = self.region.leading(t)
            assert count is not None
            t = t.with_dims((self.count, *t.dims[count:]))
        elif axis is not None:
            t = t.with_dims((*t.dims[:axis], self.count))
        self.given.append((x, axis))
        argument = self.block.insert_arg(t, len(self.block.args))
        argument.name_hint = x.name_hint
        return argument
