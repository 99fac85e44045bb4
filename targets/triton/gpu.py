"""The GPUs that can be compiled for, and the options of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute

from ...dialects.machine import NamedMachine, TargetError


@dataclass(frozen=True)
class GpuTarget:
    """A kind of GPU as Triton compiles for it."""

    name: str
    """`sm_90`, `gfx942`."""
    backend: str
    """Triton's name of the back end: `cuda` or `hip`."""
    arch: int | str
    """The architecture as that back end names it: 90, `gfx942`."""
    warp_size: int

    @property
    def stages(self) -> tuple[str, ...]:
        """What Triton makes, in its order; the last is the binary."""
        return ("ttir", "ttgir", "llir", *(("ptx", "cubin") if self.backend == "cuda" else ("amdgcn", "hsaco")))

    @property
    def binary(self) -> str:
        """The name of the last stage."""
        return self.stages[-1]

    @property
    def copies_blocks(self) -> bool:
        """Whether it copies blocks of a tensor that a launch describes (TMA): NVIDIA's from Hopper on."""
        return isinstance(self.arch, int) and self.arch >= 90


def is_portable(capability: int) -> bool:
    """Whether later GPUs of NVIDIA take the PTX of kernels for one: from Hopper on, Triton uses instructions of the very architecture."""
    return capability < 90


_chosen: list[GpuTarget] = []


@contextmanager
def use_gpu(target: GpuTarget) -> Iterator[None]:
    """Programs are compiled for a usual GPU of that kind inside of the block, whatever GPU there is."""
    _chosen.append(target)
    try:
        yield
    finally:
        _chosen.pop()


def chosen_gpu() -> GpuTarget | None:
    """The GPU of `use_gpu`; None outside of it."""
    return _chosen[-1] if _chosen else None


_WAVE_32 = ("gfx10", "gfx11", "gfx12")


def gpu_target(name: str) -> GpuTarget:
    """The target called `name`: `sm_80`, `sm_90`, ..., `gfx942`, ....  TargetError if that names no GPU."""
    maker = NamedMachine(name).maker
    if maker == "nvidia":
        number = name.removeprefix("sm_").rstrip("af")
        return GpuTarget(f"sm_{number}", "cuda", int(number), 32)
    if maker == "amd":
        return GpuTarget(name, "hip", name, 32 if name.startswith(_WAVE_32) else 64)
    raise TargetError(f"'{name}' is no GPU (sm_80, sm_90, gfx942 and the like)")


@dataclass(frozen=True)
class KernelOptions:
    """How a kernel is compiled.  In the IR these are attributes of the `tt.func` with the same names."""

    num_warps: int = 4
    """Warps (or waves) of a program, a power of two."""
    num_stages: int = 3
    """Depth of the pipeline of loads in loops."""
    num_ctas: int = 1
    """Programs of a cluster (sm_90 and later)."""
    maxnreg: int = 0
    """The most registers of a thread; 0: as many as the compiler likes (NVIDIA only)."""
    fp_fusion: bool = True
    """Whether a product and a sum may be one rounded operation."""
    debug: bool = False
    """Triton's option of this name; `tt.assert` is kept either way."""

    def __post_init__(self) -> None:
        if self.num_warps < 1 or self.num_warps & (self.num_warps - 1) or self.num_warps > 32:
            raise TargetError(f"num_warps must be a power of two up to 32, not {self.num_warps}")
        if self.num_stages < 1 or self.num_ctas < 1 or self.maxnreg < 0:
            raise TargetError(f"num_stages and num_ctas must be positive, maxnreg not negative: {self}")

    def check(self, target: GpuTarget) -> None:
        """TargetError if `target` lacks something that the options ask for."""
        if self.num_ctas > 1 and not (isinstance(target.arch, int) and target.arch >= 90):
            raise TargetError(f"num_ctas = {self.num_ctas}: {target.name} has no clusters, sm_90 and later have")
        if self.maxnreg and target.backend != "cuda":
            raise TargetError(f"maxnreg = {self.maxnreg}: there is no such option for {target.name}")

    def attributes(self) -> dict[str, Attribute]:
        """What differs from the defaults, as attributes of a `tt.func`."""
        from xdsl.dialects.builtin import i1, i32

        found: dict[str, Attribute] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = IntegerAttr(int(value), i1 if isinstance(value, bool) else i32)
        return found


def options_of(attributes: dict[str, Attribute], defaults: KernelOptions | None = None) -> KernelOptions:
    """The options that the attributes of a `tt.func` give, the rest from `defaults`.  TargetError for a bad value."""
    defaults = defaults or KernelOptions()
    values: dict[str, Any] = {}
    for field in fields(KernelOptions):
        attr = attributes.get(field.name)
        if attr is None:
            values[field.name] = getattr(defaults, field.name)
        elif isinstance(attr, IntegerAttr):
            value = attr.value.data
            values[field.name] = bool(value) if isinstance(field.default, bool) else value
        else:
            raise TargetError(f"attribute '{field.name}' of a tt.func must be an integer, got {attr}")
    return KernelOptions(**values)


OPTION_NAMES = frozenset(field.name for field in fields(KernelOptions))
"""The attributes of a `tt.func` that are options of the kernel."""
