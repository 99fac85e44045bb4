"""What AOTAutograd makes of a graph (traces, partitions, wrappers), kept by torch's own AOTAutogradCache: on a hit a second process traces
nothing below Dynamo's graph.

torch's entry holds the metadata and, for each compiled graph, a `Kept`: the key of the graph in our cache. torch's key knows nothing of us,
so that `settings_key` is put into the graph that it hashes. The entry lies in torch's folder (TORCHINDUCTOR_CACHE_DIR). Where torch has no
such interface, or does not cache (its own switches), everything goes on without."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from .compiled import Runner
from .counters import phase
from .graph_cache import count_hit, read_graph, uses_cache
from .graph_key import Uncacheable, settings_key
from .options import Options

log = logging.getLogger("stepwell")

Compiler = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

MARK = "stepwell_settings"
"""The attribute of Dynamo's graph that brings our settings into torch's key."""


def keeps(gm: torch.nn.Module, options: Options) -> bool:
    """Whether what AOTAutograd makes of `gm` may be kept: torch's key covers all of it (it does not know the elements of tensors that are
    part of a graph), and so does ours. Marks the graph then."""
    if not uses_cache(options) or _protocol() is None or not isinstance(gm, GraphModule):
        return False
    graphs = [m for m in gm.modules() if isinstance(m, GraphModule)]
    for owner, node in [(graph, node) for graph in graphs for node in graph.graph.nodes]:
        if node.op == "call_module" or any(str(key).startswith("stepwell.") for key in node.meta.get("custom") or ()):
            return False
        if node.op == "get_attr" and not isinstance(_attribute(owner, str(node.target)), GraphModule):
            return False
    try:
        setattr(gm, MARK, settings_key(options))
    except Uncacheable:
        return False
    return True


def _attribute(gm: GraphModule, path: str) -> Any:
    owner: Any = gm
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner


def caching(on: bool) -> AbstractContextManager[Any]:
    """torch's settings for the time of a compilation that is kept: entries hold all that is needed, for which the backward must be compiled
    together with the forward."""
    if not on:
        return nullcontext()
    from torch._functorch import config

    return config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True)


def kept_compiler(compiler: Compiler) -> Any:
    """`compiler` in the form that AOTAutogradCache asks for."""
    protocol = _protocol()
    assert protocol is not None
    wrapper, base, kept, unkept = protocol

    def compile(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        run = compiler(gm, example_inputs)
        return kept(run) if isinstance(run, Runner) and run.graph.key and run.graph.standalone else unkept(run)

    return wrapper(base, compile)


@cache
def _protocol() -> tuple[Any, ...] | None:
    """(the mark of compilers that can be cached, the class of what they return, our two kinds of it: what can be kept and what cannot), or
    None for a torch without them."""
    try:
        from torch._functorch import config
        from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss, OutputCode  # pyright: ignore[reportPrivateImportUsage]
        from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler  # pyright: ignore[reportPrivateImportUsage]

        wanted = (config.bundled_autograd_cache, config.force_non_lazy_backward_lowering)
    except (ImportError, AttributeError) as error:
        log.info("what AOTAutograd makes is not kept with torch %s: %s", torch.__version__, error)
        return None
    del wanted

    class Kept(Runner, OutputCode):
        """A compiled graph that is in our cache; pickled as its key."""

        __call__ = Runner.__call__
        __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

        def __eq__(self, other: object) -> bool:
            return self is other

        def __init__(self, run: Runner | None, key: str = ""):
            self._boxed_call = True
            self.key = key
            if run is not None:
                self.take(run)

        def take(self, run: Runner) -> None:
            """Become what `run` is."""
            self.__dict__.update(run.__dict__, key=run.graph.key)

        def __reduce__(self) -> tuple[Any, ...]:
            return unloaded, (self.key,)

        def prepare_for_serialization(self) -> None:
            """It holds nothing but a key."""

        def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
            """Load the graph, after torch found an entry with it."""
            with _disable_current_modes():
                with phase("cache"):
                    found = read_graph(self.key, None)
                if found is None:
                    raise FXGraphCacheMiss(f"graph {self.key} is not in the cache")
                count_hit(found)
                self.take(found.runner())

        def set_triton_bundle(self, triton_bundle: Any) -> None:
            """Kernels are in the graph."""

    class Unkept(OutputCode):
        """A result that is not in our cache."""

        __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

        def __eq__(self, other: object) -> bool:
            return self is other

        def __init__(self, run: Callable[..., Any]):
            self._boxed_call = True
            self.run = run

        def __call__(self, inputs: Any) -> Any:
            return self.run(inputs)

        def prepare_for_serialization(self) -> None:
            raise BypassAOTAutogradCache("a graph of stepwell is not in its cache")

        def set_triton_bundle(self, triton_bundle: Any) -> None:
            """There is none."""

    return SerializableAOTDispatchCompiler, OutputCode, Kept, Unkept


def unloaded(key: str) -> Any:
    """What an entry of torch's cache holds for the graph with that key."""
    protocol = _protocol()
    assert protocol is not None
    return protocol[2](None, key)
