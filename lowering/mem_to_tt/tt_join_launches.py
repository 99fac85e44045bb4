"""tt-join-launches: small kernels that need nothing of each other are one launch.

    host.launch @k0(%a, %b) grid [4]; host.launch @k0(%c, %d) grid [4]; host.launch @k1(%e) grid [2]
->  host.launch @joined0(%a, %b, %c, %d, %e) grid [10]     which of them a program belongs to follows from its number

A launch takes its time of a GPU whatever it does (docs/lab/gpu-models-h200.md). An optimiser's step over a list of tensors is hundreds of
them, and a batch norm counts its calls. What nobody needs before waits for others of its kind. Launches that clear workspaces, which host
programs leave out where they can, stay by themselves. Launches of one kernel share its code: their addresses are picked from the arguments
by a tree of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.dialects.func import FuncOp as Function
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from ...dialects import mem
from ...dialects.expr import Expr, as_expr
from ...dialects.host import LaunchOp
from ...dialects.support.replace import erase_op
from ...dialects.tt.structure import FuncOp, GetProgramIdOp, ReturnOp
from ...passes.analysis.accesses.touched import Touched
from ...passes.manager.locations import joined
from ...passes.manager.pass_manager import Pass
from ...passes.mem.mem_join_nests import MAX_OPEN_GROUPS
from .builder import Builder

MAX_ARGUMENTS = 400
"""Arguments of a joined kernel; a launch may have 4 KB of them."""
MAX_KERNELS = 8
"""Different kernels that are joined."""


@dataclass(frozen=True)
class TtJoinLaunches(Pass):
    """Makes one launch of small kernels that need nothing of each other, nor anything between them of theirs."""

    name = "tt-join-launches"

    bytes: int = 4 << 20
    """What a kernel moves at most to be joined with others: what takes a GPU as long as a launch."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = {f.sym_name.data: f for f in op.ops if isinstance(f, FuncOp)}
        joiner = _Joiner(op, kernels, self.bytes)
        for function in [f for f in op.ops if isinstance(f, Function) and f.body.blocks]:
            for group in joiner.groups(function.body.block):
                joiner.join(group)
                self.statistic("num-joined", len(group))
                self.remark(group[-1], f"one launch of {len(group)}", kind="applied")
                for launch in group:
                    erase_op(launch)
        joiner.drop_unused()


@dataclass
class _Group:
    launches: list[LaunchOp] = field(default_factory=list)
    touched: Touched = field(default_factory=Touched)
    """What its launches touch."""


