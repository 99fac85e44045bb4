"""options={"freezing": True}: programs in which weights are constants, and calls with other weights than those.

The parameters and buffers of the modules are found among the inputs of the graph by what AOTAutograd says of each input. Constants are
copies, so that updates of the tensors have no effect; a call with other tensor objects (a second instance of the same class, which Dynamo
runs by the same code) gets a program of its own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...lowering.fx.post_grad.freezing import fold, foldable
from ...lowering.fx.post_grad.weight_order import OwnProduct
from ...lowering.fx_to_nd import Border
from ...targets.cpu.gemm.choice import prefer_own_gemm
from ..compiled.compiled import picker
from ..options.options import Options
from .huge_pages import collapse_pages

log = logging.getLogger("stepwell")

MAX_PROGRAMS = 8
"""For how many sets of weights a graph gets a program of its own; further ones share one in which weights are arguments."""

Program = Callable[[list[Any]], Sequence[Any]]


class Weights:
    """The parameters and buffers of what is compiled, asked for by the inputs of its ATen graph."""

    def __init__(self, module: torch.nn.Module, inputs: Sequence[Any]):
        self.module = module
        self.inputs = list(inputs)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"] if isinstance(module, GraphModule) else []
        self.held = {k for k, (n, v) in enumerate(zip(placeholders, inputs, strict=False)) if _is_weight(n, v)}

    def of(self, node: Node) -> torch.Tensor | None:
        """The tensor that a placeholder stands for if it is a weight, or a part of one that is a tensor subclass."""
        found = self._of(node.meta.get("desc"))
        return found if isinstance(found, torch.Tensor) else None

    def _of(self, what: Any) -> Any:
        from torch._functorch._aot_autograd import descriptors as d

        if isinstance(what, (d.ParamAOTInput, d.BufferAOTInput)):
            owner, _, name = what.target.rpartition(".")
            return getattr(self.module.get_submodule(owner), name)
        if isinstance(what, d.PlainAOTInput):
            return self.inputs[what.idx] if what.idx in self.held else None
        if isinstance(what, d.SubclassGetAttrAOTInput):
            base = self._of(what.base)
            return None if base is None else getattr(base, what.attr)
        return None


def _is_weight(node: Node, value: Any) -> bool:
    """Whether an input of Dynamo's graph is a parameter, or a buffer of a module: their values are expected to stay."""
    name: Any = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", "")
    return isinstance(value, torch.nn.Parameter) or "_buffers[" in str(name() if callable(name) else name)


def own_products(options: Options) -> OwnProduct | None:
    """Which products with a weight that is a constant are code of ours, which reads it in panels; None where all are calls."""
    return None if options.numerics == "eager" else lambda m, n, k: prefer_own_gemm(m, n, k, trans_b=True)


def winograd_tile(options: Options) -> int:
    """The largest tile of convolutions in Winograd's form; 0 where there are none: sums are rounded as eager's, or the library has them."""
    left = {"aten.convolution", "aten.convolution.default"}.intersection(options.fallback)
    return 0 if left or options.winograd == "off" or options.rounding == "eager" else int(options.winograd)


class Frozen:
    """The boxed function of a graph some of whose inputs are constants."""

    def __init__(
        self,
        gm: GraphModule,
        weights: dict[Node, torch.Tensor],
        border: Border | None,
        compiler: Callable[[GraphModule], Program],
        ordered: bool = True,
        own_product: OwnProduct | None = None,
        winograd: int = 0,
    ):
        self._boxed_call = True
        self._gm = copy.deepcopy(gm)
        self._compile = compiler
        self._orders = ordered, own_product, winograd
        places = {n: k for k, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
        shown = {*border.views.values(), *border.updates.values()} if border else set()
        self._at = [places[n] for n in foldable(gm, weights) if places[n] not in shown]
        tensors = {places[n]: t for n, t in weights.items()}
        self._held = picker(self._at)
        self._programs: list[tuple[Sequence[torch.Tensor], Program]] = []
        self._general: Program | None = None
        self._add([tensors[k] for k in self._at])

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        held = self._held(args)
        for known, run in self._programs:
            if all(map(is_, held, known)):
                return run(args)
        return self._other(held)(args)

    def _add(self, held: Sequence[torch.Tensor]) -> Program:
        gm = copy.deepcopy(self._gm)
        nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
        fold(gm, {nodes[k]: t for k, t in zip(self._at, held, strict=True)}, *self._orders)
        collapse_pages(constants_of(gm))
        run = self._compile(gm)
        self._programs.append((held, run))
        return run

    def _other(self, held: Sequence[torch.Tensor]) -> Program:
        """A program for weights that were not seen before."""
        if len(self._programs) < MAX_PROGRAMS:
            return self._add(held)
        if self._general is None:
            log.warning("a graph was frozen for %d sets of weights; others are passed as arguments", MAX_PROGRAMS)
            self._general = self._compile(self._gm)
        return self._general


def constants_of(gm: GraphModule) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a graph holds itself."""
    for node in gm.graph.nodes:
        value = getattr(gm, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            yield value


def weights_of(gm: GraphModule, weights: Weights) -> Iterator[tuple[Node, torch.Tensor]]:
    """The placeholders of an ATen graph that are weights, with their tensors."""
    for node in gm.graph.nodes:
        if node.op == "placeholder" and (found := weights.of(node)) is not None:
            yield node, found
