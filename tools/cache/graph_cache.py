"""Compiled graphs on disk: on a hit nothing is imported, lowered or generated; the machine code is linked and that is all.

    slot = find_slot(gm, kind, border, options)         # None: this compilation is not to be cached
    found = slot.load() if slot else None               # a CompiledGraph
    ...
    slot.store(compiled)

A file holds a `CompiledGraph` but for its machine code, which lies among the objects, and its large constants. Guards that a compilation
added to torch's ShapeEnv are kept too: on a hit they are checked for the sizes at hand (if one does not hold, it is a miss) and added
again."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from ...targets.cpu.cache import cache_folder, discard, object_path, read, write
from ..compiled.compiled import CompiledGraph, MissingPart
from ..compiled.counters import count
from ..debug.compile_log import once
from ..debug.trace import trace
from ..extensions.cache_keys import tensor_bytes
from ..options.field import Effect
from ..options.options import Options, with_effect
from .graph_key import Uncacheable, graph_key

if TYPE_CHECKING:
    from ...lowering.fx_to_nd import Border

log = logging.getLogger("stepwell")

INLINE_BYTES = 1 << 12
"""Constants up to this size are in the graph's file, larger ones in files of their own."""


def find_slot(gm: GraphModule, kind: str, border: Border | None, options: Options) -> Slot | None:
    """The place of a graph in the cache; None when the options do not want one or the graph has no lasting key (which is logged once for
    each reason)."""
    if not can_cache(options):
        return None
    try:
        parts: list[str] = []
        key = graph_key(gm, kind, border, options, parts)
        trace("graph_cache_key", lambda: "\n".join(parts))
        return Slot(key, gm, keeps_attributes=not options.freezing)
    except Uncacheable as reason:
        bypass(str(reason))
    except Exception as error:  # what a graph may hold has no bounds; that it cannot be named must not keep it from being compiled
        bypass(f"{type(error).__name__}: {error}")
    return None


def can_cache(options: Options) -> bool:
    """Whether graphs are kept and looked for: not where somebody wants to see how they are made."""
    from torch.compiler import config

    forbidden = options.cache != "on" or getattr(config, "force_disable_caches", False)
    return not forbidden and not any(getattr(options, name) for name in with_effect(Effect.SHOWN))


def bypass(reason: str) -> None:
    """Count a graph that is not cached, and log why, once for each reason."""
    count("graph_cache_bypasses")
    log_once("a graph is not kept in the cache: %s", reason)


def log_once(message: str, reason: str) -> None:
    """Log a reason, once for each."""
    if once(message % reason):
        log.info(message, reason)


def graph_path(key: str) -> Path:
    """The file of the graph with that key."""
    return cache_folder() / "graphs" / key


class Slot:
    """The place in the cache of the graph that is being compiled.

    keeps_attributes: whether constants that are attributes of the FX graph are written too. A frozen graph is only found by a process that
    has its weights: a second copy of a model would fill the cache for nothing."""

    def __init__(self, key: str, gm: GraphModule, keeps_attributes: bool = True):
        from ...lowering.fx_to_nd.core.metadata import shape_env

        self.key = key
        self.gm = gm
        self._keeps_attributes = keeps_attributes
        self.kept = False
        """Whether the graph is in the cache."""
        self._env = shape_env(gm)
        self._guards = len(self._env.guards) if self._env is not None else 0

    def load(self) -> CompiledGraph | None:
        """The graph, if it is there whole and its guards hold; its counts are added to the counters and its guards to the ShapeEnv."""
        found = read_graph(self.key, self.gm)
        if found is None or not guards_hold(found.guards, self._env):
            count("graph_cache_misses")
            return None
        count_hit(found)
        self.kept = True
        return found

    def store(self, graph: CompiledGraph) -> CompiledGraph:
        """Keep a graph that was compiled since this slot was made, if it can be kept; gives what is to be run."""
        guards = tuple(g.expr for g in self._env.guards[self._guards :]) if self._env is not None else ()
        whole = replace(graph, guards=guards, places=_places(self.gm, graph.constants))
        kept: list[Any] = whole.constants
        if not self._keeps_attributes:
            kept = [None if place else c for c, place in zip(kept, whole.places, strict=True)]
        try:
            data = to_bytes(replace(whole, code=b"", constants=kept), self.gm)
        except (Uncacheable, pickle.PicklingError, TypeError, AttributeError) as error:
            bypass(str(error))
            return graph
        self.kept = write(graph_path(self.key), data)
        return whole


