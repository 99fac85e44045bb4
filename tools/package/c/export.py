"""Models as objects for C programs: `NAME.o`, which needs a C library with mathematics and threads, and `NAME.h`.

    export_c(model, (x,), name="net", folder="build")            # build/net.o, build/net.h
    export_c({"prefill": (model, (x,)), "decode": (step, (y,))}, name="lm", shared=True)        # and lm.so

Nothing of Python or torch is in them: an operator that only torch's library computes is refused, by name.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .... import __version__
from ....errors import CompileError
from ....targets.host.c.levels import ordered
from ....targets.host.c.unit import Unit, signature_of
from ....targets.host.c.weights import object_parts
from ..export import programs_of
from .entries import Entries
from .header import c_header

LEVELS = ("cpu-v3", "cpu-v4")
"""What code is made for unless something else is asked for."""


def export_c(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    folder: str | Path = ".",
    dynamic_shapes: Any = None,
    levels: Sequence[str] = LEVELS,
    shared: bool = False,
) -> list[Path]:
    """Write `name`.o and `name`.h into a folder, with `shared` `name`.so too, which takes a C compiler or linker; gives the files.

    model: a module, a function, an ExportedProgram or the path of a .pt2 file; args, kwargs and dynamic_shapes say how it is called, as in
    torch.export. Or a dict of entries, by name: (model, args) and, if there are, kwargs and dynamic shapes. Entries share weights, and
    buffers that they update. levels: the instruction sets that there is code for; the best one that the processor has is chosen when a
    model is opened. Raises PackageError for what torch cannot export, CEntryError for an operator that only the library has, sizes that
    depend on values, a device that is not the CPU, and ValueError for a name that is none in C."""
    chosen = ordered(levels)
    entries = Entries(on_gpu=chosen[0].startswith("sm_"))
    for entry, program in programs_of(model, tuple(args), kwargs or {}, dynamic_shapes).items():
        entries.add(entry, program)
    plans = entries.plans(chosen)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unit, files = Unit(name, chosen), [folder / f"{name}.o", folder / f"{name}.h"]
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights"
        state_bytes = entries.write_weights(weights)
        code = unit.build(plans, weights.stat().st_size, state_bytes)
        with files[0].open("wb") as file:
            file.writelines(object_parts(code, weights))
    files[1].write_text(c_header(name, [signature_of(plan) for plan in plans[chosen[0]]], __version__, unit.device))
    if shared:
        files.append(folder / f"{name}.so")
        link_shared(files[0], files[2])
    return files


def link_shared(source: Path, target: Path) -> None:
    """A shared library of an object, by the C compiler or the linker of this machine. CompileError where there is none, or it fails."""
    compiler = next((found for tool in ("cc", "gcc", "clang", "ld", "ld.lld") if (found := shutil.which(tool))), None)
    if compiler is None:
        tools = "cc, gcc, clang, ld or ld.lld"
        raise CompileError(f"{target.name} takes a linker ({tools}), and this machine has none; {source.name} is there")
    command = [compiler, "-shared", "-o", str(target), str(source), "-lm", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{Path(compiler).name} cannot link {target.name}: {done.stderr.strip()}")


__all__ = ["LEVELS", "export_c", "link_shared"]
