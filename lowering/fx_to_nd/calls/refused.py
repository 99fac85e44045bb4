"""Calls that eager refuses when they run, though torch's fake kernels let them through: they are made, so that torch says what is wrong.

A rule could compute most of them (the floor of a boolean), but a program that eager refuses is wrong, and stays so when it is compiled.
Where the kernel of a device computes such a call, it does so here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from xdsl.dialects.builtin import f32, i1
from xdsl.ir import SSAValue

from ....dialects.expr import product
from ....dialects.nd.types import FLOATS, LOW_PRECISION
from ..core.promotion import common_dtype

if TYPE_CHECKING:
    from ..core.importer import Importer

aten = torch.ops.aten

Check = Callable[["Importer", Sequence[Any], dict[str, Any]], bool]

_NO_BOOLEANS = """
abs:1 addcmul:3 argmax:1 argmin:1 avg_pool2d:1 avg_pool3d:1 bucketize.Tensor:1 ceil:1 clamp:3 floor:1 fmod:2 linalg_cross:2
max_pool2d_with_indices:1 max_pool3d_with_indices:1 median:1 nanmedian:1 reflection_pad1d:1 reflection_pad2d:1 relu:1 remainder:2
round:1 threshold:1 trunc:1
"""
"""Operators that have no kernel of booleans, each with how many of its operands decide the type in which it computes."""

_FLOATS_ONLY = """
_log_softmax_backward_data:1 _prelu_kernel:1 _softmax_backward_data:1 adaptive_max_pool2d:1 adaptive_max_pool3d:1 lerp:2 logaddexp:2
logcumsumexp:1 max_unpool2d:1 max_unpool3d:1 nll_loss2d_forward:1 nll_loss_forward:1 round.decimals:1 std.correction:1
std_mean.correction:1 var.correction:1 var_mean.correction:1
"""
"""Operators that have kernels of floating point (and perhaps complex) numbers alone. A narrow float without a kernel on the CPU is
computed all the same: on a GPU it has one."""

DECOMPOSED_FLOATS_ONLY = """
binary_cross_entropy:2 celu:1 grid_sampler_2d:2 huber_loss:2 log_sigmoid_forward:1 logaddexp2:2 smooth_l1_loss:2 soft_margin_loss:1
"""
"""The same of operators that torch's decompositions take apart: `lowering/fx/decompositions.py` leaves calls with other numbers whole."""

_PARAMETERS = """
_native_batch_norm_legit.no_stats:1:3 _native_batch_norm_legit_functional:1:5 _native_batch_norm_legit_no_training:1:5
native_group_norm:1:3 native_layer_norm:2:4
"""
"""Norms, each with the first of its arguments that are parameters or running statistics, and the one behind the last."""


def is_refused(b: Importer, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether eager refuses a call with these arguments (FX nodes replaced by their values)."""
    check = _CHECKS.get(target) or _CHECKS.get(getattr(target, "overloadpacket", None))
    return check is not None and check(b, args, kwargs)


def _computes(operands: int, floats_only: bool) -> Check:
    """Refuses where the first operands together have a type for which there is no kernel."""

    def check(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        dtype = common_dtype(b, tuple(a for a in args[:operands] if a is not None))
        return dtype not in FLOATS if floats_only else dtype == i1

    return check


def _is_boolean(b: Importer, value: Any) -> bool:
    return b.dtype(value) == i1 if isinstance(value, SSAValue) else isinstance(value, bool)


def _scales_wrongly(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    return isinstance(alpha, bool) and common_dtype(b, tuple(args[:2])) != i1


def _subtracts_booleans(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return any(_is_boolean(b, a) for a in args[:2]) or _scales_wrongly(b, args, kwargs)


def _truncates_booleans(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("rounding_mode") == "trunc" and common_dtype(b, tuple(args[:2])) == i1


def _puts_another_type(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return b.dtype(args[0]) != b.dtype(args[2])


def _selects_many_of_one(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return not b.rank(args[0]) and product(b.dims(args[2])).value != 1


def _masks_by_numbers(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return b.dtype(args[1]) != i1


def _mixes_parameters(first: int, last: int) -> Check:
    """Refuses parameters (the arguments from `first` up to `last`) that torch's kernels for the CPU do not take beside these values: they
    have the type of the values, or all are f32 where values are narrower."""

    def check(b: Importer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        types = {b.dtype(p) for p in args[first:last] if p is not None}
        values = b.dtype(args[0])
        return b.device == "cpu" and bool(types) and types != {values} and not (values in LOW_PRECISION and types == {f32})

    return check


def _find(name: str) -> Any:
    """An operator packet or overload of ATen by name; None where this torch has none."""
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet, None)
    return getattr(found, overload, None) if overload else found


def _table() -> dict[Any, Check]:
    found: dict[Any, Check] = {
        aten.add: _scales_wrongly, aten.sub: _subtracts_booleans, aten.rsub: _subtracts_booleans, aten.div: _truncates_booleans,
        aten.index_put: _puts_another_type, aten.index_select: _selects_many_of_one, aten.masked_scatter: _masks_by_numbers,
    }  # fmt: skip
    for rows, floats_only in ((_NO_BOOLEANS, False), (_FLOATS_ONLY, True)):
        for name, count in (row.split(":") for row in rows.split()):
            if (target := _find(name)) is not None:
                found[target] = _computes(int(count), floats_only)
    for name, first, last in (row.split(":") for row in _PARAMETERS.split()):
        if (target := _find(name)) is not None:
            found[target] = _mixes_parameters(int(first), int(last))
    return found


_CHECKS = _table()
