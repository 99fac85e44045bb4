"""What rules get as their first argument: a builder that knows the node whose ops it writes, and the tables of the module."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects.expr import Expr, Range, as_expr, const, evaluate, free_syms, range_of, simplify
from ...equal_sizes import EqualSizes
from ...sympy_bridge import UnsupportedExpr, hints_of, ranges_of, symint_expr
from ..calls import externs
from ..calls.user_kernels import MakeKernel
from ..regions.subgraphs import Body, Program
from ..rules import complex_numbers
from . import devices
from .aliases import write_through
from .builder import Builder, Dims
from .errors import GraphImportError
from .metadata import defines_symbols, element_type, shape_env
from .scalars import ScalarValue, SymScalar, scalar_tensor, size_expr, sym_value
from .tt_functions import kernel_functions


@dataclass
class Counts:
    """How many operator nodes were treated how; `names` has the operators of externs and fallbacks."""

    rule: int = 0
    extern: int = 0
    fallback: int = 0
    names: dict[str, Counter[str]] = field(default_factory=lambda: {"extern": Counter(), "fallback": Counter()})

    @property
    def total(self) -> int:
        return self.rule + self.extern + self.fallback

class NodeBuilder(Builder):
    """One function being written, as rules see it: the Builder's methods plus what is known of the node."""

    def __init__(
        self,
        gm: GraphModule,
        block: Block,
        fallback_random: bool = False,
        compile_body: Callable[[GraphModule], Program] | None = None,
        eager_numerics: bool = False,
        make_kernel: MakeKernel | None = None,
    ):
        self.torch_device, self.mixed_devices = devices.graph_device(list(gm.graph.nodes))
        super().__init__(block, devices.device_text(self.torch_device))
        self.host_constants: dict[Node, torch.Tensor] = {}
        self.numbers: set[Node] | None = None
        self.fetched: dict[Node, SSAValue] = {}
        self.gm = gm
        self.compile_body = compile_body
        self.make_kernel = make_kernel
        self.kernels: dict[str, list[Operation]] = {}
        """The user's Triton kernels, by name, each with the functions that it calls."""
        self.bodies: dict[GraphModule, Body] = {}
        self.eager_numerics = eager_numerics
        self.env: dict[Node, Any] = {}
        self.node: Node = next(iter(gm.graph.nodes))
        self.val: Any = None
        self.constants: list[torch.Tensor] = []
        self.constant_arguments: dict[Any, SSAValue] = {}
        self.objects: list[Any] = []
        self.updates: dict[Node, SSAValue] = {}
        self.pairs: dict[SSAValue, complex_numbers.ComplexPair] = {}
        self.computed_pairs: set[SSAValue] = set()
        self.counts = Counts()
        self.argument_symbols: set[str] = set()
        self.handed_on: dict[str, int] = {}
        self.refused: set[Node] = set()
        self.known_unbacked: set[str] = set()
        self.defines_sizes = False
        """Whether what is imported now defines size symbols: its calls are made even where only the sizes of their results are used."""
        self.has_unbacked = defines_symbols(gm.graph)
        self.hints: dict[Expr, int] | None = None
        self.ranges: dict[Expr, Range] | None = None
        self.bound_symbols: dict[str, SSAValue] = {}
        self.float_symbols: dict[str, SSAValue] = {}
        self.float_tensors: dict[str, SSAValue] = {}
        """Symbols of floats that the graph takes out of tensors (`Tensor.item`): kernels read the tensor, of no dimensions and f64."""
        self.opaque_sizes: dict[Any, Expr] = {}
        self.early_ops = 0
        self.scalar_numbers: dict[Any, ScalarValue] = {}
        self.scalar_tensors: dict[Any, SSAValue] = {}
        self.fallback_random = fallback_random
        self.random_sites = 0
        self.seeds: SSAValue | None = None
        self._places: dict[str | None, Any] = {}
        self.forced: frozenset[str] = frozenset()
        self.left: frozenset[str] = frozenset()
        self.implicit_fallbacks = True
        self.order = ""
        """The order that sums are promised (dialects/machine.py)."""

    # ---- what torch says of the result of the current node

    @property
    def operator(self) -> str:
        """The name of the node's operator, without overload, namespace and what marks variants of it."""
        packet = getattr(self.node.target, "overloadpacket", None)
        return packet.__name__.removeprefix("_").removeprefix("unsafe_").rstrip("_") if packet is not None else ""

    @property
    def out_dims(self) -> Dims:
        """The sizes of the node's tensor result."""
        return self.sizes(self.val.shape)

    @property
    def out_dtype(self) -> Attribute:
        """The element type of the node's tensor result."""
        return element_type(self.val.dtype)

    def sizes(self, values: Sequence[Any]) -> Dims:
        """Sizes or strides as torch has them (int, SymInt) or as rules have them (Expr) as expressions."""
        return tuple([const(s) if type(s) is int else self.size_of(s) for s in values])

    def size_of(self, value: Any) -> Expr:
        """One size as an expression, without quotients that the ranges of symbols decide: what torch writes as `s0 * s0 // s0` is a
        loop like any other of `s0` iterations."""
        if isinstance(value, torch.SymInt):
            try:
                found = symint_expr(value, self.equal_sizes)
            except UnsupportedExpr:
                return size_expr(self, value.node.expr)
            return simplify(found, self._known_ranges()) if found.has_div else found
        if isinstance(value, SymScalar):
            return size_expr(self, value.expr)
        return as_expr(value)

    def guarded_one(self, size: Expr) -> bool:
        """Whether torch took the size for 1: where sizes broadcast it decides by the example's and guards that."""
        return self.example(size) == 1

    def example(self, size: Expr) -> int | None:
        """A size in the example that torch traced with, if it is known."""
        symbols = free_syms(size)
        if not symbols:
            return int(size) if size.is_const else None
        if self.hints is None:
            self.hints = {} if (env := shape_env(self.gm)) is None else hints_of(env)
        return evaluate(size, self.hints) if symbols <= self.hints.keys() else None

    def nonnegative(self, value: Expr) -> bool:
        """Whether a number is at least 0 whatever its symbols are: sizes, or Python numbers that may be negative."""
        known = self._known_ranges()
        low = range_of(value, {s: known.get(s, Range(0)) for s in free_syms(value)}).lo
        return low is not None and low >= 0

    @cached_property
    def equal_sizes(self) -> EqualSizes:
        """Which sizes guards say to be equal, as they are when the import begins to need it."""
        return EqualSizes.of(shape_env(self.gm))

    def _known_ranges(self) -> dict[Expr, Range]:
        if self.ranges is None:
            self.ranges = {} if (env := shape_env(self.gm)) is None else ranges_of(env)
        return self.ranges

    def used(self, position: int) -> bool:
        """Whether result `position` of the node is read by anything."""
        return any(user.target is not operator.getitem or (user.args[1] == position and user.users) for user in self.node.users)

    def conform(self, value: SSAValue, dims: Dims, dtype: Attribute) -> SSAValue:
        """A value cast and, where sizes are equal but written differently, renamed to these sizes."""
        value = self.cast(value, dtype)
        if self.dims(value) == dims:
            return value
        if len(self.dims(value)) != len(dims):
            got, wanted = (list(map(str, d)) for d in (self.dims(value), dims))
            raise GraphImportError(f"node {self.node.name}: {self.node.target} was given sizes {got}, not {wanted}")
        return self.reshape(value, dims)

    # ---- numbers as tensors

    def scalar(self, value: Any, dtype: Attribute) -> SSAValue:
        """A number (a run-time one too) as a 0-d tensor of an element type; a tensor is cast to it."""
        if isinstance(value, (SymScalar, ScalarValue)):
            return self.cast(scalar_tensor(self, value), dtype)
        return super().scalar(value, dtype)

    # ---- tables of the module

    def add_object(self, value: Any) -> int:
        """The place of a Python object in the table of objects."""
        for k, known in enumerate(self.objects):
            if known is value:
                return k
        self.objects.append(value)
        return len(self.objects) - 1

    def add_kernel(self, module: ModuleOp) -> str:
        """Take a kernel of the user's, and what it calls, into the module; its name there."""
        return kernel_functions(self.kernels, module)

    def bind_symbol(self, name: str, value: SSAValue) -> None:
        """Note that an index value defines a size symbol."""
        self.bound_symbols[name] = value

    def is_defined(self, size: Expr) -> bool:
        """Whether the graph knows the symbols of a size by now: arguments, those that data defines, numbers that calls compute."""
        known = self.argument_symbols, self.known_unbacked, self.bound_symbols
        return all(any(str(s) in names for names in known) for s in free_syms(size))

    # ---- values of other nodes

    def argument(self, arg: Any) -> Any:
        """An FX argument with nodes replaced by their values; lists become tuples."""
        if isinstance(arg, Node):
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return tuple([self.argument(a) for a in arg])
        if isinstance(arg, slice):
            return slice(self.argument(arg.start), self.argument(arg.stop), self.argument(arg.step))
        if isinstance(arg, dict):
            return {key: self.argument(a) for key, a in arg.items()}
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return sym_value(self, arg)
        return arg

    def reachable_argument(self, arg: Any) -> Any:
        """An FX argument as `argument` gives it, with what lies elsewhere as kernels of the graph's device read it."""
        if isinstance(arg, Node):
            return devices.reachable(self, arg, self.env[arg])
        if isinstance(arg, (list, tuple)):
            return tuple([self.reachable_argument(a) for a in arg])
        return self.argument(arg)

    def rebind(self, node: Any, value: SSAValue) -> None:
        """Note that `node` (and what it is a view of) was written in place and is now `value`."""
        write_through(self, node, value)

    # ---- library calls

    def call_leaf(self, value: Any, operands: list[SSAValue]) -> Any:
        """A value of `env` as a leaf of a call template; tensors and run-time numbers are appended to the operands."""
        return externs.leaf(self, value, operands)

    def extern_op(self, operands: Sequence[SSAValue], call: Any, types: Sequence[Attribute], **properties: Any) -> tuple[SSAValue, ...]:
        """Write an nd.extern; see externs.write."""
        return externs.write(self, operands, call, types, **properties)
