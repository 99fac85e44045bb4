"""What users add to the compiler, as text for keys of caches: passes, import rules, targets. All raise Uncacheable where something has no
lasting text.

Tables are looked for among the modules that are loaded: where nobody has imported one, nothing is registered in it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ...passes.fingerprint.code_modules import Uncacheable
from ..options.options import Options

if TYPE_CHECKING:
    from ...passes.manager.pass_manager import Pipeline

_OURS = __name__.partition(".")[0]


def passes_text(kinds: Iterable[str], options: Options) -> list[tuple[str, str]]:
    """The pipeline of each kind of device into which users have put something. A stage that only one of them has is no error of another."""
    user = _loaded("passes.manager.user")
    if not (options.passes or options.pipeline or (user is not None and user.registered())):
        return []
    from ...passes.manager.errors import PipelineError
    from ...passes.manager.pipelines import DEVICES, default_pipeline

    found: list[tuple[str, str]] = []
    for name in sorted({DEVICES.get(kind, DEVICES["cpu"]) for kind in set(kinds) or {"cpu"}}):
        try:
            pipeline = _pipeline(name, options)
        except PipelineError:
            continue
        if options.pipeline or pipeline != default_pipeline(name, with_user_passes=False):
            found.append((name, pipeline.fingerprint()))
    return found


def _pipeline(target: str, options: Options) -> Pipeline:
    from ...passes.manager.pipelines import default_pipeline

    return default_pipeline(target, {"passes": options.passes, "pipeline": options.pipeline})


def rules_text() -> list[tuple[str, str]]:
    """The import rules that were registered from outside: operator, and what its rule does."""
    registry, user = _loaded("lowering.fx_to_nd.core.registry"), _loaded("lowering.fx_to_nd.core.user_rules")
    registered = {} if user is None else user.registered()
    rules = () if registry is None else registry.REGISTRY.items()
    foreign = [(str(key), rule) for key, rule in rules if key not in registered and _is_foreign(rule)]
    foreign += registered.items()
    return [(name, meaning(rule, f"the rule of {name}")) for name, rule in sorted(foreign, key=lambda item: item[0])]


def _is_foreign(rule: Any) -> bool:
    return str(getattr(rule, "__module__", "")).partition(".")[0] != _OURS


def targets_text(kinds: Iterable[str], options: Options) -> list[tuple[Any, ...]]:
    """The targets of users that compile for these kinds of devices."""
    targets = _loaded("targets.target")
    found: list[tuple[Any, ...]] = []
    if targets is None:
        return found
    for kind in sorted(kinds):
        target = targets.target_of(kind)
        if target.name in targets.BUILT_IN:
            continue
        if target.version is None:
            raise Uncacheable(f"target '{target.name}' has no version")
        does = meaning(type(target), f"target '{target.name}'")
        machine = str(target.machine(kind))
        found.append((kind, target.name, target.version, target.fallback, does, machine, _pipeline(target.name, options).fingerprint()))
    return found


def meaning(value: Any, what: str, lasting: bool = True) -> str:
    """The hash of what a function, class or value means, see Fingerprint."""
    from ...passes.fingerprint.fingerprint import DIGESTS, Fingerprint

    if torch.Tensor not in DIGESTS:
        DIGESTS.update(_digests())
    told = Fingerprint(lasting)
    told.add(value, what)
    return told.hexdigest()


def _loaded(name: str) -> Any:
    return sys.modules.get(f"{_OURS}.{name}")


def tensor_digest(value: torch.Tensor) -> str:
    """The hash of a dense tensor's elements, type, layout and kind of device. Raises Uncacheable for another one."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_meta:
        raise Uncacheable(f"a constant is a {type(value).__name__} on {value.device}, {value.layout}")
    head = repr((value.device.type, value.dtype, tuple(value.shape), value.stride(), value.is_conj(), value.is_neg()))
    return hashlib.sha256(head.encode() + tensor_bytes(value)).hexdigest()


def tensor_bytes(value: torch.Tensor) -> bytes:
    """The elements of a tensor in row-major order."""
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).cpu().numpy().tobytes() if flat.numel() else b""


def _array_digest(value: Any) -> str:
    if value.dtype.hasobject:
        raise Uncacheable("an array holds Python objects")
    return hashlib.sha256(repr((value.dtype.str, value.shape)).encode() + value.tobytes()).hexdigest()


def _digests() -> dict[type, Callable[[Any], str]]:
    import numpy

    return {
        torch.Tensor: tensor_digest,
        torch._ops.OpOverload: lambda v: f"{v} {v._schema}",
        torch._ops.OpOverloadPacket: str,
        torch._ops.HigherOrderOperator: lambda v: v.name(),
        numpy.ndarray: _array_digest,
        numpy.generic: repr,
        numpy.dtype: repr,
        **dict.fromkeys((torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size), repr),
    }
