"""Tiles in the IR: the model writes them, users edit them, measurements replace them; whatever the tile, the values are the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from support import import_function, lower
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, i64

from stepwell.dialects.expr import evaluate, sym
from stepwell.dialects.host import LaunchOp
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.errors import StepwellError
from stepwell.lowering.mem_to_tt.program.grid import STRIP_ROWS_AT_ONCE
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.schedule_attrs import BOUNDS, GPU, OLDER_TILE_KEYS, schedule_table, update_schedule
from stepwell.passes.analysis.symbols import symbol_facts
from stepwell.passes.cost.machine.gpu import machine
from stepwell.passes.gpu.tiles.candidates import candidates, read_tile, tile_attr
from stepwell.passes.gpu.tiles.rules import choose
from stepwell.passes.gpu.tiles.tile import Tile
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import Pipeline, Stage, run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.triton import gpu_tune as tuning
from stepwell.targets.triton.gpu import gpu_target
from stepwell.targets.triton.timer import use_timer
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

STAGES = ["nd", "loop", "mem"]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def halves(count: int) -> torch.Tensor:
    return (torch.arange(count) * 0.5).long()


PROGRAMS = {
    "softmax": (lambda x: (torch.softmax(x, -1),), randn(11, 100)),
    "columns": (lambda x: (x.sum(0), x.amax(0)), randn(70, 45)),
    "transpose": (lambda x, y: (x + y.t(),), randn(70, 90), randn(90, 70)),
    "values": (lambda x: (x.exp() * 2,), randn(9, 30)),
    "pieces": (lambda x: (torch.softmax(x, -1),), randn(2, 1300)),
    "halves": (lambda x, y: (torch.cat([x.relu(), y.sigmoid()], 1) + 1,), randn(3, 2048), randn(3, 1100)),
    "resampled": (lambda x: (x[:, :, halves(32)[:, None], halves(128)] * 2,), randn(1, 3, 16, 64)),
    "products": (lambda x, v, w: (torch.softmax(torch.relu(x @ v) @ w, -1),), randn(9, 33), randn(33, 70), randn(70, 41)),
    "few rows": (lambda x, w: (torch.relu(x @ w.t()),), randn(9, 1024).bfloat16() / 16, randn(1100, 1024).bfloat16() / 16),
    "pool": (lambda x: (torch.nn.functional.max_pool2d(x, 3, 2, 1),), randn(1, 2, 12, 14)),
}


def in_memory(name, schedule=True):
    function, *args = PROGRAMS[name]
    imported = import_function(function, *args)
    pipeline = default_pipeline("gpu", stages=STAGES)
    if not schedule:
        pipeline.remove("gpu-schedule")
    run(pipeline, imported.module, context())
    return imported


def nests(module):
    return [n for n in module.walk() if is_nest_in_memory(n)]


def check(imported, name):
    """Lower the module and compare what it computes with eager."""
    function, *args = PROGRAMS[name]
    run(default_pipeline("gpu", stages=["tt"]), imported.module, context())
    for got, expected in zip(run_loop(imported.module, args, imported.constants, imported.objects), function(*args), strict=True):
        close = 1e-2 if expected.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(got.reshape(expected.shape), expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_candidate_computes_the_same(name):
    first = in_memory(name)
    symbols, hints = symbol_facts(first.module)
    count = max(len(candidates(NestAccess(n, symbols), hints, machine("sm_90"))) for n in nests(first.module))
    assert count >= 3
    for k in range(0, count, 2):
        imported = in_memory(name)
        for nest in nests(imported.module):
            info = NestAccess(nest, symbols)
            found = candidates(info, hints, machine("sm_90"))
            update_schedule(nest, {GPU: tile_attr(info, found[min(k, len(found) - 1)])})
        check(imported, name)


def test_programs_of_a_product_may_go_through_several_blocks():
    """Of sums of one step the rules have no such programs, so that measurements look for them."""
    x, y = (randn(*shape).bfloat16() for shape in ((2, 140, 64), (2, 64, 140)))
    gpu, counts = replace(machine("sm_90"), multiprocessors=2), []
    for k in (-1, -2, 0):
        never = "nd-library-products{library=never}"
        imported = lower(lambda x, y: torch.relu(torch.bmm(x, y)), x, y, to="mem", nd_library_products=never, gpu_schedule="")
        symbols, hints = symbol_facts(imported.module)
        (nest,) = nests(imported.module)
        info = NestAccess(nest, symbols)
        tile = candidates(info, hints, gpu)[k]
        counts.append(tile.persistent)
        update_schedule(nest, {GPU: tile_attr(info, tile)})
        run(default_pipeline("gpu", stages=["tt"]), imported.module, context())
        (got,) = run_loop(imported.module, [x, y], imported.constants, imported.objects)
        torch.testing.assert_close(got, torch.relu(torch.bmm(x, y)), rtol=1e-2, atol=1e-2)
    assert counts == [4, 2, 0]


@pytest.mark.parametrize("name", ["columns", "halves", "resampled", "products", "few rows"])
def test_a_tile_reads_back(name):
    imported = in_memory(name)
    symbols, hints = symbol_facts(imported.module)
    (nest,) = nests(imported.module)[:1]
    info = NestAccess(nest, symbols)
    assert str(read_tile(nest, info)) == str(choose(info, hints))


@pytest.mark.parametrize("name", ["columns", "halves", "resampled", "products", "few rows"])
def test_older_names_of_keys_mean_the_same(name):
    imported = in_memory(name)
    symbols, _ = symbol_facts(imported.module)
    (nest,) = nests(imported.module)[:1]
    info = NestAccess(nest, symbols)
    tile, table = read_tile(nest, info), schedule_table(nest)[GPU]
    assert isinstance(table, DictionaryAttr)
    older = {new: old for old, new in OLDER_TILE_KEYS.items()}
    update_schedule(nest, {GPU: DictionaryAttr({older.get(key, key): value for key, value in table.data.items()})})
    assert str(read_tile(nest, info)) == str(tile)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('"axes" : [[0 : i64], [0 : i64]]', "name each of the nest's 1 loops once"),
        ('"blocks" : [12 : i64]', "blocks .* are powers of two"),
        ('"warps" : 3 : i64', "warps are powers of two"),
        ('"stages" : -1 : i64', "stages at least 0"),
        ('"reduction_block" : "all"', "'reduction_block' of a tile is a number"),
        ('"coarsening" : 4 : i64', "of the last of the grid loops"),
        ('"loop_per_program" : 1 : i64', "have a block each are loop.for"),
        ('"second_reduction_block" : 12 : i64', "second_reduction_block and warps are powers of two"),
        ('"dot" : 1 : i64', "a tile with dot has two axes"),
        ('"chunk" : 1 : i64', "a tile has no key 'chunk'; did you mean 'chunks'"),
        ('"pieces" : 1 : i64', "'pieces' is the older name of 'chunks', and the tile has both"),
        ('"second_reduction_block" : 16 : i64, loop_per_program = 1 : i64', "a tile with second_reduction_block has reduction_block too"),
    ],
)
def test_a_tile_that_does_not_fit_is_named(change, message):
    from xdsl.dialects.builtin import DictionaryAttr
    from xdsl.parser import Parser

    imported = in_memory("softmax")
    (nest,) = nests(imported.module)
    given = schedule_table(nest)[GPU]
    new = Parser(context(), "{" + change.replace('"axes" :', "axes =").replace('" :', " =").replace('"', "", 1) + "}").parse_attribute()
    assert isinstance(given, DictionaryAttr) and isinstance(new, DictionaryAttr)
    update_schedule(nest, {GPU: DictionaryAttr({**given.data, **new.data})})
    with pytest.raises(StepwellError, match=message):
        run(default_pipeline("gpu", stages=["tt"]), imported.module, context())


def test_small_products_of_a_row_are_one_nest_with_an_axis_of_their_own():
    imported = in_memory("products")
    (nest,) = nests(imported.module)
    tile = schedule_table(nest)[GPU]
    assert isinstance(tile, DictionaryAttr) and tile.data["second_reduction_block"] == IntegerAttr(64, i64)  # 70 in two blocks
    check(imported, "products")


def test_longer_reductions_side_by_side_keep_a_nest_of_their_own():
    """What would keep one program busy for longer than a launch takes keeps its nests, each with as many programs as it has elements."""
    x, y = randn(40, 200), randn(100, 200)

    def nearest(x, y):
        return ((x[:, None] - y).abs().sum(-1).argmin(-1),)

    imported = import_function(nearest, x, y)
    run(default_pipeline("gpu", stages=STAGES), imported.module, context())
    tiles = [schedule_table(n)[GPU] for n in nests(imported.module)]
    assert len(tiles) == 2 and not any(isinstance(tile, DictionaryAttr) and "second_reduction_block" in tile.data for tile in tiles)


@pytest.mark.parametrize(("shape", "bounded"), [((6, 40), True), ((6, 64), True), ((6, 65), False), ((0, 5), True), ((3000, 3), False)])
def test_bounds_of_sizes_stand_in_the_schedule_and_can_be_edited(shape, bounded):
    def function(x):
        return (torch.softmax(x, -1),)

    x = randn(6, 40)
    imported = import_function(function, x, mode="symbolic")
    run(default_pipeline("gpu", stages=STAGES), imported.module, context())
    (nest,) = nests(imported.module)
    given = schedule_table(nest)[BOUNDS]
    assert isinstance(given, DictionaryAttr)
    rows, columns = sorted(given.data.items(), key=lambda item: -item[1].value.data)
    assert columns[1] == IntegerAttr(64, i64)
    update_schedule(nest, {BOUNDS: DictionaryAttr({rows[0]: IntegerAttr(2000, i64), columns[0]: columns[1]})})
    run(default_pipeline("gpu", stages=["tt"]), imported.module, context())
    launches = [op for op in imported.module.walk() if isinstance(op, LaunchOp)]
    sizes = {sym(rows[0]): shape[0], sym(columns[0]): shape[1]}
    grids = [evaluate(op.grid.data[0], sizes) for op in launches]
    assert len(grids) == 2 and grids[bounded] == 0
    y = randn(*shape)
    (got,) = run_loop(imported.module, [y], imported.constants, imported.objects)
    torch.testing.assert_close(got.reshape(shape), function(y)[0], rtol=2e-5, atol=2e-5)


def test_blocks_are_counted_without_a_list_of_them():
    """A bound for a size that is a symbol may be any number: the rows of a batch norm over n images of n x n have up to 2**62 elements."""
    for length in (0, 1, 7, 16, 40):
        for trips in range(90):
            tile = Tile(reduction_block=16, segment=length)
            assert tile.count(trips) == len(tile.blocks(trips))
    assert Tile(reduction_block=1024).count(1 << 62) == 1 << 52


def test_warps_of_a_machine_with_wide_ones():
    imported = in_memory("transpose")
    symbols, hints = symbol_facts(imported.module)
    info = NestAccess(nests(imported.module)[0], symbols)
    narrow, wide = (choose(info, hints, machine(name)) for name in ("sm_90", "gfx942"))
    assert narrow.warps == 2 * wide.warps
    assert machine("sm_100", 148).multiprocessors == 148 and machine("gfx90a").lanes == 64


class Warps:
    """A timer that likes many warps, and counts what it is asked."""

    device = "a GPU"

    def __init__(self):
        self.asked = []

    def seconds(self, kernel, grid, arguments):
        self.asked.append((kernel, grid, arguments))
        return 1e-3 / kernel.options.num_warps

    def release(self):
        pass


@pytest.fixture
def uncompiled(monkeypatch):
    """Candidates are not compiled."""
    from stepwell.targets.triton.compile import CompiledKernel
    from stepwell.targets.triton.emit import kernel_of
    from stepwell.targets.triton.gpu import options_of

    def compile(modules, target, tolerant=False):
        options = [options_of(dict(kernel_of(m).attributes)) for m in modules]
        return [CompiledKernel("k", target, o, "cubin", b"", {}, "") for o in options]

    monkeypatch.setattr(tuning, "compile_kernels", compile)


def test_measured_tiles_are_kept(tmp_path, uncompiled):
    path = tmp_path / "tiles.json"
    timer = Warps()

    def tuned():
        imported = in_memory("softmax", schedule=False)
        tiles = tuning.Tiles(path)
        return imported, tuning.tune(context(), imported.module, gpu_target("sm_90"), machine("sm_90"), timer, tiles)

    imported, count = tuned()
    assert count == 1 and len(timer.asked) >= 3
    (entry,) = json.loads(path.read_text()).values()
    most = max(kernel.options.num_warps for kernel, _, _ in timer.asked)
    assert f"warps = {most} : i64" in entry["tile"] and len(entry["microseconds"]) == len(timer.asked)
    _, grid, arguments = timer.asked[0]
    assert len(grid) == 1 and grid[0] >= 1
    assert all(memory.bytes == 11 * 100 * 4 and memory.kind == "float32" for memory in arguments)
    schedule = schedule_table(nests(imported.module)[0])
    assert schedule["measured"].data["chosen"].value.data < schedule["measured"].data["model"].value.data
    check(imported, "softmax")
    timer.asked.clear()
    imported, count = tuned()
    assert count == 0 and not timer.asked
    assert str(schedule_table(nests(imported.module)[0])[GPU]) == entry["tile"]
    # a file that somebody broke does no harm
    path.write_text(path.read_text().replace("axes", "axis"))
    imported, count = tuned()
    assert count == 1 and timer.asked
    path.write_text("[")
    assert tuned()[1] == 1


def test_a_tile_that_was_given_is_not_measured(uncompiled):
    imported, timer = in_memory("softmax"), Warps()
    assert tuning.tune(context(), imported.module, gpu_target("sm_90"), machine("sm_90"), timer, tuning.Tiles()) == 0
    assert not timer.asked


def test_a_tile_that_is_hardly_faster_is_not_taken(uncompiled):
    class Noise(Warps):
        def seconds(self, kernel, grid, arguments):
            super().seconds(kernel, grid, arguments)
            return 1e-3 * (1 - 0.001 * len(self.asked))

    imported, plain = in_memory("columns", schedule=False), in_memory("columns")
    tuning.tune(context(), imported.module, gpu_target("sm_90"), machine("sm_90"), Noise(), tuning.Tiles())
    for nest, other in zip(nests(imported.module), nests(plain.module), strict=True):
        assert schedule_table(nest)[GPU] == schedule_table(other)[GPU]


def test_the_pass_measures_where_there_is_a_gpu(uncompiled, no_gpu, tmp_path, monkeypatch):
    from stepwell.targets.target import find_target

    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    for timer in (None, Warps()):
        imported = in_memory("columns", schedule=False)
        pipeline = default_pipeline("gpu", stages=STAGES)
        imported.module.attributes[MACHINE] = MachineAttr.get("sm_90", device=1)
        find_target("gpu").fit(pipeline, imported.module, "cuda:1", "always")
        found = [p for p in pipeline.passes() if p.name == "gpu-tune"]
        assert len(found) == 1
        with use_timer(timer):
            found[0].apply(context(), imported.module)
        assert all((GPU in schedule_table(n)) is (timer is not None) for n in nests(imported.module))
    assert (tmp_path / "tiles.json").exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_nest_is_measured_with_the_tile_that_it_has(name, uncompiled, no_gpu):
    imported = in_memory(name)
    with use_timer(None):
        assert tuning.nest_seconds(imported.module) == {}
    timer = Warps()
    with use_timer(timer):
        times = tuning.nest_seconds(imported.module)
    assert len(timer.asked) == len(times) and set(times) <= set(nests(imported.module))
    symbols, hints = symbol_facts(imported.module)
    for (_, grid, arguments), (nest, seconds) in zip(timer.asked, times.items(), strict=True):
        assert seconds == 1e-3 / read_tile(nest, NestAccess(nest, symbols)).warps and len(grid) == 1 and arguments


def test_programs_that_add_to_the_same_memory_are_not_measured(uncompiled):
    imported = import_function(lambda x, i: torch.zeros(8).index_add(0, i, x), randn(64), torch.arange(64) % 8)
    run(default_pipeline("gpu", stages=STAGES), imported.module, context())
    with use_timer(timer := Warps()):
        times = tuning.nest_seconds(imported.module)
    assert len(timer.asked) == len(times) < len(nests(imported.module))


def kernels_of(function, *args):
    imported = import_function(function, *args)
    run(default_pipeline("gpu", stages=[*STAGES, "tt"]), imported.module, context())
    for got, expected in zip(run_loop(imported.module, args, imported.constants, imported.objects), function(*args), strict=True):
        torch.testing.assert_close(got.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
    return str(imported.module)


def test_rows_go_through_memory_in_its_order():
    x = randn(2, 5, 3, 64).transpose(1, 2)  # heads apart by 64, positions by 192
    imported = import_function(lambda x: torch.softmax(x, -1), x, mode="real")
    run(default_pipeline("gpu", stages=STAGES), imported.module, context())
    (nest,) = nests(imported.module)
    info = NestAccess(nest, symbol_facts(imported.module)[0])
    (axis, _), *_ = read_tile(nest, info).axes
    assert [one.size.value for one in axis] == [2, 5, 3]
    kernels_of(lambda x: (torch.softmax(x, -1),), x)


def test_weights_are_read_before_the_row_is_reduced():
    text = kernels_of(lambda x, w: (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,), randn(7, 512), randn(512))
    assert text.count("tt.load") == 2 and text.rindex("tt.load") < text.index('"tt.reduce"')


def test_weights_that_take_too_many_registers_are_read_when_needed():
    function, args = lambda x, w: (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * w,), (randn(3, 512), randn(512))
    imported = import_function(function, *args, mode="real")
    run(default_pipeline("gpu", stages=STAGES), imported.module, context())
    (nest,) = nests(imported.module)
    tile = {**schedule_table(nest)[GPU].data, "warps": IntegerAttr(1, i64), "reduction_block": IntegerAttr(1024, i64)}
    update_schedule(nest, {GPU: DictionaryAttr(tile)})
    run(default_pipeline("gpu", stages=["tt"]), imported.module, context())
    text = str(imported.module)
    assert text.index('"tt.reduce"') < text.rindex("tt.load")


def test_rows_that_are_read_again_are_found_in_the_nearest_cache():
    def function(x, w):
        return ((x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w,)

    text = kernels_of(function, randn(3, 8192).bfloat16(), torch.ones(8192, dtype=torch.bfloat16))
    assert [text.count(f"evictionPolicy = {policy}") for policy in ("evict_last", "evict_first")] == [1, 1]
    assert text.index("evict_last") < text.index('"tt.reduce"') < text.index("evict_first")
    kept = kernels_of(function, randn(3, 4096).bfloat16(), torch.ones(4096, dtype=torch.bfloat16))
    assert "evictionPolicy" not in kept and kept.count("tt.load") == 2


def tuned_where_unsure(name, timer, least=0):
    """Remarks of a run of gpu-tune over a program, where it measures what the rules are not sure of."""
    remarks = []
    imported = in_memory(name, schedule=False)
    pipeline = default_pipeline("gpu", stages=STAGES)
    pipeline.add("mem", f"gpu-tune{{unsure least={least}}}", "before:gpu-schedule")
    found = next(p for p in pipeline.passes() if p.name == "gpu-tune")
    with use_timer(timer):
        run(Pipeline("", [Stage("mem", [found])]), imported.module, context(), Instrumentation(remarks=remarks.append))
    return imported, [r.text for r in remarks]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("columns", "across the fastest dimension"), ("transpose", "disagree"), ("softmax", ""), ("values", ""), ("pool", "")],
)
def test_only_tiles_that_the_rules_are_not_sure_of_are_measured(name, reason, uncompiled, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    timer = Warps()
    imported, remarks = tuned_where_unsure(name, timer)
    assert bool(timer.asked) is bool(reason) and len(timer.asked) <= tuning.MAX_TIMED_TILES
    assert [reason in text for text in remarks] == [True] * bool(reason)
    assert all((GPU in schedule_table(n)) is bool(reason) for n in nests(imported.module))
    timer.asked.clear()
    tuned_where_unsure(name, timer)
    assert not timer.asked  # the file of tiles remembers


def test_small_nests_are_not_measured(uncompiled, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    timer = Warps()
    tuned_where_unsure("columns", timer, least=tuning.MIN_TUNED_BYTES)
    assert not timer.asked


def test_blocks_fit_the_shared_memory_of_the_gpu():
    """A block goes through it as a whole where threads exchange its elements."""
    x = torch.zeros(4, 16384, dtype=torch.float64)
    imported = lower(lambda x: torch.softmax(x, -1), x, to="loop", target="gpu")
    pipeline = default_pipeline("gpu", stages=["mem"])
    pipeline.remove("gpu-schedule")
    run(pipeline, imported.module, context())
    assert machine("sm_89").shared == 99 << 10 and machine("sm_12").shared == 64 << 10
    too_large = 0
    for nest in nests(imported.module):
        info = NestAccess(nest, symbol_facts(imported.module)[0])
        large, small = (choose(info, {}, machine(name)) for name in ("sm_90", "sm_89"))
        too_large += large.elements * 8 > machine("sm_89").shared
        assert small.elements * 8 <= machine("sm_89").shared
        assert large.elements * large.chunks == small.elements * small.chunks  # a row stays on chip
    assert too_large


def test_long_loops_over_values_are_shared_out():
    """Those of a concatenation; not where one of them finds on chip what another one has read."""
    assert "loop_per_program = 1" in str(in_memory("halves").module)
    PROGRAMS["twice"] = (lambda x: (torch.cat([x.relu(), x * 2], 1),), randn(3, 2048))
    PROGRAMS["short"] = (lambda x, y: (torch.cat([x.relu(), y.exp()], 1),), randn(3, 2048), randn(3, 30))
    try:
        for name in ("twice", "short"):
            imported = in_memory(name)
            assert "loop_per_program" not in str(imported.module)
            check(imported, name)
    finally:
        del PROGRAMS["twice"], PROGRAMS["short"]


def test_rows_that_are_made_of_the_same_rows_follow_each_other():
    imported = in_memory("resampled")
    assert "coarsening = 8" in str(imported.module)
    check(imported, "resampled")
    (rows,) = (op for op in imported.module.walk() if op.name == "scf.for")
    assert (rows.ub.owner.value.value.data, rows.step.owner.value.value.data) == (8, STRIP_ROWS_AT_ONCE)
    names = [op.name for op in rows.walk()]
    assert names.count("tt.store") == STRIP_ROWS_AT_ONCE and str(imported.module).count("tt.store") == STRIP_ROWS_AT_ONCE
    assert names.count("tt.load") == STRIP_ROWS_AT_ONCE


def test_places_of_columns_are_loaded_once_for_all_rows_of_a_program():
    PROGRAMS["places"] = (
        lambda x, i, j: (x[:, :, i[:, None], j] * 2,), randn(1, 3, 16, 64), torch.arange(32) // 2, torch.arange(128) // 2,
    )  # fmt: skip
    try:
        imported = in_memory("places")
        assert "coarsening = 8" in str(imported.module)
        check(imported, "places")
    finally:
        del PROGRAMS["places"]
    (rows,) = (op for op in imported.module.walk() if op.name == "scf.for")
    assert [op.name for op in rows.walk()].count("tt.load") == 2 * STRIP_ROWS_AT_ONCE  # the place of each row, and what lies there
    assert str(imported.module).count("tt.load") == 2 * STRIP_ROWS_AT_ONCE + 1


def test_weights_are_read_once_by_a_program_that_goes_through_rows():
    def backward(g, x, mean, rstd, w, b):
        return torch.ops.aten.native_layer_norm_backward(g, x, (128,), mean, rstd, w, b, [True, True, True])

    args = (randn(2112, 128), randn(2112, 128) + 1, randn(2112, 1), randn(2112, 1).abs(), randn(128), randn(128))
    imported = import_function(backward, *args, mode="real")
    run(default_pipeline("gpu", stages=[*STAGES, "tt"]), imported.module, context())
    loops = [op for op in imported.module.walk() if op.name == "scf.for"]
    loads = [sum(op.name == "tt.load" for op in one.body.block.ops) for one in loops if any(op.name == "tt.store" for op in one.walk())]
    assert loads == [4]  # those of the row: not the weights
    for got, expected in zip(run_loop(imported.module, args, imported.constants, imported.objects), backward(*args), strict=True):
        torch.testing.assert_close(got.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


def chosen(function, *args):
    """The tiles of a program's nests."""
    PROGRAMS["chosen"] = (lambda *given: (function(*given),), *args)
    try:
        imported = in_memory("chosen")
        symbols, _ = symbol_facts(imported.module)
        return [read_tile(n, NestAccess(n, symbols)) for n in nests(imported.module)]
    finally:
        del PROGRAMS["chosen"]


