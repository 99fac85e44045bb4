"""One random program as a Python file: what is run, what is kept, what is reduced."""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

import torch

from ...errors import StepwellError

LISTED = 64
"""Elements of a tensor that are written as numbers; more are written as bytes."""
_LOADS = count()


class FuzzError(StepwellError):
    """A random program that was asked for and that there is not."""


@dataclass(frozen=True)
class Case:
    """A program and its inputs, as text: `program(...)`, and `inputs(which)`, which gives a list of tensors."""

    kind: str
    seed: int
    program: str
    inputs: str
    sets: int = 1
    """How many sets of inputs, of different sizes, there are."""
    dynamic: bool = False
    grad: bool = False
    fullgraph: bool = False
    tolerance: float = 2e-4
    """What results may differ by, relative and absolute, without a look at how rounding errors grow in the program."""
    exact: bool = False
    """The generator knows which values are exact: a difference beyond the tolerance is a fault."""

    suffix = "py"

    def verdict(self, device: str = "cpu") -> tuple[str, str]:
        """("right" | "wrong" | "skipped", why)."""
        from .check import verdict

        return verdict(self, device)

    def source(self, note: str = "", device: str = "cpu") -> str:
        """A Python file that shows whether the program is compiled right."""
        given = {"sets": self.sets, "dynamic": self.dynamic, "grad": self.grad, "fullgraph": self.fullgraph, "tolerance": self.tolerance}
        options = ", ".join([*(f"{key}={value}" for key, value in given.items()), f"device={device!r}"])
        lines = "".join(f"# {line}".rstrip() + "\n" for line in note.splitlines())
        return (
            f"{lines}import torch\n\nfrom stepwell.tools.fuzz.values import make, operator, tensor\n\n\n{self.program.strip()}\n\n\n"
            f"{self.inputs.strip()}\n\n\nif __name__ == '__main__':\n    from stepwell.tools.fuzz.check import main\n\n"
            f"    main(program, inputs, {options})\n"
        )

    def load(self) -> tuple[Callable[..., Any], Callable[[int], list[Any]]]:
        """The function, and what makes its inputs.

        Dynamo looks for globals in the module of a function, and keeps modules by name: each load has a name of its own."""
        name = f"stepwell_random_program_{next(_LOADS)}"
        module = sys.modules[name] = ModuleType(name)
        exec(compile(self.source(), "<random program>", "exec"), vars(module))
        return module.program, module.inputs


def inputs_text(inputs: Sequence[Any]) -> str:
    """`inputs(which)` that gives these tensors and numbers."""
    lines = [f"        {value_text(value)},\n" for value in inputs]
    return "def inputs(which=0):\n    return [\n" + "".join(lines) + "    ]\n"


def value_text(value: Any) -> str:
    """A tensor, with its strides, or a number as Python text."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    last = ", True" if value.requires_grad else ""
    value = value.detach()
    size = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    flat = value.as_strided((size,), (1,)) if size else value.new_empty(0)
    kind, shape, stride = str(value.dtype), tuple(value.shape), tuple(value.stride())
    if size <= LISTED and not value.is_complex():
        wide = flat.double() if value.is_floating_point() else flat
        numbers = ", ".join(f"float('{n}')" if n != n or n in (float("inf"), -float("inf")) else repr(n) for n in wide.tolist())
        return f"tensor({kind}, {shape}, {stride}, [{numbers}]{last})"
    raw = base64.b64encode(zlib.compress(flat.contiguous().view(torch.uint8).numpy().tobytes(), 9)).decode()
    return f"tensor({kind}, {shape}, {stride}, {raw!r}{last})"
