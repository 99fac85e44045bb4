"""The C shim's functions for ATen operators, as torch's own headers declare them.

torch ships the declarations (`include/torch/csrc/inductor/aoti_torch`); reading them is the only way to know the
signature of the installed version, and one small rule then covers every operator that the shim has. Without headers
there are no shims, and library operators are called through Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HEADERS = ("generated/c_shim_cpu.h", "generated/c_shim_aten.h", "c/shim_cpu.h", "generated/c_shim_cuda.h")
_DECLARATION = re.compile(r"AOTITorchError\s+(aoti_torch_\w+)\s*\(([^)]*)\)\s*;")


@dataclass(frozen=True)
class Parameter:
    """One C parameter: its type as written (`const int64_t*`), without spaces around stars, and its name."""

    type: str
    name: str


def _parse_parameter(text: str) -> Parameter:
    text = " ".join(re.sub(r"//[^\n]*", "", text).split())
    type, _, name = text.replace("*", "* ").rpartition(" ")
    return Parameter(re.sub(r"\s*\*\s*", "*", type).strip(), name)


@cache
def _declarations() -> dict[str, str]:
    import torch

    folder = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "inductor" / "aoti_torch"
    found: dict[str, str] = {}
    for header in _HEADERS:
        path = folder / header
        if path.is_file():
            text = re.sub(r"//[^\n]*", "", path.read_text())
            found.update(_DECLARATION.findall(text))
    return found


def shim_name(target: str, device: str = "cpu") -> str:
    """The shim's name for an operator overload on the CPU or on `cuda`: `aten.mm.out` -> `aoti_torch_cpu_mm_out`."""
    namespace, name, overload = target.split(".")
    prefix = "" if namespace == "aten" else f"{namespace}_"
    return f"aoti_torch_{device}_{prefix}{name}" + ("" if overload == "default" else f"_{overload}")


@cache
def signature(name: str) -> tuple[Parameter, ...] | None:
    """The parameters of a shim function, or None when the headers do not declare it."""
    text = _declarations().get(name)
    if text is None:
        return None
    return tuple(_parse_parameter(part) for part in text.split(",") if part.strip())
