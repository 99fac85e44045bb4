"""`tt` modules as the text that a version of Triton reads.

The readable form is written, which Triton 3.6 to 3.9 accept as much as the generic one; what they spell differently is
written for one of them (`Spelling`)."""

from __future__ import annotations

from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue, TypeAttribute
from xdsl.printer import Printer

from ...dialects.machine import MACHINE
from ...dialects.tt.structure import OVERLAPS, RARE, FuncOp
from ...dialects.tt.types import SPELLINGS, Spelling, spelled
from ...passes.manager.errors import PassError
from .device_library import library_of
from .gpu import OPTION_NAMES

DIALECTS = frozenset({"tt", "arith", "math", "scf", "cf", "ub", "gpu", "builtin"})
"""Whose operations a module may hold that Triton reads."""


_BESIDE = OPTION_NAMES | {RARE, OVERLAPS}


class _Nowhere(Printer):
    """Writes one location everywhere and numbers for names: the text, and the binary that is made of it, then depend on no file or name of
    a program. Each type is printed once, and found again after."""

    _printed: dict[Attribute, str]

    def __init__(self, stream: StringIO) -> None:
        super().__init__(stream=stream)
        self._printed = {}

    def print_attribute(self, attribute: Attribute) -> None:
        if not isinstance(attribute, TypeAttribute):  # NaNs that count as equal have bits of their own
            super().print_attribute(attribute)
            return
        text = self._printed.get(attribute)
        if text is None:
            outer, self.stream = self.stream, StringIO()
            super().print_attribute(attribute)
            text = self._printed[attribute] = self.stream.getvalue()
            self.stream = outer
        self.print_string(text)

    def print_op(self, op: Operation) -> None:
        # xDSL's own printing of locations puts some where MLIR has none. An unknown one does not do for calls.
        super().print_op(op)
        self.print_string(' loc("kernel":1:1)')

    def print_ssa_value(self, value: SSAValue) -> str:
        name = self._ssa_values.get(value)
        if name is None:
            name = self._ssa_values[value] = self._get_new_valid_name_id()
        self.print_string(f"%{name}")
        return name


def spelling_of(version: str) -> Spelling:
    """How a version of Triton (`3.8.0`) writes `tt`."""
    number = tuple(int(part) for part in version.split(".")[:2])
    return Spelling(cache_policy=number >= (3, 9), short_descriptors=number >= (3, 8))


def kernel_of(module: ModuleOp) -> FuncOp:
    """The only kernel of a module.  PassError if it has none or several."""
    kernels = [op for op in module.ops if isinstance(op, FuncOp) and op.is_kernel]
    if len(kernels) == 1:
        return kernels[0]
    if not kernels:
        raise PassError("the module holds no kernel (a public tt.func with a body)", op=module)
    names = ", ".join(f"@{k.sym_name.data}" for k in kernels)
    raise PassError(f"Triton compiles one kernel a module, this one has {names}", op=kernels[1])


def kernel_modules(module: ModuleOp) -> list[ModuleOp]:
    """A module for each kernel, with the functions that kernels call; what launches them stays behind. A module
    without such a program is taken as it is."""
    if not any(op.name in ("func.func", "host.program") for op in module.ops):
        if MACHINE in module.attributes:  # Triton does not know it
            module = module.clone()
            del module.attributes[MACHINE]
        return [module]
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    kernels = [f for f in functions if f.is_kernel]
    others = [f for f in functions if not f.is_kernel]
    # the kernel first: what comes first is the kernel for AMD's back end
    return [ModuleOp([f.clone() for f in (k, *others)]) for k in kernels] or [module]


def check_dialects(module: ModuleOp) -> None:
    """PassError at the first operation that Triton does not know."""
    for op in module.walk():
        if op.name.partition(".")[0] not in DIALECTS:
            raise PassError("Triton has no such operation; lower it first", op=op)


def ttir_text(module: ModuleOp, spelling: Spelling | None = None) -> str:
    """The text of a module for people and for Triton; the spelling of 3.6 if none is given.

    Raises PassError if the module holds no kernel or something that Triton does not know."""
    return _text(module, spelling, Printer)


def ttir_for_compiling(module: ModuleOp, spelling: Spelling, backend: str = "cuda") -> str:
    """The text of a module without any place in a file: equal kernels have equal texts, and equal binaries. It calls the device library of
    `backend` (Triton's name: `cuda` or `hip`).

    Raises PassError if the module holds no kernel or something that Triton does not know."""
    with _without_options(module), library_of(module, backend):
        return _text(module, spelling, _Nowhere)


def _text(module: ModuleOp, spelling: Spelling | None, printer: type[Printer]) -> str:
    kernel_of(module)
    check_dialects(module)
    out = StringIO()
    with spelled(spelling or SPELLINGS["3.6"]):
        printer(stream=out).print_op(module)
    out.write("\n")
    return out.getvalue()


class _without_options:
    """Takes the options off the functions of a module for a while: they go to Triton beside the text, or are none of its business."""

    def __init__(self, module: ModuleOp) -> None:
        self.ops: list[Operation] = [op for op in module.ops if _BESIDE & op.attributes.keys()]
        self.kept = [op.attributes for op in self.ops]

    def __enter__(self) -> None:
        for op, attributes in zip(self.ops, self.kept, strict=True):
            op.attributes = {k: v for k, v in attributes.items() if k not in _BESIDE}

    def __exit__(self, *_: object) -> None:
        for op, attributes in zip(self.ops, self.kept, strict=True):
            op.attributes = attributes
