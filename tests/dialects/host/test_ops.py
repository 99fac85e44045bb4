"""The host dialect: round trip of its text and the messages of its verifiers."""

import pytest
from xdsl.context import Context
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from stepwell.dialects import host, load_dialects
from stepwell.dialects.host import program_of
from stepwell.passes.manager.verify import InvalidIR, verify_ir

PROGRAM = """
builtin.module {
  host.program @forward(%x: !host.tensor<f32>, %n: i64, %r: f64, %o: !host.object) arena s0 * 256 {
    host.bind s0 = value %n : i64
    host.bind s1 = size %x 1 : !host.tensor<f32>
    host.bind s2 = stride %x 0 : !host.tensor<f32>
    host.check %x [s0, s1] strides [s2, 1] "x" : !host.tensor<f32>
    host.assert le (s1, s2), "rows of x overlap"
    %c = host.constant 0 : !host.tensor<i64>
    host.bind u0 = item %c : !host.tensor<i64>
    %p = host.arena_ptr s0 * 64
    %y = host.empty_output [s0, 64] strides [64, 1] : !host.tensor<bf16>
    host.launch @k0(%x : !host.tensor<f32>, %p : !host.ptr, %r : f64) [s0, s0 * 64] offsets [0, 128, 0] bytes s0 * 512
    host.launch @k1(%p : !host.ptr, %y : !host.tensor<bf16>) []
    %w = host.workspace 4112 else %p
    host.launch @k2(%w : !host.ptr) [] grid [5] clears
    host.launch @k3(%y : !host.tensor<bf16>, %w : !host.ptr) [s0] grid [s0]
    host.poll
    %t = host.from_arena %p [s0, 64] strides [64, 1] offset 4 : !host.ptr -> !host.tensor<f32>
    %v = host.view %x [s1] strides [1] offset s2 : !host.tensor<f32> -> !host.tensor<f32>
    %e, %k = host.extern #nd.call<"aten.foo.default", [arg(0), [arg(1), none], size(s0), 2]>(%t, %v) {mutates = #nd.ints<[0]>} : (!host.tensor<f32>, !host.tensor<f32>) -> (!host.tensor<none>, i64)
    %f = host.ensure %e [4] strides [1] "aten.foo" : !host.tensor<none> -> !host.tensor<none>
    host.release(%x : !host.tensor<f32>, %e : !host.tensor<none>)
    host.return(%y : !host.tensor<bf16>, %f : !host.tensor<none>, %k : i64) [arg(0), arg(1), none, size(s0 + u0), arg(2), 2.5]
  }
}
"""  # noqa: E501


def parse(text: str):
    ctx = Context()
    load_dialects(ctx)
    return Parser(ctx, text).parse_module()


def body(text: str):
    """A program around some ops; `%x` is a tensor, `%p` a pointer of the arena, `%n` an integer."""
    return parse(
        f"""host.program @f(%x: !host.tensor<f32>, %n: i64) arena 64 {{
        %p = host.arena_ptr 0
        {text}
        host.return() [] }}"""
    )


def test_text_round_trip():
    text = PROGRAM.replace(", 2.5]", ', float("2.5")]')
    module = parse(text)
    module.verify()
    printed = str(module)
    assert str(parse(printed)) == printed
    assert "host.bind s1 = size %x 1 : !host.tensor<f32>" in printed
    assert "[s0, s0 * 64] offsets [0, 128, 0] bytes s0 * 512" in printed
    assert "host.workspace 4112 else %p\n" in printed and "grid [5] clears" in printed
    assert program_of(module).sym_name.data == "forward"


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("host.check %x [s0] strides [1] : !host.tensor<f32>", "names s0, which no host.bind defines before"),
        ("host.check %x [4, 4] strides [1] : !host.tensor<f32>", "2 sizes but 1 strides"),
        ("%t = host.from_arena %p [4] strides [-1] : !host.ptr -> !host.tensor<f32>", "stride -1: tensors of torch cannot"),
        ("host.bind s0 = value %n : i64\nhost.bind s0 = value %n : i64", "symbol s0 is bound twice"),
        ("host.bind s0 + 1 = value %n : i64", "s0 + 1 is not a symbol"),
        ("host.bind s0 = size %x : !host.tensor<f32>", "a dimension belongs to kinds size and stride"),
        ("host.bind s0 = item %n : i64", "kind item needs a tensor, the operand is i64"),
        ("host.bind s0 = value %x : !host.tensor<f32>", "an integer value is needed"),
        ("host.release(%x : !host.tensor<f32>)\nhost.launch @k(%x : !host.tensor<f32>) []", "dropped before"),
        ("host.launch @k(%x : !host.tensor<f32>) [] offsets [0, 1]", "2 offsets for 1 operands"),
        ("host.launch @k(%x : !host.tensor<f32>) [d0]", "names a loop dimension"),
        (
            'host.extern #nd.call<"aten.a.b", [arg(1)]>(%x) : (!host.tensor<f32>) -> ()',
            "names arg(1), there are 1 operands",
        ),
        (
            'host.extern #nd.call<"aten.a.b", [arg(0)]>(%p) : (!host.ptr) -> ()',
            "an operator takes tensors, not pointers",
        ),
        ("%w = host.workspace 0 else %p", "host.workspace: it has no bytes"),
        (
            "%w = host.workspace 8 else %p\n%t = host.from_arena %w [2] strides [1] : !host.ptr -> !host.tensor<f32>",
            "only kernels take a workspace, not host.from_arena",
        ),
        ("host.launch @k(%p : !host.ptr) [] grid [1] clears", "@k: it clears memory that is no host.workspace"),
        ("%w = host.workspace 8 else %p\nhost.launch @k(%w : !host.ptr) [] clears", "a kernel with a grid, and takes no sizes"),
        ('host.assert ge (1, 2), "no"', "unknown predicate 'ge'"),
        ("%k = arith.constant 1 : i64", "holds arith.constant, which is not an op of host"),
    ],
)
def test_verifier_messages(ops, message):
    with pytest.raises(VerifyException) as error:
        body(ops).verify()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("host.bind s0 = shape %x : !host.tensor<f32>", "unknown kind 'shape'; known: value, size, stride, item"),
        ("host.check %x [4] : !host.tensor<f32>", "Expected 'strides' after the sizes"),
        ("host.extern 4(%x) : (!host.tensor<f32>) -> ()", "expected a call template"),
        ("%w = host.workspace 8", "Expected 'else' before the memory of other streams"),
    ],
)
def test_parse_messages(ops, message):
    with pytest.raises(ParseError) as error:
        body(ops)
    assert message in str(error.value)


