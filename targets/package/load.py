"""`stepwell.load`: a package as something to call, without a compiler.

    model = stepwell.load("model.stepwell")
    y = model(x)

What a package computes is bit by bit what the compiled model computes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import StepwellError
from ..host.runtime.callables import native_callable, python_callable
from .calls import Entry
from .errors import PackageError
from .format import PackageFile, open_package
from .kernels import kernels_of
from .process import (
    cpu_features,
    entry_resolver,
    functions_image,
    host_runtime,
    kernel_resolver,
    mapped,
    runs_on_gpu,
    why_not_native,
)
from .programs import ProgramRecord, description_of, object_of
from .schema import changed
from .signature import EntryPoint, Signature, Target
from .weights import WeightStore

if TYPE_CHECKING:
    import torch

log = logging.getLogger("stepwell")


class Package:
    """A loaded package: call it where it has one entry point, else its entry points by name (`package.prefill(...)`).

    signature: what it computes; entries: names of the entry points; target: the instruction set or GPU whose code runs; native: whether
    native entries run, or the programs in Python. state: the tensors that calls update, by name; `reset()` gives them the values of the
    file."""

    def __init__(self, file: PackageFile, signature: Signature, target: Target, weights: WeightStore, entries: Mapping[str, Entry]):
        self.signature = signature
        self.target = target.name
        self.path = file.path
        self._entries = dict(entries)
        self._weights = weights
        self.native = all(entry.native for entry in self._entries.values())
        if len(self._entries) == 1:
            (self._single,) = self._entries.values()

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points."""
        return tuple(self._entries)

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The parameters, buffers and constants by name."""
        return dict(self._weights.tensors)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The tensors that calls update, by name."""
        return {name: self._weights.tensors[name] for name in self._weights.updated}

    def reset(self) -> None:
        """Give the tensors that calls update the values that they have in the file, or were given to `load`."""
        self._weights.reset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the only entry point."""
        try:
            single = self._single
        except AttributeError:
            raise PackageError(f"it has several entry points; call one by name: {', '.join(self._entries)}", place=self.path) from None
        return single(*args, **kwargs)

    def __getattr__(self, name: str) -> Entry:
        found = self.__dict__.get("_entries", {}).get(name)
        if found is None:
            known = ", ".join(self.__dict__.get("_entries", {}))
            raise AttributeError(f"the package has no entry point '{name}'; it has {known}")
        return found

    def __repr__(self) -> str:
        return f"<stepwell package {self.path}: {', '.join(self._entries)} for {self.target}>"


def load(
    path: str | os.PathLike[str],
    device: str | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    verify: bool = False,
    target: str | None = None,
) -> Package:
    """Open a package that `stepwell.export` wrote.

    device: where to run, for a package with code for a CPU and for GPUs ("cpu", "cuda:1"). weights: tensors in place of those of the file,
    by name; they are shared, not copied, where their layout is that of the file. verify: check the weights too, which reads them all.
    target: one of the package's targets, by default the best one that the machine can run. Raises PackageError."""
    with open_package(path) as file:
        return load_file(file, device, weights, verify, target)


def load_file(
    file: PackageFile,
    device: str | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    verify: bool = False,
    target: str | None = None,
) -> Package:
    """The package of an open file, which may be closed then."""
    try:
        return _loaded(file, device, weights, verify, target)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, StepwellError):
            raise
        raise file.error(f"its parts do not fit each other ({type(error).__name__}: {error})") from error


def _loaded(
    file: PackageFile, device: str | None, weights: Mapping[str, torch.Tensor] | None, verify: bool, target: str | None
) -> Package:
    signature: Signature = file.load(Signature, "signature")
    for entry in signature.entries:
        entry.arguments.check()
        entry.result.check()
    chosen = choose_target(file, signature, device, target)
    store = WeightStore(file, verify)
    place = device_of(chosen)
    if place != "cpu":
        store.move(place)
    if weights is not None:
        store.replace(weights)
    entries = {one.name: _entry(file, signature, one, chosen, store) for one in signature.entries}
    return Package(file, signature, chosen, store, entries)


def device_of(target: Target) -> str:
    """Where the programs for a target run."""
    return "cuda:0" if target.capability else "cpu"


