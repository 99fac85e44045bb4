"""`stepwell.explain`: what it tells of known programs, in data, text and on the page."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys

import pytest
import torch

import stepwell
from stepwell.passes.cost.machine.cpu import flat
from stepwell.tools.explain import main as tool
from stepwell.tools.explain import screen as explain_screen
from stepwell.tools.explain.blocks import Table, Text, size
from stepwell.tools.explain.walk import ELSEWHERE
from stepwell.tools.explore import main as explorer

MACHINE = flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, threads=2)


def told(function, *args, **settings):
    torch._dynamo.reset()
    return tool.explain(function, *args, machine=MACHINE, quiet=True, **settings)


def add_sum(a, b):
    c = a + b
    return c.sum(dim=1)


FIRST = add_sum.__code__.co_firstlineno


def test_add_then_sum_is_walked_through():
    """Catalogue H01, X01."""
    found = told(add_sum, torch.randn(32, 64), torch.randn(32, 64))
    text = found.walk()
    walk = text[text.index("Step by step") :]
    here = "test_main.py"
    lines = walk.strip().splitlines()
    there = [line for line in lines if line.startswith("  A scheduler of buffers ")]
    assert there == [f"  A scheduler of buffers {text}" for text in ELSEWHERE.values()]
    assert [line for line in lines if line not in there] == [
        "Step by step",
        "1. Nodes",
        "  2 operators of the graph became 2 nests (one for each value computed).",
        f"  add = add over 32 x 64   {here}:{FIRST + 1}",
        f"  sum_1 = sum reduction over 32   {here}:{FIRST + 2}",
        "2. Dependencies",
        "  An edge is a read of a tensor with its index, so that order and fusion are decided from the same facts.",
        "  add reads arg0_1[d0, d1], arg1_1[d0, d1]; needs only arguments and library results",
        "  sum_1 reads add[d0, d1]; needs add",
        "3. Names and mutation",
        "  Every value has one definition (SSA): no renaming of versions, no edges between a write and earlier reads.",
        "  No argument is updated.",
        "4. Order",
        "  Producers before readers, otherwise the order of the program (unchanged): sum_1.",
        "5. Dead code",
        "  Never stored, because every reader computes it itself: add.",
        "6. Fusion",
        "  2 nests became 1: what pays in bytes and is legal, planned for the whole graph before anything is rewritten.",
        "  add -> sum_1: computed where it is read (saves 16384 bytes)",
        "  nest sum_1 over 32, with add computed inside",
        "7. Memory",
        "  Returned: sum_1 (128 bytes).",
        "  Made by library calls: none.",
        "  Temporaries in the arena: none.",
        "  Freed: none.",
    ]


def test_add_then_sum_is_one_nest_with_its_costs():
    """PASS-10: each kernel is told with its operators and lines."""
    (graph,) = told(add_sum, torch.randn(32, 64), torch.randn(32, 64)).graphs
    (step,) = graph.steps
    assert step.operators == ["add", "sum_1"]
    assert [(u.name, u.bytes) for u in step.reads] == [("arg0_1", 8192), ("arg1_1", 8192)]
    assert [u.bytes for u in step.writes] == [128]
    assert step.flops == 2 * 32 * 64
    assert step.intensity == pytest.approx(4096 / 16512)
    assert MACHINE.limit(step.flops, step.bytes) == "memory"
    assert [p.line for p in step.places] == [FIRST + 1, FIRST + 2]
    assert graph.arena == 0 and graph.peak == (0, 128)
    assert [level.name for level in graph.levels] == ["import", "nd", "loop", "mem", "cpu", "host"]


def two_readers(x):
    y = x * 3
    return y[1:].sum(0), torch.cumsum(y.exp(), 1), y


def test_what_is_not_fused_has_a_reason_and_its_bytes():
    """Catalogue I22, A04."""
    (graph,) = told(two_readers, torch.randn(48, 80)).graphs
    missed = [p for p in graph.pairs if not p.fused]
    assert missed
    assert all(p.reason and p.bytes > 0 and p.places for p in missed)
    homes = {one.label: one.group for one in graph.loops}
    assert all(homes[p.first] != homes[p.second] for p in missed if homes.get(p.first) is not None)
    assert next(one for one in graph.loops if one.label == "mul").stored_because == (
        "it is needed in memory (a result, an update or an operand of a library call or contraction)"
    )


def test_a_table_that_its_reader_computes_is_no_nest():
    """Nor are the copies that its borders would make: as many nests are told as run."""
    (graph,) = told(lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear") + 1, torch.randn(2, 32, 32, 32)).graphs
    assert len(graph.groups) == len(graph.steps) == 1
    reasons = [p.reason for p in graph.pairs if p.fused]
    assert sum("is a table of the second" in r for r in reasons) == 2
    assert sum("would only copy what the first has stored" in r for r in reasons) == 4
    assert all(p.fused for p in graph.pairs)


def test_the_backward_graph_is_told_and_no_gradient_is_left():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    found = told(model, torch.randn(5, 8))
    assert [g.title for g in found.graphs] == ["graph 1 (forward)", "graph 2 (backward)"]
    assert all(p.grad is None for p in model.parameters())
    assert {"contraction"} <= {s.kind for g in found.graphs for s in g.steps}


def test_updates_and_library_calls_are_told():
    def update(a, i, v):
        a.add_(1)
        a.index_put_((i,), v)
        return torch.sort(v)[0]

    (graph,) = told(update, torch.randn(16, 1100), torch.tensor([1, 3]), torch.randn(2, 1100)).graphs
    assert graph.updated == ["arg0_1"]
    assert "add writes the argument arg0_1 itself" in graph.in_place
    assert [s.label for s in graph.steps if s.kind == "call"] == ["sort"]
    assert [b.kind for b in graph.buffers].count("extern") == 2


def test_memory_over_time_adds_up():
    def chain(x, w):
        return torch.relu(x @ w) @ w @ w

    (graph,) = told(chain, torch.randn(64, 64), torch.randn(64, 64)).graphs
    arena = [b for b in graph.buffers if b.kind == "arena"]
    assert arena and graph.arena <= sum(b.bytes for b in arena)
    step, most = graph.peak
    assert most == sum(b.bytes for b in graph.alive(step)) >= max(b.bytes for b in graph.buffers)
    for buffer in arena:
        assert 0 <= buffer.first <= buffer.last < len(graph.steps)


def test_directives_are_told():
    found = told(add_sum, torch.randn(32, 64), torch.randn(32, 64), options={"no_fuse": ["add", "ad"], "fuse": [["add", "sum_1"]]})
    (graph,) = found.graphs
    assert [(w.text, w.granted, w.reason) for w in graph.directives] == [
        ("no_fuse 'add'", True, "kept apart: add"),
        ("fuse 'add' with 'sum_1'", False, "no_fuse 'add' forbids it"),
        ("'ad'", False, "names no operator of any graph"),
    ]
    assert len(graph.steps) == 2
    assert "add | sum_1: not fused, no_fuse 'add' forbids it (would save 16384 bytes)" in found.walk()


def test_a_symbolic_size_is_a_symbol_in_the_text_and_a_number_in_the_bytes():
    x = torch.randn(6, 10)
    torch._dynamo.mark_dynamic(x, 0)
    (graph,) = told(lambda t: torch.softmax(t, -1), x).graphs
    assert re.fullmatch(r"s\d+", graph.groups[0].sizes)
    assert graph.steps[0].reads[0].bytes == 240


def test_a_program_of_updates_alone_is_told():
    def step(a, b):
        torch._foreach_mul_([a, b], 0.5)

    found = told(step, torch.ones(4), torch.ones(6))
    assert found.graphs[0].updated == ["arg0_1", "arg1_1"]
    assert "Peak 0 B at step 0; alive then: nothing." in found.full()


def test_what_is_compiled_already_is_told_too():
    a = torch.randn(4, 8)
    compiled = torch.compile(add_sum, backend="stepwell")
    torch._dynamo.reset()
    compiled(a, a)
    found = tool.explain(compiled, a, a, machine=MACHINE, quiet=True)
    assert found.name == "add_sum" and len(found.graphs) == 1
    layer = torch.compile(torch.nn.Linear(8, 3), backend="stepwell")
    with torch.no_grad():
        assert len(told(layer, a).graphs) == 1


def test_nothing_to_compile():
    assert "Nothing was compiled" in str(told(lambda x: x, torch.randn(3)))


def document_of(page):
    """The document in a page of the explorer."""
    (data,) = re.findall(r'<script type="application/octet-stream" id="document">([^<]*)</script>', page.read_text())
    return json.loads(gzip.decompress(base64.b64decode(data)))


def test_the_page_is_that_of_the_explorer_at_its_report(tmp_path):
    """DBG-09"""
    def function(x, w):
        return torch.softmax(x @ w, -1).sum(0), torch.sort(x)[0]

    page = tmp_path / "page.html"
    found = told(function, torch.randn(32, 16), torch.randn(16, 24), html=page)
    text, data = page.read_text(), document_of(page)
    assert text.startswith("<!doctype html>") and '<meta name="stepwell-view" content="report">' in text
    assert data["report"] == found.data() and data["call"]["measure"] is False
    levels = {level["name"]: data["texts"][level["text"]] for level in data["graphs"][0]["levels"]}
    assert "loop.reduce" in levels["loop"] and "host.program" in levels["host"]
    assert explorer.Exploration(data).html("report") == text


def test_the_page_of_a_large_graph_is_whole_and_small(tmp_path):
    """DBG-09, X01: source lines are no markup."""

    def function(x, ws):
        for w in ws:
            x = torch.where(x < 1, x, x * 2) @ w + x  # <script>alert("1")</script> & more
        return x.sum()

    page = tmp_path / "page.html"
    ws = [torch.randn(8, 8, requires_grad=True) for _ in range(30)]
    told(function, torch.randn(4, 8), ws, html=page)
    text = page.read_text()
    assert "<script>alert(" not in text and "<script>alert(" in json.dumps(document_of(page)["texts"])
    assert len(text) < 700_000


def test_values_in_memory_are_called_as_in_the_graph():
    """X01: buffers have the names of FX nodes, which directives take."""

    def function(x):
        a = (x + 1).sum(0)
        b = (x + 2).sum(0)
        return a, b, torch.sort(a)[0], torch.sort(b)[0]

    (graph,) = told(function, torch.randn(8, 8)).graphs
    named = {b.name.partition("[")[0].partition("#")[0] for b in graph.buffers}
    assert named <= set(graph.operators) and {"sum_1", "sum_2", "sort", "sort_1"} <= named


def test_kernels_are_measured_by_themselves(tmp_path):
    """KG-09: with `measure` each kernel has its time and the bytes that it moves in that; what cannot run alone has neither."""

    def function(x, w, i):
        return torch.softmax(x @ w, -1)[i], x.t().exp().sum(0), torch.sort(x)[0]

    inputs = torch.randn(64, 48), torch.randn(48, 32), torch.tensor([1, 3])
    found = told(function, *inputs, measure=True, html=tmp_path / "page.html")
    (graph,) = found.graphs
    assert graph.steps and all((s.measured_us > 0) == (s.kind != "call") for s in graph.steps)
    assert re.search(r"measured +[\d.]+ us\n +bandwidth +[\d.e+]+ GB/s", found.full())
    assert any("bandwidth" in block.get("headers", ()) for block in document_of(tmp_path / "page.html")["report"])
    assert "bandwidth" not in told(function, *inputs).full()


def test_kernels_of_unknown_sizes_are_not_measured():
    """KG-09"""
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    (graph,) = told(lambda x: x.exp().sum(1), x, measure=True).graphs
    assert [s.measured_us for s in graph.steps] == [0.0]


def test_it_prints_with_rich_and_without(capsys, monkeypatch):
    found = told(add_sum, torch.randn(4, 8), torch.randn(4, 8))
    monkeypatch.setitem(sys.modules, "rich.console", None)
    found.print()
    assert capsys.readouterr().out.strip() == str(found).strip()
    monkeypatch.undo()
    pytest.importorskip("rich")
    found.print(walk=True)
    out = capsys.readouterr().out
    assert "add -> sum_1: computed where it is read (saves 256 bytes)" in out


def test_long_tables_are_cut_in_a_terminal():
    table = Table(("a", "b"), tuple((str(k), "x") for k in range(100)))
    lines = explain_screen.show([table], plain=True).splitlines()
    assert len(lines) == explain_screen.MAX_ROWS + 2
    assert lines[-1] == "  ... and 60 more (all are on the page and in Explanation.graphs)"


def test_lines_that_do_not_fit_keep_their_indent(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    explain_screen.show([Text(("  " + " ".join(["word"] * 20), "next"))])
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert len(lines) > 2 and lines[-1].rstrip() == "next" and all(line.startswith("  word") for line in lines[:-1])


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (1023, "1023 B"), (8192, "8 KiB"), (1 << 21, "2 MiB"), (5 << 40, "5120 GiB")])
def test_sizes(n, text):
    assert size(n) == text


def test_the_prediction_and_the_place_on_the_roofline_are_told():
    found = told(lambda x, y: torch.tanh(x @ y).sum(0), torch.randn(256, 256), torch.randn(256, 256))
    (graph,) = found.graphs
    product, nest = graph.steps[0], graph.steps[-1]
    assert product.flops >= 2 * 256**3 and MACHINE.limit(product.flops, product.bytes) == "arithmetic"
    assert MACHINE.limit(nest.flops, nest.bytes) == "memory"
    assert all(0 < s.predicted_us <= s.alone_us and s.bound in ("memory", "compute", "launch") for s in graph.steps)
    text = found.full()
    assert "spent on" in text and f"{product.intensity:.2f} flop/B, arithmetic" in text
    assert "10 GB/s from memory" in text


def test_part_of_a_tensor_counts_as_much_as_is_read():
    (graph,) = told(lambda x: x[:, 2:6] * 2, torch.randn(8, 32)).graphs
    (step,) = graph.steps
    assert [u.bytes for u in step.reads] == [8 * 4 * 4]


IR = """\
func.func @f(%x : !nd.tensor<64 x 32 x f32>, %y : !nd.tensor<64 x 32 x f32>) -> (!nd.tensor<64 x f32>, !nd.tensor<64 x 32 x f32>) {
  %a = nd.add %x, %y : !nd.tensor<64 x 32 x f32>
  %s = nd.reduce %a {kind = "sum", dims = [1]} : (!nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x f32>
  %c = nd.cos %y : !nd.tensor<64 x 32 x f32>
  func.return %s, %c : !nd.tensor<64 x f32>, !nd.tensor<64 x 32 x f32>
}
"""


def test_a_file_of_ir_is_told_at_each_level(tmp_path, opt_tool):
    file = tmp_path / "f.mlir"
    file.write_text(IR)
    (graph,) = tool.explain_file(str(file), machine=MACHINE, quiet=True).graphs
    assert {name: op.place.line for name, op in graph.operators.items()} == {"a": 2, "s": 3, "c": 4}
    assert sorted(graph.steps[0].operators) == ["a", "c", "s"]
    for passes, kind in (("nd-to-loop", "loop"), ("nd-to-loop,loop-fuse,loop-to-mem,mem-plan", "mem")):
        file.write_text(opt_tool("-p", passes, stdin=IR).out)
        (graph,) = tool.explain_file(str(file), machine=MACHINE, quiet=True).graphs
        assert graph.title == f"graph 1 ({kind})"
        assert sum(u.bytes for s in graph.steps for u in s.writes) == 64 * 4 + 64 * 32 * 4


def test_a_file_for_a_gpu_is_priced_for_that_gpu(tmp_path):
    file = tmp_path / "f.mlir"
    file.write_text('builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90">} {\n' + IR + "}\n")
    found = tool.explain_file(str(file), quiet=True)
    (step,) = found.graphs[0].steps
    assert "on NVIDIA H100 80 GB HBM3 (sm_90)" in str(found) and "Gflop/s (bf16)" in found.full()
    assert "blocks" in step.schedule and "warps" in step.schedule and step.bound == "launch"
    assert '"machine": "NVIDIA H100 80 GB HBM3 (sm_90)"' in found.json()
    assert "threads" in str(tool.explain_file(str(file), machine=MACHINE, quiet=True))  # what the caller says holds


def test_the_command(tmp_path, capsys):
    file, program, page = tmp_path / "f.mlir", tmp_path / "p.py", tmp_path / "page.html"
    file.write_text(IR)
    program.write_text("import torch\ndef f(x):\n    return x.exp().sum(1)\ndef case():\n    return f, torch.ones(3, 4)\n")
    assert tool.main([str(file), "--fuse", "s+c", "--html", str(page), "--full"]) == 0
    out = capsys.readouterr().out
    assert "fuse 's' with 'c'" in out and "granted" in out and page.exists()
    assert tool.main([f"{program}:f", "--args", "torch.randn(8, 4)", "--walk"]) == 0
    assert "exp -> sum_1: computed where it is read (saves 256 bytes)" in capsys.readouterr().out
    assert tool.main([f"{program}:case"]) == 0
    capsys.readouterr()
    assert tool.main(["--example"]) == 0
    out = capsys.readouterr().out
    steps = ["1. Nodes", "2. Dependencies", "3. Names and mutation", "4. Order", "5. Dead code", "6. Fusion", "7. Memory"]
    assert [out.index(step) for step in steps] == sorted(out.index(step) for step in steps)
    assert "example.py:" in out and "add -> sum_1: computed where it is read (saves 16384 bytes)" in out
    capsys.readouterr()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("f.py", "error: expected file.py:function or a .mlir file, got 'f.py'"),
        ("nosuch.py:f", "error: there is no file 'nosuch.py'"),
        ("nosuch.mlir", "error: cannot open 'nosuch.mlir': No such file or directory"),
    ],
)
def test_the_command_says_what_is_wrong(target, message, capsys):
    assert tool.main([target]) == 1
    assert capsys.readouterr().err.strip() == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--args", "torch.randn(3"], "error: --args 'torch.randn(3': SyntaxError: "),
        (["--args", "nosuch"], "error: --args 'nosuch': NameError: name 'nosuch' is not defined"),
        (["--args", "1, 2"], "error: --args '1, 2' does not fit 'f': too many positional arguments"),
        ([], "error: without --args 'f' is called with nothing: missing a required argument: 'x'"),
        (["--args", "torch.randn(3)", "--html", "/no/such.html"], "error: cannot write '/no/such.html': No such file or directory"),
    ],
)
def test_the_command_says_what_is_wrong_with_arguments(arguments, message, tmp_path, capsys):
    (tmp_path / "m.py").write_text("def f(x):\n    return x + 1\n")
    assert tool.main([f"{tmp_path / 'm.py'}:f", *arguments]) == 1
    assert capsys.readouterr().err.startswith(message)


def test_the_command_looks_at_what_a_module_takes(tmp_path, capsys):
    file = tmp_path / "m.py"
    file.write_text("import torch\nnet = torch.nn.Linear(3, 3)\n")
    assert tool.main([f"{file}:net"]) == 1
    assert capsys.readouterr().err.strip() == "error: without --args 'net' is called with nothing: missing a required argument: 'input'"


def test_it_is_a_public_name_that_costs_nothing_until_used():
    assert stepwell.explain is tool.explain
    code = "import sys, stepwell; print([m for m in sys.modules if m.startswith('stepwell.tools') or m == 'torch'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_memory_that_the_caller_gets_is_not_freed():
    text = stepwell.explain(lambda x: torch.linalg.svd(x)[1].cumsum(0), torch.randn(6, 6), quiet=True).walk()
    assert "Returned: _linalg_svd[1] (24 bytes)." in text and "_linalg_svd[1] after step" not in text


def test_what_lives_in_the_memory_of_a_result():
    def f(x, w):
        return (x.exp() @ w).sum(0)[:, None] * w

    found = stepwell.explain(f, torch.randn(60, 60), torch.randn(60, 60), quiet=True)
    assert "in output" in {b.kind for b in found.graphs[0].buffers}
    assert "In the memory of a later result: " in found.walk()


def test_updates_of_arguments_are_no_views():
    def f(x, y):
        x.add_(1)
        return x * y

    found = stepwell.explain(f, torch.randn(5, 4), torch.randn(5, 4), quiet=True)
    assert "update of an argument" in found.full() and not found.graphs[0].views


def test_operators_of_lists_have_one_row_together():
    def step(xs, ys):
        return torch._foreach_mul(torch._foreach_add(xs, ys), 2.0)

    xs, ys = ([torch.randn(3, 4) for _ in range(30)] for _ in range(2))
    found = stepwell.explain(step, xs, ys, quiet=True, machine=MACHINE)
    text = found.full()
    assert text.count("aten.add.Tensor") <= 2 and text.count("aten.mul.Tensor") <= 2
    assert "(30)" in text and "more" in text
    assert len(found.graphs[0].operators) >= 60, "the data has all"


def test_steps_are_called_as_their_operators():
    """With their numbers, in the table of operators too."""

    def program(x, y):
        return (x * 2).sum(1), torch.relu(x + y).sum(1) + 1, x.sum()

    (graph,) = stepwell.explain(program, torch.randn(8, 16), torch.randn(8, 16)).graphs
    operators = {name for step in graph.steps for name in step.operators}
    assert {"sum_1", "sum_2", "sum_3"} <= operators
    for step in graph.steps:
        assert any(step.label.startswith(name) for name in step.operators), step.label
        assert "sum_" in step.label


def test_nests_of_a_gpu_are_measured_on_it(monkeypatch):
    from stepwell.targets.triton import gpu_tune
    from stepwell.tools.interpret.target import InterpretedTarget

    def seconds(module):
        return {op: 5e-6 for op in module.walk() if op.name == "loop.nest"}

    monkeypatch.setattr(gpu_tune, "nest_seconds", seconds)
    torch._dynamo.reset()
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        (graph,) = tool.explain(add_sum, torch.randn(8, 16), torch.randn(8, 16), quiet=True, measure=True).graphs
    finally:
        stepwell.unregister_target("interpreted")
    assert [step.measured_us for step in graph.steps] == pytest.approx([5.0])
