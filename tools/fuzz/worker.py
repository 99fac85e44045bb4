"""A process that tries random programs.  It may crash, or be killed when it takes too long."""

from __future__ import annotations

import os
import traceback
from typing import Any

from ..worker_pool import serve


def main() -> None:
    """Serve requests until the input ends."""
    os.environ["STEPWELL_ON_FAILURE"] = "raise"
    import logging
    import warnings

    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    serve(answer)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Write the program of a kind and a seed and check it on a device: verdict, reason, source; with `shrink` (seconds) a smaller one.
    With `torch_alone` it says whether torch's own functionalised program is right; this may crash, too."""
    from .case import Case
    from .check import on, torch_differs
    from .kinds import KINDS
    from .shrink import shrunk

    kind, seed, device = request["kind"], request["seed"], request["device"]
    try:
        with on(device):
            case = KINDS[kind](seed, device)
    except Exception:  # a fault of the generator
        return {"verdict": "skipped", "why": f"no program: {traceback.format_exc()[-1500:]}", "source": ""}
    command = f"stepwell fuzz --kinds {kind} --seed {seed} --count 1 --device {device}"
    if "torch_alone" in request:
        other = torch_differs(case, "") if isinstance(case, Case) else ""
        source = "" if other else case.source(f"{command}\n{request['torch_alone']}", device)
        return {"verdict": "skipped" if other else "right", "why": other, "source": source, "suffix": case.suffix}
    try:
        found, why = case.verdict(device)
    except Exception:
        found, why = "wrong", f"the fuzzer itself: {traceback.format_exc()[-3000:]}"
    source, note = "", f"{command}\n{why}"
    if found == "wrong" and "shrink" in request:
        source = shrunk(case, why, f"reduced from {note}", device, request["shrink"])
    elif found == "wrong":
        source = case.source(note, device)
    return {"verdict": found, "why": why, "source": source, "suffix": case.suffix}


if __name__ == "__main__":
    main()
