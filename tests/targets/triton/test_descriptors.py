"""Kernels that take descriptors: what Triton makes of them, and the same kernels on addresses."""

import dataclasses
import pickle
import re

import pytest
import torch

from stepwell.passes.manager.errors import PassError
from stepwell.passes.manager.verify import verify_ir
from stepwell.targets.triton.boxes import Box, boxes_of
from stepwell.targets.triton.compile import compile_kernel, counters
from stepwell.targets.triton.emit import ttir_text
from stepwell.targets.triton.gpu import TargetError, gpu_target
from stepwell.targets.triton.kernels import start_program_kernels
from stepwell.targets.triton.pointer_blocks import with_pointer_blocks
from stepwell.tools.interpret.tt.run import KernelError, run_kernel

COPY = """builtin.module {
  tt.func public @copy(%x: !tt.ptr<E> {tt.divisibility = 16 : i32}, %n: i64 {tt.divisibility = 16 : i32},
      %d: !tt.tensordesc<tensor<64x128xE>>, %d0: i32, %d1: i32, %d2: i64, %d3: i64,
      %e: !tt.tensordesc<tensor<128x64xE>>, %e0: i32, %e1: i32, %e2: i64, %e3: i64) attributes {num_warps = 4 : i32} {
    %rows = arith.constant 64 : i32
    %columns = arith.constant 128 : i32
    %p = tt.get_program_id x : i32
    %q = tt.get_program_id y : i32
    %i = arith.muli %p, %rows : i32
    %j = arith.muli %q, %columns : i32
    %v = tt.descriptor_load %d[%i, %j] : !tt.tensordesc<tensor<64x128xE>> -> tensor<64x128xE>
    %t = tt.trans %v {order = array<i32: 1, 0>} : tensor<64x128xE> -> tensor<128x64xE>
    tt.descriptor_store %e[%j, %i], %t : !tt.tensordesc<tensor<128x64xE>>, tensor<128x64xE>
    tt.return
  }
}
"""
"""x transposed, each of 64x128 elements by one program."""


def of(element):
    return COPY.replace("xE>", f"x{element}>").replace("ptr<E>", f"ptr<{element}>")


# With Triton.


@pytest.mark.parametrize("element, code", [("f32", 7), ("bf16", 9), ("f16", 6), ("i8", 0), ("f64", 8)])
def test_triton_says_how_descriptors_are_encoded(triton, cache, read, element, code):
    module = read(of(element))
    kernel = compile_kernel(module, gpu_target("sm_90"))
    widest = {"f32": 32, "bf16": 64, "f16": 64, "i8": 128, "f64": 16}[element]
    swizzle = 2 if element == "i8" else 3  # rows of 64 bytes, else of 128
    assert kernel.boxes == (Box(code, 3, (64, widest)), Box(code, swizzle, (128, min(64, widest))))
    compiled = counters["compiled"]
    assert compile_kernel(module, gpu_target("sm_90")).boxes == kernel.boxes  # from disk
    assert counters["compiled"] == compiled


def test_the_parameters_of_a_kernel_with_descriptors(triton, cache, read):
    ptx = compile_kernel(read(of("bf16")), gpu_target("sm_90"), stage="ptx").code
    head = ptx[ptx.index(".entry copy(") : ptx.index(")", ptx.index(".entry copy("))]
    found = re.findall(r"\.param (?:\.align 64 )?\.(b8|u32|u64)[^,\n]*?(\[128\])?(?:,|\n)", head)
    described = [("b8", "[128]"), ("u32", ""), ("u32", ""), ("u64", ""), ("u64", "")]
    assert found[:12] == [("u64", ""), ("u64", ""), *described, *described]
    assert {kind for kind, _ in found[12:]} == {"u64"}  # scratch memory
    assert head.count(".align 64 .b8") == 2 and "cp.async.bulk.tensor.2d" in ptx


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_gpus_that_copy_no_blocks_have_addresses(triton, cache, read, target):
    module = read(of("f32"))
    text = compile_kernel(module, gpu_target(target), stage="ttir").code
    assert "tensordesc" not in text and "descriptor_load" not in text
    (kernel,), _ = start_program_kernels(module, gpu_target(target))
    assert kernel.described == () and not kernel.pointer_text


def test_variants_of_a_kernel_with_descriptors(triton, cache, read):
    kernels, finish = start_program_kernels(read(of("f32")), gpu_target("sm_90"))
    finish()
    (kernel,) = kernels
    assert [(d.position, d.rank, d.bytes) for d in kernel.described] == [(2, 2, 4), (7, 2, 4)]
    kernel = pickle.loads(pickle.dumps(kernel))
    usual, odd, pointers = (kernel.variant(addresses=a, sizes=s) for a, s in ((True, True), (True, False), (False, False)))
    assert usual.boxes and usual.boxes == odd.boxes and pointers.boxes == ()
    assert len({usual.key, odd.key, pointers.key}) == 3
    unaligned = dataclasses.replace(kernel, aligned=())
    assert unaligned.variant(addresses=False, sizes=False).boxes == ()  # descriptors alone need what is aligned


