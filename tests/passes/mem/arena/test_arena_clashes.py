"""A place in the arena that was edited by hand may be one that is taken: `opt-tool --run` says so."""

import pytest

PROGRAM = """builtin.module attributes {nd.symbols = {n = #nd.range<2, -1, 8>}} {
func.func @f(%x: !mem.buffer<n x f32>) -> (!mem.buffer<n x f32>) attributes {mem.arena_bytes = #nd.expr<n * 12>} {
  %a = mem.alloc {kind = "arena", at = 0} : !mem.buffer<n x f32>
  loop.nest (%i = n) outs(%o = %a : !mem.buffer<n x f32>) {
    %v = loop.load %x[%i] : !mem.buffer<n x f32> -> f32
    loop.store %v, %o[%i] : f32, !mem.buffer<n x f32>
  }
  %b = mem.alloc {kind = "arena", at = SECOND} : !mem.buffer<n x f32>
  loop.nest (%i = n) outs(%o = %b : !mem.buffer<n x f32>) {
    %v = loop.load %a[n - 1 - %i] : !mem.buffer<n x f32> -> f32
    loop.store %v, %o[%i] : f32, !mem.buffer<n x f32>
  }
  %c = mem.alloc {kind = "arena", at = THIRD} : !mem.buffer<n x f32>
  loop.nest (%i = n) outs(%o = %c : !mem.buffer<n x f32>) {
    %v = loop.load %b[%i] : !mem.buffer<n x f32> -> f32
    loop.store %v, %o[%i] : f32, !mem.buffer<n x f32>
  }
  %r = mem.alloc {kind = "output"} : !mem.buffer<n x f32>
  loop.nest (%i = n) outs(%o = %r : !mem.buffer<n x f32>) {
    %v = loop.load %c[%i] : !mem.buffer<n x f32> -> f32
    loop.store %v, %o[%i] : f32, !mem.buffer<n x f32>
  }
  func.return %r : !mem.buffer<n x f32>
}
}
"""


@pytest.mark.parametrize(
    ("second", "third", "line", "message"),
    [
        ("n * 4", "0", 0, ""),  # where %a was, which is dead
        ("n * 2", "n * 8", 8, "bytes 16 to 48 of the arena are taken: %a has 0 to 32, and both hold something at one time"),
        ("n * 4", "n * 4", 13, "bytes 32 to 64 of the arena are taken: %b has 32 to 64, and both hold something at one time"),
    ],
)
def test_places_that_are_taken(opt_tool, second: str, third: str, line: int, message: str):
    result = opt_tool("--run", stdin=PROGRAM.replace("SECOND", second).replace("THIRD", third))
    assert result.code == (1 if message else 0)
    assert message in result.err
    if line:
        assert f"<stdin>:{line}:" in result.err


def test_at_the_level_of_vector_code_too(opt_tool):
    result = opt_tool("-p", "mem-to-cpu", "--run", stdin=PROGRAM.replace("SECOND", "n * 2").replace("THIRD", "n * 8"))
    assert result.code == 1
    assert "bytes 16 to 48 of the arena are taken" in result.err
