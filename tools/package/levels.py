"""The targets of a package by name: levels of the instruction sets of x86-64 and 64-bit Arm, this machine's CPU, architectures of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from ...dialects.support.record import changed
from ...passes.cost.machine.gpu import machine
from ...passes.manager.errors import did_you_mean
from ...targets.cpu import features as cpu
from ...targets.host.c.levels import ARM_LEVELS
from ...targets.package.errors import PackageError
from ...targets.package.process import cpu_features
from ...targets.package.signature import Target
from ...targets.triton.gpu import GpuTarget, gpu_target, use_gpu

_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt", "sse4_2")
AMD_GPUS = ("gfx90a", "gfx942", "gfx950")
"""GPUs of AMD's that there are targets for: those of data centres, with waves of 64."""
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_LINUX_NAMES = {
    "lzcnt": "abm", "bmi": "bmi1", "neon": "asimd", "lse": "atomics", "dotprod": "asimddp", "fullfp16": "asimdhp", "rdm": "asimdrdm",
    "rcpc": "lrcpc",
}  # fmt: skip
"""LLVM's name of an instruction set -> Linux's, where they differ."""
_ARM_DOT = ("asimd", "asimddp", "asimdhp", "asimdrdm", "atomics", "fphp", "lrcpc")
_ARM = {"cpu-armv8": ("asimd",), "cpu-armv8.2": _ARM_DOT, "cpu-armv8.6": (*_ARM_DOT, "bf16", "i8mm")}
"""Level of 64-bit Arm, by the name that objects for C give it -> what it needs, as Linux names it."""


@dataclass(frozen=True)
class Level:
    """A target of a package. code: the instruction set that the CPU's code is generated for, also that of the host program of a GPU."""

    target: Target
    code: cpu.Target
    gpu: GpuTarget | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run on a GPU."""
        return self.gpu is not None

    @property
    def device(self) -> str:
        """Where programs for it run."""
        return "cpu" if self.gpu is None else "cuda:0"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Code is generated for it inside of the block."""
        with cpu.use_target(self.code), nullcontext() if self.gpu is None else use_gpu(self.gpu):
            yield


def level_of(name: str) -> Level:
    """The level of that name: cpu-v3, cpu-v4, cpu-armv8, cpu-native, sm_90, gfx942. PackageError for another one."""
    if name == "cpu-v3":
        return Level(Target(name, _V3), cpu.target("avx2"))
    if name == "cpu-v4":
        return Level(Target(name, _V4), cpu.target("avx512"))
    if name in _ARM:
        return Level(Target(name, _ARM[name], machine="aarch64"), cpu.target(ARM_LEVELS[name][0]))
    if name == "cpu-native":
        host = cpu.target()
        is_arm = cpu.machine_name() == "aarch64"
        return Level(Target(name, _native_features(host), machine="aarch64" if is_arm else "x86_64"), host)
    if found := re.fullmatch(r"sm_(\d+)", name):
        return _gpu_level(Target(name, _V3, int(found[1])))
    if name in AMD_GPUS:
        return _gpu_level(Target(name, _V3, architecture=name))
    known = ("cpu-v3", "cpu-v4", *_ARM, "cpu-native", "sm_80", "sm_90", *AMD_GPUS)
    hint = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
    raise PackageError(f"there is no target '{name}'{hint}")


def _gpu_level(target: Target) -> Level:
    """The level of a target for a GPU, which has as many multiprocessors as a usual one."""
    return Level(changed(target, multiprocessors=machine(target.name).together), cpu.target("avx2"), gpu_target(target.name))


def _native_features(host: cpu.Target) -> tuple[str, ...]:
    """What code for a CPU needs of one, as Linux names it: those of LLVM's features that are found there by name."""
    wanted = {re.sub(r"[-._]", "", one[1:]) for one in host.features.split(",") if one.startswith("+")}
    wanted = {_LINUX_NAMES.get(one, one) for one in wanted}
    return tuple(sorted(one for one in cpu_features() if one.replace("_", "") in wanted))


def default_levels(device: str) -> tuple[str, ...]:
    """The targets of a package that names none: the levels up to this machine's, and for a GPU those that torch's wheels are made for."""
    if device.startswith("cuda"):
        return ("gfx90a", "gfx942") if torch.version.hip else ("sm_80", "sm_90")
    here, is_arm = cpu_features(), cpu.machine_name() == "aarch64"
    levels = _ARM if is_arm else {"cpu-v3": _V3, "cpu-v4": _V4}
    first = next(iter(levels))
    return tuple(name for name in reversed(levels) if name == first or here.issuperset(levels[name]))


def ordered(names: Sequence[str]) -> list[Level]:
    """The levels of these names, best first. PackageError."""
    if isinstance(names, str) or not names:
        raise PackageError(f"targets is {names!r}; it has to be names of targets, such as ['cpu-v3', 'sm_90']")
    found = [level_of(name) for name in dict.fromkeys(names)]
    return sorted(found, key=lambda one: (one.target.capability, len(one.target.features), one.target.name), reverse=True)