def blocks(tile):
    return [block for _, block in tile.axes]


def test_distances_have_rows_of_both_tensors():
    (tile,) = chosen(lambda x, y: (x[:, None] - y[None]).abs().amax(-1), randn(90, 128), randn(100, 128))
    assert (blocks(tile), tile.reduction_block) == ([4, 64], 32)


def test_threads_have_one_element_each_of_those_that_lie_apart():
    """Points of three coordinates, boxes of four."""
    (tile,) = chosen(lambda x: x / x.norm(dim=-1, keepdim=True), randn(5000, 3))
    assert (blocks(tile), tile.warps) == ([128], 4)
    (tile,) = chosen(lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]), randn(5000, 4))
    assert (blocks(tile), tile.warps) == ([128], 4)
    (tile,) = chosen(lambda x: x[:, 1] * 2, randn(4, 5000))  # a column of a tensor is as far from the next one as it is
    assert blocks(tile) == [4]


def test_few_results_side_by_side_are_an_axis():
    (tile,) = chosen(lambda x, m: torch.einsum("bchw,dc->bdhw", x, m), randn(2, 3, 130, 130), randn(3, 3))
    assert blocks(tile) == [4, 256]


def test_columns_of_16_bits_are_read_by_whole_lines():
    assert [blocks(t)[0] for t in chosen(lambda x: x.sum(0), randn(300, 20000).bfloat16())][:1] == [64]
    assert [blocks(t)[0] for t in chosen(lambda x: x.sum(0), randn(300, 20000))][:1] == [32]


