"""What is left to the library, against Inductor: `stepwell bench calls [--device cuda] [--jobs N] [--cases FILE]`.

Every operator of torch's table (`op_db`) is traced with its own samples in each dtype, forward and backward. What our rules leave to the
library is counted as the graphs are imported; only where that is something, Inductor's lowering and schedule of the same graphs say what it
calls there. Neither compiles its kernels. A call of ours that Inductor does not make is an operator (in that dtype) for which it has code
of its own, or takes apart.

The table goes between two marks of docs/reference/opinfo.md with `--markdown docs/reference/opinfo.md`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BEGIN, END = "<!-- calls: begin -->", "<!-- calls: end -->"
DTYPES = "float32 float64 bfloat16 float16 complex64 complex128 complex32 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool"
_CHUNK = 40
"""Cases of one process."""
_SECONDS = 120
"""A case that takes longer ends its process."""
_MOVES = frozenset("view_as_real view_as_complex _to_copy clone copy_ _conj _neg_view resolve_conj set_ lift_fresh_copy detach".split())
"""Calls that compute nothing."""


def calls(only: Sequence[str], device: str, jobs: int, samples: int, dtypes: Sequence[str], kept: str = "") -> dict[str, Any]:
    """Count, print and return {"cases": {"OPERATOR|DTYPE": {"stepwell": [...], "inductor": [...]}}, "device", "torch"}.

    `kept` is a file with a line of JSON for each case: cases are added as they are found, and those that it has are not counted again.
    """
    import torch

    cases = _read(kept) if kept and os.path.exists(kept) else {}
    worklist = [
        (name, str(dtype)[6:])
        for name, (_, supported) in _table(device).items()
        if not only or any(o in name for o in only)
        for dtype in supported
        if str(dtype)[6:] in dtypes and f"{name}|{str(dtype)[6:]}" not in cases
    ]
    random.Random(0).shuffle(worklist)  # what is not reached is no family of operators
    worklist.sort(key=lambda case: dtypes.index(case[1]))
    with open(kept or os.devnull, "a") as f, ThreadPoolExecutor(jobs) as pool:

        def found(key: str, row: dict[str, Any]) -> None:
            cases[key] = row
            f.write(json.dumps([key, row]) + "\n")
            f.flush()

        f.write("\n")  # ends a line that was cut off
        chunks = [worklist[k : k + _CHUNK] for k in range(0, len(worklist), _CHUNK)]
        for _ in pool.map(lambda chunk: _count(chunk, {"device": device, "samples": samples}, found), chunks):
            print(f"{len(cases)} cases", flush=True)
    results = {"cases": cases, "device": device, "torch": torch.__version__.partition("+")[0]}
    print(markdown(results))
    return results


def _read(path: str) -> dict[str, dict[str, Any]]:
    """The cases of a file; a last line that was cut off is left out."""
    with open(path) as f:
        return dict(json.loads(line) for line in f if line.endswith("}]\n"))


def _count(cases: Sequence[tuple[str, str]], task: dict[str, Any], found: Callable[[str, dict[str, Any]], None]) -> None:
    """Have a process count cases (operator, dtype); the case in which it ends is an error, and another process takes the rest."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    left = list(cases)
    while left:
        command = [sys.executable, "-m", "stepwell.tools.bench.calls", json.dumps({**task, "cases": left})]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                found(*json.loads(line))
                del left[0]
        if left:
            found("|".join(left.pop(0)), {"error": f"the process ended with {process.returncode}"})


# ---- the page


def alone(row: dict[str, Any]) -> list[str]:
    """The calls of a case that Inductor does not make."""
    return sorted(set(row["stepwell"]) - set(row["inductor"]))


def generated(row: dict[str, Any]) -> bool:
    """Whether all that Inductor calls in a case are moves: the rest is code of its own."""
    return all(call.rpartition(".")[2] in _MOVES or call.startswith("aten.view") for call in row["inductor"])


