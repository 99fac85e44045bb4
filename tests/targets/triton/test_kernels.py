"""The kernels of a program, compiled for GPUs that have little of something."""

import logging
import pickle

import pytest
import torch
from support import import_function

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.triton.gpu import TargetError, gpu_target
from stepwell.targets.triton.kernels import start_program_kernels
from stepwell.tools.backend.compile_graph import context


def built(shared):
    """The kernel of a sum over long rows, three blocks under way, for a GPU with so much shared memory."""
    x = torch.empty(3000, 1 << 17)  # never touched
    module = import_function(lambda x: x.sum(-1), x).module
    run(default_pipeline("gpu"), module, context())
    kernels, finish = start_program_kernels(module, gpu_target("sm_90"), shared)
    finish()
    return max(kernels, key=lambda kernel: kernel.binary.shared)


def test_a_kernel_for_sizes_beyond_the_bounds_waits_for_its_first_launch(triton, cache):
    x = torch.randn(32, 64)
    module = import_function(lambda x: torch.softmax(x, -1), x, mode="symbolic").module
    run(default_pipeline("gpu"), module, context())
    kernels, finish = start_program_kernels(module, gpu_target("sm_90"))
    finish()
    usual, rare = kernels
    assert usual.binary.key and not rare.binary.key and "rare" not in rare.text
    assert usual.even and rare.even and "i32" in usual.text
    everything = {usual.variant(addresses=a, sizes=s).key for a, s in ((True, True), (True, False), (False, False))}
    assert len(everything) == 3 and usual.binary.key in everything
    assert pickle.loads(pickle.dumps(rare)).variant(addresses=True, sizes=True).key == rare.variant(addresses=True, sizes=True).key


def test_a_kernel_that_takes_too_much_shared_memory_has_fewer_stages(triton, cache, caplog):
    first = built(0)
    assert first.binary.shared > 4096 and "tt.num_stages = 3" in first.text
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        less = built(first.binary.shared - 1)
    assert less.binary.shared < first.binary.shared and "tt.num_stages = 3" not in less.text
    assert f"{less.place} takes {first.binary.shared} bytes of shared memory" in caplog.text
    assert less.variant(addresses=False, sizes=False).shared < first.binary.shared
    with pytest.raises(TargetError, match=r"kernel @k.* bytes of shared memory, a program of sm_90 may have 8"):
        built(8)
