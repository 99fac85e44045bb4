"""stepwell.register_rule: operators of users become our IR, gradients too; mistakes are said when a rule is registered or used."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stepwell
from stepwell.errors import StepwellError
from stepwell.lowering.fx_to_nd.core import registry, user_rules
from stepwell.targets.target import isolated
from stepwell.tools.interpret.target import InterpretedTarget

EXAMPLES = Path(stepwell.__file__).parent / "docs/examples"
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def rules():
    """What a test registers is gone behind it."""
    before = [*user_rules.registered()]
    torch._dynamo.reset()
    stepwell.reset_counters()
    yield
    for operator in [o for o in user_rules.registered() if o not in before]:
        stepwell.unregister_rule(operator)
    torch._dynamo.reset()


@pytest.fixture
def library():
    """`define(schema, kernel)`: an operator of a library of this test."""
    with torch.library._scoped_library("user_rules", "FRAGMENT") as lib:

        def define(schema: str, kernel, key: str = "CompositeExplicitAutograd"):
            lib.define(schema)
            name = schema.partition("(")[0]
            lib.impl(name, kernel, key)
            return getattr(torch.ops.user_rules, name).default

        gc.collect()  # an older library of this name goes now

        yield define


@pytest.fixture(scope="module")
def soft_clip():
    """The example of docs/howto/custom-passes.md."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import soft_clip
    finally:
        sys.path.remove(str(EXAMPLES))
    yield soft_clip
    for operator in [o for o in user_rules.registered() if o.startswith("mylib.")]:
        stepwell.unregister_rule(operator)


def calls() -> tuple[int, int]:
    return stepwell.counters["extern"], stepwell.counters["fallback"]


# ---- rules at work


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_values_and_gradients(soft_clip, device, dynamic):
    def fn(x):
        return (torch.ops.mylib.soft_clip(x * 2, 3.0) + 1).sum(-1)

    with isolated():
        if device == "gpu":
            stepwell.register_target(InterpretedTarget, replace=True)
        compiled = torch.compile(fn, backend="stepwell", dynamic=dynamic)
        for shape in ((5, 7), (3, 9), (1, 4)):
            mine = torch.randn(shape).t().contiguous().t().requires_grad_()
            theirs = mine.detach().clone().requires_grad_()
            got, want = compiled(mine), fn(theirs)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(*torch.autograd.grad(got.sum(), mine), *torch.autograd.grad(want.sum(), theirs))
    assert calls() == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_empty_rows_and_other_types(soft_clip, dtype):
    for shape in ((0, 3), (4, 1), ()):
        x = torch.randn(shape).to(dtype)
        got = torch.compile(torch.ops.mylib.soft_clip, backend="stepwell")(x)
        torch.testing.assert_close(got, torch.ops.mylib.soft_clip(x))
    assert calls() == (0, 0)


