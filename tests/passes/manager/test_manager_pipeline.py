"""Pipelines as data and as text: stages, editing, round trips, options, mistakes with a caret."""

import random
from dataclasses import dataclass
from typing import Literal

import pytest
from xdsl.passes import ModulePass

from stepwell.passes.fingerprint.code_modules import Uncacheable
from stepwell.passes.manager import registry, user
from stepwell.passes.manager.errors import PipelineError
from stepwell.passes.manager.pass_manager import Nest, Pass, Pipeline, Stage, as_pass
from stepwell.passes.manager.pipeline_text import option_lines, pass_text
from stepwell.passes.manager.pipelines import default_pipeline, parse_pass, parse_pipeline, pipeline_with_options


@dataclass(frozen=True)
class Options(ModulePass):
    """Has an option of every type."""

    name = "test-options"
    number: int = 4
    ratio: float = 0.5
    flag: bool = False
    text: str = ""
    sizes: tuple[int, ...] = (1, 2)
    words: tuple[str, ...] = ()
    limit: int | None = None
    mode: Literal["fast", "exact"] = "fast"

    def apply(self, ctx, op):
        pass


@dataclass(frozen=True)
class Required(ModulePass):
    """Needs an option."""

    name = "test-required"
    path: str

    def apply(self, ctx, op):
        pass


class OnFunc(Pass):
    """Works on functions."""

    name = "test-on-func"
    anchor = "func.func"

    def apply(self, ctx, op):
        pass


@pytest.fixture(autouse=True)
def toy_passes():
    with user.isolated():
        for cls in (Options, Required, OnFunc):
            registry.register(cls.name, lambda cls=cls: cls)
        yield


def toy() -> Pipeline:
    return Pipeline("toy", [Stage("nd", ["cse", "dce"]), Stage("loop"), Stage("cpu", ["canonicalize"])])


# Text.


@pytest.mark.parametrize(
    "text",
    [
        "builtin.module()",
        "builtin.module(cse)",
        "builtin.module(cse,func.func(dce,canonicalize),cse)",
        "builtin.module(any(cse),func.func(any(dce)))",
        "builtin.module(test-options{number=-3 ratio=1e-05 flag=true sizes=8,16,32 limit=7 mode=exact})",
        'builtin.module(test-options{text="a b,c}\\"d\\\\" words=x,"y z"})',
        "builtin.module(test-options{sizes},cse)",
        "builtin.module(func.func(test-on-func),test-required{path=/a/b.so})",
    ],
)
def test_text_round_trip(text):
    pipeline = parse_pipeline(text)
    assert str(pipeline) == text
    assert parse_pipeline(str(pipeline)) == pipeline


def test_random_options_round_trip():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    alphabet = 'ab 1,={}"\\\n()-_.'
    for _ in range(200):
        made = Options(
            number=rng.randint(-9, 9),
            ratio=rng.choice([0.5, -1e-30, 3.0, rng.random()]),
            flag=rng.random() < 0.5,
            text="".join(rng.choice(alphabet) for _ in range(rng.randint(0, 8))),
            sizes=tuple(rng.randint(0, 99) for _ in range(rng.randint(0, 3))),
            words=tuple("".join(rng.choice(alphabet) for _ in range(3)) for _ in range(rng.randint(0, 3))),
            limit=rng.choice([None, 0, 5]),
            mode=rng.choice(["fast", "exact"]),
        )
        for defaults in (False, True):
            assert parse_pass(pass_text(made, defaults=defaults)) == made


def test_white_space_underscores_and_flags():
    pipeline = parse_pipeline(" builtin.module ( cse , test-options { flag  number = 3 } ) ".replace(" = ", "="))
    assert str(pipeline) == "builtin.module(cse,test-options{number=3 flag=true})"
    assert parse_pass("test-options{sizes=0x10}") == Options(sizes=(16,))


