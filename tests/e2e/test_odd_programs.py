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
