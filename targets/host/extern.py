"""Calls of library operators from the native entry: through torch's C shim where it declares the operator, through
Python otherwise.

The shim's functions take handles, numbers and arrays, so a call through it makes no Python object. Which C parameter
gets which argument follows from the names, which are the same in the operator's schema and in the header. Whatever
does not fit (a generator, an integer scalar among integer tensors, which the shim would turn into a float) goes
through Python, where everything fits."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import Float64Type, i1

from ...dialects import host
from ...dialects.expr import Expr, as_expr
from ...dialects.nd.call_args import Arg, Call, Enum, Obj
from ...dialects.nd.types import is_float
from .description import ALIGNED, CODES
from .element_types import is_constant_leaf
from .gpu.emit import DeviceType, device_codes
from .gpu.products import product_operands
from .shims import Parameter, shim_name, signature
from .symbols import cuda_shim_address, error_text_available, shim_address

if TYPE_CHECKING:
    from .emit import _Emitter


class _NoShim(Exception):
    """The call does not fit the shim's function; the reason is for the log."""


def emit_extern(emitter: _Emitter, op: host.ExternOp, number: int) -> None:
    """Adds the call; `number` says which one it is when it fails."""
    call = op.call.data
    try:
        plan = _plan_shim(op, call)
    except _NoShim:
        _emit_python(emitter, op, call, number)
    else:
        _emit_shim(emitter, op, plan, number)
    _forget_addresses(emitter, op, call)


def _forget_addresses(emitter: _Emitter, op: host.ExternOp, call: Call) -> None:
    """Operators that give a tensor other memory make a known address wrong."""
    name = call.target.split(".")[1] if "." in call.target else ""
    if name.startswith(("resize", "set_")):
        for value in op.inputs:
            if isinstance(value.type, host.TensorType):
                emitter.values[value].data = None


# -- through the shim
# ----------------------------------------------------------------------------------------------------


