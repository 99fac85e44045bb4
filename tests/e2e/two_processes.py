"""Run by test_collectives.py as `python two_processes.py RANK FILE`: functional collectives between two processes, compiled and eager."""

from __future__ import annotations

import datetime
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch._dynamo import compiled_autograd
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import stepwell

GROUP = [0, 1]


def reduced(x: torch.Tensor) -> torch.Tensor:
    return collectives.all_reduce(x.sin(), "sum", GROUP) * 2


def gathered(x: torch.Tensor) -> torch.Tensor:
    return collectives.all_gather_tensor(x + 1, 0, GROUP).relu()


def scattered(x: torch.Tensor) -> torch.Tensor:
    return collectives.reduce_scatter_tensor(x * 3, "sum", 0, GROUP).exp()


def chained(x: torch.Tensor) -> torch.Tensor:
    """Collectives that must keep their order: the processes would wait for different ones otherwise."""
    first = collectives.all_reduce(x, "sum", GROUP)
    second = collectives.all_reduce(x * 2, "max", GROUP)
    third = collectives.all_gather_tensor(first - second, 0, GROUP)
    return third.cos() + collectives.broadcast(x, 0, GROUP).repeat(2, 1)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    dist.all_reduce(y)
    return y + 1


def overlapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Work between the start of a collective and the wait for it."""
    sent = collectives.all_reduce(x, "sum", GROUP)
    return (x @ w).tanh() + sent


def begun_early(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The operators themselves: what a collective reads is not overwritten before the wait."""
    begun = torch.ops._c10d_functional.all_gather_into_tensor(x * 2, 2, dist.group.WORLD.group_name)
    other = ((x @ w).tanh() @ w).sin() @ w
    return torch.ops._c10d_functional.wait_tensor(begun).relu(), other.exp()


def bucketed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Three kinds of collectives of small tensors, each kind in one bucket: 0-d tensors, and rows of other lengths."""
    sums = [collectives.all_reduce(t, "sum", GROUP) for t in (x.cos(), x.mean(), x[1])]
    rows = [collectives.all_gather_tensor(t, 0, GROUP) for t in (x.exp(), x[:1].sin(), x.sum(1))]
    columns = x.tanh().t() if torch.__version__ >= (2, 12) else x.tanh().t().contiguous()  # torch 2.11 refuses the others, in eager too
    parts = [collectives.reduce_scatter_tensor(t, "sum", 0, GROUP) for t in (x * 3, columns, x.sum(1))]
    return (*sums, *rows, *(p + 1 for p in parts))


def cut(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Products that are sent, and one of what is gathered: parts of each overlap."""
    summed = collectives.all_reduce(x @ w, "sum", GROUP).view(4, -1, w.shape[1]).relu()
    rows = collectives.reduce_scatter_tensor(summed.flatten(0, 1) @ w.t(), "sum", 0, GROUP)
    return summed, rows, collectives.all_gather_tensor(rows, 0, GROUP) @ w


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 8))


def data_parallel(x: torch.Tensor) -> None:
    """DistributedDataParallel: with Dynamo's split, and with backward as one graph, in which all gradients have one all-reduce."""
    expected = DistributedDataParallel(layers())
    expected(x).square().mean().backward()
    for split in (True, False):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(optimize_ddp="ddp_optimizer" if split else "python_reducer"):
            model = DistributedDataParallel(layers())
            compiled = torch.compile(model, backend="stepwell")
            with nullcontext() if split else compiled_autograd._enable(torch.compile(backend="stepwell")):
                compiled(x).square().mean().backward()
        for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
    joined = stepwell.counters["passes"]["nd-bucket-collectives"]["num-joined"]
    assert joined >= len(list(expected.parameters())), joined


def tensor_parallel(x: torch.Tensor) -> None:
    """Columns of one layer and rows of the next on each rank (DTensor)."""
    mesh = dist.init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.GELU(), torch.nn.Linear(16, 8, bias=False))
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    expected = model(x)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(torch.compile(model, backend="stepwell")(x), expected)


def main(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=120))
    torch.manual_seed(rank)
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    alone = reduced, gathered, scattered, chained, in_place, bucketed
    for fn, args in [(f, (x,)) for f in alone] + [(f, (x, w)) for f in (begun_early, overlapped)]:
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(fn, backend="stepwell", dynamic=dynamic, fullgraph=True)
            print(fn.__name__, "on rank", rank, "dynamic" if dynamic else "static", file=sys.stderr)
            for _ in range(2):
                torch.testing.assert_close(compiled(*args), fn(*args))
    torch._dynamo.reset()
    stepwell.reset_counters()
    wide = torch.randn(512, 768), torch.randn(768, 512)
    for got, want in zip(torch.compile(cut, backend="stepwell", fullgraph=True)(*wide), cut(*wide), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-1)
    assert stepwell.counters["passes"]["nd-cut-products"]["num-cut"] == 3, stepwell.counters["passes"]["nd-cut-products"]
    torch._dynamo.reset()
    data_parallel(x)
    torch._dynamo.reset()
    torch.manual_seed(2)
    tensor_parallel(torch.randn(4, 8))
    torch._dynamo.reset()
    compiled = torch.compile(overlapped, backend="stepwell", dynamic=True, fullgraph=True)
    grown = torch.randn(6, 8)
    torch.testing.assert_close(compiled(grown, w), overlapped(grown, w))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
