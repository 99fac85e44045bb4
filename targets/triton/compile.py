"""Kernels compiled by Triton: several at once, equal ones once, and kept on disk.

The key of the cache is a hash of the kernel's text (which names no file), the target, the options, and the versions of
Triton and its assembler. An entry holds no path and no address, so a cache can be copied to another machine. Files are
written as those of the CPU target (targets/cpu/cache.py): whole or not at all, with a checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, overload

from xdsl.dialects.builtin import ModuleOp

from ...errors import StepwellError
from ..cpu.cache import cache_folder, read, write
from .boxes import Box, boxes_of
from .emit import kernel_of, ttir_for_compiling
from .gpu import GpuTarget, KernelOptions, TargetError, options_of
from .pointer_blocks import takes_descriptors, with_pointer_blocks
from .toolchain import Built, StageError, build, fingerprint, installed_spelling

counters = {"compiled": 0, "cached": 0, "shared": 0}
"""How many kernels were compiled, found on disk, and equal to another one of the same process; for tests and reports."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as far as it was asked for."""

    name: str
    target: GpuTarget
    options: KernelOptions
    stage: str
    code: str | bytes
    """The text of `stage`, or the binary."""
    details: dict[str, Any]
    """See `toolchain.Built.details`."""
    key: str
    """Its name in the cache."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a program."""
        return int(self.details.get("shared", 0))

    @property
    def registers(self) -> int | None:
        """Registers of a thread, where the assembler says it."""
        return self.details.get("registers")

    @property
    def boxes(self) -> tuple[Box, ...]:
        """How a launch encodes each descriptor that it takes. TargetError for a kind that there is no launch for."""
        return boxes_of(self.name, self.details)


def compile_kernel(
    module: ModuleOp, target: GpuTarget, options: KernelOptions | None = None, stage: str | None = None
) -> CompiledKernel:
    """Compile the kernel of a module up to `stage`, by default to the binary.

    `options` are the defaults for what the kernel's attributes do not say. Raises PassError for a kernel that Triton
    refuses, with the operation that it refuses where it says so; TargetError for a target or an option that there is
    not, or if Triton is not installed."""
    return compile_kernels([module], target, options, stage)[0]


@overload
def compile_kernels(
    modules: Sequence[ModuleOp], target: GpuTarget, options: KernelOptions | None = None, stage: str | None = None
) -> list[CompiledKernel]: ...


@overload
def compile_kernels(
    modules: Sequence[ModuleOp],
    target: GpuTarget,
    options: KernelOptions | None = None,
    stage: str | None = None,
    *,
    tolerant: Literal[True],
) -> list[CompiledKernel | StepwellError]: ...


def compile_kernels(
    modules: Sequence[ModuleOp],
    target: GpuTarget,
    options: KernelOptions | None = None,
    stage: str | None = None,
    *,
    tolerant: bool = False,
) -> list[CompiledKernel] | list[CompiledKernel | StepwellError]:
    """Compile the kernels of several modules in parallel; see `compile_kernel`.  In the order of `modules`.

    tolerant: a kernel that Triton refuses is an error in the list in place of one that is raised, without the search for its place."""
    return [job.result(tolerant) for job in start_kernels(modules, target, options, stage)]


@dataclass(frozen=True)
class Job:
    """A kernel that is being compiled."""

    module: ModuleOp
    text: str
    target: GpuTarget
    options: KernelOptions
    stage: str
    key: str
    future: Future[Built]

    def result(self, tolerant: bool = False) -> Any:
        """The kernel, when it is done; see `compile_kernels`."""
        try:
            built = self.future.result()
        except StageError as failure:
            if tolerant:
                return TargetError(str(failure))
            from .diagnose import explain

            raise explain(self.module, self.target, self.options, self.stage, failure) from failure
        name = str(built.details.get("name") or kernel_of(self.module).sym_name.data)
        return CompiledKernel(name, self.target, self.options, self.stage, built.code, built.details, self.key)