class _Plan:
    """A shim call whose arguments all fit: the C arguments in order as (kind, value), and what the results are."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.arguments: list[tuple[str, Any]] = []
        self.types: list[str] = []
        self.results: list[str] = []
        self.kept: list[int] = []
        """Which results the program has a name for; the others are None or not wanted."""
        self.aliased: Any = None
        self.product: tuple[Arg, ...] | None = None
        """The tensors of a product of matrices that may be planned (gpu/products.py)."""


def _schema(target: str) -> Any:
    import torch

    parts = target.split(".")
    if len(parts) != 3:
        raise _NoShim("not an operator overload")
    found = getattr(getattr(getattr(torch.ops, parts[0], None), parts[1], None), parts[2], None)
    if found is None:
        raise _NoShim("no such overload")
    return found._schema


def _named_arguments(call: Call, schema: Any) -> dict[str, tuple[Any, Any]]:
    """Schema argument name -> (its type, the template value or the default)."""
    keywords = dict(call.kwargs)
    found: dict[str, tuple[Any, Any]] = {}
    position = 0
    for argument in schema.arguments:
        if not argument.kwarg_only and position < len(call.args):
            value = call.args[position]
            position += 1
        elif argument.name in keywords:
            value = keywords[argument.name]
        elif argument.has_default_value():
            value = _default(argument)
        else:
            raise _NoShim(f"no value for {argument.name}")
        found[argument.name] = (argument.type, value)
    return found


def _device(op: host.ExternOp, call: Call) -> str:
    """Where an operator runs: `cpu`, `cuda`, or "" where its tensors are not all in one place."""
    places = {v.type.device.data.partition(":")[0] for v in (*op.inputs, *op.results) if isinstance(v.type, host.TensorType)} - {"any"}
    places |= {leaf.value.partition(":")[0] for leaf in call.leaves() if isinstance(leaf, Enum) and leaf.kind == "device"}
    return next(iter(places), "cpu") if len(places) <= 1 else ""


def _default(argument: Any) -> Any:
    value = argument.default_value
    if isinstance(value, list):
        return tuple(value)
    return value


def _plan_shim(op: host.ExternOp, call: Call) -> _Plan:
    device = _device(op, call)
    # without the text of an exception an operator of the CPU goes through Python; on a GPU that would be felt in every call
    if call.target.count(".") != 2 or not (device == "cuda" or (device == "cpu" and error_text_available())):
        raise _NoShim("the shim cannot be used")
    symbol = shim_name(call.target, device)
    parameters = signature(symbol)
    if parameters is None or (cuda_shim_address if device == "cuda" else shim_address)(symbol) is None:
        raise _NoShim("the shim lacks it")
    schema = _schema(call.target)
    named = _named_arguments(call, schema)
    plan, k = _Plan(symbol), 0
    if device == "cuda":
        plan.product = product_operands(op, named)
    while k < len(parameters):
        k += _plan_parameter(op, plan, parameters, k, named)
    returned = [r for r in schema.returns if r.alias_info is None or not r.alias_info.is_write]
    if returned and len(returned) != len(plan.results):
        raise _NoShim("other results than the schema says")
    plan.kept = list(range(len(plan.results)))
    if op.results and not returned:
        # the operator returns what it wrote into: the first mutated argument
        written = next(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        plan.aliased = named[written][1]
    elif op.kept is not None:
        plan.kept = list(op.kept.data)
    elif op.results and len(op.results) != len(plan.results):
        plan.kept = _results_by_mask(named.values(), len(plan.results))
        if len(plan.kept) != len(op.results):
            raise _NoShim("which results are None is not known")
    return plan


def _results_by_mask(values: Iterable[tuple[Any, Any]], results: int) -> list[int]:
    """Which results are tensors, by the argument that says so (`output_mask` of the backward operators)."""
    for _, value in values:
        if isinstance(value, tuple) and len(value) == results and all(isinstance(v, bool) for v in value):
            return [k for k, wanted in enumerate(value) if wanted]
    return []


def _plan_parameter(
    op: host.ExternOp, plan: _Plan, parameters: tuple[Parameter, ...], k: int, named: dict[str, tuple[Any, Any]]
) -> int:
    """Plans the C parameter at `k` (and its companion); gives how many were used."""
    parameter = parameters[k]
    type, name = parameter.type, parameter.name
    if name.startswith("ret") and name[3:].isdigit() and type.endswith("*"):
        if type not in ("AtenTensorHandle*", "int64_t*"):
            raise _NoShim(f"a result of type {type}")
        plan.results.append(type)
        plan.arguments.append(("result", len(plan.results) - 1))
        plan.types.append("ptr")
        return 1
    if name not in named:
        raise _NoShim(f"no argument {name}")
    schema_type, value = named[name]
    if k + 1 < len(parameters) and parameters[k + 1].name == f"{name}_len_":
        _plan_list(op, plan, type, value)
        return 2
    if k + 1 < len(parameters) and parameters[k + 1].name == f"{name}_index_":
        _plan_device(plan, type, value)
        return 2
    optional = type.endswith("*") and type != "const char*"
    if optional and value is None:
        plan.arguments.append(("null", None))
        plan.types.append("ptr")
        return 1
    plain = type.removesuffix("*") if optional else type
    kind, c_type, planned = _plan_value(op, plain, str(schema_type), value)
    plan.arguments.append((f"&{kind}" if optional else kind, planned))
    plan.types.append("ptr" if optional else c_type)
    return 1


def _is_tensor(op: host.ExternOp, value: Any) -> bool:
    return isinstance(value, Arg) and isinstance(op.inputs[value.index].type, host.TensorType)


def _is_size(op: host.ExternOp, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, Arg):
        type = op.inputs[value.index].type
        return host.is_number(type) and not isinstance(type, Float64Type) and type != i1
    return isinstance(value, (int, Expr))


def _plan_value(op: host.ExternOp, c_type: str, schema_type: str, value: Any) -> tuple[str, str, Any]:
    """How one value is passed: (kind, LLVM type, value)."""
    if c_type == "AtenTensorHandle" and _is_tensor(op, value):
        return "tensor", "ptr", value
    if c_type == "int64_t" and _is_size(op, value):
        return "size", "i64", value
    if c_type == "double":
        return "double", "double", _plan_double(op, schema_type, value)
    if c_type == "const char*" and isinstance(value, str):
        return "text", "ptr", value
    if c_type == "int32_t":
        return "i32", "i32", _small_code(value, schema_type)
    raise _NoShim(f"{value!r} as {c_type}")


def _plan_double(op: host.ExternOp, schema_type: str, value: Any) -> Any:
    if isinstance(value, Arg) and isinstance(op.inputs[value.index].type, Float64Type):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NoShim(f"{value!r} as a number")
    if isinstance(value, int) and "number" in schema_type:
        # the shim makes every scalar a float, which would promote integer tensors
        tensors = [v.type for v in op.inputs if isinstance(v.type, host.TensorType)]
        if not all(is_float(t.element_type) for t in tensors):
            raise _NoShim("an integer scalar among integer tensors")
    return float(value)


def _small_code(value: Any, schema_type: str) -> int:
    """The code of a bool or of one of torch's enumerations."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Enum) and value.kind in CODES and value.value in CODES[value.kind].__members__:
        return CODES[value.kind][value.value].value
    raise _NoShim(f"{value!r} as {schema_type}")


