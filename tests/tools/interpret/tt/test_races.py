"""Kernels that are right when threads and programs run one after the other, and wrong on a GPU: the interpreter refuses them."""

from __future__ import annotations

import pytest
import torch
from xdsl.parser import Parser

from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.tt.run import KernelError, run_kernel

HEAD = """
    %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %last = arith.constant dense<63> : tensor<64xi32>
    %back = arith.subi %last, %lane : tensor<64xi32>
    %half = arith.constant dense<32> : tensor<64xi32>
    %two = arith.remsi %lane, %half : tensor<64xi32>
    %x0 = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %here = tt.addptr %x0, %lane : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %there = tt.addptr %x0, %back : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %shared = tt.addptr %x0, %two : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %y0 = tt.splat %y : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %out = tt.addptr %y0, %lane : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %id = tt.get_program_id x : i32
    %number = arith.sitofp %id : i32 to f32
    %same = tt.splat %number : f32 -> tensor<64xf32>
    %lanes = arith.sitofp %lane : tensor<64xi32> to tensor<64xf32>
"""
BARRIER = '"gpu.barrier"() : () -> ()'


def load(name: str, pointer: str) -> str:
    return f"{name} = tt.load {pointer} : tensor<64x!tt.ptr<f32>>"


def store(pointer: str, value: str) -> str:
    return f"tt.store {pointer}, {value} : tensor<64x!tt.ptr<f32>>"


def run(*lines: str, programs: int = 1, warps: int | None = 2) -> tuple[torch.Tensor, torch.Tensor]:
    said = "" if warps is None else f"attributes {{num_warps = {warps} : i32}}"
    text = f"""builtin.module {{
      tt.func public @k(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) {said} {{
        {HEAD}
        {chr(10).join(lines)}
        tt.return
      }}
    }}"""
    x, y = torch.arange(64.0) + 1, torch.zeros(64)
    run_kernel(Parser(context(), text).parse_module(), [x, y], [programs])
    return x, y


