"""The options and modes of `torch.compile(..., backend="stepwell", mode=..., options={...})`, checked by name and type."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from . import checks
from .field import Declared, Effect, OptionError, Variable, declared, names_of, near, option, types_of

__all__ = ["MODES", "DECLARED", "OptionError", "Options", "list_mode_options", "list_options", "make_options", "with_effect"]

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"launch_graphs": True},
    "max-autotune": {"autotune": True, "launch_graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}
"""Mode -> the options that it sets."""


@dataclass(frozen=True)
class Options:
    """What a compilation can be told. Each field is an option, declared by its type, `option` and its document."""

    numerics: str = option("default", choices=("default", "eager"))
    """"default" keeps f16/bf16 intermediates in f32 inside a fused nest, "eager" rounds after every operator."""

    batch_invariant: bool = option(False)
    """Each sum has an order that depends on its terms alone: the bits of a row do not depend on how many rows a call has, nor on the
    others, nor on threads (docs/howto/batch-invariance.md). It rounds as `numerics="eager"` does."""

    deterministic: bool = option(False)
    """Every run gives the same bits: graphs are compiled and run as under torch.use_deterministic_algorithms(True)
    (docs/howto/batch-invariance.md)."""

    max_memory: int | str | None = option(None, check=checks.check_bound)
    """The most memory that a call of a graph may take beyond what its caller holds: bytes, "500M" or "2G". The plan keeps to it, slower
    where it must be, or MemoryBoundError names the value in the way before anything runs (docs/howto/limit-memory.md)."""

    fallback_random: bool = option(False)
    """Random numbers from torch's own generator, the same as eager draws."""

    autotune: bool = option(False)
    """Measure while compiling what the rules are not sure of: matrix products by generated code or by the library, tiles of GPU kernels.
    Times are kept on disk (STEPWELL_CACHE_DIR), so that each is measured once on a machine."""

    tune_unsure: bool = option(False)
    """On a GPU, measure a few tiles of kernels that move much memory and of whose tile the rules are least sure
    (docs/explanation/gpu-tiles.md). Not under torch.use_deterministic_algorithms: where measurements choose, sums may be added in another
    order on another machine."""

    freezing: bool = option(False)
    """In inference without gradients, parameters and buffers are constants: what is computed from them alone is computed once,
    normalisation and scales go into the weights of convolutions and products. Later updates of the weights have no effect."""

    winograd: str = option("2", choices=("off", "2", "4"))
    """With `freezing`, on a CPU: up to which tile of pixels 3 x 3 convolutions of float32 take Winograd's form where that costs less. Tiles
    of 2 x 2 round as the sums of eager do, those of 4 x 4 a few times as much (docs/explanation/cpu-code.md)."""

    launch_graphs: bool = option(False)
    """On a GPU, record what a graph launches and replay it as a whole (docs/howto/launch-graphs.md). On the CPU it changes nothing: a
    compiled graph is one native call already."""

    passes: Mapping[str, Any] | None = option(None, effect=Effect.CODE)
    """Stage -> passes (or patterns) to add at its end."""

    pipeline: str | None = option(None, variable=Variable.NONE)
    """Pipeline text in place of the default one."""

    disable_passes: Sequence[str] = option((), check=checks.check_passes)
    """Passes to be left out, by name; those that take a graph from one level to the next cannot be."""

    fx_passes: Mapping[str, Sequence[Callable[[Any], Any]]] = option({}, effect=Effect.UNTRACED, check=checks.check_fx_passes)
    """Functions on FX graphs: "pre_grad" (Dynamo's graph), "joint" (forward and backward together, or the inference graph), "post_grad"
    (each graph that is compiled). Each changes the GraphModule that it is given or returns another."""

    partitioner: Callable[..., Any] | None = option(None, effect=Effect.UNTRACED)
    """What splits a joint graph into forward and backward, called as torch's partitioners are: (graph, inputs, num_fwd_outputs=..., ...)
    -> the two graphs. None: torch's minimum cut, which saves the fewest bytes."""

    decompositions: Mapping[Any, Callable[..., Any]] = option({}, effect=Effect.UNTRACED, check=checks.check_decompositions)
    """Operator overload -> function that computes it by other operators, beside (or in place of) the entries of our table."""

    fallback: Sequence[str] = option((), check=checks.check_operators)
    """Operators that the library runs whatever rule there is, by name: "aten.gelu", or one overload of it, "aten.gelu.default"."""

    implicit_fallbacks: bool = option(True)
    """Whether an operator without a rule may run through the library; without, it is an error."""

    check_nan: bool = option(False, effect=Effect.UNTRACED)
    """Look for NaN in the results of each graph, in each call; an error names the result and its line."""

    check: int = option(0, effect=Effect.UNTRACED, check=checks.check_calls)
    """How many first calls of each graph are judged against float64; a wrong one raises stepwell.WrongResult with a report of the
    operation and the pass (docs/howto/checking.md). Later calls cost nothing."""

    no_fuse: Sequence[str] = option((), effect=Effect.UNKEPT, check=checks.check_fusion)
    """Values (FX node names) and source lines (`file.py:12`) to be kept in nests of their own."""

    fuse: Sequence[Sequence[str]] = option((), effect=Effect.UNKEPT, check=checks.check_fusion)
    """Lists of values or lines, each to be one nest whether that pays or not."""

    tile: Mapping[str, Sequence[int]] = option({}, effect=Effect.UNKEPT, check=checks.check_loops)
    """Value (FX node name) or source line -> tile sizes of the loops of its nest."""

    loop_order: Mapping[str, Sequence[int]] = option({}, effect=Effect.UNKEPT, check=checks.check_loops)
    """Value or source line -> the order of the loops of its nest, outermost first."""

    verify: bool = option(False, effect=Effect.SHOWN)
    """Verify the IR after every stage."""

    debug: str | os.PathLike[str] | None = option(None, effect=Effect.SHOWN)
    """Folder for the IR of every level (as STEPWELL_DEBUG)."""

    compile_mode: str = option("process", effect=Effect.OUTSIDE, words=checks.compile_modes, check=checks.check_compile_mode)
    """How compilations are carried out: "process" at once, "serialized" through bytes, "subprocess" in another process, "background" in a
    thread while torch runs the graph, "progressive" at once and again in a thread with `autotune`; or one of
    stepwell.register_compile_mode."""

    on_failure: str | None = option(None, effect=Effect.OUTSIDE, choices=("recover", "raise"))
    """When something inside of stepwell fails: "recover" leaves out what failed, at last the whole graph, which then runs by torch's own
    kernels, with a warning in the log; "raise" raises the error. None recovers, but raises errors of passes of users."""

    cache: str = option("on", effect=Effect.QUIET, choices=("on", "objects", "off"))
    """What is kept on disk (STEPWELL_CACHE_DIR): "on" compiled graphs and machine code, "objects" machine code alone (every graph goes
    through the whole compiler), "off" nothing. Without this option, the variable STEPWELL_CACHE says it."""

    cache_limit: str | None = option(None, effect=Effect.QUIET, check=checks.check_size, variable=Variable.READ_ELSEWHERE)
    """How large the folder of the cache may grow, for the whole process: "500M", "2G", "none". Without this option, the variable
    STEPWELL_CACHE_LIMIT says it, else it is 2 GB. What was not used for longest goes first."""

    print_ir: bool = option(False, effect=Effect.SHOWN)
    """Print the IR after every pass to stderr."""

    timing: bool = option(False, effect=Effect.SHOWN)
    """Print the time of every pass to stderr."""

    @property
    def memory_bound(self) -> int | None:
        """The option `max_memory` in bytes, None for any."""
        from ...targets.cpu.cache_limit import parse_size

        return parse_size(self.max_memory) if isinstance(self.max_memory, str) else self.max_memory

    @property
    def rounding(self) -> str:
        """The numerics that graphs are imported with. Where each operator rounds, one nest has the bits that several have."""
        return "eager" if self.batch_invariant else self.numerics

    @property
    def order(self) -> str:
        """The order of sums that graphs are imported with (dialects/machine.py): "fixed", "repeatable", or "" for any."""
        return "fixed" if self.batch_invariant else "repeatable" if self.deterministic else ""


