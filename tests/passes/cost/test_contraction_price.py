"""The price of products on a GPU: how it grows, and which way to run them is cheaper."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stepwell.passes.cost.contraction_price import Contraction, Weighing, generated_ns, library_ns, price, weighed_ns
from stepwell.passes.cost.machine.gpu import MACHINES, machine
from stepwell.passes.cost.machine.gpu_rates import DATA, rates_of

H100 = machine("sm_90")


def followed(rows: int, columns: int, depth: int, beside: int = 0, **more) -> Contraction:
    """A product whose result a pointwise operation reads, with `beside` tensors of the same size; one is stored."""
    out = 2.0 * rows * columns * more.get("batch", 1)
    return Contraction(rows, columns, depth, apart=True, stored=out, kept=out, beside=beside * out, **more)


def test_every_gpu_has_rates():
    table = json.loads(DATA.read_text())
    assert set(MACHINES) == set(table)
    for name, entry in table.items():
        assert entry["source"] and rates_of(name).multiprocessors == MACHINES[name].multiprocessors
    assert rates_of("sm_100") is not None and rates_of("gfx950").card == rates_of("gfx942").card


@pytest.mark.parametrize(
    ("sizes", "bound"), [((8192, 8192, 8192), "arithmetic"), ((16, 8192, 8192), "memory"), ((512, 512, 64), "memory")], ids=str
)
def test_bounds(sizes, bound):
    assert price(Contraction(*sizes, batch=1 if sizes[2] > 64 else 512), H100).bound == bound


def test_a_large_product_runs_at_the_rate_of_its_units():
    work = Contraction(8192, 8192, 8192)
    assert work.flops / price(work, H100).ns / 1e3 == pytest.approx(H100.rates.tflops["bf16"], rel=0.05)


def test_a_last_wave_takes_as_long_as_the_others():
    """One row of tiles more than fill the multiprocessors."""
    full, more = (price(Contraction(128 * rows, 256 * 12, 1024), H100).ns for rows in (11, 12))
    assert more > 1.2 * full


def test_long_sums_of_few_tiles_are_split():
    long, short = (price(Contraction(256, 256, depth), H100) for depth in (262144, 1024))
    assert long.parts > short.parts >= 1 and long.ns < 30 * short.ns


def test_two_sums_side_by_side_read_a_shared_factor_once():
    one, two = (price(Contraction(16, 4096, 4096, sums=n), H100) for n in (1, 2))
    assert two.ns < 2 * one.ns
    assert price(Contraction(4096, 4096, 4096, sums=2), H100).tile in ((128, 128), (256, 64), (64, 256), (256, 128))


@pytest.mark.parametrize(
    "work",
    [
        followed(16384, 8192, 512), followed(8192, 16384, 4096), followed(1024, 256, 64, batch=256), followed(8192, 2048, 8192, beside=1),
        followed(64, 14336, 4096), followed(256, 256, 262144),
        replace(followed(8, 14336, 4096), sources=14336 * 4096 / 2, computed=14336 * 4096 * 2.0),
    ],
    ids=["short sums", "mlp", "bmm", "residual", "64 rows", "long sums", "four bits"],
)  # fmt: skip
def test_what_follows_is_cheaper_in_the_product(work):
    assert generated_ns(work, H100) < library_ns(work, H100)


def test_windows_overlap():
    """They are fewer bytes of memory than the factor that they make."""
    alone = Contraction(200704, 64, 576)
    windows = replace(alone, windows=2.6e7)
    assert windows.factors < alone.factors
    assert generated_ns(windows, H100) < generated_ns(alone, H100)


@pytest.mark.parametrize(("taps", "bound"), [(9, False), (49, True)])
def test_depthwise_convolutions_are_bound_by_memory_or_by_what_multiplies(taps, bound):
    work = Contraction(200704, 1, taps, batch=192, kind="f32", windows=77e6, vector=True)
    floor = (work.factors + work.result) / H100.rates.memory_gbs
    assert (generated_ns(work, H100) > 2 * floor) == bound
    assert floor < generated_ns(work, H100) < library_ns(work, H100)


@pytest.mark.parametrize(
    "work",
    [Contraction(8192, 8192, 8192), Contraction(4096, 4096, 256), Contraction(256, 4096, 4096), followed(8192, 4096, 28672)],
    ids=["plain", "plain, short sums", "few tiles", "little is saved"],
)
def test_the_library_is_cheaper(work):
    assert library_ns(work, H100) < generated_ns(work, H100)


def test_what_a_row_reduction_reads_saves_nothing():
    """The library's product is read by the reduction as the generated one's result is."""
    out = 2.0 * 8192 * 4096
    work = Contraction(8192, 4096, 1024, stored=out, later=out, follows=True, apart=True)
    assert library_ns(work, H100) < generated_ns(work, H100)


def test_two_products_that_meet():
    out = 2.0 * 8192 * 11008
    work = Contraction(8192, 11008, 4096, sums=2, stored=out, kept=out, apart=True)
    assert generated_ns(work, H100) < library_ns(work, H100)


def test_the_plan_depends_on_the_gpu():
    """Blocks fill the multiprocessors of one, and not of the other."""
    work = followed(3072, 3072, 3072)
    assert [generated_ns(work, machine(name)) < library_ns(work, machine(name)) for name in ("sm_80", "sm_90")] == [True, False]


def attention(rows: int, terms: int, batch: int = 64, head: int = 64) -> Weighing:
    moved = 2.0 * batch * head * 2 * (rows + terms)
    return Weighing(batch, rows, terms, head, head, "bf16", 2, moved)


def test_rows_weighed_in_one_kernel_cost_their_products_and_no_scores():
    work = attention(4096, 4096)
    flops = 2.0 * work.batch * work.rows * work.terms * (work.depth + work.columns)
    assert flops / weighed_ns(work, H100) / 1e3 == pytest.approx(H100.rates.tflops["bf16"] * H100.rates.generated["weighed"], rel=0.1)
    assert weighed_ns(attention(4096, 8192), H100) == pytest.approx(2 * weighed_ns(work, H100), rel=0.05)


def test_few_rows_are_weighed_by_parts_of_them():
    """As many programs as the GPU has room for, whatever the number of rows."""
    alone, many = attention(16, 65536, batch=8), attention(16, 65536, batch=128)
    assert weighed_ns(alone, H100) == pytest.approx(weighed_ns(many, H100) / 16, rel=0.2)
    assert weighed_ns(attention(16, 64, batch=1), H100) < 2 * H100.rates.start_us * 1e3


def test_what_no_block_has_registers_for_has_a_price():
    """Hundreds of products that are added up, as one nest: the smallest block."""
    work = followed(4096, 4096, 512, held=300)
    assert generated_ns(work, H100) > generated_ns(replace(work, held=1), H100)


def test_grouped_products_have_a_price():
    """A block of rows counts for each group in it: few long groups are like one product, many short ones are not."""

    def price(groups, rows=16384):
        return generated_ns(Contraction(rows, 1536, 2048, matrices=groups, grouped=True), H100)

    assert price(1) <= price(2) < price(32) < price(256)
    assert price(1) == generated_ns(Contraction(16384, 1536, 2048), H100)
    calls = [library_ns(Contraction(16384, 1536, 2048, grouped=g), H100) for g in (False, True)]
    assert calls[0] < calls[1]
