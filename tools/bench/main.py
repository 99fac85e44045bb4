"""Speed, measured: `stepwell bench [WHAT] [--only NAME] [--json FILE] [--markdown FILE]`, WHAT one of:

kernels   fused kernels on the CPU: eager, stepwell and (where a C++ compiler exists) Inductor in turn, in one process; the figure of a
          backend is the 10th percentile of its samples, the quoted ratio the median over rounds.
compile   cold compile of a 12-layer BERT-like encoder: seconds by phase and microseconds per operator, beside Dynamo and AOTAutograd alone.
planner   processor time of the passes, and of the fusion plan alone, per node for chains of 100, 1,000 and 10,000 operators.
model-check  predicted against measured times, and their rank correlation (model_check.py); `--kernels-file FILE` for other cases.
bytes     bytes moved against Inductor, by kernel and over the training graphs of models (bytes.py).
nests     the nests of kernels and of training graphs, and why those that share data stay apart (nests.py).
memory    peak memory of steps against eager, over the models of --models-file (memory.py).
compiler-memory  memory that compiling takes, against Dynamo and AOTAutograd alone and Inductor (compiler_memory.py).
overhead  what a call of a tiny graph costs the host, by layer, against eager and Inductor (overhead.py).
calibrate the rates of --device (calibrate.py); `--out FILE` puts those of a GPU into a file like passes/cost/machine/gpus.json.
package   packages against AOTInductor: export, size, load, first call, call, over the models of --models-file (package.py).
calls     what is left to the library against Inductor, over torch's table of operators (calls.py).
report    the kernels of --kernels-file on --device: table, figures and picture (report.py).

Figures are ratios within one run: machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from ..compiled.counters import counters, reset_counters
from .tables import select

WHAT = (
    "kernels", "compile", "planner", "model-check", "calibrate", "bytes", "nests", "memory", "compiler-memory", "overhead", "calls",
    "report", "package",
)  # fmt: skip

CASES: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {}


def case(build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Register a benchmark: `build()` gives a function and its arguments."""
    CASES[build.__name__] = build
    return build


@case
def gelu_chain():
    x, y = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return lambda x, y: F.gelu(x) * y + x, (x, y)


