"""Writes docs/reference/operators.md: every operator of ATen that a graph can hold, and how it is treated.

    python -m stepwell.tools.docs.operators            write the page of this checkout
    python -m stepwell.tools.docs.operators --check    exit with 1 if the page of this checkout is old

The page follows the tables that compile: rules, decompositions, library calls by choice. Which dtypes torch has an
operator for is read from its own list of operators (torch.testing's OpInfo); the page names the torch that it was
written with.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...lowering.fx.decompositions import decomposition_table
from ...lowering.fx_to_nd import load_rules
from ...lowering.fx_to_nd.calls.externs import TYPE_NEUTRAL
from ...lowering.fx_to_nd.calls.library import library_reason
from ...lowering.fx_to_nd.core.metadata import COMPUTED, element_type
from ...lowering.fx_to_nd.core.registry import find_rule
from ...lowering.fx_to_nd.regions import higher_order
from ...lowering.fx_to_nd.rules.complex_numbers import has_rule
from ...lowering.fx_to_nd.rules.pointwise import CPU_ONLY, UNARY

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/operators.md"
_NAMESPACES = ("aten", "prims")
_RULE, _OURS, _TORCHS, _CALL, _FALLBACK = "rule", "ours", "torch's", "library", "fallback"
_LETTERS = {
    "b": (torch.bool,),
    "i": (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    "h": (torch.float16, torch.bfloat16),
    "f": (torch.float32, torch.float64),
    "c": (torch.complex64, torch.complex128),
}
_HEAD = """# Operators

Written by `python -m stepwell.tools.docs.operators` with torch {version}; a test keeps it current. One line an operator of `aten` and
`prims` that a graph of AOTAutograd can hold. Not listed: in-place and `out=` forms (a graph is functional), and operators that
torch itself takes apart before any backend sees them.

| treated by | meaning | operators |
|---|---|---|
| rule `file` | a rule in that file of `lowering/fx_to_nd/`: kernels on both targets | {rule} |
| ours | taken apart by a decomposition of `lowering/fx/decompositions.py` | {ours} |
| torch's | taken apart by torch's decomposition (`torch._decomp`, `torch._refs`) into operators of this page | {torchs} |
| library: reason | one call of torch's kernel by choice | {library} |
| fallback | one call of torch's kernel for want of a rule (`counters["fallback"]`) | {fallback} |

A rule that does not cover the arguments of a call (a symbolic number where it wants a known one, a row that is too long to be sorted by it)
makes that call a library call. `some overloads` stands where overloads of one operator are treated differently.

Dtypes: `b` bool, `i` integers, `h` f16 and bf16, `f` f32 and f64, `c` complex; those after a bar are computed by a library call (complex
numbers are computed as pairs of real ones, where a rule of `fx_to_nd/complex_numbers.py` says how; casts and moves take every dtype).
Empty: torch's list does not say. GPU: `=` is as on the CPU. What a kernel cannot hold there is a library call.
"""


@dataclass(frozen=True)
class Operator:
    """One packet: its name (`aten.add`), how it is treated (one of the keys of the head's table), what by (a file or a
    reason), whether only some overloads are, the dtypes computed by kernels and by a call, and its word for GPUs."""

    name: str
    treatment: str
    by: str
    partly: bool
    dtypes: str
    gpu: str


def packets() -> dict[str, list[Any]]:
    """Name -> the overloads of each operator packet that take or give tensors and write to nothing."""
    found: dict[str, list[Any]] = defaultdict(list)
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = full.partition("::")
        if namespace not in _NAMESPACES or rest.startswith("_test"):
            continue
        name, _, overload = rest.partition(".")
        target = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        schema = target._schema
        if any(a.is_write for a in schema.arguments) or "Dimname" in str(schema):
            continue
        if any("Tensor" in str(a.type) for a in (*schema.arguments, *schema.returns)):
            found[f"{namespace}.{name}"].append(target)
    return found


def _treatment(target: Any, table: dict[Any, Any]) -> tuple[str, str] | None:
    """How one overload is treated and what by; None when no graph holds it."""
    rule = find_rule(target)
    if rule is not None:
        return _RULE, rule.__module__.rpartition(".")[2]
    if target in table:
        ours = not table[target].__module__.startswith("torch")
        return (_OURS, "") if ours else (_TORCHS, "")
    if target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return None
    reason = library_reason(target._schema.name.split("::")[1])
    return (_FALLBACK, "") if reason is None else (_CALL, reason)


def _supported() -> dict[str, set[torch.dtype]]:
    """ATen name -> dtypes that torch computes it in on the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, set[torch.dtype]] = defaultdict(set)
    for op in op_db:
        names = {op.aten_name, op.aten_backward_name, op.name.rpartition(".")[2], op.name.replace(".", "_")}
        for name in names - {None}:
            found[str(name)].update(op.supported_dtypes("cpu"))
    return found


