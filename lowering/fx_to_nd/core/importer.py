"""Walks an FX graph and writes its `nd` function: values of nodes, rules, library calls, updates of arguments.

`import_graph` in __init__.py is the entry. A node's value in `env` is a tensor (SSA value), a size (`Expr`), another
number (`SymScalar`, `ScalarValue`, int, float, bool), None, a Python object (dtype, string, subgraph) or a tuple of
these.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, NameLoc, StringAttr, UnknownLoc
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from ....errors import StepwellError
from ...sympy_bridge import UnsupportedExpr
from ..calls import externs
from ..calls.refused import is_refused
from ..regions import higher_order
from ..rules import complex_numbers
from ..rules.unbacked_views import data_dependent_view
from . import device_parts, devices
from .asserted_symbols import asserted_call, asserted_places, bound_symbols
from .builder import Uncovered
from .errors import GraphImportError
from .metadata import element_type
from .node_builder import NodeBuilder
from .registry import find_rule, is_kept
from .scalars import sym_value

aten = torch.ops.aten

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH_FOLDER = torch.__path__[0]


class Importer(NodeBuilder):
    """Walks a graph: finds the rule or the call of each node, and notes what becomes of its values."""

    def run_all(self, nodes: Sequence[Node]) -> None:
        """Import nodes that are neither placeholders nor output, all of a graph; those on other devices than its own in parts."""
        if not self.mixed_devices or self.compile_body is None:
            for node in nodes:
                self.run(node)
            return
        for item in device_parts.in_order(self, nodes):
            for node in (item,) if isinstance(item, Node) else device_parts.call(self, item):
                self.run(node)

    def run(self, node: Node) -> None:
        """Import one node that is neither placeholder nor output."""
        self.node = node
        self.val = val = node.meta.get("val")
        self.location = self.locate(node)
        if self.mixed_devices:
            devices.note_constant(self, node)
        try:
            value = self.env[node] = self._value_of(node, val)
            if isinstance(value, SSAValue) and value.name_hint is None:
                value.name_hint = node.name
        except Exception as error:
            if isinstance(error, StepwellError) and not isinstance(error, UnsupportedExpr):  # which names no node
                raise
            failure = GraphImportError(self._failure_text(node, error))
            failure.node = node.name
            raise failure from error

    def _value_of(self, node: Node, val: Any) -> Any:
        if node.op == "get_attr":
            return self.attribute(node)
        if node.op != "call_function":
            raise GraphImportError(f"node {node.name}: {node.op} nodes are not part of an ATen graph")
        target = node.target
        if target is operator.getitem:
            return self.env[node.args[0]][node.args[1]]  # pyright: ignore[reportArgumentType]
        if self.has_unbacked and (view := data_dependent_view(self, node)) is not NotImplemented:
            self.counts.rule += 1
            return view
        if self.has_unbacked:
            new = self.unbound_symbols(node)
            asserted = asserted_places(self, node, new)
            if new or asserted:
                self.defines_sizes = bool(new)
                try:
                    value = asserted_call(self, node, asserted) if asserted else self.call(node, target, val, defines=True)
                finally:
                    self.defines_sizes = False
                self.known_unbacked |= new
                if value is not None:
                    return value
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return sym_value(self, val)
        if isinstance(val, (bool, int, float)):
            return val
        return self.call(node, target, val)

    def unbound_symbols(self, node: Node) -> set[str]:
        """Symbols in the sizes, strides and numbers of a node that nothing before it defines: the node's call does. They are
        unbacked, or stand for an unbacked one that the program asserts to be a number which is no argument of the graph."""
        seen: list[Any] = []
        for item in externs.flat(node.meta.get("val")):
            if isinstance(item, torch.Tensor) and item.layout == torch.strided:
                seen += [*item.shape, *item.stride()]
            elif isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                seen.append(item)
        names = {s.name for item in seen if not isinstance(item, int) for s in free_unbacked_symbols(item)}
        names |= bound_symbols(node)
        return names - self.known_unbacked - self.argument_symbols - self.float_symbols.keys() - self.float_tensors.keys()

    def call(self, node: Node, target: Any, val: Any, defines: bool = False) -> Any:
        """The value of an operator call: by its rule, else by a library call. A call that defines the sizes of its
        result must be made: rules only know sizes that are given."""
        if isinstance(target, torch._ops.HigherOrderOperator):
            return higher_order.call(self, node)
        if node.kwargs:
            _refuse_out(node)
        rule = find_rule(target)
        if node.name in self.left or (self.forced and _is_named(target, self.forced)) or is_kept(target):
            return externs.operator_call(self, node, chosen=True)
        if rule is None and not self.implicit_fallbacks:
            externs.refuse_fallback(node)
        if rule is not None and self.mixed_devices and devices.is_elsewhere(self, node, val):
            return externs.operator_call(self, node, chosen=True)
        if rule is None or (defines and isinstance(val, torch.Tensor)) or self._needs_library(node, val):
            value = NotImplemented if defines else complex_numbers.complex_call(self, node, val)
            return externs.operator_call(self, node, chosen=defines) if value is NotImplemented else value
        argument = self.reachable_argument if self.mixed_devices else self.argument
        args = [argument(a) for a in node.args]
        kwargs = {key: argument(a) for key, a in node.kwargs.items()} if node.kwargs else {}
        if is_refused(self, target, args, kwargs):
            self.refused.add(node)
            return externs.operator_call(self, node, chosen=True)
        try:
            result = rule(self, *args, **kwargs)
        except Uncovered:
            result = NotImplemented
        if result is NotImplemented:
            drawn = self.fallback_random and torch.Tag.nondeterministic_seeded in target.tags
            return externs.operator_call(self, node, chosen=drawn)
        self.counts.rule += 1
        self._check_result(target, result, val)
        return self._conform(result, val)

    def _needs_library(self, node: Node, val: Any) -> bool:
        """Whether an operand or result has an element type or storage that kernels do not handle."""
        for value in (val, *(n.meta.get("val") for n in node.all_input_nodes)):
            if isinstance(value, torch.Tensor):
                if value.layout is not torch.strided:
                    return node.target not in externs.TYPE_NEUTRAL
                if not externs.handles(node.target, element_type(value.dtype)):
                    return True
            elif isinstance(value, (list, tuple)) and value:
                first = value[0]
                if isinstance(first, torch.Tensor) and not externs.handles(node.target, element_type(first.dtype)):
                    return True
        return False

    def _conform(self, result: Any, val: Any) -> Any:
        """A rule's result with exactly the sizes and element type that torch says."""
        if isinstance(val, torch.Tensor):
            if isinstance(result, SSAValue):
                return self.conform(result, self.sizes(val.shape), element_type(val.dtype))
            return result
        if isinstance(val, (list, tuple)) and isinstance(result, (list, tuple)):
            return tuple(self._conform(r, v) if isinstance(v, torch.Tensor) else r for r, v in zip(result, val, strict=True))
        return result

    def _check_result(self, target: Any, result: Any, val: Any) -> None:
        """Raise for a rule that gave something else than values where torch says that there are tensors (None: a token, which has none)."""
        wanted = val if isinstance(val, (list, tuple)) else [val]
        given = result if isinstance(val, (list, tuple)) and isinstance(result, (list, tuple)) else [result]
        if len(given) != len(wanted):
            raise GraphImportError(f"node {self.node.name}: the rule of {target} gave {len(given)} results, not {len(wanted)}")
        for one, expected in zip(given, wanted, strict=True):
            if isinstance(expected, torch.Tensor) and one is not None and not isinstance(one, SSAValue):
                raise GraphImportError(f"node {self.node.name}: the rule of {target} gave {one!r}, not a value of the IR")

    def attribute(self, node: Node) -> Any:
        """The value of a get_attr node: a constant tensor or a Python object."""
        owner: Any = self.gm
        for part in str(node.target).split("."):
            if not hasattr(owner, part):
                raise GraphImportError(f"node {node.name} references nonexistent target {node.target}")
            owner = getattr(owner, part)
        if not isinstance(owner, torch.Tensor):
            return owner
        in_memory = any(user.target is aten.convolution.default for user in node.users)
        return externs.constant(self, owner, in_memory)

    def constant(self, value: torch.Tensor) -> SSAValue:
        """A constant tensor: in the text of the function when it is tiny, else an extra argument."""
        return externs.constant(self, value)

    # ---- locations and errors

    def locate(self, node: Node) -> NameLoc:
        """The location of a node: its name around the user's line."""
        trace = node.meta.get("stack_trace")
        place = self._places.get(trace)
        if place is None:
            place = self._places[trace] = user_place(trace)
        return NameLoc(StringAttr(node.name), place)

    def verify(self) -> None:
        """Raise for an operation that does not hold together: passes would take it, and results would be wrong."""
        for op in self.block.ops:
            try:
                op.verify()
            except VerifyException as error:
                location = getattr(op, "location", None)
                name, place = (location.desc.data, location.location) if isinstance(location, NameLoc) else ("", None)
                failure = GraphImportError(f"node {name}: its rule wrote a wrong '{op.name}': {error}{line_text(place)}")
                failure.node = name
                raise failure from error

    def _failure_text(self, node: Node, error: Exception) -> str:
        line = line_text(user_place(node.meta.get("stack_trace")))
        args = ", ".join(_describe(a) for a in node.args)
        return f"importing node {node.name}, {node.target}({args}): {type(error).__name__}: {error}{line}"


