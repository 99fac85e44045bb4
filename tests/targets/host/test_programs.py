"""Host programs on both paths: kernels, arena, outputs, views, sizes, numbers, errors and the boxed call."""

import ctypes
import gc
import weakref

import pytest
import torch

X = "%x: !host.tensor<f32>"


def runtime_function(name, result, *arguments):
    """A function of the host runtime."""
    from stepwell.targets.host.runtime.runtime import library

    return ctypes.CFUNCTYPE(result, *arguments)(library().address(name))


def chain(arena="64", size="4"):
    """y = 4 x through the arena."""
    return f"""host.program @forward({X}) arena {arena} {{
      host.check %x [{size}] strides [1] "x" : !host.tensor<f32>
      %p = host.arena_ptr 0
      %y = host.empty_output [{size}] strides [1] : !host.tensor<f32>
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [{size}]
      host.launch @double(%p : !host.ptr, %y : !host.tensor<f32>) [{size}]
      host.return(%y : !host.tensor<f32>) [arg(0)]
    }}"""


def test_kernels_through_the_arena(build):
    run = build.program(chain())
    x = torch.arange(4.0)
    args = [x]
    (y,) = run(args)
    assert args == []
    assert torch.equal(y, 4 * x)
    assert run.boxed and run._boxed_call and run.native == (build.path == "native")


def test_sizes_that_change_do_not_add_up_in_the_pool():
    from stepwell.targets.host.runtime.runtime import empty_pool, pool_held_bytes

    take = runtime_function("stepwell_pool_alloc", ctypes.c_void_p, ctypes.c_int64)
    give = runtime_function("stepwell_pool_free", None, ctypes.c_void_p)
    empty_pool()
    anchor = take(1 << 26)  # at least this much is in use at once
    give(anchor)
    anchor = take(1 << 26)
    for k in range(200):
        blocks = [take((1 << 20) + (k << 16)) for _ in range(8)]
        for block in blocks:
            give(block)
    most_in_use = (1 << 26) + 8 * ((1 << 20) + (200 << 16))
    assert pool_held_bytes() + (1 << 26) <= 2.1 * most_in_use
    # a pattern that comes again finds its blocks
    first = [take(3 << 20) for _ in range(4)]
    for block in first[::-1]:
        give(block)
    assert [take(3 << 20) for _ in range(4)] == first
    for block in (*first, anchor):
        give(block)
    empty_pool()
    assert pool_held_bytes() == 0


def test_blocks_of_the_pool_are_as_large_as_asked_for():
    from stepwell.targets.host.runtime.runtime import empty_pool, pool_held_bytes

    take = runtime_function("stepwell_pool_alloc", ctypes.c_void_p, ctypes.c_int64)
    give = runtime_function("stepwell_pool_free", None, ctypes.c_void_p)
    empty_pool()
    small, large = take((1 << 20) + 4), take((1 << 20) + 1000)  # one class
    give(large)
    give(small)
    assert pool_held_bytes() == (2 << 20) + 1004
    assert take((1 << 20) + 5) == large, "the first of the class is too small"
    assert take(1 << 20) == small
    give(small)
    give(large)
    empty_pool()
    assert pool_held_bytes() == 0


def test_large_outputs_come_from_the_pool_and_outlive_the_program(native):
    from stepwell.targets.host.runtime.runtime import empty_pool, pool_held_bytes

    n = 1 << 19
    run = native.program(chain(arena=str(4 * n), size=str(n)))
    x = torch.rand(n)
    (y,) = run([x])
    assert torch.equal(y, 4 * x)
    address = y.data_ptr()
    del y
    assert pool_held_bytes() >= 4 * n
    (again,) = run([x])
    assert again.data_ptr() == address
    del run
    gc.collect()
    assert torch.equal(again, 4 * x)
    del again
    empty_pool()
    assert pool_held_bytes() == 0


def test_large_outputs_are_resized_as_those_of_eager(build):
    n = 1 << 19
    run = build.program(chain(arena=str(4 * n), size=str(n)))
    x = torch.rand(n)
    (y,) = run([x])
    y.resize_(2 * n)
    assert torch.equal(y[:n], 4 * x)
    (y,) = run([x])
    storage = y.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0 and y.shape == (n,)
    storage.resize_(4 * n)
    assert torch.equal(y.copy_(x), x)
    (y,) = run([x])
    y.set_(torch.ones(3))
    assert torch.equal(y, torch.ones(3))
    (y,) = run([x])
    z = torch.empty(0).set_(y.untyped_storage(), 5, (7,))
    del y
    assert torch.equal(z, 4 * x[5:12])


