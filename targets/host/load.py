"""A compiled host program as a Python callable.

    run = load_program(description, library, constants)
    outputs = run([x, w])          # takes the tensors out of the list, returns a list

The callable is a C function wrapped in `functools.partial`, which costs little (docs/lab/constants.md) and has room for the attributes that
torch looks for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import CompileError
from ..cpu.features import is_runnable, target
from ..cpu.jit import Library, load_object, object_symbols
from .description import GPU_TABLE, ProgramDescription
from .gpu.driver import cuda_driver
from .launch_records import LaunchRecorder
from .runtime.callables import native_callable, python_callable
from .runtime.runtime import entry_symbols, gpu_runtime, host_runtime
from .selftest import native_wanted
from .symbols import missing

log = logging.getLogger("stepwell")

def load_object_code(data: bytes, native: bool) -> Library:
    """Link the object of a graph: kernels and, when `native`, the host entry. CompileError when it is for another machine, LaunchError
    when it launches on a GPU and there is no driver."""
    if not is_runnable(target()):
        raise CompileError(f"code for {target().triple} ({target().name}) cannot run on this machine; opt-tool -t asm or obj writes it")
    if not native:
        return load_object(data)
    addresses = entry_symbols()
    if GPU_TABLE in object_symbols(data)[0]:
        addresses = {**addresses, **gpu_runtime(cuda_driver())}
    return load_object(data, addresses)


def load_program(
    description: ProgramDescription,
    library: Library | None,
    constants: Sequence[Any] = (),
    objects: Sequence[Any] = (),
) -> Callable[[list[Any]], list[Any]]:
    """The callable of a program: one list in, which it empties, a list out.

    `constants` are the tensors that `host.constant` numbers, `objects` what `object(k)` in call templates means;
    `library` may be None for a program without kernels on the Python path. The attributes `boxed` and `_boxed_call`
    are True, `description` is the argument, `native` tells which path runs; `recorder`, where it is there, shows launches to a profiler."""
    native = description.native and native_wanted()
    if native and library is not None:
        run = native_callable(description, library, constants, objects, host_runtime())
        if description.launchers:
            run.recorder = LaunchRecorder(description.launchers, library)
    else:
        if description.native:
            log.warning("host program %s runs through Python: %s", description.name, _why_not_native())
        run = _through_python(description, library, constants, objects)
    run.boxed = run._boxed_call = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    run.description = description  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    run.native = native  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    return run


def _through_python(
    description: ProgramDescription, library: Library | None, constants: Sequence[Any], objects: Sequence[Any]
) -> Callable[[list[Any]], list[Any]]:
    from ..target import find_target

    target, launcher = find_target(description.target), None
    if description.kernels:
        launcher = target.launcher(description.name, description.kernels, description.device)
    return python_callable(description, library, constants, objects, launcher, target.current)


def _why_not_native() -> str:
    if os.environ.get("STEPWELL_HOST") == "python":
        return "STEPWELL_HOST=python"
    return ", ".join(missing()) or "the self-test of the native entry failed"
