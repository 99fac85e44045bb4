"""Conditions that stop a program where they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Region, SSAValue

from ....dialects.tt.structure import AssertOp
from ....dialects.tt.types import shape_of
from ..builder import Builder


class Checks:
    """Conditions by the block that they are computed in: a check is a barrier, so those with one message and shape are made together."""

    def __init__(self, builder: Builder):
        self.b = builder
        self._waiting: dict[Block, dict[tuple[str, tuple[int, ...] | None], SSAValue]] = {}

    def add(self, message: str, condition: SSAValue) -> None:
        """Stop the program where a condition fails, at the end of the block that is open."""
        waiting = self._waiting.setdefault(self.b.blocks[-1][0], {})
        key = message, shape_of(condition.type)
        waiting[key] = self.b.both(waiting.get(key), condition)  # pyright: ignore[reportArgumentType]

    @contextmanager
    def only_if(self, condition: SSAValue) -> Iterator[None]:
        """What is built meanwhile, and its checks, run where a condition of the whole program holds."""
        region = Block()
        self.b.open(region)
        yield
        self.place()
        self.b.place(scf.YieldOp.create())
        self.b.close()
        self.b.place(scf.IfOp.create(operands=[condition], regions=[Region(region), Region(Block([scf.YieldOp.create()]))]))

    def place(self) -> None:
        """Write the checks of the block that is open."""
        for (message, _), condition in self._waiting.pop(self.b.blocks[-1][0], {}).items():
            self.b.place(AssertOp.create(operands=(condition,), properties={"message": StringAttr(message)}))
