"""The dialect `stepwell`: what is said of a whole module. `stepwell.machine`, an attribute of the module, names the machine that it is
compiled for. `stepwell.order` says that each sum has one order: "fixed", whatever else is computed beside it; "repeatable", in every run
of the same program. `stepwell.max_memory` is how many bytes a call may take. `stepwell.recorded_launches`: what a call launches on a GPU is
recorded once and then replayed as a whole. `stepwell.measured_products`: the program measures the library's algorithms for its products.

    builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90", multiprocessors = 132>} { ... }
    builtin.module attributes {stepwell.order = "fixed", stepwell.max_memory = 2147483648 : i64} { ... }
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Data, Dialect, Operation
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..errors import StepwellError, UserError

MACHINE = "stepwell.machine"
"""The attribute of a module that names its machine."""
ORDER = "stepwell.order"
"""The attribute of a module whose sums have one order in every run: "repeatable", or "fixed", where it depends on what they add alone."""
MAX_MEMORY = "stepwell.max_memory"
"""The attribute of a module that says how many bytes a call may take beyond what its caller holds."""
RECORDED_LAUNCHES = "stepwell.recorded_launches"
"""The attribute of a module whose launches are replayed from a recording, so that the host's time for each does not count."""
MEASURED_PRODUCTS = "stepwell.measured_products"
"""The attribute of a module whose products of matrices by the library are measured when they are first computed."""
USUAL_GPU = "sm_90"
"""The GPU that is meant where none is named."""
NUMBERS: Mapping[str, Mapping[str, int]] = {
    "cpu": {"threads": 1, "library": 0},
    "gpu": {"multiprocessors": 1, "memory_gbs": 1, "device": 0, "library": 0},
}
"""Kind of machine -> the numbers that its attribute may hold, each with the least value that it may have. `memory_gbs`: GB/s of a copy,
where the card has another memory than the usual one of its architecture. `library` is 0 where nothing of torch runs: every operator is
computed by code of ours."""
_NAMES = {"cpu": re.compile("cpu"), "nvidia": re.compile(r"sm_\d{2,3}[af]?"), "amd": re.compile("gfx[0-9a-f]{3,4}")}
"""Whose instructions a machine has -> how such machines are called."""


class OrderError(UserError):
    """A sum whose order is not known, or depends on more than its terms, in a module that promises otherwise."""


class MemoryBoundError(UserError):
    """A graph that takes more memory than it may, however it is planned."""


class TargetError(StepwellError):
    """A machine that there is no target for, an option that it does not have, or a toolchain that is not installed."""


@dataclass(frozen=True)
class NamedMachine:
    """A machine by name ("cpu", or the architecture of a GPU), with what is known of the one at hand. Raises TargetError for a name that
    is none, and for numbers that it does not have."""

    name: str
    numbers: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.maker:
            raise TargetError(f"there is no machine '{self.name}' (cpu; GPUs: sm_80, sm_90, gfx942 and the like)")
        known = NUMBERS[self.kind]
        for key, value in self.numbers:
            if key not in known:
                raise TargetError(f"machine '{self.name}' has no '{key}'; what can be said of it: {', '.join(known)}")
            if value < known[key]:
                raise TargetError(f"machine '{self.name}': {key} = {value} is less than {known[key]}")

    @property
    def kind(self) -> str:
        """ "cpu" or "gpu"."""
        return "cpu" if self.name == "cpu" else "gpu"

    @property
    def maker(self) -> str:
        """Whose instructions it has: "cpu", "nvidia", "amd"; "" for a name that is none."""
        return next((maker for maker, names in _NAMES.items() if names.fullmatch(self.name)), "")


def has_fixed_order(op: Operation) -> bool:
    """Whether the order of a sum may depend on nothing but its terms: not on how many others there are, nor on threads."""
    module = module_of(op)
    return module is not None and module.attributes.get(ORDER) == StringAttr("fixed")


def is_repeatable(op: Operation) -> bool:
    """Whether sums have the same order in every run."""
    module = module_of(op)
    return module is not None and module.attributes.get(ORDER) in (StringAttr("fixed"), StringAttr("repeatable"))


def measures_products(op: Operation) -> bool:
    """Whether products by the library are measured when they are first computed."""
    module = module_of(op)
    return module is not None and MEASURED_PRODUCTS in module.attributes