def start_kernels(
    modules: Sequence[ModuleOp], target: GpuTarget, options: KernelOptions | None = None, stage: str | None = None
) -> list[Job]:
    """Begin to compile the kernels of several modules, which must not change until they are done; see `compile_kernels`."""
    wanted = stage or target.binary
    if wanted not in target.stages:
        raise TargetError(f"{target.name} has no '{wanted}' (choose from {', '.join(target.stages)})")
    spelling = installed_spelling()
    versions = fingerprint(target)
    jobs: list[Job] = []
    for module in modules:
        chosen = options_of(dict(kernel_of(module).attributes), options)
        chosen.check(target)
        if not target.copies_blocks and takes_descriptors(kernel_of(module)):
            module = with_pointer_blocks(module)
        text = ttir_for_compiling(module, spelling, target.backend)
        key = kernel_key(text, target, chosen, wanted, versions)
        jobs.append(Job(module, text, target, chosen, wanted, key, _submit(key, text, target, chosen, wanted)))
    return jobs


def compile_text(text: str, target: GpuTarget, options: KernelOptions, stage: str | None = None) -> CompiledKernel:
    """Compile the text of one kernel up to `stage`, by default to a binary. TargetError, with what Triton says, for one that it refuses."""
    stage = stage or target.binary
    key = kernel_key(text, target, options, stage, fingerprint(target))
    try:
        built = _submit(key, text, target, options, stage).result()
    except StageError as failure:
        raise TargetError(str(failure)) from failure
    return CompiledKernel(str(built.details.get("name", "")), target, options, stage, built.code, built.details, key)


def kernel_key(text: str, target: GpuTarget, options: KernelOptions, stage: str, versions: str) -> str:
    """The hexadecimal name of a kernel in the cache."""
    head = json.dumps([target.name, asdict(options), stage, versions], sort_keys=True)
    return hashlib.sha256(head.encode() + b"\0" + text.encode()).hexdigest()


# Work in threads, equal kernels once.

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_jobs: dict[str, Future[Built]] = {}
_process = os.getpid()


def _submit(key: str, text: str, target: GpuTarget, options: KernelOptions, stage: str) -> Future[Built]:
    global _pool, _process
    with _lock:
        if _process != os.getpid():  # threads do not survive a fork
            _pool, _process = None, os.getpid()
            _jobs.clear()
        if (job := _jobs.get(key)) is not None:
            counters["shared"] += 1
            return job
        if _pool is None:
            _pool = ThreadPoolExecutor(_workers(), thread_name_prefix="stepwell-triton")
        job = _jobs[key] = _pool.submit(_cached, key, text, target, options, stage)
    job.add_done_callback(lambda done: _forget(key, done))
    return job


def _forget(key: str, job: Future[Built]) -> None:
    """A kernel that is done is found on disk; only one that is being compiled is shared."""
    with _lock:
        if _jobs.get(key) is job:
            del _jobs[key]


def _workers() -> int:
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1


def _cached(key: str, text: str, target: GpuTarget, options: KernelOptions, stage: str) -> Built:
    path = cache_folder() / "kernels" / f"{key}.{stage}"
    if (found := _load(path, stage)) is not None:
        counters["cached"] += 1
        return found
    built = build(text, target, options, stage)
    counters["compiled"] += 1
    _store(path, built)
    return built


def _load(path: Path, stage: str) -> Built | None:
    data = read(path)
    if data is None:
        return None
    head, _, code = data.partition(b"\n")
    try:
        entry = json.loads(head)
        return Built(stage, code.decode() if entry["text"] else code, entry["details"])
    except (ValueError, KeyError, TypeError):
        return None


def _store(path: Path, built: Built) -> None:
    is_text = isinstance(built.code, str)
    head = json.dumps({"text": is_text, "details": built.details})
    code = built.code.encode() if isinstance(built.code, str) else built.code
    write(path, head.encode() + b"\n" + code)
