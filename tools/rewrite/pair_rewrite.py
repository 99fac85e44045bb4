"""Rewrites given as two functions in torch's language: `stepwell.replace(pattern, replacement)` is a pass on tensors.

The pattern is traced once to find places of its structure, whatever their sizes and element types. At each such place pattern and
replacement are traced again with tensors like those that are there: the pattern must then be exactly what stands in the graph, and the
replacement must give the same types. So functions may look at sizes and types, as ordinary torch code does.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation

from ...dialects import loop, nd
from ...dialects.expr import free_syms
from ...dialects.nd.types import FLOATS, TensorType
from ...lowering.fx_to_nd.core.builder import number_attr
from ...lowering.fx_to_nd.core.metadata import device_name, element_type
from ...passes.fingerprint.code_modules import Uncacheable
from ...passes.manager.errors import PassError, PipelineError
from ...passes.manager.instrumentation import remark, statistic
from ...passes.manager.pass_manager import Pass, kebab
from ...passes.nd.algebra.graph_match import Found, Number, Pattern, matches, put_in_place
from ..extensions.cache_keys import meaning
from .pair_trace import PatternTraceError, Ranges, Traced, examples, is_traceable, trace, with_powers, with_symbols
from .pair_verify import compare, small

WAYS = 32
"""How many ways in which a pattern can stand at one place are looked at."""

LOWERED = frozenset((loop.NestOp, loop.ContractOp))
"""What is in a function that went through nd-to-loop."""

EXAMPLE = (5, 7)
"""Sizes of the tensors that stand for parameters without an example."""


@dataclass(frozen=True)
class Match:
    """A place where a pattern stands, as `check` sees it. `inputs`: for each parameter of the pattern a tensor without memory that has
    sizes, element type and device of what is there, or the number; `match["x"]` is short for `match.inputs["x"]`. `operation`: what
    computes the (first) result, an operation of `nd`."""

    inputs: Mapping[str, Any]
    operation: Operation

    def __getitem__(self, name: str) -> Any:
        return self.inputs[name]


@dataclass(frozen=True)
class ReplacePass(Pass):
    """A pass that puts one function in the place of another; made by `replace`."""

    pair: ClassVar[RewritePair]

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        type(self).pair.run(op)

    def identity(self) -> str:
        """What the pass does, as text for keys of caches. Raises Uncacheable."""
        return type(self).pair.identity()


def replace(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    example_inputs: Sequence[Any] | None = None,
    *,
    check: Callable[[Match], Any] | None = None,
    name: str | None = None,
    verify: bool | float = True,
) -> type[ReplacePass]:
    """A pass for `register_pass("nd", ...)` that computes by `replacement` what stands in a graph as `pattern`.

    Both are functions of tensors and numbers, with the same parameters, that return a tensor or a tuple of them, in ordinary torch code.
    Parameters of the pattern stand for any tensors, of any sizes and element types. `example_inputs` has a tensor or a number for each: its
    sizes serve to trace the function once (the default is 5 by 7, float32; a parameter with a default is a number). A number matches
    any constant; choose an unusual one, such as 0.37, since it is found by its value. What the pattern computes inside must not be used by
    anything else in the graph. `check` is called for each match and refuses it by returning False. `name` is the name of the pass.

    Both functions are called with small random tensors on the CPU, now (without a `check`) and for each new combination of types and
    sizes that is found. `verify` is the tolerance of their results, relative to the largest value (True: by element type), or False.

    Raises PipelineError for functions that cannot be a pair, with the reason."""
    parameters = _parameters(pattern, "pattern")
    if len(_parameters(replacement, "replacement")) != len(parameters):
        raise PipelineError(f"pattern {_name(pattern)} and replacement {_name(replacement)} differ in the number of parameters")
    if check is not None and not callable(check):
        raise PipelineError(f"check takes a function of a match, not {check!r}")
    if not isinstance(verify, (bool, int, float)) or not 0 <= verify < math.inf:
        raise PipelineError(f"verify takes True, False or a relative tolerance such as 1e-3, not {verify!r}")
    if name is None:
        if "<lambda>" in (pattern.__name__, replacement.__name__):
            raise PipelineError('a pair with a lambda needs a name: replace(..., name="...")')
        name = f"{kebab(pattern.__name__).replace('_', '-')}-to-{kebab(replacement.__name__).replace('_', '-')}"
    pair = RewritePair(pattern, replacement, tuple(parameters), _examples(pattern, parameters, example_inputs), check, verify)
    pair.test()
    doc = inspect.getdoc(replacement) or inspect.getdoc(pattern) or f"{_name(replacement)} in the place of {_name(pattern)}."
    qualified = f"replace({pattern.__qualname__}, {replacement.__qualname__})"
    namespace = {"name": name, "pair": pair, "__doc__": doc, "__module__": pattern.__module__, "__qualname__": qualified}
    return type("ReplacePass", (ReplacePass,), namespace)


def _name(fn: Callable[..., Any]) -> str:
    return f"'{getattr(fn, '__name__', fn)}'"


def _parameters(fn: Any, role: str) -> dict[str, inspect.Parameter]:
    if not callable(fn) or not hasattr(fn, "__name__"):
        raise PipelineError(f"the {role} must be a Python function, not {fn!r}")
    try:
        found = dict(inspect.signature(fn).parameters)
    except ValueError as error:
        raise PipelineError(f"the {role} {_name(fn)} has no signature: wrap it in a Python function") from error
    for parameter in found.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise PipelineError(f"parameter '{parameter.name}' of the {role} {_name(fn)} must be a plain one: no *args, no keywords alone")
    return found


def _examples(fn: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], given: Sequence[Any] | None) -> tuple[Any, ...]:
    if given is None:
        given = [torch.empty(EXAMPLE) if p.default is p.empty else p.default for p in parameters.values()]
    if isinstance(given, torch.Tensor) or len(given) != len(parameters):
        count = 1 if isinstance(given, torch.Tensor) else len(given)
        raise PipelineError(f"pattern {_name(fn)} has {len(parameters)} parameters ({', '.join(parameters)}), example_inputs has {count}")
    return tuple(_example(fn, name, value) for name, value in zip(parameters, given, strict=True))


def _example(fn: Callable[..., Any], name: str, value: Any) -> TensorType | Number:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if not isinstance(value, torch.Tensor):
        raise PipelineError(f"the example for '{name}' of {_name(fn)} must be a tensor or a number, not {type(value).__name__}")
    if any(not isinstance(n, int) for n in value.shape) or value.layout is not torch.strided:
        raise PipelineError(f"the example for '{name}' of {_name(fn)} must be a dense tensor of known sizes")
    return TensorType.get([int(n) for n in value.shape], element_type(value.dtype), device_name(value.device))


@dataclass
class RewritePair:
    """A pattern, what takes its place, and what is known of them by now."""

    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    parameters: tuple[str, ...]
    examples: tuple[TensorType | Number, ...]
    check: Callable[[Match], Any] | None
    verify: bool | float
    _verified: set[str] = field(default_factory=set)
    _traces: dict[Any, Traced | PatternTraceError] = field(default_factory=dict)
    _structures: dict[Any, list[Structure]] = field(default_factory=dict)
    _traced_meaning: str | None = None

    # ---- when it is made

    def test(self) -> None:
        """Trace both functions for the examples. Raises PipelineError."""
        self._forget_old_traces()
        try:
            old = self._traced(self.pattern, self.examples, {}, "default")
        except PatternTraceError as error:
            raise PipelineError(f"pattern {_name(self.pattern)} cannot be traced: {error}{self._hint()}") from error
        self._test_pattern(old.plain)
        try:
            new = self._traced(self.replacement, self.examples, {}, "default")
        except PatternTraceError as error:
            raise PipelineError(f"replacement {_name(self.replacement)} cannot be traced: {error}") from error
        if difference := _difference(old, new):
            raise PipelineError(f"replacement {_name(self.replacement)} {difference} as pattern {_name(self.pattern)} does")
        self._structures_for(self.examples, "default")
        for arguments in (self.examples, with_powers(self.examples)) if self.check is None else ():  # a check waits for its match
            if wrong := self._wrong(arguments, {}):
                raise PipelineError(wrong)

    def _wrong(self, arguments: Sequence[TensorType | Number], ranges: Ranges) -> str:
        """That the replacement computes something else than the pattern, for tensors like these; nothing where it does not, or was asked
        before, or where `check` would refuse the small ones."""
        key = _listed(arguments)
        if self.verify is False or key in self._verified:
            return ""
        self._verified.add(key)
        sizes = small(arguments, ranges)
        if self.check is not None and sizes != tuple(arguments) and not self._wants(sizes):
            return ""
        tolerance = None if self.verify is True else float(self.verify)
        difference = compare(self.pattern, self.replacement, self.parameters, sizes, tolerance)
        if not difference:
            return ""
        names = f"replacement {_name(self.replacement)} does not compute what pattern {_name(self.pattern)} does"
        return f"{names}: {difference}; verify=TOLERANCE allows more, verify=False everything"

    def _wants(self, arguments: Sequence[TensorType | Number]) -> bool:
        """Whether `check` would take a match with tensors of these sizes."""
        assert self.check is not None
        try:
            owner = self._traced(self.pattern, arguments, {}, "default").plain.outputs[0].owner
            made, _ = examples(arguments, {})
            return isinstance(owner, Operation) and bool(self.check(Match(dict(zip(self.parameters, made, strict=True)), owner)))
        except Exception:  # a check written for places in graphs says its mistakes there
            return False

    def _hint(self) -> str:
        given = [str(e) for e in self.examples]
        return f" (it was called with {', '.join(given)}; example_inputs says with what)" if given else ""

    def _test_pattern(self, pattern: Pattern) -> None:
        tensors = [n for n, e in zip(self.parameters, self.examples, strict=True) if isinstance(e, TensorType)]
        for name, argument in zip(tensors, pattern.inputs, strict=True):
            if not argument.uses:
                raise PipelineError(f"pattern {_name(self.pattern)} does not use '{name}', so that nothing would say what it is")
            if argument in pattern.outputs:
                raise PipelineError(f"pattern {_name(self.pattern)} returns its argument '{name}': there is nothing to find")
        if len(set(pattern.outputs)) != len(pattern.outputs):
            raise PipelineError(f"pattern {_name(self.pattern)} returns the same value twice")
        found = set(_numbers(pattern, self._numbers).values())
        for name in self._numbers:
            if name not in found:
                raise PipelineError(
                    f"the number '{name}' ({self._numbers[name]}) stands nowhere in pattern {_name(self.pattern)}: a number can be read "
                    "off a graph only where an operation uses it as it is"
                )

    @property
    def _numbers(self) -> dict[str, Number]:
        """The parameters that are numbers, with their examples."""
        return {n: e for n, e in zip(self.parameters, self.examples, strict=True) if not isinstance(e, TensorType)}

    def _traced(self, fn: Callable[..., Any], arguments: Sequence[TensorType | Number], ranges: Ranges, numerics: str) -> Traced:
        """`trace`, remembered. Raises PatternTraceError."""
        names = {str(s) for a in arguments if isinstance(a, TensorType) for e in a.dims for s in free_syms(e)}
        known = tuple((n, ranges[n].bounds) for n in sorted(names) if n in ranges)
        key = (fn is self.pattern, tuple((type(a), a) for a in arguments), known, numerics)
        found = self._traces.get(key)
        if found is None:
            try:
                found = trace(fn, arguments, ranges, numerics)
            except PatternTraceError as error:
                found = error
            self._traces[key] = found
        if isinstance(found, PatternTraceError):
            raise found
        return found

    # ---- structures

    def _structures_for(self, examples: tuple[TensorType | Number, ...], numerics: str) -> list[Structure]:
        """The forms that the pattern has for tensors like these, of known sizes or not."""
        key = (examples, numerics)
        found = self._structures.get(key)
        if found is not None:
            return found
        known = [*self._forms(examples, {}, numerics), *self._forms(with_powers(examples), {}, numerics)]
        pairs = [with_symbols(e) if isinstance(e, TensorType) else (e, {}) for e in examples]
        ranges = {name: bounds for _, table in pairs for name, bounds in table.items()}
        dynamic = self._forms(tuple(e for e, _ in pairs), ranges, numerics)
        # A constant that does not hang on sizes is the same in both.
        shapes = {p.shape for p in dynamic}
        patterns = {p.shape: Structure(p, p.shape in shapes) for p in (*known, *dynamic)}
        return self._structures.setdefault(key, list(patterns.values()))

    def _forms(self, arguments: tuple[TensorType | Number, ...], ranges: Ranges, numerics: str) -> list[Pattern]:
        try:
            traced = self._traced(self.pattern, arguments, ranges, numerics)
        except PatternTraceError:
            return []
        forms = [traced.plain, traced.canonical]
        return [
            Pattern(p.func, _numbers(p, self._numbers))
            for p in forms
            if all(a.uses for a in p.inputs) and not any(isinstance(v, BlockArgument) for v in p.outputs)
        ]

    def _all_structures(self, func: FuncOp, numerics: str) -> Iterator[Structure]:
        """Forms for the floating types and the device that a function has; those of the examples alone where they are of several types."""
        types = {r.type: None for op in func.body.block.ops for r in op.results if isinstance(r.type, TensorType)}
        tensors = [e for e in self.examples if isinstance(e, TensorType)]
        own = {e.element_type for e in tensors if e.element_type in FLOATS}
        wanted = sorted({t.element_type for t in types if t.element_type in FLOATS}, key=str) if len(own) == 1 else [None]
        devices = {t.device.data for t in types} - {"cpu"} if len({e.device for e in tensors}) == 1 else set()
        seen: set[str] = set()
        for dtype in wanted or [None]:
            examples = tuple(_like(e, dtype, devices) if isinstance(e, TensorType) else e for e in self.examples)
            for structure in self._structures_for(examples, numerics):
                if structure.key not in seen:
                    seen.add(structure.key)
                    yield structure

    # ---- when it runs

    def run(self, module: ModuleOp) -> None:
        """Rewrite the functions of a module. Raises PassError."""
        self._forget_old_traces()
        table, numerics = module.attributes.get("nd.symbols"), module.attributes.get("nd.numerics")
        ranges: Any = table.data if isinstance(table, DictionaryAttr) else {}
        kind = numerics.data if isinstance(numerics, StringAttr) else "default"
        for func in [f for f in module.ops if isinstance(f, FuncOp)]:
            present = {type(op) for op in func.body.block.ops}
            if LOWERED & present:
                raise PassError("a pair works on tensors, what stands here are nests: the stage 'nd' is the place for it", op=func)
            structures = [s for s in self._all_structures(func, kind) if s.pattern.classes <= present]
            for op in reversed(list(func.body.block.ops)) if structures else ():
                if op.parent is not None:
                    self._at(op, structures, ranges, kind)

    def _at(self, op: Operation, structures: Sequence[Structure], ranges: Ranges, numerics: str) -> None:
        reason = ""
        for structure in structures:
            for found in islice(structure.matches(op), WAYS):
                refused = self._rewritten(found, op, ranges, numerics)
                if refused is None:
                    statistic("num-replaced")
                    return
                reason = reason or refused
        if reason:
            remark(op, reason, "missed")

    def _rewritten(self, found: Found, op: Operation, ranges: Ranges, numerics: str) -> str | None:
        """Rewrite what was found by structure; or the reason why not."""
        arguments = self._arguments(found)
        if arguments is None:
            return "the pattern takes other numbers or element types"
        try:
            old = self._traced(self.pattern, arguments, ranges, numerics)
        except PatternTraceError as error:
            return f"the pattern does not take these arguments: {error}"
        if old.decided:
            return f"the pattern is another one for other sizes: it asks whether {old.decided}"
        forms = (m for form in (old.plain, old.canonical) for m in islice(matches(form, op, exact=True), WAYS))
        exact = next(forms, None)
        if exact is None:
            return "alike in structure, but not in sizes, element types or constants"
        if (shared := exact.used_elsewhere()) is not None:
            return f"what '{shared.name}' computes inside of the pattern is used elsewhere too"
        if self.check is not None and (refused := self._refused(exact, arguments, ranges)):
            return refused
        try:
            new = self._traced(self.replacement, arguments, ranges, numerics)
        except PatternTraceError as error:
            raise PassError(f"replacement {_name(self.replacement)} cannot be traced for {_listed(arguments)}: {error}", op=op) from error
        if new.decided:
            return f"the replacement is another one for other sizes: it asks whether {new.decided}"
        if difference := _difference(old, new):
            text = f"replacement {_name(self.replacement)} {difference} as the pattern does, for {_listed(arguments)}"
            raise PassError(f"{text}; `check` can refuse such a match", op=op)
        if wrong := self._wrong(arguments, ranges):
            raise PassError(wrong, op=op)
        remark(op, lambda: f"{_name(self.replacement)} takes the place of {len(exact.ops)} operations", "applied")
        return put_in_place(exact, new.canonical)

    def _arguments(self, found: Found) -> tuple[TensorType | Number, ...] | None:
        """What the functions would be called with at a place."""
        tensors = iter(found.inputs)
        arguments: list[TensorType | Number] = []
        for name, example in zip(self.parameters, self.examples, strict=True):
            if isinstance(example, TensorType):
                t = next(tensors).type
                if not isinstance(t, TensorType) or not is_traceable(t):
                    return None
                arguments.append(t)
                continue
            number = found.numbers[name]
            if isinstance(example, int) and (not math.isfinite(number) or number != int(number)):
                return None
            arguments.append(int(number) if isinstance(example, int) else float(number))
        return tuple(arguments)

    def _refused(self, found: Found, arguments: Sequence[TensorType | Number], ranges: Ranges) -> str:
        """Why `check` does not want a match; nothing where it does."""
        assert self.check is not None
        made, decided = examples(arguments, ranges)
        op = found.outputs[0].owner
        assert isinstance(op, Operation)
        try:
            wanted = self.check(Match(dict(zip(self.parameters, made, strict=True)), op))
            wanted = bool(wanted)
        except Exception as error:
            raise PassError(f"the check of pattern {_name(self.pattern)} failed: {type(error).__name__}: {error}", op=op) from error
        if conditions := decided():
            return f"the check asks whether {conditions}, which is not known of all sizes"
        return "" if wanted else "refused by the check"

    # ---- for caches

    def identity(self) -> str:
        """See `ReplacePass.identity`."""
        return self._meaning(lasting=True)

    def _meaning(self, lasting: bool) -> str:
        functions = ((self.pattern, "the pattern"), (self.replacement, "the replacement"), (self.check, "the check"))
        return " ".join((str(self.examples), *(meaning(fn, role, lasting) for fn, role in functions)))

    def _forget_old_traces(self) -> None:
        """Drop what was traced of functions that read something else by now."""
        try:
            now = self._meaning(lasting=False)
        except Uncacheable:
            now = None
        if now is None or now != self._traced_meaning:
            self._traces.clear()
            self._verified.clear()
            self._structures.clear()
        self._traced_meaning = now


@dataclass(frozen=True)
class Structure:
    """A form of a pattern. `fixed`: its constants are the same for all sizes."""

    pattern: Pattern
    fixed: bool

    @property
    def key(self) -> str:
        return f"{self.pattern.shape} {self.fixed}"

    def matches(self, op: Operation) -> Iterator[Found]:
        """Where the form stands, by structure."""
        for found in matches(self.pattern, op, exact=False):
            if not self.fixed or self._same_constants(found):
                yield found

    def _same_constants(self, found: Found) -> bool:
        constants = [op for op in self.pattern.ops if isinstance(op, nd.FullOp) and op not in self.pattern.numbers]
        values = [(op.value.value.data, found.values[op.result].owner.value.value.data) for op in constants]  # pyright: ignore
        return all(a == b or math.isclose(a, b, rel_tol=1e-2) for a, b in values)


def _numbers(pattern: Pattern, numbers: Mapping[str, Number]) -> dict[Operation, str]:
    """The constants of a pattern that stand for numbers, with the name of each."""
    found: dict[Operation, str] = {}
    for op in pattern.ops:
        if isinstance(op, nd.FullOp):
            for name, number in numbers.items():
                if number_attr(number, op.value.type) == op.value:
                    found.setdefault(op, name)
    return found


def _like(t: TensorType, dtype: Any, devices: set[str]) -> TensorType:
    """A type with another floating type, and on the device that a function computes on."""
    element = dtype if dtype is not None and t.element_type in FLOATS else t.element_type
    return TensorType.get(t.dims, element, next(iter(devices)) if len(devices) == 1 else t.device.data)


def _difference(old: Traced, new: Traced) -> str:
    """What the second returns that the first does not; nothing where they agree."""
    wanted, got = old.output_types, new.output_types
    if wanted == got:
        return ""
    return f"returns {_listed(got)}, not {_listed(wanted)}"


def _listed(arguments: Sequence[Any]) -> str:
    return ", ".join(str(a) for a in arguments)
