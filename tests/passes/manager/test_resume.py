"""Where a pipeline begins on IR of a later level than tensors."""

from pathlib import Path

import pytest
from xdsl.context import Context

from stepwell.dialects import load_dialects
from stepwell.passes.manager.instrumentation import Instrumentation, print_ir
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import TARGETS, parse_pipeline
from stepwell.passes.manager.resume import level_of, resumed
from stepwell.tools.ir_parser import parse_file

CTX = load_dialects(Context())
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
LISTS = """
builtin.module {
  func.func @forward(%a: !nd.tensor<8 x f32>, %b: !nd.tensor<8 x f32>, %x: !nd.tensor<4 x 4 x f32>)
      -> (!nd.tensor<8 x f32>, !nd.tensor<8 x f32>, !nd.tensor<4 x f32>) {
    %0 = nd.exp %a : !nd.tensor<8 x f32>
    %1 = nd.exp %b : !nd.tensor<8 x f32>
    %2 = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<4 x 4 x f32>) -> !nd.tensor<4 x f32>
    func.return %0, %1, %2 : !nd.tensor<8 x f32>, !nd.tensor<8 x f32>, !nd.tensor<4 x f32>
  }
}
"""


def read(text: str):
    return parse_file(text, "test.mlir", CTX)[0]


def lowered(text: str, pipeline: str) -> str:
    module = read(text)
    run(parse_pipeline(pipeline), module, CTX)
    return print_ir(module)


def passes_left(pipeline: str, text: str) -> list[str]:
    return [p.name for p in resumed(parse_pipeline(pipeline), read(text)).passes()]


def norm() -> str:
    return (EXAMPLES / "norm.mlir").read_text()


@pytest.mark.parametrize(("target", "kernels"), [("cpu", "cpu"), ("gpu", "tt")])
@pytest.mark.parametrize("source", [norm(), LISTS], ids=["norm", "lists"])
def test_every_level_is_the_beginning_of_the_rest(target, kernels, source):
    """A file that was written at any level ends as the program that the graph ends as."""
    whole = lowered(source, f"stepwell-{target}")
    for stage in TARGETS[target]:
        text = lowered(source, f"stepwell-{target}{{to={stage}}}")
        assert level_of(read(text)) == (stage if stage != "tt" else "cpu")
        assert lowered(text, f"stepwell-{target}") == whole, stage
        assert lowered(text, f"stepwell-{target}{{from={stage}}}") == whole, stage


def test_in_the_midst_of_a_stage():
    assert passes_left("stepwell-cpu{to=loop}", lowered(norm(), "nd-to-loop"))[0] == "contract-epilogue"
    buffers = lowered(norm(), "nd-to-loop,loop-to-mem")
    assert passes_left("stepwell-cpu{to=mem}", buffers)[:2] == ["mem-term-blocks", "mem-pack-operands"]
    assert "schedule = " in lowered(buffers, "stepwell-cpu{to=mem}")


def test_a_nest_keeps_the_schedule_that_was_written():
    text = lowered(norm(), "stepwell-cpu{to=mem}").replace("lanes = 64", "lanes = 16")
    assert lowered(text, "stepwell-cpu{to=mem}") == text
    assert "vector<16xf32>" in lowered(text, "stepwell-cpu")


def test_the_function_that_is_least_far_decides():
    first, second = norm(), lowered(norm().replace("@norm", "@second"), "stepwell-cpu{to=loop}")
    both = first + "\n".join(second.splitlines()[1:-1])
    assert level_of(read(both)) == "nd"
    done = lowered(both, "stepwell-cpu")
    assert "host.program @norm" in done and "host.program @second" in done


def test_parts_of_pipelines_in_one_text():
    assert passes_left("stepwell-cpu{to=loop},stepwell-cpu", norm()) == passes_left("stepwell-cpu", norm())
    ours = passes_left("nd-to-loop,stepwell-cpu{to=loop}", norm())
    assert ours[:2] == ["nd-to-loop", "contract-epilogue"]
    first = passes_left("stepwell-cpu{from=nd to=nd}", lowered(norm(), "nd-to-loop"))[:3]
    assert first == ["nd-bucket-collectives", "nd-cut-products", "nd-canonicalize"]


def test_of_a_program_nothing_is_left():
    assert passes_left("stepwell-cpu", lowered(norm(), "stepwell-cpu")) == []
    assert passes_left("stepwell-cpu", "func.func @f(%a: index) -> index {\n func.return %a : index\n}")[0] == "nd-bucket-collectives"


def test_a_remark_says_where_it_begins():
    said = []
    for text in (lowered(norm(), "stepwell-cpu{to=mem}"), lowered(norm(), "stepwell-cpu"), norm()):
        run(parse_pipeline("stepwell-cpu"), read(text), CTX, Instrumentation(remarks=lambda r: said.append(r.text)))
    said = [text for text in said if text.startswith("[stepwell-cpu]")]
    start = "[stepwell-cpu] analysis: 'builtin.module' op: the input is at level"
    assert said == [
        f"{start} mem: the pipeline begins with mem-term-blocks of stage mem (stepwell-cpu{{from=STAGE}} begins elsewhere)",
        f"{start} host: nothing is left to do (stepwell-cpu{{from=STAGE}} begins elsewhere)",
    ]


def test_a_lowering_leaves_what_is_lowered():
    for name, text in (("nd-to-loop", lowered(norm(), "nd-to-loop")), ("loop-to-mem", lowered(LISTS, "stepwell-cpu{to=mem}"))):
        said = []
        module = read(text)
        run(parse_pipeline(name), module, CTX, Instrumentation(remarks=lambda r, said=said: said.append(r.text)))
        assert print_ir(module) == text and "nothing to lower" in said[0]


def test_a_reproducer_holds_what_ran(tmp_path):
    path = tmp_path / "crash.mlir"
    text = lowered(norm(), "stepwell-cpu{to=mem}").replace("loop.index s1 : i64", "loop.index s9 : i64")
    with pytest.raises(Exception, match="s9"):
        run(parse_pipeline("stepwell-cpu"), read(text), CTX, Instrumentation(reproducer=str(path)))
    assert "builtin.module(mem-term-blocks," in path.read_text()
