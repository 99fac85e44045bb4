"""An LSTM whose weights are trained and whose input needs no gradient compiles on the CPU."""

import torch
from torch import nn

import stepwell


def test_gradients_of_weights():
    torch._dynamo.reset()
    stepwell.reset_counters()
    torch.manual_seed(0)
    model, x = nn.LSTM(4, 8, batch_first=True), torch.randn(3, 2, 4)
    parameters = list(model.parameters())
    with torch._dynamo.config.patch(allow_rnn=True):
        mine, states = torch.compile(model, backend="stepwell")(x)
    enabled = torch._C._get_mkldnn_enabled()
    eager, want = model(x)
    torch.testing.assert_close((mine, states), (eager, want))
    torch.testing.assert_close(torch.autograd.grad(mine.sum(), parameters), torch.autograd.grad(eager.sum(), parameters))
    assert enabled and stepwell.counters["extern"] == 0


def test_inference_stays_one_call_of_the_library():
    torch._dynamo.reset()
    stepwell.reset_counters()
    model, x = nn.LSTM(4, 8), torch.randn(2, 3, 4)
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="stepwell")(x)[0], model(x)[0])
    assert stepwell.counters["extern"] == 1
