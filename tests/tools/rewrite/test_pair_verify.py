"""Pairs whose functions compute different things are refused, when they are made or where they are found."""

import pytest
import torch

import stepwell
from stepwell.dialects.nd.types import RangeAttr, TensorType
from stepwell.lowering.fx_to_nd.core.metadata import element_type
from stepwell.passes.manager.errors import PipelineError
from stepwell.tools.rewrite.pair_verify import MAX_ELEMENTS, compare, small

pytestmark = pytest.mark.usefixtures("own_passes")


def twice(x):
    return x * 2


def thrice(x):
    return x * 3


def tensor(*sizes, dtype=torch.float32):
    return TensorType.get(list(sizes), element_type(dtype), "cpu")


def test_the_difference_is_shown():
    with pytest.raises(PipelineError) as caught:
        stepwell.replace(twice, thrice)
    start, _, rest = str(caught.value).partition(" the result is ")
    assert start == "replacement 'thrice' does not compute what pattern 'twice' does:"
    got, _, rest = rest.partition(" at [")
    wanted = float(rest.partition("gives ")[2].partition(",")[0])
    assert float(got) == pytest.approx(1.5 * wanted, rel=1e-3)
    assert rest.endswith("for x !nd.tensor<5 x 7 x f32>; verify=TOLERANCE allows more, verify=False everything")


