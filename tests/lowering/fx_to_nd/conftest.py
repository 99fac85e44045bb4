"""`check(fn, *inputs)`: import a function's ATen graph, verify and round-trip the IR, and compare what it means with
eager."""

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from xdsl.context import Context
from xdsl.parser import Parser
from xdsl.printer import Printer

from stepwell.dialects import load_dialects
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import Imported, import_graph
from stepwell.tools.interpret.nd import run_imported


def text_of(module: Any) -> str:
    stream = StringIO()
    Printer(stream).print_op(module)
    return stream.getvalue()


def trace(fn: Callable[..., Any], inputs: tuple[Any, ...], dynamic: bool = False) -> torch.fx.GraphModule:
    """The functional ATen graph of fn, with its outputs as a flat tuple."""

    def flat(*args: Any) -> tuple[Any, ...]:
        return tuple(pytree.tree_leaves(fn(*args)))

    mode = "symbolic" if dynamic else "fake"
    table = decomposition_table()
    return make_fx(functionalize(flat), decomposition_table=table, tracing_mode=mode, _allow_non_fake_inputs=True)(
        *inputs
    )


def imported(fn: Callable[..., Any], *inputs: Any, dynamic: bool = False, **options: Any) -> Imported:
    """Import fn; the module verifies and survives printing and parsing."""
    found = import_graph(trace(fn, inputs, dynamic), inputs, **options)
    found.module.verify()
    text = text_of(found.module)
    again = Parser(load_dialects(Context()), text).parse_module()
    again.verify()
    assert text_of(again) == text
    return found


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool = False,
    grow: bool = True,
    fallback: bool = False,
    exact: bool = False,
    **tolerance: Any,
) -> Imported:
    """Import fn and compare the result with eager: values, dtypes, strides; with symbolic sizes also for other sizes,
    unless `grow` is off because fn itself fixes some. No operator may be a fallback unless told."""
    found = imported(fn, *inputs, dynamic=dynamic)
    if dynamic and grow:
        compare(fn, found, _grown(inputs), exact=exact, **tolerance)
    if not fallback:
        assert not found.counts.fallback, f"fallbacks: {dict(found.counts.names['fallback'])}"
    compare(fn, found, inputs, exact=exact, **tolerance)
    return found


def compare(
    fn: Callable[..., Any], found: Imported, inputs: tuple[Any, ...], exact: bool = False, **tolerance: Any
) -> None:
    own = [_copy(x) for x in inputs]
    wanted = pytree.tree_leaves(fn(*own))
    got = run_imported(found, [_copy(x) for x in inputs])
    options = {"rtol": 0, "atol": 0} if exact else tolerance
    for a, b in zip(got, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True, **options)
            significant = [d for d, n in enumerate(b.shape) if n > 1]
            assert b.numel() == 0 or [a.stride(d) for d in significant] == [b.stride(d) for d in significant]
        else:
            assert a == b


def _grown(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs with other sizes: equal sizes stay equal, 0 and 1 stay what they are (torch makes them special)."""
    grown = []
    for x in inputs:
        shape = [n if n < 2 else n + 2 for n in x.shape]
        index = x.dtype == torch.int64
        fresh = torch.randint(0, 3, shape) if index else torch.randn(shape).to(x.dtype)
        order = sorted(range(x.dim()), key=lambda k, x=x: -x.stride(k))
        back = [order.index(k) for k in range(x.dim())]
        grown.append(fresh.permute(order).contiguous().permute(back))
    return tuple(grown)


def _copy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True)):
        return x
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return copy.copy_(x.detach())


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(name="check")
def check_fixture() -> Callable[..., Imported]:
    return check


@pytest.fixture(name="imported")
def imported_fixture() -> Callable[..., Imported]:
    return imported


@pytest.fixture(name="compare")
def compare_fixture() -> Callable[..., None]:
    return compare


@pytest.fixture(name="text_of")
def text_fixture() -> Callable[..., str]:
    return text_of


class Compiled:
    """fn through Dynamo and AOTAutograd, its graphs run by the interpreter of nd; `graphs` are the imports."""

    def __init__(self, fn: Callable[..., Any], **options: Any):
        from torch._dynamo.backends.common import aot_autograd

        torch._dynamo.reset()
        self.graphs: list[Imported] = []
        self.import_options = {k: options.pop(k) for k in ("fallback_random",) if k in options}
        backend = aot_autograd(
            fw_compiler=self._compile,
            bw_compiler=self._compile,
            decompositions=decomposition_table(),
            keep_inference_input_mutations=True,
        )
        self.fn = torch.compile(fn, backend=backend, **options)

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        found = import_graph(gm, example_inputs, **self.import_options)
        found.module.verify()
        self.graphs.append(found)

        def run(args: list[Any]) -> list[Any]:
            own = list(args)
            args.clear()
            return run_imported(found, own)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)

    @property
    def text(self) -> str:
        return "\n".join(text_of(g.module) for g in self.graphs)


@pytest.fixture(name="compiled")
def compiled_fixture() -> type[Compiled]:
    return Compiled
