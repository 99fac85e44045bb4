"""Transforms of nests that the schedule runs in tiles."""

from __future__ import annotations

import pytest

TEXT = """func.func @f(%x: !nd.tensor<64 x 48 x f32>) -> !nd.tensor<64 x 48 x f32> {
  %y = nd.neg %x : !nd.tensor<64 x 48 x f32>
  func.return %y : !nd.tensor<64 x 48 x f32>
}
"""


def test_tiles_follow_their_loops(opt_tool):
    result = opt_tool("-p", "nd-to-loop,loop-tile{sizes=8,0},loop-interchange{order=1,0}", "--verify-results", stdin=TEXT)
    assert result.code == 0 and "tiles = array<i64: 0, 8>" in result.out and "(%j = 48, %i = 64)" in result.out


@pytest.mark.parametrize("transform", ["loop-collapse{loops=0,1}", "loop-expand{axis=1 by=8}"])
def test_loops_in_tiles_stay_what_they_are(opt_tool, transform):
    tiled = opt_tool("-p", "nd-to-loop,loop-tile{sizes=8}", stdin=TEXT)
    result = opt_tool("-p", f"nd-to-loop,loop-tile{{sizes=8}},{transform}", "--remarks", stdin=TEXT)
    assert (result.code, result.out) == (0, tiled.out)
    assert "refused: the loops run in tiles; tile them after this" in result.err
