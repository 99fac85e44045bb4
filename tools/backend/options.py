"""The options and modes of `torch.compile(..., backend="stepwell", mode=..., options={...})`, checked by name and type."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import StepwellError, UserError

log = logging.getLogger("stepwell")

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"launch_graphs": True},
    "max-autotune": {"autotune": True, "launch_graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}
"""Mode -> the options that it sets."""


class OptionError(UserError):
    """An unknown mode or option, or a value of the wrong type."""


@dataclass(frozen=True)
class Options:
    """What a compilation can be told. Each field is an option; its type is checked."""

    numerics: str = field(default="default", metadata={"choices": ("default", "eager")})
    """"default" keeps f16/bf16 intermediates in f32 inside a fused nest, "eager" rounds after every operator."""

    fallback_random: bool = False
    """Random numbers from torch's own generator, the same as eager draws."""

    autotune: bool = False
    """Measure while compiling what the rules are not sure of: matrix products by generated code or by the library, tiles of GPU kernels.
    Times are kept on disk (STEPWELL_CACHE_DIR), so that each is measured once on a machine."""

    tune_unsure: bool = False
    """On a GPU, measure a few tiles of kernels that move much memory and of whose tile the rules are least sure
    (docs/explanation/gpu-tiles.md). Not under torch.use_deterministic_algorithms: where measurements choose, sums may be added in another
    order on another machine."""

    freezing: bool = False
    """In inference without gradients, parameters and buffers are constants: what is computed from them alone is computed once,
    normalisation and scales go into the weights of convolutions and products. Later updates of the weights have no effect."""

    launch_graphs: bool = False
    """On a GPU, record what a graph launches and replay it as a whole (docs/howto/launch-graphs.md). On the CPU it changes nothing: a
    compiled graph is one native call already."""

    passes: Mapping[str, Any] | None = None
    """Stage -> passes (or patterns) to add at its end."""

    pipeline: str | None = None
    """Pipeline text in place of the default one."""

    disable_passes: Sequence[str] = ()
    """Passes to be left out, by name; those that take a graph from one level to the next cannot be."""

    fx_passes: Mapping[str, Sequence[Callable[[Any], Any]]] = field(default_factory=dict)
    """Functions on FX graphs: "pre_grad" (Dynamo's graph), "joint" (forward and backward together, or the inference graph), "post_grad"
    (each graph that is compiled). Each changes the GraphModule that it is given or returns another."""

    partitioner: Callable[..., Any] | None = None
    """What splits a joint graph into forward and backward, called as torch's partitioners are: (graph, inputs, num_fwd_outputs=..., ...)
    -> the two graphs. None: torch's minimum cut, which saves the fewest bytes."""

    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """Operator overload -> function that computes it by other operators, beside (or in place of) the entries of our table."""

    fallback: Sequence[str] = ()
    """Operators that the library runs whatever rule there is, by name: "aten.gelu", or one overload of it, "aten.gelu.default"."""

    implicit_fallbacks: bool = True
    """Whether an operator without a rule may run through the library; without, it is an error."""

    check_nan: bool = False
    """Look for NaN in the results of each graph, in each call; an error names the result and its line."""

    check: int = 0
    """How many first calls of each graph are judged against float64; a wrong one raises stepwell.WrongResult with a report of the
    operation and the pass (docs/howto/checking.md). Later calls cost nothing."""

    no_fuse: Sequence[str] = ()
    """Values (FX node names) and source lines (`file.py:12`) to be kept in nests of their own."""

    fuse: Sequence[Sequence[str]] = ()
    """Lists of values or lines, each to be one nest whether that pays or not."""

    tile: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Value (FX node name) or source line -> tile sizes of the loops of its nest."""

    loop_order: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Value or source line -> the order of the loops of its nest, outermost first."""

    verify: bool = False
    """Verify the IR after every stage."""

    debug: str | None = None
    """Folder for the IR of every level (as STEPWELL_DEBUG)."""

    scheme: str = "process"
    """How compilations are carried out: "process" at once, "serialized" through bytes, "subprocess" in another process, "background" in a
    thread while torch runs the graph, "progressive" at once and again in a thread with `autotune`; or one of stepwell.register_scheme."""

    on_failure: str | None = field(default=None, metadata={"choices": ("recover", "raise")})
    """When something inside of stepwell fails: "recover" leaves out what failed, at last the whole graph, which then runs by torch's own
    kernels, with a warning in the log; "raise" raises the error. None recovers, but raises errors of passes of users."""

    cache: str = field(default="on", metadata={"choices": ("on", "objects", "off")})
    """What is kept on disk (STEPWELL_CACHE_DIR): "on" compiled graphs and machine code, "objects" machine code alone (every graph goes
    through the whole compiler), "off" nothing. Without this option, the variable STEPWELL_CACHE says it."""

    cache_limit: str | None = None
    """How large the folder of the cache may grow, for the whole process: "500M", "2G", "none". Without this option, the variable
    STEPWELL_CACHE_LIMIT says it, else it is 2 GB. What was not used for longest goes first."""

    print_ir: bool = False
    """Print the IR after every pass to stderr."""

    timing: bool = False
    """Print the time of every pass to stderr."""


