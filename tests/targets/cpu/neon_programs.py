"""Compiles many programs for another instruction set and prints, for each, its name and the machine of the object (run as a script by
test_neon.py with STEPWELL_CPU set, before anything asks what the host is)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.dialects import host
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.features import target
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.tools.backend.compile_graph import context

X, Y, ROW = torch.randn(37, 53), torch.randn(37, 53), torch.randn(53)
LOW, HALF, WIDE = X.bfloat16(), X.half(), X.double()
WHOLE, FLAGS = torch.arange(37 * 53).reshape(37, 53), X > 0
PLACES = torch.tensor([3, 0, 36, 3])

PROGRAMS = {
    "pointwise": (lambda x, y: torch.tanh(x) * y + torch.exp(-x.abs()), X, Y),
    "functions": (lambda x: torch.erf(x) + torch.log1p(x.abs()) + torch.sin(x) + torch.lgamma(x.abs() + 1), X),
    "power": (lambda x, y: x.abs() ** y + torch.atan2(x, y) + torch.hypot(x, y), X, Y),
    "f64": (lambda x: torch.sigmoid(x) * x.sqrt(), WIDE.abs()),
    "float8": (lambda x: (x.to(torch.float8_e4m3fn).float() + x.to(torch.float8_e5m2fnuz).float()).to(torch.float8_e8m0fnu), X),
    "bf16": (lambda x: F.gelu(x) * 3, LOW),
    "f16": (lambda x: F.silu(x) + 1, HALF),
    "integers": (lambda x: x // 7 + x % 5 - (x >> 2), WHOLE),
    "bytes": (lambda x: (x % 200).to(torch.uint8) * 3, WHOLE),
    "masks": (lambda x, m: torch.where(m, x, -x).masked_fill(~m, 2), X, FLAGS),
    "casts": (lambda x: (x.to(torch.int32), x.double(), x.bfloat16(), x > 1), X),
    "row_sum": (lambda x: x.sum(1), X),
    "column_sum": (lambda x: x.sum(0), X),
    "all_max": (lambda x: (x.amax(), x.amin(0), x.argmax(1)), X),
    "variance": (lambda x: torch.var_mean(x, 1), X),
    "softmax": (lambda x: torch.softmax(x, -1), X),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), X),
    "layer_norm": (lambda x, w: F.layer_norm(x, (53,), w, w), X, ROW),
    "rms_norm": (lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w, LOW, ROW.bfloat16()),
    "transpose": (lambda x: x.t().contiguous() * 2, X),
    "concatenate": (lambda x, y: torch.cat([x, y.flip(1)], 1), X, Y),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 4)).cumsum(1), X),
    "gather": (lambda x, i: x[i] + x.index_select(0, i), X, PLACES),
    "scatter": (lambda x, i: torch.zeros_like(x).index_add(0, i, x[:4]), X, PLACES),
    "matmul": (lambda x, y: x @ y.t(), X, Y),
    "linear": (lambda x, w: F.linear(x, w), LOW, Y.bfloat16()),
    "pooling": (lambda x: F.max_pool2d(x[None, None], 3, 2), X),
    "loss": (lambda x, i: F.cross_entropy(x[:4], i), X, PLACES),
    "sort_free": (lambda x: x.cummax(0)[0].roll(3, 1), X),
}


def compile_for_target(function, *inputs) -> bytes:
    """The object of a program: its kernels and its host program."""
    gm = make_fx(lambda *xs: _flat(function(*xs)), decomposition_table(), tracing_mode="fake")(*inputs)
    module = import_graph(gm, inputs).module
    run(default_pipeline("cpu"), module, context(), Instrumentation(verify_stages=True))
    program = next(op for op in module.body.block.ops if isinstance(op, host.ProgramOp))
    text = emit_kernels(module)
    emit_host(text, program)
    return compile_text(text.text())


def _flat(result):
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


if __name__ == "__main__":
    print(target().name, target().triple)
    for name, (function, *inputs) in PROGRAMS.items():
        data = compile_for_target(function, *inputs)
        print(name, data[:4] == b"\x7fELF", int.from_bytes(data[18:20], "little"))