DECLARED: dict[str, Declared] = declared(Options)
"""Option -> what is said of it."""


@cache
def option_types() -> dict[str, tuple[type, ...]]:
    """Option -> the types of its values."""
    return types_of(Options)


def with_effect(*effects: Effect) -> list[str]:
    """The options that have one of these effects."""
    return [name for name, one in DECLARED.items() if one.effect in effects]


def list_options() -> dict[str, Any]:
    """Every option of torch.compile(..., options=...) with its default."""
    plain = Options()
    return {f.name: getattr(plain, f.name) for f in fields(Options)}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """The options that `mode` sets, or those of every mode by its name. Raises OptionError for an unknown mode."""
    if mode is None:
        return {name: dict(given) for name, given in MODES.items()}
    if mode not in MODES:
        raise OptionError(f"there is no mode {mode!r}{near(mode, MODES)}")
    return dict(MODES[mode])


def make_options(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
    """The options of one torch.compile call. Raises OptionError for an unknown name (with near matches) or a wrong value."""
    from .variables import from_environment

    if mode is not None and options:
        raise OptionError("torch.compile takes either mode= or options=, not both")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options= takes a dict of option to value, got {options!r}")
    given: dict[str, Any] = list_mode_options(mode) if mode is not None else {}
    for key, value in (options or {}).items():
        _check(key, value)
        given[key] = value
    return Options(**{**from_environment(), **given})


def _check(key: str, value: Any) -> None:
    """Raise OptionError for an option that there is not, or a value that it does not take."""
    if key not in DECLARED:
        raise OptionError(f"there is no option {key!r}{near(key, DECLARED)}")
    one, kinds = DECLARED[key], option_types()[key]
    if one.choices and value not in one.choices and not (value is None and type(None) in kinds):
        listed = ", ".join(map(repr, one.choices))
        raise OptionError(f"option {key!r} is one of {listed}, got {value!r}{near(value, one.choices, listed=True)}")
    if not isinstance(value, kinds):
        raise OptionError(f"option {key!r} takes a {names_of(kinds)}, got {value!r} ({type(value).__name__})")
    if one.check is not None and value is not None:
        one.check(key, value)
