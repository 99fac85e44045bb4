"""Calls of library operators on both paths: argument templates, results, mutation, errors, the C shim."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepwell.dialects.nd.call_args import Arg, Call, Obj
from stepwell.targets.host.library_errors import failed_call
from stepwell.targets.host.shims import shim_name, signature
from stepwell.targets.host.symbols import error_text_available

F = "!host.tensor<f32>"


def caller(build, call, args, results, extra="", constants=(), objects=()):
    """A program that makes one call of `args` (types) and returns its results."""
    names = ", ".join(f"%a{k}: {t}" for k, t in enumerate(args))
    used = ", ".join(f"%a{k}" for k in range(len(args)))
    made = ", ".join(f"%r{k}" for k in range(len(results)))
    outs = ", ".join(f"%r{k} : {t}" for k, t in enumerate(results))
    return build.program(
        f"""host.program @forward({names}) {{
      {extra}
      {made + " = " if results else ""}host.extern #nd.call<{call}>({used}) :
        ({", ".join(args)}) -> ({", ".join(results)})
      host.return({outs}) [{", ".join(f"arg({k})" for k in range(len(results)))}]
    }}""",
        constants,
        objects,
    )


def test_a_call_through_the_shim(build):
    run = caller(build, '"aten.addmm.out", [arg(0), arg(1), arg(2)], {beta = 2, out = arg(3)}', [F] * 4, [F])
    b, x, w, out = torch.rand(3), torch.rand(2, 4), torch.rand(4, 3), torch.empty(2, 3)
    (result,) = run([b, x, w, out])
    torch.testing.assert_close(out, torch.addmm(b, x, w, beta=2))
    assert result.data_ptr() == out.data_ptr()


CASES = {
    "convolution": (
        '"aten.convolution.default", [arg(0), arg(1), arg(2), [2, 1], [1, 1], [1, 1], false, [0, 0], 1]',
        lambda: (torch.rand(2, 3, 8, 8), torch.rand(4, 3, 3, 3), torch.rand(4)),
        lambda x, w, b: torch.convolution(x, w, b, [2, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ),
    "no bias": (
        '"aten.convolution.default", [arg(0), arg(1), none, [1], [0], [1], false, [0], 1]',
        lambda: (torch.rand(2, 3, 8), torch.rand(4, 3, 3)),
        lambda x, w: torch.convolution(x, w, None, [1], [0], [1], False, [0], 1),
    ),
    "flash attention": (
        '"aten._scaled_dot_product_flash_attention_for_cpu.default", [arg(0), arg(1), arg(2)], '
        '{is_causal = true, scale = float("0.3")}',
        lambda: tuple(torch.rand(1, 2, 5, 8) for _ in range(3)),
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=0.3),
    ),
    "list of tensors": (
        '"aten.cat.default", [[arg(0), arg(1), arg(0)], 1]',
        lambda: (torch.rand(2, 3), torch.rand(2, 1)),
        lambda x, y: torch.cat([x, y, x], 1),
    ),
    "optional tensors in a list": (
        '"aten.index.Tensor", [arg(0), [none, arg(1)]]',
        lambda: (torch.rand(4, 3), torch.tensor([2, 0])),
        lambda x, i: x[:, i],
    ),
    "several results": (
        '"aten.topk.default", [arg(0), 2]',
        lambda: (torch.rand(3, 5),),
        lambda x: torch.topk(x, 2),
    ),
    "results in a list": (
        '"aten.split.Tensor", [arg(0), 2]',
        lambda: (torch.rand(5),),
        lambda x: x.split(2),
    ),
    "a dtype": (
        '"aten.cumsum.default", [arg(0), 0], {dtype = dtype("float64")}',
        lambda: (torch.rand(5),),
        lambda x: torch.cumsum(x, 0, dtype=torch.float64),
    ),
    "dtype, layout and device": (
        '"aten.full.default", [[2, 3], float("1.5")], {dtype = dtype("int64"), layout = layout("strided"), '
        'device = device("cpu"), pin_memory = false}',
        lambda: (),
        lambda: torch.full([2, 3], 1.5, dtype=torch.int64),
    ),
    "a memory format": (
        '"aten.clone.default", [arg(0)], {memory_format = memory_format("channels_last")}',
        lambda: (torch.rand(2, 3, 4, 4),),
        lambda x: x.clone(memory_format=torch.channels_last),
    ),
    "a string": (
        '"aten.gelu.default", [arg(0)], {approximate = "tanh"}',
        lambda: (torch.rand(4),),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "an integer scalar and integer tensors": (
        '"aten.add.Scalar", [arg(0), 2]',
        lambda: (torch.arange(4),),
        lambda x: x + 2,
    ),
    "an integer scalar and float tensors": (
        '"aten.pow.Tensor_Scalar", [arg(0), 2]',
        lambda: (torch.rand(4),),
        lambda x: x**2,
    ),
    "bools": (
        '"aten.convolution_backward.default", [arg(0), arg(1), arg(2), [4], [1], [0], [1], false, [0], 1, '
        "[true, false, true]]",
        lambda: (torch.rand(2, 4, 6), torch.rand(2, 3, 8), torch.rand(4, 3, 3)),
        lambda g, x, w: torch.ops.aten.convolution_backward(
            g, x, w, [4], [1], [0], [1], False, [0], 1, [True, False, True]
        ),
    ),
    "a function of operator": (
        '"operator.add", [arg(0), arg(0)]',
        lambda: (torch.rand(4),),
        lambda x: x + x,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(build, name):
    """D08, OP-15"""
    call, inputs, expected = CASES[name]
    torch.manual_seed(0)
    args = inputs()
    want = expected(*args)
    want = [w for w in want if w is not None] if isinstance(want, (tuple, list)) else [want]
    types = ["!host.tensor<none>" if t.is_floating_point() is False else F for t in args]
    run = caller(build, call, types, [F] * len(want))
    for _ in range(2):
        got = run(list(args))
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            assert a.stride() == b.stride()


def test_unused_results_may_be_missing(build):
    call = CASES["bools"][0].replace("%", "")
    run = build.program(
        f"""host.program @forward(%g: {F}, %x: {F}, %w: {F}) {{
      %dx, %dw, %db = host.extern #nd.call<{call}>(%g, %x, %w) : ({F}, {F}, {F}) -> ({F}, {F}, {F})
      host.release(%dw : {F})
      host.return(%dx : {F}, %db : {F}) [arg(0), arg(1)]
    }}"""
    )
    args = CASES["bools"][1]()
    want = CASES["bools"][2](*args)
    dx, db = run(list(args))
    torch.testing.assert_close(dx, want[0])
    torch.testing.assert_close(db, want[2])


def test_operators_of_the_benchmarks_have_shims():
    if not error_text_available():
        pytest.skip("this torch has no text for errors of the shim")
    for target in ("aten.mm.out", "aten.bmm.out", "aten.addmm.out", "aten.convolution.default", "aten.cat.default"):
        assert signature(shim_name(target)) is not None


def test_sizes_and_numbers_as_arguments(build):
    run = build.program(
        f"""host.program @forward(%x: {F}, %n: i64, %f: f64) {{
      host.bind s0 = value %n : i64
      %r = host.extern #nd.call<"aten.slice.Tensor", [arg(0), 0, 1, size(s0 + 1)]>(%x) : ({F}) -> ({F})
      %s = host.extern #nd.call<"aten.mul.Scalar", [arg(0), arg(1)]>(%r, %f) : ({F}, f64) -> ({F})
      %t = host.extern #nd.call<"aten.reshape.default", [arg(0), [1, size(s0)]]>(%s) : ({F}) -> ({F})
      %u = host.extern #nd.call<"aten.sym_size.int", [arg(0), 1]>(%t) : ({F}) -> (i64)
      host.bind u0 = value %u : i64
      %b = host.extern #nd.call<"aten.equal.default", [arg(0), arg(0)]>(%t) : ({F}) -> (i1)
      %v = host.extern #nd.call<"aten._local_scalar_dense.default", [arg(0)]>(%f0) : ({F}) -> (f64)
      host.return(%t : {F}, %u : i64, %b : i1, %v : f64) [arg(0), arg(1), arg(2), arg(3), size(u0 * 2)]
    }}""".replace(
            "%f0",
            "%one",
        ).replace("host.bind s0 =", f"%one = host.constant 0 : {F}\nhost.bind s0 =", 1),
        constants=[torch.tensor(2.5)],
    )
    x = torch.rand(6)
    t, u, b, v, double = run([x, 3, 0.5])
    assert torch.equal(t, (x[1:4] * 0.5).reshape(1, 3))
    assert (u, b, v, double) == (3, True, 2.5, 6)


def test_mutation_in_place_reaches_the_argument_and_the_arena(build):
    run = build.program(
        f"""host.program @forward(%x: {F}) arena 64 {{
      %p = host.arena_ptr 16
      %t = host.from_arena %p [2] strides [1] offset 1 : !host.ptr -> {F}
      host.extern #nd.call<"aten.copy_.default", [arg(0), arg(1)]>(%t, %x) {{mutates = #nd.ints<[0]>}}
        : ({F}, {F}) -> ()
      host.extern #nd.call<"aten.mul_.Scalar", [arg(0), 3]>(%x) {{mutates = #nd.ints<[0]>}} : ({F}) -> ()
      %y = host.empty_output [2] strides [1] : {F}
      host.launch @double(%p : !host.ptr, %y : {F}) [2] offsets [4, 0]
      host.return(%y : {F}) [arg(0)]
    }}"""
    )
    x = torch.tensor([1.0, 2.0])
    (y,) = run([x])
    assert y.tolist() == [2, 4] and x.tolist() == [3, 6]


def test_other_strides_than_expected_are_repaired(build):
    """D05"""
    run = build.program(
        f"""host.program @forward(%x: {F}) {{
      %r = host.extern #nd.call<"aten.t.default", [arg(0)]>(%x) : ({F}) -> ({F})
      %e = host.ensure %r [3, 2] strides [2, 1] "aten.t" : {F} -> {F}
      %s = host.extern #nd.call<"aten.mm.default", [arg(0), arg(1)]>(%x, %e) : ({F}, {F}) -> ({F})
      %c = host.ensure %s [2, 2] strides [1, 2] "aten.mm" : {F} -> {F}
      %y = host.empty_output [4] strides [1] : {F}
      host.launch @double(%c : {F}, %y : {F}) [4]
      host.return(%e : {F}, %c : {F}, %s : {F}, %y : {F}) [arg(0), arg(1), arg(2), arg(3)]
    }}"""
    )
    x = torch.rand(2, 3)
    for _ in range(2):
        e, c, s, y = run([x])
        assert e.stride() == (2, 1) and torch.equal(e, x.t())
        assert c.stride() == (1, 2) and s.stride() == (2, 1) and torch.equal(c, s)
        assert torch.equal(y, 2 * s.t().reshape(-1))
    with pytest.raises(AssertionError, match="expected size 4==3.*aten.t"):
        run([torch.rand(2, 4)])


def test_resizing_an_argument_moves_its_memory(build):
    run = build.program(
        f"""host.program @forward(%x: {F}, %y: {F}) {{
      host.launch @double(%y : {F}, %x : {F}) [1]
      host.extern #nd.call<"aten.resize_.default", [arg(0), [100000]]>(%x) {{mutates = #nd.ints<[0]>}} : ({F}) -> ()
      host.launch @double(%y : {F}, %x : {F}) [100000]
      host.return() []
    }}"""
    )
    x, y = torch.zeros(1), torch.rand(100000)
    run([x, y])
    assert torch.equal(x, 2 * y)


def test_objects_of_the_module(build):
    generator = torch.Generator().manual_seed(7)
    call = '"aten.rand.generator", [[3]], {generator = object(0), dtype = dtype("float32")}'
    run = caller(build, call, [], [F], objects=[generator])
    (got,) = run([])
    assert torch.equal(got, torch.rand(3, generator=torch.Generator().manual_seed(7)))
    with pytest.raises(ValueError, match="needs object 0, 0 are given"):
        caller(build, call, [], [F])


def test_a_python_object_is_called(build):
    def function(x, scale, parts):
        return {2: (x * scale, None, [x + p for p in parts]), 1: x}[len(parts)]

    call = '"py", [object(0), arg(0), float("2.5"), [arg(1), arg(0)]]'
    run = caller(build, call, [F, F], [F, F, F], objects=[function])
    x, y = torch.rand(3), torch.rand(3)
    a, b, c = run([x, y])
    assert torch.equal(a, x * 2.5) and torch.equal(b, x + y) and torch.equal(c, x + x)
    run = caller(build, call, [F, F], [F, F], objects=[function])
    with pytest.raises(RuntimeError, match="returned 3 results, the program was compiled for 2"):
        run([x, y])
    run = caller(build, '"py", [object(0), 2, arg(0)]', ["i64"], ["i64"], objects=[lambda a, b: a**b])
    assert run([5]) == [32]


def test_custom_operators(build):
    seen = []

    @torch.library.custom_op("stepwell_test::twice", mutates_args=())
    def twice(x: torch.Tensor, y: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(x.shape)
        return x * 2, y[0] + y[1]

    call = '"stepwell_test.twice.default", [arg(0), [arg(0), arg(1)]]'
    run = caller(build, call, [F, F], [F, F])
    x, y = torch.rand(3), torch.rand(3)
    a, b = run([x, y])
    assert torch.equal(a, 2 * x) and torch.equal(b, x + y) and seen == [(3,)]


def words(error):
    """The message of an exception and its notes, of which torch 2.11 needs one: Python calls the operator there."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def test_errors_keep_their_message(build):
    """ERR-01"""
    run = caller(build, '"aten.mm.out", [arg(0), arg(1)], {out = arg(2)}', [F] * 3, [])
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as error:
        run([torch.rand(2, 3), torch.rand(4, 5), torch.rand(2, 5)])
    if run.native:
        place = "in aten.mm.out(float32[2, 3], float32[4, 5], out=float32[2, 5]), called by host program @forward"
        assert words(error.value).endswith("\n" + place)
    run = caller(build, '"aten.index_select.default", [arg(0), 5, arg(1)]', [F, "!host.tensor<i64>"], [F])
    with pytest.raises(IndexError, match="Dimension out of range"):
        run([torch.rand(2, 3), torch.tensor([0])])


