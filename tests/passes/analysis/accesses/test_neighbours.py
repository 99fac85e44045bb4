"""Which accesses of a body are to consecutive elements together."""

from __future__ import annotations

from stepwell.dialects import loop
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.analysis.accesses.neighbours import Adjacency
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.ir_parser import IRParser


def groups(body: str, **asked) -> list[list[int]]:
    """The places in the body of the members of each group along the one loop of a nest."""
    text = f"""func.func @f(%x: !mem.buffer<64 x f32>, %y: !mem.buffer<64 x f32>) {{
      loop.nest (%i = 16) outs(%o = %y : !mem.buffer<64 x f32>) {{ {body} }}
      func.return
    }}"""
    (nest,) = (op for op in IRParser(context(), text, "test").parse_module().walk() if isinstance(op, loop.NestOp))
    info, ops = NestAccess(nest, RangeEnv()), list(nest.block.ops)
    found = Adjacency(info, info.root.loops[0].dim, **asked).groups(nest.block)
    return [[ops.index(a.op) for a in group.members] for op, group in found.items() if op is group.last]


def load(name: str, index: str) -> str:
    return f"%{name} = loop.load %x[{index}] : !mem.buffer<64 x f32> -> f32\n"


def store(name: str, index: str) -> str:
    return f"loop.store %{name}, %o[{index}] : f32, !mem.buffer<64 x f32>\n"


def test_a_group_has_as_many_members_as_elements_lie_between_iterations():
    two = load("a", "%i") + store("a", "%i * 2 + 1") + store("a", "%i * 2")
    assert groups(two) == [[2, 1]]
    assert groups(two.replace("* 2", "* 3")) == []
    assert groups(load("a", "%i") + "".join(store("a", f"%i * 3 + {k}") for k in (2, 0, 1))) == [[2, 3, 1]]


def test_each_access_is_of_one_group():
    loads = "".join(load(name, f"%i * 2 + {k}") for k, name in enumerate("abcd"))
    assert groups(loads, kinds=(loop.LoadOp,)) == [[0, 1], [2, 3]]
    assert groups(loads) == []
    assert groups("".join(load(f"a{k}", f"%i * 4 + {k}") for k in range(4)), kinds=(loop.LoadOp,), most=2) == []


def test_nothing_between_members_is_stored_to_what_they_are_stored_to():
    body = load("a", "%i") + store("a", "%i * 2") + store("a", "%i * 2 + {}") + store("a", "%i * 2 + 1")
    assert groups(body.format(0)) == [[2, 3]]
    assert groups(body.format(32)) == []  # of some other iteration, perhaps
    assert groups(body.format(32), width=8) == [[1, 3]]
