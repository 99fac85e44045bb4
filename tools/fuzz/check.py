"""Whether stepwell compiles a random program right: results, updated inputs, gradients, strides, and what shares memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo import exc
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from ...errors import StepwellError
from ..check.rounding import RUNS, samples, unexplained
from .case import Case
from .values import groups

REFUSALS = (exc.TorchRuntimeError, exc.Unsupported, exc.UserError)
"""What Dynamo and its fake tensors refuse before the backend is asked."""
OPTIONS = {"cache": "off", "verify": True, "fallback_random": True, "on_failure": "raise"}
DEVICES = ("cpu", "gpu", "small-gpu")
"""Where programs run: the CPU; a GPU as large as an H200, interpreted; one whose tiles have a few elements."""
MEMORY = "which results share memory"


class WrongProgram(StepwellError):
    """A compiled program is another than eager, or does not compile."""


class Skipped(Exception):
    """Nothing can be said about a program: eager, Dynamo or torch's own functionalisation do not agree about it."""


def on(device: str) -> AbstractContextManager[None]:
    """Compile for a device of DEVICES inside of this block."""
    if device == "cpu":
        return nullcontext()
    from .small_tiles import large_tiles, small_tiles

    return small_tiles() if device == "small-gpu" else large_tiles()


def evaluate(function: Callable[..., Any], inputs: Sequence[Any], grad: bool) -> dict[str, Any]:
    """What a call gives, by name: results, inputs as it leaves them, gradients, what shares memory."""
    torch.manual_seed(0)
    inputs = list(inputs)
    if grad:
        chosen = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        inputs = [x.detach().requires_grad_(x.requires_grad if chosen else x.is_floating_point()) if _is_tensor(x) else x for x in inputs]
    results = pytree.tree_leaves(function(*inputs))
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    found: dict[str, Any] = {f"result {k}": r.detach() if isinstance(r, torch.Tensor) else r for k, r in enumerate(results)}
    found |= {f"input {k}": x.detach() for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
    given = [x for x in inputs if isinstance(x, torch.Tensor)]
    if not grad:
        return found | {MEMORY: groups([*given, *tensors])}
    wanted = [x for x in given if x.requires_grad]
    sums = [(t.real if t.is_complex() else t).double().sin().sum() for t in tensors if t.requires_grad]
    if sums and wanted:
        gradients = torch.autograd.grad(torch.stack(sums).sum(), wanted, allow_unused=True)
        found |= {f"gradient {k}": g for k, g in enumerate(gradients)}
    return found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def check(case: Case, backend: str | Callable[..., Any] = "stepwell", options: Mapping[str, Any] | None = None, runs: int = RUNS) -> None:
    """Raises WrongProgram with the first difference, Skipped where there is nothing to compare with; `options` beside those of OPTIONS."""
    torch._dynamo.reset()
    function, make_inputs = case.load()
    given = {**OPTIONS, **(options or {})} if backend == "stepwell" else None
    compiled = torch.compile(function, backend=backend, dynamic=case.dynamic or None, fullgraph=case.fullgraph, options=given)
    for which in range(case.sets):
        try:
            want, again = (evaluate(function, make_inputs(which), case.grad) for _ in range(2))
        except Exception as error:
            if which:
                return  # a program of the first sizes only
            raise Skipped(f"eager raises {type(error).__name__}: {error}") from error
        if problem(want, again, case, strict=True):
            raise Skipped("eager gives another result each time")
        try:
            got = evaluate(compiled, make_inputs(which), case.grad)
        except REFUSALS as error:
            raise Skipped(f"Dynamo refuses it: {type(error).__name__}") from error
        except Exception as error:
            raise WrongProgram(f"{type(error).__name__}: {error}"[:2000]) from error
        wrong = problem(want, got, case)
        if wrong and not case.exact:
            found = samples(lambda xs: evaluate(function, xs, case.grad), lambda which=which: make_inputs(which), runs)
            wrong = problem(want, got, case, found)
        if wrong:
            raise WrongProgram(wrong + (f", with the second sizes ({which})" if which else ""))


def verdict(case: Case, device: str = "cpu") -> tuple[str, str]:
    """("right" | "wrong" | "skipped", why).  A program that torch's own tracing changes, too, is skipped."""
    try:
        with on(device):
            check(case)
    except Skipped as error:
        return "skipped", str(error)
    except WrongProgram as error:
        if other := torch_differs(case, str(error)):
            return "skipped", other
        return "wrong", str(error)
    finally:
        torch._dynamo.reset()
    return "right", ""


def torch_differs(case: Case, wrong: str) -> str:
    """Why what is wrong is torch's own: its functionalised program differs, too, or fake kernels have other sizes or strides."""
    try:
        check(case, aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(_SizesAsSaid(graph).run)))
    except (WrongProgram, Skipped) as other:
        return f"torch's functionalised program is wrong, too: {other}"
    if ": strides (" not in wrong:
        return ""
    function, make_inputs = case.load()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()) as mode:  # sizes that depend on values are symbols
            results = function(*[mode.from_tensor(x, static_shapes=True) if _is_tensor(x) else x for x in make_inputs(0)])
    except Exception:  # what asks for such a size
        return ""
    own = [tuple(r.stride()) for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor)]
    ours = wrong.partition(": strides ")[2].partition(", in eager")[0]
    return f"torch's fake kernels give strides {ours}, too" if ours in map(str, own) else ""


