"""Products of matrices by a library that is told once how (CG-08): what calls are to it, nodes that calls find, algorithms that are
measured. The library here multiplies in the memory of the CPU."""

import ctypes
import json

import pytest
import torch
from support import import_function, without_data
from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.parser import Parser

from stepwell.dialects import host
from stepwell.dialects.machine import MEASURED_PRODUCTS, ORDER
from stepwell.dialects.nd.call_args import Arg, Call
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host import extern
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.products import OPERATORS, Algorithm, Layout, PlanLimit, ProductPlans, problem
from stepwell.targets.host.gpu.runtime_ir import Product
from stepwell.targets.host.runtime.runtime import gpu_runtime
from stepwell.targets.host.symbols import handle_offset
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels

DRIVER = InterpretedDriver(Parser(context(), "builtin.module { tt.func public @k(%x: !tt.ptr<f32>) { tt.return } }").parse_module())
MATMUL = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 16)
SET = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)


def elements(address, matrix, batch, dtype):
    """A matrix of the library as a tensor of (batch, rows, columns), column after column."""
    last = (batch - 1) * matrix.step + (matrix.columns - 1) * matrix.leading + matrix.rows
    memory = torch.frombuffer((ctypes.c_char * (2 * last)).from_address(address), dtype=dtype)
    found = memory.as_strided((batch, matrix.rows, matrix.columns), (matrix.step, 1, matrix.leading))
    return found.mT if matrix.transposed else found


def activated(value, name):
    """A tensor behind an activation that a call of the library has."""
    if name == "gelu":
        return torch.nn.functional.gelu(value, approximate="tanh")
    return value.relu() if name else value


class Library:
    """Multiplies where the problem of a description says. `times`: of its algorithms, by their first byte."""

    def __init__(self, times=(1.0,), workspace=0):
        self.times, self.bytes = times, workspace
        self.problems, self.biases, self.ran, self.released = [], [], [], 0
        self.measurable, self.code = True, 0
        self._matmul, self._set = MATMUL(self.multiply), SET(self.set)

    def machine(self, device):
        return "a GPU and a library"

    def prepared(self, context, problem, bias):
        self.problems.append(problem)
        self.biases.append(bias)
        return Prepared(self, len(self.problems) - 1)

    def workspace(self, context, stream, bytes, device):
        return torch.empty(bytes, dtype=torch.uint8)

    def can_measure(self, device):
        return self.measurable

    def seconds(self, node, addresses, stream, device):
        words = (ctypes.c_int64 * 12).from_address(node)
        return self.times[ctypes.c_uint8.from_address(words[9]).value]

    def set(self, description, attribute, value, size):
        assert (attribute, size) == (8, 8)
        self.biases[description] = value[0]
        return 0

    def multiply(self, handle, description, alpha, x, l0, y, l1, beta, c, l2, z, l3, algorithm, work, size, stream):
        p = self.problems[description]
        assert (handle, l0, l1, l2, l3, size) == (7, 10, 11, 12, 13, self.bytes) and bool(work) == bool(size)
        self.ran.append(ctypes.c_uint8.from_address(algorithm).value)
        if self.code:
            return self.code
        dtype = getattr(torch, p.type)
        a, b = (ctypes.c_float.from_address(address).value for address in (alpha, beta))
        left, right, added = (elements(at, m, p.batch, dtype).float() for at, m in ((x, p.left), (y, p.right), (c, p.added)))
        value = a * (left @ right) + (b * added if b else 0)
        if p.has_bias:
            bias = torch.frombuffer((ctypes.c_char * (2 * value.shape[1])).from_address(self.biases[description]), dtype=dtype)
            value = value + bias.float()[:, None]
        elements(z, p.result, p.batch, dtype).copy_(activated(value, p.activation))
        return 0


class Prepared:
    def __init__(self, library, number):
        self.library = library
        address = [ctypes.cast(f, ctypes.c_void_p).value for f in (library._matmul, library._set)]
        self.head = (*address, 7, number, 10, 11, 12, 13)

    def proposed(self, count):
        return [Algorithm(bytes([k]), self.library.bytes) for k in range(min(count, len(self.library.times)))]

    def checked(self, code):
        return Algorithm(code, self.library.bytes)

    def release(self):
        self.library.released += 1


class Site:
    """A call of a program, as its entry makes it."""

    def __init__(self, target, library, tmp_path, measures=False, stream=3, **keywords):
        operands = [Arg(k) for k in range(3 if OPERATORS[target].added else 2)]
        self.call = Call(target, tuple(operands), (*keywords.items(), ("out", Arg(len(operands)))))
        self.plans = ProductPlans("cpu", library, measures, tmp_path / "products.json")
        address = gpu_runtime(DRIVER)["stepwell_gpu_product"]
        self.run = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_void_p)(address)
        self.site, self.state = ctypes.c_int64(), (ctypes.c_int64 * 3)(0, stream, 5)

    def __call__(self, *operands):
        """The code of a call with the factors, the result and what is added."""
        handles = (ctypes.c_void_p * len(operands))(*(id(t) + (handle_offset() or 0) for t in operands))
        at = ctypes.addressof
        code = self.run(at(self.site), at(handles), len(operands), at(self.state))
        if code == Product.UNKNOWN:
            self.plans.plan(self.call, operands, at(self.site), self.state[2], self.state[1])
            code = self.run(at(self.site), at(handles), len(operands), at(self.state))
        return code


