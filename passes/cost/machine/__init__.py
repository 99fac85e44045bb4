"""The machine that a module is compiled for, as passes ask for it: a CPU (cpu.py) or a GPU (gpu.py).

    machine_of(op)          what the module's attribute `stepwell.machine` names
    machine_of(op, Gpu)     the same for a pass that is for GPUs alone

A target writes the attribute before the first pass (Target.machine); the flag --machine of opt-tool does so for files. A pipeline
writes the usual machine of its target on a module that names none (passes/manager/pipelines.py). Where it is still missing, passes for
GPUs alone reckon with an sm_90, all others with a CPU.
"""

from __future__ import annotations

from typing import TypeVar, overload

from xdsl.ir import Operation

from ....dialects.machine import USUAL_GPU, TargetError, named_machine
from .cpu import SERVER, USUAL_THREADS, Cpu
from .gpu import Gpu, machine

Machine = Cpu | Gpu
"""What a module may be compiled for."""

M = TypeVar("M", Cpu, Gpu)


@overload
def machine_of(op: Operation) -> Machine: ...
@overload
def machine_of(op: Operation, kind: type[M]) -> M: ...
def machine_of(op: Operation, kind: type[Cpu] | type[Gpu] | None = None) -> Machine:
    """The machine that the module of `op` is compiled for; `kind` says of which kind it has to be. Raises TargetError for another one."""
    named = named_machine(op)
    if named is None:
        return machine(USUAL_GPU) if kind is Gpu else SERVER.with_threads(USUAL_THREADS)
    numbers = dict(named.numbers)
    if named.kind == "cpu":
        found = SERVER.with_threads(numbers.get("threads", USUAL_THREADS))
    else:
        found = machine(named.name, numbers.get("multiprocessors", 0), numbers.get("device", 0), numbers.get("memory_gbs", 0))
    if kind is not None and not isinstance(found, kind):
        other = f"--machine {USUAL_GPU}" if kind is Gpu else "--machine cpu"
        raise TargetError(f"the module is for the machine '{named.name}', the pass for a {kind.kind.upper()} (opt-tool {other})")
    return found
