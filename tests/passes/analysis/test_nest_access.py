"""An analysis keeps what it was asked; one that is made anew does not know it."""

from __future__ import annotations

from xdsl.parser import Parser

from stepwell.dialects import loop
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.analysis.nest_access import NestAccess, asked_once
from stepwell.tools.backend.compile_graph import context

NEST = """func.func @f(%x: !mem.buffer<64 x f32>, %y: !mem.buffer<64 x f32>) {
  loop.nest (%i = 64) outs(%o = %y : !mem.buffer<64 x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<64 x f32> -> f32
    loop.store %v, %o[%i] : f32, !mem.buffer<64 x f32>
  } attributes {label = "f"}
  func.return
}"""


def test_a_question_is_asked_once_of_each_analysis():
    (nest,) = [op for op in Parser(context(), NEST).parse_module().walk() if isinstance(op, loop.NestOp)]
    asked: list[tuple[int, str]] = []

    @asked_once
    def question(info: NestAccess, number: int = 0, word: str = "") -> int:
        asked.append((number, word))
        return len(info.access) + number

    info = NestAccess(nest, RangeEnv())
    assert [question(info), question(info), question(info, 3), question(info, 3), question(info, word="a")] == [2, 2, 5, 5, 2]
    assert asked == [(0, ""), (3, ""), (0, "a")]
    assert question(NestAccess(nest, RangeEnv())) == 2 and len(asked) == 4
