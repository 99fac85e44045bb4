"""mem-check-memory: what counts, what the error says, and what is left to the host program."""

import pytest
from xdsl.context import Context
from xdsl.dialects.func import FuncOp

from stepwell.dialects import host, load_dialects, mem
from stepwell.dialects.machine import MemoryBoundError, max_memory
from stepwell.passes.manager.errors import PassError
from stepwell.passes.manager.pass_manager import run as run_pipeline
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.ir_parser import parse_file

CTX = load_dialects(Context())

ROWS = """
builtin.module attributes {stepwell.max_memory = BOUND : i64, nd.symbols = {s0 = #nd.range<2, -1, 64>}} {
  func.func @f(%x: !mem.buffer<ROWS x 64 x f32>) -> (!mem.buffer<ROWS x 64 x f32>) {
    %t = mem.alloc {kind = "arena"} : !mem.buffer<ROWS x 64 x f32> loc("first"("model.py":7:1))
    loop.nest (%i = ROWS, %k = 64) outs(%out = %t : !mem.buffer<ROWS x 64 x f32>) {
      %v = loop.load %x[%k, %i] : !mem.buffer<ROWS x 64 x f32> -> f32
      loop.store %v, %out[%i, %k] : f32, !mem.buffer<ROWS x 64 x f32>
    } attributes {label = "first"} loc("first"("model.py":7:1))
    %y = mem.alloc {kind = "output"} : !mem.buffer<ROWS x 64 x f32>
    loop.nest (%i = ROWS, %k = 64) outs(%out = %y : !mem.buffer<ROWS x 64 x f32>) {
      %v = loop.load %t[%k, %i] : !mem.buffer<ROWS x 64 x f32> -> f32
      loop.store %v, %out[%i, %k] : f32, !mem.buffer<ROWS x 64 x f32>
    } attributes {label = "second"} loc("second"("model.py":8:1))
    func.return %y : !mem.buffer<ROWS x 64 x f32>
  }
}
"""


def planned(bound, rows, donated=False, pipeline="mem-plan,mem-check-memory"):
    text = ROWS.replace("BOUND", str(bound)).replace("ROWS", str(rows))
    if donated:
        text = text.replace("f32>) ->", 'f32> {nd.donated, nd.name = "saved"}) ->', 1)
    module, _ = parse_file(text, "t.mlir", CTX)
    run_pipeline(parse_pipeline(pipeline), module, CTX)
    return module


def test_arguments_of_the_caller_do_not_count():
    """Two tensors of 64 by 64: the value between the nests and the result."""
    assert max_memory(planned(32768, 64)) == 32768
    with pytest.raises(PassError) as raised:
        planned(32767, 64)
    assert isinstance(raised.value.__cause__, MemoryBoundError)
    message = "a call takes 32768 bytes at 'second', and max_memory allows 32767; the largest value then is 'first' of 16384 bytes, which "
    assert "model.py:7:1: a call" in str(raised.value) and f"{message}'second' needs" in str(raised.value)


def test_saved_activations_count():
    """Until their last use, in 'first', which takes as much as 'second' then."""
    planned(32768, 64, donated=True)
    with pytest.raises(PassError, match="32768 bytes at 'first', and max_memory allows 32767"):
        planned(32767, 64, donated=True)


def test_sizes_of_a_call_are_left_to_the_host_program():
    module = planned(32768, "s0", pipeline="mem-plan,loop-schedule,mem-check-memory,mem-to-cpu,to-host")
    program = host.program_of(module)
    (check,) = [op for op in program.body.block.ops if isinstance(op, host.AssertOp)]
    assert (str(check.left.data), check.predicate.data, str(check.right.data)) == ("s0 * 512", "le", "32768")
    before = list(program.body.block.ops)[: list(program.body.block.ops).index(check)]
    assert all(isinstance(op, host.BindOp | host.CheckOp) for op in before), "nothing has run"


def test_without_a_bound_nothing_is_asked():
    module, _ = parse_file(ROWS.replace("stepwell.max_memory = BOUND : i64, ", "").replace("ROWS", "s0"), "t.mlir", CTX)
    run_pipeline(parse_pipeline("mem-plan,mem-check-memory"), module, CTX)
    (func,) = [op for op in module.ops if isinstance(op, FuncOp)]
    assert mem.MEMORY_NEEDS not in func.attributes
