"""Run by test_collectives.py as `python two_processes.py RANK FILE`: functional collectives between two processes, compiled and eager."""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

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
    parts = [collectives.reduce_scatter_tensor(t, "sum", 0, GROUP) for t in (x * 3, x.tanh().t(), x.sum(1))]
    return (*sums, *rows, *(p + 1 for p in parts))


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
    grown = torch.randn(6, 8)
    torch.testing.assert_close(compiled(grown, w), overlapped(grown, w))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
