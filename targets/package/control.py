"""Control flow in packages: what calls subgraphs at launch (lowering/control_flow.py), made of the package's programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...lowering.control_flow import Body, Cond, Map, Program, Scan, WhileLoop, no_results
from .errors import PackageError
from .programs import BodyRecord, ObjectRecord, ProgramRecord, decode_leaf, parse_size, size_value

_MADE: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "Body": (1, 0, lambda body: body),
    "Cond": (2, 0, Cond),
    "WhileLoop": (2, 2, lambda test, step, carried, stacked: WhileLoop(test, step, carried, bool(stacked))),
    "Scan": (1, 2, Scan),
    "Map": (1, 1, Map),
}
"""Name -> how many bodies and numbers it has, and what makes it of them."""


def control_of(record: ObjectRecord, program: Callable[[BodyRecord], Program]) -> Any:
    """What a program calls in the place of an operator with subgraphs, whose programs `program` gives. PackageError."""
    bodies, numbers, make = _MADE.get(record.name, (-1, -1, None))
    if make is None or (len(record.bodies), len(record.numbers)) != (bodies, numbers):
        raise PackageError(f"a program calls control flow '{record.name}', which this stepwell lacks")
    return make(*(_body(one, program) for one in record.bodies), *record.numbers)


def _body(one: BodyRecord, program: Callable[[BodyRecord], Program]) -> Body:
    results = tuple((kind, decode_leaf(of)) for kind, of in one.results)
    made = program(one) if one.program else no_results
    counts = {"operand": len(one.strides), "result": made.count if isinstance(made, BodyProgram) else 0}
    for kind, of in results:
        if kind != "constant" and not (kind in counts and type(of) is int and 0 <= of < counts[kind]):
            raise PackageError(f"a subgraph '{one.program}' has no {kind} {of}")
    return Body(made, one.strides, results)


class BodyProgram:
    """The program of a subgraph, called with the values of its placeholders. count: how many results it has. PackageError where its parts
    do not fit."""

    def __init__(self, one: BodyRecord, record: ProgramRecord, run: Callable[[list[Any]], Sequence[Any]]):
        self._run = run
        self._inputs = [source.index for source in record.sources]
        self._symbols = one.symbols
        self.count = len(record.results)
        places = [*self._inputs, *self._symbols.values()]
        if len(self._inputs) != record.arguments or any(not 0 <= k < len(one.strides) for k in places):
            raise PackageError(f"the operands of subgraph '{one.program}' are not those of its program")
        self._makers = [_maker(result.kind, result.index, result.value) for result in record.results]
        self._plain = all(result.kind == "result" and result.index == k for k, result in enumerate(record.results))

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run it; the list is empty afterwards."""
        frame = [args[k] for k in self._inputs]
        sizes = {} if self._plain else {name: args[k] for name, k in self._symbols.items()}
        args.clear()
        results = self._run(frame)
        return results if self._plain else [make(results, sizes) for make in self._makers]


def _maker(kind: str, index: int, value: Any) -> Callable[[Sequence[Any], dict[str, int]], Any]:
    """What makes a result of those of the program, and of the values of size symbols. PackageError."""
    if kind == "result":
        return lambda results, sizes: results[index]
    if kind == "constant":
        constant = decode_leaf(value)
        return lambda results, sizes: constant
    if kind == "size":
        size = parse_size(value)
        return lambda results, sizes: size_value(size, sizes)
    raise PackageError(f"a subgraph has a result of the kind '{kind}'")
