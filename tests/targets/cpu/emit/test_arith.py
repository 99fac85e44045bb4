"""arith and the casts, comparisons and divisions of the CPU target against torch, on every instruction set that runs
here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from cpu_kernels import RUNNABLE, bits_equal, build, elementwise, float_samples, int_samples, run

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64]
WIDTHS = (0, 5, 32)


@dataclass
class Case:
    name: str
    body: str
    inputs: list[torch.dtype]
    output: torch.dtype
    reference: Callable[..., torch.Tensor]
    widths: tuple[int, ...] = WIDTHS

    def samples(self) -> list[torch.Tensor]:
        made = [(float_samples if d.is_floating_point else int_samples)(d, 17 * i) for i, d in enumerate(self.inputs)]
        if len(made) == 1:
            return made
        # Every special value of one side meets those of the other.
        n = min(x.numel() for x in made)
        shifts = (0, 1, 5, 11, 16)
        return [torch.cat([x[:n].roll(s * i) for s in shifts]) for i, x in enumerate(made)]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cases() -> list[Case]:
    found: list[Case] = []

    def add(name: str, body: str, inputs: list[torch.dtype], output: torch.dtype, reference, widths=WIDTHS) -> None:
        tag = "_".join([name, *map(short, inputs), short(output)])
        found.append(Case(tag, body, inputs, output, reference, widths))

    for t in FLOATS:
        add("addf", "%r = arith.addf %a, %b : {A}", [t, t], t, torch.add)
        add("subf", "%r = arith.subf %a, %b : {A}", [t, t], t, torch.sub)
        add("mulf", "%r = arith.mulf %a, %b : {A}", [t, t], t, torch.mul)
        add("divf", "%r = arith.divf %a, %b : {A}", [t, t], t, torch.div)
        add("negf", "%r = arith.negf %a : {A}", [t], t, torch.neg)
        add(
            "select",
            "%m = cpu.cmpf ogt %a, %b : {A}\n%r = cpu.select %m, %a, %b : {A}",
            [t, t],
            t,
            lambda a, b: torch.where(a > b, a, b),
        )
        for predicate, reference in {
            "oeq": torch.eq,
            "une": torch.ne,
            "olt": torch.lt,
            "ole": torch.le,
            "ogt": torch.gt,
            "oge": torch.ge,
            "uno": lambda a, b: a.isnan() | b.isnan(),
        }.items():
            add(f"cmpf_{predicate}", f"%r = cpu.cmpf {predicate} %a, %b : {{A}}", [t, t], torch.bool, reference)
    for t in [*INTS, torch.bool]:
        if t != torch.bool:
            add("addi", "%r = arith.addi %a, %b : {A}", [t, t], t, torch.add)
            add("subi", "%r = arith.subi %a, %b : {A}", [t, t], t, torch.sub)
            add("muli", "%r = arith.muli %a, %b : {A}", [t, t], t, torch.mul)
            add("shli", "%r = arith.shli %a, %b : {A}", [t, t], t, torch.bitwise_left_shift)
            add("shrsi", "%r = arith.shrsi %a, %b : {A}", [t, t], t, torch.bitwise_right_shift)
            add("maxsi", "%r = arith.maxsi %a, %b : {A}", [t, t], t, torch.maximum)
            add("minsi", "%r = arith.minsi %a, %b : {A}", [t, t], t, torch.minimum)
            add("absi", "%r = math.absi %a : {A}", [t], t, torch.abs)
            add("cmpi_slt", "%r = cpu.cmpi slt %a, %b : {A}", [t, t], torch.bool, torch.lt)
            add("cmpi_sge", "%r = cpu.cmpi sge %a, %b : {A}", [t, t], torch.bool, torch.ge)
        add("andi", "%r = arith.andi %a, %b : {A}", [t, t], t, torch.bitwise_and)
        add("ori", "%r = arith.ori %a, %b : {A}", [t, t], t, torch.bitwise_or)
        add("xori", "%r = arith.xori %a, %b : {A}", [t, t], t, torch.bitwise_xor)
        add("cmpi_eq", "%r = cpu.cmpi eq %a, %b : {A}", [t, t], torch.bool, torch.eq)
    everything = [*FLOATS, *INTS, torch.bool]
    for source in everything:
        for target in everything:
            if source == target:
                continue
            kind = cast_kind(source, target)
            add(
                "cast_" + kind,
                f"%r = cpu.cast {kind} %a : {{A}} to {{R}}",
                [source],
                target,
                lambda x, t=target: x.to(t),
            )
    add("cast_fptoui", "%r = cpu.cast fptoui %a : {A} to {R}", [torch.float32], torch.uint8, small_to_uint8)
    add("cast_extui", "%r = cpu.cast extui %a : {A} to {R}", [torch.uint8], torch.int32, lambda x: x.to(torch.int32))
    add(
        "cast_uitofp",
        "%r = cpu.cast uitofp %a : {A} to {R}",
        [torch.uint8],
        torch.float32,
        lambda x: x.to(torch.float32),
    )
    return found


def small_to_uint8(x: torch.Tensor) -> torch.Tensor:
    # Beyond 32 bits the result depends on the instruction set, as it does in torch.
    return torch.where(x.abs() < 2**31, x, torch.zeros_like(x)).to(torch.int64).to(torch.uint8)


def cast_kind(source: torch.dtype, target: torch.dtype) -> str:
    if source.is_floating_point and target.is_floating_point:
        return (
            "extf" if target.itemsize > source.itemsize else "truncf" if target.itemsize < source.itemsize else "truncf"
        )
    if source.is_floating_point:
        return "fptosi"
    if target.is_floating_point:
        return "uitofp" if source == torch.bool else "sitofp"
    if source == torch.bool:
        return "extui"
    return "extsi" if target != torch.bool and target.itemsize > source.itemsize else "trunci"


def usable(case: Case) -> bool:
    # Between the two 16-bit floats there is no single cast; an integer becomes a bool by comparison.
    pair = {*case.inputs, case.output}
    if pair == {torch.float16, torch.bfloat16}:
        return False
    return not (case.name.startswith("cast_trunci") and case.output == torch.bool)


CASES = [case for case in cases() if usable(case)]


@pytest.fixture(scope="module", params=RUNNABLE)
def compiled(request):
    isa = request.param
    text = "".join(
        elementwise(f"{case.name}_{lanes}", case.body, case.inputs, case.output, lanes)
        for case in CASES
        for lanes in case.widths
    )
    return isa, build(text, isa)


def test_operations_agree_with_torch(compiled) -> None:
    isa, library = compiled
    wrong: list[str] = []
    compared = 0
    for case in CASES:
        inputs = case.samples()
        expected = case.reference(*inputs)
        for lanes in case.widths:
            name = f"{case.name}_{lanes}"
            if name not in library:
                continue
            compared += 1
            got = run(library, name, inputs, case.output, lanes)
            if case.name == "cast_fptoui_float32_uint8":
                inputs_seen = inputs[0].abs() < 2**31
                got, expected = got[inputs_seen], case.reference(*inputs)[inputs_seen]
            if not bits_equal(got, expected):
                at = int((~((got == expected) | ((got != got) & (expected != expected)))).int().argmax())
                wrong.append(f"{name}: {[x.flatten()[at].item() for x in inputs]} gave {got[at]}, torch {expected[at]}")
    assert compared == len(library.symbols) - 4  # the error slot, what its message shows, and its two tables
    assert not wrong, f"on {isa}:\n" + "\n".join(wrong)


DIVISIONS = {
    "divsi": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordivsi": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remsi": torch.fmod,
    "ceildivsi": lambda a, b: -torch.div(-a, b, rounding_mode="floor"),
}
SIZES = {0: "scalar", 3: "odd", 8: "vector", 32: "wide"}


@pytest.mark.parametrize("isa", RUNNABLE)
def test_integer_division(isa: str) -> None:
    text = "".join(
        elementwise(f"{op}_{short(t)}_{lanes}", f"%r = arith.{op} %a, %b : {{A}}", [t, t], t, lanes)
        for op in DIVISIONS
        for t in INTS
        for lanes in SIZES
    )
    library = build(text, isa)
    for t in INTS:
        info = torch.iinfo(t)
        base = int_samples(t, 3)
        a = torch.cat([base.roll(s) for s in range(12)])
        b = torch.cat([base for _ in range(12)])
        keep = (b != 0) & ~((a == info.min) & (b == -1))
        a, b = a[keep], b[keep]
        for op, reference in DIVISIONS.items():
            select = a != info.min if op == "ceildivsi" else torch.ones_like(a, dtype=torch.bool)
            expected = reference(a, b)
            for lanes in SIZES:
                got = run(library, f"{op}_{short(t)}_{lanes}", [a, b], t, lanes)
                wrong = (got != expected) & select
                at = int(wrong.int().argmax())
                assert not wrong.any(), (
                    f"{op} {t} x{lanes} on {isa}: {a[at]} by {b[at]} gave {got[at]}, not {expected[at]}"
                )


@pytest.mark.parametrize("isa", RUNNABLE)
def test_division_by_zero_and_overflow_do_not_trap(isa: str) -> None:
    text = "".join(
        elementwise(f"{op}_{short(t)}_{lanes}", f"%r = arith.{op} %a, %b : {{A}}", [t, t], t, lanes)
        for op in ("divsi", "remsi", "floordivsi", "divui", "remui")
        for t in INTS
        for lanes in (0, 8)
    )
    library = build(text, isa)
    for t in INTS:
        smallest = torch.iinfo(t).min
        a = torch.tensor([1, 0, -1, smallest, smallest, smallest, 5, 7], dtype=t)
        b = torch.tensor([0, 0, 0, 0, -1, 1, -1, 0], dtype=t)
        for lanes in (0, 8):
            quotient = run(library, f"divsi_{short(t)}_{lanes}", [a, b], t, lanes)
            assert quotient[4] == smallest and quotient[6] == -5
            for op in ("remsi", "floordivsi", "divui", "remui"):
                run(library, f"{op}_{short(t)}_{lanes}", [a, b], t, lanes)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_unsigned_division_and_constant_divisors(isa: str) -> None:
    lines = []
    for t in (torch.int8, torch.int32, torch.int64):
        for lanes in (0, 16):
            for op in ("divui", "remui"):
                lines.append(
                    elementwise(f"{op}_{short(t)}_{lanes}", f"%r = arith.{op} %a, %b : {{A}}", [t, t], t, lanes)
                )
            for divisor in (1, 2, 7, -3, 64):
                value = f"dense<{divisor}> : {{A}}" if lanes else f"{divisor} : {{A}}"
                body = f"%d = arith.constant {value}\n%r = arith.floordivsi %a, %d : {{A}}"
                lines.append(elementwise(f"by{divisor}_{short(t)}_{lanes}".replace("-", "m"), body, [t], t, lanes))
    library = build("".join(lines), isa)
    for t in (torch.int8, torch.int32, torch.int64):
        a, b = int_samples(t, 1), int_samples(t, 2)
        b = torch.where(b == 0, torch.ones_like(b), b)
        modulus = 2 ** torch.iinfo(t).bits
        quotients = [(x % modulus) // (y % modulus) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        rests = [(x % modulus) % (y % modulus) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        for lanes in (0, 16):
            got = run(library, f"divui_{short(t)}_{lanes}", [a, b], t, lanes)
            assert [v % modulus for v in got.tolist()] == quotients, (t, lanes)
            got = run(library, f"remui_{short(t)}_{lanes}", [a, b], t, lanes)
            assert [v % modulus for v in got.tolist()] == rests, (t, lanes)
            for divisor in (1, 2, 7, -3, 64):
                got = run(library, f"by{divisor}_{short(t)}_{lanes}".replace("-", "m"), [a], t, lanes)
                assert torch.equal(got, torch.div(a, divisor, rounding_mode="floor").to(t)), (t, lanes, divisor)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_minimum_and_maximum_of_floats(isa: str) -> None:
    ops = {"maximumf": torch.maximum, "minimumf": torch.minimum, "maxnumf": torch.fmax, "minnumf": torch.fmin}
    text = "".join(
        elementwise(f"{op}_{short(t)}_{lanes}", f"%r = arith.{op} %a, %b : {{A}}", [t, t], t, lanes)
        for op in ops
        for t in FLOATS
        for lanes in (0, 16)
    )
    library = build(text, isa)
    for t in FLOATS:
        a = torch.cat([float_samples(t).roll(s) for s in range(30)])
        b = torch.cat([float_samples(t)] * 30)
        for op, reference in ops.items():
            expected = reference(a, b)
            for lanes in (0, 16):
                got = run(library, f"{op}_{short(t)}_{lanes}", [a, b], t, lanes)
                assert bool(((got == expected) | (got.isnan() & expected.isnan())).all()), (op, t, lanes, isa)


@pytest.mark.spread
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("t", [torch.float16, torch.bfloat16])
def test_sixteen_bit_floats_convert_bit_for_bit(isa: str, t: torch.dtype) -> None:
    library = build(
        elementwise("up", "%r = cpu.cast extf %a : {A} to {R}", [t], torch.float32, 16)
        + elementwise("down", "%r = cpu.cast truncf %a : {A} to {R}", [torch.float32], t, 16),
        isa,
    )
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(t)
    assert bits_equal(run(library, "up", [every], torch.float32, 16), every.to(torch.float32))
    # Around every value of the narrow type: itself, and both sides of the midpoint to the next.
    wide = every[~every.isnan()].to(torch.float32)
    bits = wide.view(torch.int32)
    half = 1 << (12 if t == torch.float16 else 15)
    near = torch.cat([bits, bits + half - 1, bits + half, bits + half + 1, bits + 1]).view(torch.float32)
    near = torch.cat([near, torch.tensor([1e-40, -1e-40, 1e-8, 6e-8, 65519.0, 65520.0, 3.4e38, -3.4e38])])
    assert bits_equal(run(library, "down", [near], t, 16), near.to(t))


def test_extended_multiplication_and_addition() -> None:
    library = build(
        elementwise("low", "%r, %h = arith.mului_extended %a, %b : {A}", [torch.int32] * 2, torch.int32, 8)
        + elementwise("high", "%l, %r = arith.mului_extended %a, %b : {A}", [torch.int32] * 2, torch.int32, 8)
        + elementwise("shigh", "%l, %r = arith.mulsi_extended %a, %b : {A}", [torch.int32] * 2, torch.int32, 8)
    )
    a, b = int_samples(torch.int32, 1), int_samples(torch.int32, 2)
    unsigned = [(x % 2**32) * (y % 2**32) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    signed = [x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert [v % 2**32 for v in run(library, "low", [a, b], torch.int32, 8).tolist()] == [v % 2**32 for v in unsigned]
    assert [v % 2**32 for v in run(library, "high", [a, b], torch.int32, 8).tolist()] == [v >> 32 for v in unsigned]
    assert run(library, "shigh", [a, b], torch.int32, 8).tolist() == [v >> 32 for v in signed]


@pytest.mark.parametrize("isa", RUNNABLE)
def test_rounding_to_bf16_at_every_width(isa: str) -> None:
    """Vectors without denormals, with some, and of nothing else; NaN stays NaN."""
    widths = (0, 1, 4, 8, 16, 32, 64, 128)
    body = "%r = arith.truncf %a : {A} to {R}"
    text = "".join(elementwise(f"round_{lanes}", body, [torch.float32], torch.bfloat16, lanes) for lanes in widths)
    library = build(text, isa)
    seed = torch.Generator().manual_seed(7)
    mixed = torch.randint(-(2**31), 2**31 - 1, (4096,), generator=seed).to(torch.int32).view(torch.float32)
    tiny = torch.randint(0, 2**23, (1024,), generator=seed).to(torch.int32).view(torch.float32)
    normal = torch.randn(1024, generator=seed)
    one = normal.clone()
    one[37::129] = -1e-39
    halfway = (torch.arange(2048, dtype=torch.int32) << 15 | 0x3F800000).view(torch.float32)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3.4e38, -3.4e38, 1.2e-38, 1.1e-38] * 16)
    for values in (mixed, tiny, -tiny, normal, one, halfway, special):
        want = values.to(torch.bfloat16)
        for lanes in widths:
            got = run(library, f"round_{lanes}", [values], torch.bfloat16, lanes)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=lanes: f"{isa} {n} lanes: {m}")
            numbers = ~want.isnan()
            assert torch.equal(got[numbers].view(torch.int16), want[numbers].view(torch.int16)), f"{isa} {lanes} lanes"
