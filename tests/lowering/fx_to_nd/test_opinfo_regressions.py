"""Operators that PyTorch's own samples or random programs found wrong once: they compile and agree with eager."""

import math

import pytest
import torch
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

import stepwell
from stepwell.tools.backend.compile_graph import context


def check_against_eager(fn, *inputs, dynamic=False, **tolerance):
    """Compile fn, compare results and updated inputs with eager, give the operators that ran as fallbacks."""
    torch._dynamo.reset()
    ours, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    stepwell.reset_counters()
    got = torch.compile(fn, backend="stepwell", dynamic=dynamic, fullgraph=True)(*ours)
    torch.testing.assert_close(got, fn(*theirs), equal_nan=True, **tolerance)
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
    return stepwell.counters.get("fallback", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_special_functions_of_the_library(dtype):
    def special(x):
        s = torch.special
        bessel = s.bessel_j0(x), s.bessel_y1(x), s.modified_bessel_k0(x), s.scaled_modified_bessel_k1(x), s.airy_ai(x)
        gamma = torch.polygamma(0, x), torch.polygamma(2, x), s.zeta(x + 1, x)
        return *bessel, *gamma, s.legendre_polynomial_p(x, 3), s.shifted_chebyshev_polynomial_t(x, x)

    assert check_against_eager(special, torch.arange(1, 9).to(dtype)) == 0
    assert check_against_eager(lambda x: (torch.igamma(x, x + 1), torch.igammac(x, x * 0.5)), torch.rand(9) + 0.1) == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_common_divisors(dtype):
    x = torch.arange(24).to(dtype)
    assert check_against_eager(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y) + 1), x, x.flip(0)) == 0


def test_checks_of_linear_algebra_keep_their_order():
    def solve(a, b):
        x = torch.linalg.solve(a, b)
        return torch.linalg.tensorsolve(a.reshape(2, 2, 4), b.reshape(2, 2)), torch.linalg.inv(a).sum() + x.sum()

    a, b = torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(4)
    check_against_eager(solve, a, b)
    gradients = []
    for fn in (torch.compile(solve, backend="stepwell"), solve):
        own = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        gradients.append(torch.autograd.grad(sum(r.sum() for r in fn(*own)), own))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    if torch.__version__ >= (2, 12):  # AOTAutograd of torch 2.11 leaves the checks out
        with pytest.raises(RuntimeError, match="singular"):
            torch.compile(solve, backend="stepwell")(torch.zeros(4, 4), b)


def test_reshapes_without_elements():
    x = torch.zeros(1, 2, 0, 3)
    check_against_eager(lambda x: (x.mT.reshape(2, 0, 3), x.mT.reshape(-1, 5).sum(0), x.view(0, 7) + 1), x)
    check_against_eager(torch.linalg.inv, torch.zeros(1, 1, 0, 0))


def test_extremes_of_unsigned_integers():
    def extremes(x):
        y = x - 3
        return y.amax(0), y.amin(1), y.argmax(1), y.argmin(0), y.max(), *y.max(1), *y.min(0), *y.cummax(0), *y.cummin(1)

    torch.manual_seed(0)
    for dtype, high in ((torch.uint8, 256), (torch.int8, 128)):
        check_against_eager(extremes, torch.stack([torch.randperm(high)[:70] for _ in range(5)]).to(dtype))


def test_conjugates_are_computed():
    def program(x):
        y = x.conj()
        return y * 2, x.t().conj() @ x, torch.view_as_real(y.resolve_conj()), x[::2, 1:].conj() + 0, y

    check_against_eager(program, torch.randn(4, 4, dtype=torch.complex64))


def test_vector_norm_of_a_symbolic_order():
    def program(x, order):
        return torch.linalg.vector_norm(x, order)

    compiled = torch.compile(program, backend="stepwell", dynamic=True)
    x = torch.randn(5, 4)
    for order in (3, 4, 2, 0, 2.5):
        torch.testing.assert_close(compiled(x, order), program(x, order))


