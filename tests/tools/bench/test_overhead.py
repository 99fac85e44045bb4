"""The table of what a call costs: every layer of every case is measured (no figure is judged)."""

from stepwell.tools.bench import overhead as bench_overhead


def test_every_layer_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(bench_overhead, "BATCH", 1)
    found = bench_overhead.overhead(("dynamic", "training"), ("eager", "stepwell"), rounds=2)["overhead"]
    assert set(found) == {"1 operator, dynamic sizes", "training step"}
    for row in found.values():
        assert set(row) == {"dynamo", "wrapper", "graphs", "eager", "stepwell"}
        assert all(row[name] > 0 for name in ("dynamo", "graphs", "eager", "stepwell"))
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["us", "a", "call", "dynamo", "wrapper", "graphs", "eager", "stepwell"]
    assert len(table) == 3
