"""register_implementation: an operator of users is computed by the cheapest of what serves a call, and passes find it before."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import stepwell
from stepwell.lowering.fx_to_nd.core import registry, user_rules
from stepwell.lowering.fx_to_nd.core.user_rules import RuleError
from stepwell.passes.manager import user
from stepwell.tools.rewrite import implementations

EXAMPLE = Path(__file__).parents[3] / "docs/examples/engine.py"


@torch.library.custom_op("implemented::shift", mutates_args=())
def shift(x: torch.Tensor, by: float) -> torch.Tensor:
    return x + by


@shift.register_fake
def _(x, by):
    return torch.empty_like(x)


SHIFT = torch.ops.implemented.shift.default


@pytest.fixture(autouse=True)
def own():
    """Implementations, rules and passes of a test end with it."""
    table, kept = dict(implementations._REGISTERED), set(registry.KEPT)
    with user.isolated():
        yield
    implementations._REGISTERED.clear()
    implementations._REGISTERED.update(table)
    registry.KEPT.clear()
    registry.KEPT.update(kept)
    for name in list(user_rules.registered()):
        if name.startswith("implemented."):
            stepwell.unregister_rule(name)


def run(fn, *args, dynamic=False, **options):
    """Compile and compare with eager; how many implementations were chosen."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    compiled = torch.compile(fn, backend="stepwell", dynamic=dynamic, options={"cache": "off", "on_failure": "raise", **options})
    torch.testing.assert_close(compiled(*args), fn(*args))
    return stepwell.counters["passes"].get("select-implementations", {}).get("num-selected", 0)


def program(x):
    return torch.ops.implemented.shift(x * 2, 0.5).relu()


def test_the_cheapest_that_serves_is_taken():
    called = []

    @stepwell.register_implementation(SHIFT, when=lambda call: call["x"].shape[0] < 8, price=lambda call: 1e-9)
    def short(x, by):
        called.append("short")
        return x + by

    @stepwell.register_implementation(SHIFT, price=lambda call: call.seconds + call["by"])
    def any_size(x, by):
        called.append("any")
        return by + x

    assert run(program, torch.randn(4, 4)) == 1
    folder = stepwell.explain(program, torch.randn(4, 4), quiet=True)
    assert any("short, 0.001 us, any_size" in line for line in folder.graphs[0].remarks)
    called.clear()
    assert run(program, torch.randn(16, 4)) == 1
    assert "any" in called and "short" not in called


@pytest.mark.long
def test_a_condition_that_is_not_known_of_all_sizes_does_not_hold():
    stepwell.register_implementation(SHIFT, lambda x, by: x + by, name="short", when=lambda call: call["x"].shape[0] < 8)
    assert run(program, torch.randn(4, 4), dynamic=True) == 0
    stepwell.register_implementation(SHIFT, lambda x, by: x + by, name="all")
    assert run(program, torch.randn(4, 4), dynamic=True) == 1


@pytest.mark.long
def test_the_rule_of_an_operator_is_its_meaning():
    @stepwell.register_rule(SHIFT)
    def rule(b, x, by):
        return b.add(x, by)

    stepwell.register_implementation(SHIFT, lambda x, by: torch.ops.implemented.shift(x, by), name="own kernel", price=lambda call: 1.0)
    assert run(program, torch.randn(4, 4)) == 1
    assert stepwell.counters["fallback"] == 0
    stepwell.register_implementation(SHIFT, lambda x, by: torch.ops.implemented.shift(x, by), name="own kernel", price=lambda call: 0.0)
    run(program, torch.randn(4, 4))
    explained = stepwell.explain(program, torch.randn(4, 4), quiet=True)
    assert any(step.kind == "call" for step in explained.graphs[0].steps)


def test_mistakes_are_named():
    with pytest.raises(RuleError, match="takes an overload|takes one overload"):
        stepwell.register_implementation(torch.ops.implemented.shift, lambda x, by: x)
    with pytest.raises(RuleError, match="is a function of its arguments, got 3"):
        stepwell.register_implementation(SHIFT, 3)
    with pytest.raises(RuleError, match="price of an implementation of implemented.shift.default is a function of a call"):
        stepwell.register_implementation(SHIFT, lambda x, by: x, price=1.0)
    with pytest.raises(RuleError, match="no implementation of implemented.shift.default is registered"):
        stepwell.unregister_implementations(SHIFT)
    for function, price, message in (
        (lambda x, by: x[0], None, r"implementation 'bad' of implemented.shift.default returns"),
        (lambda x, by: x.nothing, None, "implementation 'bad' of implemented.shift.default cannot be traced"),
        (lambda x, by: x + by, lambda call: -1.0, "the price of 'bad' is -1.0, not a number of seconds"),
        (lambda x, by: x + by, lambda call: call["y"], "the price of 'bad' failed: KeyError"),
    ):
        stepwell.register_implementation(SHIFT, function, name="bad", price=price)
        with pytest.raises(Exception, match=message):
            run(program, torch.randn(4, 4))
    stepwell.unregister_implementations(SHIFT)
    assert not registry.KEPT & {str(SHIFT)}
    assert run(program, torch.randn(4, 4)) == 0


@pytest.fixture
def engine():
    spec = importlib.util.spec_from_file_location("engine_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
def test_fusions_of_an_engine(engine, tmp_path):
    """RMS norm and SiLU with quantisation, rotary positions with the write into a cache, an all-reduce with the norm behind it."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    ops = engine.ops
    x, weight, cache = torch.randn(4, 8), torch.randn(8), torch.randn(16, 2, 8)
    cos, sin, places = torch.randn(4, 1, 4), torch.randn(4, 1, 4), torch.tensor([3, 1, 7, 9])

    def layer(x, weight, up, cache, cos, sin, places):
        q, scale = ops.quantise(ops.rms_norm(x, weight, engine.EPS))
        wide, wide_scale = ops.quantise(ops.silu_mul((q.float() * scale) @ up))
        return wide, wide_scale, cache.index_copy(0, places, ops.rope(wide.float().view(-1, 2, 8) * 0.1, cos, sin))

    assert run(layer, x, weight, torch.randn(8, 32), cache, cos, sin, places) == 3
    passes = stepwell.counters["passes"]
    for name in ("norm-then-quantise", "silu-then-quantise", "rope-then-write"):
        assert next(p for n, p in passes.items() if n.startswith(name))["num-replaced"] == 1
    assert stepwell.counters["fallback"] == 0

    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    try:
        group = dist.group.WORLD.group_name
        stepwell.register_pass("nd", engine.all_reduce_pass(group), position="begin")

        def reduced(x, weight):
            return ops.rms_norm(engine.collectives.all_reduce(x * 2, "sum", group), weight, engine.EPS)

        run(reduced, x, weight)
        assert stepwell.counters["passes"]["all-reduce-norm"]["num-replaced"] == 1
    finally:
        dist.destroy_process_group()
