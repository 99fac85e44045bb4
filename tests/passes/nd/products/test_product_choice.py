"""What the price of a product says of its neighbours."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower, without_data
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.types import element_of
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop


def remarks(function, *shapes, dynamic=(), machine="sm_90"):
    """What the pass says of products on a GPU. `dynamic`: pairs of an argument and a dimension whose size is a symbol."""
    args = without_data([torch.empty(shape, dtype=torch.bfloat16) for shape in shapes], "cpu")
    if dynamic:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        kinds = [[DimDynamic.DYNAMIC if (k, d) in dynamic else DimDynamic.STATIC for d in range(a.dim())] for k, a in enumerate(args)]
        real = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        args = [mode.from_tensor(a, symbolic_context=StatelessSymbolicContext(kind)) for a, kind in zip(real, kinds, strict=True)]
    module = import_function(function, *args, **({"mode": "real"} if dynamic else {})).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    said: list[str] = []
    run(parse_pipeline("nd-canonicalize,nd-library-products"), module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    return said


@pytest.mark.parametrize("drops", [False, True])
def test_a_remark_says_where_a_thread_keeps_too_much_for_a_large_block(drops):
    """Random numbers of all elements are there at once."""

    def layer(x, w):
        y = F.silu(F.linear(x, w))
        return F.dropout(y, 0.1, True) if drops else y

    (remark,) = remarks(layer, (8192, 2048), (8192, 2048))
    assert ("a thread keeps 5 numbers of each element, so that a program has" in remark) == drops, remark


@pytest.mark.parametrize("sizes", [(8192, 512, 8192), (1024, 64, 1024), (512, 768, 3072), (8192, 8192, 8192)], ids=str)
@pytest.mark.parametrize("gelu", [True, False])
def test_what_follows_decides_about_products_of_many_rows(sizes, gelu):
    """Nothing else is a reason to generate one; a bias is the library's, too."""
    rows, terms, columns = sizes

    def product(x, w, b):
        y = F.linear(x, w, b)
        return F.gelu(y) if gelu else y

    (remark,) = remarks(product, (rows, terms), (columns, terms), (columns,))
    assert f"{'generated' if gelu else 'a call of the library'}: by price" in remark


@pytest.mark.parametrize(("rows", "varies"), [(1, True), (128, False)])
def test_symbols_of_few_or_of_many_rows_are_calls(rows, varies):
    """A block of all rows is slow where there are many, a large block where there are few."""
    (remark,) = remarks(lambda x, w: F.gelu(F.linear(x.flatten(0, 1), w)), (32, rows, 1024), (4096, 1024), dynamic={(0, 0)})
    assert ("may be at most 64, or more" in remark) == varies and ("generated: by price" in remark) != varies, remark


@pytest.mark.parametrize("again", [False, True])
def test_what_reads_the_same_tensors_and_is_stored_counts(again):
    """An activation that is computed again in the backward pass, from what its gradient reads: in the nest of the product, too."""

    def gradient(g, w, h):
        made = torch.ops.aten.gelu_backward(g @ w, h)
        return (made, F.gelu(h).t() @ g) if again else made

    first = remarks(gradient, (4096, 2048), (2048, 8192), (4096, 8192))[0]
    assert ("generated: by price" in first) != again and ("a thread keeps" in first) == again, first


