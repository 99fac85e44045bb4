"""Triton's stages, driven one by one from text, with nothing of its caches and front end.

The stages release Python's lock, so threads compile in parallel. What Triton's C++ says of a mistake goes to standard
error and cannot be had here; diagnose.py gets it from a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ...dialects.tt.types import SPELLINGS, Spelling
from ...errors import StepwellError
from .emit import spelling_of
from .gpu import GpuTarget, KernelOptions, TargetError
from .packed_sums import sums_apart
from .rolled_loops import rolled_loops

OLDEST_VERSION = (3, 6)


class StageError(StepwellError):
    """A stage of Triton failed: `stage` is its name (`parse` before the first), `message` what it said."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message, place=stage)
        self.stage = stage


@dataclass(frozen=True)
class Built:
    """What Triton made of a kernel."""

    stage: str
    code: str | bytes
    """The text or the binary of `stage`."""
    details: dict[str, Any] = field(default_factory=dict)
    """What a launch needs, as far as it is known at `stage`: `name` of the kernel, `num_warps`, `shared` memory in
    bytes, `global_scratch_size`, ..., how the launch encodes each descriptor (`tensordesc_meta`, which boxes.py reads); from ptxas
    `registers` of a thread, bytes of `spills`, and `waiting_products` where each product of matrices waits for the one before it."""


def version() -> str:
    """The version of the Triton that is installed.  TargetError without one, or if it is too old."""
    found = _version()
    if not found:
        raise TargetError("Triton is not installed; pip install 'triton>=3.6' (stepwell's extra 'gpu') brings it")
    if tuple(int(p) for p in found.split(".")[:2]) < OLDEST_VERSION:
        raise TargetError(f"Triton {found} is installed, 3.6 is the oldest that can be used")
    return found


def installed_spelling() -> Spelling:
    """What the installed Triton reads; that of 3.6 if there is none."""
    found = _version()
    return spelling_of(found) if found else SPELLINGS["3.6"]


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of
    from importlib.util import find_spec

    if find_spec("triton") is None:
        return ""
    try:
        return of("triton").partition("+")[0]
    except PackageNotFoundError:
        return ""


_loading = threading.Lock()


@cache
def backend_of(target: GpuTarget) -> Any:
    """Triton's back end for a target.  TargetError if it has none, or is not installed."""
    version()
    _check_architecture(target)
    with _loading:
        from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
        from triton.compiler.compiler import make_backend  # pyright: ignore[reportMissingImports]

        try:
            return make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
        except RuntimeError as error:
            raise TargetError(f"this Triton has no back end for {target.name}: {error}") from error


_EVERY_TRITON = frozenset((75, 80, 86, 87, 89, 90, 100, 120))
"""Architectures of NVIDIA that every Triton since `OLDEST_VERSION` compiles for: of these nobody is asked."""

_FIRST_ARCHITECTURE = 70
"""What Triton makes of every kernel needs it."""


def _check_architecture(target: GpuTarget) -> None:
    """TargetError for an architecture that the assemblers of this Triton do not know: its LLVM would end the process."""
    if target.backend != "cuda" or target.arch in _EVERY_TRITON:
        return
    known = _architectures()
    if known and target.arch not in known:
        names = ", ".join(f"sm_{arch}" for arch in known)
        raise TargetError(f"Triton {version()} knows no {target.name}; it compiles for {names}, gfx90a, gfx942 and the like")


