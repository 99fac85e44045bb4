"""Runs nests that are written as text: through mem-to-cpu, the emitter and the JIT, on torch tensors."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.dialects.expr import evaluate
from stepwell.dialects.host import LaunchOp
from stepwell.lowering.mem_to_cpu import MemToCpu
from stepwell.passes.manager.verify import verify_ir
from stepwell.targets.cpu.emit.module import emit_module
from stepwell.targets.cpu.jit import compile_text, load_object


class Nests:
    """A function of nests on buffers, lowered and linked; `text` is the cpu IR."""

    def __init__(self, source: str):
        ctx = load_dialects(Context())
        self.module = Parser(ctx, source).parse_module()
        verify_ir(self.module)
        MemToCpu().apply(ctx, self.module)
        verify_ir(self.module)
        self.text = str(self.module)
        self.llvm = emit_module(self.module)
        data = compile_text(self.llvm)
        (self.func,) = [f for f in self.module.ops if isinstance(f, FuncOp)]
        names = [op.sym_name.data for op in self.module.ops if op.name == "cpu.kernel"]  # pyright: ignore
        self.kernels = names
        self.library = load_object(data)

    def __call__(self, *arguments: Any, **sizes: int) -> None:
        """Run the launches in order. Tensors are passed by the address of their first element."""
        values = dict(zip(self.func.body.block.args, arguments, strict=True))
        for op in self.func.body.block.ops:
            if not isinstance(op, LaunchOp):
                continue
            tensors = [values[v] for v in op.operands if hasattr(values[v], "data_ptr")]
            scalars = [values[v] for v in op.operands if not hasattr(values[v], "data_ptr")]
            numbers = [evaluate(e, sizes) for e in op.sizes.data]
            self.library.call(op.kernel.root_reference.data, *tensors, *numbers, *scalars)


@pytest.fixture(scope="session")
def nests() -> type[Nests]:
    """The class that lowers and runs nests."""
    return Nests