def _wants_gpu(file: PackageFile, signature: Signature, device: str | None) -> bool | None:
    """Whether a GPU's code is asked for; None where nothing is said and the package was made of nothing in particular."""
    if device is None:
        devices = {leaf.device.partition(":")[0] for entry in signature.entries for leaf in entry.leaves if leaf.device}
        return True if devices == {"cuda"} else False if devices == {"cpu"} else None
    if device not in ("cpu", "cuda", "cuda:0"):
        raise file.error(f"it runs on 'cpu' and 'cuda:0', not on '{device}'; CUDA_VISIBLE_DEVICES says which GPU is the first one")
    return device != "cpu"


def choose_target(file: PackageFile, signature: Signature, device: str | None, name: str | None) -> Target:
    """The best target that this machine runs, or the one of that name. PackageError says what each lacks."""
    targets = [t for t in signature.targets if name is None or t.name == name]
    if not targets:
        raise file.error(f"it has no code for '{name}'; it has code for {', '.join(t.name for t in signature.targets)}")
    gpu = _wants_gpu(file, signature, device) if name is None else None
    known = [t for t in targets if gpu is None or (t.capability > 0) == gpu] or (targets if device is None else [])
    if not known:
        raise file.error(f"it has no code for {device}; it has code for {', '.join(t.name for t in targets)}")
    lacks: list[str] = []
    for one in known:
        problem = _problem_of(one)
        if not problem:
            if lacks:
                log.info("%s: code for %s runs; %s", file.path, one.name, "; ".join(lacks))
            return one
        lacks.append(f"{one.name}: {problem}")
    raise file.error(f"this machine runs none of its code ({'; '.join(lacks)}); export it for other targets, such as cpu-v3")


def _problem_of(target: Target) -> str:
    """Why code for a target does not run here, or ""."""
    missing = [f for f in target.features if f not in cpu_features()]
    if missing:
        return f"the CPU lacks {', '.join(missing)}"
    return runs_on_gpu(target.capability, target.multiprocessors, device_of(target)) if target.capability else ""


def _entry(file: PackageFile, signature: Signature, point: EntryPoint, target: Target, store: WeightStore) -> Entry:
    record: ProgramRecord = file.load(ProgramRecord, "program", point.name, target.name)
    reason = "" if record.native else "it was exported without a native entry"
    reason = reason or why_not_native(file, signature.handle_offset)
    run: Callable[[list[Any]], list[Any]] | None = None
    if not reason:
        try:
            run = _native(file, record, point.name, target, store)
        except PackageError as error:  # another torch: its C shim lacks a function that the entry calls
            reason = str(error)
    if run is None:
        log.warning("%s: entry point '%s' runs through Python: %s", file.path, point.name, reason)
        run = _through_python(file, record, point.name, target, store)
    return Entry(file.path, _on(point, record.device), record, store, run, native=not reason)


def _on(point: EntryPoint, device: str) -> EntryPoint:
    """The signature of an entry point whose tensors are on a device."""
    leaves = tuple(changed(leaf, device=device) if leaf.device else leaf for leaf in point.leaves)
    return changed(point, leaves=leaves)


def _native(file: PackageFile, record: ProgramRecord, name: str, target: Target, store: WeightStore) -> Callable[[list[Any]], list[Any]]:
    driver = None
    if target.capability:
        from ..host.gpu.driver import cuda_driver

        driver = cuda_driver()
    image = mapped(file, name, target.name, entry_resolver(file, functions_image(file, target.name), driver))
    constants, objects = [store.tensor(one) for one in record.constants], [object_of(one) for one in record.objects]
    description = description_of(record, kernels_of(file, record.kernels, target.name))
    return native_callable(description, image, constants, objects, host_runtime(file))


def _through_python(
    file: PackageFile, record: ProgramRecord, name: str, target: Target, store: WeightStore
) -> Callable[[list[Any]], list[Any]]:
    image = mapped(file, name, target.name, kernel_resolver(functions_image(file, target.name)))
    constants, objects = [store.tensor(one) for one in record.constants], [object_of(one) for one in record.objects]
    description = description_of(record, kernels_of(file, record.kernels, target.name))
    if not target.capability:
        return python_callable(description, image, constants, objects)
    import torch

    from ..host.gpu.driver import cuda_driver
    from ..host.gpu.launches import GpuLaunches

    launcher = GpuLaunches(description.name, description.device, description.kernels, cuda_driver())  # pyright: ignore[reportArgumentType]
    return python_callable(description, image, constants, objects, launcher, torch.cuda.device)
