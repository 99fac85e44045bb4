"""Does the native entry work here? One small program, run once a process before the first real one.

It goes through everything that rests on the layout of foreign structures: lists, tensors inside Python objects, the C
shim, deleters. When an answer is wrong, the log says so and every program of the process runs through Python."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CompileError
from ..llvm_text import llvm_text
from .symbols import missing

if TYPE_CHECKING:
    from ..cpu.features import Target
    from .description import ProgramDescription

log = logging.getLogger("stepwell")

_KERNEL = Path(__file__).with_name("selftest.ll")

TESTED_TORCH = (2, 14)
"""The newest torch that the tests have run with. With a newer one the self-test decides, as with any other."""

HOSTS = ("native", "python")
"""What STEPWELL_HOST takes; the first is the default."""


def native_wanted() -> bool:
    """Whether programs get a native entry: the user did not choose otherwise (STEPWELL_HOST=python), the process has
    what it needs and the self-test passed. Code for another machine, which nothing can test here, gets one too. ValueError
    for another value of STEPWELL_HOST."""
    from ..cpu.features import is_runnable, target

    choice = os.environ.get("STEPWELL_HOST") or HOSTS[0]
    if choice not in HOSTS:
        raise ValueError(f"STEPWELL_HOST is '{choice}'; known: {', '.join(HOSTS)}")
    return choice == "native" and (not is_runnable(target()) or passes_selftest())


class SelfTestError(CompileError):
    """A native program does not give right results in this process."""


def selftest_error() -> SelfTestError | None:
    """What the self-test has shown to be wrong; None where it passed, or where no program has asked for a native entry."""
    return _result() if _result.cache_info().currsize else None


def passes_selftest() -> bool:
    """Whether native programs run in this process (found out once): it has what they need, and one gives right results."""
    return _has_symbols() and _result() is None


@cache
def _has_symbols() -> bool:
    _mention_newer_torch()
    absent = missing()
    if absent:
        log.warning("no native host programs, they run through Python: this process lacks %s", ", ".join(absent))
    return not absent


@cache
def _result() -> SelfTestError | None:
    """What the test program shows."""
    try:
        problem = _run()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem is None:
        return None
    log.warning("no native host programs, they run through Python: the self-test failed (%s)", problem)
    return SelfTestError(f"the self-test of native host programs failed: {problem}")


def _mention_newer_torch() -> None:
    import torch

    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found and (int(found[1]), int(found[2])) > TESTED_TORCH:
        log.warning("torch %s is newer than the last one that stepwell was tested with (%d.%d)", torch.__version__, *TESTED_TORCH)


def _run() -> str | None:
    """Compiles and runs the test program; what is wrong, or None."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():  # who asks first may be tracing
        return _compare()


def _compare() -> str | None:
    from .load import load_object_code
    from .runtime.callables import native_callable
    from .runtime.runtime import host_runtime

    description, code = _compiled()
    library = load_object_code(code, native=True)
    return problem_of(native_callable(description, library, (), (), host_runtime()))


def problem_of(run: Callable[[list[Any]], list[Any]]) -> str | None:
    """What is wrong with the answers of the test program, or None."""
    import torch

    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    args = [x, 2]
    y, back, n = run(args)
    if args or not torch.equal(y, 2 * x + x) or back is not x or n != 8:
        return f"got {y!r}, {back!r}, {n!r}, list {args!r}"
    try:
        run([x.double(), 2])
    except AssertionError as error:
        return None if "expected dtype torch.float32" in str(error) else f"another message: {error}"
    return "a wrong dtype was taken"


def _compiled() -> tuple[ProgramDescription, bytes]:
    """The description and the object of the test program, from the disk if they are there."""
    import pickle
    from hashlib import sha256

    from ..cpu.cache import CacheError, access, cache_folder, environment, read, write
    from ..cpu.features import target

    path = cache_folder() / "selftest" / sha256(f"{environment()} {target()}".encode()).hexdigest()
    try:
        with access():
            found = read(path)
    except CacheError:  # the graphs that are compiled afterwards say so
        found = None
    if found is not None:
        return pickle.loads(found)
    description, code = compile_selftest(target())
    with suppress(CacheError), access():
        write(path, pickle.dumps((description, code)))
    return description, code


def compile_selftest(wanted: Target) -> tuple[ProgramDescription, bytes]:
    """The test program for an instruction set: its description and its object."""
    from ..cpu.emit.text import ModuleText
    from ..cpu.jit import compile_text
    from .emit import emit_host

    text = ModuleText(wanted)
    text.functions.append(llvm_text([_KERNEL]))
    text.defined.add("stepwell_selftest")
    description = emit_host(text, _program(), native=True)
    return description, compile_text(text.text(), wanted=wanted)


def _program():
    from xdsl.dialects.builtin import f32, i64

    from ...dialects import host
    from ...dialects.expr import sym
    from ...dialects.nd.call_args import Arg, Call

    s0, t = sym("s0"), host.TensorType.get(f32)
    program = host.ProgramOp.build_program("selftest", (t, i64), arena=s0 * 12)
    block = program.body.block
    x, n = block.args
    y = host.layout(host.EmptyOutputOp, None, (s0, 3), (3, 1), f32)
    p = host.ArenaPtrOp.make(0)
    inner = host.layout(host.FromArenaOp, p.result, (s0, 3), (3, 1), f32)
    call = host.ExternOp.make(Call("aten.add.Tensor", (Arg(0), Arg(1))), (inner.result, x), (t,))
    total = host.layout(host.EnsureOp, call.results[0], (s0, 3), (3, 1), f32)
    block.add_ops(
        (
            host.BindOp.make(s0, "value", n),
            host.layout(host.CheckOp, x, (s0, 3), (3, 1), f32, label="x"),
            y,
            p,
            host.LaunchOp.make("stepwell_selftest", (x, p.result), (s0 * 3,)),
            inner,
            call,
            total,
            host.ReleaseOp.create(operands=(inner.result,)),
            host.LaunchOp.make("stepwell_selftest", (x, y.result), (s0 * 3,)),
            host.PollOp.create(),
            host.ReturnOp.make((total.result, x), (Arg(0), Arg(1), s0 * 4)),
        )
    )
    return program