@case
def gelu_chain_bf16():
    x, y = torch.randn(1024, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16()
    return lambda x, y: F.gelu(x) * y + x, (x, y)


@case
def softmax_rows():
    return lambda x: torch.softmax(x, -1), (torch.randn(1024, 1024),)


@case
def add_layer_norm():
    x, y, w, b = torch.randn(1024, 768), torch.randn(1024, 768), torch.randn(768), torch.randn(768)

    def fn(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + y
        return F.layer_norm(h, (768,), w, b), h

    return fn, (x, y, w, b)


@case
def rms_norm_bf16():
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    return fn, (torch.randn(512, 2048).bfloat16(), torch.randn(2048).bfloat16())


@case
def group_norm_silu():
    return lambda x, w, b: F.silu(F.group_norm(x, 16, w, b)), (torch.randn(2, 64, 32, 32), torch.randn(64), torch.randn(64))


@case
def column_sum():
    return lambda x: (x * 2 + 1).sum(0), (torch.randn(2048, 1024),)


@case
def transpose_add():
    return lambda x, y: x + y.t(), (torch.randn(1024, 1024), torch.randn(1024, 1024))


@case
def rotary():
    def fn(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        return q * c + torch.cat([-b, a], -1) * s

    return fn, (torch.randn(1, 8, 256, 64), torch.randn(256, 64), torch.randn(256, 64))


@case
def embedding_norm():
    table, index = torch.randn(5000, 512), torch.randint(0, 5000, (4, 128))
    return lambda e, i: F.layer_norm(F.embedding(i, e), (512,)), (table, index)


@case
def max_pool():
    return lambda x: F.max_pool2d(x.relu(), 3, 2, 1), (torch.randn(4, 32, 56, 56),)


@case
def running_sum():
    return lambda x: x.cumsum(-1), (torch.randn(512, 2048),)


@case
def arg_max():
    return lambda x: (x * 0.5).argmax(-1), (torch.randn(512, 4096),)


@case
def linear_gelu():
    return lambda x, w, b: F.gelu(F.linear(x, w, b)), (torch.randn(128, 768), torch.randn(3072, 768), torch.randn(3072))


@case
def small_layers():
    ws = [torch.randn(64, 64) for _ in range(10)]

    def fn(x: torch.Tensor, *ws: torch.Tensor) -> torch.Tensor:
        for w in ws:
            x = F.layer_norm(F.gelu(x @ w), (64,))
        return x

    return fn, (torch.randn(32, 64), *ws)


def sample(fn: Callable[[], Any], seconds: float = 0.1) -> float:
    """The 10th percentile of the time of `fn` in milliseconds over about `seconds`."""
    fn()
    start = time.perf_counter()
    fn()
    once = time.perf_counter() - start
    times: list[float] = []
    for _ in range(max(5, min(2000, int(seconds / max(once, 1e-6))))):
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    times.sort()
    return times[len(times) // 10] * 1e3


def backends() -> list[str]:
    """eager, stepwell, and inductor where it can work."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    return ["eager", "stepwell", *(["inductor"] if compiler else [])]


def error(got: Any, want: Any) -> float:
    """Largest relative error in norm over the tensors of a result."""
    pairs = zip(*(pytree.tree_leaves(x) for x in (got, want)), strict=True)
    return max(((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)).item() for a, b in pairs)


def kernels(only: Sequence[str], rounds: int) -> dict[str, Any]:
    """Time every case with every backend in turn."""
    names = backends()
    rows: dict[str, Any] = {}
    print(f"{'case':20}" + "".join(f"{n + ' ms':>14}" for n in names) + f"{'cold s':>9}{'error':>10}  ratio to stepwell")
    for name in select(CASES, only):
        torch._dynamo.reset()
        torch.manual_seed(0)
        fn, args = CASES[name]()
        want, row, calls = fn(*args), {}, {}
        for backend in names:
            call = fn if backend == "eager" else torch.compile(fn, backend=backend, dynamic=False)
            start = time.perf_counter()
            got = call(*args)
            row[backend] = {"cold_s": time.perf_counter() - start, "error": error(got, want), "ms": []}
            calls[backend] = call
        for _ in range(rounds):
            for backend, call in calls.items():
                row[backend]["ms"].append(sample(lambda call=call, args=args: call(*args)))
        ratios = {n: statistics.median(a / b for a, b in zip(row[n]["ms"], row["stepwell"]["ms"], strict=True)) for n in names}
        rows[name] = {**row, "ratio": ratios}
        text = "".join(f"{statistics.median(row[n]['ms']):14.4f}" for n in names)
        shown = " ".join(f"{n} {ratios[n]:.2f}" for n in names if n != "stepwell")
        print(f"{name:20}{text}{row['stepwell']['cold_s']:9.2f}{row['stepwell']['error']:10.1e}  {shown}", flush=True)
    means = {
        n: math.exp(statistics.fmean(math.log(r["ratio"][n]) for r in rows.values())) for n in names if n != "stepwell" and rows
    }
    print("geometric mean of the speed-up over: " + ", ".join(f"{n} {v:.2f}" for n, v in means.items()))
    return {"cases": rows, "geomean": means}


class Encoder(nn.Module):
    """A BERT-like encoder with random weights."""

    def __init__(self, layers: int = 12, width: int = 256, heads: int = 4):
        super().__init__()

        def layer() -> nn.Module:
            return nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)

        self.layers = nn.ModuleList(layer() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def compile_profile() -> dict[str, Any]:
    """Cold compile of the encoder in training: where the seconds go."""
    def first_step(backend: str) -> float:
        torch._dynamo.reset()
        net = Encoder().train()
        compiled = torch.compile(net, backend=backend)
        x = torch.randn(2, 64, 256)
        start = time.perf_counter()
        compiled(x).sum().backward()
        return time.perf_counter() - start

    torch.compile(lambda x: x + 1, backend="stepwell")(torch.ones(4))
    floor = first_step("aot_eager")
    reset_counters()
    whole = first_step("stepwell")
    seconds: dict[str, float] = dict(counters["compile_seconds"])
    nodes = counters["ops"]
    print(f"Dynamo and AOTAutograd alone {floor:.2f} s, with stepwell {whole:.2f} s")
    print(f"{nodes} operators, {counters['kernels']} kernels")
    for phase, spent in seconds.items():
        print(f"  {phase:8} {spent * 1e3:8.1f} ms {spent / max(nodes, 1) * 1e6:8.1f} us/op")
    print(f"  all      {sum(seconds.values()) * 1e3:8.1f} ms {sum(seconds.values()) / max(nodes, 1) * 1e6:8.1f} us/op")
    return {"floor_s": floor, "whole_s": whole, "operators": nodes, "phases_s": seconds}


def _chain(steps: int) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor]:
        for k in range(steps):
            x = torch.relu(x * 1.5 + k) - x.sum(-1, keepdim=True)
        return (x,)

    return fn


def planner() -> dict[str, Any]:
    """Processor time of the passes of the nd and loop stages, and of the fusion plan alone, on graphs of growing size."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from ...lowering.fx_to_nd import import_graph
    from ...passes.loop.fusion import loop_fuse
    from ...passes.manager.pass_manager import run
    from ...passes.manager.pipelines import default_pipeline
    from ..backend.compile_graph import context
    from ..compiled.compiled import rare_garbage_collection

    plan_seconds: list[float] = []

    def plan_timed(*args: Any) -> Any:
        start = time.process_time()
        found = plan_with_directives(*args)
        plan_seconds.append(time.process_time() - start)
        return found

    rows: dict[str, Any] = {}
    plan_with_directives, loop_fuse.plan_with_directives = loop_fuse.plan_with_directives, plan_timed
    try:
        for count in (100, 1000, 10000):
            gm = make_fx(_chain(count // 5))(torch.randn(16, 32))
            with rare_garbage_collection():
                module = import_graph(gm, [torch.randn(16, 32)]).module
                start = time.process_time()
                run(default_pipeline("cpu", stages=["nd", "loop"]), module, context())
                spent = time.process_time() - start
            nodes, plan = len(gm.graph.nodes), plan_seconds[-1]
            rows[str(count)] = {"nodes": nodes, "seconds": spent, "plan_seconds": plan}
            print(f"{nodes:6} nodes {spent:8.3f} s {spent / nodes * 1e3:8.3f} ms a node, planning {plan / nodes * 1e3:.3f}", flush=True)
    finally:
        loop_fuse.plan_with_directives = plan_with_directives
    return rows


def markdown(results: dict[str, Any]) -> str:
    """The report of a run of `kernels`."""
    import platform

    names = list(next(iter(results["cases"].values()))["ratio"])
    lines = [
        "# Speed on the CPU", "",
        f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} thread(s), {platform.machine()}. "
        "Made by `stepwell bench kernels --threads 1 --markdown docs/benchmarks.md`. Milliseconds are 10th percentiles; "
        "ratios are medians over rounds within one process (above 1: stepwell is faster).", "",
        "| kernel | " + " | ".join([*(f"{n} ms" for n in names), *(f"{n} / stepwell" for n in names if n != "stepwell")]) + " |",
        "|---" * (2 * len(names)) + "|",
    ]  # fmt: skip
    for name, row in results["cases"].items():
        times = " | ".join(f"{statistics.median(row[n]['ms']):.4f}" for n in names)
        lines.append(f"| {name} | {times} | " + " | ".join(f"{row['ratio'][n]:.2f}" for n in names if n != "stepwell") + " |")
    means = ", ".join(f"{n}: {v:.2f}" for n, v in results["geomean"].items())
    return "\n".join([*lines, "", f"Geometric mean of the speed-up over {means}.", ""])


def report(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """Measure the kernels of a file, or take the figures of an earlier run; write the report. Of several runs: one summary."""
    from . import report as bench_report

    out = args.out or "docs/benchmarks/report"
    given = [json.loads(Path(name).read_text()) for name in args.given]
    if len(given) > 1:
        Path(out).with_suffix(".svg").write_text(bench_report.summary(given))
        return {"reports": given}
    if given:
        (results,) = given
    elif args.kernels_file:
        only = [o for o in args.only.split(",") if o]
        results = bench_report.measure(args.kernels_file, args.device, args.backends.split(","), only, args.rounds, sample)
    else:
        raise SystemExit("bench report: name the kernels with --kernels-file FILE, or a result with --from FILE")
    bench_report.write(results, out, command)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stepwell bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="kernels", choices=WHAT)
    parser.add_argument("--model-check", action="store_true", help="the same as `model-check`")
    parser.add_argument("--kernels-file", help="model-check, bytes, nests, report: a Python file with a table CASES")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="calls, report, model-check, calibrate")
    parser.add_argument("--jobs", type=int, default=1, help="calls: processes at once")
    parser.add_argument("--dtypes", default="", help="calls: names with commas")
    parser.add_argument("--samples", type=int, default=2, help="calls: samples of an operator")
    parser.add_argument("--cases", default="", help="calls: file with a line for each case, added as it is found and not counted again")
    parser.add_argument("--backends", default="inductor,stepwell", help="report: names with commas; NAME:MODE gives torch.compile a mode")
    parser.add_argument("--out", default="", help="report: path without suffix of what is written; calibrate: file of GPUs to write to")
    given = "report: figures of an earlier run (JSON), instead of a run; several: one summary"
    parser.add_argument("--from", dest="given", action="append", default=[], help=given)
    parser.add_argument("--models-file", help="bytes, nests, memory, compiler-memory, package: a Python file with a table MODELS")
    parser.add_argument("--only", default="", help="names of cases, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="torch.set_num_threads (0: leave)")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--markdown", help="write the table of `kernels`, `package` to this file; calls: between the marks of this page")
    args = parser.parse_args(argv)
    if args.model_check:
        args.what = "model-check"
    if args.threads:
        torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEPWELL_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        if args.what == "kernels":
            results = kernels([o for o in args.only.split(",") if o], args.rounds)
        elif args.what == "bytes":
            from .bytes import compare

            results = compare(args.kernels_file, args.models_file, [o for o in args.only.split(",") if o])
        elif args.what == "nests":
            from .nests import nests

            results = nests(args.kernels_file, args.models_file, [o for o in args.only.split(",") if o])
        elif args.what == "memory":
            from .memory import memory

            results = memory([o for o in args.only.split(",") if o], args.models_file)
        elif args.what == "compiler-memory":
            from .compiler_memory import compiler_memory

            named = ["aot_eager", *(n for n in backends() if n != "eager")]
            results = compiler_memory([o for o in args.only.split(",") if o], args.models_file, named)
        elif args.what == "package":
            from .package import markdown as package_table
            from .package import package

            results = package([o for o in args.only.split(",") if o], args.models_file, args.rounds)
            if args.markdown:
                Path(args.markdown).write_text(package_table(results))
        elif args.what == "overhead":
            from .overhead import overhead

            results = overhead([o for o in args.only.split(",") if o], backends(), 20 * args.rounds)
        elif args.what == "calls":
            from .calls import DTYPES, calls, write

            dtypes = args.dtypes.split(",") if args.dtypes else DTYPES.split()
            results = calls([o for o in args.only.split(",") if o], args.device, args.jobs, args.samples, dtypes, args.cases)
            if args.markdown:
                write(results, args.markdown)
        elif args.what == "report":
            results = report(args, " ".join(["stepwell bench", *(argv if argv is not None else sys.argv[1:])]))
        elif args.what == "model-check":
            from .model_check import cases_of_file, model_check
            from .report import device_clock

            cases = cases_of_file(args.kernels_file, args.device) if args.kernels_file else {} if args.device == "cuda" else dict(CASES)
            only = [o for o in args.only.split(",") if o]
            results = model_check(cases, only, device_clock(args.device, sample), device=args.device)
        elif args.what == "calibrate":
            from .calibrate import calibrate, replace_entry
            from .report import device_clock

            results = calibrate(args.device, device_clock(args.device, sample))
            if args.out and args.device == "cuda":
                replace_entry(args.out, results)
        else:
            results = compile_profile() if args.what == "compile" else planner()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)
    if args.markdown and args.what == "kernels":
        with open(args.markdown, "w") as f:
            f.write(markdown(results))
    return 0
