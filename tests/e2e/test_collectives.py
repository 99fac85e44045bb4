"""Functional collectives over gloo between two processes (K02, N33): the same answers as eager, the same order on both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import stepwell  # noqa: F401 - registers the backend


@pytest.mark.long
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo")
def test_k02_n33_two_processes(tmp_path):
    """D21, D22: in place too, with work between the start and the wait, in buckets; training with DDP, and tensor parallel."""
    script = Path(__file__).with_name("two_processes.py")
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path / "meeting")], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors


@pytest.fixture
def group(tmp_path):
    """A group of two processes, of which the other one is not there: collectives give what they are given."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


def _order(fn, args, folder):
    """The steps of the program on buffers: collectives and waits by name, the rest as "work"; and the text."""
    torch._dynamo.reset()
    torch.compile(fn, backend="stepwell", options={"debug": str(folder), "cache": "off"})(*args)
    text = next(folder.glob("*/3_mem.mlir")).read_text()
    steps = []
    for line in map(str.strip, text.splitlines()):
        if "mem.extern" in line:
            steps.append(line.split('call<"')[1].split('"')[0].split(".")[1])
        elif line.startswith(("loop.nest", "loop.contract")):
            steps.append("work")
    return steps, text


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_k03_work_that_needs_no_collective_runs_before_the_wait(group, tmp_path):
    """Torch's own program waits at once; two collectives are under way together, in their order."""
    import torch.distributed._functional_collectives as collectives

    def fn(x, w):
        first = collectives.all_reduce(x, "sum", dist.group.WORLD) * 2
        second = collectives.all_gather_tensor(x + 1, 0, dist.group.WORLD)
        return (x @ w).cumsum(1), first, second.relu()

    steps, _ = _order(fn, (torch.randn(4, 8), torch.randn(8, 8)), tmp_path)
    calls = [s for s in steps if s != "work"]
    assert calls.index("all_reduce") < calls.index("all_gather_into_tensor") < calls.index("wait_tensor", 2)
    last = len(steps) - 1 - steps[::-1].index("wait_tensor")
    begun = steps.index("all_gather_into_tensor")
    assert "work" in steps[begun:last]


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_b14_what_a_collective_reads_is_not_reused_before_the_wait(group, tmp_path):
    """The product would otherwise be stored where the collective still reads."""

    def fn(x, w):
        begun = torch.ops._c10d_functional.all_gather_into_tensor(x * 2, 2, group)
        other = ((x @ w).tanh() @ w).sin() @ w
        return torch.ops._c10d_functional.wait_tensor(begun).relu(), other.exp()

    steps, text = _order(fn, (torch.randn(4, 8), torch.randn(8, 8)), tmp_path)
    assert steps.index("wait_tensor") - steps.index("all_gather_into_tensor") > 1
    lines = text.splitlines()
    held = next(line for line in lines if "%mul = mem.alloc" in line)
    place = held.split("at = ")[1].split("}")[0]
    wait = next(k for k, line in enumerate(lines) if "wait_tensor.default" in line)
    others = [line for line in lines[:wait] if "mem.alloc" in line and "%mul =" not in line]
    assert others and not any(f"at = {place}}}" in line for line in others)


@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_k03_small_collectives_are_one_and_work_goes_on_beside_them(group, tmp_path):
    """Of two all-reduces one is left; the product that nobody waits for runs behind its call."""
    import torch.distributed._functional_collectives as collectives

    def fn(x, y, w):
        first = collectives.all_reduce(x * 2, "sum", dist.group.WORLD).relu()
        second = collectives.all_reduce(y + 1, "sum", dist.group.WORLD).tanh()
        return first, second, (w @ w).cumsum(1)

    args = torch.randn(4, 8), torch.randn(6), torch.randn(64, 64)
    steps, _ = _order(fn, args, tmp_path)
    assert steps.count("all_reduce") == steps.count("wait_tensor") == 1
    assert "work" in steps[steps.index("all_reduce") : steps.index("wait_tensor")]
    torch._dynamo.reset()
    for got, expected in zip(torch.compile(fn, backend="stepwell")(*args), fn(*args), strict=True):
        torch.testing.assert_close(got, expected)
