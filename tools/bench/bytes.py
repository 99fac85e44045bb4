"""Bytes moved by stepwell against Inductor: `stepwell bench bytes [--kernels-file FILE] [--models-file FILE]`.

Each backend compiles the cases in a process of its own. Both are counted by the same rules, from what they would run: a generated kernel
reads and writes each element that it touches once (different accesses of a tensor are added up, to at most the tensor; stepwell's own
count knows which of them coincide); a matrix product or library call moves its operands whole, and those results that something reads.
Two totals are shown: the generated kernels alone, and everything. Products count as library calls in both, also where generated code
computes them and does something with their results on the way (what that reads and writes besides is in their bytes).

`--kernels-file`: a Python file with a table `CASES` of name -> (build, ...); `build("cpu")` returns a function and its arguments.
`--models-file`: one with a table `MODELS` of name -> build; `build("tiny")` returns a module, arguments, keyword arguments: its
forward and backward graphs are counted. Inductor schedules and writes its kernels but compiles none: they do nothing when they are called.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from .tables import load_table

BACKENDS = ("stepwell", "inductor")
PARTS = ("kernels", "calls")


def compare(kernels_file: str | None, models_file: str | None, only: Sequence[str]) -> dict[str, Any]:
    """Count both backends, print the table, and return {"cases": {name: {backend: {part: bytes}}}, "above": [...], ...}."""
    counted = {backend: _count_in_process(backend, kernels_file, models_file, only) for backend in BACKENDS}
    if not any(counted.values()):
        raise SystemExit("error: nothing was counted")
    names = list(dict.fromkeys(name for table in counted.values() for name in table))
    rows: dict[str, Any] = {}
    above: list[str] = []
    totals = {kind: {backend: {part: 0.0 for part in PARTS} for backend in BACKENDS} for kind in ("kernel", "model")}
    print(f"{'':36}{'generated kernels, MB':^32}{'with calls, MB':^32}")
    print(f"{'case':36}{'stepwell':>12}{'inductor':>12}{'ratio':>8}{'stepwell':>12}{'inductor':>12}{'ratio':>8}")
    for name in names:
        row = {backend: counted[backend].get(name, {"error": "not counted"}) for backend in BACKENDS}
        rows[name] = row
        bad = [f"{backend}: {entry['error']}" for backend, entry in row.items() if "error" in entry]
        if bad:
            print(f"{name:36}{'; '.join(bad)}")
            continue
        kind = "model" if name.startswith("model ") else "kernel"
        for backend in BACKENDS:
            for part in PARTS:
                totals[kind][backend][part] += row[backend][part]
        print(_line(name, row), flush=True)
        ours, theirs = (sum(row[backend][part] for part in PARTS) for backend in BACKENDS)
        if ours > theirs * 1.0001:
            above.append(name)
    for kind, row in totals.items():
        if any(row["inductor"].values()):
            print(_line(f"all {kind}s", row))
    print(f"more than inductor: {', '.join(above) or 'none'}")
    return {"cases": rows, "totals": totals, "above": above}


def _line(name: str, row: dict[str, dict[str, float]]) -> str:
    text = f"{name:36}"
    for parts in (("kernels",), PARTS):
        ours, theirs = (sum(row[backend][part] for part in parts) / 1e6 for backend in BACKENDS)
        text += f"{ours:12.3f}{theirs:12.3f}" + (f"{ours / theirs:8.2f}" if theirs else f"{'-':>8}")
    return text


def _count_in_process(backend: str, kernels_file: str | None, models_file: str | None, only: Sequence[str]) -> dict[str, Any]:
    """The counts of one backend, from a process of its own."""
    task = json.dumps({"backend": backend, "kernels": kernels_file, "models": models_file, "only": list(only)})
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "STEPWELL_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, "-m", "stepwell.tools.bench.bytes", task]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    if done.returncode:
        print(f"{backend}: the process ended with {done.returncode}; {len(found)} cases were counted", file=sys.stderr)
    return found


# ---- in the process of a backend


def _work(task: dict[str, Any]) -> None:
    """Count every case, one line of JSON each."""
    import torch
    import torch._dynamo

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the counted code prints goes to stderr
    logging.getLogger("stepwell").setLevel(logging.ERROR)
    config: Any = torch._dynamo.config
    config.allow_rnn = True
    if hasattr(config, "trace_autograd_ops"):
        config.trace_autograd_ops = True
    for name, prepare in _cases(task):
        torch._dynamo.reset()
        torch.manual_seed(0)
        try:
            counts = _COUNTERS[task["backend"]](prepare)
        except Exception as error:  # one case must not end the others
            text = str(error).strip().splitlines() or [""]
            counts = {"error": f"{type(error).__name__}: {text[0][:120]}"}
        print(json.dumps([name, counts]), file=out, flush=True)


Run = Callable[[Callable[..., Any]], None]
"""Compiles and runs a case: gets a function that wraps a callable for the backend."""


def _cases(task: dict[str, Any]) -> Iterator[tuple[str, Run]]:
    from .model_check import cases_of_file

    if task["kernels"]:
        table = cases_of_file(task["kernels"])
    elif not task["models"]:
        from .main import CASES as table
    else:
        table = {}
    for name, build in table.items():
        if not task["only"] or any(o in name for o in task["only"]):

            def kernel(wrap: Callable[..., Any], build: Callable[..., Any] = build) -> None:
                fn, args = build()
                wrap(fn)(*args)

            yield name, kernel
    if task["models"]:
        for name, build in load_table(task["models"], "MODELS").items():
            if not task["only"] or any(o in name for o in task["only"]):

                def model(wrap: Callable[..., Any], build: Callable[..., Any] = build) -> None:
                    _train(wrap, *build("tiny"))

                yield f"model {name}", model


def _train(wrap: Callable[..., Any], net: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """A forward and a backward pass with random gradients for the outputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    net.train()
    result = wrap(net)(*args, **kwargs)
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.autograd.backward(outputs, [torch.randn_like(t) for t in outputs])


