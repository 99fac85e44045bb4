"""Memory of one iteration of a nest: where a producer that is computed by tiles in its reader keeps them."""

from __future__ import annotations

from math import prod
from typing import Self

from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, result_def
from xdsl.utils.exceptions import VerifyException

from ..nd.types import element_bytes
from ..support.create import QuickOp
from .base import element_type, is_shaped, shaped_dims


@irdl_op_definition
class LocalOp(QuickOp):
    """`%rows = loop.local : !nd.tensor<10 x 128 x f32>` in the body of a nest: a small tensor (at the memory level a buffer) that belongs
    to one iteration of the nest's loops.

    Its contents are undefined when the iteration begins; loops inside store to it and load from it, and the statements of the body run in
    their order. Nothing outside sees it, so threads and iterations have one each; a thread may fill once what every
    iteration fills alike."""

    name = "loop.local"
    result = result_def()
    assembly_format = "attr-dict `:` type($result)"

    @classmethod
    def make(cls, kind: Attribute) -> Self:
        """Memory of the sizes and the element type of a tensor or buffer type."""
        return cls.create(result_types=[kind])

    @property
    def bytes(self) -> int:
        """How much memory it is."""
        return local_bytes(self.result.type)

    def verify_(self) -> None:
        t = self.result.type
        if not is_shaped(t) or any(d.value is None for d in shaped_dims(t)):
            raise VerifyException(f"loop.local: needs a tensor or buffer whose sizes are numbers, got {t}")
        parent = self.parent_op()
        if parent is not None and parent.name != "loop.nest":
            raise VerifyException(f"loop.local: stands directly in the body of a loop.nest, not of '{parent.name}'")


def local_bytes(kind: Attribute) -> int:
    """Bytes of a tensor or buffer type whose sizes are numbers."""
    return prod(int(d) for d in shaped_dims(kind)) * element_bytes(element_type(kind))