def test_a_torch_whose_storages_are_unknown_keeps_large_outputs(native):
    from stepwell.targets.host.runtime import runtime

    fields = (ctypes.c_int64 * 4).from_address(runtime.library().address("stepwell_resizable"))
    kept = tuple(fields)
    fields[:] = (0, 0, 0, 0)
    try:
        n = 1 << 19
        (y,) = native.program(chain(arena=str(4 * n), size=str(n)))([torch.ones(n)])
        with pytest.raises(RuntimeError, match="not resizable"):
            y.resize_(2 * n)
    finally:
        fields[:] = kept


def test_large_arenas_are_shared_by_programs(native):
    from stepwell.targets.host.runtime.runtime import empty_pool, pool_held_bytes

    empty_pool()
    x = torch.rand(4)
    for size in (2 << 20, 3 << 20, 40 << 20, 3 << 20):
        run = native.program(chain(arena=str(size)))
        for _ in range(2):
            assert torch.equal(run([x])[0], 4 * x)
    # 2 and 3 MB in one block, which made room for 40 MB, which 3 MB then share
    assert 40 << 20 <= pool_held_bytes() <= 50 << 20
    empty_pool()
    assert torch.equal(run([x])[0], 4 * x)
    empty_pool()


def test_small_arenas_are_one_block(native):
    """Programs take no memory of their own for a small arena; one that runs while the block is taken gets another."""
    inner = native.program(chain(arena="4096"))
    x = torch.rand(4)
    within = []

    def nested(t: torch.Tensor) -> torch.Tensor:
        within.append(inner([t])[0])
        return t + 1

    outer = native.program(
        f"""host.program @forward({X}) arena 2048 {{
      %p = host.arena_ptr 0
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [4]
      %t = host.extern #nd.call<"py", [object(0), arg(0)]>(%x) : (!host.tensor<f32>) -> (!host.tensor<f32>)
      %y = host.empty_output [4] strides [1] : !host.tensor<f32>
      host.launch @double(%p : !host.ptr, %y : !host.tensor<f32>) [4]
      host.return(%y : !host.tensor<f32>) [arg(0)]
    }}""",
        objects=[nested],
    )
    for _ in range(3):
        assert torch.equal(outer([x])[0], 4 * x) and torch.equal(within[-1], 4 * x)


def test_kept_tensors_over_a_borrowed_arena_follow_the_block(build):
    run = build.program(
        f"""host.program @forward({X}) arena 2097152 {{
      %p = host.arena_ptr 1024
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [4]
      %t = host.from_arena %p [4] strides [1] : !host.ptr -> !host.tensor<f32>
      %y = host.extern #nd.call<"aten.mul.Tensor", [arg(0), arg(0)]>(%t)
        : (!host.tensor<f32>) -> (!host.tensor<f32>)
      %z = host.extern #nd.call<"aten.sin.default", [arg(0)]>(%t) : (!host.tensor<f32>) -> (!host.tensor<f32>)
      host.release(%t : !host.tensor<f32>)
      host.return(%y : !host.tensor<f32>, %z : !host.tensor<f32>) [arg(0), arg(1)]
    }}"""
    )
    taken = []
    for k in range(4):
        x = torch.rand(4)
        y, z = run([x])
        assert torch.equal(y, 4 * x * x) and torch.equal(z, (2 * x).sin())
        if k % 2 and build.path == "native":
            # somebody else takes the block, as an output of about its size would
            taken.append(runtime_function("stepwell_pool_alloc", ctypes.c_void_p, ctypes.c_int64)(2 << 20))
    for block in taken:
        runtime_function("stepwell_pool_free", None, ctypes.c_void_p)(block)