def count_hit(found: CompiledGraph) -> None:
    """Count a graph that was found, and what it would have counted if it had been compiled."""
    count("graph_cache_hits")
    count("seconds_saved", found.seconds)
    for name, n in found.counts.items():
        count(name, n)


def read_graph(key: str, gm: GraphModule | None) -> CompiledGraph | None:
    """The graph with that key; None if it or a part of it is missing or damaged, and without `gm` if it needs its subgraphs."""
    data = read(graph_path(key))
    if data is None:
        return None
    try:
        found = from_bytes(data, gm)
        code = read(object_path(found.code_key))
    except MissingPart:
        return None
    except Exception as error:  # pickle raises whatever the content makes it raise
        discard(graph_path(key), f"cannot be used ({type(error).__name__}: {error})")
        return None
    if code is None:
        return None
    constants = found.constants
    if gm is None and any(c is None for c in constants):  # the weights of a frozen graph
        return None
    if gm is not None:
        constants = [_attribute(gm, place) if place else c for place, c in zip(found.places, constants, strict=True)]
    return replace(found, code=code, constants=constants)


def _places(gm: GraphModule, constants: Sequence[torch.Tensor]) -> list[str]:
    names = [str(n.target) for n in gm.graph.nodes if n.op == "get_attr"]
    found = {id(_attribute(gm, name)): name for name in names}
    return [found.get(id(c), "") for c in constants]


def _attribute(gm: GraphModule, path: str) -> Any:
    owner: Any = gm
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner


def guards_hold(guards: Sequence[Any], env: Any) -> bool:
    """Whether all conditions hold for the sizes at hand; then they are added to the ShapeEnv, else nothing is."""
    if not guards:
        return True
    if env is None:
        return False
    from ...lowering.sympy_bridge import example_values

    values = example_values(env)
    if not all(g.free_symbols <= values.keys() and bool(g.xreplace(values)) for g in guards):
        return False
    return all(bool(env.evaluate_expr(g)) for g in guards)


def to_bytes(graph: CompiledGraph, gm: GraphModule) -> bytes:
    """A compiled graph as bytes; `gm` is what it was made from. Uncacheable (or what pickle raises) for one that calls what has no name."""
    buffer = io.BytesIO()
    _Pickler(buffer, gm).dump(graph)
    return buffer.getvalue()


def from_bytes(data: bytes, gm: GraphModule | None) -> CompiledGraph:
    """The compiled graph that became these bytes."""
    return _Unpickler(io.BytesIO(data), gm).load()


# ---- what pickle cannot keep by itself


class _Pickler(pickle.Pickler):
    """Keeps tensors by their bytes, operators by name, subgraphs by their place in the FX graph."""

    def __init__(self, file: io.BytesIO, gm: GraphModule):
        super().__init__(file, protocol=5)
        self._modules = {id(m): name for name, m in gm.named_modules() if isinstance(m, GraphModule)}

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return _keep_tensor(obj)
        if isinstance(obj, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            name = str(obj) if isinstance(obj, torch._ops.OpOverload) else f"higher_order.{obj.name()}"
            return "operator", name
        if isinstance(obj, torch.nn.Module):
            if id(obj) not in self._modules:
                raise Uncacheable(f"a {type(obj).__name__} that is not part of the graph is called")
            return "module", self._modules[id(obj)]
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, gm: GraphModule | None):
        super().__init__(file)
        self._gm = gm

    def persistent_load(self, pid: Any) -> Any:
        kind, *what = pid
        if kind == "operator":
            found: Any = torch.ops
            for part in what[0].split("."):
                found = getattr(found, part)
            return found
        if kind == "module":
            if self._gm is None:
                raise MissingPart
            return self._gm.get_submodule(what[0])
        return _kept_tensor(*what)


def _keep_tensor(value: torch.Tensor) -> tuple[Any, ...]:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.device.type != "cpu":
        raise Uncacheable(f"a constant is a {type(value).__name__} on {value.device}, {value.layout}")
    data: bytes | str = tensor_bytes(value)
    if len(data) > INLINE_BYTES:
        name = hashlib.sha256(data).hexdigest()
        path = cache_folder() / "constants" / name
        if not path.exists() and not write(path, data):
            raise Uncacheable("its constants cannot be written")
        data = name
    return "tensor", value.dtype, tuple(value.shape), value.stride(), data


def _kept_tensor(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], data: bytes | str) -> torch.Tensor:
    if isinstance(data, str):
        found = read(cache_folder() / "constants" / data)
        if found is None:
            raise MissingPart
        data = found
    result = torch.empty_strided(shape, strides, dtype=dtype)
    if data:
        result.copy_(torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape))
    return result
