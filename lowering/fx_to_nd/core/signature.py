"""The borders of the function: placeholders to arguments, FX outputs to results, what is known of the symbols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from xdsl.dialects.builtin import DictionaryAttr, IndexType, IntegerAttr, StringAttr, f64, i1, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import Expr, as_expr, free_syms, strides_contiguous
from ....dialects.expr.syntax import ExprAttr
from ....dialects.nd.types import LayoutAttr, RangeAttr, TensorType
from ....passes.analysis.symbols import DEFAULT_SIZE
from ...outputs import Output
from ...sympy_bridge import hints_of, ranges_of
from .aliases import counts_from_storage, origin_of, root, tracked_base
from .builder import UNIT
from .importer import Importer
from .input_views import InputView
from .metadata import device_name, element_type
from .scalars import ScalarValue, SymScalar, python_call, scalar_number

FOLDED = "stepwell.folded"
"""Key in `node.meta` of placeholders that nothing reads because they were made constants: the function is not given them."""

_INDEX = IndexType()


# ---- arguments


def placeholder(b: Importer, node: Node, static: bool) -> dict[str, Attribute] | None:
    """Give the placeholder its value and return the attributes of its argument; None when it is not passed to the
    function."""
    if node.meta.get(FOLDED):
        return None
    val = node.meta.get("val")
    if isinstance(val, torch.SymInt) and handed_on(node, val):
        b.env[node] = expr = b.size_of(val)
        b.argument_symbols.update(str(s) for s in free_syms(expr))
        return None
    attrs: dict[str, Attribute] = {"nd.name": StringAttr(str(node.target))}
    if isinstance(val, torch.Tensor):
        dims = b.sizes(val.shape)
        if val.layout == torch.strided:
            attrs["nd.layout"] = b.layout(b.sizes(val.stride()))
        if static:
            attrs["nd.static"] = UNIT
        b.env[node] = _add_argument(b, TensorType.get(dims, element_type(val.dtype), device_name(val.device)))
        b.env[node].name_hint = node.name
        return attrs
    if isinstance(val, torch.SymInt):
        expr = b.size_of(val)
        value = _add_argument(b, _INDEX)
        attrs["nd.symbol"] = ExprAttr.get(expr)
        b.env[node] = int(expr) if expr.is_const else expr
        for symbol in free_syms(expr):
            b.argument_symbols.add(str(symbol))
            if expr is symbol:
                b.bind_symbol(symbol.name, value)
        return attrs
    if isinstance(val, torch.SymFloat):
        value = _add_argument(b, f64)
        symbol = val.node.expr
        b.env[node] = SymScalar("float", symbol) if getattr(symbol, "is_symbol", False) else ScalarValue("float", value)
        if getattr(symbol, "is_symbol", False):
            b.float_symbols[symbol.name] = value
        return attrs
    if isinstance(val, torch.SymBool):
        b.env[node] = ScalarValue("bool", _add_argument(b, i1))
        return attrs
    if isinstance(val, (bool, int, float)):
        _add_argument(b, i1 if isinstance(val, bool) else _INDEX if isinstance(val, int) else f64)
        b.env[node] = val
        return attrs
    b.env[node] = val
    return None


def handed_on(node: Node, val: torch.SymInt) -> bool:
    """Whether nothing but the graph's output can want this number: no node has it, and no input has a size that it says. So is the
    ragged size of jagged tensors, each of which may bring it: it is no number that a program could be given."""
    symbol = val.node.expr
    if not symbol.is_symbol:
        return False
    for other in node.graph.find_nodes(op="placeholder"):
        value = other.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            if any(user.op != "output" for user in other.users):
                return False
        elif isinstance(value, (torch.Tensor, torch.SymInt)) and symbol in free_symbols(value):
            return False
    return True


def _add_argument(b: Importer, kind: Attribute) -> SSAValue:
    return b.block.insert_arg(kind, len(b.block.args))


def constant_attributes(constants: Sequence[torch.Tensor]) -> list[DictionaryAttr]:
    """Attributes of the arguments that carry the constant tensors: which one, and its strides."""
    found: list[DictionaryAttr] = []
    for k, value in enumerate(constants):
        attrs: dict[str, Attribute] = {"nd.constant": IntegerAttr(k, i64)}
        if value.layout == torch.strided:
            attrs["nd.layout"] = LayoutAttr.get([int(s) for s in value.stride()])
        found.append(DictionaryAttr(attrs))
    return found


# ---- results


class Results:
    """Collects the function's results while the FX outputs are walked."""

    def __init__(
        self,
        b: Importer,
        argument_places: dict[Node, int],
        strides: dict[Node, Sequence[Any] | None],
        input_views: Mapping[int, InputView],
    ):
        self.b = b
        self.places = argument_places
        self.strides = strides
        self.input_views = input_views
        self.shared = _shared_roots(strides)
        self.values: list[SSAValue] = []
        self.attributes: list[DictionaryAttr] = []
        self.outputs: list[Output] = []
        self._by_node: dict[Node, int] = {}
        self._by_view: dict[tuple[Node, Node], int] = {}
        self._by_root: dict[Node, int] = {}
        self._numbers: dict[SSAValue, int] = {}

    def add(self, item: Any) -> None:
        """The next output of the FX graph."""
        value = self.b.argument(item)
        view = self.input_views.get(len(self.outputs))
        if isinstance(value, SSAValue):
            place = self._tensor(item, value) if view is None else self._input_view(item, value, view)
            self.outputs.append(Output("result", place, self._base_of(item) if view is None else None))
        elif isinstance(value, Expr):
            self._size(value)
        elif isinstance(value, (SymScalar, ScalarValue)):
            number = scalar_number(self.b, value) if isinstance(value, SymScalar) else value
            self.outputs.append(Output("result", self._number(number.value)))
        else:
            self.outputs.append(Output("constant", value))

    def _size(self, value: Expr) -> None:
        if value.is_const:
            self.outputs.append(Output("constant", int(value)))
            return
        bound = self.b.bound_symbols.get(str(value))
        if bound is None and any(str(s) not in self.b.argument_symbols for s in free_syms(value)):
            (bound,) = python_call(
                self.b, int, [value], ["int"]
            )  # symbols that a call binds: the caller cannot know them
        if bound is not None:
            self.outputs.append(Output("result", self._number(bound)))
        else:
            self.outputs.append(Output("expr", value))

    def _number(self, value: SSAValue) -> int:
        if value not in self._numbers:
            self._numbers[value] = self._append(value, {})
        return self._numbers[value]

    def _tensor(self, node: Node, value: SSAValue) -> int:
        if node in self._by_node:
            return self._by_node[node]
        val = node.meta["val"]
        strides = self.strides.get(node)
        attrs: dict[str, Attribute] = {}
        base = root(node)
        if base is not node and base in self.strides:  # a view may stand before its base
            self._tensor(base, self.b.env[base])
        if base is not node and val.layout == torch.strided and (_overlaps(val) or base in self.shared):
            self._tensor(base, self.b.env[base])  # shown as the view that it is: the base becomes a result too
        alias, base_val = self._alias(base)
        offset = self._offset_in(base, base_val, node) if alias else None
        if offset is None or not self._offset_known(val):
            alias, offset = "", None
        if val.layout == torch.strided:
            own = self.b.sizes(val.stride() if strides is None or alias else strides)
            if not alias and _overlaps(val):  # nothing to be a view of: memory of its own
                own = strides_contiguous(self.b.sizes(val.shape))
            attrs["nd.layout"] = self.b.layout(own, as_expr(0) if offset is None else offset)
        if alias:
            attrs["nd.alias"] = StringAttr(alias)
        elif base is not node:
            attrs["nd.base"] = StringAttr(base.name)
        place = self._append(value, attrs)
        self._by_node[node] = place
        if base is node:
            self._by_root[node] = place
        return place

    def _base_of(self, node: Node) -> int | None:
        """The result that a view is of, where it is made over the memory of one."""
        base = tracked_base(node)
        if base is node or base not in self._by_node or base.meta["val"].dtype != node.meta["val"].dtype:
            return None
        alias = self.attributes[self._by_node[node]].data.get("nd.alias")
        return self._by_node[base] if isinstance(alias, StringAttr) and alias.data.startswith("result ") else None

    def _input_view(self, node: Node, value: SSAValue, view: InputView) -> int:
        """A result of which the caller takes the layout alone: nothing is computed for it."""
        key = (node, view.node)
        if key not in self._by_view:
            b, val, base = self.b, view.val, view.node.meta["val"]
            offset = b.size_of(val.storage_offset()) - b.size_of(base.storage_offset())
            layout = b.layout(b.sizes(val.stride()), b.size_of(offset))
            alias = StringAttr(f"arg {self.places[view.node]}")
            self._by_view[key] = self._append(value, {"nd.layout": layout, "nd.alias": alias})
        return self._by_view[key]

    def _alias(self, base: Node) -> tuple[str, Any]:
        """ "arg 2" or "result 0" for what a view's chain ends in, when that is at the border, and torch's value of
        it."""
        if base in self.places:
            return f"arg {self.places[base]}", base.meta["val"]
        if base.op == "call_function" and getattr(base.target, "_schema", None) is not None:
            schema = base.target._schema  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
            if schema.name == "aten::copy_" and (written := root(base.args[0])) in self.places:  # pyright: ignore[reportArgumentType]
                return f"arg {self.places[written]}", written.meta["val"]
        if base in self._by_root:
            return f"result {self._by_root[base]}", base.meta["val"]
        return "", None

    def _offset_in(self, base: Node, base_val: torch.Tensor, node: Node) -> Expr | None:
        """Where a view begins in its base (`_offset_in`). What the program counts from the beginning of the storage, it counts in eager's,
        where a copy that was written to begins as what it is a copy of does."""
        if base in self._by_root and counts_from_storage(node):
            origin, begin = origin_of(self.b, base)
            if origin is not base and origin.meta["val"].dtype == node.meta["val"].dtype:
                return self.b.size_of(node.meta["val"].storage_offset()) - self.b.size_of(origin.meta["val"].storage_offset()) - begin
        offset = _offset_in(base_val, node.meta["val"])
        return None if offset is None else self.b.size_of(offset)

    def _offset_known(self, val: torch.Tensor) -> bool:
        """Whether the place of a view in its base can be computed from the symbols that the graph knows."""
        if val.layout != torch.strided or isinstance(val.storage_offset(), int):
            return True
        return self.b.is_defined(self.b.size_of(val.storage_offset()))

    def _append(self, value: SSAValue, attrs: dict[str, Attribute]) -> int:
        self.values.append(value)
        self.attributes.append(DictionaryAttr(attrs))
        return len(self.values) - 1


