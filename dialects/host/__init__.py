"""The `host` dialect: the launch program of one graph, as a straight line of ops."""

from __future__ import annotations

from .base import HostOp, ObjectType, PtrType, TensorType, is_number
from .descriptors import Descriptor
from .ops import OPS, AssertOp, BindOp, ConstantOp, ExternOp, Host, LaunchOp, PollOp, ProgramOp, ReturnOp, program_of
from .tensors import ArenaPtrOp, CheckOp, EmptyOutputOp, EnsureOp, FromArenaOp, LayoutOp, ReleaseOp, ViewOp, WorkspaceOp, layout

__all__ = [
    "ArenaPtrOp",
    "AssertOp",
    "BindOp",
    "CheckOp",
    "ConstantOp",
    "Descriptor",
    "EmptyOutputOp",
    "EnsureOp",
    "ExternOp",
    "FromArenaOp",
    "Host",
    "HostOp",
    "LaunchOp",
    "LayoutOp",
    "OPS",
    "ObjectType",
    "PollOp",
    "ProgramOp",
    "PtrType",
    "ReleaseOp",
    "ReturnOp",
    "TensorType",
    "ViewOp",
    "WorkspaceOp",
    "is_number",
    "layout",
    "program_of",
]
