"""Loops, branches, parallel regions, calls, checks and random bits of the CPU target."""

from __future__ import annotations

import threading

import pytest
import torch
from cpu_kernels import RUNNABLE, build, parse
from simulated_threads import simulated

from stepwell.targets.cpu.emit.module import EmitError, emit_kernels, emit_module


@pytest.mark.parametrize("isa", RUNNABLE)
def test_loops_carry_scalars_and_vectors(isa: str) -> None:
    library = build(
        """
cpu.kernel @sum(%x : !cpu.ptr, %y : !cpu.ptr, %n : i64) {
  %c0 = arith.constant 0 : i64
  %c8 = arith.constant 8 : i64
  %one = arith.constant 1 : i64
  %zero = arith.constant dense<0.0> : vector<8xf32>
  %acc, %count = scf.for %i = %c0 to %n step %c8 iter_args(%a = %zero, %k = %c0) -> (vector<8xf32>, i64) : i64 {
    %left = arith.subi %n, %i : i64
    %m = cpu.lanes %left : i64 to vector<8xi1>
    %v = cpu.load %x[%i], mask %m : vector<8xf32>
    %b = arith.addf %a, %v : vector<8xf32>
    %k2 = arith.addi %k, %one : i64
    scf.yield %b, %k2 : vector<8xf32>, i64
  }
  %s = cpu.reduce add %acc : vector<8xf32>
  cpu.store %s, %y[%c0] : f32
  %f = cpu.cast sitofp %count : i64 to f32
  cpu.store %f, %y[%one] : f32
  cpu.return
}""",
        isa,
    )
    for n in (0, 1, 7, 8, 9, 100):
        x = torch.arange(n, dtype=torch.float32)
        y = torch.full((2,), -1.0)
        library.call("sum", x, y, n)
        assert y.tolist() == [float(x.sum()), -(-n // 8)], n


def test_loops_with_known_bounds_and_no_trip() -> None:
    library = build(
        """
cpu.kernel @k(%y : !cpu.ptr) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c3 = arith.constant 3 : i64
  %a = scf.for %i = %c0 to %c3 step %c1 iter_args(%s = %c0) -> (i64) : i64 {
    %b = scf.for %j = %c3 to %c0 step %c1 iter_args(%t = %s) -> (i64) : i64 {
      %u = arith.addi %t, %c3 : i64
      scf.yield %u : i64
    }
    %d = arith.addi %b, %i : i64
    scf.yield %d : i64
  }
  cpu.store %a, %y[%c0] : i64
  cpu.return
}"""
    )
    y = torch.zeros(1, dtype=torch.int64)
    library.call("k", y)
    assert y[0] == 3


def test_branches_and_while() -> None:
    library = build(
        """
cpu.kernel @collatz(%y : !cpu.ptr, %n : i64) {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %c2 = arith.constant 2 : i64
  %c3 = arith.constant 3 : i64
  %last, %steps = scf.while (%v = %n, %k = %c0) : (i64, i64) -> (i64, i64) {
    %go = arith.cmpi ne, %v, %c1 : i64
    scf.condition(%go) %v, %k : i64, i64
  } do {
  ^bb0(%v : i64, %k : i64):
    %rest = arith.remui %v, %c2 : i64
    %odd = arith.cmpi eq, %rest, %c1 : i64
    %next = scf.if %odd -> (i64) {
      %t = arith.muli %v, %c3 : i64
      %u = arith.addi %t, %c1 : i64
      scf.yield %u : i64
    } else {
      %h = arith.divui %v, %c2 : i64
      scf.yield %h : i64
    }
    %k1 = arith.addi %k, %c1 : i64
    scf.yield %next, %k1 : i64, i64
  }
  %big = arith.cmpi sgt, %steps, %c3 : i64
  scf.if %big {
    cpu.store %steps, %y[%c0] : i64
  }
  cpu.return
}"""
    )
    y = torch.zeros(1, dtype=torch.int64)
    library.call("collatz", y, 27)
    assert y[0] == 111
    library.call("collatz", y, 4)
    assert y[0] == 111  # two steps are not stored


PARALLEL = """
cpu.kernel @scale(%x : !cpu.ptr, %y : !cpu.ptr, %chunks : !cpu.ptr, %n : i64, %grain : i64, %s : f32) {
  %step = arith.constant 8 : i64
  %k = cpu.splat %s : vector<8xf32>
  cpu.parallel (%b, %e, %c) = %n, %grain : i64 {
    scf.for %i = %b to %e step %step : i64 {
      %left = arith.subi %e, %i : i64
      %m = cpu.lanes %left : i64 to vector<8xi1>
      %v = cpu.load %x[%i], mask %m : vector<8xf32>
      %w = arith.mulf %v, %k : vector<8xf32>
      cpu.store %w, %y[%i], mask %m : vector<8xf32>
    }
    %size = arith.subi %e, %b : i64
    cpu.atomic_add %size, %chunks[%c] : i64
  }
  cpu.return
}
cpu.kernel @threads(%y : !cpu.ptr) {
  %c0 = arith.constant 0 : i64
  %t = cpu.num_threads : i64
  cpu.store %t, %y[%c0] : i64
  cpu.return
}
"""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.spread
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("grain", [0, 1, 8, 100_000])
def test_parallel_regions_cover_the_range_once(n: int, grain: int, two_threads) -> None:
    library = build(PARALLEL)
    x, y = torch.randn(n + 1), torch.full((n + 1,), 7.0)
    chunks = torch.zeros(2, dtype=torch.int64)
    library.call("scale", x, y, chunks, n, grain, 2.0)
    assert torch.equal(y[:n], x[:n] * 2) and y[n] == 7
    assert chunks.sum() == n
    teams = 2 if n >= 2 * max(grain, 1) else 1 if n else 0
    assert int((chunks > 0).sum()) == teams


@pytest.mark.parametrize("threads", [1, 2, 3, 16, 64])
def test_shares_differ_by_one_unit_at_most(threads: int) -> None:
    n = 1003
    library = simulated(emit_module(parse(PARALLEL)))
    x, y, chunks = torch.randn(n), torch.zeros(n), torch.zeros(64, dtype=torch.int64)
    library.call("scale", x, y, chunks, n, n // threads, 2.0)
    assert torch.equal(y, x * 2) and chunks.sum() == n
    assert chunks[threads:].sum() == 0 and chunks[:threads].max() - chunks[:threads].min() <= 1


def test_the_team_has_as_many_threads_as_torch(two_threads) -> None:
    library = build(PARALLEL)
    y = torch.zeros(1, dtype=torch.int64)
    library.call("threads", y)
    assert y[0] == 2
    torch.set_num_threads(1)
    library.call("threads", y)
    assert y[0] == 1
    chunks = torch.zeros(2, dtype=torch.int64)
    library.call("scale", torch.ones(64), torch.ones(64), chunks, 64, 1, 2.0)
    assert chunks.tolist() == [64, 0]


def test_parallel_regions_run_from_several_python_threads(two_threads) -> None:
    library = build(PARALLEL)
    failed: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((4096,), float(seed))
        y, chunks = torch.zeros(4096), torch.zeros(64, dtype=torch.int64)
        for _ in range(20):
            library.call("scale", x, y, chunks, 4096, 16, 3.0)
            if not torch.equal(y, x * 3):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_calls_between_kernels_and_to_the_outside() -> None:
    text = """
cpu.kernel private @double(%y : !cpu.ptr, %v : f64) {
  %c0 = arith.constant 0 : i64
  %w = arith.addf %v, %v : f64
  cpu.store %w, %y[%c0] : f64
  cpu.return
}
cpu.kernel @k(%y : !cpu.ptr, %n : i64) {
  %x = cpu.cast sitofp %n : i64 to f64
  %r = cpu.call @sqrt(%x) : (f64) -> f64
  cpu.call @double(%y, %r) : (!cpu.ptr, f64) -> ()
  cpu.return
}"""
    library = build(text)
    assert "k" in library and "double" not in library
    y = torch.zeros(1, dtype=torch.float64)
    library.call("k", y, 16)
    assert y[0] == 8


def test_failed_checks_note_the_first_message_and_go_on() -> None:
    library = build(
        """
cpu.kernel @k(%x : !cpu.ptr, %n : i64) {
  %c0 = arith.constant 0 : i64
  %limit = arith.constant dense<10> : vector<16xi64>
  %i = cpu.load %x[%c0] : vector<16xi64>
  %ok = cpu.cmpi slt %i, %limit : vector<16xi64>
  cpu.assert %ok, "index out of range: \\"quoted\\"" : vector<16xi1>
  %positive = arith.cmpi sgt, %n, %c0 : i64
  cpu.assert %positive, "n must be positive" : i1
  cpu.store %n, %x[%c0] : i64
  cpu.return
}"""
    )
    x = torch.arange(16)
    with pytest.raises(RuntimeError, match="index out of range"):
        library.call("k", x, 5)
    assert x[0] == 5  # what follows the check ran
    library.call("k", torch.zeros(16, dtype=torch.int64), 5)  # and the slot was cleared
    with pytest.raises(RuntimeError, match="n must be positive"):
        library.call("k", torch.zeros(16, dtype=torch.int64), -5)
    assert library.messages()[1] == "n must be positive"


def test_a_failed_check_shows_the_values_of_its_first_lane_that_is_off() -> None:
    library = build(
        """
cpu.kernel @k(%x : !cpu.ptr, %n : i64) {
  %c0 = arith.constant 0 : i64
  %limit = cpu.splat %n : vector<16xi64>
  %i = cpu.load %x[%c0] : vector<16xi64>
  %ok = cpu.cmpi slt %i, %limit : vector<16xi64>
  cpu.assert %ok, "{0} is not below {1}"(%i, %n) : vector<16xi1>, vector<16xi64>, i64
  cpu.assert %ok, "{braces} stay {0}" : vector<16xi1>
  cpu.return
}"""
    )
    x = torch.arange(16)
    with pytest.raises(RuntimeError, match="^13 is not below 13$"):
        library.call("k", x, 13)
    with pytest.raises(RuntimeError, match="^-9 is not below -20$"):
        library.call("k", x * 0 - 9, -20)
    assert library.messages()[1].format() == "{braces} stay {0}"


def philox(seed: int, offset: int, subsequence: int) -> list[int]:
    """Philox4x32-10 in plain integers, from the paper."""
    mask = 2**32 - 1
    counter = [offset & mask, offset >> 32, subsequence & mask, subsequence >> 32]
    key = [seed & mask, seed >> 32]
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


@pytest.mark.parametrize("isa", RUNNABLE)
def test_philox(isa: str) -> None:
    library = build(
        "".join(
            f"""
cpu.kernel @k{lanes}(%x : !cpu.ptr, %s : !cpu.ptr, %y : !cpu.ptr, %seed : i64) {{
  %c0 = arith.constant 0 : i64
  %o = cpu.load %x[%c0] : {v}i64{e}
  %q = cpu.load %s[%c0] : {v}i64{e}
  %a, %b, %c, %d = cpu.philox %seed, %o, %q : {v}i64{e}
"""
            + "\n".join(
                f"%o{i} = arith.constant {i * max(1, lanes)} : i64\ncpu.store %{w}, %y[%o{i}] : {v}i32{e}"
                for i, w in enumerate("abcd")
            )
            + "\ncpu.return\n}"
            for lanes, v, e in ((0, "", ""), (8, "vector<8x", ">"))
        ),
        isa,
    )
    offsets = torch.tensor([0, 1, 2, 2**32, 2**40 + 5, 77, 2**62, 9])
    subsequences = torch.tensor([0, 0, 3, 1, 2**33, 5, 6, 2**61])
    for seed in (0, 1234567890123):
        expected = [philox(seed, o, s) for o, s in zip(offsets.tolist(), subsequences.tolist(), strict=True)]
        y = torch.zeros(32, dtype=torch.int32)
        library.call("k8", offsets, subsequences, y, seed)
        assert [[v % 2**32 for v in row] for row in y.reshape(4, 8).t().tolist()] == expected
        library.call("k0", offsets[4:], subsequences[4:], y, seed)
        assert [v % 2**32 for v in y[:4].tolist()] == expected[4]


def test_operations_without_translation_are_named_with_their_place() -> None:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.test import TestOp

    module = parse("cpu.kernel @k(%n : i64) {\n cpu.return\n}")
    block = next(iter(module.body.block.ops)).regions[0].block
    block.insert_op_before(TestOp(operands=[block.args[0]]), block.last_op)
    with pytest.raises(EmitError, match=r"test.op \(i64\): the CPU target does not know this operation, in kernel @k"):
        emit_module(module)
    assert isinstance(module, ModuleOp)


def test_internal_linkage_hides_every_kernel() -> None:
    module = parse("cpu.kernel @k(%n : i64) {\n cpu.return\n}")
    assert "define internal void @k(" in emit_kernels(module, internal=True).text()
    assert "define void @k(" in emit_module(module)
