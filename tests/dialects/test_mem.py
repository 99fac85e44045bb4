"""The verifier of `mem.alloc`: a buffer lies inside of the memory that it is a piece of."""

import pytest

FUNC = """func.func @f() attributes {{mem.arena_bytes = #nd.expr<{room}>}} {{
  %h = mem.alloc {{kind = "output"}} : !mem.buffer<8 x f32>
  %a = mem.alloc {place} : !mem.buffer<{shape} x f32>
  func.return
}}
"""


@pytest.mark.parametrize(
    ("room", "place", "shape", "message"),
    [
        ("64", '{kind = "arena", at = 32}', "8", ""),
        ("64", '{kind = "arena", at = 36}', "8", "reaches byte 68, the function's block (mem.arena_bytes) has 64"),
        ("64", '{kind = "arena", at = -4}', "8", "the place -4 is before the start of the memory"),
        ("64", '{kind = "arena", at = 64}', "0", ""),
        ("s0 * 4", '{kind = "arena", at = 0}', "s0", ""),
        ("s0 * 4", '{kind = "arena", at = 4}', "s0", "reaches byte s0 * 4 + 4, the function's block (mem.arena_bytes) has s0 * 4"),
        ("s0 * 4", '{kind = "arena", at = 0}', "s1", ""),  # s1 may be less than s0
        ("64", '{kind = "arena", at = 32, workspace}', "8", ""),
        ("64", '{kind = "arena", workspace}', "s0", "the size of a workspace is a number, not s0 * 4 bytes"),
        ("64", '{kind = "output", workspace}', "8", "a workspace is a piece of the arena"),
    ],
)
def test_places(opt_tool, room, place, shape, message):
    result = opt_tool(stdin=FUNC.format(room=room, place=place, shape=shape))
    assert (result.code, message in result.err) == (1 if message else 0, True)


@pytest.mark.parametrize(("at", "code"), [(16, 0), (20, 1)])
def test_a_buffer_inside_of_another(opt_tool, at, code):
    text = FUNC.format(room="0", place=f'%h {{kind = "arena", at = {at}}}', shape="4")
    text = text.replace(" : !mem.buffer<4 x f32>", " : (!mem.buffer<8 x f32>) -> !mem.buffer<4 x f32>")
    result = opt_tool(stdin=text)
    assert (result.code, "the buffer around it has 32" in result.err) == (code, bool(code))
