"""Packages against AOTInductor: `stepwell bench package --models-file FILE.py [--only NAMES] [--rounds N] [--markdown FILE]`.

FILE.py defines `MODELS`: name -> function of "tiny" that returns a module, its positional and its keyword arguments. Without one, a small
model of this file is measured. Each step runs in a process of its own, with empty caches:

export   seconds from the program of `torch.export` (whose own time is a column beside) to the file; `cpu` are those of processors, with
         those of compilers that were started, which other programs on the machine disturb less
load     milliseconds to open the file in a fresh process in which torch is imported, with what the loader imports; the median of rounds
again    the same for a copy of the file in the same process: nothing is imported any more
first    milliseconds of the first call
call     milliseconds of a call, the 10th percentile

AOTInductor needs a C++ compiler; without one its columns are empty. Results are compared with eager."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .tables import load_table, select

BACKENDS = ("stepwell", "aotinductor")
_SUFFIX = {"stepwell": ".stepwell", "aotinductor": ".pt2"}
_STEPS = ("export_s", "export_cpu_s", "bytes", "load_ms", "again_ms", "first_ms", "call_ms")


class Tensors(nn.Module):
    """A model whose result is a tuple of tensors, whatever structure they were in: what opens a package need not know its class."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(leaf for leaf in pytree.tree_leaves(self.model(*args, **kwargs)) if isinstance(leaf, torch.Tensor))


def _mlp(size: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    return net, (torch.randn(4, 64),), {}


def package(only: Sequence[str], models_file: str | None, rounds: int) -> dict[str, Any]:
    """Measure each model with each backend; prints a line for each, and gives the figures."""
    models = load_table(models_file, "MODELS") if models_file else {"mlp": _mlp}
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    backends = BACKENDS if compiler else BACKENDS[:1]
    rows: dict[str, Any] = {}
    for name in select(models, only):
        rows[name] = {backend: _measured(backend, models_file or "", name, rounds) for backend in backends}
        print(_line(name, rows[name]), flush=True)
    return {"models": rows, "torch": torch.__version__, "threads": torch.get_num_threads()}


def _line(name: str, row: dict[str, Any]) -> str:
    found = [f"{name:16}"]
    for backend, figures in row.items():
        shown = " ".join(f"{step} {figures[step]:.4g}" for step in ("torch_export_s", *_STEPS) if step in figures)
        found.append(f"  {backend:12} {shown or figures['failed']}")
    return "\n".join(found)


def _measured(backend: str, models_file: str, name: str, rounds: int) -> dict[str, Any]:
    """The figures of one model, or {"failed": why}."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / f"model{_SUFFIX[backend]}")
        try:
            figures = _step("export", folder, backend, models_file, name, file)
            loads = [_step("load", folder, backend, file) for _ in range(rounds)]
        except subprocess.CalledProcessError as error:
            return {"failed": (error.stderr.strip().splitlines() or ["it ended"])[-1][:300]}
    return {**figures, **{step: statistics.median(one[step] for one in loads) for step in loads[0]}}


def _step(*command: str) -> dict[str, Any]:
    """Run a step in a process of its own, with caches in a folder that is new for each export."""
    role, folder, *rest = command
    caches = {name: str(Path(folder) / name.lower()) for name in ("STEPWELL_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    # modules are compiled to bytecode once, as those of an installed package are
    settings = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONDONTWRITEBYTECODE": ""}
    call = [sys.executable, "-m", __name__, role, *rest]
    done = subprocess.run(call, env={**os.environ, **caches, **settings}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def _inductor() -> Any:
    """The competitor, which only benchmarks run."""
    return torch._inductor  # noqa: TID251


def _samples(file: str) -> Path:
    return Path(file).with_name("samples.pt")


def export(backend: str, models_file: str, name: str, file: str) -> dict[str, Any]:
    """Export a model to `file`, and keep its arguments and eager's results beside."""
    torch.manual_seed(0)
    build: Callable[..., Any] = load_table(models_file, "MODELS")[name] if models_file else _mlp
    model, args, kwargs = build("tiny")
    model = Tensors(model).eval()
    with torch.no_grad():
        torch.save((args, kwargs, model(*args, **kwargs)), _samples(file))
        start = time.perf_counter()
        program = torch.export.export(model, args, kwargs)
        exported, spent = time.perf_counter(), _processor_seconds()
        if backend == "stepwell":
            from ... import export as export_package

            export_package(program, to=file)
        else:
            _inductor().aoti_compile_and_package(program, package_path=file)
        end = time.perf_counter()
    return {
        "torch_export_s": exported - start,
        "export_s": end - exported,
        "export_cpu_s": _processor_seconds() - spent,
        "bytes": os.path.getsize(file),
    }


def _processor_seconds() -> float:
    """What this process took of processors, with the processes that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def load(backend: str, file: str) -> dict[str, Any]:
    """Open a package that `export` made, and call it."""
    from .main import error, sample

    copy = f"{file}.copy{Path(file).suffix}"
    shutil.copyfile(file, copy)
    args, kwargs, want = torch.load(_samples(file), weights_only=False)
    with torch.no_grad():
        start = time.perf_counter()
        model = _opened(backend, file)
        opened = time.perf_counter()
        got = model(*args, **kwargs)
        called = time.perf_counter()
        wrong = error(got, want)
        if wrong > 1e-3:
            raise SystemExit(f"its results differ from eager's by {wrong:.1e}")
        again = time.perf_counter()
        other = _opened(backend, copy)
        again = time.perf_counter() - again
        del other
        return {
            "load_ms": (opened - start) * 1e3,
            "first_ms": (called - opened) * 1e3,
            "again_ms": again * 1e3,
            "call_ms": sample(lambda: model(*args, **kwargs), 1.0),
            "error": wrong,
        }


def _opened(backend: str, file: str) -> Callable[..., Any]:
    if backend == "stepwell":
        from ... import load as load_package

        return load_package(file)
    return _inductor().aoti_load_package(file)


def markdown(results: dict[str, Any]) -> str:
    """The figures as a table, in each cell stepwell's, AOTInductor's, and how many times the first goes into the second."""
    heads = ("export s", "export cpu s", "file MB", "load ms", "again ms", "first call ms", "call ms")
    lines = ["| model | torch.export s | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for name, row in results["models"].items():
        ours, theirs = row.get("stepwell", {}), row.get("aotinductor", {})
        cells = [_cell(ours.get(step), theirs.get(step), 1e-6 if step == "bytes" else 1.0) for step in _STEPS]
        alone = ours.get("torch_export_s", theirs.get("torch_export_s"))
        lines.append(f"| {name} | {_number(alone)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(ours: float | None, theirs: float | None, scale: float) -> str:
    shown = [_number(None if n is None else n * scale) for n in (ours, theirs)]
    return " / ".join(shown) + (f" ({theirs / ours:.1f})" if ours and theirs else "")


def _number(n: float | None) -> str:
    return "-" if n is None else f"{n:.0f}" if n >= 1000 else f"{n:.3g}"


if __name__ == "__main__":
    print(json.dumps({"export": export, "load": load}[sys.argv[1]](*sys.argv[2:])))
