"""Loops that wait for copies to shared memory are not written out by ptxas."""

from __future__ import annotations

from stepwell.targets.triton.compile import compile_kernel
from stepwell.targets.triton.gpu import gpu_target
from stepwell.targets.triton.rolled_loops import rolled_loops

PTX = """\
	bra.uni 	$L__BB0_1;
$L__BB0_1:                              // =>This Inner Loop Header: Depth=1
	cp.async.wait_group 	1;
	@%p1 bra 	$L__BB0_1;
$L__BB0_2:
	add.s32 	%r1, %r1, 1;
	@%p2 bra 	$L__BB0_2;
	@%p3 bra 	$L__BB0_3;
	cp.async.wait_group 	0;
$L__BB0_3:
	ret;
"""

SUM = """
tt.func public @sum(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %out: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
  %zero = arith.constant 0 : i32
  %step = arith.constant 1024 : i32
  %end = arith.constant 32768 : i32
  %none = arith.constant dense<0.0> : tensor<1024xf32>
  %i = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
  %p = tt.splat %x : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %q = tt.addptr %p, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  %total = scf.for %k = %zero to %end step %step iter_args(%sum = %none) -> (tensor<1024xf32>) : i32 {
    %o = tt.splat %k : i32 -> tensor<1024xi32>
    %r = tt.addptr %q, %o : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %r : tensor<1024x!tt.ptr<f32>>
    %w = arith.addf %sum, %v : tensor<1024xf32>
    scf.yield %w : tensor<1024xf32>
  } {tt.num_stages = STAGES : i32}
  %a = tt.splat %out : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
  %b = tt.addptr %a, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
  tt.store %b, %total : tensor<1024x!tt.ptr<f32>>
  tt.return
}
"""


def test_the_pragma_stands_at_the_head_of_loops_that_wait():
    lines = rolled_loops(PTX).splitlines()
    assert [k for k, line in enumerate(lines) if "pragma" in line] == [2]  # neither the loop without a copy, nor the jump ahead
    assert [line for line in lines if "pragma" not in line] == PTX.splitlines()


def test_text_without_copies_stays():
    text = PTX.replace("cp.async.wait_group", "bar.sync")
    assert rolled_loops(text) == text


def test_a_loop_over_blocks_under_way_stays_a_loop(triton, read, cache):
    """32 iterations: ptxas writes them out otherwise."""
    target = gpu_target("sm_90")
    under_way, plain = (read(SUM.replace("STAGES", stages)) for stages in ("3", "1"))
    assert str(compile_kernel(under_way, target, stage="ptx").code).count(".pragma") == 1
    assert ".pragma" not in str(compile_kernel(plain, target, stage="ptx").code)
    code = compile_kernel(under_way, target).code
    assert len(code) < 14_000  # 21,000 where it is written out