def test_splits_at_symbolic_places():
    def split(x, places, dim):
        return torch.tensor_split(x, places, dim)

    compiled = torch.compile(split, backend="stepwell", dynamic=True, fullgraph=True)
    for size, places, dim in ((5, (2, 4), 0), (7, (3, 6), 1), (6, (1, 2), -1)):
        x = torch.randn(size, size, size)
        torch.testing.assert_close(compiled(x, places, dim), split(x, places, dim))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_complex_numbers_are_moved(dtype, dynamic):
    def move(x, c):
        moved = torch.view_as_complex(x), c.clone(), c.t().contiguous(), c[:, 0, None].expand(-1, 3).contiguous(), c[1:, ::2].clone()
        return [torch.view_as_real(m) for m in moved]

    for rows, columns in ((37, 21), (1, 5), (0, 3)):
        x = torch.randn(rows, columns, 2).to(dtype)
        torch._dynamo.reset()
        got = torch.compile(move, backend="stepwell", dynamic=dynamic)(x, torch.view_as_complex(x))
        for ours, theirs in zip(got, move(x, torch.view_as_complex(x)), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", ("nearest", "linear"))
def test_sizes_by_a_factor(mode):
    """int(2.3 * size) is no expression of the index algebra; sizes and strides of the result are products of it."""

    def program(x):
        y = torch.nn.functional.interpolate(x, scale_factor=2.3, mode=mode)
        return y, y.sum(1) + 1

    check_against_eager(program, torch.randn(3, 4, 5), dynamic=True)


BESSEL = """bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 airy_ai""".split()


def test_bessel_functions():
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, 8.0, 2.0, -2.0, -5.0, 5.0, 30.0, -30.0]
    x = torch.cat([torch.tensor(edges), torch.linspace(-20, 20, 301)])
    for names in (BESSEL[:6], BESSEL[6:]):

        def program(x, names=names):
            return [getattr(torch.special, name)(x) for name in names]

        stepwell.reset_counters()
        torch._dynamo.reset()
        got = torch.compile(program, backend="stepwell")(x)
        assert not stepwell.counters["extern"] + stepwell.counters["fallback"]
        exact, eager = program(x.double()), program(x)
        for name, ours, theirs, truth in zip(names, got, eager, exact, strict=True):
            torch.testing.assert_close(ours, truth.float(), rtol=2e-5, atol=2e-6, equal_nan=True, msg=name)
            assert torch.equal(ours.isnan(), theirs.isnan()), name


def test_bessel_functions_of_doubles():
    x = torch.linspace(0.01, 30, 200, dtype=torch.float64)
    program = lambda x: [getattr(torch.special, name)(x) for name in BESSEL]  # noqa: E731
    check_against_eager(program, x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dynamic", (False, True))
def test_orders_and_searches_in_machine_code(dynamic):
    def program(x, edges, mask):
        ordered, places = x.sort(dim=1, stable=True)
        buckets = torch.bucketize(x, edges, right=True)
        return ordered, places, x.median(1).values, buckets, x.masked_scatter(mask, ordered), *torch.frexp(x)

    x = torch.randn(6, 9)
    x[0, 3], x[1, 1], x[1, 2] = math.nan, math.inf, -0.0
    fallbacks = check_against_eager(program, x, torch.linspace(-1, 1, 5), x > 0, dynamic=dynamic)
    assert not fallbacks


def test_gradients_of_pooling_in_machine_code():
    F = torch.nn.functional

    def pools(x):
        y = F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.adaptive_avg_pool2d(x, 5)
        return sum((p * p).sum() for p in (*y, F.adaptive_max_pool2d(x, (3, 4)), F.interpolate(y[0], size=(11, 7))))

    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 4, 12, 13).to(memory_format=layout)
        gradients = []
        stepwell.reset_counters()
        for fn in (torch.compile(pools, backend="stepwell"), pools):
            own = x.clone().requires_grad_()
            gradients.append(torch.autograd.grad(fn(own), own)[0])
        torch.testing.assert_close(*gradients)
        assert not stepwell.counters["fallback"] + stepwell.counters["extern"]


_INDEXED = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take": lambda x, i: torch.take(x, i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(1.0)),
    "put": lambda x, i: x.put(i, torch.tensor([1.0])),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(1, 6)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], torch.ones(1, 6), "amax"),
}


@pytest.mark.parametrize("name", _INDEXED)
def test_an_index_into_an_empty_tensor_is_an_error(name):
    """It ended the process where the kernel went on at a place that an empty tensor does not have."""
    with pytest.raises(Exception, match="out of|empty|positive"):
        torch.compile(_INDEXED[name], backend="stepwell")(torch.zeros(0, 6), torch.tensor([0]))


