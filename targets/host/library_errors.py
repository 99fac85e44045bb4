"""The errors of library operators that a native entry calls: which operator, on what, and why.

The C shim of some versions of torch reports that a call failed and prints the reason, but does not hand it on. Such a call is made once
more through Python, which raises the reason, unless it writes into its operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dialects.support.call_template import Arg, Call, Obj, format_leaf, is_size
from .description import python_value, resolve_operator

_out_of_memory: dict[str, int] = {}
"""How often the allocator of a GPU had run out of memory when a library operator last failed there."""


def failed_call(call: Call, operands: Sequence[Any], text: str, device: str, program: str) -> Exception:
    """The exception for a call that failed: torch's reason, then the operator and its arguments. operands: the tensors of the call,
    None for numbers; text: "" where the shim does not hand the reason on."""
    error = library_error(text, device) if text else (_reason(call, operands) or library_error("", device))
    place = f"in {call_text(call, operands)}, called by host program @{program}"
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{place}", *error.args[1:])
    else:
        error.add_note(place)
    return error


def call_text(call: Call, operands: Sequence[Any]) -> str:
    """A call for messages: `aten.mm.default(float32[2, 3], float32[4, 5])`."""
    parts = [_leaf(item, operands) for item in call.args]
    parts += [f"{name}={_leaf(item, operands)}" for name, item in call.kwargs]
    return f"{call.target}({', '.join(parts)})"


def _leaf(item: Any, operands: Sequence[Any]) -> str:
    if isinstance(item, tuple):
        return f"[{', '.join(_leaf(part, operands) for part in item)}]"
    return _tensor_text(operands[item.index]) if isinstance(item, Arg) else format_leaf(item)


def _tensor_text(value: Any) -> str:
    """Element type, sizes and what is not usual of a tensor: its strides, its device."""
    if value is None:
        return "number"
    sizes, dtype = list(value.shape), str(value.dtype).removeprefix("torch.")
    strides = "" if value.is_contiguous() else f" strides {list(value.stride())}"
    return f"{dtype}{sizes}{strides}" + ("" if value.device.type == "cpu" else f" {value.device}")


def _reason(call: Call, operands: Sequence[Any]) -> Exception | None:
    """The exception that a call raises when it is made once more; None where that is not safe, or succeeds."""
    import torch

    given = [leaf for leaf in call.leaves() if isinstance(leaf, Arg)]
    if any(operands[a.index] is None for a in given) or any(
        isinstance(leaf, Obj) or (is_size(leaf) and not leaf.is_const) for leaf in call.leaves()
    ):
        return None
    try:
        function = resolve_operator(call.target)
        if _writes(call):
            return None
        with torch.no_grad():
            keywords = {name: _value(item, operands) for name, item in call.kwargs}
            function(*(_value(item, operands) for item in call.args), **keywords)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _value(item: Any, operands: Sequence[Any]) -> Any:
    if isinstance(item, tuple):
        return [_value(part, operands) for part in item]
    if isinstance(item, Arg):
        return operands[item.index]
    return int(item) if is_size(item) else python_value(item)


def _writes(call: Call) -> bool:
    """Whether a call writes into what others may read: `out` tensors are the program's own."""
    import torch

    namespace, name, overload = call.target.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    return any(a.alias_info is not None and a.alias_info.is_write and not a.is_out for a in schema.arguments)


def library_error(message: str, device: str) -> Exception:
    """The exception for a call of torch's that failed; "" is a message that torch's C shim does not hand on (it has printed it).
    Programs catch torch.OutOfMemoryError, which the shim makes a failure like any other: its text tells, else the allocator's count."""
    import torch

    lost = "a library operator failed; torch has written why to standard error"
    if device == "cpu":
        return RuntimeError(message or lost)
    if message:
        return (torch.OutOfMemoryError if "out of memory" in message else RuntimeError)(message)
    count = torch.cuda.memory_stats(device).get("num_ooms", 0)
    before, _out_of_memory[device] = _out_of_memory.get(device, 0), count
    if count > before:
        return torch.OutOfMemoryError("the GPU ran out of memory; what its allocator says of it is on standard error")
    return RuntimeError(lost)
