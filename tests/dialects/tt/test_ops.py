"""The `tt` dialect: its text, Triton's text read back, and the rules that its verifier knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, f32, i32

from stepwell.dialects import load_dialects
from stepwell.dialects.tt.memory import LoadOp, StoreOp
from stepwell.dialects.tt.structure import FuncOp, kernel_arguments
from stepwell.dialects.tt.types import SPELLINGS, PointerType, spelled
from stepwell.passes.manager.locations import source_location
from stepwell.passes.manager.verify import InvalidIR, verify_ir
from stepwell.tools.ir_parser import IRSyntaxError, parse_file

FOLDER = Path(__file__).parents[2] / "targets" / "triton" / "samples"
SAMPLES = sorted(path.name for path in FOLDER.glob("*.ttir"))


def read(text: str, name: str = "text"):
    module, _ = parse_file(text, name, load_dialects(Context()))
    verify_ir(module)
    return module


def function(*lines: str, arguments: str = "%x: !tt.ptr<f32>") -> str:
    return "\n".join([f"tt.func public @k({arguments}) {{", *lines, "tt.return", "}"])


@pytest.mark.parametrize("name", SAMPLES)
def test_text_of_triton_is_read_and_written(name):
    module = read((FOLDER / name).read_text(), name)
    texts = set()
    for version in SPELLINGS.values():
        with spelled(version):
            texts.add(str(module))
    for text in texts:
        again = read(text)
        for op, other in zip(module.walk(), again.walk(), strict=True):
            assert op.name == other.name and list(op.result_types) == list(other.result_types)
            assert op.properties.keys() == other.properties.keys()


def test_the_kernel_of_a_user():
    module = read((FOLDER / "vector_add.3.9.ttir").read_text())
    (kernel,) = module.ops
    assert isinstance(kernel, FuncOp) and kernel.is_kernel and kernel.sym_name.data == "vector_add"
    arguments = kernel_arguments(kernel)
    assert [a.type for a, _ in arguments] == [PointerType(f32)] * 3 + [i32]
    assert all(hints["tt.divisibility"] == IntegerAttr(16, i32) for _, hints in arguments)
    load = next(op for op in module.walk() if isinstance(op, LoadOp))
    place = source_location(load.location)
    assert place is not None and place.file == "kernels.py" and place.line > 0


def test_locations_that_are_defined_behind_their_use():
    text = function("%v = tt.load %x : !tt.ptr<f32> loc(#loc2)") + '\n#loc1 = loc("a.py":3:4)\n#loc2 = loc("v"(#loc1))\n'
    load = next(op for op in read(text).walk() if isinstance(op, LoadOp))
    place = source_location(load.location)
    assert place is not None and (place.file, place.line, place.name) == ("a.py", 3, "v")


def test_cache_policies_in_both_spellings():
    old = function(
        "%v = tt.load %x cacheModifier = ca evictionPolicy = evict_last : !tt.ptr<f32>",
        "tt.store %x, %v evictionPolicy = evict_first : !tt.ptr<f32>",
    )
    module = read(old)
    assert "tt.load %x cacheModifier = ca evictionPolicy = evict_last :" in str(module)
    with spelled(SPELLINGS["3.9"]):
        new = str(module)
    assert "{cachePolicy = #tt.cache_policy<cache_modifier = ca, eviction_policy = evict_last>}" in new
    assert str(read(new)) == str(module)
    load, store = (next(op for op in read(new).walk() if isinstance(op, c)) for c in (LoadOp, StoreOp))
    assert (load.cache_modifier, load.eviction_policy) == ("ca", "evict_last")
    assert (store.cache_modifier, store.eviction_policy) == ("none", "evict_first")


def test_arithmetic_on_scalars_stays_that_of_xdsl():
    text = function(
        "%a = arith.constant 1 : i32",
        "%b = arith.cmpi slt, %a, %a : i32",
        "%c = arith.select %b, %a, %a : i32",
        "%d = arith.extsi %c : i32 to i64",
        "%t = tt.splat %a : i32 -> tensor<4xi32>",
        "%e = arith.cmpi slt, %t, %t : tensor<4xi32>",
        "%f = arith.select %e, %t, %t : tensor<4xi1>, tensor<4xi32>",
        '%g = "arith.cmpi"(%a, %a) <{predicate = 2 : i64}> : (i32, i32) -> i1',
    )
    ops = [op for op in read(text).walk() if op.name.startswith("arith.")]
    assert [type(op) for op in ops[:4]] == [arith.ConstantOp, arith.CmpiOp, arith.SelectOp, arith.ExtSIOp]
    assert type(ops[4]) is not arith.CmpiOp and str(ops[4].results[0].type) == "tensor<4xi1>"
    assert type(ops[6]) is arith.CmpiOp


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%r = tt.make_range {end = 48 : i32, start = 0 : i32} : tensor<48xi32>", "power of two, tensor<48xi32> has 48"),
        (
            "%r = tt.make_range {end = 2097152 : i32, start = 0 : i32} : tensor<2097152xi32>",
            "has 2097152 elements, Triton allows 1048576",
        ),
        ("%r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<4xi32>", "the result must be tensor<8xi32>"),
        ("%r = tt.make_range {end = 0 : i32, start = 8 : i32} : tensor<8xi32>", "the end must lie behind the start"),
        ("%r = tt.splat %i : i32 -> tensor<4xf32>", "the value must be f32, got i32"),
        ("%r = tt.splat %i : i32 -> tensor<?xi32>", "no tensors of dynamic or no size"),
        ("%r = tt.broadcast %m : tensor<4x2xf32> -> tensor<8x2xf32>", "cannot be broadcast to tensor<8x2xf32>"),
        ("%r = tt.expand_dims %t {axis = 2 : i32} : tensor<4xi32> -> tensor<4x1xi32>", "there is no axis 2"),
        ("%r = tt.reshape %m : tensor<4x2xf32> -> tensor<4xf32>", "have different numbers of elements"),
        (
            "%r = tt.trans %m {order = array<i32: 0, 0>} : tensor<4x2xf32> -> tensor<2x4xf32>",
            "the order [0, 0] is no permutation",
        ),
        ("%r = tt.join %t, %t : tensor<4xi32> -> tensor<8xi32>", "join to a last dimension of 2"),
        ("%a, %c = tt.split %t : tensor<4xi32> -> tensor<2xi32>", "the last dimension must have size 2"),
        ("%r = tt.addptr %x, %t : !tt.ptr<f32>, tensor<4xi32>", "the offset must have the shape of !tt.ptr<f32>"),
        ("%r = tt.addptr %i, %i : i32, i32", "the pointer must be a pointer or a tensor of pointers, got i32"),
        ("%r = tt.int_to_ptr %i : i32 -> !tt.ptr<f32>", "the address must be of i64, got i32"),
        ("%r = tt.bitcast %i : i32 -> f64", "the elements have different sizes"),
        ("%r = tt.fp_to_fp %f : f32 -> f8E4M3FN", "needs a rounding mode"),
        ("%r = tt.dot %m, %m, %m : tensor<4x2xf32> * tensor<4x2xf32> -> tensor<4x2xf32>", "the sizes do not fit"),
        (
            "%r = tt.atomic_rmw add, relaxed, gpu, %x, %f : (!tt.ptr<f32>, f32) -> f32",
            "the value of an atomic add must be of integers",
        ),
        ("%r = tt.call @nowhere(%i) : (i32) -> i32", "there is no function @nowhere"),
        ("%r = tt.histogram %m : tensor<4x2xf32> -> tensor<4xi32>", "a histogram is one-dimensional"),
        (
            '%r = tt.extern_elementwise %t {libname = "", libpath = "", pure = true, symbol = ""}'
            " : (tensor<4xi32>) -> tensor<4xi32>",
            "the symbol of an external function must not be empty",
        ),
        ("%r = arith.extsi %t : tensor<4xi32> to tensor<4xi16>", "the result must be wider than the operand"),
        ("%r = arith.cmpf olt, %t, %t : tensor<4xi32>", "the operands must be of floating point"),
        (
            '%r = "tt.reduce"(%t) <{axis = 0 : i32}> ({\n^bb0(%a: i32):\ntt.reduce.return %a : i32\n})'
            " : (tensor<4xi32>) -> i32",
            "the region must take (i32, i32), it takes (i32)",
        ),
        (
            '%r = "tt.reduce"(%t) <{axis = 1 : i32}> ({\n^bb0(%a: i32, %b: i32):\ntt.reduce.return %a : i32\n})'
            " : (tensor<4xi32>) -> i32",
            "there is no axis 1 of 1 dimensions",
        ),
        (
            '%r = "tt.load"(%x, %mask) <{operandSegmentSizes = array<i32: 1, 1, 0>}> : (!tt.ptr<f32>, tensor<4xi1>) -> f32',
            "the mask must be i1, got tensor<4xi1>",
        ),
        (
            '%r = "tt.load"(%x) <{cache = 9 : i32, operandSegmentSizes = array<i32: 1, 0, 0>}> : (!tt.ptr<f32>) -> f32',
            "there is no cache modifier 9 : i32 (choose from none, ca, cg, wb, cs, wt, cv)",
        ),
    ],
)
def test_rules(line, message):
    given = (
        "%i = arith.constant 0 : i32",
        "%f = arith.constant 0.0 : f32",
        "%t = arith.constant dense<0> : tensor<4xi32>",
        "%mask = arith.constant dense<true> : tensor<4xi1>",
        "%m = arith.constant dense<0.0> : tensor<4x2xf32>",
    )
    with pytest.raises(InvalidIR) as error:
        read(function(*given, line))
    assert message in error.value.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%p = tt.get_program_id w : i32", "there is no axis of the grid 'w' (choose from x, y, z)"),
        ("%p = tt.load %x cacheModifier = often : !tt.ptr<f32>", "there is no cache modifier 'often'"),
        ("%p = tt.load %x, %x, %x, %x : !tt.ptr<f32>", "tt.load has one to three operands, got 4"),
        ("%p = tt.load %x : f32", "expected a pointer or a tensor of pointers, got f32"),
        ("%p = tt.lode %x : !tt.ptr<f32>", "did you mean tt.load"),
        ("%p = tt.atomic_rmw mul, relaxed, gpu, %x, %x : (f32, f32) -> f32", "there is no atomic operation 'mul'"),
    ],
)
def test_mistakes_in_the_text(line, message):
    with pytest.raises(IRSyntaxError) as error:
        read(function(line))
    assert message.strip("'") in error.value.message.replace("'", "") or message in error.value.message


def test_bits_of_floating_point_numbers_in_dense_constants():
    lines = [
        "%a = arith.constant dense<0xFF800000> : tensor<4xf32>",
        "%b = arith.constant dense<0x7E00> : tensor<4xf16>",
        "%c = arith.constant dense<0x10> : tensor<4xi32>",
    ]
    ops = [op for op in read(function(*lines)).walk() if isinstance(op, arith.ConstantOp)]
    values = [list(op.value.get_values())[0] for op in ops]  # pyright: ignore
    assert values[0] == float("-inf") and values[1] != values[1] and values[2] == 16
    assert "dense<0xff800000>" in str(ops[0])
    with pytest.raises(IRSyntaxError, match="0xFF800000 has more bits than f16"):
        read(function("%a = arith.constant dense<0xFF800000> : tensor<4xf16>"))


def test_makers():
    module = read(function("%v = tt.load %x : !tt.ptr<f32>"))
    load = next(op for op in module.walk() if isinstance(op, LoadOp))
    made = LoadOp.make(load.ptr, evict="evict_last")
    made.verify()
    assert made.result.type == f32 and made.eviction_policy == "evict_last"
    StoreOp.make(load.ptr, load.result).verify()


@pytest.mark.parametrize(("warps", "right"), [("4 : i32", True), ("1 : i32", True), ("3 : i32", False), ("64 : i32", False)])
def test_warps(opt_tool, warps, right):
    result = opt_tool(stdin=f"tt.func public @k() attributes {{num_warps = {warps}}} {{\n  tt.return\n}}\n")
    assert (result.code == 0) == right and ("num_warps is a power of two up to 32, not" in result.err) != right


@pytest.mark.parametrize(
    "block, message",
    [
        ("tensor<120x64xbf16>", "argument 0: the sizes of a descriptor's block are powers of two, 120 of tensor<120x64xbf16> is none"),
        ("tensor<128x4xbf16>", "has at least 16 bytes, tensor<128x4xbf16> has 8"),
        ("tensor<128x64xi1>", "a descriptor has elements of 8, 16, 32 or 64 bits, not i1"),
        ("tensor<1x1x1x1x1x64xf32>", "a block of a descriptor has 1 to 5 dimensions"),
    ],
)
def test_blocks_of_descriptors_that_no_gpu_has(block, message):
    text = f"tt.func public @k(%d: !tt.tensordesc<{block}>) {{ tt.return }}"
    with pytest.raises((IRSyntaxError, InvalidIR), match=message):
        verify_ir(parse_file(text + "\n", "text", load_dialects(Context()))[0])
    large = text.replace(block, "tensor<256x256xbf16>")  # Triton copies it in parts
    verify_ir(parse_file(large + "\n", "text", load_dialects(Context()))[0])


def test_assembly_makes_no_tensor_of_nothing():
    text = '%v = tt.elementwise_inline_asm "mov.b32 $0, 0;" {constraints = "=r", packed_element = 1 : i32, pure = false} -> '
    read(function(text + "f32"))
    with pytest.raises(InvalidIR, match="a result is a tensor where an operand is one"):
        read(function(text + "tensor<64xf32>"))