def _handles(name: str, letter: str) -> bool:
    """Whether kernels compute an operator of ATen in the dtypes of a letter."""
    if letter == "c":
        return name.startswith("aten.") and has_rule(name.partition(".")[2])
    return element_type(_LETTERS[letter][0]) in COMPUTED


def _dtypes(name: str, treatment: str, neutral: bool, supported: dict[str, set[torch.dtype]]) -> str:
    """The letters of the dtypes computed by kernels, a bar, those computed by a call."""
    known = supported.get(name.partition(".")[2], set())
    here = [letter for letter, dtypes in _LETTERS.items() if known.intersection(dtypes)]
    if treatment in (_CALL, _FALLBACK):
        return f"| {' '.join(here)}".replace("|", "\\|") if here else ""
    own = [c for c in here if neutral or _handles(name, c)]
    rest = [c for c in here if c not in own]
    return " ".join(own) + (f" \\| {' '.join(rest)}" if rest else "")


def operators() -> list[Operator]:
    """All lines of the page, by name."""
    load_rules()
    table, supported = decomposition_table(), _supported()
    lines = []
    for name, targets in packets().items():
        kinds = [kind for t in targets if (kind := _treatment(t, table)) is not None]
        if not kinds:
            continue
        (treatment, by), _ = Counter(kinds).most_common(1)[0]
        partly = len({kind for kind, _ in kinds}) > 1
        neutral = any(t in TYPE_NEUTRAL for t in targets)
        function = UNARY.get(name.partition(".")[2])
        gpu = "library call" if function is not None and function[0] in CPU_ONLY else "="
        lines.append(Operator(name, treatment, by, partly, _dtypes(name, treatment, neutral, supported), gpu))
    return lines


def _line(op: Operator) -> str:
    by = {_RULE: f"rule `{op.by}`", _CALL: f"library: {op.by}"}.get(op.treatment, op.treatment)
    return f"| {op.name} | {by}{' (some overloads)' if op.partly else ''} | {op.dtypes} | {op.gpu} |"


def page(lines: list[Operator]) -> str:
    """The text of the page."""
    counts = Counter(op.treatment for op in lines)
    head = _HEAD.format(version=torch.__version__.partition("+")[0], torchs=counts[_TORCHS], **{
        key: counts[key] for key in (_RULE, _OURS, "library", "fallback")
    })  # fmt: skip
    rows = "\n".join(map(_line, lines))
    inlined, called = (", ".join(f"`{n}`" for n in sorted(names)) for names in (higher_order.INLINED, higher_order._RULES))
    return (
        f"{head}\n## Higher-order operators\n\nIn the function's own code: {inlined}. A call of a compiled body: {called}. Any other runs "
        f"as it is, in eager.\n\n## Operators\n\n| operator | treated by | dtypes | GPU |\n|---|---|---|---|\n{rows}\n"
    )


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.tools.docs.operators", description="Writes docs/reference/operators.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is old")
    options = parser.parse_args(arguments)
    text = page(operators())
    if options.check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    print(f"{PAGE}: {text.count(chr(10) + '| aten.') + text.count(chr(10) + '| prims.')} operators")
    return 0


if __name__ == "__main__":
    sys.exit(main())