def _plan_device(plan: _Plan, type: str, value: Any) -> None:
    if value is None and type.endswith("*"):
        plan.arguments += [("null", None), ("i32", 0)]
        plan.types += ["ptr", "i32"]
        return
    if not isinstance(value, Enum) or value.value.partition(":")[0] not in DeviceType.__members__:
        raise _NoShim(f"device {value!r}")
    kind, index = device_codes(value.value)
    plan.arguments += [("&i32" if type.endswith("*") else "i32", kind), ("device", index)]
    plan.types += ["ptr" if type.endswith("*") else "i32", "i32"]


def _plan_list(op: host.ExternOp, plan: _Plan, type: str, value: Any) -> None:
    plan.types += ["ptr", "i64"]
    optional_list = type in ("const int64_t**", "const double**", "const int32_t**")
    if value is None and optional_list:
        plan.arguments += [("null", None), ("size", 0)]
        return
    if not isinstance(value, tuple):
        raise _NoShim(f"{value!r} as a list")
    base = type.removesuffix("*") if optional_list else type
    if base == "const int64_t*" and all(_is_size(op, v) for v in value):
        kind = "sizes"
    elif base == "const AtenTensorHandle*" and all(_is_tensor(op, v) for v in value):
        kind = "tensors"
    elif base == "const AtenTensorHandle**" and all(v is None or _is_tensor(op, v) for v in value):
        kind = "optional tensors"
    elif base == "const int32_t*" and all(isinstance(v, bool) for v in value):
        kind = "bools"
    else:
        raise _NoShim(f"{value!r} as {type}")
    plan.arguments += [(f"&{kind}" if optional_list else kind, value), ("size", len(value))]


def _emit_shim(emitter: _Emitter, op: host.ExternOp, plan: _Plan, number: int) -> None:
    entry, values = emitter.entry, emitter.values
    slots = [entry.alloca("ptr" if type == "AtenTensorHandle*" else "i64", 8) for type in plan.results]
    if op.call.data.target in ALIGNED:
        plan.arguments = [("handle", _aligned(emitter, op, v)) if kind == "tensor" else (kind, v) for kind, v in plan.arguments]
    texts: list[str] = []
    for type, (kind, value) in zip(plan.types, plan.arguments, strict=True):
        register = slots[value] if kind == "result" else _shim_argument(emitter, op, kind, value)
        texts.append(f"{type} {register}")
    handles = [values.handle(values[op.inputs[one.index]]) for one in plan.product or ()]
    entry.where(number)
    entry.drop_lock()
    entry.module.declare(plan.symbol, "i32", ", ".join(plan.types))
    planned = emitter.gpu.product(number, handles) if emitter.gpu is not None and handles else ""
    entry.require_ok(entry.let(f"call i32 @{plan.symbol}({', '.join(texts)})"), "operator")
    if planned:
        entry.do(f"br label %{planned}")
        entry.start(planned)
    if plan.aliased is not None:
        emitter.values.alias(op.results[0], _shared(emitter, op.inputs[plan.aliased.index]))
        return
    names = dict(zip(plan.kept, op.results, strict=False))
    for k, (type, slot) in enumerate(zip(plan.results, slots, strict=True)):
        if type == "int64_t*":
            if k in names:
                emitter.values.number(names[k], entry.load(slot, "i64"))
        elif k in names:
            emitter.values.own_handle(names[k], entry.load(slot))
        else:
            entry.call("aoti_torch_delete_tensor_object", entry.load(slot))


