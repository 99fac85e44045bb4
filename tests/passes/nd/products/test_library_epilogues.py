"""Activations that the library's product computes as well."""

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from xdsl.dialects.builtin import StringAttr

import stepwell
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_nd
from stepwell.tools.interpret.target import InterpretedTarget

TARGET = "aten._addmm_activation.default"
SIZES = (2048, 3072, 768)


def tanh_gelu(y):
    return F.gelu(y, approximate="tanh")


def spelled_gelu(y):
    """The same in another order."""
    y = y.float()
    return ((torch.tanh((y**3 * 0.044715 + y) * 0.7978845608) * y + y) * 0.5).bfloat16()


def factors(rows, columns, terms, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(rows)
    return [torch.randn(s, generator=g).to(dtype) for s in ((rows, terms), (columns, terms), (columns,))]


def chosen(function, args, options="", machine="sm_90", numerics=None):
    """The module behind the choice, the calls in it, and what was said."""
    module = import_function(function, *args, **({"mode": "real"} if any(not isinstance(n, int) for n in args[0].shape) else {})).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    module.attributes.update({"nd.numerics": numerics} if numerics is not None else {})
    said = []
    text = f"nd-canonicalize,nd-library-products{{short=8 {options}}}"
    run(parse_pipeline(text), module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    module.verify()
    assert not any(op.name == "nd.matmul" for op in module.walk())
    return module, [op.call.data.target for op in module.walk() if op.name == "nd.extern"], said


def linear(activation):
    return lambda x, w, b: activation(F.linear(x, w, b))


@pytest.mark.parametrize(
    "activation",
    [F.relu, tanh_gelu, spelled_gelu, lambda y: F.relu(y.view(2, -1, y.shape[-1])), lambda y: tanh_gelu(y.view(2, -1, y.shape[-1]))],
)
def test_an_activation_is_part_of_the_call(activation):
    _, calls, said = chosen(linear(activation), without_data(factors(*SIZES), "cpu"))
    assert calls == [TARGET] and "with it (library" in said[0], said


def another_constant(y):
    y = y.float()
    return (0.5 * y * (1 + torch.tanh(0.79 * (y + 0.044715 * y**3)))).bfloat16()


OTHERS = {
    "error function": (F.gelu, factors),
    "another constant": (another_constant, factors),
    "stored before, too": (lambda y: (y, F.relu(y)), factors),
    "a part of it is stored": (lambda y: (tanh_gelu(y), y.float() * 0.5), factors),
    "more behind it": (lambda y: F.relu(y) * 3, factors),
    "rounded on the way": (lambda y: F.gelu(y.float(), approximate="tanh").bfloat16().float().half(), factors),
    "float32": (F.relu, lambda *s: factors(*s, dtype=torch.float32)),
    "rows of the result not aligned": (F.relu, lambda m, n, k: factors(m, n - 1, k)),
    "rows of a factor not aligned": (F.relu, lambda m, n, k: factors(m, n, k - 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_library_does_not_compute_is_a_kernel(name):
    activation, make = OTHERS[name]
    assert TARGET not in chosen(linear(activation), without_data(make(*SIZES), "cpu"), "library=always")[1]


def test_only_where_it_was_measured():
    assert TARGET not in chosen(linear(F.relu), without_data(factors(*SIZES), "cpu"), "library=always", machine="sm_80")[1]


@pytest.mark.parametrize(("activation", "expected"), [(F.relu, [TARGET]), (tanh_gelu, ["aten.addmm.default"])], ids=["relu", "gelu"])
def test_as_eager_rounds(activation, expected):
    """The largest of a rounded number and 0 is the rounded largest; what GELU gives for a rounded number is something else."""
    assert chosen(linear(activation), without_data(factors(*SIZES), "cpu"), "library=always", numerics=StringAttr("eager"))[1] == expected


@pytest.mark.parametrize("activation", [F.relu, tanh_gelu], ids=["relu", "gelu"])
@pytest.mark.parametrize("shape", [(160, 64, 40), (1, 64, 4096), (128, 8, 256)], ids=str)
def test_values(activation, shape):
    """A tanh of the library is an error function on a CPU."""
    args = factors(*shape)
    module, calls, _ = chosen(linear(activation), args, "tiny=0 library=always")
    (got,) = run_nd(module, args, (), (), "forward")
    torch.testing.assert_close(got, linear(activation)(*args), rtol=2e-2, atol=2e-2)
    assert calls == [TARGET] or shape[1] == 8  # few columns are a kernel of ours


def test_rows_that_are_a_symbol():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    real = factors(*SIZES)
    symbol, fixed = DimDynamic.DYNAMIC, DimDynamic.STATIC
    kinds = [[symbol, fixed], [fixed, fixed], [fixed]]
    args = [mode.from_tensor(a, symbolic_context=StatelessSymbolicContext(kind)) for a, kind in zip(real, kinds, strict=True)]
    assert chosen(linear(F.relu), args, "library=always")[1] == [TARGET]


def test_in_a_model_in_training():
    """ReLU in training: its gradient needs the result alone. The call writes where the result is to be."""
    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", "nd-library-products{tiny=0 library=always}")
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        compiled = torch.compile(linear(F.relu), backend="stepwell", dynamic=True, options={"cache": "off", "pipeline": str(pipeline)})
        for rows in (160, 24):
            some = [a.requires_grad_() for a in factors(rows, 64, 40)]
            got, wanted = compiled(*some), linear(F.relu)(*some)
            torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
            for a, b in zip(torch.autograd.grad(got.sum(), some), torch.autograd.grad(wanted.sum(), some), strict=True):
                torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()
