"""Quantised products in programs: against the quantised model in float64, and without tensors of dequantised weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

torch.ops.import_module("torch.ao.quantization.fx._decomposed")
q = torch.ops.quantized_decomposed


def compiled(fn, **options):
    torch._dynamo.reset()
    return torch.compile(fn, backend="stepwell", fullgraph=True, **options)


def weight(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, columns)).to(torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_weights_of_bytes(dtype, rows):
    x, w, s, b = torch.randn(2, rows, 200).to(dtype), weight(130, 200), torch.rand(130) * 0.01, torch.randn(130).to(dtype)

    def fn(x, w, s, b):
        whole, after = F.linear(x, w.to(x.dtype) * s.to(x.dtype)[:, None], b), F.linear(x, w.to(x.dtype)) * s.to(x.dtype)
        return whole, after, (w.float() * s[:, None]) @ x[0, 0].float()

    exact = x.double() @ (w.double() * s.to(dtype).double()[:, None]).T
    got = compiled(fn)(x, w, s, b)
    scale = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for y, want in zip(got, (exact + b.double(), exact, (w.double() * s.double()[:, None]) @ x[0, 0].double()), strict=True):
        torch.testing.assert_close(y.double(), want, rtol=scale, atol=scale)


@pytest.mark.parametrize("dynamic", [False, True])
def test_n09_a_linear_of_pt2e_is_a_product_of_integers(dynamic):
    """N09: activations of uint8 with a zero point, weights of int8 by rows; nearer to float64 than eager."""

    def fn(x, w, s, z, b):
        xq = q.quantize_per_tensor(x, 0.02, 3, 0, 255, torch.uint8)
        xd = q.dequantize_per_tensor(xq, 0.02, 3, 0, 255, torch.uint8)
        return F.linear(xd, q.dequantize_per_channel(w, s, z, 0, -128, 127, torch.int8), b), xq

    torch.manual_seed(0)
    run = compiled(fn, dynamic=dynamic)
    for sizes, columns, rows in (((5,), 64, 32), ((2, 3), 77, 41), ((1,), 130, 70), ((40,), 200, 130)):
        x, w, s, b = torch.randn(*sizes, columns), weight(rows, columns), torch.rand(rows) * 0.01, torch.randn(rows)
        for z in (torch.zeros(rows, dtype=torch.int64), torch.randint(-4, 5, (rows,))):
            got, xq = run(x, w, s, z, b)
            want, wanted_q = fn(x, w, s, z, b)
            assert torch.equal(xq, wanted_q)
            exact = ((xq.double() - 3) * 0.02) @ ((w.double() - z[:, None]) * s.double()[:, None]).T + b.double()
            torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=4e-6)
            assert (got.double() - exact).abs().mean() <= 1.1 * (want.double() - exact).abs().mean() + 1e-9


def test_activations_quantised_by_row():
    """The scale of a row, its bytes and the product: torch's own numbers where a norm comes before."""

    def fn(x, g, w, s):
        n = F.rms_norm(x, (x.shape[-1],), g)
        scale = n.abs().amax(-1, keepdim=True) / 127
        return torch._int_mm((n / scale).round().clamp(-128, 127).to(torch.int8), w.t()).float() * scale * s

    x, g, w, s = torch.randn(33, 256), torch.rand(256), weight(96, 256), torch.rand(96)
    torch.testing.assert_close(compiled(fn)(x, g, w, s), fn(x, g, w, s), rtol=1e-3, atol=0.5)


def test_products_of_bytes_are_exact():
    for rows, columns, depth in ((1, 64, 100), (17, 24, 64), (40, 8, 72)):
        a, b = weight(max(rows, 17), depth)[:rows], weight(columns, depth)
        wanted = (a.long() @ b.t().long()).int()
        assert torch.equal(compiled(lambda a, b: torch._int_mm(a, b.t()))(a, b), wanted)
        assert torch.equal(compiled(lambda a, b: torch._int_mm(a, b))(a, b.t().contiguous()), wanted)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
def test_constant_bytes_lie_in_panels(kind, tmp_path):
    """Whose last unit is filled up; sums of signed bytes start with those of columns where the processor wants unsigned ones."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 128, (200, 90), dtype=torch.int8))

        def forward(self, x):
            return (x.to(torch.int32).float() @ self.weight.float().t()) * 0.5

    torch.manual_seed(0)
    net = Net()
    f = compiled(net, dynamic=True, options={"freezing": True, "debug": str(tmp_path)})
    with torch.no_grad():
        for rows in (32, 7, 500, 0):
            x = torch.randint(0, 256, (rows, 90)).to(kind)
            assert torch.equal(f(x), net(x))
    assert "panels = 64" in "".join(path.read_text() for path in tmp_path.rglob("4_cpu.mlir"))


def test_operands_whose_elements_lie_apart():
    x, w = torch.randn(6, 100)[:, ::2], weight(140, 150)[::2, ::3]
    torch.testing.assert_close(compiled(lambda x, w: F.linear(x, w.float()))(x, w), F.linear(x, w.float()), rtol=1e-4, atol=1e-2)


def test_weights_of_bytes_packed_by_torch():
    x, w, s = torch.randn(3, 128).bfloat16(), weight(64, 128), (torch.rand(64) * 0.01).bfloat16()
    before = stepwell.counters["extern"]
    got = compiled(torch.ops.aten._weight_int8pack_mm)(x, w, s)
    assert stepwell.counters["extern"] == before
    torch.testing.assert_close(got.double(), (x.double() @ w.double().T) * s.double(), rtol=1e-2, atol=1e-2)


def test_numerics_eager_keeps_the_program():
    x, w, s = torch.randn(3, 64), weight(32, 64), torch.rand(32)

    def fn(x, w, s):
        return F.linear(x, w.float() * s[:, None])

    torch.testing.assert_close(compiled(fn, options={"numerics": "eager"})(x, w, s), fn(x, w, s), rtol=1e-5, atol=1e-3)
