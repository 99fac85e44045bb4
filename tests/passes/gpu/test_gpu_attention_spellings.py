"""Attention spelled in ways that nobody listed: a GPU's pipeline stores no scores, forward and backward, and numbers are right."""

from __future__ import annotations

import random
from math import prod

import pytest
import torch

import stepwell
from stepwell.dialects import loop, nd
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.nd.types import TensorType, tensor_type
from stepwell.dialects.support.philox import SEED_RANGE
from stepwell.lowering.fx.joint.drawn_weights import drawn_uniform
from stepwell.lowering.fx.joint.repeated_scores import HALVES, KERNELS, ScoreKernels
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.analysis.symbols import symbol_facts
from stepwell.passes.cost.library_cost import size
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.backend.torch_backend import Tracer, compile_with
from stepwell.tools.interpret.target import InterpretedTarget
from stepwell.tools.options.options import make_options

from .attention_spellings import Spelling

LARGE, SMALL = (2, 8, 1024, 1152, 64), (2, 2, 20, 24, 16)
"""Batches, heads, rows, terms where these are others, width."""
QUICK, LONG = range(5), (*range(1000, 1030), 1033, 1051)
SEEDS = [*QUICK, *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG)]


class Generated(InterpretedTarget):
    """The pipeline whose products are all generated, however small."""

    name = "generated_products"
    stages = {
        stage: tuple(one.replace("{short=8}", "{tiny=0 library=never}") for one in passes)
        for stage, passes in InterpretedTarget.stages.items()
    }


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Graphs of the CPU are parted as those of a GPU."""
    for name in KERNELS:
        monkeypatch.setitem(KERNELS, name, ScoreKernels(HALVES, 1))


@pytest.fixture
def interpreted(as_on_a_gpu):
    assert any("library=never" in one for one in Generated.stages["nd"])
    stepwell.register_target(Generated, replace=True)
    yield
    stepwell.unregister_target("generated_products")
    torch._dynamo.reset()


class Graphs(Tracer):
    """Keeps the graphs, of which none is run: results are tensors without contents."""

    def __init__(self):
        super().__init__(make_options(None, {"cache": "off"}))
        self.found = []

    def _compile(self, gm, example_inputs, kind):
        self.found.append((gm, example_inputs))
        results = [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in gm.graph.output_node().args[0]]

        def example(value):
            if isinstance(value, torch.Tensor):
                return torch.empty_strided(*([example(n) for n in numbers] for numbers in (value.shape, value.stride())), dtype=value.dtype)
            return value.node.hint if isinstance(value, torch.SymInt) else value

        def run(_):
            return [example(v) for v in results]

        run._boxed_call = True
        return run


def graphs_of(function, args, trains=True):
    """What torch makes of a program: forward and backward."""
    torch._dynamo.reset()
    graphs = Graphs()
    with torch.set_grad_enabled(trains):
        out = torch.compile(function, backend=lambda gm, inputs: compile_with(graphs, gm, inputs), fullgraph=True)(*args)
    if trains:
        torch.autograd.grad(out, [x for x in args if x.requires_grad], torch.empty_like(out))
    return graphs.found


def lowered(gm, inputs, machine="sm_90"):
    """The nests of a graph."""
    module = import_graph(gm, inputs).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    run(default_pipeline("gpu", stages=("nd", "loop")), module, context())
    return module


def stored(gm, inputs, machine="sm_90"):
    """The sizes of what the kernels of a graph, and calls, store; symbols are what they were in the example."""
    module = lowered(gm, inputs, machine)
    results = [r for op in module.walk() if isinstance(op, loop.NestOp | nd.ExternOp) for r in op.results if isinstance(r.type, TensorType)]
    hints = {symbol.name: value for symbol, value in symbol_facts(module)[1].items()}
    return [prod(size(n, hints) for n in tensor_type(r).dims) for r in results]


def drawn(seed):
    spelling = Spelling.draw(random.Random(seed))
    print(f"seed {seed}: {spelling}")
    return spelling


@pytest.mark.parametrize("seed", SEEDS)
def test_no_scores_are_in_memory(seed, as_on_a_gpu):
    """Products of float32 whose factors are converted numbers of 16 bits have gradients that are products of float32: in inference."""
    spelling, (batch, heads, rows, terms, width) = drawn(seed), LARGE
    args = spelling.inputs(batch, heads, rows, terms, width, torch.Generator().manual_seed(seed))
    scores = batch * heads * rows * (terms if spelling.cross else rows)
    graphs = graphs_of(spelling.function(batch, heads), args, trains=spelling.wide != "factors")
    for gm, inputs in graphs:
        assert max(stored(gm, inputs)) < scores


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed, interpreted):
    compare(drawn(seed), seed)


@pytest.mark.parametrize("seed", [*QUICK[:2], *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG[:20])])
def test_numbers_of_the_cpu(seed):
    compare(drawn(seed), seed)


def compare(spelling, seed):
    """With eager's, and those of float64; dropout with the numbers that the seeds give."""
    torch._dynamo.reset()
    batch, heads, rows, terms, width = SMALL
    args = spelling.inputs(batch, heads, rows, terms, width, torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    got = step(torch.compile(spelling.function(batch, heads), backend="stepwell", options={"cache": "off"}), args)

    def drop(weights):
        if not spelling.dropout:
            return weights
        torch.manual_seed(seed)
        seeds = torch.randint(*SEED_RANGE, (2,))
        return weights * (drawn_uniform(seeds, 0, weights.shape) > spelling.dropout) / (1 - spelling.dropout)

    def eager(*tensors):
        return spelling(drop, batch, heads, *tensors)

    exact = step(eager, [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in args])
    for a, b, want in zip(got, step(eager, args), exact, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        assert (a - want).norm() <= 1.5 * (b - want).norm() + 4e-3 * want.norm()


def step(function, args):
    """The result, and the gradients of what takes some."""
    out = function(*args)
    along = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    return out, *torch.autograd.grad(out, [x for x in args if x.requires_grad], along.to(out.dtype))
