"""The rates of this machine, as the price of work knows them: `stepwell bench calibrate --device cuda [--out FILE]`.

On a GPU: a copy, products by type of 8192 x 8192 matrices, the time from one small kernel to the next. What takes a kernel of ours or many
shapes to measure (`cache_gbs`, `cache_mb`, `program_gbs`, `convolution_us`, `generated`, `library`) stays as it is. With `--out` the GPU's
entry in that file is replaced, or gets the rate of another card's memory. On a CPU the speeds that stepwell keeps in its cache folder are
measured again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from ...passes.cost.machine.gpu import Gpu
from ...passes.cost.machine.gpu_rates import rates_of
from ...targets.cpu import machine as cpu

Clock = Callable[[Callable[[], Any]], float]
"""Milliseconds of a call on the device."""

SIDE = 8192
"""Rows and columns of the matrices that are multiplied."""
COPIED_BYTES = 2**30
OTHER_MEMORY_SHARE = 0.25
"""By how much the rate of a card's memory differs from that of the usual one before it is another memory."""
SMALL_KERNELS = 200
"""Kernels in a row whose starts are timed."""


def calibrate(device: str, clock: Clock) -> dict[str, Any]:
    """The figures of a machine, printed; for a GPU its name -> its entry in gpus.json."""
    if device == "cpu":
        found = asdict(cpu.host_machine(torch.get_num_threads(), fresh=True))
        print(json.dumps(found, indent=1))
        return found
    from ...targets.triton.kernels import device_multiprocessors, device_target

    name = device_target(device).name
    known, found = asdict(rates_of(name)), gpu_entry(Gpu(name, device_multiprocessors(device)), clock)
    print(json.dumps({name: found}, indent=1))
    return {name: with_card(known, found)}


def with_card(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The entry of an architecture with what was measured of a card: of one with another memory than the usual card has, that alone."""
    if abs(found["memory_gbs"] / known["memory_gbs"] - 1) < OTHER_MEMORY_SHARE:
        return found
    return known | {"other_cards": {**known["other_cards"], found["card"]: found["memory_gbs"]}}


def gpu_entry(gpu: Gpu, clock: Clock, side: int = SIDE, copied: int = COPIED_BYTES, device: str = "cuda") -> dict[str, Any]:
    """The entry of a GPU. `side`: of the matrices; `copied`: bytes of the tensor that is copied from memory."""
    known = asdict(rates_of(gpu.name))
    rates = {kind: rate for kind in known["tflops"] if (rate := _product_tflops(kind, side, clock, device)) is not None}
    return known | {
        "card": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "source": f"measured {date.today()}, torch {torch.__version__}: stepwell bench calibrate",
        "multiprocessors": gpu.multiprocessors,
        "memory_gbs": round(_copy_gbs(copied, clock, device)),
        "start_us": round(_start_us(clock, device), 2),
        "tflops": known["tflops"] | rates,
    }


def replace_entry(path: str | Path, found: dict[str, Any]) -> None:
    """Put entries into a file of them. SystemExit where it is no such file."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8")) if Path(path).exists() else {}
        Path(path).write_text(json.dumps(table | found, indent=2) + "\n", encoding="utf-8")
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"--out {path}: {error}") from None


def _copy_gbs(size: int, clock: Clock, device: str) -> float:
    a = torch.empty(size // 4, device=device).normal_()
    b = torch.empty_like(a)
    return 2 * size / clock(lambda: b.copy_(a)) / 1e6


def _start_us(clock: Clock, device: str) -> float:
    """From one small kernel to the next."""
    x = torch.ones(32, device=device)

    def many() -> None:
        for _ in range(SMALL_KERNELS):
            x.add_(1.0)

    return clock(many) * 1e3 / SMALL_KERNELS


def _product_tflops(kind: str, side: int, clock: Clock, device: str) -> float | None:
    """Tflop/s of a product of matrices of random numbers; None where torch has none of that type there."""
    try:
        call = _PRODUCTS[kind](side, device)
        call()
    except (RuntimeError, NotImplementedError, ValueError, AttributeError):
        return None
    milliseconds = clock(call)
    return round(2 * side**3 / milliseconds / 1e9, 1)


def _plain(dtype: torch.dtype, precision: str = "highest") -> Callable[[int, str], Callable[[], Any]]:
    def build(side: int, device: str) -> Callable[[], Any]:
        x, y = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))

        def call() -> Any:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision(precision)
            try:
                return x @ y
            finally:
                torch.set_float32_matmul_precision(before)

        return call

    return build


def _int8(side: int, device: str) -> Callable[[], Any]:
    x, y = (torch.randint(-128, 128, (side, side), device=device, dtype=torch.int8) for _ in range(2))
    return lambda: torch.ops.aten._int_mm(x, y)


def _float8(fast: bool) -> Callable[[int, str], Callable[[], Any]]:
    """`fast`: the unit rounds all of a sum, else it is added up as float32."""

    def build(side: int, device: str) -> Callable[[], Any]:
        x, y = (torch.randn(side, side, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=device)
        return lambda: torch.ops.aten._scaled_mm(x, y.t(), one, one, None, None, torch.bfloat16, fast)

    return build


_PRODUCTS: dict[str, Callable[[int, str], Callable[[], Any]]] = {
    "bf16": _plain(torch.bfloat16), "f16": _plain(torch.float16), "tf32": _plain(torch.float32, "high"), "f32": _plain(torch.float32),
    "f64": _plain(torch.float64), "i8": _int8, "f8": _float8(True), "f8_f32": _float8(False),
}  # fmt: skip
"""Type, as the rates name it -> what makes a product of it."""
