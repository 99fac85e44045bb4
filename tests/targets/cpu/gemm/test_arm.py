"""Products for 64-bit Arm, on emulated processors, against float64: kinds of factors, signs, layouts; and their inner loops."""

from __future__ import annotations

import re
import struct
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch
from arm_processors import COMPILER, PROCESSORS, needs_arm, on

from stepwell.dialects.support.gemm_types import BYTES, FACTORS
from stepwell.targets.cpu import jit
from stepwell.targets.cpu.features import target
from stepwell.targets.cpu.gemm.driver import GemmSpec, gemm_module, isa_for, shared_gemm_module
from stepwell.targets.host.c.levels import target_of_level

DRIVER = Path(__file__).with_name("arm_products.c")
TORCH = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8, "u8": torch.uint8,
    "i32": torch.int32,
}  # fmt: skip
ROUNDING = {"f32": 1e-6, "f64": 1e-14, "bf16": 4e-3, "f16": 5e-4, "i32": 0}
SHAPES = [(1, 64, 64), (1, 33, 200), (2, 5, 33), (4, 24, 1030), (6, 1, 70), (8, 129, 257), (13, 130, 70), (3, 4, 0), (30, 70, 1077)]
KINDS = [(a, b) for a, factors in FACTORS.items() for b in factors]
BY_BYTES = [k for k in KINDS if k[1] in BYTES]
OWN = {"neon": KINDS, "neon_dot": BY_BYTES, "neon_bf16": [*BY_BYTES, ("bf16", "bf16")]}
"""Instruction set -> the kinds that it has code of its own for."""


def specs(isa: str) -> list[GemmSpec]:
    layouts = [(False, True), (False, False)]
    found = [GemmSpec(a, trans_a=ta, trans_b=tb, isa=isa, b=b) for (a, b), (ta, tb) in product(OWN[isa], layouts)]
    return found + [GemmSpec(a, trans_a=True, isa=isa, b=b) for a, b in OWN[isa] if a == b or a in BYTES]


def numbers(kind: str, *sizes: int) -> torch.Tensor:
    """A matrix with gaps between its rows; bytes of the whole range."""
    room, dtype = (sizes[0], sizes[1] + 3), TORCH[kind]
    if dtype.is_floating_point:
        return torch.randn(room, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, room).to(dtype)


def packed(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).flatten().tolist())


def built(folder: Path, wanted: list[GemmSpec], level: str) -> Path:
    """A program with these products, for a level."""
    objects = [folder / f"{k}.o" for k in range(len(wanted))]
    for spec, file in zip(wanted, objects, strict=True):
        file.write_bytes(jit.compile_text(shared_gemm_module(spec), wanted=target_of_level(level)))
    (folder / "products.h").write_text("#define PRODUCTS " + " ".join(f"PRODUCT({spec.shared_symbol})" for spec in wanted) + "\n")
    command = [COMPILER, "-O1", "-static", "-Wall", "-Wextra", "-Werror", f"-I{folder}", str(DRIVER), *map(str, objects)]
    subprocess.run([*command, "-lm", "-o", str(folder / "products")], check=True)
    return folder / "products"


@needs_arm
@pytest.mark.parametrize("level", PROCESSORS)
def test_products_are_exact_or_near(level, tmp_path):
    torch.manual_seed(0)
    wanted = specs(isa_for(target_of_level(level)).name)
    program = built(tmp_path, wanted, level)
    jobs: list[tuple[GemmSpec, tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
    with (tmp_path / "jobs").open("wb") as file:
        for number, spec in enumerate(wanted):
            for m, n, k in SHAPES:
                a = numbers(spec.dtype, *((k, m) if spec.trans_a else (m, k)))
                b = numbers(spec.b_type, *((n, k) if spec.trans_b else (k, n)))
                c = torch.full((m, n + 3), 7).to(TORCH[spec.c_type])
                bias = torch.randint(-9, 9, (n,)).to(TORCH[spec.bias_type])
                parts = [packed(x) for x in (a, b, c, bias)]
                head = [number, m, n, k, *(x.shape[1] for x in (a, b, c)), *map(len, parts)]
                file.write(struct.pack("<11q", *head) + b"".join(parts))
                jobs.append((spec, (m, n, k), a, b, c, bias))
    done = on(PROCESSORS[level])(program, "jobs", "results")
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "results").read_bytes()
    for spec, (m, n, k), a, b, c, bias in jobs:
        size = c.numel() * c.element_size()
        got, data = torch.frombuffer(bytearray(data[:size]), dtype=c.dtype).reshape(c.shape), data[size:]
        left, right = a[:, : m if spec.trans_a else k].double(), b[:, : k if spec.trans_b else n].double()
        left, right = left.mT if spec.trans_a else left, right.mT if spec.trans_b else right
        bound = ROUNDING[spec.c_type] * (left.abs() @ right.abs() + bias.double().abs())
        error = (got[:, :n].double() - left @ right - bias.double()).abs()
        assert (error <= bound).all(), f"{spec.symbol} {m}x{n}x{k}: {error.max()}"
        assert (got[:, n:] == 7).all(), f"{spec.symbol} {m}x{n}x{k} wrote beyond a row"
    assert not data


def inner_loop(spec: GemmSpec, name: str, isa: str) -> str:
    """The assembly of the loop of a tile: from its first label to the branch back."""
    _, text = gemm_module(spec)
    shown = jit.assembly(text, wanted=target(isa))
    function = shown[shown.index(f"{spec.symbol}_{name}:") :].split(".Lfunc_end")[0]
    found = re.search(r"^(\.LBB\d+_\d+):((?:(?!^\.LBB).)*?)\s+b\.lt\s+\1$", function, re.MULTILINE | re.DOTALL)
    assert found, function
    return found[2]


@pytest.mark.parametrize(
    "isa, dtype, instruction, count",
    [("neon", "f32", "fmla", 24), ("neon", "f64", "fmla", 24), ("neon-dot", "i8", "sdot", 24), ("neon-bf16", "bf16", "bfdot", 24)],
)
def test_sums_stay_in_registers(isa, dtype, instruction, count):
    loop = inner_loop(GemmSpec(dtype, isa=isa_for(target(isa)).name), "tile6", isa)
    assert len(re.findall(rf"\b{instruction}\b", loop)) == count
    assert "[sp" not in loop
