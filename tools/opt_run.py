"""``opt-tool --run``: inputs from .npy files or at random, results to the terminal or to .npy files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TextIO

from ..errors import StepwellError

if TYPE_CHECKING:
    import numpy as np
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

RUNNER = ".run_ir:run_module"
"""What runs a module: ``run_module(module, ctx, inputs, *, function, seed) -> list of numpy arrays``.

`inputs` is a list of arrays, one for each argument, or None for random ones made from `seed`; `function` is the name
of the function, or None for the only or the main one.  It takes the module at whatever level it is and lowers the rest
by itself.
"""


class RunError(StepwellError):
    """Inputs that cannot be read, or a module that cannot be run."""


def load_inputs(paths: list[str]) -> list[np.ndarray]:
    """The arrays in .npy files, in order.  Raises RunError that names the file."""
    import numpy as np

    arrays: list[np.ndarray] = []
    for path in paths:
        try:
            arrays.append(np.load(path, allow_pickle=False))
        except OSError as error:
            raise RunError(f"cannot read '{path}': {error.strerror or 'not a .npy file'}") from error
        except (ValueError, EOFError) as error:
            raise RunError(f"'{path}' is not a .npy file of numbers: {error}") from error
    return arrays


def run(
    module: ModuleOp,
    ctx: Context,
    out: TextIO,
    *,
    function: str | None,
    inputs: list[str] | None,
    seed: int,
    prefix: str | None,
) -> None:
    """Run `function` of `module`; write each result to ``<prefix><i>.npy``, or print it to `out`.  Raises RunError."""
    import numpy as np

    module_name, _, name = RUNNER.partition(":")
    try:
        runner = getattr(import_module(module_name, __package__), name)
    except ImportError as error:
        raise RunError(f"not available: {error}") from error
    arrays = load_inputs(inputs) if inputs is not None else None
    results = runner(module, ctx, arrays, function=function, seed=seed)
    for index, result in enumerate(results):
        array = np.asarray(result)
        shape = "x".join(map(str, array.shape)) or "scalar"
        if prefix is not None:
            path = f"{prefix}{index}.npy"
            try:
                np.save(path, array)
            except OSError as error:
                raise RunError(f"cannot write '{path}': {error.strerror}") from error
            out.write(f"result {index}: {array.dtype} {shape} -> {path}\n")
            continue
        values = np.array2string(array, threshold=200, edgeitems=3, precision=6, max_line_width=120)
        out.write(f"result {index}: {array.dtype} {shape}\n{values}\n")
