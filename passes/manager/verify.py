"""Verification of a whole operation, with the operation that is wrong in the error.

xDSL's ``verify`` does not say which nested operation failed, and does not check that a value is defined before it is
used.  Both are needed to tell the author of a pass what the pass broke.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, ModuleOp, i32, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.parser.core import ForwardDeclaredValue
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException

from ...dialects.host import LaunchOp
from ...dialects.nd.types import LayoutAttr
from ...dialects.tt.types import TensorDescType
from ...errors import StepwellError


class InvalidIR(StepwellError):
    """The IR does not verify: `op` is the operation, `message` what is wrong with it."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(message)
        self.op = op


def verify_ir(op: Operation) -> None:
    """Check `op` and all that is nested in it: links, terminators, op and attribute verifiers, definition before use.

    Raises InvalidIR at the first operation that is wrong, uses of values first, then inner operations
    before the outer ones.
    """
    _dominance(op, set())
    _structure(op)
    if isinstance(op, ModuleOp):
        _launches(op)


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _structure(op: Operation) -> None:
    for region in op.regions:
        if region.parent is not op:
            raise InvalidIR(op, "a region of it has another parent")
        for block in region.blocks:
            if block.parent is not region:
                raise InvalidIR(op, "a block of it has another parent")
            for nested in block.ops:
                if nested.parent is not block:
                    raise InvalidIR(nested, "it stands in a block that is not its parent")
                _structure(nested)
            if block.is_empty and len(region.blocks) == 1 and not op.has_trait(NoTerminator):
                raise InvalidIR(op, "its single block is empty but needs at least a terminator")
    if isinstance(op, FuncOp):
        _signature(op)
    if isinstance(op, scf.IfOp):
        _branches(op)
    if isinstance(op, (scf.ForOp, scf.ParallelOp)):
        _steps(op)
    try:
        op.verify(verify_nested_ops=False)
    except VerifyException as error:
        raise InvalidIR(op, _message(error)) from error
    except Exception as error:  # a verifier written for IR that is less broken than this
        raise InvalidIR(op, f"its verifier stopped with {type(error).__name__}: {_message(error)}") from error


def _launches(module: ModuleOp) -> None:
    """Check that launches fit the kernels of the module; a kernel that it has not may stand in another one."""
    kernels = {op.properties["sym_name"]: op for op in module.ops if "sym_name" in op.properties and op.regions and op.regions[0].blocks}
    for op in module.walk():
        if isinstance(op, LaunchOp) and (kernel := kernels.get(op.kernel.root_reference)) is not None:
            try:
                op.check_kernel(kernel)
                _descriptors(op, kernel)
            except VerifyException as error:
                raise InvalidIR(op, _message(error)) from error


def _descriptors(launch: LaunchOp, kernel: Operation) -> None:
    """VerifyException unless a kernel takes descriptors where a launch gives them: behind all else, each with its sizes and strides."""
    name, types = launch.kernel.root_reference.data, kernel.regions[0].blocks[0].arg_types
    place = len(types) - sum(one.takes for one in launch.described)
    if any(isinstance(t, TensorDescType) for t in types[:place]):
        raise VerifyException(f"host.launch @{name}: the kernel takes a descriptor that the launch does not describe")
    for k, one in enumerate(launch.described):
        first, *behind = types[place : place + one.takes]
        rank = len(one.sizes)
        if not isinstance(first, TensorDescType) or len(first.block.get_shape()) != rank:
            wanted = f"descriptor {k} has {rank} dimensions, in the kernel it is a !tt.tensordesc of as many"
            raise VerifyException(f"host.launch @{name}: {wanted}, not {first}")
        if behind != [i32] * rank + [i64] * rank:
            wanted = f"behind descriptor {k} the kernel takes {rank} i32 and {rank} i64"
            raise VerifyException(f"host.launch @{name}: {wanted}, not ({', '.join(map(str, behind))})")
        place += one.takes


def _branches(op: scf.IfOp) -> None:
    """Check that both branches yield what the `scf.if` gives, which xDSL's own verifier does not."""
    given = [r.type for r in op.results]
    for name, region in (("then", op.true_region), ("else", op.false_region)):
        last = region.blocks[0].last_op if region.blocks else None
        yielded = [v.type for v in last.operands] if isinstance(last, scf.YieldOp) else []
        if yielded != given:
            texts = [", ".join(map(str, types)) or "nothing" for types in (yielded, given)]
            raise InvalidIR(op, f"its {name} branch yields {texts[0]}, its results are {texts[1]}")


def _steps(op: scf.ForOp | scf.ParallelOp) -> None:
    """Check that a loop counts up, as far as its steps are constants: xDSL's verifier takes one that never ends."""
    for step in (op.step,) if isinstance(op, scf.ForOp) else op.step:
        value = step.owner.properties.get("value") if isinstance(step.owner, Operation) and step.owner.name == "arith.constant" else None
        if isinstance(value, IntegerAttr) and value.value.data <= 0:
            raise InvalidIR(op, f"its step is {value.value.data}; a loop counts up, by 1 or more")