def test_what_does_not_vary_along_a_loop_serves_two_of_its_iterations():
    (tile,) = chosen(lambda x, y: (x[:, None] - y[None]).tanh(), randn(600), randn(3000))
    assert blocks(tile) == [2, 512]
    (tile,) = chosen(lambda x, y: x * y, randn(600, 3000), randn(3000))  # most of what is read is another one in each row
    assert blocks(tile) == [1024]


def test_loops_that_leave_blocks_half_empty_are_flattened():
    (tile,) = chosen(lambda x: torch.nn.functional.pad(x, (3, 3, 3, 3), mode="reflect") * 2, randn(2, 4, 128, 128))
    assert [len(loops) for loops, _ in tile.axes] == [2] and blocks(tile) == [1024]


def test_rows_that_are_read_once_are_not_all_on_chip_where_that_takes_too_many_registers():
    """Two tensors of 32768 elements, or much arithmetic for each element."""
    function = lambda x, y: (torch.exp(x) * y).sum(-1)  # noqa: E731
    (tile,) = chosen(function, randn(600, 32768)[:, :32768], randn(600, 32768))
    assert (tile.reduction_block, tile.chunks, tile.stages) == (4096, 1, 3)

    def much(x):
        for _ in range(8):
            x = torch.tanh(x) * x + torch.exp(x)
        return x.sum(-1)

    (tile,) = chosen(much, randn(600, 8192))
    assert (tile.reduction_block, tile.chunks) == (1024, 1)
    (tile,) = chosen(lambda x, y: (torch.softmax(x, -1) / y).argmax(-1), randn(600, 50000), randn(600, 50000))
    assert (tile.reduction_block, tile.group) == (1024, 1)


