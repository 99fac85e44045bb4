"""Nests of real graphs as Triton kernels: run by the interpreter of `tt` and compared with eager, and compiled without
a GPU where Triton is installed."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.nn.functional as F
from xdsl.parser import Parser

import stepwell.tools.compile_graph as compile_graph
from stepwell.dialects import loop
from stepwell.lowering.mem_to_tt import Tile, UnsupportedNest, choose_tile, nest_to_tt
from stepwell.passes.loop.loop_schedule import symbol_facts
from stepwell.passes.verify import verify_ir
from stepwell.tools import interpret_loop
from stepwell.tools.interpret_tt import run_kernel

if folder := os.environ.get("STEPWELL_TEST_TRITON"):
    sys.path.insert(0, folder)


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def normalised(x, w):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5) * w


def rotated(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1) * 0.5 + x


CASES = {
    # name: (function, sizes or tensors, options of torch.compile)
    "add": (lambda x, y: x + 2 * y, [(7, 300), (7, 300)], {}),
    "many": (lambda x, y: torch.where(x > 0, torch.tanh(x) / (1 + y.exp()), -y.sqrt()), [(5, 33), (5, 33)], {}),
    "transposed": (lambda x, y: x + y.t(), [(20, 30), (30, 20)], {}),
    "broadcast": (lambda x, y: (x * y[:, None, :]).sigmoid(), [(3, 4, 5), (3, 5)], {}),
    "strided": (lambda x: x[:, ::2] * x[:, 1::2] + 1, [(6, 40)], {}),
    "concatenated": (rotated, [(4, 6, 8)], {}),
    "padded": (lambda x: F.pad(x, (2, 3), value=1.5) * 2, [(4, 9)], {}),
    "bf16": (lambda x, y: (x * y).relu() + x, [(9, 40, torch.bfloat16), (9, 40, torch.bfloat16)], {}),
    "f16": (lambda x: x.exp() - 1, [(9, 40, torch.float16)], {}),
    "f64": (lambda x: x.sqrt() / 3, [(9, 40, torch.float64)], {}),
    "integers": (lambda x: (x * 3 + 1) // 4 % 5, [(9, 40, torch.int32)], {}),
    "compared": (lambda x, y: (x > y) & (x != 0), [(9, 40), (9, 40)], {}),
    "scalar": (lambda x: x * 3.0, [()], {}),
    "one": (lambda x: x.relu() + 1, [(1, 1)], {}),
    "empty": (lambda x: x.relu() + 1, [(0, 5)], {}),
    "any-size": (lambda x, y: x.relu() + y, [(13, 77), (13, 77)], {"dynamic": True}),
    "sum": (lambda x: x.sum(-1), [(50, 70)], {}),
    "sum-long": (lambda x: x.sum(-1), [(3, 20000)], {}),
    "sum-columns": (lambda x: x.sum(0), [(50, 70)], {}),
    "sum-middle": (lambda x: x.sum(1), [(5, 20, 7)], {}),
    "extremes": (lambda x: (x.amax(-1), x.amin(-1)), [(50, 70)], {}),
    "any-all": (lambda x: ((x > 1).any(1), (x > -3).all(1)), [(50, 70)], {}),
    "prod": (lambda x: (x / 50).exp().prod(-1), [(5, 70)], {}),
    "mean-any-size": (lambda x: x.mean(-1), [(11, 2500)], {"dynamic": True}),
    "rms-norm": (rms_norm, [(6, 100), (100,)], {}),
    "norm": (normalised, [(6, 100), (100,)], {}),
    "norm-long": (normalised, [(2, 17000), (17000,)], {}),
    "norm-bf16": (rms_norm, [(6, 256, torch.bfloat16), (256, torch.bfloat16)], {}),
    "norm-any-size": (rms_norm, [(6, 2100), (2100,)], {"dynamic": True}),
    "column-means": (lambda x: x - x.mean(0), [(40, 30)], {}),
}  # fmt: skip


def make(what):
    dtype = what[-1] if what and isinstance(what[-1], torch.dtype) else torch.float32
    sizes = [n for n in what if isinstance(n, int)]
    x = torch.randn(sizes)
    return (x * 20).to(dtype) if not dtype.is_floating_point else x.to(dtype)


class Graph:
    """A compiled function at the memory level, with what its call was given."""

    def __init__(self, name, folder, monkeypatch):
        function, inputs, options = CASES[name]
        torch._dynamo.reset()
        torch.manual_seed(0)
        calls = []
        original = compile_graph.Runner.__init__

        def init(runner, program, *rest, **more):
            original(runner, program, *rest, **more)

            def recorded(args):
                calls.append(([a.clone() if torch.is_tensor(a) else a for a in args], runner.constants))
                return program(args)

            runner.program = recorded

        monkeypatch.setattr(compile_graph.Runner, "__init__", init)
        given = [make(what) for what in inputs]
        self.expected = function(*given)
        torch.compile(function, backend="stepwell", options={"debug": str(folder)}, **options)(*given)
        ((self.args, self.constants),) = calls
        (where,) = folder.iterdir()
        text = (where / "3_mem.mlir").read_text()
        self.module = Parser(compile_graph.context(), text, "mem").parse_module()
        self.facts = symbol_facts(self.module)[0]

    def nests(self):
        return [op for op in self.module.walk() if isinstance(op, loop.NestOp)]

    def run(self, monkeypatch, tile=None):
        """Run it with every nest as a kernel; the results and how many kernels ran."""
        count = 0

        def kernel(run, op):
            nonlocal count
            made = nest_to_tt(op, self.facts, tile=tile)
            verify_ir(made.module)
            arguments = [*(run.values[b] for b in made.buffers), *(run.symbols[str(s)] for s in made.symbols)]
            arguments += [run.values[v] for v in made.scalars]
            run_kernel(made.module, arguments, [run.size(made.grid)])
            count += 1

        monkeypatch.setitem(interpret_loop._RULES, loop.NestOp, kernel)
        results = interpret_loop.run_loop(self.module, self.args, self.constants)
        return results, count


def compare(results, expected):
    wanted = list(expected) if isinstance(expected, tuple) else [expected]
    for got, want in zip(results, wanted, strict=True):
        low = want.dtype in (torch.bfloat16, torch.float16)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if low else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(got, want, equal_nan=True, **tolerance)


@pytest.mark.parametrize("name", CASES)
def test_kernels_give_what_eager_gives(name, tmp_path, monkeypatch):
    graph = Graph(name, tmp_path, monkeypatch)
    results, count = graph.run(monkeypatch)
    compare(results, graph.expected)
    assert count or name == "empty"


@pytest.mark.parametrize("tile", [Tile(1, 32, 1), Tile(8, 16, 2), Tile(2, 128, 4)])
@pytest.mark.parametrize("name", ["norm", "extremes", "column-means"])
def test_any_tile_gives_the_same(name, tile, tmp_path, monkeypatch):
    graph = Graph(name, tmp_path, monkeypatch)
    results, _ = graph.run(monkeypatch, tile)
    compare(results, graph.expected)


@pytest.mark.parametrize("name", ["many", "norm-bf16", "any-all", "norm-any-size", "compared"])
def test_kernels_compile_without_a_gpu(name, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.gpu import gpu_target

    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "ir").mkdir()
    graph = Graph(name, tmp_path / "ir", monkeypatch)
    for target in ("sm_80", "sm_90", "gfx942"):
        library = "ocml" if target.startswith("gfx") else "nv"
        modules = [nest_to_tt(nest, graph.facts, library=library).module for nest in graph.nests()]
        for kernel in compile_kernels(modules, gpu_target(target)):
            assert isinstance(kernel.code, bytes) and kernel.code[:4] == b"\x7fELF" and not kernel.details.get("spills")


def test_small_kernels_compute_indices_in_32_bits(tmp_path, monkeypatch):
    graph = Graph("add", tmp_path, monkeypatch)
    (nest,) = graph.nests()
    assert "i64" not in str(nest_to_tt(nest, graph.facts).module)


def test_threads_wait_before_they_read_what_others_stored(tmp_path, monkeypatch):
    for name, barriers in (("norm", 1), ("add", 0)):  # the normalised rows are stored, then read again for their squares
        (tmp_path / name).mkdir()
        graph = Graph(name, tmp_path / name, monkeypatch)
        texts = [str(nest_to_tt(nest, graph.facts).module) for nest in graph.nests()]
        assert sum(text.count("gpu.barrier") for text in texts) == barriers


def test_what_is_not_covered_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, "cumsum", (lambda x: x.cumsum(1), [(4, 9)], {}))
    monkeypatch.setitem(CASES, "argmax", (lambda x: x.argmax(1), [(4, 9)], {}))
    for name, message in (("cumsum", "there is no rule for 'loop.scan'"), ("argmax", "reductions of kind 'argmax'")):
        (tmp_path / name).mkdir()
        (nest,) = Graph(name, tmp_path / name, monkeypatch).nests()
        with pytest.raises(UnsupportedNest, match=message):
            nest_to_tt(nest, symbol_facts(None)[0])


@pytest.mark.parametrize(
    ("columns", "inner", "tile"),
    [
        (None, False, Tile(1024, 1, 4)),
        (200, True, Tile(4, 256, 2)),
        (2048, True, Tile(1, 2048, 4)),
        (16384, True, Tile(1, 16384, 16)),
        (131072, True, Tile(1, 2048, 4)),
        (None, True, Tile(1, 2048, 4)),
    ],
)
def test_tiles(columns, inner, tile):
    assert choose_tile(columns, inner) == tile