_IMPOSSIBLE = {
    "maximum of all": (lambda x: x[:0].max(), "numel\\(\\) == 0"),
    "minimum of rows": (lambda x: x[:, :0].min(1)[0], "non-zero size"),
    "maximum and place": (lambda x: x[:, :0].max(1), "non-zero size"),
    "quotient": (lambda x: x // 0, "ZeroDivisionError"),
    "truncated quotient": (lambda x: torch.div(x, 0, rounding_mode="trunc"), "ZeroDivisionError"),
    "remainder": (lambda x: x % 0, "ZeroDivisionError"),
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", _IMPOSSIBLE)
def test_what_has_no_result_is_the_error_that_eager_raises(name, dynamic):
    function, message = _IMPOSSIBLE[name]
    x = torch.arange(12).reshape(3, 4)
    for call in (function, torch.compile(function, backend="stepwell", dynamic=dynamic)):
        with pytest.raises((RuntimeError, IndexError), match=message):
            call(x)


def test_extremes_of_an_empty_batch():
    assert check_against_eager(lambda x: (x.max(1), x.amin(1)), torch.zeros(0, 6)) == 0
    assert check_against_eager(lambda x: (x // 0, x % 0), torch.zeros(0, 6, dtype=torch.int32)) == 0


def test_indices_of_an_empty_batch_take_no_library_call():
    def program(x, i):
        return x[:, i], x.index_select(1, i), x.gather(1, i[None, :0]), x.index_put((i[:0],), x[:0])

    assert check_against_eager(program, torch.zeros(0, 6), torch.tensor([1, 5])) == 0


def test_adding_at_an_index_of_an_empty_tensor_is_nothing():
    assert check_against_eager(lambda x, i: x.index_add(0, i, torch.ones(1, 6)), torch.zeros(0, 6), torch.tensor([7])) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nextafter_of_low_precision_is_the_next_number_of_that_type(dtype):
    """A body holds these types in f32, whose next number is another."""
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 65504.0, math.inf, -math.inf, math.nan, 6e-8, -6e-8, 0.3, 2.0]).to(dtype)
    x, y = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    assert check_against_eager(torch.nextafter, x, y, rtol=0, atol=0) == 0


def test_powers_of_unsigned_integers_have_no_negative_exponents():
    x = torch.arange(256).to(torch.uint8)
    exponents = torch.tensor([0, 1, 7, 63, 64, 127, 128, 129, 192, 254, 255], dtype=torch.uint8)[:, None]
    assert check_against_eager(torch.pow, x, exponents) == 0


def test_logit_of_integers():
    for dtype in (torch.int64, torch.uint8, torch.bool):
        assert check_against_eager(torch.logit, torch.tensor([0, 1, 1, 0]).to(dtype)) == 0


def test_frac_of_integers_is_an_error():
    """LLVM ended the process."""
    with pytest.raises(Exception, match="not implemented"):
        torch.compile(torch.frac, backend="stepwell")(torch.tensor([1, 2]))


def test_moments_of_nothing_are_nan():
    assert check_against_eager(lambda x: (torch.var_mean(x, 0), torch.std_mean(x)), torch.ones(0, 3)) == 0


def test_rrelu_draws_a_slope_for_each_negative_element():
    x = torch.cat([-torch.ones(500), torch.ones(3), torch.tensor([math.nan])]).requires_grad_()
    stepwell.reset_counters()
    torch._dynamo.reset()
    y = torch.compile(lambda x: torch.nn.functional.rrelu(x, 0.2, 0.4, training=True), backend="stepwell")(x)
    slopes = -y[:500].detach()
    assert bool((slopes >= 0.2).all() and (slopes <= 0.4).all()) and slopes.unique().numel() > 400
    assert y[500:503].tolist() == [1.0, 1.0, 1.0] and bool(y[503].isnan())
    y[:503].sum().backward()
    torch.testing.assert_close(x.grad[:503], torch.cat([slopes, torch.ones(3)]))
    assert stepwell.counters.get("fallback", 0) == 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integers_divided_by_a_tensor_with_a_0_raise_what_eager_raises(dynamic, dtype):
    def program(x, y):
        return x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), torch.nn.functional.pad(x // y, (1, 2))

    x, y = torch.arange(37).to(dtype), torch.ones(37, dtype=dtype)
    compiled = torch.compile(program, backend="stepwell", dynamic=dynamic)
    for ours, eager in zip(compiled(x, y), program(x, y), strict=True):
        assert torch.equal(ours, eager)
    for zero in (0, 36):
        some = y.clone()
        some[zero] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, some)
    assert torch.equal(compiled(x, y)[0], x)


def test_negative_powers_of_integers_are_refused():
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.compile(lambda x: x**-1, backend="stepwell")(torch.tensor([1, 2]))


def test_reductions_of_nothing_between_sizes_that_are_symbols():
    """A loop of no iterations inside of loops of unknown length was unrolled with them."""
    x = torch.zeros(3, 0, 4, 2)
    assert check_against_eager(lambda x: (torch.ops.aten.any.dims(x, None, False), x.sum((0, 1, 3))), x, dynamic=True) == 0


def test_gradients_of_convolutions_whose_groups_are_a_symbol():
    """Under dynamic=True Dynamo makes symbols of the numbers in arguments."""

    def step(x, w, groups):
        return torch.nn.functional.conv2d(x, w, stride=3, padding=1, groups=groups)

    results = []
    for run in (torch.compile(step, backend="stepwell", dynamic=True), step):
        torch._dynamo.reset()
        torch.manual_seed(0)
        x, w = torch.randn(2, 4, 5, 5).requires_grad_(), torch.randn(4, 2, 3, 3).requires_grad_()
        results.append(torch.autograd.grad(run(x, w, 2).square().sum(), (x, w)))
    torch.testing.assert_close(*results)


def test_complex_sums_as_integers_cast_first():
    x = torch.tensor([1.7, 0.6, -2.9, 1.8]) + 1j
    assert check_against_eager(lambda x: torch.ops.aten.sum.default(x, dtype=torch.int8), x) <= 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes, pad", [((8, 0, 4), (-1, 1, 3, 3, 3, 1)), ((0,), (1, 2)), ((3, 0), (1, 2)), ((0, 4), (0, 0, 1, 1))])
def test_what_is_padded_may_be_empty(sizes, pad, dynamic):
    """A read of nothing under a mask was 0, not what the mask gives."""
    x = torch.empty(sizes)
    program = torch.ops.aten.constant_pad_nd
    assert check_against_eager(lambda x: (program(x, pad, -0.3), program(x, pad, 2.0) + 1), x, dynamic=dynamic) == 0


@pytest.mark.parametrize("value", [True, 2, 0.5, 1 - 3j])
def test_complex_tensors_are_padded_with_numbers(value):
    """Integers were the imaginary part too."""
    x = torch.arange(6.0).reshape(2, 3) * (1 + 1j)
    assert check_against_eager(lambda x: torch.ops.aten.constant_pad_nd(x, (1, 2, 0, 1), value), x) == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int8])
