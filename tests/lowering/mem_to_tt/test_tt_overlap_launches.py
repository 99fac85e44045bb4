"""Kernels that are launched while the one before them ends wait for it themselves; what they compute stays the same."""

from __future__ import annotations

import pytest
import torch
from support import lower
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from stepwell.dialects.tt.compute import GRID_WAIT, ElementwiseInlineAsmOp
from stepwell.dialects.tt.structure import OVERLAPS, FuncOp
from stepwell.passes.manager.pass_manager import run
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop


def kernels(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.ops if isinstance(op, FuncOp)]


def lowered(target: str) -> tuple[ModuleOp, torch.Tensor]:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    imported = lower(lambda x: (x.cumsum(0).flip(0).cumsum(1), x.amax()), x, machine=target)
    got = run_loop(imported.module, [x], imported.constants, imported.objects)
    torch.testing.assert_close(got[0], x.cumsum(0).flip(0).cumsum(1))
    torch.testing.assert_close(got[1].reshape(()), x.amax())
    return imported.module, x


def test_a_kernel_waits_before_all_else():
    module, _ = lowered("sm_90")
    assert len(kernels(module)) > 1
    for kernel in kernels(module):
        first = kernel.body.block.first_op
        assert OVERLAPS in kernel.attributes and isinstance(first, ElementwiseInlineAsmOp) and first.asm_string.data == GRID_WAIT
    run(["tt-overlap-launches"], module, context())  # once is enough
    assert str(module).count(GRID_WAIT) == len(kernels(module))


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "gfx942"])
def test_other_gpus_have_no_such_instruction(target):
    module, _ = lowered(target)
    assert GRID_WAIT not in str(module) and all(OVERLAPS not in k.attributes for k in kernels(module))


def test_a_users_kernel_that_says_when_stays_as_it_is():
    text = """builtin.module {
      func.func @forward(%x: !mem.buffer<8 x f32>) {
        host.launch @own(%x : !mem.buffer<8 x f32>) [] grid [1]
        host.launch @other(%x : !mem.buffer<8 x f32>) [] grid [1]
        func.return
      }
      tt.func public @own(%x: !tt.ptr<f32>) {
        %0 = tt.elementwise_inline_asm "griddepcontrol.launch_dependents; // $0" {constraints = "=r", packed_element = 1 : i32, pure = false} -> i32
        tt.return
      }
      tt.func public @other(%x: !tt.ptr<f32>) {
        tt.return
      }
    }"""  # noqa: E501
    module = Parser(context(), text).parse_module()
    run(["tt-overlap-launches"], module, context())
    assert [OVERLAPS in k.attributes for k in kernels(module)] == [False, True]


def test_triton_compiles_them():
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    module, _ = lowered("sm_90")
    for built in compile_kernels(kernel_modules(module), gpu_target("sm_90"), stage="ptx"):
        assert isinstance(built.code, str)
        before, _, after = built.code.partition("griddepcontrol.wait")
        assert after and "ld.global" not in before and "st.global" not in before
