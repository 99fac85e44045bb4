"""Which instruction set code is generated for: the host's by default, or a named one.

A `Target` says what the emitter asks: how wide a register is, which conversions are native, which of the vector
functions of Sleef (they come with torch) exist. `target("host")` is what runs here; the named ones emit and assemble
on any machine."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """One instruction set, as LLVM names it, and the properties that choose between forms of code."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    """Width of a vector register."""
    flags: frozenset[str]
    """Of avx2, avx512, avx512dq, avx512bw, avx512bf16, avx512vnni, f16c, fma, sse41, neon, dotprod, i8mm, bf16, sve: those that are there.
    `sve` stands for registers of SVE that have `vector_bits`, more than NEON's; the host has it only by name (`sve256`)."""
    vector_library: bool = True
    """Whether code may call the vector functions that torch brings."""

    def has(self, flag: str) -> bool:
        """Whether the instruction set has `flag`."""
        return flag in self.flags

    @property
    def sleef(self) -> tuple[tuple[str, int], ...]:
        """(suffix of the symbols, bits) of the Sleef variants that this target can call, widest first; none on plain
        SSE."""
        if not self.vector_library:
            return ()
        if self.has("avx512"):
            return (("avx512f", 512), ("avx2", 256))
        if self.has("avx2"):
            return (("avx2", 256),)
        if self.has("neon"):
            return (("advsimd", 128),)
        return ()


_FLAG_FEATURES = {
    "avx2": ("avx2",),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512dq": ("avx512dq",),
    "avx512bw": ("avx512bw",),
    "avx512bf16": ("avx512bf16",),
    "avx512vnni": ("avx512vnni",),
    "f16c": ("f16c",),
    "fma": ("fma",),
    "sse41": ("sse4.1",),
    "dotprod": ("dotprod",),
    "i8mm": ("i8mm",),
    "bf16": ("bf16",),
}

_ARM_FEATURES = {
    "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "asimdhp": "fullfp16", "asimdrdm": "rdm", "lrcpc": "rcpc",
}  # fmt: skip
"""Linux's name of an instruction set of Arm -> LLVM's, of those that LLVM does not look for on the host."""

_AVX2 = "+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+bmi,+bmi2,+lzcnt,+f16c,+fma"
_AVX512 = _AVX2 + ",+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd"
_ARM = ("aarch64", "arm64")
_LINUX = "x86_64-unknown-linux-gnu"
_ARM_LINUX = "aarch64-unknown-linux-gnu"
_NEON_DOT = "+neon,+lse,+rdm,+rcpc,+fullfp16,+dotprod"

_NAMED = {
    "generic-sse": (_LINUX, "x86-64", "+sse2"),
    "avx2": (_LINUX, "haswell", _AVX2),
    "avx512": (_LINUX, "skylake-avx512", _AVX512),
    "neon": (_ARM_LINUX, "generic", "+neon"),
    "neon-dot": (_ARM_LINUX, "neoverse-n1", _NEON_DOT),
    "neon-bf16": (_ARM_LINUX, "neoverse-n1", _NEON_DOT + ",+i8mm,+bf16"),  # not neoverse-v1: LLVM would use its SVE here and there
    "sve256": (_ARM_LINUX, "neoverse-v1", _NEON_DOT + ",+i8mm,+bf16,+sve"),
}

TARGETS = ("host", *_NAMED)
"""The names that `target` takes."""


_chosen: list[Target] = []


def target(name: str = "host") -> Target:
    """The target of that name: "host" (what this machine has), or one of TARGETS.

    `STEPWELL_CPU` in the environment names what "host" means, to try a narrower instruction set; inside of `use_target` it is that
    target. ValueError for another name."""
    return _chosen[-1] if _chosen and name == "host" else _named(name)


@contextmanager
def use_target(wanted: Target) -> Iterator[None]:
    """Code is generated for `wanted` inside of the block, in every thread."""
    _chosen.append(wanted)
    try:
        yield
    finally:
        _chosen.pop()


@cache
def _named(name: str) -> Target:
    if name == "host":
        name = os.environ.get("STEPWELL_CPU") or "host"
    if name == "host":
        return _host()
    if name not in _NAMED:
        asked = " (STEPWELL_CPU in the environment)" if name == os.environ.get("STEPWELL_CPU") else ""
        raise ValueError(f"unknown CPU target {name!r}{asked}; known are {', '.join(TARGETS)}")
    return _make(name, *_NAMED[name], sve_bits=int(name.removeprefix("sve")) if name.startswith("sve") else 0)


def _host() -> Target:
    from llvmlite import binding

    cpu = binding.get_host_cpu_name()
    features, triple = binding.get_host_cpu_features().flatten(), binding.get_process_triple()
    if triple.startswith(_ARM):
        features = ",".join([features, *arm_features()])
    return _make("host", triple, cpu, features)


def _sve_bits() -> int:
    """Length of this process's SVE registers, which the system may set shorter than the processor's; 0 where it does not say."""
    get_length, length_mask = 51, 0xFFFF  # PR_SVE_GET_VL, PR_SVE_VL_LEN_MASK of linux/prctl.h
    try:
        length = ctypes.CDLL(None).prctl(get_length, 0, 0, 0, 0)
    except AttributeError:
        return 0
    return 8 * (length & length_mask) if length > 0 else 0


def arm_features(cpuinfo: str = "/proc/cpuinfo") -> list[str]:
    """What LLVM does not tell of an Arm host, as features of LLVM's; nothing where the system does not say."""
    try:
        lines = Path(cpuinfo).read_text().splitlines()
    except OSError:
        return []
    words = next((line.partition(":")[2].split() for line in lines if line.startswith("Features")), [])
    return [f"+{name}" for word, name in _ARM_FEATURES.items() if word in words]


def _make(name: str, triple: str, cpu: str, features: str, sve_bits: int = 0) -> Target:
    present = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    flags = {flag for flag, needed in _FLAG_FEATURES.items() if all(f in present for f in needed)}
    if triple.startswith(_ARM):
        flags |= {"neon", "fma", "f16c", "sse41"}  # those of x86 stand for: native fma, half conversion, rounding
        bits = max(128, sve_bits)
        flags |= {"sve"} if bits > 128 else set()
    else:
        bits = 512 if "avx512" in flags else 256 if "avx2" in flags else 128
    return Target(name, triple, cpu, features, bits, frozenset(flags))


def machine_name() -> str:
    """The kind of processor of this machine, as Linux names it: x86_64, aarch64."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def is_runnable(wanted: Target) -> bool:
    """Whether this machine can run code for `wanted`."""
    if wanted.triple.split("-")[0] not in (platform.machine().lower(), machine_name()):
        return False
    missing = wanted.flags - _host().flags
    return not missing or (missing == {"sve"} and _sve_bits() == wanted.vector_bits)