@dataclass
class _Joiner:
    module: ModuleOp
    kernels: dict[str, FuncOp]
    bytes: int
    made: dict[tuple[tuple[str, tuple[tuple[int, ...], ...]], ...], str] = field(default_factory=dict)
    """Joined kernels by what they join, and by which of their arguments are the same."""

    _stores: dict[str, frozenset[int] | None] = field(default_factory=dict)

    # ---- which

    def groups(self, block: Block) -> list[list[LaunchOp]]:
        """Launches to be joined, in the order of the program. They wait for each other while nothing needs the memory that they touch."""
        found: list[_Group] = []
        waiting: list[_Group] = []
        for op in block.ops:
            if isinstance(op, (mem.AllocOp, mem.ViewOp)):
                continue
            touched = self._touched(op)
            waiting = [g for g in waiting if touched is not None and not g.touched.meets(touched)]
            if touched is None or not isinstance(op, LaunchOp) or not self._is_small(op):
                continue
            group = next((g for g in reversed(waiting) if self._fits(g.launches, op)), None)
            if group is None:
                group = _Group()
                found.append(group)
                waiting = [*waiting[-MAX_OPEN_GROUPS + 1 :], group]
            group.launches.append(op)
            group.touched.add(touched)
        return [g.launches for g in found if len(g.launches) > 1]

    def _is_small(self, launch: LaunchOp) -> bool:
        programs = launch.grid.data if launch.grid is not None else ()
        moved = launch.bytes.data.value if launch.bytes is not None else None
        kernel = self.kernels.get(_name(launch))
        if kernel is None or len(kernel.body.blocks) != 1 or self._written(launch) is None:
            return False
        plain = not launch.sizes.data and launch.offsets is None and launch.clears is None and not launch.described
        fixed = len(programs) == 1 and programs[0].value is not None and plain
        return fixed and moved is not None and moved <= self.bytes and all(isinstance(v.type, mem.BufferType) for v in launch.operands)

    def _fits(self, group: Sequence[LaunchOp], launch: LaunchOp) -> bool:
        """Whether there is room for a launch in a group: same number of warps, not too many arguments and kernels."""
        joined = [*group, launch]
        arguments = {v for one in joined for v in one.operands}
        names = {_name(one) for one in joined}
        if len(arguments) > MAX_ARGUMENTS or len(names) > MAX_KERNELS:
            return False
        return self._kernel(launch).attributes == self._kernel(group[0]).attributes

    def _kernel(self, launch: LaunchOp) -> FuncOp:
        return self.kernels[_name(launch)]

    def _touched(self, op: Operation) -> Touched | None:
        """The memory that an operation reads or writes; None where that is not known."""
        if not isinstance(op, (LaunchOp, mem.ExternOp)):
            return None
        written = self._written(op) if isinstance(op, LaunchOp) and _name(op) in self.kernels else None
        found = Touched()
        for k, value in enumerate(op.operands):
            if isinstance(value.type, mem.BufferType):
                found.note(value, written is None or k in written)
        return found

    def _written(self, launch: LaunchOp) -> frozenset[int] | None:
        """The operands of a launch that its kernel stores to, through their addresses or descriptors; None where that is not known."""
        name = _name(launch)
        if name not in self._stores:
            self._stores[name] = _written(self.kernels[name])
        stored = self._stores[name]
        if stored is None:
            return None
        at = len(self.kernels[name].body.blocks[0].args) - sum(one.takes for one in launch.described)
        operands: dict[int, int] = {}
        for one in launch.described:
            operands[at] = one.operand
            at += one.takes
        return frozenset(operands.get(k, k) for k in stored)

    # ---- how

    def join(self, group: Sequence[LaunchOp]) -> None:
        """Put one launch behind the last of a group."""
        operands = list(dict.fromkeys(v for one in group for v in one.operands))
        number = {v: k for k, v in enumerate(operands)}
        members: dict[str, list[tuple[int, ...]]] = {}
        programs: dict[str, int] = {}
        for one in group:
            assert one.grid is not None
            members.setdefault(_name(one), []).append(tuple(number[v] for v in one.operands))
            programs[_name(one)] = one.grid.data[0].value or 0
        key = tuple((name, tuple(places)) for name, places in members.items())
        name = self.made.get(key)
        if name is None:
            name = self.made[key] = next(n for k in range(1 << 30) if (n := f"joined{k}") not in self.kernels)
            kernel = _joined(name, [(self.kernels[k], places, programs[k]) for k, places in members.items()], len(operands))
            kernel.location = joined(self.kernels[k].location for k in members)
            self.kernels[name] = kernel
            self.module.body.block.add_op(kernel)
        total = sum(len(places) * programs[k] for k, places in members.items())
        moved: Expr = as_expr(0)
        for one in group:
            assert one.bytes is not None
            moved = moved + one.bytes.data
        launch = LaunchOp.make(name, operands, bytes=moved, grid=[total])
        launch.location = joined(one.location for one in group)
        block = group[-1].parent
        assert block is not None
        block.insert_op_after(launch, group[-1])

    def drop_unused(self) -> None:
        """Take away the kernels that nobody launches any more."""
        used = {_name(op) for op in self.module.walk() if isinstance(op, LaunchOp)}
        joined = {name for key in self.made for name, _ in key}
        for name in joined - used:
            kernel = self.kernels.pop(name)
            erase_op(kernel)


def _name(launch: LaunchOp) -> str:
    return launch.kernel.root_reference.data


def _written(kernel: FuncOp) -> frozenset[int] | None:
    """The arguments that a kernel stores through, by number; None for one that is not made of nests: it may use the grid, or addresses,
    in ways that are not followed here."""
    found: set[int] = set()
    for op in kernel.walk():
        if isinstance(op, GetProgramIdOp) and op.axis.value.data:
            return None
        if op.name in ("tt.get_num_programs", "tt.call", "scf.while"):
            return None
        if op.name.startswith(("tt.store", "tt.atomic", "tt.descriptor")):
            value: SSAValue = op.operands[0]
            while isinstance(value.owner, Operation) and value.owner.operands and not value.owner.regions:
                value = value.owner.operands[0]
            if not isinstance(value, BlockArgument) or value.block is not kernel.body.blocks[0]:
                return None
            found.add(value.index)
    return frozenset(found)


