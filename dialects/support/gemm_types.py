"""Element types of the operands of generated matrix products. It imports nothing: who loads kept programs reads it, too."""

from __future__ import annotations

BYTES = ("i8", "u8")
PANEL_BYTES = 256
"""Bytes of a row of a panel of a packed right factor: whole register tiles of every instruction set."""
PANEL_UNIT_BYTES = 4
"""Bytes of what a panel holds for a column of each of its rows: a number, or so many bytes that are neighbours along the sum."""
FACTORS: dict[str, tuple[str, ...]] = {
    "f32": ("f32", "bf16", "f16", *BYTES),
    "bf16": ("bf16", *BYTES),
    "f16": ("f16", *BYTES),
    "f64": ("f64",),
    "i8": BYTES,
    "u8": ("i8",),
}
"""Type of A -> the types that B may have: each of their values is one of the type in which products are computed."""
