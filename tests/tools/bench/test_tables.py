"""Tables of cases in files of users."""

import pytest

from stepwell.tools.bench.tables import load_table


def test_a_file_may_import_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_of_table.py").write_text("VALUE = 3\n")
    (tmp_path / "cases.py").write_text("from beside_of_table import VALUE\nCASES = {'a': VALUE}\n")
    assert load_table(str(tmp_path / "cases.py"), "CASES") == {"a": 3}


def test_what_is_missing_is_named(tmp_path):
    path = tmp_path / "cases.py"
    with pytest.raises(SystemExit, match=f"there is no file '{path}'"):
        load_table(str(path), "CASES")
    path.write_text("CASES = {}\n")
    with pytest.raises(SystemExit, match="has no table MODELS"):
        load_table(str(path), "MODELS")
