"""The table of options in docs/reference/options.md is what the fields say."""

from dataclasses import fields

from stepwell.tools.docs import options_page
from stepwell.tools.options.options import Options


def test_the_page_is_current():
    assert options_page.main(["--check"]) == 0, "python -m stepwell.tools.docs.options_page writes it"


def test_each_option_has_a_row_with_a_meaning():
    rows = dict(row.split(" | ", 1) for row in options_page.table().splitlines()[2:])
    assert list(rows) == [f"| `{f.name}`" for f in fields(Options)]
    assert all(len(row.rpartition(" | ")[2]) > 30 for row in rows.values())


def test_the_command_writes_the_page(tmp_path, monkeypatch):
    page = tmp_path / "options.md"
    page.write_text(f"# Options\n{options_page.BEGIN}\nold\n{options_page.END}\nrest\n")
    monkeypatch.setattr(options_page, "PAGE", page)
    assert options_page.main(["--check"]) == 1 and options_page.main([]) == 0 and options_page.main(["--check"]) == 0
    assert page.read_text().startswith(f"# Options\n{options_page.BEGIN}\n\n| option |") and page.read_text().endswith("\nrest\n")
