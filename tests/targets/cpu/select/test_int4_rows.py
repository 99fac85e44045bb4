"""int4-rows: products with weights of four bits that programs take apart, by the interpreter and as machine code beside float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function

import stepwell
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.targets.cpu.features import target, use_target
from stepwell.targets.cpu.forecast import expected_functions
from stepwell.targets.cpu.gemm.int4 import has_int4
from stepwell.targets.cpu.gemm.int4_rows import Int4RowsSpec
from stepwell.targets.cpu.gemm.spec import isa_for
from stepwell.targets.cpu.library import spec_of
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nd import run_nd

GENERATED = has_int4(isa_for(target()))
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
SEED = 11


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    stepwell.reset_counters()


def low(w):
    return torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)


def high(w):
    return torch.stack([w >> 4, w & 15], -1).reshape(w.shape[0], -1)


def halves(w):
    return torch.cat([w & 15, (w & 0xF0) >> 4], -1)


def halves_swapped(w):
    return torch.cat([w >> 4, w & 15], -1)


def words(w):
    """Eight numbers of an int32."""
    return ((w.view(torch.int32)[:, :, None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15).reshape(w.shape[0], -1)


def signed(w):
    return (low(w).to(torch.int8) - 8).float()


def linear(order):
    """Without zero points in memory: 8 is taken off."""

    def fn(x, w, s, z):
        q = order(w).to(x.dtype) - 8
        return F.linear(x, (q.view(q.shape[0], s.shape[1], -1) * s[:, :, None]).view(q.shape))

    return fn


def linear_with_zeros(order):
    def fn(x, w, s, z):
        q = order(w).view(w.shape[0], s.shape[1], -1).to(x.dtype)
        return F.linear(x, ((q - z[:, :, None].to(x.dtype)) * s[:, :, None]).view(w.shape[0], -1))

    return fn


def by_rows(x, w, s, z):
    """A scale for each row, of the weight and of the sums, and a weight that is stored the other way round."""
    return F.linear(x, signed(w).to(x.dtype) * s[:, :1]) * s[:, 0] + (x @ (low(w).to(x.dtype).t() * s[:, 0]))


FORMS = {
    **{order.__name__: linear(order) for order in (low, high, halves, halves_swapped)},
    **{f"{order.__name__}_zeros": linear_with_zeros(order) for order in (low, high, halves, halves_swapped, words)},
    "by_rows": by_rows,
}


def arguments(dtype=torch.float32, rows=3, columns=37, terms=256, group=64, zeros=torch.uint8):
    print(f"seed {SEED}")
    torch.manual_seed(SEED)
    w = torch.randint(0, 256, (columns, terms // 2), dtype=torch.uint8)
    s = (torch.rand(columns, terms // group) * 0.1).to(dtype)
    return torch.randn(rows, terms).to(dtype), w, s, torch.randint(0, 16, s.shape, dtype=torch.uint8).to(zeros)


def exact(fn, args):
    return fn(*(a.double() if a.is_floating_point() else a for a in args))


def check(got, want, dtype):
    torch.testing.assert_close(got.double(), want, rtol=0, atol=ROUNDING[dtype] * max(1.0, want.abs().max().item()))


def products(module):
    return str(module).count("stepwell.int4_rows")


def selected(fn, args, isa="avx512"):
    module = import_function(fn, *args).module
    with use_target(target(isa)):
        run(parse_pipeline("nd-canonicalize,int4-rows"), module, context())
    module.verify()
    return module


@pytest.mark.parametrize("form", FORMS)
def test_interpreted(form):
    args = arguments()
    module = selected(FORMS[form], args)
    assert products(module) == (2 if form == "by_rows" else 1)
    check(run_nd(module, args)[0], exact(FORMS[form], args), torch.float32)


def test_each_level_says_the_same():
    args = arguments(group=32)
    module = selected(FORMS["halves_zeros"], args)
    for passes in ("nd-to-loop,loop-fuse", "loop-to-mem"):
        run(parse_pipeline(passes), module, context())
        module.verify()
        check(run_loop(module, args)[0], exact(FORMS["halves_zeros"], args), torch.float32)


EVERY = (torch.bfloat16, {"group": 128})


@pytest.mark.parametrize(
    ("dtype", "sizes", "names"),
    [
        (*EVERY, ["low", "halves_zeros"]),
        pytest.param(*EVERY, [*FORMS], marks=pytest.mark.long),
        pytest.param(torch.float32, {"group": 16, "rows": 5}, [*FORMS], marks=pytest.mark.long),
        pytest.param(torch.bfloat16, {"group": 32, "rows": 1, "zeros": torch.bfloat16}, [*FORMS], marks=pytest.mark.long),
        pytest.param(torch.float16, {"terms": 384, "group": 64, "rows": 18, "columns": 70}, [*FORMS], marks=pytest.mark.long),
        pytest.param(torch.float32, {"terms": 1024, "group": 512, "columns": 2, "zeros": torch.float32}, [*FORMS], marks=pytest.mark.long),
        pytest.param(torch.bfloat16, {"rows": 0}, [*FORMS], marks=pytest.mark.long),
    ],
)
def test_machine_code(dtype, sizes, names):
    def every(x, w, s, z):
        return [FORMS[name](x, w, s, z) for name in names]

    args = arguments(dtype, **sizes)
    for got, want in zip(torch.compile(every, backend="stepwell", dynamic=False)(*args), exact(every, args), strict=True):
        assert got.dtype == dtype
        if want.numel():
            check(got, want, dtype)
    if GENERATED:
        assert stepwell.counters["passes"]["int4-rows"]["num-products"] == len(names) + ("by_rows" in names)


@pytest.mark.long
def test_any_number_of_rows_and_strides():
    compiled = torch.compile(FORMS["low_zeros"], backend="stepwell")
    x, w, s, z = arguments(torch.bfloat16, rows=40)
    apart = torch.stack([w, w], 2)[:, :, 0]
    for rows in (2, 7, 1, 9):
        given = x.t().contiguous().t()[:rows]
        if rows > 1:
            torch._dynamo.mark_dynamic(given, 0)
        check(compiled(given, apart, s, z), exact(FORMS["low_zeros"], (given, w, s, z)), torch.bfloat16)


@pytest.mark.parametrize(
    ("fn", "sizes"),
    [
        (FORMS["low"], {"terms": 192, "group": 64}),
        (FORMS["low"], {"terms": 384, "group": 96}),
        (FORMS["low"], {"group": 4}),
        (linear(lambda w: torch.stack([w & 15, w >> 4], 1).reshape(w.shape[0], -1).flip(1)), {}),
        (linear(lambda w: torch.cat([w & 7, w >> 4], -1)), {}),
        (linear(lambda w: low(w) - 8), {}),
    ],
)
def test_left_alone(fn, sizes):
    """Lengths that do not fit, numbers in another order, of three bits, and differences that wrap."""
    assert not products(selected(fn, arguments(**sizes)))


def test_other_machines_and_numerics():
    assert not products(selected(FORMS["low"], arguments(), "avx2"))
    args = arguments()
    got = torch.compile(FORMS["low"], backend="stepwell", options={"numerics": "eager"})(*args)
    torch.testing.assert_close(got, FORMS["low"](*args), rtol=1e-5, atol=1e-5)
    assert stepwell.counters["passes"]["int4-rows"].get("num-products", 0) == 0


def test_a_deep_tree_is_given_up():
    """Each level joins what is below it twice."""

    def tree(w):
        for _ in range(12):
            w = torch.cat([w[:, ::2] & 15, w[:, ::2] & 15], -1)
        return torch.cat([w, w], -1)

    assert not products(selected(linear(tree), arguments()))


def test_the_function_is_forecast():
    module = selected(FORMS["halves_zeros"], arguments())
    with use_target(target("avx512")):
        assert expected_functions(module) == ["stepwell_int4_rows_f32_avx512_by_f32_2_1_zeros_shared"]
    with use_target(target("avx2")):
        assert expected_functions(module) == []


def test_names_and_what_is_refused():
    spec = Int4RowsSpec("bf16", "avx512_bf16", "f16", 2, 4, True)
    assert spec_of(spec.shared_symbol) == spec
    for wrong, message in (
        ({"isa": "avx2"}, "isa is 'avx2'"), ({"dtype": "bf16"}, "x is bf16"), ({"scales": "f64"}, "scales are f64"),
        ({"parts": 3}, "3 parts of 1 groups"), ({"groups": 3}, "1 parts of 3 groups"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Int4RowsSpec(**wrong)
