"""What a compiled graph depends on, as one hash: the key of the graph cache.

The content of the graph (operators, arguments, sizes, strides and types of every value, constants, subgraphs), the symbols of its sizes
with their ranges and examples, what the caller does with its results, the options, passes of users, and the environment: versions, the
source of stepwell, the target. Names of nodes and lines of the user's program do not count."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from ...passes.fingerprint.code_modules import Uncacheable
from ...targets.cpu.cache import environment
from ...targets.cpu.features import target
from ..extensions.cache_keys import passes_text, rules_text, targets_text, tensor_digest
from ..options.field import Effect
from ..options.options import Options, with_effect

if TYPE_CHECKING:
    from ...dialects.machine import MachineAttr
    from ...lowering.fx_to_nd import Border

_FUNCTION_MODULES = ("_operator", "operator", "math", "torch", "builtins")


def graph_key(gm: GraphModule, kind: str, border: Border | None, options: Options, parts: list[str] | None = None) -> str:
    """The hexadecimal key of an ATen graph, whose text is added to `parts` piece by piece, so that two can be compared. Raises
    Uncacheable."""
    writer = Writer()
    writer.value((settings_key(options), kind))
    if border is not None:
        writer.value((sorted(border.views.items()), sorted(border.updates.items()), sorted(border.donated)))
    writer.graph(gm)
    writer.symbols_of(gm)
    writer.extensions(options)
    if parts is not None:
        parts += writer.parts
    return writer.digest()


def settings_key(options: Options) -> str:
    """Everything but the graph, its devices and what users have for them: options, environment. Raises Uncacheable."""
    if any(getattr(options, name) for name in with_effect(Effect.UNKEPT)):
        raise Uncacheable("directives for single nests are given")
    writer = Writer()
    writer.value([(name, getattr(options, name)) for name in with_effect(Effect.KEYED)])
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    writer.value((torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), fills))
    if options.autotune or (options.tune_unsure and torch.cuda.is_initialized()):
        writer.value([torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())])
    writer.value((environment(), torch.backends.mkldnn.is_available()))
    writer.value([os.environ.get("STEPWELL_HOST"), *(getattr(target(), f.name) for f in fields(target()))])
    return writer.digest()


def is_user_kernel(target: Any) -> bool:
    """Whether a node launches a Triton kernel of the user's."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name().startswith("triton_kernel_wrapper")


