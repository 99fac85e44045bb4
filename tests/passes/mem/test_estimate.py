"""The estimate of peak memory against what a training step really allocates."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json
import torch
from torch import nn
from stepwell.tools.bench.memory import _no_pool, own_memory, peak_of, step_of

own = own_memory()  # before the runtime is linked, so in a process of its own
from stepwell.passes.mem.arena.peak import memory_over_time
from stepwell.tools.options.options import make_options
from stepwell.tools.backend.torch_backend import GraphCompilers, compile_with
from xdsl.dialects.func import FuncOp


class Watch:
    def __init__(self):
        self.peaks = {}

    def graph(self, kind, gm, module):
        self.kind = kind

    def stage(self, stage, module):
        if stage == "mem":
            (func,) = [f for f in module.ops if isinstance(f, FuncOp) and not f.is_declaration]
            moments = memory_over_time(func)
            held = moments[-1].arguments  # what is no saved activation is the caller's
            self.peaks[self.kind] = max(m.total - held for m in moments)

    def record(self, kind, what): pass
    def remark(self, remark): pass


torch.manual_seed(0)
net = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(192, 192), nn.LayerNorm(192), nn.GELU())))
x = torch.randn(512, 192)
watch = Watch()
compilers = GraphCompilers(make_options(None, None), watch)
call = torch.compile(net, backend=lambda gm, inputs: compile_with(compilers, gm, inputs), dynamic=False)
step = step_of(net, call, (x,), {}, True)
for _ in range(3):
    net.zero_grad(set_to_none=True)
    step()
net.zero_grad(set_to_none=True)
with _no_pool():
    measured = own.held + peak_of(step)
print(json.dumps({"measured": measured, "output": x.numel() * 4, **watch.peaks}))
"""


def test_the_estimate_is_what_a_training_step_allocates():
    environment = {**os.environ, "KINETO_LOG_LEVEL": "5", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    # the step holds its output and the gradient of it (the backward graph's argument) while backward runs
    expected = max(found["forward"], found["backward"] + 2 * found["output"])
    assert abs(found["measured"] - expected) <= 0.1 * expected, found
