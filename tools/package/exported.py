"""What torch.export gives, as a graph for the compiler: decomposed, with updates of buffers and arguments in it, and its signature."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from ...dialects.expr import Expr, to_python
from ...lowering.fx.decompositions import decomposition_table
from ...lowering.fx.post_grad.freezing import fold, foldable
from ...lowering.fx.pre_grad.lstm_training import lstm_states
from ...lowering.fx.pre_grad.whole_operators import whole_overloads
from ...lowering.fx.rewrites import rewrites_at
from ...lowering.sympy_bridge import bound_of, symint_expr
from ...targets.package.errors import PackageError
from ...targets.package.programs import encode_leaf
from ...targets.package.signature import EntryPoint, Leaf, SizeRange
from ...targets.package.trees import Tree, registered_spec
from ..backend.devices import attention_in_parts, device_of, on_device
from ..backend.frozen import own_products, winograd_tile
from ..backend.fx_setting import setting_of
from ..extensions.decompositions import checked
from ..options.options import Options


@dataclass
class ExportedGraph:
    """An entry point before it is compiled.

    gm: the graph; placeholders: for each the weight that it takes, or the leaf of the arguments. results: for each result of the entry
    point the output of the graph that it is, or a constant. updated: weights that a call changes. tensors: the weights."""

    gm: GraphModule
    point: EntryPoint
    placeholders: list[str | int]
    results: list[int | Leaf]
    updated: tuple[str, ...]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    gpu: GraphModule | None = None
    """The graph for a GPU, of a model that is on the CPU."""

    def on(self, device: str) -> GraphModule:
        """The graph for a kind of device. PackageError where it computes on another one."""
        found = self.gpu if device != "cpu" and self.gpu is not None else self.gm
        here = device_of(found)
        if here.partition(":")[0] != device.partition(":")[0]:
            raise PackageError(f"entry point '{self.point.name}' is on {here}: code for {device} is made of a model on the CPU")
        return found


def exported_graph(name: str, program: Any, options: Options, for_gpu: bool = False) -> ExportedGraph:
    """The graph of an ExportedProgram as entry point `name`. `for_gpu`: one of a model on the CPU for a GPU, too. PackageError names what a
    package cannot hold."""
    found = _graph(name, decomposed(name, program, options))
    if options.freezing:
        _freeze(found, options)
    if for_gpu and device_of(found.gm) == "cpu":
        if options.freezing:
            raise PackageError(f"entry point '{name}': option 'freezing' for a GPU takes a model that is there")
        moved = _graph(name, decomposed(name, program, options, attention_in_parts()))
        found.gpu = on_device(moved.gm, "cuda:0")
    return found


def _freeze(graph: ExportedGraph, options: Options) -> None:
    """Make the weights of a graph constants, as far as it neither writes nor returns them."""
    nodes = [n for n in graph.gm.graph.nodes if n.op == "placeholder"]
    weights = {n: graph.tensors[what] for n, what in zip(nodes, graph.placeholders, strict=True) if isinstance(what, str)}
    fold(graph.gm, foldable(graph.gm, weights), own_product=own_products(options), winograd=winograd_tile(options))
    graph.gm.recompile()


def _graph(name: str, program: Any) -> ExportedGraph:
    specs = program.graph_signature
    gm = program.graph_module
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    kinds = _kinds()
    found: list[str | int] = []
    tensors: dict[str, torch.Tensor] = {}
    tensor_kinds: dict[str, str] = {}
    leaf_nodes: list[tuple[Node, Any]] = []
    for node, spec in zip(placeholders, specs.input_specs, strict=True):
        if spec.kind is kinds.USER_INPUT:
            found.append(len(leaf_nodes))
            leaf_nodes.append((node, spec.arg))
            continue
        if spec.kind not in (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR):
            what = f"a {spec.kind.name.lower()} ('{spec.target}')"
            raise PackageError(f"entry point '{name}': its graph takes {what}, which no file can hold")
        where = program.state_dict if spec.target in program.state_dict else program.constants
        tensors[spec.target] = where[spec.target]
        constant = spec.kind is kinds.CONSTANT_TENSOR
        tensor_kinds[spec.target] = "constant" if constant else "parameter" if spec.kind is kinds.PARAMETER else "buffer"
        found.append(spec.target)
    results, updated, updated_leaves = _move_updates(name, gm, specs, placeholders, found)
    point = _entry_point(name, program, leaf_nodes, updated_leaves)
    return ExportedGraph(gm, point, found, results, updated, tensors, tensor_kinds)


def decomposed(name: str, program: Any, options: Options, more: Mapping[Any, Any] | None = None) -> Any:
    """The program after our decompositions, as the backend has its graphs, and `more` of them."""
    setting = setting_of(options)
    for one in rewrites_at("pre_grad", setting):
        one.apply(program.graph_module, setting)
    table: dict[Any, Any] = _composites()
    table[torch.ops.aten.linear.default] = partial(_linear, table[torch.ops.aten.linear.default])
    table.update(whole_overloads())
    table.update(decomposition_table(frozenset(options.fallback)))
    table.update(checked(options.decompositions))
    table.update(more or {})
    try:
        with torch.no_grad(), lstm_states(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)  # torch copies its own deprecated class
            return program.run_decompositions(table)
    except Exception as error:
        raise PackageError(f"entry point '{name}': torch cannot decompose the exported program: {type(error).__name__}: {error}") from error


def _linear(parts: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear` in the parts that a compiled model has of it. Where torch.export is at work torch forgets that the transposed weight wants
    gradients, by which it chooses one product of all rows, and would make a copy of the weight for each matrix."""
    if x.dim() < 3 or weight.dim() != 2 or not weight.requires_grad or is_contiguous_or_false(x):
        return parts(x, weight, bias)
    y = (x.reshape(-1, x.shape[-1]) @ weight.t()).view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def _composites() -> dict[Any, Any]:
    """Operators that torch itself spells out by others, as it does where a program is compiled."""
    from torch._export.utils import _collect_all_valid_cia_ops, _get_decomp_for_cia

    return {op: _get_decomp_for_cia(op) for op in _collect_all_valid_cia_ops()}


