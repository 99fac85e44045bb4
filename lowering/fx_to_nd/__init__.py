"""Import: the ATen graph that AOTAutograd gives (forward, backward or inference) as an `nd` module.

One file an operator family; each fills the registry with rules (registry.py says how a rule is written). `import_graph`
is the door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from ...dialects import nd
from ...dialects.expr import Expr
from ...dialects.machine import ORDER
from ...dialects.nd.types import TensorType
from ...passes.nd.products.factor_types import TF32
from ..outputs import Output
from .calls.rounded_factors import rounded_factors
from .calls.user_kernels import MakeKernel
from .core.builder import UNIT
from .core.importer import GraphImportError, Importer
from .core.input_views import Border, input_views
from .core.metadata import shape_env
from .core.node_builder import Counts
from .core.signature import Results, constant_attributes, placeholder, symbol_ranges
from .regions.subgraphs import Program

__all__ = ["Border", "Counts", "GraphImportError", "Imported", "Output", "import_graph"]

_FAMILIES = (
    "regions.ragged_operators",
    "rules.attention",
    "rules.complex_functions",
    "calls.collectives",
    "rules.contractions",
    "rules.copies",
    "rules.creation",
    "rules.embedding_bags",
    "rules.folding",
    "rules.indexing",
    "rules.interpolation",
    "rules.jagged",
    "rules.joining",
    "rules.losses",
    "rules.normalization",
    "rules.ordering",
    "rules.pointwise",
    "rules.polygamma",
    "rules.polynomials",
    "rules.activations",
    "rules.pooling",
    "rules.pooling_adaptive",
    "rules.pooling_backward",
    "rules.prims",
    "rules.random",
    "rules.reductions",
    "rules.resampling",
    "rules.sampling_grids",
    "rules.scans",
    "rules.special",
    "rules.views",
    "rules.winograd",
)
_loaded = False


@dataclass
class Imported:
    """What an import gives.

    module: the `nd` module with func.func @name. constants: the tensors that its last arguments take. objects: what
    object(k) in a call names. inputs: for each leading argument the position of the FX placeholder that it takes.
    outputs: how each output of the FX graph is made (see `Output`). counts: operator nodes by treatment. device: where its kernels run.
    handed_on: the positions of placeholders with a size symbol that is no argument, since only outputs want it. refused: the calls that
    eager refuses, by their place among the nodes, and operator. values: what each node became, values of the module among them."""

    module: ModuleOp
    constants: list[torch.Tensor]
    objects: list[Any]
    inputs: list[int]
    outputs: list[Output]
    counts: Counts
    device: str = "cpu"
    handed_on: dict[str, int] = field(default_factory=dict)
    refused: list[tuple[int, str]] = field(default_factory=list)
    values: Mapping[Node, Any] = field(default_factory=dict)


def load_rules() -> None:
    """Fill the registry (once)."""
    global _loaded
    if not _loaded:
        from importlib import import_module

        for family in _FAMILIES:
            import_module(f".{family}", __name__)
        _loaded = True


def import_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any] = (),
    *,
    name: str = "forward",
    static_inputs: Sequence[int] = (),
    output_strides: Sequence[Any] | None = None,
    border: Border | None = None,
    numerics: str = "default",
    order: str = "",
    fallback_random: bool = False,
    compile_body: Callable[[GraphModule], Program] | None = None,
    make_kernel: MakeKernel | None = None,
    forced: frozenset[str] = frozenset(),
    left: frozenset[str] = frozenset(),
    implicit_fallbacks: bool = True,
) -> Imported:
    """Write `gm` as a module of `nd` ops.

    gm: an ATen graph, functional but for writes to its inputs; nodes without metadata get it by fake propagation of
    `example_inputs`. static_inputs: positions of placeholders whose address does not change between calls.
    output_strides: for each output the strides that the caller must see, None for torch's own. border: which outputs
    the caller makes views or new values of inputs. numerics "eager" rounds
    f16 and bf16 after every op; order "fixed", "repeatable": see dialects/machine.py. fallback_random: random numbers
    from the library's generator, as eager draws them. compile_body: compiles a subgraph of a higher-order operator; without it such a
    subgraph runs operator by operator. make_kernel: makes the user's Triton kernels (user_kernels.py); without it Triton launches them.
    forced: operators that are library calls whatever rule there is, by name
    ("aten.gelu" or "aten.gelu.default"); left: the same for single nodes, by name. implicit_fallbacks: whether operators without a rule
    may be.
    Raises GraphImportError with the node and the user's line."""
    load_rules()
    from .calls.collectives import later_waits

    ensure_metadata(gm, example_inputs)
    block = Block()
    b = Importer(gm, block, fallback_random, compile_body, numerics == "eager", make_kernel)
    b.forced, b.left, b.implicit_fallbacks, b.order = forced, left, implicit_fallbacks, order
    nodes = list(gm.graph.nodes)
    inputs, attributes, places = _arguments(b, nodes, frozenset(static_inputs), (border or Border()).donated)
    output = nodes[-1]
    b.run_all(later_waits([n for n in nodes if n.op not in ("placeholder", "output")]))
    b.node, b.location = output, b.locate(output)
    results = _results(b, nodes, places, output_strides, border or Border())
    made = _assemble(b, name, numerics, inputs, attributes, results)
    b.verify()
    if order:
        made.module.attributes[ORDER] = StringAttr(order)
    return made


