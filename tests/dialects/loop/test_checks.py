"""The verifiers of `loop` refuse accesses that certainly leave what they access, and results that nothing fills."""

import pytest

NEST = """func.func @f(%x: !nd.tensor<8 x s0 x f32>) -> !nd.tensor<8 x s0 x f32> {{
  %e = loop.empty : !nd.tensor<8 x s0 x f32>
  %r = loop.nest (%i = {rows}, %j = s0) outs(%o = %e : !nd.tensor<8 x s0 x f32>) {{
    %c = arith.constant true
    %z = arith.constant 0.0 : f32
    %v = loop.load %x[{index}]{mask} : !nd.tensor<8 x s0 x f32> -> f32
    {store}
  }}
  func.return %r : !nd.tensor<8 x s0 x f32>
}}
"""
STORE = "loop.store %v, %o[%i, %j] : f32, !nd.tensor<8 x s0 x f32>"


def nest(rows="8", index="%i, %j", mask="", store=STORE) -> str:
    return NEST.format(rows=rows, index=index, mask=mask, store=store)


@pytest.mark.parametrize(
    "text",
    [
        nest(),
        nest(index="%i floordiv 2, %j"),
        nest(index="7 - %i, s0 - 1 - %j"),
        nest(index="%i + 1, %j", mask=" if %c else %z"),  # the condition may say when
        nest(rows="0", index="%i + 100, %j"),  # never runs
        nest(rows="s1"),  # s1 may be 8 at most
        nest(index="%i, %j * 2 - s1"),
    ],
)
def test_right(opt_tool, text):
    result = opt_tool(stdin=text)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nest(rows="9"), "6:10: error: 'loop.load' op: loop.load: index 0 reaches 8, its dimension has the size 8"),
        (nest(index="%i + 1, %j"), "6:10: error: 'loop.load' op: loop.load: index 0 reaches 8, its dimension has the size 8"),
        (nest(index="%i - 1, %j"), "6:10: error: 'loop.load' op: loop.load: index 0 reaches -1, its dimension has the size 8"),
        (nest(index="%i, %j + 1"), "6:10: error: 'loop.load' op: loop.load: index 1 reaches s0, its dimension has the size s0"),
        (nest(index="%i floordiv 2 + 5, %j"), "6:10: error: 'loop.load' op: loop.load: index 0 reaches 8, its dimension has the size 8"),
        (
            nest(store="loop.store %v, %o[%i + 1, %j] : f32, !nd.tensor<8 x s0 x f32>"),
            "7:5: error: 'loop.store' op: loop.store: index 0 reaches 8, its dimension has the size 8",
        ),
        (nest(store=""), "3:8: error: 'loop.nest' op: loop.nest: nothing is stored to out 0, which has no contents before"),
    ],
)
def test_wrong(opt_tool, text, message):
    result = opt_tool(stdin=text)
    assert (result.code, result.err.splitlines()[0]) == (1, f"<stdin>:{message}")


CONTRACT = """func.func @f(%x: !nd.tensor<8 x 16 x f32>, %w: !nd.tensor<4 x 16 x f32>) -> !nd.tensor<8 x 4 x f32> {{
  %e = loop.empty : !nd.tensor<8 x 4 x f32>
  %r = loop.contract (%i = 8, %j = 4) reduce ({depth}) %x at #nd.map<(d0, d1, d2) -> (d0, d2)> : !nd.tensor<8 x 16 x f32> *
    %w at #nd.map<(d0, d1, d2) -> (d1, d2)> : !nd.tensor<4 x 16 x f32> into %a : f32 outs(%o = %e : !nd.tensor<8 x 4 x f32>) {{
    {store}
  }}
  func.return %r : !nd.tensor<8 x 4 x f32>
}}
"""


@pytest.mark.parametrize(
    ("depth", "store", "message"),
    [
        (16, True, ""),
        (0, True, ""),
        (17, True, "loop.contract: lhs: index 1 reaches 16, its dimension has the size 16"),
        (16, False, "loop.contract: nothing is stored to out 0, which has no contents before"),
    ],
)
def test_contract(opt_tool, depth, store, message):
    text = "loop.store %a, %o[%i, %j] : f32, !nd.tensor<8 x 4 x f32>" if store else ""
    result = opt_tool(stdin=CONTRACT.format(depth=depth, store=text))
    assert (result.code, message in result.err) == (1 if message else 0, True)