def test_integer_products_with_vectors_have_kernels(dtype):
    a, b, v = (torch.arange(-7, 5).reshape(s).to(dtype) * 37 for s in ((3, 4), (4, 3), (12,)))

    def program(a, b, v):
        w = v[:4]
        return torch.dot(v, v), a @ w, v[:3] @ a, torch.addmv(v[:3], a, w, beta=2, alpha=3), a[None] @ b[None, :, 1:2], a[:, :0] @ w[:0]

    assert check_against_eager(program, a, b, v) == 0
    assert check_against_eager(program, a, b, v, dynamic=True) == 0


REFUSED = {
    "bits of floats": (lambda x, i: x & x, NotImplementedError, "bitwise_and"),
    "bits of a float number": (lambda x, i: torch.ops.aten.__xor__.Scalar(i, -0.5), NotImplementedError, "bitwise_xor"),
    "shifted floats": (lambda x, i: torch.ops.aten.bitwise_right_shift.Tensor_Scalar(x, 1.0), NotImplementedError, "rshift"),
    "hypot of integers": (lambda x, i: torch.hypot(i, i), NotImplementedError, "hypot"),
    "infinity as an integer": (lambda x, i: torch.full((3,), float("inf"), dtype=torch.int64) + i, RuntimeError, "without overflow"),
    "complex factor": (lambda x, i: torch.ops.aten.addcmul(i, i, i, value=1j), RuntimeError, "without overflow"),
    "source of another size": (lambda x, i: x.slice_scatter(torch.ones(2), 0, 0, 1), RuntimeError, "size equal to the slice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_and_torch_traces(name):
    """The compiled program says what eager says, not what LLVM says of the text."""
    program, error, message = REFUSED[name]
    x, i = torch.tensor([0.5, -1.0, 2.0]), torch.arange(3)
    with pytest.raises(error, match=message) as eager:
        program(x, i)
    with pytest.raises(error, match=message) as ours:
        torch.compile(program, backend="stepwell")(x, i)
    assert str(ours.value).strip() == str(eager.value).strip()


@pytest.mark.parametrize(
    "op, dtype, needed", [("and", "f32", "an integer or boolean"), ("shl", "i1", "an integer"), ("atan2", "i64", "a floating")]
)
def test_the_verifier_knows_what_ops_compute(op, dtype, needed):
    kind = f"!nd.tensor<4 x {dtype}>"
    text = f"builtin.module {{ func.func @f(%x: {kind}) {{ %y = nd.{op} %x, %x : {kind} func.return }} }}"
    with pytest.raises(VerifyException, match=f"nd.{op}: needs {needed} element type, got {dtype}"):
        Parser(context(), text).parse_module().verify()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64])