class Writer:
    """Appends values to a text from which they could be told apart, and hashes it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.places: dict[Node, str] = {}
        self.symbols: set[Any] = set()
        self.devices: set[str] = set()
        self.modules: dict[GraphModule, int] = {}

    def digest(self) -> str:
        return hashlib.sha256("\0".join(self.parts).encode()).hexdigest()

    def graph(self, gm: GraphModule) -> None:
        """The nodes of a graph, those of its subgraphs where they are mentioned."""
        if gm in self.modules:
            self.parts.append(f"module {self.modules[gm]}")
            return
        self.modules[gm] = len(self.modules)
        for k, node in enumerate(gm.graph.nodes):
            self.places[node] = f"%{self.modules[gm]}.{k}"
            self.parts.append(node.op)
            self.node(gm, node)
            self.meta(node)

    def node(self, gm: GraphModule, node: Node) -> None:
        """What a node does."""
        if node.op == "get_attr":
            self.value(_attribute(gm, str(node.target)))
        elif node.op == "call_function":
            self.function(node.target)
            self.value(node.args)
            self.value(self.kernel_arguments(node) if is_user_kernel(node.target) else node.kwargs)
        elif node.op == "placeholder":
            self.parts.append(str(node.target))  # named in messages
            self.parts.append(type(node.meta.get("desc")).__name__)  # whether it is a base that inputs share
            self.parts += sorted(key for key in node.meta if str(key).startswith("stepwell."))  # such as: was made a constant
        elif node.op == "output":
            self.value(node.args)
        else:
            raise Uncacheable(f"node {node.name} is a {node.op}")

    def meta(self, node: Node) -> None:
        """What torch knows of a node's value."""
        if "val" in node.meta:
            self.value(node.meta["val"])
        elif node.op == "placeholder" or (node.op == "call_function" and node.users):
            raise Uncacheable(f"node {node.name} has no metadata")
        if found := node.meta.get("unbacked_bindings"):
            self.parts.append(repr(sorted((str(s), str(path)) for s, path in found.items())))
        if any(str(key).startswith("stepwell.") for key in node.meta.get("custom") or ()):
            raise Uncacheable("directives for single nests are given")

    def function(self, called: Any) -> None:
        """The target of a call: an operator, or a function of Python that has a lasting name."""
        if isinstance(called, torch._ops.OpOverload):
            self.parts.append(f"{called} {called._schema}")
        elif isinstance(called, torch._ops.HigherOrderOperator):
            self.parts.append(f"higher order {called.name()}")
        elif getattr(called, "__module__", "").partition(".")[0] in _FUNCTION_MODULES:
            self.parts.append(f"{called.__module__}.{called.__qualname__}")
        else:
            raise Uncacheable(f"{called!r} is called")

    def kernel_arguments(self, node: Node) -> dict[str, Any]:
        """The arguments of a node that launches a user's Triton kernel, with its source, and that of all that it uses, in place of the
        numbers that kernel and constants have in this process."""
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        given: dict[str, Any] = dict(node.kwargs)
        kernel = kernel_side_table.get_kernel(given.pop("kernel_idx"))
        function = getattr(kernel, "fn", kernel) if hasattr(kernel, "configs") else kernel
        source = getattr(function, "cache_key", None)
        if not isinstance(source, str):
            raise Uncacheable("a user's Triton kernel has no source that says all that it does")
        configs = [repr(config.all_kwargs()) for config in getattr(kernel, "configs", ())]
        return {**given, "constant_args_idx": kernel_side_table.get_constant_args(given["constant_args_idx"]), "kernel": (source, configs)}

    def value(self, v: Any) -> None:
        """A leaf of an argument or of a result's metadata, or a structure of such."""
        if v is None or isinstance(v, (bool, int, str, complex, float)) and not isinstance(v, Enum):
            self.parts.append(f"{type(v).__name__} {v!r}")
        elif isinstance(v, Node):
            self.parts.append(self.places[v])
        elif isinstance(v, (tuple, list)):
            self.sequence("(", v)
        elif isinstance(v, (set, frozenset)):
            self.sequence("{}", sorted(v, key=repr))
        elif isinstance(v, Mapping):
            self.sequence("{", [x for item in v.items() for x in item])
        elif isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.number(v)
        elif isinstance(v, torch.Tensor):
            self.tensor(v)
        elif isinstance(v, (torch.dtype, torch.device, torch.layout, torch.memory_format, Enum)):
            self.parts.append(f"{type(v).__name__} {v}")
        elif isinstance(v, GraphModule):
            self.graph(v)
        elif isinstance(v, slice):
            self.sequence("slice", (v.start, v.stop, v.step))
        elif isinstance(v, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            self.function(v)
        elif is_dataclass(v) and not isinstance(v, type) and type(v).__module__.startswith("torch."):
            self.sequence(type(v).__qualname__, [getattr(v, f.name) for f in fields(v)])
        else:
            raise Uncacheable(f"an argument is a {type(v).__module__}.{type(v).__qualname__}")

    def sequence(self, opening: str, values: Iterable[Any]) -> None:
        self.parts.append(opening)
        for v in values:
            self.value(v)
        self.parts.append(")")

    def number(self, v: Any) -> None:
        self.parts.append(f"symbol {v.node.expr}")
        self.symbols.update(getattr(v.node.expr, "free_symbols", ()))

    def tensor(self, v: torch.Tensor) -> None:
        self.devices.add(str(v.device))
        fake = getattr(v, "fake_mode", None) is not None
        if not fake:
            self.parts.append(tensor_digest(v))
            return
        self.parts.append(f"{type(v).__name__} {v.dtype} {v.device} {v.layout} {v.requires_grad} {v.is_conj()} {v.is_neg()}")
        self.value(tuple(v.shape))
        if v.layout == torch.strided:
            self.value(v.stride())
            self.value(v.storage_offset())

    def symbols_of(self, gm: GraphModule) -> None:
        """Ranges and examples of the symbols that were met, and which sizes of them are equal."""
        from ...lowering.equal_sizes import EqualSizes
        from ...lowering.fx_to_nd.core.metadata import shape_env
        from ...lowering.sympy_bridge import hints_of, ranges_of

        env = shape_env(gm) if self.symbols else None
        if env is None:
            return
        ranges, hints = ranges_of(env, self.symbols), hints_of(env, self.symbols)
        self.parts.append(repr(sorted((str(s), r.lo, r.hi) for s, r in ranges.items())))
        self.parts.append(repr(sorted((str(s), n) for s, n in hints.items())))
        self.parts.append(EqualSizes.of(env).text)

    def extensions(self, options: Options) -> None:
        """What users have added to the compiler, as far as it takes part for the devices that were met, and their machines."""
        kinds = {d.partition(":")[0] for d in self.devices}
        self.value((passes_text(kinds, options), rules_text(), targets_text(kinds, options)))
        if others := sorted(self.devices - {"cpu"}):
            from ...targets.target import target_of

            self.parts += [_machine_text(target_of(device).machine(device)) for device in others]


def _machine_text(machine: MachineAttr | None) -> str:
    """What kernels are made for. Which of several alike GPUs it is does not count."""
    return "" if machine is None else " ".join([machine.data.name, *(f"{key}={n}" for key, n in machine.data.numbers if key != "device")])


def _attribute(gm: GraphModule, path: str) -> Any:
    owner: Any = gm
    for part in path.split("."):
        if not hasattr(owner, part):
            raise Uncacheable(f"there is no {path}")
        owner = getattr(owner, part)
    return owner
