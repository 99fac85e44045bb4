"""Random functions of tensor ops with views, chains, updates and calls: every level computes what the nd level says."""

from __future__ import annotations

import random

import pytest
import torch
from xdsl.parser import Parser

from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nd import run_nd

N = 3
SIZES = {"static": (f"{N}", f"{2 * N}", f"{N * N}"), "dynamic": ("s0", "(s0 * 2)", "(s0 * s0)")}
HEADER = "builtin.module attributes {nd.symbols = {s0 = #nd.range<3, -1, 3>}} {"


class Writer:
    """Writes a function of random ops over square, flat and wide matrices and rows of f32."""

    def __init__(self, seed: int, sizes: str = "static"):
        self.rng = random.Random(seed)
        self.n, self.double, square = SIZES[sizes]
        self.shapes = {
            "square": f"{self.n} x {self.n}", "row": self.n, "flat": square, "wide": f"{self.n} x {self.double}"
        }  # fmt: skip
        self.lines: list[str] = []
        self.values: dict[str, list[str]] = {kind: [] for kind in self.shapes}
        self.count = 0

    def type(self, kind: str) -> str:
        return f"!nd.tensor<{self.shapes[kind]} x f32>"

    def pick(self, kind: str) -> str:
        return self.rng.choice(self.values[kind][-6:])

    def emit(self, op: str, operands: list[tuple[str, str]], result: str, properties: str = "") -> str:
        name = f"%v{self.count}"
        self.count += 1
        types = ", ".join(self.type(kind) for _, kind in operands)
        values = ", ".join(v for v, _ in operands)
        self.lines.append(f"{name} = {op} {values} {properties} : ({types}) -> {self.type(result)}")
        self.values[result].append(name)
        return name

    def step(self) -> None:
        rng, pick = self.rng, self.pick
        choice = rng.randrange(14)
        kind = rng.choice(["square", "flat", "wide"])
        if choice < 3:
            self.emit(rng.choice(["nd.add", "nd.sub", "nd.maximum"]), [(pick(kind), kind), (pick(kind), kind)], kind)
        elif choice == 3:
            self.emit("nd.tanh", [(pick(kind), kind)], kind)
        elif choice == 4:
            self.emit("nd.permute", [(pick("square"), "square")], "square", "{dims = [1, 0]}")
        elif choice == 5:
            kind = rng.choice(["square", "wide"])
            self.emit("nd.flip", [(pick(kind), kind)], kind, f"{{dims = [{rng.randrange(2)}]}}")
        elif choice == 6:
            a, b = rng.choice([("square", "flat"), ("flat", "square")])
            self.emit("nd.reshape", [(pick(a), a)], b)
        elif choice == 7:
            operands = [(pick("square"), "square"), (pick("square"), "square")]
            self.emit("nd.cat", operands, "wide", "{dim = [1]}")
        elif choice == 8:
            start = rng.randrange(N + 1)
            self.emit("nd.slice", [(pick("wide"), "wide")], "square", f"{{starts = [0, {start}], steps = [1, 1]}}")
        elif choice == 9:
            operands = [(pick("wide"), "wide"), (pick("square"), "square")]
            self.emit("nd.slice_scatter", operands, "wide", f"{{starts = [0, {rng.randrange(2)}], steps = [1, 2]}}")
        elif choice == 10:
            how = rng.choice(["sum", "max"])
            row = self.emit("nd.reduce", [(pick("square"), "square")], "row", f'{{kind = "{how}", dims = [{rng.randrange(2)}]}}')
            self.emit("nd.sub", [(pick("square"), "square"), (row, "row")], "square")
        elif choice == 11:
            self.emit("nd.matmul", [(pick("square"), "square"), (pick("square"), "square")], "square")
        elif choice == 12:
            strides = rng.choice([f"[{self.n}, 1]", f"[1, {self.n}]"])
            layout = f"operand_layouts = [#nd.layout<{strides}, 0>], result_layouts = [#nd.layout<{strides}, 0>]"
            call = f'{{call = #nd.call<"aten.cumsum.default", [arg(0), 1]>, {layout}}}'
            self.emit("nd.extern", [(pick("square"), "square")], "square", call)
        else:
            call = '{call = #nd.call<"aten.relu_.default", [arg(0)]>, mutates = [0]}'
            self.emit("nd.extern", [(pick("square"), "square")], "square", call)

    def function(self, steps: int) -> str:
        """The text of a module, whose function takes two square matrices (the second one transposed) and a wide one."""
        rng = self.rng
        arguments = [
            ("%a", "square", f"[{self.n}, 1]"),
            ("%b", "square", f"[1, {self.n}]"),
            ("%c", "wide", f"[{self.double} + 1, 1]"),
        ]
        for name, kind, _ in arguments:
            self.values[kind].append(name)
        self.emit("nd.reshape", [("%a", "square")], "flat")
        for _ in range(steps):
            self.step()
        for name, kind, _ in arguments:
            if rng.randrange(2):
                self.lines.append(f"nd.update {name}, {self.pick(kind)} : ({self.type(kind)}, {self.type(kind)}) -> ()")
        results = [(self.pick(kind), kind) for kind in rng.choices(["square", "square", "flat", "wide"], k=rng.randrange(1, 4))]
        layouts = {
            "square": [f"[{self.n}, 1]", f"[1, {self.n}]"],
            "flat": ["[1]"],
            "wide": [f"[{self.double}, 1]", f"[1, {self.n}]"],
        }
        given = ", ".join(f"{n}: {self.type(k)} {{nd.layout = #nd.layout<{s}, 0>}}" for n, k, s in arguments)
        returned = ", ".join(f"{self.type(k)} {{nd.layout = #nd.layout<{rng.choice(layouts[k])}, 0>}}" for _, k in results)
        values = ", ".join(v for v, _ in results) + " : " + ", ".join(self.type(k) for _, k in results)
        body = "\n    ".join([*self.lines, f"func.return {values}"])
        return f"{HEADER}\n  func.func @forward({given}) -> ({returned}) {{\n    {body}\n  }}\n}}\n"