def matrix(rows, columns, kind, dtype, batch=None):
    """A matrix, or a batch of them, that lies as `kind` says."""
    head = () if batch is None else (batch,)
    if kind == "columns":
        return torch.randn(*head, columns, rows).to(dtype).mT
    if kind == "wide":
        return torch.randn(*head, rows, columns + 8).to(dtype)[..., :columns]
    if kind == "one":
        return torch.randn(*head[1:], rows, columns).to(dtype).expand(*head, rows, columns)
    return torch.randn(*head, rows, columns).to(dtype)


def check(site, expected, *operands):
    assert site(*operands) == 0
    torch.testing.assert_close(operands[2], expected.to(operands[2].dtype), rtol=2e-2, atol=2e-2)


SIZES = [(16, 24, 8), (1, 8, 8), (8, 1, 16), (8, 16, 1), (1, 1, 1), (3, 5, 7)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("left", ["rows", "columns", "wide"])
@pytest.mark.parametrize("right", ["rows", "columns", "wide"])
def test_matrices_in_any_order(tmp_path, left, right, dtype):
    for m, n, k in SIZES:
        library = Library()
        site = Site("aten.mm.out", library, tmp_path)
        x, w = matrix(m, k, left, dtype), matrix(k, n, right, dtype)
        for _ in range(2):
            check(site, x.float() @ w.float(), x, w, torch.empty(m, n, dtype=dtype))
        assert library.ran == [0, 0] and len(library.problems) == 1  # planned once


@pytest.mark.parametrize("left", ["rows", "columns", "one"])
def test_batches(tmp_path, left):
    x, w = matrix(6, 8, left, torch.bfloat16, batch=4), matrix(8, 16, "columns", torch.bfloat16, batch=4)
    check(Site("aten.bmm.out", Library(), tmp_path), x.float() @ w.float(), x, w, torch.empty(4, 6, 16, dtype=torch.bfloat16))
    c = matrix(6, 16, "wide", torch.bfloat16, batch=4)
    site = Site("aten.baddbmm.out", Library(), tmp_path, alpha=2, beta=-0.5)
    check(site, 2 * (x.float() @ w.float()) - c.float() / 2, x, w, torch.empty(4, 6, 16, dtype=torch.bfloat16), c)


@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
def test_a_bias_and_an_activation(tmp_path, activation):
    target = "aten._addmm_activation.out" if activation else "aten.addmm.out"
    library = Library()
    site = Site(target, library, tmp_path, **({"use_gelu": activation == "gelu"} if activation else {}))
    x, w = matrix(6, 8, "rows", torch.bfloat16), matrix(8, 16, "columns", torch.bfloat16)
    for bias in (matrix(1, 16, "rows", torch.bfloat16)[0], matrix(1, 16, "rows", torch.bfloat16)[0]):  # at another address
        expected = activated(x.float() @ w.float() + bias.float(), activation)
        check(site, expected, x, w, torch.empty(6, 16, dtype=torch.bfloat16), bias)
    assert len(library.problems) == 1


def test_a_matrix_that_is_added(tmp_path):
    x, w, c = (matrix(*s, "rows", torch.float16) for s in ((6, 8), (8, 16), (6, 16)))
    site = Site("aten.addmm.out", Library(), tmp_path, beta=2)
    check(site, x.float() @ w.float() + 2 * c.float(), x, w, torch.empty_like(c), c)
    expected = x.float() @ w.float() + 2 * c.float()
    check(site, expected, x, w, c, c)  # in its place


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, y, b: (x, w, y.mT.contiguous().mT, b),  # column after column
        lambda x, w, y, b: (x, w, y, b[:1].expand(16)),
        lambda x, w, y, b: (x[:, ::2], w[::2], y, b),
        lambda x, w, y, b: (x[:0], w, y[:0], b),
        lambda x, w, y, b: (x[:, :0], w[:0], y, b),
        lambda x, w, y, b: (torch.cat([x.flatten(), x[0, :1]])[1:].view(6, 8), w, y, b),  # an address that is no multiple of 16
    ],
)
def test_what_is_left_to_torch(tmp_path, change):
    library = Library()
    site = Site("aten.addmm.out", library, tmp_path)
    good = [torch.zeros(s, dtype=torch.bfloat16) for s in ((6, 8), (8, 16), (6, 16), (16,))]
    assert site(*change(*good)) == Product.UNPLANNED and not library.ran
    assert site(*good) == 0  # other tensors of the same call are planned


def test_an_error_of_the_library_leaves_the_call_to_torch(tmp_path):
    library = Library()
    site = Site("aten.mm.out", library, tmp_path)
    operands = [torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3)]
    assert site(*operands) == 0
    library.code = 15
    assert site(*operands) == Product.UNPLANNED
    library.code = 0
    assert site(*operands) == 0  # nobody holds the node


