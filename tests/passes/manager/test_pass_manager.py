"""Running passes: anchors, verification, statistics, remarks, dumps, timing, hooks, failures."""

import io
from dataclasses import dataclass
from typing import ClassVar

import pytest
from xdsl.context import Context
from xdsl.dialects.arith import AddiOp, ConstantOp, MuliOp
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.utils.exceptions import PassFailedException

from stepwell.dialects import load_dialects
from stepwell.passes.manager.errors import PassError
from stepwell.passes.manager.instrumentation import Instrumentation, remark, statistic
from stepwell.passes.manager.locations import source_location
from stepwell.passes.manager.pass_manager import Nest, Pass, Pipeline, Stage, as_pass, run
from stepwell.passes.manager.verify import InvalidIR, verify_ir
from stepwell.tools.ir_parser import parse_file

TEXT = """
func.func @f(%a: i32) -> i32 {
  %c = arith.constant 0 : i32
  %b = arith.addi %a, %c : i32
  func.return %b : i32
}
func.func @g(%a: i32) -> i32 {
  %b = arith.addi %a, %a : i32
  func.return %b : i32
}
"""


def parse(text: str = TEXT) -> tuple[ModuleOp, Context]:
    ctx = load_dialects(Context())
    return parse_file(text, "t.mlir", ctx)[0], ctx


@dataclass(frozen=True)
class CountAdds(Pass):
    """Counts additions."""

    name = "count-adds"

    def apply(self, ctx, op):
        for nested in op.walk():
            if isinstance(nested, AddiOp):
                self.statistic("num-adds")
                self.remark(nested, lambda op=nested: f"{len(op.operands)} operands", "analysis")


@dataclass(frozen=True)
class FuncPass(Pass):
    """Takes functions."""

    name = "func-pass"
    anchor: ClassVar[str | None] = "func.func"
    seen: ClassVar[list] = []

    def apply(self, ctx, op):
        assert isinstance(op, FuncOp)
        self.seen.append(op.sym_name.data)


@dataclass(frozen=True)
class Breaks(Pass):
    """Leaves an operation behind that does not verify."""

    name = "breaks"

    def apply(self, ctx, op):
        for nested in op.walk():
            if isinstance(nested, AddiOp):
                nested.operands[1] = ConstantOp.from_int_and_width(1, i64).result


class Raises(ModulePass):
    """A plain xDSL pass that fails."""

    name = "raises"
    error: ClassVar[Exception] = PassFailedException("nothing to do")

    def apply(self, ctx, op):
        raise self.error


class AddToMul(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddiOp, rewriter: PatternRewriter):
        rewriter.replace(op, MuliOp(op.lhs, op.rhs))


def test_list_of_passes_patterns_and_text():
    module, ctx = parse()
    assert run([CanonicalizePass(), AddToMul, "func.func(dce)", "cse"], module, ctx) is module
    assert "muli" in str(module) and "addi" not in str(module)
    assert "constant" not in str(module)


def test_anchored_pass_gets_each_function():
    module, ctx = parse()
    FuncPass.seen.clear()
    entry = as_pass(FuncPass)
    assert isinstance(entry, Nest) and str(entry) == "func.func(func-pass)"
    run([FuncPass()], module, ctx)
    assert FuncPass.seen == ["f", "g"]


def test_module_pass_on_one_function_keeps_the_order_of_functions():
    module, ctx = parse()
    run(["func.func(canonicalize,cse)"], module, ctx)
    assert [op.sym_name.data for op in module.ops] == ["f", "g"]
    assert "constant" not in str(module)
    verify_ir(module)


def test_any_anchor_takes_isolated_operations():
    module, ctx = parse(
        "builtin.module { builtin.module { func.func @h() { func.return } } } func.func @f() { func.return }"
    )
    run([Nest("any", (FuncPass(),))], parse()[0], ctx)
    assert FuncPass.seen[-2:] == ["f", "g"]


def test_statistics_and_remarks_go_to_the_run():
    module, ctx = parse()
    seen = []
    instrument = Instrumentation(statistics=True, remarks=seen.append)
    run([CountAdds(), CountAdds()], module, ctx, instrument)
    assert instrument.counts == {("count-adds", "num-adds"): 4}
    assert "count-adds\n  (S) 4 num-adds\n" in instrument.statistics_report()
    assert str(seen[0]) == "t.mlir:4:8: remark: [count-adds] analysis: 'arith.addi' op: 2 operands"
    assert seen[0].location.line == 4