def test_dynamic_sizes(build):
    run = build.program(
        """host.program @forward(%x: !host.tensor<f32>, %n: i64) arena s0 * 4 + 64 {
      host.bind s0 = value %n : i64
      host.bind s1 = size %x 0 : !host.tensor<f32>
      host.assert eq (s0 * 2, s1), "x must have twice n rows"
      host.check %x [s1] strides [1] "x" : !host.tensor<f32>
      %p = host.arena_ptr 64
      %y = host.empty_output [s0 + 1] strides [1] : !host.tensor<f32>
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [s0] offsets [s0 * 4, 0]
      host.launch @double(%p : !host.ptr, %y : !host.tensor<f32>) [s0]
      host.launch @double(%x : !host.tensor<f32>, %y : !host.tensor<f32>) [1] offsets [0, s0 * 4]
      host.return(%y : !host.tensor<f32>)
        [arg(0), size(s0 floordiv 2), size((s0 + 1) mod 3), size(-s1 floordiv 4), none]
    }"""
    )
    for n in (1, 4, 5):
        x = torch.rand(2 * n)
        y, half, rest, negative, none = run([x, n])
        assert torch.equal(y, torch.cat([4 * x[n:], 2 * x[:1]]))
        assert (half, rest, negative, none) == (n // 2, (n + 1) % 3, -2 * n // 4, None)
    with pytest.raises(AssertionError, match="x must have twice n rows"):
        run([torch.rand(3), 2])


def test_minimum_and_maximum_of_sizes(build):
    run = build.program(
        """host.program @forward(%n: i64) {
      host.bind s0 = value %n : i64
      host.return() [size(min(s0, 7)), size(max(s0, 7)), size(s0 * s0 - 3), size(5)]
    }"""
    )
    for n in (2, 9):
        assert run([n]) == [min(n, 7), max(n, 7), n * n - 3, 5]


def test_numbers_reach_kernels(build):
    run = build.program(
        """host.program @forward(%x: !host.tensor<f32>, %f: f64, %b: i1) {
      %y = host.empty_output [4] strides [1] : !host.tensor<f32>
      host.launch @scale(%x : !host.tensor<f32>, %y : !host.tensor<f32>, %f : f64) [4]
      host.return(%y : !host.tensor<f32>, %f : f64, %b : i1) [arg(0), arg(1), arg(2), "text", float("inf")]
    }"""
    )
    x = torch.rand(4)
    for factor in (0.5, -1.0):
        y, f, b, text, inf = run([x, factor, True])
        assert torch.equal(y, factor * x)
        assert (f, b, text, inf) == (factor, True, "text", float("inf"))
    with pytest.raises((TypeError, ValueError)):
        run([x, "no number", True])


def test_an_input_is_returned_as_it_is(build):
    run = build.program(f"host.program @forward({X}) {{ host.return(%x : !host.tensor<f32>) [arg(0), arg(0)] }}")
    x = torch.rand(3)
    first, second = run([x])
    assert first is x and second is x


def test_views(build):
    run = build.program(
        f"""host.program @forward({X}) {{
      %v = host.view %x [2, 2] strides [1, 2] offset 1 : !host.tensor<f32> -> !host.tensor<f32>
      %b = host.view %x [3] strides [1] offset 2 : !host.tensor<f32> -> !host.tensor<i32>
      host.return(%v : !host.tensor<f32>, %b : !host.tensor<i32>) [arg(0), arg(1)]
    }}"""
    )
    x = torch.rand(6)[1:]
    v, b = run([x])
    assert torch.equal(v, torch.as_strided(x, (2, 2), (1, 2), 2))
    assert torch.equal(b, x.view(torch.int32)[2:5])
    v.zero_()
    assert x[1:5].eq(0).all()


def test_constants_and_item(build):
    run = build.program(
        """host.program @forward() {
      %c = host.constant 0 : !host.tensor<f32>
      %k = host.constant 1 : !host.tensor<i64>
      host.bind u0 = item %k : !host.tensor<i64>
      %y = host.empty_output [u0] strides [1] : !host.tensor<f32>
      host.launch @double(%c : !host.tensor<f32>, %y : !host.tensor<f32>) [u0]
      host.return(%y : !host.tensor<f32>, %c : !host.tensor<f32>) [arg(0), size(u0), arg(1)]
    }""",
        constants=[torch.arange(5.0), torch.tensor(3)],
    )
    for _ in range(3):
        y, n, c = run([])
        assert y.tolist() == [0, 2, 4] and n == 3 and c.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: torch.rand(3), "expected size 3==4, stride 1==1 at dim=0 for x"),
        (lambda: torch.rand(8)[::2], "expected size 4==4, stride 2==1 at dim=0 for x"),
        (lambda: torch.rand(4, 1), "expected 1 dimensions, got 2 for x"),
        (lambda: torch.rand(4).double(), "expected dtype torch.float32, got torch.float64 for x"),
        (lambda: torch.rand(4, device="meta"), "expected a tensor of device cpu, got meta for x"),
    ],
)
@pytest.mark.parametrize("size", ["4", "s0"])
def test_arguments_are_checked(build, value, message, size):
    bind = "host.bind s0 = value %n : i64" if size == "s0" else ""
    run = build.program(
        f"""host.program @forward({X}, %n: i64) {{
      {bind}
      host.check %x [{size}] strides [1] "x" : !host.tensor<f32>
      host.return() []
    }}"""
    )
    assert run([torch.rand(4), 4]) == []
    with pytest.raises(AssertionError) as error:
        run([value(), 4])
    assert str(error.value) == message