def test_a_product_of_float32_of_casts_is_one_of_16_bits():
    """Every product of two 16-bit numbers is a float32: nothing is rounded that eager does not round."""
    (remark,) = remarks(lambda x, w: x.float() @ w.float().mT, (4096, 1024), (4096, 1024))
    assert "generated: by price" in remark

    def function(x, w):
        return (x.float() @ w.float().mT).tanh() * 2

    args = [torch.randn(n, 40, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (70, 90)]
    made = lower(function, *args, nd_library_products="nd-library-products{library=never tiny=0}")
    assert {str(element_of(op.operands[0].type)) for op in made.module.walk() if isinstance(op, DotOp)} == {"bf16"}
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    torch.testing.assert_close(got, function(*args), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("machine", "reason"), [("sm_90", "generated: by price"), ("sm_80", "nobody has measured what generated products of f32 reach")]
)
def test_a_product_of_float32_of_which_one_factor_is_no_cast_is_one_of_float32(machine, reason):
    (remark,) = remarks(lambda x, w: x.float() @ (w.float() * 3).mT, (4096, 1024), (4096, 1024), machine=machine)
    assert reason in remark


def test_numbers_that_are_taken_from_a_table_one_by_one_have_a_price():
    """Codes of a few bits: with few rows a kernel waits for its lookups, not for memory."""
    (remark,) = remarks(lambda x, q, table: x @ table[q.long() & 15].mT, (8, 14336), (4096, 14336), (16,))
    assert "a call of the library: by price" in remark
    (remark,) = remarks(lambda x, q: x @ (q.to(torch.int8).to(q.dtype) * 2).mT, (8, 14336), (4096, 14336))
    assert "generated: by price" in remark


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu], ids=str)
def test_a_product_of_float32_of_8_bits_is_one_of_16_bits(kind):
    """A unit for 8-bit floats rounds sums to fewer bits. Powers of two of 8 bits are no f16, and stay float32."""

    def function(x, w):
        return (x.float() @ w.float().mT).tanh() * 2

    args = [(torch.randn(n, 40, generator=torch.Generator().manual_seed(n)).abs() * 0.2).to(kind) for n in (70, 90)]
    made = lower(function, *args, nd_library_products="nd-library-products{tiny=0}")
    exact = kind != torch.float8_e8m0fnu
    assert {str(element_of(op.operands[0].type)) for op in made.module.walk() if isinstance(op, DotOp)} == {"bf16" if exact else "f32"}
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    torch.testing.assert_close(got, function(*args), rtol=1e-5, atol=1e-5)


def test_weights_of_float32_that_were_rounded_are_weighed_as_16_bits():
    def attention(q, k, v):
        return torch.softmax((q @ k.mT).float() * 0.1, -1).bfloat16().float() @ v.float()

    args = [torch.randn(4, 256, 64, generator=torch.Generator().manual_seed(n)).bfloat16() for n in range(3)]
    made = lower(attention, *args, nd_library_products="nd-library-products{tiny=0}")
    assert sum(isinstance(op, DotOp) for op in made.module.walk()) == 2
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    torch.testing.assert_close(got, attention(*args), rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize(("rows", "groups", "reason"), [
    (16384, 4, "generated: by price"), (16384, 128, "generated: by price"), (256, 32, "generated: by price"),
    (16, 32, "generated: by price"),
])  # fmt: skip
def test_grouped_products_by_price(rows, groups, reason):
    """Blocks begin where a group does, so that a group loses half of one; of few rows all matrices are read, whoever does it."""

    def layer(x, w, ends):
        return F.silu(torch._grouped_mm(x, w, offs=ends))

    args = [torch.empty(n, dtype=torch.bfloat16) for n in ((rows, 2048), (groups, 2048, 1536))]
    module = import_function(layer, *args, torch.empty(groups, dtype=torch.int32)).module
    module.attributes[MACHINE] = MachineAttr.from_text("sm_90")
    said: list[str] = []
    run(parse_pipeline("nd-library-products"), module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    (remark,) = said
    assert reason in remark, remark


def test_weights_times_what_products_give_are_no_weights_of_a_softmax():
    """The gradient of scores: it is in memory for two products, and a kernel that had the scores would read the other factor from there."""

    def gradients(q, k, v, g):
        p = (q @ k.transpose(-1, -2)).softmax(-1)
        ds = p * (g @ v.transpose(-1, -2) - (p * (g @ v.transpose(-1, -2))).sum(-1, keepdim=True))
        return ds @ k, ds.transpose(-1, -2) @ q

    said = remarks(gradients, *[(16, 1024, 128)] * 4)
    assert not [text for text in said if "weights of another product" in text or "weighed by scores" in text]


def test_factors_that_weights_have_are_read():
    """Dropout by a mask from memory costs its bytes; a drawn one nothing."""

    def weighed(q, k, v, *mask):
        p = (q @ k.transpose(-1, -2)).float().softmax(-1)
        return (p * (mask[0] if mask else (torch.rand_like(p) > 0.1))).bfloat16() @ v

    shapes = [(16, 1024, 64)] * 3
    drawn, read = (remarks(weighed, *given)[0] for given in (shapes, [*shapes, (16, 1024, 1024)]))
    kernel = [float(re.findall(r"generated ([0-9.]+) us", text)[0]) for text in (drawn, read)]
    assert kernel[1] > kernel[0] + 1, (drawn, read)