def _aligned(emitter: _Emitter, op: host.ExternOp, value: Arg) -> str:
    """The handle of a tensor, or of a copy with its strides where its address is no multiple of 16."""
    entry, source = emitter.entry, op.inputs[value.index]
    handle = emitter.values.handle(emitter.values[source])
    address = entry.let(f"ptrtoint ptr {emitter.values.data(emitter.values[source])} to i64")
    odd = entry.let(f"icmp ne i64 {entry.let(f'and i64 {address}, 15')}, 0")
    copy, onward, before = entry.label(), entry.label(), entry.block
    entry.do(f"br i1 {odd}, label %{copy}, label %{onward}")
    entry.start(copy)
    entry.require_ok(entry.call("aoti_torch_clone_preserve_strides", handle, "%out"))
    made = entry.load("%out")
    entry.keep_handle(made)
    last = entry.block
    entry.do(f"br label %{onward}")
    entry.start(onward)
    return entry.let(f"phi ptr [ {handle}, %{before} ], [ {made}, %{last} ]")


def _shared(emitter: _Emitter, source: Any) -> Any:
    """A value of its own for a result that is one of the operands (each is released for itself)."""
    return emitter.duplicate(emitter.values[source])


def _shim_argument(emitter: _Emitter, op: host.ExternOp, kind: str, value: Any) -> str:
    """The register or constant for one C argument; a kind with & passes its address."""
    entry, values = emitter.entry, emitter.values
    if kind.startswith("&"):
        type = {"tensor": "ptr", "size": "i64", "double": "double", "i32": "i32"}.get(kind[1:], "ptr")
        return entry.scratch(type, [_shim_argument(emitter, op, kind[1:], value)])
    if kind == "null":
        return "null"
    if kind == "handle":
        return value
    if kind == "tensor":
        return values.handle(values[op.inputs[value.index]])
    if kind == "size":
        return _size_register(emitter, op, value)
    if kind == "double":
        if isinstance(value, Arg):
            return emitter.number(op.inputs[value.index])
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if kind == "text":
        return entry.text_constant(value)
    if kind == "i32":
        return str(value)
    if kind == "device":
        return emitter.gpu.index(value) if emitter.gpu is not None and emitter.on_gpu else str(value)
    if kind == "bools":
        return entry.constant_words([int(v) for v in value], "i32") if value else "null"
    if kind == "sizes":
        if not any(isinstance(v, Arg) for v in value):
            return entry.words([as_expr(v) for v in value])
        return entry.scratch("i64", [_size_register(emitter, op, v) for v in value])
    handles = [None if v is None else values.handle(values[op.inputs[v.index]]) for v in value]
    if kind == "tensors":
        return entry.scratch("ptr", [str(h) for h in handles])
    return entry.scratch("ptr", ["null" if h is None else entry.scratch("ptr", [h]) for h in handles])


def _size_register(emitter: _Emitter, op: host.ExternOp, value: Any) -> str:
    if isinstance(value, Arg):
        return emitter.number(op.inputs[value.index])
    return emitter.entry.size(as_expr(value))


# -- through Python
# ------------------------------------------------------------------------------------------------------


PYTHON_CALL = "py"
"""The target of a call of a Python object of the module: `py(object(k), arguments...)`."""


def result_form(target: str, results: int) -> str:
    """How the Python callable of an operator gives `results` results: "none" are wanted, "one" object, a "sequence"
    that has them in order, or a "tree", whose leaves they are with None left out."""
    if results == 0:
        return "none"
    try:
        schema = _schema(target)
    except _NoShim:
        return "one" if target.startswith(("operator.", "math.")) else "tree"
    types = [str(r.type) for r in schema.returns]
    if len(types) == 1 and "List" not in types[0]:
        return "one"
    plain = len(types) == results and not any("Optional" in t or "List" in t for t in types)
    return "sequence" if plain or (len(types) == 1 and types[0] == "List[Tensor]") else "tree"