class _Traffic:
    """Adds up the bytes of stepwell's graphs (a Watch of compile_graph)."""

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(PARTS, 0)
        self.graphs = 0

    def graph(self, kind: str, gm: Any, module: Any) -> None:
        self.graphs += 1

    def stage(self, stage: str, module: Any) -> None:
        from ...dialects import loop, mem
        from ..compiled.traffic import steps, unread_bytes

        if stage == "mem":
            for op, read, written in steps(module):
                if isinstance(op, mem.ExternOp):
                    written -= unread_bytes(module, op)
                self.bytes["calls" if isinstance(op, loop.ContractOp | mem.ExternOp) else "kernels"] += read + written

    def record(self, kind: str, what: object) -> None:
        pass

    def remark(self, remark: Any) -> None:
        pass


def _count_stepwell(run: Run) -> dict[str, Any]:
    import torch

    from ..backend.torch_backend import GraphCompilers, compile_with
    from ..options.options import make_options

    traffic = _Traffic()
    compilers = GraphCompilers(make_options(None, None), traffic)  # pyright: ignore[reportArgumentType]

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with(compilers, gm, list(example_inputs))

    run(lambda fn: torch.compile(fn, backend=backend, dynamic=False))
    return {**traffic.bytes, "graphs": traffic.graphs}


def _count_inductor(run: Run) -> dict[str, Any]:
    import torch

    found = {**dict.fromkeys(PARTS, 0), "graphs": 0}

    def look(graph: Any) -> None:
        for node in graph.scheduler.nodes:
            part, size = _node_bytes(graph, node)
            found[part] += size
        found["graphs"] += 1

    with inductor_without_compiler(look):
        run(lambda fn: torch.compile(fn, backend="inductor", dynamic=False, options={"fx_graph_cache": False, "compile_threads": 1}))
    return found


