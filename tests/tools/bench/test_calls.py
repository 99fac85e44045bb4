"""The table of library calls against Inductor's."""

import pytest
import torch

from stepwell.tools.bench.calls import BEGIN, END, _by_stepwell, calls, markdown, write

RESULTS = {
    "torch": "2.13.0", "device": "cpu",
    "cases": {
        "add|float32": {"stepwell": [], "inductor": []},
        "mm|float32": {"stepwell": ["aten.mm"], "inductor": ["aten.mm"]},
        "zeta|float32": {"stepwell": ["aten.special_zeta"], "inductor": []},
        "acos|complex64": {"stepwell": ["aten.acos"], "inductor": ["aten.log"]},
        "bad|float32": {"error": "RuntimeError"},
    },
}  # fmt: skip


def test_rows():
    text = markdown(RESULTS)
    assert "| float32 | 3 | 1 | 1 | 0 | 1 |" in text and "| complex64 | 1 | 0 | 0 | 1 | 0 |" in text
    assert "| `aten.special_zeta` | code of its own | `zeta` | float32 |" in text
    assert "| `aten.acos` | other calls | `acos` | complex64 |" in text


def test_only_what_is_between_the_marks_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(RESULTS, str(page))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n") and "old" not in text


@pytest.mark.long
def test_cases_are_kept_and_not_counted_again(tmp_path):
    kept = tmp_path / "cases.jsonl"
    kept.write_text('["linalg.det|float32", {"stepwell": ["aten.kept"], "inductor": []}]\n["cut off')
    found = calls(["linalg.det"], "cpu", 1, 1, ["float32", "float64"], str(kept))["cases"]
    assert found["linalg.det|float32"]["stepwell"] == ["aten.kept"]
    assert found["linalg.det|float64"]["stepwell"] == ["aten._linalg_det"]
    assert "linalg.det|float64" in kept.read_text()


@pytest.mark.parametrize(("fn", "calls"), [(torch.exp, set()), (torch.linalg.det, {"aten._linalg_det"})])
def test_calls_of_a_graph(fn, calls):
    def run(backend):
        torch._dynamo.reset()
        x = torch.eye(3)
        assert torch.equal(torch.compile(fn, backend=backend)(x), fn(x))

    assert _by_stepwell(run) == calls
