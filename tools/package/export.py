"""`stepwell.export`: a model as one file that runs without a compiler.

    stepwell.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}}, to="model.stepwell")
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import StepwellError
from ...lowering.fx.pre_grad.lstm_training import lstm_states
from ...targets.package import schema
from ...targets.package.errors import PackageError
from ...targets.package.format import Section, check_place, write_package
from ...targets.package.load import TAKEN
from ...targets.package.signature import Signature
from ..options.options import Options, make_options
from .code import CodeSections
from .exported import ExportedGraph, exported_graph
from .levels import Level, default_levels, ordered
from .program_sections import ProgramSections
from .samples import sample_sections, take_sample
from .tensors import WeightTable

_SPEC_PARTS = 4
"""Of an entry point: a model, args, kwargs, dynamic_shapes."""
Content = tuple[Section, bytes | memoryview]


@dataclass(frozen=True)
class EntrySpec:
    """An entry point to be exported: a module, a bound method or a function, and what torch.export wants to know of a call."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic_shapes: Any = None


def export(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    to: str | os.PathLike[str],
    dynamic_shapes: Any = None,
    targets: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    ir: bool = True,
    samples: bool = True,
) -> int:
    """Compile a model ahead of time and write it as a package, which `stepwell.load` opens; gives the size of the file in bytes.

    model: a module or a function with `args` and `kwargs` as for torch.export, whose `dynamic_shapes` say which sizes may change; an
    ExportedProgram, or the path of a `.pt2` file; or a dictionary of entry points, name -> (model or bound method, args, kwargs,
    dynamic_shapes), the last two optional, or an ExportedProgram. Entry points share the weights that are equal.
    targets: "cpu-v3", "cpu-v4" (levels of x86-64), "cpu-armv8", "cpu-armv8.2", "cpu-armv8.6" (of 64-bit Arm), "cpu-native" (exactly this
    machine), "sm_90", "gfx942" and so on; by default what this machine and older ones run. options: those of torch.compile. ir: keep the
    IR of every level, for `stepwell inspect` and `--retarget`. samples: keep the arguments and eager's results, for
    `stepwell inspect --verify`, unless they are large.
    Raises PackageError for what a package cannot hold, and StepwellError for a graph that cannot be compiled."""
    with _collecting_less():
        return _export(model, args, kwargs or {}, to, dynamic_shapes, targets, make_options(None, dict(options or {})), ir, samples)


@contextmanager
def _collecting_less() -> Iterator[None]:
    """Inside of the block Python looks for circles of garbage among new objects alone: torch's hundreds of thousands of objects stay."""
    if gc.get_freeze_count():  # the program has frozen objects of its own, and they would be thawed with the others
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _export(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], to: str | os.PathLike[str], dynamic_shapes: Any,
    targets: Sequence[str] | None, chosen: Options, ir: bool, samples: bool,
) -> int:  # fmt: skip
    """See `export`."""
    check_place(to)
    levels = None if targets is None else ordered(targets)
    programs = programs_of(model, args, kwargs, dynamic_shapes)
    taken = {name: take_sample(name, program) for name, program in programs.items()} if samples else {}
    for_gpu = levels is not None and any(level.is_gpu for level in levels)
    graphs = [exported_graph(name, program, chosen, for_gpu) for name, program in programs.items()]
    levels = levels or ordered(default_levels(device_of(graphs)))
    sections = package_sections(graphs, levels, chosen, ir)
    for graph in graphs:
        if (sample := taken.get(graph.point.name)) is not None:
            sections += sample_sections(graph.point, sample)
    from ... import __version__

    return write_package(to, sections, versions(), __version__)


def versions() -> dict[str, str]:
    """What a package is made by."""
    from ... import __version__

    return {"stepwell": __version__, "torch": torch.__version__.partition("+")[0]}


def device_of(graphs: Sequence[ExportedGraph]) -> str:
    """The kind of device that the graphs compute on."""
    devices = {leaf.device for graph in graphs for leaf in graph.point.leaves if leaf.device}
    devices |= {str(value.device) for graph in graphs for value in graph.tensors.values()}
    return next((d for d in sorted(devices) if not d.startswith("cpu")), "cpu")


def programs_of(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any) -> dict[str, Any]:
    """The ExportedProgram of each entry point."""
    if not isinstance(model, dict):
        return {"forward": _program("forward", _spec(model, args, kwargs, dynamic_shapes))}
    if not model:
        raise PackageError("a package needs an entry point")
    if args or kwargs or dynamic_shapes:
        raise PackageError("entry points have their own arguments: name -> (model, args, kwargs, dynamic_shapes)")
    for name in model:
        if not (isinstance(name, str) and name.isidentifier()) or name.startswith("_") or name in TAKEN:
            why = "; a loaded package has something else of that name" if name in TAKEN else ""
            raise PackageError(f"{name!r} is no name for an entry point{why}")
    return {name: _program(name, _spec_of(name, one)) for name, one in model.items()}


