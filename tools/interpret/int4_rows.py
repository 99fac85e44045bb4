"""What a call of a product with weights of four bits in words computes (int4_row_calls.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dialects.nd.call_args import Call
from ...passes.nd.quantised.int4_row_calls import Int4RowsCall


def run_int4_rows(template: Call, values: Sequence[Any]) -> torch.Tensor:
    """The result of a call with these operands."""
    call = Int4RowsCall.of(template)
    assert call is not None
    x, words, scales, *more = values
    rows, chunks, numbers, lanes = x.shape
    columns = words.shape[0]
    units = words.contiguous().view(columns, -1).view(torch.uint8).view(columns, chunks, lanes, numbers // 2).long()
    found = torch.stack([units & 15, units >> 4], -1).reshape(columns, chunks, lanes, numbers).transpose(2, 3)
    place = _terms(call, chunks, numbers, lanes) // call.group
    zeros = more[0].float()[:, place] if call.zeros else 0.0
    weights = (found.float() - call.zero - zeros) * scales.float()[:, place]
    return x.float().reshape(rows, -1) @ weights.reshape(columns, -1).t()


def _terms(call: Int4RowsCall, chunks: int, numbers: int, lanes: int) -> torch.Tensor:
    """Where along the sum the numbers of a row stand: [chunks, numbers, lanes]."""
    chunk, number, lane = (torch.arange(n) for n in (chunks, numbers, lanes))
    if call.parts == 1:
        return (chunk[:, None, None] * lanes + lane) * numbers + number[:, None]
    within = (chunk[:, None, None] * lanes + lane) * (numbers // 2) + number[:, None] // 2
    second = (number[:, None] % 2) ^ int(call.swapped)
    return within + second * (chunks * lanes * numbers // 2)
