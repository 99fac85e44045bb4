"""A report of kernels on a device: `stepwell bench report --kernels-file FILE --device cuda --out docs/benchmarks/NAME`.

FILE is a Python file with a table `CASES` of name -> (build, tags, flops): `build(device)` returns a function and its arguments, a tag
"latency" asks for the time of a call instead of its kernels' and "rng" for no comparison, `flops(*args)` counts operations or is None.
Every backend's result is compared with eager, then all are timed in turn. Written: NAME.json (all samples), NAME.md (the table), NAME.svg
(share of the floor), NAME-summary.svg (time of a call and of the first call, beside the first backend). The floor is the time to read the
inputs and write the results once at the bandwidth of a copy, or to do the operations at the rate of a bf16 product, whichever is longer.
`--from FILE` renders the figures of an earlier run; several of them make one summary, OUT.svg.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.config
from llvmlite import binding as llvm
from torch.utils import _pytree as pytree

from . import svg_text as svg
from .tables import load_table, select

COLOURS = (svg.GREY, svg.ORANGE, svg.BLUE)


def measure(
    kernels_file: str, device: str, backends: Sequence[str], only: Sequence[str], rounds: int, sample: Callable[..., float]
) -> dict[str, Any]:
    """The figures of every case: milliseconds (a list, one for each round), seconds of the first call, relative error against eager."""
    clock = device_clock(device, sample)
    if hasattr(torch._dynamo.config, "trace_autograd_ops"):
        torch._dynamo.config.trace_autograd_ops = True  # cases that take gradients inside
    results: dict[str, Any] = {"versions": versions(device), "ceilings": _ceilings(device, clock), "backends": list(backends), "cases": {}}
    table = load_table(kernels_file, "CASES")
    for name in select(table, only):
        build, tags, flops, *_ = table[name]
        torch._dynamo.reset()
        torch.manual_seed(0)
        fn, args = build(device)
        row: dict[str, Any] = {}
        want = _tensors(fn(*args))
        moved = sum(t.numel() * t.element_size() for t in [*_tensors(args), *want])
        row["floor_ms"] = max(
            moved / results["ceilings"]["copy_GBps"] / 1e6,
            flops(*args) / results["ceilings"]["bf16_TFLOPs"] / 1e9 if flops else 0.0,
        )
        calls: dict[str, Callable[..., Any]] = {}
        for backend in backends:
            try:
                call = _compiled(fn, backend)
                start = time.perf_counter()
                got = _tensors(call(*args))
                _wait(device)
                row[backend] = {"compile_s": time.perf_counter() - start, "times": []}
                if "rng" not in tags:
                    row[backend]["err"] = max((_error(a, b) for a, b in zip(got, want, strict=True)), default=0.0)
                calls[backend] = call
            except Exception as error:  # a backend that fails a case is a row of the report
                row[backend] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        for _ in range(rounds):
            for backend, call in calls.items():
                one = lambda call=call, args=args: call(*args)  # noqa: E731
                row[backend]["times"].append(_wall(one, device) if "latency" in tags else clock(one))
        for backend in calls:
            row[backend]["ms"] = statistics.median(row[backend]["times"])
        results["cases"][name] = row
        print(f"{name:32} " + " | ".join(f"{b} {_cell(row, b)}" for b in backends), flush=True)
    return results


def versions(device: str) -> dict[str, str]:
    """What ran: the device and the versions of what makes code for it."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        if find_spec("triton"):
            found["triton"] = import_module("triton").__version__
    else:
        found |= {"device": f"CPU ({llvm.get_host_cpu_name()})", "threads": str(torch.get_num_threads())}
    return found


def _compiled(fn: Callable[..., Any], backend: str) -> Callable[..., Any]:
    name, _, mode = backend.partition(":")
    if name == "eager":
        return fn
    return torch.compile(fn, backend=name, dynamic=False, fullgraph=True, mode=mode or None)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = got.double(), want.double()
    if not bool(torch.isfinite(want).all()):
        return 0.0 if torch.equal(got.nan_to_num(), want.nan_to_num()) else math.inf
    return ((got - want).norm() / want.norm().clamp(min=1e-30)).item()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def device_clock(device: str, sample: Callable[..., float]) -> Callable[[Callable[[], Any]], float]:
    """Milliseconds of a call; on a GPU of what it runs there, caches flushed between calls."""
    if device != "cuda":
        return sample
    do_bench = import_module("triton.testing").do_bench
    return lambda fn: do_bench(fn, warmup=10, rep=60, return_mode="median")


