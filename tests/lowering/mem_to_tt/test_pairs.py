"""Neighbours in memory that a body accesses one by one: one load or store of a kernel for both."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower
from xdsl.context import Context

import stepwell
from stepwell.dialects import load_dialects
from stepwell.dialects.tt.memory import LoadOp, StoreOp
from stepwell.dialects.tt.shape import JoinOp, SplitOp
from stepwell.dialects.tt.types import shape_of
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.target import InterpretedTarget
from stepwell.tools.ir_parser import parse_file
from stepwell.tools.opt.run_ir import run_module

BF16 = torch.bfloat16


def rope(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def complex_rope(x, turns):
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns[:, None]).flatten(-2)


def halves_of_bytes(w, scales):
    values = torch.stack([w & 15, w >> 4], -1).flatten(1).to(BF16) - 8
    return (values.view(w.shape[0], -1, 8) * scales[..., None]).flatten(1)


def butterflies(x):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a - b, a + b], -1).flatten(-2)


def kernels(function, *args):
    module = lower(function, *args, to="tt", target="gpu").module
    return module


def count(module, *kinds):
    return [sum(isinstance(op, kind) for op in module.walk()) for kind in kinds]


@pytest.fixture
def interpreted():
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")
    torch._dynamo.reset()


def test_a_stack_is_one_store():
    module = kernels(lambda x, y: torch.stack([x * 2, y], -1), torch.randn(300), torch.randn(300))
    assert count(module, LoadOp, StoreOp, JoinOp) == [2, 1, 1]
    (store,) = (op for op in module.walk() if isinstance(op, StoreOp))
    assert shape_of(store.ptr.type) == (1024,)


def test_a_rotation_of_neighbours_loads_and_stores_both_at_once():
    module = kernels(rope, torch.randn(2, 16, 4, 64), torch.randn(16, 32), torch.randn(16, 32))
    assert count(module, LoadOp, StoreOp, JoinOp, SplitOp) == [3, 1, 1, 1]


def test_loops_inside_load_both_at_once():
    module = kernels(lambda x: (x[..., ::2] * x[..., 1::2]).sum(-1), torch.randn(5, 2048))
    assert count(module, LoadOp, SplitOp) == [1, 1]
    assert "tensor<1x1024xf32>" in str(next(op for op in module.walk() if isinstance(op, SplitOp)))


def test_shuffled_pixels_are_stored_two_at_once():
    """gpu-neighbours: two planes are read, each along its rows."""
    module = kernels(lambda x: F.pixel_shuffle(x, 2) * 2, torch.randn(2, 12, 40, 40))
    assert count(module, LoadOp, StoreOp, JoinOp) == [2, 1, 1]


def test_a_stack_of_three_is_one_store():
    """gpu-neighbours: a thread stores what lies side by side."""
    module = kernels(lambda x, y, z: torch.stack([x, y, z], -1), *(torch.randn(40, 65) for _ in "xyz"))
    assert count(module, LoadOp, StoreOp) == [3, 1]


def test_halves_of_bytes_and_their_scales_are_one_kernel():
    """The group of a scale is some of the columns that the halves are interleaved to."""
    module = kernels(halves_of_bytes, torch.zeros(64, 128, dtype=torch.uint8), torch.randn(64, 32, dtype=BF16))
    assert str(module).count("tt.func") == 1 and count(module, StoreOp, JoinOp) == [1, 1]


def test_what_reads_in_between_sees_the_first_store():
    def function(x):
        x = x.clone()
        x[::2] = 1.0
        return x * 2

    assert count(kernels(function, torch.randn(64)), JoinOp) == [0]


SHAPES = [
    ((2, 5, 3, 8), torch.float16),
    ((3, 33, 2, 10), BF16),
    ((1, 1, 1, 2), torch.float64),
    ((0, 5, 3, 8), torch.float32),
    ((2, 5, 3, 14), torch.int8),
]


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_rotations_are_as_eager(shape, dtype, interpreted):
    seeded, scale = torch.Generator().manual_seed(shape[1]), 1 if dtype.is_floating_point else 4
    angles = (shape[1], shape[3] // 2)
    x, cos, sin = (torch.randn(*s, generator=seeded).mul(scale).to(dtype) for s in (shape, angles, angles))
    got, wanted = torch.compile(rope, backend="stepwell", dynamic=False)(x, cos, sin), rope(x, cos, sin)
    assert got.stride() == wanted.stride()
    close = 3e-2 if dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(got, wanted, rtol=close, atol=close)


def at_indices(x, i):
    """Pairs of which a loaded index says the row."""
    y = x[i, torch.arange(x.shape[1])]
    return y[..., 0] * y[..., 1] + y[..., 0]


PROGRAMS = {
    "at loaded places": (at_indices, torch.randn(7, 40, 2), torch.randint(0, 7, (40,))),
    "complex numbers": (complex_rope, torch.randn(2, 5, 3, 8), torch.polar(torch.ones(5, 4), torch.randn(5, 4))),
    "halves of bytes": (halves_of_bytes, torch.randint(0, 255, (9, 36), dtype=torch.uint8), torch.randn(9, 9, dtype=BF16)),
    "three of them": (lambda x: torch.stack([x, x * 2, x + 1], -1), torch.randn(333)),
    "four of them": (lambda x: torch.stack([x, x * 2, x + 1, -x], -1), torch.randn(333)),
    "three tensors": (lambda x, y, z: torch.stack([x, y.exp(), z + x], -1) / 3, torch.randn(37, 65), torch.randn(37, 65), torch.randn(65)),
    "five of 16 bits": (lambda x: torch.stack([x, x * 2, x, -x, x + 1], -1).flatten(), torch.randn(40, 65, dtype=BF16)),
    "three columns": (lambda x: torch.stack([x.t(), x.t() * 2, x.t() + 1], -1), torch.randn(37, 65)),
    "three padded": (lambda x: torch.stack([F.pad(x, (1, 0))[:-1], x, F.pad(x, (0, 1))[1:]], -1), torch.randn(333)),
    "three of none": (lambda x: torch.stack([x, x * 2, x + 1], -1), torch.randn(4, 0)),
    "three of one": (lambda x: torch.stack([x, x * 2, x + 1], -1), torch.randn(1, 1)),
    "booleans": (lambda x: torch.stack([x > 0, x > 1], -1), torch.randn(333)),
    "the other way round": (lambda x: torch.stack([x[1::2], x[::2]], -1).flatten(), torch.randn(1000)),
    "columns": (lambda x: torch.stack([x.t() * 2, x.t() + 1], -1), torch.randn(37, 65)),
    "rows": (lambda x: torch.stack([x * 2, x + 1], 1).flatten(0, 1), torch.randn(37, 65)),
    "of every second one": (butterflies, torch.randn(6, 80)[:, ::2]),
    "turned round": (butterflies, torch.randn(40, 6).t()),
    "padded": (lambda x: torch.stack([F.pad(x, (1, 0))[:-1], x], -1), torch.randn(333)),
    "behind a norm": (lambda x: butterflies(F.layer_norm(x, (x.shape[-1],))), torch.randn(5, 200)),
    "behind a softmax": (lambda x: butterflies(torch.softmax(x, -1)), torch.randn(3, 2048, dtype=BF16)),
    "summed up": (lambda x: (x[..., ::2] * x[..., 1::2]).sum(-1), torch.randn(3, 3002)),
    "pixels shuffled": (lambda x: F.pixel_shuffle(x, 2) + 1, torch.randn(2, 12, 20, 33)),
    "pixels shuffled by three": (lambda x: F.pixel_shuffle(x, 3), torch.randn(1, 18, 20, 33, dtype=BF16)),
    "channels-last pixels shuffled": (lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 12, 20, 20).to(memory_format=torch.channels_last)),
    "shuffled and compared": (lambda x: torch.where(F.pixel_shuffle(x, 2) > 9, 1, 0), torch.randint(0, 20, (4, 17, 16))),
    "shuffled and padded": (lambda x: F.pad(F.pixel_shuffle(x, 2), (2, 2, 1, 1)), torch.randn(1, 8, 20, 20)),
    "planes interleaved": (lambda x: x.view(2, -1).t().reshape(5, -1), torch.randn(10, 40)),
    "columns summed up": (lambda x: (x[::2] * x[1::2]).sum(0), torch.randn(300, 14)),
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_as_eager(name, dynamic, interpreted):
    function, *args = PROGRAMS[name]
    got, wanted = torch.compile(function, backend="stepwell", dynamic=dynamic)(*args), function(*args)
    assert got.stride() == wanted.stride() and got.dtype == wanted.dtype
    close = 2e-2 if got.dtype == BF16 else 1e-4
    torch.testing.assert_close(got, wanted, rtol=close, atol=close)


def test_both_are_written_in_place(interpreted):
    def function(x):
        a, b = x[::2].clone(), x[1::2].clone()
        x[::2] = a + b
        x[1::2] = a - b
        return x.sum()

    x = torch.randn(64)
    y = x.clone()
    total = torch.compile(function, backend="stepwell")(y)
    torch.testing.assert_close(total, function(x))
    torch.testing.assert_close(x, y)


IN_PIECES = """
builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90", multiprocessors = 24>} {
  func.func @forward(%x: !mem.buffer<2 x 5 x 5 x 2 x f32, [50, 2, 10, 1]>) -> !mem.buffer<5 x f32> {
    %sums = mem.alloc {kind = "output"} : !mem.buffer<5 x f32>
    loop.nest (%i = 5) outs(%o = %sums : !mem.buffer<5 x f32>) {
      %sum = loop.reduce (%j = 2, %k = 5) sum {
        %a = loop.load %x[%j, %k, %i, 0] : !mem.buffer<2 x 5 x 5 x 2 x f32, [50, 2, 10, 1]> -> f32
        %b = loop.load %x[%j, %k, %i, 1] : !mem.buffer<2 x 5 x 5 x 2 x f32, [50, 2, 10, 1]> -> f32
        %ab = arith.mulf %a, %b : f32
        loop.yield %ab : f32
      } -> f32
      loop.store %sum, %o[%i] : f32, !mem.buffer<5 x f32>
    } attributes {schedule = {gpu = {axes = [[0 : i64]], blocks = [1 : i64], grid_loops = [], reduction_block = 4 : i64,
                                     chunks = 3 : i64, stages = 0 : i64, warps = 1 : i64}}}
    func.return %sums : !mem.buffer<5 x f32>
  }
}
"""


def test_what_lies_side_by_side_in_one_piece_of_a_row_need_not_in_the_next():
    """The first four terms are of one row of five, the next four of two."""
    ctx = load_dialects(Context())
    module, _ = parse_file(IN_PIECES, "pieces.mlir", ctx)
    x = torch.randn(2, 5, 5, 2).permute(0, 2, 1, 3)
    run(parse_pipeline("mem-to-tt"), module, ctx, Instrumentation(verify_each=True))
    (got,) = run_module(module, ctx, [x], interpret=True)
    torch.testing.assert_close(got, x.prod(-1).sum((0, 1)))
