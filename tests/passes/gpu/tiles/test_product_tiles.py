"""Which block of the result a program of a product has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data

from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.schedule_attrs import schedule_table
from stepwell.passes.gpu.tiles.candidates import GPU
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


def tile(function, *args, remarks=None, target="sm_90"):
    """The tile of the one product of a program, which is generated: sides of its block, and the numbers by name."""
    module = import_function(function, *without_data(args, "cpu")).module
    module.attributes[MACHINE] = MachineAttr.from_text(target)
    pipeline = default_pipeline("gpu", stages=("nd", "loop", "mem"))
    pipeline.replace("nd-library-products", "nd-library-products{library=never}")
    run(pipeline, module, context(), Instrumentation(remarks=remarks))
    tables = [schedule_table(op)[GPU].data for op in module.walk() if is_nest_in_memory(op)]
    (found,) = [table for table in tables if "dot" in table]
    numbers = {key: n.value.data for key, n in found.items() if key not in ("axes", "blocks", "grid_loops")}
    return tuple(sorted(n.value.data for n in found["blocks"].data)), numbers


def dropped(x, w):
    return F.dropout(F.gelu(F.linear(x, w)), 0.1, True)


def gated(x, w):
    u, v = F.linear(x, w).chunk(2, -1)
    return F.gelu(u, approximate="tanh") * v


@pytest.mark.parametrize(
    ("function", "block"),
    [(lambda x, w: F.silu(F.linear(x, w)), (128, 256)), (gated, (128, 128)), (dropped, (64, 128))],
    ids=["one number", "two sums", "random numbers"],
)
def test_what_a_thread_keeps_bounds_the_block(function, block):
    """Numbers of an element that are there at once have registers."""
    assert tile(function, empty(8192, 2048), empty(8192, 2048))[0] == block


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(lambda x, y: F.gelu(torch.bmm(x, y)), ((256, 1024, 64), (256, 64, 256))), (lambda x, y: F.gelu(x @ y), ((32, 64), (64, 16384)))],
    ids=["many rows", "few rows"],
)
def test_no_more_steps_are_under_way_than_there_are(function, shapes):
    """Shared memory is left for other programs: with one step, several short ones hide each other's beginnings."""
    block, numbers = tile(function, *(empty(*shape) for shape in shapes))
    assert (numbers["reduction_block"], numbers["stages"]) == (64, 1) and block[0] * block[1] <= 64 * 128


@pytest.mark.parametrize(
    ("sizes", "block", "parts"),
    [((256, 256, 262144), (128, 256), 64), ((256, 512, 8192), (64, 128), 8), ((4096, 4096, 4096), (128, 256), 1)],
    ids=["few long sums", "some", "many sums"],
)
def test_few_long_sums_are_split(sizes, block, parts):
    """As many parts, in blocks of such a size, as are computed and added up fastest."""
    rows, columns, terms = sizes
    said: list[str] = []
    found, _ = tile(lambda x, y: F.relu(x.t() @ y), empty(terms, rows), empty(terms, columns), remarks=lambda r: said.append(r.message))
    split = [text for text in said if text.startswith("product split")]
    assert found == block and len(split) == (parts > 1) and all(f" in {parts} parts of {terms // parts}" in text for text in split), said


@pytest.mark.parametrize(("target", "columns"), [("sm_90", 64), ("sm_80", 128)])
def test_few_rows_keep_multiprocessors_busy(target, columns):
    """A GPU of fewer multiprocessors is as busy with wider blocks."""
    assert tile(lambda x, w: F.silu(F.linear(x, w)), empty(16, 2048), empty(10240, 2048), target=target)[0] == (16, columns)


@pytest.mark.parametrize(
    ("rows", "dtype", "stages"),
    [(64, torch.int8, 5), (16, torch.int8, 5), (64, torch.bfloat16, 3)],
    ids=["64 by bytes", "16 by bytes", "64"],
)
def test_few_rows_have_steps_under_way(rows, dtype, stages):
    """A program that has a multiprocessor for itself has its shared memory; more steps hide what computes a matrix of bytes."""
    block, numbers = tile(lambda x, w: F.silu(F.linear(x, w.to(x.dtype))), empty(rows, 4096), empty(14336, 4096, dtype=dtype))
    assert block == (rows, 128) and (numbers["reduction_block"], numbers["stages"]) == (128, stages)
