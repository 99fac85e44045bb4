"""What the loop-like ops of `loop` share: sizes, a body whose first arguments are the loop indices, and access to tensors or buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import prop_def
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr
from ..nd.base import ExprsAttr
from ..support.create import QuickOp
from ..support.schedule_check import lanes_problem, loop_problem, misspelt
from .syntax import INDEX


def is_shaped(t: Attribute) -> bool:
    """Whether `t` is a tensor or a buffer (something that can be loaded from)."""
    return hasattr(t, "dims") and hasattr(t, "element_type")


def shaped_dims(t: Attribute) -> tuple[Expr, ...]:
    return t.dims  # pyright: ignore[reportAttributeAccessIssue]


def element_type(t: Attribute) -> Attribute:
    return t.element_type  # pyright: ignore[reportAttributeAccessIssue]


class LoopLike(QuickOp):
    """Base of the ops that run a body over loops: `sizes` holds one size per loop, the body's first arguments are the loop indices."""

    sizes = prop_def(ExprsAttr)

    @property
    def loop_sizes(self) -> tuple[Expr, ...]:
        return self.sizes.data

    @property
    def block(self) -> Block:
        return self.regions[0].blocks[0]

    @property
    def indices(self) -> Sequence[SSAValue]:
        """The loop indices inside the body."""
        return self.block.args[: len(self.sizes.data)]

    def _check_indices(self) -> None:
        count = len(self.sizes.data)
        args = self.block.args
        if len(args) < count or any(a.type != INDEX for a in args[:count]):
            raise VerifyException(f"{self.name}: the body needs {count} arguments of type index, one for each loop")
        vector, lanes = self.attributes.get("vector"), self.attributes.get("lanes")
        problem = misspelt(self.attributes)
        negative = next((s for s in self.sizes.data if s.value is not None and s.value < 0), None)
        if negative is not None:
            problem = f"a loop has {negative} iterations"
        if not problem and vector is not None:
            problem = loop_problem("vector", vector, count, "none")
        if not problem and lanes is not None:
            problem = lanes_problem(lanes)
        if problem:
            raise VerifyException(f"{self.name}: {problem}")


def walk_bodies(op: Operation) -> Iterator[Operation]:
    """All ops inside `op`, outer first."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield inner
                if inner.regions:
                    yield from walk_bodies(inner)
