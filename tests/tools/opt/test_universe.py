"""What xDSL's own tools see of stepwell: they start, and run our passes."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def xdsl(tool: str, *arguments: object) -> str:
    command = [sys.executable, "-m", f"xdsl.tools.{tool}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_dialect_and_every_pass_is_in_the_universe():
    from xdsl.universe import Universe

    from stepwell.dialects import DIALECTS
    from stepwell.passes.manager.registry import OURS
    from stepwell.tools.opt.universe import UNIVERSE

    assert isinstance(UNIVERSE, Universe)
    assert list(UNIVERSE.all_dialects) == list(DIALECTS)
    assert UNIVERSE.all_dialects["cpu"]().name == "cpu"
    assert set(OURS) - set(UNIVERSE.all_passes) == {"apply-pdl"}


def test_a_pass_has_the_name_that_it_is_found_by():
    """xDSL refuses options for a class of another name."""
    from stepwell.tools.opt.universe import UNIVERSE

    assert [name for name, load in UNIVERSE.all_passes.items() if load().name != name] == []


def test_no_name_is_taken_twice():
    from xdsl.universe import Universe

    everything = Universe.get_multiverse()  # ValueError where two packages give one name
    assert {"stepwell-apply-pdl", "apply-pdl", "nd-to-loop", "canonicalize"} <= set(everything.all_passes)


@pytest.mark.parametrize(("target", "kernel"), [("cpu", "cpu.kernel @k0"), ("gpu", "tt.func public @k0")])
def test_xdsl_opt_runs_a_whole_pipeline(target, kernel):
    from stepwell.passes.manager.pipelines import TARGETS

    passes = ",".join(text for stage in TARGETS[target].values() for text in stage)
    for flag in ("merged", "columns-only"):
        passes = passes.replace(f"{{{flag}}}", f"{{{flag}=true}}")
    out = xdsl("xdsl_opt", EXAMPLES / "axpy.mlir", "-p", passes)
    assert kernel in out and "host.launch @k0" in out


def test_xdsl_opt_applies_a_file_of_patterns():
    out = xdsl("xdsl_opt", EXAMPLES / "norm.mlir", "-p", f'stepwell-apply-pdl{{file="{EXAMPLES / "rsqrt.pdl"}"}}')
    assert "nd.rsqrt" in out


def test_xdsl_opt_reads_what_it_wrote(tmp_path):
    lowered = tmp_path / "lowered.mlir"
    lowered.write_text(xdsl("xdsl_opt", EXAMPLES / "axpy.mlir", "-p", "nd-to-loop,loop-to-mem"))
    assert "loop.nest" in xdsl("xdsl_opt", lowered)


def test_xdsl_run_starts(tmp_path):
    file = tmp_path / "main.mlir"
    file.write_text("func.func @main() -> i32 {\n  %a = arith.constant 3 : i32\n  func.return %a : i32\n}\n")
    assert xdsl("xdsl_run", "--verbose", file) == "result: 3\n"
