"""Orthogonal polynomials of the CPU target whose degree is an operand."""

import pytest
import torch
from cpu_kernels import RUNNABLE, build, elementwise, run

from stepwell.dialects.support.special import ORTHOGONAL_POLYNOMIALS


@pytest.fixture(scope="module", params=RUNNABLE)
def library(request):
    text = [
        elementwise(f"{name}_{tag}{lanes}", f"%r = cpu.math {name} %a, %b : {{A}}", [dtype] * 2, dtype, lanes)
        for name in ORTHOGONAL_POLYNOMIALS
        for dtype, tag in ((torch.float32, "f"), (torch.float64, "d"))
        for lanes in (0, 16)
    ]
    return build("".join(text), request.param)


@pytest.mark.parametrize("name", ORTHOGONAL_POLYNOMIALS)
def test_values(library, name: str) -> None:
    degrees = [-1.0, 0.0, 1.0, 1.9, 2.0, 3.0, 6.0, 7.0, 12.0, 40.0, 130.0, 600.0, 1e30, float("inf"), float("nan")]
    for dtype, tag, near in ((torch.float32, "f", 3e-4), (torch.float64, "d", 1e-9)):
        x = torch.tensor([-3.0, -1.0, -0.9, -0.3, 0.0, 0.2, 0.8, 1.0, 1.01, 2.5, float("inf")], dtype=dtype)
        x, n = (t.reshape(-1).contiguous() for t in torch.meshgrid(x, torch.tensor(degrees, dtype=dtype), indexing="ij"))
        want = getattr(torch.special, name)(x, n)
        for lanes in (0, 16):
            got = run(library, f"{name}_{tag}{lanes}", [x, n], dtype, lanes)
            torch.testing.assert_close(got, want, rtol=near, atol=near, equal_nan=True)