def _refuse_out(node: Node) -> None:
    """Raise for an operator that writes to `out=` arguments."""
    schema = getattr(node.target, "_schema", None)
    for argument in schema.arguments if schema is not None else ():
        if argument.is_out and argument.name in node.kwargs:
            raise GraphImportError(f"node {node.name}: {node.target} writes to its argument '{argument.name}'; graphs are functional")


def _is_named(target: Any, names: frozenset[str]) -> bool:
    """Whether an operator, or its packet, is among these names."""
    return str(target) in names or str(getattr(target, "overloadpacket", None)) in names


def user_place(trace: str | None) -> Any:
    """The innermost line of a stack trace that is not torch's own, else its innermost line."""
    frames = _FRAME.findall(trace or "")
    if not frames:
        return UnknownLoc()
    file, line = next((f for f in reversed(frames) if not f[0].startswith(_TORCH_FOLDER)), frames[-1])
    return FileLineColLoc(StringAttr(file), IntAttr(int(line)), IntAttr(0))


def line_text(place: Any) -> str:
    """The user's line as the end of a message."""
    return f"\n  at {place.filename.data}:{place.line.data}" if isinstance(place, FileLineColLoc) else ""


def _describe(arg: Any) -> str:
    if isinstance(arg, Node):
        val = arg.meta.get("val")
        if isinstance(val, torch.Tensor):
            return f"{arg.name}: {str(val.dtype).removeprefix('torch.')}{list(val.shape)}"
        return arg.name
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(map(_describe, arg))}]"
    return repr(arg)
