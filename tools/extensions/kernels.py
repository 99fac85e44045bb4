"""The user's Triton kernels for the importer (fx_to_nd/calls/user_kernels.py): Triton's front end, and a choice among configurations.

Configurations of `triton.autotune` are measured on the device, as Triton does; what was found is kept in `user_kernels.json` in the cache
folder. Without a GPU the first one is taken."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from math import inf

from xdsl.dialects.builtin import ModuleOp

from ...errors import StepwellError
from ...lowering.fx_to_nd.calls.user_kernels import KernelRequest, Sample
from ...lowering.fx_to_nd.core.tt_functions import with_parameters
from ...targets.cpu.cache import cache_folder
from ...targets.triton.compile import compile_kernels
from ...targets.triton.emit import kernel_of, ttir_text
from ...targets.triton.front_end import kernel_ttir
from ...targets.triton.gpu import GpuTarget, KernelOptions, TargetError
from ...targets.triton.gpu_tune import Tiles
from ...targets.triton.kernels import device_target, program_kernel
from ...targets.triton.timer import Memory, Timer, device_timer
from ...targets.triton.toolchain import installed_spelling
from ..ir_parser import parse_file

log = logging.getLogger("stepwell")

SCRATCH = frozenset(("tt.make_tensor_descriptor",))
"""Operations that need memory which Triton's own launcher provides."""


def make_kernel(
    requests: Sequence[KernelRequest], samples: Sequence[Sample], grids: Sequence[tuple[int, ...]], device: str
) -> tuple[int, ModuleOp]:
    """See lowering/fx_to_nd/calls/user_kernels.py: MakeKernel."""
    if device == "cpu":
        raise TargetError("the graph is one of the CPU")
    target = device_target(device)
    timer = device_timer(int(device.partition(":")[2] or 0)) if len(requests) > 1 else None
    if timer is None:
        return 0, _kernel(requests[0], target)
    modules = [_kernel(request, target) for request in requests]
    best = _fastest(requests, modules, samples, grids, target, timer)
    return best, modules[best]


def _kernel(request: KernelRequest, target: GpuTarget) -> ModuleOp:
    """The module of one configuration, with the parameters of a launch."""
    from ..backend.compile_graph import context

    options = KernelOptions(**request.options)
    text = kernel_ttir(request, options, target)
    module, _ = parse_file(text, f"{request.function.__name__}.ttir", context())
    function = kernel_of(module)
    if found := next((op.name for op in module.walk() if op.name in SCRATCH), None):
        raise TargetError(f"{found} needs memory of Triton's launcher")
    with_parameters(function, [n for n, t in request.signature.items() if t != "constexpr"], request.fixed, request.passed)
    function.attributes.update(options.attributes())
    return module


def _fastest(
    requests: Sequence[KernelRequest],
    modules: Sequence[ModuleOp],
    samples: Sequence[Sample],
    grids: Sequence[tuple[int, ...]],
    target: GpuTarget,
    timer: Timer,
) -> int:
    """The number of the configuration that takes the least time."""
    table = Tiles(cache_folder() / "user_kernels.json")
    texts = [ttir_text(module, installed_spelling()) for module in modules]
    content = hashlib.sha256("\0".join([*texts, repr(samples), repr(grids)]).encode()).hexdigest()[:24]
    key = f"{timer.device} {target.name} {content}"
    labels = [request.label for request in requests]
    known = table.found.get(key, {}).get("configuration")
    if known in labels:
        return labels.index(known)
    arguments = [Memory(s.bytes, s.dtype) if s.bytes is not None else s.value for s in samples]
    times: list[float] = []
    for module, grid, built in zip(modules, grids, compile_kernels(modules, target, tolerant=True), strict=True):
        if isinstance(built, StepwellError):
            log.info("a configuration does not compile: %s", str(built).splitlines()[0])
            times.append(inf)
        else:
            times.append(1e6 * timer.seconds(program_kernel(module, built), grid, arguments))
    timer.release()
    best = min(range(len(times)), key=times.__getitem__)
    finite = {label: t for label, t in zip(labels, times, strict=True) if t < inf}
    name = requests[0].function.__name__
    table.found[key] = {"kernel": name, "configuration": labels[best], "microseconds": finite}
    table.save()
    return best
