"""Random programs of all operators in torch's own table (OpInfo), with its sample inputs and with values at hand in their places."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from .case import Case, inputs_text
from .values import HALVES

RANDOM = frozenset(
    """bernoulli cauchy exponential geometric log_normal multinomial normal rand rand_like randint randint_like randn randn_like uniform
    randperm empty empty_like empty_permuted empty_strided new_empty new_empty_strided torch.ops.aten._efficient_attention_forward
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu nn.functional.multi_head_attention_forward
    svd_lowrank pca_lowrank unsafe_split unsafe_chunk""".split()
)
"""Operators that draw numbers, give memory as it was, or say nothing about whose memory they give."""
LIMIT = 3000
"""Elements of a value at most."""
SAMPLES = 24
"""So many samples of an operator are looked at."""
DTYPES = (
    *(torch.float32,) * 6, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
UNTRIED = frozenset((torch.complex32, torch.complex128))
"""Types whose results are not looked at."""
VIEWS = (
    "{a}.transpose(0, -1)", "{a}.flip(-1)", "{a}[..., 1:]", "{a}[::2]", "{a}.unsqueeze(0)", "{a}.flatten()", "{a}.reshape(-1)[:7]",
    "{a}.expand(2, *{a}.shape)", "{a}[0]", "{a}[..., -1]", "{a}[1:2]", "{a}[:0]", "{a}.contiguous()", "{a} + {a}", "{a}.mT",
)  # fmt: skip
UPDATES = (
    "{a}.mul_(2)", "{a}[0].fill_(1)", "{a}.add_({a})", "{a}[..., :1].zero_()", "{a}.neg_()",
    "{a}.transpose(0, -1).copy_({a}.transpose(0, -1) * 2)",
)  # fmt: skip


@cache
def table() -> tuple[Any, ...]:
    """The operators whose results follow from their inputs."""
    from torch.testing._internal.common_methods_invocations import op_db

    return tuple(op for op in op_db if op.name not in RANDOM and not op.name.startswith(("jiterator", "sparse.", "_jiterator")))


def _call_of(op: Any, function: Callable[..., Any]) -> str:
    """Text of the function of an entry, "" where no public name leads to it."""
    for path in (f"torch.{op.name}", f"torch.Tensor.{op.name}", f"torch.Tensor.{op.name}_", f"torch.special.{op.name}"):
        found: Any = torch
        for part in path.split(".")[1:]:
            found = getattr(found, part, None)
        if found is function:
            return path
    return ""


def literal(value: Any) -> str | None:
    """An argument as Python text; None where it has none."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f"float('{value}')"
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    if value is Ellipsis:
        return "..."
    return None


