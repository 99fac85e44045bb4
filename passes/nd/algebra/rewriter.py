"""A small forward rewriter for `nd` functions: every op is visited once, after its operands, with a table of rules by op class.

A rule looks at an op and returns the value that replaces its result, or None. New ops are put before the op. Because operands were
simplified first and replacements are simplified when they are made (`Rewriter.new`), one visit is enough; there is no fixpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ....dialects.expr.ranges import RangeEnv
from ....dialects.support.replace import erase_op
from ...manager.instrumentation import record

Rule = Callable[["Rewriter", Operation], SSAValue | None]


class Rewriter:
    """One run over one function. `changed` counts the replaced ops by rule name."""

    def __init__(self, func: FuncOp, rules: Mapping[type[Operation], list[Rule]], symbols: RangeEnv):
        self.func, self.rules, self.symbols = func, rules, symbols
        self.changed: dict[str, int] = {}
        self.known: dict[tuple[object, ...], Operation] = {}
        self.at: Operation | None = None

    def run(self) -> None:
        block = self.func.body.block
        op = block.first_op
        while op is not None:
            following = op.next_op
            self.visit(op)
            op = following
        if dropped := drop_dead(block):
            self.changed["dce"] = self.changed.get("dce", 0) + dropped

    def visit(self, op: Operation) -> None:
        """Simplify one op in place."""
        self.at = op
        if len(op.results) > 1 and (same := self._equal(op)) is not None:
            self._replace(op, *same.results)
            return
        value = self._replacement(op)
        if value is not None and value is not op.results[0]:
            self._replace(op, value)

    def _replacement(self, op: Operation) -> SSAValue | None:
        for rule in self.rules.get(type(op), ()):
            value = rule(self, op)
            if value is not None:
                name = rule.__name__.strip("_")
                self.changed[name] = self.changed.get(name, 0) + 1
                record("rewrite", (name, op))
                return value
        same = self._equal(op) if len(op.results) == 1 else None
        return None if same is None else same.results[0]

    def _equal(self, op: Operation) -> Operation | None:
        """An earlier equal op (common subexpression); ops with effects or randomness are left alone."""
        if not op.results or op.regions or op.name in ("nd.extern", "nd.random", "nd.barrier"):
            return None
        types = (r.type for r in op.results)
        key = (type(op), *types, *map(id, op.operands), *sorted(op.properties.items(), key=lambda item: item[0]))
        found = self.known.setdefault(key, op)
        if found is op:
            return None
        self.changed["cse"] = self.changed.get("cse", 0) + 1
        record("rewrite", ("cse", op))
        return found

    def _replace(self, op: Operation, *values: SSAValue) -> None:
        """Have values take the place of the first results; the others, if any, nobody uses."""
        for result, value in zip(op.results, values, strict=False):
            if value.name_hint is None:
                value.name_hint = result.name_hint
            result.replace_all_uses_with(value)
        erase_op(op)

    def new(self, op: Operation) -> SSAValue:
        """Insert a new op before the one being visited and simplify it too; its (first) result."""
        assert self.at is not None and self.at.parent is not None
        op.location = self.at.location
        self.at.parent.insert_op_before(op, self.at)
        outer = self.at
        self.at = op
        value = self._replacement(op)
        self.at = outer
        if value is None or value is op.results[0]:
            return op.results[0]
        erase_op(op)
        return value

    def insert_behind(self, at: Operation, *ops: Operation) -> None:
        """Insert new ops behind one that was visited, as they are."""
        assert at.parent is not None
        for op in reversed(ops):
            op.location = at.location
            at.parent.insert_op_after(op, at)


def drop_dead(block: Block) -> int:
    """Remove the ops whose results nobody uses; how many they were."""
    dropped = 0
    for op in reversed(list(block.ops)):
        if op.results and not any(r.uses for r in op.results) and not has_effect(op):
            erase_op(op)
            dropped += 1
    return dropped


def has_effect(op: Operation) -> bool:
    """Whether an op must stay even if nothing uses its results."""
    return not op.results or "effect" in op.properties or "binds" in op.properties or op.name == "func.return"
