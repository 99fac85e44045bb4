"""gpu-fission: values in a nest of their own where few programs would go through them; what passes through memory, and what stays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree
from xdsl.parser import Parser

from stepwell.dialects import loop
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

LAST = torch.channels_last
BF16 = torch.bfloat16


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def lowered(function, args, fission: str = "gpu-fission", stages=("nd", "loop", "mem"), mode: str = "fake"):
    return lower(function, *args, to=stages[-1], mode=mode, gpu_fission=fission)


def nests(imported) -> list[loop.NestOp]:
    return [n for n in imported.module.walk() if is_nest_in_memory(n)]


def loops_behind(imported) -> int:
    """How many loops of values stand in nests with reductions."""
    return sum(
        isinstance(op, loop.ForOp) for n in nests(imported) if any(isinstance(o, loop.ReduceOp) for o in n.block.ops) for op in n.block.ops
    )


def batch_norm(x, w, b, mean, var):
    return F.relu(F.batch_norm(x, mean, var, w, b, training=True)), mean, var


def in_place(x, w, b, mean, var):
    """What the rows load of a weight is overwritten with another number before the values are computed."""
    y = (x - x.mean((0, 2, 3), keepdim=True)) * w[:, None, None]
    return w.copy_(x.amax((0, 2, 3))), y


def of_counts(x, w, b, mean, var):
    """Values that depend on a condition of each row, which memory has no type for."""
    high = x.amax((0, 2, 3), keepdim=True) > 2.6
    return torch.where(high, x, -x), high


def twice(x, w, b, mean, var):
    """Values in two orders of which one waits for the other's reduction."""
    y = x - x.mean((0, 2, 3), keepdim=True)
    return y, y / y.abs().amax((0, 2, 3), keepdim=True)


def pooled(x, w, b, mean, var):
    """Planes of values, and windows over them: loops without a reduction, of which nothing stays."""
    y = F.relu(x * w[:, None, None])
    return y, F.max_pool2d(y, 3, 2, 1)


def arguments(*shape: int, dtype: torch.dtype = torch.float32, memory_format=LAST):
    c = shape[1]
    return [
        randn(*shape, dtype=dtype).to(memory_format=memory_format),
        *(randn(c + k, dtype=dtype)[k:] for k in range(3)),
        randn(c).abs().to(dtype),
    ]


def test_channels_last_statistics_and_values_are_nests_apart():
    """A batch norm over 16 channels: behind the reductions, two programs would go through all of the pixels."""
    with FakeTensorMode():
        args = [torch.empty(64, 16, 56, 56, dtype=BF16).to(memory_format=LAST), *(torch.empty(16, dtype=BF16) for _ in range(4))]
        whole = lowered(batch_norm, args)
        joined = [n for n in nests(whole) if any(isinstance(o, loop.ReduceOp) for o in n.block.ops)]
    assert loops_behind(whole) == 0
    values = nests(whole)[-1]
    assert len(values.loop_sizes) == 4 and not any(isinstance(o, loop.LoopLike) for o in values.block.ops)
    assert str(values.label).strip('"').endswith("_values")
    assert len(joined) == 2  # the parts, and what is made of them


def test_rows_that_lie_together_stay_with_their_values():
    with FakeTensorMode():
        args = [torch.empty(64, 576, 7, 7, dtype=BF16), *(torch.empty(576, dtype=BF16) for _ in range(4))]
        assert loops_behind(lowered(batch_norm, args)) == 1


def test_an_image_or_two_stay_one_kernel():
    """Another launch takes longer than what there is to be gained."""
    with FakeTensorMode():
        args = [torch.empty(1, 64, 8, 8, dtype=BF16).to(memory_format=LAST), *(torch.empty(64, dtype=BF16) for _ in range(4))]
        assert loops_behind(lowered(batch_norm, args)) == 1


def test_what_the_nest_stores_anyway_is_loaded_from_there():
    """The mean is a result: no memory is made for it."""

    def normalised(x):
        mean = x.mean((0, 2, 3), keepdim=True)
        return mean, x - mean

    x = randn(2, 3, 4, 5).to(memory_format=LAST)
    imported = lowered(normalised, [x], "gpu-fission{always}")
    assert loops_behind(imported) == 0
    assert 'kind = "arena"' not in str(imported.module)


