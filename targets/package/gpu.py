"""GPUs that a package runs on: which device of torch, whether code for a target fits it, and programs on another one than they name."""

from __future__ import annotations

import re
from typing import Any

from ...dialects.support.record import Record, changed
from .format import PackageFile
from .kernels import has_ptx, shared_memory
from .programs import ItemRecord, ProgramRecord
from .signature import Target


class Place(Record):
    """Where a package runs: the target whose code does, torch's name of the device, whether the driver compiles its kernels from PTX."""

    target: Target
    device: str = "cpu"
    from_ptx: bool = False


def is_device(name: str) -> bool:
    """Whether packages run on devices of that name."""
    return re.fullmatch(r"cpu|cuda(:\d+)?", name) is not None


def gpu_place(file: PackageFile, target: Target, device: str) -> Place | str:
    """How code for a GPU runs on a device of torch, or why it does not."""
    import torch

    amd = bool(target.architecture)
    if not torch.cuda.is_available() or amd != bool(torch.version.hip):
        return f"torch finds no GPU of {'AMD' if amd else 'NVIDIA'}'s"
    number = number_of(device)
    if number >= torch.cuda.device_count():
        return f"torch finds no {device}"
    found = torch.cuda.get_device_properties(device)
    if found.multi_processor_count < target.multiprocessors:
        return f"the GPU has {found.multi_processor_count} multiprocessors, and {target.multiprocessors} are needed"
    if amd:  # the name has features behind it, as `gfx942:sramecc+:xnack-`: kernels run with and without
        have = found.gcnArchName.partition(":")[0]
        return Place(target, f"cuda:{number}") if have == target.architecture else f"the GPU is a {have}"
    return _nvidia_place(file, target, f"cuda:{number}", getattr(found, "shared_memory_per_block_optin", 0))


def _nvidia_place(file: PackageFile, target: Target, device: str, limit: int) -> Place | str:
    """How code for a GPU of NVIDIA's runs on one of them, whose programs have `limit` bytes of shared memory (0: unknown)."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    have, made = 10 * major + minor, target.capability
    # binaries run on later GPUs of their generation, those from Hopper on (which use its own instructions) on no other
    as_binary = have == made or (major < 9 and major == made // 10 and have > made)
    if not as_binary and not (have > made and has_ptx(file, target.name)):
        return f"the GPU is an sm_{have}"
    if have != made and limit and (taken := shared_memory(file, target.name)) > limit:
        return f"a program on the GPU has {limit} bytes of shared memory, and {taken} are needed"
    return Place(target, device, not as_binary)


def number_of(device: str) -> int:
    """The number of a GPU among those of torch: 0 of `cuda` and `cuda:0`."""
    return int(device.partition(":")[2] or 0)


def on_device(record: ProgramRecord, device: str) -> ProgramRecord:
    """A program for one GPU as one for another: what native entries are told beside the record, the runtime adds (`first_gpu`)."""
    if record.device in (device, "cpu"):
        return record
    old = record.device
    return changed(
        record,
        device=device,
        python=record.python.replace(repr(old), repr(device)),
        checks=tuple(changed(one, device=device) if one.device == old else one for one in record.checks),
        items=tuple(ItemRecord(one.kind, _moved(one.value, old, device)) for one in record.items),
        python_items=tuple(ItemRecord(one.kind, _moved(one.value, old, device)) for one in record.python_items),
    )


def _moved(leaf: Any, old: str, device: str) -> Any:
    """A leaf as `encode_leaf` writes it, with another device."""
    if isinstance(leaf, list):
        return [_moved(one, old, device) for one in leaf]
    return {"enum": ["device", device]} if leaf == {"enum": ["device", old]} else leaf


def first_gpu(record: ProgramRecord, device: str) -> int:
    """What is added to the numbers of GPUs in a program, so that it runs on a device."""
    return 0 if record.device == "cpu" else number_of(device) - number_of(record.device)