def _wall(fn: Callable[[], Any], device: str, calls: int = 200) -> float:
    """Median milliseconds from a call to its end."""
    times: list[float] = []
    for k in range(calls + 5):
        start = time.perf_counter()
        fn()
        _wait(device)
        if k >= 5:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _ceilings(device: str, clock: Callable[..., float]) -> dict[str, float]:
    """Bandwidth of a copy (GB/s) and rate of a bf16 product of random numbers (TFLOP/s)."""
    size, side = (2**30, 8192) if device == "cuda" else (2**25, 1024)
    a = torch.empty(size // 4, device=device).normal_()
    b = torch.empty_like(a)
    x, y = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    return {
        "copy_GBps": 2 * size / clock(lambda: b.copy_(a)) / 1e6,
        "bf16_TFLOPs": 2 * side**3 / clock(lambda: x @ y) / 1e9,
    }


# ---- the report


def write(results: dict[str, Any], out: str, command: str) -> None:
    """Write OUT.json, OUT.md, OUT.svg and OUT-summary.svg."""
    base = Path(out)
    base.parent.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    base.with_suffix(".md").write_text(markdown(results, base.name, command))
    base.with_suffix(".svg").write_text(picture(results))
    base.with_name(f"{base.name}-summary.svg").write_text(summary([results]))


def _backends(results: dict[str, Any]) -> list[str]:
    if "backends" in results:
        return results["backends"]
    known = [k for row in results["cases"].values() for k, v in row.items() if isinstance(v, dict)]
    return list(dict.fromkeys(known))


def _cell(row: dict[str, Any], backend: str) -> str:
    one = row.get(backend)
    if one is None:
        return ""
    if "ms" not in one:
        return "failed"
    return f"{one['ms']:.4f} ({row['floor_ms'] / one['ms']:.0%})"


def geomean(results: dict[str, Any], backend: str, over: str) -> float | None:
    """Geometric mean of the speed-up of `backend` over another one, on the cases that both ran."""
    both = [row for row in results["cases"].values() if all("ms" in row.get(b, {}) for b in (backend, over))]
    if not both:
        return None
    return math.exp(statistics.fmean(math.log(row[over]["ms"] / row[backend]["ms"]) for row in both))


def markdown(results: dict[str, Any], name: str, command: str) -> str:
    """The table of a report. `notes` among the results are sentences that stand above it; a backend that did not run a case has no cell."""
    names = _backends(results)
    rest = [n for n in names if n != "stepwell"]
    about = ", ".join(f"{k} {v}" for k, v in results.get("versions", {"torch": results.get("torch", "")}).items())
    ceilings = results["ceilings"]
    lines = [
        f"# Kernels: {name}", "",
        f"{about}. Copy {ceilings['copy_GBps']:.0f} GB/s, bf16 product {ceilings['bf16_TFLOPs']:.3g} TFLOP/s. Made by", "",
        f"    {command}", "",
        "Milliseconds, in brackets the share of the floor (inputs and results moved once at the bandwidth of a copy, or the operations at "
        "the rate of a product); ratios above 1: stepwell is faster; seconds of the first call, compilation included; error relative to "
        "eager, in norm.", *(part for note in results.get("notes", ()) for part in ("", note)),
        "", f"![share of the floor]({name}.svg)", "",
        "| kernel | floor ms | " + " | ".join([*names, *(f"{n} / stepwell" for n in rest), *(f"{n} s" for n in names), "error"]) + " |",
        "|---" * (3 + 2 * len(names) + len(rest)) + "|",
    ]  # fmt: skip
    for case, row in results["cases"].items():
        mine = row.get("stepwell", {})
        ratios = [f"{row[n]['ms'] / mine['ms']:.2f}" if "ms" in mine and "ms" in row.get(n, {}) else "" for n in rest]
        first = [f"{row[n]['compile_s']:.1f}" if "compile_s" in row.get(n, {}) else "" for n in names]
        worst = f"{mine['err']:.0e}" if "err" in mine else ""
        cells = [case, f"{row.get('floor_ms', 0):.4f}", *(_cell(row, n) for n in names), *ratios, *first, worst]
        lines.append("| " + " | ".join(cells) + " |")
    means = [f"{n} {mean:.2f}" for n in rest if (mean := geomean(results, "stepwell", n)) is not None]
    failures = [f"- {case}, {n}: {row[n]['error']}" for case, row in results["cases"].items() for n in names if "error" in row.get(n, {})]
    lines += ["", f"Geometric mean of the speed-up over {', '.join(means)}." if means else ""]
    return "\n".join([*lines, *(["", "Failures:", "", *failures] if failures else []), ""])


def picture(results: dict[str, Any]) -> str:
    """Share of the floor by kernel, a bar for each backend."""
    names = _backends(results)
    left, wide, bar = 230, 460, 9
    high = bar * len(names) + 8
    cases = results["cases"]
    bottom = 44 + high * len(cases)
    parts = ['<rect width="100%" height="100%" fill="#ffffff"/>']
    for k, name in enumerate(names):
        x = left + 180 * k
        parts += [f'<rect x="{x}" y="8" width="12" height="12" fill="{COLOURS[k % 3]}"/>', svg.text(x + 18, 18, name)]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + wide * share
        parts += [svg.line(x, 36, x, bottom), svg.text(x, bottom + 14, f"{share:.0%}", "middle")]
    for k, (case, row) in enumerate(cases.items()):
        y = 40 + k * high
        parts.append(svg.text(left - 8, y + high / 2 + 2, case, "end"))
        for j, name in enumerate(names):
            time_ms = row.get(name, {}).get("ms")
            if time_ms:
                share = min(row["floor_ms"] / time_ms, 1.08)
                parts.append(f'<rect x="{left}" y="{y + j * bar}" width="{wide * share:.1f}" height="{bar - 1}" fill="{COLOURS[j % 3]}"/>')
    return svg.picture(left + wide * 1.1, bottom + 24, "Share of the floor", parts)


def summary(reports: Sequence[dict[str, Any]]) -> str:
    """Geometric means over all cases of the time of a call, as a share of the first backend's, and of the first call, as a share of that of
    the first backend that compiles; for each report."""
    left, wide, bar = 250, 330, 18
    parts = ['<rect width="100%" height="100%" fill="#ffffff"/>']
    y = 14
    for results in reports:
        names = _backends(results)
        compiling = [name for name in names if name != "eager"]
        for key, title, over in (("ms", "time of a call", names), ("compile_s", "first call, compilation included", compiling)):
            parts.append(svg.text(14, y + 12, f"{title}, by {over[0]}'s", extra='font-weight="600"'))
            y += 24
            shares = {name: share for name in over if (share := _mean_share(results, name, over[0], key))}
            for name, share in shares.items():
                length = wide * share / max(shares.values())
                parts += [
                    svg.text(left - 8, y + 13, name, "end"),
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 3}" fill="{COLOURS[names.index(name) % 3]}"/>',
                    svg.text(left + length + 6, y + 13, f"{share:.2f}"),
                ]
                y += bar
            y += 12
        device = results.get("versions", {}).get("device", "")
        parts.append(svg.text(14, y + 8, f"geometric means over {len(results['cases'])} kernels, {device}; less is better"))
        y += 36
    return svg.picture(left + wide + 60, y - 12, "Time beside other backends", parts)


def _mean_share(results: dict[str, Any], backend: str, over: str, key: str) -> float:
    """Geometric mean of a time of `backend` over that of another one, on the cases that both ran; 0 if there are none."""
    rows = results["cases"].values()
    ratios = [row[backend][key] / row[over][key] for row in rows if key in row.get(backend, {}) and key in row.get(over, {})]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 0.0
