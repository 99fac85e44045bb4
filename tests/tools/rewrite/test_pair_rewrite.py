"""Rewrites given as two functions: where they match, what they refuse, and what they give."""

import pytest
import torch
from torch.nn import functional as F
from xdsl.passes import ModulePass

import stepwell
from stepwell.passes.fingerprint.code_modules import Uncacheable
from stepwell.passes.manager.errors import PipelineError
from stepwell.passes.manager.pipelines import default_pipeline

pytestmark = pytest.mark.usefixtures("own_passes")


def spy(seen):
    """A pass that notes the operations of each graph."""

    class Spy(ModulePass):
        name = "spy"

        def apply(self, ctx, op):
            seen.append([nested.name for nested in op.walk()])

    return Spy


def rewritten(fn, *args, passes, position="end", dynamic=False, grad=False):
    """The names of operations of each graph of `fn` after `passes`; the results must be those of eager."""
    seen = []
    entries = [(p, position) for p in passes]
    compiled = torch.compile(
        fn, backend="stepwell", dynamic=dynamic, fullgraph=True, options={"passes": {"nd": [*entries, spy(seen)]}, "cache": "off"}
    )
    got, want = compiled(*args), fn(*args)
    torch.testing.assert_close(got, want, rtol=2e-2 if args[0].dtype in (torch.bfloat16, torch.float16) else 1e-3, atol=1e-2)
    if grad:
        got.sum().backward()
    return seen


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def erf_gelu(x):
    return F.gelu(x)


@pytest.fixture(scope="module")
def gelu():
    return stepwell.replace(tanh_gelu, erf_gelu)


@pytest.mark.parametrize(
    ("dtype", "dynamic", "position"),
    [(torch.float32, False, "end"), (torch.float32, True, "begin"), (torch.bfloat16, True, "end"), (torch.float64, False, "begin")],
)
def test_any_sizes_and_types(gelu, dtype, dynamic, position):
    assert gelu.name == "tanh-gelu-to-erf-gelu"
    (ops,) = rewritten(lambda x, w: tanh_gelu(x @ w).sum(-1), torch.randn(4, 6, 8, dtype=dtype), torch.randn(8, 8, dtype=dtype),
                       passes=[gelu], dynamic=dynamic, position=position)  # fmt: skip
    assert "nd.erf" in ops and "nd.tanh" not in ops


def test_each_place_once(gelu):
    (ops,) = rewritten(lambda x: tanh_gelu(tanh_gelu(tanh_gelu(x[:, :3]) * 2)).sum(0) + x[0, :3], torch.randn(4, 7), passes=[gelu])
    assert ops.count("nd.erf") == 3 and "nd.tanh" not in ops


def test_other_constants_are_kept(gelu):
    def other(x):
        return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.05 * x**3)))

    (ops,) = rewritten(other, torch.randn(4), passes=[gelu])
    assert "nd.tanh" in ops and "nd.erf" not in ops