class _SizesAsSaid(torch.fx.Interpreter):
    """Runs a graph of AOTAutograd; a result of other sizes than its operator's fake kernel said is an error."""

    def run_node(self, n: torch.fx.Node) -> Any:
        result, said = super().run_node(n), n.meta.get("val")
        if isinstance(result, torch.Tensor) and isinstance(said, torch.Tensor):
            wrong = [k for k, size in enumerate(said.shape) if isinstance(size, int) and size != result.shape[k]]
            if wrong:
                raise WrongProgram(f"the fake kernel of {n.target} says {tuple(said.shape)}; it is {tuple(result.shape)}")
        return result


def problem(want: dict[str, Any], got: dict[str, Any], case: Case, found: Sequence[dict[str, Any]] = (), strict: bool = False) -> str:
    """What differs, "" if nothing does; `found` are samples of what rounding may do to the results (rounding.py)."""
    if list(want) != list(got):
        return f"it has {', '.join(got)}; eager {', '.join(want)}"
    for name, value in want.items():
        other = got[name]
        if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
            if type(value) is not type(other) or (value != other and not _near(value, other)):
                return f"{name}: {other}, in eager {value}"
            continue
        if (value.dtype, value.shape) != (other.dtype, other.shape):
            return f"{name}: {other.dtype} {tuple(other.shape)}, in eager {value.dtype} {tuple(value.shape)}"
        if not name.startswith("gradient") and (text := _strides(value, other)):
            return f"{name}: {text}"
        if text := _values(name, value, other, case, found, strict):
            return f"{name}: {text}"
    return ""


def _near(value: Any, other: Any) -> bool:
    if not isinstance(value, float):
        return False
    return (value != value and other != other) or abs(value - other) <= 1e-4 * max(1.0, abs(value))


def _strides(want: torch.Tensor, got: torch.Tensor) -> str:
    kept = [d for d, n in enumerate(want.shape) if n > 1]
    if want.layout != torch.strided or not want.numel() or [got.stride(d) for d in kept] == [want.stride(d) for d in kept]:
        return ""
    return f"strides {tuple(got.stride())}, in eager {tuple(want.stride())}"


def _values(name: str, want: torch.Tensor, got: torch.Tensor, case: Case, found: Sequence[dict[str, Any]], strict: bool) -> str:
    inexact = want.is_floating_point() or want.is_complex()
    close = (5 if name.startswith("gradient") else 1) * case.tolerance if inexact and not strict else 0.0
    if want.dtype.itemsize <= 2 and inexact and not strict:
        close = max(close, 1e-2)
    if torch.equal(got, want) or _closeness(got, want, close).all():
        return ""
    wrong = ~_closeness(got, want, close)
    if found:
        outside = unexplained(got, [f[name] for f in found if name in f and isinstance(f[name], torch.Tensor)])
        outside = outside.any(-1) if want.is_complex() else outside
        wrong &= outside
        if not wrong.any():
            return ""
    place = tuple(int(k) for k in wrong.nonzero()[0])
    values = f"{got[place].item()!r}, in eager {want[place].item()!r}"
    return f"{int(wrong.sum())} of {want.numel()} elements differ, the first at {list(place)}: {values}"


def _closeness(a: torch.Tensor, b: torch.Tensor, close: float) -> torch.Tensor:
    if not (b.is_floating_point() or b.is_complex()):
        return a == b
    wide = torch.complex128 if b.is_complex() else torch.float64
    near = torch.isclose(a.to(wide), b.to(wide), rtol=close, atol=close, equal_nan=True)
    # torch's product of complex numbers makes NaN of an infinity: which parts of an infinite one are NaN is not compared
    return near | ~(torch.isfinite(a) | torch.isfinite(b)) if b.is_complex() else near


def main(program: Callable[..., Any], inputs: Callable[..., list[Any]], *, device: str = "cpu", **settings: Any) -> None:
    """What a kept file does when it runs: exit code 1 and the difference where the program is compiled wrong."""
    os.environ["STEPWELL_ON_FAILURE"] = "raise"

    class Loaded(Case):
        def load(self) -> Any:
            return program, inputs

    result, why = verdict(Loaded("file", 0, "", "", **settings), device)
    print(f"{result}: {why}" if why else result)
    sys.exit(int(result == "wrong"))