@cache
def _architectures() -> tuple[int, ...]:
    """The architectures of NVIDIA that the assemblers beside Triton know; empty where none can be run."""
    import triton  # pyright: ignore[reportMissingImports]

    found: set[int] = set()
    for tool in sorted((Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("ptxas*")):
        try:
            page = subprocess.run([tool, "--help"], capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        found |= {int(arch) for arch in re.findall(r"'sm_(\d+)'", page)}
    return tuple(sorted(arch for arch in found if arch >= _FIRST_ARCHITECTURE))


@cache
def fingerprint(target: GpuTarget) -> str:
    """The versions that decide what a kernel becomes: Triton's, that of the assembler, and what is done between the two."""
    try:
        return f"triton {version()}; {backend_of(target).hash()}; sums apart, loops rolled"
    except (OSError, subprocess.SubprocessError) as error:
        raise TargetError(f"the assembler that comes with Triton cannot be run: {error}") from error


def build(text: str, target: GpuTarget, options: KernelOptions, stage: str) -> Built:
    """Take a kernel's text through Triton's stages up to `stage` (one of `target.stages`).

    Raises TargetError for a target that this Triton lacks, StageError where a stage fails."""
    if library := _instructions_suffice(text, target):
        try:
            return _build(text, target, options, stage, library)
        except _FunctionMissing:
            pass
    return _build(text, target, options, stage, None)


class _FunctionMissing(Exception):
    """The library that was linked lacks a function that the kernel calls."""


_INSTRUCTIONS = Path(__file__).with_name("instructions.ll")
_MENTIONED = re.compile(r"math\.(\w+)|\"(__nv_\w+)\"")
_DECLARED = re.compile(r"^declare [^\n]*@__nv_", re.MULTILINE)
_INSTRUCTIONS_OF_MATH = {"absf", "ceil", "exp", "exp2", "floor", "fma", "rsqrt", "sqrt"}
"""Operations that Triton takes for at most one function of instructions.ll, but for some types."""


def _instructions_suffice(text: str, target: GpuTarget) -> Path | None:
    """The library instead of NVIDIA's if a kernel's text mentions nothing that it lacks. The kernel may lack something even so."""
    if target.backend != "cuda":
        return None
    from triton import knobs  # pyright: ignore

    if knobs.nvidia.libdevice_path:
        return None
    for operation, function in _MENTIONED.findall(text):
        if operation not in _INSTRUCTIONS_OF_MATH if operation else f"@{function}(" not in _instructions():
            return None
    return _INSTRUCTIONS


@cache
def _instructions() -> str:
    return _INSTRUCTIONS.read_text()


def _build(text: str, target: GpuTarget, options: KernelOptions, stage: str, library: Path | None) -> Built:
    """`build` with a library in place of Triton's; _FunctionMissing where it lacks one that the kernel calls."""
    from triton._C.libtriton import ir  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import Language  # pyright: ignore[reportMissingImports]

    backend = backend_of(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module, path = _parse(ir, text, context)
    try:
        wanted = triton_options(options, target)
        chosen = backend.parse_options(wanted | {"extern_libs": {"libdevice": str(library)}} if library else wanted)
    except ValueError as error:
        raise StageError("options", str(error)) from error
    steps: dict[str, Any] = {}
    backend.add_stages(steps, chosen, Language.TRITON)
    metadata: dict[str, Any] = {**chosen.__dict__}
    for name in target.stages:
        try:
            if name == "cubin":
                module, found = _assemble(str(module), target, options)
                metadata |= found
            else:
                module = steps[name](module, metadata)
                if name == "llir" and library and _DECLARED.search(str(module)):
                    raise _FunctionMissing
                if name == "ptx":
                    module = rolled_loops(sums_apart(str(module)))
        except (StageError, _FunctionMissing):
            raise
        except Exception as error:
            raise StageError(name, str(error).strip() or type(error).__name__) from error
        if name == stage:
            break
    code = module if isinstance(module, (str, bytes)) else str(module)
    if isinstance(code, str):  # arguments of blocks keep the place that they were read from
        code = code.replace(path, "kernel.ttir")
    return Built(stage, code, {k: metadata[k] for k in _DETAILS if k in metadata})


_DETAILS = (
    "name",
    "num_warps",
    "num_ctas",
    "shared",
    "tmem_size",
    "global_scratch_size",
    "global_scratch_align",
    "profile_scratch_size",
    "profile_scratch_align",
    "launch_pdl",
    "launch_cooperative_grid",
    "tensordesc_meta",
    "registers",
    "spills",
    "waiting_products",
)


def _parse(ir: Any, text: str, context: Any) -> tuple[Any, str]:
    """The module, and the name of the file that it was read from, which is gone."""
    # The binding reads files only.
    handle, path = tempfile.mkstemp(suffix=".ttir")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        module = ir.parse_mlir_module(path, context)
    except RuntimeError as error:
        raise StageError("parse", str(error)) from error
    finally:
        os.unlink(path)
    module.context = context
    return module, path


def triton_options(options: KernelOptions, target: GpuTarget) -> dict[str, Any]:
    """Options as Triton's back ends take them."""
    wanted: dict[str, Any] = {
        "num_warps": options.num_warps,
        "num_stages": options.num_stages,
        "num_ctas": options.num_ctas,
        "enable_fp_fusion": options.fp_fusion,
        "debug": options.debug,
        # Triton's own checks of integer overflow are for its front end.
        "sanitize_overflow": False,
    }
    if options.maxnreg and target.backend == "cuda":
        wanted["maxnreg"] = options.maxnreg
    return wanted


# The assembler of NVIDIA, which comes in Triton's wheel.


def _assemble(ptx: str, target: GpuTarget, options: KernelOptions) -> tuple[bytes, dict[str, int]]:
    """The cubin of PTX text; registers of a thread and bytes that were spilled."""
    from triton.backends.nvidia.compiler import get_ptxas  # pyright: ignore[reportMissingImports]

    name = re.search(r"^\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    architecture = name[1] if name else target.name
    # `sm_90a` has the instructions of tensor cores that are for this very GPU.
    if isinstance(target.arch, int) and target.arch >= 90 and not architecture.endswith("a"):
        architecture += "a"
    with tempfile.TemporaryDirectory(prefix="stepwell-ptxas-") as folder:
        source, binary = os.path.join(folder, "kernel.ptx"), os.path.join(folder, "kernel.cubin")
        with open(source, "w") as file:
            file.write(ptx)
        fusion = [] if options.fp_fusion else ["--fmad=false"]
        command = [get_ptxas(target.arch).path, "-v", *fusion, f"--gpu-name={architecture}", source, "-o", binary]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
            said = "\n".join(lines).replace(source, "kernel.ptx") or f"ptxas ended with code {done.returncode}"
            raise StageError("cubin", said)
        with open(binary, "rb") as file:
            return file.read(), _usage(done.stderr)


def _usage(log: str) -> dict[str, int]:
    found: dict[str, int] = {}
    if match := re.search(r"Used (\d+) registers", log):
        found["registers"] = int(match[1])
    if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log):
        found["spills"] = int(match[1]) + int(match[2])
    if re.search(r"\bC75\d\d\b", log):
        found["waiting_products"] = 1
    return found