def test_short_form_nests_by_itself():
    assert str(parse_pipeline("cse,test-on-func,dce")) == "builtin.module(cse,func.func(test-on-func),dce)"
    assert str(parse_pipeline("")) == "builtin.module()"


def test_dump_with_defaults():
    text = parse_pipeline("test-options").text(defaults=True)
    assert text == 'builtin.module(test-options{number=4 ratio=0.5 flag=false text="" sizes=1,2 words mode=fast})'
    assert parse_pipeline(text) == parse_pipeline("test-options")


def test_option_lines():
    assert list(option_lines(Options))[:3] == [
        ("number", "int", "default: 4"),
        ("ratio", "float", "default: 0.5"),
        ("flag", "bool", "default: false"),
    ]
    assert list(option_lines(Options))[4:] == [
        ("sizes", "list of int", "default: 1,2"),
        ("words", "list of string", "default: empty"),
        ("limit", "int", "optional"),
        ("mode", "fast | exact", "default: fast"),
    ]
    assert list(option_lines(Required)) == [("path", "string", "required")]


def test_mlir_opt_pass_of_xdsl():
    pipeline = parse_pipeline("mlir-opt[cse,func.func(canonicalize)],dce")
    assert [p.name for p in pipeline.passes()] == ["mlir-opt", "dce"]
    assert next(pipeline.passes()).arguments[-1] == "builtin.module(cse,func.func(canonicalize))"
    assert parse_pipeline(str(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("canonicalise", "1:1",
         "'canonicalise' does not refer to a registered pass or pass pipeline; did you mean 'canonicalize'"),
        ("builtin.module(cse,xyzzy)", "1:20", "'xyzzy' does not refer to a registered pass or pass pipeline"),
        ("builtin.module(\n  cse,\n  xyzzy)", "3:3", "'xyzzy' does not refer to"),
        ("func.func", "1:1",
         "'func.func' does not refer to a registered pass or pass pipeline; passes are nested under an "
            "operation as func.func(...)"),
        ("cse,", "1:5", "expected the name of a pass, found the end of the text"),
        ("cse dce", "1:5", "expected ',' or the end of the text, found 'd'"),
        ("func.func(cse", "1:10", "'(' after 'func.func' is never closed"),
        ("func.func(cse dce)", "1:15", "expected ',' or ')' here, found 'd'"),
        ("cse)", "1:4", "expected ',' or the end of the text, found ')'"),
        ("cse(dce)", "1:1", "'cse' is a pass, not an operation to nest under"),
        ("module(dce)", "1:1", "'module' is not an operation name to nest under (dialect.operation or 'any')"),
        ("cse{x=1}", "1:5", "pass 'cse' has no option 'x'; it has none"),
        ("test-options{numbre=1}", "1:14", "pass 'test-options' has no option 'numbre'; did you mean 'number'?"),
        ("test-options{zz=1}", "1:14", "pass 'test-options' has no option 'zz'; its options are: number, ratio, flag"),
        ("test-options{number=a}", "1:21", "option 'number' of pass 'test-options' takes int, not 'a'"),
        ("test-options{number=1,2}", "1:21", "option 'number' of pass 'test-options' takes int, not '1,2'"),
        ("test-options{number}", "1:14", "option 'number' of pass 'test-options' takes int, and needs a value"),
        ("test-options{flag=maybe}", "1:19", "option 'flag' of pass 'test-options' takes bool, not 'maybe'"),
        ("test-options{sizes=1,b}", "1:20", "option 'sizes' of pass 'test-options' takes list of int, not '1,b'"),
        ("test-options{mode=slow}", "1:19", "option 'mode' of pass 'test-options' takes fast | exact, not 'slow'"),
        ("test-options{number=1 number=2}", "1:23", "option 'number' of pass 'test-options' is given twice"),
        ("test-options{number=}", "1:21", "expected a value for option 'number', found '}'"),
        ("test-options{number=1", "1:13", "'{' after 'test-options' is never closed"),
        ('test-options{text="a}', "1:19", "the string is never closed"),
        ("test-required", "1:1", "pass 'test-required' needs option 'path'"),
        ("builtin.module(test-on-func)", "1:16",
         "pass 'test-on-func' works on 'func.func' and stands under 'builtin.module'; write func.func(test-on-func)"),
        ("stepwell-cpu{from=lop}", "1:19", "pipeline 'stepwell-cpu' has no stage 'lop'; did you mean 'loop'?"),
        ("stepwell-cpu{form=loop}", "1:14", "pipeline 'stepwell-cpu' has no option 'form'; did you mean 'from'?"),
        ("stepwell-cpu{from=mem to=nd}", "1:1", "stage 'mem' comes after stage 'nd'"),
        ("func.func(stepwell-cpu)", "1:11", "pipeline 'stepwell-cpu' works on modules and cannot be nested"),
    ],
)  # fmt: skip
def test_mistakes_have_a_position(text, position, message):
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text)
    assert caught.value.message.startswith(message)
    assert caught.value.position == position


