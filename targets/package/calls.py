"""An entry point of a loaded package: from the arguments of a call to those of its program, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import CallError, PackageError
from .programs import ProgramRecord, Source, decode_leaf, parse_size, size_value
from .signature import EntryPoint, Leaf
from .weights import WeightStore


class Entry:
    """A function of a package. native: whether its native entry runs."""

    def __init__(
        self,
        path: str,
        point: EntryPoint,
        record: ProgramRecord,
        store: WeightStore,
        run: Callable[[list[Any]], Sequence[Any]],
        native: bool,
    ):
        self.signature = point
        self.native = native
        self._path = path
        self._run = run
        self._names = point.parameters
        self._flat = point.arguments.is_flat and len(point.parameters) == point.positional == len(point.leaves)
        self._arity = len(point.parameters)
        self._check(record)
        store.will_update(record.updates)
        self._frame: list[Any] = [store.tensor(s.name) if s.kind == "weight" else None for s in record.sources]
        self._inputs = [(k, s.index) for k, s in enumerate(record.sources) if s.kind == "input"]
        self._sizes = [(k, parse_size(s.name)) for k, s in enumerate(record.sources) if s.kind == "size"]
        self._ranges = _ranges(point)
        self._constants = [(k, decode_leaf(leaf.value)) for k, leaf in enumerate(point.leaves) if leaf.kind == "constant"]
        self._numbers = [k for k, leaf in enumerate(point.leaves) if leaf.kind == "number"]
        self._symbols = _symbols(point)
        self._results = [self._result(one, store) for one in record.results]
        self._plain = all(one.kind == "result" and one.index == k for k, one in enumerate(record.results))
        self._single = self._plain and point.result.kind == "leaf"
        self._tuple = self._plain and point.result.kind == "tuple" and point.result.is_flat

    def _error(self, message: str) -> PackageError:
        return PackageError(f"entry point '{self.signature.name}': {message}", place=self._path)

    def _check(self, record: ProgramRecord) -> None:
        """PackageError where the parts of the signature do not fit each other."""
        point = self.signature
        tree = point.arguments
        if tree.leaves != len(point.leaves) or tree.kind != "tuple" or len(tree.items) != len(point.parameters):
            raise self._error("its tree of arguments does not fit its parameters")
        if point.result.leaves != len(record.results) or len(record.sources) != record.arguments:
            raise self._error("its results or arguments are not those of its program")
        if any(s.kind == "input" and not 0 <= s.index < len(point.leaves) for s in record.sources):
            raise self._error("its program takes an argument that there is not")

    def _result(self, one: Any, store: WeightStore) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        """What makes a result of those of the program and the leaves of the call."""
        index = one.index
        if one.kind == "result":
            return lambda results, leaves: results[index]
        if one.kind == "input":
            return lambda results, leaves: leaves[index]
        if one.kind == "weight":
            tensor = store.tensor(one.value)
            return lambda results, leaves: tensor
        if one.kind == "constant":
            value = decode_leaf(one.value)
            return lambda results, leaves: value
        size = parse_size(one.value)
        return lambda results, leaves: size_value(size, self._values(leaves))

    def _values(self, leaves: Sequence[Any]) -> Mapping[str, int]:
        """The sizes that the symbols stand for in a call."""
        return {name: leaves[k] if dim is None else leaves[k].shape[dim] for name, (k, dim) in self._symbols.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the entry point. CallError for arguments that it does not take."""
        leaves: Sequence[Any] = args if self._flat and not kwargs and len(args) == self._arity else self._leaves(args, kwargs)
        frame = self._frame.copy()
        for k, index in self._inputs:
            frame[k] = leaves[index]
        try:
            for k, dim, low, high in self._ranges:
                if not low <= leaves[k].size(dim) <= high:
                    raise CallError
            for k, value in self._constants:
                if type(leaves[k]) is not type(value) or leaves[k] != value:
                    raise CallError
            if self._sizes:
                values = self._values(leaves)
                for k, size in self._sizes:
                    frame[k] = size_value(size, values)
            results = self._run(frame)
        except (AssertionError, AttributeError, CallError, IndexError, TypeError) as error:
            results = self._again(leaves, error)
        if self._single:
            return results[0]
        if self._tuple:
            return tuple(results)
        if not self._plain:
            results = [make(results, leaves) for make in self._results]
        return self.signature.result.unflatten(results)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call's arguments. CallError."""
        name, parameters = self.signature.name, self._names
        if len(args) > self.signature.positional:
            raise CallError(f"{name}() takes {self.signature.positional} arguments by place, {len(args)} are given: {self._usage()}")
        given = dict(zip(parameters, args, strict=False))
        for key, value in kwargs.items():
            if key not in parameters:
                raise CallError(f"{name}() has no argument '{key}': {self._usage()}")
            if key in given:
                raise CallError(f"{name}() is given argument '{key}' twice")
            given[key] = value
        leaves: list[Any] = []
        for key, tree in zip(parameters, self.signature.arguments.items, strict=True):
            if key not in given:
                raise CallError(f"{name}() lacks argument '{key}': {self._usage()}")
            leaves += tree.flatten(given[key], f"{name}(): argument '{key}'")
        return leaves

    def _usage(self) -> str:
        first, rest = self._names[: self.signature.positional], self._names[self.signature.positional :]
        return f"{self.signature.name}({', '.join((*first, *(['*', *rest] if rest else ())))})"

    def _again(self, leaves: Sequence[Any], error: Exception) -> Sequence[Any]:
        """A call that was refused: with copies of tensors that have other strides, else a CallError that says what is wrong. What is no
        matter of the arguments is raised as it is."""
        from .arguments import as_exported, problem_of

        point = self.signature
        problem = problem_of(point, leaves)
        if problem is not None:
            raise CallError(f"{point.name}(): {problem}") from None
        fitting = as_exported(point, leaves)
        if fitting is None:
            raise error
        frame = self._frame.copy()
        for k, index in self._inputs:
            frame[k] = fitting[index]
        values = self._values(fitting)
        for k, size in self._sizes:
            frame[k] = size_value(size, values)
        return self._run(frame)


