"""loop-layout: the cut, what it writes, and that the rest obeys it."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from support import import_function, lower, without_data
from torch.nn import functional as F

import stepwell
from stepwell.dialects import mem
from stepwell.lowering.fx_to_nd.calls import layout_choices
from stepwell.passes.loop.loop_layout import Cut
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context


def test_the_cut_is_the_cheapest_side_for_each():
    """LY-06"""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        names, ends = list(range(6)), ("rows", "channels-last")
        edges = [(*chance.sample([*names, *ends], 2), chance.randrange(1, 9)) for _ in range(12)]
        cut = Cut()
        for a, b, weight in edges:
            cut.edge(a, b, weight)

        def cost(rows: set[object], edges: list = edges) -> int:
            return sum(w for a, b, w in edges if (a in rows) != (b in rows))

        best = min(cost({"rows", *some}) for n in range(7) for some in itertools.combinations(names, n))
        assert cost({*cut.side_of("rows"), "rows"}) == best


def _net(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = F.relu(F.conv2d(x, w, padding=1, groups=x.shape[1] // w.shape[1])) + 1
    return x.mean((2, 3))


def _run(sizes: tuple[int, ...], dynamic: bool, channels: int = 32) -> dict[str, int]:
    torch._dynamo.reset()
    x = torch.randn(*sizes)
    weights = [torch.randn(channels, sizes[1] if k == 0 else 1, 3, 3) for k in range(3)]
    stepwell.reset_counters()
    compiled = torch.compile(_net, backend="stepwell", dynamic=dynamic, options={"verify": True, "cache": "off"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, *weights), _net(x, *weights), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(compiled(x * 2, *weights), _net(x * 2, *weights), rtol=1e-3, atol=1e-3)
    return dict(stepwell.counters)


def test_chains_of_convolutions_compute_the_same():
    """Catalogue B09, N28: static and dynamic sizes, one row, one channel."""
    for sizes, dynamic in (((2, 32, 24, 24), False), ((2, 32, 24, 24), True), ((1, 3, 5, 7), False), ((2, 1, 9, 9), False)):
        _run(sizes, dynamic)


def test_the_choice_is_in_the_ir_and_obeyed(opt_tool, tmp_path):
    """LY-06, LY-07: Catalogue B09: the nest between two calls stores in the order that both want, without a copy."""
    t, last = "!nd.tensor<2 x 8 x 16 x 16 x f32>", "#nd.layout<[2048, 1, 128, 8], 0>"
    weight = "!nd.tensor<8 x 8 x 3 x 3 x f32>"
    call = '#nd.call<"aten.convolution.default", [arg(0), arg(1), none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1]>'
    rows = "#nd.layout<[2048, 256, 16, 1], 0>"

    def conv(result: str, operand: str, cost: int) -> str:
        return (
            f"%{result} = nd.extern %{operand}, %w {{call = {call}, operand_layouts = [{rows}, unit], result_layouts = [{rows}]}} "
            f"attributes {{layout_choices = [{{operands = [{last}, unit], results = [{last}], cost = {cost} : i64}}]}} "
            f": ({t}, {weight}) -> {t}"
        )

    def function(cost: int) -> str:
        nest = f"""%e = loop.empty : {t}
  %b = loop.nest (%n = 2, %c = 8, %h = 16, %k = 16) outs(%o = %e : {t}) {{
    %v = loop.load %a[%n, %c, %h, %k] : {t} -> f32
    %u = math.exp %v : f32
    loop.store %u, %o[%n, %c, %h, %k] : f32, {t}
  }}"""
        return f"""func.func @forward(%x: {t} {{nd.layout = {rows}}}, %w: {weight}) -> ({t} {{nd.layout = {rows}}}) {{
  {conv("a", "x", cost)}
  {nest}
  {conv("y", "b", cost)}
  func.return %y : {t}
}}"""

    path = tmp_path / "f.mlir"
    path.write_text(function(-1_000_000))
    chosen = opt_tool(str(path), "-p", "loop-layout")
    assert chosen.code == 0, chosen.err
    assert f"layouts = [{last}]" in chosen.out and "layout_choices" not in chosen.out
    path.write_text(chosen.out)
    lowered = opt_tool(str(path), "-p", "loop-to-mem")
    assert lowered.code == 0, lowered.err
    assert lowered.out.count('label = "copy"') == 2  # the argument, and the result that the caller wants by rows
    path.write_text(function(-10))
    kept = opt_tool(str(path), "-p", "loop-layout")
    assert "layouts = [" in kept.out and f"layouts = [{last}]" not in kept.out and "layout_choices" not in kept.out


def _gpu_remarks(function, *args: torch.Tensor, products: bool = True) -> list[str]:
    """What loop-layout says of a function's convolutions on a GPU, in their order; those that small ones of one pixel are stay without
    `products`."""
    module, remarks = import_function(function, *without_data(args)).module, []
    pipeline = default_pipeline("gpu", stages=["nd", "loop"])
    if not products:
        pipeline.replace("nd-library-products", "nd-library-products{small=0}")
    run(pipeline, module, context(), Instrumentation(remarks=remarks.append))
    module.verify()
    return [r.kind for r in remarks if "runs" in str(r) and "loop-layout" in str(r)]


def test_a_gpu_has_its_convolutions_channels_last_where_the_tensor_cores_are(monkeypatch):
    x, w, depthwise = torch.empty(8, 64, 56, 56), torch.empty(64, 64, 3, 3), torch.empty(64, 1, 3, 3)

    def two(x, v, w):
        return F.relu(F.conv2d(F.relu(F.conv2d(x, v, padding=1)), w, padding=1))

    for dtype, tf32, want in ((torch.bfloat16, False, "applied"), (torch.float32, True, "applied"), (torch.float32, False, "missed")):
        monkeypatch.setattr(layout_choices, "_uses_tf32", lambda tf32=tf32: tf32)
        assert _gpu_remarks(two, x.to(dtype), w.to(dtype), w.to(dtype)) == [want, want], (dtype, tf32)
    # cuDNN's depthwise kernels are faster channels-last for any type
    grouped = _gpu_remarks(lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=64)) + 1, torch.empty(32, 64, 112, 112), depthwise)
    assert grouped == ["applied"]
    # of float64: as eager has it, without a choice
    assert _gpu_remarks(two, x.double(), w.double(), w.double()) == []


def test_what_a_generated_convolution_reads_is_channels_last():
    """Of what nests store: the image between two of them; weights have their channels last as a dimension. Not heads of attention, which
    are added up along their last dimension."""

    def stored(function, *args):
        module = lower(function, *args, to="mem", nd_library_products="nd-library-products{library=never}").module
        kinds = [op.result.type for op in module.walk() if isinstance(op, mem.AllocOp) and op.kind.data != "output"]
        images = [k for k in kinds if isinstance(k, mem.BufferType) and len(k.dims) == 4]
        return ["last" if k.stride_exprs[1].value == 1 else "rows" if k.dims[3].value != 64 else "turned" for k in images]

    x, w = (torch.empty(n, dtype=torch.bfloat16, memory_format=torch.channels_last) for n in ((32, 64, 56, 56), (64, 64, 3, 3)))
    assert stored(lambda x, v, w: F.conv2d(F.relu(F.conv2d(x, v, padding=1)), w, padding=1), x, w, w) == ["last"]
    rounded = stored(lambda x, w: F.relu(F.conv2d(x, w.bfloat16(), padding=1)), x, torch.empty(256, 64, 3, 3))
    assert rounded == ["turned"]

    def scores(x, w, v):
        q, k = ((x @ one).view(4, 64, 8, 32).transpose(1, 2) for one in (w, v))
        return torch.softmax(q.tanh() @ k.sigmoid().transpose(-1, -2), -1)

    heads = stored(scores, *(torch.empty(*sizes, dtype=torch.bfloat16) for sizes in ((4, 64, 256), (256, 256), (256, 256))))
    assert heads and "last" not in heads


def test_a_gpu_reads_planes_by_rows():
    def norms(x, v, w):
        return F.group_norm(F.conv2d(F.group_norm(F.conv2d(x, v, padding=1), 4), w, padding=1), 4)

    w = torch.empty(64, 64, 3, 3).bfloat16()
    assert _gpu_remarks(norms, torch.empty(16, 64, 128, 128).bfloat16(), w, w) == ["missed", "missed"]


def test_small_images_stay_by_rows_whatever_the_window():
    """LY-06: where neither order saves anything nothing is turned; weights of one pixel, which lie both ways, ask for neither."""

    def layers(x, *weights):
        for w in weights:
            x = F.silu(F.group_norm(F.conv2d(x, w, padding=w.shape[2] // 2), 1))
        return x * F.sigmoid(F.conv2d(x.mean((2, 3), keepdim=True), w))

    weights = [torch.empty(8, 8, size, size) for size in (3, 1, 1, 3, 1)]
    assert _gpu_remarks(layers, torch.empty(2, 8, 64, 64), *weights, products=False) == ["missed"] * 5
    assert _gpu_remarks(layers, torch.empty(2, 8, 64, 64), *weights) == ["missed"] * 2


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_a_nest_with_images_in_both_orders_turns_those_with_channels_in_front(target):
    """A layer norm over the channels of each pixel (ConvNeXt) that a sum reads too: [N, H, W, C] by rows, [N, C, H, W] channels-last."""

    def blocks(x, v, w):
        norm = F.layer_norm(F.conv2d(x, v, padding=1).permute(0, 2, 3, 1), [40])
        return F.conv2d(norm.permute(0, 3, 1, 2) * 2, w, padding=1), norm.sum((0, 1, 2))

    sizes = (8, 40, 28, 20), (40, 40, 3, 3), (40, 40, 3, 3)
    args = without_data([torch.empty(s, device="meta") for s in sizes], {"gpu": "cuda"}.get(target, target))
    module = lower(blocks, *args, to="mem", target=target).module
    pixels = {
        o.type for op in module.walk() for o in op.results if [str(d) for d in getattr(o.type, "dims", ())] == ["8", "28", "20", "40"]
    }
    assert all(tuple(map(str, t.stride_exprs)) == ("22400", "800", "40", "1") for t in pixels)
    if target == "gpu":
        assert pixels and "[22400, 1, 800, 40]" in str(module)


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_heads_are_no_channels(target):
    """LY-06: the columns of a matrix are elements of heads; a head is not the next number to another one."""
    def attend(x, w, o, image, kernel):
        heads = (x @ w).view(1, 64, 16, 128).transpose(1, 2)
        weighed = torch.softmax(heads.cumsum(-1), -1)
        return weighed.transpose(1, 2).reshape(64, 2048) @ o, F.conv2d(image, kernel, padding=1).relu() * 2

    image, kernel = (torch.empty(*s).to(memory_format=torch.channels_last) for s in ((1, 64, 56, 56), (64, 64, 3, 3)))
    args = [torch.empty(*s) for s in ((64, 256), (256, 2048), (2048, 64))]
    text = str(lower(attend, *args, image, kernel, to="mem", target=target).module)
    assert "1 x 16 x 64 x 128" in text and "[131072, 1, 2048, 16]" not in text
