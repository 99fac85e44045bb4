"""loop-fuse: long chains of nests that are fused are written by work that grows with their length, and compute nothing expensive twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import lower
from xdsl.dialects import math
from xdsl.dialects.builtin import ModuleOp

from stepwell.passes.loop.transform.body import Body
from stepwell.tools.interpret.loop import run_loop

ROWS = torch.linspace(-1, 1, 4 * 32).view(4, 32).sin()


def chain(steps: int, dtype: torch.dtype = torch.float32) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
    """Values that the next one reads more than once, with a sum over the rows at every 40th step."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor]:
        y = x
        for k in range(steps):
            if k % 4 == 0:
                y = y * 1.001 + x
            elif k % 4 == 1:
                y = torch.tanh(y)
            elif k % 4 == 2:
                y = y - (y.mean(-1, keepdim=True) if k % 40 == 2 else x)
            else:
                y = torch.where(y > 0, y, y * 0.1)
        return (y.to(dtype),)

    return fn


def fused(fn: Callable[..., tuple[torch.Tensor]]) -> ModuleOp:
    module = lower(fn, ROWS, to="loop", target="cpu", mode="real").module
    return module


def functions(module: ModuleOp) -> int:
    return sum(isinstance(op, math.TanhOp) for op in module.walk())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # the result has room for what later steps need, or has not
def test_each_function_is_computed_once(dtype: torch.dtype):
    fn = chain(60, dtype)
    module = fused(fn)
    assert functions(module) <= 15 + 1, "the first one is cheap enough to be computed where it is read"
    torch.testing.assert_close(run_loop(module, [ROWS])[0], fn(ROWS)[0])


def test_a_chain_of_hundreds_is_no_deep_recursion():
    assert functions(fused(chain(400))) <= 100 + 15


def test_work_grows_with_the_length(monkeypatch: pytest.MonkeyPatch):
    built = [0]
    pure = Body.pure

    def counted(self: Body, *args: object) -> object:
        built[0] += 1
        return pure(self, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Body, "pure", counted)
    work: list[int] = []
    for steps in (40, 80, 160):
        built[0] = 0
        fused(chain(steps))
        work.append(built[0])
    assert work[1] < 3 * work[0] and work[2] < 3 * work[1], work
