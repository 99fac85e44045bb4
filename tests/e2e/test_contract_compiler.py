"""What the compiler promises about itself: pure questions, honest failures, names, counters, logs. Each test is one behaviour of
docs/reference/coverage.md."""

from __future__ import annotations

import logging
import re

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.errors import StepwellError
from stepwell.passes.manager.pass_manager import Pass

pytestmark = pytest.mark.usefixtures("fresh")


class Seen(Pass):
    """Keeps the text of the module at its place in the pipeline."""

    name = "seen"

    def __init__(self):
        object.__setattr__(self, "texts", [])

    def apply(self, ctx, op):
        self.texts.append(str(op))


def texts(fn, *inputs, stage="loop", position="end", **options):
    """The IR at a place of the pipeline, of a compilation whose values are those of eager."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    seen = Seen()
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    run = torch.compile(fn, backend="stepwell", options={"passes": {stage: [(seen, position)]}, **options})
    torch.testing.assert_close(run(*mine), fn(*theirs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, theirs)
    return seen.texts


# ---- questions decide nothing


def test_twelve_08_asking_for_a_layout_decides_nothing():
    """TWELVE-08: the same questions, asked again or in another order, leave the module as it is."""
    from stepwell.dialects import loop
    from stepwell.passes.cost.cost_model import nest_cost
    from stepwell.targets.cpu.machine import host_machine

    modules = []

    class Ask(Pass):
        name = "ask"

        def apply(self, ctx, op):
            modules.append(op.clone())

    fn = lambda x: (F.relu(x.transpose(1, 3)) + 1).sum(2) * x.mean()  # noqa: E731
    torch.compile(fn, backend="stepwell", options={"passes": {"loop": [Ask()]}})(torch.randn(2, 3, 4, 5))
    (module,) = modules
    machine = host_machine()
    before, nests = str(module), [op for op in module.walk() if isinstance(op, loop.NestOp)]
    first = [str(nest_cost(nest, machine=machine)) for nest in nests]
    assert [str(nest_cost(nest, machine=machine)) for nest in reversed(nests)] == first[::-1]
    assert str(module) == before


@pytest.mark.parametrize("turned", [False, True])
def test_a16_a_schedule_is_chosen_for_the_layout_that_stays(turned):
    """A16: how a reduction along the first dimension runs is chosen when the strides of what it reads are known, and they stay: lanes go
    along the elements that lie beside each other."""
    from stepwell.dialects import mem

    seen = []

    class See(Pass):
        name = "see"

        def apply(self, ctx, op):
            seen.append([str(a.result.type) for a in op.walk() if isinstance(a, mem.AllocOp)])
            seen.append([n.properties.get("schedule") for n in op.walk() if n.name == "loop.nest"])

    def fn(x):
        return (x.transpose(0, 1) if turned else x).exp().sum(0)

    options = {"no_fuse": ["exp"], "passes": {"mem": [(See(), "after:loop-to-mem"), See()]}}
    x = torch.randn(64, 48)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell", options=options)(x), fn(x))
    before, unscheduled, after, scheduled = seen
    assert before == after and len(before) == 2
    assert unscheduled == [None, None] and scheduled[1].data["vector"].value.data == 0


def test_defect_09_a_refused_fusion_changes_nothing():
    """DEFECT-09: nests that are kept apart have the loops that they have when nobody tries to fuse them."""

    def fn(x, y):
        return (x.t() * 2).contiguous(), x.sum(1) + y.sum(0), (x * y).cumsum(1)

    inputs = torch.randn(12, 12), torch.randn(12, 12)
    (alone,) = texts(fn, *inputs, disable_passes=["loop-fuse", "loop-fuse-rows"])
    (kept,) = texts(fn, *inputs, no_fuse=["mul", "clone", "sum_1", "sum_2", "add", "mul_1", "cumsum"], disable_passes=["loop-fuse-rows"])

    def headers(text):
        return sorted(re.sub(r"%\w+", "%", line.strip()) for line in text.splitlines() if "= loop.nest" in line)

    assert headers(alone) == headers(kept)


def test_defect_12_an_error_inside_of_fusion_is_an_error(monkeypatch):
    """DEFECT-12: it stops the compilation, names the pass, and is not taken for a fusion that does not pay."""
    from stepwell.passes.loop.fusion import loop_fuse

    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(loop_fuse, "plan_with_directives", broken)
    with pytest.raises(Exception, match="loop-fuse") as caught:
        torch.compile(lambda x: x.exp() + x.sum(), backend="stepwell")(torch.randn(4))
    assert "ZeroDivisionError: a bug" in str(caught.value)


def test_defect_03_a_product_of_what_is_updated_uses_the_old_value():
    """DEFECT-03: casts and scales before a product, of an operand that is written afterwards, and of one that is written by the product's
    own reader."""

    def fn(x, w, y):
        a = (x * 2).to(torch.float32) @ w
        x.mul_(3)
        b = x @ (w + 1)
        w.add_(b[0, 0])
        y.copy_(y @ y + y.t())
        return a, b, (y * 2) @ w

    texts(fn, torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 6))


# ---- products and what surrounds them


@pytest.mark.parametrize("rows", [1, 48, 200])
def test_f01_what_follows_a_product_is_one_nest_in_its_memory(rows):
    """F01, I14: the product is known by what it reads and writes, so that its readers are fused and written over it."""
    x, w, b = torch.randn(rows, 64), torch.randn(64, 32), torch.randn(32)
    texts(lambda x, w, b: F.gelu(x @ w + b), x, w, b)
    assert stepwell.counters["launches"] <= 2 and stepwell.counters["extern"] + stepwell.counters["fallback"] == 0
    assert stepwell.counters["bytes_written"] <= 2 * rows * 32 * 4


def test_f05_products_are_stored_where_they_are_joined():
    """F05: at most one copy of each part."""
    texts(lambda x, w, v: torch.cat([x @ w, x @ v], 1), torch.randn(16, 64), torch.randn(64, 32), torch.randn(64, 32))
    assert stepwell.counters["bytes_written"] <= 2 * 16 * 64 * 4


# ---- computed again or stored


def test_rl_04_a_returned_value_that_others_read_is_stored_once():
    x = torch.randn(64, 64)
    texts(lambda x: (lambda y: (y, y * 2, y.sum()))(x.exp()), x)
    assert stepwell.counters["bytes_written"] == 2 * x.numel() * 4 + 4 and stepwell.counters["bytes_read"] <= 2 * x.numel() * 4


def test_rl_06_dear_values_are_not_computed_for_every_reader():
    (text,) = texts(lambda x: tuple((x.exp() + k).sum(k % 2) for k in range(10)), torch.randn(40, 40))
    assert text.count("math.exp ") <= 2


# ---- names and places


def test_rg_04_kernels_and_operations_tell_where_they_come_from(tmp_path):
    """RG-04, RG-01: names of values in every dump are those of the graph, and unique."""
    folder = tmp_path / "debug"
    torch.compile(lambda x: (x.sin() + 1).sum(), backend="stepwell", options={"debug": str(folder)})(torch.randn(30))
    (graph,) = folder.iterdir()
    for level in ("0_import", "1_nd", "2_loop"):
        text = (graph / f"{level}.mlir").read_text()
        defined = re.findall(r"^\s*(%[\w.]+)(?:, %[\w.]+)* =", text, re.M)
        assert len(defined) == len(set(defined)) and any(name in text for name in ("%sin", "%add", "%sum"))


def test_rg_05_errors_at_run_time_name_operator_and_line(compiled):
    """RG-05, KG-14"""

    def fn(x, i):
        y = x * 2
        return y.index_select(0, i)

    with pytest.raises(IndexError, match="index_select: index 9 is out of bounds for dimension 0 with size 4") as caught:
        compiled(fn)(torch.randn(4), torch.tensor([9]))
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"in the inference graph: index_select at .*test_contract_compiler.py:\d+", note)


def test_rg_02_values_that_do_not_exist_are_named():
    """L02, RG-02: what a text refers to and does not have is an error at its place."""
    from xdsl.parser import Parser
    from xdsl.utils.exceptions import ParseError

    from stepwell.passes.manager.pipelines import default_pipeline
    from stepwell.tools.backend.compile_graph import context

    with pytest.raises(ParseError, match="%y"):
        Parser(context(), 'builtin.module { func.func @f(%x: f32) -> f32 { func.return %y : f32 } }').parse_module()
    with pytest.raises(StepwellError, match="there is no target 'gpuu'; did you mean 'gpu'"):
        default_pipeline("gpuu")


# ---- counters and logs


def test_x03_metrics(compiled):
    """X03: kernels, launches, bytes, library calls and seconds of each phase."""
    compiled(lambda x: torch.linalg.inv(x @ x) + x.sum(0))(torch.eye(8))
    c = stepwell.counters
    assert c["graphs"] == 1 and c["ops"] >= 4 and c["launches"] >= 1 and c["kernels"] >= 1
    assert c["extern"] + c["fallback"] >= 1 and c["bytes_read"] > 0 and c["bytes_written"] > 0
    assert {"import", "nd", "loop", "mem", "cpu", "host", "emit", "load"} <= set(c["compile_seconds"])


def test_dbg_02_what_happens_is_logged(caplog, compiled):
    """DBG-10: each graph when it is done, operators without a rule once."""
    caplog.set_level(logging.INFO, "stepwell")
    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: x.sin().sum())(x).backward()
    said = [r.getMessage() for r in caplog.records if r.name == "stepwell"]
    done = [re.sub(r"\d+", "N", s) for s in said if s.startswith("done")]
    assert done == [f"done compiling {kind} graph N" for kind in ("FORWARDS", "BACKWARDS")]


def test_kg_10_calls_stand_in_the_profile(compiled):
    x = torch.randn(4, requires_grad=True)
    fn = compiled(lambda x: x.sin().sum())
    fn(x).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fn(x).backward()
    names = {event.key for event in profile.key_averages()}
    assert {"## Call stepwell forward graph ##", "## Call stepwell backward graph ##"} <= names


def test_dbg_03_the_structured_trace_has_every_level(compiled):
    """FXC-13: and what the cache did."""
    found = {}

    class Keep(logging.Handler):
        def emit(self, record):
            if "artifact" in getattr(record, "metadata", {}):
                found[record.metadata["artifact"]["name"]] = record.payload

    log, keep = logging.getLogger("torch.__trace"), Keep()
    log.addHandler(keep)
    try:
        compiled(lambda x: x.sin() + 1)(torch.randn(4))
    finally:
        log.removeHandler(keep)
    assert {f"stepwell_{s}_ir" for s in ("nd", "loop", "mem", "cpu", "host")} | {"stepwell_llvm"} <= set(found)
    assert "torch.ops.aten.sin" in found["stepwell_inference_graph"] and "loop.nest" in found["stepwell_loop_ir"]


def test_nr_09_the_same_bits_in_every_call(compiled):
    """NR-09: sums into rows that several indices name are added in one order, whatever the threads do."""
    torch.set_num_threads(2)
    try:
        index, values = torch.randint(0, 7, (20_000,)), torch.randn(20_000, 8)
        fn = compiled(lambda x, i, v: x.index_add(0, i, v) + v.sum())
        first = fn(torch.zeros(7, 8), index, values)
        assert all(torch.equal(first, fn(torch.zeros(7, 8), index, values)) for _ in range(5))
    finally:
        torch.set_num_threads(1)


# ---- tables


def test_m21_what_is_decomposed():
    """M21: an operator has a rule, or a decomposition, or is a library call for a reason that is written down."""
    from torch._decomp import core_aten_decompositions

    from stepwell.lowering.fx.decompositions import decomposition_table
    from stepwell.lowering.fx_to_nd import load_rules
    from stepwell.lowering.fx_to_nd.core.registry import find_rule

    load_rules()
    table = decomposition_table()
    assert not [op for op in table if find_rule(op) is not None and "_foreach" not in str(op)]
    left = [op for op in core_aten_decompositions() if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten"]
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    left = [op for op in left if op not in table and find_rule(op) is None and not op.has_kernel_for_dispatch_key(composite)]
    assert {str(op.overloadpacket) for op in left if not op._schema.is_mutable} <= {
        "aten._scaled_dot_product_flash_attention_for_cpu", "aten.upsample_bicubic2d_backward",
    }  # fmt: skip


# ---- products and what surrounds them


def test_f06_what_follows_each_of_several_products_is_one_loop():
    """F06: three products of one operand, with a relu, a sum and a scale: stored once more at most."""
    x, weights = torch.randn(24, 40), [torch.randn(40, n) for n in (16, 24, 8)]

    def fn(x, a, b, c):
        return (x @ a).relu(), x @ b + 3, (x @ c) * 0.5

    (text,) = texts(fn, x, *weights)
    assert text.count("loop.contract") == 3 and text.count("loop.nest") <= 3


@pytest.mark.parametrize("rows, inner, columns", [(3, 5, 7), (33, 17, 65), (1, 130, 9)])
def test_g15_f04_what_is_computed_for_a_product_ends_with_its_operand(rows, inner, columns):
    """G15, F04: `exp` of what lies behind the end would be 1, not 0. The operand is stored by a nest of its own."""
    x, w = torch.randn(rows, inner), torch.randn(inner, columns)
    texts(lambda x, w: w.cos().t() @ x.t(), x, w)
    (text,) = texts(lambda x, w: x.exp() @ w, x, w)
    assert text.index("math.exp ") < text.index("loop.contract")
