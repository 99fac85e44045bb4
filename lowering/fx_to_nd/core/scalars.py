"""Numbers of the graph that are not tensors: SymInt, SymFloat and SymBool.

An integer that our index algebra can write is an `Expr` and costs nothing. A float or a truth value is a `SymScalar`:
its sympy expression, written as 0-d tensor ops when a tensor op reads it and computed by Python when a library call, an
assertion or the caller needs the number itself. A size that is no expression of ours (`int(s0 * 0.3)`) becomes a symbol
of its own, defined by a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy import functions as tsf
from xdsl.dialects.builtin import IndexType, f64, i1, i64
from xdsl.ir import BlockArgument, SSAValue

from ....dialects.expr import Expr, sym
from ....dialects.nd.call_args import Call, Obj
from ...sympy_bridge import UnsupportedExpr, from_sympy, has_form
from .errors import GraphImportError

if TYPE_CHECKING:
    from .node_builder import NodeBuilder


@dataclass(frozen=True)
class SymScalar:
    """A float or bool that depends on run-time values: `kind` is "float", "int" or "bool"."""

    kind: str
    expr: sympy.Basic


@dataclass(frozen=True)
class ScalarValue:
    """A Python number that an SSA value of type index, f64 or i1 holds."""

    kind: str
    value: SSAValue


def sym_value(b: NodeBuilder, val: Any) -> Any:
    """The value of a SymInt, SymFloat or SymBool: a number, an Expr or a SymScalar."""
    node = val.node
    if isinstance(val, torch.SymInt):
        return size_expr(b, b.equal_sizes.simplify(node.expr))
    expr = node.expr
    if isinstance(expr, (BooleanAtom, bool)):
        return bool(expr)
    if isinstance(val, torch.SymFloat):
        return float(expr) if expr.is_number else SymScalar("float", expr)
    return SymScalar("bool", expr)


def size_expr(b: NodeBuilder, expr: Any) -> Expr:
    """An integer sympy expression. The parts that our algebra cannot write become symbols that calls define."""
    try:
        return from_sympy(expr)
    except UnsupportedExpr:
        pass
    return _opaque_size(b, expr) if not has_form(expr) else from_sympy(expr.func(*(_writable(b, a) for a in expr.args)))


def _writable(b: NodeBuilder, expr: Any) -> Any:
    """An integer sympy expression with the parts that our algebra cannot write replaced by symbols."""
    try:
        from_sympy(expr)
    except UnsupportedExpr:
        if has_form(expr):
            return expr.func(*(_writable(b, a) for a in expr.args))
        return sympy.Symbol(str(_opaque_size(b, expr)), integer=True)
    return expr


def _opaque_size(b: NodeBuilder, expr: Any) -> Expr:
    """The symbol of a number that a call computes: at the start of the function where its operands are known there, so
    that whatever comes to need it finds it bound."""
    found = b.opaque_sizes.get(expr)
    if found is None:
        name = f"p{len(b.opaque_sizes)}"
        found = b.opaque_sizes[expr] = sym(name)
        symbols = _symbols(expr)
        (result,) = python_call(b, Evaluator(expr, "int"), [_leaf_value(b, s) for s in symbols], ["int"], binds=name)
        if all(s.name in b.argument_symbols for s in symbols if s.is_integer) and all(
            isinstance(operand, BlockArgument) for operand in result.owner.operands  # pyright: ignore[reportAttributeAccessIssue]
        ):
            b.ops.insert(b.early_ops, b.ops.pop())
            b.early_ops += 1
        b.bind_symbol(name, result)
    return found


def _symbols(expr: Any) -> list[sympy.Symbol]:
    return sorted(expr.free_symbols, key=lambda s: s.name)


def _leaf_value(b: NodeBuilder, symbol: sympy.Symbol) -> Any:
    """The run-time value of a symbol: an expression for integers, an SSA scalar for floats."""
    if symbol.is_integer:
        return sym(symbol.name)
    found = b.float_symbols.get(symbol.name)
    if found is None and symbol.name in b.float_tensors:
        (found,) = python_call(b, torch.Tensor.item, [b.float_tensors[symbol.name]], ["float"])
        b.float_symbols[symbol.name] = found
    if found is None:
        raise GraphImportError(f"symbol {symbol.name} of node {b.node.name} is a float that nothing in the graph binds")
    return ScalarValue("float", found)


_NUMBER: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}


@dataclass(frozen=True)
class Evaluator:
    """A Python function of a sympy expression's symbols, taken in the order of their names; gives a number of
    `kind`."""

    expr: sympy.Basic
    kind: str

    def __call__(self, *values: Any) -> Any:
        numbers = {s: sympy.sympify(v) for s, v in zip(_symbols(self.expr), values, strict=True)}
        return _NUMBER[self.kind](self.expr.xreplace(numbers))


def python_call(
    b: NodeBuilder,
    fn: Callable[..., Any],
    args: list[Any],
    kinds: list[str],
    binds: str | None = None,
    effect: bool = False,
) -> tuple[SSAValue, ...]:
    """A call of a Python function at run time with numbers; results are scalars of the given kinds."""
    operands: list[SSAValue] = []
    template = tuple(b.call_leaf(arg, operands) for arg in args)
    call = Call("py", (Obj(b.add_object(fn)), *template))
    types = [{"int": IndexType(), "float": f64, "bool": i1}[kind] for kind in kinds]
    return b.extern_op(operands, call, types, binds=binds, effect=effect)


def scalar_number(b: NodeBuilder, value: SymScalar) -> ScalarValue:
    """The number itself as an SSA scalar (f64 or i1)."""
    found = b.scalar_numbers.get(value.expr)
    if found is None:
        args = [_leaf_value(b, s) for s in _symbols(value.expr)]
        if value.kind == "float" and isinstance(value.expr, sympy.Symbol) and isinstance(args[0], ScalarValue):
            return args[0]
        (result,) = python_call(b, Evaluator(value.expr, value.kind), args, [value.kind])
        found = b.scalar_numbers[value.expr] = ScalarValue(value.kind, result)
    return found


def check(b: NodeBuilder, condition: Any, message: str) -> None:
    """Write a run-time assertion of a bool, unless it holds by itself."""
    if condition is True:
        return
    if isinstance(condition, Expr) and condition.is_const and int(condition):
        return
    if isinstance(condition, SymScalar):
        if any(s.name not in b.known_unbacked for s in free_unbacked_symbols(condition.expr)):
            return  # about a symbol (of a storage offset) that nothing in the graph computes
        args = [_leaf_value(b, s) for s in _symbols(condition.expr)]
        python_call(b, Assertion(Evaluator(condition.expr, "bool"), message), args, [], effect=True)
    else:
        python_call(b, Assertion(bool, message), [condition], [], effect=True)


@dataclass
class Assertion:
    """Raises RuntimeError with `message` when `test` of the arguments is false."""

    test: Callable[..., Any]
    message: str

    def __call__(self, *values: Any) -> None:
        if not self.test(*values):
            raise RuntimeError(self.message)


# ---- SymScalars as 0-d tensors

_FLOAT_UNARY = {
    tsf.OpaqueUnaryFn_sqrt: "sqrt",
    tsf.OpaqueUnaryFn_exp: "exp",
    tsf.OpaqueUnaryFn_log: "log",
    tsf.OpaqueUnaryFn_log2: "log2",
    tsf.OpaqueUnaryFn_sin: "sin",
    tsf.OpaqueUnaryFn_cos: "cos",
    tsf.OpaqueUnaryFn_tan: "tan",
    tsf.OpaqueUnaryFn_tanh: "tanh",
    tsf.OpaqueUnaryFn_sinh: "sinh",
    tsf.OpaqueUnaryFn_cosh: "cosh",
    tsf.OpaqueUnaryFn_asin: "asin",
    tsf.OpaqueUnaryFn_acos: "acos",
    tsf.OpaqueUnaryFn_atan: "atan",
}
_BINARY = {tsf.FloatTrueDiv: "div", tsf.IntTrueDiv: "div", tsf.FloatPow: "pow"}
_RELATIONS = {
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.StrictLessThan: "lt",
    sympy.LessThan: "le",
    sympy.StrictGreaterThan: "gt",
    sympy.GreaterThan: "ge",
}


def scalar_tensor(b: NodeBuilder, value: SymScalar | ScalarValue) -> SSAValue:
    """A run-time number as a 0-d tensor: f64 for floats, i1 for bools, i64 for integers."""
    if isinstance(value, ScalarValue):
        return _wrap(b, value)
    found = b.scalar_tensors.get(value.expr)
    if found is None:
        try:
            found = _truth(b, value.expr) if value.kind == "bool" else _real(b, value.expr)
        except UnsupportedExpr:
            found = _wrap(b, scalar_number(b, value))
        b.scalar_tensors[value.expr] = found
    return found


def _wrap(b: NodeBuilder, value: ScalarValue) -> SSAValue:
    from ....dialects.nd import ScalarOp

    dtype = {"float": f64, "bool": i1, "int": i64}[value.kind]
    return b.emit(ScalarOp, (value.value,), (), dtype)


def _real(b: NodeBuilder, e: Any) -> SSAValue:
    """A real sympy expression in f64, as Python computes it."""
    if isinstance(e, sympy.Symbol) and e.name in b.float_tensors:
        return b.float_tensors[e.name]
    if isinstance(e, sympy.Symbol) and e.name in b.float_symbols:
        return _wrap(b, ScalarValue("float", b.float_symbols[e.name]))
    if isinstance(e, (sympy.Float, sympy.Rational, float, int)) or e.is_number:
        return b.full(float(e), f64)
    if e.is_integer and not isinstance(e, tsf.ToFloat):
        return b.size(from_sympy(e), f64)
    kind = type(e)
    if kind is tsf.ToFloat:
        return b.size(from_sympy(e.args[0]), f64)
    if kind in (sympy.Add, sympy.Mul):
        name = "add" if kind is sympy.Add else "mul"
        return reduce(lambda x, y: b.op(name, x, y), [_real(b, a) for a in e.args])
    if kind in (sympy.Max, tsf.Max, sympy.Min, tsf.Min):
        name = "maximum" if kind in (sympy.Max, tsf.Max) else "minimum"
        return reduce(lambda x, y: b.op(name, x, y), [_real(b, a) for a in e.args])
    if kind in _BINARY:
        return b.op(_BINARY[kind], _real(b, e.args[0]), _real(b, e.args[1]))
    if kind is sympy.Pow:
        return b.op("pow", _real(b, e.args[0]), _real(b, e.args[1]))
    if kind in _FLOAT_UNARY:
        return b.op(_FLOAT_UNARY[kind], _real(b, e.args[0]))
    raise UnsupportedExpr(e, f"{kind.__name__} has no counterpart")


def _truth(b: NodeBuilder, e: Any) -> SSAValue:
    """A sympy relation or combination of relations as an i1 tensor."""
    kind = type(e)
    if kind in _RELATIONS:
        lhs, rhs = e.args
        if lhs.is_integer and rhs.is_integer:
            return b.cmp(_RELATIONS[kind], b.size(from_sympy(lhs)), b.size(from_sympy(rhs)))
        return b.cmp(_RELATIONS[kind], _real(b, lhs), _real(b, rhs))
    if kind in (sympy.And, sympy.Or):
        name = "and" if kind is sympy.And else "or"
        return reduce(lambda x, y: b.op(name, x, y), [_truth(b, a) for a in e.args])
    if kind is sympy.Not:
        return b.op("not", _truth(b, e.args[0]))
    raise UnsupportedExpr(e, f"{kind.__name__} has no counterpart")