def _ranges(point: EntryPoint) -> list[tuple[int, int, int, float]]:
    """(leaf, dimension, least size, largest size) of dimensions that are symbols with a range."""
    ranges = {one.name: (one.low, float("inf") if one.high is None else one.high) for one in point.symbols}
    found, seen = [], set[str]()
    for k, leaf in enumerate(point.leaves):
        for dim, size in enumerate(leaf.sizes):
            if isinstance(size, str) and size in ranges and size not in seen:
                seen.add(size)
                low, high = ranges[size]
                found.append((k, dim, low, high))
    return found


def _symbols(point: EntryPoint) -> dict[str, tuple[int, int | None]]:
    """Where the value of each symbol is: a leaf, and the dimension of a tensor."""
    names = {one.name for one in point.symbols}
    found: dict[str, tuple[int, int | None]] = {}
    for k, leaf in enumerate(point.leaves):
        if leaf.kind == "number" and isinstance(leaf.value, str) and leaf.value in names:
            found.setdefault(leaf.value, (k, None))
        for dim, size in enumerate(leaf.sizes):
            if isinstance(size, str) and size in names:
                found.setdefault(size, (k, dim))
    return found


def sources_text(sources: Sequence[Source]) -> str:
    """The arguments of a program, for reports."""
    return ", ".join(s.name or f"argument {s.index}" for s in sources)


def leaf_text(leaf: Leaf) -> str:
    """A leaf for reports and messages: `float32[s0, 64]`."""
    if leaf.kind == "tensor":
        return f"{leaf.dtype}[{', '.join(map(str, leaf.sizes))}]"
    return "a number" if leaf.kind == "number" else repr(decode_leaf(leaf.value))
