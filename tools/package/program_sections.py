"""The programs of a package as sections: entry points, and the subgraphs that their control flow calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...dialects.expr import to_python
from ...dialects.support.record import changed
from ...targets.package import schema
from ...targets.package.format import Section
from ...targets.package.programs import BodyRecord, ProgramRecord, Result, Source, encode_leaf, record_of
from ...targets.package.signature import Leaf
from .code import PackagedBody
from .objects import object_record

if TYPE_CHECKING:
    from ...lowering.control_flow import Body
    from ...lowering.outputs import Output
    from ..compiled.compiled import CompiledGraph
    from .code import CodeSections
    from .exported import ExportedGraph
    from .levels import Level
    from .tensors import WeightTable


@dataclass
class ProgramSections:
    """Collects the programs of a package: their code goes to `code`, their weights to `weights`."""

    code: CodeSections
    weights: WeightTable
    contents: list[tuple[Section, bytes | memoryview]]

    def add(self, graph: ExportedGraph, compiled: CompiledGraph, level: Level) -> None:
        """An entry point, compiled for a level. PackageError for what no file can hold."""
        point = graph.point.name

        def weight(name: str) -> str:
            return self.weights.add(name, graph.tensors[name], graph.kinds[name], point)

        places = [graph.placeholders[k] for k in compiled.inputs]
        sources = [Source("weight", weight(one)) if isinstance(one, str) else Source("input", index=one) for one in places]
        constants = [self.weights.add_constant(value, point) for value in compiled.constants]
        results = tuple(_entry_result(compiled, one) for one in graph.results)
        updates = tuple(map(weight, graph.updated))
        record = record_of(compiled.description, tuple(sources), results, tuple(constants), updates)
        self._add(point, point, compiled, record, level)

    def _add(self, name: str, point: str, compiled: CompiledGraph, record: ProgramRecord, level: Level) -> None:
        objects = tuple(object_record(point, one, partial(self._body, point, level)) for one in compiled.objects)
        record = changed(record, objects=objects, kernels=self.code.add_kernels(compiled.description))
        self.contents.append((Section("program", name, 0, 0, "", level.target.name), schema.dump(record)))
        self.code.add_object(name, compiled.code)

    def _body(self, point: str, level: Level, body: Body) -> BodyRecord:
        """The record of a subgraph, whose program is added."""
        results = tuple((kind, encode_leaf(of)) for kind, of in body.results)
        if not isinstance(body.program, PackagedBody):  # it computes nothing
            return BodyRecord("", body.strides, results)
        compiled = body.program.compiled
        sources = tuple(Source("input", index=k) for k in compiled.inputs)
        constants = tuple(self.weights.add_constant(value, point) for value in compiled.constants)
        record = record_of(compiled.description, sources, tuple(map(_result, compiled.outputs)), constants)
        self._add(body.program.name, point, compiled, record, level)
        return BodyRecord(body.program.name, body.strides, results, dict(compiled.symbols))


def _entry_result(compiled: CompiledGraph, one: int | Leaf) -> Result:
    if isinstance(one, Leaf):
        return Result("constant" if one.kind == "constant" else "size", value=one.value)
    return _result(compiled.outputs[one])


def _result(output: Output) -> Result:
    if output.kind == "result":
        return Result("result", output.value)
    if output.kind == "constant":
        return Result("constant", value=encode_leaf(output.value))
    return Result("size", value=to_python(output.value))


__all__: Sequence[str] = ["ProgramSections"]