def _spec_of(name: str, one: Any) -> Any:
    """An entry point as it stands in a dictionary."""
    if isinstance(one, (tuple, list)) and not 1 <= len(one) <= _SPEC_PARTS:
        takes = "(model, args, kwargs, dynamic_shapes), the last two optional"
        raise PackageError(f"entry point '{name}' has {len(one)} parts; it takes {takes}")
    return _spec(*one) if isinstance(one, (tuple, list)) else one


def _spec(model: Any, args: Any = (), kwargs: Any = None, dynamic_shapes: Any = None) -> Any:
    from torch.export import ExportedProgram

    if isinstance(model, (ExportedProgram, str, os.PathLike)):
        return model
    if not isinstance(args, tuple):
        raise PackageError(f"args is a {type(args).__name__}; it has to be a tuple")
    if not isinstance(kwargs or {}, Mapping):
        raise PackageError(f"kwargs is a {type(kwargs).__name__}; it has to be a dictionary")
    if isinstance(model, type):
        raise PackageError(f"the model is the class {model.__name__}; it has to be an object of it")
    return EntrySpec(model, args, dict(kwargs or {}), dynamic_shapes)


def _program(name: str, what: Any) -> Any:
    from torch.export import ExportedProgram
    from torch.export import export as torch_export
    from torch.export import load as torch_load

    if isinstance(what, ExportedProgram):
        return what
    if isinstance(what, (str, os.PathLike)):
        if not os.path.isfile(what):
            raise PackageError("there is no such file", place=str(what))
        try:
            return torch_load(what)
        except Exception as error:
            raise PackageError(f"torch.export cannot load it: {type(error).__name__}: {error}", place=str(what)) from error
    if not isinstance(what, EntrySpec):
        kinds = "(model, args), an ExportedProgram or a .pt2 file"
        raise PackageError(f"entry point '{name}' is a {type(what).__name__}; it should be {kinds}")
    module = as_module(what.model)
    _check_dimensions(name, what.args, what.dynamic_shapes)
    try:
        with torch.no_grad(), lstm_states():
            return torch_export(module, what.args, dict(what.kwargs), dynamic_shapes=what.dynamic_shapes, strict=False)
    except StepwellError:
        raise
    except Exception as error:
        raise PackageError(f"entry point '{name}': torch.export fails: {type(error).__name__}: {error}") from error


def _check_dimensions(name: str, args: Sequence[Any], shapes: Any) -> None:
    """PackageError for a dimension that an argument does not have, which torch does not explain."""
    given = list(shapes.values()) if isinstance(shapes, dict) else shapes if isinstance(shapes, (tuple, list)) else ()
    for value, one in zip(args, given, strict=False):
        dims = one if isinstance(one, dict) and isinstance(value, torch.Tensor) else {}
        if wrong := [d for d in dims if isinstance(d, int) and not -value.dim() <= d < value.dim()]:
            raise PackageError(f"entry point '{name}': dynamic_shapes names dimension {wrong[0]} of an argument that has {value.dim()}")


def as_module(model: Any) -> torch.nn.Module:
    """A module whose `forward` is the model: itself, a bound method of one, or a function."""
    if isinstance(model, torch.nn.Module):
        return model
    owner = getattr(model, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        return _method_module(owner, model)
    if callable(model):
        return _FunctionModule(model)
    raise PackageError(f"the model is of the type {type(model).__name__}; it has to be a module, a method or a function")


def _method_module(owner: torch.nn.Module, method: Any) -> torch.nn.Module:
    """A module with the parameters and names of `owner` whose forward is one of its methods."""
    import copy

    made = copy.copy(owner)
    made.forward = getattr(type(owner), method.__name__).__get__(made)
    return made


class _FunctionModule(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any):
        import inspect

        super().__init__()
        self._function = function
        try:
            self.__signature__ = inspect.signature(function)
        except (TypeError, ValueError):
            return

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


# -- compiling


def package_sections(graphs: Sequence[ExportedGraph], levels: Sequence[Level], options: Options, ir: bool = True) -> list[Content]:
    """The sections of a package of these entry points."""
    weights = WeightTable()
    code = CodeSections(ir, levels)
    contents: list[Content] = []
    programs = ProgramSections(code, weights, contents)
    for level in levels:
        with code.level(level):
            for graph in graphs:
                programs.add(graph, code.compile(graph.on(level.device), options, graph.point.name), level)
    table, parts = weights.finish()
    signature = Signature(
        tuple(graph.point for graph in graphs), tuple(level.target for level in levels), code.handle_offset(), versions()
    )
    head: list[Content] = [(Section("signature", "", 0, 0, ""), schema.dump(signature))]
    tail: list[Content] = [
        (Section("weights-table", "", 0, 0, ""), schema.dump(table)),
        (Section("weights", "", 0, 0, ""), b"".join(parts)),
    ]
    return [*head, *contents, *code.finish(), *tail]
