"""What patterns of a PDL file can ask besides structure: `pdl.apply_native_constraint`, its functions, and how they are called.

xDSL's matcher gives a constraint only values that an operation of the pattern takes, and does not read `isNegated`; this one knows the
results of all operations too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import pdl
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.interpreters.pdl import PDLMatcher, PDLRewritePattern
from xdsl.ir import Attribute, Operation, SSAValue, TypeAttribute
from xdsl.pattern_rewriter import PatternRewriter

from ...dialects.nd.types import TensorType
from ...errors import UserError
from ...passes.manager.errors import did_you_mean
from ...passes.manager.locations import source_location


class PatternError(UserError):
    """A file of patterns that cannot be read or used."""


def problem(op: Operation, message: str) -> PatternError:
    return PatternError(message, place=source_location(op.location))


@dataclass(frozen=True)
class Constraint:
    """A question: `takes` has for each argument the kinds that it may be of (operation, value, type, attribute)."""

    holds: Callable[..., bool]
    takes: tuple[tuple[str, ...], ...]
    constant: type = object
    """What an attribute that the pattern writes out must be, as the last argument."""
    wants: str = ""
    """The same in words."""

    def __str__(self) -> str:
        return ", ".join(" or ".join(kinds) for kinds in self.takes)


def _type_of(value: SSAValue | Attribute) -> Attribute:
    return value.type if isinstance(value, SSAValue) else value


def _one_use(op: Operation) -> bool:
    return sum(1 for result in op.results for _ in result.uses) == 1


def _element_type(value: SSAValue | Attribute, wanted: Attribute) -> bool:
    kind = _type_of(value)
    return getattr(kind, "element_type", kind) == wanted


def _rank(value: SSAValue | Attribute, wanted: Attribute) -> bool:
    kind = _type_of(value)
    return isinstance(kind, TensorType) and isinstance(wanted, IntegerAttr) and kind.rank == wanted.value.data


_VALUE = ("value", "type")
CONSTRAINTS: dict[str, Constraint] = {
    "one_use": Constraint(_one_use, (("operation",),)),
    "element_type": Constraint(_element_type, (_VALUE, ("attribute", "type")), TypeAttribute, "a type such as f32"),
    "rank": Constraint(_rank, (_VALUE, ("attribute",)), IntegerAttr, "a number such as 2 : i64"),
}
"""What `pdl.apply_native_constraint` can name: an operation whose result is used once; a value (or type) with elements of a type; a tensor
of so many dimensions."""

_KINDS = {pdl.OperationType: "operation", pdl.ValueType: "value", pdl.TypeType: "type", pdl.AttributeType: "attribute"}


def check_constraint(op: pdl.ApplyNativeConstraintOp, pattern: pdl.PatternOp) -> None:
    """Raises PatternError for a constraint that there is not, or that cannot be called so."""
    name = op.constraint_name.data
    constraint = CONSTRAINTS.get(name)
    if constraint is None:
        hint = did_you_mean(name, CONSTRAINTS) or f"; there are: {', '.join(CONSTRAINTS)}"
        raise problem(op, f"there is no constraint '{name}'{hint}")
    given = [_KINDS.get(type(v.type), str(v.type)) for v in op.args]
    if len(given) != len(constraint.takes) or any(kind not in wanted for kind, wanted in zip(given, constraint.takes, strict=True)):
        raise problem(op, f"constraint '{name}' takes ({constraint}), got ({', '.join(given)})")
    if op.res:
        raise problem(op, f"constraint '{name}' gives no results")
    matched = set(_matched(pattern))
    for index, value in enumerate(op.args):
        owner = value.owner
        assert isinstance(owner, Operation)
        constant = owner.properties.get("value") if isinstance(owner, pdl.AttributeOp) else None
        if constant is not None and index == len(given) - 1 and not isinstance(constant, constraint.constant):
            raise problem(op, f"argument {index} of constraint '{name}' must be {constraint.wants}, got {constant}")
        known = constant is not None or (isinstance(owner, pdl.TypeOp) and owner.constantType is not None)
        source = owner.parent_ if isinstance(owner, pdl.ResultOp) else value
        if not known and source not in matched:
            raise problem(op, f"argument {index} of constraint '{name}' is not known: nothing that leads to the root of the pattern has it")


def _matched(pattern: pdl.PatternOp) -> Iterator[SSAValue]:
    """What is known of a place that matches: the root, and from it all operands, types, attributes and operations."""
    rewrite = pattern.body.block.last_op
    assert isinstance(rewrite, pdl.RewriteOp) and rewrite.root is not None
    work: list[SSAValue] = [rewrite.root]
    seen: set[SSAValue] = set()
    while work:
        value = work.pop()
        if value in seen or not isinstance(value.owner, Operation):
            continue
        seen.add(value)
        yield value
        work.extend(value.owner.operands)


class _Matcher(PDLMatcher):
    """xDSL's, which also knows the results of operations that no other operation takes."""

    def get_constant_or_matched_value(self, ssa_val: SSAValue) -> Any:
        owner = ssa_val.owner
        if isinstance(owner, pdl.ResultOp) and ssa_val not in self.matching_context:
            operation: Any = self.matching_context[owner.parent_]
            index = owner.index.value.data
            if index >= len(operation.results):
                raise problem(owner, f"'{operation.name}' has {len(operation.results)} results, no result {index}")
            return operation.results[index]
        return super().get_constant_or_matched_value(ssa_val)

    def hold(self, pattern: pdl.PatternOp) -> bool:
        """Whether all constraints of the pattern hold."""
        for op in pattern.body.block.ops:
            if isinstance(op, pdl.ApplyNativeConstraintOp):
                arguments = [self.get_constant_or_matched_value(v) for v in op.args]
                if CONSTRAINTS[op.constraint_name.data].holds(*arguments) == bool(op.is_negated.value.data):
                    return False
        return True


class ConstrainedPattern(PDLRewritePattern):
    """xDSL's, with our constraints."""

    def match_and_rewrite(self, xdsl_op: Operation, rewriter: PatternRewriter) -> None:
        root, pattern = self.pdl_rewrite_op.root, self.pdl_rewrite_op.parent_op()
        assert root is not None and isinstance(root.owner, pdl.OperationOp) and isinstance(pattern, pdl.PatternOp)
        matcher = _Matcher()
        if not matcher.match_operation(root, root.owner, xdsl_op) or not matcher.hold(pattern):
            return
        assert self.pdl_rewrite_op.body is not None and isinstance(pattern.parent_op(), ModuleOp)
        self.interpreter.push_scope("rewrite")
        self.interpreter.set_values(matcher.matching_context.items())
        self.functions.rewriter = rewriter
        self.interpreter.run_ssacfg_region(self.pdl_rewrite_op.body, ())
        self.interpreter.pop_scope()
