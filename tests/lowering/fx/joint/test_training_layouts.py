"""Convolutions of training graphs channels-last. Most decisions here are those for GPUs, taken on the CPU, whose library runs either order:
what comes out of them is compared with eager."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx.joint import training_layouts
from stepwell.lowering.fx_to_nd.calls import layout_choices
from stepwell.passes.cost.machine.gpu_rates import HostBound
from stepwell.tools.compiled.counters import counters

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


ONEDNN, CUDNN = training_layouts._LIBRARIES["cpu"], training_layouts._LIBRARIES["cuda"]


@pytest.fixture(autouse=True)
def choices_of_a_gpu(monkeypatch):
    monkeypatch.setattr(training_layouts, "_LIBRARIES", {"cpu": CUDNN})
    monkeypatch.setattr(layout_choices, "_uses_tf32", lambda: True)
    torch._dynamo.reset()


def joint_graph(function, *args: torch.Tensor) -> torch.fx.GraphModule:
    """The joint graph of a function whose arguments all have gradients, laid out; nothing is computed."""
    found = []

    def split(gm, inputs, **kwargs):
        training_layouts.choose_training_layouts(gm)
        gm.graph.lint()
        found.append(gm)
        return min_cut_rematerialization_partition(gm, inputs, **kwargs)

    with FakeTensorMode():
        fakes = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, requires_grad=True) for a in args]
        run = aot_function(function, fw_compiler=lambda gm, _: gm, partition_fn=split, decompositions=decomposition_table())
        run(*fakes).sum().backward()
    return found[0]


def sides(gm: torch.fx.GraphModule) -> list[str]:
    """On which side the input of each convolution and gradient of one is."""
    calls = [n for n in gm.graph.nodes if n.target in CONVOLUTIONS]
    images = [n.args[n.target is CONVOLUTIONS[1]] for n in calls]
    return ["last" if n.meta["val"].is_contiguous(memory_format=torch.channels_last) else "rows" for n in images]


def two(x, v, w):
    return F.relu(F.conv2d(F.relu(F.conv2d(x, v, padding=1)), w, padding=1))


X, V, W = torch.empty(8, 64, 56, 56), torch.empty(64, 64, 3, 3), torch.empty(64, 64, 3, 3)


def test_ly_06_forward_and_backward_are_on_the_side_where_the_tensor_cores_are(monkeypatch):
    gm = joint_graph(two, X.bfloat16(), V.bfloat16(), W.bfloat16())
    assert sides(gm) == ["last"] * 4
    # one copy of each argument and of each gradient: nothing between, and the last ReLU stores by rows what it reads
    clones = [n for n in gm.graph.nodes if n.target is aten.clone.default]
    assert len([n for n in clones if n.args[0].op == "placeholder"]) == 3  # x and both weights; the ReLU reads the gradient by rows
    assert len(clones) == 3 + 3
    for node in gm.graph.output_node().args[0]:
        assert node.meta["val"].is_contiguous()
    assert sides(joint_graph(two, X, V, W)) == ["last"] * 4
    monkeypatch.setattr(layout_choices, "_uses_tf32", lambda: False)
    assert sides(joint_graph(two, X, V, W)) == ["rows"] * 4
    assert sides(joint_graph(two, X.double(), V.double(), W.double())) == ["rows"] * 4


def test_what_the_user_laid_out_stays():
    gm = joint_graph(two, *(t.bfloat16().to(memory_format=torch.channels_last) for t in (X, V, W)))
    assert sides(gm) == ["last"] * 4
    assert not [n for n in gm.graph.nodes if n.target is aten.clone.default]


def test_wide_depthwise_gradients_of_float32_stay_by_rows():
    """cuDNN's gradient of 7x7 depthwise weights takes three times as long channels-last."""

    def depthwise(x, w):
        return F.conv2d(x, w, padding=3, groups=64)

    x, w = torch.empty(32, 64, 56, 56), torch.empty(64, 1, 7, 7)
    assert sides(joint_graph(depthwise, x, w))[1] == "rows"
    assert sides(joint_graph(depthwise, x.bfloat16(), w.bfloat16())) == ["last", "last"]


LEAKY_RELU = pytest.param(
    F.leaky_relu,
    marks=pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11 takes its result for one by rows, whatever its argument is"),
)


def test_normalised_planes_stay_by_rows():
    def norms(x, v, w):
        y = F.group_norm(F.conv2d(F.group_norm(x, 4), v, padding=1), 4)
        return F.group_norm(F.conv2d(y, w, padding=1), 4)

    assert sides(joint_graph(norms, X.bfloat16(), V.bfloat16(), W.bfloat16())) == ["rows"] * 4


