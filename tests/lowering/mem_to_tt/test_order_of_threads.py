"""What a kernel stores in memory that it, or another of its programs, also loads: the interpreter refuses what nothing puts in order."""

import pytest
import torch
from torch.nn.functional import normalize

from stepwell.tools.fuzz.check import on
from stepwell.tools.fuzz.ir import IRCase


def check(program, *inputs, device="gpu", grad=False, dynamic=False):
    torch._dynamo.reset()
    inputs = [x.requires_grad_(grad) for x in inputs]
    with on(device):
        found = torch.compile(program, backend="stepwell", dynamic=dynamic)(*inputs)
        if grad:
            found.sum().backward()
            mine, inputs[0].grad = inputs[0].grad, None
            program(*inputs).sum().backward()
            torch.testing.assert_close(mine, inputs[0].grad)
    torch.testing.assert_close(found, program(*inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.complex128])
@pytest.mark.parametrize("device", ["gpu", "small-gpu"])
def test_what_a_store_combines_with_is_loaded_before_its_barrier(device, dtype):
    """A tile of fewer elements than there are threads: several threads have the same element."""

    def program(x, y):
        return x, y.index_add(-2, torch.arange(2), x)

    check(program, torch.ones(2, 1, dtype=dtype), torch.zeros(2, 1, dtype=dtype), device=device)


def test_rows_that_are_collected_and_added():
    def program(x):
        x = x >> 1
        x[2:].neg_()
        least = x.amin(-1, keepdim=True)
        rows = torch.cat([least, least, least + 1], 0)
        return torch.zeros_like(rows).index_add(0, torch.arange(rows.shape[0]).flip(0), rows)

    check(program, torch.tensor([5, -3, 9]))


@pytest.mark.parametrize("grad", [False, True])
def test_parts_of_a_result_that_several_rows_write(grad):
    """Each step reads what the one before has stored as a part of the result."""

    def program(xs):
        h, outs = xs.mean(1), []
        for k in range(4):
            h = normalize(h + xs[:, k], dim=-1)
            outs.append(h)
        return torch.cat(outs, 0).sum(1)

    check(program, torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0)), device="small-gpu", grad=grad)


@pytest.mark.long
def test_parts_of_a_result_that_several_programs_write():
    def program(xs):
        h, outs = xs.mean(1), []
        for k in range(8):
            h = torch.softmax(h, -1) + xs[:, k]
            h = torch.lerp(h, xs[:, k], torch.sigmoid((xs[:, k] * h).sum(-1, keepdim=True)))
            h = normalize(h + xs[:, k], dim=-1)
            outs.append(h)
        return torch.stack(outs, 1), h

    check(program, torch.randn(2, 8, 17, generator=torch.Generator().manual_seed(0)), device="small-gpu", dynamic=True)


@pytest.mark.parametrize("device", ["gpu", "small-gpu"])
def test_a_part_of_a_row_that_is_written_and_loaded_again(device):
    def program(x, at):
        x = x * 2
        x.index_add_(1, at, x[:, :2])
        x[:, 1:3].add_(x.sum(1, keepdim=True))
        return x - x.amax(1, keepdim=True)

    check(program, torch.randn(5, 9, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 3]), device=device)


def _nest(body: str, attributes: str = "") -> str:
    return f"""builtin.module attributes {{{attributes}}} {{
      func.func @forward(%x: !mem.buffer<2 x 4 x 64 x f32>, %sums: !mem.buffer<2 x 64 x f32>, %seen: !mem.buffer<2 x 4 x f32>) {{
        %v = mem.view %sums : (!mem.buffer<2 x 64 x f32>) -> !mem.buffer<128 x f32>
        loop.nest (%p = 2) outs(%o = %sums : !mem.buffer<2 x 64 x f32>, %c = %seen : !mem.buffer<2 x 4 x f32>) {{{body}}}
        func.return
      }}
    }}"""


SM_90 = 'stepwell.machine = #stepwell.machine<"sm_90">'
ACCUMULATED = """
    loop.for (%i = 4) {
      %s = loop.reduce (%j = 64) sum {
        %a = loop.load %x[%p, %i, %j] : !mem.buffer<2 x 4 x 64 x f32> -> f32
        loop.yield %a : f32
      } -> f32
      loop.for (%k = 64) {
        %a = loop.load %x[%p, %i, %k] : !mem.buffer<2 x 4 x 64 x f32> -> f32
        %b = arith.addf %a, %s : f32
        loop.store %b, %o[%p, %k] add : f32, !mem.buffer<2 x 64 x f32>
      }
      %r = loop.load %v[64 * %p + 3] : !mem.buffer<128 x f32> -> f32
      loop.store %r, %c[%p, %i] : f32, !mem.buffer<2 x 4 x f32>
    } attributes {sequential}"""
READ_AGAIN = """
    %s = loop.reduce (%j = 64) sum {
      %a = loop.load %x[%p, 0, %j] : !mem.buffer<2 x 4 x 64 x f32> -> f32
      loop.yield %a : f32
    } -> f32
    loop.store %s, %o[%p, 3] : f32, !mem.buffer<2 x 64 x f32>
    %r = loop.load %v[64 * %p + 3] : !mem.buffer<128 x f32> -> f32
    loop.store %r, %c[%p, 1] : f32, !mem.buffer<2 x 4 x f32>"""


@pytest.mark.parametrize("body", [ACCUMULATED, READ_AGAIN])
@pytest.mark.parametrize(
    ("device", "pipeline", "attributes"),
    [
        ("gpu", "gpu-schedule,mem-to-tt,tt-join-launches,to-host", SM_90),
        ("gpu", "gpu-parallel-scatter,gpu-schedule,mem-to-tt,tt-join-launches,to-host", SM_90),
        ("cpu", "loop-schedule,mem-to-cpu,to-host", ""),
        ("cpu", "loop-hoist,loop-schedule,mem-to-cpu,to-host", ""),
    ],
)
def test_a_view_of_what_a_nest_stores_is_read_when_it_is_its_turn(body, device, pipeline, attributes):
    """Sums of columns that are kept on chip, and loads that begin early, are of memory that no other buffer is a view of."""
    assert IRCase("ir", 1, _nest(body, attributes), pipeline, "").verdict(device) == ("right", "")