def leaves_item(op: host.ExternOp) -> tuple[str, Any]:
    """The item that takes the results of a "tree" out of it."""
    return ("flatten", len(op.results)) if op.kept is None else ("kept", tuple(op.kept.data))


def _emit_python(emitter: _Emitter, op: host.ExternOp, call: Call, number: int) -> None:
    entry = emitter.entry
    entry.take_lock()
    temporaries: list[tuple[str, int]] = []
    leaves = call.args
    if call.target == PYTHON_CALL:
        function = _python_argument(emitter, op, leaves[0], temporaries)
        leaves = leaves[1:]
    else:
        function = entry.item("operator", call.target)
    objects = [_python_argument(emitter, op, leaf, temporaries) for leaf in leaves]
    objects += [_python_argument(emitter, op, leaf, temporaries) for _, leaf in call.kwargs]
    names = entry.item("names", tuple(k for k, _ in call.kwargs)) if call.kwargs else "null"
    arguments = entry.scratch("ptr", objects) if objects else "null"
    entry.where(number)
    made = entry.call("PyObject_Vectorcall", function, arguments, str(len(leaves)), names)
    for register, slot in temporaries:
        entry.call("Py_DecRef", register)
        entry.forget_object(slot)
    entry.fail_if(entry.let(f"icmp eq ptr {made}, null"), "python" if call.target == PYTHON_CALL else "noted")
    _python_results(emitter, op, made)


def _python_results(emitter: _Emitter, op: host.ExternOp, made: str) -> None:
    entry = emitter.entry
    form = result_form(op.call.data.target, len(op.results))
    if form == "none":
        entry.call("Py_DecRef", made)
        return
    if form == "one":
        _define(emitter, op.results[0], made)
        return
    if form == "tree":
        flatten = entry.item(*leaves_item(op))
        flat = entry.call("PyObject_Vectorcall", flatten, entry.scratch("ptr", [made]), "1", "null")
        entry.call("Py_DecRef", made)
        made = entry.require_object(flat)
    slot = entry.keep_object(made)
    for k, result in enumerate(op.results):
        if result.first_use is not None:
            item = entry.call("PySequence_GetItem", made, str(k))
            _define(emitter, result, entry.require_object(item))
        else:
            emitter.values.define(result)
    entry.call("Py_DecRef", made)
    entry.forget_object(slot)


def _define(emitter: _Emitter, result: Any, register: str) -> None:
    """Binds a result to a new reference; a number is taken out of it."""
    value = emitter.values.own_object(result, register)
    if host.is_number(result.type):
        value.number = emitter.unbox(register, result.type)
        emitter.entry.call("Py_DecRef", register)
        assert value.object_slot is not None
        emitter.entry.forget_object(value.object_slot)
        emitter.values.clear(value)


def _python_argument(emitter: _Emitter, op: host.ExternOp, leaf: Any, temporaries: list[tuple[str, int]]) -> str:
    """The Python object for a template value; new references are noted in `temporaries`."""
    entry = emitter.entry
    if isinstance(leaf, Arg):
        source = op.inputs[leaf.index]
        if not host.is_number(source.type):
            return emitter.values.object(emitter.values[source])
        return _temporary(emitter, emitter.box(source), temporaries)
    if isinstance(leaf, Expr) and not leaf.is_const:
        made = entry.require_object(entry.call("PyLong_FromLongLong", entry.size(leaf)))
        return _temporary(emitter, made, temporaries)
    if isinstance(leaf, (Expr, Obj)) or is_constant_leaf(leaf):
        return emitter.leaf_item(leaf)
    made = _temporary(emitter, entry.require_object(entry.call("PyList_New", str(len(leaf)))), temporaries)
    for k, part in enumerate(leaf):
        inner = _python_argument(emitter, op, part, temporaries)
        entry.call("Py_IncRef", inner)
        entry.call("PyList_SetItem", made, str(k), inner)
    return made


def _temporary(emitter: _Emitter, register: str, temporaries: list[tuple[str, int]]) -> str:
    temporaries.append((register, emitter.entry.keep_object(register)))
    return register
