"""Whether a product or an attention is computed by generated code or by the library (MKL, oneDNN), by rule or by
measurement.

The rules are ratios, own speed over the library's in one thread: measured for Intel (docs/lab/products-cpu.md has the tables),
those for AMD taken over from a prototype. Three facts decide: MKL runs its generic code on processors that are not
Intel's, at 40 % of what the processor can do; a call of the library costs one to two microseconds before it starts;
and on Intel's matrix unit oneDNN is ahead for large products.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..attention.spec import DEPTH_MAX
from ..cache import cache_folder, write_atomically
from ..features import target
from .spec import ELEMENT_BYTES, Isa, isa_for

MAX_SMALL_MULTIPLICATIONS = 64**3
"""Multiplications of a product so small that the call decides."""
MIN_SPEED_SHARE = 0.95
MIN_FUSED_SPEED_SHARE = 0.8
"""With something fused into it, a product may be slower by itself: a pass over C is saved."""


@cache
def cpu_vendor() -> str:
    """`amd`, `intel` or `other`: whose processor this is."""
    names = {"AuthenticAMD": "amd", "HygonGenuine": "amd", "GenuineIntel": "intel"}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = platform.processor()
    return next((vendor for name, vendor in names.items() if name in text), "other")


def relative_speed(
    m: int,
    n: int,
    k: int,
    dtype: str = "f32",
    trans_a: bool = False,
    trans_b: bool = False,
    vendor: str | None = None,
    isa: Isa | None = None,
) -> float:
    """An estimate of the generated code's speed over the library's for one matrix (arguments as in `GemmSpec`)."""
    vendor, isa = vendor or cpu_vendor(), isa or isa_for(target())
    work = m * n * k
    if work <= MAX_SMALL_MULTIPLICATIONS:
        return 2.0
    if isa.is_narrow:  # nothing was measured
        return 0.5
    if vendor == "amd":
        return 2.0 if dtype in ("f32", "f64") else 1.1
    # Few rows and rows of B far apart: the library packs B better than the generated code reads it.
    far = not trans_b and 1 < m < 32 and n * ELEMENT_BYTES[dtype] > 4096
    if dtype == "bf16" and isa.amx:
        if far:
            return 0.75
        if work < 2**24 or m == 1:
            return 1.3
        return 1.0 if trans_b and not trans_a and m <= 128 else 0.82
    if dtype in ("bf16", "f16") and m == 1:
        return 1.5
    if trans_a and m > 1:
        return 0.7 if far else 0.9
    return 0.7 if far else 0.97


def prefer_own_gemm(m: int, n: int, k: int, dtype: str = "f32", trans_a: bool = False, trans_b: bool = False, fused: bool = False) -> bool:
    """Whether generated code should compute C[m, n] = A[m, k] B[k, n] on this machine; `fused`: with work of others
    in it.

    Sizes that are not known are passed as their hints.
    """
    return relative_speed(m, n, k, dtype, trans_a, trans_b) >= (MIN_FUSED_SPEED_SHARE if fused else MIN_SPEED_SHARE)


def are_few_queries(queries: int) -> bool:
    """Whether each key is read about once, so that packing keys costs more than it saves."""
    return queries < 3


def prefer_own_attention(queries: int, keys: int, depth: int, dtype: str = "f32", isa: Isa | None = None) -> bool:
    """Whether generated code should compute attention (`attention.py`) on this machine, and not torch's flash
    attention.

    Without the matrix unit bfloat is computed in
    floats, so that torch is ahead where its products run on instructions made for them.
    """
    isa = isa or isa_for(target())
    if depth > DEPTH_MAX or are_few_queries(queries) or isa.is_narrow:
        return False
    if dtype == "bf16" and isa.bf16_dot:
        return queries * keys <= 64 * 64
    return True


class MeasuredChoices:
    """Choices that were timed once on this machine and are kept in a small JSON file.

        {"znver5": {"f32 nt 128x768x3072": {"own": 2.31, "library": 5.9}}}

    Times are in microseconds. A file that cannot be read counts as empty, one that cannot be written costs nothing.
    """

    ROUNDS = 5

    def __init__(self, path: Path | None = None):
        self.path = path or cache_folder() / "gemm.json"
        self.cpu = target().cpu

    def noted(self, key: str) -> dict[str, float] | None:
        """The times noted for `key` on this processor: microseconds of "own" and "library"."""
        return self._read().get(self.cpu, {}).get(key)

    def times(self, key: str, own: Callable[[], object], library: Callable[[], object]) -> dict[str, float]:
        """The times noted for `key`, else measured now and noted."""
        table = self._read()
        noted = table.get(self.cpu, {}).get(key)
        if noted is None:
            noted = self._measure(own, library)
            table.setdefault(self.cpu, {})[key] = noted
            self._write(table)
        return noted

    def _measure(self, own: Callable[[], object], library: Callable[[], object]) -> dict[str, float]:
        """The shortest time of each, taken in turns after one call to warm up."""
        best = {}
        for _ in range(self.ROUNDS + 1):
            for name, function in (("own", own), ("library", library)):
                start = time.perf_counter()
                function()
                spent = (time.perf_counter() - start) * 1e6
                best[name] = min(best[name], spent) if name in best else float("inf")
        return {name: round(spent, 2) for name, spent in best.items()}

    def _read(self) -> dict[str, dict[str, dict[str, float]]]:
        try:
            table = json.loads(self.path.read_text())
            for entry in (entry for rows in table.values() for entry in rows.values()):
                if not all(isinstance(entry[name], float | int) for name in ("own", "library")):
                    return {}
            return table
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, table: dict[str, dict[str, dict[str, float]]]) -> None:
        write_atomically(self.path, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode())
