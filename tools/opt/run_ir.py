"""Runs a module at whatever level it is: what is left of the CPU pipeline is applied to a copy of it, and the program
is executed. A module with kernels of a GPU takes that one's pipeline, and its launches run in the interpreter.

With `interpret` (or the environment variable STEPWELL_INTERPRET=1) the levels nd, loop, mem and cpu run through their
reference interpreters instead, as they stand; kernels of the CPU are machine code there too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation

from ...dialects import host
from ...dialects.loop.batch import BATCH
from ...dialects.nd.call_args import CallAttr, Obj
from ...passes.manager import pipelines
from ...passes.manager.errors import PassError, did_you_mean
from ...passes.manager.resume import function_level
from .inputs import entry_function, random_inputs
from .run import RunError

if TYPE_CHECKING:
    from xdsl.context import Context


LEVELS = ("nd", "loop", "mem", "cpu", "host")
"""From the level of the graph to that of the program; a level's name is that of the dialect that its functions are
written in."""


def level_of(module: ModuleOp, function: str | None = None) -> str:
    """The lowest level that `function` (or the module's main function) has reached: nd, loop, mem, cpu, tt or host.

    cpu, tt: its nests are launches of kernels, of the processor or of a GPU; those of a user's target give the name of its stage.
    RunError when the module has no such function."""
    entry = entry_function(module, function)
    if entry.name == "host.program":
        return "host"
    if not isinstance(entry, FuncOp):
        raise RunError(f"'{entry.name}' cannot be run by itself; run the function or program that launches it")
    called = _called(module, entry)
    bodies = [entry, *(f for f in module.ops if isinstance(f, FuncOp) and _name(f) in called and f.body.blocks)]
    levels = [level for body in bodies if (level := function_level(body)) is not None]
    level = min(levels, key=pipelines.LEVELS.__getitem__, default="nd")
    return kernel_target(module)[1] if level == "cpu" else level


def kernel_target(module: ModuleOp) -> tuple[str, str]:
    """What the kernels of a module are made by, and the stage that makes them, whose name is that of their dialect: ("cpu", "cpu") where
    there are none."""
    from ...passes.manager.pipelines import TARGETS

    dialects = {op.name.partition(".")[0] for op in module.ops} - {"func", "nd", "loop", "mem", "host"}
    return next(((target, stage) for stage in sorted(dialects) for target in reversed(TARGETS) if stage in TARGETS[target]), ("cpu", "cpu"))


def run_module(
    module: ModuleOp,
    ctx: Context,
    inputs: Sequence[Any] | None,
    function: str | None = None,
    *,
    seed: int = 0,
    objects: Sequence[Any] = (),
    interpret: bool | None = None,
    repeat: int = 0,
    seconds: list[float] | None = None,
) -> list[Any]:
    """Run a function of `module`, which is not changed, and return its results: tensors and numbers.

    With `repeat` it is called so many times more, and `seconds` gets the time of each of these calls (compiled code only).

    inputs: a tensor or number for each argument, constants of the graph included; None for random ones made from
    `seed`. Tensors that the function updates are written. Raises RunError for a module that cannot be lowered or
    inputs that do not fit, IndexError for an index out of bounds."""
    given = list(inputs) if inputs is not None else random_inputs(module, function, seed)
    _check_objects(module, len(objects))
    level = level_of(module, function)
    if level in ("mem", "cpu"):
        _check_places(module)
    if interpret is None:
        interpret = os.environ.get("STEPWELL_INTERPRET", "") not in ("", "0")
    if (interpret or level == "tt") and level in _INTERPRETERS:
        name = _name(entry_function(module, function))
        return _INTERPRETERS[level](module, given, (), objects, name)
    call, arguments = _compiled(module, ctx, given, level, function, objects)
    results = list(call(list(arguments)))
    for _ in range(repeat):
        again = list(arguments)
        start = perf_counter()
        call(again)
        if seconds is not None:
            seconds.append(perf_counter() - start)
    return results


def _check_kernels(module: ModuleOp) -> None:
    """PassError, at the launch, where one names a kernel that the module has not."""
    kernels = [_name(op) for op in module.ops if "sym_name" in op.properties and op.name != "host.program"]
    for op in module.walk():
        if isinstance(op, host.LaunchOp) and (name := op.kernel.root_reference.data) not in kernels:
            hint = did_you_mean(name, kernels) or f"; it has: {', '.join(kernels)}"
            raise PassError(f"the module has no kernel '{name}'{hint}", op=op)


def _check_places(module: ModuleOp) -> None:
    """PassError, at the allocation, where buffers that hold something at the same time share bytes of the arena."""
    from ...passes.mem.arena.arena_clashes import check_places
    from ...passes.mem.arena.mem_plan import symbol_hints

    for func in module.ops:
        if isinstance(func, FuncOp):
            check_places(func, symbol_hints(module))


def _check_objects(module: ModuleOp, count: int) -> None:
    """PassError, at the call, where one needs a Python object (the function of a branch, a generator) beyond the `count` given."""
    for op in module.walk():
        for attribute in (*op.properties.values(), *op.attributes.values()):
            if isinstance(attribute, CallAttr) and any(isinstance(leaf, Obj) and leaf.index >= count for leaf in attribute.data.leaves()):
                what = "is given a Python object (a branch, the body of a loop, a generator), which text does not hold"
                raise PassError(f"'{attribute.data.target}' {what}; run the function that the object stands for by itself", op=op)


def _name(op: Operation) -> str:
    return op.properties["sym_name"].data  # pyright: ignore[reportAttributeAccessIssue]


def _interpret_nd(
    module: ModuleOp, inputs: list[Any], constants: Sequence[Any], objects: Sequence[Any], name: str
) -> list[Any]:
    from ..interpret.nd import run_nd

    return run_nd(module, inputs, constants, objects, name)


def _interpret_loop(
    module: ModuleOp, inputs: list[Any], constants: Sequence[Any], objects: Sequence[Any], name: str
) -> list[Any]:
    from ..interpret.loop import run_loop

    return run_loop(module, inputs, constants, objects, name)


_INTERPRETERS: dict[str, Callable[..., list[Any]]] = {
    "nd": _interpret_nd,
    "loop": _interpret_loop,
    "mem": _interpret_loop,
    "cpu": _interpret_loop,
    "tt": _interpret_loop,
}


def _compiled(
    module: ModuleOp, ctx: Context, given: list[Any], level: str, function: str | None, objects: Sequence[Any]
) -> tuple[Callable[[list[Any]], Sequence[Any]], list[Any]]:
    """The program of a function, and the inputs of a call of it."""
    from ...targets.cpu.emit.module import emit_kernels
    from ...targets.cpu.jit import compile_text
    from ...targets.host.emit import emit_host
    from ...targets.host.load import load_object_code, load_program

    entry = entry_function(module, function)
    inputs, constants = _split_constants(entry, given)
    lowered = lower_rest(module, ctx, level, entry)
    program = next(op for op in lowered.ops if isinstance(op, host.ProgramOp))
    _check_kernels(lowered)
    text = emit_kernels(lowered)
    with _launching(lowered) as (target, kernels):
        description = emit_host(text, program, kernels=kernels, target=target)
        library = load_object_code(compile_text(text.text()), description.native)
        return load_program(description, library, constants, objects), inputs


@contextmanager
def _launching(module: ModuleOp) -> Iterator[tuple[str, Sequence[Any]]]:
    """What the kernels of a program are made by, and those that are not the CPU's; where the tensors of a program for a GPU are on the CPU
    its launches run in the interpreter."""
    from ...targets.target import find_target

    target, _ = kernel_target(module)
    if target != "gpu":
        made = find_target(target).kernels(module, "cpu")
        if made.finish is not None:
            made.finish()
        yield target, made.kernels
        return
    from ...targets.host.gpu.driver import use_driver
    from ..interpret.gpu import InterpretedDriver, interpreted_kernels

    with use_driver(InterpretedDriver(module)):
        yield target, interpreted_kernels(module)


def _split_constants(entry: Operation, given: list[Any]) -> tuple[list[Any], list[Any]]:
    """The inputs of a call and the constant tensors, which are arguments of a function but belong to a program."""
    if not isinstance(entry, FuncOp):
        return given, []
    count = len(entry.body.block.args)
    if len(given) != count:
        raise RunError(f"@{_name(entry)} takes {count} arguments, {len(given)} were given")
    attrs = entry.arg_attrs.data if entry.arg_attrs is not None else ()
    found: dict[int, Any] = {}
    inputs: list[Any] = []
    for k, value in enumerate(given):
        place = attrs[k].data.get("nd.constant") if k < len(attrs) else None  # pyright: ignore[reportAttributeAccessIssue]
        if place is None:
            inputs.append(value)
        else:
            found[place.value.data] = value  # pyright: ignore[reportAttributeAccessIssue]
    return inputs, [found[k] for k in sorted(found)]


def _called(module: ModuleOp, entry: Operation | None) -> set[str]:
    """The names of the functions that `entry` (None: any function of the module) calls, and that these call."""
    functions = {_name(op): op for op in module.ops if isinstance(op, FuncOp)}
    found: set[str] = set()
    worklist = [module if entry is None else entry]
    while worklist:
        names = {op.callee.string_value() for op in worklist.pop().walk() if isinstance(op, CallOp)} - found
        found |= names
        worklist.extend(functions[name] for name in names if name in functions)
    return found


def lower_rest(module: ModuleOp, ctx: Context, level: str, entry: Operation | None = None) -> ModuleOp:
    """A copy of `module` after the stages below `level`; where `entry` is given, of its functions only that and those that it calls."""
    from ...passes.cost.machine import Gpu, machine_of
    from ...passes.manager.instrumentation import Instrumentation
    from ...passes.manager.pass_manager import run
    from ...passes.manager.pipelines import default_pipeline, parse_pipeline, stage_names

    copied = module.clone()
    called = _called(module, entry)
    if entry is not None:
        for op in list(copied.ops):
            if op.name in ("func.func", "host.program") and _name(op) not in (_name(entry), *called) and BATCH not in op.attributes:
                op.detach()
                op.erase(safe_erase=False)
    target, _ = kernel_target(copied)  # at the level nd: of a user's Triton kernel
    if target == "cpu" and isinstance(machine_of(copied), Gpu):
        target = "gpu"
    levels = stage_names(target)
    stages = levels if level == "nd" else levels[levels.index(level) + 1 :]
    if level == "loop" and called:  # a module in the midst of the stage, between loop-outline and loop-inline
        run(parse_pipeline("loop-inline"), copied, ctx, Instrumentation())
    if stages:
        run(default_pipeline(target, stages=stages), copied, ctx, Instrumentation())
    return copied