QUIET = frozenset(("verify", "debug", "cache", "cache_limit", "print_ir", "timing"))
"""Options that do not change what is made."""

OUTSIDE = frozenset(
    ("fx_passes", "partitioner", "decompositions", "check_nan", "check", "scheme", "on_failure", "launch_graphs")
)
"""Options that act before a graph has its key in the cache, or when it is called."""

_TYPES: dict[str, tuple[Any, ...]] = {
    "disable_passes": (list, tuple), "fx_passes": (Mapping,), "decompositions": (Mapping,), "partitioner": (Callable, type(None)),
    "fallback": (list, tuple),
    "implicit_fallbacks": (bool,), "check_nan": (bool,), "check": (int,), "launch_graphs": (bool,),
    "numerics": (str,), "fallback_random": (bool,), "autotune": (bool,), "tune_unsure": (bool,), "freezing": (bool,),
    "passes": (Mapping, type(None)), "pipeline": (str, type(None)),
    "no_fuse": (list, tuple), "fuse": (list, tuple), "tile": (Mapping,), "loop_order": (Mapping,), "verify": (bool,),
    "debug": (str, os.PathLike, type(None)), "scheme": (str,), "cache": (str,), "cache_limit": (str, type(None)),
    "on_failure": (str, type(None)),
    "print_ir": (bool,), "timing": (bool,),
}  # fmt: skip


def _check_wishes(key: str, value: Any) -> None:
    from ...passes.loop.fusion.directives import check_wishes

    try:
        check_wishes(value if key == "no_fuse" else (), value if key == "fuse" else ())
    except StepwellError as error:
        raise OptionError(f"option {key!r}: {error}") from error


def _check_loop_wishes(key: str, value: Any) -> None:
    from ..extensions.loop_directives import check_loop_wishes

    try:
        check_loop_wishes(key, value)
    except StepwellError as error:
        raise OptionError(f"option {key!r}: {error}") from error


STAGES = ("pre_grad", "joint", "post_grad")
"""When functions of the option fx_passes run, in order."""


def _check_names(key: str, value: Any) -> None:
    if key == "fx_passes":
        for stage, functions in value.items():
            if stage not in STAGES:
                raise OptionError(f"option 'fx_passes': there is no stage {stage!r}{_near(stage, STAGES)}")
            if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
                raise OptionError(f"option 'fx_passes': stage {stage!r} takes a list of functions, got {functions!r}")
    elif key == "decompositions":
        _check_decompositions(value)
    elif not all(isinstance(v, str) for v in value):
        raise OptionError(f"option {key!r} takes a list of names, got {value!r}")
    elif key == "fallback":
        _check_operators(value)
    elif key == "disable_passes":
        from ...passes.manager.pipelines import LOWERINGS

        if needed := LOWERINGS.keys() & set(value):
            raise OptionError(f"option 'disable_passes': {', '.join(sorted(needed))} takes graphs to the next level and cannot be left out")


def _check_operators(names: Sequence[str]) -> None:
    import torch

    for name in names:
        owner: Any = torch.ops
        for part in name.split("."):
            owner = getattr(owner, part, None)
        if not isinstance(owner, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            known = {n.replace("::", ".").partition(".")[0] + "." + n.partition("::")[2] for n in torch._C._dispatch_get_all_op_names()}
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.7)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; names are like 'aten.gelu' or 'aten.gelu.default'"
            raise OptionError(f"option 'fallback': there is no operator {name!r}{hint}")


def _check_decompositions(given: Mapping[Any, Any]) -> None:
    import torch

    for operator, function in given.items():
        if not isinstance(operator, torch._ops.OpOverload):
            raise OptionError(f"option 'decompositions': keys are overloads, such as torch.ops.aten.gelu.default, got {operator!r}")
        if not callable(function):
            raise OptionError(f"option 'decompositions': {operator} takes a function, got {function!r}")


def _check_size(key: str, value: str) -> None:
    from ...targets.cpu.cache_limit import parse_size

    try:
        parse_size(value)
    except ValueError as error:
        raise OptionError(f"option {key!r}: {error}") from error


def _check_scheme(name: str) -> None:
    from .compile_modes import SCHEMES

    if name not in SCHEMES:
        raise OptionError(f"option 'scheme': there is no scheme {name!r}{_near(name, SCHEMES)}")


def _check_choice(key: str, value: Any, what: str) -> None:
    choices = next(f for f in fields(Options) if f.name == key).metadata.get("choices")
    if choices and value not in choices and not (value is None and type(None) in _TYPES.get(key, ())):
        raise OptionError(f"{what} is one of {', '.join(map(repr, choices))}, got {value!r}{_near(value, choices, listed=True)}")


