"""Pass "contract-select": who computes each contraction, generated code or the library.

The rules of this machine decide (gemm/choice.py), or a measurement where they are not sure.

On a machine without the library (stepwell.machine) it is always generated code; operands that that does not take as they lie are copied.

The choice is written as the `schedule` of the contraction ("gemm" or "library"), where it can be read and overruled; a schedule that is
there already stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, ModuleOp, StringAttr, f64
from xdsl.dialects.func import FuncOp

from ....dialects import loop
from ....dialects.expr import Expr, evaluate, free_syms
from ....dialects.machine import has_library
from ....lowering.mem_to_cpu.contract import DTYPES, Product, recognise, row_major, transposed
from ....lowering.nest.product_epilogue import has_epilogue, plain_product, split_epilogue
from ....passes.analysis.symbols import symbol_hints
from ....passes.manager.pass_manager import Pass
from ..gemm.choice import prefer_own_gemm, relative_speed
from .contract_measure import ProductSizes, measure
from .pack_operands import pack_operands


@dataclass(frozen=True)
class ContractSelect(Pass):
    """Chooses between generated products and the library's for every contraction on buffers."""

    name = "contract-select"

    force: Literal["", "gemm", "library"] = ""
    """"gemm" or "library" instead of the rules."""

    measure: bool = False
    """Time both on operands of the sizes at hand (the hints of symbols) where the rules expect less than a factor of two between them. The
    times, in microseconds, are kept on disk and shown as the attribute `measured` of the contraction."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        hints, force = symbol_hints(op), self.force
        force = force if has_library(op) else "gemm"
        pack_operands(op, hints, narrow=has_library(op))
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for contract in [o for o in func.body.block.ops if isinstance(o, loop.ContractOp) and o.schedule is None]:
                fused = has_epilogue(contract) and recognise(contract) is None
                plain = plain_product(contract) if fused else contract
                choice = self._choice(plain, hints, force, fused)
                contract.properties["schedule"] = StringAttr(choice)
                if (p := recognise(plain)) is not None and p.b.panels:
                    self.remark(contract, f"its right factor is read without packing, from panels of {p.b.panels} columns", "applied")
                self.statistic(f"num-{choice}")
                if fused:
                    plain.drop_all_references()
                if fused and choice == "library":
                    split_epilogue(contract)

    def _choice(self, op: loop.ContractOp, hints: dict[str, int], force: str, fused: bool) -> str:
        p = recognise(op)
        if p is None:
            return "gemm"
        if p.is_narrow or p.is_ordered or force:
            return "gemm" if p.is_narrow or p.is_ordered else force
        p = row_major(p)
        layout = transposed(p)
        if layout is None:
            return "library"
        if not _library_takes(p):
            return "gemm"
        m, n, k = (_size(e, hints) for e in (p.m, p.n, p.k))
        dtype = DTYPES[p.a.dtype]
        unsure = SURE_SPEED_RANGE[0] < relative_speed(m, n, k, dtype, *layout) < SURE_SPEED_RANGE[1]
        if self.measure and unsure and p.a.dtype == p.b.dtype == p.c.dtype:
            batch = _size(p.batch[0], hints) if p.batch else 1
            times = measure(ProductSizes(dtype, batch, m, n, k, *layout))
            if times is not None:
                self.statistic("num-measured")
                op.attributes["measured"] = DictionaryAttr({name: FloatAttr(t, f64) for name, t in times.items()})
                return "gemm" if times["own"] <= times["library"] else "library"
        return "gemm" if prefer_own_gemm(m, n, k, dtype, *layout, fused=fused) else "library"


SURE_SPEED_RANGE = (0.5, 1.9)
"""Estimates of own speed over the library's outside of these are not checked by measurement."""


def _library_takes(p: Product) -> bool:
    """Whether ATen multiplies these without first making copies (it does for one batch dimension and dense matrices)."""
    return len(p.batch) <= 1


def _size(e: Expr, hints: dict[str, int]) -> int:
    return int(e) if e.is_const else evaluate(e, {s: hints.get(s.name, 64) for s in free_syms(e)})
