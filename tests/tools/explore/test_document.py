"""The document of the explorer: every operation has its lines and links, every pass its change, every value an answer."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from time import process_time

import pytest
import torch

import stepwell
from stepwell.tools.explore import main as tool
from stepwell.tools.explore.answers import text_of
from stepwell.tools.explore.changes import Snapshot, change
from stepwell.tools.explore.code import functions
from stepwell.tools.explore.errors import ExploreError
from stepwell.tools.explore.tables import Pool
from stepwell.tools.explore.watch import _most_alike
from stepwell.tools.interpret.target import InterpretedTarget

ROOT = Path(stepwell.__file__).parent


def levels(graph):
    return {level["name"]: level for level in graph["levels"]}


def test_every_level_is_there(scores):
    """PASS-10: what a graph becomes can be read at each level."""
    forward, backward = scores.data["graphs"]
    assert (forward["kind"], backward["kind"]) == ("forward", "backward")
    for graph in (forward, backward):
        assert list(levels(graph)) == ["fx", "import", "nd", "loop", "mem", "cpu", "host", "llvm", "asm"]
        assert graph["missing"] == {}


def test_operations_stand_at_their_lines(scores):
    texts = scores.data["texts"]
    for graph in scores.data["graphs"]:
        for level in graph["levels"]:
            lines = texts[level["text"]].splitlines()
            for op in level["operations"]:
                first = lines[op["line"] - 1]
                assert op.get("symbol", op["op"].rpartition(".")[2] if level["language"] == "python" else op["op"]) in first, (op, first)
                assert all(result in first for result in op.get("results", ()))
                assert op["line"] <= op.get("end", op["line"]) <= len(lines)


def test_users_and_surroundings_are_operations_of_the_level(scores):
    for graph in scores.data["graphs"]:
        for level in graph["levels"]:
            ops = level["operations"]
            for number, op in enumerate(ops):
                assert all(0 <= user < len(ops) and user != number for user in op.get("users", ()))
                if "in" in op:
                    around = ops[op["in"]]
                    assert around["line"] <= op["line"] <= op.get("end", op["line"]) <= around["end"]


def test_origins_link_the_levels_both_ways(scores):
    for graph in scores.data["graphs"]:
        by_level = levels(graph)
        for k, origin in enumerate(graph["origins"]):
            for name, numbers in origin["operations"].items():
                assert all(k in by_level[name]["operations"][n]["at"] for n in numbers)
        for name, level in by_level.items():
            for number, op in enumerate(level["operations"]):
                assert all(number in graph["origins"][k]["operations"][name] for k in op.get("at", ()))


def test_each_operator_can_be_followed_down_to_its_kernel(scores):
    for graph in scores.data["graphs"]:
        names = {name for step in graph["kernels"] for name in step["operators"]}
        assert len(names) >= 8
        for name in names:
            found = {level for one in graph["origins"] if one["name"] == name for level in one["operations"]}
            assert {"loop", "mem", "cpu", "host", "llvm", "asm"} <= found, name


def test_kernels_know_their_operation_at_each_level(scores):
    for graph in scores.data["graphs"]:
        by_level = levels(graph)
        for step in graph["kernels"]:
            launch = by_level["host"]["operations"][step["operations"]["host"]]
            assert launch["op"] == "host.launch" and launch["calls"] == step["kernel"]
            assert by_level["mem"]["operations"][step["operations"]["mem"]]["op"] in ("loop.nest", "loop.contract")
            assert step["bytes"] > 0 and step["predicted_us"] > 0


def test_equal_texts_are_kept_once(scores):
    texts = scores.data["texts"]
    assert len(texts) == len(set(texts))
    forward = scores.data["graphs"][0]
    assert any(p.get("after") == levels(forward)["cpu"]["text"] or p["name"] == "mem-to-cpu" for p in forward["passes"])


def test_passes_tell_what_they_changed(scores):
    texts = scores.data["texts"]
    for graph in scores.data["graphs"]:
        assert {"nd", "loop", "mem", "cpu", "host"} == {one["stage"] for one in graph["passes"]}
        for one in graph["passes"]:
            assert one["seconds"] >= 0 and one["text"].startswith(one["name"])
            if "diff" in one:
                lines = texts[one["diff"]].splitlines()
                assert sum(line.startswith("+") for line in lines) == one["added"]
                assert sum(line.startswith("-") for line in lines) == one["removed"]
            for a, b, c, d in one.get("changed", ()):
                assert b <= len(texts[one["before"]].splitlines()) and d <= len(texts[one["after"]].splitlines()) and (a, c) != (b, d)
            for line, *places in one.get("added_at", ()):
                assert places and line >= 1 and all(0 <= k < len(graph["origins"]) for k in places)
        lowered = next(one for one in graph["passes"] if one["name"] == "nd-to-loop")
        came = {k for _, _, c, d in lowered["changed"] for k in range(c + 1, d + 1)}
        assert lowered["needed"] and {line for line, *_ in lowered["added_at"]} <= came
        assert "nd." in texts[lowered["before"]] and "loop.nest" in texts[lowered["after"]]
    rules = [one for graph in scores.data["graphs"] for p in graph["passes"] for one in p.get("rewrites", ())]
    assert rules and all(one["count"] > 0 and one["op"].startswith("nd.") for one in rules)


def test_ten_values_have_their_line_nest_reason_bytes_and_time(scores, programs):
    graph = scores.data["graphs"][0]
    names = list(graph["plan"]["operators"])[:10]
    assert len(names) == 10
    for name in names:
        answer = scores.about(name)[0]
        assert [re.sub(r".*/", "", line) for line in answer["lines"]] and all("programs.py:" in line for line in answer["lines"])
        assert answer["source"][0] in Path(programs.__file__).read_text()
        assert answer["gone"] or (answer["nests"] or name == "mm")
        for step in answer["kernels"]:
            assert step["bytes"] > 0 and step["predicted_us"] > 0
        assert answer["kernels"]
        assert all(one["reason"] for one in answer["joins"])
        assert "lines: fx" in text_of(answer)


def test_a_line_is_asked_for_like_a_value(scores, programs):
    answer = scores.about(f"programs.py:{programs.FIRST + 2}")[0]
    assert answer["source"] == ["y = torch.softmax(h, -1)"] and answer["kernels"]


def test_a_name_that_is_none(scores):
    with pytest.raises(ExploreError, match="no graph has a value or line 'gleu'; did you mean 'gelu'"):
        scores.about("gleu")


def test_memory_names_the_owners_of_the_peak(scores):
    for graph in scores.data["graphs"]:
        memory = graph["memory"]
        assert memory["peak"]["bytes"] == max(memory["alive"]) == memory["alive"][memory["peak"]["step"]]
        assert set(memory["peak"]["owners"]) <= {one["name"] for one in memory["buffers"]}


def test_a_document_is_read_back(scores, tmp_path):
    file = tmp_path / "out.json"
    scores.write_json(file)
    assert tool.read(file).data == json.loads(scores.json())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no document of the explorer"),
        ('{"format": "stepwell-explorer", "version": 99}', "has version 99 of the document, this stepwell reads 1"),
    ],
)
def test_a_file_that_is_no_document(text, message, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ExploreError, match=message):
        tool.read(file)


def test_a_file_of_ir_and_a_pass_that_is_left_out(tmp_path, capsys):
    out = tmp_path / "out.json"
    file = ROOT / "docs/examples/layer.mlir"
    assert tool.main([str(file), "--json", str(out), "--disable-pass", "loop-fuse"]) == 0
    found = tool.read(out)
    (graph,) = found.data["graphs"]
    assert list(levels(graph)) == ["import", "nd", "loop", "mem", "cpu", "host", "llvm", "asm"]
    assert "loop-fuse" not in {one["name"] for one in graph["passes"]}
    assert found.data["call"]["target"] == str(file) and found.data["call"]["options"]["disable_passes"] == ["loop-fuse"]
    assert tool.main([str(file), "--json", str(out), "--disable-pass", "loop-fues"]) == 1
    assert "there is no pass 'loop-fues'; did you mean 'loop-fuse'?" in capsys.readouterr().err


def test_kernels_of_a_gpu_and_what_is_missing_for_them():
    torch._dynamo.reset()
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        found = tool.explore(lambda x: torch.softmax(x * 2, -1), torch.randn(4, 8))
    finally:
        stepwell.unregister_target("interpreted")
    (graph,) = found.data["graphs"]
    code = [name for name in ("ptx", "sass") if name not in graph["missing"]]
    assert list(levels(graph))[-2 - len(code) :] == ["tt", "host", *code]
    (step,) = graph["kernels"]
    assert {"mem", "tt", "host"} <= set(step["operations"])
    json.loads(found.json())


def test_nests_that_are_launched_together_know_their_launch():
    torch._dynamo.reset()
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        found = tool.explore(lambda x, y: (torch.softmax(x, -1), y.t().sum(1) + 1), torch.randn(4, 8), torch.randn(30, 5))
    finally:
        stepwell.unregister_target("interpreted")
    (graph,) = found.data["graphs"]
    assert [step["label"] for step in graph["kernels"]] == ["_softmax", "sum_1_add"]
    assert len({step["kernel"] for step in graph["kernels"]}) == 1
    for origin in graph["origins"]:
        if origin["name"] in ("_softmax", "sum_1", "add"):
            assert {"mem", "tt", "host"} <= set(origin["operations"])


def test_a_step_is_the_launch_that_holds_most_of_it():
    assert _most_alike([1, 2], [{3}, {1, 2, 4}, {1, 2}, {2}]) == 2
    assert _most_alike([1], [{2}]) is None and _most_alike([], [{1}]) is None and _most_alike([1], []) is None


def test_dynamic_sizes():
    torch._dynamo.reset()
    x = torch.randn(6, 5)
    torch._dynamo.mark_dynamic(x, 0)
    (graph,) = tool.explore(lambda x: torch.relu(x).sum(1), x).data["graphs"]
    assert any("s" in line for line in graph["plan"]["loops"][0]["sizes"].split(" x "))
    assert graph["kernels"][0]["bytes"] > 0


def test_two_documents_are_compared_in_a_terminal(scores, tmp_path, capsys):
    scores.write_json(tmp_path / "a.json")
    assert tool.main([str(tmp_path / "a.json"), "--against", str(tmp_path / "a.json")]) == 0
    said = capsys.readouterr().out
    steps = len(scores.data["graphs"][0]["kernels"])
    assert f"graph 1 (forward): {steps} -> {steps} steps" in said and "predicted: " in said and "new steps" not in said
    other = json.loads(scores.json())
    other["graphs"][0]["plan"]["pairs"][0]["fused"] ^= True
    other["graphs"][0]["kernels"][0]["label"] = "another"
    Path(tmp_path / "b.json").write_text(json.dumps(other))
    assert tool.main([str(tmp_path / "b.json"), "--against", str(tmp_path / "a.json")]) == 0
    said = capsys.readouterr().out
    assert "new steps: another" in said and ("no longer fused: " in said or "fused now: " in said)


@pytest.mark.long
def test_any_ten_values_of_a_block_are_answered_from_its_file(block, tmp_path):
    """By a script that has the JSON alone: line, nest, reason, bytes and time, in less than a minute."""
    block.write_json(tmp_path / "block.json")
    begin = process_time()
    found = tool.read(tmp_path / "block.json")
    names = [name for graph in found.data["graphs"] for name in graph["plan"]["operators"]]
    seed = random.randrange(2**32)
    print("seed", seed)
    for name in random.Random(seed).sample(names, 10):
        for answer in found.about(name):
            assert answer["lines"] and answer["source"], name
            assert answer["gone"] or answer["kernels"] or set(answer["operations"]) <= {"fx", "import", "nd", "loop", "mem"}, name
            assert all(one["label"] and one["bytes"] > 0 and one["predicted_us"] > 0 for one in answer["kernels"])
            assert all(one["reason"] for one in answer["joins"])
            assert all(one["readers"] or one["group"] is not None for one in answer["nests"])
    assert process_time() - begin < 60


@pytest.mark.long
def test_a_block_in_training_is_a_small_document(block):
    assert len(block.json()) < 3_000_000 and len(block.html()) < 1_000_000


def snapshot(*lines):
    return Snapshot("".join(f"{line}\n" for line in lines), list(lines))


def test_a_change_is_a_difference_or_two_texts():
    pool = Pool()
    before = snapshot(*(f"line {k}" for k in range(30)))
    assert change(before, before, pool) == {}
    before.places = {20: [0], 21: [1, 2]}
    small = change(before, snapshot(*before.keys[:20], "new", *before.keys[21:]), pool)
    assert (small["added"], small["removed"], small["removed_at"], small["added_at"]) == (1, 1, [[21, 1, 2]], [])
    shown = [f" line {k}" for k in (17, 18, 19)] + ["-line 20", "+new"] + [f" line {k}" for k in (21, 22, 23)]
    assert pool.items[small["diff"]].splitlines() == ["@@ -18,7 +18,7 @@", *shown]
    whole = change(before, snapshot("other"), pool)
    assert pool.items[whole["before"]] == before.text and pool.items[whole["after"]] == "other\n"
    assert whole["changed"] == [[0, 30, 0, 1]]


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("llvm", "declare void @g()\ndefine void @f(ptr %a) #0 {\nentry:\n}\n", [("f", 2, 4)]),
        ("asm", "\t.text\nf:\n\tret\n.Lfunc_end0:\n.LCPI1_0:\ng:\n.Lfunc_end1:\n", [("f", 2, 4), ("g", 6, 7)]),
        ("ptx", ".version 8.6\n.visible .entry k(\n.param .u64 a\n)\n{\nret;\n}\n", [("k", 2, 7)]),
        ("sass", "// ----- @k\nk:\n    /*0000*/  EXIT ;\n.L_x_0:\n\n// ----- @l\nl:\n    /*0000*/  EXIT ;\n\n", [("k", 2, 5), ("l", 7, 9)]),
        ("amdgcn", "\t.text\nk:\n; %bb.0:\n\ts_endpgm\n.Lfunc_end0:\n\t.size\tk, .Lfunc_end0-k\n", [("k", 2, 5)]),
    ],
)
def test_functions_of_code(language, text, found):
    assert list(functions(language, text)) == found