def _shared_roots(outputs: Iterable[Node]) -> set[Node]:
    """Values that several outputs are views of, without being outputs, and that are not laid out as kernels do it by
    themselves: only as results do they get torch's strides, which the views need to share the memory."""
    counts = Counter(base for node in outputs if (base := root(node)) is not node)
    return {
        base
        for base, n in counts.items()
        if n > 1
        and base.op != "placeholder"
        and isinstance(val := base.meta.get("val"), torch.Tensor)
        and val.layout == torch.strided
    }


def _offset_in(base: torch.Tensor, view: torch.Tensor) -> Any:
    """Where a view of `base`, perhaps of another element type, starts behind it, in elements of its own; None when that need not be
    whole."""
    if base.layout != torch.strided or view.layout != torch.strided:
        return 0
    if base.dtype == view.dtype:
        return view.storage_offset() - base.storage_offset()
    start = base.storage_offset()
    if not isinstance(start, int) or start * base.itemsize % view.itemsize:
        return None
    return view.storage_offset() - start * base.itemsize // view.itemsize


def _overlaps(val: torch.Tensor) -> bool:
    """Whether elements share memory because a dimension of more than one element has stride 0."""
    return any(
        type(stride) is int and stride == 0 and size != 1 for size, stride in zip(val.shape, val.stride(), strict=True)
    )


# ---- symbols


def symbol_ranges(exprs: set[Expr], shape_env: Any) -> dict[str, Attribute]:
    """The attribute nd.symbols: symbol -> range and hint, for the symbols in use."""
    names = sorted({s for e in exprs for s in free_syms(e)}, key=str)
    if not names:
        return {}
    if shape_env is None:
        return {str(s): RangeAttr.get(0, None, DEFAULT_SIZE) for s in names}
    ranges, hints = ranges_of(shape_env, names), hints_of(shape_env, names)
    table: dict[str, Attribute] = {}
    for s in names:
        found = ranges.get(s)
        low = 0 if found is None else found.lo if found.lo is not None else -(2**62)  # a Python number that no guard bounds
        high = found.hi if found is not None else None
        hint = hints.get(s)
        usual = DEFAULT_SIZE if high is None else min(DEFAULT_SIZE, high)
        table[str(s)] = RangeAttr.get(low, high, hint if hint is not None else max(low, usual))
    return table
