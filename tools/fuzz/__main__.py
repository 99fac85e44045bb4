"""Random programs against eager and the interpreters.

    stepwell fuzz --seconds 120 --jobs 2 --keep found

Prints the seed, then each failure as it is found, and a summary.  The exit code is 1 where something failed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path
from time import monotonic, time
from typing import Any

from ...errors import StepwellError
from ..worker_pool import DIED, Pool
from .case import FuzzError
from .check import DEVICES
from .kinds import KINDS

SHRINK_SECONDS = 45.0
"""So long a failure is reduced."""
MAX_SHRUNK = 8
"""So many failures of a run are reduced."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="stepwell fuzz", description="Random programs against eager and the interpreters.")
    made.add_argument("--seconds", type=float, help="how long to look (default: 60, or until --count programs are tried)")
    made.add_argument("--count", type=int, help="how many programs to try")
    made.add_argument("--seed", type=int, help="number of the first program (default: from the clock)")
    made.add_argument("--kinds", default=",".join(KINDS), metavar="NAMES", help=f"kinds of programs (default: all): {', '.join(KINDS)}")
    made.add_argument("--device", default=",".join(DEVICES), metavar="NAMES", help="cpu, gpu, small-gpu (all; GPUs are interpreted)")
    made.add_argument("--jobs", type=int, default=1, metavar="N", help="programs at once (default: 1)")
    made.add_argument("--keep", type=Path, metavar="DIR", help="write failures there, as files that show them, whole and reduced")
    made.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="longest time for one program (default: 60)")
    made.add_argument("--verbose", action="store_true", help="say what was skipped, and why")
    return made


def chosen(text: str, known: Any, what: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise FuzzError(f"there is no {what} '{name}'; there are: {', '.join(known)}")
    return names


class Fuzz:
    """One run: which programs are tried, and what came of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.kinds = chosen(args.kinds, KINDS, "kind")
        self.devices = chosen(args.device, DEVICES, "device")
        self.seed = args.seed if args.seed is not None else int(time()) % 1_000_000 * 1000
        self.seconds = args.seconds if args.seconds is not None else (60.0 if args.count is None else float("inf"))
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.waiting: list[dict[str, Any]] = []
        """What is to be asked about failures: whether torch alone fails too, and how small they can be."""

    def request(self, number: int) -> dict[str, Any]:
        """The program of a number; its device is drawn, for three quarters the first one, which is the fastest."""
        seed = self.seed + number
        rng = random.Random(seed)
        device = self.devices[0] if rng.random() < 0.75 or len(self.devices) == 1 else rng.choice(self.devices[1:])
        return {"kind": self.kinds[number % len(self.kinds)], "seed": seed, "device": device}

    def run(self) -> int:
        end = monotonic() + self.seconds
        print(f"seed {self.seed}, kinds {','.join(self.kinds)}, devices {','.join(self.devices)}", flush=True)
        number = 0
        with Pool(self.args.jobs, "stepwell.tools.fuzz.worker", seconds=self.args.limit) as pool:
            try:
                while True:
                    more = monotonic() < end and (self.args.count is None or number < self.args.count)
                    if more and (worker := pool.idle) is not None:
                        worker.begin(self.request(number), self.args.limit)
                        number += 1
                        continue
                    if self.waiting and (worker := pool.idle) is not None:
                        asked = self.waiting.pop(0)
                        worker.begin(asked, self.args.limit + (2 * SHRINK_SECONDS if "shrink" in asked else 0))
                        continue
                    if not pool.busy:
                        break
                    for request, answer in pool.wait():
                        self.note(request, answer)
            except KeyboardInterrupt:
                print("interrupted")
        return self.summary()

    def note(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        if DIED in answer:
            died = self.died(request, answer[DIED])
            if died is None:
                return
            answer = died
        elif "torch_alone" in request and answer["verdict"] == "right":
            answer = {**answer, "verdict": "wrong", "why": request["torch_alone"]}
        if "shrink" in request:
            self.keep(request, answer, "-small")
            return
        verdict, name = answer["verdict"], f"{request['kind']}-{request['seed']}-{request['device']}"
        self.counts[f"{request['kind']} {verdict}"] += 1
        if verdict == "skipped" and self.args.verbose:
            print(f"skipped {name}: {answer['why']}", flush=True)
        if verdict != "wrong":
            return
        self.failures.append(f"{name}: {answer['why'].splitlines()[0] if answer['why'] else ''}")
        print(f"\nFAILED {name}\n{answer['source'] or answer['why']}\n", flush=True)
        self.keep(request, answer)
        reducible = answer["source"] and "torch_alone" not in request
        if reducible and self.args.keep is not None and len(self.failures) <= MAX_SHRUNK:
            self.waiting.append({**request, "shrink": SHRINK_SECONDS})

    def died(self, request: dict[str, Any], why: str) -> dict[str, Any] | None:
        """What to say of a program whose process ended, or took too long. None where torch alone is tried first, in another process:
        tracing and functionalisation are torch's own, and may be what crashes."""
        if "torch_alone" in request:
            return {"verdict": "skipped", "why": f"torch's functionalised program, too: {why}", "source": ""}
        if why.startswith("no answer") and request["device"] != "cpu":  # interpreters are slow
            return {"verdict": "skipped", "why": why, "source": ""}
        if "shrink" not in request:
            self.waiting.append({**request, "torch_alone": why})
            return None
        return {"verdict": "wrong", "why": why, "source": ""}

    def keep(self, request: dict[str, Any], answer: dict[str, Any], ending: str = "") -> None:
        """Write the source of a failure, or what is known of it, where failures are kept."""
        name = f"{request['kind']}-{request['seed']}-{request['device']}{ending}"
        text = answer["source"]
        if ending and text:
            print(f"\nREDUCED {name}\n{text}\n", flush=True)
        if self.args.keep is None or (ending and not text):
            return
        self.args.keep.mkdir(parents=True, exist_ok=True)
        text = text or f'"""{request}\n{answer["why"]}\n"""\n'
        (self.args.keep / f"{name}.{answer.get('suffix', 'py')}").write_text(text)

    def summary(self) -> int:
        for name, count in sorted(self.counts.items()):
            print(f"{name}: {count}")
        for failure in self.failures:
            print(f"failed: {failure}")
        print(f"{len(self.failures)} failures, seed {self.seed}")
        return int(bool(self.failures))


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 where nothing failed, 1 where something did, 2 for what cannot be tried."""
    try:
        return Fuzz(parser().parse_args(arguments)).run()
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
