"""Functions that depend on no graph: made when an object first refers to one, kept on disk, linked once in a process.

A graph's object calls them by name (`GemmSpec.shared_symbol`, `AttentionSpec.shared_symbol`); the name says
everything that their code depends on, so that it is the whole request. They bring their own scratch memory
(`scratch.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .attention_spec import AttentionSpec
from .cache import cached_object
from .gemm_spec import ISAS, GemmSpec

_TYPES = "f32|bf16|f16|f64"
_ISAS = "|".join(sorted(ISAS, key=len, reverse=True))
_GEMM = re.compile(
    rf"stepwell_gemm_(?P<dtype>{_TYPES})_(?P<a>[nt])(?P<b>[nt])_(?P<isa>{_ISAS})"
    rf"(?:_to_(?P<out>{_TYPES}))?(?:_bias_(?P<bias>{_TYPES}))?(?P<add>_add)?(?P<tile>_tile)?_shared"
)
_ATTENTION = re.compile(rf"stepwell_attention_(?P<dtype>{_TYPES})_(?P<isa>{_ISAS})_shared")

_loaded: dict[str, object] = {}
"""The linked libraries by symbol; they live as long as the process."""


def spec_of(symbol: str) -> GemmSpec | AttentionSpec | None:
    """What a symbol asks for; None if it is not one of this library."""
    found = _GEMM.fullmatch(symbol)
    if found is not None:
        return GemmSpec(
            found["dtype"],
            found["out"] or "",
            trans_a=found["a"] == "t",
            trans_b=found["b"] == "t",
            isa=found["isa"],
            accumulate=found["add"] is not None,
            bias=found["bias"] or "",
            tile=found["tile"] is not None,
        )
    found = _ATTENTION.fullmatch(symbol)
    return AttentionSpec(found["dtype"], found["isa"]) if found is not None else None


def module_of(spec: GemmSpec | AttentionSpec) -> str:
    """The LLVM module that defines `spec.shared_symbol`."""
    if isinstance(spec, AttentionSpec):
        from .attention import shared_attention_module

        return shared_attention_module(spec)
    from .gemm import shared_gemm_module

    return shared_gemm_module(spec)


def library_symbols(names: Iterable[str]) -> dict[str, int]:
    """The addresses of those of `names` that belong to the library."""
    return {name: _address(name, spec) for name in names if (spec := spec_of(name)) is not None}


def _address(symbol: str, spec: GemmSpec | AttentionSpec) -> int:
    from .jit import Library, load_object

    library = _loaded.get(symbol)
    if library is None:
        data, _ = cached_object(module_of(spec))
        library = _loaded[symbol] = load_object(data, exports=[symbol])
    assert isinstance(library, Library)
    return library.address(symbol)
