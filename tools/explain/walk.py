"""How a graph was decided, in the steps of a scheduler's initialisation: nodes, dependencies, names and mutation, order, dead code, fusion,
memory. Each step says what was decided for this graph and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .model import Graph, Loops

MAX_STEP_LINES = 40
"""Lines that a step may have; a larger graph has the rest in the tables and in the IR."""

ELSEWHERE = {
    "1. Nodes": "makes a node for each buffer, operator by operator in the order of the graph; a pointwise value with few readers was "
    "inlined into them before, while lowering, and never becomes a node.",
    "2. Dependencies": "collects for each node the buffers that it reads and writes, with index expressions, by running its body "
    "symbolically.",
    "3. Names and mutation": "follows names: each mutation renames its buffer, readers of the old name get edges that order them before "
    "the write, and buffers that alias each other share their users.",
    "4. Order": "sorts the nodes topologically, before fusion.",
    "5. Dead code": "sweeps the nodes backwards and drops those whose buffers nobody uses and that have no side effect; then notes each "
    "node's ancestors.",
    "6. Fusion": "fuses pairs, the best score (shared bytes, distance) first, in rounds until nothing changes; what a pair decided "
    "(loop order, layouts) stays.",
    "7. Memory": "finds the last use of each buffer, frees there, and reuses a buffer of the same size where one is free; in-place where "
    "the last reader writes at the same index.",
}
"""What a scheduler of buffers, such as Inductor's, does at each of these steps when it is initialised."""

LONGEST = 16
"""Names that a list of names in a line may have."""


def walk(graph: Graph) -> list[tuple[str, list[str]]]:
    """(title, lines) of each step; the first line is what a scheduler of buffers does there, the rest what was decided here."""
    steps = (
        ("1. Nodes", _nodes),
        ("2. Dependencies", _dependencies),
        ("3. Names and mutation", _mutation),
        ("4. Order", _order),
        ("5. Dead code", _dead),
        ("6. Fusion", _fusion),
        ("7. Memory", _memory),
    )
    return [(title, [f"A scheduler of buffers {ELSEWHERE[title]}", *_short(lines(graph))]) for title, lines in steps]


def _short(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MAX_STEP_LINES else [*lines[:MAX_STEP_LINES], f"... and {len(lines) - MAX_STEP_LINES} more"]


def _plural(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def listed(names: Sequence[str], most: int = LONGEST) -> str:
    """Names with commas, of many the first ones."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return ", ".join(names) if names else "none"


def _nodes(graph: Graph) -> list[str]:
    if not graph.loops and not graph.others:
        return [f"{_plural(len(graph.operators), 'operator')}, no nest to plan."]
    found = [
        f"{_plural(len(graph.operators), 'operator')} of the graph became {_plural(len(graph.loops), 'nest')} "
        "(one for each value computed)."
    ]
    found += [f"{one.label} = {one.what} over {one.sizes}" + (f"   {one.place}" if one.place.line else "") for one in graph.loops]
    if graph.others:
        found.append(f"Not nests: {listed(graph.others)} (contractions, library calls and lists of tensors; fusion goes around them).")
    if graph.views:
        found.append(
            f"No node at all: {listed(graph.views)} (views are index maps in what reads them, constants are written where used, "
            "parts and aliases of a value are that value)."
        )
    return found


def _dependencies(graph: Graph) -> list[str]:
    makers = {use.name for one in graph.loops for use in one.writes}
    found = ["An edge is a read of a tensor with its index, so that order and fusion are decided from the same facts."]
    for one in graph.loops:
        reads = [f"{u.name}[{u.index}]" for u in one.reads]
        after = [n for n in dict.fromkeys(u.name for u in one.reads) if n in makers]
        needs = listed(after) if after else "only arguments and library results" if reads else "nothing"
        found.append(f"{one.label} reads {listed(reads) if reads else 'nothing'}; needs {needs}")
    return found


def _mutation(graph: Graph) -> list[str]:
    found = ["Every value has one definition (SSA): no renaming of versions, no edges between a write and earlier reads."]
    if not graph.updated:
        return [*found, "No argument is updated."]
    found.append(f"Updated at the end, after every read of the old value: {listed(list(dict.fromkeys(graph.updated)))}.")
    return found


def _order(graph: Graph) -> list[str]:
    if not graph.order:
        return ["Nothing to order."]
    changed = "changed where a fused nest had to come after what it reads" if graph.reordered else "unchanged"
    return [f"Producers before readers, otherwise the order of the program ({changed}): {_chain(graph.order)}."]


def _chain(names: Sequence[str]) -> str:
    shown = " -> ".join(names[:LONGEST])
    return f"{shown} -> and {len(names) - LONGEST} more" if len(names) > LONGEST else shown


def _dead(graph: Graph) -> list[str]:
    found = []
    if graph.gone:
        found.append(f"Folded, merged with an equal one or unused, before there were nests: {listed(graph.gone)}.")
    inlined = [one.label for one in graph.loops if one.readers]
    if inlined:
        found.append(f"Never stored, because every reader computes it itself: {listed(inlined)}.")
    return found or ["Every operator is needed; nothing was removed."]


def _stored(loops: Iterable[Loops], label: str) -> str:
    return next((one.stored_because for one in loops if one.label == label), "")


def _fusion(graph: Graph) -> list[str]:
    before, after = len(graph.loops), len(graph.groups)
    if not before:
        return ["No nests, nothing to fuse."]
    found = [
        f"{_plural(before, 'nest')} became {after}: what pays in bytes and is legal, "
        "planned for the whole graph before anything is rewritten."
    ]
    for pair in graph.pairs:
        how = f"{pair.first} -> {pair.second}: {pair.reason}" if pair.fused else f"{pair.first} | {pair.second}: not fused, {pair.reason}"
        found.append(f"{how} ({'saves' if pair.fused else 'would save'} {pair.bytes} bytes)")
    for group in graph.groups:
        inside = f", with {listed(group.inside)} computed inside" if group.inside else ""
        names = listed(group.members) if len(group.members) > LONGEST else "+".join(group.members)
        found.append(f"nest {names} over {group.sizes}{inside}")
    return found


def _memory(graph: Graph) -> list[str]:
    if not graph.steps:
        return ["Nothing runs, nothing is allocated."]
    kinds = {kind: [b for b in graph.buffers if b.kind == kind] for kind in ("arena", "pooled", "in output", "extern")}
    kinds["returned"] = [b for b in graph.buffers if b.returned]
    found = []
    titles = {
        "returned": "returned", "extern": "made by library calls", "pooled": "from the pool",
        "in output": "in the memory of a later result", "arena": "temporaries in the arena",
    }  # fmt: skip
    for kind, text in titles.items():
        some = kinds[kind]
        if kind in ("pooled", "in output") and not some:
            continue
        found.append(f"{text.capitalize()}: {listed([f'{b.name} ({b.bytes} bytes)' for b in some])}.")
    total = sum(b.bytes for b in kinds["arena"])
    if total:
        found.append(f"The arena is one block of {graph.arena} bytes, planned by lifetime; a place for each would take {total}.")
    freed = [f"{b.name} after step {b.last}" for b in graph.buffers if not b.returned]
    found.append(f"Freed: {listed(freed)}.")
    found += graph.in_place
    return found
