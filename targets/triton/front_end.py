"""Triton's front end: a `@triton.jit` function and the types of its arguments to Triton IR, on a machine without a GPU too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from ..cpu.cache import cache_folder, read, write
from .gpu import GpuTarget, KernelOptions, TargetError
from .toolchain import backend_of, fingerprint, triton_options


class SourceKernel(Protocol):
    """A kernel as its source and what is known of its arguments.

    function: a triton.JITFunction. signature: Triton's type of each parameter (`*fp32`, `i32`, `constexpr`); constants: the values of the
    constexpr ones; divisible: parameters that are multiples of 16."""

    @property
    def function(self) -> Any: ...
    @property
    def signature(self) -> Mapping[str, str]: ...
    @property
    def constants(self) -> Mapping[str, Any]: ...
    @property
    def divisible(self) -> frozenset[str]: ...


def kernel_ttir(kernel: SourceKernel, options: KernelOptions, target: GpuTarget) -> str:
    """The Triton IR of a kernel after Triton's own stage `ttir` (helpers inlined), without places.

    Texts are kept on disk under the hash of the function's source with all that it uses.
    TargetError for a kernel that Triton refuses, with what it says."""
    key = _key(kernel, options, target)
    path = cache_folder() / "kernels" / f"{key}.source.ttir"
    kept = read(path) if key else None
    if kept is not None:
        return kept.decode()
    text = _made(kernel, options, target)
    if key:
        write(path, text.encode())
    return text


def _made(kernel: SourceKernel, options: KernelOptions, target: GpuTarget) -> str:
    from triton._C.libtriton import ir  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget, Language  # pyright: ignore[reportMissingImports]
    from triton.compiler.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    backend = backend_of(target)
    names = list(kernel.signature)
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in sorted(kernel.divisible)}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    try:
        chosen = backend.parse_options(triton_options(options, target))
        source = ASTSource(kernel.function, dict(kernel.signature), {(names.index(n),): v for n, v in kernel.constants.items()}, hints)
        functions, modules = backend.get_codegen_implementation(chosen), backend.get_module_map()
        place = GPUTarget(target.backend, target.arch, target.warp_size)
        module = source.make_ir(place, chosen, functions, modules, context)
        steps: dict[str, Any] = {}
        backend.add_stages(steps, chosen, Language.TRITON)
        return steps["ttir"](module, {**chosen.__dict__}).str_nodebug()
    except Exception as error:  # whatever the user's code makes of the front end
        raise TargetError(f"Triton does not take kernel '{kernel.function.__name__}': {type(error).__name__}: {error}") from error


def _key(kernel: SourceKernel, options: KernelOptions, target: GpuTarget) -> str:
    """The name of the text in the cache; "" where a constant has no lasting text."""
    if not all(isinstance(v, (str, int, float, bool, type(None))) for v in kernel.constants.values()):
        return ""
    given = [list(kernel.signature.items()), list(kernel.constants.items()), sorted(kernel.divisible)]
    what = [kernel.function.cache_key, *given, asdict(options), target.name]
    return hashlib.sha256(json.dumps([what, fingerprint(target)], sort_keys=True).encode()).hexdigest()
