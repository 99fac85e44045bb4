"""Launches of kernels that take descriptors, without a GPU: what is encoded, when, and what runs where that cannot be."""

import pytest
import torch
from xdsl.parser import Parser

from stepwell.dialects import host
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.driver import LaunchError, use_driver
from stepwell.targets.host.gpu.runtime_ir import Variant
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels

PRODUCT = """builtin.module {
  host.program @forward(%x: !host.tensor<f32>, %w: !host.tensor<f32>, %k: i64) {
    host.bind s0 = size %x 0 : !host.tensor<f32>
    host.bind s1 = size %w 0 : !host.tensor<f32>
    host.bind s2 = stride %x 0 : !host.tensor<f32>
    host.bind s3 = value %k : i64
    %y = host.empty_output [s0, s1] strides [s1, 1] : !host.tensor<f32>
    host.launch @product(%y : !host.tensor<f32>, %x : !host.tensor<f32>, %w : !host.tensor<f32>) [s0, s1, s3]
      grid [(s0 + 15) floordiv 16, (s1 + 15) floordiv 16]
      descriptors [1 at 0 [s0, s3] strides [s2, 1], 2 at 32 [s1, s3] strides [64, 1], 0 at 0 [s0, s1] strides [s1, 1]]
    host.return(%y : !host.tensor<f32>) [arg(0)]
  }
  tt.func public @product(%y: !tt.ptr<f32>, %x: !tt.ptr<f32>, %w: !tt.ptr<f32>, %m: i64, %n: i64, %k: i64,
      %xd: !tt.tensordesc<tensor<16x32xf32>>, %x0: i32, %x1: i32, %x2: i64, %x3: i64,
      %wd: !tt.tensordesc<tensor<16x32xf32>>, %w0: i32, %w1: i32, %w2: i64, %w3: i64,
      %yd: !tt.tensordesc<tensor<16x16xf32>>, %y0: i32, %y1: i32, %y2: i64, %y3: i64) {
    %size = arith.constant 16 : i32
    %step = arith.constant 32 : i32
    %zero = arith.constant 0 : i32
    %none = arith.constant dense<0.0> : tensor<16x16xf32>
    %p = tt.get_program_id x : i32
    %q = tt.get_program_id y : i32
    %i = arith.muli %p, %size : i32
    %j = arith.muli %q, %size : i32
    %end = arith.trunci %k : i64 to i32
    %sum = scf.for %a = %zero to %end step %step iter_args(%total = %none) -> (tensor<16x16xf32>) : i32 {
      %l = tt.descriptor_load %xd[%i, %a] : !tt.tensordesc<tensor<16x32xf32>> -> tensor<16x32xf32>
      %r = tt.descriptor_load %wd[%j, %a] : !tt.tensordesc<tensor<16x32xf32>> -> tensor<16x32xf32>
      %t = tt.trans %r {order = array<i32: 1, 0>} : tensor<16x32xf32> -> tensor<32x16xf32>
      %d = tt.dot %l, %t, %total, inputPrecision = ieee : tensor<16x32xf32> * tensor<32x16xf32> -> tensor<16x16xf32>
      scf.yield %d : tensor<16x16xf32>
    }
    tt.descriptor_store %yd[%i, %j], %sum : !tt.tensordesc<tensor<16x16xf32>>, tensor<16x16xf32>
    tt.return
  }
}"""
"""x [m, k], whose rows may be apart, times w[:, 8:8 + k] for w [n, 64], transposed."""


@pytest.fixture(params=["native", "python"])
def build(request):
    """A function that makes (callable, driver) of a module's text."""

    def make(text, **driver):
        module = Parser(context(), text).parse_module()
        program = next(op for op in module.ops if isinstance(op, host.ProgramOp))
        native = request.param == "native"
        with use_driver(InterpretedDriver(module, **driver)) as launcher:
            kernels = emit_kernels(module)
            description = emit_host(kernels, program, native=native, kernels=interpreted_kernels(module))
            library = load_object_code(compile_text(kernels.text()), native)
            return load_program(description, library), launcher

    return make


