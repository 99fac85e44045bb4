"""stepwell: an MLIR-style compiler for PyTorch.

Use it with ``torch.compile(model, backend="stepwell")``; the backend is found through its entry point and needs no
import.  This module holds the public names.  Each is loaded when first asked for (PEP 562): importing ``stepwell``
imports neither torch nor xdsl nor llvmlite.
"""

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC: dict[str, str] = {
    "Exploration": ".tools.explore.main",
    "Explanation": ".tools.explain.main",
    "StepwellError": ".errors",
    "Target": ".targets.target",
    "WrongResult": ".tools.check",
    "check": ".tools.check",
    "counters": ".tools.compiled.counters",
    "export": ".tools.package.export",
    "explain": ".tools.explain.main",
    "explore": ".tools.explore.main",
    "export_c": ".tools.package.c.export",
    "find_fault": ".tools.check.find_fault",
    "load": ".targets.package.load",
    "list_mode_options": ".tools.options.options",
    "list_options": ".tools.options.options",
    "loop_order": ".tools.extensions.loop_directives",
    "no_fuse": ".tools.extensions.fusion_directives",
    "Reduced": ".tools.reduce.graph",
    "reduce": ".tools.reduce.graph",
    "register_implementation": ".tools.rewrite.implementations",
    "register_pass": ".passes.manager.user",
    "register_rule": ".lowering.fx_to_nd.core.user_rules",
    "register_compile_mode": ".tools.backend.compile_modes",
    "register_target": ".targets.target",
    "replace": ".tools.rewrite.pair_rewrite",
    "reset_counters": ".tools.compiled.counters",
    "tile": ".tools.extensions.loop_directives",
    "unregister_implementations": ".tools.rewrite.implementations",
    "unregister_pass": ".passes.manager.user",
    "unregister_rule": ".lowering.fx_to_nd.core.user_rules",
    "unregister_target": ".targets.target",
    "wait_for_compilations": ".tools.backend.compile_modes",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    """Load public `name` from the module that owns it, once."""
    home = _PUBLIC.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = globals()[name] = getattr(import_module(home, __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
