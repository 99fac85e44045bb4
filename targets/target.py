"""What graphs of a kind of device are compiled by.

    @register_target
    class Npu(Target):
        name = "npu"                                # pipeline text: stepwell-npu
        devices = ("privateuseone",)                # kinds of torch's devices
        stages = {"nd": ["nd-canonicalize"], ..., "npu": [MemToNpu], "host": ["to-host"]}

        def kernels(self, module, device): ...      # what the pipeline left of a graph -> its kernels
        def launcher(self, name, kernels, device): ...     # what launches them

Ours are in targets/cpu/target.py and targets/triton/target.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from xdsl.dialects.builtin import ModuleOp

from ..dialects.machine import MachineAttr
from ..passes.manager import pipelines, user
from ..passes.manager.errors import PipelineError, did_you_mean
from ..passes.manager.pass_manager import PassLike, Pipeline

Measure = Literal["always", "unsure", "never"]
"""Whether passes may measure what they choose: all that can (option autotune), only where rules are not sure, or none."""


class Kernel(Protocol):
    """A kernel of a program: anything that has the name that launches call it by."""

    @property
    def name(self) -> str:
        """The symbol that a `host.launch` names."""
        ...


class Launcher(Protocol):
    """Launches the kernels of one program. One that has a method `workspaces(bytes)` gives the address of memory that stays with the
    program, zero at first, where launches do not overlap, else 0: launches that only clear such memory are left out (host.workspace)."""

    def launch(self, number: int, grid: tuple[int, ...], arguments: Sequence[int | float | bool]) -> None:
        """Launch kernel `number`. arguments: the address of each buffer's first element, then sizes, then other numbers, as its
        `host.launch` lists them, then the address, sizes and strides of each of its descriptors; grid: what that says, () where it says
        none."""
        ...


@dataclass
class Kernels:
    """The kernels of a program, which may still be in the making.

    finish: waits until all are made. rare: the names of those that are launched beside another one, and do not count."""

    kernels: Sequence[Kernel] = ()
    finish: Callable[[], None] | None = None
    rare: frozenset[str] = field(default_factory=frozenset)


class Target:
    """What compiles the graphs of some kinds of devices; one instance serves them all.

    A program on such a device is Python that calls `launcher`, unless the device is one that native entries know (`native`): memory comes
    from torch, operators without a kernel are torch's."""

    name: ClassVar[str] = ""
    """In pipeline text `stepwell-NAME`."""
    devices: ClassVar[tuple[str, ...]] = ()
    """Kinds of torch's devices ("privateuseone", or as it was renamed)."""
    stages: ClassVar[Mapping[str, Sequence[PassLike]]] = {}
    """Stage -> passes, from `nd` to `host`, which ends in `to-host`."""
    version: ClassVar[str | None] = None
    """Stands for the code generator in keys of the cache. None: graphs of this target are not kept on disk; else what `kernels` gives can
    be pickled."""
    fallback: ClassVar[tuple[str, ...]] = ()
    """Operators that the library runs, as in the option `fallback`."""
    native: ClassVar[bool] = False
    """Whether the native entry of programs knows how to launch the kernels."""

    def machine(self, device: str) -> MachineAttr | None:
        """The machine that `device` is, which the module names while it is compiled (passes/cost/machine); None: nothing is said."""
        return None

    def fit(self, pipeline: Pipeline, module: ModuleOp, device: str, measure: Measure) -> None:
        """Adapt the pipeline before it runs on `module`, an imported graph of `device` that names its machine. A pass that is not there,
        and an option that has a value, are the user's."""

    def staged(self, stage: str, module: ModuleOp) -> None:
        """A stage of the pipeline has run on `module`, which stays as it is: what follows from it may be begun in threads."""

    def kernels(self, module: ModuleOp, device: str) -> Kernels:
        """The kernels of a module that went through the pipeline; those of the CPU's dialect are not among them."""
        return Kernels()

    def launcher(self, name: str, kernels: Sequence[Any], device: str) -> Launcher:
        """What launches the kernels of program `name`, in this process."""
        raise NotImplementedError(f"target '{self.name}' launches no kernels")

    def load(self, kernels: Sequence[Any], device: str) -> None:
        """Load the kernels of a program before it is first called; where that raises, ATen runs the graph. May be left to the launcher."""

    def current(self, device: str) -> AbstractContextManager[Any]:
        """In this context a program of the device runs."""
        return nullcontext()


