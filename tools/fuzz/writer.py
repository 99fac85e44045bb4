"""Random programs of pointwise, reduction, view, index, joining and in-place operators; some with dynamic sizes, some with gradients.

A program is Python text, so that a failure prints what to paste.  Every line was run in eager while it was written: what eager refuses is
not in it.  See values.py for what is exact and what is rough.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .values import HALVES, INTS, LAYOUTS, is_exact, make, overlaps

LIMIT = 6000
"""Elements of a value at most."""
SIZES = {"A": (3, 5), "B": (4, 7), "C": (1, 1), "D": (17, 33)}


@dataclass
class FuzzValue:
    """One value of a program being written: its name, what it is in eager, whether it is exact."""

    name: str
    tensor: torch.Tensor
    exact: bool

    @property
    def floating(self) -> bool:
        return self.tensor.is_floating_point()


@dataclass
class Program:
    """The text of `program(...)`, how to make its arguments, and how it is compiled."""

    text: str
    arguments: list[tuple[tuple[str, ...], torch.dtype, str]]
    dynamic: bool
    grad: bool
    tolerance: float = 2e-4
    """Of rough values, relative and absolute."""

    def inputs(self, seed: int, which: int = 0) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [make(tuple(SIZES[s][which] for s in names), d, layout, generator) for names, d, layout in self.arguments]

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        scope: dict[str, Any] = {"torch": torch}
        exec(compile(self.text, "<random program>", "exec"), scope)
        return scope["program"]


UNARY = ["-{a}", "{a}.abs()", "torch.relu({a})", "{a}.clamp(-2, 3)", "{a} * 2", "{a} + 1", "3 - {a}"]
UNARY_ROUGH = [
    "torch.tanh({a})",
    "torch.sigmoid({a})",
    "torch.exp(-{a}.abs())",
    "torch.sin({a})",
    "torch.log1p({a}.abs())",
    "torch.softmax({a}, {d})",
    "torch.rsqrt({a}.abs() + 1)",
    "torch.nn.functional.gelu({a})",
    "{a}.var({d}, correction=0)",
    "torch.logsumexp({a}, {d})",
    "torch.nn.functional.layer_norm({a}, {a}.shape[-1:])",
    "{a} / ({a}.abs().sum({d}, keepdim=True) + 1)",
    "{a}.mean((0, -1))",
    "{a}.var((0, -1), correction=0, keepdim=True)",
    "torch.logsumexp({a}, (0, -1))",
    "{a}.clamp(-2, 2).prod({d})",
    "torch.nn.functional.normalize({a}, dim={d}, eps=1)",
]
UNARY_INT = ["{a} // 3", "{a} % 5", "{a} % -4", "{a} & 6", "{a} ^ 3", "torch.bitwise_not({a})", "{a} >> 1"]
UNARY_STEP = ["{a}.sign()", "torch.floor({a})", "torch.round({a} * 2)", "{a} // 2", "{a} % 3", "torch.fmod({a}, 2.5)", "torch.trunc({a})"]
BINARY = ["{a} + {b}", "{a} - {b}", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})"]
COMPARE = ["{a} > {b}", "{a} == {b}", "{a} <= {b}", "{a} != {b}"]
REDUCE = ["{a}.sum({d})", "{a}.amax({d})", "{a}.amin({d}, keepdim=True)", "{a}.sum()", "{a}.sum({d}, keepdim=True)",
          "{a}.sum((0, -1))", "{a}.amax((0, -1))", "{a}.amin((0, 1), keepdim=True)", "{a}.sum((0, {d}))"]  # fmt: skip
REDUCE_EXACT = ["{a}.argmax({d})", "{a}.max({d})[0]", "{a}.min({d})[1]", "{a}.argmin({d}, keepdim=True)", "{a}.any({d})",
                "torch.count_nonzero({a}, {d})", "{a}.all()"]  # fmt: skip
VIEWS = [
    "{a}.transpose({d}, {e})",
    "{a}.unsqueeze({d})",
    "{a}.flatten()",
    "{a}.flip({d})",
    "{a}.narrow({d}, 1, {a}.shape[{d}] - 1)",
    "{a}[..., 1:]",
    "{a}[::2]",
    "{a}[..., 0]",
    "{a}.select({d}, -1)",
    "{a}.squeeze()",
    "{a}.expand(2, *{a}.shape)",
    "{a}.reshape(-1, {a}.shape[0])",
    "{a}.reshape({a}.shape[-1], -1)",
    "{a}.permute({p})",
    "{a}.contiguous()",
    "{a}.repeat(2, *[1] * ({a}.dim() - 1))",
    "{a}.roll(1, {d})",
    "{a}.movedim(0, -1).clone()",
    "torch.nn.functional.pad({a}, (1, 2))",
    "torch.nn.functional.pad({a}, (0, 0, 1, 1))",
    "torch.nn.functional.pad({a}, (-1, 1))",
    "torch.tril({a})",
    "torch.triu({a}, 1)",
    "{a}.diagonal()",
    "{a}.chunk(2, {d})[-1]",
    "{a}.unfold({d}, 2, 1)",
    "{a}.repeat_interleave(2, {d})",
    "torch.rot90({a})",
]
JOIN = ["torch.cat([{a}, {b}], {d})", "torch.stack([{a}, {b}], {d})", "torch.cat([{a}, {b}, {a} + 1], {d})"]
SCAN = ["{a}.cumsum({d})", "{a}.cummax({d})[0]", "{a}.sort({d})[0]", "{a}.detach().topk(1, {d})[0]", "{a}.cummin({d})[0]"]
INDEX = [
    "{a}[{i}]",
    "{a}.index_select({d}, {i}.flatten() % {a}.shape[{d}])",
    "{a}[:, {i}.flatten()[:1].clamp(0, 0)]",
    "torch.gather({a}, {d}, torch.zeros_like({a}, dtype=torch.int64) + ({a}.shape[{d}] - 1))",
    "torch.gather({a}, {d}, torch.argsort({a}, {d}, stable=True))",
    "torch.zeros_like({a}).index_add({d}, torch.arange({a}.shape[{d}]).flip(0), {a})",
    "torch.zeros_like({a}).scatter_add({d}, torch.zeros_like({a}, dtype=torch.int64), {a})",
    "{a}.index_put(({i}.flatten()[:1] % {a}.shape[0],), {a}[0])",
    "{a}.index_fill({d}, torch.tensor([0]), 2)",
    "torch.nn.functional.embedding({i} % {a}.shape[0], {a})",
    "torch.nn.functional.one_hot({i} % 4, 4)",
    "{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64), 2)",
    "torch.zeros_like({a}).scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.int64), {a}, 'amax', include_self=False)",
    "({a} + 1).scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.int64), {a}, 'amin')",
    "torch.zeros_like({a}).index_put((torch.arange({a}.shape[0]) // 2,), {a}, accumulate=True)",
    "{a}.index_copy({d}, torch.arange({a}.shape[{d}]).flip(0), {a} + 1)",
    "{a}.take({i} % {a}.numel())",
    "torch.searchsorted({a}.flatten().sort()[0], {a})",
    "{a}.select_scatter({a}.select({d}, 0) + 1, {d}, -1)",
    "{a}.slice_scatter({a}.narrow({d}, 0, 1), {d}, 1, 2)",
]
IN_PLACE = [
    "{a}.add_(1)",
    "{a}.mul_(2)",
    "{a}.copy_({b})",
    "{a}[..., 0] = {b}.sum()",
    "{a}[..., 1:].add_({a}[..., :-1].clone())",
    "{a}.transpose(0, -1)[0].fill_(3)",
    "{a}.view(-1)[1:3] = 5",
    "{a}.relu_()",
    "{a}[0] += {a}[-1].clone()",
    "{a}.masked_fill_({a} > 1, 2)",
    "{a}.zero_()",
    "{a}.diagonal().add_(2)",
    "{a}.select({d}, -1).mul_(2)",
    "{a}.narrow({d}, 1, {a}.shape[{d}] - 1).sub_({b}.sum())",
    "{a}.unsqueeze(0).clamp_(-2, 2)",
    "{a}[::2].add_(1)",
    "{a}.chunk(2, {d})[-1].neg_()",
    "{a}.permute({p}).add_(1)",
    "{a}.t_()",
    "{a}.unsqueeze_(0)",
    "{a}.copy_({a}.flip({d}))",
    "{a}.scatter_({d}, torch.zeros_like({a}, dtype=torch.int64), 3)",
    "{a}.scatter_add_({d}, torch.zeros_like({a}, dtype=torch.int64), {a}.clone())",
    "{a}.index_add_(0, torch.zeros({a}.shape[0], dtype=torch.int64), {a}.clone())",
    "{a}.index_copy_({d}, torch.arange({a}.shape[{d}]).flip(0), {a}.clone())",
    "{a}.index_put_((torch.zeros(2, dtype=torch.int64),), {a}[0].clone(), accumulate=True)",
    "{a}[{a} > 1] = 2",
    "{a}[1:] = {a}[:-1].clone()",
    "{a}[..., ::2] += {b}.amax()",
    "torch.add({a}, 1, out={a})",
    "{a}.cumsum_({d})",
]
SHARING_VIEWS = [
    "{a}.view_as({a})",
    "{a}.view(-1, {a}.shape[-1])",
    "{a}.view(-1)",
    "{a}.transpose({d}, {e})",
    "{a}.permute({p})",
    "{a}.unsqueeze({d})",
    "{a}.unflatten({d}, (1, {a}.shape[{d}]))",
    "{a}[::2]",
    "{a}[..., 1:]",
    "{a}.narrow({d}, 1, {a}.shape[{d}] - 1)",
    "{a}.select({d}, -1)",
    "{a}.select({d}, {a}.shape[{d}] - 1)",
    "{a}.chunk(2, {d})[-1]",
    "{a}.split({a}.shape[{d}] - 1, {d})[0]",
    "{a}.diagonal()",
    "{a}.squeeze()",
    "{a}.expand(2, *{a}.shape)",
    "{a}.detach()",
    "{a}.unbind({d})[0]",
    "{a}.as_strided({a}.shape, {a}.stride(), {a}.storage_offset())",
]
CASTS = ["{a}.float()", "{a}.bfloat16()", "{a}.double()", "{a}.to(torch.int64)", "{a}.to(torch.int32)", "{a}.to(torch.bool)",
         "{a}.bool().int()"]  # fmt: skip


class Writer:
    """Writes one random program, running every line in eager to know sizes and to drop what eager refuses."""

    def __init__(self, seed: int, updates: bool = False):
        """With `updates` a program of views and in-place updates for the most part."""
        self.rng = rng = random.Random(seed)
        self.updates = updates
        self.grad = rng.random() < 0.25 and not updates
        dynamic = not self.grad and rng.random() < 0.35
        layouts = LAYOUTS
        dtypes = [torch.float32] * 3 + [torch.float64, torch.bfloat16]
        if not self.grad:
            dtypes = [*dtypes, *INTS, torch.bool]
        letters = "AB" * 3 + ("D" if dynamic or rng.random() < 0.5 else "CD")
        shapes = [tuple(rng.choice(letters) for _ in range(rng.choice((1, 2, 2, 2, 3)))) for _ in range(2)]
        arguments = [
            (rng.choice(shapes), rng.choice(dtypes), rng.choice(layouts if updates or rng.random() < 0.5 else ("dense",)))
            for _ in range(rng.randrange(2, 5))
        ]
        if not self.grad:
            arguments.append((rng.choice(shapes)[:1], torch.int64, "dense"))
        self.program = Program("", arguments, dynamic, self.grad)
        self.scope: dict[str, Any] = {"torch": torch}
        self.lines: list[str] = []
        self.values = [FuzzValue(f"x{k}", t, True) for k, t in enumerate(self.program.inputs(seed))]
        self.scope.update({v.name: v.tensor for v in self.values})

    def pick(self, want: Callable[[FuzzValue], bool] = lambda v: True) -> FuzzValue | None:
        found = [v for v in self.values if want(v)]
        return self.rng.choice(found[-8:]) if found else None

    def partner(self, a: FuzzValue) -> FuzzValue:
        """Another value that broadcasts with `a`, most often of its size."""

        def fits(b: FuzzValue) -> bool:
            try:
                shape = torch.broadcast_shapes(a.tensor.shape, b.tensor.shape)
            except RuntimeError:
                return False
            return shape.numel() < LIMIT

        return self.pick(lambda b: b.tensor.shape == a.tensor.shape and self.rng.random() < 0.8) or self.pick(fits) or a

    def say(self, form: str, a: FuzzValue, b: FuzzValue | None = None, exact: bool = True) -> bool:
        """Add the line of one form if eager accepts it and the result is worth having."""
        dims = max(a.tensor.dim(), 1)
        index = self.pick(lambda v: v.tensor.dtype == torch.int64 and v.tensor.numel() < 200) if "{i}" in form else None
        if "{i}" in form and index is None:
            return False
        text = form.format(
            a=a.name,
            b=b.name if b else "",
            i=f"({index.name} % {a.name}.shape[0])" if index and form == "{a}[{i}]" else index and index.name,
            d=self.rng.randrange(dims) - self.rng.choice((0, dims)),
            e=self.rng.randrange(dims),
            p=self.rng.sample(range(dims), dims),
        )
        name = f"v{len(self.values)}"
        try:
            result = eval(text, self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return False
        if not isinstance(result, torch.Tensor) or result.numel() > LIMIT:
            return False
        if result.numel() == 0 and self.rng.random() < 0.9:
            return False
        if result.numel() and not result.double().abs().max() <= (64 if result.dtype in HALVES else 4096):
            return False
        self.lines.append(f"{name} = {text}")
        self.scope[name] = result
        self.values.append(FuzzValue(name, result, exact and is_exact(result)))
        self.allow(self.values[-1])
        return True

    def allow(self, value: FuzzValue) -> None:
        """A tolerance for a rough value of 16 bits: eager rounds every step, kernels round what they store."""
        if value.tensor.dtype in HALVES and not value.exact and value.tensor.numel():
            self.program.tolerance = max(self.program.tolerance, 0.03 * max(1.0, value.tensor.abs().max().item()))

    def update(self, form: str, a: FuzzValue, b: FuzzValue) -> None:
        """Add an in-place line. Every value of one memory becomes rough if what is written is."""
        if overlaps(a.tensor):
            return
        before = {v.name: v.tensor.clone() for v in self.values}
        dims = max(a.tensor.dim(), 1)
        places = {"d": self.rng.randrange(dims), "p": self.rng.sample(range(dims), dims)}
        text = form.format(a=a.name, b=b.name, **places)
        try:
            exec(text, self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return
        changed = [v for v in self.values if not torch.equal(v.tensor, before[v.name])]
        for v in changed:
            v.exact = a.exact and b.exact and v.exact and is_exact(v.tensor)
            self.allow(v)
        self.lines.append(text)

    def step(self) -> None:
        rng = self.rng
        a = self.pick()
        assert a is not None
        b = self.partner(a)
        both = a.exact and b.exact
        if self.updates and rng.random() < 0.8:
            if rng.random() < 0.6:
                self.say(rng.choice(SHARING_VIEWS), a, exact=a.exact)
            else:
                self.update(rng.choice(IN_PLACE), a, b)
            return
        choice = rng.random()
        if choice < 0.14:
            self.say(rng.choice(UNARY), a, exact=a.exact)
        elif choice < 0.26:
            if a.floating:
                self.say(rng.choice(UNARY_ROUGH), a, exact=False)
        elif choice < 0.32:
            if a.exact and not self.grad:
                self.say(rng.choice(UNARY_STEP if a.floating else UNARY_INT), a)
        elif choice < 0.44:
            self.say(rng.choice(BINARY), a, b, both)
        elif choice < 0.48:
            self.say("{a} * {b}" if not both else "({a} * {b}).clamp(-8, 8)", a, b, False if a.floating else both)
        elif choice < 0.52:
            if both:
                self.say(rng.choice(COMPARE), a, b)
        elif choice < 0.56:
            mask = self.pick(lambda v: v.tensor.dtype == torch.bool)
            if mask:
                self.say(f"torch.where({mask.name}, {{a}}, {{b}})", a, b, both)
        elif choice < 0.67:
            if rng.random() < 0.7:
                self.say(rng.choice(REDUCE), a, exact=a.exact)
            elif a.exact:
                self.say(rng.choice(REDUCE_EXACT), a)
        elif choice < 0.82:
            self.say(rng.choice(VIEWS), a, exact=a.exact)
        elif choice < 0.86:
            self.say(rng.choice(JOIN), a, b, both)
        elif choice < 0.88:
            if a.exact:
                self.say(rng.choice(SCAN), a)
        elif choice < 0.93:
            if a.exact:
                self.say(rng.choice(INDEX), a)
        elif choice < 0.95:
            if a.exact and not self.grad:
                self.say(rng.choice(CASTS), a)
        elif choice < 0.97 and a.floating and b.floating and a.tensor.dim() == 2:
            self.say("{a} @ {b}.reshape({a}.shape[1], -1)", a, b, False)
        elif not self.grad:
            self.update(rng.choice(IN_PLACE), a, b)

    def write(self, steps: int) -> Program:
        """The program of that many tries."""
        for _ in range(steps):
            self.step()
        own = [v for v in self.values if v.name.startswith("v")]
        results = self.rng.sample(own, min(len(own), self.rng.randrange(1, 5))) or self.values[:1]
        if own and own[-1] not in results:
            results.append(own[-1])
        if self.grad and not any(v.floating for v in results):
            results.append(next(v for v in self.values if v.floating))
        head = f"def program({', '.join(f'x{k}' for k in range(len(self.program.arguments)))}):"
        body = [*self.lines, f"return ({', '.join(v.name for v in results)},)"]
        self.program.text = "\n    ".join([head, *body]) + "\n"
        return self.program
