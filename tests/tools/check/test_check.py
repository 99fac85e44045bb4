"""PASS-11: `stepwell.check` and the option `check` say which operation is wrong, in which pass and by how much; right programs pass."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

import stepwell
from stepwell.dialects.nd.pointwise import OPS
from stepwell.lowering.fx_to_nd import load_rules
from stepwell.lowering.fx_to_nd.core import registry
from stepwell.passes.manager.user import isolated
from stepwell.targets.cpu.emit import math as emit_math
from stepwell.tools.check.main import main

Add, Exp, Sin = OPS["add"], OPS["exp"], OPS["sin"]


def program(x, w, state):
    y = torch.tanh(x @ w) + x.cos()
    z = y.exp().sum(0) * y
    state.mul_(2)
    return z.erf(), torch.sigmoid(z)


def inputs():
    torch.manual_seed(0)
    return torch.randn(6, 6), torch.randn(6, 6, requires_grad=True), torch.randn(3)


def line(number):
    return f"{__file__}:{program.__code__.co_firstlineno + number}"


@pytest.fixture(autouse=True)
def _no_passes_stay():
    with isolated():
        yield


def with_rule(monkeypatch, operator, rule):
    load_rules()
    monkeypatch.setitem(registry.REGISTRY, operator, rule)
    monkeypatch.setattr(registry, "_RESOLVED", {})


@pytest.fixture
def wrong_erf(monkeypatch):
    with_rule(monkeypatch, torch.ops.aten.erf.default, lambda b, x: b.op("sin", x))


# ---- wrong programs


def test_pass_11_a_wrong_rule(wrong_erf):
    report = stepwell.check(program, *inputs())
    assert (report.ok, report.pass_name, report.operation, report.node) == (False, "import", "aten.erf.default", "erf")
    assert report.line == line(4) and report.ulp > 1e5 and report.wrong.startswith("result 0 (erf): ")
    assert report.table[0].operation == "aten.erf.default" and report.table[0].ulp > 1e5 > 1e2 > report.table[0].eager_ulp
    assert [row.ulp < 50 for row in report.table[1:]] == [True] * (len(report.table) - 1)
    text = str(report)
    assert f"aten.erf.default (erf at {line(4)}), by " in text and "The rule of the operator is wrong" in text
    assert "operation" in text and "torch's ulp" in text


@pytest.mark.long
def test_pass_11_a_wrong_gradient(monkeypatch):
    """The rule is of backward's graph."""
    with_rule(monkeypatch, torch.ops.aten.tanh_backward.default, lambda b, g, y: b.mul(g, b.sub(1.0, y)))
    report = stepwell.check(program, *inputs())
    assert (report.operation, report.pass_name, report.line) == ("aten.tanh_backward.default", "import", line(1))
    assert report.graph.startswith("backward graph")


@pytest.mark.long
def test_pass_11_a_wrong_update(monkeypatch):
    with_rule(monkeypatch, torch.ops.aten.mul.Tensor, lambda b, x, y: b.add(x, y))

    def fn(x, state):
        state.mul_(x)
        return x + 1

    report = stepwell.check(fn, torch.randn(4), torch.randn(4))
    assert (report.operation, report.pass_name) == ("aten.mul.Tensor", "import") and "after the call" in report.wrong


def test_pass_11_a_wrong_pass_of_the_user():
    class ExpIsSin(RewritePattern):
        @op_type_rewrite_pattern
        def match_and_rewrite(self, op: Exp, rewriter: PatternRewriter):
            rewriter.replace(op, [Sin.create(operands=op.operands, result_types=[op.result.type])])

    stepwell.register_pass("nd", ExpIsSin)
    report = stepwell.check(program, *inputs())
    assert (report.pass_name, report.operation, report.line) == ("exp-is-sin", "aten.exp.default", line(2))


def test_pass_11_where_interpreters_would_take_long_passes_are_left_out(monkeypatch):
    from stepwell.tools.check import pass_search

    class ExpIsSin(RewritePattern):
        @op_type_rewrite_pattern
        def match_and_rewrite(self, op: Exp, rewriter: PatternRewriter):
            rewriter.replace(op, [Sin.create(operands=op.operands, result_types=[op.result.type])])

    monkeypatch.setattr(pass_search, "SOON", 0)
    stepwell.register_pass("nd", ExpIsSin)
    report = stepwell.check(lambda x: x.exp() + 1, torch.randn(5))
    assert (report.pass_name, report.operation) == ("exp-is-sin", "aten.exp.default")
    assert report.how == "right where it is left out: options={'disable_passes': ['exp-is-sin']}"


