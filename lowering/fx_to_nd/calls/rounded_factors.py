"""Where factors of float32 may be rounded to TF32 on a GPU, as torch's settings say when a graph is imported."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, StringAttr, f32
from xdsl.ir import Operation

from ....dialects import nd
from ....dialects.nd.types import tensor_type
from ....passes.nd.products.factor_types import CONVOLUTIONS, PRODUCTS


def rounded_factors(ops: list[Operation]) -> ArrayAttr | None:
    """What a module says of its products and convolutions (`nd.tf32`); None where there is nothing to say.

    Dynamo guards the settings of products, so that a program that changes them is compiled again."""
    kinds = {type(op) for op in ops if isinstance(op, nd.MatmulOp | nd.ConvOp) and tensor_type(op.results[0]).element_type == f32}
    settings = torch.backends
    found = [PRODUCTS] if nd.MatmulOp in kinds and uses_tf32(settings.cuda.matmul, settings.cuda.matmul) else []
    found += [CONVOLUTIONS] if nd.ConvOp in kinds and uses_tf32(getattr(settings.cudnn, "conv", None), settings.cudnn) else []
    return ArrayAttr([StringAttr(name) for name in found]) if found else None


def uses_tf32(setting: Any, legacy: Any) -> bool:
    """Whether a kind of operation may round to TF32: by its `fp32_precision`, where torch has that, else by `allow_tf32`."""
    precision = getattr(setting, "fp32_precision", None)
    return legacy.allow_tf32 if precision is None else precision == "tf32"