def test_strides_that_do_not_matter_are_not_checked(build):
    run = build.program(
        f"""host.program @forward({X}, %y: !host.tensor<f32>) {{
      host.check %x [1, 4] strides [4, 1] "x" : !host.tensor<f32>
      host.check %y [0, 4] strides [4, 1] "y" : !host.tensor<f32>
      host.return() []
    }}"""
    )
    assert run([torch.empty_strided((1, 4), (99, 1)), torch.empty_strided((0, 4), (7, 3))]) == []


def test_wrong_arguments(build):
    run = build.program(chain())
    with pytest.raises(TypeError, match="expected 1 arguments, 2 are given"):
        run([torch.rand(4), torch.rand(4)])
    with pytest.raises(TypeError, match="argument 0 must be a torch.Tensor, got int"):
        run([3])


def test_parameters_and_subclasses_are_tensors(build):
    run = build.program(chain())
    x = torch.nn.Parameter(torch.rand(4))
    (y,) = run([x])
    assert torch.equal(y, 4 * x) and not y.requires_grad


def test_errors_of_kernels(build):
    """KG-14"""
    run = build.program(
        """host.program @forward(%x: !host.tensor<i64>, %n: i64) {
      host.bind s0 = value %n : i64
      host.launch @below(%x : !host.tensor<i64>) [s0]
      host.poll
      host.return() []
    }"""
    )
    assert run([torch.tensor([2]), 3]) == []
    with pytest.raises(IndexError, match="index out of range"):
        run([torch.tensor([3]), 3])
    assert run([torch.tensor([2]), 3]) == []


def test_dead_inputs_are_released_before_the_end(build):
    """CE-04, J06"""
    seen = []
    run = build.program(
        f"""host.program @forward({X}, %k: !host.object) {{
      %y = host.empty_output [4] strides [1] : !host.tensor<f32>
      host.launch @double(%x : !host.tensor<f32>, %y : !host.tensor<f32>) [4]
      host.release(%x : !host.tensor<f32>)
      host.extern #nd.call<"operator.call", [arg(0)]>(%k) : (!host.object) -> ()
      host.return(%y : !host.tensor<f32>) [arg(0)]
    }}"""
    )
    x = torch.rand(4)
    alive = weakref.ref(x)
    args = [x, lambda: seen.append(alive())]
    del x
    run(args)
    assert seen == [None]


def test_inputs_are_released_behind_the_launches_that_follow(native):
    """Python's lock is taken once, where memory is needed, not between kernels."""
    text = """host.program @forward(%x: !host.tensor<f32>, %z: !host.tensor<f32>) arena 64 {
      %p = host.arena_ptr 0
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [4] bytes 65536
      host.release(%x : !host.tensor<f32>)
      %q = host.arena_ptr 16
      host.launch @double(%z : !host.tensor<f32>, %q : !host.ptr) [4] bytes 65536
      host.release(%z : !host.tensor<f32>)
      %y = host.empty_output [4] strides [1] : !host.tensor<f32>
      host.launch @double(%q : !host.ptr, %y : !host.tensor<f32>) [4]
      host.return(%y : !host.tensor<f32>) [arg(0)]
    }"""
    assert native.order(text) == [
        "arena_ptr", "launch", "arena_ptr", "launch", "release", "release", "empty_output", "launch", "return",
    ]  # fmt: skip
    x, z = torch.rand(4), torch.rand(4)
    (y,) = native.program(text)([x, z])
    assert torch.equal(y, 4 * z)


def test_nothing_leaks(native):
    """J01"""
    import sys

    run = native.program(
        f"""host.program @forward({X}) arena 64 {{
      host.check %x [4] strides [1] "x" : !host.tensor<f32>
      %p = host.arena_ptr 0
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [4]
      %t = host.from_arena %p [4] strides [1] : !host.ptr -> !host.tensor<f32>
      %s = host.extern #nd.call<"aten.add.Tensor", [arg(0), arg(1)]>(%t, %x) : (!host.tensor<f32>, !host.tensor<f32>) -> (!host.tensor<f32>)
      %m = host.extern #nd.call<"aten.mm.default", [arg(0), arg(1)]>(%s, %x) : (!host.tensor<f32>, !host.tensor<f32>) -> (!host.tensor<f32>)
      host.return(%m : !host.tensor<f32>) [arg(0)]
    }}"""  # noqa: E501
    )
    x = torch.rand(4)
    before = sys.getrefcount(x)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="must be a matrix|2D|matrices"):
            run([x])
        with pytest.raises(AssertionError):
            run([x[1:]])
    assert sys.getrefcount(x) == before
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(200):
        with pytest.raises(RuntimeError):
            run([x])
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 150