def _signature(func: FuncOp) -> None:
    """Check that each `nd.layout` of a function has a stride for each dimension of its argument or result, and that sizes are integers."""
    sides = ("argument", func.arg_attrs, func.function_type.inputs), ("result", func.res_attrs, func.function_type.outputs)
    for what, attributes, types in sides:
        for index, (own, kind) in enumerate(zip(attributes.data if attributes is not None else (), types.data, strict=False)):
            if "nd.symbol" in own.data and not isinstance(kind, IndexType | IntegerType):
                raise InvalidIR(func, f"{what} {index} has nd.symbol, so it is a size, which is an index or an integer, not {kind}")
            layout, dims = own.data.get("nd.layout"), getattr(kind, "dims", None)
            if not isinstance(layout, LayoutAttr) or dims is None:
                continue
            if (count := len(layout.stride_exprs)) != len(dims):
                raise InvalidIR(func, f"nd.layout of {what} {index} has {count} strides, its type {len(dims)} dimensions")


def _describe(value: SSAValue) -> str:
    owner = value.owner
    if isinstance(owner, Operation):
        return f"a result of '{owner.name}'"
    assert isinstance(value, BlockArgument)
    parent = owner.parent_op()
    return f"argument {value.index} of a block of '{parent.name}'" if parent is not None else "an argument of a block"


def _check_operands(op: Operation, visible: set[SSAValue]) -> None:
    for index, operand in enumerate(op._operands):
        if operand in visible:
            continue
        if isinstance(operand, ForwardDeclaredValue):
            raise InvalidIR(op, f"operand #{index} is defined only inside of this operation")
        owner = operand.owner
        if isinstance(owner, Operation) and owner.parent is None and not isinstance(owner, ModuleOp):
            raise InvalidIR(op, f"operand #{index} is {_describe(operand)} that is not in the IR any more")
        if (fence := _fence(op, operand)) is not None:
            raise InvalidIR(op, f"operand #{index} ({_describe(operand)}) is defined outside of its '{fence.name}'")
        raise InvalidIR(op, f"operand #{index} ({_describe(operand)}) does not dominate this use")


def _fence(op: Operation, value: SSAValue) -> Operation | None:
    """The operation around `op` that hides everything outside of it, `value` among that; None if none does."""
    home = value.owner if isinstance(value.owner, Block) else value.owner.parent
    parent = op.parent_op()
    while parent is not None:
        if parent.has_trait(IsolatedFromAbove, value_if_unregistered=False):
            return None if home is not None and parent.is_ancestor(home) else parent
        parent = parent.parent_op()
    return None


def _dominance(op: Operation, visible: set[SSAValue]) -> None:
    """Check every use inside of `op`; `visible` holds the values defined around it, and is left as it was."""
    isolated = op.has_trait(IsolatedFromAbove, value_if_unregistered=False)
    for region in op.regions:
        scope: set[SSAValue] = set() if isolated else visible
        if isinstance(op, ModuleOp):  # a graph region: order means nothing in it
            scope.update(r for nested in op.ops for r in nested.results)
        if len(region.blocks) <= 1:
            for block in region.blocks:
                added = _block(block, scope)
                scope.difference_update(added)
        else:
            _cfg(region, scope)


def _block(block: Block, scope: set[SSAValue]) -> list[SSAValue]:
    """Check a block in order; what it defines is added to `scope` and returned."""
    added: list[SSAValue] = list(block.args)
    scope.update(added)
    for op in block.ops:
        if op._operands:
            _check_operands(op, scope)
        if op.regions:
            _dominance(op, scope)
        if op.results:
            added.extend(op.results)
            scope.update(op.results)
    return added


def _cfg(region: Region, scope: set[SSAValue]) -> None:
    """Check the blocks that can be reached; in the others nothing is wrong, since they never run (as in MLIR)."""
    parents = immediate_dominators(region)
    defined = {block: {*block.args, *(r for op in block.ops for r in op.results)} for block in parents}
    for block, parent in parents.items():
        before: set[SSAValue] = set(scope)
        while parent is not None:
            before |= defined[parent]
            parent = parents[parent]
        _block(block, before)


def immediate_dominators(region: Region) -> dict[Block, Block | None]:
    """Each block that can be reached -> the block that dominates it directly (None for the entry).

    "A Simple, Fast Dominance Algorithm", Cooper, Harvey, Kennedy 2001.  xDSL's DominanceInfo counts blocks that cannot
    be reached as predecessors.
    """
    entry = next(iter(region.blocks))
    order: list[Block] = []  # post-order
    seen = {entry}
    work = [(entry, iter(_successors(entry)))]
    while work:
        block, successors = work[-1]
        following = next(successors, None)
        if following is None:
            order.append(block)
            work.pop()
        elif following not in seen:
            seen.add(following)
            work.append((following, iter(_successors(following))))
    number = {block: i for i, block in enumerate(order)}
    predecessors: dict[Block, list[Block]] = {block: [] for block in order}
    for block in order:
        for successor in _successors(block):
            predecessors[successor].append(block)
    above: dict[Block, Block] = {entry: entry}
    changed = True
    while changed:
        changed = False
        for block in reversed(order):
            if block is entry:
                continue
            best: Block | None = None
            for predecessor in predecessors[block]:
                if predecessor not in above:
                    continue
                if best is None:
                    best = predecessor
                    continue
                other = predecessor
                while best is not other:
                    while number[best] < number[other]:
                        best = above[best]
                    while number[other] < number[best]:
                        other = above[other]
            if best is not None and above.get(block) is not best:
                above[block] = best
                changed = True
    return {block: None if block is entry else above[block] for block in reversed(order)}


def _successors(block: Block) -> Sequence[Block]:
    return block.last_op.successors if block.last_op is not None else ()
