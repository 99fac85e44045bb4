"""Programs that few write: rare dtypes, layouts that overlap, sizes that turn out empty, `out=`, updates through views, the ends of the
number lines. Values, dtypes, sizes, strides and updated inputs are those of eager."""

import math

import pytest
import torch
import torch.nn.functional as F

import stepwell  # noqa: F401 - registers the backend

pytestmark = pytest.mark.usefixtures("fresh")
ENDS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -200.0, 200.0, 88.7, -88.7, -103.0, 1e-40]


def agree(fn, *inputs, **how):
    """Compiled and in eager: results and what became of the inputs."""
    ours, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    got = torch.compile(fn, backend="stepwell", fullgraph=True, **how)(*ours)
    torch.testing.assert_close(got, fn(*theirs), equal_nan=True)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_booleans_to_the_power_of_booleans_stay_booleans():
    def powers(x):
        return x**True, x**False, torch.pow(x, True), x.pow(False), x**1, (x**True).sum()

    agree(powers, torch.tensor([True, False, True]))
    agree(powers, torch.zeros(0, 3, dtype=torch.bool))
    agree(lambda x: (x**True, x**False), torch.tensor([2, 3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sigmoids_at_the_ends_of_the_line(dtype):
    agree(lambda x: (torch.sigmoid(x), F.silu(x), F.glu(torch.stack([x, x])), F.logsigmoid(x)), torch.tensor(ENDS * 3, dtype=dtype))


@pytest.mark.parametrize("size", [1, 3, 8, 16, 40])
def test_sigmoids_that_are_exact(size):
    """A logit of zero is no less than a half, whatever the width of the registers."""

    def program(x):
        return torch.sigmoid(x), torch.sigmoid(x) >= 0.5, 1 - torch.sigmoid(x + 100), torch.sigmoid(x + 30)

    x = torch.zeros(size)
    for got, want in zip(torch.compile(program, backend="stepwell")(x), program(x), strict=True):
        assert torch.equal(got, want)


PICKS = {
    "index": lambda x, i: x[x > 0][i] + 1,
    "select rows": lambda x, i: x[x > 0].index_select(0, i) + 1,
    "gather": lambda x, i: x[x > 0].gather(0, i) + 1,
    "embedding": lambda x, i: F.embedding(i, x[x > 0][:, None]),
    "scatter": lambda x, i: x[x > 0].scatter(0, i, 5.0),
    "add": lambda x, i: x[x > 0].index_add(0, i, torch.ones(2)),
    "after arithmetic": lambda x, i: (x[x > 0] * 2 + 1)[i].sum(),
}


@pytest.mark.parametrize("name", PICKS)
def test_an_index_into_what_turned_out_empty_is_an_error(name):
    fn, index = PICKS[name], torch.tensor([0, 0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(fn, backend="stepwell", fullgraph=True)
        x = torch.tensor([-1.0, 2.0, 3.0])
        torch.testing.assert_close(compiled(x, index), fn(x, index))
        with pytest.raises((IndexError, RuntimeError), match="out of range|out of bounds"):
            compiled(-x.abs(), index)
        torch.testing.assert_close(compiled(x, index), fn(x, index))


def _tensor(dtype, *shape):
    """Small numbers that every type has."""
    values = torch.arange(math.prod(shape)).remainder(7).reshape(shape)
    return values.to(torch.float32).to(dtype) if dtype.is_floating_point or dtype.is_complex else values.to(dtype)


LAYOUTS = {
    "dense": lambda d: _tensor(d, 4, 6),
    "transposed": lambda d: _tensor(d, 6, 4).t(),
    "expanded": lambda d: _tensor(d, 1, 6).expand(4, 6),
    "overlapping": lambda d: _tensor(d, 24).as_strided((4, 6), (3, 1)),
    "with gaps": lambda d: _tensor(d, 4, 12)[:, ::2],
    "empty": lambda d: _tensor(d, 0, 6),
    "one": lambda d: _tensor(d, 1, 1),
    "number": lambda d: _tensor(d, 1)[0],
}
MOVED = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.complex32)
COMPUTED = (torch.bool, torch.uint8, torch.int8, torch.float16, torch.complex64)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_types_that_are_moved_compared_and_cast(dtype):
    def each(x):
        return x.clone(), torch.stack([x, x]), x.reshape(-1), x.to(torch.float32) + 1, x == x

    agree(lambda *given: [each(x) for x in given], *(make(dtype) for make in LAYOUTS.values()))
    agree(lambda x: (torch.full_like(x, 1), x.new_zeros(3), x.flatten(), x.unsqueeze(0), x.to(dtype)), LAYOUTS["with gaps"](dtype))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_types_that_are_chosen(dtype):
    tensors = [make(dtype) for make in LAYOUTS.values()]
    try:
        torch.where(tensors[0] == tensors[0], *tensors[:1] * 2)
    except NotImplementedError as error:
        pytest.skip(f"this torch: {error}")
    agree(lambda *given: [torch.where(x == x, x, x) for x in given], *tensors)


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_types_that_are_computed(dtype):
    def each(x):
        return x + 1, x * 2.5, x + torch.tensor(1.5), x * True, x.sum(), x.sum(-1), x != 0, x.any(), x.square()

    def more(x):
        mixed = x * torch.tensor([2], dtype=torch.int32), True + x, torch.cat([x.reshape(-1), x.reshape(-1)]), x.all(-1), x**2
        return *mixed, x.cumsum(-1), x.to(torch.float64).mean(), x.abs() if dtype != torch.bool else x.logical_not()

    agree(lambda *given: [each(x) for x in given], *(make(dtype) for make in LAYOUTS.values()))
    agree(more, LAYOUTS["transposed"](dtype))


UPDATES = {
    "a row": lambda x, y: x[0].mul_(3),
    "part of all": lambda x, y: x.view(-1)[1:3].fill_(1),
    "every other column": lambda x, y: x[:, ::2].zero_(),
    "rows from another": lambda x, y: x[1:].copy_(y[:-1]),
    "where a mask is": lambda x, y: x.masked_fill_(y > 1, 2),
    "where indices are": lambda x, y: x.index_put_((torch.tensor([0, 2, 0]),), y[:3], accumulate=x.dtype != torch.bool),
    "a transposed view": lambda x, y: x.t().copy_(y.t()),
    "a diagonal": lambda x, y: x.diagonal().copy_(y[:, 0]),
    "itself": lambda x, y: x.copy_(x.flip(0)),
    "bytes": lambda x, y: x.view(torch.uint8).bitwise_and_(1),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float64], ids=str)
def test_updates_through_views(dtype):
    def program(y, *given):
        results = []
        for x, update in zip(given, UPDATES.values(), strict=True):
            update(x, y)
            results += [x, x.sum(), x.reshape(-1)[:2]]
        return results

    agree(program, _tensor(dtype, 6, 4).t().contiguous(), *(_tensor(dtype, 4, 6) for _ in UPDATES))


def test_results_given_by_the_caller():
    def program(x, y, wide, whole, place):
        total = torch.sum(x, 0, out=torch.empty(6))
        torch.add(x, y, out=wide)
        torch.sort(x, 1, out=(whole, place))
        return total, torch.cat([x, y], out=torch.empty(8, 6)), torch.matmul(x, y.t(), out=torch.empty(4, 4)), torch.max(x, 1)[1]

    x, y = torch.randn(4, 6), torch.randn(4, 6)
    agree(program, x, y, torch.empty(4, 6, dtype=torch.float64), torch.empty(4, 6), torch.empty(4, 6, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ends_of_the_line(dtype):
    def program(x):
        tests = x.isnan(), x.isinf(), x.isfinite(), x.signbit(), x != x, x.sign(), x.nan_to_num(), x.nan_to_num(nan=1, posinf=2, neginf=3)
        bounds = x.clamp(0, 2), x.clamp_max(1.5), F.relu(x), F.hardtanh(x), torch.fmax(x, x.flip(0)), torch.maximum(x, x.flip(0))
        folds = x.amax(), x.nansum(), x.max(0)[0], x.sort()[0], x.argmax(), x.cummax(0)[0], x.count_nonzero(), x.any(), x.prod()
        rounds = x.floor(), x.round(), x.trunc(), x.frac(), x // 3, x % 3, x.fmod(2), x.copysign(-x), x.heaviside(x), x**2, x**0.5, x**-1
        return *tests, *bounds, *folds, *rounds, x.tanh(), x.exp(), x.erf(), F.softplus(x), x.softmax(0), x.logsumexp(0)

    agree(program, torch.tensor(ENDS * 3, dtype=dtype))
    agree(program, torch.tensor(ENDS[3:] * 2, dtype=dtype))


def test_bytes_of_booleans():
    x = torch.tensor([[True, False, True], [False, False, True]])
    agree(lambda x: ((x & True).view(torch.uint8) + 1, x.logical_not().view(torch.int8), (x.view(torch.uint8) ^ 1).view(torch.bool)), x)
    agree(lambda x: (x.t() | False).view(torch.uint8).sum(0), x)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("size", [0, 5])
def test_indices_that_together_are_empty_write_nothing(size, accumulate):
    def program(x, i, j, v):
        return x.index_put((i[:, None], j[None]), v, accumulate)

    agree(program, torch.randn(size, 4, 3), torch.arange(0), torch.arange(4), torch.randn(0, 4, 3))


def gradients(fn, *inputs):
    """Results and gradients of a program whose floating point inputs have gradients."""
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out = fn(*inputs)
    return out.detach(), torch.autograd.grad(out.sum(), [x for x in inputs if x.requires_grad])


def test_an_index_into_nothing_is_checked_where_something_is_read():
    """The sum over no rows reads no element: the index 0, which is the same in all rows, is not out of range."""

    def rows(x, index):
        return (x[torch.arange(x.shape[0]).unsqueeze(1), index.unsqueeze(0)] + x).sum((0, 1))

    x, index = torch.randn(0, 4, 10), torch.tensor([0, 2, 1, 3])
    torch.testing.assert_close(gradients(torch.compile(rows, backend="stepwell", fullgraph=True), x, index), gradients(rows, x, index))


@pytest.mark.parametrize("rows", [0, 2])
def test_a_check_stays_in_a_loop_that_may_be_empty(rows):
    """How many rows there are is known in the run alone; the index is out of range in every row."""

    def picked(x, mask, index):
        found = x[mask]
        return (found * x.gather(0, index.expand(found.shape[0], 4))).sum(0)

    x, mask, index = torch.randn(3, 4), torch.arange(3) < rows, torch.tensor([[7]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(picked, backend="stepwell", fullgraph=True)
        if rows:
            with pytest.raises(RuntimeError, match="index 7 is out of bounds for dimension 0 with size 3"):
                compiled(x, mask, index)
        else:
            torch.testing.assert_close(compiled(x, mask, index), picked(x, mask, index))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (2, 0, 2, 2), (0, 3), (0,)])
def test_losses_of_no_classes_and_of_no_rows(shape, weighted, reduction):
    classes = shape[0] if len(shape) == 1 else shape[1]
    target = torch.full(shape[:-1] if len(shape) == 1 else (shape[0], *shape[2:]), -100)
    weight = torch.rand(classes) if weighted else None

    def loss(x):
        plain = F.cross_entropy(x, target, weight, reduction=reduction)
        return plain.sum() + F.nll_loss(x, target, weight, reduction=reduction).sum()

    x = torch.randn(shape)
    compiled = torch.compile(loss, backend="stepwell", fullgraph=True)
    torch.testing.assert_close(gradients(compiled, x), gradients(loss, x), equal_nan=True)


def test_a_target_of_no_classes_is_refused_in_eager_s_words():
    def loss(x, target):
        return F.nll_loss(x, target)

    x, target = torch.randn(2, 0), torch.tensor([0, 1])
    with pytest.raises(IndexError, match="Target 0 is out of bounds"):
        loss(x, target)
    with pytest.raises(Exception, match="Target 0 is out of bounds"):
        torch.compile(loss, backend="stepwell", fullgraph=True)(x, target)


def test_activations_by_a_number_of_the_run():
    """The gradients' factors are read out of a tensor, once the number is one of the run."""

    def activations(x, a):
        return (
            F.leaky_relu(x, a),
            torch.lerp(x, x * 2, a),
            x.clamp(-a, a),
            F.elu(x, a),
            x.pow(2) * a,
            F.softplus(x, a),
            torch.add(x, x, alpha=a),
        )

    x = torch.randn(3, 4)
    compiled = torch.compile(activations, backend="stepwell", fullgraph=True, dynamic=True)
    for alpha in (0.5, 2.0):
        both = (lambda x, a=alpha: sum(compiled(x, a)), lambda x, a=alpha: sum(activations(x, a)))
        torch.testing.assert_close(*(gradients(fn, x) for fn in both))


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_numbers_that_are_moved_verify(dtype):
    """They are integers as wide as they in kernels, those of 128 bits too."""

    def program(x):
        return x.transpose(0, 1).clone()[:, [0, 2]]

    x = torch.randn(3, 4, 5, dtype=torch.complex64).to(dtype)
    got = torch.compile(program, backend="stepwell", options={"verify": True})(x)
    assert torch.equal(torch.view_as_real(got), torch.view_as_real(program(x)))
