"""Kernels that take descriptors, on the GPU of the machine: a product whose blocks are copied by the hardware where it can, compared with
eager. Without a GPU the same program is interpreted, and its kernel compiled (tests/targets/host/gpu, tests/targets/triton)."""

from __future__ import annotations

import pytest
import torch
from xdsl.parser import Parser

from stepwell.dialects import host
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.driver import use_driver
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.targets.triton.gpu import gpu_target
from stepwell.targets.triton.kernels import device_target, start_program_kernels
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda:0" if ON_GPU else "cpu"

PRODUCT = """builtin.module {
  host.program @forward(%x: T, %w: T) {
    host.bind s0 = size %x 0 : T
    host.bind s1 = size %w 0 : T
    host.bind s2 = size %x 1 : T
    host.bind s3 = stride %x 0 : T
    host.bind s4 = stride %w 0 : T
    %y = host.empty_output [s0, s1] strides [(s1 + 7) floordiv 8 * 8, 1] : T
    host.launch @product(%y : T, %x : T, %w : T) [s2] grid [(s0 + 63) floordiv 64, (s1 + 63) floordiv 64]
      descriptors [1 at 0 [s0, s2] strides [s3, 1], 2 at 0 [s1, s2] strides [s4, 1],
                   0 at 0 [s0, s1] strides [(s1 + 7) floordiv 8 * 8, 1]]
    host.return(%y : T) [arg(0)]
  }
  tt.func public @product(%y: !tt.ptr<bf16>, %x: !tt.ptr<bf16>, %w: !tt.ptr<bf16>, %k: i64,
      %xd: !tt.tensordesc<tensor<64x64xbf16>>, %x0: i32, %x1: i32, %x2: i64, %x3: i64,
      %wd: !tt.tensordesc<tensor<64x64xbf16>>, %w0: i32, %w1: i32, %w2: i64, %w3: i64,
      %yd: !tt.tensordesc<tensor<64x64xbf16>>, %y0: i32, %y1: i32, %y2: i64, %y3: i64) attributes {num_warps = 4 : i32, overlaps} {
    %wait = tt.elementwise_inline_asm "griddepcontrol.wait; // $0" {constraints = "=r", packed_element = 1 : i32, pure = false} -> i32
    %size = arith.constant 64 : i32
    %zero = arith.constant 0 : i32
    %none = arith.constant dense<0.0> : tensor<64x64xf32>
    %p = tt.get_program_id x : i32
    %q = tt.get_program_id y : i32
    %i = arith.muli %p, %size : i32
    %j = arith.muli %q, %size : i32
    %end = arith.trunci %k : i64 to i32
    %sum = scf.for %a = %zero to %end step %size iter_args(%total = %none) -> (tensor<64x64xf32>) : i32 {
      %l = tt.descriptor_load %xd[%i, %a] : !tt.tensordesc<tensor<64x64xbf16>> -> tensor<64x64xbf16>
      %r = tt.descriptor_load %wd[%j, %a] : !tt.tensordesc<tensor<64x64xbf16>> -> tensor<64x64xbf16>
      %t = tt.trans %r {order = array<i32: 1, 0>} : tensor<64x64xbf16> -> tensor<64x64xbf16>
      %d = tt.dot %l, %t, %total, inputPrecision = tf32 : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32>
      scf.yield %d : tensor<64x64xf32>
    }
    %rounded = arith.truncf %sum : tensor<64x64xf32> to tensor<64x64xbf16>
    tt.descriptor_store %yd[%i, %j], %rounded : !tt.tensordesc<tensor<64x64xbf16>>, tensor<64x64xbf16>
    tt.return
  }
}
"""
"""x [m, k] times w [n, k], transposed; rows of all three may be apart."""

on_gpu = pytest.mark.skipif(not ON_GPU, reason="there is no GPU")