def test_it_can_be_left_out_or_be_more_lenient():
    pair = stepwell.replace(twice, thrice, verify=False)
    x = torch.randn(4)
    run = torch.compile(lambda x: x * 2, backend="stepwell", options={"passes": {"nd": [pair]}, "cache": "off"})
    torch.testing.assert_close(run(x), x * 3)
    assert stepwell.replace(twice, thrice, verify=0.6)
    assert stepwell.replace(twice, lambda x: x * 2.001, name="near")
    with pytest.raises(PipelineError, match="does not compute"):
        stepwell.replace(twice, lambda x: x * 2.001, name="near", verify=1e-6)
    for value in (-1, float("nan"), "no", None):
        with pytest.raises(PipelineError, match="verify takes True, False or a relative tolerance such as 1e-3, not"):
            stepwell.replace(twice, twice, verify=value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_the_examples_do_not_show_is_found_at_the_match(dynamic):
    """Other sizes and types than those of the examples."""

    def wrong_for_three_dimensions(x):
        return torch.sinh(x) if x.dim() == 2 else torch.sinh(x) + 1

    pair = stepwell.replace(lambda x: torch.sinh(x), wrong_for_three_dimensions, name="sinh")
    options = {"passes": {"nd": [pair]}, "cache": "off", "on_failure": "raise"}
    run = torch.compile(lambda x: torch.sinh(x), backend="stepwell", options=options, dynamic=dynamic)
    run(torch.randn(3, 4))
    with pytest.raises(Exception, match=r"pass 'sinh' failed: 'nd.sinh' op: replacement .* does not compute what pattern"):
        run(torch.randn(2, 3, 4))


def test_a_check_is_asked_first():
    """A pair that is right for what its check takes."""
    pair = stepwell.replace(
        lambda x: torch.sinh(x),
        lambda x: torch.sinh(x.float()).to(x.dtype) if x.dtype != torch.float64 else x * 0,
        check=lambda match: match["x"].dtype != torch.float64,
        name="sinh",
    )
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        run = torch.compile(lambda x: torch.sinh(x), backend="stepwell", options={"passes": {"nd": [pair]}, "cache": "off"})
        torch._dynamo.reset()
        run(torch.randn(3, dtype=dtype))


APPROVED = [
    (lambda x: x / 3, lambda x: x * (1 / 3), [tensor(5, 7)]),
    (lambda x: torch.log(x), lambda x: torch.log2(x) * 0.6931471805599453, [tensor(5, 7)]),  # NaN for half of the numbers
    (lambda x: torch.nn.functional.gelu(x), lambda x: torch.nn.functional.gelu(x, approximate="tanh"), [tensor(50, 70)]),
    (lambda x: x.sum(-1), lambda x: x.flip(-1).sum(-1), [tensor(5, 7, dtype=torch.bfloat16)]),
    (lambda x, y: x @ y, lambda x, y: (y.t() @ x.t()).t(), [tensor(3, 64, dtype=torch.float16), tensor(64, 5, dtype=torch.float16)]),
    (lambda x: x * 2, lambda x: x << 1, [tensor(5, dtype=torch.int32)]),
    (lambda x: ~x, lambda x: torch.logical_not(x), [tensor(5, dtype=torch.bool)]),
    (lambda x: x.conj(), lambda x: torch.complex(x.real, -x.imag), [tensor(5, dtype=torch.complex64)]),
    (lambda x: x + 1, lambda x: 1 + x, [tensor(0, 3)]),
    (lambda x: x.sum(), lambda x: x.mean() * x.numel(), [tensor()]),
    (lambda table, i: table[i], lambda table, i: table[i], [tensor(2, 3), tensor(5, dtype=torch.int64)]),  # beyond the end: proves nothing
]

REFUSED = [
    (lambda x: x * 2, lambda x: x * 3, [tensor(5, dtype=torch.int32)]),
    (lambda x: x * 2, lambda x: x * 3, [tensor(5, dtype=torch.bfloat16)]),
    (lambda x: x * 2, lambda x: x * 2.01, [tensor(5, dtype=torch.float64)]),
    (lambda x: ~x, lambda x: x.clone(), [tensor(5, dtype=torch.bool)]),
    (lambda x: x.conj(), lambda x: x.clone(), [tensor(5, dtype=torch.complex64)]),
    (lambda x: torch.log(x.abs()), lambda x: torch.log(x), [tensor(5)]),  # NaN where the pattern is finite
    (lambda x: (x, x + 1), lambda x: (x, x + 2), [tensor(5)]),
    (lambda x: x.mean(-1), lambda x: x.sum(-1) / 7, [tensor(5, 16)]),
]


@pytest.mark.parametrize(("pattern", "replacement", "arguments"), APPROVED)
def test_equal(pattern, replacement, arguments):
    assert compare(pattern, replacement, "xyz"[: len(arguments)], arguments, None) == ""


@pytest.mark.parametrize(("pattern", "replacement", "arguments"), REFUSED)
def test_different(pattern, replacement, arguments):
    assert "where the pattern gives" in compare(pattern, replacement, "xyz"[: len(arguments)], arguments, None)


def test_sizes_are_small():
    from stepwell.dialects.expr import sym

    s0, s1 = sym("s0"), sym("s1")
    ranges = {"s0": RangeAttr.get(2, None, 1000), "s1": RangeAttr.get(8, 16, 9)}
    x, y, n = small([TensorType.get([s0, s1 * 2], element_type(torch.float32)), tensor(4096, 4096), 0.5], ranges)
    assert n == 0.5
    assert sum(int(t.dims[0].value) * int(t.dims[1].value) for t in (x, y)) <= MAX_ELEMENTS
    (x,) = small([TensorType.get([s0, s1], element_type(torch.float32))], ranges)
    assert [e.value for e in x.dims] == [3, 8]


def test_an_error_names_the_place(opt_tool, tmp_path):
    file = tmp_path / "pair.py"
    file.write_text(
        "import torch, stepwell\n"
        "def twice(x):\n    return x * 2\n"
        "def other(x):\n    return x * (2 if x.dim() == 2 else 3)\n"
        "stepwell.register_pass('nd', stepwell.replace(twice, other))\n"
    )
    source = """func.func @f(%x: !nd.tensor<8 x f32>) -> !nd.tensor<8 x f32> {
  %two = nd.full {value = 2.0 : f32} : !nd.tensor<f32>
  %y = nd.mul %x, %two : (!nd.tensor<8 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x f32>
  func.return %y : !nd.tensor<8 x f32>
}"""
    result = opt_tool("--load-module", file, "-p", "twice-to-other", stdin=source)
    assert result.code == 1 and "3:8: error: pass 'twice-to-other' failed: 'nd.mul' op: replacement 'other' does not compute" in result.err
