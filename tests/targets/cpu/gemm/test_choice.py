"""The choice between generated products and the library."""

from __future__ import annotations

import json
import time

from stepwell.targets.cpu.gemm.choice import MeasuredChoices, prefer_own_attention, prefer_own_gemm, relative_speed
from stepwell.targets.cpu.gemm.spec import ISAS


def test_amd_prefers_generated_code_for_floats():
    for trans_b in (False, True):
        assert relative_speed(1024, 1024, 1024, "f32", False, trans_b, "amd", ISAS["avx512"]) > 1
    assert relative_speed(128, 768, 3072, "f32", True, False, "amd", ISAS["avx2"]) > 1


def test_large_bfloat_products_go_to_the_library_on_the_matrix_unit():
    amx = ISAS["amx"]
    assert relative_speed(1024, 1024, 1024, "bf16", False, True, "intel", amx) < 0.95
    assert relative_speed(64, 256, 256, "bf16", False, True, "intel", amx) > 1


def test_small_products_are_generated_everywhere():
    for isa in ISAS.values():
        for vendor in ("amd", "intel", "other"):
            assert relative_speed(16, 16, 16, "f32", vendor=vendor, isa=isa) > 1
    assert prefer_own_gemm(16, 16, 16)


def test_plain_sse_leaves_large_products_to_the_library():
    assert relative_speed(512, 512, 512, "f32", vendor="intel", isa=ISAS["generic"]) < 0.95


def test_fused_work_tips_the_scales():
    sizes = [(m, n, k) for m in (4, 64, 512) for n in (64, 2048) for k in (64, 1024)]
    for size in sizes:
        assert prefer_own_gemm(*size, trans_a=True, fused=True) >= prefer_own_gemm(*size, trans_a=True)


def test_a_choice_is_measured_once(tmp_path):
    path = tmp_path / "new" / "gemm.json"
    calls = []

    def fast():
        calls.append("fast")

    def slow():
        calls.append("slow")
        time.sleep(0.002)

    first = MeasuredChoices(path).times("a", fast, slow)
    assert first["own"] < first["library"]
    count = len(calls)
    assert MeasuredChoices(path).times("a", slow, fast) == MeasuredChoices(path).noted("a") == first and len(calls) == count
    other = MeasuredChoices(path).times("b", slow, fast)
    assert other["own"] > other["library"]
    (table,) = json.loads(path.read_text()).values()
    assert table["a"]["own"] < table["a"]["library"]


def test_a_broken_table_counts_as_empty(tmp_path):
    path = tmp_path / "gemm.json"
    for text in ("", "[]", '{"x": 1}', '{"x": {"y": {"own": "?"}}}'):
        path.write_text(text)
        assert MeasuredChoices(path).noted("a") is None
        times = MeasuredChoices(path).times("a", lambda: None, lambda: time.sleep(0.001))
        assert times["own"] < times["library"]


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    times = MeasuredChoices(tmp_path / "file" / "gemm.json").times("a", lambda: None, lambda: time.sleep(0.001))
    assert times["own"] < times["library"]


def test_attention_is_generated_where_its_products_run_on_the_best_unit():
    for name in ("avx512", "avx2", "amx", "avx512_bf16"):
        assert prefer_own_attention(512, 512, 64, "f32", ISAS[name])
    assert prefer_own_attention(512, 512, 64, "bf16", ISAS["amx"])
    assert not prefer_own_attention(512, 512, 64, "bf16", ISAS["avx512_bf16"])
    assert prefer_own_attention(16, 16, 64, "bf16", ISAS["avx512_bf16"])
    assert not prefer_own_attention(1, 512, 64, "f32", ISAS["avx512"])
    assert not prefer_own_attention(128, 128, 64, "f32", ISAS["neon"])
    assert not prefer_own_attention(16, 16, 512, "f32", ISAS["avx512"])
    assert not prefer_own_attention(16, 16, 64, "f32", ISAS["generic"])