def test_every_second_element_counts_as_near():
    (tile,) = chosen(lambda x: (x[:, ::2] * x[:, 1::2]).sum(-1), randn(600, 2048))
    assert blocks(tile) == [1] and tile.reduction_block == 1024


def test_loops_that_memory_has_as_one_are_one():
    """But for what is the same along one of them: the channels of pixels, and of groups."""
    (tile,) = chosen(lambda x, m: x.float() - m, torch.zeros(2, 64, 64, 3, dtype=torch.uint8), randn(3))
    assert [len(loops) for loops, _ in tile.axes] == [2] and blocks(tile) == [1024]
    pixels = randn(4, 400, 320).transpose(1, 2)
    (tile,) = chosen(lambda x, m: (x.view(4, 32, 10, 400) + m).contiguous(), pixels, randn(32, 1, 1))
    assert [len(loops) for loops, _ in tile.axes] == [1, 2] and blocks(tile) == [64, 64]


def test_rows_of_tables_are_no_windows():
    """Rows that indices say are read by 16 bytes; windows, which overlap, by few elements."""
    table, rows, weights = randn(900, 1024).bfloat16(), torch.zeros(700, 2, dtype=torch.long), randn(700, 2).bfloat16()
    (tile,) = chosen(lambda x, i, w: (x[i] * w[..., None]).sum(1), table, rows, weights)
    assert tile.elements // (32 * tile.warps) == 16
    (tile,) = chosen(lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1), randn(2, 8, 64, 64))
    assert tile.elements // (32 * tile.warps) == 2