def test_caret():
    with pytest.raises(PipelineError) as caught:
        parse_pipeline("builtin.module(cse,xyzzy)")
    assert str(caught.value) == (
        "pass-pipeline:1:20: 'xyzzy' does not refer to a registered pass or pass pipeline\n"
        "  builtin.module(cse,xyzzy)\n"
        "                     ^~~~~"
    )


def test_pass_that_cannot_be_imported():
    registry.register("test-missing", registry.loader("passes.no_such_file:X"))
    with pytest.raises(PipelineError, match="pass 'test-missing' cannot be loaded: No module named"):
        parse_pipeline("test-missing")


# Editing.


def test_positions():
    pipeline = toy()
    pipeline.add("nd", Options(number=1), "begin")
    pipeline.add("nd", "test-options{number=2}", "after:cse")
    pipeline.add("nd", Options, "before:dce")
    pipeline.add("loop", OnFunc)
    assert str(pipeline) == (
        "builtin.module(test-options{number=1},cse,test-options{number=2},test-options,dce,"
        "func.func(test-on-func),canonicalize)"
    )


def test_editing_inside_of_a_nest():
    pipeline = Pipeline("p", [Stage("s", ["func.func(cse,dce)"])])
    pipeline.add("s", OnFunc, "after:cse")
    assert str(pipeline) == "builtin.module(func.func(cse,test-on-func,dce))"
    pipeline.remove("cse")
    pipeline.replace("dce", "canonicalize")
    assert str(pipeline) == "builtin.module(func.func(test-on-func,canonicalize))"
    pipeline.remove("test-on-func")
    pipeline.remove("canonicalize")
    assert str(pipeline) == "builtin.module()"


def test_passes_that_were_given_options_may_stay():
    pipeline = Pipeline("p", [Stage("s", ["mem-join-nests", "mem-join-nests{always=true}"])])
    pipeline.replace("mem-join-nests", "mem-join-nests{longest=3.0}", plain=True)
    assert str(pipeline) == "builtin.module(mem-join-nests{longest=3.0},mem-join-nests{always=true})"
    pipeline.replace("mem-join-nests", "cse")
    assert str(pipeline) == "builtin.module(cse,cse)"