def _near(name: Any, known: Any, listed: bool = False) -> str:
    """The end of a message about a name that is not `known`: names like it, else all of them, unless the message has `listed` them."""
    found = difflib.get_close_matches(str(name), list(known), n=2, cutoff=0.5)
    if not found:
        return "" if listed else f"; known: {', '.join(known)}"
    return f"; did you mean {' or '.join(repr(f) for f in found)}?"


def list_options() -> dict[str, Any]:
    """Every option of torch.compile(..., options=...) with its default."""
    plain = Options()
    return {f.name: getattr(plain, f.name) for f in fields(Options)}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """The options that `mode` sets, or those of every mode by its name. Raises OptionError for an unknown mode."""
    if mode is None:
        return {name: dict(given) for name, given in MODES.items()}
    if mode not in MODES:
        raise OptionError(f"there is no mode {mode!r}{_near(mode, MODES)}")
    return dict(MODES[mode])


def make_options(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
    """The options of one torch.compile call. Raises OptionError for an unknown name (with near matches) or a wrong value."""
    if mode is not None and options:
        raise OptionError("torch.compile takes either mode= or options=, not both")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options= takes a dict of option to value, got {options!r}")
    given: dict[str, Any] = list_mode_options(mode) if mode is not None else {}
    for key, value in (options or {}).items():
        known = [f.name for f in fields(Options)]
        if key not in known:
            raise OptionError(f"there is no option {key!r}{_near(key, known)}")
        _check_choice(key, value, f"option {key!r}")
        if not isinstance(value, _TYPES[key]):
            want = " or ".join(t.__name__ for t in _TYPES[key])
            raise OptionError(f"option {key!r} takes a {want.replace('NoneType', 'None')}, got {value!r} ({type(value).__name__})")
        if key in ("no_fuse", "fuse"):
            _check_wishes(key, value)
        if key in ("tile", "loop_order"):
            _check_loop_wishes(key, value)
        if key in ("disable_passes", "fallback", "fx_passes", "decompositions"):
            _check_names(key, value)
        if key == "scheme":
            _check_scheme(value)
        if key == "check" and value < 0:
            raise OptionError(f"option 'check': the number of calls is not negative, got {value}")
        if key == "cache_limit" and value is not None:
            _check_size(key, value)
        given[key] = value
    return Options(**{**_from_environment(), **given})


_OPTION_VARIABLES = tuple(f"STEPWELL_{f.name.upper()}" for f in fields(Options))
VARIABLES = (*_OPTION_VARIABLES, "STEPWELL_CACHE_DIR", "STEPWELL_CPU", "STEPWELL_HOST", "STEPWELL_INTERPRET")
"""The variables of the environment that stepwell reads."""

_WORDS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def _allowed() -> dict[str, Sequence[str]]:
    """What the variables that are no options take."""
    from ...targets.cpu.features import TARGETS
    from ...targets.host.selftest import HOSTS

    return {"STEPWELL_CPU": TARGETS, "STEPWELL_HOST": HOSTS}


def _is_variable(name: str) -> bool:
    """Whether an option can be set by a variable: those that are a word or yes or no."""
    return bool({str, bool} & set(_TYPES[name])) and name != "pipeline"


def _from_environment() -> dict[str, Any]:
    """The options that variables of the environment set: STEPWELL_<OPTION> for those that are a word or yes or no. One with another value
    is said once and taken out of the environment, so that processes made later do not say it again. So is one whose name is nearly that of
    a variable, and one of an option that no variable sets."""
    found: dict[str, Any] = {}
    given = [name for name in os.environ if name.startswith("STEPWELL_")]
    for name in [name for name in given if name not in VARIABLES]:
        if near := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85):
            log.error("there is no variable %s; did you mean %s?", name, near[0])
            del os.environ[name]
    if {"STEPWELL_CPU", "STEPWELL_HOST"} & set(given):
        for name, words in _allowed().items():
            _accepted(name, words)
    for f in fields(Options):
        variable, types = f"STEPWELL_{f.name.upper()}", _TYPES[f.name]
        text = os.environ.get(variable)
        if not text or f.name == "cache_limit":
            continue
        if not _is_variable(f.name):
            log.error("no variable sets the option %s: %s is ignored; give it to torch.compile(..., options=...)", f.name, variable)
            del os.environ[variable]
            continue
        choices = f.metadata.get("choices")
        if f.name == "scheme":
            from .compile_modes import SCHEMES

            choices = tuple(SCHEMES)
        if _accepted(variable, tuple(_WORDS) if bool in types else choices):
            found[f.name] = _WORDS[text.lower()] if bool in types else text.lower() if f.metadata.get("choices") else text
    return found


def _accepted(variable: str, known: Sequence[str] | None) -> bool:
    """Whether a variable has a value, one of `known` where that is given; another one is said and taken away."""
    text = os.environ.get(variable)
    if not text or not known or text in known or (variable in _OPTION_VARIABLES and text.lower() in known):
        return bool(text)
    log.error("the variable %s is %r; it takes %s; the default is used", variable, text, ", ".join(known))
    del os.environ[variable]
    return False
