"""What is known of the memory behind the operands of launches: refused while compiling, or looked at in front of a launch."""

from __future__ import annotations

from xdsl.ir import BlockArgument, SSAValue

from ...dialects import host
from ...errors import CompileError


def check_devices(program: host.ProgramOp) -> None:
    """CompileError for a kernel whose operands lie on several devices: it could not reach those of the others."""
    for op in program.body.block.ops:
        if not isinstance(op, host.LaunchOp):
            continue
        places = {k: v.type.device.data for k, v in enumerate(op.inputs) if isinstance(v.type, host.TensorType)}
        if len(set(places.values())) > 1:
            listed = ", ".join(f"{operand_name(op, k)} on {place}" for k, place in places.items())
            kernel, name = op.kernel.string_value(), program.sym_name.data
            raise CompileError(f"kernel @{kernel} of host program @{name} has operands on several devices: {listed}")


def operand_name(op: host.LaunchOp, number: int) -> str:
    """What messages call an operand of a launch: its number, the value's name and its element type."""
    value = op.inputs[number]
    element = f" of {value.type.element_type}" if isinstance(value.type, host.TensorType) else ""
    return f"{number} (%{value.name_hint}{element})" if value.name_hint else f"{number}{element}"


def has_elements(value: SSAValue) -> bool:
    """Whether a tensor is known to have elements: its sizes are constants above 0."""
    layout = _layout(value)
    return layout is not None and all(size.is_const and int(size) > 0 for size in layout.sizes.data)


def _layout(value: SSAValue) -> host.LayoutOp | None:
    """The op that says the sizes of a tensor: the one that makes it, for an argument its check."""
    if isinstance(value, BlockArgument):
        return next((use.operation for use in value.uses if isinstance(use.operation, host.CheckOp)), None)
    return value.owner if isinstance(value.owner, host.LayoutOp) else None
