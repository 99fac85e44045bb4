"""`stepwell.load`: a package as something to call, without a compiler.

    model = stepwell.load("model.stepwell")
    y = model(x)

What a package computes is bit by bit what the compiled model computes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...dialects.support.record import changed
from ...errors import StepwellError
from ..cpu.features import machine_name
from ..host.description import OBJECTS, ProgramDescription
from ..host.runtime.callables import native_callable, python_callable
from .calls import Entry
from .errors import PackageError
from .format import PackageFile, open_package
from .gpu import Place, first_gpu, gpu_place, is_device, on_device
from .kernels import kernels_of
from .process import (
    cpu_features,
    entry_resolver,
    functions_image,
    host_runtime,
    kernel_resolver,
    mapped,
    why_not_native,
)
from .programs import BodyRecord, ObjectRecord, ProgramRecord, description_of, object_of
from .signature import EntryPoint, Signature, Target
from .weights import WeightStore

if TYPE_CHECKING:
    import torch

TAKEN = ("entries", "native", "path", "reset", "signature", "state", "target", "weights")
"""What a loaded package has beside its entry points."""

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
    device: str | torch.device | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    verify: bool = False,
    target: str | None = None,
) -> Package:
    """Open a package that `stepwell.export` wrote.

    device: where to run, for a package with code for a CPU and for GPUs: "cpu", "cuda" (the first GPU), "cuda:1". weights: tensors in place
    of those of the file, by name; they are shared, not copied, where their layout is that of the file. verify: check the weights too, which
    reads them all.
    target: one of the package's targets, by default the best one that the machine can run. Raises PackageError."""
    with open_package(path) as file:
        return load_file(file, device, weights, verify, target)


def load_file(
    file: PackageFile,
    device: str | torch.device | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    verify: bool = False,
    target: str | None = None,
) -> Package:
    """The package of an open file, which may be closed then."""
    try:
        return _loaded(file, None if device is None else str(device), weights, verify, target)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
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
    place = choose_place(file, signature, device, target)
    store = WeightStore(file, verify)
    if place.device != "cpu":
        store.move(place.device)
    if weights is not None:
        store.replace(weights)
    entries = {one.name: _entry(file, signature, one, place, store) for one in signature.entries}
    return Package(file, signature, place.target, store, entries)


def _wants_gpu(file: PackageFile, signature: Signature, device: str | None) -> bool | None:
    """Whether a GPU's code is asked for; None where nothing is said and the package was made of nothing in particular."""
    if device is None:
        devices = {leaf.device.partition(":")[0] for entry in signature.entries for leaf in entry.leaves if leaf.device}
        return True if devices == {"cuda"} else False if devices == {"cpu"} else None
    if not is_device(device):
        raise file.error(f"it runs on 'cpu', 'cuda' and 'cuda:1', not on '{device}'")
    return device != "cpu"


def choose_place(file: PackageFile, signature: Signature, device: str | None, name: str | None) -> Place:
    """A device and the best target that this machine runs, or the one of that name. PackageError says what each lacks."""
    targets = [t for t in signature.targets if name is None or t.name == name]
    if not targets:
        raise file.error(f"it has no code for '{name}'; it has code for {', '.join(t.name for t in signature.targets)}")
    gpu = _wants_gpu(file, signature, device) if name is None else None
    known = [t for t in targets if gpu is None or t.is_gpu == gpu] or (targets if device is None else [])
    if not known:
        raise file.error(f"it has no code for {device}; it has code for {', '.join(t.name for t in targets)}")
    lacks: list[str] = []
    for one in known:
        found = _place_of(file, one, device)
        if isinstance(found, Place):
            if lacks or found.from_ptx:
                how = ", compiled by the driver from PTX" if found.from_ptx else ""
                log.info("%s: code for %s runs%s; %s", file.path, one.name, how, "; ".join(lacks) or "the file has none for this GPU")
            return found
        lacks.append(f"{one.name}: {found}")
    other = "cpu-armv8" if machine_name() == "aarch64" else "cpu-v3"
    raise file.error(f"this machine runs none of its code ({'; '.join(lacks)}); export it for other targets, such as {other}")