@pytest.mark.parametrize("activation", [F.relu, F.hardswish, F.hardsigmoid, LEAKY_RELU, F.mish, F.elu, F.softplus, F.silu, F.relu6])
def test_what_is_normalised_follows(activation):
    """Nothing between two convolutions lies otherwise than they do, forward and backward, however few channels there are."""
    x, w, v = torch.empty(64, 16, 112, 112).bfloat16(), torch.empty(16, 1, 3, 3).bfloat16(), torch.empty(16).bfloat16()

    def normalised(x, w, v):
        y = activation(F.batch_norm(F.conv2d(x, w, padding=1, groups=16), None, None, v, v, True))
        return F.conv2d(y, w, padding=1, groups=16)

    gm = joint_graph(normalised, x, w, v)
    assert sides(gm) == ["last"] * 4
    clones = [n for n in gm.graph.nodes if n.target is aten.clone.default]
    assert {n.args[0].op for n in clones if n.meta["val"].is_contiguous(memory_format=torch.channels_last)} == {"placeholder"}
    assert len([n for n in clones if n.meta["val"].is_contiguous()]) <= 3  # the result, the gradient of x, and a weight's


def test_small_images_of_float32_stay_by_rows(monkeypatch):
    """By rows cuDNN computes them without TF32. Half precision, and what is computed without TF32 in either order, has a choice."""

    def cost(x, w, groups=1):
        return layout_choices.cudnn_cost((x.shape, w.shape, x.shape), x, False, groups)

    small, depthwise = torch.empty(2, 64, 24, 24), torch.empty(64, 1, 3, 3)
    assert sides(joint_graph(two, small, V, W)) == ["rows"] * 4
    assert cost(small, W) == cost(small, depthwise, 64) == 0
    assert cost(X, W) < 0 and cost(small.bfloat16(), W.bfloat16()) < 0
    monkeypatch.setattr(layout_choices, "_uses_tf32", lambda: False)
    assert cost(small, W) > 0 > cost(small, depthwise, 64)


def test_odd_numbers_of_pixels_run_channels_last():
    """A product by rows of 7 x 7 pixels has addresses that the tensor cores do not read; of 8 x 8 it may stay as it is."""
    w = torch.empty(96, 96, 1, 1).bfloat16()
    for pixels, side in ((7, "last"), (14, "last"), (8, "rows")):
        x = torch.empty(64, 96, pixels, pixels).bfloat16()
        assert sides(joint_graph(lambda x, w: F.conv2d(F.conv2d(F.conv2d(x, w), w), w), x, w)) == [side] * 6, pixels


SMALL_IMAGES = ((1, 3, 8, 24), (2, 3, 4, 4))