BUILT_IN = {"cpu": "cpu.target:CpuTarget", "gpu": "triton.target:GpuTarget"}
"""Target -> `module:Class`, the module relative to this folder; loaded when first asked for."""

_targets: dict[str, Target] = {}


def find_target(name: str) -> Target:
    """The target of that name. Raises PipelineError if there is none."""
    found = _targets.get(name)
    if found is None:
        if name not in BUILT_IN:
            known = list(dict.fromkeys((*BUILT_IN, *_targets)))
            hint = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
            raise PipelineError(f"there is no target '{name}'{hint}")
        module, _, cls = BUILT_IN[name].partition(":")
        found = _targets[name] = getattr(import_module(f".{module}", __package__), cls)()
    return found


def target_of(device: str) -> Target:
    """The target of a device ("cuda:0"): that of its kind, where nothing is made for it the CPU's."""
    return find_target(pipelines.DEVICES.get(device.partition(":")[0], pipelines.DEVICES["cpu"]))


def library_operators(values: Iterable[Any]) -> frozenset[str]:
    """The operators that the library runs, as the targets of the tensors among `values` say (Target.fallback)."""
    devices = {device.type for v in values if (device := getattr(v, "device", None)) is not None}
    return frozenset(name for kind in devices for name in target_of(kind).fallback)


T = TypeVar("T", bound="Target | type[Target]")


def register_target(target: T, *, replace: bool = False) -> T:
    """Compile graphs of the devices of `target` (an instance or a class of Target) by it from now on; gives it back, so that it decorates.

    With `replace` it takes over devices that have a target; `unregister_target` gives them back. What torch.compile has compiled
    stays as it is. Raises PipelineError for a name or a device that is taken, a kind of device that torch does not know, a stage without
    passes, a pass that is none, and stages that do not end in `to-host`."""
    made = target() if isinstance(target, type) else target
    if not isinstance(made, Target):
        raise PipelineError(f"{target!r} is no Target")
    if not made.name.isidentifier():
        raise PipelineError(f"{type(made).__name__}: '{made.name}' is no name for a target")
    _check_devices(made)
    pipelines.add_target(made.name, made.stages, made.devices, replace)
    _targets[made.name] = made
    return target


def _check_devices(target: Target) -> None:
    import torch

    if not target.devices:
        raise PipelineError(f"target '{target.name}' names no device")
    for kind in target.devices:
        try:
            known = torch.device(kind).type == kind
        except RuntimeError:
            known = False
        if not known:
            raise PipelineError(
                f"target '{target.name}': torch knows no kind of device '{kind}'; torch.utils.rename_privateuse1_backend gives one its name"
            )


def unregister_target(name: str) -> None:
    """Take a registered target out; its devices are compiled as before. Raises PipelineError if it is not registered."""
    pipelines.remove_target(name)
    del _targets[name]


@contextmanager
def isolated() -> Iterator[None]:
    """Registrations of targets and passes made inside of the block end with it."""
    targets, tables = dict(_targets), [dict(table) for table in pipelines.TABLES]
    try:
        with user.isolated():
            yield
    finally:
        _restore(_targets, targets)
        for table, saved in zip(pipelines.TABLES, tables, strict=True):
            _restore(table, saved)


def _restore(table: dict[str, Any], saved: dict[str, Any]) -> None:
    table.clear()
    table.update(saved)
