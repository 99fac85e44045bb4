"""Programs that fail become small, by the reduction of FX graphs and of IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ...dialects import load_dialects
from ...passes.manager.instrumentation import print_ir
from ..ir_parser import parse_file
from ..opt.inputs import with_own_memory
from ..reduce.graph import Reduced, captured, failure_kind, reduce_graph
from ..reduce.ir import reduce_module
from .case import Case, inputs_text
from .ir import IRCase


def shrunk(case: Case | IRCase, why: str, note: str, device: str, seconds: float) -> str:
    """The source of a smaller program that fails as `case` does, "" if none is found in that time."""
    if isinstance(case, IRCase):
        return _shrunk_ir(case, failure_kind(why), note, device, seconds)
    return _shrunk_graph(case, failure_kind(why), note, device, seconds)


def _shrunk_ir(case: IRCase, kind: str, note: str, device: str, seconds: float) -> str:
    module, _ = parse_file(case.text, "case.mlir", load_dialects(Context()))

    def fails(candidate: ModuleOp) -> bool:
        result, why = replace(case, text=print_ir(candidate)).verdict(device)
        return result == "wrong" and failure_kind(why) == kind

    return replace(case, text=print_ir(reduce_module(module, fails, seconds=seconds))).source(note, device)


def _shrunk_graph(case: Case, kind: str, note: str, device: str, seconds: float) -> str:
    function, make_inputs = case.load()
    inputs = list(make_inputs(0))
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if case.grad and not any(x.requires_grad for x in tensors):
        for x in tensors:
            x.requires_grad_(x.is_floating_point())

    class Loaded(Case):
        given: Any = None

        def load(self) -> Any:
            gm, values = type(self).given
            return gm, lambda which: [with_own_memory(value) for value in values]

    def fails(gm: GraphModule, values: Sequence[Any]) -> bool:
        Loaded.given = gm, values
        tried = Loaded(case.kind, case.seed, "", "", grad=case.grad, tolerance=case.tolerance)
        result, why = tried.verdict(device)
        return result == "wrong" and failure_kind(why) == kind

    for gm, values in captured(function, inputs):
        if not fails(gm, values):
            continue
        small, given = reduce_graph(gm, values, fails, seconds=seconds)
        text = Reduced(small, given, "", case.grad).program
        return replace(case, program=text, inputs=inputs_text(given), sets=1, dynamic=False, fullgraph=False).source(note, device)
    return ""


