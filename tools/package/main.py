"""The command `stepwell export`.

    stepwell export model.py:net --args "torch.randn(8, 16)" --dynamic "({0: Dim('batch', max=64)},)" -o net.stepwell
    stepwell export model.pt2 -o net.stepwell --targets cpu-v3,sm_90
    stepwell export --retarget net.stepwell --targets cpu-v4 -o other.stepwell
    stepwell export model.py:net --args "torch.randn(8, 16)" --c net -o build
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import StepwellError
from ...targets.package.errors import PackageError


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the package was written, 2 where it could not be."""
    given = _parser().parse_args(arguments)
    start = time.perf_counter()
    try:
        if given.c:
            print(f"{', '.join(map(str, _export_c(given)))}, {time.perf_counter() - start:.1f} s")
            return 0
        size = _retarget(given) if given.retarget else _export(given)
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{given.output}: {size} bytes, {_summary(given.output)}, {time.perf_counter() - start:.1f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stepwell export", description="A model as one file that runs without a compiler.")
    parser.add_argument("model", help="file.py:name, a file of torch.export (.pt2), or with --retarget a package")
    parser.add_argument("-o", "--output", required=True, help="the package to write; with --c, the folder")
    parser.add_argument(
        "--args",
        help="arguments of the model, as a Python expression that may use torch and the names of the file; without, the name is a function "
        "that returns (model, args, kwargs, dynamic_shapes) or a dictionary of entry points",
    )
    parser.add_argument("--kwargs", help="keyword arguments of the model, as a Python dictionary")
    parser.add_argument("--dynamic", help="dynamic_shapes of torch.export, as a Python expression that may use Dim")
    parser.add_argument(
        "--targets", help="cpu-v3, cpu-v4, cpu-armv8.6, cpu-native, sm_80, sm_90, gfx942, with commas between"
    )
    parser.add_argument("--options", help="those of torch.compile, as a Python dictionary: \"{'freezing': True}\"")
    parser.add_argument("--no-ir", action="store_true", help="leave the IR out: smaller, and never compiled for other targets")
    parser.add_argument("--retarget", action="store_true", help="compile the IR of a package for other targets")
    parser.add_argument("--c", metavar="NAME", help="write NAME.o and NAME.h for C programs in place of a package")
    parser.add_argument("--shared", action="store_true", help="with --c: NAME.so, too, which takes a C compiler or linker")
    return parser


def _export_c(given: argparse.Namespace) -> list[Path]:
    from .c.export import LEVELS, export_c

    if given.model.endswith(".pt2"):
        from torch.export import load

        model, args, kwargs, dynamic = load(given.model), (), None, None
    else:
        model, args, kwargs, dynamic = _loaded(given)
    levels = _targets(given) or LEVELS
    return export_c(
        model, args, kwargs, name=given.c, folder=given.output, dynamic_shapes=dynamic, levels=levels, shared=given.shared
    )


def _targets(given: argparse.Namespace) -> list[str] | None:
    return [name.strip() for name in given.targets.split(",")] if given.targets else None


def _retarget(given: argparse.Namespace) -> int:
    from .retarget import retarget

    targets = _targets(given)
    if targets is None:
        raise PackageError("--retarget needs --targets")
    return retarget(given.model, targets, to=given.output)


def _export(given: argparse.Namespace) -> int:
    from .export import export

    chosen = _value(given.options or "{}", "--options", {})
    options: dict[str, Any] = dict(to=given.output, targets=_targets(given), ir=not given.no_ir, options=chosen)
    if given.model.endswith(".pt2"):
        return export(given.model, **options)
    model, args, kwargs, dynamic = _loaded(given)
    return export(model, args, kwargs, dynamic_shapes=dynamic, **options)


def _loaded(given: argparse.Namespace) -> tuple[Any, tuple[Any, ...], Any, Any]:
    """The model of `file.py:name`, its arguments, keyword arguments and dynamic shapes. PackageError."""
    import runpy

    import torch

    file, _, name = given.model.rpartition(":")
    if not file.endswith(".py") or not name:
        raise PackageError(f"expected file.py:name or a .pt2 file, got '{given.model}'")
    if not Path(file).is_file():
        raise PackageError("there is no such file", place=file)
    space = runpy.run_path(file)
    if name not in space:
        raise PackageError(f"it defines no '{name}'", place=file)
    names = {"torch": torch, "Dim": torch.export.Dim, **space}
    if given.args is not None or given.kwargs is not None:
        args = _value(f"({given.args},)" if given.args else "()", "--args", names, given.args or "")
        kwargs = _value(given.kwargs or "{}", "--kwargs", names)
        return space[name], args, kwargs, _value(given.dynamic or "None", "--dynamic", names)
    made = space[name]() if callable(space[name]) else space[name]
    if isinstance(made, dict):
        return made, (), None, None
    if not isinstance(made, tuple) or not made:
        raise PackageError(
            f"without --args, '{name}' is a function without parameters that returns (model, args, kwargs, dynamic_shapes) or a dictionary "
            "of entry points",
            place=file,
        )
    given_args, kwargs, dynamic = [*made[1:], *[(), None, None][len(made) - 1 :]]
    return made[0], given_args, kwargs, _value(given.dynamic, "--dynamic", names) if given.dynamic else dynamic


def _value(text: str, option: str, names: dict[str, Any], shown: str = "") -> Any:
    try:
        return eval(text, names)  # the user's own expression, in the user's own module
    except Exception as error:
        raise PackageError(f"{option} '{shown or text}': {type(error).__name__}: {error}") from error


def _summary(path: str) -> str:
    from ...targets.package.format import open_package
    from ...targets.package.signature import Signature

    with open_package(path) as file:
        signature: Signature = file.load(Signature, "signature")
    entries, targets = ", ".join(e.name for e in signature.entries), ", ".join(t.name for t in signature.targets)
    return f"entry point{'s' if len(signature.entries) > 1 else ''} {entries}, code for {targets}"
