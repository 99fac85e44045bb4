"""Programs that random testing found to be fused wrongly once: what they compute is what eager computes."""

import pytest
import torch

import stepwell  # noqa: F401 - registers the backend


def check_against_eager(fn, *inputs, dynamic=False):
    torch._dynamo.reset()
    got = torch.compile(fn, backend="stepwell", dynamic=dynamic, fullgraph=True)(*[x.clone() for x in inputs])
    torch.testing.assert_close(got, fn(*[x.clone() for x in inputs]), equal_nan=True)


@pytest.mark.parametrize("built_on", ["zeros", "argument"])
def test_a_value_built_on_another_tensor_does_not_move_into_a_later_result(built_on):
    def program(x, y, c):
        base = torch.zeros_like(x) if built_on == "zeros" else c.exp()
        part = base.slice_scatter(torch.where(y > 0, y, 0).unsqueeze(1), 1, 0, 1)
        z = x @ x
        return -z, z + x + part

    torch.manual_seed(0)
    check_against_eager(program, torch.randn(4, 4), torch.randn(4), torch.randn(4, 4))
    check_against_eager(program, torch.randn(40, 40), torch.randn(40), torch.randn(40, 40))


def test_lanes_over_a_symbolic_stride():
    def program(a, b):
        d = a - b
        return d, torch.minimum(a, d)

    for n in (3, 5, 19):
        check_against_eager(
        program, torch.arange(2 * n * n, dtype=torch.int32).view(n, 2 * n)[:, ::2], torch.randn(n, n).double(), dynamic=True
    )


def test_a_chain_of_stencils_is_stored_from_step_to_step(tmp_path):
    """Recomputed in each reader, the eighth step would hold 3^8 times the work of the first."""

    def program(x):
        for _ in range(8):
            left, right = torch.nn.functional.pad(x, (1, 0))[:, :-1], torch.nn.functional.pad(x, (0, 1))[:, 1:]
            x = torch.minimum(x, torch.minimum(left + 1, right + 1))
        return x

    torch.manual_seed(0)
    torch._dynamo.reset()
    x = torch.rand(40, 60) * 20
    got = torch.compile(program, backend="stepwell", options={"debug": str(tmp_path)})(x)
    torch.testing.assert_close(got, program(x))
    (text,) = (path.read_text() for path in tmp_path.glob("*/2_loop.mlir"))
    assert text.count("arith.minimumf") < 100


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("m,k", [(1, 5), (33, 130), (7, 0)])
def test_a_matrix_times_a_vector(m, k, transposed):
    torch.manual_seed(0)
    matrix = torch.randn(3, k, m).mT if transposed else torch.randn(3, m, k)
    check_against_eager(lambda a, b: a @ b + 1, matrix, torch.randn(3, k, 3)[..., 1:2])


def test_a_value_shared_in_a_loop_that_follows_a_loaded_index():
    """The loop's number is not the same in the fused nest, where the index comes first."""

    def program(bias, which, x):
        picked = bias[:, which]
        e = (x + picked - x).exp()
        return e * (1 / e), picked

    check_against_eager(program, torch.randn(4, 1), torch.zeros(1, 1, dtype=torch.long), torch.randn(2, 4, 1, 1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)])
def test_numbers_that_many_places_share_are_used_as_they_are_returned(dtype, dynamic):
    """In one nest with their readers too: else the error of a channel's gate would be another in forward than in the backward that it is
    saved for."""

    def returned(x, y):
        gate = x * 1.7 + 0.3
        return gate.flatten(1), gate * y

    def updated(x, y):
        x.mul_(1.7).add_(0.3)
        return x, x * y

    def reduced(x, y):
        total = (x * y).sum(-1, keepdim=True)
        return total.squeeze(-1), total * y

    torch.manual_seed(0)
    for program in (returned, updated, reduced):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="stepwell", dynamic=dynamic, fullgraph=True)
        for rows, channels, places in ((6, 33, 41), (4, 1, 3), (3, 4, 0)):
            x = torch.randn(rows, channels, 1).to(dtype)
            for y in (torch.randn(rows, channels, places).to(dtype), torch.randn(rows, places, channels).to(dtype).transpose(1, 2)):
                shared, product = compiled(x.clone(), y)
                want = (shared.view(rows, channels, 1).float() * y.float()).to(dtype)
                assert torch.equal(product, want), program.__name__
