"""Code of users that changed is never answered by a program that the old code made: in one process, in the next one, from the disk."""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import stepwell
from stepwell.lowering.fx_to_nd.core import user_rules
from stepwell.tools.compiled.counters import counters, reset_counters

HELPER = "SCALE = {scale}\ndef scaled(x):\n    return x * SCALE\n"
USER = '''
import torch
from xdsl.dialects.builtin import FloatAttr
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import RewritePattern, op_type_rewrite_pattern
import stepwell
from stepwell.dialects import nd
from . import helper

class Constants(ModulePass):
    name = "constants"
    def apply(self, ctx, op):
        for full in [o for o in op.walk() if isinstance(o, nd.FullOp)]:
            full.properties["value"] = FloatAttr(float(helper.SCALE), full.value.type)

class Pattern(RewritePattern):
    """Looks at the number once, when it is made."""
    def __init__(self):
        self.scale = float(helper.SCALE)
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: nd.FullOp, rewriter):
        if op.value.value.data != self.scale:
            op.properties["value"] = FloatAttr(self.scale, op.value.type)
            rewriter.notify_op_modified(op)

def seen(x):
    return torch.exp(x)
def replacement(x):
    return helper.scaled(x)
def by_rule(b, x):
    return b.mul(x, helper.SCALE)
def fx_pass(gm):
    for node in [n for n in gm.graph.nodes if n.target is torch.ops.aten.exp.default]:
        with gm.graph.inserting_after(node):
            new = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node.args[0], helper.SCALE))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
def partitioner(gm, inputs, **how):
    from torch._functorch.partitioners import default_partition
    fx_pass(gm)
    return default_partition(gm, inputs, **how)

def use(way):
    """Options of torch.compile, or a registration."""
    if way == "pass":
        stepwell.register_pass("nd", Constants, "begin")
    elif way == "pattern":
        stepwell.register_pass("nd", Pattern, "begin")
    elif way == "pair":
        stepwell.register_pass("nd", stepwell.replace(seen, replacement, verify=False))
    elif way == "rule":
        stepwell.register_rule(torch.ops.aten.exp.default, replace=True)(by_rule)
    elif way == "fx":
        return {"fx_passes": {"post_grad": [fx_pass]}}
    elif way == "decomposition":
        return {"decompositions": {torch.ops.aten.exp.default: helper.scaled}}
    return {}

def model(x):
    return torch.exp(x) if x.dim() == 1 else x * 7.0
'''
WAYS = ("pass", "pattern", "pair", "rule", "fx", "decomposition")


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package of the user's in a folder of its own, with a cache of its own; nothing registered outlives the test."""
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "their_code"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text(HELPER.format(scale=2.0))
    (folder / "user.py").write_text(USER)
    yield folder
    for operator in [*user_rules.registered()]:
        stepwell.unregister_rule(operator)
    for name in [n for n in sys.modules if n.partition(".")[0] == "their_code"]:
        del sys.modules[name]


def run(user, options, way):
    """(the number that the program multiplies by, hits of the cache of graphs and of that of traces)"""
    torch._dynamo.reset()
    reset_counters()
    x = torch.full((4, 4) if way in ("pass", "pattern") else (4,), 0.5)
    found = torch.compile(user.model, backend="stepwell", options=options)(x) / x
    return found.flatten()[0].item(), counters["graph_cache_hits"], counters["aot_cache_hits"]


def keeps_traces() -> bool:
    """Whether this process keeps traces: it does not where an earlier test has replaced an operator of torch's."""
    for _ in range(2):
        torch._dynamo.reset()
        reset_counters()
        torch.compile(lambda x: x.sin(), backend="stepwell")(torch.ones(3))
    return bool(counters["aot_cache_hits"])


@pytest.mark.parametrize("way", WAYS)
def test_a_global_that_changes_in_the_process(way, own_passes):
    traces = int(way not in ("fx", "decomposition") and keeps_traces())
    user = importlib.import_module("their_code.user")
    options = user.use(way)
    assert [run(user, options, way) for _ in range(2)] == [(2.0, 0, 0), (2.0, 1, traces)]
    user.helper.SCALE = 3.0
    assert run(user, options, way) == (3.0, 0, 0)
    user.helper.SCALE = 2.0
    assert run(user, options, way) == (2.0, 1, traces)


def test_a_rule_that_is_taken_out_again(own_passes):
    user = importlib.import_module("their_code.user")
    traces = int(keeps_traces())
    x = torch.full((4,), 0.5).exp()[0].item() / 0.5
    assert run(user, {}, "rule")[0] == pytest.approx(x)
    user.use("rule")
    assert run(user, {}, "rule") == (2.0, 0, 0)
    stepwell.unregister_rule(torch.ops.aten.exp.default)
    again = run(user, {}, "rule")
    assert again == (pytest.approx(x), 1, traces)


def test_a_partitioner_that_reads_something_else(own_passes):
    user = importlib.import_module("their_code.user")
    for user.helper.SCALE in (2.0, 3.0):
        torch._dynamo.reset()
        x = torch.ones(4, requires_grad=True)
        found = torch.compile(user.model, backend="stepwell", options={"partitioner": user.partitioner})(x)
        assert found[0].item() == user.helper.SCALE


def test_a_function_that_a_later_cell_defines_again(own_passes):
    """The way of working in a notebook: no caching on the disk, and what is compiled next sees the new function."""
    user = importlib.import_module("their_code.user")
    cell = {"__name__": "__notebook__", "torch": torch}
    exec("def seen(x):\n    return torch.exp(x)\ndef scaled(x):\n    return x * 2.0\ndef replacement(x):\n    return scaled(x)", cell)
    options = {"passes": {"nd": [stepwell.replace(cell["seen"], cell["replacement"], verify=False)]}}
    assert run(user, options, "pair") == (2.0, 0, 0)
    exec("def scaled(x):\n    return x * 3.0", cell)
    assert run(user, options, "pair") == (3.0, 0, 0) and counters["graph_cache_bypasses"] == 1


def test_a_file_of_patterns(tmp_path, own_passes):
    text = (pathlib.Path(stepwell.__file__).parent / "docs/examples/rsqrt.pdl").read_text()
    file = tmp_path / "mine.pdl"
    found = []
    for content in (text, text, text + "// another one\n"):
        file.write_text(content)
        torch._dynamo.reset()
        reset_counters()
        torch.compile(torch.neg, backend="stepwell", options={"passes": {"nd": [file]}})(torch.ones(3))
        found.append(counters["graph_cache_hits"])
    assert found == [0, 1, 0]


ONE_RUN = """
import sys, torch
from their_code import user
options = [user.use(way) for way in {ways!r}]
for x in (torch.ones(3), torch.ones(2, 2)):
    print(torch.compile(user.model, backend="stepwell")(x).flatten()[0].item(), end=" ")
import stepwell
print(stepwell.counters["graph_cache_hits"], stepwell.counters["aot_cache_hits"])
"""


@pytest.mark.long
def test_a_second_file_that_is_edited(package):
    """A pass and a pair import a module; the program of a later process is what that module says by then."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(package.parent), *sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}

    def process(*ways):
        command = [sys.executable, "-c", ONE_RUN.format(ways=ways)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert process("pass", "pair") == ["2.0", "2.0", "0", "0"]
    (package / "helper.py").write_text(HELPER.format(scale=3.0))
    assert process("pass", "pair") == ["3.0", "3.0", "0", "0"]
