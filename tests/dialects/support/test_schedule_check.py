"""The verifier of `loop.nest` reads its schedule: what would silently change nothing is refused."""

import pytest

NEST = """func.func @f(%x: !mem.buffer<8 x 16 x f32>, %y: !mem.buffer<8 x 16 x f32>) {
  loop.nest (%i = 8, %j = 16) outs(%o = %y : !mem.buffer<8 x 16 x f32>) {
    %v = loop.load %x[%i, %j] : !mem.buffer<8 x 16 x f32> -> f32
    loop.store %v, %o[%i, %j] : f32, !mem.buffer<8 x 16 x f32>
  } attributes {schedule = SCHEDULE}
  func.return
}
"""
SUM = """func.func @f(%x: !mem.buffer<8 x 16 x f32>, %y: !mem.buffer<8 x f32>) {
  loop.nest (%i = 8) outs(%o = %y : !mem.buffer<8 x f32>) {
    %s = loop.reduce (%j = 16) sum {
      %v = loop.load %x[%i, %j] : !mem.buffer<8 x 16 x f32> -> f32
      loop.yield %v : f32
    } -> f32 attributes {INNER}
    loop.store %s, %o[%i] : f32, !mem.buffer<8 x f32>
  } attributes {schedule = {vector = "inner"}}
  func.return
}
"""
KEYS = "vector, piece, lanes, tile, fixed, tiles, index_bits, parallel, grain, gpu, bounds, measured"


@pytest.mark.parametrize(
    "schedule",
    ["{}", "{vector = 1 : i64, lanes = 16 : i64, parallel = false}", '{vector = "inner"}', "{tiles = array<i64: 4, 0>}", "{fixed = true}"],
)
def test_right(opt_tool, schedule):
    result = opt_tool(stdin=NEST.replace("SCHEDULE", schedule))
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("{paralel = true}", f"schedule has no key 'paralel' (it has: {KEYS})"),
        ("{vector = 2 : i64}", "schedule: 'vector' is the number of a loop (one of 0 to 1) or \"inner\", not 2 : i64"),
        ('{vector = "outer"}', "schedule: 'vector' is the number of a loop (one of 0 to 1) or \"inner\", not \"outer\""),
        ("{tile = -1 : i64}", "schedule: 'tile' is the number of a loop (one of 0 to 1), not -1 : i64"),
        ("{lanes = 12 : i64}", "schedule: 'lanes' is a power of two, not 12 : i64"),
        ('{parallel = "no"}', "schedule: 'parallel' is a number, not \"no\""),
        ("{grain = 0 : i64}", "schedule: 'grain' is a number of nanoseconds from 1, not 0 : i64"),
        ("{tiles = array<i64: 4, 4, 4>}", "schedule: 'tiles' is an array of at most 2 numbers from 0, one for each loop of the nest"),
        ("{tiles = [4]}", "schedule: 'tiles' is an array of at most 2 numbers from 0, one for each loop of the nest"),
        ('"fast"', 'schedule is a dictionary, not "fast"'),
    ],
)
def test_wrong(opt_tool, schedule, message):
    result = opt_tool(stdin=NEST.replace("SCHEDULE", schedule))
    assert result.code == 1
    assert result.err.startswith(f"<stdin>:2:3: error: 'loop.nest' op: loop.nest: {message}")


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("vector = 1 : i64", "schedule: 'vector' is the number of a loop (one of 0 to 0) or \"none\", not 1 : i64"),
        ("vector = 0 : i64, lanes = 7 : i64", "schedule: 'lanes' is a power of two, not 7 : i64"),
    ],
)
def test_wrong_in_a_loop_inside(opt_tool, inner, message):
    result = opt_tool(stdin=SUM.replace("INNER", inner))
    assert result.err.startswith(f"<stdin>:3:10: error: 'loop.reduce' op: loop.reduce: {message}")
    assert opt_tool(stdin=SUM.replace("INNER", 'vector = "none"')).code == 0


PRODUCT = """func.func @f(%x: !mem.buffer<8 x 4 x f32>, %w: !mem.buffer<4 x 2 x f32>, %y: !mem.buffer<8 x 2 x f32>) {
  loop.contract (%i = 8, %j = 2) reduce (4) %x at #nd.map<(d0, d1, d2) -> (d0, d2)> : !mem.buffer<8 x 4 x f32> * %w at #nd.map<(d0, d1, d2) -> (d2, d1)> : !mem.buffer<4 x 2 x f32> into %a : f32 outs(%o = %y : !mem.buffer<8 x 2 x f32>) {
    loop.store %a, %o[%i, %j] : f32, !mem.buffer<8 x 2 x f32>
  } attributes {schedule = SCHEDULE}
  func.return
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("schedule", "message"), [('"gemm"', ""), ('"library"', ""), ('"gem"', '"gem"'), ("{tile = 1 : i64}", "{tile = 1 : i64}")]
)
def test_what_computes_a_contraction(opt_tool, schedule, message):
    result = opt_tool(stdin=PRODUCT.replace("SCHEDULE", schedule))
    if not message:
        assert (result.code, result.err) == (0, "")
        return
    assert result.err.startswith(
        f"<stdin>:2:3: error: 'loop.contract' op: loop.contract: schedule is \"gemm\" or \"library\", not {message}"
    )


def test_what_computes_a_call():
    from xdsl.dialects.builtin import StringAttr
    from xdsl.utils.exceptions import VerifyException

    from stepwell.dialects import nd
    from stepwell.dialects.nd.call_args import Call, CallAttr

    call = nd.ExternOp.create(properties={"call": CallAttr(Call("aten.relu.default", ())), "schedule": StringAttr("genrated")})
    with pytest.raises(VerifyException, match='nd.extern: schedule is "generated" or "library", not "genrated"'):
        call.verify_()