def test_statistics_and_remarks_outside_of_a_run_do_nothing():
    module, ctx = parse()
    CountAdds().apply(ctx, module)
    statistic("x")
    remark(module, lambda: pytest.fail("nobody listens"))


def test_inner_run_takes_part_in_the_outer_one():
    class Outer(ModulePass):
        name = "outer"

        def apply(self, ctx, op):
            run([CountAdds()], op, ctx)

    module, ctx = parse()
    instrument = Instrumentation(statistics=True)
    run([Outer()], module, ctx, instrument)
    assert instrument.counts == {("count-adds", "num-adds"): 2}


def test_foreign_pass_that_breaks_the_ir_is_named_even_without_instrumentation():
    module, ctx = parse()
    with pytest.raises(PassError) as caught:
        run([Breaks()], module, ctx)
    assert caught.value.pass_name == "breaks"
    assert caught.value.op.name == "arith.addi"
    assert str(caught.value).startswith("t.mlir:4:8: after pass 'breaks': 'arith.addi' op: operand")


def test_passes_of_ours_are_verified_on_request_only(monkeypatch):
    from stepwell.passes.manager import pass_manager as manager

    monkeypatch.setitem(manager._FOREIGN, Breaks, False)
    module, ctx = parse()
    run([Breaks()], module, ctx)
    for instrument in (Instrumentation(verify_each=True), Instrumentation(verify_stages=True)):
        module, ctx = parse()
        with pytest.raises(PassError, match="after pass 'breaks'"):
            run(Pipeline("p", [Stage("s", [Breaks()])]), module, ctx, instrument)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PassFailedException("nothing to do"), "pass 'raises' failed: nothing to do"),
        (KeyError("x"), "pass 'raises' failed: KeyError: 'x'"),
        (AssertionError(), "pass 'raises' failed: AssertionError"),
        (PassError("no"), "pass 'raises' failed: no"),
    ],
)
def test_failures_name_the_pass(error, message, monkeypatch):
    module, ctx = parse()
    monkeypatch.setattr(Raises, "error", error)
    with pytest.raises(PassError) as caught:
        run([Raises()], module, ctx)
    text, _, place = str(caught.value).partition(" (at ")
    assert text == message
    assert place.startswith(f"{__file__}:") == ("Error" in message)


def test_fail_names_operation_and_place():
    class Fails(Pass):
        name = "fails"

        def apply(self, ctx, op):
            self.fail(next(iter(op.ops)), "too long")

    module, ctx = parse()
    with pytest.raises(PassError) as caught:
        run([Fails()], module, ctx)
    assert str(caught.value) == "t.mlir:2:1: pass 'fails' failed: 'func.func' op: too long"


def test_dumps():
    def dumps(passes, **flags):
        module, ctx = parse()
        out = io.StringIO()
        try:
            run(passes, module, ctx, Instrumentation(stream=out, **flags))
        except PassError:
            pass
        return [line for line in out.getvalue().splitlines() if line.startswith("// -----//")]

    both = [CanonicalizePass(), CanonicalizePass()]
    after = "// -----// IR Dump After CanonicalizePass (canonicalize) //----- //"
    before = "// -----// IR Dump Before CanonicalizePass (canonicalize) //----- //"
    assert dumps(both, print_ir_after=True) == [after, after]
    assert dumps(both, print_ir_before={"canonicalize"}) == [before, before]
    assert dumps(both, print_ir_after={"cse"}) == []
    assert dumps(both, print_ir_after_change=True) == [after]
    assert dumps([*both, Raises()], print_ir_after_failure=True) == [
        "// -----// IR Dump After Raises Failed (raises) //----- //"
    ]
    assert dumps(["func.func(canonicalize)"], print_ir_after_change=True) == [
        "// -----// IR Dump After CanonicalizePass (canonicalize) ('func.func' operation: @f) //----- //"
    ]


def test_dump_scope():
    for scope, inside in ((False, False), (True, True)):
        module, ctx = parse()
        out = io.StringIO()
        flags = Instrumentation(stream=out, print_ir_after=True, print_module_scope=scope)
        run(["func.func(dce)"], module, ctx, flags)
        first = out.getvalue().split("// -----// IR")[1]
        assert ("@g" in first) == inside


def test_timing_report_is_a_tree():
    module, ctx = parse()
    instrument = Instrumentation(timing=True)
    with instrument.timed("Parser"):
        pass
    run(Pipeline("p", [Stage("nd", [CountAdds(), FuncPass()])]), module, ctx, instrument)
    assert list(instrument.seconds_by_pass()) == ["Parser", "CountAdds", "(verify)", "FuncPass"]
    names = [line[21:] for line in instrument.timing_report().splitlines()[6:]]
    assert names[0].strip() == "Parser" and names[1].strip() == "stage nd" and names[-1].strip() == "Total"
    assert any("'func.func' Pipeline" in n for n in names)
    assert any("FuncPass (2 runs)" in n for n in names)