def test_several_results_and_arguments_by_name(library):
    split = library("halves(Tensor x, *, float scale=2.0, int dim=0) -> (Tensor, Tensor)",
                    lambda x, *, scale=2.0, dim=0: tuple(t.clone() * scale for t in x.chunk(2, dim)))  # fmt: skip

    @stepwell.register_rule(split)
    def rule(b, x, *, scale=2.0, dim=0):
        sizes = b.dims(x)
        half = [b.slice_dim(x, dim, start, sizes[dim] // 2) for start in (0, sizes[dim] // 2)]
        return tuple(b.mul(part, scale) for part in half)

    def fn(x):
        one, other = torch.ops.user_rules.halves(x, scale=3.0, dim=1)
        return one + other, torch.ops.user_rules.halves(x)[1]

    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell")(x), fn(x))
    assert calls() == (0, 0)


def test_where_a_rule_does_not_serve_torch_runs_the_operator(library):
    double = library("double(Tensor x) -> Tensor", lambda x: x * 2)

    @stepwell.register_rule(double)
    def rule(b, x):
        return b.mul(x, 2.0) if len(b.dims(x)) == 1 else NotImplemented

    compiled = torch.compile(lambda x: torch.ops.user_rules.double(x), backend="stepwell")
    for x, fallbacks in ((torch.ones(3), 0), (torch.ones(3, 3), 1)):
        assert (compiled(x) == 2).all() and calls() == (0, fallbacks)


def test_in_place_of_a_rule_of_ours_and_back(library):
    def one(b, x):
        return b.full(1.0, b.dtype(x), b.dims(x))

    def run():
        torch._dynamo.reset()
        return torch.compile(torch.exp, backend="stepwell")(torch.zeros(3) + 2)[0].item()

    exact = run()
    with pytest.raises(user_rules.RuleError, match=r"aten.exp.default has a rule of stepwell; register_rule\(..., replace=True\)"):
        stepwell.register_rule(aten.exp.default)(one)
    assert stepwell.register_rule(aten.exp.default, replace=True)(one) is one
    assert run() == 1.0
    with pytest.raises(user_rules.RuleError, match=f"aten.exp.default has a rule of '{__name__}'"):
        stepwell.register_rule(aten.exp.default)(lambda b, x: x)
    stepwell.register_rule(aten.exp.default)(one)  # the cell of a notebook that runs again
    stepwell.register_rule(aten.exp.default, replace=True)(lambda b, x: b.mul(x, 0.0))
    assert run() == 0.0
    stepwell.unregister_rule(aten.exp.default)
    assert run() == exact


def test_a_rule_of_an_operator_that_would_be_decomposed():
    from stepwell.lowering.fx.decompositions import decomposition_table

    operator = next(o for o in decomposition_table() if o._schema.name == "aten::addcdiv" or "hardshrink" in str(o))
    assert registry.find_rule(operator) is None
    stepwell.register_rule(operator)(lambda b, *args, **kwargs: NotImplemented)
    assert operator not in decomposition_table()
    stepwell.unregister_rule(operator)
    assert operator in decomposition_table()


# ---- the cache

OF_USER = '''
import torch, stepwell
lib = torch.library.Library("cached_rules", "DEF")
lib.define("twice(Tensor x) -> Tensor")
lib.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
FACTOR = {factor}

@stepwell.register_rule(torch.ops.cached_rules.twice.default)
def twice(b, x):
    return b.mul(x, FACTOR)
'''
RUN = """
import torch, their_rules, stepwell
y = torch.compile(lambda x: torch.ops.cached_rules.twice(x + 1), backend="stepwell")(torch.ones(3))
print(y[0].item(), stepwell.counters["graph_cache_hits"])
"""


@pytest.mark.long
def test_processes_share_programs_while_the_rule_is_the_same(tmp_path):
    paths = os.pathsep.join((str(tmp_path), *filter(None, sys.path)))
    own = {"PYTHONPATH": paths, "STEPWELL_CACHE": "on", "STEPWELL_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    found = []
    for factor in (2.0, 2.0, 5.0):
        (tmp_path / "their_rules.py").write_text(OF_USER.format(factor=factor))
        done = subprocess.run([sys.executable, "-c", RUN], env={**os.environ, **own}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found == [["4.0", "0"], ["4.0", "1"], ["10.0", "0"]]


def test_a_rule_of_ours_for_an_operator_of_the_user_s_is_part_of_the_key(library):
    from stepwell.tools.extensions.cache_keys import rules_text

    mine = library("mine(Tensor x) -> Tensor", lambda x: x.exp())
    before = rules_text()
    stepwell.register_rule(mine)(registry.find_rule(aten.exp.default))
    assert [name for name, _ in rules_text() if (name, _) not in before] == ["user_rules.mine.default"]
    stepwell.unregister_rule(mine)
    assert rules_text() == before


# ---- mistakes


def test_mistakes_in_the_operator(library):
    library("written(Tensor(a!) x) -> ()", lambda x: None)
    library("silent(Tensor x) -> ()", lambda x: None)
    library("composite(Tensor x) -> Tensor", lambda x: x + 1, "CompositeImplicitAutograd")
    own = torch.library.custom_op("user_rules::own", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    ops = torch.ops.user_rules
    for operator, message in {
        ops.silent: "takes one overload of user_rules.silent: torch.ops.user_rules.silent.default",
        aten.add: "takes one overload of aten.add: torch.ops.aten.add.Tensor or ",
        own: "takes an overload, torch.ops.user_rules.own.default, got",
        "aten.exp": "takes an overload, such as torch.ops.mylib.op.default, got 'aten.exp'",
        test_mistakes_in_the_operator: "takes an overload",
        ops.written.default: "user_rules.written.default writes to its argument 'x'; graphs are functional",
        ops.silent.default: "returns nothing that a rule could compute",
        ops.composite.default: "no graph holds user_rules.composite.default: torch traces through its kernel",
    }.items():
        with pytest.raises(user_rules.RuleError) as raised:
            stepwell.register_rule(operator)
        assert message in str(raised.value)
    with pytest.raises(user_rules.RuleError, match="no rule of aten.exp.default is registered"):
        stepwell.unregister_rule(aten.exp.default)
    with pytest.raises(user_rules.RuleError, match="no rule of 3 is registered"):
        stepwell.unregister_rule(3)


def _generator(b, x, n, flag=False, *, scale=1.0):
    yield x


MISTAKES = {
    "no function": (3, "is a function, got 3"),
    "a class": (dict, "is a function, got <class 'dict'>"),
    "a generator": (_generator, "it is a generator or a coroutine"),
    "no source": (eval("lambda b, x, n, flag=False, *, scale=1.0: x"), "is a lambda without source"),
    "no importer": (lambda x, n, flag=False, *, scale=1.0: x, "cannot be called with all arguments: too many positional arguments"),
    "one too few": (lambda b, x, flag=False, *, scale=1.0: x, "cannot be called with all arguments: too many positional arguments"),
    "one too many": (lambda b, x, n, flag, more, *, scale=1.0: x, "missing a required argument: 'more'"),
    "no default": (lambda b, x, n, flag, *, scale=1.0: x, "cannot be called: missing a required argument: 'flag'"),
    "no default by name": (lambda b, x, n, flag=False, *, scale: x, "cannot be called: missing a required.* argument: 'scale'"),
    "another name": (lambda b, x, n, flag=False, *, size=1.0: x, "unexpected keyword argument 'scale'"),
    "another default": (lambda b, x, n, flag=True, *, scale=1.0: x, "'flag' is True by default, the operator's 'flag' is False"),
    "another default by name": (lambda b, x, n, flag=False, *, scale=2.0: x, "'scale' is 2.0 by default, the operator's 'scale' is 1.0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_function(library, mistake):
    operator = library("many(Tensor x, int n, bool flag=False, *, float scale=1.0) -> Tensor", lambda x, n, flag=False, *, scale=1.0: x + 1)
    function, message = MISTAKES[mistake]
    with pytest.raises(user_rules.RuleError, match=message) as raised:
        stepwell.register_rule(operator)(function)
    assert "user_rules.many.default" in str(raised.value)
    assert str(operator) not in user_rules.registered()


def test_other_ways_to_write_the_signature(library):
    operator = library("free(Tensor x, int n, bool flag=False, *, float scale=1.0) -> Tensor", lambda x, n, flag=False, *, scale=1.0: x + 1)
    for function in (lambda b, *args, **kwargs: args[0], lambda b, x, n, flag=None, scale=None: x, lambda b, x, /, n=3, *rest, **named: x):
        stepwell.register_rule(operator, replace=True)(function)


WRONG = {
    "another size": (lambda b, x: b.slice_dim(x, 0, 0, 2), r"gave a tensor \[2, 3\], the result of the operator is \[4, 3\]"),
    "transposed": (lambda b, x: b.permute(x, (1, 0)), r"gave a tensor \[3, 4\], the result"),
    "fewer dimensions": (lambda b, x: b.reduce("sum", x, (0,)), r"gave a tensor \[3\], the result"),
    "nothing": (lambda b, x: None, "gave None as the result, not a tensor of the IR"),
    "two results": (lambda b, x: (x, x), "as the result, not a tensor of the IR"),
    "a number": (lambda b, x: 3, "gave 3 as the result"),
    "types that do not fit": (lambda b, x: b.add(x, b.iota(b.dims(x), 0)), "wrote a wrong 'nd.add': .*element type"),
    "its own error": (lambda b, x: b.no_such_helper(x), "no_such_helper"),
}


@pytest.mark.spread
@pytest.mark.parametrize("on_failure", [None, "recover"])
@pytest.mark.parametrize("mistake", WRONG)
def test_what_a_rule_gives_is_compared_with_the_operator(library, monkeypatch, mistake, on_failure):
    """And never hidden by a call of the operator instead."""
    monkeypatch.delenv("STEPWELL_ON_FAILURE", raising=False)
    operator = library("same(Tensor x) -> Tensor", lambda x: x.clone())
    function, message = WRONG[mistake]
    stepwell.register_rule(operator)(function)
    options = {"on_failure": on_failure} if on_failure else {}
    with pytest.raises(Exception, match=message) as raised:
        torch.compile(lambda x: torch.ops.user_rules.same(x * 2), backend="stepwell", options=options)(torch.ones(4, 3))
    assert "user_rules.same.default" in str(raised.value) and f"at {__file__}:" in str(raised.value)


def test_sizes_that_are_symbols(library):
    operator = library("same(Tensor x) -> Tensor", lambda x: x.clone())
    stepwell.register_rule(operator)(lambda b, x: b.permute(x, (1, 0)))
    with pytest.raises(Exception, match=r"gave a tensor \[s\d+, s\d+\], the result of the operator is \[s\d+, s\d+\]"):
        torch.compile(lambda x: torch.ops.user_rules.same(x), backend="stepwell", dynamic=True)(torch.ones(4, 3))


def test_results_of_the_wrong_number(library):
    operator = library("both(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x - 1))
    for given, message in ((lambda b, x: x, "the operator has 2 results"), (lambda b, x: (x,), "gave 1 results; the operator has 2")):
        stepwell.register_rule(operator, replace=True)(given)
        torch._dynamo.reset()
        with pytest.raises(Exception, match=message):
            torch.compile(lambda x: torch.ops.user_rules.both(x), backend="stepwell")(torch.ones(3))
    assert issubclass(user_rules.RuleError, StepwellError)
