"""Pass "contract-select": who computes each contraction, generated code or the library, by the rules of this machine (gemm_choice.py).

The choice is written as the `schedule` of the contraction ("gemm" or "library"), where it can be read and overruled; a schedule that is
there already stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from ...dialects import loop
from ...dialects.expr import Expr, evaluate, free_syms
from ...lowering.mem_to_cpu.contract import DTYPES, Product, recognise, transposed
from ...passes.loop.loop_fuse import symbol_hints
from ...passes.manager import Pass
from .gemm_choice import prefer_own_gemm


@dataclass(frozen=True)
class ContractSelect(Pass):
    """Chooses between generated products and the library's for every contraction on buffers."""

    name = "contract-select"

    force: str = ""
    """"gemm" or "library" instead of the rules."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        hints = symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for contract in func.body.block.ops:
                if isinstance(contract, loop.ContractOp) and contract.schedule is None:
                    choice = self.force or _choice(contract, hints)
                    contract.properties["schedule"] = StringAttr(choice)
                    self.statistic(f"num-{choice}")


def _choice(op: loop.ContractOp, hints: dict[str, int]) -> str:
    p = recognise(op)
    if p is None:
        return "gemm"
    layout = transposed(p)
    if layout is None:
        return "library"
    m, n, k = (_size(e, hints) for e in (p.m, p.n, p.k))
    own = prefer_own_gemm(m, n, k, DTYPES[p.a.dtype], *layout)
    return "gemm" if own or not _library_takes(p) else "library"


def _library_takes(p: Product) -> bool:
    """Whether ATen multiplies these without first making copies (it does for one batch dimension and dense matrices)."""
    return len(p.batch) <= 1


def _size(e: Expr, hints: dict[str, int]) -> int:
    return int(e) if e.is_const else evaluate(e, {s: hints.get(s.name, 64) for s in free_syms(e)})