def markdown(results: dict[str, Any]) -> str:
    """The section of the page: a table by dtype, and one of the calls that Inductor does not make."""
    by_dtype: dict[str, list[dict[str, Any]]] = defaultdict(list)
    extra: dict[tuple[str, bool], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, row in results["cases"].items():
        if "error" in row:
            continue
        name, _, dtype = key.rpartition("|")
        by_dtype[dtype].append(row)
        for call in alone(row):
            extra[call, generated(row)][dtype].append(name)
    lines = [
        f"Counted by `stepwell bench calls` with torch {results['torch']}, {results['device']}.", "",
        "| dtype | cases | no call of the library | Inductor makes the same calls | Inductor makes other calls | Inductor makes none |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for dtype in [d for d in DTYPES.split() if d in by_dtype]:
        rows = by_dtype[dtype]
        none, more = sum(not r["stepwell"] for r in rows), [r for r in rows if alone(r)]
        own = sum(map(generated, more))
        lines.append(f"| {dtype} | {len(rows)} | {none} | {len(rows) - none - len(more)} | {len(more) - own} | {own} |")
    lines += ["", "| call that Inductor does not make | Inductor instead | in the cases | dtypes |", "|---|---|---|---|"]
    for (call, own), dtypes in sorted(extra.items(), key=lambda item: (not item[0][1], item[0][0])):
        names = sorted({n for found in dtypes.values() for n in found})
        shown = " ".join(f"`{n}`" for n in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        instead = "code of its own" if own else "other calls"
        lines.append(f"| `{call}` | {instead} | {shown} | {' '.join(d for d in DTYPES.split() if d in dtypes)} |")
    return "\n".join(lines)


def write(results: dict[str, Any], path: str) -> None:
    """Put the section between the marks of a page."""
    with open(path) as f:
        before, _, rest = f.read().partition(BEGIN)
    with open(path, "w") as f:
        f.write(f"{before}{BEGIN}\n{markdown(results)}\n{END}{rest.partition(END)[2]}")


# ---- in the process of a chunk


def _table(device: str) -> dict[str, tuple[Any, list[Any]]]:
    """Name -> torch's description of the operator, and its dtypes on a device."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {
        f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: (
            op,
            [d for d in sorted(op.supported_dtypes(device), key=str) if str(d)[6:] in DTYPES.split()],
        )
        for op in op_db
    }


def _work(task: dict[str, Any]) -> None:
    """Count the cases of some operators, one line of JSON each."""
    import torch
    import torch._dynamo
    from torch.testing._internal import common_methods_invocations

    invocations: Any = common_methods_invocations
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    invocations.wrapper_set_seed = lambda op, *a, **k: op(*a, **k)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the counted code prints goes to stderr
    table = _table(task["device"])
    for name, dtype in task["cases"]:
        torch.manual_seed(0)
        signal.alarm(_SECONDS)
        print(json.dumps([f"{name}|{dtype}", _case(table[name][0], getattr(torch, dtype), task)]), file=out, flush=True)


def _case(op: Any, dtype: Any, task: dict[str, Any]) -> dict[str, Any]:
    """The calls of one operator in one dtype, over its samples."""
    row: dict[str, Any] = {"stepwell": set(), "inductor": set()}
    tried = 0
    try:
        for run in _samples(op, dtype, task):
            ours = _by_stepwell(run)
            tried += 1
            row["stepwell"] |= ours
            if ours:
                row["inductor"] |= _by_inductor(run)
    except Exception as error:  # one case must not end the others
        text = str(error).strip().splitlines() or [""]
        return {"error": f"{type(error).__name__}: {text[0][:160]}"}
    return {k: sorted(v) for k, v in row.items()} if tried else {"error": "eager computes none of the samples"}


Run = Callable[[Any], None]
"""Runs a sample by torch.compile with a backend, and its gradient."""


def _samples(op: Any, dtype: Any, task: dict[str, Any]) -> Iterator[Run]:
    import torch
    from torch.utils import _pytree as pytree

    device, kind = task["device"], torch.device(task["device"]).type
    gradient = op.supports_autograd and dtype in op.supported_backward_dtypes(kind)
    found = [s for _, s in zip(range(40), op.sample_inputs(device, dtype, requires_grad=gradient), strict=False)]
    for sample in found[:: max(1, len(found) // task["samples"])][: task["samples"]]:

        def given(sample: Any = sample) -> tuple[list[Any], dict[str, Any]]:
            return pytree.tree_map_only(
                torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), ([sample.input, *sample.args], sample.kwargs)
            )

        try:
            args, kwargs = given()
            op(*args, **kwargs)
        except Exception:  # noqa: S112 - torch itself cannot
            continue

        def run(backend: Any, given: Any = given, sample: Any = sample) -> None:
            torch._dynamo.reset()
            args, kwargs = given()
            options: Any = {"fx_graph_cache": False} if backend == "inductor" else None
            result = torch.compile(lambda *a, **k: op(*a, **k), backend=backend, dynamic=False, options=options)(*args, **kwargs)
            outputs = pytree.tree_leaves(sample.output_process_fn_grad(result)) if gradient else []
            wanted = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
            leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            if wanted and leaves:
                torch.autograd.grad(wanted, leaves, [torch.ones_like(t) for t in wanted], allow_unused=True)

        yield run


def _by_stepwell(run: Run) -> set[str]:
    """The library calls that the importer writes; torch runs the graphs."""
    from ...lowering.fx_to_nd import import_graph
    from ..backend.torch_backend import GraphCompilers, border, boxed, compile_with
    from ..options.options import make_options

    found: set[str] = set()

    class Counting(GraphCompilers):
        def _compile(self, gm: Any, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
            counts = import_graph(gm, example_inputs, border=border(gm, kind), compile_body=boxed).counts
            for name in (*counts.names["extern"], *counts.names["fallback"]):
                if name.split(".")[0] in ("aten", "prims") and name.split(".")[1] not in _MOVES:
                    found.add(name.rpartition(".")[0])
            return boxed(gm)

    compilers = Counting(make_options(None, None))
    compilers.caches = False
    run(lambda gm, example_inputs: compile_with(compilers, gm, list(example_inputs)))
    return found


def _by_inductor(run: Run) -> set[str]:
    """The library calls of Inductor's schedule; its kernels do nothing."""
    from .bytes import inductor_without_compiler

    found: set[str] = set()

    def look(graph: Any) -> None:
        for node in graph.operations:
            target = getattr(node, "op_overload", None)
            if target is not None:
                found.add(str(target).rpartition(".")[0] if hasattr(target, "_overloadname") else str(target))
            elif isinstance(kernel := getattr(node, "python_kernel_name", None), str):
                found.add(kernel.replace("extern_kernels.", "aten.").replace("torch.ops.", ""))

    with inductor_without_compiler(look):
        run("inductor")
    return found


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
