"""fold and the gradient of Tensor.unfold: values against eager; every element gathers from the windows over it, nothing is scattered."""

import pytest
import torch
import torch.nn.functional as F

FOLDS = {
    "overlap-add of frames": ((2, 16, 20), (1, 92), (1, 16), (1, 4), (0, 0)),
    "steps that do not divide the window": ((2, 3 * 15, 16), (9, 10), (5, 3), (2, 2), (1, 0)),
    "gaps": ((1, 2 * 4, 9), (8, 8), (2, 2), (3, 3), (0, 0)),
    "padding": ((2, 9, 16), (4, 4), (3, 3), (1, 1), (1, 1)),
    "no batch": ((12, 4), (4, 4), (2, 2), (2, 2), (0, 0)),
    "a window": ((1, 6, 1), (2, 3), (2, 3), (1, 1), (0, 0)),
}


@pytest.mark.spread
@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fold(name, dtype):
    torch._dynamo.reset()
    shape, size, window, step, padding = FOLDS[name]
    torch.manual_seed(2)
    x = torch.randn(shape).to(dtype)

    def function(x):
        return F.fold(x, size, window, stride=step, padding=padding) * 2

    got, want = torch.compile(function, backend="stepwell")(x), function(x)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert got.stride() == want.stride()


def test_fold_of_what_lies_otherwise_and_dilation():
    torch._dynamo.reset()
    frames = torch.randn(2, 20, 16)

    def overlap(x):
        return F.fold(x.transpose(1, 2), (1, 92), (1, 16), stride=(1, 4))

    torch.testing.assert_close(torch.compile(overlap, backend="stepwell")(frames), overlap(frames))

    def dilated(x):
        return F.fold(x, (5, 5), (2, 2), dilation=2)

    x = torch.randn(1, 8, 9)
    torch.testing.assert_close(torch.compile(dilated, backend="stepwell")(x), dilated(x))


@pytest.mark.parametrize("length,size,step,axis", [(40, 8, 2, 1), (41, 8, 3, 1), (23, 2, 5, 0), (7, 7, 1, -1), (5, 1, 1, 0)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradient_of_unfold(length, size, step, axis, dynamic):
    torch._dynamo.reset()
    shape = [3, 4]
    shape[axis] = length
    x = torch.randn(shape, requires_grad=True)

    def function(x):
        return (x.unfold(axis, size, step) * torch.arange(size)).sin()

    got, want = torch.compile(function, backend="stepwell", dynamic=dynamic)(x), function(x)
    torch.testing.assert_close(got, want)
    (mine,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (got, want))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_nothing_is_scattered(imported, text_of):
    """A fold is a padded view and a sum over the windows."""
    found = text_of(imported(lambda x: F.fold(x, (1, 92), (1, 16), stride=(1, 4)), torch.randn(2, 16, 20)).module)
    assert "nd.reduce" in found and "nd.pad" in found
    assert "index_put" not in found and "scatter" not in found and "nd.extern" not in found


@pytest.mark.parametrize("batch", [1, 3])
def test_frames_of_a_batch_share_the_windows_of_istft(batch):
    torch._dynamo.reset()
    spectrum = torch.randn(batch, 5, 4, dtype=torch.complex64)
    window = torch.hann_window(8) + 0.5

    def signal(x, window):
        return torch.istft(x, n_fft=8, window=window)

    got = torch.compile(signal, backend="stepwell", options={"verify": True})(spectrum, window)
    torch.testing.assert_close(got, signal(spectrum, window), rtol=1e-4, atol=1e-5)
