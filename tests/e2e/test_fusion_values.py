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
