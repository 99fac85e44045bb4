"""What convolutions take while they run: the estimate against torch's allocations."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Block

from stepwell.dialects import mem, nd
from stepwell.dialects.nd.call_args import Arg, Call, CallAttr
from stepwell.dialects.nd.types import LayoutAttr, TensorType
from stepwell.lowering.fx_to_nd.core.metadata import element_type
from stepwell.passes.mem.arena.scratch import scratch_bytes
from stepwell.tools.bench.memory import peak_of

SLACK = 64 << 10
"""Bytes of small tables, biases and the like that are not estimated."""


@pytest.fixture(autouse=True)
def one_thread():
    """What the rules are for: with more of them oneDNN keeps sums of each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Shape(NamedTuple):
    images: int
    ins: int
    size: tuple[int, ...]
    outs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    transpose: bool = False
    dtype: torch.dtype = torch.float32


SHAPES = [
    Shape(2, 64, (32, 32), 64, 3),
    Shape(2, 64, (32, 32), 32, 3),
    Shape(2, 20, (32, 32), 36, 3),
    Shape(2, 3, (64, 64), 64, 3),
    Shape(4, 3, (32, 32), 192, 4, 4),
    Shape(2, 3, (96, 96), 192, 16, 16),
    Shape(2, 128, (16, 16), 256, 3, 2),
    Shape(2, 64, (32, 32), 128, 1, 2),
    Shape(2, 256, (8, 8), 512, 3),
    Shape(2, 64, (32, 32), 64, 1),
    Shape(16, 64, (14, 14), 64, 1),
    Shape(1, 16, (28, 28), 64, 3),
    Shape(1, 64, (28, 28), 64, 3),
    Shape(2, 32, (32, 32), 32, 3, dtype=torch.float64),
    Shape(2, 64, (32, 32), 64, 3, groups=4),
    Shape(2, 128, (28, 28), 128, 3, groups=128),
    Shape(2, 128, (14, 14), 128, 7, groups=128),
    Shape(2, 120, (14, 14), 120, 5, groups=120),
    Shape(2, 80, (512,), 192, 3),
    Shape(2, 32, (16, 16, 16), 32, 3),
    Shape(2, 64, (16, 16), 64, 4, 2, transpose=True),
    Shape(2, 128, (16, 16), 64, 2, 2, transpose=True),
    Shape(2, 48, (16, 16), 80, 3, transpose=True),
]


def tensors(shape: Shape, last: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """Input, weight, bias, and the numbers of the call from the strides on."""
    generator = torch.Generator().manual_seed(0)
    rank = len(shape.size)
    ends = (shape.ins, shape.outs // shape.groups) if shape.transpose else (shape.outs, shape.ins // shape.groups)
    make = [(shape.images, shape.ins, *shape.size), (*ends, *[shape.kernel] * rank), (shape.outs,)]
    x, weight, bias = (torch.randn(s, generator=generator, dtype=shape.dtype) for s in make)
    if last and rank > 1:
        x = x.to(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
    padding = 0 if shape.stride > 1 else shape.kernel // 2
    return x, weight, bias, ([shape.stride] * rank, [padding] * rank, [1] * rank, shape.transpose, [0] * rank, shape.groups)


def estimates(target: str, arguments: list[Any], results: list[torch.Tensor]) -> set[int]:
    """The estimate for the call at the nd level and on buffers."""
    operands = [a for a in arguments if isinstance(a, torch.Tensor)]
    places = iter(range(len(operands)))
    args = tuple(Arg(next(places)) if isinstance(a, torch.Tensor) else tuple(a) if isinstance(a, list) else a for a in arguments)
    call = CallAttr(Call(target, args))
    types = [[TensorType.get(t.shape, element_type(t.dtype)) for t in group] for group in (operands, results)]
    buffers = [[mem.BufferType.get(t.shape, element_type(t.dtype), t.stride()) for t in group] for group in (operands, results)]
    layouts = ArrayAttr([LayoutAttr.get(t.stride()) for t in operands])
    early = nd.ExternOp.create(
        operands=Block(arg_types=types[0]).args, result_types=types[1], properties={"call": call, "operand_layouts": layouts}
    )
    late = mem.ExternOp.create(operands=Block(arg_types=buffers[0]).args, result_types=buffers[1], properties={"call": call})
    return {scratch_bytes(early), scratch_bytes(late)}


def check(target: str, arguments: list[Any]) -> None:
    packet, _, overload = target.removeprefix("aten.").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    operator(*arguments)  # what is made once a process does not count
    made = operator(*arguments)
    results = [t for t in (made if isinstance(made, tuple) else (made,)) if t is not None]
    del made
    taken = peak_of(lambda: operator(*arguments)) - sum(t.nbytes for t in results)
    (estimate,) = estimates(target, arguments, results)
    assert abs(estimate - taken) <= SLACK + taken // 5, f"{target}: {estimate} estimated, {taken} taken"


@pytest.mark.spread
@pytest.mark.skipif("AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="oneDNN has blocks of other sizes on other processors")
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_convolutions_take_what_is_estimated(shape: Shape, last: bool):
    x, weight, bias, numbers = tensors(shape, last)
    check("aten.convolution.default", [x, weight, bias, *numbers])
    y = torch.convolution(x, weight, bias, *numbers)
    for wanted in ([True, True, True], [True, False, False], [False, True, True]):
        check("aten.convolution_backward.default", [torch.ones_like(y), x, weight, [shape.outs], *numbers, wanted])
