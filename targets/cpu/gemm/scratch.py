"""Scratch memory for functions that are shared by graphs: one block that is kept from call to call.

A call takes the block out of its place with one exchange, so that two threads never share it; one that finds the
place empty allocates a block of its own. When it is done it puts its block there and frees what it finds. Memory that
stays costs no page faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from .ir import Function, Value


def with_scratch(
    symbol: str, args: Sequence[tuple[str, str]], bytes_per_thread: int, name: str, linkage: str = "internal"
) -> str:
    """The IR of `name(args)`, which calls `symbol(args, scratch, threads)` with memory for all threads that torch
    allows."""
    f = Function(name, args, linkage=linkage, plain=True)
    kept = f"@{name}_kept"
    threads = f.let("sext i32 " + f.let("call i32 @omp_get_max_threads()") + " to i64")
    taken = f.let(f"atomicrmw xchg ptr {kept}, ptr null acquire")
    # The first 64 bytes say for how many threads the block is large enough.
    place = f.alloca(1, "ptr")
    f.store("ptr", taken, place, 8)
    with f.choose(f.let(f"icmp eq ptr {taken}, null", "t")) as empty:
        _allocate(f, place, threads, bytes_per_thread)
        empty.otherwise()
        with f.when(f.cmp("slt", f.load("i64", taken, 8), threads)):
            f.do(f"call void @free(ptr {taken})")
            _allocate(f, place, threads, bytes_per_thread)
    block = f.load("ptr", place, 8)
    values = ", ".join(f"{ty} %{arg}" for ty, arg in args)
    f.do(f"call void @{symbol}({values}, ptr {f.at(block, 64)}, i64 {threads})")
    other = f.let(f"atomicrmw xchg ptr {kept}, ptr {block} release")
    f.do(f"call void @free(ptr {other})")
    return f"{kept} = internal global ptr null\n{f.text()}"


def _allocate(f: Function, place: str, threads: Value, bytes_per_thread: int) -> None:
    size = f.round_up(f.add(f.mul(threads, bytes_per_thread), 64), 64)
    block = f.let(f"call ptr @aligned_alloc(i64 64, i64 {size})")
    f.store("i64", threads, block, 8)
    f.store("ptr", block, place, 8)