def test_parts_and_copies():
    pipeline = toy()
    assert pipeline.from_stage("loop").stage_names == ["loop", "cpu"]
    assert pipeline.to_stage("loop").stage_names == ["nd", "loop"]
    part = pipeline.from_stage("cpu")
    part.remove("canonicalize")
    assert str(pipeline) == "builtin.module(cse,dce,canonicalize)"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p: p.add("lop", "cse"), "pipeline 'toy' has no stage 'lop'; did you mean 'loop'?"),
        (lambda p: p.from_stage("x"), "pipeline 'toy' has no stage 'x'; its stages are: nd, loop, cpu"),
        (lambda p: p.add("nd", "cse", "middle"),
         "position must be 'begin', 'end', 'before:PASS' or 'after:PASS', not 'middle'"),
        (lambda p: p.add("nd", "cse", "after:csee"), "stage 'nd' has no pass 'csee'; did you mean 'cse'?"),
        (lambda p: p.add("loop", "cse", "after:dce"), "stage 'loop' has no pass 'dce'; it is empty"),
        (lambda p: p.remove("licm"), "pipeline 'toy' has no pass 'licm'; its passes are: cse, dce, canonicalize"),
        (lambda p: p.add("nd", 3),
         "expected an xDSL ModulePass or RewritePattern (class or instance), or the path of a PDL file, not 3"),
        (lambda p: p.add("nd", int),
         "expected an xDSL ModulePass or RewritePattern (class or instance), or the path of a PDL file, not class 'int'"),
        (lambda p: p.add("nd", Required), "pass 'test-required' cannot be made without options: "),
    ],
)  # fmt: skip
def test_editing_mistakes(edit, message):
    with pytest.raises(PipelineError) as caught:
        edit(toy())
    assert str(caught.value).startswith(message)


def test_equality():
    assert toy() == parse_pipeline("cse,dce,canonicalize")
    assert toy() != parse_pipeline("dce,cse,canonicalize")
    assert Pipeline("a", [Stage("s", [Options()])]) != Pipeline("a", [Stage("s", [Options(number=5)])])
    assert as_pass("func.func(cse)") == Nest("func.func", (parse_pass("cse"),))


# Options of torch.compile.


def test_passes_option_adds_at_the_end_of_the_stage():
    base = toy()
    result = pipeline_with_options(base, passes={"nd": [Options, ("cse", "begin")], "loop": ["dce"]})
    assert str(result) == "builtin.module(cse,cse,dce,test-options,dce,canonicalize)"
    assert base == toy()


def test_pipeline_option_keeps_the_stages():
    result = pipeline_with_options(toy(), pipeline="cse,test-options,canonicalize,dce", passes={"loop": [OnFunc]})
    assert [len(s.entries) for s in result.stages] == [2, 1, 2]
    assert str(result) == "builtin.module(cse,test-options,func.func(test-on-func),canonicalize,dce)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"passes": {"nnd": []}}, "option 'passes', stage 'nnd': pipeline 'toy' has no stage 'nnd'; did you mean 'nd'?"),
        ({"passes": ["cse"]}, "option 'passes' takes a dict of stage to list of passes, not list"),
        ({"passes": {"nd": "cse"}}, "option 'passes': stage 'nd' takes a list of passes, not 'cse'"),
        ({"pipeline": "cse,ddce"}, "pass-pipeline:1:5: 'ddce' does not refer to"),
    ],
)
def test_option_mistakes(arguments, message):
    with pytest.raises(PipelineError) as caught:
        pipeline_with_options(toy(), **arguments)
    assert str(caught.value).startswith(message)


def test_unknown_target():
    with pytest.raises(PipelineError, match="there is no target 'cpx'; did you mean 'cpu'?"):
        default_pipeline("cpx")


def test_fingerprint():
    assert toy().fingerprint() == toy().fingerprint()
    with_options = Pipeline("a", [Stage("s", [Options()])]).fingerprint()
    assert with_options is not None and with_options != Pipeline("a", [Stage("s", [Options(number=5)])]).fingerprint()
    typed = type("Typed", (ModulePass,), {"name": "typed", "__module__": "__console__", "apply": lambda *a: None})
    with pytest.raises(Uncacheable, match="class 'Typed' is in no module"):
        Pipeline("a", [Stage("s", [typed()])]).fingerprint()


def test_our_names_do_not_clash_with_those_of_xdsl():
    from xdsl.dialects import get_all_dialects

    from stepwell.dialects import DIALECTS

    # ours gives locations, counts, and says what is wrong with a file
    assert set(registry.OURS) & set(registry.xdsl_passes()) == {"apply-pdl"}
    assert not set(DIALECTS) & set(get_all_dialects())
