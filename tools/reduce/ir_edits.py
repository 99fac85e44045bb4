"""What can be taken out of a module, kind by kind; each keeps the module valid IR, or is not tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, IndexType, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from ...dialects import cpu, host, loop, nd
from ...dialects.nd.call_args import Arg, Call, CallAttr
from .drafts import (
    Draft,
    add_argument,
    attributes_of,
    constant_of,
    entry_of,
    erase,
    is_attached,
    is_terminator,
    is_valid,
    outer_arguments,
    replace_results,
    set_signature,
)


class OpEdits:
    """Edits of single operations, from the last to the first; a place is a number of an operation and a part of it."""

    name = ""
    chunks = True

    def __init__(self, verify: bool = True) -> None:
        self.verify = verify
        """Only valid IR is tried."""

    def places(self, best: Draft) -> Sequence[tuple[int, int]]:
        return [(k, part) for k in range(len(best.ops) - 1, -1, -1) for part in reversed(range(self.parts(best.ops[k])))]

    def apply(self, best: Draft, chosen: Sequence[tuple[int, int]]) -> Draft | None:
        module, *ops = best.copy()
        assert isinstance(module, ModuleOp)
        # erasing may go on to operations of later places
        done = [self.edit(ops[k], part) for k, part in chosen if is_attached(ops[k], module)]
        if not any(done) or (self.verify and not is_valid(module)):
            return None
        return Draft(module)

    def parts(self, op: Operation) -> int:
        """How many edits an operation has."""
        return 1

    def edit(self, op: Operation, part: int) -> bool:
        """Change an operation; False if that was not possible."""
        raise NotImplementedError


class Symbols(OpEdits):
    """Functions, kernels and globals, used or not."""

    name = "functions"

    def parts(self, op: Operation) -> int:
        return int(isinstance(op.parent_op(), ModuleOp))

    def edit(self, op: Operation, part: int) -> bool:
        erase(op)
        return True


class Unused(OpEdits):
    """Operations that give nothing to others: stores, updates, nests on buffers, launches."""

    name = "operations without uses"
    alone = False
    """What only they use stays."""

    def parts(self, op: Operation) -> int:
        return int(not any(r.first_use for r in op.results) and not is_terminator(op) and not isinstance(op.parent_op(), ModuleOp))

    def edit(self, op: Operation, part: int) -> bool:
        if any(r.first_use for r in op.results):
            return False
        erase(op, self.alone)
        return True


class UnusedAlone(Unused):
    """The same, where what they use is needed for the failure."""

    name = "operations without uses, alone"
    alone = True


def _is_used(op: Operation) -> bool:
    return any(r.first_use for r in op.results)


class ByArguments(OpEdits):
    """Results become arguments of the function, so that what computed them goes."""

    name = "values to arguments"

    def parts(self, op: Operation) -> int:
        return int(_is_used(op) and all(entry_of(r) is not None for r in op.results))

    def edit(self, op: Operation, part: int) -> bool:
        def argument(result: OpResult) -> SSAValue | None:
            func = entry_of(result)
            return func and add_argument(func, result.type)

        if not _is_used(op) or not self.parts(op):
            return False
        return replace_results(op, argument)


class ByOperands(OpEdits):
    """Results become an operand of the same type, the first, second or third such."""

    def __init__(self, verify: bool = True, which: int = 0) -> None:
        super().__init__(verify)
        self.name = f"values to operands ({which})"
        self.which = which

    def parts(self, op: Operation) -> int:
        return int(_is_used(op) and bool(op._operands))

    def edit(self, op: Operation, part: int) -> bool:
        def other(result: OpResult) -> SSAValue | None:
            found = [v for v in dict.fromkeys(op._operands) if v.type == result.type]
            return found[self.which] if self.which < len(found) else None

        return _is_used(op) and replace_results(op, other)


class ByOuterValues(OpEdits):
    """Results become an argument of a block around, of the same type."""

    name = "values to outer arguments"

    def parts(self, op: Operation) -> int:
        return int(_is_used(op))

    def edit(self, op: Operation, part: int) -> bool:
        def other(result: OpResult) -> SSAValue | None:
            return next((v for v in outer_arguments(op) if v.type == result.type), None)

        return _is_used(op) and replace_results(op, other)


class ByConstants(OpEdits):
    """Results become constants."""

    name = "values to constants"

    def parts(self, op: Operation) -> int:
        return int(_is_used(op) and op.name not in ("arith.constant", "nd.full"))

    def edit(self, op: Operation, part: int) -> bool:
        block = op.parent
        assert block is not None

        def constant(result: OpResult) -> SSAValue | None:
            made = constant_of(result.type)
            if made is None:
                return None
            block.insert_ops_before(made, op)
            return made[-1].results[0]

        return _is_used(op) and replace_results(op, constant)


class Returned(OpEdits):
    """Results of functions and of programs."""

    name = "results"

    def parts(self, op: Operation) -> int:
        kinds = isinstance(op, FuncOp) and op.body.blocks and op.get_return_op() is not None
        if kinds:
            return len(op.get_return_op().operands)  # pyright: ignore
        return len(op.template.data.args) if isinstance(op, host.ReturnOp) else 0

    def edit(self, op: Operation, part: int) -> bool:
        if isinstance(op, host.ReturnOp):
            return _drop_leaf(op, part)
        assert isinstance(op, FuncOp)
        end = op.get_return_op()
        assert end is not None
        dropped = end.operands[part]
        end.operands = [*end.operands[:part], *end.operands[part + 1 :]]
        attributes = attributes_of(op.res_attrs, len(end.operands) + 1)
        del attributes[part]
        set_signature(op, results=[_without_alias(a, part) for a in attributes] if op.res_attrs is not None else None)
        _drop(dropped)
        return True


def _drop(value: SSAValue) -> None:
    """Take out what made a value, if nothing uses it any more."""
    if isinstance(value, OpResult) and not _is_used(value.op):
        erase(value.op)


def _without_alias(own: DictionaryAttr, gone: int) -> DictionaryAttr:
    """The attributes of a result after result number `gone` went: it may be said to be a view of that one, or of a later one."""
    alias = own.data.get("nd.alias")
    if not isinstance(alias, StringAttr) or not alias.data.startswith("result "):
        return own
    number = int(alias.data.removeprefix("result "))
    rest = {k: v for k, v in own.data.items() if k != "nd.alias"}
    return DictionaryAttr(rest | ({} if number == gone else {"nd.alias": StringAttr(f"result {number - (number > gone)}")}))


def _drop_leaf(op: host.ReturnOp, part: int) -> bool:
    leaves = [leaf for k, leaf in enumerate(op.template.data.args) if k != part]
    used = sorted({leaf.index for leaf in leaves if isinstance(leaf, Arg)})
    gone = [v for k, v in enumerate(op.operands) if k not in used]
    op.operands = [op.operands[k] for k in used]
    moved = tuple(Arg(used.index(leaf.index)) if isinstance(leaf, Arg) else leaf for leaf in leaves)
    op.properties["template"] = CallAttr(Call(op.template.data.target, moved))
    for value in gone:
        _drop(value)
    return True


class Bodies(OpEdits):
    """Loops and branches around what is in them: it runs once, in the first iteration."""

    name = "loops"

    def parts(self, op: Operation) -> int:
        return int(isinstance(op, (scf.ForOp, scf.IfOp, loop.ForOp, loop.ReduceOp, cpu.ParallelOp)))

    def edit(self, op: Operation, part: int) -> bool:
        block = op.regions[0].blocks.first
        if block is None:
            return False
        given = _first_iteration(op, block)
        last = block.last_op
        yielded = list(last.operands) if last is not None and last.name.endswith(".yield") else []
        if given is None or [v.type for v in yielded] != [r.type for r in op.results]:
            return False
        for argument, value in zip(block.args, given, strict=True):
            argument.replace_all_uses_with(value)
        yielded = list(last.operands) if last is not None and yielded else []
        home = op.parent
        assert home is not None
        for nested in list(block.ops):
            if nested is last and nested.name.endswith(".yield"):
                continue
            nested.detach()
            home.insert_op_before(nested, op)
        for result, value in zip(op.results, yielded, strict=True):
            result.replace_all_uses_with(value)
        erase(op)
        return True


def _first_iteration(op: Operation, block: Block) -> list[SSAValue] | None:
    """What the arguments of a body are in the first iteration; made before the loop where they are numbers."""
    if isinstance(op, scf.ForOp):
        return [op.lb, *op.iter_args]
    if isinstance(op, scf.IfOp):
        return []
    if any(not isinstance(a.type, IndexType) and str(a.type) != "i64" for a in block.args):
        return None
    if not block.args:
        return []
    zeros = [arith.ConstantOp(IntegerAttr(0, a.type)) for a in block.args]  # pyright: ignore[reportArgumentType, reportCallIssue]
    home = op.parent
    assert home is not None
    home.insert_ops_before(zeros, op)
    return [z.result for z in zeros]


class Outs(OpEdits):
    """Tensors and buffers that a nest fills and nobody reads, and values that a loop carries on for nobody."""

    name = "outs"

    def parts(self, op: Operation) -> int:
        if isinstance(op, (loop.NestOp, loop.ContractOp)):
            return len(op.outs)
        return len(op.results) if isinstance(op, (scf.ForOp, loop.ReduceOp)) and len(op.results) > 1 else 0

    def edit(self, op: Operation, part: int) -> bool:
        if isinstance(op, (loop.NestOp, loop.ContractOp)):
            return _drop_out(op, part)
        return False


def _drop_out(op: loop.NestOp | loop.ContractOp, part: int) -> bool:
    if part >= len(op.outs) or len(op.outs) == 1:
        return False
    if op.results and op.results[part].first_use is not None:
        op.results[part].replace_all_uses_with(op.outs[part])
    argument = op.out_args[part]
    assert isinstance(argument, BlockArgument)
    first = len(op.operands) - len(op.outs)
    for use in list(argument.uses):
        user = use.operation
        if user.results:
            made = constant_of(user.results[0].type)
            if made is None or len(user.results) != 1:
                return False
            assert user.parent is not None
            user.parent.insert_ops_before(made, user)
            user.results[0].replace_all_uses_with(made[-1].results[0])
        erase(user)
    home = op.parent
    assert home is not None
    region = op.regions[0]
    operands = [v for k, v in enumerate(op.operands) if k != first + part]
    dropped = op.operands[first + part]
    types = [r.type for k, r in enumerate(op.results) if k != part]
    block = region.block
    block.erase_arg(argument)
    new = type(op).create(
        operands=operands, result_types=types, properties=op.properties, attributes=op.attributes, regions=[op.detach_region(region)],
        location=op.location,
    )  # fmt: skip
    home.insert_op_before(new, op)
    kept = [r for k, r in enumerate(op.results) if k != part]
    for old, result in zip(kept, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.detach()
    op.erase()
    _drop(dropped)
    return True


class Arguments(OpEdits):
    """Arguments of functions and programs that nothing uses; those of one type become one."""

    name = "arguments"

    def parts(self, op: Operation) -> int:
        return len(op.regions[0].block.args) if isinstance(op, (FuncOp, host.ProgramOp)) and op.regions[0].blocks else 0

    def edit(self, op: Operation, part: int) -> bool:
        block = op.regions[0].block
        argument = block.args[part]
        if argument.first_use is not None and not self._merge(block, argument):
            return False
        block.erase_arg(argument)
        if isinstance(op, FuncOp):
            attributes = attributes_of(op.arg_attrs, len(block.args) + 1)
            del attributes[part]
            set_signature(op, arguments=attributes)
        return True

    def _merge(self, block: Block, argument: BlockArgument) -> bool:
        other = next((a for a in block.args if a is not argument and a.type == argument.type), None)
        if other is None or other.index > argument.index:
            return False
        argument.replace_all_uses_with(other)
        return True


class Attributes(OpEdits):
    """Attributes and optional properties, one by one, and those of arguments and results."""

    name = "attributes"

    def parts(self, op: Operation) -> int:
        return len(op.attributes) + len(op.properties)

    def edit(self, op: Operation, part: int) -> bool:
        table = op.attributes if part < len(op.attributes) else op.properties
        names = list(table)
        place = part - (0 if table is op.attributes else len(op.attributes))
        if place >= len(names) or names[place] == "sym_name":
            return False
        del table[names[place]]
        return True


class Names(OpEdits):
    """What the attributes of arguments and results say, one by one."""

    name = "attributes of arguments"

    def _entries(self, op: Operation) -> list[tuple[str, int, str]]:
        tables = [(key, op.properties.get(key)) for key in ("arg_attrs", "res_attrs")]
        return [(key, k, name) for key, table in tables if table is not None for k, own in enumerate(table.data) for name in own.data]  # pyright: ignore

    def parts(self, op: Operation) -> int:
        return len(self._entries(op))

    def edit(self, op: Operation, part: int) -> bool:
        entries = self._entries(op)
        if part >= len(entries):
            return False
        key, place, name = entries[part]
        table: list[Any] = list(op.properties[key].data)  # pyright: ignore
        table[place] = DictionaryAttr({k: v for k, v in table[place].data.items() if k != name})
        op.properties[key] = ArrayAttr(table)
        return True


class Constants(OpEdits):
    """Numbers of constants become 0 or 1."""

    name = "constants"

    def parts(self, op: Operation) -> int:
        return 2 if isinstance(op, (arith.ConstantOp, nd.FullOp)) and isinstance(op.value, (IntegerAttr, FloatAttr)) else 0

    def edit(self, op: Operation, part: int) -> bool:
        value = op.properties["value"]
        if isinstance(value, IntegerAttr):
            op.properties["value"] = IntegerAttr(part, value.type)
        elif isinstance(value, FloatAttr):
            op.properties["value"] = FloatAttr(float(part), value.type)
        return True


def all_edits(verify: bool) -> list[OpEdits]:
    """All kinds, in the order in which they find most with the fewest tries."""
    operands = [ByOperands(verify, which) for which in range(3)]
    first = [kind(verify) for kind in (Symbols, Returned, Unused, ByArguments)]
    last = [kind(verify) for kind in (UnusedAlone, ByOuterValues, ByConstants, Bodies, Outs, Arguments, Names, Attributes, Constants)]
    return [*first, *operands, *last]