def check(run, x, w, k):
    (y,) = run([x, w, k])
    torch.testing.assert_close(y, x[:, :k] @ w[:, 8 : 8 + k].T, rtol=1e-4, atol=1e-4)
    return y


def test_what_is_encoded(build):
    run, driver = build(PRODUCT)
    x, w = torch.randn(20, 40), torch.randn(24, 64)
    y = check(run, x, w, 36)
    (launch,) = driver.launches
    assert launch.variant == Variant.ALL and driver.loads == [(0, "product", Variant.ALL)]
    assert launch.maps == (  # sizes, steps in bytes and boxes from the last dimension to the first
        (0, 0, x.data_ptr(), 36, 20, 160, 32, 16),
        (0, 0, w.data_ptr() + 32, 36, 24, 256, 32, 16),
        (0, 0, y.data_ptr(), 24, 20, 96, 16, 16),
    )


def test_what_is_as_in_the_last_launch_is_not_encoded_again(build):
    run, driver = build(PRODUCT)
    x, w = torch.randn(20, 40), torch.randn(24, 64)
    first = check(run, x, w, 36)
    for _ in range(3):
        check(run, x, w, 36)
    again = {code[2] for code in driver.encodings[3:]}
    assert not again & {x.data_ptr(), w.data_ptr() + 32}  # the result is a new tensor, mostly
    count = len(driver.encodings)
    check(run, x, w, 32)
    assert len(driver.encodings) >= count + 2
    check(run, torch.randn(33, 64)[:, :40], w, 32)
    assert driver.launches[-1].maps[0][3:6] == (32, 33, 256)
    assert first.shape == (20, 24)


@pytest.mark.parametrize("odd", ["address", "stride", "nothing to sum"])
def test_what_cannot_be_described_takes_the_variant_that_loads_elements(build, odd):
    run, driver = build(PRODUCT)
    x, w, k = torch.randn(20, 40), torch.randn(24, 64), 36
    check(run, x, w, k)
    if odd == "address":
        x = torch.randn(20 * 40 + 1)[1:].view(20, 40)
    elif odd == "stride":
        x, k = torch.randn(20, 39), 35
    else:
        k = 0
    check(run, x, w, k)
    assert [launch.variant for launch in driver.launches] == [Variant.ALL, Variant.NOTHING] and driver.launches[-1].maps == ()
    assert [variant for _, _, variant in driver.loads] == [Variant.ALL, Variant.NOTHING]
    check(run, torch.randn(20, 40), w, 36)
    assert driver.launches[-1].variant == Variant.ALL


def test_a_result_with_rows_that_are_apart_by_odd_steps(build):
    run, driver = build(PRODUCT)
    check(run, torch.randn(17, 40), torch.randn(23, 64), 33)
    assert driver.launches[-1].variant == Variant.NOTHING  # rows of 23


def test_a_descriptor_that_the_driver_refuses_is_named(build):
    run, driver = build(PRODUCT)
    x, w = torch.randn(20, 40), torch.randn(24, 64)
    driver.refused.add(x.data_ptr())
    message = r"kernel @product: the driver takes no descriptor of \[20, 36\] strides \[40, 1\] of 4 bytes at 0x.*: invalid argument"
    with pytest.raises(LaunchError, match=message):
        run([x, w, 36])
    assert not driver.launches
    driver.refused.clear()
    check(run, x, w, 36)


def test_a_dimension_that_coordinates_do_not_count_to_is_refused(build):
    text = PRODUCT.replace("1 at 0 [s0, s3] strides", "1 at 0 [s0 * s3, s3] strides")
    run, _ = build(text)
    with pytest.raises(LaunchError, match="kernel @product has blocks of a tensor with more than 2147483647 elements along a dimension"):
        run([torch.randn(20, 40), torch.randn(24, 64), 2**28])


def test_an_empty_grid_is_not_launched(build):
    run, driver = build(PRODUCT)
    check(run, torch.randn(0, 40), torch.randn(24, 64), 36)
    assert not driver.launches and not driver.encodings