@pytest.mark.parametrize("place", ["handle", "view", "item"])
def test_a_failed_operator_is_named_with_its_arguments_wherever_they_are(native, place):
    made = {
        "handle": "%y = host.empty_output [4, 5] strides [1, 4] : !host.tensor<f32>",
        "view": "%p = host.arena_ptr 0\n%y = host.from_arena %p [4, 5] strides [1, 4] : !host.ptr -> !host.tensor<f32>",
        "item": "%y = host.constant 0 : !host.tensor<f32>",
    }[place]
    run = native.program(f"""host.program @forward(%x: !host.tensor<f32>) arena 128 {{
      {made}
      host.extern #nd.call<"aten.mm.out", [arg(0), arg(0)], {{out = arg(1)}}>(%x, %y) : (!host.tensor<f32>, !host.tensor<f32>) -> ()
      host.return() []
    }}""", [torch.empty_strided((4, 5), (1, 4))])  # fmt: skip
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be multiplied") as error:
            run([torch.rand(2, 3)])
        assert "in aten.mm.out(float32[2, 3], float32[2, 3], out=float32[4, 5] strides [1, 4])" in words(error.value)


def test_the_exception_of_an_operator_that_python_calls_has_a_note(native):
    call = '"aten.index_select.default", [arg(0), 5, arg(1)]'
    run = caller(native, call, [F, "!host.tensor<i64>"], [F])
    with pytest.raises(IndexError, match="Dimension out of range") as error:
        run([torch.rand(2, 3), torch.tensor([0])])
    assert error.value.__notes__ == ["in aten.index_select.default(float32[2, 3], 5, int64[1]), called by host program @forward"]