_COUNTERS: dict[str, Callable[[Run], dict[str, Any]]] = {"stepwell": _count_stepwell, "inductor": _count_inductor}


class _Nothing:
    """A kernel that does nothing, called or launched."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        pass

    run = __call__


@contextmanager
def inductor_without_compiler(look: Callable[[Any], None]) -> Iterator[None]:
    """Inductor as torch.compile runs it, but for its kernels, which do nothing; `look` gets each graph after it was scheduled."""
    from unittest import mock

    with ExitStack() as stack:
        for name in ("cpp_pybinding", "cpp", "triton"):
            stack.enter_context(mock.patch(f"torch._inductor.async_compile.AsyncCompile.{name}", lambda *a, **k: _Nothing()))
        patch = mock.patch("torch._inductor.graph.GraphLowering.compile_to_module", autospec=True)
        original = patch.get_original()[0]

        def compile_to_module(graph: Any) -> Any:
            module = original(graph)
            look(graph)
            return module

        stack.enter_context(patch).side_effect = compile_to_module
        yield


def _is(value: Any, *names: str) -> bool:
    """Whether a class of one of these names is among the classes of a value."""
    return any(c.__name__ in names for c in type(value).__mro__)


def _node_bytes(graph: Any, node: Any) -> tuple[str, int]:
    """("kernels" or "calls", bytes read and written) of a node of Inductor's schedule."""

    def size(buffer: Any) -> int:
        """Bytes of a buffer or view, 0 for what is none."""
        try:
            numel = graph.sizevars.optimization_hint(buffer.get_numel(), fallback=0)
            return int(numel) * buffer.get_dtype().itemsize
        except (AttributeError, NotImplementedError):
            return 0

    def accessed(dep: Any) -> int:
        """Bytes of an access; at a computed index one element for each iteration of its loops (the access itself names only the loops
        that its index has left, the schedule reckons with the whole tensor)."""
        if not (hasattr(dep, "is_indirect") and dep.is_indirect()):
            return graph.get_dep_size_hint(dep)
        loops = [part.group[1] for part in parts if dep in part.read_writes.reads or dep in part.read_writes.writes]
        sizes = [[n for group in nest for n in group] for nest in loops] or [dep.size]
        numel = max(prod(graph.sizevars.optimization_hint(n, fallback=1) for n in one) for one in sizes)
        return int(numel) * graph.get_dtype(dep.name).itemsize

    if _is(node, "NopKernelSchedulerNode"):
        return "kernels", 0
    if _is(node, "ExternKernelSchedulerNode"):
        kernel = node.node
        if _is(kernel, "MultiOutput"):
            return "calls", size(kernel)  # the results of the call that it is a part of
        inputs = [one for one in kernel.inputs if one is not None]
        made = 0 if _is(kernel.layout, "MultiOutputLayout", "NoneLayout") else size(kernel)
        return "calls", sum(size(one) for one in inputs) + made + sum(size(graph.get_buffer(n)) for n in kernel.get_mutation_names())
    reads, writes = node.read_writes.reads, node.read_writes.writes
    parts = getattr(node, "snodes", [node])
    inside: set[str] = set()
    if _is(node, "FusedSchedulerNode"):
        own = set(parts)
        names = {dep.name for dep in writes}
        inside = {n for n in names if not {u.node for u in node.scheduler.name_to_buf[n].users} - own}
    total = 0
    for deps in (reads, writes):
        by_name: dict[str, int] = {}
        for dep in deps:
            if dep.name not in inside:
                by_name[dep.name] = by_name.get(dep.name, 0) + accessed(dep)
        for name, most in by_name.items():
            buffer = graph.name_to_buffer.get(name) or graph.graph_inputs.get(name)
            total += min(most, size(buffer)) if buffer is not None and size(buffer) else most
    return "kernels", total


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
