"""Which operator's rule, or which pass, makes a result of a compiled function wrong.

    stepwell check --leave-out model.py:step --args "torch.randn(8, 16)"

The function is compiled again and again, with half of its operators run by the library (option `fallback`), then with half of the passes
left out (option `disable_passes`), until one of them is left: some ten compilations. What `opt-tool --verify-results` does for the passes
over one graph, this does for whole programs, gradients and rules of operators included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ..opt.verify_results import difference
from .narrowing import narrowed

SEED = 0
GRADIENT = "the gradient of "
AS_NEAR = 4.0
"""How many times eager's distance from float64 a value may have that differs from eager's."""
NOISE = 1e-2
"""A gradient is compared at least on this part of the scale of the largest one: that of a bias before a norm is rounding errors alone."""


@dataclass(frozen=True)
class Fault:
    """What was found, "" where there is no such. `wrong`: what differs from eager. `operator`: the operator that has to run through the
    library for right results, and `nodes`, where the graphs have it. `left_out`: the pass that has to be left out."""

    wrong: str
    operator: str = ""
    nodes: tuple[str, ...] = ()
    left_out: str = ""

    def __str__(self) -> str:
        if not self.wrong:
            return "The results are those of eager."
        lines = [f"Wrong: {self.wrong}."]
        if self.operator:
            where, options = ", ".join(self.nodes), f"options={{'fallback': ['{self.operator}']}}"
            lines.append(f"Right where the library runs {self.operator} ({where}): {options}.")
        if self.left_out:
            lines.append(f"Right without the pass '{self.left_out}': options={{'disable_passes': ['{self.left_out}']}}.")
        if len(lines) == 1:
            lines.append("No operator run by the library and no pass left out makes it right; opt-tool --verify-results looks into graphs.")
        return "\n".join(lines)


def find_fault(fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, tolerance: float | None = None) -> Fault:
    """Compare `fn(*args)` compiled with eager: results, what becomes of the arguments, gradients of those that ask for one and of a
    module's parameters; and where they differ find out why. `options` are those of torch.compile; `tolerance` is relative to the largest
    element of a tensor (verify_results.TOLERANCE if None). Raises what `fn` raises in eager."""
    trial = Trial(fn, args, dict(options or {}), tolerance)
    wrong = trial.wrong({}, watch=True)
    if not wrong:
        return Fault("")
    operators = list(trial.nodes)
    operator = narrowed(operators, lambda names: not trial.wrong({"fallback": names}))
    left_out = narrowed(trial.passes(), lambda names: not trial.wrong({"disable_passes": names}))
    return Fault(wrong, operator, tuple(trial.nodes.get(operator, ())), left_out)


class Trial:
    """A function and its arguments, called in eager once and compiled many times.

    expected: what eager gives; exact: what it gives in float64, {} where it cannot be run so."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], options: dict[str, Any], tolerance: float | None):
        self.fn, self.args, self.options, self.tolerance = fn, args, options, tolerance
        self.nodes: dict[str, list[str]] = {}
        """Operators of the compiled graphs, with the names and lines of their nodes."""
        self.targets: set[str] = set()
        self.state = {k: v.detach().clone() for k, v in fn.state_dict().items()} if isinstance(fn, torch.nn.Module) else {}
        self.expected = self.values(fn)
        sizes = [float(v.abs().max()) for name, v in self.expected.items() if name.startswith(GRADIENT) and v is not None and v.numel()]
        self.gradients = max(sizes, default=0.0)
        """The largest element of all gradients."""
        self.exact: dict[str, Any] | None = None

    def wrong(self, more: dict[str, Any], watch: bool = False) -> str:
        """What differs from eager with these options; an exception differs too."""
        given = {"fallback_random": True, "cache": "objects", "on_failure": "raise", **self.options}
        for key, names in more.items():
            given[key] = [*dict.fromkeys([*given.get(key, ()), *names])]
        if watch:
            passes = dict(given.get("fx_passes", {}))
            given["fx_passes"] = {**passes, "post_grad": [*passes.get("post_grad", ()), self._seen]}
        torch._dynamo.reset()
        try:
            found = self.values(torch.compile(self.fn, backend="stepwell", options=given))
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        finally:
            torch._dynamo.reset()
        return self.difference(found)

    def difference(self, found: dict[str, Any]) -> str:
        """What is wrong with `found`: another value than eager's that is not as near to the one in float64 either."""
        if list(found) != list(self.expected):
            return f"it has the results {', '.join(found)}, in eager {', '.join(self.expected)}"
        for name, value in self.expected.items():
            scale = self.gradients * NOISE if name.startswith(GRADIENT) else 0.0
            text = difference(value, found[name], self.tolerance, scale)
            if text and not (self.tolerance is None and self._as_near(name, found[name])):
                return f"{name}: {text}"
        return ""

    def _as_near(self, name: str, found: Any) -> bool:
        """Whether a value is about as near to that in float64 as eager's."""
        if self.exact is None:
            self.exact = self._in_float64()
        exact, own = self.exact.get(name), self.expected[name]
        if not isinstance(exact, torch.Tensor) or not isinstance(own, torch.Tensor) or not isinstance(found, torch.Tensor):
            return False
        if not own.is_floating_point() or not own.numel():
            return False
        if not exact.shape == own.shape == found.shape or own.dtype == torch.float64:
            return False
        mine, eager = ((v.double() - exact.double()).abs() for v in (found, own))
        return bool(mine.isfinite().all()) and bool(eager.isfinite().all()) and float(mine.max()) <= AS_NEAR * float(eager.max())

    def _in_float64(self) -> dict[str, Any]:
        """What the function gives in float64, {} where it cannot be run so."""
        fn, args = self.fn, pytree.tree_map_only(torch.Tensor, _widened, tuple(self.args))
        try:
            if isinstance(fn, torch.nn.Module):
                import copy

                fn = copy.deepcopy(fn)
                fn.load_state_dict(self.state)
                fn = fn.double()
            found = self.values(fn, args)
        except Exception:  # types that the function insists on
            return {}
        return found if list(found) == list(self.expected) else {}

    def passes(self) -> list[str]:
        """The passes that can be left out of the pipelines of the devices at hand, in order."""
        from ...passes.manager.pipelines import LOWERINGS, default_pipeline

        given = {"passes": self.options.get("passes"), "pipeline": self.options.get("pipeline")}
        names = [p.name for target in sorted(self.targets or {"cpu"}) for p in default_pipeline(target, given).passes()]
        return [name for name in dict.fromkeys(names) if name not in LOWERINGS]

    def _seen(self, gm: GraphModule) -> None:
        """Note the operators of a graph."""
        from ...passes.manager.pipelines import DEVICES

        for node in gm.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.targets.add(DEVICES.get(value.device.type, "cpu"))
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                self.nodes.setdefault(str(node.target), []).append(node.name + _line(node.meta.get("stack_trace")))

    def values(self, fn: Callable[..., Any], args: Sequence[Any] | None = None) -> dict[str, Any]:
        """What a call gives, by name: results, arguments as it leaves them, gradients. `args` are others than those of the trial."""
        if self.state:
            self.fn.load_state_dict(self.state)  # pyright: ignore[reportFunctionMemberAccess]
        owner = self.fn if args is None else fn
        given = pytree.tree_map_only(torch.Tensor, _copy, tuple(self.args if args is None else args))
        torch.manual_seed(SEED)
        leaves = pytree.tree_leaves(fn(*given))
        inputs = [a for a in pytree.tree_leaves(given) if isinstance(a, torch.Tensor)]
        wanted = {f"argument {k}": a for k, a in enumerate(inputs) if a.requires_grad and a.is_leaf}
        if isinstance(owner, torch.nn.Module):
            wanted |= {name: p for name, p in owner.named_parameters() if p.requires_grad}
        found: dict[str, Any] = {f"result {k}": v.detach() if isinstance(v, torch.Tensor) else v for k, v in enumerate(leaves)}
        found |= {f"argument {k} afterwards": a.detach() for k, a in enumerate(inputs)}
        differentiable = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
        if differentiable and wanted:
            ones = [torch.ones_like(v) for v in differentiable]
            grads = torch.autograd.grad(differentiable, list(wanted.values()), ones, allow_unused=True)
            found |= {GRADIENT + name: g for name, g in zip(wanted, grads, strict=True)}
        return found


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


def _widened(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def _line(trace: str | None) -> str:
    """" at file.py:12" for the innermost line of a stack trace."""
    places = [line.split('"') for line in (trace or "").splitlines() if line.strip().startswith("File ")]
    if not places or len(places[-1]) < 3:
        return ""
    return f" at {places[-1][1].rsplit('/', 1)[-1]}:{places[-1][2].split(',')[1].strip().removeprefix('line ')}"