def _arguments(
    b: Importer, nodes: Sequence[Node], static: frozenset[int], donated: frozenset[int]
) -> tuple[list[int], list[DictionaryAttr], dict[Node, int]]:
    inputs: list[int] = []
    attributes: list[DictionaryAttr] = []
    places: dict[Node, int] = {}
    placeholders = [n for n in nodes if n.op == "placeholder"]
    bases = _shared_bases(placeholders) if donated else {}
    for k, node in enumerate(placeholders):
        b.node = node
        attrs = placeholder(b, node, k in static)
        if attrs is not None:
            if isinstance(node.meta.get("val"), torch.Tensor):
                places[node] = len(inputs)
                if k in donated:
                    attrs["nd.donated"] = UNIT
                if node in bases:
                    attrs["nd.base"] = StringAttr(bases[node])
            inputs.append(k)
            attributes.append(DictionaryAttr(attrs))
        elif isinstance(b.env.get(node), Expr):
            b.handed_on[str(b.env[node])] = k
    return inputs, attributes, places


def _shared_bases(placeholders: Sequence[Node]) -> dict[Node, str]:
    """For inputs that share memory with another one: the name of the first that has it."""
    holders: dict[Any, list[Node]] = {}
    for node in placeholders:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.layout == torch.strided:
            holders.setdefault(StorageWeakRef(val.untyped_storage()), []).append(node)
    return {node: group[0].name for group in holders.values() if len(group) > 1 for node in group}


def _results(
    b: Importer, nodes: Sequence[Node], places: dict[Node, int], strides: Sequence[Any] | None, border: Border
) -> Results:
    items = nodes[-1].args[0]
    if not isinstance(items, (list, tuple)):
        raise GraphImportError(f"the graph must return a tuple or list, it returns {items}")
    given = strides if strides is not None else [None] * len(items)
    wanted = {n: s for n, s in zip(items, given, strict=True) if isinstance(n, Node)}
    results = Results(b, places, wanted, input_views(nodes, border))
    for item in items:
        results.add(item)
    for node, value in b.updates.items():
        b.insert(nd.UpdateOp.create(operands=(b.block.args[places[node]], value), location=b.location))
    return results


def _assemble(
    b: Importer, name: str, numerics: str, inputs: list[int], attributes: list[DictionaryAttr], results: Results
) -> Imported:
    from .rules.random import write_seeds

    write_seeds(b)
    b.insert(ReturnOp(*results.values))
    b.finish()
    arguments = [a.type for a in b.block.args]
    func = FuncOp(
        name,
        FunctionType.from_lists(arguments, [v.type for v in results.values]),
        Region(b.block),
        arg_attrs=ArrayAttr([*attributes, *constant_attributes(b.constants)]),
        res_attrs=ArrayAttr(results.attributes),
    )
    module = ModuleOp([func, *(f for functions in b.kernels.values() for f in functions)])
    table = symbol_ranges(_expressions(b), shape_env(b.gm))
    if table:
        module.attributes["nd.symbols"] = DictionaryAttr(table)
    if b.mixed_devices:
        module.attributes[nd.DEVICE] = StringAttr(b.device)
    if b.device.startswith("cuda") and not torch.version.hip and (rounded := rounded_factors(list(b.block.ops))) is not None:
        module.attributes[TF32] = rounded
    if numerics != "default":
        module.attributes["nd.numerics"] = StringAttr(numerics)
    refused = [(k, str(n.target)) for k, n in enumerate(b.gm.graph.nodes) if n in b.refused] if b.refused else []
    return Imported(module, b.constants, b.objects, inputs, results.outputs, b.counts, b.device, b.handed_on, refused, b.env)


def _expressions(b: Importer) -> set[Expr]:
    """Every size in a type of the function."""
    found: set[Expr] = set()
    for dims in b._dims.values():
        found.update(dims)
    for value in b.block.args:
        if isinstance(value.type, TensorType):
            found.update(value.type.dims)
    for layout in b._layouts.values():
        found.update(layout.stride_exprs)
        found.add(layout.offset_expr)
    for value in b.env.values():
        if isinstance(value, Expr):
            found.add(value)
    return {e for e in found if not e.is_const}


def ensure_metadata(gm: GraphModule, example_inputs: Sequence[Any]) -> None:
    """Propagate fake tensors when a node has no metadata (a graph made or edited by hand)."""
    computed = (n for n in gm.graph.nodes if n.op in ("placeholder", "call_function"))
    if all("val" in n.meta for n in computed if n.op == "placeholder" or n.users):
        return
    from torch._guards import detect_fake_mode
    from torch._subclasses import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = detect_fake_mode(example_inputs) or FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad():
        FakeTensorProp(gm, mode).propagate(*example_inputs)
