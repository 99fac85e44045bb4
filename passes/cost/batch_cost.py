"""What a batch reads, writes and costs: the nests of its body, once for each entry at the entry's size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, evaluate, free_syms
from .cost_model import SERVER, Cost, Work, estimate, nest_cost
from .footprint import of_nest
from .machine.cpu import Cpu


def entry_hints(op: loop.BatchOp, hints: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """For each entry the typical values of the size symbols, the body's own included."""
    symbols = loop.batch_symbols(op.body()) or ()
    for sizes in op.entry_sizes():
        own = {s.name: evaluate(e, {x: hints.get(x.name, 64) for x in free_syms(e)}) for s, e in zip(symbols, sizes, strict=True)}
        yield {**hints, **own}


def body_nests(op: loop.BatchOp) -> list[loop.NestOp]:
    """The nests that run for each entry."""
    return [nest for nest in op.body().body.block.ops if isinstance(nest, loop.NestOp)]


def batch_cost(op: loop.BatchOp, hints: Mapping[str, int] | None = None, machine: Cpu = SERVER) -> Cost:
    """The price of a batch: one launch, whose entries are shared among threads."""
    nests = body_nests(op)
    work = Work(launches=0, iterations=float(op.count))
    for known in entry_hints(op, hints or {}):
        for nest in nests:
            work = work + replace(nest_cost(nest, known, machine).work, iterations=float(op.count))
    return estimate(replace(work, launches=1, threads=True), machine)


def batch_bytes(op: loop.BatchOp, hints: Mapping[str, int]) -> tuple[dict[SSAValue, int], dict[SSAValue, int]]:
    """Bytes that a batch on buffers reads and writes, by buffer: each nest of the body counts what it touches."""
    place: dict[SSAValue, int] = {formal: k for k, formal in enumerate(op.body().body.block.args)}
    read: dict[SSAValue, int] = {}
    written: dict[SSAValue, int] = {}
    found: dict[tuple[int, ...], list[tuple[dict[SSAValue, int], dict[SSAValue, int]]]] = {}
    nests = body_nests(op)
    for operands, known in zip(op.entry_operands(), entry_hints(op, hints), strict=True):
        key = tuple(known.values())
        if key not in found:
            facts: dict[Expr, int] = {s: known[s.name] for s in loop.batch_symbols(op.body()) or ()}
            found[key] = [of_nest(nest, facts).by_buffer() for nest in nests]
        for reads, writes in found[key]:
            for total, table in ((read, reads), (written, writes)):
                for formal, size in table.items():
                    value = operands[place[formal]]
                    total[value] = total.get(value, 0) + size
    return read, written