def test_a_program_ends_with_return():
    module = parse("host.program @f() { host.poll }")
    with pytest.raises(VerifyException, match="not a terminator"):
        module.verify()


PLACES = """host.program @forward(%x: !host.tensor<f32>) arena 64 {{
  {body}
  host.return() []
}}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%a = host.arena_ptr 64", ""),
        ("%a = host.arena_ptr 65", "host.arena_ptr: reaches byte 65, the arena has 64 (1 too few)"),
        ("%a = host.arena_ptr -1", "host.arena_ptr: -1 is before the arena"),
        ("%a = host.arena_ptr 32\n  %t = host.from_arena %a [8] strides [1] : !host.ptr -> !host.tensor<f32>", ""),
        (
            "%a = host.arena_ptr 32\n  %t = host.from_arena %a [8] strides [1] offset 1 : !host.ptr -> !host.tensor<f32>",
            "host.from_arena: reaches byte 68, the arena has 64 (4 too few)",
        ),
        ("%a = host.arena_ptr 64\n  %t = host.from_arena %a [0] strides [1] : !host.ptr -> !host.tensor<f32>", ""),
    ],
)
def test_places_in_the_arena(opt_tool, body, message):
    result = opt_tool(stdin=PLACES.format(body=body))
    assert (result.code, message in result.err) == (1 if message else 0, True)


def test_a_program_without_an_arena_has_no_places_in_one(opt_tool):
    text = PLACES.format(body="%a = host.arena_ptr 0").replace(" arena 64", "")
    assert "host.arena_ptr: host.program @forward has no arena" in opt_tool(stdin=text).err


DESCRIBED = """builtin.module {
  host.program @forward(%x: !host.tensor<bf16>, %n: i64) {
    host.bind s0 = size %x 0 : !host.tensor<bf16>
    host.launch @k(%x : !host.tensor<bf16>, %n : i64) [s0] grid [8] descriptors [0 at 64 [s0, 64] strides [128, 1]]
    host.return() []
  }
  tt.func public @k(%x: !tt.ptr<bf16>, %s: i64, %n: i64, %d: !tt.tensordesc<tensor<128x64xbf16>>, %0: i32, %1: i32, %2: i64, %3: i64) {
    tt.return
  }
}"""


def test_descriptors_of_a_launch_are_read_and_written():
    module = Parser(load_dialects(Context()), DESCRIBED).parse_module()
    verify_ir(module)
    launch = next(op for op in module.walk() if isinstance(op, host.LaunchOp))
    (one,) = launch.described
    assert (one.operand, int(one.offset), one.takes) == (0, 64, 5) and str(one.sizes[0]) == "s0"
    assert "grid [8] descriptors [0 at 64 [s0, 64] strides [128, 1]]" in str(module)
    verify_ir(Parser(load_dialects(Context()), str(module)).parse_module())


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("strides [128, 1]", "strides [128, 2]", "the last stride of a descriptor must be 1, not 2"),
        ("strides [128, 1]", "strides [1]", "each with a size and a stride, not 2 sizes and 1 strides"),
        ("[0 at", "[1 at", "a descriptor of operand 1, which is no memory but i64"),
        ("[0 at", "[2 at", "a descriptor of operand 2, there are 2"),
        ("[s0, 64]", "[s1, 64]", "names s1, which no host.bind defines"),
        (" grid [8]", "", "descriptors are for one launch of a kernel with a grid"),
        ("%3: i64", "%3: i32", r"behind descriptor 0 the kernel takes 2 i32 and 2 i64, not \(i32, i32, i64, i32\)"),
        ("%d: !tt.tensordesc<tensor<128x64xbf16>>", "%d: !tt.ptr<bf16>", "it is a !tt.tensordesc of as many, not !tt.ptr<bf16>"),
        ("%s: i64", "%s: !tt.tensordesc<tensor<128x64xbf16>>", "takes a descriptor that the launch does not describe"),
        ("descriptors [0 at 64 [s0, 64] strides [128, 1]]", "", "the kernel takes 8 arguments, 3 are given"),
    ],
)
def test_descriptors_that_do_not_fit(old, new, message):
    assert old in DESCRIBED
    with pytest.raises((InvalidIR, VerifyException), match=message):
        verify_ir(Parser(load_dialects(Context()), DESCRIBED.replace(old, new)).parse_module())