def max_memory(op: Operation) -> int | None:
    """The bytes that a call of `op`'s module may take beyond what its caller holds; None: any."""
    module = module_of(op)
    given = module.attributes.get(MAX_MEMORY) if module is not None else None
    return given.value.data if isinstance(given, IntegerAttr) else None


def records_launches(op: Operation) -> bool:
    """Whether what `op`'s module launches is to be replayed as a whole."""
    module = module_of(op)
    return module is not None and RECORDED_LAUNCHES in module.attributes


def has_library(op: Operation) -> bool:
    """Whether operators with sums in them may be calls of torch's library on the machine of `op`'s module: unless that says `library = 0`,
    or sums have a fixed order, which the library does not promise."""
    if has_fixed_order(op):
        return False
    named = named_machine(op)
    return named is None or dict(named.numbers).get("library", 1) != 0


@irdl_attr_definition
class MachineAttr(Data[NamedMachine]):
    """The machine that a module is compiled for: `#stepwell.machine<"sm_90", multiprocessors = 132>`, `<"cpu", threads = 4>`."""

    name = MACHINE

    @classmethod
    def get(cls, name: str, **numbers: int) -> MachineAttr:
        """The attribute of a machine. Raises TargetError, see NamedMachine."""
        return cls(NamedMachine(name, tuple(numbers.items())))

    @classmethod
    def from_text(cls, text: str) -> MachineAttr:
        """The same from `sm_90` or `sm_90,multiprocessors=132`, as flags write it. Raises TargetError."""
        name, *rest = (part.strip() for part in text.split(","))
        numbers: dict[str, int] = {}
        for part in rest:
            key, _, value = part.partition("=")
            if not value.strip().isdecimal():
                raise TargetError(f"machine '{name}': expected a number in 'name=number', not '{part}'")
            numbers[key.strip()] = int(value)
        return cls.get(name, **numbers)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> NamedMachine:
        with parser.in_angle_brackets():
            start = parser.pos
            name = parser.parse_str_literal(" of a machine")
            numbers: list[tuple[str, int]] = []
            while parser.parse_optional_punctuation(","):
                key = parser.parse_identifier(" (something that is known of the machine)")
                parser.parse_punctuation("=")
                numbers.append((key, parser.parse_integer()))
            try:
                return NamedMachine(name, tuple(numbers))
            except StepwellError as error:
                parser.raise_error(str(error), start, parser.pos)

    def print_parameter(self, printer: Printer) -> None:
        numbers = "".join(f", {key} = {value}" for key, value in self.data.numbers)
        printer.print_string(f'<"{self.data.name}"{numbers}>')


KERNELS = {"cpu.kernel": ("cpu",), "tt.func": ("nvidia", "amd")}
"""Operations that hold instructions of a machine -> the makers of such machines."""


def set_machine(module: ModuleOp, machine: MachineAttr) -> None:
    """Say that `module` is for another machine. TargetError if it holds kernels for machines of another maker."""
    wanted, now = machine.data, module.attributes.get(MACHINE)
    for op in module.ops:
        makers = KERNELS.get(op.name, (wanted.maker,))
        if wanted.maker not in makers or (op.name in KERNELS and isinstance(now, MachineAttr) and now.data.maker != wanted.maker):
            known = f"for the machine '{now.data.name}'" if isinstance(now, MachineAttr) else f"as '{op.name}'"
            raise TargetError(f"the kernels of the module were lowered {known}; for '{wanted.name}' lower the nests (stage mem) anew")
    module.attributes[MACHINE] = machine


def module_of(op: Operation) -> ModuleOp | None:
    """The outermost module around `op`, `op` itself included."""
    found: ModuleOp | None = None
    around: Operation | None = op
    while around is not None:
        found = around if isinstance(around, ModuleOp) else found
        around = around.parent_op()
    return found


def named_machine(op: Operation) -> NamedMachine | None:
    """The machine that the module of `op` names. Raises VerifyException for an attribute of another type."""
    module = module_of(op)
    attr = module.attributes.get(MACHINE) if module is not None else None
    if attr is None or isinstance(attr, MachineAttr):
        return attr.data if attr is not None else None
    raise VerifyException(f'{MACHINE}: expected #stepwell.machine<"NAME">, got {attr}')


Stepwell = Dialect("stepwell", [], [MachineAttr])