def parse():
    kind = '!host.tensor<bf16, "cuda:0">' if ON_GPU else "!host.tensor<bf16>"
    text = PRODUCT.replace(": T", f": {kind}").replace("T)", f"{kind})")
    return Parser(context(), text).parse_module()


@pytest.fixture(params=["native", "python"])
def product(request):
    """(callable, the kernel)."""
    native, module = request.param == "native", parse()
    program = next(op for op in module.ops if isinstance(op, host.ProgramOp))
    if not ON_GPU:
        with use_driver(InterpretedDriver(module)):
            return made(module, program, native, interpreted_kernels(module))
    kernels, finish = start_program_kernels(module, device_target(DEVICE))
    finish()
    return made(module, program, native, kernels)


def made(module, program, native, kernels):
    text = emit_kernels(module)
    description = emit_host(text, program, native=native, kernels=kernels)
    return load_program(description, load_object_code(compile_text(text.text()), native)), kernels[0]


def numbers(rows, columns, first=0, step=None):
    """A matrix of bf16 that begins `first` elements behind the beginning of its memory, its rows `step` elements apart."""
    step = columns if step is None else step
    memory = torch.randn(first + rows * step, generator=torch.Generator().manual_seed(rows + columns)).to(torch.bfloat16)
    return memory.to(DEVICE).as_strided((rows, columns), (step, 1), first)


def check(run, x, w):
    (y,) = run([x, w])
    torch.testing.assert_close(y.float(), x.float() @ w.float().T, rtol=2e-2, atol=2e-2 * x.shape[1] ** 0.5)


SHAPES = {
    "whole blocks": ((128, 128), (64, 128)),
    "odd sizes": ((70, 88), (50, 88)),
    "rows that are apart": ((70, 37, 0, 40), (50, 37, 0, 56)),
    "a part of a matrix": ((33, 40, 8 * 64 + 16, 64), (65, 40, 24, 48)),
    "one row": ((1, 64), (9, 64)),
}
ODD = {
    "an odd address": ((70, 88, 1), (50, 88)),
    "rows of odd length": ((70, 37), (50, 37)),
    "nothing to sum": ((20, 0, 0, 8), (30, 0, 0, 8)),
}


@pytest.mark.parametrize("shapes", SHAPES)
def test_products_by_descriptors(product, shapes):
    run, kernel = product
    check(run, *(numbers(*shape) for shape in SHAPES[shapes]))
    assert not kernel._variants


@pytest.mark.parametrize("shapes", ODD)
def test_products_that_cannot_be_described(product, shapes):
    run, kernel = product
    check(run, *(numbers(*shape) for shape in ODD[shapes]))
    assert not ON_GPU or kernel._variants  # the variant on addresses was compiled for it


def test_descriptors_follow_what_is_passed(product):
    """What the last launch encoded does not stay where addresses, sizes or strides differ."""
    run, _ = product
    for k in (64, 128, 64):
        for rows in (64, 130, 64):
            check(run, numbers(rows, k), numbers(40, k, 8))
            check(run, numbers(rows, k, 0, 256), numbers(40, k, 0, 136))


@on_gpu
def test_a_captured_graph_of_products(product):
    run, _ = product
    x, w = numbers(100, 96), numbers(50, 96)
    check(run, x, w)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run([x, w])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run([x, w])
        (z,) = run([y, first_columns(w, y)])
    for seed in range(3):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y.float(), x.float() @ w.float().T, rtol=2e-2, atol=0.3)
        torch.testing.assert_close(z.float(), y.float() @ first_columns(w, y).float().T, rtol=2e-2, atol=3.0)


def first_columns(w, y):
    """The first elements of eight rows of `w`, as many as rows of `y` have."""
    return w.as_strided((8, y.shape[1]), (96, 1))


def test_its_kernel_is_compiled_for_hopper():
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    kernels, finish = start_program_kernels(parse(), gpu_target("sm_90"))
    finish()
    (kernel,) = kernels
    assert len(kernel.binary.boxes) == 3 and kernel.variant(addresses=False, sizes=True).boxes == ()
