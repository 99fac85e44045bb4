"""Predicted against measured times: `stepwell bench model-check [--device cuda] [--kernels-file FILE] [--only NAME]`.

Every case is compiled; the cost model prices each step of its graphs at the memory level on the machine that runs this, the CPU or the
GPU. Quoted: both times, their ratio, and the rank correlation (Spearman) over the benchmark kernels and over a spread of sizes. `FILE` is a
Python file with a table `CASES` of name -> (build, ...), where `build(device)` returns a function and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch.fx import GraphModule
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from ...dialects import loop
from ...passes.analysis.symbols import symbol_hints
from ...passes.cost.machine import Gpu, Machine, machine_of
from ...passes.cost.machine.gpu import machine as gpu_machine
from ...passes.manager.instrumentation import Remark
from ...targets.cpu.machine import host_machine
from ..backend.torch_backend import GraphCompilers, compile_with
from ..compiled.step_price import step_cost
from ..options.options import make_options
from .tables import load_table, select

Case = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass
class Predictions:
    """Adds up the predicted time of every step of the graphs that are compiled (a Watch of compile_graph)."""

    machine: Machine
    seconds: float = 0.0
    bounds: dict[str, float] = field(default_factory=dict)
    graphs: int = 0

    def graph(self, kind: str, gm: GraphModule, module: ModuleOp) -> None:
        self.graphs += 1

    def stage(self, stage: str, module: ModuleOp) -> None:
        if stage != "mem":
            return
        hints = symbol_hints(module)
        if isinstance(found := machine_of(module), Gpu):
            self.machine = found
        for func in [f for f in module.body.block.ops if isinstance(f, FuncOp) and loop.batch_symbols(f) is None]:
            for op in func.body.block.ops:
                cost = step_cost(op, hints, self.machine)
                if cost is not None:
                    self.seconds += cost.seconds
                    self.bounds[cost.bound] = self.bounds.get(cost.bound, 0.0) + cost.seconds

    def record(self, kind: str, what: object) -> None:
        pass

    def remark(self, remark: Remark) -> None:
        pass


def compiled(fn: Callable[..., Any], predictions: Predictions) -> Callable[..., Any]:
    """`fn` as torch.compile(backend="stepwell") compiles it, told to `predictions`."""
    compilers = GraphCompilers(make_options(None, None), predictions)

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with(compilers, gm, list(example_inputs))

    return torch.compile(fn, backend=backend, dynamic=False)


def cases_of_file(path: str, device: str = "cpu") -> dict[str, Callable[[], Case]]:
    """The cases of a file, see the module's docstring. SystemExit where it has none."""
    table = load_table(path, "CASES")
    builds = {name: entry[0] if isinstance(entry, tuple) else entry for name, entry in table.items()}
    return {name: partial(build, device) for name, build in builds.items()}


_SPREAD: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[torch.Tensor, ...]]]] = {
    "add": (lambda x, y: x + y, lambda r, c: (torch.randn(r, c), torch.randn(r, c))),
    "tanh": (lambda x: torch.tanh(x), lambda r, c: (torch.randn(r, c),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda r, c: (torch.randn(r, c),)),
    "sum_rows": (lambda x: x.sum(-1), lambda r, c: (torch.randn(r, c),)),
    "sum_columns": (lambda x: x.sum(0), lambda r, c: (torch.randn(c, r),)),
    "transpose": (lambda x: x.t().contiguous(), lambda r, c: (torch.randn(r, c),)),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda r, c: (torch.randn(r, c),)),
    "mul_bf16": (lambda x, y: x * y, lambda r, c: (torch.randn(r, c).bfloat16(), torch.randn(r, c).bfloat16())),
}


def spread(device: str = "cpu") -> dict[str, Callable[[], Case]]:
    """Common kernels over sizes from 16 Ki to 8 Mi elements."""

    def build(name: str, rows: int, columns: int) -> Case:
        fn, arguments = _SPREAD[name]
        return fn, tuple(x.to(device) for x in arguments(rows, columns))

    found: dict[str, Callable[[], Case]] = {}
    for power in (14, 17, 20, 23):
        rows = 1 << (power - 9) // 2
        columns = (1 << power) // rows
        found.update((f"{name}_{rows}x{columns}", partial(build, name, rows, columns)) for name in _SPREAD)
    return found


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 0, equal ones sharing the mean of theirs."""
    order = sorted(range(len(values)), key=lambda k: values[k])
    found = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for k in order[first : last + 1]:
            found[k] = (first + last) / 2
        first = last + 1
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The rank correlation of two lists of equal length; 0 where one is constant or there are fewer than two values."""
    x, y = ranks(a), ranks(b)
    middle = (len(x) - 1) / 2
    over = sum((p - middle) * (q - middle) for p, q in zip(x, y, strict=True))
    under = (sum((p - middle) ** 2 for p in x) * sum((q - middle) ** 2 for q in y)) ** 0.5
    return over / under if under else 0.0


