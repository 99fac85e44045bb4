"""Windows that share elements with those beside them, spelled out row by row: depthwise convolutions and pooling by channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from xdsl.dialects import test
from xdsl.dialects.builtin import i64
from xdsl.ir import Block

from stepwell.lowering.mem_to_cpu.reductions.windows import WindowRows


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def spread(*case):
    return pytest.param(*case, marks=pytest.mark.spread)


class Depthwise(nn.Module):
    """A depthwise convolution between products, by channels therefore, and what is computed of its result."""

    def __init__(self, channels, window, step, padding, dilation, mean):
        super().__init__()
        self.mean = mean
        self.before = nn.Conv2d(16, channels, 1)
        self.windows = nn.Conv2d(channels, channels, window, step, padding, dilation, groups=channels)
        self.behind = nn.Conv2d(channels, 32, 1)

    def forward(self, x):
        y = torch.relu(self.windows(self.before(x)))
        return self.behind(y * y.mean((2, 3), keepdim=True) if self.mean else y)


@pytest.mark.parametrize(
    "channels, window, step, padding, dilation, size, mean",
    [
        (40, 3, 1, 1, 1, (13, 30), False),
        (72, 5, 2, 2, 1, (19, 27), True),
        (32, 7, 1, 3, 1, (7, 7), False),
        spread(33, 7, 1, 3, 1, (9, 26), True),
        spread(64, 3, 2, 1, 1, (12, 12), False),
        spread(64, (1, 5), 1, (0, 2), 1, (5, 40), False),
        spread(48, 3, 1, 2, 2, (10, 33), False),
        spread(130, 3, 1, 0, 1, (8, 31), True),
        spread(40, 4, 3, 1, 1, (16, 35), False),
        spread(40, 3, 1, 1, 1, (3, 2), False),
    ],
)
def test_depthwise_convolutions_are_those_of_eager(channels, window, step, padding, dilation, size, mean):
    torch.manual_seed(0)
    net = Depthwise(channels, window, step, padding, dilation, mean).eval()
    x = torch.randn(2, 16, *size)
    with torch.no_grad():
        run = torch.compile(net, backend="stepwell", dynamic=False, options={"freezing": True})
        torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-5)


def test_shares_of_threads_end_within_rows():
    """Five blocks of channels of 2 x 29 rows, among three threads: a share ends between blocks of a row."""
    torch.manual_seed(0)
    net, x, before = Depthwise(72, 3, 1, 1, 1, False).eval(), torch.randn(2, 16, 29, 56), torch.get_num_threads()
    with torch.no_grad():
        run = torch.compile(net, backend="stepwell", dynamic=False, options={"freezing": True})
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-5)
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("pool", [lambda x: nn.functional.max_pool2d(x, 3, 1, 1), spread(lambda x: nn.functional.avg_pool2d(x, 3, 1, 1))])
def test_pooling_by_channels_is_that_of_eager(pool):
    x = torch.randn(2, 40, 12, 29).to(memory_format=torch.channels_last)
    run = torch.compile(lambda x: pool(x * 2) + 1, backend="stepwell", dynamic=False)
    torch.testing.assert_close(run(x), pool(x * 2) + 1)


def made(block, name, *operands):
    op = test.TestOp(operands, [i64])
    op.results[0].name_hint = name
    block.add_op(op)
    return op.results[0]


def test_rows_stand_before_the_next_and_what_follows_last():
    block = Block()
    shared = made(block, "before")
    rows = WindowRows(block)
    for k in range(2):
        rows.begin()
        address = made(block, f"address{k}", shared)
        total = address
        for row in range(2):
            rows.row()
            total = made(block, f"row{row}{k}", total)
        rows.end()
        made(block, f"store{k}", total)
    rows.reorder()
    names = [op.results[0].name_hint for op in block.ops]
    assert names == ["before", "address0", "address1", "row00", "row01", "row10", "row11", "store0", "store1"]


def test_what_a_row_needs_comes_first():
    """The second iteration's first row needs what the first iteration made in its second row."""
    block = Block()
    rows = WindowRows(block)
    rows.begin()
    rows.row()
    first = made(block, "a")
    rows.row()
    late = made(block, "b", first)
    rows.end()
    rows.begin()
    rows.row()
    made(block, "c", late)
    rows.row()
    rows.end()
    rows.reorder()
    assert [op.results[0].name_hint for op in block.ops] == ["a", "b", "c"]