def test_moves_of_complex_and_real_numbers(dtype):
    """The imaginary part of an integer was the integer."""

    def program(x, y):
        return torch.cat([x, y]), torch.stack([y, x]), x.clone().copy_(y), torch.select_scatter(x[None], y.to(x.dtype), 0, 0)

    assert check_against_eager(program, torch.tensor([1 + 2j, 3 - 1j, 0.5j]), torch.tensor([4, 0, 1]).to(dtype)) <= 2


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool, torch.uint8])
def test_no_indices_of_another_rank(dtype, dynamic):
    """torch lets an index without elements have any rank."""
    program = lambda x, i: (torch.gather(x, 0, i), torch.gather(x[0], 0, i), torch.scatter(x, 0, i, x[:0].reshape(2, 0)))  # noqa: E731
    check_against_eager(program, torch.ones(5).to(dtype), torch.zeros(2, 0, dtype=torch.int64), dynamic=dynamic)


def test_gradient_of_no_indices():
    x, i = torch.randn(5, requires_grad=True), torch.zeros(2, 0, dtype=torch.int64)
    result = torch.compile(lambda x: torch.gather(x, 0, i), backend="stepwell")(x)
    (found,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(found, torch.zeros(5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_ranges_of_integers_between_numbers(dtype):
    """Eager rounds both ends first; torch's decomposition rounds the steps."""
    ends = [(4.3, 50, 20), (3.7, 2, 50), (0, 9, 0), (5, 9, 1), (5.5, 9, 2), (0, 120, 7)]
    ends += [(-2.5, 4.3, 50), (4.3, -3, 50), (-7.9, -0.5, 3)] * dtype.is_signed + [(2**60, 2**40, 77)] * (dtype == torch.int64)
    program = lambda: [torch.linspace(*args, dtype=dtype) for args in ends]  # noqa: E731
    for ours, eager in zip(torch.compile(program, backend="stepwell")(), program(), strict=True):
        assert ours.dtype == eager.dtype and torch.equal(ours, eager)


@pytest.mark.parametrize("n", (1, 2, 7, 30))
def test_ranges_as_long_as_a_size(n):
    program = lambda x: torch.linspace(-3.5, x.shape[0], x.shape[0], dtype=torch.int32)  # noqa: E731
    assert torch.equal(torch.compile(program, backend="stepwell", dynamic=True)(torch.zeros(n)), program(torch.zeros(n)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_gradient_of_dropout_in_the_type_of_its_result(dtype):
    """Integers times a scale that is no integer."""
    grad, mask = torch.arange(6).to(dtype), torch.tensor([True, False, True, True, False, True])
    program = lambda g, m: [torch.ops.aten.native_dropout_backward(g, m, scale) for scale in (0.5, 2.0, 0.0)]  # noqa: E731
    check_against_eager(program, grad, mask)
