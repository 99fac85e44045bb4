"""Entries, kernels, functions of products and attention and the runtime as one relocatable object.

Each is a module of LLVM; they are linked as modules, all but the interface's functions gets internal linkage, and the code generator runs
once. Functions carry the instruction set that they are for as attributes, so that several levels are in one object. What depends on no
level (the runtime, the signature) is code for every processor of the architecture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llvmlite import binding

from ....dialects.host import ReturnOp, program_of
from ...cpu.emit.module import emit_kernels
from ...cpu.features import Target
from ...cpu.jit import LlvmError, machine_for, object_symbols
from ...cpu.library import module_of, spec_of
from .dtypes import DlpackType
from .emit import emit_c_entry
from .layouts import returned_value, value_of
from .levels import baseline, capability, is_arm, needs, ordered, portable, target_of_level
from .plan import EntryPlan, Given, Kernel
from .runtime import API, GPU_API, PACKAGE, WEIGHTS, runtime_text
from .signature import Signature, SignatureText
from .weights import DECLARED, with_weights

if TYPE_CHECKING:
    from ...triton.kernels import Binary, GpuKernel

ALLOWED = frozenset((
    "_GLOBAL_OFFSET_TABLE_", "__tls_get_addr", "aligned_alloc", "calloc", "dlopen", "dlsym", "free", "getauxval", "getpid", "memcpy",
    "memmove", "memset", "pthread_cond_broadcast", "pthread_cond_wait", "pthread_create", "pthread_join", "pthread_mutex_lock",
    "pthread_mutex_trylock", "pthread_mutex_unlock", "sched_getaffinity", "snprintf", "strcmp", "syscall",
))  # fmt: skip
"""What an object may need of the C library and of the linker, functions of mathematics aside."""

_HEAD = re.compile(r'nounwind "prefer-vector-width"="512" \{$', re.MULTILINE)
_KEPT = re.compile(r"^@(\w+_kept) = internal global", re.MULTILINE)


def signature_of(plan: EntryPlan) -> Signature:
    """What an entry takes and gives."""
    program = program_of(plan.module)
    last = program.body.block.last_op
    inputs = {**plan.unused}
    for argument, source in zip(program.body.block.args, plan.arguments, strict=True):
        if isinstance(source, Given):
            inputs[source.number] = value_of(argument, source.name, plan)
    assert isinstance(last, ReturnOp)
    results = [replace(returned_value(plan, last, k), name=wanted.name) for k, wanted in enumerate(plan.results)]
    return Signature(plan.name, tuple(inputs[k] for k in sorted(inputs)), tuple(results), plan.ranges)


class Unit:
    """Modules of LLVM that become one object."""

    def __init__(self, name: str, levels: Sequence[str] = ("cpu-v3",)):
        self.name = name
        self.levels = ordered(levels)
        self.device = "cuda" if self.levels[0].startswith("sm_") else "cpu"
        self.baseline = baseline(self.levels[0])
        self._machine = machine_for(self.baseline, 2)
        binding.initialize_native_asmparser()  # for instructions without an intrinsic (levels.ll)
        self._module: Any = self._parse(f'target triple = "{self.baseline.triple}"\n')
        self._library: dict[str, list[str]] = {}
        """The functions of products and attention that are linked, and what they keep."""
        self._kernels: list[Kernel] = []

    def _parse(self, text: str) -> Any:
        try:
            return binding.parse_assembly(text)  # in the process's context, which outlives all modules
        except RuntimeError as error:
            raise LlvmError(f"LLVM cannot read the text of the object: {error}") from error

    def _link(self, text: str, seen: Sequence[str] = ()) -> None:
        """Add a module; with `seen`, nothing else of it can be referred to."""
        module = self._parse(text)
        for value in (*module.functions, *module.global_variables) if seen else ():
            if not value.is_declaration and value.name not in seen:
                value.linkage = "internal"
        self._module.link_in(module)

    def entry(self, plan: EntryPlan, level: str, symbol: str) -> None:
        """Add the entry and the kernels of a plan, for a level."""
        wanted = target_of_level(level)
        unit = emit_kernels(plan.module, wanted)
        first = len(self._kernels)
        self._kernels += plan.kernels
        kernels = {kernel.name: (first + k, kernel) for k, kernel in enumerate(plan.kernels)}
        emit_c_entry(unit, program_of(plan.module), plan, symbol, kernels if self.device == "cuda" else None)
        self._link(unit.text(), [symbol])
        for called in unit.declarations:
            if called not in self._library and (spec := spec_of(called)) is not None:
                text = _for_target(module_of(spec), wanted)
                self._library[called] = _KEPT.findall(text)
                self._link(_KEPT.sub(r"@\1 = global", text))

    def build(self, plans: Mapping[str, Sequence[EntryPlan]], weight_bytes: int, state_bytes: int) -> bytes:
        """The object: for each level all entries, in the same order, those for later GPUs last, without the content of its weights
        (weights.py); updated buffers begin as the first `state_bytes` of them."""
        symbols: list[str] = []
        made = [(level, plan) for level in self.levels for plan in plans[level]]
        if later := portable(self.levels):
            made += [(later, replace(plan, kernels=[FromPtx.of(kernel) for kernel in plan.kernels])) for plan in plans[later]]
        for level, plan in made:
            symbols.append(f"{self.name}_{re.sub(r'[-.]', '_', level)}_{len(symbols)}")
            self.entry(plan, level, symbols[-1])
        signatures = [signature_of(plan) for plan in plans[self.levels[0]]]
        self._link(self._package(signatures, symbols, weight_bytes, state_bytes))
        self._link(runtime_text(self.name, "arm" if is_arm(self.levels[0]) else self.device))
        self._hide()
        text = with_weights(str(self._module), weight_bytes, is_arm(self.levels[0]))
        module = self._parse(text)
        module.verify()
        code = self._machine.emit_object(module)
        _check_symbols(code)
        return code

    def _package(self, signatures: Sequence[Signature], symbols: Sequence[str], weight_bytes: int, state_bytes: int) -> str:
        text = SignatureText()
        entries = text.entries(signatures)
        later = portable(self.levels)
        levels = [*self.levels, *([later.replace("sm_", "ptx_")] if later else ())]
        names = [text.text(level) for level in levels]
        kept = [one for found in self._library.values() for one in found]
        n = len(levels)
        functions = ", ".join(f"ptr @{symbol}" for symbol in symbols)
        numbers = [*map(capability, self.levels), *([-capability(later)] if later else ())] if self.device == "cuda" else []
        capabilities = ", ".join(f"i32 {number}" for number in numbers)
        types = "i32, i32, ptr, ptr, ptr, ptr, i64, ptr, ptr, i64, i64, ptr"
        table = _kernel_table(self._kernels, text)
        return "\n".join([
            DECLARED,
            *text.globals,
            *(f"declare i32 @{symbol}(ptr, ptr, ptr, i32)" for symbol in symbols),
            *(f"@{one} = external global ptr" for one in kept),
            "declare void @free(ptr)",
            f"@stepwell_c_needs = internal constant [{n} x i64] [{', '.join(f'i64 {bits}' for bits in needs(levels))}]",
            f"@stepwell_c_capabilities = internal constant [{n if capabilities else 0} x i32] [{capabilities}]",
            table,
            f"@stepwell_c_levels = internal constant [{n} x ptr] [{', '.join(f'ptr {name}' for name in names)}]",
            f"@stepwell_c_functions = internal constant [{len(symbols)} x ptr] [{functions}]",
            f"@{PACKAGE} = hidden constant {{ {types} }} {{ i32 {len(signatures)}, i32 {n}, "
            "ptr @stepwell_c_needs, ptr @stepwell_c_levels, ptr @stepwell_c_functions, "
            f"ptr {entries}, i64 {state_bytes}, ptr @{WEIGHTS}, "
            f"ptr @stepwell_c_capabilities, i64 {weight_bytes}, i64 {len(self._kernels)}, ptr @stepwell_c_kernels }}",
            _type_names(text), _forget(kept),
        ])  # fmt: skip

    def _hide(self) -> None:
        """Nothing but the interface can be seen from outside."""
        interface = {f"{self.name}_{function}" for function in (*API, *GPU_API)}
        for value in (*self._module.functions, *self._module.global_variables):
            if not value.is_declaration and value.name not in interface:
                value.linkage = "internal"


@dataclass(frozen=True)
class FromPtx:
    """A kernel whose variants are PTX, which the driver compiles for the GPU that there is."""

    kernel: GpuKernel
    name: str
    aligned: tuple[int, ...]
    even: tuple[int, ...]

    @staticmethod
    def of(kernel: Any) -> FromPtx:
        """A kernel that has binaries."""
        return FromPtx(kernel, kernel.name, kernel.aligned, kernel.even)

    def variant(self, addresses: bool, sizes: bool) -> Binary:
        """The variant with its PTX, a text that a zero ends, as code."""
        return replace(self.kernel.variant(addresses, sizes), code=self.kernel.ptx(addresses, sizes).encode() + b"\0")


def _kernel_table(kernels: Sequence[Kernel], names: SignatureText) -> str:
    """The variants of kernels of a GPU, in the order of gpu.ll; one that is the first again has its code."""
    codes: dict[bytes, str] = {}
    lines: list[str] = []
    rows: list[str] = []
    for kernel in kernels:
        for addresses, sizes in ((True, True), (False, False), (True, False)):
            binary = kernel.variant(addresses, sizes)
            if binary.code not in codes:
                codes[binary.code] = f"@stepwell_c_code{len(codes)}"
                escaped = "".join(f"\\{byte:02X}" for byte in binary.code)
                lines.append(f'{codes[binary.code]} = internal constant [{len(binary.code)} x i8] c"{escaped}", align 64')
            name = names.text(binary.name)
            rows.append(f"{{ ptr, ptr, i64, i64 }} {{ ptr {codes[binary.code]}, ptr {name}, i64 {binary.threads}, i64 {binary.shared} }}")
    table = f"@stepwell_c_kernels = internal constant [{len(rows)} x {{ ptr, ptr, i64, i64 }}] [{', '.join(rows)}]"
    return "\n".join([*lines, table])


def _for_target(text: str, wanted: Target) -> str:
    """The text of a function of products or attention, for an instruction set."""
    features = f'"target-cpu"="{wanted.cpu}" "target-features"="{wanted.features}"'
    return _HEAD.sub(lambda _: f'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {features} {{', text)


def _type_names(text: SignatureText) -> str:
    """The function that names a type, for messages."""
    start = len(text.globals)
    rows = [(one.word, text.text(one.name)) for one in DlpackType]
    unknown = text.text("a type without a name")
    cases = "\n".join(f"    i32 {word}, label %t{k}" for k, (word, _) in enumerate(rows))
    blocks = "\n".join(f"t{k}:\n  ret ptr {name}" for k, (_, name) in enumerate(rows))
    head = "define ptr @stepwell_c_type_name(i32 %type) {\n  switch i32 %type, label %other ["
    return "\n".join([*text.globals[start:], head, cases, "  ]", blocks, f"other:\n  ret ptr {unknown}\n}}"])


def _forget(kept: Sequence[str]) -> str:
    """The function that frees what functions keep from call to call; it runs when there is no model."""
    lines: list[str] = []
    for k, name in enumerate(kept):
        lines += [f"  %p{k} = atomicrmw xchg ptr @{name}, ptr null acquire", f"  call void @free(ptr %p{k})"]
    return "\n".join(["define void @stepwell_c_forget() {", *lines, "  ret void", "}"])


def _check_symbols(code: bytes) -> None:
    """LlvmError where an object needs more than the C library has."""
    _, undefined = object_symbols(code)
    foreign = sorted(name for name in undefined if name not in ALLOWED and not _is_libm(name))
    if foreign:
        raise LlvmError(f"the object needs functions that no C library has: {', '.join(foreign)}")


def _is_libm(name: str) -> bool:
    from ...cpu.emit.math import EAGER, FUNCTIONS

    known = {f.libm for f in (*FUNCTIONS.values(), *EAGER.values()) if f.libm is not None}
    return name in known or name.removesuffix("f") in known