def entry_seconds(sample: Callable[[Callable[[], Any]], float]) -> float:
    """The time of calling a compiled function that computes next to nothing."""
    torch._dynamo.reset()
    x, call = torch.ones(4), torch.compile(lambda x: x + 1, backend="stepwell", dynamic=False)
    call(x)
    return sample(lambda: call(x)) * 1e-3


def model_check(
    cases: dict[str, Callable[[], Case]],
    only: Sequence[str],
    sample: Callable[[Callable[[], Any]], float],
    with_spread: bool = True,
    device: str = "cpu",
) -> dict[str, Any]:
    """Predict and measure every case, print the table and the correlations. `sample` gives milliseconds of a call, on a GPU those of its
    kernels alone."""
    groups = [("kernels", dict(cases)), ("sizes", spread(device) if with_spread else {})]
    chosen = select([name for _, table in groups for name in table], only)
    machine, entry = _gpu(device) if device == "cuda" else _cpu(sample)
    found: dict[str, Any] = {"cases": {}, "correlation": {}}
    print(f"{'case':36}{'predicted us':>14}{'measured us':>14}{'ratio':>8}  bound")
    config: Any = torch._dynamo.config
    with config.patch(trace_autograd_ops=True) if hasattr(config, "trace_autograd_ops") else config.patch():
        for group, table in groups:
            rows = []
            for name, build in table.items():
                if name not in chosen:
                    continue
                row = _case(build, machine, entry, sample)
                rows.append(row)
                found["cases"][name] = row
                ratio = row["predicted_us"] / row["measured_us"]
                print(f"{name:36}{row['predicted_us']:14.1f}{row['measured_us']:14.1f}{ratio:8.2f}  {row['bound']}", flush=True)
            if len(rows) > 2:
                value = spearman([r["predicted_us"] for r in rows], [r["measured_us"] for r in rows])
                found["correlation"][group] = value
                print(f"rank correlation over {len(rows)} {group}: {value:.3f}")
    return found


def _cpu(sample: Callable[[Callable[[], Any]], float]) -> tuple[Machine, float]:
    """This machine, and the seconds of calling a graph."""
    entry = entry_seconds(sample)
    machine = replace(host_machine(torch.get_num_threads()), entry_ns=entry * 1e9)
    levels = ", ".join(f"{level.name} {level.gbs:.0f} GB/s" for level in machine.levels[1:])
    print(f"machine: {machine.gflops:.0f} Gflop/s, bf16 {machine.half_gflops:.0f}; {levels}; a call of a graph {entry * 1e6:.1f} us")
    return machine, entry


def _gpu(device: str) -> tuple[Machine, float]:
    """The GPU; a graph's kernels alone are timed."""
    from ...targets.triton.kernels import device_memory_gbs, device_multiprocessors, device_target

    machine = gpu_machine(device_target(device).name, device_multiprocessors(device), memory_gbs=device_memory_gbs(device))
    rates = machine.rates
    speed = f"bf16 {rates.tflops['bf16']} Tflop/s, memory {rates.memory_gbs} GB/s, a kernel starts in {rates.start_us} us"
    print(f"machine: {rates.card}, {speed}")
    return machine, 0.0


def _case(build: Callable[[], Case], machine: Machine, entry: float, sample: Callable[[Callable[[], Any]], float]) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    fn, args = build()
    predictions = Predictions(machine)
    call = compiled(fn, predictions)
    call(*args)
    measured = sample(lambda: call(*args)) * 1e3
    predicted = predictions.seconds + entry * max(1, predictions.graphs)
    bound = max(predictions.bounds, key=lambda b: predictions.bounds[b], default="launch")
    return {"predicted_us": predicted * 1e6, "measured_us": measured, "bound": bound}