def test_pass_11_wrong_code_of_the_emitter(monkeypatch):
    monkeypatch.setitem(emit_math.FUNCTIONS, "exp", emit_math.FUNCTIONS["sin"])
    report = stepwell.check(program, *inputs())
    assert (report.pass_name, report.operation) == ("emit", "aten.exp.default")
    assert "'math.exp' of f32 is wrong: of " in report.how


def test_pass_11_what_only_a_fusion_makes_wrong():
    """Each operation by itself is right: the shortest graph that is wrong ends with the guilty one."""

    class AddOfTwoSines(RewritePattern):
        @op_type_rewrite_pattern
        def match_and_rewrite(self, op: Add, rewriter: PatternRewriter):
            if all(isinstance(v.owner, Sin) and v.has_one_use() for v in op.operands):
                rewriter.replace(op, [OPS["mul"].create(operands=op.operands, result_types=[op.result.type])])

    stepwell.register_pass("nd", AddOfTwoSines)

    def sines(x):
        a, b = x.sin(), (x * 2).sin()
        return (a + b).exp()

    report = stepwell.check(sines, torch.randn(12))
    assert (report.operation, report.pass_name) == ("aten.add.Tensor", "add-of-two-sines")


@pytest.mark.long
def test_pass_11_what_fails_to_compile(monkeypatch):
    with_rule(monkeypatch, torch.ops.aten.erf.default, lambda b, x: {}["missing"])
    report = stepwell.check(program, *inputs())
    assert report.wrong.startswith("the compiled function fails: ") and report.operation == "aten.erf.default"


def test_pass_11_random_numbers_are_those_of_the_streams(monkeypatch):
    with_rule(monkeypatch, torch.ops.aten.cos.default, lambda b, x: b.op("sin", x))
    report = stepwell.check(lambda x: F.dropout(x.sin(), 0.5) + torch.rand_like(x).cos(), torch.randn(4, 5))
    assert (report.operation, report.pass_name) == ("aten.cos.default", "import")


# ---- the option


def test_the_option_raises_with_the_report(wrong_erf):
    with pytest.raises(stepwell.WrongResult, match=r"aten\.erf\.default \(erf at ") as caught:
        torch.compile(program, backend="stepwell", options={"check": 1})(*inputs())
    assert caught.value.report.pass_name == "import"


def test_the_option_looks_at_the_first_calls(monkeypatch):
    looked: list[str] = []
    from stepwell.tools.check import graph_check

    monkeypatch.setattr(graph_check, "raise_if_wrong", lambda case, wrong, name, failure: looked.append(f"{name} {wrong} {failure}"))
    net = nn.Linear(4, 1)
    run = torch.compile(net, backend="stepwell", dynamic=True, options={"check": 2})
    before = dict(stepwell.counters)
    for n in range(3, 7):
        run(torch.randn(n, 4)).sum().backward()
    assert [text.split()[0] for text in looked] == ["forward", "backward"] * 2
    assert all(text.endswith(" None ") for text in looked)
    assert stepwell.counters["graphs"] - before["graphs"] == 2


@pytest.mark.parametrize(("value", "message"), [(-1, "the number of calls is not negative, got -1"), ("2", "takes a int, got '2'")])
def test_the_option_is_checked(value, message):
    with pytest.raises(Exception, match=message):
        torch.compile(program, backend="stepwell", options={"check": value})(*inputs())


# ---- right programs


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + F.gelu(self.out(y.transpose(1, 2).reshape(b, t, d)))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x, target):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), target)


def cell(x, w, u):
    h = torch.zeros(x.shape[1], w.shape[0])
    for step in x:
        h = torch.tanh(step @ u + h @ w)
    return h


def update(x, places, state):
    state.add_(x.sum(0))
    x.index_add_(0, places, torch.ones(len(places), x.shape[1]))
    return x.exp()


def randn(*sizes, dtype=torch.float32, grad=False):
    return torch.randn(*sizes).to(dtype).requires_grad_(grad)


def ints(*sizes):
    return torch.randint(-9, 10, sizes)


