"""`apply-pdl`: rewrites written in MLIR's pattern language, `pdl`, read from a file and applied to the operations of any level.

The counterpart of MLIR is the pattern driver on PDL byte code; here xDSL's matcher interprets the patterns. What it cannot say (lists of
operands, functions for rewriting) is refused when the file is read, with the line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import pdl
from xdsl.dialects.builtin import UNKNOWN_LOC, ModuleOp
from xdsl.ir import Operation, OpResult
from xdsl.irdl import IRDLOperation
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriterListener
from xdsl.transforms.dead_code_elimination import is_trivially_dead

from ...passes.manager.errors import PassError, did_you_mean
from ...passes.manager.instrumentation import remark, statistic
from ...passes.manager.locations import source_location
from ...passes.manager.pass_manager import Pass, most_rewrites
from ...passes.manager.verify import InvalidIR, verify_ir
from ..ir_parser import IRSyntaxError, parse_file
from .pdl_constraints import ConstrainedPattern, PatternError, check_constraint, problem

UNSUPPORTED = (pdl.OperandsOp, pdl.ResultsOp, pdl.TypesOp, pdl.RangeOp, pdl.ApplyNativeRewriteOp)


@dataclass(frozen=True)
class ApplyPdl(Pass):
    """Applies the patterns of a PDL file until nothing changes (without `file`: those that stand in the module)."""

    name = "apply-pdl"

    file: str | None = None
    """The file that holds `pdl.pattern` operations"""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        patterns = op if self.file is None else read_patterns(self.file, ctx)
        rewrites = [_Rewrite(p, ctx) for p in patterns.walk() if isinstance(p, pdl.PatternOp)]
        rewrites.sort(key=lambda rewrite: -rewrite.pattern.benefit.value.data)
        roots = {rewrite.root for rewrite in rewrites}
        changed, most = 0, most_rewrites(op)
        pending = True
        while pending:
            pending = False
            for target in list(_outside_patterns(op)):
                if target.parent is None or (target.name not in roots and None not in roots):
                    continue
                if any(rewrite.applied(target) for rewrite in rewrites):
                    pending = True
                    changed += 1
                    if changed > most:
                        self.fail(target, f"rewritten {most} times and not done: does a pattern match what it writes?")
        if changed:
            _drop_dead(op)

    def identity(self) -> str:
        """What the pass does, as text for keys of caches."""
        return "" if self.file is None else hashlib.sha256(_text_of(self.file).encode()).hexdigest()


def _outside_patterns(module: ModuleOp) -> Iterator[Operation]:
    for op in module.ops:
        if not isinstance(op, pdl.PatternOp):
            yield from op.walk()


def _drop_dead(module: ModuleOp) -> None:
    for op in reversed(list(_outside_patterns(module))):
        if op.parent is not None and op.results and is_trivially_dead(op):
            op.detach()
            op.erase()


def _text_of(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise PatternError(f"cannot read '{file}': {getattr(error, 'strerror', None) or error}") from error


def read_patterns(file: str, ctx: Context) -> ModuleOp:
    """The module of a file of patterns. Raises PatternError with file and line for whatever is wrong with it."""
    try:
        module, _ = parse_file(_text_of(file), file, ctx)
        verify_ir(module)
    except IRSyntaxError as error:
        raise PatternError(str(error)) from error
    except InvalidIR as error:
        raise problem(error.op, error.message) from error
    if not any(isinstance(op, pdl.PatternOp) for op in module.ops):
        raise PatternError(f"{file}: the file holds no pdl.pattern")
    return module


class _Rewrite:
    """A pattern, ready to be applied. Raises PatternError for what cannot be interpreted."""

    def __init__(self, pattern: pdl.PatternOp, ctx: Context):
        self.pattern = pattern
        self.name = pattern.sym_name.data if pattern.sym_name is not None else "pattern"
        _check(pattern, ctx)
        rewrite = pattern.body.block.last_op
        assert isinstance(rewrite, pdl.RewriteOp) and isinstance(rewrite.root, OpResult)
        assert isinstance(rewrite.root.op, pdl.OperationOp)
        named = rewrite.root.op.opName
        self.root = named.data if named is not None else None
        self.inner = ConstrainedPattern(rewrite, ctx)

    def applied(self, op: Operation) -> bool:
        """Rewrite at an operation; whether anything changed."""
        if op.parent is None or (self.root is not None and op.name != self.root):
            return False
        location, name = op.location, op.name
        made: list[Operation] = []
        rewriter = PatternRewriter(op)
        rewriter.extend_from_listener(PatternRewriterListener(operation_insertion_handler=[made.append]))
        probe = op
        try:
            self.inner.match_and_rewrite(op, rewriter)
        except Exception as error:
            place = source_location(self.pattern.location)
            text = str(error) if isinstance(error, PatternError) else f"{type(error).__name__}: {error}"
            raise PassError(f"pattern '{self.name}' ({place}) failed: {text}", op=probe) from error
        if not rewriter.has_done_action:
            return False
        for new in made:
            if new.location is UNKNOWN_LOC:
                new.location = location
        statistic("num-rewritten")
        if made:
            remark(made[-1], lambda: f"pattern '{self.name}' has rewritten '{name}'", "applied")
        return True


def _check(pattern: pdl.PatternOp, ctx: Context) -> None:
    """Raises PatternError for what the interpreter does not know, and for names that do not exist."""
    rewrite = pattern.body.block.last_op
    assert isinstance(rewrite, pdl.RewriteOp)
    if rewrite.name_ is not None or rewrite.root is None:
        raise problem(rewrite, "pdl.rewrite needs a root operation and a body; functions for rewriting are not supported")
    for op in pattern.walk():
        if isinstance(op, UNSUPPORTED):
            raise problem(op, f"{op.name} is not supported: patterns name each operand, result and type")
        if isinstance(op, pdl.ApplyNativeConstraintOp):
            check_constraint(op, pattern)
        if isinstance(op, pdl.OperationOp) and op.opName is not None:
            _check_operation(op, op.opName.data, ctx)


def _check_operation(op: pdl.OperationOp, name: str, ctx: Context) -> None:
    found = ctx.get_optional_op(name)
    dialect = name.partition(".")[0]
    if found is None:
        known = [n for n in ctx._loaded_ops if n.startswith(f"{dialect}.")]
        raise problem(op, f"there is no operation '{name}'{did_you_mean(name, known)}")
    if not issubclass(found, IRDLOperation):
        return
    definition = found.get_irdl_definition()
    known = [*definition.properties, *definition.attributes]
    for attribute in op.attributeValueNames.data:
        if dialect == "nd" and attribute.data not in known:
            raise problem(op, f"'{name}' has no property '{attribute.data}' (it has: {', '.join(known) or 'none'})")
