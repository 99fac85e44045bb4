"""Random programs agree with eager: values, types, sizes, strides, updated inputs, gradients, which results share memory."""

from __future__ import annotations

import torch
from torch._dynamo import exc

from .values import FLOATS, HALVES, groups
from .writer import Program, Writer

REFUSALS = (exc.TorchRuntimeError, exc.Unsupported, exc.UserError)
"""What Dynamo and its fake tensors refuse before the backend is asked."""


def check_equal(what: str, got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    """Values, dtype, sizes and significant strides."""
    close = tolerance if want.dtype in FLOATS else 0
    torch.testing.assert_close(got, want, equal_nan=True, msg=lambda m: f"{what}: {m}", rtol=close, atol=close)
    kept = [d for d, n in enumerate(want.shape) if n > 1]
    if want.numel():
        assert [got.stride(d) for d in kept] == [want.stride(d) for d in kept], f"{what}: strides"


def run(program: Program, seed: int, backend: str = "stepwell") -> None:
    """Compare the compiled program with eager."""
    torch._dynamo.reset()
    plain = program.function()
    compiled = torch.compile(plain, backend=backend, dynamic=program.dynamic, fullgraph=True)
    for which in range(2 if program.dynamic else 1):
        ours, theirs = program.inputs(seed, which), program.inputs(seed, which)
        if program.grad:
            ours = [x.detach().requires_grad_() for x in ours]
            theirs = [x.detach().requires_grad_() for x in theirs]
        try:
            want = plain(*theirs)
        except (RuntimeError, IndexError, ValueError):
            if which:
                return  # a program of the first sizes only
            raise
        try:
            got = compiled(*ours)
        except REFUSALS:
            return
        assert len(got) == len(want)
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            check_equal(f"result {k}", a, b, program.tolerance)
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            check_equal(f"input {k}", a, b, program.tolerance)
        if not program.grad:
            assert groups([*ours, *got]) == groups([*theirs, *want]), "which results share memory"
            continue
        if not any(t.requires_grad for t in want):
            return
        sums = [torch.stack([t.double().sin().sum() for t in ts if t.requires_grad]).sum() for ts in (got, want)]
        pairs = [torch.autograd.grad(s, xs, allow_unused=True) for s, xs in zip(sums, (ours, theirs), strict=True)]
        for k, (a, b) in enumerate(zip(*pairs, strict=True)):
            assert (a is None) == (b is None)
            if b is not None:
                close = max(5 * program.tolerance, 0.1 if any(d in HALVES for _, d, _ in program.arguments) else 0)
                torch.testing.assert_close(a, b, rtol=close, atol=close, msg=lambda m, k=k: f"gradient {k}: {m}")


def check_seed(seed: int, updates: bool = False) -> None:
    program = Writer(seed, updates).write(steps=6 + seed % 15)
    print(f"seed {seed}, dynamic={program.dynamic}, grad={program.grad}\n{program.arguments}\n{program.text}")
    try:
        run(program, seed)
    except Exception:
        if torch_agrees(program, seed):
            raise


def torch_agrees(program: Program, seed: int) -> bool:
    """Whether torch's own tracing and functionalisation, with every operator run by eager, keep what the program does."""
    try:
        run(program, seed, "aot_eager")
    except Exception as error:
        print(f"torch's functionalised program differs too: {type(error).__name__}")
        return False
    return True