def test_threads_have_few_elements_of_those_that_lie_anywhere():
    """Sums at a place for each element, and rows that are gathered."""
    x, i = randn(50, 4096), torch.zeros(50, 4096, dtype=torch.long)
    *_, tile = chosen(lambda x, i: torch.zeros(50, 70).scatter_add(1, i, x), x, i)
    assert (blocks(tile), tile.warps) == ([256], 4)
    (tile,) = chosen(lambda x, i: x.gather(1, i[:, :64]).softmax(-1), x, i)
    assert (blocks(tile), tile.reduction_block, tile.warps) == ([1], 64, 1)
    (tile,) = chosen(lambda x, i: x.gather(1, i[:, :16]).softmax(-1), x, i)
    assert (blocks(tile), tile.reduction_block, tile.warps) == ([4], 16, 1)


def test_threads_have_16_bytes_of_bytes():
    (tile,) = chosen(lambda x: x.to(torch.int8), randn(9000).bfloat16())
    assert (blocks(tile), tile.warps) == ([1024], 2)
    (tile,) = chosen(lambda x: x.to(torch.int8), randn(9000))  # as many of four bytes are more than a thread should have
    assert (blocks(tile), tile.warps) == ([1024], 4)


def test_what_programs_share_stays_in_the_cache():
    text = kernels_of(lambda x, y: (x[:, :, None] * y[:, None],), randn(30, 64), randn(30, 128))
    assert text.count("evictionPolicy = evict_last") == text.count("tt.load") == 2
    text = kernels_of(lambda x, y: (x * y,), randn(30, 2048), randn(30, 2048))
    assert "evictionPolicy" not in text


