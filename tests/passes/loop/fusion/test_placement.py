"""Whether a stored value may be computed where it is read (passes/loop/fusion/placement.py)."""

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.loop.fusion.placement import compute_at, covers, final_store, places_at, survives
from stepwell.passes.loop.transform.loop_rewrite import needed

CTX = load_dialects(Context())

PAIR = """
func.func @f(%x: !nd.tensor<4 x 1 x 8 x {kind}>) -> !nd.tensor<8 x 4 x f32> {{
  %e = loop.empty : !nd.tensor<4 x 1 x 8 x {kind}>
  %t = loop.nest (%i = {rows}, %k = 8) outs(%out = %e : !nd.tensor<4 x 1 x 8 x {kind}>) {{
    %v = loop.load %x[%i, 0, %k] : !nd.tensor<4 x 1 x 8 x {kind}> -> f32
    %s = arith.addf %v, %v : f32
    loop.store %s, %out[{at}] : f32, !nd.tensor<4 x 1 x 8 x {kind}>
  }}
  %g = loop.empty : !nd.tensor<8 x 4 x f32>
  %u = loop.nest (%k = 8, %i = 4) outs(%out = %g : !nd.tensor<8 x 4 x f32>) {{
    %v = loop.load %t[%i, 0, %k] : !nd.tensor<4 x 1 x 8 x {kind}> -> f32
    loop.store %v, %out[%k, %i] : f32, !nd.tensor<8 x 4 x f32>
  }}
  func.return %u : !nd.tensor<8 x 4 x f32>
}}
"""


def nests(at="%i, 0, %k", rows=4, kind="f32"):
    module = Parser(CTX, PAIR.format(at=at, rows=rows, kind=kind)).parse_module()
    return module, *(op for op in module.walk() if isinstance(op, loop.NestOp))


def test_a_store_covers_a_tensor_at_the_indices_of_its_loops():
    """A dimension of size 1 has no loop."""
    _, made, reader = nests()
    store = final_store(made.results[0])
    assert store is not None and covers(store, made)
    load = next(op for op in reader.block.ops if isinstance(op, loop.LoadOp))
    places = places_at(store, load)
    assert [places[index][1][places[index][0].index] for index in made.indices] == [reader.indices[1], reader.indices[0]]


@pytest.mark.parametrize("at, rows", [("%i, 0, %k", 3), ("%k, 0, %i", 4), ("%i, 0, 7 - %k", 4), ("0, 0, %k", 4)])
def test_a_store_to_a_part_or_to_another_place_does_not(at, rows):
    assert final_store(nests(at, rows)[1].results[0]) is None


@pytest.mark.parametrize("kind, same", [("f32", True), ("bf16", False)])
def test_what_is_rounded_in_memory_does_not_survive(kind, same):
    store = final_store(nests(kind=kind)[1].results[0])
    assert store is not None and survives(store) is same


def test_a_value_is_computed_where_it_is_read():
    module, made, reader = nests()
    assert isinstance(module, ModuleOp)
    store, load = final_store(made.results[0]), next(op for op in reader.block.ops if isinstance(op, loop.LoadOp))
    assert store is not None
    compute_at(load, store.value, needed([store.value], made.block), places_at(store, load), RangeEnv())
    loop.drop_nest(made)
    module.verify()
    body = [op for op in reader.block.ops if isinstance(op, loop.LoadOp)]
    assert [op.source.name_hint for op in body] == ["x"] and "arith.addf" in str(reader)
