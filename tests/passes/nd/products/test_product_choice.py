"""What the price of a product says of its neighbours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data

from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context


def remarks(function, *shapes, options="library=price"):
    """What the pass says of products on an H100, by default all decided by price."""
    args = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
    module = import_function(function, *without_data(args, "cpu")).module
    module.attributes[MACHINE] = MachineAttr.from_text("sm_90")
    said: list[str] = []
    passes = parse_pipeline(f"nd-canonicalize,nd-library-products{{{options}}}")
    run(passes, module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    return said


@pytest.mark.parametrize("drops", [False, True])
def test_a_remark_says_where_a_thread_keeps_too_much_for_a_large_block(drops):
    """Random numbers of all elements are there at once."""

    def layer(x, w):
        y = F.silu(F.linear(x, w))
        return F.dropout(y, 0.1, True) if drops else y

    (remark,) = remarks(layer, (8192, 2048), (8192, 2048))
    assert ("a thread keeps 5 numbers of each element, so that a program has" in remark) == drops, remark


@pytest.mark.parametrize("terms", [64, 72])
@pytest.mark.parametrize("gelu", [True, False])
def test_products_of_few_terms_are_decided_by_price_by_default(terms, gelu):
    """What stands behind them, and is read and written once less, takes as long as they do."""

    def product(x, y):
        return F.gelu(torch.bmm(x, y)) if gelu else torch.bmm(x, y)

    (remark,) = remarks(product, (256, 1024, terms), (256, terms, 256), options="rows=64")
    assert ("generated: by price" in remark) == (gelu and terms == 64) and ("library=large" in remark) == (terms > 64), remark