def test_much_arithmetic_is_shared_by_more_threads():
    (tile,) = chosen(lambda x: (torch.tanh(x / 50) * 50).softmax(-1), randn(600, 1024))
    assert (tile.reduction_block, tile.warps) == (1024, 2)
    (tile,) = chosen(lambda x: x.softmax(-1), randn(600, 1024))
    assert (tile.reduction_block, tile.warps) == (1024, 1)
    function = lambda x, y: ((x * y).sigmoid() * (1 - y).exp().log1p() * (x - y).abs().log()).sum(-1)  # noqa: E731
    (tile,) = chosen(function, randn(600, 9000), randn(600, 9000))
    assert (tile.reduction_block, tile.warps) == (1024, 8)


def test_rows_of_16_bits_that_one_reduction_is_made_of_are_read_twice():
    (tile,) = chosen(lambda x: (x / x.abs().amax(-1, keepdim=True) * 127).to(torch.int8), torch.empty(600, 16384, dtype=torch.bfloat16))
    assert (tile.reduction_block, tile.chunks, tile.warps) == (8192, 1, 8)
    blocks_of_rows = torch.empty(30, 128, 20, 128, dtype=torch.bfloat16)
    (tile,) = chosen(lambda x: (x / x.abs().amax((1, 3), keepdim=True) * 127).to(torch.int8), blocks_of_rows)
    assert (tile.reduction_block, tile.chunks, tile.warps) == (16384, 1, 8)