def inputs(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(N, N, generator=generator), torch.randn(N, N, generator=generator).t()
    c = torch.randn(N, 2 * N + 1, generator=generator)[:, 1:]
    return [a, b, c]


@pytest.mark.spread
@pytest.mark.parametrize("seed", [*range(30), 2051, 2195, 2386, 9136])
@pytest.mark.parametrize("sizes", SIZES)
def test_levels_agree(level, seed, sizes):
    text = Writer(seed, sizes).function(steps=4 + seed % 17)
    print(f"seed {seed}\n{text}")
    expected_inputs = inputs(seed)
    expected = run_nd(Parser(level.ctx, text).parse_module(), expected_inputs)
    for passes in ("nd-to-loop", "nd-to-loop,loop-fuse", "nd-canonicalize,nd-to-loop,loop-fuse"):
        module = Parser(level.ctx, text).parse_module()
        run(
            parse_pipeline(f"{passes},loop-to-mem,mem-plan"),
            module,
            level.ctx,
            Instrumentation(verify_each=True),
        )
        for order in ("forward", "reverse"):
            given = inputs(seed)
            results = run_loop(module, given, order=order)
            for a, b in zip([*results, *given], [*expected, *expected_inputs], strict=True):
                assert a.stride() == b.stride()
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            memory = [r.untyped_storage().data_ptr() for r in results] + [g.untyped_storage().data_ptr() for g in given]
            assert len(set(memory)) == len(memory), "results are fresh memory"


@pytest.mark.spread
@pytest.mark.parametrize("seed", [*range(12), 49, 57, 167])
@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_of_a_gpu_agree(seed, sizes):
    """The interpreter refuses kernels whose threads or programs race."""
    text = Writer(seed, sizes).function(steps=4 + seed % 23)
    print(f"seed {seed}\n{text}")
    expected_inputs, given = inputs(seed), inputs(seed)
    expected = run_nd(Parser(context(), text).parse_module(), expected_inputs)
    module = Parser(context(), text).parse_module()
    run(default_pipeline("gpu", stages=("nd", "loop", "mem", "tt")), module, context())
    for a, b in zip([*run_loop(module, given), *given], [*expected, *expected_inputs], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
