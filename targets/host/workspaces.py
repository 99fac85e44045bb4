"""Where the workspaces of a program (`host.workspace`) lie in its memory that stays: one after the other."""

from __future__ import annotations

from ...dialects import host

ALIGNMENT_BYTES = 512
"""Bytes, of which each begins at a multiple: as what torch's allocator gives."""


def workspace_places(program: host.ProgramOp) -> dict[host.WorkspaceOp, int]:
    """The byte at which each workspace begins."""
    places: dict[host.WorkspaceOp, int] = {}
    end = 0
    for op in program.body.block.ops:
        if isinstance(op, host.WorkspaceOp):
            places[op] = end
            end += -(-op.bytes.data // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return places


def workspace_bytes(program: host.ProgramOp) -> int:
    """Bytes of all of them."""
    return max((at + op.bytes.data for op, at in workspace_places(program).items()), default=0)