def _kinds() -> Any:
    from torch.export.graph_signature import InputKind

    return InputKind


def _move_updates(
    name: str, gm: GraphModule, specs: Any, placeholders: Sequence[Node], found: Sequence[str | int]
) -> tuple[list[int | Leaf], tuple[str, ...], tuple[int, ...]]:
    """Have the graph write what it updates, where torch.export has new values among the results. Gives the results that are left, the
    names of the weights and the numbers of the leaves that are written."""
    from torch.export.graph_signature import ConstantArgument, OutputKind

    output = gm.graph.output_node()
    values: Any = output.args[0]
    by_target = {(what if isinstance(what, str) else placeholders[k].name): k for k, what in enumerate(found)}
    kept: list[Any] = []
    results: list[int | Leaf] = []
    weights: list[str] = []
    leaves: list[int] = []
    with gm.graph.inserting_before(output):
        for value, spec in zip(values, specs.output_specs, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                size = _size_of_arguments(value, placeholders)
                if isinstance(spec.arg, ConstantArgument):
                    results.append(Leaf("", "constant", value=encode_leaf(spec.arg.value)))
                elif size is not None:
                    results.append(Leaf("", "number", "int", value=size))
                else:
                    results.append(len(kept))
                    kept.append(value)
            elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION):
                node = placeholders[by_target[spec.target]]
                if value is node:
                    continue
                copy = gm.graph.call_function(torch.ops.aten.copy_.default, (node, value))
                copy.meta["val"] = node.meta["val"]
                what = found[by_target[spec.target]]
                if isinstance(what, str):
                    weights.append(what)
                else:
                    leaves.append(what)
            else:
                raise PackageError(f"entry point '{name}': a package has no results of the kind {spec.kind.name.lower()}")
    output.args = (tuple(kept),)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return results, tuple(weights), tuple(leaves)


def _size_of_arguments(value: Any, placeholders: Sequence[Node]) -> int | str | None:
    """A result that is a size of the arguments, as text: the loader computes it. None for others."""
    from ...dialects.expr import free_syms

    found = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(found, torch.SymInt):
        return None
    dims = [d for n in placeholders if isinstance(v := n.meta["val"], torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)]
    known = {str(d.node.expr) for d in dims}
    expr = symint_expr(found)
    return _size(found) if all(s.name in known for s in free_syms(expr)) else None


# -- the signature


def _entry_point(name: str, program: Any, nodes: Sequence[tuple[Node, Any]], updated: tuple[int, ...]) -> EntryPoint:
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    positional, keywords = in_spec.child(0), in_spec.child(1)
    arguments = [tree_of(one) for one in (*positional.children(), *keywords.children())]
    names = _parameter_names(program, positional.num_children, list(keywords.context or ()))
    tree = Tree("tuple", tuple(arguments))
    places = [place for parameter, one in zip(names, arguments, strict=True) for place in one.names(parameter)]
    leaves = tuple(_leaf(place, node, spec) for place, (node, spec) in zip(places, nodes, strict=True))
    results = tuple(_result_leaf(k, spec) for k, spec in enumerate(_user_outputs(program)))
    symbols = _symbols(program, leaves)
    return EntryPoint(
        name, tuple(names), positional.num_children, tree, leaves, tree_of(out_spec), results, symbols, updated_arguments=updated
    )


