"""The page of behaviours and their tests: how ids are found, and that the page is current."""

from __future__ import annotations

import pytest

from stepwell.tools.docs import coverage_page as cp


def test_ids_are_found_in_names_docstrings_and_comments(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text(
        'def test_mut_08_fresh():\n    """LY-01 too."""\n\ndef helper():\n    """OP-01"""\n\n'
        'class TestB:\n    """A17"""\n\n    def test_it(self):\n        """I07: cited."""\n\n'
        "def test_k02_n33_two(): ...\n\ndef test_sums_of_i64_rows_a09_a24(): ...\n"
    )
    (folder / "b.mlir").write_text("// J02\nop J03\n")
    assert cp.citations(folder) == {
        "MUT-08": ["tests/test_a.py::test_mut_08_fresh"],
        "LY-01": ["tests/test_a.py::test_mut_08_fresh"],
        "A17": ["tests/test_a.py::test_it"],
        "I07": ["tests/test_a.py::test_it"],
        "K02": ["tests/test_a.py::test_k02_n33_two"],
        "N33": ["tests/test_a.py::test_k02_n33_two"],
        "A09": ["tests/test_a.py::test_sums_of_i64_rows_a09_a24"],
        "A24": ["tests/test_a.py::test_sums_of_i64_rows_a09_a24"],
        "J02": ["tests/b.mlir"],
    }


def test_the_list_is_read():
    got = cp.read_list("# one\nCE-01 P0 a thing | torch's own\n\n# two\nA01 P1 another\n")
    assert got == [cp.Behaviour("one", "CE-01", "P0", "a thing", "torch's own"), cp.Behaviour("two", "A01", "P1", "another", "")]


@pytest.mark.parametrize(
    "text,message",
    [("CE-01 P3 x", "line 1 is no behaviour: 'CE-01 P3 x'"), ("A01 P0 x\nA01 P1 y", "line 2: A01 stands there twice")],
)
def test_a_wrong_list(text, message):
    with pytest.raises(cp.BehaviourListError, match=message):
        cp.read_list(text)


def test_counts_and_rows():
    behaviours = cp.read_list("# one\nCE-01 P0 a\nCE-02 P0 b | why\nCE-03 P0 c\n")
    text = cp.page(behaviours, {"CE-01": [f"tests/t.py::test_{k}" for k in range(5)]})
    assert "| P0 | 3 | 1 | 1 | 1 |" in text and "| CE-02 | P0 | b | why |" in text
    assert "`t.py::test_2`<br>`2 more` |" in text


def test_the_page_is_current():
    behaviours, tests = cp.read_list((cp.ROOT / "tests/behaviours.txt").read_text()), cp.citations(cp.ROOT / "tests")
    current = (cp.ROOT / "docs/reference/coverage.md").read_text() == cp.page(behaviours, tests)
    assert current, "docs/reference/coverage.md is old: python -m stepwell.tools.docs.coverage_page"