# Without.


def test_boxes_that_launches_do_not_encode():
    with pytest.raises(TargetError, match="kernel @k: descriptor 0 is fp4_padded, which launches do not encode"):
        boxes_of("k", {"tensordesc_meta": [{"swizzle": 3, "elem_size": 1, "elem_type": 13, "block_size": [8, 64], "fp4_padded": True}]})


def launch(module, x, y, grid=(2, 1)):
    sizes = x.shape, x.stride(), y.shape, y.stride()
    run_kernel(module, [x, 0, x, *sizes[0], *sizes[1], y, *sizes[2], *sizes[3]], grid)


@pytest.fixture
def transpose(read):
    return read(of("f32"))


def test_blocks_are_zero_outside_and_stores_there_are_dropped(transpose):
    x, y = torch.randn(70, 100), torch.zeros(104, 72)
    launch(transpose, x, y[:100])
    assert torch.equal(y[:100, :70], x.T) and not y[:, 70:].any() and not y[100:].any()


def test_the_same_kernel_on_addresses(transpose):
    module = with_pointer_blocks(transpose)
    verify_ir(module)
    assert "descriptor" not in ttir_text(module) and "descriptor" in ttir_text(transpose)
    for rows, columns, first in ((70, 100, 0), (65, 37, 1), (64, 128, 3)):
        x = torch.randn(rows * columns + first)[first:].view(rows, columns)
        y = torch.zeros(columns + 3, rows + 1)
        launch(module, x, y[:columns, :rows])
        assert torch.equal(y[:columns, :rows], x.T) and not y[columns:].any() and not y[:, rows:].any()


@pytest.mark.parametrize(
    "x, y, message",
    [
        (torch.randn(64 * 128 + 1)[1:].view(64, 128), torch.zeros(128, 64), "argument 2: a descriptor is of a tensor at a multiple of 16"),
        (torch.randn(64, 99), torch.zeros(100, 64), "argument 2: the strides of a descriptor are multiples of 16 bytes, 99 of 4"),
        (torch.randn(64, 128)[:, ::2], torch.zeros(128, 64), "argument 2: the last stride of a descriptor must be 1, got 2"),
    ],
)
def test_tensors_that_no_gpu_can_describe(transpose, x, y, message):
    with pytest.raises(KernelError, match=message):
        launch(transpose, x, y)


def test_a_block_that_begins_between_multiples_of_16_bytes(read):
    text = of("f32").replace("%columns = arith.constant 128", "%columns = arith.constant 126")
    with pytest.raises(KernelError, match=r"'tt.descriptor_load' op: a block begins at byte 504 of the last dimension, which is no multi"):
        launch(read(text), torch.randn(64, 256), torch.zeros(256, 64), (1, 2))


def test_sizes_beyond_the_tensor_are_found(transpose):
    x, y = torch.randn(64, 128), torch.zeros(128, 64)
    with pytest.raises(KernelError, match="descriptor_load.*of a tensor of"):
        run_kernel(transpose, [x, 0, x[:32], 256, 128, 128, 1, y, 128, 64, 64, 1], (4, 1))


REDUCE = """builtin.module {
  tt.func public @sums(%d: !tt.tensordesc<tensor<4x8xf32>>, %d0: i32, %d1: i32, %d2: i64, %d3: i64,
      %e: !tt.tensordesc<tensor<1x8xf32>>, %e0: i32, %e1: i32, %e2: i64, %e3: i64) {
    %zero = arith.constant 0 : i32
    %p = tt.get_program_id x : i32
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %two = arith.constant dense<2> : tensor<4xi32>
    %i = arith.muli %r, %two : tensor<4xi32>
    %v = tt.descriptor_gather %e[%i, %zero] : (!tt.tensordesc<tensor<1x8xf32>>, tensor<4xi32>, i32) -> tensor<4x8xf32>
    tt.descriptor_reduce add, %d[%zero, %zero], %v : !tt.tensordesc<tensor<4x8xf32>>, tensor<4x8xf32>
    tt.return
  }
}
"""


@pytest.mark.parametrize("pointers", [False, True])
def test_sums_and_rows_by_number(read, pointers):
    module = read(REDUCE)
    module = with_pointer_blocks(module) if pointers else module
    verify_ir(module)
    out, x = torch.ones(3, 8), torch.randn(7, 8)
    run_kernel(module, [out, 3, 8, 8, 1, x, 7, 8, 8, 1], (5,))
    torch.testing.assert_close(out, 1 + 5 * x[::2][:3])


def test_a_descriptor_that_goes_elsewhere_has_no_address(read):
    module = read(REDUCE.replace("tt.return", "%s = arith.select %c, %d, %d : !tt.tensordesc<tensor<4x8xf32>>\n    tt.return")
                  .replace("%zero = arith.constant 0 : i32", "%zero = arith.constant 0 : i32\n    %c = arith.constant true"))
    with pytest.raises(PassError, match="it uses a descriptor for something else than blocks"):
        with_pointer_blocks(module)
