"""A device of torch's in Python, "toy": memory is the CPU's, operators are the CPU's. It serves the rest of its process.

Run as a program, compiles graphs on it by the target of docs/examples/loops_target.py, and compares them with the CPU's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

HOST = torch.device("cpu")
_ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_memory: list[torch.Tensor] = []


def is_toy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "toy"


def storage(address: int, device: torch.device, bytes: int) -> Any:
    return torch._C._construct_storage_from_data_pointer(address, device, bytes)


def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    dtype = dtype or torch.get_default_dtype()
    bytes = 0 if 0 in size else dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)))
    _memory.append(torch.empty(max(bytes, 1), dtype=torch.uint8))
    made = torch._C._acc.create_empty_tensor((0,), dtype)
    memory = storage(_memory[-1].data_ptr(), torch.device("toy:0"), bytes)
    return torch.ops.aten.set_.source_Storage_storage_offset.redispatch(_ON_CPU, made, memory, 0, size, stride)


def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return empty_strided(size, torch.empty(size, device="meta").stride(), dtype)


def on_host(value: torch.Tensor) -> torch.Tensor:
    """The CPU's tensor over the same memory."""
    if not is_toy(value):
        return value
    start, bytes = value.storage_offset(), value.untyped_storage().nbytes()
    memory = storage(value.data_ptr() - start * value.element_size(), HOST, bytes)
    return torch.empty(0, dtype=value.dtype).set_(memory, start, value.size(), value.stride())


def copy_(self, source, non_blocking=False):
    on_host(self).copy_(on_host(source))
    return self


def through_cpu(op, *args, **kwargs):
    """Any operator: the CPU's, on the same memory; what it makes is copied to the device."""
    given: dict[int, torch.Tensor] = {}
    hosts: list[torch.Tensor] = []

    def there(value):
        if isinstance(value, torch.device):
            return HOST
        if not is_toy(value):
            return value
        hosts.append(on_host(value))
        given[id(hosts[-1])] = value
        return hosts[-1]

    def back(value):
        if not isinstance(value, torch.Tensor) or id(value) in given:
            return given.get(id(value), value)
        return copy_(empty_strided(value.size(), value.stride(), value.dtype), value)

    return pytree.tree_map(back, op(*pytree.tree_map(there, args), **pytree.tree_map(there, kwargs)))


def set_up() -> list[torch.library.Library]:
    """Make the device known; what is given back keeps its operators."""
    _setup_privateuseone_for_python_backend("toy")
    own, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    for name in ("set_.source_Storage_storage_offset", "as_strided.default", "view.default", "_reshape_alias.default"):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        own.impl(name.removesuffix(".default"), lambda *args, op=op: op.redispatch(_ON_CPU, *args), "PrivateUse1")
    for name, function in (("empty_strided", empty_strided), ("empty.memory_format", empty), ("copy_", copy_)):
        own.impl(name, function, "PrivateUse1")
    own.impl("convolution_overrideable", lambda *args: through_cpu(torch.ops.aten.convolution.default, *args), "PrivateUse1")
    others.fallback(through_cpu, "PrivateUse1")
    return [own, others]


def update(x, w):
    y = torch.softmax(x @ w, -1)
    x.add_(1)
    return y, y.sum(0), x.t()


def loss(x, w):
    y = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ w), (w.shape[1],))
    return y.pow(2).sum()


PROGRAMS = {
    "an update, a view": (update, [(3, 4), (4, 5)]),
    "views, sorts, scans": (lambda x: (x[1:].t() * 2, *x.sort(-1), x.cumsum(0), x.max(), torch.cat([x, x + 1])), [(3, 4)]),
    "constants": (lambda x: x * torch.tensor(2.5) + torch.arange(4.0, device=x.device), [(3, 4)]),
    "a convolution": (lambda x: torch.nn.functional.conv2d(x, x[:2]).relu(), [(3, 4, 5, 6)]),
    "operators without a rule": (lambda x: (torch.special.bessel_j0(x) + 1, torch.linalg.inv(x)), [(4, 4)]),
    "nothing": (lambda x: (x * 2, x.sum(1)), [(0, 3)]),
    "a copy to the CPU and back": (lambda x: (x.cpu().sum(0) + 1).to(x.device) * x, [(3, 4)]),
}


def main() -> None:
    import stepwell

    sys.path.insert(0, str(Path(__file__).parents[2] / "docs/examples"))
    from loops_target import LoopsTarget  # pyright: ignore[reportMissingImports]

    @stepwell.register_target
    class Toy(LoopsTarget):
        name, devices = "toy", ("toy",)

    torch.manual_seed(0)
    for name, (function, shapes) in PROGRAMS.items():
        for dynamic in (False, True)[: 2 if len(shapes) > 1 else 1]:
            torch._dynamo.reset()
            stepwell.reset_counters()
            inputs = [torch.randn(shape) for shape in shapes]
            given = [x.clone().to("toy") for x in inputs]
            got = torch.compile(function, backend="stepwell", dynamic=dynamic)(*given)
            wanted = pytree.tree_leaves((function(*inputs), inputs))
            for a, b in zip(pytree.tree_leaves((got, given)), wanted, strict=True):
                assert a.device.type == "toy" and a.stride() == b.stride(), name
                torch.testing.assert_close(a.cpu(), b)
            print(name, stepwell.counters["kernels"], stepwell.counters["fallback_ops"])
    inputs = [torch.randn(3, 4), torch.randn(4, 5)]
    given = [x.clone().to("toy").requires_grad_() for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]
    got = torch.autograd.grad(torch.compile(loss, backend="stepwell")(*given), given)
    for a, b in zip(got, torch.autograd.grad(loss(*inputs), inputs), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)
    print("gradients")


if __name__ == "__main__":
    kept = set_up()
    main()