def test_without_a_library_every_call_is_torchs(tmp_path):
    site = Site("aten.mm.out", None, tmp_path)
    assert site(*(torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3))) == Product.UNPLANNED


def test_plans_for_so_many_sizes_and_no_more(tmp_path):
    library = Library()
    site = Site("aten.mm.out", library, tmp_path)
    w = torch.zeros(8, 8, dtype=torch.bfloat16)
    for rows in range(1, PlanLimit.NODES + 3):
        x = torch.zeros(rows, 8, dtype=torch.bfloat16)
        assert (site(x, w, torch.empty_like(x)) == 0) == (rows <= PlanLimit.NODES)
    assert len(library.problems) == PlanLimit.NODES
    del site
    assert library.released == PlanLimit.NODES


def test_another_stream_or_context_is_another_plan(tmp_path):
    library = Library(workspace=64)
    site = Site("aten.mm.out", library, tmp_path)
    operands = [torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3)]
    for stream, place in ((3, 5), (4, 5), (3, 6), (3, 5)):
        site.state[1], site.state[2] = stream, place
        assert site(*operands) == 0
    assert len(library.problems) == 3


def test_the_fastest_algorithm_is_kept(tmp_path):
    operands = [torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3)]
    library = Library(times=(1e-5, 5e-6, 8e-6))
    site = Site("aten.mm.out", library, tmp_path, measures=True)
    assert site(*operands) == 0 and library.ran == [1]
    (entry,) = json.loads((tmp_path / "products.json").read_text())["a GPU and a library"].values()
    assert entry["algorithm"] == "01" and entry["microseconds"] == [10.0, 5.0, 8.0] and entry["problem"]["type"] == "bfloat16"
    again = Library(times=(1e-5, 2e-5, 1e-7))  # what was measured is not measured again
    assert Site("aten.mm.out", again, tmp_path, measures=True)(*operands) == 0 and again.ran == [1]
    assert Site("aten.mm.out", (plain := Library(times=(2.0, 1.0))), tmp_path)(*operands) == 0 and plain.ran == [0]


def test_an_algorithm_that_fails_is_not_taken(tmp_path):
    library = Library(times=(1.0, float("inf")))
    assert Site("aten.mm.out", library, tmp_path, measures=True)(*(torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3))) == 0
    assert library.ran == [0]


def test_nothing_is_measured_that_would_add_twice_or_is_recorded(tmp_path):
    x, w, c = (torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3))
    library = Library(times=(2.0, 1.0))
    assert Site("aten.addmm.out", library, tmp_path, measures=True)(x, w, c, c) == 0 and library.ran == [0]
    library.measurable = False
    assert Site("aten.mm.out", library, tmp_path, measures=True)(x, w, c) == 0 and library.ran == [0, 0]
    assert not (tmp_path / "products.json").exists()


def test_a_file_that_is_no_json_is_measured_anew(tmp_path, caplog):
    (tmp_path / "products.json").write_text("[")
    library = Library(times=(2.0, 1.0))
    site = Site("aten.mm.out", library, tmp_path, measures=True)
    assert site(*(torch.zeros(8, 8, dtype=torch.bfloat16) for _ in range(3))) == 0 and library.ran == [1]
    assert "products.json holds no JSON of measurements" in caplog.text


def test_problems_differ_in_their_keys():
    call = Call("aten.mm.out", (Arg(0), Arg(1)), (("out", Arg(2)),))
    keys = set()
    for type in ("bfloat16", "float16"):
        for k in (8, 16):
            found = problem(type, Layout((8, k), (k, 1)), Layout((k, 8), (8, 1)), Layout((8, 8), (8, 1)), None, call)
            assert found is not None
            keys.add(found.key)
    assert len(keys) == 4


@pytest.mark.parametrize("change", ["", "eager", "repeatable", "float32"])
def test_which_calls_of_a_program_are_planned(monkeypatch, change):
    dtype = torch.float32 if change == "float32" else torch.bfloat16
    args = without_data([torch.empty(1024, 1024, dtype=dtype), torch.empty(1024, 1024, dtype=dtype), torch.empty(1024, dtype=dtype)])
    module = import_function(lambda x, w, b: (torch.addmm(b, x, w),), *args).module
    if change == "eager":
        module.attributes["nd.numerics"] = StringAttr("eager")
    if change == "repeatable":
        module.attributes[ORDER] = StringAttr("repeatable")
    module.attributes[MEASURED_PRODUCTS] = UnitAttr()
    run(default_pipeline("gpu"), module, context())
    monkeypatch.setattr(extern, "cuda_shim_address", lambda symbol: 1)
    text = emit_kernels(module)
    kernels = interpreted_kernels(module) if change == "float32" else ()
    program = next(op for op in module.ops if isinstance(op, host.ProgramOp))
    description = emit_host(text, program, native=True, kernels=kernels, device="cuda:0")
    assert ("stepwell_gpu_product" in text.text()) == (change == "")
    assert description.measures and compile_text(text.text())