IN_ONE_PROGRAM = {
    "loaded behind a store": ("loads what the program has stored", [store("%here", "%lanes")], [load("%a", "%there"), store("%out", "%a")]),
    "loaded behind a store of the same places": (
        "loads what the program has stored", [store("%here", "%lanes")], [load("%a", "%here"), store("%out", "%a")],
    ),
    "stored behind a load": ("overwrites what the program has loaded", [load("%a", "%there")], [store("%here", "%a")]),
    "stored twice": ("stores another number", [store("%here", "%lanes")], [store("%there", "%lanes")]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_ONE_PROGRAM)
def test_threads_of_a_program_need_a_barrier(name):
    message, first, second = IN_ONE_PROGRAM[name]
    run(*first, BARRIER, *second)
    with pytest.raises(KernelError, match=message):
        run(*first, *second)


DESCRIPTOR = """
    %size = arith.constant 64 : i32
    %one = arith.constant 1 : i64
    %zero = arith.constant 0 : i32
    %d = tt.make_tensor_descriptor %x, [%size], [%one] : !tt.ptr<f32>, !tt.tensordesc<tensor<64xf32>>
"""
LOAD_BLOCK = "%a = tt.descriptor_load %d[%zero] : !tt.tensordesc<tensor<64xf32>> -> tensor<64xf32>"
STORE_BLOCK = "tt.descriptor_store %d[%zero], %lanes : !tt.tensordesc<tensor<64xf32>>, tensor<64xf32>"


@pytest.mark.parametrize(
    "first, second",
    [(store("%here", "%lanes"), LOAD_BLOCK), (STORE_BLOCK, load("%a", "%here")), (STORE_BLOCK, LOAD_BLOCK)],
)
def test_blocks_that_are_copied_and_stores_need_a_kernel_between(first, second):
    for lines in ((first, second), (first, BARRIER, second)):
        with pytest.raises(KernelError, match="loads what the program has stored"):
            run(DESCRIPTOR, *lines)
    run(DESCRIPTOR, second, BARRIER, first)
    unchanged = STORE_BLOCK.replace("%lanes", "%b")
    run(DESCRIPTOR, LOAD_BLOCK.replace("%a", "%b"), BARRIER, unchanged, BARRIER, second)


def test_blocks_of_descriptors_race_as_elements_do():
    with pytest.raises(KernelError, match="overwrites what another program stores"):
        run(DESCRIPTOR, STORE_BLOCK.replace("%lanes", "%same"), programs=2)
    with pytest.raises(KernelError, match="loads what another program stores"):
        run(DESCRIPTOR, LOAD_BLOCK, BARRIER, STORE_BLOCK, programs=2)
    run(DESCRIPTOR, STORE_BLOCK, programs=2)


def test_threads_overwrite_what_they_loaded_themselves():
    doubled = [load("%a", "%here"), "%b = arith.addf %a, %a : tensor<64xf32>", store("%here", "%b")]
    x, _ = run(*doubled)
    assert torch.equal(x, 2 * (torch.arange(64.0) + 1))
    with pytest.raises(KernelError, match="overwrites what the program has loaded"):
        run(*doubled, warps=4)  # two threads have each element: one may store before the other loads
    x, _ = run(*doubled, warps=None)  # Triton's text: the one that stores is one that has loaded
    assert torch.equal(x, 2 * (torch.arange(64.0) + 1))


def test_numbers_that_meet_at_one_place():
    run(store("%shared", "%same"))
    with pytest.raises(KernelError, match="different numbers to one place"):
        run(store("%shared", "%lanes"))


def test_places_that_memory_says_may_meet():
    """As in torch, where indices that are equal leave open which number stays."""
    scatter = [
        load("%a", "%here"),
        "%i = arith.fptosi %a : tensor<64xf32> to tensor<64xi32>",
        "%j = arith.remsi %i, %half : tensor<64xi32>",
    ]
    scatter += ["%p = tt.addptr %y0, %j : tensor<64x!tt.ptr<f32>>, tensor<64xi32>", store("%p", "%a")]
    _, y = run(*scatter, programs=2)
    assert bool((y[:32] % 32 == torch.arange(32)).all())
    with pytest.raises(KernelError, match="overwrites what the program has loaded"):
        run(load("%b", "%out"), *scatter)


BETWEEN_PROGRAMS = {
    "stores": ("overwrites what another program stores", [store("%out", "%same")]),
    "loads and stores": (
        "overwrites what another program loads",
        [load("%a", "%here"), "%b = arith.addf %a, %same : tensor<64xf32>", store("%here", "%b")],
    ),
    "stores and loads": (
        "loads what another program stores",
        [store("%here", "%lanes"), BARRIER, load("%a", "%there"), store("%out", "%a")],
    ),
}


@pytest.mark.parametrize("name", BETWEEN_PROGRAMS)
def test_nothing_orders_programs(name):
    message, lines = BETWEEN_PROGRAMS[name]
    run(*lines)
    with pytest.raises(KernelError, match=message):
        run(*lines, programs=2)


def test_programs_that_store_the_same_do_no_harm():
    _, y = run(store("%out", "%lanes"), programs=3)
    assert torch.equal(y, torch.arange(64.0))


def test_programs_that_talk_by_atomic_operations():
    x, _ = run(
        "%a = tt.atomic_rmw fadd, acq_rel, gpu, %there, %lanes : (tensor<64x!tt.ptr<f32>>, tensor<64xf32>) -> tensor<64xf32>", programs=3
    )
    assert torch.equal(x, torch.arange(64.0) + 1 + 3 * torch.arange(63.0, -1, -1))


def test_large_tensors_are_not_watched():
    """What belongs to an address in memory of a driver is not known, and marks take several times as much."""
    from stepwell.tools.interpret.tt.races import MAX_TRACKED_BYTES, Order, Races

    order = Order(Races(32))
    every = torch.ones(4, dtype=torch.bool)
    for size in (4, MAX_TRACKED_BYTES):
        access, memory = order.access(every), torch.zeros(size)
        arguments = memory.untyped_storage(), every, 4 * torch.arange(4)
        access.load(*arguments)
        if size == MAX_TRACKED_BYTES:
            access.store(*arguments, memory[:4], torch.ones(4))
        else:
            with pytest.raises(KernelError, match="overwrites"):
                access.store(*arguments, memory, torch.ones(4))