class Operators:
    """Writes one program; every line is run in eager at once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        self.dtype = rng.choice(DTYPES)
        self.grad = (self.dtype.is_floating_point or self.dtype.is_complex) and rng.random() < 0.4
        self.inputs: list[torch.Tensor] = []
        self.head: list[str] = []
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"torch": torch}
        self.values: list[tuple[str, torch.Tensor]] = []

    def case(self) -> Case:
        for _ in range(20):
            if self.step() and (len(self.lines) >= self.seed % 5 + 1):
                break
        names = [name for name, _ in self.values if name.startswith("v")][-4:] or [name for name, _ in self.values[:1]]
        parameters = ", ".join(f"x{k}" for k in range(len(self.inputs)))
        body = "\n    ".join([*self.lines, f"return {', '.join(names) or 'None'},"])
        program = "\n".join([*self.head, f"\n\ndef program({parameters}):\n    {body}\n"])
        dynamic = self.rng.random() < 0.3
        tolerance = 2e-2 if self.dtype in HALVES else 2e-4
        inputs = inputs_text(self.inputs)
        return Case("operators", self.seed, program.lstrip(), inputs, dynamic=dynamic, grad=self.grad, tolerance=tolerance)

    def step(self) -> bool:
        """One line; False where nothing came of it."""
        choice = self.rng.random()
        if self.values and choice < 0.25:
            name, value = self.rng.choice(self.values)
            if value.dim():
                return self.say(self.rng.choice(VIEWS).format(a=name))
            return False
        if choice > 0.9 and not self.grad and (own := [n for n, v in self.values if v.dim() and n.startswith("v")]):
            return self.do(self.rng.choice(UPDATES).format(a=self.rng.choice(own)))
        return self.call(self.rng.choice(table()))

    def call(self, op: Any) -> bool:
        dtype = self.dtype
        if dtype not in op.supported_dtypes("cpu") or (self.grad and not op.supports_autograd):
            return False
        try:
            found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=self.grad), SAMPLES))
        except Exception:  # a sample that this machine cannot make
            return False
        sample = self.rng.choice(found) if found else None
        if sample is None:
            return False
        before = len(self.inputs)
        parts = [self.text(value) for value in (sample.input, *sample.args)]
        named = {key: self.text(value) for key, value in sample.kwargs.items()}
        if None in parts or None in named.values():
            self.forget(before)
            return False
        function = op.op
        if self.values and not self.grad and op.inplace_variant is not None and self.rng.random() < 0.15:
            function = op.inplace_variant
        path = _call_of(op, function)
        if not path:
            path = f"op{len(self.head)}"
            attribute = "" if function is op.op else ".inplace_variant"
            if attribute:
                self.forget(before)
                return False
            self.head.append(f"{path} = operator({op.name!r}, {op.variant_test_name!r})")
            self.scope[path] = function
        arguments = ", ".join([*map(str, parts), *(f"{key}={value}" for key, value in named.items())])
        if not self.say(f"{path}({arguments})"):
            self.forget(before)
            return False
        return True

    def forget(self, count: int) -> None:
        """Drop the inputs from number `count` on."""
        gone = {f"x{k}" for k in range(count, len(self.inputs))}
        del self.inputs[count:]
        self.values = [(name, value) for name, value in self.values if name not in gone]

    def text(self, value: Any) -> str | None:
        """An argument: a number, a value at hand, or a new input."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (list, tuple)):
            parts = [self.text(one) for one in value]
            if None in parts:
                return None
            inner = ", ".join(map(str, parts))
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(parts) == 1 else ''})"
        return literal(value)

    def tensor(self, value: torch.Tensor) -> str | None:
        if value.layout != torch.strided or value.numel() > LIMIT or value.dtype in UNTRIED or value.device.type != "cpu":
            return None
        if value.is_floating_point() and self.values and self.rng.random() < 0.6 and (text := self.adapted(value)):
            return text
        name = f"x{len(self.inputs)}"
        self.inputs.append(self.laid_out(value.detach()).requires_grad_(value.requires_grad and self.grad))
        self.values.append((name, self.inputs[-1].detach()))
        self.scope[name] = self.inputs[-1].detach()
        return name

    def adapted(self, value: torch.Tensor) -> str:
        """A value at hand made as large as `value`; "" if there is none."""
        count, shape = value.numel(), tuple(value.shape)
        fitting = [(n, v) for n, v in self.values if v.dtype == value.dtype and v.numel() >= count and bool(v.isfinite().all())]
        if not fitting or not count:
            return ""
        name, found = self.rng.choice(fitting[-6:])
        if found.shape == value.shape:
            return name
        if found.numel() == count:
            return f"{name}.reshape({shape})"
        return f"{name}.flatten()[:{count}].reshape({shape})"

    def laid_out(self, value: torch.Tensor) -> torch.Tensor:
        """The same elements in memory of another order, or with gaps."""
        choice = self.rng.random()
        if value.dim() == 0 or choice < 0.5 or value.is_conj() or value.is_neg():
            return value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        if choice < 0.7 and value.dim() > 1:
            order = self.rng.sample(range(value.dim()), value.dim())
            back = [order.index(d) for d in range(value.dim())]
            return value.permute(order).contiguous().permute(back)
        wide = value.new_zeros(*value.shape[:-1], 2 * value.shape[-1] + 1)
        part = wide[..., 1::2]
        part.copy_(value)
        return part

    def say(self, text: str) -> bool:
        """A line that gives a value; False if eager refuses it or the value is not worth having."""
        name = f"v{len(self.lines)}"
        torch.manual_seed(self.seed)
        before = [t.detach().clone() for t in self.inputs]
        try:
            result = eval(text, self.scope)
        except Exception:  # whatever eager raises
            self._restore(before)
            return False
        tensors = [t for t in (result if isinstance(result, (list, tuple)) else [result]) if isinstance(t, torch.Tensor)]
        wanted = [t for t in tensors if t.layout == torch.strided and t.numel() <= LIMIT and t.dtype not in UNTRIED]
        if not wanted or len(wanted) != len(tensors) or (isinstance(result, (list, tuple)) and len(result) != len(tensors)):
            self._restore(before)
            return False
        if all(not t.numel() for t in wanted) and self.rng.random() < 0.8:
            self._restore(before)
            return False
        self.lines.append(f"{name} = {text}")
        self.scope[name] = result
        if isinstance(result, torch.Tensor):
            self.values.append((name, result))
            return True
        for k, value in enumerate(tensors):
            self.lines.append(f"{name}_{k} = {name}[{k}]")
            self.scope[f"{name}_{k}"] = value
            self.values.append((f"{name}_{k}", value))
        return True

    def _restore(self, before: Sequence[torch.Tensor]) -> None:
        for t, old in zip(self.inputs, before, strict=True):
            if not torch.equal(t, old) and not bool((t != t).any()):
                t.detach().copy_(old)

    def do(self, text: str) -> bool:
        """A line that changes a value."""
        try:
            exec(text, self.scope)
        except Exception:  # what overlaps, or has no such type
            return False
        self.lines.append(text)
        return True


def operators_case(seed: int) -> Case:
    """The program of a seed."""
    writer = Operators(seed)
    case = writer.case()
    return case