def rms_norm(x, weight, eps=0.37):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def fast_norm(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def norm_call(x, weight, eps):
    """Another form, which one can tell from the first one."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) * weight


@pytest.fixture(scope="module")
def norm():
    return stepwell.replace(rms_norm, norm_call, [torch.empty(5, 7), torch.empty(7), 0.37])


@pytest.mark.parametrize(("size", "dynamic"), [(16, False), (15, False), (16, True)])
def test_number_and_size_dependent_constant(norm, dynamic, size):
    (ops,) = rewritten(lambda x, w: rms_norm(x, w, 1e-5) + 1, torch.randn(2, 3, size), torch.randn(size), passes=[norm], dynamic=dynamic)
    assert "nd.rsqrt" not in ops and "nd.sqrt" in ops


def test_functional_norm_as_replacement():
    norm = stepwell.replace(rms_norm, fast_norm, [torch.empty(5, 7), torch.empty(7), 0.37])
    assert rewritten(lambda x, w: rms_norm(x, w, 1e-6), torch.randn(2, 3, 16), torch.randn(16), passes=[norm])


def test_commutative_operands_in_both_orders():
    pair = stepwell.replace(lambda x, y: torch.exp(x) + torch.sin(y), lambda x, y: torch.sin(y) - -torch.exp(x), name="sums")
    for fn in (lambda x, y: x.exp() + y.sin(), lambda x, y: y.sin() + x.exp()):
        torch._dynamo.reset()
        (ops,) = rewritten(fn, torch.randn(4), torch.randn(3, 4), passes=[pair])
        assert "nd.add" not in ops


def test_values_used_elsewhere_are_not_swallowed():
    def fn(x):
        t = torch.tanh(x)
        return t * 2 + 1, t

    pair = stepwell.replace(lambda x: torch.tanh(x) * 2 + 1, lambda x: torch.sinh(x) / torch.cosh(x) * 2 + 1, name="tanh")
    (ops,) = rewritten(fn, torch.randn(4), passes=[pair])
    assert "nd.sinh" not in ops
    torch._dynamo.reset()
    (ops,) = rewritten(lambda x: fn(x)[0], torch.randn(4), passes=[pair])
    assert "nd.sinh" in ops and "nd.tanh" not in ops


@pytest.mark.parametrize("dynamic", [False, True])
def test_several_results(dynamic):
    """Two products of one tensor as one, although a use of the first stands before the second."""

    def joined(x, a, b):
        return (x @ torch.cat([a, b], 1)).split([a.shape[1], b.shape[1]], 1)

    pair = stepwell.replace(lambda x, a, b: (x @ a, x @ b), joined, [torch.empty(3, 5), torch.empty(5, 7), torch.empty(5, 11)], name="join")

    def fn(x, a, b):
        p = (x @ a).relu()
        return p, (x @ b).exp(), p.sum()

    (ops,) = rewritten(fn, torch.randn(4, 8), torch.randn(8, 2), torch.randn(8, 6), passes=[pair], dynamic=dynamic)
    assert ops.count("nd.matmul") == 1 and "nd.cat" in ops


def test_results_that_hang_on_each_other_stay():
    functions = (lambda x, y: (torch.sinh(x), torch.cosh(y)), lambda x, y: (torch.sin(x), torch.cos(y)))
    pair = stepwell.replace(*functions, name="pair", verify=False)
    (ops,) = rewritten(lambda x: torch.cosh(torch.sinh(x) + 1), torch.randn(4) / 10, passes=[pair])
    assert "nd.sinh" in ops and "nd.cosh" in ops


def test_check():
    seen = []

    def check(match):
        seen.append((match["x"].dtype, match["x"].dim(), match.operation.name))
        return match["x"].shape[-1] % 8 == 0

    pair = stepwell.replace(lambda x: torch.sinh(x) + 1, lambda x: (x.exp() - (-x).exp()) / 2 + 1, check=check, name="sinh")
    for size, matched in ((16, True), (15, False)):
        torch._dynamo.reset()
        (ops,) = rewritten(lambda x: torch.sinh(x) + 1, torch.randn(2, 3, size), passes=[pair])
        assert ("nd.exp" in ops) == matched
    torch._dynamo.reset()
    (ops,) = rewritten(lambda x: torch.sinh(x) + 1, torch.randn(2, 3, 16), passes=[pair], dynamic=True)
    assert "nd.exp" not in ops  # nothing says that the size is a multiple of 8
    assert set(seen) == {(torch.float32, 3, "nd.add")}


def test_replacement_may_look_at_sizes():
    """Each place is replaced by what the function gives for its sizes."""

    def scaled(x):
        return torch.cosh(x) * (x.shape[-1] if x.dim() == 2 else 1) / (x.shape[-1] if x.dim() == 2 else 1)

    pair = stepwell.replace(lambda x: torch.cosh(x), scaled, name="cosh")
    (ops,) = rewritten(lambda x: torch.cosh(x).sum() + torch.cosh(x[0]).sum(), torch.randn(3, 4), passes=[pair])
    assert ops.count("nd.cosh") == 2 and ops.count("nd.div") <= 1


def test_in_place_code_in_the_functions():
    def pattern(x):
        y = torch.sinh(x)
        y += 1
        y[0] = 0
        return y

    pair = stepwell.replace(pattern, lambda x: torch.cat([x[:1] * 0, torch.sinh(x[1:]) + 1]), name="in-place")
    (ops,) = rewritten(lambda x: pattern(x * 3), torch.rand(4, 3), passes=[pair])
    assert "nd.cat" in ops


def test_library_call_as_replacement():
    name = "stepwell_test_pairs::soft"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cpu")(lambda x: torch.softmax(x, -1))
    torch.library.register_fake(name)(lambda x: torch.empty_like(x))

    def softmax(x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    pair = stepwell.replace(softmax, lambda x: torch.ops.stepwell_test_pairs.soft(x), name="soft")
    (ops,) = rewritten(lambda x: softmax(x.mT * 2) + 1, torch.randn(3, 4, 5), passes=[pair], dynamic=True)
    assert "nd.extern" in ops and "nd.exp" not in ops


def attention(q, k, v, scale=0.37):
    return torch.softmax(q @ k.mT * scale, -1) @ v


def library_attention(q, k, v, scale):
    return F.scaled_dot_product_attention(q, k, v, scale=scale)


@pytest.mark.parametrize(("wanted", "dynamic", "position"), [("extern", True, "begin"), ("extern", False, "end"), ("exp", False, "begin")])
def test_attention_as_a_call_and_back(wanted, dynamic, position):
    examples = [torch.empty(2, 3, 5, 8), torch.empty(2, 3, 11, 8), torch.empty(2, 3, 11, 8), 0.37]
    if wanted == "extern":
        pair = stepwell.replace(attention, library_attention, examples)
        fn = attention
    else:
        pair = stepwell.replace(
            lambda q, k, v: library_attention(q, k, v, 0.25), lambda q, k, v: attention(q, k, v, 0.25), examples[:3], name="back"
        )
        fn = library_attention
    inputs = [torch.randn(2, 4, n, 16) for n in (6, 10, 10)]
    (ops,) = rewritten(lambda q, k, v: fn(q * 2, k, v, 0.25) + 1, *inputs, passes=[pair], dynamic=dynamic, position=position)
    assert ("nd.extern" in ops, "nd.exp" in ops) == (wanted == "extern", wanted == "exp")


def test_forward_and_backward_graphs():
    """The derivative of the sine is found in the backward graph."""
    pair = stepwell.replace(lambda g, x: g * torch.cos(x), lambda g, x: g * torch.sin(x + 1.5707963267948966), name="cosine")
    x = torch.randn(5, requires_grad=True)
    forward, backward = rewritten(lambda x: torch.sin(x * 2), x, passes=[pair], grad=True)
    assert "nd.sin" in forward and "nd.sin" in backward and "nd.cos" not in backward
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * x.detach()))


def test_replacement_that_gives_another_type_somewhere():
    pair = stepwell.replace(lambda x: torch.sinh(x), lambda x: torch.sinh(x).float(), name="narrow")
    message = r"'nd.sinh' op: replacement '<lambda>' returns !nd.tensor<4 x f32>, not !nd.tensor<4 x f64>.*`check`"
    with pytest.raises(Exception, match=message) as caught:
        rewritten(lambda x: torch.sinh(x), torch.randn(4, dtype=torch.float64), passes=[pair])
    assert "test_pair_rewrite.py" in str(caught.value)


def two(x, y):
    return x + y


@pytest.mark.parametrize(
    ("arguments", "message"),  # {f}: the name of a lambda
    [
        ((two, 3), "the replacement must be a Python function, not 3"),
        ((two, lambda x: x), "pattern 'two' and replacement {f} differ in the number of parameters"),
        ((lambda x: x.exp(), lambda x: x), 'a pair with a lambda needs a name: replace(..., name="...")'),
        ((lambda x, y: x.exp(), two), "pattern {f} does not use 'y', so that nothing would say what it is"),
        ((lambda x: x, lambda x: x), "pattern {f} returns its argument 'x': there is nothing to find"),
        ((lambda x: (x.exp(),) * 2, lambda x: (x, x)), "pattern {f} returns the same value twice"),
        ((lambda x: x.exp(), lambda x: x.exp().half()), "replacement {f} returns !nd.tensor<5 x 7 x f16>, not !nd.tensor<5 x 7 x f32>"),
        ((lambda x: x.exp(), lambda x: x.sum(0)), "replacement {f} returns !nd.tensor<7 x f32>, not !nd.tensor<5 x 7 x f32>"),
        ((lambda x, y: x @ y, two), "pattern {f} cannot be traced: "),
        ((lambda x: torch.rand_like(x) + x, lambda x: x), "pattern {f} cannot be traced: it calls aten.randint.low, which has effects"),
        ((lambda x: x.add_(1), lambda x: x + 1), "pattern {f} cannot be traced: it writes to an argument"),
        ((lambda x: x.exp().tolist(), lambda x: x), "pattern {f} cannot be traced: "),
        ((lambda x: x.exp() + torch.tensor(range(12)).sum(), lambda x: x), "pattern {f} cannot be traced: it makes tensors of constants"),
        ((lambda x, n=1.5: x.exp() ** (n * 2), lambda x, n: x), "the number 'n' (1.5) stands nowhere in pattern {f}"),
        ((lambda x: 3, lambda x: x), "pattern {f} cannot be traced: TypeError: it must return tensors, one or a tuple of them, not int"),
        ((lambda *x: x[0].exp(), lambda *x: x[0]), "parameter 'x' of the pattern {f} must be a plain one"),
    ],
)
def test_mistakes(arguments, message):
    name = None if "needs a name" in message else "mine"
    with pytest.raises(PipelineError) as caught:
        stepwell.replace(*arguments, name=name)
    assert str(caught.value).startswith(message.replace("{f}", "'<lambda>'")), str(caught.value)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([torch.empty(3)], "pattern 'two' has 2 parameters (x, y), example_inputs has 1"),
        (torch.empty(3), "pattern 'two' has 2 parameters (x, y), example_inputs has 1"),
        ([torch.empty(3), "a"], "the example for 'y' of 'two' must be a tensor or a number, not str"),
        ([torch.empty(3), torch.empty(4)], "pattern 'two' cannot be traced: "),
    ],
)
def test_mistakes_in_the_examples(examples, message):
    with pytest.raises(PipelineError) as caught:
        stepwell.replace(two, two, examples)
    assert str(caught.value).startswith(message), str(caught.value)


def test_a_pair_behind_the_tensors_says_so():
    """Where nests stand already a pair would find nothing; at the beginning of their stage they are still tensors."""
    pair = stepwell.replace(lambda x: torch.relu(x), lambda x: x.clamp(min=0), name="mine")
    x = torch.randn(3)
    for position, works in (("begin", True), ("end", False)):
        torch._dynamo.reset()
        run = torch.compile(torch.relu, backend="stepwell", options={"passes": {"loop": [(pair, position)]}})
        if works:
            torch.testing.assert_close(run(x), x.relu())
            continue
        with pytest.raises(Exception, match="pass 'mine' failed: .* a pair works on tensors, what stands here are nests"):
            run(x)


def test_key_for_caches():
    """A pair of functions that a file holds has a lasting key, another one for other functions."""
    keys = [default_pipeline("cpu", {"passes": {"nd": [stepwell.replace(*pair, name="mine")]}}).fingerprint()
            for pair in ((tanh_gelu, erf_gelu), (tanh_gelu, erf_gelu), (tanh_gelu, tanh_gelu))]  # fmt: skip
    assert keys[0] == keys[1] != keys[2] and None not in keys
    held = [1.5]
    pair = stepwell.replace(lambda x: x.exp(), lambda x: x.exp() * held[0], name="mine", verify=False)
    keys = []
    for held[0] in (1.5, 1.5, 2.5, object):
        keys.append(default_pipeline("cpu", {"passes": {"nd": [pair]}}).fingerprint())
    assert keys[0] == keys[1] and len(set(keys)) == 3
    held[0] = iter([1.5])
    with pytest.raises(Uncacheable, match="an element of 'held', which .* closes over, is a builtins.list_iterator"):
        default_pipeline("cpu", {"passes": {"nd": [pair]}}).fingerprint()


def test_a_pair_that_reads_something_else_by_now():
    """What was traced of a function is forgotten where a value that it reads has changed."""
    scale = [2.0]

    def doubled(x):
        return torch.exp(x * scale[0])

    pair = stepwell.replace(lambda x: torch.exp(x), doubled, name="mine", verify=False)
    x = torch.randn(3)
    for scale[0] in (2.0, 3.0, 2.0):
        torch._dynamo.reset()
        run = torch.compile(torch.exp, backend="stepwell", options={"passes": {"nd": [pair]}})
        torch.testing.assert_close(run(x), torch.exp(x * scale[0]))


GELU = """func.func @f(%x: !nd.tensor<s0 x DTYPE>) -> !nd.tensor<s0 x DTYPE> {
  %h = nd.full {value = 0.5 : f32} : !nd.tensor<DTYPE>
  %a = nd.full {value = 0.044715 : f32} : !nd.tensor<DTYPE>
  %b = nd.full {value = 0.7978845608 : f32} : !nd.tensor<DTYPE>
  %one = nd.full {value = 1.0 : f32} : !nd.tensor<DTYPE>
  %x2 = nd.mul %x, %x : !nd.tensor<s0 x DTYPE>
  %x3 = nd.mul %x2, %x : !nd.tensor<s0 x DTYPE>
  %p = nd.mul %x3, %a : (!nd.tensor<s0 x DTYPE>, !nd.tensor<DTYPE>) -> !nd.tensor<s0 x DTYPE>
  %q = nd.add %x, %p : !nd.tensor<s0 x DTYPE>
  %r = nd.mul %q, %b : (!nd.tensor<s0 x DTYPE>, !nd.tensor<DTYPE>) -> !nd.tensor<s0 x DTYPE>
  %t = nd.tanh %r : !nd.tensor<s0 x DTYPE>
  %u = nd.add %t, %one : (!nd.tensor<s0 x DTYPE>, !nd.tensor<DTYPE>) -> !nd.tensor<s0 x DTYPE>
  %y = nd.mul %x, %h : (!nd.tensor<s0 x DTYPE>, !nd.tensor<DTYPE>) -> !nd.tensor<s0 x DTYPE>
  %z = nd.mul %y, %u : !nd.tensor<s0 x DTYPE>
  func.return %z : !nd.tensor<s0 x DTYPE>
}
"""


@pytest.mark.parametrize("dtype", ["f32", 'f32, "cuda:0"'])
def test_opt_tool(opt_tool, tmp_path, dtype):
    """The graph is rewritten alike on a device that this machine need not have."""
    module = tmp_path / "gelus.py"
    module.write_text(
        "import stepwell, torch\n"
        "def tanh_gelu(x):\n    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))\n"
        "def gelu(x):\n    return torch.nn.functional.gelu(x)\n"
        'stepwell.register_pass("nd", stepwell.replace(tanh_gelu, gelu))\n'
    )
    flags = ("--load-module", module, "-p", "tanh-gelu-to-gelu", "--mlir-pass-statistics", "--remarks")
    result = opt_tool(*flags, stdin=GELU.replace("DTYPE", dtype))
    assert result.code == 0, result.err
    assert "nd.erf" in result.out and "nd.tanh" not in result.out and f"!nd.tensor<s0 x {dtype}>" in result.out
    assert "1 num-replaced" in result.err and "'gelu' takes the place of" in result.err


def squares(x):
    y = torch.sinh(-x)
    return y * y


@pytest.mark.parametrize("position", ["begin", "end"])
def test_equal_operands_that_are_not_one_value_yet(position):
    """At the beginning of the stage nothing has made one operation of two equal ones."""
    pair = stepwell.replace(squares, lambda x: torch.cosh(-x) ** 2 - 1, name="squares")
    twice = [lambda x: torch.sinh(-x) * torch.sinh(-x), lambda x: torch.sinh(-x) * torch.sinh(x.neg())]
    for fn in (squares, *twice):
        torch._dynamo.reset()
        (ops,) = rewritten(lambda x, fn=fn: fn(x * 3 + 1), torch.randn(4), passes=[pair], position=position)
        assert "nd.sinh" not in ops and "nd.cosh" in ops
    for fn in (lambda x: torch.sinh(-x) * torch.sinh(x), lambda x: torch.sinh(-x) * torch.sinh(-x.flip(0))):
        torch._dynamo.reset()
        (ops,) = rewritten(fn, torch.randn(4), passes=[pair], position=position)
        assert "nd.sinh" in ops and "nd.cosh" not in ops


def test_equal_operands_of_which_one_is_needed_elsewhere():
    pair = stepwell.replace(squares, lambda x: torch.cosh(-x) ** 2 - 1, name="squares")

    def fn(x):
        y = torch.sinh(-x)
        return torch.sinh(-x) * y, y

    seen = []
    options = {"passes": {"nd": [(pair, "begin"), (spy(seen), "begin")]}, "cache": "off"}
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell", options=options)(x), fn(x), rtol=1e-3, atol=1e-3)
