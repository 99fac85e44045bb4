"""Complex numbers as pairs of real tensors: values, gradients, and that no call of the library computes."""

import copy

import pytest
import torch

import stepwell

C64, C128 = torch.complex64, torch.complex128


def _z(*shape, dtype=C64):
    return torch.randn(*shape, dtype=dtype)


def _end(fn, args, grad):
    """fn's results and, where wanted, the gradients of its first result."""
    own = [copy.deepcopy(a).requires_grad_() if grad and (a.is_complex() or a.is_floating_point()) else a.clone() for a in args]
    found = fn(*own)
    found = list(found) if isinstance(found, tuple) else [found]
    if grad:
        first = found[0]
        (first.abs() if first.is_complex() else first).sum().backward()
        found += [a.grad for a in own]
    return found


def _check(fn, *args, calls=0, grad=False, **options):
    torch.manual_seed(0)
    torch._dynamo.reset()
    before = {k: stepwell.counters.get(k, 0) for k in ("extern", "fallback")}
    got = _end(torch.compile(fn, backend="stepwell", **options), args, grad)
    for a, b in zip(got, _end(fn, args, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert sum(stepwell.counters.get(k, 0) - n for k, n in before.items()) == calls


ARITHMETIC = {
    "tensors": lambda z, w: (z * w, z + w, z - w, z / w, torch.add(z, w, alpha=2), torch.sub(z, w, alpha=1j)),
    "numbers": lambda z, w: (z * 2, z * 2j, z + 1.5, 2j - z, 1 / z, 3 - w, z / 2, w / (1 + 2j), 1j / w),
    "powers": lambda z, w: (z**2, w**3, z**-1, z.square(), z.reciprocal()),
    "signs": lambda z, w: (-z, z.conj() * w, z.conj().resolve_conj(), z.sgn(), (z * 0).sgn()),
    "comparisons": lambda z, w: (z == w, z != w, z == z, torch.isnan(z / 0), torch.isinf(z * 1e38 * 10), torch.isfinite(w)),
    "choices": lambda z, w: (torch.where(z.abs() > 1, z, w), torch.where(w.abs() > 1, z, 1.5), z.masked_fill(w.abs() > 1, 2)),
}


@pytest.mark.spread
@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", [C64, C128])
def test_arithmetic(name, dtype):
    _check(ARITHMETIC[name], _z(4, 5, dtype=dtype), _z(5, dtype=dtype), calls=2 * (name == "comparisons"))


def test_functions():
    z = torch.cat([_z(40) * 3, torch.tensor([0j, 1 + 0j, -1 + 0j, 1j, -1j, -4 - 0j])])
    _check(lambda z: (z.exp(), z.sin(), z.cos(), z.sqrt(), z.abs(), z.angle(), (z + 0.1).log()), z)


FUNCTIONS = {
    "hyperbolic": lambda z: (z.sinh(), z.cosh(), z.tanh()),
    "tangent": lambda z: (z.tan(),),
    "exponentials": lambda z: (torch.exp2(z), torch.expm1(z), torch.expm1(z * 1e-3), z.sigmoid(), torch.nn.functional.silu(z)),
    "logarithms": lambda z: ((z + 0.1).log2(), (z + 0.1).log10(), torch.log1p(z), torch.log1p(z * 1e-3), (z + 0.1).rsqrt()),
    "products": lambda z: (torch.addcmul(z, z, z + 1, value=2), torch.addcdiv(z, z, z + 5, value=1 - 2j), torch.fill(z, 2 - 1j)),
    "truth": lambda z: (z.logical_not(), torch.logical_and(z, z * 0), torch.logical_or(z, z.abs()), z.any(), z.all(), z.view(2, -1).any(1)),
    "norms": lambda z: (z.norm(), torch.linalg.vector_norm(z.view(2, -1), dim=1, keepdim=True), (z * 2).view(2, -1).norm(dim=0)),
}


ENDS = [0.0, -0.0, 1.0, 88.9, 89.3, -89.3, 95.0, 1000.0, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("name", ["exp", "expm1", "sinh", "cosh", "tanh", "sin", "cos", "tan"])
def test_functions_at_their_ends_are_as_annex_g_of_c_says(name):
    z = torch.tensor([complex(re, im) for re in ENDS for im in ENDS], dtype=C64)
    function = getattr(torch, name)
    want = function(z)
    got = torch.compile(function, backend="stepwell")(z)
    torch.testing.assert_close(torch.view_as_real(got), torch.view_as_real(want), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.spread
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [C64, C128])
def test_more_functions(name, dtype):
    ends = torch.tensor([0j, 1 + 0j, -1 + 0.5j, 1j, -4 - 0j, 20 - 3j, -25 + 1j, 1e-5 - 1e-5j], dtype=dtype)
    _check(FUNCTIONS[name], torch.cat([_z(40, dtype=dtype), ends]))


def test_large_hyperbolic_tangents():
    _check(lambda z: z.tanh(), torch.tensor([100 + 1j, -100 - 2j, 39.9 + 1.5j, 41 - 1.5j, 0.1 + 1.57079j]))


def test_mixed_with_real_numbers():
    x = torch.randn(4, 5)
    _check(lambda z, x, i: (z * x, x + z, x * 1j, z / x, i * z, z + i), _z(4, 5), x, torch.arange(5))
    _check(lambda x: (torch.complex(x, x * 2) * 2, torch.polar(x.abs(), x) + 1, torch.exp(1j * x)), x)
    _check(lambda z, w: (z * w, z.to(C128) + 1, w.to(C64) * 2), _z(3), _z(3, dtype=C128))


def test_sums():
    _check(lambda z: (z.sum(), (z * z).sum(0), (z + 1).mean((0, 2), keepdim=True), z.mean(), z.sum(-1)), _z(3, 4, 5))
    _check(lambda z: ((z * z).sum(0), z.mean(1)), torch.zeros(0, 5, dtype=C64))


MOVES = {
    "views": lambda z: ((z * 2).t(), (z + 1)[1:, ::2], (z * 2).reshape(-1), (z * 2).unsqueeze(1).expand(4, 3, 6), z[1:] * 2),
    "joined": lambda z: (torch.cat([z * 2, z]), torch.stack([z, z * 2], 1), torch.nn.functional.pad(z * 2, (1, 2))),
    "chosen": lambda z: ((z * 2)[torch.tensor([0, 2])], (z + 1).flip(0), (z * 2).roll(1, 1), (z * 1j).tril()),
    "split": lambda z: tuple(p * 2 for p in (z * 2).split(2, 1)) + (z * 2).unbind(0),
    "scan": lambda z: (z * 2).cumsum(1),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    for z in (_z(4, 6), _z(6, 4).t(), _z(6).expand(4, 6)):
        _check(MOVES[name], z)


def test_parts():
    def parts(z, x):
        made = torch.view_as_complex(x) * z
        return made, torch.view_as_real(made * 2), (z * 2).real + 1, (z * z).imag, made.imag * 2

    _check(parts, _z(4), torch.randn(4, 2))


def test_rotation_of_pairs():
    """Rotary embeddings as written with complex numbers: one kernel, nothing complex in it."""

    def rotated(x, turns):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)

    turns = torch.polar(torch.ones(8, 1, 8), torch.randn(8, 1, 8))
    _check(rotated, torch.randn(2, 8, 4, 16), turns)
    _check(lambda x: rotated(x, turns), torch.randn(2, 8, 4, 16), grad=True)


def test_gradients():
    z = _z(4, 5)
    _check(lambda z: (z * z.conj() + 2j * z.exp()).real, z, grad=True)
    _check(lambda z: (z / (z + 1)).abs() + z.angle(), z, grad=True)
    _check(lambda z: z.sin() * z.mean(0), z, grad=True)


def test_gradients_of_a_part_that_is_overwritten():
    """AOTAutograd makes new memory for the gradient of the whole."""

    def fn(z, w):
        whole = z * 2
        whole[:, :4] = z[:, :4] * w
        return whole

    _check(fn, _z(3, 9), _z(4), grad=True)


def test_between_transforms():
    """Products in the frequency domain; the transforms stay calls."""

    def convolved(x, w):
        spectrum = torch.fft.rfft2(x)
        low = torch.zeros_like(spectrum)
        low[..., :3, :3] = spectrum[..., :3, :3] * w
        return torch.fft.irfft2(low)

    _check(convolved, torch.randn(2, 3, 8, 8), _z(3, 3, 3), calls=2)


def test_arguments_that_are_conjugates():
    z = _z(4, 5)
    for fn in (lambda z: z * 2 + 1, lambda z: (z.view(-1) * 2).sum()):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(fn, backend="stepwell")(z.conj()), fn(z.conj()))


def test_updates_and_scalars():
    torch._dynamo.reset()
    z = _z(3, 4)
    wanted = z * 2j

    def update(z):
        z.mul_(2j)
        return z + 1

    torch.testing.assert_close(torch.compile(update, backend="stepwell")(z), wanted + 1)
    torch.testing.assert_close(z, wanted)
    _check(lambda z: z * z + 1, torch.tensor(1 + 2j))


def test_symbolic_sizes():
    torch._dynamo.reset()
    compiled = torch.compile(fn := lambda z: (z * z).sum(0) + z.mean(0).exp(), backend="stepwell", dynamic=True)
    for n in (3, 5, 8):
        z = _z(n, n + 1)
        torch.testing.assert_close(compiled(z), fn(z))


def test_half_precision_is_a_call():
    z = _z(4).to(torch.complex32)
    _check(lambda z: z * z, z, calls=1)


@pytest.mark.parametrize("ord", [0, 0.5, 1, 3, float("inf"), -float("inf")])
def test_norms_and_their_gradients_see_the_same_absolute_values(ord):
    """The gradient of the largest looks for elements that equal it."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    x = torch.randn(40, 7, dtype=torch.complex64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    stepwell.reset_counters()
    got = torch.compile(lambda x: torch.linalg.vector_norm(x, ord, -1), backend="stepwell")(x)
    want = torch.linalg.vector_norm(y, ord, -1)
    torch.testing.assert_close(got, want)
    if ord:
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert not stepwell.counters["extern"] and not stepwell.counters["fallback"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.eye(4, 3, dtype=C64) + x[0, 0],
        lambda x: torch.ops.aten.alias_copy(x) * 2,
        lambda x: torch.narrow_copy(x, 0, 1, 2),
        lambda x: torch.split_with_sizes_copy(x, [1, 3], 0),
        lambda x: torch.unsafe_split(x, 2, 0),
        lambda x: torch.diagonal_copy(x),
    ],
)
def test_copies_and_pieces(fn):
    torch._dynamo.reset()
    stepwell.reset_counters()
    x = _z(4, 5)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell")(x), fn(x))
    assert not stepwell.counters["extern"] and not stepwell.counters["fallback"]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_steps_between_numbers_and_gradients_take_no_library_call(dtype):
    torch.manual_seed(2)
    x, y = torch.randn(2, 5, 3, dtype=dtype)

    def program(x, y):
        moved = torch.unbind_copy(x), torch.unfold_copy(y, 0, 2, 1), x.new_full((2,), 1 + 2j)
        return torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.2 + 1j), torch.lerp(x, y, y), *moved[0], *moved[1:]

    def gradients(grad, y):
        return torch.ops.aten.tanh_backward(grad, y), torch.ops.aten.sigmoid_backward(grad, y)

    _check(program, x, y)
    _check(gradients, x, y)


AS_OTHERS = [
    lambda z: (z * 2).view(z.real.dtype),
    lambda z: (z * 2).view(z.real.dtype)[..., 1:].view(torch.int32 if z.dtype == C64 else torch.int64) + 1,
    lambda z: (z * 2).view(z.real.dtype).view(z.dtype) * z,
    lambda z: (z.real + 1).repeat(1, 2).view(z.dtype) * 1j,
    lambda z: z.t().clone(memory_format=torch.contiguous_format).view(z.real.dtype).cos().view(z.dtype).t() + z,
    lambda z: (z + 1).view(torch.int64 if z.dtype == C64 else torch.int32),
    lambda z: (z + 1).view(z.dtype) * z,
]


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [C64, torch.complex128])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("number", range(len(AS_OTHERS)))
def test_seen_as_numbers_of_another_type(number, dynamic, dtype):
    """B06, MUT-07: `view` with a dtype goes over pairs of numbers, not over each part."""
    fn = AS_OTHERS[number]
    for z in (_z(3, 4, dtype=dtype), _z(1, 2, dtype=dtype), _z(4, 6, dtype=dtype)[1:, 2:4]):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(fn, backend="stepwell", dynamic=dynamic)(z), fn(z), equal_nan=True)


def test_an_update_through_complex_numbers_shows_in_the_real_ones():
    """MUT-07"""

    def fn(x):
        y = x.clone()
        w = y.view(torch.complex64)
        w.add_(1)
        return w, y * 1, y

    x = torch.randn(4, 8)
    torch._dynamo.reset()
    got, want = torch.compile(fn, backend="stepwell")(x), fn(x)
    torch.testing.assert_close(got, want)
    assert got[0].data_ptr() == got[2].data_ptr()