PROGRAMS = {
    "batch norm": batch_norm,
    "weight overwritten": in_place,
    "condition of a row": of_counts,
    "one after the other": twice,
    "windows": pooled,
}


@pytest.mark.spread
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, dtype, mode):
    function = PROGRAMS[name]
    args = arguments(4, 5, 6, 7, dtype=dtype)
    imported = lowered(function, [a.clone() for a in args], "gpu-fission{always}", ("nd", "loop", "mem", "tt"), mode)
    for sizes in ((4, 5, 6, 7),) if mode == "fake" else ((4, 5, 6, 7), (3, 9, 2, 5), (2, 2, 9, 3)):
        args = arguments(*sizes, dtype=dtype)
        expected = pytree.tree_leaves(function(*[a.clone() for a in args]))
        got = run_loop(imported.module, [a.clone() for a in args], imported.constants, imported.objects)
        close = 2e-2 if dtype is BF16 else 2e-5
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a.reshape(b.shape), b, rtol=close, atol=close)


def test_gradients_through_the_whole_pipeline():
    """Convolutional training on the interpreted GPU: statistics, values and their gradients against eager."""
    import stepwell

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1),
        torch.nn.BatchNorm2d(6),
        torch.nn.Hardswish(),
        torch.nn.Conv2d(6, 4, 1),
        torch.nn.BatchNorm2d(4),
    ).to(memory_format=LAST)
    x = randn(3, 3, 8, 6).to(memory_format=LAST)
    expected = net(x)
    expected.square().sum().backward()
    grads = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        torch._dynamo.reset()
        got = torch.compile(net, backend="stepwell", options={"cache": "off"})(x)
        got.square().sum().backward()
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for p, g in zip(net.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_reduction_that_stores_is_split_too(mode):
    """A mean over pixels and the values that it is made of (squeeze and excitation): each part stores its own."""

    def squeezed(x):
        y = F.silu(x)
        return y, y.mean((2, 3), keepdim=True)

    x = randn(2, 8, 64, 63).to(memory_format=LAST)
    imported = lowered(squeezed, [x], mode=mode)
    parts, rest = nests(imported)[0], nests(imported)[-1]
    assert any(
        isinstance(op, loop.StoreOp) for reduce in parts.block.ops if isinstance(reduce, loop.ReduceOp) for op in loop.walk_bodies(reduce)
    )
    assert len(parts.loop_sizes) == 3 and len(rest.outs) == 1
    for a, b in zip(run_loop(imported.module, [x], imported.constants, imported.objects), squeezed(x), strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=1e-5, atol=1e-5)


KEPT = {
    "a loop in order": "loop.for (%k = 8) {\n VALUES } attributes {sequential}",
    "a later store to what it reads": "loop.for (%k = 8) {\n VALUES }\n loop.store %s, %o[%i, 0] : f32, !mem.buffer<4 x 8 x f32>",
}


@pytest.mark.parametrize("why", KEPT)
def test_loops_that_cannot_run_last_stay(why):
    values = "%e = loop.load %x[%i, %k] : !mem.buffer<4 x 8 x f32> -> f32\n %d = arith.subf %e, %s : f32\n"
    values += " loop.store %d, %o[%i, %k] : f32, !mem.buffer<4 x 8 x f32>"
    text = f"""func.func @f(%x : !mem.buffer<4 x 8 x f32>, %y : !mem.buffer<4 x 8 x f32>) {{
      loop.nest (%i = 4) outs(%o = %y : !mem.buffer<4 x 8 x f32>) {{
        %s = loop.reduce (%j = 8) sum {{
          %v = loop.load %x[%i, %j] : !mem.buffer<4 x 8 x f32> -> f32
          loop.yield %v : f32
        }} -> f32
        {KEPT[why].replace("VALUES", values)}
      }}
      func.return
    }}"""
    module = Parser(context(), text).parse_module()
    module.attributes[MACHINE] = MachineAttr.get("sm_90")
    before = str(module)
    pipeline = default_pipeline("gpu", stages=("mem",))
    for p in [p for p in pipeline.passes() if p.name != "gpu-fission"]:
        pipeline.remove(p.name)
    pipeline.replace("gpu-fission", "gpu-fission{always}")
    run(pipeline, module, context())
    assert str(module) == before
