"""``opt-tool --run``: inputs from .npy files or at random, results to the terminal or to .npy files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import StepwellError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

RUNNER = ".run_ir:run_module"
"""What runs a module: ``run_module(module, ctx, inputs, function=None) -> results``.

`inputs` holds a torch tensor or a number for each argument; the results are tensors, arrays or numbers.  `function` is
given only where the user names one.  It takes the module at whatever level it is.
"""


class RunError(StepwellError):
    """Inputs that cannot be read, or a module that cannot be run."""


def load_inputs(paths: list[str]) -> list[torch.Tensor]:
    """The arrays in .npy files, in order.  Raises RunError that names the file."""
    import numpy as np
    import torch

    inputs: list[torch.Tensor] = []
    for path in paths:
        try:
            inputs.append(torch.from_numpy(np.load(path, allow_pickle=False)))
        except OSError as error:
            raise RunError(f"cannot read '{path}': {error.strerror or 'not a .npy file'}") from error
        except (ValueError, EOFError, TypeError) as error:
            raise RunError(f"'{path}' is not a .npy file of numbers: {error}") from error
    return inputs


def to_numpy(value: Any) -> np.ndarray:
    """A tensor, array or number as an array; types that numpy has not become float32."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.is_floating_point() and value.dtype not in (torch.float16, torch.float32, torch.float64):
            value = value.float()
        return value.numpy()
    return np.asarray(value)


def run(
    module: ModuleOp,
    ctx: Context,
    out: TextIO,
    *,
    function: str | None,
    inputs: list[str] | None,
    seed: int,
    prefix: str | None,
    repeat: int = 0,
) -> list[float]:
    """Run `function` of `module`; write each result to ``<prefix><i>.npy``, or print it to `out`.

    With `repeat`, call it so many times more and return the seconds of each of these calls.
    Without `inputs` the function gets random ones, the same for the same `seed`.  Raises RunError and InputsError.
    """
    import numpy as np

    module_name, _, name = RUNNER.partition(":")
    try:
        runner = getattr(import_module(module_name, __package__), name)
    except ImportError as error:
        raise RunError(f"not available: {error}") from error
    if inputs is not None:
        values: list[Any] = list(load_inputs(inputs))
    else:
        from .opt_inputs import random_inputs

        values = random_inputs(module, function, seed)
    seconds: list[float] = []
    more: dict[str, Any] = {"function": function} if function else {}
    if repeat:
        more |= {"repeat": repeat, "seconds": seconds}
    results = runner(module, ctx, values, **more)
    for index, result in enumerate(results):
        kind = str(result.dtype).removeprefix("torch.") if hasattr(result, "dtype") else type(result).__name__
        array = to_numpy(result)
        shape = "x".join(map(str, array.shape)) or "scalar"
        if prefix is not None:
            path = f"{prefix}{index}.npy"
            try:
                np.save(path, array)
            except OSError as error:
                raise RunError(f"cannot write '{path}': {error.strerror}") from error
            out.write(f"result {index}: {kind} {shape} -> {path}\n")
            continue
        text = np.array2string(array, threshold=200, edgeitems=3, precision=6, max_line_width=120)
        out.write(f"result {index}: {kind} {shape}\n{text}\n")
    return seconds