def test_stage_hooks():
    module, ctx = parse()
    calls = []
    instrument = Instrumentation(
        before_stage=lambda name, m: calls.append(("before", name, m is module)),
        after_stage=lambda name, m: calls.append(("after", name, m is module)),
    )
    run(Pipeline("p", [Stage("nd", [CountAdds()]), Stage("loop")]), module, ctx, instrument)
    assert calls == [(w, n, True) for n in ("nd", "loop") for w in ("before", "after")]


def test_reproducers(tmp_path):
    for local, pipeline, has_constant in (
        (False, "builtin.module(canonicalize,func.func(dce),raises)", True),
        (True, "builtin.module(raises)", False),
    ):
        module, ctx = parse()
        path = tmp_path / "r.mlir"
        with pytest.raises(PassError):
            run(
                ["canonicalize", "func.func(dce)", Raises()],
                module,
                ctx,
                Instrumentation(reproducer=str(path), local_reproducer=local, verify_each=True),
            )
        again, resources = parse_file(path.read_text(), "r.mlir", load_dialects(Context()))
        assert resources == {"mlir_reproducer": {"pipeline": pipeline, "verify_each": True}}
        assert ("constant" in str(again)) == has_constant


def verify_text(text: str) -> str:
    module, _ = parse(text)
    with pytest.raises(InvalidIR) as caught:
        verify_ir(module)
    return f"{source_location(caught.value.op.location)} {caught.value.op.name}: {caught.value}"


def test_use_before_definition():
    text = """func.func @f(%a: i32) {
  %b = arith.addi %c, %a : i32
  %c = arith.addi %a, %a : i32
  func.return
}"""
    assert verify_text(text) == (
        "t.mlir:2:8 arith.addi: operand #0 (a result of 'arith.addi') does not dominate this use"
    )


def test_dominance_over_blocks():
    text = """func.func @f(%p: i1) -> i32 {
  cf.cond_br %p, ^a, ^b
^a:
  %c = arith.constant 0 : i32
  cf.br ^b
^b:
  func.return %c : i32
}"""
    assert "func.return: operand #0 (a result of 'arith.constant') does not dominate" in verify_text(text)
    module, _ = parse(text.replace("^a, ^b\n^a", "^a, ^a\n^a"))
    verify_ir(module)


def test_loops_and_unreachable_blocks_verify():
    module, _ = parse(
        """func.func @f(%p: i1) {
  cf.br ^a(%p : i1)
^a(%q: i1):
  cf.cond_br %q, ^a(%q : i1), ^c
^b:
  cf.br ^a(%p : i1)
^c:
  %u = arith.andi %q, %p : i1
  func.return
}"""
    )
    verify_ir(module)


def test_value_of_another_function_is_not_visible():
    module, _ = parse()
    f, g = module.ops
    g.body.block.first_op.operands[0] = f.body.block.first_op.results[0]
    with pytest.raises(InvalidIR, match="is defined outside of its 'func.func'"):
        verify_ir(module)


def test_erased_value_is_reported():
    module, _ = parse()
    f = next(iter(module.ops))
    f.body.block.first_op.detach()
    with pytest.raises(InvalidIR, match="is not in the IR any more"):
        verify_ir(module)


def test_missing_terminator():
    text = "func.func @f() {\n  %c = arith.constant 0 : i32\n}"
    assert verify_text(text).startswith("t.mlir:2:8 arith.constant: ")


def test_unregistered_operations_are_not_isolated():
    ctx = load_dialects(Context(allow_unregistered=True))
    text = '"a.b"() ({\n  %x = "a.c"() : () -> i32\n  "a.d"() ({ "a.e"(%x) : (i32) -> () }) : () -> ()\n}) : () -> ()'
    verify_ir(parse_file(text, "t.mlir", ctx)[0])


def test_many_passes_cost_little(monkeypatch):
    from stepwell.passes.manager import pass_manager as manager

    class Nothing(Pass):
        name = "nothing"
        calls: ClassVar[int] = 0

        def apply(self, ctx, op):
            type(self).calls += 1

    monkeypatch.setitem(manager._FOREIGN, Nothing, False)
    monkeypatch.setattr(manager, "verify_ir", lambda op: pytest.fail("no verification in production"))
    module, ctx = parse()
    run([Nothing()] * 100, module, ctx)
    assert Nothing.calls == 100
