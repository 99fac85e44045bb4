"""Types of factors that units of a GPU for products take. The library rounds f32 to TF32 where torch's settings let it; kernels of ours do
not: units cut factors, which is less exact (docs/lab/gpu-products.md).

A module says so: `nd.tf32 = ["products", "convolutions"]`, as the program had set `torch.backends.cuda.matmul` and `torch.backends.cudnn`
when it was imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, bf16, f16, f32

from ....dialects import nd
from ....dialects.nd.types import tensor_type
from ....dialects.support.float8 import FLOAT8
from ...cost.contraction_price import rate_name

TF32 = "nd.tf32"
"""Attribute of a module: in which operations the library may round factors of f32 to TF32."""
PRODUCTS, CONVOLUTIONS = "products", "convolutions"

HALVES = (bf16, f16, *FLOAT8)
"""Types of 16 bits, and 8-bit floats, which are exact in these."""


WIDE = ("f32", "f64")
"""What the rates of a GPU call products of more bits, of which a kernel of ours may reach more or less than the library's."""


@dataclass(frozen=True)
class FactorTypes:
    """What the rates of a GPU call the library's products of f32, those of matrices and those of convolutions."""

    products: str
    convolutions: str

    @staticmethod
    def of(module: ModuleOp) -> FactorTypes:
        """The types of a module's factors."""
        said = module.attributes.get(TF32)
        rounded = {one.data for one in said.data if isinstance(one, StringAttr)} if isinstance(said, ArrayAttr) else set[str]()
        return FactorTypes(*("tf32" if what in rounded else "f32" for what in (PRODUCTS, CONVOLUTIONS)))

    def rate(self, op: nd.MatmulOp | nd.ConvOp | nd.ExternOp) -> str:
        """What the rates of a GPU call the library's products of an operation, by the type of its result."""
        kind = tensor_type(op.results[0]).element_type
        if kind != f32:
            return rate_name(kind)
        return self.convolutions if isinstance(op, nd.ConvOp) else self.products