def _parameter_names(program: Any, count: int, keywords: list[str]) -> list[str]:
    """The names of the arguments of the model's `forward`, made up where torch.export has none."""
    call = program.module_call_graph[0].signature if program.module_call_graph else None
    known = list(getattr(call, "forward_arg_names", None) or ())
    known = [one for one in known if one not in keywords][:count]
    known += [f"arg{k}" for k in range(len(known), count)]
    return [*known, *keywords]


def tree_of(spec: Any) -> Tree:
    """A tree spec of torch's as ours. PackageError for a type that is not registered by name."""
    if spec.is_leaf():
        return Tree()
    items = tuple(tree_of(child) for child in spec.children())
    plain = {tuple: "tuple", list: "list", dict: "dict"}.get(spec.type)
    if spec.type is immutable_list:
        plain = "list"
    if spec.type is immutable_dict:
        plain = "dict"
    from collections import OrderedDict, namedtuple

    if plain in ("tuple", "list"):
        return Tree(plain, items)  # pyright: ignore[reportArgumentType]
    if plain == "dict" or spec.type is OrderedDict:
        return Tree("dict" if plain else "ordered", items, tuple(encode_leaf(key) for key in spec.context))
    if spec.type is namedtuple:
        kind = spec.context
        return Tree("named", items, tuple(kind._fields), type=f"{kind.__module__}.{kind.__qualname__}")
    registered = pytree.SUPPORTED_SERIALIZED_TYPES.get(spec.type)
    label = getattr(registered, "serialized_type_name", None)
    if not isinstance(label, str) or label == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        raise PackageError(
            f"{spec.type.__module__}.{spec.type.__qualname__} among arguments or results is not registered with torch's pytrees by a name "
            "(torch.export.register_dataclass, or serialized_type_name of register_pytree_node)"
        )
    return Tree("registered", items, _part_names(spec), label, registered_spec(spec.type, spec.context, len(items)))


def _part_names(spec: Any) -> tuple[str, ...]:
    """The names of the parts of a registered type, where its registration keeps them (outputs of transformers, dataclasses)."""
    context = spec.context
    if isinstance(context, (list, tuple)) and context and isinstance(context[0], (list, tuple)):
        context = context[0]
    fits = isinstance(context, (list, tuple)) and len(context) == spec.num_children and all(isinstance(one, str) for one in context)
    return tuple(context) if fits else ()


def _leaf(place: str, node: Node, spec: Any) -> Leaf:
    from torch.export.graph_signature import ConstantArgument

    if isinstance(spec, ConstantArgument):
        return Leaf(place, "constant", value=encode_leaf(spec.value))
    return leaf_of_value(place, node.meta["val"])


def leaf_of_value(place: str, value: Any) -> Leaf:
    """The leaf of an argument or result that a graph has this value for."""
    if isinstance(value, torch.Tensor):
        sizes, strides = (tuple(map(_size, numbers)) for numbers in (value.shape, value.stride()))
        return Leaf(place, "tensor", str(value.dtype).removeprefix("torch."), sizes, strides, str(value.device))
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return Leaf(place, "number", "int", value=_size(value))
    if isinstance(value, (float, torch.SymFloat)):
        return Leaf(place, "number", "float")
    return Leaf(place, "constant", value=encode_leaf(value))


def _size(value: int | torch.SymInt) -> int | str:
    if isinstance(value, int):
        return value
    expr: Expr = symint_expr(value)
    return int(expr) if expr.is_const else to_python(expr)


def _user_outputs(program: Any) -> list[Any]:
    from torch.export.graph_signature import OutputKind

    values: Any = program.graph_module.graph.output_node().args[0]
    kept = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    return [_value(spec, values) for spec in kept]


def _value(spec: Any, values: Sequence[Any]) -> Any:
    name = getattr(spec.arg, "name", None)
    return next((v for v in values if isinstance(v, Node) and v.name == name), spec.arg)


def _result_leaf(number: int, value: Any) -> Leaf:
    from torch.export.graph_signature import ConstantArgument

    name = f"result {number}"
    if isinstance(value, Node):
        return leaf_of_value(name, value.meta["val"])
    content = value.value if isinstance(value, ConstantArgument) else None
    return Leaf(name, "constant", value=encode_leaf(content))


def _symbols(program: Any, leaves: Sequence[Leaf]) -> tuple[SizeRange, ...]:
    """The size symbols of the arguments with their ranges, in the order of the arguments."""
    ranges: Mapping[Any, Any] = {getattr(symbol, "name", str(symbol)): one for symbol, one in program.range_constraints.items()}
    used = [size for leaf in leaves for size in (*leaf.sizes, leaf.value if leaf.kind == "number" else None) if isinstance(size, str)]
    found: dict[str, SizeRange] = {}
    for name in used:
        if name in ranges and name not in found:
            found[name] = SizeRange(name, *_bounds(ranges[name]))
    return tuple(found.values())


def _bounds(one: Any) -> tuple[int, int | None]:
    return max(0, bound_of(one.lower) or 0), bound_of(one.upper)