def _place_of(file: PackageFile, target: Target, device: str | None) -> Place | str:
    """Where code for a target runs, or why it does not run here."""
    if target.machine != (here := machine_name()):
        return f"it is code for {target.machine}, and this machine is {here}"
    missing = [f for f in target.features if f not in cpu_features()]
    if missing:
        return f"the CPU lacks {', '.join(missing)}"
    if not target.is_gpu:
        return Place(target)
    return gpu_place(file, target, device if device not in (None, "cpu") else "cuda")


def _entry(file: PackageFile, signature: Signature, point: EntryPoint, place: Place, store: WeightStore) -> Entry:
    record, run, native = _Programs(file, signature, place, store).program(point.name)
    return Entry(file.path, _on(point, place.device), record, store, run, native)


def _on(point: EntryPoint, device: str) -> EntryPoint:
    """The signature of an entry point whose tensors are on a device."""
    leaves = tuple(changed(leaf, device=device) if leaf.device else leaf for leaf in point.leaves)
    return changed(point, leaves=leaves)


class _Programs:
    """Links the programs of a package for the place where it runs."""

    def __init__(self, file: PackageFile, signature: Signature, place: Place, store: WeightStore):
        self._file = file
        self._signature = signature
        self._place = place
        self._target = place.target.name
        self._store = store
        self._open: list[str] = []
        """Programs that are being linked, each for the one before it."""

    def program(self, name: str) -> tuple[ProgramRecord, Callable[[list[Any]], list[Any]], bool]:
        """The record of a program, its function, and whether that is its native entry."""
        record: ProgramRecord = self._file.load(ProgramRecord, "program", name, self._target)
        reason = "" if record.native else "it was exported without a native entry"
        reason = reason or why_not_native(self._file, self._signature.handle_offset)
        if not reason:
            try:
                return record, self._native(record, name), True
            except PackageError as error:  # another torch: its C shim lacks a function that the entry calls
                reason = str(error)
        log.warning("%s: entry point '%s' runs through Python: %s", self._file.path, name, reason)
        return record, self._through_python(record, name), False

    def _native(self, record: ProgramRecord, name: str) -> Callable[[list[Any]], list[Any]]:
        driver, first = None, first_gpu(record, self._place.device)
        if self._place.target.is_gpu:
            from ..host.gpu.driver import cuda_driver

            driver = cuda_driver()
        file = self._file
        image = mapped(file, name, self._target, entry_resolver(file, functions_image(file, self._target), driver, first))
        if record.items and (OBJECTS not in image or 8 * len(record.items) > image.table.room(OBJECTS)):
            raise file.error(f"program '{name}' has {len(record.items)} objects, more than its code has places for")
        return native_callable(self._description(record), image, *self._values(record), host_runtime(file, first))

    def _through_python(self, record: ProgramRecord, name: str) -> Callable[[list[Any]], list[Any]]:
        image = mapped(self._file, name, self._target, kernel_resolver(functions_image(self._file, self._target)))
        description = self._description(record)
        if not self._place.target.is_gpu:
            return python_callable(description, image, *self._values(record))
        import torch

        from ..host.gpu.driver import cuda_driver
        from ..host.gpu.launches import GpuLaunches

        launcher = GpuLaunches(description.name, description.device, description.kernels, cuda_driver())  # pyright: ignore[reportArgumentType]
        return python_callable(description, image, *self._values(record), launcher, torch.cuda.device)

    def _description(self, record: ProgramRecord) -> ProgramDescription:
        kernels = kernels_of(self._file, record.kernels, self._target, self._place.from_ptx)
        return description_of(on_device(record, self._place.device), kernels)

    def _values(self, record: ProgramRecord) -> tuple[list[Any], list[Any]]:
        """The constants and the objects of a program."""
        return [self._store.tensor(one) for one in record.constants], [self._object(one) for one in record.objects]

    def _object(self, one: ObjectRecord) -> Any:
        if one.kind != "control":
            return object_of(one)
        from .control import control_of

        return control_of(one, self._body)

    def _body(self, one: BodyRecord) -> Callable[[list[Any]], Sequence[Any]]:
        from .control import BodyProgram

        if one.program in self._open:
            raise self._file.error(f"program '{one.program}' calls itself")
        self._open.append(one.program)
        try:
            record, run, _ = self.program(one.program)
        finally:
            self._open.pop()
        return BodyProgram(one, record, run)
