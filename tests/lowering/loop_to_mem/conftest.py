"""Lowers functions that are written as text to the memory level, and compares what they compute before and after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, mem
from stepwell.dialects.loop import NestOp
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.loop import run_loop

HEADER = "builtin.module attributes {nd.symbols = {s0 = #nd.range<0, -1, 8>, s1 = #nd.range<1, -1, 8>}} {"
PIPELINE = "loop-to-mem,mem-plan"


class MemLevel:
    """What the tests ask of the pass; one for the whole session, so that a test names what it uses."""

    def __init__(self):
        self.ctx = load_dialects(Context())

    def parse(self, text: str) -> ModuleOp:
        return Parser(self.ctx, HEADER + text + "}").parse_module()

    def lower(self, text: str, counts: dict[str, int] | None = None, remarks: list[str] | None = None) -> ModuleOp:
        """The module after the passes; fills in the statistics and remarks that are asked for."""
        module = self.parse(text)
        instrument = Instrumentation(verify_each=True, statistics=counts is not None)
        if remarks is not None:
            instrument.remarks = lambda remark: remarks.append(remark.message)
        run(parse_pipeline(PIPELINE), module, self.ctx, instrument)
        if counts is not None:
            counts.update({key: n for (_, key), n in instrument.counts.items()})
        return module

    def check(self, text: str, inputs: list[Any], want: list[torch.Tensor] | None = None) -> ModuleOp:
        """Run `text` at the loop level and, in several orders, after the passes: results and arguments agree."""
        expected_inputs = clone(inputs)
        expected = run_loop(self.parse(text), expected_inputs)
        module = self.lower(text)
        for order in ("forward", "reverse", "shuffle"):
            given = clone(inputs)
            results = run_loop(module, given, order=order, seed=3)
            assert len(results) == len(expected)
            for a, b in zip(results, expected, strict=True):
                assert_same(a, b)
            for a, b in zip(given, expected_inputs, strict=True):
                assert_same(a, b)
        for a, b in zip(expected, want or (), strict=False):
            torch.testing.assert_close(a, b)
        return module

    # ---- what is in a lowered module

    def ops(self, module: ModuleOp) -> list[Operation]:
        return list(next(f for f in module.ops if isinstance(f, FuncOp)).body.block.ops)

    def nests(self, module: ModuleOp) -> list[NestOp]:
        return [op for op in self.ops(module) if isinstance(op, NestOp)]

    def copies(self, module: ModuleOp) -> int:
        return sum(n.label is not None and n.label.data == "copy" for n in self.nests(module))

    def allocs(self, module: ModuleOp, kind: str) -> int:
        return sum(isinstance(op, mem.AllocOp) and op.kind.data == kind for op in self.ops(module))

    def externs(self, module: ModuleOp) -> list[mem.ExternOp]:
        return [op for op in self.ops(module) if isinstance(op, mem.ExternOp)]

    def returned(self, module: ModuleOp) -> list[SSAValue]:
        last = self.ops(module)[-1]
        assert isinstance(last, ReturnOp)
        return list(last.operands)


def assert_same(a: Any, b: Any) -> None:
    if not isinstance(a, torch.Tensor):
        assert a == b
        return
    assert a.shape == b.shape and a.dtype == b.dtype
    significant = [[s for n, s in zip(x.shape, x.stride(), strict=True) if n != 1] for x in (a, b)]
    assert significant[0] == significant[1]
    torch.testing.assert_close(a, b, equal_nan=True)


def clone(inputs: list[Any]) -> list[Any]:
    """Tensors with the same strides and offset in memory of their own."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        storage = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).clone()
        return storage.as_strided(x.shape, x.stride(), x.storage_offset())

    return [one(x) for x in inputs]


@pytest.fixture(scope="session")
def level() -> MemLevel:
    return MemLevel()


@pytest.fixture(scope="session")
def seeded():
    """`seeded(4, 6)`: a tensor of normal numbers, always the same for the same sizes."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))

    return make