# ---- the kernel


def _joined(name: str, parts: Sequence[tuple[FuncOp, list[tuple[int, ...]], int]], count: int) -> FuncOp:
    """A kernel of `count` arguments that does what `parts` do: each a kernel, the arguments of its launches, and the programs of one."""
    types: list[Attribute] = [i32] * count
    hints: list[dict[str, Attribute]] = [{} for _ in range(count)]
    seen: set[int] = set()
    for kernel, launches, _ in parts:
        own = kernel.arg_attrs.data if kernel.arg_attrs is not None else None
        for k, argument in enumerate(kernel.body.blocks[0].args):
            hint = dict(own[k].data) if own is not None else {}
            for places in launches:
                at = places[k]
                types[at] = argument.type
                hints[at] = {key: v for key, v in hint.items() if hints[at].get(key) == v} if at in seen else hint
                seen.add(at)
    entry = Block(arg_types=types)
    b = Builder(entry)
    program = b.place(GetProgramIdOp.make(0)).results[0]
    _parts(b, list(parts), list(entry.args), program, 0)
    b.place(ReturnOp.create())
    made = FuncOp.make(name, Region(entry), hints=hints)
    made.attributes.update(parts[0][0].attributes)
    return made


def _parts(
    b: Builder, parts: list[tuple[FuncOp, list[tuple[int, ...]], int]], arguments: Sequence[SSAValue], program: SSAValue, first: int
) -> None:
    """The parts whose programs begin with number `first`."""
    kernel, launches, programs = parts[0]
    end = first + len(launches) * programs
    if len(parts) == 1:
        _part(b, kernel, launches, programs, arguments, program, first)
        return
    blocks = [Block(), Block()]
    condition = b.cmpi("slt", program, b.int(end))
    for block, one in zip(blocks, (parts[:1], parts[1:]), strict=True):
        b.open(block)
        _parts(b, one, arguments, program, first if one[0] is parts[0] else end)
        b.place(scf.YieldOp.create())
        b.close()
    b.place(scf.IfOp.create(operands=[condition], regions=[Region(block) for block in blocks]))


def _part(
    b: Builder, kernel: FuncOp, launches: list[tuple[int, ...]], programs: int, arguments: Sequence[SSAValue], program: SSAValue, first: int
) -> None:
    """The body of one kernel, for the launch that a program belongs to."""
    at = b.sub(program, b.int(first))
    old = kernel.body.blocks[0]
    if len(launches) == 1:
        given = [arguments[k] for k in launches[0]]
    else:
        which = b.elementwise(arith.DivSIOp, (at, b.int(programs)))
        at = b.elementwise(arith.RemSIOp, (at, b.int(programs)))
        given = _pick(b, [[arguments[k] for k in places] for places in launches], which, 0)
    values: dict[SSAValue, SSAValue] = dict(zip(old.args, given, strict=True))
    for op in old.ops:
        if isinstance(op, GetProgramIdOp):
            values[op.results[0]] = at
        elif not isinstance(op, ReturnOp):
            b.place(op.clone(values))


def _pick(b: Builder, rows: list[list[SSAValue]], which: SSAValue, first: int) -> list[SSAValue]:
    """Row number `which` of `rows`, which are numbered from `first`; what is the same in all of them stays as it is."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    different = [k for k in range(len(rows[0])) if any(row[k] is not rows[0][k] for row in rows)]
    blocks = [Block(), Block()]
    condition = b.cmpi("slt", which, b.int(first + half))
    for block, some, start in ((blocks[0], rows[:half], first), (blocks[1], rows[half:], first + half)):
        b.open(block)
        picked = _pick(b, some, which, start)
        b.place(scf.YieldOp.create(operands=[picked[k] for k in different]))
        b.close()
    types = [rows[0][k].type for k in different]
    chosen = b.place(scf.IfOp.create(operands=[condition], result_types=types, regions=[Region(block) for block in blocks])).results
    found = list(rows[0])
    for k, value in zip(different, chosen, strict=True):
        found[k] = value
    return found