def test_grad_mode_is_off_inside_and_restored(build):
    """IN-09"""
    run = build.program(
        f"""host.program @forward({X}) {{
      %y = host.extern #nd.call<"aten.sin.default", [arg(0)]>(%x) : (!host.tensor<f32>) -> (!host.tensor<f32>)
      host.return(%y : !host.tensor<f32>) [arg(0)]
    }}"""
    )
    x = torch.rand(4, requires_grad=True)
    (y,) = run([x])
    assert torch.is_grad_enabled() and not y.requires_grad
    with torch.no_grad():
        run([x])
        assert not torch.is_grad_enabled()


def test_threads_at_once(native):
    """CE-15"""
    import threading

    n = 1 << 18
    run = native.program(chain(arena=str(4 * n), size=str(n)))
    wrong = []

    def work(seed):
        x = torch.full((n,), float(seed))
        for _ in range(30):
            (y,) = run([x])
            if not bool((y == 4 * seed).all()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_arena_grows(build):
    run = build.program(
        f"""host.program @forward({X}) arena s0 * 4 {{
      host.bind s0 = size %x 0 : !host.tensor<f32>
      %p = host.arena_ptr 0
      %y = host.empty_output [s0] strides [1] : !host.tensor<f32>
      host.launch @double(%x : !host.tensor<f32>, %p : !host.ptr) [s0]
      host.launch @double(%p : !host.ptr, %y : !host.tensor<f32>) [s0]
      host.return(%y : !host.tensor<f32>) [arg(0)]
    }}"""
    )
    for n in (0, 1, 1000, 100_000, 10, 1_000_000):
        x = torch.rand(n)
        assert torch.equal(run([x])[0], 4 * x)


def outputs(n, dynamic=False):
    """n outputs, each by a kernel, each a view of new memory."""
    size = "s0" if dynamic else "4"
    body = "\n".join(
        f"""%y{k} = host.empty_output [{size} + {k}] strides [1] : !host.tensor<f32>
        host.launch @double(%x : !host.tensor<f32>, %y{k} : !host.tensor<f32>) [{size}]
        %v{k} = host.view %y{k} [{size}] strides [1] : !host.tensor<f32> -> !host.tensor<f32>
        host.release(%y{k} : !host.tensor<f32>)"""
        for k in range(n)
    )
    values = ", ".join(f"%v{k} : !host.tensor<f32>" for k in range(n))
    bind = "host.bind s0 = size %x 0 : !host.tensor<f32>" if dynamic else ""
    return f"""host.program @forward({X}) {{
      {bind}
      host.check %x [{size}] strides [1] "x" : !host.tensor<f32>
      {body}
      host.return({values}) [{", ".join(f"arg({k})" for k in range(n))}]
    }}"""


@pytest.mark.parametrize("dynamic", [False, True])
def test_many_outputs(build, dynamic):
    run = build.program(outputs(30, dynamic))
    x = torch.arange(4.0)
    found = run([x])
    assert len(found) == 30 and all(torch.equal(y, 2 * x) for y in found)


def test_outputs_and_launches_add_no_code_to_an_entry(native):
    assert native.entry_lines(outputs(40)) == native.entry_lines(outputs(4))


def test_a_step_that_fails_leaves_nothing_behind(native):
    n = 1 << 60  # more memory than there is
    run = native.program(f"""host.program @forward({X}) {{
      %y = host.empty_output [4] strides [1] : !host.tensor<f32>
      host.launch @double(%x : !host.tensor<f32>, %y : !host.tensor<f32>) [4]
      %z = host.empty_output [{n}] strides [1] : !host.tensor<f32>
      host.return(%y : !host.tensor<f32>, %z : !host.tensor<f32>) [arg(0), arg(1)]
    }}""")
    x = torch.arange(4.0)
    alive = weakref.ref(x)
    with pytest.raises(RuntimeError):
        run([x])
    assert torch.is_grad_enabled()
    del x
    gc.collect()
    assert alive() is None
