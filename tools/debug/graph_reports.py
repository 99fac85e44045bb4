"""What is worth knowing of a graph that was imported: torch's performance hints, and its matrix products at a glance."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch._logging._internal import getArtifactLogger
from xdsl.dialects.builtin import ModuleOp, f32

from ...dialects import nd
from ...dialects.nd.types import tensor_type
from .compile_log import once
from .trace import trace

if TYPE_CHECKING:
    from ...lowering.fx_to_nd import Imported

log = logging.getLogger("stepwell")
hints = getArtifactLogger(__name__, "perf_hints")
"""Shown by TORCH_LOGS=perf_hints."""


def report(imported: Imported) -> None:
    """Log and trace it; what is the same in every graph is said once."""
    for name in imported.counts.names["fallback"]:
        if once(f"fallback {name}"):
            runs = "through ATen" if name.startswith(("aten.", "prims.")) else "as it is registered"
            log.warning("%s has no rule and runs %s", name, runs)
            hints.info("%s runs %s: nothing is fused with it", name, runs)
    hint_tf32(imported.module, imported.device)
    if log.isEnabledFor(logging.INFO) and (table := products(imported.module)):
        log.info("matrix products:\n%s", table)
    trace("products", lambda: products(imported.module))


def hint_tf32(module: ModuleOp, device: str) -> None:
    """Say once that a GPU computes products of f32 much faster in TF32, where that is off."""
    if not device.startswith("cuda") or torch.version.hip or torch.get_float32_matmul_precision() != "highest":
        return
    if not any(isinstance(op, nd.MatmulOp) and tensor_type(op.result).element_type == f32 for op in module.walk()):
        return
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0) and once("tf32"):
        log.warning("this GPU computes matrix products of float32 several times faster with torch.set_float32_matmul_precision('high')")


def products(module: ModuleOp) -> str:
    """A table of the matrix products of an imported graph: type, sizes, how many; "" where there are none."""
    found: Counter[tuple[str, ...]] = Counter()
    for op in module.walk():
        if isinstance(op, nd.MatmulOp):
            a, b = tensor_type(op.lhs), tensor_type(op.rhs)
            batch: Any = " x ".join(map(str, a.dims[:-2])) or "1"
            found[(str(a.element_type), batch, str(a.dims[-2]), str(b.dims[-1]), str(a.dims[-1]))] += 1
    rows = [("type", "B", "M", "N", "K", "count"), *[(*key, str(n)) for key, n in found.most_common()]]
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) if found else ""
