"""``opt-tool --run``: inputs from .npy files or at random, results to the terminal or to .npy files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr

from ...errors import StepwellError
from ...passes.mem.arena.peak import DONATED

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """A tensor, array or number as an array; types that numpy has not become float32, or complex64."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.is_floating_point() and value.dtype not in (torch.float16, torch.float32, torch.float64):
            value = value.float()
        if value.dtype == torch.complex32:
            value = value.to(torch.complex64)
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
    """Run `function` of `module`; write each result to ``<prefix><i>.npy``, or print it to `out`, then each argument that it changed
    (``<prefix>arg<i>.npy``).

    With `repeat`, call it so many times more and return the seconds of each of these calls.
    Without `inputs` the function gets random ones, the same for the same `seed`, and so do the random numbers that it draws.
    Raises RunError and ArgumentsError.
    """
    import torch

    runner = _runner()
    values = inputs_of(module, function, inputs, seed)
    seconds: list[float] = []
    more: dict[str, Any] = {"function": function} if function else {}
    if repeat:
        more |= {"repeat": repeat, "seconds": seconds}
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        results = runner(module, ctx, values, **more)
    for index, result in enumerate(results):
        _write(out, result, f"result {index}", prefix and f"{prefix}{index}.npy")
    kept = kept_arguments(module, function)
    for index, (old, new) in enumerate(zip(before, values, strict=True)):
        if index in kept and isinstance(new, torch.Tensor) and not same_bits(old, new):
            _write(out, new, f"argument {index} after the call", prefix and f"{prefix}arg{index}.npy")
    return seconds


def _runner() -> Callable[..., list[Any]]:
    module_name, _, name = RUNNER.partition(":")
    try:
        return getattr(import_module(module_name, __package__), name)
    except ImportError as error:
        raise RunError(f"not available: {error}") from error


def inputs_of(module: ModuleOp, function: str | None, paths: list[str] | None, seed: int) -> list[Any]:
    """The inputs in the files `paths`, or random ones. Raises RunError and ArgumentsError."""
    if paths is not None:
        return list(load_inputs(paths))
    from .inputs import random_inputs

    return random_inputs(module, function, seed)


def kept_arguments(module: ModuleOp, function: str | None) -> set[int]:
    """The arguments that still mean something after a call: not those whose memory the caller gave away (`nd.donated`)."""
    from .inputs import entry_function

    entry = entry_function(module, function)
    count = len(entry.regions[0].block.args)
    attributes = entry.properties.get("arg_attrs")
    own = [a.data if isinstance(a, DictionaryAttr) else {} for a in attributes.data] if isinstance(attributes, ArrayAttr) else []
    return {k for k in range(count) if k >= len(own) or DONATED not in own[k]}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors of one type and size hold the same, NaN where the other has NaN."""
    import torch

    if a.is_floating_point() or a.is_complex():
        return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    return torch.equal(a, b)


def _write(out: TextIO, value: Any, name: str, path: str | None) -> None:
    """One value: to the file `path`, or as text."""
    import numpy as np

    kind = str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else type(value).__name__
    array = to_numpy(value)
    shape = "x".join(map(str, array.shape)) or "scalar"
    if path is not None:
        try:
            np.save(path, array)
        except OSError as error:
            raise RunError(f"cannot write '{path}': {error.strerror}") from error
        out.write(f"{name}: {kind} {shape} -> {path}\n")
        return
    text = np.array2string(array, threshold=200, edgeitems=3, precision=6, max_line_width=120)
    out.write(f"{name}: {kind} {shape}\n{text}\n")