def test_a_reason_that_the_shim_does_not_hand_on_is_asked_for():
    """As with torch 2.11: the call is made again through Python, unless it writes into what others read."""
    x, y, loose = torch.rand(2, 3), torch.rand(4, 5), Call("aten.mm.default", (Arg(0), Arg(1)))
    error = failed_call(loose, [x, y], "", "cpu", "forward")
    assert "mat1 and mat2 shapes cannot be multiplied" in str(error) and "in aten.mm.default(float32[2, 3], float32[4, 5])" in str(error)
    again = failed_call(loose, [x, y[:3]], "", "cpu", "forward")
    assert "standard error" in str(again) and "float32[3, 5]" in str(again)
    for call in (Call("aten.add_.Tensor", (Arg(0), Arg(1))), Call("aten.mm.default", (Arg(0), Obj(0)))):
        assert "standard error" in str(failed_call(call, [x, y], "", "cpu", "forward"))
    assert "(float32[2, 3], number" in str(failed_call(Call("aten.add.Tensor", (Arg(0), Arg(1), 2.5)), [x, None], "why", "cpu", "forward"))


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise MemoryError(f"no memory for {func}")


def test_the_exception_of_a_mode_of_python_is_the_one_raised(build):
    call = '"aten.convolution_backward.default", [arg(0), arg(1), arg(2), [4], [1], [0], [1], false, [0], 1, [true, true, true]]'
    run = caller(build, call, [F] * 3, [F] * 3)
    args = [torch.rand(2, 4, 6), torch.rand(2, 3, 8), torch.rand(4, 3, 3)]
    with pytest.raises(MemoryError, match="no memory for aten"), Refuses():
        run([*args])
    assert [tuple(result.shape) for result in run([*args])] == [(2, 3, 8), (4, 3, 3), (4,)]


def test_an_unknown_operator_is_named(build):
    with pytest.raises(AttributeError, match="no_such_operator"):
        caller(build, '"aten.no_such_operator.default", [arg(0)]', [F], [F])


def test_operators_that_need_aligned_memory_get_it_where_there_is_no_shim(build, monkeypatch):
    from stepwell.targets.host.runtime import callables

    seen = []

    def logit(x, eps=None):
        seen.append((x.data_ptr() % 16, x.stride()))
        return torch.logit(x, eps)

    monkeypatch.setattr(callables, "ALIGNED", frozenset({"aten.logit.default"}))
    monkeypatch.setattr(callables, "resolve_operator", lambda target: logit)
    run = caller(build, '"aten.logit.default", [arg(0)]', [F], [F])
    memory = torch.rand(25)
    for x in (memory[1:].view(4, 6).t(), memory[:24].view(4, 6)):
        (result,) = run([x])
        torch.testing.assert_close(result, torch.logit(x))
        assert seen.pop() == (0, x.stride())
