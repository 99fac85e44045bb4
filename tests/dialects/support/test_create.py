"""Operations made quickly are the same as xDSL's."""

import pytest
from xdsl.dialects import arith, test
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr, UnitAttr, f32, i1
from xdsl.ir import Block, Operation, Region

from stepwell.dialects import loop
from stepwell.dialects.support.create import create


def parts(op):
    """The fields of an operation, whether it has them itself or its class has them."""
    names = ("properties", "attributes", "location", "parent", "_next_op", "_prev_op", "_successors", "_successor_uses")
    return {name: getattr(op, name) for name in names} | {
        "operands": tuple(op.operands),
        "uses": [(u.operation is op, u.index) for u in op._operand_uses],
        "results": [(r.type, r.index, r.op is op, r.first_use, r.name_hint) for r in op.results],
        "regions": [(len(r.blocks), r.parent is op) for r in op.regions],
    }


@pytest.fixture
def values():
    return test.TestOp.create(result_types=[f32, f32, i1]).results


LOCATION = FileLineColLoc(StringAttr("file"), IntAttr(1), IntAttr(2))


@pytest.mark.parametrize(
    "cls, count, types, properties",
    [
        (arith.AddfOp, 2, [f32], {}),
        (arith.AddfOp, 2, [f32], {"fastmath": arith.FastMathFlagsAttr("fast")}),
        (test.TestOp, 3, [f32, i1], {"mark": UnitAttr()}),
        (test.TestOp, 0, [], {}),
        (loop.YieldOp, 2, [], {}),
    ],
)
def test_an_operation_has_what_xdsl_would_give_it(values, cls, count, types, properties):
    operands = values[:count]
    quick = create(cls, operands, types, properties, [Region(Block())], LOCATION)
    slow = Operation.create.__func__(
        cls, operands=operands, result_types=types, properties=properties, regions=[Region(Block())], location=LOCATION
    )
    assert parts(quick) == parts(slow) and type(quick) is cls
    assert quick.properties is not properties


def test_create_of_our_operations_is_quick_and_takes_everything(values):
    op = loop.YieldOp.create(operands=values[:1], attributes={"mark": UnitAttr()}, location=LOCATION)
    assert parts(op) == parts(create(loop.YieldOp, values[:1], location=LOCATION)) | {"attributes": {"mark": UnitAttr()}}
    assert create(loop.YieldOp).location == Operation.create.__func__(loop.YieldOp).location


def test_uses_and_replacement(values):
    op = create(arith.AddfOp, (values[0], values[0]), (f32,))
    other = create(arith.NegfOp, (values[0],), (f32,))
    assert sorted((u.operation.name, u.index) for u in values[0].uses) == [("arith.addf", 0), ("arith.addf", 1), ("arith.negf", 0)]
    values[0].replace_all_uses_with(values[1])
    assert tuple(op.operands) == (values[1], values[1]) and other.operands[0] is values[1] and values[0].first_use is None
    Block([op, other])
    other.detach()
    other.erase()
    assert len(list(values[1].uses)) == 2
    assert op.is_structurally_equivalent(op.clone())
