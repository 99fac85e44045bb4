"""Functions that depend on no graph: made when an object first refers to one, kept on disk, linked once in a process.

A graph's object calls them by name (`GemmSpec.shared_symbol`, `AttentionSpec.shared_symbol`); the name says
everything that their code depends on, so that it is the whole request. They bring their own scratch memory
(`scratch.py`).

Compiling one takes as long as the rest of a small graph, and needs to know nothing of the graph: `prepare` has it done in a thread while
the graph is lowered (LLVM does not hold Python's lock).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait

from .attention.spec import AttentionSpec, WeighedSpec
from .cache import shared_object
from .gemm.int4 import Int4Spec
from .gemm.int4_rows import Int4RowsSpec
from .gemm.spec import ISAS, GemmSpec

LibrarySpec = GemmSpec | Int4Spec | Int4RowsSpec | AttentionSpec | WeighedSpec

_TYPES = "f32|bf16|f16|f64|i8|u8|i32"
_ISAS = "|".join(sorted(ISAS, key=len, reverse=True))
_GEMM = re.compile(
    rf"stepwell_gemm_(?P<dtype>{_TYPES})_(?P<a>[nt])(?P<b>[nt])_(?P<isa>{_ISAS})"
    rf"(?:_by_(?P<by>{_TYPES}))?(?:_to_(?P<out>{_TYPES}))?(?:_bias_(?P<bias>{_TYPES}))?(?P<tile>_tile)?(?P<windows>_windows)?"
    r"(?:_panels(?P<panels>\d+))?(?P<ordered>_ordered)?_shared"
)
_INT4 = re.compile(rf"stepwell_int4_(?P<dtype>{_TYPES})_(?P<isa>{_ISAS})_shared")
_INT4_ROWS = re.compile(
    rf"stepwell_int4_rows_(?P<dtype>{_TYPES})_(?P<isa>{_ISAS})_by_(?P<scales>{_TYPES})_(?P<parts>\d)_(?P<groups>\d+)(?P<zeros>_zeros)?_shared"
)
_ATTENTION = re.compile(rf"stepwell_attention_(?P<dtype>{_TYPES})_(?P<isa>{_ISAS})_shared")

_WEIGHED = re.compile(
    rf"stepwell_weighed_(?P<dtype>{_TYPES})_(?P<isa>{_ISAS})_(?P<kind>scaled|placed|added|softmax|sum)_(?P<scores>\d+)_(?P<weights>\d+)_shared"
)

_loaded: dict[str, object] = {}
"""The linked libraries by symbol; they live as long as the process."""


def spec_of(symbol: str) -> LibrarySpec | None:
    """What a symbol asks for; None if it is not one of this library."""
    found = _GEMM.fullmatch(symbol)
    if found is not None:
        return GemmSpec(
            found["dtype"],
            found["out"] or "",
            trans_a=found["a"] == "t",
            trans_b=found["b"] == "t",
            isa=found["isa"],
            bias=found["bias"] or "",
            tile=found["tile"] is not None,
            b=found["by"] or "",
            windows=found["windows"] is not None,
            panels=int(found["panels"] or 0),
            ordered=found["ordered"] is not None,
        )
    found = _WEIGHED.fullmatch(symbol)
    if found is not None:
        kind, counts = found["kind"], (int(found["scores"]), int(found["weights"]))
        flags = kind in ("softmax", "scaled"), kind == "scaled", kind in ("added", "placed"), kind == "placed"
        return WeighedSpec(found["dtype"], found["isa"], *counts, *flags)
    found = _INT4.fullmatch(symbol)
    if found is not None:
        return Int4Spec(found["dtype"], found["isa"])
    found = _INT4_ROWS.fullmatch(symbol)
    if found is not None:
        kinds = (found["dtype"], found["isa"], found["scales"], int(found["parts"]), int(found["groups"]))
        return Int4RowsSpec(*kinds, zeros=found["zeros"] is not None)
    found = _ATTENTION.fullmatch(symbol)
    return AttentionSpec(found["dtype"], found["isa"]) if found is not None else None


def module_of(spec: LibrarySpec) -> str:
    """The LLVM module that defines `spec.shared_symbol`."""
    if isinstance(spec, WeighedSpec):
        from .attention.weighed import shared_weighed_module

        return shared_weighed_module(spec)
    if isinstance(spec, AttentionSpec):
        from .attention.driver import shared_attention_module

        return shared_attention_module(spec)
    if isinstance(spec, Int4Spec):
        from .gemm.int4 import shared_int4_module

        return shared_int4_module(spec)
    if isinstance(spec, Int4RowsSpec):
        from .gemm.int4_rows import shared_int4_rows_module

        return shared_int4_rows_module(spec)
    from .gemm.driver import shared_gemm_module

    return shared_gemm_module(spec)


def function_object(symbol: str) -> bytes:
    """The object of a function of the library for the target of the moment, from the cache where a thread has made it. KeyError for the
    name of none."""
    spec = spec_of(symbol)
    if spec is None:
        raise KeyError(symbol)
    return _object(symbol, spec)


def _object(symbol: str, spec: LibrarySpec) -> bytes:
    """The object of one function of the library, which follows from its name."""
    return shared_object(symbol, lambda: module_of(spec))


_lock = threading.RLock()
_ordered: dict[str, Future[bytes]] = {}
"""The objects that threads are making, by symbol."""


def prepare(symbols: Iterable[str]) -> None:
    """Begin to make the objects of those functions of the library that are not there yet, and return at once. Whoever needs one waits
    for it; what nobody needs is kept on disk."""
    with _lock:
        wanted = [s for s in dict.fromkeys(symbols) if s not in _loaded and s not in _ordered and spec_of(s) is not None]
        _ordered.update((s, Future()) for s in wanted)
        orders = [(s, _ordered[s]) for s in wanted]
    if orders:
        threading.Thread(target=_make, args=(orders,), name="stepwell-library").start()


def _make(orders: Sequence[tuple[str, Future[bytes]]]) -> None:
    for symbol, future in orders:
        try:
            spec = spec_of(symbol)
            assert spec is not None
            future.set_result(_object(symbol, spec))
        except BaseException as error:  # for the one who waits
            future.set_exception(error)


def settle() -> None:
    """Wait until no thread makes anything."""
    wait(list(_ordered.values()))


# a child has no such threads, and would wait for locks that they hold
os.register_at_fork(before=settle)


def library_symbols(names: Iterable[str]) -> dict[str, int]:
    """The addresses of those of `names` that belong to the library."""
    return {name: _address(name, spec) for name in names if (spec := spec_of(name)) is not None}


def _address(symbol: str, spec: LibrarySpec) -> int:
    from .jit import Library, load_object

    with _lock:
        library = _loaded.get(symbol)
        if library is None:
            order = _ordered.pop(symbol, None)
            data = _object(symbol, spec) if order is None else order.result()
            library = _loaded[symbol] = load_object(data, exports=[symbol])
    assert isinstance(library, Library)
    return library.address(symbol)