half, brain = torch.float16, torch.bfloat16
RIGHT = {
    "softmax and norms in bf16": lambda: (
        lambda x: (torch.softmax(x * 3, -1), F.layer_norm(x, (32,)), x.var(-1)), randn(4, 32, dtype=brain)
    ),
    "attention, training": lambda: (Block(), randn(2, 6, 16)),
    "attention in bf16, training": lambda: (Block().bfloat16(), randn(2, 6, 16, dtype=brain)),
    "convolution and batch norm, training": lambda: (Images(), randn(2, 3, 9, 9), torch.tensor([1, 4])),
    "scans": lambda: (lambda x: (x.cumsum(0), x.cumprod(1), torch.logcumsumexp(x, 1), x.cummax(0)), randn(6, 9)),
    "cells of a loop": lambda: (cell, randn(5, 3, 4), randn(8, 8, grad=True), randn(4, 8)),
    "integers": lambda: (lambda a, b: (a // (b.abs() + 1), a % 7, a << 1, (a > b).sum(), (a * b).sum(0)), ints(20), ints(20)),
    "equal elements": lambda: (lambda x: (x.topk(3), x.sort(-1), x.median(-1), x.mode(-1), x.unique()), ints(4, 30)),
    "NaN and infinity": lambda: (
        lambda x: (x.log(), x.sqrt().nan_to_num(), x / 0, (x * 1e30).exp(), x.max(), torch.where(x > 0, x, -math.inf).softmax(0)),
        randn(20),
    ),
    "nearly equal numbers": lambda: (lambda x: ((x * 1e4).cos(), x.std() + x.mean(), (x - x.mean()).sum(), x.round()), randn(200)),
    "updates of arguments": lambda: (update, randn(6, 5), torch.tensor([0, 1, 1, 5]), randn(5)),
    "random numbers": lambda: (lambda x: (F.dropout(x, 0.3), torch.rand_like(x) + x, torch.randint(0, 9, (7,))), randn(8, 8, grad=True)),
    "f16": lambda: (lambda x, w: ((x @ w).relu(), F.silu(x), (x * 100).exp()), randn(6, 6, dtype=half), randn(6, 6, dtype=half)),
    "f16 on the way": lambda: (lambda x: ((x.half() * 3 + 0.1).sin() * 7 - 1).float() * 1.5, randn(40)),
    "long sums": lambda: (lambda x, w: ((x @ w).sum(), torch.log_softmax(x @ w, -1), (x @ w).std()), randn(64, 300), randn(300, 64)),
    "complex numbers": lambda: (lambda x: (torch.fft.rfft(x).abs(), torch.view_as_complex(torch.stack([x, x], -1)) * 2j), randn(4, 8)),
    "losses, training": lambda: (
        lambda x, y: F.huber_loss(x, y) + F.kl_div(x.log_softmax(-1), y.softmax(-1)), randn(6, 9, grad=True), randn(6, 9)
    ),
    "embedding, training": lambda: (lambda w, i: F.embedding(i, w).mean(1), randn(10, 6, grad=True), torch.randint(0, 10, (3, 4))),
    "a list, conditions": lambda: (lambda xs: [x.sin() if x.dim() > 1 else x + 1 for x in xs], [randn(3), randn(2, 2), randn(0)]),
}  # fmt: skip
SHORT = ("softmax and norms in bf16", "attention, training", "equal elements", "NaN and infinity")
"""Those of `make test`."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SHORT else pytest.mark.long) for n in RIGHT])
@pytest.mark.filterwarnings("ignore:reduction")
def test_right_programs(name):
    torch.manual_seed(0)
    report = stepwell.check(*RIGHT[name]())
    assert report.ok and report.pass_name == report.operation == report.wrong == "", str(report)
    assert report.table and not any("not judged" in note or "not looked at" in note for note in report.notes)


def test_dynamic_sizes():
    x = torch.randn(6, 3)
    torch._dynamo.mark_dynamic(x, 0)
    assert stepwell.check(lambda x: x.softmax(0) * x.shape[0], x).ok


# ---- the command


def test_the_command(tmp_path, capsys, wrong_erf):
    file = tmp_path / "model.py"
    file.write_text("def step(x):\n    return x.erf() + 1\n\n\ndef right(x):\n    return x + 1\n")
    assert main([f"{file}:right", "--args", "torch.randn(4)"]) == 0
    assert "The results are right." in capsys.readouterr().out
    assert main([f"{file}:step", "--args", "torch.randn(4)"]) == 1
    assert f"aten.erf.default (erf at {file}:2)" in capsys.readouterr().out
    assert main([f"{file}:stop", "--args", "torch.randn(4)"]) == 2
    assert "defines no 'stop'" in capsys.readouterr().err
