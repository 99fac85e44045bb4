"""Products in tiles of any size: each factor in a tile of its own, bands of blocks, programs that go through several blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from xdsl.dialects import scf
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, i64
from xdsl.ir import Attribute

from stepwell.dialects.host import LaunchOp
from stepwell.dialects.tt.blocks import DescriptorLoadOp, DescriptorStoreOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.memory import LoadOp
from stepwell.errors import StepwellError
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.schedule_attrs import GPU, schedule_table, update_schedule
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

from .test_few_rows import empty, found, kernels, lowered


def numbers(*shape):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / 4).bfloat16()


def with_tile(module, **changes: int):
    """The kernels of a program at level mem, whose products have this tile."""
    for nest in module.walk():
        if is_nest_in_memory(nest) and isinstance(tile := schedule_table(nest).get(GPU), DictionaryAttr) and "dot" in tile.data:
            entries: dict[str, Attribute] = {key: IntegerAttr(n, i64) for key, n in changes.items()}
            update_schedule(nest, {GPU: DictionaryAttr({**tile.data, **entries})})
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    module.verify()
    return module


FORMS = {
    "by rows": (lambda x, w: F.relu(x @ w.t()), (130, 200), (72, 200)),
    "by columns": (lambda x, w: F.relu(x @ w), (130, 200), (200, 72)),
    "the first by columns": (lambda x, w: F.relu(x.t() @ w), (200, 130), (200, 72)),
}


@pytest.mark.spread
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tile", [{"band": 2}, {"band": 2, "persistent": 3}], ids=str)
def test_what_is_computed_does_not_depend_on_the_tile(form, tile):
    """Neither on how the factors lie in memory; sizes are no multiples of blocks."""
    layer, *shapes = FORMS[form]
    inputs = [numbers(*shape) for shape in shapes]
    module = with_tile(lowered(layer, *inputs, stages=("nd", "loop", "mem"), options="library=never"), **tile)
    (kernel,) = kernels(module)
    assert len(found(kernel, DotOp)) == 1
    (got,) = run_loop(module, inputs, [], [])
    torch.testing.assert_close(got, layer(*inputs), rtol=2e-2, atol=2e-2)


def test_results_are_stored_while_the_next_block_is_under_way():
    """One loop of the programs' blocks and the terms of each, which Triton is told to flatten; a fixed number of programs."""
    tile = {"persistent": 3}
    module = with_tile(
        lowered(FORMS["by rows"][0], numbers(512, 128), numbers(512, 128), stages=("nd", "loop", "mem"), options="library=never"), **tile
    )
    (launch,) = found(module, LaunchOp)
    outer, inner = found(module, scf.ForOp)
    assert "grid [3]" in str(launch) and "tt.flatten" in outer.attributes and "tt.num_stages" in inner.attributes


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"band": -1}, "band is a number of blocks"), ({"persistent": -1}, "persistent is a number of programs")],
    ids=["band", "persistent"],
)
def test_tiles_that_cannot_be(changes, message):
    module = lowered(FORMS["by rows"][0], numbers(512, 128), numbers(512, 128), stages=("nd", "loop", "mem"), options="library=never")
    with pytest.raises(StepwellError, match=message):
        with_tile(module, **changes)


def test_blocks_are_copied_by_the_gpu():
    """Factors, one of them a part of a larger matrix, and the result; what is added to it is loaded."""

    def layer(x, w, r):
        return F.relu(x[:, 64:] @ w.t()) + r

    inputs = [numbers(300, 192), numbers(264, 128), numbers(300, 264)]
    module = with_tile(lowered(layer, *inputs, stages=("nd", "loop", "mem"), options="library=never"))
    (kernel,) = kernels(module)
    assert len(found(kernel, DescriptorLoadOp)) == 2 and len(found(kernel, DescriptorStoreOp)) == 1 and len(found(kernel, LoadOp)) == 1
    (got,) = run_loop(module, inputs, [], [])
    torch.testing.assert_close(got, layer(*inputs), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("what", ["odd rows", "an odd place"])
def test_what_cannot_be_described_is_loaded(what):
    x, w = numbers(300, 132 if what == "odd rows" else 136), numbers(264, 128)
    module = lowered(lambda x, w: F.relu(x[:, 4:132] @ w.t()), x, w, stages=("nd", "loop", "mem"), options="library=never")
    (kernel,) = kernels(with_tile(module))
    assert len(found(kernel, DescriptorLoadOp)) == 1 and len(found(kernel, LoadOp)) == 1


@pytest.mark.parametrize("copies", [0, 1])
def test_triton_lets_products_of_steps_overlap(copies):
    """ptxas says so where it makes them wait for each other (C7515)."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    x = empty(4096, 4096)
    module = lowered(FORMS["by rows"][0], x, x, stages=("nd", "loop", "mem"), options="library=never")
    module = with_tile(module, copies=copies, persistent=0)
    (kernel,) = kernel_modules(module)
    built = compile_kernel(kernel, gpu_target("sm_90"))
    assert not built.details["spills"] and not built.details.get("waiting_products")


def test_long_sums_of_few_blocks_are_added_up_in_parts():
    """By programs of their own; a second kernel adds up the parts and does what stands behind the product."""
    x, y, b = numbers(8192, 80), numbers(8192, 72), numbers(72)

    def layer(x, y, b):
        return F.relu(x.t() @ y + b)

    module = with_tile(lowered(layer, x, y, b, stages=("nd", "loop", "mem"), options="library=never"))
    assert len(kernels(module)) == 2 and len(found(module, DotOp)) == 1
    (got,) = run_loop(module, [x, y, b], [], [])
    torch.testing.assert_close(got, layer(x, y, b), rtol=2e-2, atol=2e-2)