class Net(nn.Module):
    """Normalisation, pools, a residual sum, parts side by side, resampling, a view, a depthwise and a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.wide = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1, bias=False)
        self.groups, self.up = nn.GroupNorm(4, 32), nn.ConvTranspose2d(32, 8, 2, stride=2)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        a = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        b = a + F.silu(self.depthwise(a))
        c = torch.cat([self.wide(b), F.interpolate(F.avg_pool2d(b, 2), scale_factor=2, mode="bilinear")], 1)
        d = self.up(F.gelu(self.groups(c)) * c.mean((2, 3), keepdim=True))
        e = F.pad(d, (1, 1, 1, 1)).permute(0, 2, 3, 1)
        return self.last(e).flatten(1), d.view(d.shape[0], -1), b


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("sizes", [(4, 3, 16, 16), *(pytest.param(s, marks=pytest.mark.long) for s in SMALL_IMAGES)], ids=str)
def test_as_eager(monkeypatch, sizes, dynamic):
    """LY-01: values, gradients and strides, with every convolution made to be channels-last."""
    monkeypatch.setattr(layout_choices, "CUDNN", replace(layout_choices.CUDNN, call_ns=1e7))
    monkeypatch.setattr(layout_choices, "HOST_BOUND_CONVOLUTION", HostBound(0))
    monkeypatch.setattr(training_layouts, "_PLANES", frozenset())
    torch.manual_seed(0)
    net = Net()
    reference, x = copy.deepcopy(net), torch.randn(sizes)
    counters.clear()
    compiled = torch.compile(net, backend="stepwell", dynamic=dynamic, options={"cache": "off"})
    given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    results, wanted = compiled(given), reference(expected)
    assert counters["training_layouts"] >= 6
    for result, want in zip(results, wanted, strict=True):
        assert result.stride() == want.stride()
        torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-4)
    weights = [torch.randn_like(r) for r in wanted]
    torch.autograd.backward(results, weights)
    torch.autograd.backward(wanted, weights)
    for p, q in zip([given, *net.parameters()], [expected, *reference.parameters()], strict=True):
        assert p.grad is not None and q.grad is not None and p.grad.stride() == q.grad.stride()
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)
    for p, q in zip(net.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("convolution", [F.conv2d, pytest.param(F.conv_transpose2d, marks=pytest.mark.long)])
def test_strides_and_groups_that_are_symbols(monkeypatch, convolution):
    monkeypatch.setattr(layout_choices, "CUDNN", replace(layout_choices.CUDNN, call_ns=1e7))
    monkeypatch.setattr(layout_choices, "HOST_BOUND_CONVOLUTION", HostBound(0))

    def run(x, w, stride, padding, groups):
        return convolution(x, w, stride=stride, padding=padding, groups=groups)

    compiled = torch.compile(run, backend="stepwell", dynamic=True, options={"cache": "off"})
    for stride, padding, groups in ((2, 3, 8), (3, 2, 4), ((2, 3), (1, 2), 2)):
        x, w = torch.randn(2, 8, 9, 11, requires_grad=True), torch.randn(8, 8 // groups, 3, 5, requires_grad=True)
        got, expected = (torch.autograd.grad(f(x, w, stride, padding, groups).square().sum(), (x, w)) for f in (compiled, run))
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


class Grouped(nn.Module):
    """Two blocks of a RegNet: 1x1, 3x3 in groups with a stride, 1x1, and what goes around them."""

    def __init__(self, channels: int = 48, width: int = 8):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.blocks = nn.ModuleList(self.block(channels, width, stride) for stride in (1, 2))
        self.around = nn.Conv2d(channels, channels, 1, 2, bias=False)
        self.last = nn.Linear(channels, 5)

    def block(self, channels: int, width: int, stride: int) -> nn.Sequential:
        def norm():
            return nn.BatchNorm2d(channels)

        grouped = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels // width, bias=False)
        ends = [nn.Conv2d(channels, channels, 1, bias=False) for _ in range(2)]
        return nn.Sequential(ends[0], norm(), nn.ReLU(), grouped, norm(), nn.ReLU(), ends[1], norm())

    def forward(self, x):
        a = F.relu(self.stem(x))
        b = F.relu(a + self.blocks[0](a))
        return self.last(F.relu(self.around(b) + self.blocks[1](b)).mean((2, 3)))


@pytest.mark.parametrize("width, dynamic", [(1, None), (8, None), (8, True), (24, None)])
def test_ly_06_grouped_convolutions_of_a_cpu(monkeypatch, width, dynamic):
    """oneDNN computes depthwise and grouped convolutions, and their gradients, faster channels-last; all others of the network follow."""
    monkeypatch.setattr(training_layouts, "_LIBRARIES", {"cpu": ONEDNN})
    torch.manual_seed(0)
    net, x = Grouped(width=width), torch.randn(4, 3, 48, 48)
    reference = copy.deepcopy(net).double()
    counters.clear()
    compiled = torch.compile(net, backend="stepwell", dynamic=dynamic, options={"cache": "off"})
    for size in (48, 40) if dynamic else (48,):
        x = torch.randn(4, 3, size, size)
        given, expected = x.clone().requires_grad_(), x.double().requires_grad_()
        result, wanted = compiled(given), reference(expected)
        torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4)
        parameters = [given, *net.parameters()], [expected, *reference.parameters()]
        got, want = torch.autograd.grad(result.sum(), parameters[0]), torch.autograd.grad(wanted.sum(), parameters[1])
        for p, q in zip(got, want, strict=True):
            assert p.stride() == q.stride()
            assert (p - q).abs().max() <= 1e-3 * max(1, q.abs().max())
    assert counters["training_layouts"] == 16  # eight convolutions, forward and backward


def test_dense_convolutions_of_a_cpu_stay_by_rows(monkeypatch):
    monkeypatch.setattr(training_layouts, "_LIBRARIES", {"cpu": ONEDNN})
    assert sides(joint_graph(two, X, V, W)) == ["rows"] * 4


def test_the_choice_can_be_left_out(monkeypatch):
    monkeypatch.setattr(layout_choices, "CUDNN", replace(layout_choices.CUDNN, call_ns=1e7))
    counters.clear()
    net = torch.compile(nn.Conv2d(4, 8, 3), backend="stepwell", options={"cache": "off", "disable_passes": ["loop-layout"]})
    net(torch.randn(2, 4, 8, 8)).sum().backward()
    assert "training_layouts" not in counters


def test_on_a_gpu_the_gradient_of_a_bias_is_a_nest():
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradients(g, x, w):
        return aten.convolution_backward(g, x, w, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])

    with FakeTensorMode():
        fakes = [torch.empty(s, device="cuda") for s in ((2, 8, 6, 6), (2, 4, 6, 6), (8, 4, 3, 3))]
        gm = make_fx(gradients, decomposition_table=decomposition_table())(*fakes)
    (call,) = [n for n in gm.graph.nodes if n.target is CONVOLUTIONS[1]]
    assert call.args[-1] == [True, True, False]
    assert [n for n in gm.graph.nodes if n.target is aten.sum.dim_IntList]
